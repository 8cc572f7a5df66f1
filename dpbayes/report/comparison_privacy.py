"""Whether the epsilons of several runs compare: adjacency, what it protects, and delta, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from dpbayes.report.document import Block, Callout, Column, Table
from dpbayes.report.run_facts import RunFacts, show

__all__ = ["privacy_blocks"]

_ROWS = {"adjacency": "adjacency", "unit": "neighbours differ in one", "delta": "delta"}
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


def privacy_blocks(runs: Sequence[RunFacts]) -> list[Block]:
    """Set side by side what the runs' epsilons are relative to, with a warning for each difference.

    Parameters
    ----------
    runs
        Two or more runs.

    Returns
    -------
    list of Block
        Warnings first; empty where no page is about privacy.

    Examples
    --------
    >>> from pathlib import Path
    >>> terms = {"unit": "record", "delta": 0.0}
    >>> runs = [RunFacts(Path(a), a, {}, {"privacy": terms | {"adjacency": a}}) for a in ("replace-one", "add-remove")]
    >>> privacy_blocks(runs)[0].title
    'Different adjacency'
    """
    blocks: list[Block] = [warning for key in _ROWS if (warning := _difference(runs, key))]
    silent = [run.label for run in runs if not run.privacy.get("adjacency") and _states_epsilon(run)]
    if silent:
        remedy = "its epsilons do not compare until the page is written again: `dpbayes report FOLDER`"
        blocks.append(Callout("warning", "Adjacency not stated", [f"{label}: {remedy}" for label in silent]))
    if any(run.privacy for run in runs):
        columns = [Column("guarantee"), *(Column(run.label) for run in runs)]
        rows = [[name, *(show(run.privacy.get(key)) for run in runs)] for key, name in _ROWS.items()]
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
    lines = [_DIFFERENT[key], *(f"{_ROWS[key]} {value}: {', '.join(labels)}" for value, labels in stated.items())]
    if "one-position" in stated:
        lines.append(_ONE_POSITION)
    return Callout("warning", f"Different {key}", lines)


def _states_epsilon(run: RunFacts) -> bool:
    return any(name.startswith("epsilon") for name in run.headline)
