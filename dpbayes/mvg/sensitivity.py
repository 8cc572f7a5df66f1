"""How far one person can move the matrix: three sensitivity sets, each with its adjacency.

The query's value is m x n: rows are features, columns are records. A neighbour changes it by a matrix Delta; a
sensitivity is the set of all such Delta.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite, real_numbers
from dpbayes.errors import InputError
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.privacy.adjacency import Adjacency, check_adjacency

__all__ = ["FeatureRanges", "FrobeniusBall", "RecordEllipsoid", "Sensitivity"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FrobeniusBall:
    r"""All Delta with :math:`\|\Delta\|_F \le` `radius`: the paper's :math:`s_2`, direction unknown.

    Parameters
    ----------
    radius
        The Frobenius sensitivity, in the units of the query's value.
    adjacency
        The relation under which `radius` was derived.

    Examples
    --------
    >>> FrobeniusBall(1.0, "replace-one").radius
    1.0
    """

    radius: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "radius", positive_finite(self.radius, "radius", remedy="it is the query's Frobenius sensitivity")
        )
        check_adjacency(self.adjacency)

    @property
    def frobenius(self) -> float:
        """The radius."""
        return self.radius


@dataclass(frozen=True, eq=False)
class FeatureRanges:
    r"""One column changes, each feature within its stated range: the identity query on bounded records.

    Under replace-one a record x becomes y with both in the box, so the changed column is :math:`x - y` with
    :math:`|x_i - y_i| \le u_i - l_i`. Under add-remove the matrix keeps its n columns and the column of an absent
    person holds the public `fill`; the changed column is :math:`x - \text{fill}`.

    Parameters
    ----------
    lower, upper
        Bounds of each feature, shape (m,), from the specification and never from the data.
    adjacency
        The neighbouring relation.
    fill
        Column of an absent person under add-remove, inside the box; the middle of the box when None. It must be None
        under replace-one, where nobody is absent.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 3.0], "replace-one")
    >>> ranges.widths, ranges.frobenius
    (array([1., 3.]), 3.1622776601683795)
    """

    lower: FloatArray
    upper: FloatArray
    adjacency: Adjacency
    fill: FloatArray | None = None

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        lower, upper = (np.atleast_1d(real_numbers(bound, "lower and upper")) for bound in (self.lower, self.upper))
        if lower.ndim != 1 or lower.shape != upper.shape:
            raise InputError(f"lower and upper must be vectors of one length, got shapes {lower.shape}, {upper.shape}")
        bad = ~(np.isfinite(lower) & np.isfinite(upper) & (upper > lower))
        if np.any(bad):
            i = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"feature {i} must have finite bounds with lower < upper, got [{lower[i]:g}, {upper[i]:g}]; take "
                "bounds from the data's specification"
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        object.__setattr__(self, "fill", self._checked_fill(lower, upper))

    def _checked_fill(self, lower: FloatArray, upper: FloatArray) -> FloatArray | None:
        if self.adjacency == "replace-one":
            if self.fill is not None:
                raise InputError("fill must be None under replace-one: no record is absent; or state add-remove")
            return None
        fill = (lower + upper) / 2.0 if self.fill is None else np.atleast_1d(np.asarray(self.fill, dtype=float))
        if fill.shape != lower.shape or not np.all((fill >= lower) & (fill <= upper)):
            raise InputError(f"fill must have shape {lower.shape} and lie inside the bounds, got {fill}")
        return fill

    @property
    def size(self) -> int:
        """Number of features m."""
        return int(self.lower.shape[0])

    @property
    def widths(self) -> FloatArray:
        """Upper minus lower bound of each feature, shape (m,)."""
        return self.upper - self.lower

    @property
    def box(self) -> tuple[FloatArray, FloatArray]:
        """Centre and half-widths of the box that the changed column ranges over, each of shape (m,)."""
        if self.fill is None:
            return np.zeros(self.size), self.widths
        return (self.lower + self.upper) / 2.0 - self.fill, self.widths / 2.0

    @property
    def reach(self) -> FloatArray:
        """Largest absolute change of each feature, shape (m,)."""
        centre, half = self.box
        return np.abs(centre) + half

    @property
    def frobenius(self) -> float:
        """The Frobenius sensitivity of the same query: what is left when the directions are forgotten."""
        return float(np.linalg.norm(self.reach))


@dataclass(frozen=True, eq=False)
class RecordEllipsoid:
    r"""One column changes by d with :math:`d^T A^{-1} d \le 1`.

    Parameters
    ----------
    shape
        The m x m matrix A, symmetric positive definite: a `Covariance` or a matrix. A ball of radius s is
        ``s**2 * identity``.
    adjacency
        The neighbouring relation under which the ellipsoid was derived.

    Examples
    --------
    >>> RecordEllipsoid([[4.0, 0.0], [0.0, 1.0]], "replace-one").frobenius
    2.0
    """

    shape: CovarianceLike
    adjacency: Adjacency

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        object.__setattr__(self, "shape", as_covariance(self.shape, "shape"))

    @property
    def covariance(self) -> Covariance:
        """The matrix A as a `Covariance`."""
        assert isinstance(self.shape, Covariance)
        return self.shape

    @property
    def size(self) -> int:
        """Number of features m."""
        return self.covariance.size

    @property
    def frobenius(self) -> float:
        """The longest half-axis."""
        values = self.covariance.variances
        return 1.0 if values is None else float(np.sqrt(np.max(values)))


type Sensitivity = FrobeniusBall | FeatureRanges | RecordEllipsoid
