"""Runs of prior-aware estimation: release marginals, weigh them against a public prior, synthesize, report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbayes.runs.execution import Context, Outcome
from dpbayes.runs.folder import read_json, write_text
from dpbayes.runs.ide_data import group_data, table_data
from dpbayes.runs.ide_spec import Data, Spec
from dpbayes.runs.simulated import sampler_note

if TYPE_CHECKING:
    import polars as pl

    from dpbayes.report import Document

__all__ = ["Spec", "document", "run"]

RELEASE, RESULT = "release.json", "estimate.json"


def run(spec: Spec, context: Context) -> Outcome:
    """Run the stages that the folder still lacks: release, estimate, synthetic data.

    Parameters
    ----------
    spec
        The validated spec.
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        Passed where every noise-aware problem was solved to its tolerance; Algorithm 1 has nothing to certify.
    """
    started = time.perf_counter()
    result = (_run_tables if spec.groups is None else _run_groups)(spec, context)
    if not (context.folder / RESULT).exists():
        provenance = {"spec_digest": context.spec_digest, "seconds": time.perf_counter() - started}
        write_text(context.folder / RESULT, json.dumps(result | {"provenance": provenance}, allow_nan=False))
    context.echo(result["summary"])
    return Outcome(result["passed"], result["summary"])


def document(spec: Spec, folder: Path) -> Document:
    """Build the report from the files of a run folder.

    Parameters
    ----------
    spec
        The run's spec.
    folder
        A run folder with ``release.json`` and ``estimate.json``.
    """
    from dpbayes.ide import read_group_release
    from dpbayes.privacy import read_release
    from dpbayes.report.ide import groups_document, tables_document

    result = read_json(folder / RESULT)
    if spec.groups is None:
        return tables_document(spec.title, spec.question, read_release(folder / RELEASE), result)
    return groups_document(spec.title, spec.question, read_group_release(folder / RELEASE), result)


def _run_tables(spec: Spec, context: Context) -> dict[str, Any]:
    """Release tables of the private records and estimate their distribution."""
    from dpbayes.data import marginals
    from dpbayes.ide import Prior
    from dpbayes.privacy import read_release, release_tables
    from dpbayes.runs.ide_results import table_results

    if (context.folder / RESULT).exists():
        return dict(read_json(context.folder / RESULT))
    domain, public, private = table_data(spec.data, context.beside)
    prior = Prior.from_frame(public, domain)  # before the release: a mistake in it must not cost one
    path = context.folder / RELEASE
    if path.exists():
        context.echo("release: already drawn, used again")
        release = read_release(path)
    else:
        release = release_tables(
            marginals(private, _attribute_sets(spec.data, domain.names), domain=domain),
            epsilon=spec.privacy.epsilon,
            noise=spec.privacy.noise,
            purpose=spec.title,
            **_randomness(spec, context),
        )
        release.write(path)
    cost = f"{release.n_counts} counts in {len(release.tables)} tables at epsilon {release.epsilon:g} in total"
    context.echo(f"release: {cost}, {release.adjacency}{sampler_note(release.sampler)}")
    truth = Prior.from_frame(private, domain) if spec.data.truth_public else None
    result, estimated = table_results(spec, prior, release, truth)
    import numpy as np

    rows = spec.synthesis.n_rows or round(max(estimated.n, 1.0))
    frame = estimated.sample(rows, rng=np.random.default_rng(spec.estimation.seed))
    _write_synthetic(frame, spec, context)
    return result


def _attribute_sets(data: Data, names: Sequence[str]) -> list[list[str]]:
    if isinstance(data.tables, list):
        return data.tables
    assert data.by is not None
    return [[data.by, name] for name in names if name != data.by]


def _run_groups(spec: Spec, context: Context) -> dict[str, Any]:
    """Release both levels of a hierarchy and run Algorithm 2."""
    from dpbayes.ide import Prior, read_group_release, release_groups
    from dpbayes.runs.ide_results import chosen_workloads, group_results

    if (context.folder / RESULT).exists():
        return dict(read_json(context.folder / RESULT))
    assert spec.groups is not None
    domain, hierarchy, public, private = group_data(spec.data, spec.groups, context.beside)
    prior = Prior.from_frame(public, domain)
    workloads = chosen_workloads(spec, prior, hierarchy)
    path = context.folder / RELEASE
    if path.exists():
        context.echo("release: already drawn, used again")
        released = read_group_release(path)
    else:
        released = release_groups(
            private,
            hierarchy,
            domain,
            unit_sets=workloads["unit_sets"],
            group_sets=workloads["group_sets"],
            epsilon=spec.privacy.epsilon,
            stability=spec.groups.stability,
            noise=spec.privacy.noise,
            purpose=spec.title,
            **_randomness(spec, context),
        )
        released.write(path)
    cost = f"{len(released.units)} units, {len(released.groups)} groups at epsilon {released.epsilon:g} in total"
    context.echo(f"release: {cost}, {released.adjacency}{sampler_note(released.sampler)}")
    truth = private if spec.data.truth_public or spec.data.embedded is not None else None
    result, synthetic = group_results(spec, prior, released, workloads, truth)
    _write_synthetic(synthetic.frame(), spec, context)
    return result


def _randomness(spec: Spec, context: Context) -> dict[str, Any]:
    """Return the generator and the book of a release: a seed simulates, otherwise OpenDP draws."""
    import numpy as np

    from dpbayes.privacy.ledger import open_ledger

    seed, book = spec.privacy.simulation_seed, spec.privacy.ledger
    return {
        "rng": None if seed is None else np.random.default_rng(seed),
        "ledger": None if book is None else open_ledger(context.beside / book),
    }


def _write_synthetic(frame: pl.DataFrame, spec: Spec, context: Context) -> None:
    """Write the records under a temporary name, then rename."""
    folder = context.folder / "synthetic"
    folder.mkdir(exist_ok=True)
    target = folder / f"synthetic-1.{spec.synthesis.format}"
    partial = target.with_name(target.name + ".tmp")
    if spec.synthesis.format == "parquet":
        frame.write_parquet(partial)
    else:
        frame.write_csv(partial)
    partial.replace(target)
    context.echo(f"synthetic data: {len(frame):,} records")
