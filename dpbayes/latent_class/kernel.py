r"""The log-density of released cells given the classes' counts, and its gradient, in one pass over the cells.

`dpbayes.latent_class.likelihood.released_law` states mean m and variance v of the exact counts of cells; this is the
sum of their log-densities after the noise, one operation of a graph. Cells that share all factors but the last follow
one another, so that a cell costs a few products of length k. With Laplace noise of scale b, x the released count less
m, :math:`z_\pm = (v/b \pm |x|)/\sqrt{2v}` and E(z) the scaled complementary error function, the density is the
normal-Laplace law (Reed and Jorgensen 2004, Communications in Statistics 33)

.. math:: f(x) = \frac{e^{-x^2/2v}}{4b} (E(z_-) + E(z_+)) = \frac{e^{v/2b^2 - |x|/b}}{4b}
          \bigl(2 - e^{-z_-^2} (E(-z_-) - E(z_+))\bigr),

the first where :math:`z_- \ge 0` and the second where not. With T the two summands,

.. math:: \frac{\partial\log f}{\partial x} = \frac{\operatorname{sign} x}{b}\,\frac{T_+ - T_-}{T_+ + T_-}, \qquad
          \frac{\partial\log f}{\partial v} = \frac{1 - N(x; 0, v)/f(x)}{2b^2}.

A count that a threshold held back enters by the chance of that, F(x) where x is the threshold less m:

.. math:: F(x) = \frac{e^{-x^2/2v}}{4} \bigl(2E(|x|/\sqrt{2v}) + E(z_-) - E(z_+)\bigr)

below 0 and 1 - F(-x) above, with derivatives f in x and f'/2 in v, as of normal noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numba import literal_unroll
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from scipy.special import erfcx

from dpbayes._arguments import Floats, Ints
from dpbayes._machine_code import kept, loop, source_key, writable

_STRETCH = 3.75
_LANES, _TOGETHER = 16, 12  # products of densities side by side, and factors of each until its logarithm is taken
# Scale and variance of the noise of entries that are no cells: more than squares of single precision can be.
NO_SCALE, NO_VARIANCE = 1e15, 1e30


def _polynomial(degree: int) -> tuple[float, ...]:
    """Return the coefficients, highest power first, of E(z) (1 + 2z) in t = (z - 3.75)/(z + 3.75); z >= 0."""
    nodes = np.cos(np.pi * (np.arange(200) + 0.5) / 200)
    z = _STRETCH * (1.0 + nodes) / (1.0 - nodes)
    fitted = np.polynomial.chebyshev.chebfit(nodes, erfcx(z) * (1.0 + 2.0 * z), degree)
    return tuple(np.polynomial.chebyshev.cheb2poly(fitted)[::-1].tolist())


_COEFFICIENTS, _FEW_COEFFICIENTS = _polynomial(14), _polynomial(9)  # those of single precision are to 1e-6
_EXPONENTIAL = tuple(1.0 / math.factorial(power) for power in range(11, -1, -1))  # below half of log 2, to 1e-14
_LOG2_E, _LOG_2 = 1.0 / math.log(2.0), (0.693147180369123816490, 1.90821492927058770002e-10)
_ROOT_PI = math.sqrt(math.pi)
_LAST_BITS, _LAST_SINGLE = 1.5 * 2.0**52, 1.5 * 2.0**23
_EPSILON = 1e-12  # tells double from single precision: the compiler folds the question


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Cells as entries of a few products of matrices: a rectangle's rows are products of columns, its columns the last.

    `bounds` (rectangle, 6) says where the rows of `left`, the entries of `right` and the entries of each product begin
    and end; `cells` says which cell each of these is, -1 where it is none.
    """

    left: Ints
    right: Ints
    bounds: Ints
    cells: Ints

    @classmethod
    def of(cls, left: Ints, parts: Ints, owner: Ints) -> Rectangles:
        """Arrange cells (product of `left`, last column); products of the same attributes (`owner`) stay together."""
        found, copies = [], _copies(parts)
        for copy in range(copies.max() + 1):  # cells of a table that was released again
            own = np.flatnonzero(copies == copy)
            for rows, columns in _merged(left, parts[own], owner):
                mine = own[np.isin(parts[own, 0], rows)]
                cells = np.full((len(rows), len(columns)), -1)
                cells[np.searchsorted(rows, parts[mine, 0]), np.searchsorted(columns, parts[mine, 1])] = mine
                found.append((left[rows], columns, cells.ravel()))
        sizes = np.array([list(map(len, one)) for one in found])
        ends = np.cumsum(sizes, axis=0)
        bounds = np.stack([ends - sizes, ends], axis=2).reshape(len(found), 6)
        lefts, rights, cells = map(np.concatenate, zip(*found, strict=True))
        return cls(lefts, rights, bounds, cells)

    @property
    def order(self) -> Ints:
        """In which order cells stand here."""
        return self.cells[self.cells >= 0]

    def entries(self, of_cells: Any, other: Any) -> Any:
        """Return values of the cells, which stand in `order`, by entry; `other` where an entry is no cell."""
        found = np.full(len(self.cells), other)
        found[self.cells >= 0] = of_cells
        return found


