"""Reports of the MVG system, built from the files of a run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes import __version__
from dpbayes.mvg import CovarianceResult, FeatureRanges, SvrScore, SvrStudy, compare_noise, mu_for
from dpbayes.report.document import Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.runs.mvg import RELEASE, TRACE, TRUTH, Spec

if TYPE_CHECKING:
    from dpbayes.mvg.comparison import NoiseCost

__all__ = ["covariance_document", "regression_document", "svr_document"]

_SIMULATED = Callout(
    "note",
    "A simulation on public records",
    ["Errors are measured against exact answers, which a real release never shows. No sampler ran."],
)


def covariance_document(spec: Spec, study: dict[str, Any]) -> Document:
    """Build the report of a covariance study."""
    from dpbayes.mvg.plots import rss_lines

    results = [CovarianceResult(**{**row, "rss": tuple(row["rss"])}) for row in study["results"]]
    rows = []
    for row in results:
        part = row.summary()
        rows.append((row.n, row.query, part["mean"], part["low"], part["high"], float(np.mean(row.rss)), row.runtime))
    last = max(row.n for row in results)
    mean = {row.query: row.summary()["mean"] for row in results if row.n == last}
    columns = [
        Column("records", ",d", "n"),
        Column("query"),
        Column("RSS of shares", ".3e", "rss_shares"),
        Column("2.5 %", ".3e", "low"),
        Column("97.5 %", ".3e", "high"),
        Column("RSS of eigenvalues", ".3e", "rss"),
        Column("runtime (s)", ".2e", "runtime"),
    ]
    size = len(study["features"])
    ranges = FeatureRanges(np.zeros(size), np.ones(size), "replace-one")
    costs = compare_noise(ranges, n=last, epsilon=spec.privacy.epsilon, delta=spec.privacy.delta)
    return Document(
        title=spec.title,
        question=spec.question,
        answer=(
            f"At {last:,} records the covariance query's eigenvalue shares are off by {mean['covariance']:.1e} (sum of "
            f"squares), the identity query's by {mean['identity']:.2f}: what pure noise gives at any size. The "
            "error of the covariance query falls with the square of the number of records."
        ),
        verdict=_SIMULATED,
        headline=[*_guarantee(spec), Fact("draws", "draws a mechanism", len(results[0].rss), str(len(results[0].rss)))],
        sections=[
            Section(
                "Eigenvalues of the covariance",
                [
                    Table("covariance", "Error of the principal components, by query and size", columns, rows),
                    Figure(
                        rss_lines(results),
                        "Filled: this study. Open: the paper's Appendix C, whose data and epsilon are not known; its "
                        "slopes are what to compare.",
                        "Eigenvalue error against the number of records, both axes logarithmic.",
                    ),
                ],
            ),
            _noise_section(costs, ranges, study["features"]),
        ],
        provenance=_provenance(spec),
    )


def svr_document(spec: Spec, record: dict[str, Any]) -> Document:
    """Build the report of a support vector study."""
    from dpbayes.mvg.plots import error_strips, noise_bars

    saved = record["study"]
    scores = tuple(
        SvrScore(**{**row, "mae": tuple(row["mae"]), "stddev": tuple(row["stddev"])}) for row in saved["scores"]
    )
    study = SvrStudy(**{**saved, "scores": scores})
    clean = scores[0]
    rows = [
        (
            score.mechanism,
            score.epsilon,
            score.mean,
            float(np.std(score.mae)),
            float(np.min(score.mae)),
            float(np.max(score.mae)),
            score.runtime,
            study.drowned(score),
        )
        for score in scores
    ]
    columns = [
        Column("mechanism"),
        Column("epsilon", "g"),
        Column("mean absolute error", ".4f", "mae"),
        Column("sd", ".4f"),
        Column("smallest", ".4f"),
        Column("largest", ".4f"),
        Column("runtime (s)", ".2e", "runtime"),
        Column("drowns the signal", "", "drowned"),
    ]
    top = max(spec.svr.epsilons) if spec.svr is not None else 1.0
    bars = {score.mechanism: score.stddev for score in scores if score.epsilon == top}
    size = len(record["features"])
    ranges = FeatureRanges(np.zeros(size), np.ones(size), "replace-one")
    n = study.n_train + study.n_tuning
    costs = compare_noise(
        ranges, n=n, epsilon=spec.privacy.epsilon, delta=spec.privacy.delta, weights=record["weights"]
    )
    return Document(
        title=spec.title,
        question=spec.question,
        answer=_svr_answer(study),
        verdict=_SIMULATED,
        headline=[
            Fact("clean", "error without privacy", clean.mean, f"{clean.mean:.4f}"),
            Fact("constant", "error of predicting one constant", study.constant, f"{study.constant:.4f}"),
            Fact("draws", "draws a mechanism", len(scores[1].mae), str(len(scores[1].mae))),
            Fact("n", "records released", n, f"{n:,}"),
        ],
        sections=[
            Section(
                "Error on a clean holdout",
                [
                    Table("svr", "Mean absolute error of the risk score over the draws", columns, rows),
                    Figure(
                        error_strips(study),
                        "One dot a draw. Dashed: no privacy. Solid: one constant; a strip at or right of it holds no "
                        "signal.",
                        "Strips of holdout errors by mechanism, one panel an epsilon.",
                    ),
                ],
            ),
            Section(
                "Noise by column",
                [
                    Figure(
                        noise_bars(bars, record["features"]),
                        f"Noise standard deviation over the column's range at epsilon {top:g}.",
                        "Bars of noise standard deviation by column and mechanism, logarithmic.",
                    )
                ],
            ),
            _noise_section(costs, ranges, record["features"]),
        ],
        provenance=_provenance(spec) | {"scikit-learn": _sklearn_version()},
    )


def _svr_answer(study: SvrStudy) -> str:
    parts = []
    for epsilon in sorted({score.epsilon for score in study.scores if score.epsilon is not None}):
        kept = [s for s in study.scores if s.epsilon == epsilon and not study.drowned(s)]
        if kept:
            best = min(kept, key=lambda score: score.mean)
            names = ", ".join(score.mechanism for score in kept)
            parts.append(f"at epsilon {epsilon:g} some signal survives under {names} (best {best.mean:.3f})")
        else:
            parts.append(f"at epsilon {epsilon:g} every mechanism drowns it")
    return (
        f"Without privacy the error is {study.scores[0].mean:.4f}; one constant gives {study.constant:.4f}. Releasing "
        f"the records themselves buries the signal: {'; '.join(parts)}."
    )


def regression_document(spec: Spec, folder: Path) -> Document:
    """Build the report of a noise-aware regression."""
    from dpbayes.inference.schema import read_trace
    from dpbayes.inference.verdict import Verdict
    from dpbayes.mvg import naive_regression, read_moments, whiten_moments
    from dpbayes.report.convergence import convergence_facts, convergence_section, verdict_callout
    from dpbayes.runs.mvg_regression import regression_columns

    trace, release = read_trace(folder / TRACE), read_moments(folder / RELEASE)
    verdict = Verdict.from_json(trace.attrs["convergence"])
    naive = naive_regression(whiten_moments(release, features=tuple(regression_columns(spec))))
    truth = json.loads((folder / TRUTH).read_text()) if (folder / TRUTH).exists() else None
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
    epsilon = release.noise.epsilon(spec.privacy.delta)
    wider = [(row[3] - row[2]) / (row[6] - row[5]) for row in rows if row[6] > row[5]]
    answer = (
        f"Intervals that know the noise are {np.median(wider):.1f} times as wide, in the median, as those of least "
        "squares on the released numbers, which count sampling error alone."
        if wider
        else "The released moments admit no least squares fit; the posterior says what they still tell."
    )
    blocks = [
        Table("coefficients", "Coefficients in original units, 95 % intervals", _coefficient_columns(), rows),
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
            Section("What was released", [Paragraph(_released_text(release, epsilon, spec.privacy.delta))]),
            convergence_section(
                trace, verdict, judged="The quantities of interest: intercept, coefficients, residual."
            ),
        ],
        provenance=_provenance(spec) | {"release digest": release.digest, "sampler": trace.attrs["sampler"]},
    )


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


def _released_text(release: Any, epsilon: float, delta: float) -> str:
    drawn = "OpenDP drew the noise" if release.sampler == "opendp" else "the noise is simulated: no guarantee"
    query, mu = release.query, release.noise.mu
    return (
        f"The second moments of {query.n:,} records, {query.size} by {query.size} with an intercept, plus symmetric "
        f"Gaussian noise of standard deviation {release.noise.stddev:.3g} in units of squared half-ranges; mu = "
        f"{mu.value:.4g} ({mu.method}), epsilon {epsilon:.4g} at delta {delta:g} under replace-one; {drawn}."
    )


def _noise_section(costs: Sequence[NoiseCost], ranges: FeatureRanges, names: Sequence[str]) -> Section:
    from dpbayes.mvg.plots import noise_ellipses

    columns = [
        Column("mechanism"),
        Column("noise sd / range", ".4g", "stddev"),
        Column("times optimal", ".4g", "ratio"),
        Column("exact epsilon", ".4g", "epsilon"),
        Column("mu known by", "", "method"),
    ]
    rows = [(c.mechanism, c.stddev, c.ratio, c.epsilon, c.noise.mu.method) for c in costs]
    blocks: list[Any] = [
        Table("noise", "Noise that the same guarantee takes on the records themselves", columns, rows),
        Paragraph(
            "The paper's bound is sufficient and far from necessary: what it asks for costs an epsilon of almost zero. "
            "With equal ranges and equal weights nothing beats equal noise."
        ),
    ]
    if ranges.size > 1:
        caption = "The guarantee is that the box fits inside the ellipse; the cost is the ellipse."
        alt = "Noise ellipses of the mechanisms around the box of changes that one record can make."
        blocks.append(Figure(noise_ellipses(costs, ranges, names=names), caption, alt))
    return Section("What the guarantee costs in noise", blocks)


def _guarantee(spec: Spec) -> list[Fact]:
    epsilon, delta = spec.privacy.epsilon, spec.privacy.delta
    return [
        Fact("epsilon", f"epsilon at delta {delta:g}, replace-one", epsilon, f"{epsilon:g}"),
        Fact("mu", "Gaussian price mu", mu_for(epsilon, delta), f"{mu_for(epsilon, delta):.4g}"),
    ]


def _provenance(spec: Spec) -> dict[str, str]:
    seed = spec.privacy.simulation_seed
    noise = "OpenDP" if seed is None else f"a seeded generator (simulation, seed {seed})"
    source = f"{spec.data.n:,} generated patients, seed {spec.data.seed}" if spec.data.n else str(spec.data.file)
    return {"dpbayes": __version__, "records": source, "noise drawn by": noise}


def _sklearn_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scikit-learn")
    except PackageNotFoundError:
        return "not installed here"
