"""The experiments of McKay (2019), as a study that a spec runs: ``system = "study:mvg_paper"``.

Two kinds. ``[covariance]`` is the first experiment: eigenvalues of a covariance, from a covariance query and from an
identity query. ``[svr]`` is the second: support vector regression of the Framingham score on privately released
patients (needs scikit-learn). Both measure errors against exact answers, so records must be public and the noise is
simulated. `docs/mvg.md` sets the results beside the paper's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, model_validator

from dpbayes._arguments import positive_finite, probability_below_one, real_numbers
from dpbayes.errors import InputError, MissingColumnError, SpecError
from dpbayes.mvg import (
    Covariance,
    FeatureRanges,
    MomentQuery,
    calibrate,
    calibrate_moments,
    compare_noise,
    optimal_covariance,
    release_moments,
    release_records,
)
from dpbayes.mvg.allocation import (
    NoiseCost,
    ZetaReading,
    bound_terms,
    directional_shape,
    noise_ellipses,
    supremum_norm,
    unimodal_noise,
)
from dpbayes.mvg.matrix import CovarianceLike, MatrixGaussian, as_covariance, exact_mu, mu_for
from dpbayes.mvg.moments import SymmetricGaussian
from dpbayes.mvg.sensitivity import Sensitivity, clip_records
from dpbayes.mvg.study import Data as RecordsData
from dpbayes.mvg.study import Privacy, check_columns, feature_ranges, load_records, record_matrix
from dpbayes.report.document import Callout, Column, Fact, Figure, Paragraph, PrivacyTerms, Table
from dpbayes.report.document import Section as PageSection
from dpbayes.runs.protocol import Context, Findings
from dpbayes.runs.spec import Positive, RunSpec, Section, Seed, Share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

type FloatArray = npt.NDArray[np.float64]
Split = Annotated[float, Field(ge=0.05, le=0.45)]  # so that each of three parts of 40 records holds some

_TUBE = 0.02  # of support vector regression, on the unit scale


class CovarianceStudy(Section):
    """Covariance query against identity query."""

    sizes: list[Annotated[int, Field(ge=2, le=100_000_000)]] = Field(min_length=1, max_length=100)
    """Sample sizes."""
    draws: int = Field(default=25, ge=2, le=100_000)
    """Draws per mechanism."""


class SvrSection(Section):
    """Support vector regression of the last column of the ranges on the others."""

    epsilons: list[Positive] = Field(min_length=1, max_length=100)
    """Guarantees to compare, in place of [privacy] epsilon."""
    draws: int = Field(default=25, ge=2, le=100_000)
    """Draws per mechanism."""
    tuning: Split = 0.15
    """Part of the records for tuning."""
    holdout: Split = 0.15
    """Part of the records for the final error."""
    favoured: list[str] = Field(min_length=1)
    """Columns that the binary allocation favours."""
    share: Share = 0.8
    """Part of the precision they get."""
    costs: list[Positive] = Field(default=[0.01, 0.1, 1.0], min_length=1, max_length=100)
    """Grid of C."""
    gammas: list[Positive] = Field(default=[0.3, 1.0], min_length=1, max_length=100)
    """Grid of gamma, relative to one over (features times variance)."""
    public_seed: Seed = 99
    """Seed of the public patients from which the weights of the optimal allocation are taken."""

    def theta(self, names: list[str]) -> FloatArray:
        """Return the binary allocation over the columns."""
        return binary_allocation(len(names), [names.index(name) for name in self.favoured], self.share)


class Data(RecordsData):
    """Where the records come from."""

    layout: Literal["table", "synthea"] = "table"
    """Whether the file is one row per record, or Synthea's vitals with one row per patient and day."""


class Spec(RunSpec):
    """One of the two experiments."""

    system: Literal["study:mvg_paper"]
    """This file."""
    data: Data
    privacy: Privacy
    covariance: CovarianceStudy | None = None
    svr: SvrSection | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Spec:
        if (self.covariance is None) == (self.svr is None):
            raise ValueError("give exactly one of [covariance] and [svr]")
        if self.data.release is not None or (self.data.file is not None and not self.data.truth_public):
            raise ValueError(
                "a study compares with exact answers and needs public records; set data.truth_public = true"
            )
        if self.privacy.simulation_seed is None:
            raise ValueError("a study simulates its noise; set privacy.simulation_seed")
        if self.svr is not None:
            names = list(self.data.known_ranges)
            check_columns(self.svr.favoured, names, where="svr.favoured")
            self.svr.theta(names)  # refuses all of them
        return self


def design(spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Any = None) -> None:
    """Release nothing: the noise is simulated."""


def release(spec: Spec, context: Context, *, rng: Any, ledger: Any) -> None:
    """Release nothing."""
    raise SpecError("a study of public records releases nothing")


def fit(spec: Spec, release: None, context: Context) -> dict[str, Any]:
    """Run the experiment."""
    if spec.data.layout == "synthea" and spec.data.file is not None:
        frame = read_synthea(context.beside / spec.data.file).select(list(spec.data.known_ranges))
    else:
        frame = load_records(spec.data, context.beside)
    ranges, records = feature_ranges(spec.data.known_ranges, frame.columns), record_matrix(frame)
    rng = np.random.default_rng(spec.privacy.simulation_seed)
    if spec.covariance is None:
        return _run_svr(spec, frame.columns, records, ranges, rng, context.echo)
    settings = {"epsilon": spec.privacy.epsilon, "delta": spec.privacy.delta, "draws": spec.covariance.draws}
    results = covariance_study(records, ranges, sizes=spec.covariance.sizes, **settings, rng=rng)
    return {"features": frame.columns, "results": [asdict(row) for row in results]}


