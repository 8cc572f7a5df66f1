"""The comparison of runs: what was set differently, and the same quantities side by side."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpbayes import __version__
from dpbayes._arguments import Floats
from dpbayes.errors import DamagedFileError, InputError
from dpbayes.report.document import Block, Callout, Column, Document, Fact, Figure, Paragraph, Section, Table, is_number
from dpbayes.report.plots import intervals_of_runs, ladder_panels

type Scalar = str | int | float | bool | None
type Row = Mapping[str, Scalar]
type Ladder = tuple[str, list[float]] | None  # the number that alone tells the runs apart
MOST_ROWS, MOST_OPEN, MOST_DRAWN, MOST_COLUMNS = 120, 24, 16, 9
_OF_THE_SAMPLER = ("draws", "rhat", "ess_bulk")
_UNEVEN = 30.0  # widths of rows further apart are in units of their own
# Tables that answer what the page asks: the questions of a verification, pooled where they are.
ANSWERS = ("pooled", "answers")
_TERMS = {"adjacency": "adjacency", "unit": "neighbours differ in one", "delta": "delta"}
_DIFFERENT = {
    "adjacency": "Epsilons under different adjacencies promise different things; do not rank them.",
    "unit": "An epsilon protects what neighbouring data sets differ in, and no more; do not rank epsilons of different "
    "units.",
    "delta": "An epsilon holds at its own delta: the same noise has a smaller epsilon at a larger delta.",
}
_ONE_POSITION = (
    "one-position: a person more or less changes one position of the filters; one person exchanged for another changes "
    "two, and costs more than the epsilon stated."
)
# Settings that name a study and change no number.
_WORDS = ("title", "question")
_MISSING = "–"
_PARTS = {"tables", "headline", "privacy", "about", "verdict", "provenance"}
# A number as a caption prints it: 10, 1,000, 0.5, 1e-05; not the sign before it, nor a full stop after it.
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


def compare_runs(folders: Sequence[str | Path]) -> Document:
    """Build the report that compares finished runs.

    Parameters
    ----------
    folders
        Two or more run folders, of one system or of systems whose pages share tables.

    Returns
    -------
    Document
        The settings that differ, the numbers at the top of the pages, and every table that all runs share, with plots
        of the intervals. A number that alone differs (an epsilon ladder) becomes the axis.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dpbayes.runs import execute, load_spec
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = [Path(folder, f"epsilon-{epsilon}") for epsilon in (0.5, 2)]
    ...     for run, epsilon in zip(runs, (0.5, 2), strict=True):
    ...         spec = load_spec("models/verifier_threshold.toml", [f"privacy.epsilon={epsilon}"])
    ...         _ = execute(spec, out=run, progressbar=False, echo=lambda line: None)
    ...     compare_runs(runs).question
    'What changes with privacy.epsilon?'
    """
    runs = read_runs(folders)
    tables = shared_tables(runs)
    tops = [run.facts["headline"] for run in runs]
    names = [name for name in tops[0] if all(is_number(top.get(name)) for top in tops)]
    headline = {name: [_number(top[name]) for top in tops] for name in names}
    if not tables and not headline:
        held = {run.label: [*run.facts["headline"], *run.facts["tables"]] for run in runs}
        has = "; ".join(f"{label}: {', '.join(names) or 'nothing'}" for label, names in held.items())
        raise InputError(f"the runs share no quantity ({has}); compare runs of one system")
    differing = differing_settings([run.settings for run in runs])
    ladder, labels = _ladder(differing), [run.label for run in runs]
    sections = [_settings_section(runs, differing)]
    if headline:
        sections.append(_headline_section(runs, headline, ladder))
    sections += [_table_section(runs, table, ladder) for table in tables]
    asked = _asked(tables)
    none = f"The runs share {len(tables)} tables, set side by side below; none of them holds an interval."
    parts = ("headline", "privacy")
    facts = {run.label: {"settings": run.settings} | {part: run.facts[part] for part in parts} for run in runs}
    return Document(
        title=f"{len(runs)} runs compared",
        question=f"What changes{f' with {" and ".join(differing)}' if 0 < len(differing) <= 3 else ''}?",
        answer=none if asked is None else _answer(runs, asked),
        verdict=_verdict(runs),
        headline=[
            Fact("runs", "runs", len(runs), f"{len(runs)}"),
            Fact("settings", "settings that differ", len(differing), f"{len(differing)}"),
            Fact("tables", "tables that all runs share", len(tables), f"{len(tables)}"),
        ],
        sections=sections,
        provenance={"dpbayes": __version__} | {run.label: run.folder.name for run in runs},
        facts={"runs": facts},
        picture=None if asked is None else _interval_figure(asked, asked.intervals[0], labels),
    )


def _ladder(differing: Mapping[str, Sequence[Scalar]]) -> Ladder:
    """Return the one setting that differs, if it is a number that no two runs share."""
    if len(differing) != 1:
        return None
    ((name, values),) = differing.items()
    numbers = [_number(value) for value in values if is_number(value)]
    return (name, numbers) if len(numbers) == len(set(numbers)) == len(values) else None


def _verdict(runs: Sequence[RunFacts]) -> Callout:
    failed = [run for run in runs if run.facts["verdict"]["tone"] == "bad"]
    if failed:
        lines = [f"{run.label}: {run.facts['verdict']['title']}" for run in failed]
        return Callout("bad", f"{len(failed)} of {len(runs)} runs did not pass their own checks.", lines)
    return Callout("good", f"All {len(runs)} runs passed their own checks.")


def _answer(runs: Sequence[RunFacts], table: SharedTable) -> str:
    """Say how wide the intervals are in the first run and in the last."""
    first, *_, last = table.width(table.intervals[0])
    moving = (first > 0) & (last > 0)  # not those of a structural zero
    caption = shared_caption(runs, table.name)
    if not moving.any():
        return f"No interval of “{caption}” has a width in both runs."
    what = f"“{table.heads[table.intervals[0].estimate]}” of “{caption}”"
    many = "the intervals are in the median" if len(table.places) > 1 else "the interval is"
    ratio = float(np.median(last[moving] / first[moving]))
    return f"For {what}, {many} {ratio:.2f} times as wide in {runs[-1].label} as in {runs[0].label}."


def _asked(tables: Sequence[SharedTable]) -> SharedTable | None:
    """Return a table with intervals: one that holds the pages' own answers if there is, and of several rows."""
    order = {name: place for place, name in enumerate(ANSWERS)}
    found = [table for table in tables if table.intervals]
    return min(found, key=lambda t: (order.get(t.name, len(order)), len(t.places) == 1), default=None)


