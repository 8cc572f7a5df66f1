"""The regression run of the MVG system: release moments, fit with the noise in the model, judge."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from dpbayes.runs.execution import Context, Outcome
from dpbayes.runs.folder import write_text
from dpbayes.runs.mvg import RELEASE, TRACE, TRUTH, Spec
from dpbayes.runs.mvg_records import feature_ranges, load_records, record_matrix
from dpbayes.runs.simulated import sampler_note

if TYPE_CHECKING:
    import polars as pl
    import xarray as xr

    from dpbayes.mvg import FeatureRanges
    from dpbayes.mvg.moment_release import MomentRelease

__all__ = ["regression_columns", "run_regression"]


def regression_columns(spec: Spec) -> list[str]:
    """Return the predictors, then the response."""
    assert spec.regression is not None
    return [*spec.regression.predictors, spec.regression.response]


def run_regression(spec: Spec, context: Context) -> Outcome:
    """Run the stages that the folder still lacks: release and trace.

    Parameters
    ----------
    spec
        A spec with the section [regression].
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        The convergence gate's verdict.
    """
    from dpbayes.inference.schema import read_trace
    from dpbayes.inference.verdict import Verdict
    from dpbayes.mvg import read_moments

    path = context.folder / RELEASE
    if path.exists():
        context.echo("release: already drawn, used again")
        release = read_moments(path)
    else:
        release = _release(spec, context)
        release.write(path)
    cost = f"epsilon {spec.privacy.epsilon:g} and delta {spec.privacy.delta:g} (mu {release.noise.mu.value:.4g})"
    what = f"moments of {release.query.n:,} records at {cost}, replace-one"
    context.echo(f"release: {what}{sampler_note(release.sampler)}")
    if (context.folder / TRACE).exists():
        context.echo("posterior: already sampled, used again")
        trace = read_trace(context.folder / TRACE)
    else:
        trace = _sample(spec, release, context)
    verdict = Verdict.from_json(trace.attrs["convergence"])
    context.echo(verdict.summary())
    return Outcome(verdict.passed, verdict.summary())


def _release(spec: Spec, context: Context) -> MomentRelease:
    import numpy as np

    from dpbayes.mvg import MomentQuery, calibrate_moments, release_moments
    from dpbayes.privacy.ledger import open_ledger

    assert spec.regression is not None
    frame, known = load_records(spec, context.beside)
    names = regression_columns(spec)
    ranges = feature_ranges(known, names)
    records = record_matrix(frame.select(names))
    # One half-width of every column is one unit of the noise; the constant then matches the half-diagonal.
    half = ranges.widths / 2.0
    constant = spec.regression.intercept or math.sqrt(len(names))
    query = MomentQuery(ranges, records.shape[1], intercept=constant)
    noise = calibrate_moments(query, epsilon=spec.privacy.epsilon, delta=spec.privacy.delta, shape=np.diag(half**2))
    seed, book = spec.privacy.simulation_seed, spec.privacy.ledger
    if spec.data.embedded is not None or spec.data.truth_public:
        write_text(context.folder / TRUTH, json.dumps(_least_squares(frame, names, ranges)))
    return release_moments(
        records,
        noise,
        rng=None if seed is None else np.random.default_rng(seed),
        ledger=None if book is None else open_ledger(context.beside / book),
        ledger_delta=0.0 if book is None else spec.privacy.delta,
        purpose=spec.title,
    )


def _least_squares(frame: pl.DataFrame, names: list[str], ranges: FeatureRanges) -> dict[str, Any]:
    """Return least squares on the clipped records: shown beside the estimates where the records are public."""
    import numpy as np

    from dpbayes.mvg import clip_records

    values = clip_records(record_matrix(frame.select(names)), ranges).values
    design = np.vstack([np.ones(values.shape[1]), values[:-1]]).T
    fit = np.linalg.lstsq(design, values[-1], rcond=None)[0]
    residual = float(np.sum((values[-1] - design @ fit) ** 2)) / (values.shape[1] - design.shape[1])
    stderr = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * residual)
    return {"estimate": fit.tolist(), "stderr": stderr.tolist(), "residual_stddev": math.sqrt(residual)}


def _sample(spec: Spec, release: MomentRelease, context: Context) -> xr.DataTree:
    from dpbayes.inference import check_convergence, sample
    from dpbayes.inference.schema import annotate, write_trace
    from dpbayes.mvg import build_moment_model, whiten_moments
    from dpbayes.mvg.model import sampler_defaults

    settings = spec.regression
    assert settings is not None
    context.echo("model: compiling (half a minute the first time)")
    trace = sample(
        build_moment_model(whiten_moments(release, features=tuple(regression_columns(spec)))),
        **sampler_defaults()
        | {
            "draws": settings.draws,
            "tune": settings.tune,
            "chains": settings.chains,
            "target_accept": settings.target_accept,
        },
        random_seed=settings.seed,
        progressbar=context.progressbar,
    )
    noise = release.noise
    trace = annotate(
        trace,
        verdict=check_convergence(trace),
        spec_digest=context.spec_digest,
        release_digest=release.digest,
        privacy_record={
            "mechanism": "symmetric-gaussian",
            "mu": noise.mu.value,
            "mu_known_by": noise.mu.method,
            "epsilon": noise.epsilon(spec.privacy.delta),
            "delta": spec.privacy.delta,
            "adjacency": noise.adjacency,
            "sampler": release.sampler,
        },
    )
    write_trace(trace, context.folder / TRACE)
    return trace
