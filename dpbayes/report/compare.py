"""The comparison of runs: what was set differently, and the same quantities side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpbayes import __version__
from dpbayes.errors import InputError
from dpbayes.report.document import Block, Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.plots import intervals_of_runs, ladder_panels
from dpbayes.report.run_facts import (
    Interval,
    RunFacts,
    SharedTable,
    differing_settings,
    read_runs,
    shared_caption,
    shared_headline,
    shared_tables,
    show,
)

MOST_ROWS, MOST_DRAWN = 120, 16
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

    Raises
    ------
    InputError
        If there are fewer than two runs, one is given twice, or they share no quantity.
    FileNotFoundError
        If a folder is not a finished run.
    DamagedFileError
        If its files do not parse.

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
    tables, headline = shared_tables(runs), shared_headline(runs)
    if not tables and not headline:
        has = "; ".join(f"{run.label}: {', '.join([*run.headline, *run.tables]) or 'nothing'}" for run in runs)
        raise InputError(f"the runs share no quantity ({has}); compare runs of one system")
    ladder = _ladder(runs)
    sections = [_settings_section(runs)]
    if headline:
        sections.append(_headline_section(runs, headline, ladder))
    sections += [_table_section(runs, table, ladder) for table in tables]
    differing = [name for name in differing_settings(runs)]
    what = f"What changes with {' and '.join(differing[:3])}" if 0 < len(differing) <= 3 else "What changes"
    return Document(
        title=f"{len(runs)} runs compared",
        question=f"{what}?",
        answer=_answer(runs, tables),
        verdict=_verdict(runs),
        headline=[
            Fact("runs", "runs", len(runs), f"{len(runs)}"),
            Fact("settings", "settings that differ", len(differing), f"{len(differing)}"),
            Fact("tables", "tables that all runs share", len(tables), f"{len(tables)}"),
        ],
        sections=sections,
        provenance={"dpbayes": __version__} | {run.label: run.folder.name for run in runs},
        facts={"runs": {run.label: _facts(run) for run in runs}},
        picture=_picture(runs, tables),
    )


def _facts(run: RunFacts) -> dict[str, Any]:
    return {"settings": dict(run.settings), "headline": dict(run.headline), "privacy": dict(run.privacy)}


def _ladder(runs: Sequence[RunFacts]) -> tuple[str, list[float]] | None:
    """Return the number that alone tells the runs apart."""
    differing = differing_settings(runs)
    if len(differing) != 1:
        return None
    name, values = next(iter(differing.items()))
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return (name, numbers) if len(numbers) == len(set(numbers)) == len(runs) else None


def _verdict(runs: Sequence[RunFacts]) -> Callout:
    failed = [run for run in runs if not run.passed]
    if failed:
        lines = [f"{run.label}: {run.facts['verdict']['title']}" for run in failed]
        return Callout("bad", f"{len(failed)} of {len(runs)} runs did not pass their own checks.", lines)
    return Callout("good", f"All {len(runs)} runs passed their own checks.")


def _answer(runs: Sequence[RunFacts], tables: Sequence[SharedTable]) -> str:
    """Say how wide the intervals are in the first run and in the last."""
    table = _asked(tables)
    if table is None:
        return f"The runs share {len(tables)} tables, set side by side below; none of them holds an interval."
    widths = np.nanmedian(table.width(table.intervals[0]), axis=1)
    first, last = (_number(w) for w in (widths[0], widths[-1]))
    what = f"{table.intervals[0].estimate.replace('_', ' ')} in “{shared_caption(runs, table.name).rstrip('.')}”"
    many = "the intervals are in the median" if len(table.places) > 1 else "the interval is"
    between = f"{last} wide in {runs[-1].label} and {first} in {runs[0].label}"
    return f"For the {what}, {many} {between}: {widths[-1] / widths[0]:.2g} times as wide."


def _picture(runs: Sequence[RunFacts], tables: Sequence[SharedTable]) -> Figure | None:
    """Show the intervals of the table that the answer speaks of."""
    table = _asked(tables)
    return None if table is None else _interval_figure(table, table.intervals[0], [run.label for run in runs])


def _asked(tables: Sequence[SharedTable]) -> SharedTable | None:
    """Return the table with intervals that answers what the pages ask."""
    return min((table for table in tables if table.intervals), key=_rank, default=None)


def _rank(table: SharedTable) -> tuple[int, bool]:
    """Put the tables that hold the pages' own answers first, and then those of several rows."""
    return (ANSWERS.index(table.name) if table.name in ANSWERS else len(ANSWERS), len(table.places) == 1)