def _copies(parts: Ints) -> Ints:
    """Return how many of the cells before each are the same."""
    _, same, counts = np.unique(parts, axis=0, return_inverse=True, return_counts=True)
    order, found = np.argsort(same.ravel(), kind="stable"), np.empty(len(parts), dtype=np.int64)
    found[order] = np.arange(len(parts)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


def _merged(left: Ints, parts: Ints, owner: Ints) -> list[tuple[Ints, Ints]]:
    """Return rows and columns of rectangles, those of other attributes in one where that is less work."""
    _, kinds = np.unique(owner[left], axis=0, return_inverse=True)
    merged: list[tuple[Ints, Ints]] = []
    for kind in range(kinds.max() + 1):
        rows = np.intersect1d(np.flatnonzero(kinds.ravel() == kind), parts[:, 0])
        if not rows.size:
            continue
        alone = rows, np.unique(parts[np.isin(parts[:, 0], rows), 1])
        both = (np.union1d(merged[-1][0], rows), np.union1d(merged[-1][1], alone[1])) if merged else alone
        if merged and _work(*both) <= _work(*merged[-1]) + _work(*alone):
            merged[-1] = both
        else:
            merged.append(alone)
    return merged


def _work(rows: Ints, columns: Ints) -> int:
    """Return the entries of a rectangle, and what calls for its products cost in entries, as measured."""
    return 400 + len(rows) * len(columns)


@loop
def scaled_erfc(z: float) -> float:
    """Return exp(z^2) erfc(z), z >= 0 (Shepherd and Laframboise 1981), off by at most 1e-10 of it; 1e-6 for singles."""
    real = type(z)
    below, above = real(1.0) + real(2.0) * z, z + real(_STRETCH)
    inverse = real(1.0) / (below * above)
    t, value = (z - real(_STRETCH)) * below * inverse, real(0.0)
    if real(1.0) + real(_EPSILON) > real(1.0):
        for coefficient in literal_unroll(_COEFFICIENTS):
            value = value * t + real(coefficient)
    else:
        for coefficient in literal_unroll(_FEW_COEFFICIENTS):
            value = value * t + real(coefficient)
    return value * above * inverse


@loop
def _exponential(rest: float) -> float:
    """Return exp(rest) for at most half of log 2 on either side of 0."""
    real = type(rest)
    value = real(0.0)
    if real(1.0) + real(_EPSILON) > real(1.0):
        for coefficient in literal_unroll(_EXPONENTIAL):
            value = value * rest + real(coefficient)
    else:
        for coefficient in literal_unroll(_EXPONENTIAL[-7:]):
            value = value * rest + real(coefficient)
    return value


@loop
def _sum(values: Floats) -> float:
    """Return the sum in double precision."""
    lanes, whole = np.zeros(_LANES), len(values) - len(values) % _LANES
    for start in range(0, whole, _LANES):
        for j in range(_LANES):
            lanes[j] += values[start + j]
    for i in range(whole, len(values)):
        lanes[i - whole] += values[i]
    return lanes.sum()


@loop
def _log_product(values: Floats) -> float:
    """Return the logarithm of the product in double precision."""
    lanes, whole, found = np.ones(_LANES), len(values) - len(values) % _LANES, 0.0
    for factor, start in enumerate(range(0, whole, _LANES)):
        for j in range(_LANES):
            lanes[j] *= values[start + j]
        if factor % _TOGETHER == _TOGETHER - 1:
            for j in range(_LANES):
                found += math.log(lanes[j])
                lanes[j] = 1.0
    for i in range(whole, len(values)):
        lanes[i - whole] *= values[i]
    return found + np.log(lanes).sum()


@loop
def _falling(x: float, v: float, b: float) -> float:
    """Return minus the square of z_-, where that is negative, else 0; where exp is next to nothing, -700 or -60."""
    real = type(x)
    below, least = min(v / b - abs(x), real(0.0)), real(-700.0 if real(1.0) + real(_EPSILON) > real(1.0) else -60.0)
    return max(real(-0.5) * below * below / v, least)


@loop
def _powers_of_two(x: Floats, v: Floats, b: Floats, found: Floats) -> None:
    """Write 2^m, m the whole number next to the power of the second summand's exponential in units of log 2.

    Added to 1.5 2^52 it stands in a number's last bits, from where it is shifted to the exponent's.
    """
    real = x.dtype.type
    if x.itemsize == 8:
        for i in range(len(x)):
            found[i] = _falling(x[i], v[i], b[i]) * real(_LOG2_E) + real(_LAST_BITS)
        bits = found.view(np.int64)
        for i in range(len(x)):
            bits[i] = (bits[i] + 1023) << 52
    else:
        for i in range(len(x)):
            found[i] = _falling(x[i], v[i], b[i]) * real(_LOG2_E) + real(_LAST_SINGLE)
        bits_of_singles = found.view(np.int32)
        for i in range(len(x)):
            bits_of_singles[i] = (bits_of_singles[i] + np.int32(127)) << np.int32(23)


@loop
def normal_laplace(x: Floats, v: Floats, b: Floats, in_x: Floats, in_v: Floats) -> float:
    """Return the sum of log f, but for scales of `NO_SCALE`; write the derivatives in x and v to the last two arrays.

    Loops without branches, so that the processor takes several cells at a time, twice as many in single precision;
    exp(t) is 2^m exp(t - m log 2), m whole.
    """
    real, scales, terms = x.dtype.type, np.empty(len(x), x.dtype), np.empty(len(x), x.dtype)
    half, one, two, last = real(0.5), real(1.0), real(2.0), real(_LAST_BITS if x.itemsize == 8 else _LAST_SINGLE)
    _powers_of_two(x, v, b, scales)
    for i in range(len(x)):
        r, rate, precision = abs(x[i]), one / b[i], one / v[i]
        shift, root = v[i] * rate, np.sqrt(half * precision)
        near, far = scaled_erfc(abs(shift - r) * root), scaled_erfc((shift + r) * root)
        power = _falling(x[i], v[i], b[i])
        whole = (power * real(_LOG2_E) + last) - last
        share = scales[i] * _exponential((power - whole * real(_LOG_2[0])) - whole * real(_LOG_2[1]))
        inside = shift >= r
        minus, plus = near if inside else two - share * near, share * far
        total = minus + plus
        slope = (plus - minus) * rate / total
        in_x[i] = -slope if x[i] < real(0.0) else slope
        in_v[i] = half * rate * rate * (one - share * real(4.0) * b[i] * root / (real(_ROOT_PI) * total))
        terms[i] = -half * r * r * precision if inside else (half * shift - r) * rate
        scales[i] = real(0.25) * total * rate
        scales[i] = scales[i] if b[i] < real(0.5 * NO_SCALE) else one
    return _sum(terms) + _log_product(scales)


@loop
def normal(x: Floats, v: Floats, in_x: Floats, in_v: Floats) -> float:
    """Return the sum of normal log-densities, but for `NO_VARIANCE`; write derivatives to the last two arrays."""
    real, terms, precisions = x.dtype.type, np.empty(len(x), x.dtype), np.empty(len(x), x.dtype)
    for i in range(len(x)):
        precision = real(1.0) / v[i]
        in_x[i] = -x[i] * precision
        in_v[i] = real(0.5) * (in_x[i] * in_x[i] - precision)
        terms[i] = real(0.5) * x[i] * in_x[i]
        precisions[i] = precision / real(2.0 * math.pi) if v[i] < real(0.5 * NO_VARIANCE) else real(1.0)
    return _sum(terms) + 0.5 * _log_product(precisions)


@loop
def log_below(x: float, v: float, b: float) -> tuple[float, float, float]:
    """Return log F and its derivatives in x and v; b is 0 where the noise is normal and part of v."""
    r, root = abs(x), math.sqrt(0.5 / v)
    power, tail, density, slope = -0.5 * r * r / v, 0.5 * scaled_erfc(r * root), root / _ROOT_PI, r / v
    if b > 0.0:
        near, far = scaled_erfc(abs(v / b - r) * root), scaled_erfc((v / b + r) * root)
        if v / b < r:  # all in units of exp(power), here a larger one
            share, power = math.exp(_falling(x, v, b)), (0.5 * v / b - r) / b
            tail, near, far = share * tail, 2.0 - share * near, share * far
        tail += 0.25 * (near - far)
        density, slope = 0.25 * (near + far) / b, (near - far) / (near + far) / b
    if x < 0.0:
        return power + math.log(tail), density / tail, 0.5 * slope * density / tail
    above = math.exp(power)
    ratio = above * density / (1.0 - above * tail)
    return math.log1p(-above * tail), ratio, -0.5 * slope * ratio


@loop
def _product(columns: Any, table: Floats, state: Floats) -> None:
    """Fill (factor, quantity, class): mean, deviation, variance of first and of higher order, and squared mean."""
    k = state.shape[2]
    for h in range(k):
        m = table[columns[0], h]
        state[0, 0, h], state[0, 1, h], state[0, 2, h] = m, table[columns[0], k + h], table[columns[0], 2 * k + h]
        state[0, 3, h], state[0, 4, h] = 0.0, m * m
    for place in range(1, len(columns)):
        for h in range(k):
            m, d, v = table[columns[place], h], table[columns[place], k + h], table[columns[place], 2 * k + h]
            product, deviation, first = state[place - 1, 0, h], state[place - 1, 1, h], state[place - 1, 2, h]
            rest, square = state[place - 1, 3, h], state[place - 1, 4, h]
            state[place, 0, h], state[place, 1, h] = product * m, deviation * m + product * d
            state[place, 2, h] = first * m * m + square * v
            state[place, 3, h], state[place, 4, h] = rest * (m * m + v) + first * v, square * m * m


@loop
def _product_back(columns: Any, table: Floats, state: Floats, adjoint: Floats, in_table: Floats) -> None:
    """Add to the slopes of a product's columns what the adjoint of its last state gives; it is overwritten."""
    k = state.shape[2]
    for place in range(len(columns) - 1, 0, -1):
        column = columns[place]
        for h in range(k):
            m, d, v = table[column, h], table[column, k + h], table[column, 2 * k + h]
            product, deviation, first = state[place - 1, 0, h], state[place - 1, 1, h], state[place - 1, 2, h]
            rest, square = state[place - 1, 3, h], state[place - 1, 4, h]
            in_m, in_d, in_first, in_rest = adjoint[0, h], adjoint[1, h], adjoint[2, h], adjoint[3, h]
            in_square = adjoint[4, h]
            in_table[column, h] += in_m * product + in_d * deviation
            in_table[column, h] += 2.0 * m * (in_rest * rest + in_first * first + in_square * square)
            in_table[column, k + h] += in_d * product
            in_table[column, 2 * k + h] += in_rest * (rest + first) + in_first * square
            adjoint[0, h], adjoint[1, h] = in_m * m + in_d * d, in_d * m
            adjoint[2, h], adjoint[3, h] = in_rest * v + in_first * m * m, in_rest * (m * m + v)
            adjoint[4, h] = in_first * v + in_square * m * m
    for h in range(k):
        in_table[columns[0], h] += adjoint[0, h] + 2.0 * table[columns[0], h] * adjoint[4, h]
        in_table[columns[0], k + h] += adjoint[1, h]
        in_table[columns[0], 2 * k + h] += adjoint[2, h]


@loop
def _entry(matrix: Floats, i: int, j: int, back: bool, squared: bool) -> float:
    found = matrix[i, j] if back else matrix[j, i]
    return found * found if squared else found


@loop
def _turned(
    values: Floats, matrix: Floats, ends: Any, found: Floats, first: int, to: int, width: int, back: bool, squared: bool
) -> None:
    """Write `width` numbers of every column, turned within attributes by a matrix of one block each, but the last's.

    They begin at `first` in the values, and at `to` in what is found.
    """
    start = 0
    for end in ends:
        for i in range(start, end):
            for h in range(width):
                found[i, to + h] = 0.0
            for j in range(start, end - 3, 4):  # four at a time: sums are read and written less often
                one, two = _entry(matrix, i, j, back, squared), _entry(matrix, i, j + 1, back, squared)
                three, four = _entry(matrix, i, j + 2, back, squared), _entry(matrix, i, j + 3, back, squared)
                for h in range(width):
                    both = one * values[j, first + h] + two * values[j + 1, first + h]
                    found[i, to + h] += both + three * values[j + 2, first + h] + four * values[j + 3, first + h]
            for j in range(end - (end - start) % 4, end):
                one = _entry(matrix, i, j, back, squared)
                for h in range(width):
                    found[i, to + h] += one * values[j, first + h]
        start = end


@loop
def _columns(
    weights: Floats, profiles: Floats, n: float, varied_n: float, sizes: Floats, deviations: Floats, turn: Floats,
    ends: Any,
) -> tuple[Floats, Floats, Floats, Floats]:  # fmt: skip
    """Return the classes' records, (column, mean or deviation or variance of each class), roots, deviations as given.

    `dpbayes.latent_class.likelihood.classes_of` and `released_law` state them; the last column is that of products
    with fewer factors. Loops compile in a third of the time that expressions of arrays take.
    """
    k, size, total, start = len(weights), profiles.shape[1], 0.0, 0
    for h in range(k):
        total += math.sqrt(weights[h]) * sizes[h]
    records, scale, common = np.empty(k), np.empty(k), np.empty(k)
    for h in range(k):
        root = math.sqrt(weights[h])
        scale[h] = math.sqrt(varied_n) * root
        records[h] = n * weights[h] + scale[h] * (sizes[h] - root * total)
    roots, given, table = np.empty((size, k)), np.empty((size, k)), np.empty((size + 1, 3 * k))
    for h in range(k):
        table[size, h], table[size, k + h], table[size, 2 * k + h] = 1.0, 0.0, 0.0
    for i in range(size):
        for h in range(k):
            table[i, h], given[i, h] = profiles[h, i], deviations[h, i]
    for i in range(size):
        for h in range(k):
            roots[i, h] = math.sqrt(table[i, h])
    for end in ends:
        for h in range(k):
            common[h] = 0.0
        for i in range(start, end):
            for h in range(k):
                common[h] += given[i, h] * roots[i, h]
        for i in range(start, end):
            for h in range(k):
                table[i, k + h] = scale[h] * (given[i, h] * roots[i, h] - table[i, h] * common[h])
        start = end
    if len(turn):
        plain, table = table, table.copy()
        _turned(plain, turn, ends, table, 0, 0, 2 * k, False, False)
        _turned(plain, turn, ends, table, 0, 2 * k, k, False, True)
    for i in range(size):
        for h in range(k):
            square = table[i, h] * table[i, h]
            table[i, 2 * k + h] = (table[i, 2 * k + h] if len(turn) else table[i, h]) - square
    return records, table, roots, given


@loop
def _columns_back(
    weights: Floats, n: float, varied_n: float, sizes: Floats, turn: Floats, ends: Any, in_records: Floats,
    in_table: Floats, table: Floats, roots: Floats, given: Floats,
    in_weights: Floats, in_profiles: Floats, in_sizes: Floats, in_deviations: Floats,
) -> tuple[float, float]:  # fmt: skip
    """Add the slopes in weights, and write those in profiles, sizes and deviations; return those in both n.

    They follow from the slopes in what `_columns` gives.
    """
    k, start, total, in_total, in_n, in_varied_n = len(weights), 0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(roots)):
        for h in range(k):
            in_table[i, h] -= 2.0 * table[i, h] * in_table[i, 2 * k + h]
    if len(turn):
        slopes, in_table = in_table, np.empty(in_table.shape)
        _turned(slopes, turn, ends, in_table, 0, 0, 2 * k, True, False)
        _turned(slopes, turn, ends, in_table, 2 * k, 2 * k, k, True, True)
    common, pull, in_root, scale = np.empty(k), np.empty(k), np.zeros(k), np.empty(k)
    for h in range(k):
        scale[h] = math.sqrt(varied_n) * math.sqrt(weights[h])
    for end in ends:
        for h in range(k):
            common[h], pull[h] = 0.0, 0.0
        for i in range(start, end):
            for h in range(k):
                common[h] += given[i, h] * roots[i, h]
                pull[h] += in_table[i, k + h] * roots[i, h] * roots[i, h]
                in_root[h] += in_table[i, k + h] * given[i, h] * roots[i, h]
        for h in range(k):
            in_root[h] -= pull[h] * common[h]
        for i in range(start, end):
            for h in range(k):
                own, moved = scale[h] * (in_table[i, k + h] - pull[h]), scale[h] * in_table[i, k + h] * common[h]
                in_table[i, h] += in_table[i, 2 * k + h] + 0.5 * own * given[i, h] / roots[i, h] - moved
                in_table[i, k + h] = own * roots[i, h]
        start = end
    for i in range(len(roots)):
        for h in range(k):
            in_profiles[h, i], in_deviations[h, i] = in_table[i, h], in_table[i, k + h]
    for h in range(k):
        total += math.sqrt(weights[h]) * sizes[h]
        in_total -= math.sqrt(varied_n) * in_records[h] * weights[h]
    for h in range(k):
        root = math.sqrt(weights[h])
        in_root[h] *= scale[h]
        in_n += in_records[h] * weights[h]
        in_varied_n += 0.5 * (in_records[h] * scale[h] * (sizes[h] - root * total) + in_root[h]) / varied_n
        in_sizes[h] = (math.sqrt(varied_n) * in_records[h] + in_total) * root
        in_own = in_root[h] / root + math.sqrt(varied_n) * in_records[h] * (sizes[h] - 2.0 * root * total)
        in_own += in_total * sizes[h]
        in_weights[h] += n * in_records[h] + 0.5 * in_own / root
    return in_n, in_varied_n