def read_synthea(path: Path) -> pl.DataFrame:
    """Read the measurements of each adult's last complete day from Synthea's observations, coded as in `patients`."""
    from dpbayes.data.datasets import framingham_risk

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; data.file is resolved beside the spec")
    frame = pl.read_csv(path, infer_schema_length=None)
    needed = ["systolic_mmhg", "total_cholesterol_mgdl", "hdl_cholesterol_mgdl", "bmi"]
    missing = {"patient", "day", "age", "sex", "smoker", "glucose_mgdl", "hba1c_pct", *needed} - set(frame.columns)
    if missing:
        raise MissingColumnError(f"{path.name} lacks the columns {', '.join(sorted(missing))}")
    adults = frame.filter(pl.col("age").is_between(30, 74)).drop_nulls(needed)
    latest = adults.sort("patient", "day").group_by("patient", maintain_order=True).last()
    sick = (pl.col("glucose_mgdl") >= 126) | (pl.col("hba1c_pct") >= 6.5)
    coded = latest.select(
        "age",
        pl.col("sex").eq("M").alias("male"),
        "smoker",
        sick.fill_null(False).alias("diabetes"),
        pl.lit(0.0).alias("treated"),
        *needed,
    ).cast(pl.Float64)
    scored = {name: coded[name].to_numpy() for name in coded.columns if name != "bmi"}
    return coded.with_columns(framingham=pl.Series(framingham_risk(**scored)))


def _run_svr(
    spec: Spec,
    names: list[str],
    records: FloatArray,
    ranges: FeatureRanges,
    rng: np.random.Generator,
    echo: Callable[[str], None],
) -> dict[str, Any]:
    from dpbayes.data.datasets import patients

    assert spec.svr is not None
    public = patients(2_000, spec.svr.public_seed)
    weights = public_weights(record_matrix(public), ranges) if names == public.columns else np.ones(len(names))
    given = {"delta": spec.privacy.delta, "theta": spec.svr.theta(names), "weights": weights}
    study = svr_study(records, ranges, spec.svr, **given, rng=rng, progress=echo)
    return {"features": names, "weights": weights.tolist(), "study": asdict(study)}


def sections(spec: Spec, release: None, result: dict[str, Any], kept: Mapping[str, Any]) -> Findings:
    """Return what the page says."""
    return _covariance_findings(spec, result) if spec.covariance is not None else _svr_findings(spec, result)


@dataclass(frozen=True)
class BoundCheck:
    """Whether a pair of covariances satisfies Theorem 2, with both sides of the condition."""

    holds: bool
    precision: float
    bound: float

    def __bool__(self) -> bool:
        return self.holds


def check_bound(
    row_cov: CovarianceLike,
    col_cov: CovarianceLike,
    *,
    gamma: float,
    sensitivity: float,
    epsilon: float,
    delta: float,
    zeta: ZetaReading = "printed",
) -> BoundCheck:
    """Say whether (Sigma, Psi) satisfies the sufficient condition of Theorem 2; a pair that fails may well be private.

    Equality up to 1e-12 relative counts as holding, so that noise built to use the whole budget
    passes.
    """
    row, col = as_covariance(row_cov, "row_cov"), as_covariance(col_cov, "col_cov")
    bound = bound_terms(
        m=row.size, n=col.size, gamma=gamma, sensitivity=sensitivity, epsilon=epsilon, delta=delta, zeta=zeta
    ).bound
    precision = precision_norm(row) * precision_norm(col)
    return BoundCheck(precision <= bound * (1.0 + 1e-12), precision, bound)


def precision_norm(covariance: Covariance) -> float:
    r"""Return the norm :math:`\|\sigma(\Sigma^{-1})\|_2` of Theorem 2."""
    values = covariance.variances
    return math.sqrt(covariance.size) if values is None else float(np.linalg.norm(1.0 / values))


