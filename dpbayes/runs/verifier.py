"""Runs of the verifier: count partitions, release, answer; or the operating characteristics of a design."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbayes.runs.execution import Context, Outcome
from dpbayes.runs.folder import kept_release, read_json, write_text
from dpbayes.runs.records import code_levels, readable, require_file, scan_records
from dpbayes.runs.simulated import sampler_note
from dpbayes.runs.verifier_rehearsal import rehearse
from dpbayes.runs.verifier_spec import Question, Spec, Surface

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy import Release
    from dpbayes.report import Document

__all__ = ["Spec", "document", "run"]

RELEASE, TRACE, SURFACE = "release.json", "trace.nc", "surface.json"


def run(spec: Spec, context: Context) -> Outcome:
    """Run the stages that the folder still lacks.

    Parameters
    ----------
    spec
        The validated spec.
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        The convergence gate's verdict where NUTS ran; exact answers always pass.
    """
    if spec.surface is not None:
        return _run_surface(spec.surface, context)
    release = _release(spec, context)
    cost = f"at epsilon {release.epsilon:g} in total"
    how = f"{release.adjacency}{sampler_note(release.sampler)}"
    context.echo(f"release: {len(release.tables)} question(s), {release.n} partitions, {cost}, {how}")
    trace = _trace(spec, release, context)
    if spec.model.pooling == "none":
        return Outcome(True, "Exact: no sampler ran, so there is no convergence to judge.")

    from dpbayes.inference import Verdict

    verdict = Verdict.from_json(trace.attrs["convergence"])
    context.echo(verdict.summary())
    return Outcome(verdict.passed, verdict.summary())


def document(spec: Spec, folder: Path) -> Document:
    """Build the report from the files of a run folder.

    Parameters
    ----------
    spec
        The run's spec.
    folder
        A run folder with ``release.json`` and ``trace.nc``, or with ``surface.json``.

    Returns
    -------
    Document
        The report.
    """
    from dpbayes.runs.verifier_document import verification_document
    from dpbayes.runs.verifier_surface_document import surface_document

    if spec.surface is not None:
        return surface_document(spec, read_json(folder / SURFACE))
    from dpbayes.inference import read_trace
    from dpbayes.privacy import read_release

    return verification_document(spec, read_release(folder / RELEASE), read_trace(folder / TRACE))


def _release(spec: Spec, context: Context) -> Release:
    """Count and release, or read the release that was drawn. The exact counts never touch a file.

    What follows the release is rehearsed before: a mistake in the spec must not cost a release.
    """
    import numpy as np

    from dpbayes.privacy import read_release
    from dpbayes.verifier import release_counts

    assert spec.data is not None
    given = None if spec.data.release is None else context.beside / spec.data.release
    kept = kept_release(context.folder, given)
    if kept is not None:
        context.echo("release: already drawn, used again")
        return kept
    if given is not None:
        release = read_release(require_file(given, setting="data.release"))
    else:
        assert spec.privacy is not None
        rehearse(spec)
        seed = spec.privacy.simulation_seed
        rng = None if seed is None else np.random.default_rng(seed)
        frame = _records(spec, context.beside)
        release = release_counts(
            {question.name: _count(frame, question, spec, rng) for question in spec.questions},
            epsilon=spec.privacy.epsilon,
            adjacency=spec.privacy.adjacency,
            noise=spec.privacy.noise,
            shares=[question.share for question in spec.questions],
            with_failures=spec.privacy.with_failures,
            rng=rng,
            ledger=_open_ledger(spec.privacy.ledger, context.beside),
            purpose=spec.title,
        )
    release.write(context.folder / RELEASE)
    return release


def _open_ledger(name: str | None, beside: Path) -> Any:
    from dpbayes.privacy.ledger import open_ledger

    return None if name is None else open_ledger(beside / name)


def _records(spec: Spec, beside: Path) -> Any:
    """Read the records. They stay in memory."""
    data = spec.data
    assert data is not None
    if data.embedded is not None:
        from dpbayes.data.wages import wages

        return wages(data.n_persons, seed=data.seed)
    assert data.microdata is not None
    path = beside / data.microdata
    frame = scan_records(path, setting="data.microdata", text={*data.levels, *_names(spec)})
    with readable(path):
        return code_levels(frame, data.levels).collect()


def _names(spec: Spec) -> set[str]:
    """Return the columns that name units and groups, unless a formula calculates with them.

    Read as text, each row says by itself whom it belongs to. Inferred, the type of the column would hang on every row:
    one person called "A3" would tell the rows "1" and "01" of others apart, one called "5.5" would round long numbers
    together, and with that person all partitions would change.
    """
    from dpbayes.verifier.formulas import formula_columns

    assert spec.data is not None
    named = {spec.data.unit or ""}.union(*(question.absorb for question in spec.questions)) - {""}
    return named.difference(*(formula_columns(question.formula) for question in spec.questions))


def _count(frame: Any, question: Question, spec: Spec, rng: Any) -> Any:
    from dpbayes.verifier import count_partitions, count_significant

    assert spec.data is not None and spec.privacy is not None
    unit = spec.data.unit or ("person" if spec.data.embedded == "wages" else None)
    common: dict[str, Any] = {
        "formula": question.formula,
        "coefficient": question.coefficient,
        "n_partitions": spec.privacy.n_partitions,
        "unit": unit,
        "family": question.family,
        "absorb": question.absorb,
        "levels": spec.data.levels,
        "assignment": spec.privacy.assignment,
        "random_state": rng,
    }
    if question.significant_at is not None:
        return count_significant(frame, level=question.significant_at, **common)
    assert question.threshold is not None
    return count_partitions(frame, threshold=question.threshold, direction=question.direction, **common)


def _trace(spec: Spec, release: Release, context: Context) -> xr.DataTree:
    """Draw from the exact posteriors, or sample the pooled model."""
    from dpbayes.inference import annotate, check_convergence, read_trace, sample, write_trace
    from dpbayes.verifier import build_model, draw_release

    path = context.folder / TRACE
    if path.exists():
        context.echo("posterior: already drawn, used again")
        return read_trace(path)
    settings = spec.model
    if settings.pooling == "none":
        trace = draw_release(release, **settings.drawing())
    else:
        context.echo("model: compiling (half a minute the first time)")
        trace = sample(
            build_model(release, pooling="partial"),
            draws=settings.draws,
            chains=settings.chains,
            random_seed=settings.seed,
            target_accept=0.95,
            progressbar=context.progressbar,
        )
        trace = annotate(trace, verdict=check_convergence(trace))
    trace = annotate(
        trace,
        spec_digest=context.spec_digest,
        release_digest=release.digest,
        privacy_record=release.privacy_record,
    )
    write_trace(trace, path)
    return trace


def _run_surface(surface: Surface, context: Context) -> Outcome:
    """Sum the operating characteristics of every design, and seek the least epsilon for each M and r."""
    from dpbayes.errors import InputError
    from dpbayes.verifier import design_surface, smallest_epsilon

    path = context.folder / SURFACE
    if path.exists():
        context.echo("surface: already summed, used again")
        return Outcome(True, "Exact sums over the noise: nothing was sampled.")
    common: dict[str, Any] = {
        "failed": surface.failed,
        "alpha": surface.alpha,
        "confidence": surface.confidence,
        "noise": surface.noise,
    }
    found = design_surface(surface.n_partitions, surface.epsilon, r=surface.r, **common)
    designs = []
    for m in surface.n_partitions:
        for r in surface.r:
            try:
                least: float | None = smallest_epsilon(m, r=r, wanted=surface.wanted, **common)
            except InputError:
                # Out of reach with this M: said in the report as a dash.
                least = None
            designs.append({"n_partitions": m, "r": r, "epsilon": least})
        context.echo(f"design: M = {m} done")
    write_text(path, json.dumps({"surface": found.to_dict(), "designs": designs}))
    return Outcome(True, "Exact sums over the noise: nothing was sampled.")