@loop
def _density(
    varied_n: float, mean: Floats, spread: Floats, value: Floats, floor: Floats, scale: Floats, limit: Floats
) -> tuple[float, float]:
    """Return a rectangle's log-density and its slope in n; `mean` and `spread` become the slopes in themselves."""
    counts, spreads, times, in_n = mean.reshape(-1), spread.reshape(-1), value.dtype.type(varied_n), 0.0
    off, varied = np.empty(len(value), value.dtype), np.empty(len(value), value.dtype)
    in_x, in_v = np.empty(len(value), value.dtype), np.empty(len(value), value.dtype)
    for i in range(len(value)):
        off[i] = value[i] - counts[i]
        varied[i] = times * spreads[i] + floor[i]
    for i in range(len(limit)):
        off[i] = 0.0 if value[i] == -math.inf else off[i]
    total = normal_laplace(off, varied, scale, in_x, in_v) if len(scale) else normal(off, varied, in_x, in_v)
    for i in range(len(limit)):
        if value[i] == -math.inf:
            b, v = float(scale[i]) if len(scale) else 0.0, float(varied[i])
            total -= math.log(0.5 * log_below(0.0, v, b)[1])  # the density at 0, which is not the count's
            log_chance, in_x[i], in_v[i] = log_below(float(limit[i] - counts[i]), v, b)
            total += log_chance
    for i in range(len(value)):
        in_n += in_v[i] * spreads[i]
        counts[i], spreads[i] = -in_x[i], times * in_v[i]
    return total, in_n


