"""Regression from released moments: coordinates in which the noise is standard, and the fit that ignores it.

*Range* units measure a feature from the middle of its range in half-widths, so priors mean the same for every feature;
in *whitened* units the released noise is independent with one standard deviation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbayes._arguments import Floats, Ints, instance, ordered, positive_finite, shown
from dpbayes.errors import InputError
from dpbayes.mvg.matrix import Covariance
from dpbayes.mvg.moments import MomentRelease
from dpbayes.mvg.sensitivity import FeatureRanges


@dataclass(frozen=True)
class RegressionPriors:
    """Prior scales in range units."""

    coefficient: float = 1.0
    """Standard deviation of each coefficient and of the intercept (the response at the centre of the ranges)."""
    residual: float = 0.3
    """Scale of the half-normal residual standard deviation."""
    mean: float = 0.5
    """Standard deviation of the predictors' means."""
    spread: float = 0.4
    """Root mean predictor variance: their covariance is Wishart, q + 3 degrees of freedom, mean spread^2 I."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            positive_finite(value, f"prior scale {name}", remedy="it is in range units")


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Names (response last), public centre and half-widths, and T with whitened = T @ range units, shape (m, m)."""

    features: tuple[str, ...]
    centre: Floats
    half: Floats
    to_white: Floats

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predictors."""
        return self.features[:-1]

    @property
    def units(self) -> Floats:
        """Matrix from (intercept, coefficients) in range units to original ones, but for the response's centre."""
        slopes = self.half[-1] / self.half[:-1]
        matrix = np.diag([self.half[-1], *slopes])
        matrix[0, 1:] = -slopes * self.centre[:-1]
        return matrix

    def original(self, coefficients: Floats) -> Floats:
        """Return (intercept, coefficients), along the last axis, in original units from those in range units."""
        found = coefficients @ self.units.T
        found[..., 0] += self.centre[-1]
        return np.asarray(found)


@dataclass(frozen=True, eq=False)
class WhitenedMoments:
    """A moment release in whitened coordinates: rows are (intercept constant, predictors, response)."""

    moments: Floats
    stddev: float
    """Noise standard deviation of the diagonal of `moments`; off the diagonal it is this over sqrt(2)."""
    n: int
    constant: float
    coordinates: Coordinates

    @property
    def gram_places(self) -> tuple[Ints, Ints]:
        """Rows and columns of the moments of (constant, predictors), each once, but for the known corner."""
        rows, columns = np.triu_indices(len(self.moments) - 1)
        return rows[1:], columns[1:]

    @property
    def coords(self) -> dict[str, list[str]]:
        """Labels along the dims of a model and of its trace."""
        names = self.coordinates.predictors
        return {
            "predictor": list(names),
            "pair": [f"{names[i]}:{names[j]}" for i, j in zip(*np.tril_indices(len(names), -1), strict=True)],
            "gram": [f"{i}:{j}" for i, j in zip(*self.gram_places, strict=True)],
            "response_moment": ["intercept", *names, "square"],
        }

    @property
    def slopes(self) -> Floats:
        """Matrix from coefficients of (constant, predictors) in range units to whitened ones."""
        to_white = self.coordinates.to_white
        matrix = np.zeros_like(to_white)
        matrix[0, 0], matrix[1:, 1:] = 1.0 / self.constant, np.linalg.inv(to_white[:-1, :-1]).T
        return to_white[-1, -1] * matrix


