"""How far one record can move an m x n matrix of records (columns) by features (rows), and records inside their ranges.

A sensitivity is the set of all matrices Delta by which a neighbour can change the value.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats, positive_finite, real_numbers
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency


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

    Under replace-one a record x becomes y with both in the box, so the changed column is
    :math:`x - y` with :math:`|x_i - y_i| \le u_i - l_i`. Under add-remove the matrix keeps its n
    columns and the column of an absent record holds the middle of the box: half as much.

    Parameters
    ----------
    lower, upper
        Bounds of each feature, shape (m,), from the specification and never from the data.
    adjacency
        The neighbouring relation.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 3.0], "replace-one")
    >>> ranges.widths, ranges.frobenius
    (array([1., 3.]), 3.1622776601683795)
    """

    lower: Floats
    upper: Floats
    adjacency: Adjacency

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

    @property
    def size(self) -> int:
        """Number of features m."""
        return int(self.lower.shape[0])

    @property
    def middle(self) -> Floats:
        """Middle of each range, shape (m,)."""
        return (self.lower + self.upper) / 2.0

    @property
    def widths(self) -> Floats:
        """Upper minus lower bound of each feature, shape (m,)."""
        return self.upper - self.lower

    @property
    def reach(self) -> Floats:
        """Largest absolute change of each feature, shape (m,)."""
        return self.widths if self.adjacency == "replace-one" else self.widths / 2.0

    @property
    def frobenius(self) -> float:
        """The Frobenius sensitivity of the same query: what is left when the directions are forgotten."""
        return float(np.linalg.norm(self.reach))


type Sensitivity = FrobeniusBall | FeatureRanges


def check_sensitivity(value: object) -> None:
    """Raise `InputError` unless the value is one of the two sensitivity sets."""
    if not isinstance(value, FrobeniusBall | FeatureRanges):
        raise InputError(f"sensitivity must be a FrobeniusBall or FeatureRanges, got {type(value).__name__}")


Method = Literal["closed form", "vertices", "upper bound"]

#: Largest number of features whose vertices are enumerated.
VERTEX_LIMIT = 20


@dataclass(frozen=True)
class Maximum:
    """A maximum over a set: the value or a proven upper bound on it."""

    value: float
    method: Method


def box_maximum(precision: Floats, half: Floats) -> Maximum:
    r"""Return the maximum of :math:`d^T P d` over the box :math:`|d_i| \le h_i`."""
    if np.count_nonzero(precision - np.diag(np.diagonal(precision))) == 0:
        with np.errstate(over="ignore"):  # too large a box has an infinite length, which callers refuse
            value = float(np.diagonal(precision) @ half**2)
        return Maximum(value, "closed form")
    form = precision * np.outer(half, half)  # the maximum of s'Qs over sign vectors s
    if half.shape[0] <= VERTEX_LIMIT:
        return Maximum(_enumerate(form), "vertices")
    return Maximum(_upper_bound(form), "upper bound")


def sign_vectors(size: int) -> Floats:
    """Return all sign vectors of length `size`, shape (2**size, size)."""
    codes = np.arange(2**size, dtype=np.int64)[:, None]
    return np.asarray(2.0 * ((codes >> np.arange(size)) & 1) - 1.0)


def _enumerate(form: Floats) -> float:
    # s and -s give the same value, so s = (1, u, v): one outer table over u and v, a small matrix product.
    free = form.shape[0] - 1
    first = np.hstack([np.ones((2 ** (free // 2), 1)), sign_vectors(free // 2)])
    second = sign_vectors(free - free // 2)
    split = first.shape[1]
    within_first = np.einsum("ki,ij,kj->k", first, form[:split, :split], first)
    within_second = np.einsum("ki,ij,kj->k", second, form[split:, split:], second)
    cross = (first @ form[:split, split:]) @ second.T
    return float(np.max(within_first[:, None] + within_second[None, :] + 2.0 * cross))


def _upper_bound(form: Floats) -> float:
    r"""Return a proven bound on :math:`\max_s s^T Q s`."""
    from scipy.optimize import minimize  # half a second of import, for large m alone

    size = form.shape[0]

    def bound(u: Floats) -> tuple[float, Floats]:
        shift = u - u.mean()
        eigenvalues, vectors = np.linalg.eigh(form + np.diag(shift))
        # A soft maximum of the eigenvalues lies above the largest one, so the smoothed value is a bound too.
        temperature = 1e-3 * max(float(eigenvalues[-1]), 1e-300)
        weights = np.exp((eigenvalues - eigenvalues[-1]) / temperature)
        soft = float(eigenvalues[-1]) + temperature * float(np.log(weights.sum()))
        gradient = (vectors**2) @ (weights / weights.sum())
        return size * soft, size * (gradient - gradient.mean())

    start = np.mean(np.diagonal(form)) - np.diagonal(form)
    best = minimize(bound, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    candidates = [np.sum(np.abs(form))]
    for u in (np.zeros(size), start, best):
        candidates.append(size * np.linalg.eigvalsh(form + np.diag(u - u.mean()))[-1])
    # The eigenvalues carry a rounding error of a few units of 2^-52 times the norm; the slack covers it.
    return float(min(candidates)) * (1.0 + 1e-12)


def clip_records(records: npt.ArrayLike, ranges: FeatureRanges) -> Floats:
    """Move every value into its feature's stated range, and a missing one to the middle; `records` is m x n."""
    try:
        values = np.asarray(records, dtype=float)
    except (TypeError, ValueError):
        # NumPy's own message quotes the value, and so would a chained exception.
        raise InputError("records must be numbers; code categories as numbers inside the stated ranges") from None
    if values.ndim != 2 or values.shape[0] != ranges.size or values.shape[1] < 1:
        raise InputError(
            f"records must have shape ({ranges.size}, n), one row per feature, got {values.shape}; transpose a table"
        )
    low, high = ranges.lower[:, None], ranges.upper[:, None]
    return np.clip(np.where(np.isfinite(values), values, ranges.middle[:, None]), low, high)