@loop
def _sides(
    left: Any, right: Any, records: Floats, weights: Floats, table: Floats, state: Floats, real: Any
) -> tuple[tuple[Floats, Floats, Floats], tuple[Floats, Floats, Floats]]:
    """Return the factors of a rectangle's products, by row and by column, and fill the state of its rows.

    Counts are the first times the fourth, spreads the second times the fifth, of more factors plus third times sixth.
    """
    k, final, width = len(weights), state.shape[1] - 1, len(weights) if state.shape[1] > 1 else 0
    forward, first = np.empty((len(left), 2 * k), real), np.empty((len(left), k), real)
    last, varied = np.empty((len(right), 2 * k), real), np.empty((len(right), k), real)
    rest, second = np.empty((len(left), width), real), np.empty((len(right), width), real)
    for i in range(len(left)):
        _product(left[i], table, state[i])
        for h in range(k):
            product = state[i, final, 0, h]
            forward[i, h], forward[i, k + h] = records[h] * product + state[i, final, 1, h], product
            first[i, h] = weights[h] * state[i, final, 2, h]
        for h in range(width):
            rest[i, h] = weights[h] * state[i, final, 3, h]
    for j in range(len(right)):
        column = right[j]
        for h in range(2 * k):
            last[j, h] = table[column, h]
        for h in range(k):
            varied[j, h] = table[column, 2 * k + h]
        for h in range(width):
            second[j, h] = table[column, h] ** 2 + table[column, 2 * k + h]
    return (forward, first, rest), (last, varied, second)


@loop
def _sides_back(
    left: Any, right: Any, records: Floats, weights: Floats, table: Floats, state: Floats, in_rows: Any,
    in_columns: Any, in_records: Floats, in_weights: Floats, in_table: Floats,
) -> None:  # fmt: skip
    """Add to the slopes in classes and columns, which follow from those in what `_sides` gives."""
    (in_forward, in_first, in_rest), (in_last, in_varied, in_second) = in_rows, in_columns
    k, final, adjoint, width = len(weights), state.shape[1] - 1, np.empty((5, len(weights))), in_rest.shape[1]
    for j in range(len(right)):
        column = right[j]
        for h in range(2 * k):
            in_table[column, h] += in_last[j, h]
        for h in range(k):
            in_table[column, 2 * k + h] += in_varied[j, h]
        for h in range(width):
            in_table[column, h] += 2.0 * table[column, h] * in_second[j, h]
            in_table[column, 2 * k + h] += in_second[j, h]
    for i in range(len(left)):
        own = state[i, final]
        for h in range(k):
            in_records[h] += in_forward[i, h] * own[0, h]
            in_weights[h] += in_first[i, h] * own[2, h]
            adjoint[0, h], adjoint[1, h] = in_forward[i, h] * records[h] + in_forward[i, k + h], in_forward[i, h]
            adjoint[2, h], adjoint[3, h], adjoint[4, h] = in_first[i, h] * weights[h], 0.0, 0.0
        for h in range(width):
            in_weights[h] += in_rest[i, h] * own[3, h]
            adjoint[3, h] = in_rest[i, h] * weights[h]
        _product_back(left[i], table, state[i], adjoint, in_table)


