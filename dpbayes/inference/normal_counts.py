r"""The normal law of the effects' counts, and its gradient, as one compiled step.

With P the probabilities of the cells where two effects meet, :math:`\mu` those of the effects themselves and
:math:`M_{ij}` the entry of P for the pair (i, j), or zero where no record can be in both,

.. math:: \log N\bigl(m;\; n\mu,\; C\bigr), \qquad C = n\,(M - \mu\mu^\top) + N,

with a constant matrix N. For :math:`a = C^{-1}(m - n\mu)` and :math:`G = \tfrac12 (a a^\top - C^{-1})` its derivatives
are :math:`n G` in M, :math:`n a - 2 n G\mu` in :math:`\mu`, :math:`-a` in m, and
:math:`a^\top\mu + \sum_{ij} G_{ij}(M - \mu\mu^\top)_{ij}` in n. One Cholesky factor gives all of them, where the graph
of the same formula takes some sixty steps forwards and backwards.
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
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

__all__ = ["NormalCounts"]

_SUMS = {"reassoc", "contract"}


@numba.njit(cache=False)
def _covariance(p: Any, pairs: Any, n: Any, extra: Any) -> Any:
    """Return the covariance's lower triangle."""
    size = pairs.shape[0]
    covariance = np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            both = p[pairs[i, j]] if pairs[i, j] < p.size else 0.0
            covariance[i, j] = n * (both - p[pairs[i, i]] * p[pairs[j, j]]) + extra[i, j]
    return covariance


@numba.njit(cache=False, fastmath=_SUMS)
def _factor(lower: Any) -> Any:
    """Replace a lower triangle by its Cholesky factor; return whether it has one."""
    for i in range(lower.shape[0]):
        for j in range(i + 1):
            total = lower[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if j < i:
                lower[i, j] = total / lower[j, j]
            elif total > 0.0:
                lower[i, i] = math.sqrt(total)
            else:
                return False
    return True


@numba.njit(cache=False, fastmath=_SUMS)
def _invert(lower: Any) -> Any:
    """Return the inverse of a lower triangle."""
    size = lower.shape[0]
    inverse = np.zeros((size, size))
    for i in range(size):
        for k in range(i):
            for j in range(k + 1):
                inverse[i, j] -= lower[i, k] * inverse[k, j]
        for j in range(i):
            inverse[i, j] /= lower[i, i]
        inverse[i, i] = 1.0 / lower[i, i]
    return inverse


@numba.njit(cache=False, fastmath=_SUMS)
def _precision(inverse: Any) -> Any:
    """Return the lower triangle of the inverse covariance, from the inverse of its factor."""
    size = inverse.shape[0]
    precision = np.zeros((size, size))
    for k in range(size):
        for i in range(k + 1):
            for j in range(i + 1):
                precision[i, j] += inverse[k, i] * inverse[k, j]
    return precision


@numba.njit(cache=False)
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
    in_p, in_value = np.zeros(p.size), np.zeros(size)
    factor = _covariance(p, pairs, n, extra)
    if not _factor(factor):
        return -np.inf, in_p, in_value, 0.0
    inverse = _invert(factor)
    precision = _precision(inverse)
    logp, white, scaled = -0.5 * size * math.log(2.0 * math.pi), np.zeros(size), np.zeros(size)
    for i in range(size):
        for j in range(i + 1):
            white[i] += inverse[i, j] * (value[j] - n * p[pairs[j, j]])
        logp -= 0.5 * white[i] * white[i] + math.log(factor[i, i])
        for j in range(i + 1):
            scaled[j] += inverse[i, j] * white[i]
    in_n = 0.0
    for i in range(size):
        mean = p[pairs[i, i]]
        in_value[i] = -scaled[i]
        in_p[pairs[i, i]] += n * scaled[i]
        in_n += scaled[i] * mean
        for j in range(i + 1):
            # G, doubled off the diagonal, where a pair stands for both of its orders.
            weight = 0.5 * (scaled[i] * scaled[j] - precision[i, j]) * (1.0 if i == j else 2.0)
            other = p[pairs[j, j]]
            if pairs[i, j] < p.size:
                in_p[pairs[i, j]] += n * weight
                in_n += weight * p[pairs[i, j]]
            in_p[pairs[i, i]] -= n * weight * other
            in_p[pairs[j, j]] -= n * weight * mean
            in_n -= weight * mean * other
    return logp, in_p, in_value, in_n


class NormalCounts(Op):
    """Log-density of effect counts given cell probabilities; the gradients are its further outputs.

    Inputs are those of `normal_counts`, outputs what it returns. Only the first output is differentiable.
    """

    __props__ = ()
    _cache_version = 1

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


@register_funcify_default_op_cache_key(NormalCounts)
def _compile(op: NormalCounts, node: Apply, **kwargs: Any) -> Any:
    @numba_njit
    def counts(p: Any, value: Any, n: Any, pairs: Any, extra: Any) -> Any:
        logp, in_p, in_value, in_n = normal_counts(p, value, n.item(), pairs, extra)
        return np.asarray(logp), in_p, in_value, np.asarray(in_n)

    return counts, op._cache_version
