r"""The second-moment query :math:`S(X) = \frac1n \sum_j z_j z_j^T` and how far one person moves it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite
from dpbayes.errors import InputError
from dpbayes.mvg.clipping import ClippedRecords, inside_ranges
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.mvg.vertices import Maximum, box_maximum, sign_vectors

__all__ = ["MomentQuery"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MomentQuery:
    r"""Second moments of bounded records, (1/n) Z Z' with z = (intercept, x - centre).

    The divisor n is public. Under replace-one that is the number of records; under add-remove it is a stated number,
    an absent person adds nothing to the sum, and the number of records itself stays protected.

    Parameters
    ----------
    ranges
        Bounds of the features and the adjacency. A `fill` plays no part: an absent record is left out.
    n
        The public divisor.
    centre
        Public point subtracted from every record, shape (m,); the middle of the ranges when None, which makes the
        sensitivity smallest. Never the data's mean.
    intercept
        A public constant put in front of every record, so that the first row holds the means times this constant;
        None leaves it out. Around the length of a half-diagonal of the ranges is a good choice.

    Raises
    ------
    InputError
        If n is not a positive integer, the centre has another shape, or the intercept is not positive.

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

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, (int, np.integer)) or self.n < 1:
            raise InputError(f"n must be a positive integer, got {self.n!r}; it is the public divisor")
        middle = (self.ranges.lower + self.ranges.upper) / 2.0
        centre = middle if self.centre is None else np.atleast_1d(np.asarray(self.centre, dtype=float))
        if centre.shape != middle.shape or not np.all(np.isfinite(centre)):
            raise InputError(f"centre must be finite with shape {middle.shape}, got shape {centre.shape}")
        object.__setattr__(self, "centre", centre)
        if self.intercept is not None:
            remedy = "it is a public constant; None leaves the means out"
            object.__setattr__(self, "intercept", positive_finite(self.intercept, "intercept", remedy=remedy))

    @property
    def size(self) -> int:
        """Rows of the moment matrix: features, plus one with an intercept."""
        return self.ranges.size + (self.intercept is not None)

    @property
    def box(self) -> tuple[FloatArray, FloatArray]:
        """Centre and half-widths of the box of x - centre, each of shape (m,)."""
        assert self.centre is not None
        return (self.ranges.lower + self.ranges.upper) / 2.0 - self.centre, self.ranges.widths / 2.0

    def vectors(self, records: npt.ArrayLike | ClippedRecords) -> FloatArray:
        """Return the vectors z of shape (size, n) after clipping; they are confidential."""
        values = inside_ranges(records, self.ranges)
        if self.ranges.adjacency == "replace-one" and values.shape[1] != self.n:
            raise InputError(f"the query states n = {self.n} records, but {values.shape[1]} were given")
        assert self.centre is not None
        centred = values - self.centre[:, None]
        if self.intercept is None:
            return centred
        return np.vstack([np.full((1, centred.shape[1]), self.intercept), centred])

    def value(self, records: npt.ArrayLike | ClippedRecords) -> FloatArray:
        """Return the exact moment matrix, shape (size, size). **Confidential**: release it with `release_moments`."""
        z = self.vectors(records)
        return np.asarray(z @ z.T / self.n)

    def sensitivity(self, shape: CovarianceLike) -> Maximum:
        r"""Return the sensitivity :math:`\sup \|F^{-1} (S(X) - S(X')) F^{-T}\|_F`, with :math:`F F^T` = `shape`.

        Write r for the largest length of :math:`F^{-1} x` over the box and k for the intercept. Under add-remove the
        change is :math:`zz^T/n`, of norm :math:`(k^2 + r^2)/n`, attained. Under replace-one
        :math:`\|uu^T - ww^T\|_F^2 = |u|^4 + |w|^4 - 2(u \cdot w)^2` gives :math:`\sqrt2 (k^2 + r^2)/n` while
        :math:`k \le r` and :math:`2\sqrt2\,k r/n` beyond; it is attained when two corners of length r have inner
        product :math:`-\min(k, r)^2`. When the box lies in one orthant, F is diagonal and there is no intercept,
        entries of :math:`uu^T` and :math:`ww^T` agree in sign and the supremum is :math:`r^2/n`. Proofs: docs/mvg.md.

        Parameters
        ----------
        shape
            m x m covariance over the features, the shape of the noise: a `Covariance` or a matrix.

        Returns
        -------
        Maximum
            Value, whether it is attained, and an attained value.

        Raises
        ------
        InputError
            If the shape does not fit or is not positive definite.
        """
        row = as_covariance(shape, "shape", size=self.ranges.size)
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