@loop
def _rectangle(
    left: Any, right: Any, value: Floats, floor: Floats, scale: Floats, limit: Floats, varied_n: float,
    records: Floats, weights: Floats, table: Floats, in_records: Floats, in_weights: Floats, in_table: Floats,
) -> tuple[float, float]:  # fmt: skip
    """Return a rectangle's log-density and its slope in `varied_n`; add those in the classes and columns."""
    state = np.empty((len(left), left.shape[1], 5, len(weights)))
    rows, columns = _sides(left, right, records, weights, table, state, value.dtype)
    (forward, first, rest), (last, varied, second) = rows, columns
    counts, spread = np.dot(forward, last.T), np.dot(first, varied.T)
    if rest.shape[1]:
        spread += np.dot(rest, second.T)
    found = _density(varied_n, counts, spread, value, floor, scale, limit)
    in_rest, in_second = np.empty_like(rest), np.empty_like(second)
    if rest.shape[1]:
        np.dot(spread, second, in_rest)
        np.dot(spread.T, rest, in_second)
    in_rows = np.dot(counts, last), np.dot(spread, varied), in_rest
    in_columns = np.dot(counts.T, forward), np.dot(spread.T, first), in_second
    _sides_back(left, right, records, weights, table, state, in_rows, in_columns, in_records, in_weights, in_table)
    return found


@loop
def _cells(
    weights: Floats, profiles: Floats, n: float, dispersion: float, sizes: Floats, deviations: Floats, turn: Floats,
    ends: Any, value: Floats, floor: Floats, scale: Floats, limit: Floats, left: Any, right: Any, rectangles: Any,
    in_weights: Floats, in_profiles: Floats, in_sizes: Floats, in_deviations: Floats,
) -> tuple[float, float, float]:  # fmt: skip
    """Return the log-density and its slopes in n and dispersion; write those in weights, profiles and deviations.

    `varied_n` is n as variances have it, times the dispersion.
    """
    k, total, in_varied_n, varied_n = len(weights), 0.0, 0.0, n * dispersion
    records, table, roots, given = _columns(weights, profiles, n, varied_n, sizes, deviations, turn, ends)
    in_records, in_table = np.zeros(k), np.zeros(table.shape)
    for h in range(k):
        in_weights[h] = 0.0
    for bounds in rectangles:
        rows, columns, own = left[bounds[0] : bounds[1]], right[bounds[2] : bounds[3]], slice(bounds[4], bounds[5])
        found = _rectangle(
            rows, columns, value[own], floor[own], scale[own], limit[own], varied_n, records, weights, table,
            in_records, in_weights, in_table,
        )  # fmt: skip
        total, in_varied_n = total + found[0], in_varied_n + found[1]
    in_n, in_moved_n = _columns_back(
        weights, n, varied_n, sizes, turn, ends, in_records, in_table, table, roots, given, in_weights, in_profiles,
        in_sizes, in_deviations,
    )  # fmt: skip
    in_varied_n += in_moved_n
    return total, in_n + dispersion * in_varied_n, n * in_varied_n


@kept
def _points(
    weights: Floats, profiles: Floats, n: Floats, dispersion: Floats, sizes: Floats, deviations: Floats, turn: Floats,
    ends: Any, value: Floats, floor: Floats, scale: Floats, limit: Floats, left: Any, right: Any, rectangles: Any,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats]:  # fmt: skip
    """Return points' log-densities and slopes in weights, profiles, n, dispersion, sizes and deviations.

    Weights, n and dispersion may be those of all points, in one row.
    """
    total, in_weights, in_profiles = np.empty(len(sizes)), np.empty(sizes.shape), np.empty(deviations.shape)
    in_n, in_sizes, in_deviations = np.empty(len(sizes)), np.empty(sizes.shape), np.empty(deviations.shape)
    in_dispersion = np.empty(len(sizes))
    for i in range(len(sizes)):
        total[i], in_n[i], in_dispersion[i] = _cells(
            weights[min(i, len(weights) - 1)], profiles[i], n[min(i, len(n) - 1)],
            dispersion[min(i, len(dispersion) - 1)], sizes[i], deviations[i],
            turn, ends, value, floor, scale, limit, left, right, rectangles,
            in_weights[i], in_profiles[i], in_sizes[i], in_deviations[i],
        )  # fmt: skip
    return total, in_weights, in_profiles, in_n, in_dispersion, in_sizes, in_deviations


class _Operation(Op):
    """An operation on a point or, one axis more, on many; its first inputs are differentiated, the rest are data."""

    __props__: tuple[str, ...] = ()
    differentiated = 1

    def connection_pattern(self, node: Any) -> list[list[bool]]:
        """Say that data have no slopes."""
        return [[place < self.differentiated] * len(node.outputs) for place in range(len(node.inputs))]

    def data_slopes(self, inputs: Any) -> list[Any]:
        """Return the slopes of data: none."""
        return [disconnected_type() for _ in inputs[self.differentiated :]]


@_vectorize_node.register(_Operation)
def _over_points(op: _Operation, node: Any, *inputs: Any) -> Any:
    return op.make_node(*inputs)


class SumsWithin(_Operation):
    """The sums of values (class, column) within each attribute, in all of its columns."""

    def make_node(self, values: Any, ends: Any) -> Any:
        """Return the operation on its inputs; `ends` are where attributes' columns end."""
        inputs = [pt.as_tensor(values), pt.as_tensor(ends)]
        return Apply(self, inputs, [inputs[0].type()])

    def infer_shape(self, node: Any, shapes: Any) -> Any:
        """Return the shape of the values."""
        return [shapes[0]]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Evaluate in NumPy."""
        values, ends = inputs
        sums = np.add.reduceat(values, np.append(0, ends[:-1]), axis=-1)
        outputs[0][0] = np.repeat(sums, np.diff(ends, prepend=0), axis=-1)

    @staticmethod
    def jax(values: Any, ends: Any) -> Any:
        """Evaluate in JAX, at one point."""
        import jax
        import jax.numpy as jnp

        owner = jnp.searchsorted(ends, jnp.arange(values.shape[-1]), side="right")
        return jax.ops.segment_sum(values.T, owner, num_segments=len(ends))[owner].T

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the sums of the cotangent."""
        return [self(cotangents[0], inputs[1]), *self.data_slopes(inputs)]


@loop
def _sums(values: Floats, ends: Any) -> Floats:
    found, width = np.empty(values.shape), values.shape[-1]
    given, sums = np.ascontiguousarray(values).reshape(-1, width), found.reshape(-1, width)
    for h in range(len(given)):
        start = 0
        for end in ends:
            total = 0.0
            for i in range(start, end):
                total += given[h, i]
            for i in range(start, end):
                sums[h, i] = total
            start = end
    return found