def _settings_section(runs: Sequence[RunFacts], differing: Mapping[str, Sequence[Scalar]]) -> Section:
    columns = ["setting", *(run.label for run in runs)]
    rows = [[name, *map(show, values)] for name, values in differing.items()]
    text = "Everything else in the specs is the same." if rows else "The specs are the same in everything."
    blocks: list[Block] = [Paragraph(text)]
    if rows:
        blocks.append(Table("settings", "Settings that differ between the specs", columns, rows))
    digests = {run.facts["provenance"].get("release digest") for run in runs}
    if len(digests) == 1 and None not in digests:
        blocks.append(Paragraph("All runs read one and the same release: what differs comes from the analysis alone."))
    elif None not in digests:
        text = "Each run has its own release, and so its own draw of the noise: estimates differ for that alone."
        blocks.append(Callout("note", "Different releases", [text]))
    return Section("What was set differently", blocks + _privacy_blocks(runs))


def _headline_section(runs: Sequence[RunFacts], headline: dict[str, list[float]], ladder: Ladder) -> Section:
    run_labels = [run.label for run in runs]
    columns = ["quantity", *run_labels]
    labels = {name: [run.facts["about"]["headline"][name] for run in runs] for name in headline}
    # A label that all runs share names the row; labels that differ stand below, a column per run.
    names = {name: words[0] if len(set(words)) == 1 else name.replace("_", " ") for name, words in labels.items()}
    rows = [[names[name], *map(_printed, values)] for name, values in headline.items()]
    blocks: list[Block] = [Table("headline_shared", "Numbers at the top of the pages", columns, rows)]
    different = [[names[name], *words] for name, words in labels.items() if len(set(words)) > 1]
    if different:
        caption = "What these numbers are, where the pages say it differently"
        blocks.append(Table("headline_labels", caption, columns, different))
    moving = {
        names[name]: np.array(values)
        for name, values in headline.items()
        if np.ptp(values) > 0 and name not in _OF_THE_SAMPLER and not (ladder and np.allclose(values, ladder[1]))
    }
    if moving:
        caption = "The numbers at the top of the pages that differ between the runs."
        alt = f"{', '.join(moving)}, one panel each, across {', '.join(run_labels)}."
        blocks.append(Figure(ladder_panels(moving, run_labels, ladder=ladder), caption, alt))
    return Section("At the top of the pages", blocks)


