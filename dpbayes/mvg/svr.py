"""The paper's second experiment: support vector regression of the Framingham score on privately released patients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.mvg.clipping import ClippedRecords
from dpbayes.mvg.experiments import unit_records
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.mvg.shapes import binary_allocation
from dpbayes.mvg.svr_mechanisms import MECHANISMS, StudySetting, release_by

__all__ = ["SvrConfig", "SvrScore", "SvrStudy", "public_weights", "svr_study"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SvrConfig:
    """Settings of the regression study.

    Parameters
    ----------
    epsilons
        Guarantees to compare.
    delta
        Their delta.
    draws
        Draws a mechanism.
    tuning, holdout
        Parts of the records set aside for tuning and for the final error.
    favoured
        Rows (features or the response) that the binary allocation favours.
    share
        Part of the precision they get.
    costs, gammas
        Grid of the kernel machine: C and, in units of 1 / (number of features * variance), gamma.
    tube
        Width epsilon of its insensitive tube, in units of the response's range.

    Examples
    --------
    >>> SvrConfig(epsilons=(1.0,), draws=2).tuning
    0.15
    """

    epsilons: tuple[float, ...] = (1.0, 10.0, 100.0)
    delta: float = 1e-5
    draws: int = 25
    tuning: float = 0.15
    holdout: float = 0.15
    favoured: tuple[int, ...] = (0, 1, 5, 9)
    share: float = 0.8
    costs: tuple[float, ...] = (0.01, 0.1, 1.0)
    gammas: tuple[float, ...] = (0.3, 1.0)
    tube: float = 0.02

    def __post_init__(self) -> None:
        if not self.epsilons or self.draws < 1 or not self.costs or not self.gammas:
            raise InputError("epsilons, costs and gammas must not be empty and draws must be at least 1")
        if not (self.tuning > 0 and self.holdout > 0 and self.tuning + self.holdout < 1):
            raise InputError(
                f"tuning and holdout must be positive parts of the records, got {self.tuning}, {self.holdout}"
            )


@dataclass(frozen=True)
class SvrScore:
    """Errors of one mechanism at one guarantee.

    Parameters
    ----------
    mechanism
        Its name.
    epsilon
        The guarantee; None without privacy.
    mae
        Mean absolute error on the clean holdout, one a draw, in units of the response.
    stddev
        Noise standard deviation of each row in parts of its range, shape (m,); zeros without privacy.
    runtime
        Seconds of the fastest draw of the mechanism.
    cost, gamma
        What tuning chose.

    Examples
    --------
    >>> round(SvrScore("optimal", 1.0, (0.1, 0.2), (1.0,), 1e-3, 0.1, 1.0).mean, 3)
    0.15
    """

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
    """All scores, and the error of predicting one constant.

    Parameters
    ----------
    scores
        One a mechanism and guarantee, without privacy first.
    constant
        Error of the clean training median: a mechanism that does no better has drowned the signal.
    n_train, n_tuning, n_holdout
        Sizes of the split.

    Examples
    --------
    >>> score = SvrScore("optimal", 1.0, (0.1, 0.2), (1.0,), 1e-3, 0.1, 1.0)
    >>> SvrStudy((score,), constant=0.14, n_train=70, n_tuning=15, n_holdout=15).drowned(score)
    True
    """

    scores: tuple[SvrScore, ...]
    constant: float
    n_train: int
    n_tuning: int
    n_holdout: int

    def drowned(self, score: SvrScore) -> bool:
        """Whether a mechanism's mean error is no better than the constant's."""
        return score.mean >= self.constant


def public_weights(records: npt.ArrayLike, ranges: FeatureRanges) -> FloatArray:
    """Return weights for the optimal allocation from **public** records: squared linear coefficients, unit-scaled.

    Noise of variance v on feature i moves a linear prediction by variance coefficient squared times v. The last row is
    the response; it and every feature with a small coefficient get at least a twentieth of the largest weight.

    Examples
    --------
    >>> x = np.random.default_rng(1).random((2, 100))
    >>> weights = public_weights(np.vstack([x, x[:1]]), FeatureRanges([0, 0, 0], [1, 1, 1], "replace-one"))
    >>> weights.round(3).tolist()
    [1.0, 0.05, 1.0]
    """
    scaled, _ = unit_records(records, ranges)
    design = np.vstack([np.ones(scaled.values.shape[1]), scaled.values[:-1]]).T
    squared = np.linalg.lstsq(design, scaled.values[-1], rcond=None)[0][1:] ** 2
    largest = float(np.max(squared))
    return np.append(np.maximum(squared, largest / 20.0), largest)


def svr_study(
    records: npt.ArrayLike,
    ranges: FeatureRanges,
    *,
    weights: npt.ArrayLike,
    config: SvrConfig | None = None,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> SvrStudy:
    """Fit support vector regression to releases of the training records and score it on a clean holdout.

    Records are split at random; training and tuning records are released together, features and response, so the
    guarantee covers both. The analyst clips released values to the public ranges, tunes on the released tuning part of
    the first draw, and refits at every draw. The holdout is clean: it measures, nothing leaves it but the error.
    Noise is simulated.

    Parameters
    ----------
    records
        Matrix of shape (m, N), columns are records; the last row is the response.
    ranges
        Public bounds, with the adjacency.
    weights
        Weights of the optimal allocation, shape (m,), from public knowledge: see `public_weights`.
    config
        Settings.
    rng
        Generator of the split and of the noise.
    progress
        Called with one line before each mechanism.

    Returns
    -------
    SvrStudy
        Scores of no privacy and of every mechanism at every epsilon.

    Raises
    ------
    InputError
        If there are fewer than 40 records or a setting does not fit.

    Notes
    -----
    Needs scikit-learn, an optional dependency.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> ranges = FeatureRanges([0, 0, 0], [1, 1, 1], "replace-one")
    >>> features = rng.random((2, 60))
    >>> records = np.vstack([features, features.mean(axis=0)])
    >>> config = SvrConfig(epsilons=(1.0,), draws=1, favoured=(2,), costs=(1.0,), gammas=(1.0,))
    >>> study = svr_study(records, ranges, weights=[1.0, 1.0, 1.0], config=config, rng=rng)
    >>> bool(study.scores[0].mean < study.constant), len(study.scores)
    (True, 7)
    """
    settings = SvrConfig() if config is None else config
    scaled, unit = unit_records(records, ranges)
    n = scaled.values.shape[1]
    if n < 40:
        raise InputError(f"the study splits its records three ways and needs at least 40, got {n}")
    order = rng.permutation(n)
    n_holdout, n_tuning = round(n * settings.holdout), round(n * settings.tuning)
    kept, held = order[n_holdout:], scaled.values[:, order[:n_holdout]]
    part = replace(scaled, values=scaled.values[:, kept])
    width = float(ranges.widths[-1])
    theta = binary_allocation(unit.size, settings.favoured, settings.share)
    clean = part.values
    cost, gamma = _tune(clean, n_tuning, settings)
    scores = [
        SvrScore(
            "no privacy",
            None,
            (_error(clean, n_tuning, held, cost, gamma, settings) * width,),
            (0.0,) * unit.size,
            0.0,
            cost,
            gamma,
        )
    ]
    for epsilon in settings.epsilons:
        setting = StudySetting(unit, len(kept), epsilon, settings.delta, theta, np.asarray(weights, dtype=float))
        for name in MECHANISMS:
            if progress is not None:
                progress(f"epsilon {epsilon:g}: {name}")
            scores.append(_score(name, part, setting, n_tuning, held, settings, width, rng))
    constant = float(np.mean(np.abs(held[-1] - np.median(clean[-1])))) * width
    return SvrStudy(tuple(scores), constant, len(kept) - n_tuning, n_tuning, n_holdout)


def _score(
    name: str,
    part: ClippedRecords,
    setting: StudySetting,
    n_tuning: int,
    held: FloatArray,
    settings: SvrConfig,
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
        errors.append(_error(values, n_tuning, held, *chosen, settings) * width)
    return SvrScore(name, setting.epsilon, tuple(errors), tuple(stddev.tolist()), fastest, *chosen)


def _fit(values: FloatArray, cost: float, gamma: float, settings: SvrConfig) -> Any:
    from sklearn.svm import SVR

    variance = float(values[:-1].var())
    scale = gamma / ((values.shape[0] - 1) * max(variance, 1e-12))
    return SVR(kernel="rbf", C=cost, gamma=scale, epsilon=settings.tube, cache_size=500).fit(values[:-1].T, values[-1])


def _tune(values: FloatArray, n_tuning: int, settings: SvrConfig) -> tuple[float, float]:
    """Choose C and gamma by the error on the tuning records, as noisy as the training records are."""
    train, tuning = values[:, n_tuning:], values[:, :n_tuning]
    grid = [(cost, gamma) for cost in settings.costs for gamma in settings.gammas]
    return min(grid, key=lambda pair: _mae(_fit(train, pair[0], pair[1], settings), tuning))


def _error(
    values: FloatArray, n_tuning: int, held: FloatArray, cost: float, gamma: float, settings: SvrConfig
) -> float:
    return _mae(_fit(values[:, n_tuning:], cost, gamma, settings), held)


def _mae(model: Any, values: FloatArray) -> float:
    # Predictions outside the response's public range are moved to its end.
    return float(np.mean(np.abs(np.clip(model.predict(values[:-1].T), 0.0, 1.0) - values[-1])))
