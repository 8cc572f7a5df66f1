"""Reports of the MVG studies, built from ``study.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpbayes.mvg import CovarianceResult, FeatureRanges, SvrScore, SvrStudy, binary_allocation, compare_noise
from dpbayes.report.document import Callout, Column, Document, Fact, Figure, Section, Table
from dpbayes.report.privacy_terms import PrivacyTerms
from dpbayes.runs.mvg import Spec
from dpbayes.runs.mvg_parts import guarantee, noise_section, provenance

__all__ = ["covariance_document", "svr_document"]

_SIMULATED = Callout(
    "note",
    "A simulation on public records",
    ["Errors are measured against exact answers, which a real release never shows. No sampler ran."],
)


def covariance_document(spec: Spec, study: dict[str, Any]) -> Document:
    """Build the report of a covariance study."""
    from dpbayes.mvg.plots import rss_lines

    results = [_result(row) for row in study["results"]]
    last = max(row.n for row in results)
    compare = "; its slopes are what to compare" if len({row.n for row in results}) > 1 else ""
    size = len(study["features"])
    ranges = FeatureRanges(np.zeros(size), np.ones(size), "replace-one")
    costs = compare_noise(ranges, n=last, epsilon=spec.privacy.epsilon, delta=spec.privacy.delta)
    return Document(
        title=spec.title,
        question=spec.question,
        answer=_covariance_answer(results),
        verdict=_SIMULATED,
        headline=[*guarantee(spec), Fact("draws", "draws a mechanism", len(results[0].rss), str(len(results[0].rss)))],
        sections=[
            Section(
                "Eigenvalues of the covariance",
                [
                    _covariance_table(results),
                    Figure(
                        rss_lines(results),
                        "Filled: this study. Open: the paper's Appendix C, whose data and epsilon are not known"
                        f"{compare}.",
                        "Eigenvalue error against the number of records, both axes logarithmic. "
                        + ", ".join(f"{row.query} at {row.n:,}: {row.summary()['mean']:.1e}" for row in results),
                    ),
                ],
            ),
            noise_section(spec, costs, ranges, study["features"], weighted=False),
        ],
        provenance=provenance(spec, study["provenance"]),
        privacy=PrivacyTerms(ranges.adjacency, delta=spec.privacy.delta),
    )


def _result(row: dict[str, Any]) -> CovarianceResult:
    """Read a row of ``study.json``; folders of older versions say nothing of noise alone."""
    limits = row.get("noise_alone")
    changed = {"rss": tuple(row["rss"]), "noise_alone": None if limits is None else tuple(limits)}
    return CovarianceResult(**row | changed)


def _covariance_answer(results: Sequence[CovarianceResult]) -> str:
    """Say both errors at the largest size, beside those of noise alone, and how the covariance query's error falls."""
    last = max(row.n for row in results)
    mean = {row.query: row.summary()["mean"] for row in results if row.n == last}
    return (
        f"At {last:,} records the covariance query's eigenvalue shares are off by {mean['covariance']:.1e} (sum of "
        f"squares), the identity query's by {mean['identity']:.4g}{_beside_noise(results)}.{_slope(results)}"
    )


def _beside_noise(results: Sequence[CovarianceResult]) -> str:
    """Say whether the identity query's error is one that noise alone gives; nothing where the study does not know."""
    inside, shown = {}, ""
    for row in sorted((row for row in results if row.noise_alone is not None), key=lambda row: row.n):
        low, high = row.noise_alone
        inside[row.n] = low <= row.summary()["mean"] <= high
        shown = f", {'inside' if inside[row.n] else 'outside'} the {low:.4g} to {high:.4g} that noise alone gives"
    return shown + (" (inside at every size)" if len(inside) > 1 and all(inside.values()) else "")


def _slope(results: Sequence[CovarianceResult]) -> str:
    """Say the fitted power of n of the covariance query's error; nothing with a single size."""
    mean = {row.n: row.summary()["mean"] for row in results if row.query == "covariance"}
    if len(mean) < 2 or min(mean.values()) <= 0:
        return ""
    slope = np.polyfit(np.log(list(mean)), np.log(list(mean.values())), 1)[0]
    return (
        f" From {min(mean):,} to {max(mean):,} records the covariance query's error goes as their number to the power "
        f"{slope:.2f} (fitted)."
    )


def _covariance_table(results: Sequence[CovarianceResult]) -> Table:
    rows = []
    for row in results:
        part = row.summary()
        rows.append(
            (row.n, row.query, part["mean"], part["low"], part["high"], float(np.mean(row.rss)), 1e3 * row.runtime)
        )
    columns = [
        Column("records", ",d", "n"),
        Column("query"),
        Column("RSS of shares", ".3e", "rss_shares"),
        Column("2.5 % of draws", ".3e", "draws_q025"),
        Column("97.5 % of draws", ".3e", "draws_q975"),
        Column("RSS of eigenvalues", ".3e", "rss"),
        Column("a draw takes (ms)", ".2f", "runtime_ms"),
    ]
    caption = (
        "Residual sum of squares of the covariance's eigenvalues, and of their shares of the total: mean over the "
        "draws, between the limits that hold the middle 95 % of them. The records are fixed: the privacy noise alone "
        "makes the draws differ"
    )
    return Table("covariance", caption, columns, rows)