def _table_section(runs: Sequence[RunFacts], table: SharedTable, ladder: Ladder) -> Section:
    labels = [run.label for run in runs]
    blocks: list[Block] = []
    if table.left_out:
        blocks.append(Paragraph(f"{table.left_out} rows that only some of the runs have are left out."))
    if table.intervals:
        widths = {f"width of {table.heads[i.estimate]}": table.width(i) for i in table.intervals}
        blocks += [_interval_figure(table, interval, labels) for interval in table.intervals]
        many = " Dot: median over rows; bar: the middle half of them." if len(table.places) > 1 else ""
        alt = f"{', '.join(widths)}, across {', '.join(labels)}."
        blocks.append(Figure(ladder_panels(widths, labels, ladder=ladder), f"Widths of the intervals.{many}", alt))
    return Section(table.name.replace("_", " ").capitalize(), [*blocks, *_side_by_side(runs, table)])


def _interval_figure(table: SharedTable, interval: Interval, labels: Sequence[str]) -> Figure:
    """Draw the intervals of the rows whose estimates moved most, in units of the widest interval."""
    estimates = np.stack([table.of(name) for name in (interval.estimate, interval.lower, interval.upper)], axis=-1)
    moved = np.ptp(estimates[:, :, 0], axis=0) / np.maximum(table.width(interval).max(axis=0), 1e-300)
    drawn = np.sort(np.argsort(-np.nan_to_num(moved), kind="stable")[:MOST_DRAWN])
    titles = [", ".join(map(str, table.places[i])) or table.name.replace("_", " ") for i in drawn]
    some = "" if len(drawn) == len(table.places) else f"; the {len(drawn)} rows of {len(table.places)} that moved most"
    name, unit = table.heads[interval.estimate], f"difference from {labels[0]}"
    estimates, half = estimates[:, drawn], table.width(interval)[0, drawn] / 2
    if half.min() > 0 and half.max() > _UNEVEN * half.min():
        estimates, unit = estimates / half[:, None], f"{unit}, in halves of its interval's width"
    return Figure(
        intervals_of_runs(titles, estimates, labels, unit=f"{name}: {unit}"),
        f"{name[0].upper()}{name[1:]} and its interval in each run, as the {unit}{some}.",
        f"Intervals of {name} for {len(drawn)} rows, one colour a run: {', '.join(labels)}.",
    )


def _side_by_side(runs: Sequence[RunFacts], table: SharedTable) -> list[Block]:
    """Return one column per quantity and run, in a table per quantity where they are many; of bounds, the width."""
    ends = {name for i in table.intervals for name in (i.lower, i.upper)}
    keys = [Column(table.heads[key], key=key) for key in table.keys]
    formats = runs[0].facts["about"][table.name]["formats"]
    groups: list[tuple[str, list[tuple[str, Floats, str]]]] = []

    def add(name: str, values: Floats, style: str) -> None:
        same = np.all(np.nan_to_num(values) == np.nan_to_num(values[0]))
        said = ["all runs"] if same else [run.label for run in runs]
        style = style.replace("d", ".0f") or ".4g"  # whole numbers are read as doubles, and may be missing
        groups.append((name, [(run, row, style) for run, row in zip(said, values, strict=False)]))

    for quantity in table.quantities:
        if quantity not in ends:
            add(table.heads[quantity], table.of(quantity), formats[quantity])
        for interval in table.intervals:
            if quantity == interval.estimate:
                add(f"width of {table.heads[quantity]}", table.width(interval), formats[interval.upper])
    shown = range(min(len(table.places), MOST_ROWS))
    more = "" if len(shown) == len(table.places) else f" The first {len(shown)} of {len(table.places)} rows."
    caption = f"{shared_caption(runs, table.name)}.{more}"

    def made(name: str, caption: str, columns: Sequence[tuple[str, Floats, str]]) -> Block:
        heads = [*keys, *(Column(head, style) for head, _, style in columns)]
        rows = [[*table.places[i], *(values[i].item() for _, values, _ in columns)] for i in shown]
        return Table(name, caption, heads, rows, folded=folded)

    columns = [(f"{name}, {run}", values, style) for name, part in groups for run, values, style in part]
    one = len(keys) + len(columns) <= MOST_COLUMNS or len(groups) == 1
    folded = len(shown) * (1 if one else len(groups)) > MOST_OPEN
    if one:
        return [made(table.name, caption, columns)]
    parted = [made(f"{table.name}: {name}", f"{name[0].upper()}{name[1:]}", part) for name, part in groups]
    return [Paragraph(caption), *parted]


