"""What a run of a spec will do, said before it is run; no record is read, and nothing is spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from dpbayes.runs.execution import (
    TRYING,
    WORKING_OUT,
    asked_draws,
    check_files,
    described,
    finished_release,
    open_ledger_of,
    recorded_numbers,
    rehearsed,
    try_fit,
)
from dpbayes.runs.protocol import Context
from dpbayes.runs.spec import LoadedSpec

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.privacy.release import NoisyTable, Release

_MOST_TABLES = 12  # that are listed one by one


def plan_lines(loaded: LoadedSpec, at: Callable[[str], None] = lambda stage: None) -> list[str]:
    """Return what a run will release, fit and charge, and refuse what it would refuse; `at` hears each stage."""
    spec = cast("Any", loaded.spec)
    check_files(loaded, loaded.path.parent)
    ledger = open_ledger_of(loaded)
    at(WORKING_OUT)
    given = finished_release(loaded)
    design = rehearsed(loaded, ledger) if given is None else given
    if design is None:
        return ["release: nothing is released"]
    known = spec.confidential_file is None
    lines = [f"release: {described(loaded, design)}", *_tables(design, known=known)]
    if given is not None and getattr(given, "publication", None) is not None:
        lines += _stated(given)
    elif given is not None:
        lines.append("privacy: the release was paid for when it was made; this run costs nothing")
    elif ledger is not None:
        left = ledger.remaining()
        lines.append(f"ledger: {spec.privacy.ledger} has epsilon {left.epsilon:g} and delta {left.delta:g} left")
    at(TRYING)
    lines += _model(loaded, design)
    return lines


def _stated(release: Release) -> list[str]:
    """Say what was understood of a published release, and whether its tables agree with the noise that is stated."""
    from dpbayes.privacy.overlap import check_stated_noise

    stated = release.publication
    assert stated is not None
    return [
        f"published: {stated.publisher}, {stated.date}, {stated.source}; stated mechanism: {stated.mechanism}",
        "privacy: post-processing of a published release; this run costs nothing and charges no ledger",
        *(f"stated noise: {line}" for line in check_stated_noise(release).lines),
    ]


def _tables(design: Any, *, known: bool) -> list[str]:
    """Say how large the noise is in every table, beside a typical count where the number of records is known."""
    from dpbayes.privacy import Release

    if not isinstance(design, Release) or design.unit != "record":
        return []
    n = design.size
    if len(design.tables) > _MOST_TABLES:
        sizes = [table.counts.size for table in design.tables]
        spread = [math.sqrt(value) for t in design.tables for value in (t.variances.min(), t.variances.max())]
        return [
            f"  tables of {min(sizes):,} to {max(sizes):,} cells; noise of standard deviation "
            f"{_range(spread)} in every cell"
            + (f", {_range([n / size for size in sizes])} records per cell" if known else "")
        ]
    return [_table(table, n if known else None) for table in design.tables]


def _table(table: NoisyTable, n: float | None) -> str:
    typical = "" if n is None else f", beside {n / table.counts.size:,.0f} records per cell on average"
    spread = _range([math.sqrt(table.variances.min()), math.sqrt(table.variances.max())])
    law = "" if table.sensitivity is not None else f"{table.noise.words} "
    held = f", {table.withheld.sum():,} held back below {table.threshold:g}" if table.threshold is not None else ""
    noise = f"{law}noise of standard deviation {spread} in each"
    return f"  {table.label}: {table.counts.size:,} cells, {noise}{held}{typical}"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):,.3g}", f"{max(values):,.3g}"
    return low if low == high else f"{low} to {high}"


def _model(loaded: LoadedSpec, design: Any) -> list[str]:
    """Build the model on the design, and say how large it and its draws are."""
    study, spec = loaded.module, cast("Any", loaded.spec)
    if getattr(getattr(spec, "model", None), "file", None) is not None:
        return [f"model: {spec.model.file}, which is not run here"]
    with TemporaryDirectory() as folder:
        model = try_fit(loaded, design, Context(Path(folder), loaded.path.parent, echo=lambda line: None))
    if model is None:
        return []
    unknowns = sum(math.prod(value.shape) for value in model.initial_point().values())
    expected = [f"fit: {study.expected_cost(spec, design)}"] if hasattr(study, "expected_cost") else []
    return [f"model: {unknowns:,} unknowns{_draws(spec, model)}", *expected]


def _draws(spec: Any, model: pm.Model) -> str:
    draws = asked_draws(spec)
    if not draws:
        return ""
    size = 8e-9 * draws * recorded_numbers(model)
    return f", {draws:,} draws in {spec.sampling.chains} chains; they take {size:.2g} GB at least"