def _settings_section(runs: Sequence[RunFacts]) -> Section:
    differing = differing_settings(runs)
    columns = [Column("setting"), *(Column(run.label) for run in runs)]
    rows = [[name, *map(show, values)] for name, values in differing.items()]
    text = "Everything else in the specs is the same." if rows else "The specs are the same in everything."
    blocks: list[Block] = [Table("settings", "Settings that differ between the specs", columns, rows)] if rows else []
    blocks.insert(0, Paragraph(text))
    digests = {run.release_digest for run in runs}
    if len(digests) == 1 and None not in digests:
        blocks.append(Paragraph("All runs read one and the same release: what differs comes from the analysis alone."))
    elif None not in digests:
        text = "Each run has its own release, and so its own draw of the noise: estimates differ for that alone."
        blocks.append(Callout("note", "Different releases", [text]))
    return Section("What was set differently", blocks + _privacy_blocks(runs))


def _headline_section(
    runs: Sequence[RunFacts], headline: dict[str, list[float]], ladder: tuple[str, list[float]] | None
) -> Section:
    columns = [Column("quantity"), *(Column(run.label) for run in runs)]
    labels = {name: [run.headline_label(name) for run in runs] for name in headline}
    # A label that all runs share names the row; labels that differ stand below, a column per run.
    names = {name: words[0] if len(set(words)) == 1 else name.replace("_", " ") for name, words in labels.items()}
    rows = [[names[name], *map(_number, values)] for name, values in headline.items()]
    blocks: list[Block] = [Table("headline_shared", "Numbers at the top of the pages", columns, rows)]
    different = [[names[name], *words] for name, words in labels.items() if len(set(words)) > 1]
    if different:
        caption = "What these numbers are, where the pages say it differently"
        blocks.append(Table("headline_labels", caption, columns, different))
    moving = {
        name.replace("_", " "): np.array(values)
        for name, values in headline.items()
        if np.ptp(values) > 0 and not (ladder and values == ladder[1])
    }
    if moving:
        blocks.append(
            Figure(
                ladder_panels(moving, [run.label for run in runs], ladder=ladder),
                "The numbers at the top of the pages that differ between the runs.",
                f"{', '.join(moving)}, one panel each, across {', '.join(run.label for run in runs)}.",
            )
        )
    return Section("At the top of the pages", blocks)


def _table_section(runs: Sequence[RunFacts], table: SharedTable, ladder: tuple[str, list[float]] | None) -> Section:
    labels = [run.label for run in runs]
    blocks: list[Block] = []
    if table.left_out:
        blocks.append(Paragraph(f"{table.left_out} rows that only some of the runs have are left out."))
    if table.intervals:
        widths = {f"width of {i.estimate.replace('_', ' ')}": table.width(i) for i in table.intervals}
        blocks += [_interval_figure(table, interval, labels) for interval in table.intervals]
        text = "Widths of the intervals. " + ("Dot: median over rows; bar: the middle half of them."
                                              if len(table.places) > 1 else "")  # fmt: skip
        alt = f"{', '.join(widths)}, across {', '.join(labels)}."
        blocks.append(Figure(ladder_panels(widths, labels, ladder=ladder), text.strip(), alt))
    else:
        moving = {q.replace("_", " "): table.of(q) for q in table.quantities if _moves(table.of(q))}
        if 0 < len(moving) <= 6 and len(table.places) <= 12:
            blocks += _row_panels(table, moving, labels, ladder)
    blocks.append(_wide_table(runs, table))
    return Section(table.name.replace("_", " ").capitalize(), blocks)


def _interval_figure(table: SharedTable, interval: Interval, labels: Sequence[str]) -> Figure:
    """Draw the intervals of the rows whose estimates moved most, in units of the widest interval."""
    estimates = np.stack([table.of(name) for name in (interval.estimate, interval.lower, interval.upper)], axis=-1)
    moved = np.ptp(estimates[:, :, 0], axis=0) / np.maximum(table.width(interval).max(axis=0), 1e-300)
    drawn = np.sort(np.argsort(-np.nan_to_num(moved), kind="stable")[:MOST_DRAWN])
    titles = [table.titles[i] or table.name.replace("_", " ") for i in drawn]
    some = "" if len(drawn) == len(table.places) else f"; the {len(drawn)} rows of {len(table.places)} that moved most"
    name = interval.estimate.replace("_", " ")
    return Figure(
        intervals_of_runs(titles, estimates[:, drawn], labels, unit=f"{name}: difference from {labels[0]}"),
        f"{name.capitalize()} and its interval in each run, as the difference from {labels[0]}{some}.",
        f"Intervals of {name} for {len(drawn)} rows, one colour a run: {', '.join(labels)}.",
    )