class SumsOf(_Operation):
    """Sums of values (class, column): one of ``source[ends[i - 1]:ends[i]]`` for each i; the way back likewise."""

    def make_node(self, values: Any, source: Any, ends: Any, back_source: Any, back_ends: Any) -> Any:
        """Return the operation on its inputs, as `arrays` gives them."""
        inputs = [pt.as_tensor(one) for one in (values, source, ends, back_source, back_ends)]
        return Apply(self, inputs, [pt.tensor(dtype="float64", shape=(None,) * inputs[0].ndim)])

    @staticmethod
    def arrays(source: Ints, target: Ints, sizes: tuple[int, int]) -> tuple[Ints, ...]:
        """Return what adds values of columns to sums, entry by entry, among so many columns and sums."""
        found = []
        for own, other, size in ((source, target, sizes[1]), (target, source, sizes[0])):
            found += [own[np.argsort(other, kind="stable")], np.cumsum(np.bincount(other, minlength=size))]
        return tuple(found)

    def infer_shape(self, node: Any, shapes: Any) -> Any:
        """Return the values' shape, but for the columns."""
        return [(*shapes[0][:-1], shapes[2][0])]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Evaluate in NumPy."""
        values, source, ends, *_ = inputs
        outputs[0][0] = np.stack([values[..., own].sum(axis=-1) for own in np.split(source, ends[:-1])], axis=-1)

    @staticmethod
    def jax(values: Any, source: Any, ends: Any, *back: Any) -> Any:
        """Evaluate in JAX, at one point."""
        import jax
        import jax.numpy as jnp

        target = jnp.searchsorted(ends, jnp.arange(len(source)), side="right")
        return jax.ops.segment_sum(values.T[source], target, num_segments=len(ends)).T

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the sums of the cotangent, from sums into columns."""
        _, *there, back_source, back_ends = inputs
        return [self(cotangents[0], back_source, back_ends, *there), *self.data_slopes(inputs)]


@loop
def _sums_of(values: Floats, source: Any, ends: Any, back_source: Any, back_ends: Any) -> Floats:
    found = np.empty((*values.shape[:-1], len(ends)))
    given, sums = np.ascontiguousarray(values).reshape(-1, values.shape[-1]), found.reshape(-1, len(ends))
    for h in range(len(given)):
        start = 0
        for i in range(len(ends)):
            total = 0.0
            for place in range(start, ends[i]):
                total += given[h, source[place]]
            sums[h, i], start = total, ends[i]
    return found


@loop
def _of_classes(weights: Floats, profiles: Floats, left: Any) -> tuple[Floats, Floats]:
    """Return profiles by column, with a last one of ones, and products of columns times the weights, by class."""
    k, size = profiles.shape
    table, products = np.ones((size + 1, k)), np.empty((len(left), k))
    for i in range(size):
        for h in range(k):
            table[i, h] = profiles[h, i]
    for i in range(len(left)):
        for h in range(k):
            products[i, h] = weights[h]
        for column in left[i]:
            for h in range(k):
                products[i, h] *= table[column, h]
    return table, products


@kept
def _shares(weights: Floats, profiles: Floats, left: Any, parts: Any) -> Floats:
    """Return points' probabilities of cells."""
    found = np.zeros((max(len(weights), len(profiles)), len(parts)))
    for point in range(len(found)):
        own = weights[min(point, len(weights) - 1)], profiles[min(point, len(profiles) - 1)]
        table, products = _of_classes(own[0], own[1], left)
        shares = np.dot(products, table.T)
        for i in range(len(parts)):
            if parts[i, 0] >= 0:
                found[point, i] = shares[parts[i, 0], parts[i, 1]]
    return found


@kept
def _share_slopes(weights: Floats, profiles: Floats, left: Any, parts: Any, adjoint: Floats) -> tuple[Floats, Floats]:
    """Return points' slopes in weights and profiles of their cells' probabilities times the adjoint."""
    points, k, size = len(adjoint), profiles.shape[1], profiles.shape[2]
    in_weights, in_profiles = np.zeros((points, k)), np.empty((points, k, size))
    for point in range(points):
        own = weights[min(point, len(weights) - 1)], profiles[min(point, len(profiles) - 1)]
        table, products = _of_classes(own[0], own[1], left)
        in_shares = np.zeros((len(left), size + 1))
        for i in range(len(parts)):
            if parts[i, 0] >= 0:
                in_shares[parts[i, 0], parts[i, 1]] += adjoint[point, i]
        in_table, in_products = np.dot(in_shares.T, products), np.dot(in_shares, table)
        for i in range(len(left)):
            for h in range(k):
                whole = in_products[i, h]
                for column in left[i]:
                    whole *= table[column, h]
                in_weights[point, h] += whole
            for place in range(left.shape[1]):
                for h in range(k):
                    rest = in_products[i, h] * own[0][h]
                    for other in range(left.shape[1]):
                        if other != place:
                            rest *= table[left[i, other], h]
                    in_table[left[i, place], h] += rest
        for i in range(size):
            for h in range(k):
                in_profiles[point, h, i] = in_table[i, h]
    return in_weights, in_profiles


class CellShares(_Operation):
    """The probabilities of cells under a mixture (`Products` says of which columns each is a product).

    A row of `parts` that is negative is an impossible cell, with no probability.
    """

    differentiated = 2

    def make_node(self, weights: Any, profiles: Any, left: Any, parts: Any, *adjoint: Any) -> Any:
        """Return the operation on weights (class) and profiles (class, column), of a point or of many."""
        given = [pt.as_tensor(one) for one in (weights, profiles)]
        axes = max(given[0].ndim - 1, given[1].ndim - 2)
        given = [one if one.ndim == dims + axes else one[None] for one, dims in zip(given, (1, 2), strict=True)]
        inputs = [*given, pt.as_tensor(left), pt.as_tensor(parts), *map(pt.as_tensor, adjoint)]
        return Apply(self, inputs, self._types(axes))

    def _types(self, axes: int) -> list[Any]:
        return [pt.tensor(dtype="float64", shape=(None,) * (axes + 1))]

    def infer_shape(self, node: Any, shapes: Any) -> Any:
        """Return the points and the cells."""
        return [(*self._points(node, shapes), shapes[3][0])]

    @staticmethod
    def _points(node: Any, shapes: Any) -> tuple[Any, ...]:
        profiles = node.inputs[1]
        if profiles.ndim == 2:
            return ()
        return (shapes[0 if profiles.type.broadcastable[0] else 1][0],)  # all points may have the same

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Evaluate in NumPy."""
        point = inputs[1].ndim == 2
        weights, profiles, left, parts = inputs
        given = (weights[None], profiles[None]) if point else (weights, profiles)
        found = _shares(*map(writable, (*given, left, parts)))
        outputs[0][0] = found[0] if point else found

    @staticmethod
    def jax(weights: Any, profiles: Any, *data: Any) -> Any:
        """Evaluate in JAX, at one point."""
        import jax.numpy as jnp

        left, parts = data
        table = jnp.concatenate([profiles, jnp.ones_like(profiles[:, :1])], axis=1)
        products = weights[:, None] * table[:, left].prod(axis=2)
        found = (products[:, parts[:, 0]] * table[:, parts[:, 1]]).sum(axis=0)
        return jnp.where(parts[:, 0] >= 0, found, 0.0)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the slopes, another operation."""
        return [*CellSlopes()(*inputs, cotangents[0]), *self.data_slopes(inputs)]


