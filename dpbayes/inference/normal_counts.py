r"""The normal law of the effects' counts, and its gradient, as one compiled step.

With P the probabilities of the cells where two effects meet, :math:`\mu` those of the effects themselves and
:math:`M_{ij}` the entry of P for the pair (i, j), or zero where no record can be in both,

.. math:: \log N\bigl(m;\; n\mu,\; C\bigr), \qquad C = n\,(M - \mu\mu^\top) + N,

with a constant matrix N. For :math:`a = C^{-1}(m - n\mu)` and :math:`G = \tfrac12 (a a^\top - C^{-1})` its derivatives
are :math:`n G` in M, :math:`n a - 2 n G\mu` in :math:`\mu`, :math:`-a` in m, and
:math:`a^\top\mu + \sum_{ij} G_{ij}(M - \mu\mu^\top)_{ij}` in n. One inverse gives all of them, where the graph of the
same formula takes some sixty steps forwards and backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from dpbayes.inference.compiled_ops import compiled_by

__all__ = ["NormalCounts"]

_SUMS = {"reassoc", "contract"}


@numba.njit(cache=False)
def _covariance(p: Any, mean: Any, pairs: Any, n: Any, extra: Any) -> Any:
    """Return the covariance of the counts."""
    size = mean.size
    covariance = np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            both = p[pairs[i, j]] if pairs[i, j] < p.size else 0.0
            covariance[i, j] = covariance[j, i] = n * (both - mean[i] * mean[j]) + extra[i, j]
    return covariance


@numba.njit(cache=False, fastmath=_SUMS)
def _invert(matrix: Any) -> Any:
    """Replace a symmetric matrix by its inverse; return its log-determinant, NaN if it is not positive definite.

    Gauss-Jordan elimination, whose pivots are the squared diagonal of the Cholesky factor: forward stable for positive
    definite matrices without exchanges (Higham 2002, section 14.4), and all its inner loops run along rows.
    """
    size = matrix.shape[0]
    row, log_determinant = np.empty(size), 0.0
    for k in range(size):
        pivot = matrix[k, k]
        if not pivot > 0.0:
            return np.nan
        log_determinant += math.log(pivot)
        for j in range(size):
            row[j] = matrix[k, j] / pivot
        for i in range(size):
            if i != k:
                factor = matrix[i, k]
                for j in range(size):
                    matrix[i, j] -= factor * row[j]
                matrix[i, k] = -factor / pivot
        matrix[k, :] = row
        matrix[k, k] = 1.0 / pivot
    return log_determinant


@numba.njit(cache=False, fastmath=_SUMS)
def normal_counts(p: Any, value: Any, n: Any, pairs: Any, extra: Any) -> Any:
    """Return the log-density of the effects' counts and its gradients in the probabilities, the counts, and n.

    Parameters
    ----------
    p
        Probabilities of the cells where two effects meet, shape ``(cells,)``.
    value
        Counts, shape ``(effects,)``.
    n
        Number of records.
    pairs
        Which cell each two effects meet in, shape ``(effects, effects)``; ``cells`` where they exclude one another.
    extra
        What is added to the sampling covariance, shape ``(effects, effects)``.

    Returns
    -------
    logp : float
        Minus infinity, with gradients of zero, where the covariance is not positive definite in double precision.
    in_p, in_value, in_n : array, array, float
        Gradients.
    """
    size = value.size
    in_p, in_value = np.zeros(p.size), np.empty(size)
    mean, offset = np.empty(size), np.empty(size)
    for i in range(size):
        mean[i] = p[pairs[i, i]]
        offset[i] = value[i] - n * mean[i]
    matrix = _covariance(p, mean, pairs, n, extra)
    log_determinant = _invert(matrix)
    if math.isnan(log_determinant):
        in_value[:] = 0.0
        return -np.inf, in_p, in_value, 0.0
    quadratic = in_n = 0.0
    for i in range(size):
        scaled = 0.0
        for j in range(size):
            scaled += matrix[i, j] * offset[j]
        quadratic += scaled * offset[i]
        in_value[i] = -scaled
    for i in range(size):
        # The row of G takes the place of the inverse's. Off the diagonal a pair stands for both of its orders.
        slope = 0.0
        for j in range(size):
            matrix[i, j] = 0.5 * (in_value[i] * in_value[j] - matrix[i, j])
            slope += matrix[i, j] * mean[j]
        in_p[pairs[i, i]] += n * (matrix[i, i] - in_value[i] - 2.0 * slope)
        in_n += mean[i] * (matrix[i, i] - in_value[i] - slope)
        for j in range(i):
            if pairs[i, j] < p.size:
                in_p[pairs[i, j]] += 2.0 * n * matrix[i, j]
                in_n += 2.0 * matrix[i, j] * p[pairs[i, j]]
    return -0.5 * (quadratic + log_determinant + size * math.log(2.0 * math.pi)), in_p, in_value, in_n


class NormalCounts(Op):
    """Log-density of effect counts given cell probabilities; the gradients are its further outputs.

    Inputs are those of `normal_counts`, outputs what it returns. Only the first output is differentiable.
    """

    __props__ = ()

    def make_node(self, p: Any, value: Any, n: Any, pairs: Any, extra: Any) -> Apply:
        """Return the node of double-precision inputs."""
        inputs = [
            pt.cast(pt.as_tensor(p, ndim=1), "float64"),
            pt.cast(pt.as_tensor(value, ndim=1), "float64"),
            pt.cast(pt.as_tensor(n, ndim=0), "float64"),
            pt.cast(pt.as_tensor(pairs, ndim=2), "int64"),
            pt.cast(pt.as_tensor(extra, ndim=2), "float64"),
        ]
        return Apply(self, inputs, [pt.dscalar(), pt.dvector(), pt.dvector(), pt.dscalar()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        p, value, n, pairs, extra = inputs
        results = normal_counts(p, value, float(n), pairs, extra)
        for storage, result, variable in zip(outputs, results, node.outputs, strict=True):
            storage[0] = np.asarray(result, dtype=variable.dtype)

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return the shapes of the gradients' variables."""
        return [(), shapes[0], shapes[1], ()]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that probabilities, counts and n have a gradient."""
        return [[True] * 4] * 3 + [[False] * 4] * 2

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the gradients, which the node has computed already."""
        in_p, in_value, in_n = outputs[1:]
        density = cotangents[0]
        return [density * in_p, density * in_value, density * in_n, disconnected_type(), disconnected_type()]


@compiled_by(NormalCounts)
def _compile(op: NormalCounts) -> Any:
    def counts(p: Any, value: Any, n: Any, pairs: Any, extra: Any) -> Any:
        logp, in_p, in_value, in_n = normal_counts(p, value, n.item(), pairs, extra)
        return np.asarray(logp), in_p, in_value, np.asarray(in_n)

    return counts
