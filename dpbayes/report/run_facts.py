"""What finished runs say, read from ``spec.toml`` and ``facts.json``, and what several of them have in common."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes.errors import DamagedFileError, InputError

type Scalar = str | int | float | bool | None
type Row = Mapping[str, Scalar]

# Settings that name a study and change no number.
_WORDS = ("title", "question")
_MISSING = "–"
_PARTS = {"tables", "headline", "privacy", "about", "verdict", "provenance"}
# A number as a caption prints it: 10, 1,000, 0.5, 1e-05; not the sign before it, nor a full stop after it.
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class RunFacts:
    """A run as a comparison sees it: label beside the others, settings by dotted name, and ``facts.json``."""

    folder: Path
    label: str
    settings: Mapping[str, Scalar]
    facts: Mapping[str, Any]

    @property
    def tables(self) -> Mapping[str, Sequence[Row]]:
        """The page's tables: name to records."""
        return self.facts["tables"]

    @property
    def headline(self) -> Mapping[str, Scalar]:
        """The numbers at the top of the page."""
        return self.facts["headline"]

    @property
    def privacy(self) -> Mapping[str, Scalar]:
        """What the page's epsilons are relative to; empty where it does not say."""
        return self.facts["privacy"] or {}

    def headline_label(self, name: str) -> str:
        """Return what a number at the top of the page is, in the page's words."""
        return self.facts["about"]["headline"][name]

    @property
    def passed(self) -> bool:
        """Whether the run's convergence check said that its numbers may be used."""
        return self.facts["verdict"]["tone"] != "bad"

    @property
    def release_digest(self) -> str | None:
        """SHA-256 of the release that the run read, if it read one."""
        return self.facts["provenance"].get("release digest")

    def format(self, table: str, key: str) -> str:
        """Return the format that the run's own page gives a column."""
        return self.facts["about"][table]["formats"][key] or ".4g"

    def caption(self, table: str) -> str:
        """Return a table's caption."""
        return self.facts["about"][table]["caption"]


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
    if not isinstance(facts, dict) or not facts.keys() >= _PARTS:
        raise DamagedFileError(f"{folder}/facts.json holds no facts; write it again with `dpbayes report {folder}`")
    return RunFacts(folder, folder.name, settings, facts)


def read_settings(folder: Path) -> dict[str, Scalar]:
    """Return the settings in a folder's ``spec.toml`` under dotted names."""
    path = folder / "spec.toml"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no spec.toml")
    return flatten(tomllib.loads(path.read_text(encoding="utf-8")))


def read_runs(folders: Sequence[str | Path]) -> list[RunFacts]:
    """Read two or more runs, in the order of the one number that differs between them, if there is one."""
    if len(folders) < 2:
        raise InputError(f"a comparison needs at least two runs, got {len(folders)}; name two run folders or more")
    resolved = [Path(folder).resolve() for folder in folders]
    for folder in resolved:
        if resolved.count(folder) > 1:
            raise InputError(f"{folder.name} is given twice; a run compared with itself shows nothing")
    return label_runs([read_run(folder) for folder in folders])


def label_runs(runs: Sequence[RunFacts]) -> list[RunFacts]:
    """Name runs by the one setting that tells them apart, and sort by it if it is a number."""
    differing = differing_settings(runs)
    if len(differing) == 1:
        (name, values), short = next(iter(differing.items())), next(iter(differing)).rpartition(".")[2]
        if len(set(values)) == len(values):
            named = [replace(run, label=f"{short} {show(value)}") for run, value in zip(runs, values, strict=True)]
            return sorted(named, key=lambda run: _order(run.settings.get(name)))
    labels = [run.folder.name for run in runs]
    if len(set(labels)) < len(labels):
        labels = [str(run.folder) for run in runs]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def differing_settings(runs: Sequence[RunFacts]) -> dict[str, list[Scalar]]:
    """Return the settings that are not the same in all runs, with each run's value (None where it has none)."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def show(value: Scalar) -> str:
    """Return a setting as text."""
    if value is None:
        return _MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(value: Scalar) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def flatten(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return settings under dotted names, lists as text, without the words that change no number."""
    return {name: value for name, value in _flatten(settings).items() if name not in _WORDS}


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Return nested tables as dotted names; lists become text."""
    flat: dict[str, Scalar] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(item, default=str) if isinstance(item, list) else item
    return flat


@dataclass(frozen=True)
class Interval:
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
    values: npt.NDArray[np.float64]
    intervals: tuple[Interval, ...]

    def of(self, quantity: str) -> npt.NDArray[np.float64]:
        """Return one quantity, shape ``(runs, rows)``."""
        return self.values[:, :, self.quantities.index(quantity)]

    def width(self, interval: Interval) -> npt.NDArray[np.float64]:
        """Return the widths of an interval, shape ``(runs, rows)``."""
        return self.of(interval.upper) - self.of(interval.lower)

    @property
    def titles(self) -> list[str]:
        """What the rows are about, as text."""
        return [", ".join(str(part) for part in place) for place in self.places]


def shared_tables(runs: Sequence[RunFacts]) -> list[SharedTable]:
    """Return the tables that all runs have, in the first run's order, with the rows and columns that they share."""
    found = []
    for name in runs[0].tables:
        tables = [run.tables.get(name) for run in runs]
        if all(tables):
            shared = _shared(name, [list(table) for table in tables if table])
            if shared is not None:
                found.append(shared)
    return found


def shared_headline(runs: Sequence[RunFacts]) -> dict[str, list[float]]:
    """Return the numbers at the top of the pages that all runs have: name to one value per run."""
    names = [name for name in runs[0].headline if all(_is_number(run.headline.get(name)) for run in runs)]
    return {name: [float(run.headline[name] or 0) for run in runs] for name in names}


def shared_caption(runs: Sequence[RunFacts], name: str) -> str:
    """Return what captions say alike in all runs: other numbers become an ellipsis, other words the table's name."""
    captions = [run.caption(name) for run in runs]
    words = {tuple(_NUMBER.split(caption)) for caption in captions}
    if len(words) > 1:
        return name.replace("_", " ").capitalize()
    numbers = zip(*(_NUMBER.findall(caption) for caption in captions), strict=True)
    kept = [row[0] if len(set(row)) == 1 else "…" for row in numbers]
    return "".join(part for pair in zip(words.pop(), [*kept, ""], strict=True) for part in pair)


def _shared(name: str, tables: Sequence[Sequence[Row]]) -> SharedTable | None:
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
        and all(row[column] is None or _is_number(row[column]) for one in maps for row in one.values())
        and any(_is_number(row[column]) for one in maps for row in one.values())
    ]
    if not places or not quantities:
        return None
    values = np.array([[[_number(one[place][q]) for q in quantities] for place in places] for one in maps])
    left_out = len({place for one in maps for place in one}) - len(places)
    return SharedTable(
        name, keys, tuple(places), left_out, tuple(quantities), values, _intervals(columns, quantities, values)
    )


def _keys(columns: Sequence[str], tables: Sequence[Sequence[Row]]) -> tuple[str, ...] | None:
    """Return the shortest run of leading columns that tells every row of every table from the others."""
    for count in range(len(columns) + 1):
        keys = tuple(columns[:count])
        if all(len({tuple(row[key] for key in keys) for row in rows}) == len(rows) for rows in tables):
            return keys
    return None


def _intervals(
    columns: Sequence[str], quantities: Sequence[str], values: npt.NDArray[np.float64]
) -> tuple[Interval, ...]:
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Scalar) -> float:
    return float(value) if isinstance(value, int | float) else np.nan