class CellSlopes(CellShares):
    """The slopes of `CellShares` in weights and profiles, times an adjoint; they have no derivatives."""

    differentiated = 0

    def _types(self, axes: int) -> list[Any]:
        return [pt.tensor(dtype="float64", shape=(None,) * (axes + dims)) for dims in (1, 2)]

    def infer_shape(self, node: Any, shapes: Any) -> Any:
        """Return the points, classes and columns."""
        points = self._points(node, shapes)
        return [(*points, shapes[1][-2]), (*points, shapes[1][-2], shapes[1][-1])]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Evaluate in NumPy."""
        point = inputs[1].ndim == 2
        weights, profiles, left, parts, adjoint = inputs
        given = [one[None] if point else one for one in (weights, profiles)]
        found = _share_slopes(*map(writable, (*given, left, parts, adjoint[None] if point else adjoint)))
        for place, one in zip(outputs, found, strict=True):
            place[0] = one[0] if point else one

    @staticmethod
    def jax(weights: Any, profiles: Any, *data: Any) -> Any:
        """Evaluate in JAX, at one point."""
        import jax

        left, parts, adjoint = data
        return jax.vjp(lambda *free: CellShares.jax(*free, left, parts), weights, profiles)[1](adjoint)


class ReleasedCells(_Operation):
    """The log-density of a block's cells, and its slopes in the first six inputs, which have no derivatives.

    `scale` is that of Laplace noise, which `floor` then leaves out; it is empty where noise is normal. Counts of -inf
    were held back below `limit`, which is empty where none can be. Entries that are no cells have noise of `NO_SCALE`,
    or of `NO_VARIANCE`. For many points counts and variances may be of `single` precision, in sums of double.
    """

    __props__ = ("single",)
    differentiated = 6

    def __init__(self, *, single: bool = False):
        self.single = single

    def make_node(self, *inputs: Any) -> Any:
        """Return the operation on weights, profiles, n, dispersion, deviations of sizes and levels, and data."""
        given = [pt.as_tensor(one) for one in inputs]
        axes = given[4].ndim - 1
        if axes:
            given[:6] = [one if one.ndim == dims + 1 else one[None] for one, dims in zip(given, _DIMS, strict=False)]
        if axes and self.single:
            given[8:12] = [pt.cast(one, "float32") for one in given[8:12]]
        outputs = [pt.tensor(dtype="float64", shape=(None,) * (axes + dims)) for dims in (0, *_DIMS)]
        return Apply(self, given, outputs)

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Evaluate in NumPy."""
        point = inputs[4].ndim == 1
        inputs = [one[None] if point else one for one in inputs[:6]] + inputs[6:]
        found = _points(*map(writable, inputs))
        for place, one in zip(outputs, found, strict=True):
            place[0] = np.asarray(one[0]) if point else one

    @staticmethod
    def jax(*inputs: Any) -> tuple[Any, ...]:
        """Evaluate in JAX, at one point."""
        import jax

        *given, turn, ends, value, floor, scale, limit, left, right, bounds = inputs
        law, parts = _jax_law(left.shape[1] + 1, turn.size > 0), _jax_parts(len(value), right, bounds)
        (mean, variance), back = jax.vjp(lambda *free: law(*free, turn, ends, left, parts), *given)
        each, in_x, in_v = _jax_density(value, mean, variance + floor, scale, limit)
        return (each.sum(), *back((-in_x, in_v)))

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the slopes times the value's cotangent."""
        for further in cotangents[1:]:
            if not isinstance(further.type, DisconnectedType):
                raise NotImplementedError("the log-density of released cells has first derivatives only")
        return [cotangents[0] * slope for slope in outputs[1:]] + self.data_slopes(inputs)


_DIMS = (1, 2, 0, 0, 1, 2)  # axes of what is differentiated, for one point


@register_funcify_and_cache_key(ReleasedCells)
def _compile_cells(op: ReleasedCells, node: Any, **kwargs: Any) -> Any:
    @numba_njit
    def points(weights: Any, profiles: Any, n: Any, dispersion: Any, sizes: Any, deviations: Any, *data: Any) -> Any:
        turn, ends, value, floor, scale, limit, left, right, rectangles = data
        return _points(
            np.ascontiguousarray(weights), np.ascontiguousarray(profiles), np.ascontiguousarray(n),
            np.ascontiguousarray(dispersion), np.ascontiguousarray(sizes), np.ascontiguousarray(deviations),
            np.ascontiguousarray(turn), np.ascontiguousarray(ends), np.ascontiguousarray(value),
            np.ascontiguousarray(floor), np.ascontiguousarray(scale), np.ascontiguousarray(limit),
            np.ascontiguousarray(left), np.ascontiguousarray(right), np.ascontiguousarray(rectangles),
        )  # fmt: skip

    @numba_njit
    def cells(weights: Any, profiles: Any, n: Any, dispersion: Any, sizes: Any, deviations: Any, *data: Any) -> Any:
        total, in_w, in_p, in_n, in_f, in_s, in_d = points(
            np.expand_dims(weights, 0), np.expand_dims(profiles, 0), n.reshape(1), dispersion.reshape(1),
            np.expand_dims(sizes, 0), np.expand_dims(deviations, 0), *data,
        )  # fmt: skip
        return np.asarray(total[0]), in_w[0], in_p[0], np.asarray(in_n[0]), np.asarray(in_f[0]), in_s[0], in_d[0]

    many = node.inputs[4].ndim == 2
    return points if many else cells, f"{source_key(__file__)} {many} {op.single}"


