r"""The reach of sets of publishers, and its gradient, as one operation of a graph.

Publisher i with share s and positions a_c of the C classes has the level :math:`l_0 = x\sqrt{1 + 0.346\,\bar{a^2}}`, x
the logit of s (Zeger, Liang and Albert 1988, Biometrics 44), and after a Newton step :math:`l = l_0 + (x - \text{logit}
\,m)\,m(1 - m)/u`, where m and u are the means of p and p (1 - p) over classes at l_0. With q_ic = 1 / (1 + exp(l_i +
a_ic)) a set S has reached the share :math:`n_S = \frac1C\sum_c (1 - P_{Sc})`, :math:`P_{Sc} = \prod_{i \in S} q_{ic}`,
so that

.. math:: \frac{\partial n_S}{\partial (l_i + a_{ic})} = \frac1C P_{Sc} (1 - q_{ic}), \qquad i \in S.

An exponential of a sum is a product of two, so that cells (publisher, class, week) take none.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key

from dpbayes._arguments import Floats, Ints

if TYPE_CHECKING:
    import numpy.typing as npt

_STEEP = 0.346
# PyTensor keeps compiled code on disk by this key: other checkouts and later versions must not find it there.
_SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _steepness(position: Floats) -> float:
    """Return the ratio of a publisher's level to the logit of its share."""
    square = 0.0
    for a in position:
        square += a * a
    return math.sqrt(1.0 + _STEEP * square / len(position))


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _cells(share: Floats, position: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return levels; by publisher, class and week p before the Newton step, and q after it; sums of p and p (1 - p)."""
    (k, weeks), classes = share.shape, len(position)
    level, first, missed = np.empty((k, weeks)), np.empty((k, classes, weeks)), np.empty((k, classes, weeks))
    odds, total, spread = np.empty(weeks), np.zeros((k, weeks)), np.zeros((k, weeks))
    for i in range(k):
        steep = _steepness(position[:, i])
        for t in range(weeks):
            level[i, t] = math.log(share[i, t]) - math.log1p(-share[i, t])
            odds[t] = math.exp(steep * level[i, t])
        for c in range(classes):
            own = math.exp(position[c, i])
            for t in range(weeks):
                first[i, c, t] = odds[t] * own / (1.0 + odds[t] * own)
            for t in range(weeks):
                total[i, t] += first[i, c, t]
            for t in range(weeks):
                spread[i, t] += first[i, c, t] * (1.0 - first[i, c, t])
        for t in range(weeks):
            m, u = total[i, t] / classes, spread[i, t] / classes
            gap = level[i, t] - math.log(m) + math.log1p(-m)
            level[i, t] = steep * level[i, t] + gap * m * (1.0 - m) / u
            odds[t] = math.exp(level[i, t])
        for c in range(classes):
            own = math.exp(position[c, i])
            for t in range(weeks):
                missed[i, c, t] = 1.0 / (1.0 + odds[t] * own)
    return level, first, missed, total, spread


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _multiply(missed: Floats, c: int, which: Ints, product: Floats) -> None:
    """Write a class's probabilities of not having been reached by any of these publishers, by week."""
    product[:] = 1.0
    for i in which:
        for t in range(len(product)):
            product[t] *= missed[i, c, t]


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _reach(share: Floats, position: Floats, ends: Ints, members: Ints) -> tuple[Floats, Floats]:
    """Return levels and the share reached by each set."""
    level, _, missed, _, _ = _cells(share, position)
    classes, weeks = len(position), share.shape[1]
    reach = np.empty((len(ends), weeks))
    product, total, start = np.empty(weeks), np.empty(weeks), 0
    for s in range(len(ends)):
        total[:] = 0.0
        for c in range(classes):
            _multiply(missed, c, members[start : ends[s]], product)
            for t in range(weeks):
                total[t] += product[t]
        for t in range(weeks):
            reach[s, t] = 1.0 - total[t] / classes
        start = ends[s]
    return level, reach


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _cells_back(missed: Floats, ends: Ints, members: Ints, along_reach: Floats) -> Floats:
    """Return the slopes in l_i + a_ic by publisher, class and week, given those in the sets' reach."""
    k, classes, weeks = missed.shape
    slopes, product, start = np.zeros(missed.shape), np.empty(weeks), 0
    for s in range(len(ends)):
        which = members[start : ends[s]]
        for c in range(classes):
            _multiply(missed, c, which, product)
            for t in range(weeks):
                product[t] *= along_reach[s, t] / classes
            for i in which:
                for t in range(weeks):
                    slopes[i, c, t] += product[t]
        start = ends[s]
    for i in range(k):
        for c in range(classes):
            for t in range(weeks):
                slopes[i, c, t] *= 1.0 - missed[i, c, t]
    return slopes


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _reach_back(
    share: Floats, position: Floats, ends: Ints, members: Ints, along_level: Floats, along_reach: Floats
) -> tuple[Floats, Floats]:
    """Return the slopes in shares and positions, given those in levels and in the sets' reach."""
    _, first, missed, total, spread = _cells(share, position)
    inside = _cells_back(missed, ends, members, along_reach)
    k, classes, weeks = missed.shape
    in_share, in_position = np.empty((k, weeks)), np.empty(position.shape)
    slope, in_mean, in_spread, in_start = np.empty(weeks), np.empty(weeks), np.empty(weeks), np.empty(weeks)
    for i in range(k):
        steep, in_steep = _steepness(position[:, i]), 0.0
        slope[:] = along_level[i]
        for c in range(classes):
            for t in range(weeks):
                slope[t] += inside[i, c, t]
        for t in range(weeks):
            logit = math.log(share[i, t]) - math.log1p(-share[i, t])
            m, u = total[i, t] / classes, spread[i, t] / classes
            gap, ratio = logit - math.log(m) + math.log1p(-m), m * (1.0 - m) / u
            in_mean[t] = slope[t] * (gap * (1.0 - 2.0 * m) - 1.0) / (u * classes)
            in_spread[t] = -slope[t] * gap * ratio / (u * classes)
            in_share[i, t] = slope[t] * ratio
            in_start[t] = slope[t]
        for c in range(classes):
            for t in range(weeks):
                e = (in_mean[t] + in_spread[t] * (1.0 - 2.0 * first[i, c, t])) * first[i, c, t] * (1.0 - first[i, c, t])
                in_start[t] += e
                inside[i, c, t] += e
            along = 0.0
            for t in range(weeks):
                along += inside[i, c, t]
            in_position[c, i] = along
        for t in range(weeks):
            logit = math.log(share[i, t]) - math.log1p(-share[i, t])
            in_share[i, t] = (in_share[i, t] + steep * in_start[t]) / (share[i, t] * (1.0 - share[i, t]))
            in_steep += logit * in_start[t]
        for c in range(classes):
            in_position[c, i] += in_steep * _STEEP * position[c, i] / (classes * steep)
    return in_share, in_position


class _Operation(Op):
    """An operation on shares (publisher, week), positions (class, publisher), and sets as ends and members."""

    __props__ = ()
    code: ClassVar[Any]

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node, whose two outputs are matrices; known shapes save checks and their compiling."""
        given = list(map(pt.as_tensor, inputs))
        shapes = self.infer_shape(None, [one.type.shape for one in given])
        return Apply(self, given, [pt.tensor(dtype="float64", shape=shape) for shape in shapes])

    def infer_shape(self, node: Apply | None, shapes: Any) -> list[Any]:
        """Return the shapes of the outputs."""
        raise NotImplementedError

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        for place, one in zip(outputs, _kept(self.code)(*map(np.ascontiguousarray, inputs)), strict=True):
            place[0] = one


class SetReach(_Operation):
    """Levels (publisher, week) and the share that each set has reached (set, week)."""

    code = staticmethod(_reach)

    def infer_shape(self, node: Apply | None, shapes: Any) -> list[Any]:
        """Return the shapes of levels and reach."""
        return [shapes[0], (shapes[2][0], shapes[0][1])]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that shares and positions have a gradient."""
        return [[True] * 2] * 2 + [[False] * 2] * 2

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the slopes of levels and reach."""
        along = [
            pt.zeros_like(output) if isinstance(one.type, DisconnectedType) else one
            for one, output in zip(cotangents, outputs, strict=True)
        ]
        slopes = _SetReachBack()(*inputs, *along)
        return [*slopes, disconnected_type(), disconnected_type()]


class _SetReachBack(_Operation):
    """The slopes of `SetReach` in shares and positions."""

    code = staticmethod(_reach_back)

    def infer_shape(self, node: Apply | None, shapes: Any) -> list[Any]:
        """Return the shapes of shares and positions."""
        return shapes[:2]


@register_funcify_and_cache_key(SetReach)
@register_funcify_and_cache_key(_SetReachBack)
def _compile(op: _Operation, node: Apply, **kwargs: Any) -> Any:
    return op.code, f"{_SOURCE} {type(op).__name__}"


@cache
def _kept(code: Any) -> Any:
    """Return code as a function to call, whose machine code is kept on disk with that of PyTensor's graphs."""
    name = f"{code.__name__}_called"
    source = f"def {name}(*args): return code(*args)"
    called = compile_numba_function_src(source, name, globals() | {"code": code}, cache_key=f"{_SOURCE} {name}")
    return numba.njit(called, cache=pytensor.config.numba__cache, error_model="numpy", fastmath=False)


def reach_of_sets(share: Any, position: Any, membership: npt.NDArray[np.bool_]) -> tuple[Any, Any]:
    """Return levels (publisher, week) and the share of people that each set has reached (set, week)."""
    ends = membership.sum(axis=1).cumsum()
    return SetReach()(share, position, ends, np.nonzero(membership)[1])
