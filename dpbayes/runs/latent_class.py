"""Runs of the latent class system: release marginal tables, fit, check, synthesize, report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbayes.errors import SpecError
from dpbayes.latent_class.sampler_settings import sums_out_pairs
from dpbayes.runs.execution import Context, Outcome
from dpbayes.runs.folder import kept_release, read_json, write_text
from dpbayes.runs.latent_class_spec import Data, Spec
from dpbayes.runs.records import code_levels, readable, require_columns, scan_records
from dpbayes.runs.simulated import sampler_note
from dpbayes.runs.variant import SAVED, check_recorded, keep_variant, load_variant

if TYPE_CHECKING:
    import pymc as pm
    import xarray as xr

    from dpbayes.data import Marginal
    from dpbayes.privacy import Release
    from dpbayes.privacy.ledger import Ledger
    from dpbayes.report import Document

__all__ = ["Spec", "document", "run"]

_RELEASE, _TRACE, _TRUTH = "release.json", "trace.nc", "truth.json"
_PREDICTED = 400  # releases drawn for the posterior predictive check
_INVENTED = 1000  # records of the invented release on which the model is tried


def run(spec: Spec, context: Context) -> Outcome:
    """Run the stages that the folder still lacks: release, trace, synthetic data.

    Parameters
    ----------
    spec
        The validated spec.
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        The convergence gate's verdict.
    """
    make = _builder(spec, context)

    def build(release: Release) -> pm.Model:
        model = make(release)
        spec.check_draws(summed_out=sums_out_pairs(model))  # known at last; nothing is drawn from the sampler yet
        return model

    release = _release(spec, build, context)
    cost = f"at {f'rho {release.rho:g}' if release.epsilon is None else f'epsilon {release.epsilon:g}'} in total"
    how = f"{release.adjacency}{sampler_note(release.sampler)}"
    context.echo(f"release: {release.n_counts} counts in {len(release.tables)} tables {cost}, {how}")
    trace = _trace(spec, release, build, context)

    from dpbayes.inference.verdict import Verdict

    verdict = Verdict.from_json(trace.attrs["convergence"])
    context.echo(verdict.summary())
    _synthetic(spec, release, trace, context)
    return Outcome(verdict.passed, verdict.summary())


def document(spec: Spec, folder: Path) -> Document:
    """Build the report from the files of a run folder.

    Parameters
    ----------
    spec
        The run's spec.
    folder
        A run folder with ``release.json``, ``trace.nc``, where the truth is public ``truth.json``, and for a user's own
        model ``model.py``.

    Returns
    -------
    Document
        The report.
    """
    from dpbayes.inference.schema import read_trace
    from dpbayes.privacy import read_release
    from dpbayes.report.latent_class import latent_class_document

    truth, variant = folder / _TRUTH, folder / SAVED
    names = ("concentration", "profile_prior") if spec.model.file is None else ()
    priors = {name: getattr(spec.model, name) for name in names}
    return latent_class_document(
        read_trace(folder / _TRACE),
        read_release(folder / _RELEASE),
        truth=_read_tables(truth) if truth.exists() else None,
        title=spec.title,
        question=spec.question,
        model_digest=hashlib.sha256(variant.read_bytes()).hexdigest() if variant.exists() else None,
        **priors,
    )


def _release(spec: Spec, build: Callable[[Release], pm.Model], context: Context) -> Release:
    """Draw the release, or read the one that was drawn; note the truth only where it is public.

    The model is built once before, on an invented release of the same design: a mistake in it must not cost a release.
    """
    import numpy as np

    from dpbayes.privacy import release_tables

    given = None if spec.data.release is None else context.beside / spec.data.release
    kept = kept_release(context.folder, given)
    if kept is not None:
        context.echo("release: already drawn, used again")
        return kept
    from dpbayes.runs.calibration_latent_class import design_release

    invented = design_release(spec, context.beside, _INVENTED if spec.data.microdata is not None else None)
    if spec.data.release is not None:
        release = invented  # it was paid for, and is its own design
        if spec.model.likelihood == "composite" and not release.n_public:
            raise SpecError(
                f"the composite likelihood needs a public number of records, and {spec.data.release} holds a noisy "
                'one; set model.likelihood = "joint"'
            )
        build(release)
    else:
        assert spec.privacy is not None
        build(invented)
        tables = _tables(spec.data, context.beside)
        if spec.data.truth_public:
            write_text(context.folder / _TRUTH, json.dumps([_table_to_dict(table) for table in tables]))
        seed = spec.privacy.simulation_seed
        release = release_tables(
            tables,
            epsilon=spec.privacy.epsilon,
            rho=spec.privacy.rho,
            noise=spec.privacy.noise,
            adjacency=spec.privacy.adjacency,
            total_share=spec.privacy.total_share,
            rng=None if seed is None else np.random.default_rng(seed),
            ledger=_open_ledger(spec.privacy.ledger, context.beside),
            delta=spec.privacy.delta or 0.0,
            purpose=spec.title,
        )
    release.write(context.folder / _RELEASE)
    return release


def _open_ledger(name: str | None, beside: Path) -> Ledger | None:
    from dpbayes.privacy.ledger import open_ledger

    return None if name is None else open_ledger(beside / name)


def _tables(data: Data, beside: Path) -> tuple[Marginal, ...]:
    """Count the exact tables. They stay in memory."""
    from dpbayes.data import Domain, marginals

    if data.embedded is not None:
        return embedded_tables(data.embedded)

    assert data.microdata is not None and data.levels is not None
    path = beside / data.microdata
    frame = scan_records(path, setting="data.microdata")
    sets = list(combinations(data.levels, 2)) if data.attribute_sets == "all-pairs" else data.attribute_sets
    require_columns(frame, dict.fromkeys(chain.from_iterable(sets)), path, source="data.attribute_sets")
    with readable(path):
        return marginals(code_levels(frame, data.levels), sets, domain=Domain.from_levels(data.levels))


def embedded_tables(name: str) -> tuple[Marginal, ...]:
    """Return tables that come with dpbayes.

    Parameters
    ----------
    name
        ``"acs_tables"``, or ``"persons"``: all pairs of attributes of 5,000 invented persons.
    """
    from dpbayes.data import Domain, datasets, marginals

    if name == "acs_tables":
        return datasets.acs_tables()

    import numpy as np

    from dpbayes.data.persons import PERSON_LEVELS, persons

    frame = persons(5000, rng=np.random.default_rng(2026))
    return marginals(frame, list(combinations(PERSON_LEVELS, 2)), domain=Domain.from_levels(PERSON_LEVELS))


def _trace(spec: Spec, release: Release, build: Callable[[Release], pm.Model], context: Context) -> xr.DataTree:
    """Fit and judge, or read the trace of a run that was stopped later on."""
    from dpbayes.inference import check_convergence, sample
    from dpbayes.inference.schema import annotate, read_trace, write_trace
    from dpbayes.latent_class import predict_release

    path = context.folder / _TRACE
    if path.exists():
        context.echo("posterior: already sampled, used again")
        return read_trace(path)
    context.echo("model: compiling (half a minute the first time)")
    model = build(release)
    seed, settings = spec.sampling.seed, spec.sampling.settings(sums_out_pairs(model))
    trace = sample(model, random_seed=seed, progressbar=context.progressbar, **settings)
    predicted = min(_PREDICTED, settings["draws"] * settings["chains"])
    trace["posterior_predictive"] = predict_release(trace, release, n_datasets=predicted, random_seed=seed)
    trace = annotate(
        trace,
        verdict=check_convergence(trace),
        spec_digest=context.spec_digest,
        release_digest=release.digest,
        privacy_record=release.privacy_record,
    )
    write_trace(trace, path)
    return trace


def _builder(spec: Spec, context: Context) -> Callable[[Release], pm.Model]:
    """Return what builds the model: the package's, or the user's."""
    if spec.model.file is None:
        from dpbayes.latent_class import build_model

        return lambda release: build_model(release, **spec.model.options())
    path = context.beside / spec.model.file
    context.echo(f"model: {path.name} (SHA-256 {keep_variant(path, context.folder)[:12]})")
    theirs = load_variant(path)

    def build(release: Release) -> pm.Model:
        # The predictive check draws records of the mixture, whether or not synthetic data are asked for.
        names = ["margin", "exact_counts", "weights", *(f"profile_{name}" for name in release.domain.names)]
        return check_recorded(theirs(release, n_classes=spec.model.n_classes), names, file=path.name)

    return build


def _synthetic(spec: Spec, release: Release, trace: xr.DataTree, context: Context) -> None:
    from dpbayes.latent_class import synthesize, write_synthetic
    from dpbayes.latent_class.record_numbers import record_numbers

    settings = spec.synthesis
    if settings.n_datasets == 0:
        return
    rows = settings.n_rows or max(round(float(record_numbers(trace["posterior"].to_dataset(), release).mean())), 1)
    frames = synthesize(trace, n_datasets=settings.n_datasets, n_rows=rows, random_seed=spec.sampling.seed)
    paths = write_synthetic(frames, context.folder / "synthetic", format=settings.format)
    context.echo(f"synthetic data: {len(paths)} sets of {rows:,} records")


def _table_to_dict(table: Marginal) -> dict[str, Any]:
    return {"domain": table.domain.to_dict(), "counts": table.counts.tolist()}


def _read_tables(path: Path) -> tuple[Marginal, ...]:
    from dpbayes.data import Domain, Marginal

    return tuple(Marginal(Domain.from_dict(t["domain"]), t["counts"]) for t in read_json(path))
