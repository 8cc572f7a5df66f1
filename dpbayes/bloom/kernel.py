r"""The reach of sets of publishers, and its gradient, as one operation of a graph.

Class c holds the share :math:`w_c` of the people. Within it publisher i has shown itself at a rate :math:`r_{ic} =
\exp(l_i + a_{ic})`, so that it has missed a person with probability :math:`q_{ic} = \exp(-r_{ic})`. The level l_i
follows from the publisher's share s, by Halley's method in l, from :math:`\sum_c w_c q_{ic} = 1 - s`. A set S has
reached the share :math:`n_S = 1 - \sum_c w_c P_{Sc}`, :math:`P_{Sc} = \prod_{i \in S} q_{ic}`, so that, with
:math:`u_i = \sum_c w_c q_{ic} r_{ic}`,

.. math:: \frac{\partial n_S}{\partial (l_i + a_{ic})} = w_c P_{Sc} r_{ic}, \qquad
    \frac{\partial l_i}{\partial s} = \frac1{u_i}, \qquad
    \frac{\partial l_i}{\partial a_{ic}} = -\frac{w_c q_{ic} r_{ic}}{u_i}.
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

# PyTensor keeps compiled code on disk by this key: other checkouts and later versions must not find it there.
_SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _exposure(level: float, own: Floats, size: Floats) -> tuple[float, float, float]:
    """Return the log of -log of the mean of exp(-rate), its slope in the level, and the slope of the slope's log."""
    rate, reached, missed, first, second = math.exp(level), 0.0, 0.0, 0.0, 0.0
    for c in range(len(own)):
        x = rate * own[c]
        q = size[c] * math.exp(-x)
        reached += size[c] - q if x > 1e-3 else size[c] * x * (1.0 - x * (0.5 - x / 6.0))
        missed += q
        first += q * x
        second += q * x * x
    exposure = -math.log1p(-reached) if reached < missed else -math.log(missed)
    slope = first / (missed * exposure)
    return math.log(exposure), slope, 1.0 - second / first + first / missed - slope


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _levels(share: Floats, position: Floats, size: Floats) -> Floats:
    """Return levels by publisher and week, by Halley's method; a week starts from what was last found."""
    k, weeks = share.shape
    level = np.empty((k, weeks))
    for i in range(k):
        own = np.exp(position[:, i])
        at = math.log(share[i, 0]) - math.log((size * own).sum())
        value, slope, curvature = _exposure(at, own, size)
        for t in range(weeks):
            target = math.log(-math.log1p(-share[i, t]))
            for _ in range(60):
                newton = (target - value) / slope
                step = min(max(newton / (1.0 + max(0.5 * newton * curvature, -0.5)), -2.0), 2.0)
                if abs(step) < 1e-3:  # a step is of third order: 1e-9 is left
                    break
                at += step
                value, slope, curvature = _exposure(at, own, size)
            level[i, t] = at + step
    return level


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _cells(level: Floats, position: Floats) -> tuple[Floats, Floats]:
    """Return rates, and probabilities of having missed a person, by publisher, class and week."""
    (k, weeks), classes = level.shape, len(position)
    rate, missed = np.empty((k, classes, weeks)), np.empty((k, classes, weeks))
    own, at = np.exp(position), np.exp(level)
    for i in range(k):
        for c in range(classes):
            for t in range(weeks):
                rate[i, c, t] = at[i, t] * own[c, i]
                missed[i, c, t] = math.exp(-rate[i, c, t])
    return rate, missed


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _multiply(missed: Floats, c: int, which: Ints, product: Floats) -> None:
    """Write a class's probabilities of not having been reached by any of these publishers, by week."""
    product[:] = 1.0
    for i in which:
        for t in range(len(product)):
            product[t] *= missed[i, c, t]


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _reach(share: Floats, position: Floats, size: Floats, ends: Ints, members: Ints) -> tuple[Floats, Floats]:
    """Return levels and the share reached by each set."""
    level = _levels(share, position, size)
    missed = _cells(level, position)[1]
    classes, weeks = len(position), share.shape[1]
    reach = np.empty((len(ends), weeks))
    product, total, start = np.empty(weeks), np.empty(weeks), 0
    for s in range(len(ends)):
        total[:] = 0.0
        for c in range(classes):
            _multiply(missed, c, members[start : ends[s]], product)
            for t in range(weeks):
                total[t] += size[c] * product[t]
        for t in range(weeks):
            reach[s, t] = 1.0 - total[t]
        start = ends[s]
    return level, reach


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _cells_back(rate: Floats, missed: Floats, size: Floats, ends: Ints, members: Ints, along_reach: Floats) -> Floats:
    """Return the slopes in l_i + a_ic by publisher, class and week, given those in the sets' reach."""
    k, classes, weeks = missed.shape
    slopes, product, start = np.zeros(missed.shape), np.empty(weeks), 0
    for s in range(len(ends)):
        which = members[start : ends[s]]
        for c in range(classes):
            _multiply(missed, c, which, product)
            for t in range(weeks):
                product[t] *= along_reach[s, t] * size[c]
            for i in which:
                for t in range(weeks):
                    slopes[i, c, t] += product[t]
        start = ends[s]
    for i in range(k):
        for c in range(classes):
            for t in range(weeks):
                slopes[i, c, t] *= rate[i, c, t]
    return slopes


@numba.njit(cache=False, error_model="numpy", fastmath=False)
def _reach_back(
    level: Floats,
    position: Floats,
    size: Floats,
    ends: Ints,
    members: Ints,
    along_level: Floats,
    along_reach: Floats,
) -> tuple[Floats, Floats]:
    """Return the slopes in shares and positions, given those in levels and in the sets' reach."""
    rate, missed = _cells(level, position)
    inside = _cells_back(rate, missed, size, ends, members, along_reach)
    k, classes, weeks = missed.shape
    in_share, in_position = np.zeros((k, weeks)), np.empty(position.shape)
    for i in range(k):
        for c in range(classes):
            for t in range(weeks):
                missed[i, c, t] *= rate[i, c, t] * size[c]
        for t in range(weeks):
            in_share[i, t] = (along_level[i, t] + inside[i, :, t].sum()) / missed[i, :, t].sum()
        for c in range(classes):
            along = 0.0
            for t in range(weeks):
                along += inside[i, c, t] - in_share[i, t] * missed[i, c, t]
            in_position[c, i] = along
    return in_share, in_position


class _Operation(Op):
    """An operation on shares (publisher, week), positions (class, publisher), class sizes, and sets."""

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
        return [shapes[0], (shapes[3][0], shapes[0][1])]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that shares and positions have a gradient."""
        return [[True] * 2] * 2 + [[False] * 2] * 3

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the slopes of levels and reach."""
        along = [
            pt.zeros_like(output) if isinstance(one.type, DisconnectedType) else one
            for one, output in zip(cotangents, outputs, strict=True)
        ]
        slopes = _SetReachBack()(outputs[0], *inputs[1:], *along)
        return [*slopes, *(disconnected_type() for _ in inputs[2:])]


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


def reach_of_sets(share: Any, position: Any, size: Floats, membership: npt.NDArray[np.bool_]) -> tuple[Any, Any]:
    """Return levels (publisher, week) and the share of people that each set has reached (set, week)."""
    ends = membership.sum(axis=1).cumsum()
    return SetReach()(share, position, size, ends, np.nonzero(membership)[1])