def whiten_moments(
    release: MomentRelease, *, features: Sequence[str] | None = None, response: int = -1
) -> WhitenedMoments:
    """Return a moment release in whitened coordinates, the response last.

    Parameters
    ----------
    release
        With an intercept, under replace-one.
    features
        Predictors and response. A release that carries names (`MomentQuery.features`) gives those asked for, in any
        order: the analyst chooses the regression. For one without, names of all its rows; x0, x1, ... when None.
    response
        Place of the response among `features`.

    Raises
    ------
    InputError
        If the release has no intercept, protects n, lacks a feature, or its noise mixes the response with a predictor.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), n=500, intercept=1.0)
    >>> noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    >>> release = release_moments(np.random.default_rng(1).random((2, 500)), noise)
    >>> whiten_moments(release).moments.shape
    (3, 3)
    """
    instance(release, MomentRelease, "release", remedy="release_moments and MomentRelease.read return one")
    query = release.query
    if query.intercept is None:
        raise InputError("the release has no intercept row; ask for one with MomentQuery(..., intercept=...)")
    if query.ranges.adjacency != "replace-one":
        raise InputError("n must be public for the regression; the release was made under add-remove")
    order, names = _chosen(query.features, features, query.ranges.size)
    if len(order) < 2 or type(response) is not int or not -len(order) <= response < len(order):
        raise InputError(
            f"response must be one of at least two features by its place, got {shown(response)} of {len(order)}"
        )
    order.append(order.pop(response))
    coordinates, factor = _coordinates(release.noise.shape, query.ranges, names, order)
    whole = np.eye(len(order) + 1)
    whole[1:, 1:] = np.linalg.inv(factor)
    value = release.value[np.ix_([0, *(i + 1 for i in order)], [0, *(i + 1 for i in order)])]
    moments = whole @ value @ whole.T
    return WhitenedMoments((moments + moments.T) / 2.0, release.noise.stddev, query.n, query.intercept, coordinates)


@dataclass(frozen=True, eq=False)
class NaiveFit:
    """Least squares on released numbers as if they were exact, in original units."""

    terms: tuple[str, ...]
    estimate: Floats
    stderr: Floats


def naive_regression(data: WhitenedMoments) -> NaiveFit:
    """Fit least squares to released moments, ignoring their noise: what a noise-aware posterior is compared with.

    Parameters
    ----------
    data
        From `whiten_moments`.

    Returns
    -------
    NaiveFit
        Estimates and the textbook standard errors, in original units; NaN where the released moments admit no fit.

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
    instance(data, WhitenedMoments, "data", remedy="use whiten_moments")
    gram, cross, square = data.moments[:-1, :-1], data.moments[:-1, -1], data.moments[-1, -1]
    nothing = np.full(len(cross), np.nan)
    terms = ("intercept", *data.coordinates.predictors)
    if np.linalg.eigvalsh(gram)[0] <= 0:
        return NaiveFit(terms, nothing, nothing)
    inverse = np.linalg.inv(gram)
    fitted = inverse @ cross
    residual = (square - fitted @ cross) * data.n / (data.n - len(cross))
    linear = np.linalg.inv(data.slopes)
    estimate, change = data.coordinates.original(linear @ fitted), data.coordinates.units @ linear
    stderr = np.sqrt(np.diag(change @ inverse @ change.T) * residual / data.n) if residual > 0 else nothing
    return NaiveFit(terms, estimate, stderr)


def _chosen(
    released: tuple[str, ...] | None, wanted: Sequence[str] | None, size: int
) -> tuple[list[int], tuple[str, ...]]:
    """Return the rows that a regression is to use, and the names of all rows."""
    remedy = "give the predictors and the response"
    asked = None if wanted is None else ordered(wanted, "features", remedy=remedy, kind=str)
    names = released or asked or tuple(f"x{i}" for i in range(size))
    chosen = names if asked is None else asked
    if len(set(chosen)) != len(chosen) or (released is None and len(chosen) != size):
        raise InputError(f"features must be {size} different names, got {shown(chosen)}; {remedy}")
    if unknown := [name for name in chosen if name not in names]:
        raise InputError(f"the release holds no {', '.join(unknown)}; choose among {shown(list(names))}")
    return [names.index(name) for name in chosen], names


def _coordinates(
    shape: Covariance, ranges: FeatureRanges, names: tuple[str, ...], order: list[int]
) -> tuple[Coordinates, Floats]:
    """Return names and maps in the order asked for, and the factor F with F F' = shape in that order."""
    matrix = shape.matrix()[np.ix_(order, order)]
    if np.max(np.abs(matrix[-1, :-1])) > 1e-12 * math.sqrt(float(np.max(np.diagonal(matrix))) * float(matrix[-1, -1])):
        raise InputError(
            "the noise mixes the response with a predictor; give it a direction of its own, or release a diagonal shape"
        )
    factor = np.zeros_like(matrix)
    factor[:-1, :-1] = np.linalg.cholesky(matrix[:-1, :-1])
    factor[-1, -1] = math.sqrt(float(matrix[-1, -1]))
    half = (ranges.widths / 2.0)[order]
    to_white = np.linalg.solve(factor, np.diag(half))
    return Coordinates(tuple(names[i] for i in order), ranges.middle[order], half, to_white), factor
