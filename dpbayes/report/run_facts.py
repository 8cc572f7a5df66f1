"""What a finished run says, read from its folder: settings from ``spec.toml``, numbers from ``facts.json``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpbayes.errors import DamagedFileError, InputError

__all__ = ["RunFacts", "differing_settings", "flatten", "label_runs", "read_run", "read_runs", "show"]

type Scalar = str | int | float | bool | None
type Row = Mapping[str, Scalar]

# Settings that name a study and change no number.
_WORDS = ("title", "question")
_MISSING = "–"


@dataclass(frozen=True)
class RunFacts:
    """A run as a comparison sees it.

    Parameters
    ----------
    folder
        The run folder.
    label
        What the run is called beside the others.
    settings
        The resolved spec, dotted names to values; lists are shown as text.
    facts
        What ``facts.json`` holds.
    """

    folder: Path
    label: str
    settings: Mapping[str, Scalar]
    facts: Mapping[str, Any]

    @property
    def tables(self) -> Mapping[str, Sequence[Row]]:
        """The page's tables: name to records."""
        return self.facts.get("tables", {})

    @property
    def headline(self) -> Mapping[str, Scalar]:
        """The numbers at the top of the page."""
        return self.facts.get("headline", {})

    @property
    def privacy(self) -> Mapping[str, Scalar]:
        """What the page's epsilons are relative to; empty where it does not say."""
        return self.facts.get("privacy") or {}

    def headline_label(self, name: str) -> str:
        """Return what a number at the top of the page is, in the page's words."""
        return self.about.get("headline", {}).get(name, name.replace("_", " "))

    @property
    def passed(self) -> bool:
        """Whether the run's gate said that its numbers may be used."""
        return self.facts.get("verdict", {}).get("tone") != "bad"

    @property
    def release_digest(self) -> str | None:
        """SHA-256 of the release that the run read, if it read one."""
        provenance = self.facts.get("provenance", {})
        return provenance.get("release digest", provenance.get("release"))

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """Captions and formats of the tables, and labels of the numbers at the top."""
        return self.facts.get("about", {})

    def format(self, table: str, key: str) -> str:
        """Return the format that the run's own page gives a column."""
        return self.about.get(table, {}).get("formats", {}).get(key, ".4g") or ".4g"

    def caption(self, table: str) -> str:
        """Return a table's caption."""
        return self.about.get(table, {}).get("caption", table.replace("_", " "))


def read_run(folder: str | Path) -> RunFacts:
    """Read a run folder's settings and numbers.

    Parameters
    ----------
    folder
        A finished run folder.

    Returns
    -------
    RunFacts
        Labelled with the folder's name.

    Raises
    ------
    FileNotFoundError
        If the folder lacks ``spec.toml`` or ``facts.json``.
    DamagedFileError
        If one of them does not parse.

    Examples
    --------
    >>> read_run("no-such-run")
    Traceback (most recent call last):
    FileNotFoundError: no-such-run is not a finished run: it has no spec.toml; give the folders that `dpbayes run` named
    """
    folder = Path(folder)
    for name in ("spec.toml", "facts.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} is not a finished run: it has no {name}; give the folders that `dpbayes run` named"
            )
    try:
        settings = tomllib.loads((folder / "spec.toml").read_text(encoding="utf-8"))
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{folder} does not read ({error}); write it again with `dpbayes report`") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("tables", {}), dict):
        raise DamagedFileError(f"{folder}/facts.json holds no facts; write it again with `dpbayes report {folder}`")
    return RunFacts(folder, folder.name, flatten(settings), facts)


def read_runs(folders: Sequence[str | Path]) -> list[RunFacts]:
    """Read several runs, in the order of the one number that differs between them, if there is one.

    Parameters
    ----------
    folders
        Two or more different run folders.

    Returns
    -------
    list of RunFacts
        Labelled by the setting that differs, or else by their folders.

    Raises
    ------
    InputError
        If fewer than two folders are given, or one twice.

    Examples
    --------
    >>> read_runs(["one"])
    Traceback (most recent call last):
    dpbayes.errors.InputError: a comparison needs at least two runs, got 1; name two run folders or more
    """
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
    """Return the settings that are not the same in all runs, with each run's value (None where it has none).

    Examples
    --------
    >>> one = RunFacts(Path("a"), "a", {"privacy.epsilon": 1.0, "model.n_classes": 8}, {})
    >>> two = RunFacts(Path("b"), "b", {"privacy.epsilon": 2.0, "model.n_classes": 8}, {})
    >>> differing_settings([one, two])
    {'privacy.epsilon': [1.0, 2.0]}
    """
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def show(value: Scalar) -> str:
    """Return a setting as text.

    Examples
    --------
    >>> show(0.25), show(None)
    ('0.25', '–')
    """
    if value is None:
        return _MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(value: Scalar) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def flatten(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return a spec's settings under dotted names, lists as text, without the words that change no number.

    Examples
    --------
    >>> flatten({"title": "t", "privacy": {"epsilon": 1.0}, "sizes": [1, 2]})
    {'privacy.epsilon': 1.0, 'sizes': '[1, 2]'}
    """
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
