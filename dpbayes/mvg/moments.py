r"""Second moments: the query :math:`S(X) = \frac1n \sum_j z_j z_j^T`, its symmetric noise, and its release.

The noise is :math:`E = F G F^T` with :math:`F F^T` the shape and G symmetric:
:math:`G_{ii} \sim N(0, \sigma^2)`, :math:`G_{ij} \sim N(0, \sigma^2/2)`, independent on and above
the diagonal. Its density depends on :math:`\|F^{-1} E F^{-T}\|_F` alone, so the release is a Gaussian mechanism with mu
= (whitened Frobenius sensitivity) / sigma; m(m+1)/2 numbers are drawn and the result stays symmetric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, ordered, positive_finite, real_numbers, shown, whole_number
from dpbayes.errors import InputError
from dpbayes.mvg.cost import GaussianCost, mu_for
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.mvg.sensitivity import FeatureRanges, Maximum, box_maximum, clip_records, sign_vectors
from dpbayes.privacy.adjacency import Adjacency

if TYPE_CHECKING:
    pass

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MomentQuery:
    r"""Second moments of bounded records, (1/n) Z Z' with z = (intercept, x - centre).

    The divisor n is public. Under replace-one that is the number of records; under add-remove it is a stated number, an
    absent record adds nothing to the sum, and the number of records itself stays protected.

    Parameters
    ----------
    ranges
        Bounds of the features and the adjacency. A `fill` plays no part: an absent record is left out.
    n
        The public divisor.
    centre
        Public point subtracted from every record, shape (m,); the middle of the ranges when None,
        which makes the sensitivity smallest. Never the data's mean.
    intercept
        A public constant put in front of every record, so that the first row holds the means times this constant; None
        leaves it out. Around the length of a half-diagonal of the ranges is a good choice.
    features
        Names of the features, shape (m,), which a release then carries; None for unnamed ones.
    unit
        Column whose value says whose record it is; None where each record is a unit of its own.
    rows_per_unit
        How many records one unit has at most. A change of k records moves the sum by at most k times
        as far as a change of one, so the sensitivity is k times that of one record.

    Raises
    ------
    InputError
        If n is no whole number above 0, the centre has another shape, or the intercept is not positive.

    Examples
    --------
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [2.0, 2.0], "replace-one"), n=100)
    >>> query.sensitivity(Covariance.identity(2))
    Maximum(value=0.0282842712474619, method='closed form', lower=0.0282842712474619)
    """

    ranges: FeatureRanges
    n: int
    centre: FloatArray | None = None
    intercept: float | None = None
    features: tuple[str, ...] | None = None
    unit: str | None = None
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        instance(self.ranges, FeatureRanges, "ranges", remedy="it states the bounds of the features")
        whole_number(self.n, "n", high=2**53, remedy="it is the public divisor")
        middle = (self.ranges.lower + self.ranges.upper) / 2.0
        centre = middle if self.centre is None else np.atleast_1d(real_numbers(self.centre, "centre"))
        if centre.shape != middle.shape or not np.all(np.isfinite(centre)):
            raise InputError(f"centre must be finite with shape {middle.shape}, got shape {centre.shape}")
        object.__setattr__(self, "centre", centre)
        if self.intercept is not None:
            remedy = "it is a public constant; None leaves the means out"
            object.__setattr__(self, "intercept", positive_finite(self.intercept, "intercept", remedy=remedy))
        remedy = "it is how many records one unit has at most"
        whole_number(self.rows_per_unit, "rows_per_unit", high=self.n, remedy=remedy)
        if (self.unit is not None and not isinstance(self.unit, str)) or (self.unit is None and self.rows_per_unit > 1):
            raise InputError(f"unit must name the column of the units, got {shown(self.unit)}")
        if self.features is not None:
            remedy = "name every feature once"
            names = ordered(self.features, "features", remedy=remedy, kind=str)
            if len(names) != self.ranges.size or len(set(names)) != len(names):
                raise InputError(f"features must be {self.ranges.size} different names, got {shown(names)}; {remedy}")
            object.__setattr__(self, "features", names)

    @property
    def size(self) -> int:
        """Rows of the moment matrix: features, plus one with an intercept."""
        return self.ranges.size + (self.intercept is not None)

    @property
    def protects(self) -> str:
        """What the guarantee protects, in words."""
        return "one row" if self.unit is None else f"all rows of one {self.unit}, {self.rows_per_unit} at most"

    @property
    def protected(self) -> str:
        """What neighbouring data sets differ in one of."""
        return "row" if self.unit is None else f"{self.unit} (all its rows, {self.rows_per_unit} at most)"

    @property
    def box(self) -> tuple[FloatArray, FloatArray]:
        """Centre and half-widths of the box of x - centre, each of shape (m,)."""
        assert self.centre is not None
        return (self.ranges.lower + self.ranges.upper) / 2.0 - self.centre, self.ranges.widths / 2.0

    def vectors(self, records: npt.ArrayLike) -> FloatArray:
        """Return the vectors z of shape (size, n) after clipping; they are confidential."""
        values = clip_records(records, self.ranges)
        if self.ranges.adjacency == "replace-one" and values.shape[1] != self.n:
            raise InputError(f"the query states n = {self.n} records, but {values.shape[1]} were given")
        assert self.centre is not None
        centred = values - self.centre[:, None]
        if self.intercept is None:
            return centred
        return np.vstack([np.full((1, centred.shape[1]), self.intercept), centred])

    def value(self, records: npt.ArrayLike) -> FloatArray:
        """Return the exact moment matrix, shape (size, size). **Confidential**: release it with `release_moments`."""
        z = self.vectors(records)
        return np.asarray(z @ z.T / self.n)

    def sensitivity(self, shape: CovarianceLike) -> Maximum:
        r"""Return the sensitivity :math:`\sup \|F^{-1} (S(X) - S(X')) F^{-T}\|_F`, with :math:`F F^T` = `shape`.

        Write r for the largest length of :math:`F^{-1} x` over the box and k for the intercept.
        Under add-remove the change is :math:`zz^T/n`, of norm :math:`(k^2 + r^2)/n`, attained.
        Under replace-one :math:`\|uu^T - ww^T\|_F^2 = |u|^4 + |w|^4 - 2(u \cdot w)^2` gives
        :math:`\sqrt2 (k^2 + r^2)/n` while :math:`k \le r` and :math:`2\sqrt2\,k r/n` beyond; it is
        attained when two corners of length r have inner product :math:`-\min(k, r)^2`. When the box
        lies in one orthant, F is diagonal and there is no intercept, entries of :math:`uu^T` and
        :math:`ww^T` agree in sign and the supremum is :math:`r^2/n`. Proofs: docs/mvg.md.

        Parameters
        ----------
        shape
            m x m covariance over the features, the shape of the noise: a `Covariance` or a matrix.


        """
        one, k = self._of_one_record(as_covariance(shape, "shape", size=self.ranges.size)), self.rows_per_unit
        # k equal records that all become k other equal ones move the sum k times as far, so it is attained alike.
        return Maximum(k * one.value, one.method, k * one.lower)

    def _of_one_record(self, row: Covariance) -> Maximum:
        centre, half = self.box
        radius = box_maximum(row.precision(), centre, half)
        k2, r2, attained = (self.intercept or 0.0) ** 2, radius.value, radius.lower
        if self.ranges.adjacency == "add-remove":
            return Maximum((k2 + r2) / self.n, radius.method, (k2 + attained) / self.n)
        if not k2 and row.is_diagonal and np.all(np.abs(centre) >= half):
            return self._one_orthant(row, radius)
        value = math.sqrt(2.0) * (k2 + r2) if k2 <= r2 else 2.0 * math.sqrt(2.0 * k2 * r2)
        reached = self._attained(row, k2)
        if reached >= value * (1.0 - 1e-12):
            return Maximum(value / self.n, "closed form", value / self.n)
        return Maximum(value / self.n, "upper bound", reached / self.n)

    def _one_orthant(self, row: Covariance, radius: Maximum) -> Maximum:
        centre, half = self.box
        near = np.abs(centre) - half  # zero in every coordinate when the box touches the origin
        if np.any(near > 0):
            other = float(row.precision_diagonal @ near**2)
            return Maximum(radius.value / self.n, "upper bound", (radius.value - other) / self.n)
        return Maximum(radius.value / self.n, "closed form", radius.value / self.n)

    def _attained(self, row: Covariance, k2: float) -> float:
        """Return the largest change found between two corners of the box, times n."""
        centre, half = self.box
        signs = sign_vectors(min(self.ranges.size, 12))
        if self.ranges.size > 12:
            # Beyond 4,096 corners only the first features flip, and half of the others stay.
            rest = np.tile([1.0, -1.0], self.ranges.size)[: self.ranges.size - 12]
            signs = np.hstack([signs, np.broadcast_to(rest, (len(signs), len(rest)))])
        white = row.whiten((centre + signs * half).T)
        lengths = np.sum(white**2, axis=0)
        first = white[:, int(np.argmax(lengths))]
        inner = first @ white
        squared = lengths.max() ** 2 + lengths**2 - 2.0 * inner**2 + 2.0 * k2 * (lengths.max() + lengths - 2.0 * inner)
        origin = np.all(np.abs(centre) <= half)
        return math.sqrt(max(float(np.max(squared)), float(lengths.max() ** 2 + 2 * k2 * lengths.max()) * origin))


@dataclass(frozen=True, eq=False)
class SymmetricGaussian(GaussianCost):
    """Symmetric noise for a moment query with its exact privacy cost."""

    query: MomentQuery
    stddev: float
    shape: CovarianceLike | None = None

    def __post_init__(self) -> None:
        remedy = "calibrate_moments finds it from epsilon and delta"
        object.__setattr__(self, "stddev", positive_finite(self.stddev, "stddev", remedy=remedy))
        size = self.query.ranges.size
        shape = Covariance.identity(size) if self.shape is None else as_covariance(self.shape, "shape", size=size)
        object.__setattr__(self, "shape", shape)

    @property
    def row_cov(self) -> Covariance:
        """The shape over all rows of the moment matrix, with a one for the intercept."""
        assert isinstance(self.shape, Covariance)
        if self.query.intercept is None:
            return self.shape
        matrix = np.eye(self.query.size)
        matrix[1:, 1:] = self.shape.matrix()
        return Covariance.from_matrix(matrix)

    @cached_property
    def mu(self) -> Maximum:
        """Sensitivity over stddev, and whether the sensitivity is attained or an upper bound."""
        assert self.shape is not None
        found = self.query.sensitivity(self.shape)
        return Maximum(found.value / self.stddev, found.method, found.lower / self.stddev)

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.query.ranges.adjacency

    @property
    def variances(self) -> FloatArray:
        r"""Noise variance of every entry, :math:`\sigma^2 (\Sigma_{ii} \Sigma_{jj} + \Sigma_{ij}^2) / 2`."""
        matrix = self.row_cov.matrix()
        diagonal = np.diagonal(matrix)
        variances = self.stddev**2 * (np.outer(diagonal, diagonal) + matrix**2) / 2.0
        if self.query.intercept is not None and self.adjacency == "replace-one":
            variances[0, 0] = 0.0
        return np.asarray(variances)


def calibrate_moments(
    query: MomentQuery,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    mu: float | None = None,
    shape: CovarianceLike | None = None,
) -> SymmetricGaussian:
    """Return symmetric noise of a given shape that just satisfies a guarantee.

    Parameters
    ----------
    query
        What is asked.
    epsilon, delta
        The guarantee; or
    mu
        its privacy cost, for example one part of `split_mu`.
    shape
        Shape over the features; the identity when None.

    Raises
    ------
    InputError
        If neither or both of mu and (epsilon, delta) are given, or a value is out of range.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [2.0, 2.0], "replace-one"), n=100)
    >>> round(calibrate_moments(query, epsilon=1.0, delta=1e-5).stddev, 6)
    0.105518
    """
    instance(query, MomentQuery, "query", remedy="it says what is asked")
    if mu is None:
        if epsilon is None or delta is None:
            raise InputError(f"give epsilon and delta, or mu; got epsilon {epsilon}, delta {delta}, mu {mu}")
        cost = mu_for(epsilon, delta)
    elif epsilon is not None or delta is not None:
        raise InputError("give either mu or epsilon and delta, not both")
    else:
        cost = positive_finite(mu, "mu", remedy="it is the privacy cost of the release")
    row = Covariance.identity(query.ranges.size) if shape is None else as_covariance(shape, "shape")
    return SymmetricGaussian(query, query.sensitivity(row).value / cost, row)
