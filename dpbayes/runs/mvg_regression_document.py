"""Report of the noise-aware regression, built from ``release.json`` and ``trace.nc``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes.report.document import Block, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.privacy_terms import PrivacyTerms
from dpbayes.runs.folder import read_json
from dpbayes.runs.mvg import RELEASE, TRACE, TRUTH, Spec
from dpbayes.runs.mvg_parts import provenance

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.mvg.moment_release import MomentRelease
    from dpbayes.mvg.regression import NaiveFit, WhitenedMoments

__all__ = ["regression_document"]


def regression_document(spec: Spec, folder: Path) -> Document:
    """Build the report of a noise-aware regression."""
    from dpbayes.inference.schema import read_trace
    from dpbayes.inference.verdict import Verdict
    from dpbayes.mvg import naive_regression, read_moments, whiten_moments
    from dpbayes.report.convergence import convergence_facts, convergence_section, verdict_callout
    from dpbayes.runs.mvg_regression import regression_columns

    trace, release = read_trace(folder / TRACE), read_moments(folder / RELEASE)
    verdict = Verdict.from_json(trace.attrs["convergence"])
    white = whiten_moments(release, features=tuple(regression_columns(spec)))
    naive = naive_regression(white)
    truth = read_json(folder / TRUTH) if (folder / TRUTH).exists() else None
    rows = _rows(trace, naive, truth)
    epsilon = release.noise.epsilon(spec.privacy.delta)
    wider = [(row[3] - row[2]) / (row[6] - row[5]) for row in rows if row[6] > row[5]]
    response = regression_columns(spec)[-1]
    answer = _found(rows, response) + (
        f" These intervals are {np.median(wider):.1f} times as wide, in the median, as those of least squares on the "
        "released numbers, which count sampling error alone."
        if wider
        else " The released moments admit no least squares fit; the posterior says what they still tell."
    )
    table = [*rows, _residual_row(trace, truth)]
    caption = f"Coefficients in units of {response} for one unit of the term, with 95 % intervals (equal tails)"
    blocks: list[Block] = [
        Table("coefficients", caption, _coefficient_columns(), table),
        Figure(_coefficient_figure(rows), *_COEFFICIENT_TEXT),
    ]
    return Document(
        title=spec.title,
        question=spec.question,
        answer=answer,
        verdict=verdict_callout(verdict),
        headline=[
            Fact("epsilon", f"epsilon at delta {spec.privacy.delta:g}, replace-one", epsilon, f"{epsilon:.4g}"),
            Fact("n", "records", release.query.n, f"{release.query.n:,}"),
            *convergence_facts(trace, verdict),
        ],
        sections=[
            Section("Coefficients", blocks),
            _sources(trace, white, naive),
            _released(release, epsilon, spec.privacy.delta),
            _prior(trace),
            convergence_section(
                trace, verdict, judged="The quantities of interest: intercept, coefficients, residual."
            ),
        ],
        provenance=provenance(spec) | {"release digest": release.digest, "sampler": trace.attrs["sampler"]},
        facts={"clipping": _CLIPPING},
        privacy=PrivacyTerms(release.noise.adjacency, delta=spec.privacy.delta),
    )


def _sources(trace: xr.DataTree, white: WhitenedMoments, naive: NaiveFit) -> Section:
    from dpbayes.report.variance_shares import shares_section
    from dpbayes.runs.width_sources import coefficient_variances

    privacy, sampling = coefficient_variances(trace, white.coordinates, white.n)
    meaning = (
        "The first would be gone had the exact moments been released. The second is what least squares would count on "
        "the exact records, residual variance times the inverse moments, averaged over the posterior."
    )
    return shares_section(
        list(zip(naive.terms, privacy.tolist(), sampling.tolist(), strict=True)),
        subject="term",
        rest="sampling",
        meaning=meaning,
        unit="in the coefficient's unit",
        format=".3g",
    )


def _prior(trace: xr.DataTree) -> Section:
    from dpbayes.report.sensitivity import prior_section
    from dpbayes.runs.log_densities import regression_densities

    parts, likelihood = regression_densities(trace)
    what = (
        "The parts are the prior of intercept and coefficients, that of the residual, and that of the predictors' "
        "means and covariance; all are stated in half-widths of the public ranges."
    )
    quantities = ["intercept", "coefficient", "residual_stddev"]
    return prior_section(trace, parts, variables=quantities, what=what, log_likelihood=likelihood)


def _rows(trace: xr.DataTree, naive: NaiveFit, truth: dict[str, Any] | None) -> list[tuple[Any, ...]]:
    posterior = trace["posterior"].to_dataset()
    stacked = [posterior["intercept"].to_numpy().ravel()]
    stacked += [posterior["coefficient"].isel(predictor=i).to_numpy().ravel() for i in range(len(naive.terms) - 1)]
    rows = []
    for place, (term, draws) in enumerate(zip(naive.terms, stacked, strict=True)):
        low, high = np.quantile(draws, [0.025, 0.975])
        estimate, stderr = float(naive.estimate[place]), float(naive.stderr[place])
        exact = None if truth is None else truth["estimate"][place]
        rows.append(
            (term, float(draws.mean()), low, high, estimate, estimate - 1.96 * stderr, estimate + 1.96 * stderr, exact)
        )
    return rows


def _found(rows: Sequence[Sequence[Any]], response: str) -> str:
    """Say every coefficient with its interval."""
    parts = [f"{mean:.3g} a unit of {term} ({low:.3g} to {high:.3g})" for term, mean, low, high, *_ in rows[1:]]
    return f"Expected {response} changes by {', '.join(parts)}; 95 % intervals, the other terms held."


def _residual_row(trace: xr.DataTree, truth: dict[str, Any] | None) -> tuple[Any, ...]:
    draws = trace["posterior"].to_dataset()["residual_stddev"].to_numpy().ravel()
    low, high = np.quantile(draws, [0.025, 0.975])
    exact = None if truth is None else truth["residual_stddev"]
    return ("residual sd", float(draws.mean()), float(low), float(high), None, None, None, exact)


_COEFFICIENT_TEXT = (
    "Each term scaled by its noise-aware posterior: zero is the posterior mean, one its standard deviation. A cross "
    "marks least squares on the exact records, shown only where they are public.",
    "Noise-aware and naive 95 % intervals of every coefficient, with exact least squares.",
)


def _coefficient_columns() -> list[Column]:
    return [
        Column("term"),
        Column("noise-aware", ".4g", "posterior_mean"),
        Column("2.5 %", ".4g", "low"),
        Column("97.5 %", ".4g", "high"),
        Column("naive", ".4g", "naive"),
        Column("naive 2.5 %", ".4g", "naive_low"),
        Column("naive 97.5 %", ".4g", "naive_high"),
        Column("exact records", ".4g", "exact"),
    ]


def _coefficient_figure(rows: Sequence[Sequence[Any]]) -> Any:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 0.9 + 0.6 * len(rows)), layout="constrained")
    for place, (_, mean, low, high, naive, naive_low, naive_high, exact) in enumerate(rows):
        unit = (high - low) / 3.92
        first = place == 0
        axis.plot([(low - mean) / unit, (high - mean) / unit], [place - 0.12] * 2, color="#2f5fa8", linewidth=4,
                  label="noise-aware" if first else None)  # fmt: skip
        axis.plot(0.0, place - 0.12, "|", color="#111111", markersize=10)
        axis.plot([(naive_low - mean) / unit, (naive_high - mean) / unit], [place + 0.12] * 2, color="#c2571a",
                  linewidth=4, label="naive" if first else None)  # fmt: skip
        axis.plot((naive - mean) / unit, place + 0.12, "|", color="#111111", markersize=10)
        if exact is not None:
            axis.plot((exact - mean) / unit, place, "x", color="#111111", label="exact records" if first else None)
    axis.set_yticks(range(len(rows)), [row[0] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("posterior standard deviations from the posterior mean")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


_CLIPPING = (
    "Before that, a value outside the declared range of its column was clipped to it, and a missing one set to the "
    "range's middle. How many were is confidential, and neither is modelled: where there were many, the coefficients "
    "describe the records so changed."
)


def _released(release: MomentRelease, epsilon: float, delta: float) -> Section:
    """Return the section on the released moments, with a warning if the noise was simulated."""
    from dpbayes.report.released import simulation_warning

    text = [Paragraph(_released_text(release, epsilon, delta)), Paragraph(_CLIPPING)]
    return Section("What was released", [*text, *simulation_warning(release.sampler)])


def _released_text(release: MomentRelease, epsilon: float, delta: float) -> str:
    drawn = "OpenDP" if release.sampler == "opendp" else "a seeded generator"
    query, mu = release.query, release.noise.mu
    return (
        f"The second moments of {query.n:,} records, {query.size} by {query.size} with an intercept, plus symmetric "
        f"Gaussian noise of standard deviation {release.noise.stddev:.3g} in units of squared half-ranges; mu = "
        f"{mu.value:.4g} ({mu.method}), epsilon {epsilon:.4g} at delta {delta:g} under replace-one. The noise was "
        f"drawn by {drawn}."
    )