def _printed(value: float) -> str:
    """Return a number with the digits that are worth reading."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.4g}"


def _privacy_blocks(runs: Sequence[RunFacts]) -> list[Block]:
    """Set side by side what the runs' epsilons are relative to, with a warning for each difference."""
    blocks: list[Block] = []
    for key, name in _TERMS.items():
        stated: dict[str, list[str]] = {}
        for run in runs:
            if (value := run.facts["privacy"].get(key)) is not None:
                stated.setdefault(show(value), []).append(run.label)
        if "one-position" not in stated:
            # A cost that is the same under replace-one and add-remove agrees with both.
            stated.pop("either", None)
        if len(stated) > 1:
            lines = [_DIFFERENT[key], *(f"{name} {value}: {', '.join(labels)}" for value, labels in stated.items())]
            lines += [_ONE_POSITION] if "one-position" in stated else []
            blocks.append(Callout("warning", f"Different {key}", lines))
    if any(run.facts["privacy"] for run in runs):
        columns = ["guarantee", *(run.label for run in runs)]
        rows = [[name, *(show(run.facts["privacy"].get(key)) for run in runs)] for key, name in _TERMS.items()]
        blocks.append(Table("privacy_terms", "What each run's epsilon is relative to", columns, rows))
    return blocks


@dataclass(frozen=True)
class RunFacts:
    """A run as a comparison sees it: label beside the others, settings by dotted name, and ``facts.json``."""

    folder: Path
    label: str
    settings: Mapping[str, Scalar]
    facts: Mapping[str, Any]


def read_run(folder: str | Path) -> RunFacts:
    """Read a finished run's settings and numbers, labelled with its folder's name."""
    folder = Path(folder)
    for name in ("spec.toml", "facts.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} is not a finished run: it has no {name}; give the folders that `dpbayes run` named"
            )
    try:
        settings = read_settings(folder)
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{folder} does not read ({error}); write it again with `dpbayes report`") from error
    whole = isinstance(facts, dict) and facts.keys() >= _PARTS
    if not whole or any("heads" not in facts["about"].get(name, ()) for name in facts["tables"]):
        said = f"{folder}/facts.json holds no facts, or is of an earlier version"
        raise DamagedFileError(f"{said}; write it again with `dpbayes report {folder}`")
    return RunFacts(folder, folder.name, settings, facts | {"privacy": facts["privacy"] or {}})


def read_settings(folder: Path) -> dict[str, Scalar]:
    """Return the settings in a folder's ``spec.toml`` under dotted names, but for words that change no number."""
    path = folder / "spec.toml"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no spec.toml")
    settings = _flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    return {name: value for name, value in settings.items() if name not in _WORDS}