def svr_document(spec: Spec, record: dict[str, Any]) -> Document:
    """Build the report of a support vector study."""
    saved = record["study"]
    scores = tuple(
        SvrScore(**{**row, "mae": tuple(row["mae"]), "stddev": tuple(row["stddev"])}) for row in saved["scores"]
    )
    study = SvrStudy(**{**saved, "scores": scores})
    clean = scores[0]
    top = max(score.epsilon for score in scores if score.epsilon is not None)
    size = len(record["features"])
    ranges = FeatureRanges(np.zeros(size), np.ones(size), "replace-one")
    n = study.n_train + study.n_tuning
    assert spec.svr is not None
    theta = binary_allocation(size, [record["features"].index(name) for name in spec.svr.favoured], spec.svr.share)
    settings = {"epsilon": spec.privacy.epsilon, "delta": spec.privacy.delta, "weights": record["weights"]}
    costs = compare_noise(ranges, n=n, theta=theta, **settings)
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
            *_svr_sections(study, record["features"], top),
            noise_section(spec, costs, ranges, record["features"], weighted=len(set(record["weights"])) > 1),
        ],
        provenance=provenance(spec, record["provenance"]) | {"scikit-learn": _sklearn_version()},
        privacy=PrivacyTerms(ranges.adjacency, delta=spec.privacy.delta),
    )


def _svr_sections(study: SvrStudy, names: Sequence[str], top: float) -> list[Section]:
    from dpbayes.mvg.plots import error_strips, noise_bars

    bars = {score.mechanism: score.stddev for score in study.scores if score.epsilon == top}
    return [
        Section(
            "Error on a clean holdout",
            [
                _svr_table(study),
                Figure(
                    error_strips(study),
                    "One dot a draw of the noise, its mean as a bar. Dashed: no privacy. Solid: one constant; a strip "
                    "at or right of it holds no signal.",
                    "Strips of holdout errors by mechanism, one panel an epsilon. " + _svr_answer(study),
                ),
            ],
        ),
        Section(
            "Noise by column",
            [
                Figure(
                    noise_bars(bars, names),
                    f"Noise standard deviation over the column's range at epsilon {top:g}. Bars above the line: noise "
                    "larger than the whole range.",
                    "Bars by column, logarithmic. Noise over range: "
                    + ", ".join(f"{name} {min(values):.2g} to {max(values):.2g}" for name, values in bars.items()),
                )
            ],
        ),
    ]


def _svr_table(study: SvrStudy) -> Table:
    rows = [
        (
            score.mechanism,
            score.epsilon,
            score.mean,
            *_mean_interval(score.mae),
            float(np.std(score.mae, ddof=1)) if len(score.mae) > 1 else None,
            None if score.epsilon is None else 1e3 * score.runtime,
            study.drowned(score),
        )
        for score in study.scores
    ]
    columns = [
        Column("mechanism"),
        Column("epsilon", "g"),
        Column("mean absolute error", ".4f", "mae"),
        Column("2.5 %", ".4f", "mae_low"),
        Column("97.5 %", ".4f", "mae_high"),
        Column("sd of draws", ".4f", "sd"),
        Column("a draw takes (ms)", ".2f", "runtime_ms"),
        Column("drowns the signal", "", "drowned"),
    ]
    caption = (
        f"Mean absolute error of the risk score on {study.n_holdout:,} clean records that were never released; mean "
        "over the noise draws with its 95 % interval (Student's t). The split of the records is one and the same: the "
        "privacy noise alone makes the draws differ."
    )
    return Table("svr", caption, columns, rows)


def _mean_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a mean over independent draws, nothing for a single value."""
    if len(values) < 2:
        return None, None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def _svr_answer(study: SvrStudy) -> str:
    parts = []
    for epsilon in sorted({score.epsilon for score in study.scores if score.epsilon is not None}):
        kept = [s for s in study.scores if s.epsilon == epsilon and not study.drowned(s)]
        if kept:
            best = min(kept, key=lambda score: score.mean)
            names = ", ".join(score.mechanism for score in kept)
            parts.append(f"at epsilon {epsilon:g} some signal survives under {names} (best {best.mean:.3f})")
        else:
            parts.append(f"at epsilon {epsilon:g} every mechanism drowns the signal")
    return (
        f"Without privacy the error is {study.scores[0].mean:.4f}; one constant gives {study.constant:.4f}. When the "
        f"records themselves are released, {'; '.join(parts)}."
    )


def _sklearn_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scikit-learn")
    except PackageNotFoundError:
        return "not installed here"
