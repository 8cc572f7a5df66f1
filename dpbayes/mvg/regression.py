r"""Regression from released numbers: coordinates in which the noise is standard, and the fit that ignores it.

Three sets of coordinates occur. *Original* units; *range* units, where a feature is its distance from the public centre
in half-widths of its range, so priors mean the same for every feature; and *whitened* units, where the released noise
is independent with one standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.mechanism import MatrixRelease
from dpbayes.mvg.moment_release import MomentRelease
from dpbayes.mvg.sensitivity import FeatureRanges

__all__ = [
    "Coordinates",
    "NaiveFit",
    "WhitenedMoments",
    "WhitenedRecords",
    "naive_regression",
    "whiten_moments",
    "whiten_records",
]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Names, public ranges and the linear map between range units and whitened units; the response comes last.

    Parameters
    ----------
    features
        Names of the predictors, then the response.
    centre, half
        Public centre and half-width of each, shape (m,), in original units.
    to_white
        Matrix T with whitened = T @ range units, shape (m, m); the response is on its own.
    """

    features: tuple[str, ...]
    centre: FloatArray
    half: FloatArray
    to_white: FloatArray

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predictors."""
        return self.features[:-1]

    def original(self, intercept: float, coefficients: FloatArray) -> tuple[float, FloatArray]:
        """Return intercept and coefficients in original units from those in range units."""
        slopes = coefficients * self.half[-1] / self.half[:-1]
        return float(self.centre[-1] + self.half[-1] * intercept - slopes @ self.centre[:-1]), slopes


@dataclass(frozen=True, eq=False)
class WhitenedMoments:
    """A moment release in whitened coordinates, with an intercept.

    Parameters
    ----------
    moments
        Released matrix of (intercept constant, predictors, response), shape (m + 1, m + 1).
    stddev
        Noise standard deviation of its diagonal; off the diagonal it is this over sqrt(2).
    n
        Number of records.
    constant
        The intercept's public constant.
    coordinates
        Names and maps.
    """

    moments: FloatArray
    stddev: float
    n: int
    constant: float
    coordinates: Coordinates


@dataclass(frozen=True, eq=False)
class WhitenedRecords:
    """Mean and scatter of released records in whitened coordinates, where the noise of a record is standard normal.

    Parameters
    ----------
    mean
        Shape (m,).
    scatter
        Sum over records of the outer product of deviations from the mean, shape (m, m).
    n
        Number of records.
    coordinates
        Names and maps.
    """

    mean: FloatArray
    scatter: FloatArray
    n: int
    coordinates: Coordinates


def whiten_moments(
    release: MomentRelease, *, features: tuple[str, ...] | None = None, response: int = -1
) -> WhitenedMoments:
    """Return a moment release in whitened coordinates, the response last.

    Parameters
    ----------
    release
        With an intercept, under replace-one.
    features
        Names of the rows; x0, x1, ... when None.
    response
        Row of the response among the features.

    Returns
    -------
    WhitenedMoments
        What `build_moment_model` conditions on.

    Raises
    ------
    InputError
        If the release has no intercept, protects n, or its noise mixes the response with a predictor.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), n=500, intercept=1.0)
    >>> noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    >>> rng = np.random.default_rng(1)
    >>> release = release_moments(rng.random((2, 500)), noise, rng=rng)
    >>> whiten_moments(release).moments.shape
    (3, 3)
    """
    query = release.query
    if query.intercept is None:
        raise InputError("the release has no intercept row; ask for one with MomentQuery(..., intercept=...)")
    if query.ranges.adjacency != "replace-one":
        raise InputError("n must be public for the regression; the release was made under add-remove")
    assert isinstance(release.noise.shape, Covariance) and query.centre is not None
    order = _order(query.ranges.size, response)
    coordinates, factor = _coordinates(release.noise.shape, query.ranges, query.centre, features, order)
    whole = np.eye(query.size)
    whole[1:, 1:] = np.linalg.inv(factor)
    value = release.value[np.ix_([0, *(i + 1 for i in order)], [0, *(i + 1 for i in order)])]
    moments = whole @ value @ whole.T
    return WhitenedMoments((moments + moments.T) / 2.0, release.noise.stddev, query.n, query.intercept, coordinates)


def whiten_records(
    release: MatrixRelease, ranges: FeatureRanges, *, features: tuple[str, ...] | None = None, response: int = -1
) -> WhitenedRecords:
    """Return mean and scatter of released records in whitened coordinates, the response last.

    Parameters
    ----------
    release
        With independent columns (the records).
    ranges
        Public ranges of the rows, under replace-one.
    features, response
        As in `whiten_moments`.

    Raises
    ------
    InputError
        If columns are correlated, n is protected, or the noise mixes the response with a predictor.

    Examples
    --------
    >>> from dpbayes.mvg import calibrate, release_records
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> rng = np.random.default_rng(1)
    >>> noise = calibrate(np.eye(2), Covariance.identity(50), ranges, epsilon=9.0, delta=1e-5)
    >>> release = release_records(rng.random((2, 50)), noise, ranges=ranges, rng=rng)
    >>> whiten_records(release, ranges).scatter.shape
    (2, 2)
    """
    if not release.noise.col_cov.is_identity:
        raise InputError("the records' noise must be independent between columns; release with Covariance.identity(n)")
    if ranges.adjacency != "replace-one" or release.adjacency != "replace-one":
        raise InputError("n must be public for the regression; state replace-one")
    order = _order(ranges.size, response)
    middle = (ranges.lower + ranges.upper) / 2.0
    coordinates, factor = _coordinates(release.noise.row_cov, ranges, middle, features, order)
    white = np.linalg.solve(factor, release.values[order] - coordinates.centre[:, None])
    mean = white.mean(axis=1)
    deviations = white - mean[:, None]
    return WhitenedRecords(mean, deviations @ deviations.T, white.shape[1], coordinates)


@dataclass(frozen=True, eq=False)
class NaiveFit:
    """Least squares on released numbers as if they were exact.

    Parameters
    ----------
    terms
        Intercept and predictors.
    estimate, stderr
        In original units, shape (p,). NaN where the released moments admit no fit (not positive definite, or a negative
        residual variance).
    """

    terms: tuple[str, ...]
    estimate: FloatArray
    stderr: FloatArray


def naive_regression(data: WhitenedMoments | WhitenedRecords) -> NaiveFit:
    """Fit least squares to released numbers, ignoring their noise: what a noise-aware posterior is compared with.

    Parameters
    ----------
    data
        From `whiten_moments` or `whiten_records`.

    Returns
    -------
    NaiveFit
        Estimates and the textbook standard errors, in original units.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), n=500, intercept=1.0)
    >>> noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    >>> rng = np.random.default_rng(1)
    >>> release = release_moments(rng.random((2, 500)), noise, rng=rng)
    >>> naive_regression(whiten_moments(release, features=("dose", "effect"))).terms
    ('intercept', 'dose')
    """
    moments, constant = _plain_moments(data)
    size = moments.shape[0] - 1
    gram, cross, square = moments[:size, :size], moments[:size, size], moments[size, size]
    nothing = np.full(size, np.nan)
    terms = ("intercept", *data.coordinates.predictors)
    if np.linalg.eigvalsh(gram)[0] <= 0:
        return NaiveFit(terms, nothing, nothing)
    inverse = np.linalg.inv(gram)
    fitted = inverse @ cross
    residual = (square - fitted @ cross) * data.n / (data.n - size)
    # b (whitened) -> intercept and coefficients in range units -> original units: one linear map.
    to_white, half = data.coordinates.to_white, data.coordinates.half
    linear = np.zeros((size, size))
    linear[0, 0] = constant
    linear[1:, 1:] = to_white[:-1, :-1].T
    linear /= to_white[-1, -1]
    units = np.eye(size)
    units[1:, 1:] = np.diag(half[-1] / half[:-1])
    units[0, 0] = half[-1]
    units[0, 1:] = -half[-1] / half[:-1] * data.coordinates.centre[:-1]
    change = units @ linear
    estimate = change @ fitted
    estimate[0] += data.coordinates.centre[-1]
    stderr = np.sqrt(np.diag(change @ inverse @ change.T) * residual / data.n) if residual > 0 else nothing
    return NaiveFit(terms, estimate, stderr)


def _plain_moments(data: WhitenedMoments | WhitenedRecords) -> tuple[FloatArray, float]:
    if isinstance(data, WhitenedMoments):
        return data.moments, data.constant
    moments = np.empty((data.mean.size + 1, data.mean.size + 1))
    moments[0, 0] = 1.0
    moments[0, 1:] = moments[1:, 0] = data.mean
    moments[1:, 1:] = data.scatter / data.n + np.outer(data.mean, data.mean)
    return moments, 1.0


def _order(size: int, response: int) -> list[int]:
    if size < 2 or not -size <= response < size:
        raise InputError(f"response must be a row of a matrix with at least two features, got {response} of {size}")
    place = response % size
    return [*(i for i in range(size) if i != place), place]


def _coordinates(
    shape: Covariance, ranges: FeatureRanges, centre: FloatArray, features: tuple[str, ...] | None, order: list[int]
) -> tuple[Coordinates, FloatArray]:
    """Return names and maps in the order asked for, and the factor F with F F' = shape in that order."""
    names = tuple(f"x{i}" for i in range(ranges.size)) if features is None else tuple(features)
    if len(names) != ranges.size or len(set(names)) != len(names):
        raise InputError(f"features must be {ranges.size} different names, got {names}")
    matrix = shape.matrix()[np.ix_(order, order)]
    if np.max(np.abs(matrix[-1, :-1])) > 1e-12 * math.sqrt(float(np.max(np.diagonal(matrix))) * float(matrix[-1, -1])):
        raise InputError(
            "the noise mixes the response with a predictor; give the response a direction of its own, or release with "
            "a diagonal shape"
        )
    factor = np.zeros_like(matrix)
    factor[:-1, :-1] = np.linalg.cholesky(matrix[:-1, :-1])
    factor[-1, -1] = math.sqrt(float(matrix[-1, -1]))
    half = (ranges.widths / 2.0)[order]
    to_white = np.linalg.solve(factor, np.diag(half))
    return Coordinates(tuple(names[i] for i in order), centre[order], half, to_white), factor