def read_runs(folders: Sequence[str | Path]) -> list[RunFacts]:
    """Read two or more runs, named by the one setting that tells them apart, and in its order if it is a number."""
    if len(folders) < 2:
        raise InputError(f"a comparison needs at least two runs, got {len(folders)}; name two run folders or more")
    resolved = [Path(folder).resolve() for folder in folders]
    for folder in resolved:
        if resolved.count(folder) > 1:
            raise InputError(f"{folder.name} is given twice; a run compared with itself shows nothing")
    runs = [read_run(folder) for folder in folders]
    differing = differing_settings([run.settings for run in runs])
    if len(differing) == 1:
        ((name, values),) = differing.items()
        if len(set(values)) == len(values):
            short = name.rpartition(".")[2]
            named = [replace(run, label=f"{short} {show(value)}") for run, value in zip(runs, values, strict=True)]
            return sorted(named, key=lambda run: _order(run.settings.get(name)))
    labels = [run.folder.name for run in runs]
    if len(set(labels)) < len(labels):
        labels = [str(run.folder) for run in runs]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def differing_settings(runs: Sequence[Mapping[str, Scalar]]) -> dict[str, list[Scalar]]:
    """Return the settings that are not the same in all runs, with each run's value (None where it has none)."""
    values = {name: [run.get(name) for run in runs] for settings in runs for name in settings}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def show(value: Scalar) -> str:
    """Return a setting as text."""
    if value is None:
        return _MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(value: Scalar) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Return nested tables as dotted names; lists become text."""
    flat: dict[str, Scalar] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(item, default=str) if isinstance(item, list) else item
    return flat


class Interval(NamedTuple):
    """The three columns of an estimate with its interval."""

    estimate: str
    lower: str
    upper: str


@dataclass(frozen=True)
class SharedTable:
    """A table that every run has: what its rows are about, and array ``(runs, rows, quantities)``, NaN where none."""

    name: str
    keys: tuple[str, ...]
    places: tuple[tuple[Scalar, ...], ...]
    left_out: int
    quantities: tuple[str, ...]
    values: Floats
    intervals: tuple[Interval, ...]
    heads: Mapping[str, str]

    def of(self, quantity: str) -> Floats:
        """Return one quantity, shape ``(runs, rows)``."""
        return self.values[:, :, self.quantities.index(quantity)]

    def width(self, interval: Interval) -> Floats:
        """Return the widths of an interval, shape ``(runs, rows)``."""
        return self.of(interval.upper) - self.of(interval.lower)


def shared_tables(runs: Sequence[RunFacts]) -> list[SharedTable]:
    """Return the tables that all runs have, in the first run's order, with the rows and columns that they share."""
    first = runs[0].facts
    tables = {name: [run.facts["tables"].get(name) for run in runs] for name in first["tables"]}
    shared = [_shared(name, rows, first["about"][name]["heads"]) for name, rows in tables.items() if all(rows)]
    return [table for table in shared if table is not None]


def shared_caption(runs: Sequence[RunFacts], name: str) -> str:
    """Return what captions say alike in all runs: other numbers become an ellipsis, other words the table's name."""
    captions = [run.facts["about"][name]["caption"].rstrip(".") for run in runs]
    words = {tuple(_NUMBER.split(caption)) for caption in captions}
    if len(words) > 1:
        return name.replace("_", " ").capitalize()
    numbers = zip(*(_NUMBER.findall(caption) for caption in captions), strict=True)
    kept = iter([row[0] if len(set(row)) == 1 else "…" for row in numbers])
    return _NUMBER.sub(lambda _: next(kept), captions[0])


def _shared(name: str, tables: Sequence[Sequence[Row]], heads: Mapping[str, str]) -> SharedTable | None:
    columns = [key for key in tables[0][0] if all(key in row for rows in tables for row in rows)]
    keys = _keys(columns, tables)
    if keys is None:
        return None
    maps = [{tuple(row[key] for key in keys): row for row in rows} for rows in tables]
    places = [place for place in maps[0] if all(place in other for other in maps)]
    quantities = [
        column
        for column in columns
        if column not in keys
        and all(row[column] is None or is_number(row[column]) for one in maps for row in one.values())
        and any(is_number(row[column]) for one in maps for row in one.values())
    ]
    if not places or not quantities:
        return None
    values = np.array([[[_number(one[place][q]) for q in quantities] for place in places] for one in maps])
    left_out = len({place for one in maps for place in one}) - len(places)
    intervals = _intervals(columns, quantities, values)
    return SharedTable(name, keys, tuple(places), left_out, tuple(quantities), values, intervals, heads)


def _keys(columns: Sequence[str], tables: Sequence[Sequence[Row]]) -> tuple[str, ...] | None:
    """Return the shortest run of leading columns that tells every row of every table from the others."""
    for count in range(len(columns) + 1):
        keys = tuple(columns[:count])
        if all(len({tuple(row[key] for key in keys) for row in rows}) == len(rows) for rows in tables):
            return keys
    return None


def _intervals(columns: Sequence[str], quantities: Sequence[str], values: Floats) -> tuple[Interval, ...]:
    """Find columns named like ``x, x_lower, x_upper`` that stand together and contain each other in every row."""
    found = []
    for place, lower in enumerate(columns[1:-1], start=1):
        for low, high in (("lower", "upper"), ("low", "high")):
            upper = lower.removesuffix(low) + high
            triple = (columns[place - 1], lower, upper)
            if not lower.endswith(low) or columns[place + 1] != upper or not set(triple) <= set(quantities):
                continue
            middle, bottom, top = (values[:, :, quantities.index(column)] for column in triple)
            if np.all((bottom <= middle) & (middle <= top) | np.isnan(middle + bottom + top)):
                found.append(Interval(*triple))
    return tuple(found)


def _number(value: Scalar) -> float:
    return float(value) if isinstance(value, int | float) else np.nan