def split_mu(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    r"""Return mu for the directions (`share` of mu squared) and mu for the matrix, under one (epsilon, delta).

    Gaussian releases compose by :math:`\mu^2 = \mu_1^2 + \mu_2^2` (Dong, Roth and Su 2022,
    Corollary 3.3), exactly.
    """
    part = probability_below_one(share, "share", remedy="it is the part of the budget for the directions")
    total = mu_for(positive_finite(epsilon, "epsilon", remedy="it is the total budget"), delta)
    return total * math.sqrt(part), total * math.sqrt(1.0 - part)


def binary_allocation(size: int, favoured: Sequence[int], share: float) -> FloatArray:
    """Return theta that gives `share` of the precision to the favoured features and the rest to the others."""
    chosen = sorted(set(favoured))
    if len(chosen) != len(favoured) or not 0 < len(chosen) < size or chosen[0] < 0 or chosen[-1] >= size:
        raise InputError(f"favoured must name some but not all of the {size} directions, once each; got {favoured}")
    part = probability_below_one(share, "share", remedy="it is the part of the precision for the favoured directions")
    theta = np.full(size, (1.0 - part) / (size - len(chosen)))
    theta[chosen] = part / len(chosen)
    return theta


def equimodal_noise(
    row_shape: Covariance,
    col_shape: Covariance | None = None,
    *,
    gamma: float,
    sensitivity: Sensitivity,
    epsilon: float,
    delta: float,
    zeta: ZetaReading = "printed",
) -> MatrixGaussian:
    r"""Build noise with :math:`\|\sigma(\Sigma^{-1})\|_2 = \|\sigma(\Psi^{-1})\|_2 = \sqrt B`.

    The columns have the shape of the rows when `col_shape` is None, for a symmetric query.
    """
    columns = row_shape if col_shape is None else col_shape
    bound = bound_terms(
        m=row_shape.size,
        n=columns.size,
        gamma=gamma,
        sensitivity=sensitivity.frobenius,
        epsilon=epsilon,
        delta=delta,
        zeta=zeta,
    ).bound
    half = math.sqrt(bound)
    return MatrixGaussian(
        row_shape.scaled(precision_norm(row_shape) / half), columns.scaled(precision_norm(columns) / half), sensitivity
    )


@dataclass(frozen=True, eq=False)
class DerivedDirections:
    """Orthonormal columns by decreasing signal, theta along them, and mu of their covariance (0: public)."""

    directions: FloatArray
    theta: FloatArray
    mu: float

    @property
    def shape(self) -> Covariance:
        """The noise shape of Algorithm 1 along these directions."""
        return directional_shape(self.theta, self.directions)


def derive_directions(
    covariance: npt.ArrayLike, *, mu: float, power: float = 1.0, floor: float = 0.01
) -> DerivedDirections:
    r"""Derive directions and magnitudes from a covariance that is public (mu 0) or was released at a cost of `mu`.

    Directions are the eigenvectors; the precision of direction i is proportional to
    :math:`\max(\lambda_i, \text{floor} \cdot \lambda_1)^{\text{power}}`, so directions with signal
    get little noise and a noisy covariance's negative eigenvalues keep a positive share.
    """
    matrix = np.atleast_2d(real_numbers(covariance, "covariance"))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.all(np.isfinite(matrix)):
        raise InputError(f"covariance must be a finite square matrix, got shape {matrix.shape}")
    if np.max(np.abs(matrix - matrix.T)) > 1e-10 * np.max(np.abs(matrix)):
        raise InputError("covariance must be symmetric; a released one is once its upper triangle is mirrored")
    if not (math.isfinite(mu) and mu >= 0):
        raise InputError(f"mu must be finite and not negative, got {mu}; give 0 for public data")
    if not (math.isfinite(power) and power >= 0):
        raise InputError(f"power must be finite and not negative, got {power}; 0 gives equal shares")
    part = probability_below_one(
        floor, "floor", remedy="it is the smallest eigenvalue counted, relative to the largest"
    )
    eigenvalues, vectors = np.linalg.eigh(matrix)
    if eigenvalues[-1] <= 0:
        raise InputError(f"covariance has no positive eigenvalue (largest {eigenvalues[-1]:g}): it holds noise alone")
    signal = np.maximum(eigenvalues[::-1], part * eigenvalues[-1]) ** power
    return DerivedDirections(vectors[:, ::-1], signal / signal.sum(), float(mu))


# Table of Appendix C, for plots and for the comparison in docs/mvg.md: n, query, RSS.
PAPER_RSS = (
    (20_000, "covariance", 0.070118),
    (20_000, "identity", 0.397775),
    (100_000, "covariance", 0.002646),
    (100_000, "identity", 0.398695),
    (350_000, "covariance", 0.000286),
    (350_000, "identity", 0.398079),
)


@dataclass(frozen=True)
class CovarianceResult:
    """One row of the paper's Appendix C.

    `rss_shares` holds one residual sum of squares of the eigenvalues as shares of their sum per draw, `rss` that of the
    eigenvalues themselves, `runtime` the seconds of the fastest draw, and `noise_alone`, for the identity query, what
    `noise_alone_limits` says.
    """

    n: int
    query: str
    rss_shares: tuple[float, ...]
    rss: tuple[float, ...]
    runtime: float
    noise_alone: tuple[float, float] | None = None

    def summary(self) -> dict[str, float]:
        """Return the error of the shares over the draws, in percentage points: root mean square, middle 95 %."""
        low, high = points(np.quantile(self.rss_shares, [0.025, 0.975])).tolist()
        return {"mean": float(points(np.mean(self.rss_shares))), "low": low, "high": high}


def points(rss: npt.ArrayLike) -> FloatArray:
    """Return the root of a sum of squared differences of shares, in percentage points."""
    return np.asarray(100.0 * np.sqrt(rss))


def component_rss(exact: FloatArray, noisy: FloatArray, *, shares: bool) -> float:
    """Return the sum of squared differences between the ordered eigenvalues of two covariances."""
    first, second = np.linalg.eigvalsh(exact), np.linalg.eigvalsh(noisy)
    if shares:
        # A noisy covariance may have negative eigenvalues; its plain trace could vanish.
        first, second = first / np.abs(first).sum(), second / np.abs(second).sum()
    return float(np.sum((first - second) ** 2))


def noise_alone_limits(
    exact: FloatArray, n: int, *, rng: np.random.Generator, draws: int = 1_000
) -> tuple[float, float]:
    """Return the middle 95 % of the share error of a covariance that is taken from noise alone."""
    size = len(exact)
    found = [component_rss(exact, noise, shares=True) for noise in _standard_wishart(size, n, draws, rng)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _standard_wishart(size: int, n: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Return ZZ' of n standard normal vectors, `draws` times; without forming Z where n reaches the size."""
    from scipy.stats import wishart

    if n >= size:
        found = wishart.rvs(df=n, scale=np.eye(size), size=draws, random_state=rng)
        return np.reshape(found, (draws, size, size))
    z = rng.standard_normal((draws, size, n))
    return np.asarray(z @ z.transpose(0, 2, 1))


def unit_records(records: npt.ArrayLike, ranges: FeatureRanges) -> tuple[FloatArray, FeatureRanges]:
    """Clip records to their public ranges and scale every feature to [0, 1]; return them with the unit ranges."""
    scaled = (clip_records(records, ranges) - ranges.lower[:, None]) / ranges.widths[:, None]
    unit = FeatureRanges(np.zeros(ranges.size), np.ones(ranges.size), ranges.adjacency)
    return np.clip(scaled, 0.0, 1.0), unit


def covariance_study(
    records: npt.ArrayLike,
    ranges: FeatureRanges,
    *,
    sizes: Sequence[int],
    epsilon: float,
    delta: float,
    draws: int,
    rng: np.random.Generator,
) -> tuple[CovarianceResult, ...]:
    """Compare a covariance query with an identity query at the same guarantee, as in Section 0.5.1."""
    scaled, unit = unit_records(records, ranges)
    available = scaled.shape[1]
    if not sizes or min(sizes) < 2 or max(sizes) > available:
        raise InputError(f"sizes must lie between 2 and the {available} records, got {list(sizes)}")
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}")
    results = []
    for n in sizes:
        part = np.ascontiguousarray(scaled[:, :n])
        query = MomentQuery(unit, int(n))
        moments = calibrate_moments(query, epsilon=epsilon, delta=delta)
        matrix = calibrate(Covariance.identity(unit.size), Covariance.identity(n), unit, epsilon=epsilon, delta=delta)
        exact = query.value(part)

        by_covariance = partial(_by_covariance, part, moments, rng)
        by_identity = partial(_by_identity, part, matrix, unit, rng)
        results.append(_repeat(int(n), "covariance", by_covariance, exact, draws))
        identity = _repeat(int(n), "identity", by_identity, exact, draws)
        # A generator of its own: the draws of the queries stay those of the seed.
        limits = noise_alone_limits(exact, int(n), rng=rng.spawn(1)[0])
        results.append(replace(identity, noise_alone=limits))
    return tuple(results)


def _by_covariance(records: FloatArray, noise: SymmetricGaussian, rng: np.random.Generator) -> FloatArray:
    return release_moments(records, noise, rng=rng).value


def _by_identity(
    records: FloatArray, noise: MatrixGaussian, ranges: FeatureRanges, rng: np.random.Generator
) -> FloatArray:
    centred = release_records(records, noise, ranges=ranges, rng=rng).values - 0.5
    return np.asarray(centred @ centred.T / centred.shape[1])


def _repeat(n: int, name: str, mechanism: Callable[[], FloatArray], exact: FloatArray, draws: int) -> CovarianceResult:
    plain, shares, fastest = [], [], float("inf")
    for _ in range(draws):
        started = time.perf_counter()
        noisy = mechanism()
        fastest = min(fastest, time.perf_counter() - started)
        plain.append(component_rss(exact, noisy, shares=False))
        shares.append(component_rss(exact, noisy, shares=True))
    return CovarianceResult(n, name, tuple(shares), tuple(plain), fastest)


@dataclass(frozen=True)
class SvrScore:
    """Errors of one mechanism at one guarantee (None without privacy), one per draw, in units of the response."""

    mechanism: str
    epsilon: float | None
    mae: tuple[float, ...]
    stddev: tuple[float, ...]
    runtime: float
    cost: float
    gamma: float

    @property
    def mean(self) -> float:
        """Mean error over the draws."""
        return float(np.mean(self.mae))


@dataclass(frozen=True)
class SvrStudy:
    """All scores, and the error of predicting one constant."""

    scores: tuple[SvrScore, ...]
    constant: float
    n_train: int
    n_tuning: int
    n_holdout: int

    def drowned(self, score: SvrScore) -> bool:
        """Whether a mechanism's mean error is no better than the constant's."""
        return score.mean >= self.constant


def public_weights(records: npt.ArrayLike, ranges: FeatureRanges) -> FloatArray:
    """Return weights for the optimal allocation from **public** records: squared linear coefficients, unit-scaled."""
    scaled, _ = unit_records(records, ranges)
    design = np.vstack([np.ones(scaled.shape[1]), scaled[:-1]]).T
    squared = np.linalg.lstsq(design, scaled[-1], rcond=None)[0][1:] ** 2
    largest = float(np.max(squared))
    return np.append(np.maximum(squared, largest / 20.0), largest)


def svr_study(
    records: npt.ArrayLike,
    ranges: FeatureRanges,
    settings: SvrSection,
    *,
    delta: float,
    theta: FloatArray,
    weights: npt.ArrayLike,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> SvrStudy:
    """Fit support vector regression to releases of the training records and score it on a clean holdout."""
    scaled, unit = unit_records(records, ranges)
    n = scaled.shape[1]
    if n < 40:
        raise InputError(f"the study splits its records three ways and needs at least 40, got {n}")
    order = rng.permutation(n)
    n_holdout, n_tuning = round(n * settings.holdout), round(n * settings.tuning)
    kept, held = order[n_holdout:], scaled[:, order[:n_holdout]]
    part = scaled[:, kept]
    width = float(ranges.widths[-1])
    clean = part
    cost, gamma = _tune(clean, n_tuning, settings)
    scores = [
        SvrScore(
            "no privacy",
            None,
            (_error(clean, n_tuning, held, cost, gamma) * width,),
            (0.0,) * unit.size,
            0.0,
            cost,
            gamma,
        )
    ]
    for epsilon in settings.epsilons:
        setting = StudySetting(unit, len(kept), epsilon, delta, theta, np.asarray(weights, dtype=float))
        for name in MECHANISMS:
            if progress is not None:
                progress(f"epsilon {epsilon:g}: {name}")
            scores.append(_score(name, part, setting, n_tuning, held, settings, width, rng))
    constant = float(np.mean(np.abs(held[-1] - np.median(clean[-1])))) * width
    return SvrStudy(tuple(scores), constant, len(kept) - n_tuning, n_tuning, n_holdout)


def _score(
    name: str,
    part: FloatArray,
    setting: StudySetting,
    n_tuning: int,
    held: FloatArray,
    settings: SvrSection,
    width: float,
    rng: np.random.Generator,
) -> SvrScore:
    errors, fastest, chosen, stddev = [], float("inf"), (0.0, 0.0), np.zeros(setting.ranges.size)
    for draw in range(settings.draws):
        started = time.perf_counter()
        released = release_by(name, part, setting, rng=rng)
        fastest = min(fastest, time.perf_counter() - started)
        # The public ranges, not the data's: post-processing.
        values = np.clip(released.values, 0.0, 1.0)
        if draw == 0:
            chosen = _tune(values, n_tuning, settings)
        stddev = stddev + np.sqrt(released.noise.row_cov.marginal_variances) / settings.draws
        errors.append(_error(values, n_tuning, held, *chosen) * width)
    return SvrScore(name, setting.epsilon, tuple(errors), tuple(stddev.tolist()), fastest, *chosen)


def _fit(values: FloatArray, cost: float, gamma: float) -> Any:
    from sklearn.svm import SVR

    variance = float(values[:-1].var())
    scale = gamma / ((values.shape[0] - 1) * max(variance, 1e-12))
    return SVR(kernel="rbf", C=cost, gamma=scale, epsilon=_TUBE, cache_size=500).fit(values[:-1].T, values[-1])


def _tune(values: FloatArray, n_tuning: int, settings: SvrSection) -> tuple[float, float]:
    """Choose C and gamma by the error on the tuning records, as noisy as the training records are."""
    train, tuning = values[:, n_tuning:], values[:, :n_tuning]
    grid = [(cost, gamma) for cost in settings.costs for gamma in settings.gammas]
    return min(grid, key=lambda pair: _mae(_fit(train, *pair), tuning))


def _error(values: FloatArray, n_tuning: int, held: FloatArray, cost: float, gamma: float) -> float:
    return _mae(_fit(values[:, n_tuning:], cost, gamma), held)


def _mae(model: Any, values: FloatArray) -> float:
    # Predictions outside the response's public range are moved to its end.
    return float(np.mean(np.abs(np.clip(model.predict(values[:-1].T), 0.0, 1.0) - values[-1])))


@dataclass(frozen=True, eq=False)
class StudySetting:
    """What every mechanism of the study is given."""

    ranges: FeatureRanges
    n: int
    epsilon: float
    delta: float
    theta: FloatArray
    weights: FloatArray
    derive_share: float = 0.1


@dataclass(frozen=True, eq=False)
class ReleasedMatrix:
    """A simulated release, the noise of the matrix itself, and mu of everything that was released."""

    values: FloatArray
    noise: MatrixGaussian
    total_mu: float


def _iid(records: FloatArray, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    shape = Covariance.identity(setting.ranges.size)
    return _exact(records, shape, setting, rng)


def _binary_paper(records: FloatArray, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    return _paper(records, setting.theta, None, setting, rng, setting.epsilon, setting.delta)


def _binary_exact(records: FloatArray, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    return _exact(records, Covariance.diagonal(1.0 / np.sqrt(setting.theta)), setting, rng)


def _derived_paper(records: FloatArray, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    # The theorem knows only (epsilon, delta), so the two parts compose by addition.
    share, epsilon, delta = setting.derive_share, setting.epsilon, setting.delta
    derived = _derive(records, setting, rng, mu_for(epsilon * share, delta * share))
    rest = 1.0 - share
    released = _paper(records, derived.theta, derived.directions, setting, rng, epsilon * rest, delta * rest)
    return ReleasedMatrix(released.values, released.noise, float(np.hypot(derived.mu, released.total_mu)))


def _derived_exact(records: FloatArray, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    first, second = split_mu(setting.epsilon, setting.delta, setting.derive_share)
    shape = _derive(records, setting, rng, first).shape
    columns = Covariance.identity(setting.n)
    unit = exact_mu(shape, columns, setting.ranges).value
    noise = MatrixGaussian(shape.scaled((unit / second) ** 2), columns, setting.ranges)
    values = release_records(records, noise, ranges=setting.ranges, rng=rng).values
    return ReleasedMatrix(values, noise, float(np.hypot(first, noise.mu.value)))


def _optimal(records: FloatArray, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    cost = mu_for(setting.epsilon, setting.delta)
    return _exact(
        records, optimal_covariance(setting.ranges, mu=cost, weights=setting.weights).covariance, setting, rng
    )


#: Name to mechanism, in the order of the study's tables.
MECHANISMS: dict[str, Callable[[FloatArray, StudySetting, np.random.Generator], ReleasedMatrix]] = {
    "i.i.d. Gaussian": _iid,
    "binary MVG": _binary_paper,
    "derived MVG": _derived_paper,
    "exact binary": _binary_exact,
    "exact derived": _derived_exact,
    "optimal": _optimal,
}


def release_by(name: str, records: FloatArray, setting: StudySetting, *, rng: np.random.Generator) -> ReleasedMatrix:
    """Release unit-scaled records by the mechanism called `name` (simulated)."""
    return MECHANISMS[name](records, setting, rng)


def _exact(records: FloatArray, shape: Covariance, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    noise = calibrate(
        shape, Covariance.identity(setting.n), setting.ranges, epsilon=setting.epsilon, delta=setting.delta
    )
    values = release_records(records, noise, ranges=setting.ranges, rng=rng).values
    return ReleasedMatrix(values, noise, noise.mu.value)


def _paper(
    records: FloatArray,
    theta: FloatArray,
    directions: FloatArray | None,
    setting: StudySetting,
    rng: np.random.Generator,
    epsilon: float,
    delta: float,
) -> ReleasedMatrix:
    gamma = supremum_norm(setting.ranges, setting.n)
    noise = unimodal_noise(
        theta, directions, n=setting.n, gamma=gamma, sensitivity=setting.ranges, epsilon=epsilon, delta=delta
    )
    values = release_records(records, noise, ranges=setting.ranges, rng=rng).values
    return ReleasedMatrix(values, noise, noise.mu.value)


def _derive(records: FloatArray, setting: StudySetting, rng: np.random.Generator, mu: float) -> DerivedDirections:
    noise = calibrate_moments(MomentQuery(setting.ranges, setting.n), mu=mu)
    released = release_moments(records, noise, rng=rng)
    # With few records and a small budget the noisy covariance may have no positive eigenvalue; a public ridge of one
    # noise standard deviation keeps the derivation defined, and is post-processing.
    ridge = noise.stddev * np.eye(setting.ranges.size)
    value = released.value + ridge * max(0.0, 1.0 - float(np.linalg.eigvalsh(released.value)[-1]) / noise.stddev)
    return derive_directions(value, mu=mu)


_SIMULATED = Callout(
    "note",
    "A simulation on public records",
    ["Errors are measured against exact answers, which a real release never shows. No sampler ran."],
)


def _covariance_findings(spec: Spec, result: dict[str, Any]) -> Findings:
    results = [_result(row) for row in result["results"]]
    compare = "; its slopes are what to compare" if len({row.n for row in results}) > 1 else ""
    ranges = _unit_ranges(result["features"])
    settings = {"epsilon": spec.privacy.epsilon, "delta": spec.privacy.delta}
    costs = compare_noise(ranges, n=max(row.n for row in results), **settings)
    picture = Figure(
        error_lines(results),
        f"Filled: this study. Open: the paper's Appendix C, whose data and epsilon are not known{compare}.",
        "Error of eigenvalue shares in percentage points against the number of records, both axes logarithmic. "
        + ", ".join(f"{row.query} at {row.n:,}: {row.summary()['mean']:.3g}" for row in results),
    )
    return Findings(
        answer=_covariance_answer(results),
        picture=picture,
        verdict=_SIMULATED,
        cost=_guarantee(spec),
        headline=[Fact("draws", "draws per mechanism", len(results[0].rss), str(len(results[0].rss)))],
        sections=[
            PageSection("Eigenvalues of the covariance", [_covariance_table(results)]),
            noise_section(spec, costs, ranges, result["features"], weighted=False),
        ],
        terms=PrivacyTerms(ranges.adjacency, unit="row", delta=spec.privacy.delta),
        provenance=_provenance(spec),
    )


def _unit_ranges(features: Sequence[str]) -> FeatureRanges:
    return FeatureRanges(np.zeros(len(features)), np.ones(len(features)), "replace-one")


def _guarantee(spec: Spec) -> list[Fact]:
    epsilon, delta = spec.privacy.epsilon, spec.privacy.delta
    return [
        Fact("epsilon", f"epsilon at delta {delta:g}, replace-one", epsilon, f"{epsilon:g}"),
        Fact("mu", "mu of the Gaussian mechanism", mu_for(epsilon, delta), f"{mu_for(epsilon, delta):.4g}"),
    ]


def _provenance(spec: Spec) -> dict[str, str]:
    data = spec.data
    source = f"{data.n:,} generated patients, seed {data.seed}" if data.n else str(data.file)
    return {"records": source, "noise drawn by": f"a seeded generator (seed {spec.privacy.simulation_seed})"}


def _result(row: dict[str, Any]) -> CovarianceResult:
    limits = row.get("noise_alone")
    changed = {"rss": tuple(row["rss"]), "noise_alone": None if limits is None else tuple(limits)}
    return CovarianceResult(**row | changed)


def _covariance_answer(results: Sequence[CovarianceResult]) -> str:
    """Say both errors at the largest size, beside those of noise alone, and how the covariance query's error falls."""
    last = max(row.n for row in results)
    mean = {row.query: row.summary()["mean"] for row in results if row.n == last}
    return (
        f"At {last:,} records the covariance query's eigenvalue shares are off by {mean['covariance']:.2g} percentage "
        f"points (root of the sum of squares), the identity query's by {mean['identity']:.3g}"
        f"{_beside_noise(results)}.{_slope(results)}"
    )


def _beside_noise(results: Sequence[CovarianceResult]) -> str:
    """Say whether the identity query's error is one that noise alone gives; nothing where the study does not know."""
    inside, shown = {}, ""
    for row in sorted((row for row in results if row.noise_alone is not None), key=lambda row: row.n):
        assert row.noise_alone is not None
        low, high = points(row.noise_alone).tolist()
        inside[row.n] = low <= row.summary()["mean"] <= high
        shown = f", {'inside' if inside[row.n] else 'outside'} the {low:.3g} to {high:.3g} that noise alone gives"
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
        whole = float(np.sqrt(np.mean(row.rss)))
        rows.append((row.n, row.query, part["mean"], part["low"], part["high"], whole, 1e3 * row.runtime))
    columns = [
        Column("records", ",d", "n"),
        Column("query"),
        Column("error of shares (points)", "#.3g", "error_shares"),
        Column("2.5 % of draws", "#.3g", "draws_q025"),
        Column("97.5 % of draws", "#.3g", "draws_q975"),
        Column("error of eigenvalues", ",.3g", "error"),
        Column("a draw takes (ms)", ".2f", "runtime_ms"),
    ]
    caption = (
        "Root of the sum of squared errors of the covariance's eigenvalues, and of their shares of the total in "
        "percentage points: root mean square over the draws, beside the limits that hold the middle 95 % of them. The "
        "records are fixed: the privacy noise alone makes the draws differ."
    )
    return Table("covariance", caption, columns, rows)


def _svr_findings(spec: Spec, result: dict[str, Any]) -> Findings:
    assert spec.svr is not None
    saved, names = result["study"], result["features"]
    scores = tuple(
        SvrScore(**{**row, "mae": tuple(row["mae"]), "stddev": tuple(row["stddev"])}) for row in saved["scores"]
    )
    study, clean = SvrStudy(**{**saved, "scores": scores}), scores[0]
    n, ranges = study.n_train + study.n_tuning, _unit_ranges(names)
    theta = binary_allocation(len(names), [names.index(name) for name in spec.svr.favoured], spec.svr.share)
    settings = {"epsilon": spec.privacy.epsilon, "delta": spec.privacy.delta, "weights": result["weights"]}
    costs = compare_noise(ranges, n=n, theta=theta, **settings)
    return Findings(
        answer=_svr_answer(study),
        picture=Figure(
            error_strips(study),
            "One dot per draw of the noise, its mean as a bar. Dashed: no privacy. Solid: one constant; strips at or "
            "right of it hold no signal.",
            "Strips of holdout errors by mechanism, one panel per epsilon. " + _svr_answer(study),
        ),
        verdict=_SIMULATED,
        headline=[
            Fact("clean", "error without privacy", clean.mean, f"{clean.mean:.4f}"),
            Fact("constant", "error of predicting one constant", study.constant, f"{study.constant:.4f}"),
            Fact("draws", "draws per mechanism", len(scores[1].mae), str(len(scores[1].mae))),
            Fact("n", "records released", n, f"{n:,}"),
        ],
        sections=[
            *_svr_sections(study, names, max(score.epsilon for score in scores if score.epsilon is not None)),
            noise_section(spec, costs, ranges, names, weighted=len(set(result["weights"])) > 1),
        ],
        terms=PrivacyTerms(ranges.adjacency, unit="row", delta=spec.privacy.delta),
        provenance=_provenance(spec) | {"scikit-learn": _sklearn_version()},
    )


def _svr_sections(study: SvrStudy, names: Sequence[str], top: float) -> list[PageSection]:
    bars = {score.mechanism: score.stddev for score in study.scores if score.epsilon == top}
    return [
        PageSection("Error on a clean holdout", [_svr_table(study)]),
        PageSection(
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


# Parts of the allowed epsilon, and of the optimal noise, from which on the page's words change.
_FAR, _LITTLE, _NOTHING = 0.1, 0.1, 5e-4


def noise_section(
    spec: Spec, costs: Sequence[NoiseCost], ranges: FeatureRanges, names: Sequence[str], *, weighted: bool
) -> PageSection:
    """Return the section on what each mechanism would need in noise for the same guarantee."""
    columns = [
        Column("mechanism"),
        Column("noise sd / range", ".4g", "stddev"),
        Column("times optimal", ".4g", "ratio"),
        Column("exact epsilon", ".4g", "epsilon"),
        Column("epsilon known by", "", "method"),
    ]
    rows = [(c.mechanism, c.stddev, c.ratio, c.epsilon, c.noise.mu.method) for c in costs]
    blocks: list[Any] = [
        Table(
            "noise",
            f"Noise on the records themselves for epsilon {spec.privacy.epsilon:g} at delta {spec.privacy.delta:g}, "
            "replace-one: root mean square over the columns, in parts of their ranges"
            + (", weighted by what public patients say a column is worth." if weighted else "."),
            columns,
            rows,
        ),
        Paragraph(f"{_paper_words(costs, spec.privacy.epsilon)} {_saving_words(costs, weighted=weighted)}"),
    ]
    if ranges.size > 1:
        caption = (
            f"Two of the {ranges.size} columns. The guarantee is that the box of all columns fits inside the "
            "ellipsoid: the space left here is what the others use up. The cost is the ellipse."
        )
        shown = ", ".join(f"{c.mechanism} {c.stddev:.3g}" for c in costs)
        alt = f"Noise ellipses around the box of changes that one record can make. Noise over range: {shown}."
        figure = noise_ellipses(costs, ranges, names=[n.replace("_", " ") for n in names], unit="ranges")
        blocks.append(Figure(figure, caption, alt))
    return PageSection("What the guarantee costs in noise", blocks)


def _paper_words(costs: Sequence[NoiseCost], allowed: float) -> str:
    """Say what the noise that the paper's bound asks for really costs."""
    paid = sorted(cost.epsilon for cost in costs if cost.mechanism.startswith("paper's bound"))
    shown = " to ".join(dict.fromkeys(f"{epsilon:.2g}" for epsilon in (paid[0], paid[-1])))
    far = " and far from necessary" if paid[-1] < _FAR * allowed else ""
    return (
        f"The paper's bound is sufficient{far}: the noise that it asks for really costs an epsilon of {shown} at the "
        f"same delta, where {allowed:g} is allowed."
    )


def _saving_words(costs: Sequence[NoiseCost], *, weighted: bool) -> str:
    """Say what the optimal allocation saves over equal noise."""
    extra = next(cost.ratio for cost in costs if cost.mechanism == "i.i.d. analytic Gaussian") - 1.0
    if extra < _NOTHING:
        plain = "With equal ranges and equal weights nothing beats equal noise."
        return "The weights are too mild for anything to beat equal noise noticeably." if weighted else plain
    little = ": that saves little" if extra < _LITTLE else ""
    return f"Against the optimal allocation, equal noise is {100 * extra:.2g} % larger{little}."


# Distinguishable without colour vision, and by line style.
_COLOURS = ("#2f5fa8", "#c2571a", "#2a7f62", "#7b4b9e", "#8a6d1f", "#555555")


def noise_bars(stddevs: Mapping[str, Sequence[float]], names: Sequence[str]) -> MatplotlibFigure:
    """Draw the noise standard deviation of every feature, in parts of its range, one group of bars per feature."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    width, place = 0.8 / len(stddevs), np.arange(len(names))
    for i, (name, values) in enumerate(stddevs.items()):
        offset = (i - (len(stddevs) - 1) / 2) * width
        height = np.asarray(values, dtype=float) - 1.0
        axis.bar(place + offset, height, width, bottom=1.0, color=_COLOURS[i % len(_COLOURS)], label=name)
    axis.axhline(1.0, color="#111111", linewidth=0.8)
    axis.set_yscale("log")
    everything = [1.0, *np.concatenate([np.asarray(values, dtype=float) for values in stddevs.values()])]
    axis.set_ylim(min(everything) / 1.5, max(everything) * 1.5)  # matplotlib's own limits end at the bars' feet
    axis.grid(axis="y", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_xticks(place, [name.replace("_", " ") for name in names], rotation=35, ha="right", fontsize=8)
    axis.set_ylabel("noise standard deviation / range")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


def error_lines(results: Sequence[CovarianceResult], *, paper: bool = True) -> MatplotlibFigure:
    """Draw the eigenvalue error of both queries against the sample size, beside the paper's table."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
    for query, colour, marker in (("covariance", _COLOURS[0], "o"), ("identity", _COLOURS[1], "s")):
        rows = [row for row in results if row.query == query]
        if not rows:
            continue
        sizes, summary = [row.n for row in rows], [row.summary() for row in rows]
        mean = np.array([part["mean"] for part in summary])
        spread = np.array([[part["mean"] - part["low"], part["high"] - part["mean"]] for part in summary]).T
        axis.errorbar(sizes, mean, yerr=spread, color=colour, marker=marker, capsize=3, label=f"{query} query")
        if paper:
            published = [(n, float(points(rss))) for n, name, rss in PAPER_RSS if name == query]
            axis.plot(
                *zip(*published, strict=True), color=colour, marker=marker, mfc="none", ls=":", label=f"{query}, paper"
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = sorted({row.n for row in results} | ({n for n, _, _ in PAPER_RSS} if paper else set()))
    axis.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.set_xlabel("records")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylabel("error of eigenvalue shares (percentage points)")
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def error_strips(study: SvrStudy) -> MatplotlibFigure:
    """Draw the holdout error of every draw, one strip per mechanism, one panel per epsilon."""
    import matplotlib.pyplot as plt

    epsilons = sorted({score.epsilon for score in study.scores if score.epsilon is not None})
    clean = next(score for score in study.scores if score.epsilon is None)
    figure, axes = plt.subplots(
        1, len(epsilons), figsize=(2.2 + 2.6 * len(epsilons), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, epsilon in zip(axes[0], epsilons, strict=True):
        scores = [score for score in study.scores if score.epsilon == epsilon]
        _strips(axis, scores)
        axis.axvline(clean.mean, color="#2a7f62", linestyle="--", linewidth=1, label="no privacy")
        axis.axvline(study.constant, color="#111111", linewidth=1, label="one constant")
        axis.set_title(f"epsilon {epsilon:g}", fontsize=9)
        axis.set_xscale("log")
        axis.set_xlabel("mean absolute error of the score", fontsize=9)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8, frameon=False
    )
    return figure


def _strips(axis: Axes, scores: Sequence[SvrScore]) -> None:
    for place, score in enumerate(scores):
        colour = _COLOURS[place % len(_COLOURS)]
        spread = np.linspace(-0.22, 0.22, len(score.mae))
        axis.plot(score.mae, place + spread, linestyle="none", marker="o", markersize=3, color=colour, alpha=0.7)
        label = "mean of the draws" if place == 0 else None
        axis.plot(
            score.mean, place, "|", markersize=16, markeredgewidth=2, color="#111111", linestyle="none", label=label
        )
    axis.set_yticks(range(len(scores)), [score.mechanism for score in scores], fontsize=8)
    axis.invert_yaxis()
