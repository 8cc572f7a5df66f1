"""The mechanisms of the regression experiment: ways to release one unit-scaled matrix at one guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.mvg.accounting import MatrixGaussian, calibrate, exact_mu, mu_for
from dpbayes.mvg.allocation import optimal_covariance
from dpbayes.mvg.clipping import ClippedRecords
from dpbayes.mvg.comparison import supremum_norm
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.derived import DerivedDirections, derive_directions, split_mu
from dpbayes.mvg.directions import unimodal_noise
from dpbayes.mvg.mechanism import release_records
from dpbayes.mvg.moment_release import release_moments
from dpbayes.mvg.moments import MomentQuery
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.mvg.symmetric import calibrate_moments

__all__ = ["MECHANISMS", "ReleasedMatrix", "StudySetting", "release_by"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StudySetting:
    """What every mechanism of the study is given.

    Parameters
    ----------
    ranges
        Unit ranges of the features and the response, with the adjacency.
    n
        Number of released records.
    epsilon, delta
        The guarantee of the whole mechanism, deriving directions included.
    theta
        Binary allocation of the precision.
    weights
        Public weights of the noise variances for the optimal allocation.
    derive_share
        Part of the budget spent on the covariance from which directions are derived.
    """

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


def _iid(records: ClippedRecords, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    shape = Covariance.identity(setting.ranges.size)
    return _exact(records, shape, setting, rng)


def _binary_paper(records: ClippedRecords, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    return _paper(records, setting.theta, None, setting, rng, setting.epsilon, setting.delta)


def _binary_exact(records: ClippedRecords, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    return _exact(records, Covariance.diagonal(1.0 / np.sqrt(setting.theta)), setting, rng)


def _derived_paper(records: ClippedRecords, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    # The theorem knows only (epsilon, delta), so the two parts compose by addition.
    share, epsilon, delta = setting.derive_share, setting.epsilon, setting.delta
    derived = _derive(records, setting, rng, mu_for(epsilon * share, delta * share))
    rest = 1.0 - share
    released = _paper(records, derived.theta, derived.directions, setting, rng, epsilon * rest, delta * rest)
    return ReleasedMatrix(released.values, released.noise, float(np.hypot(derived.mu, released.total_mu)))


def _derived_exact(records: ClippedRecords, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    first, second = split_mu(setting.epsilon, setting.delta, setting.derive_share)
    shape = _derive(records, setting, rng, first).shape
    columns = Covariance.identity(setting.n)
    unit = exact_mu(shape, columns, setting.ranges).value
    noise = MatrixGaussian(shape.scaled((unit / second) ** 2), columns, setting.ranges)
    values = release_records(records, noise, ranges=setting.ranges, rng=rng).values
    return ReleasedMatrix(values, noise, float(np.hypot(first, noise.mu.value)))


def _optimal(records: ClippedRecords, setting: StudySetting, rng: np.random.Generator) -> ReleasedMatrix:
    price = mu_for(setting.epsilon, setting.delta)
    return _exact(
        records, optimal_covariance(setting.ranges, mu=price, weights=setting.weights).covariance, setting, rng
    )


#: Name to mechanism, in the order of the study's tables.
MECHANISMS: dict[str, Callable[[ClippedRecords, StudySetting, np.random.Generator], ReleasedMatrix]] = {
    "i.i.d. Gaussian": _iid,
    "binary MVG": _binary_paper,
    "derived MVG": _derived_paper,
    "exact binary": _binary_exact,
    "exact derived": _derived_exact,
    "optimal": _optimal,
}


def release_by(
    name: str, records: ClippedRecords, setting: StudySetting, *, rng: np.random.Generator
) -> ReleasedMatrix:
    """Release unit-scaled records by the mechanism called `name` (simulated).

    ``binary MVG`` and ``derived MVG`` spend the budget of Theorem 2; the others meet the guarantee exactly.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> setting = StudySetting(ranges, 3, 1.0, 1e-5, np.array([0.8, 0.2]), np.array([4.0, 1.0]))
    >>> records = ClippedRecords(np.full((2, 3), 0.5), np.zeros(2, int), np.zeros(2, int), ranges)
    >>> released = release_by("optimal", records, setting, rng=np.random.default_rng(1))
    >>> released.noise.row_cov.marginal_variances.round(2).tolist()
    [20.88, 41.75]
    """
    return MECHANISMS[name](records, setting, rng)


def _exact(
    records: ClippedRecords, shape: Covariance, setting: StudySetting, rng: np.random.Generator
) -> ReleasedMatrix:
    noise = calibrate(
        shape, Covariance.identity(setting.n), setting.ranges, epsilon=setting.epsilon, delta=setting.delta
    )
    values = release_records(records, noise, ranges=setting.ranges, rng=rng).values
    return ReleasedMatrix(values, noise, noise.mu.value)


def _paper(
    records: ClippedRecords,
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


def _derive(records: ClippedRecords, setting: StudySetting, rng: np.random.Generator, mu: float) -> DerivedDirections:
    noise = calibrate_moments(MomentQuery(setting.ranges, setting.n), mu=mu)
    released = release_moments(records, noise, rng=rng)
    # With few records and a small budget the noisy covariance may have no positive eigenvalue; a public ridge of one
    # noise standard deviation keeps the derivation defined, and is post-processing.
    ridge = noise.stddev * np.eye(setting.ranges.size)
    value = released.value + ridge * max(0.0, 1.0 - float(np.linalg.eigvalsh(released.value)[-1]) / noise.stddev)
    return derive_directions(value, mu=mu)