def _row_panels(
    table: SharedTable,
    moving: dict[str, np.ndarray],
    labels: Sequence[str],
    ladder: tuple[str, list[float]] | None,
) -> list[Block]:
    """Draw a panel for each row and quantity that moves, as long as they are few."""
    panels = {
        f"{title}\n{quantity}".strip(): values[:, row]
        for quantity, values in moving.items()
        for row, title in enumerate(table.titles)
        if np.isfinite(values[:, row]).all() and np.ptp(values[:, row]) > 0
    }
    if not 0 < len(panels) <= 9:
        return []
    alt = f"{len(panels)} panels across {', '.join(labels)}: {'; '.join(panels)}.".replace("\n", ", ")
    return [Figure(ladder_panels(panels, labels, ladder=ladder), "Each quantity across the runs.", alt)]


def _wide_table(runs: Sequence[RunFacts], table: SharedTable) -> Table:
    """One row per row, one column per quantity and run; bounds give way to widths, which read faster."""
    ends = {name for i in table.intervals for name in (i.lower, i.upper)}
    columns = [Column(key.replace("_", " "), key=key) for key in table.keys]
    parts = []
    for quantity in table.quantities:
        if quantity not in ends:
            parts.append((quantity.replace("_", " "), table.of(quantity), runs[0].format(table.name, quantity)))
        for interval in table.intervals:
            if quantity == interval.estimate:
                style = runs[0].format(table.name, interval.upper)
                parts.append((f"width of {quantity.replace('_', ' ')}", table.width(interval), style))
    blocks = []
    for name, values, style in parts:
        same = len(runs) > 1 and not _moves(values)
        for number, run in enumerate(runs[:1] if same else runs):
            columns.append(Column(f"{name}, all runs" if same else f"{name}, {run.label}", style))
            blocks.append((values[number], style.endswith("d")))
    shown = range(min(len(table.places), MOST_ROWS))
    rows = [[*table.places[i], *(_plain(block[i], whole) for block, whole in blocks)] for i in shown]
    more = "" if len(shown) == len(table.places) else f" The first {len(shown)} of {len(table.places)} rows."
    return Table(table.name, f"{shared_caption(runs, table.name).rstrip('.')}.{more}", columns, rows)


def _moves(values: np.ndarray) -> bool:
    return bool(np.any(np.nan_to_num(values) != np.nan_to_num(values[0])))


def _plain(value: float, whole: bool) -> float | None:
    if np.isnan(value):
        return None
    return int(value) if whole else float(value)


def _number(value: float) -> str:
    """Return a number with the digits that are worth reading."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.4g}"


def _privacy_blocks(runs: Sequence[RunFacts]) -> list[Block]:
    """Set side by side what the runs' epsilons are relative to, with a warning for each difference."""
    blocks: list[Block] = [warning for key in _TERMS if (warning := _difference(runs, key))]
    if any(run.privacy for run in runs):
        columns = [Column("guarantee"), *(Column(run.label) for run in runs)]
        rows = [[name, *(show(run.privacy.get(key)) for run in runs)] for key, name in _TERMS.items()]
        blocks.append(Table("privacy_terms", "What each run's epsilon is relative to", columns, rows))
    return blocks


def _difference(runs: Sequence[RunFacts], key: str) -> Callout | None:
    """Warn if the runs that state a term do not state the same."""
    stated: dict[str, list[str]] = {}
    for run in runs:
        if (value := run.privacy.get(key)) is not None:
            stated.setdefault(show(value), []).append(run.label)
    if "one-position" not in stated:
        # A cost that is the same under replace-one and add-remove agrees with both.
        stated.pop("either", None)
    if len(stated) < 2:
        return None
    lines = [_DIFFERENT[key], *(f"{_TERMS[key]} {value}: {', '.join(labels)}" for value, labels in stated.items())]
    if "one-position" in stated:
        lines.append(_ONE_POSITION)
    return Callout("warning", f"Different {key}", lines)