@register_funcify_and_cache_key(CellShares)
@register_funcify_and_cache_key(CellSlopes)
def _compile_shares(op: CellShares, node: Any, **kwargs: Any) -> Any:
    many, slopes = node.inputs[1].ndim == 3, isinstance(op, CellSlopes)

    @numba_njit
    def shares(weights: Any, profiles: Any, left: Any, parts: Any) -> Any:
        return _shares(
            np.ascontiguousarray(weights), np.ascontiguousarray(profiles), np.ascontiguousarray(left),
            np.ascontiguousarray(parts),
        )  # fmt: skip

    @numba_njit
    def share_slopes(weights: Any, profiles: Any, left: Any, parts: Any, adjoint: Any) -> Any:
        return _share_slopes(
            np.ascontiguousarray(weights), np.ascontiguousarray(profiles), np.ascontiguousarray(left),
            np.ascontiguousarray(parts), np.ascontiguousarray(adjoint),
        )  # fmt: skip

    @numba_njit
    def of_one(weights: Any, profiles: Any, left: Any, parts: Any) -> Any:
        return shares(np.expand_dims(weights, 0), np.expand_dims(profiles, 0), left, parts)[0]

    @numba_njit
    def slopes_of_one(weights: Any, profiles: Any, left: Any, parts: Any, adjoint: Any) -> Any:
        found = share_slopes(
            np.expand_dims(weights, 0), np.expand_dims(profiles, 0), left, parts, np.expand_dims(adjoint, 0)
        )
        return found[0][0], found[1][0]

    code = (share_slopes if many else slopes_of_one) if slopes else (shares if many else of_one)
    return code, f"{source_key(__file__)} shares {many} {slopes}"


@register_funcify_and_cache_key(SumsWithin)
def _compile_sums(op: SumsWithin, node: Any, **kwargs: Any) -> Any:
    return _sums, f"{source_key(__file__)} sums"


@register_funcify_and_cache_key(SumsOf)
def _compile_sums_of(op: SumsOf, node: Any, **kwargs: Any) -> Any:
    return _sums_of, f"{source_key(__file__)} sums of"


# The same in JAX, for one point (`jax.vmap` makes many of it).


@lru_cache
def _jax_law(order: int, turned: bool) -> Any:
    """Return `dpbayes.latent_class.likelihood.released_law` in JAX, a function of classes, turn, ends and products."""
    from pytensor.graph import FunctionGraph
    from pytensor.link.jax.dispatch import jax_funcify

    from dpbayes.latent_class.likelihood import classes_of, released_law

    jax_funcify.register(SumsWithin)(lambda op, **_: op.jax)
    weights, profiles, n, dispersion = pt.vector(), pt.matrix(), pt.scalar(), pt.scalar()
    sizes, deviations = pt.vector(), pt.matrix()
    turn, ends, left, parts = pt.matrix(), pt.lvector(), pt.lmatrix(), pt.lmatrix()
    classes = classes_of(weights, profiles, n, dispersion, sizes, deviations, ends)
    law = released_law(classes, (left, parts), order, turn if turned else None)
    inputs = [weights, profiles, n, dispersion, sizes, deviations, turn, ends, left, parts]
    return jax_funcify(FunctionGraph(inputs, law, clone=False))


def _jax_parts(entries: int, right: Any, bounds: Any) -> Any:
    """Return every entry's row of `left` and its last column, from the rectangles."""
    import jax.numpy as jnp

    own = bounds[jnp.searchsorted(bounds[:, 5], jnp.arange(entries), side="right")]
    place, width = jnp.arange(entries) - own[:, 4], own[:, 3] - own[:, 2]
    return jnp.stack([own[:, 0] + place // width, right[own[:, 2] + place % width]], axis=1)


def _jax_density(value: Any, mean: Any, v: Any, scale: Any, limit: Any) -> tuple[Any, Any, Any]:
    """Return the log-densities of counts, and their slopes in the released less the expected count and in v."""
    import jax.numpy as jnp

    x = jnp.where(jnp.isneginf(value), 0.0, value - mean)
    each, in_x, in_v = _jax_normal_laplace(x, v, scale) if scale.size else _jax_normal(x, v)
    if limit.size:
        held = jnp.isneginf(value)
        found = _jax_log_below(jnp.where(held, limit - mean, 0.0), v, scale)
        each, in_x, in_v = (jnp.where(held, one, other) for one, other in zip(found, (each, in_x, in_v), strict=True))
    is_cell = scale < NO_SCALE if scale.size else v < NO_VARIANCE
    return tuple(jnp.where(is_cell, one, 0.0) for one in (each, in_x, in_v))


def _jax_scaled_erfc(z: Any) -> Any:
    import jax.numpy as jnp

    t = (z - _STRETCH) / (z + _STRETCH)
    return jnp.polyval(jnp.array(_COEFFICIENTS), t) / (1.0 + 2.0 * z)


def _jax_normal(x: Any, v: Any) -> tuple[Any, Any, Any]:
    import jax.numpy as jnp

    slope = -x / v
    return 0.5 * (x * slope - jnp.log(2.0 * jnp.pi * v)), slope, 0.5 * (slope**2 - 1.0 / v)


def _jax_normal_laplace(x: Any, v: Any, b: Any) -> tuple[Any, Any, Any]:
    import jax.numpy as jnp

    r, root, shift = jnp.abs(x), jnp.sqrt(0.5 / v), v / b
    near, far = _jax_scaled_erfc(jnp.abs(shift - r) * root), _jax_scaled_erfc((shift + r) * root)
    inside, share = shift >= r, jnp.exp(-0.5 * jnp.minimum(shift - r, 0.0) ** 2 / v)
    minus, plus = jnp.where(inside, near, 2.0 - share * near), share * far
    total, power = minus + plus, jnp.where(inside, -0.5 * r**2 / v, (0.5 * shift - r) / b)
    in_v = 0.5 / b**2 * (1.0 - share * 4.0 * b * root / (_ROOT_PI * total))
    return power + jnp.log(0.25 * total / b), jnp.sign(x) * (plus - minus) / (b * total), in_v


def _jax_log_below(x: Any, v: Any, b: Any) -> tuple[Any, Any, Any]:
    import jax.numpy as jnp

    r, root = jnp.abs(x), jnp.sqrt(0.5 / v)
    power, tail, density, slope = -0.5 * r**2 / v, 0.5 * _jax_scaled_erfc(r * root), root / _ROOT_PI, r / v
    if b.size:
        near, far = _jax_scaled_erfc(jnp.abs(v / b - r) * root), _jax_scaled_erfc((v / b + r) * root)
        beyond = v / b < r  # all in units of exp(power), there a larger one
        share = jnp.where(beyond, jnp.exp(-0.5 * jnp.minimum(v / b - r, 0.0) ** 2 / v), 1.0)
        power = jnp.where(beyond, (0.5 * v / b - r) / b, power)
        tail, near, far = share * tail, jnp.where(beyond, 2.0 - share * near, near), share * far
        tail, density, slope = tail + 0.25 * (near - far), 0.25 * (near + far) / b, (near - far) / (near + far) / b
    above, below = jnp.exp(power), x < 0.0
    ratio = jnp.where(below, density / tail, above * density / (1.0 - above * tail))
    log_chance = jnp.where(below, power + jnp.log(tail), jnp.log1p(-above * tail))
    return log_chance, ratio, jnp.where(below, 0.5, -0.5) * slope * ratio
