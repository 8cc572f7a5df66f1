r"""The largest value of a positive definite quadratic form on a box.

:math:`\max \{ d^T P d : |d_i - c_i| \le h_i \}` sits at a vertex because the form is convex. With
:math:`d = c + s \circ h`, :math:`s \in \{-1, 1\}^m`, it is :math:`\max_s s^T Q s` over signs, with one more sign
(fixed at 1) when the centre c is not zero. The problem is NP-hard in m, hence three ways, and the answer says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["VERTEX_LIMIT", "Maximum", "Method", "box_maximum", "sign_vectors"]

type FloatArray = npt.NDArray[np.float64]

Method = Literal["closed form", "vertices", "upper bound"]

#: Largest number of features whose vertices are enumerated.
VERTEX_LIMIT = 20


@dataclass(frozen=True)
class Maximum:
    """A maximum over a set, and how it is known.

    Parameters
    ----------
    value
        The maximum, or a proven upper bound on it.
    method
        ``"closed form"`` and ``"vertices"`` are exact up to rounding; ``"upper bound"`` may exceed the maximum.
    lower
        A value that is attained in the set; equal to `value` when the method is exact.

    Examples
    --------
    >>> Maximum(2.0, "upper bound", 1.9).value
    2.0
    """

    value: float
    method: Method
    lower: float


def box_maximum(precision: FloatArray, centre: FloatArray, half: FloatArray) -> Maximum:
    """Return the maximum of ``d' precision d`` over the box with this centre and these half-widths.

    Parameters
    ----------
    precision
        Symmetric positive definite matrix, shape (m, m).
    centre, half
        Box centre and positive half-widths, each of shape (m,).

    Returns
    -------
    Maximum
        Closed form for a diagonal matrix, all vertices up to `VERTEX_LIMIT` features, a proven upper bound beyond.

    Examples
    --------
    >>> box_maximum(np.array([[2.0, 1.0], [1.0, 2.0]]), np.zeros(2), np.ones(2))
    Maximum(value=6.0, method='vertices', lower=6.0)
    """
    if np.count_nonzero(precision - np.diag(np.diagonal(precision))) == 0:
        value = float(np.diagonal(precision) @ (np.abs(centre) + half) ** 2)
        return Maximum(value, "closed form", value)
    form = _sign_form(precision, centre, half)
    if half.shape[0] <= VERTEX_LIMIT:
        value = _enumerate(form)
        return Maximum(value, "vertices", value)
    return Maximum(_upper_bound(form), "upper bound", _local_search(form))


def sign_vectors(size: int) -> FloatArray:
    """Return all sign vectors of length `size`, shape (2**size, size).

    Examples
    --------
    >>> sign_vectors(2).tolist()
    [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]
    """
    codes = np.arange(2**size, dtype=np.int64)[:, None]
    return np.asarray(2.0 * ((codes >> np.arange(size)) & 1) - 1.0)


def _sign_form(precision: FloatArray, centre: FloatArray, half: FloatArray) -> FloatArray:
    """Return Q such that the box problem is max s'Qs over sign vectors (s and -s give the same value)."""
    scaled = precision * np.outer(half, half)
    if not np.any(centre):
        return np.asarray(scaled)
    linear = half * (precision @ centre)
    return np.block([[np.array([[centre @ precision @ centre]]), linear[None, :]], [linear[:, None], scaled]])


def _enumerate(form: FloatArray) -> float:
    # s = (1, u, v): one outer table over u and v, so 2^19 vertices cost one small matrix product.
    free = form.shape[0] - 1
    first = np.hstack([np.ones((2 ** (free // 2), 1)), sign_vectors(free // 2)])
    second = sign_vectors(free - free // 2)
    split = first.shape[1]
    within_first = np.einsum("ki,ij,kj->k", first, form[:split, :split], first)
    within_second = np.einsum("ki,ij,kj->k", second, form[split:, split:], second)
    cross = (first @ form[:split, split:]) @ second.T
    return float(np.max(within_first[:, None] + within_second[None, :] + 2.0 * cross))


def _upper_bound(form: FloatArray) -> float:
    r"""Return a proven bound on :math:`\max_s s^T Q s`.

    For every u with sum zero, :math:`s^T Q s = s^T (Q + \operatorname{diag} u) s \le k \lambda_{\max}(Q +
    \operatorname{diag} u)`. The minimum over u is the dual of the semidefinite relaxation, at most pi/2 above the
    maximum (Nesterov 1998); any u gives a valid bound, so the optimizer need not converge. The sum of absolute
    entries is a second one.
    """
    from scipy.optimize import minimize  # half a second of import, for large m alone

    size = form.shape[0]

    def bound(u: FloatArray) -> tuple[float, FloatArray]:
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


def _local_search(form: FloatArray) -> float:
    """Return the best value found by flipping one sign at a time from the signs of the eigenvectors."""
    best = 0.0
    for vector in np.linalg.eigh(form)[1].T[::-1][:8]:
        signs = np.where(vector >= 0, 1.0, -1.0)
        while True:
            gains = -4.0 * (signs * (form @ signs) - np.diagonal(form))
            flip = int(np.argmax(gains))
            if gains[flip] <= 1e-12 * abs(float(np.trace(form))):
                break
            signs[flip] = -signs[flip]
        best = max(best, float(signs @ form @ signs))
    return best
