r"""Exact law of a noisy multinomial table, compiled: the confidential counts are summed out.

With :math:`g_c` the noise of cell c and :math:`b_c(m) = p_c^m g_c(x_c - m) / m!`,

.. math:: p(x \mid p) = n! \sum_{m_1 + \dots + m_d = n} \prod_c b_c(m_c).

The sum over tables is one coefficient of a product of d series. Each series is tilted, :math:`b_c(m) e^{\theta m}`,
until the cells' means add up to n; the coefficient is then near the top of a bell and loses no digits. Every series is
log-concave and is walked from its mode outwards by the ratio of neighbours until nothing that matters is left: its
window is as wide as the noise or the sampling allows, whichever is narrower, so that n may be in the millions. The
product is `dpbayes.inference.count_products`.
"""

import math
from typing import Any

import numba
import numpy as np

from dpbayes.inference.count_products import coefficient

__all__ = ["TINY", "tables_log_likelihood"]

TINY = 1e-300
"""Smallest probability of a cell that is told from zero."""

# What a series may leave out on either side, against its largest term: below the 1e-6 that is promised for the product
# of windows a thousand terms wide, at a standard deviation from its top.
_CUT = 1e-10
_TILT_STEPS = 60
# Terms written between looks at the room that is left.
_CHUNK = 64


@numba.njit(cache=False)
def _ratio(m: Any, rate: Any, x: Any, linear: Any, quadratic: Any) -> Any:
    """Return b(m + 1) / b(m)."""
    left, right = abs(x - m), abs(x - m - 1.0)
    return rate / (m + 1.0) * math.exp(linear * (left - right) + quadratic * (left * left - right * right))


@numba.njit(cache=False)
def _mode(rate: Any, x: Any, linear: Any, quadratic: Any, n: Any) -> Any:
    """Return where a log-concave series on 0..n is largest, by bisection of its falling ratios."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if _ratio(middle, rate, x, linear, quadratic) > 1.0:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=False)
def _walk(store: Any, at: Any, m: Any, limit: Any, rate: Any, x: Any, linear: Any, quadratic: Any) -> Any:
    """Write b(m') / b(m) for m' from m's neighbour towards a limit until it is negligible; return store, last, end."""
    # Neighbours differ by rate / m and by the noise: e^linear below x, e^-linear above, something between across x, and
    # a factor that itself changes by e^(-2 quadratic) a step. No exponential inside the loop.
    below, above, step = math.exp(linear), math.exp(-linear), math.exp(-2.0 * quadratic)
    across = math.exp(linear * (2.0 * (x - math.floor(x)) - 1.0))
    up = limit > m
    bend = math.exp(quadratic * (2.0 * (x - m) + (-1.0 if up else 1.0)))
    end, value = at, 1.0
    while m != limit:
        if end + _CHUNK > len(store):
            longer = np.empty(2 * len(store) + _CHUNK)  # filled in a loop: a slice takes longer to compile
            for i in range(len(store)):
                longer[i] = store[i]
            store = longer
        for _ in range(_CHUNK):
            higher = m + 1.0 if up else m + 0.0
            noise = below if higher <= x else (above if higher - 1.0 >= x else across)
            ratio = rate * noise * bend / higher
            value = value * ratio if up else value / ratio
            if not value >= _CUT:
                return store, m, end
            bend = bend * step if up else bend / step
            m += 1 if up else -1
            store[end] = value
            end += 1
            if m == limit:
                break
    return store, m, end


@numba.njit(cache=False)
def _series(store: Any, at: Any, mode: Any, rate: Any, x: Any, linear: Any, quadratic: Any, n: Any) -> Any:
    """Write b(m) / b(mode) into a store from a place on; return it with the first index and where the window ends."""
    store, first, end = _walk(store, at, mode, 0, rate, x, linear, quadratic)
    for i in range((end - at) // 2):
        store[at + i], store[end - 1 - i] = store[end - 1 - i], store[at + i]
    if end == len(store):
        store = np.append(store, 1.0)
    store[end] = 1.0
    store, _, end = _walk(store, end + 1, mode, n, rate, x, linear, quadratic)
    return store, first, end


@numba.njit(cache=False)
def _moments(window: Any) -> Any:
    """Return the sum of a window, and the mean and variance of its index."""
    total = first = second = 0.0
    for i in range(len(window)):
        total += window[i]
        first += i * window[i]
    mean = first / total
    for i in range(len(window)):
        second += (i - mean) * (i - mean) * window[i]
    return total, mean, second / total


@numba.njit(cache=False)
def _tilt(rates: Any, x: Any, linear: Any, quadratic: Any, n: Any, ends: Any, starts: Any, modes: Any) -> Any:
    """Find the tilt at which the cells' means add up to n, within a standard deviation or half a record.

    Writes where the windows end in the store, their first indices and modes; returns the tilt, the store with the
    windows, not normalized, and the variance of their sum.
    """
    store = np.empty(256 * len(rates))
    theta, lowest, highest = 0.0, -math.inf, math.inf
    variance = 0.0
    for _ in range(_TILT_STEPS):
        mean = variance = 0.0
        scale = math.exp(theta)
        end = 0
        for c in range(len(rates)):
            rate, at = rates[c] * scale, end
            modes[c] = _mode(rate, x[c], linear[c], quadratic[c], n)
            store, starts[c], end = _series(store, at, modes[c], rate, x[c], linear[c], quadratic[c], n)
            _, centre, spread = _moments(store[at:end])
            mean, variance = mean + starts[c] + centre, variance + spread
            ends[c] = end
        gap = n - mean
        if gap * gap <= max(variance, 0.25):
            break
        # Newton's step, kept within what is known to be too low and too high a tilt.
        if gap > 0.0:
            lowest = theta
        else:
            highest = theta
        theta += min(max(gap / max(variance, 1e-12), -2.0), 2.0)
        if not lowest < theta < highest:
            theta = (lowest + highest) / 2.0
    return theta, store, variance


@numba.njit(cache=False)
def _table(p: Any, x: Any, linear: Any, quadratic: Any, constant: Any, n: Any, means: Any) -> Any:
    """Return the log-likelihood of one table and write E[counts | released]."""
    cells = len(p)
    rates = np.maximum(p, TINY) * n
    if cells == 1:
        means[0] = n
        gap = abs(x[0] - n)
        return n * math.log(max(p[0], TINY)) + constant[0] - linear[0] * gap - quadratic[0] * gap * gap
    ends = np.zeros(cells + 1, np.int64)
    starts, modes = np.empty(cells, np.int64), np.empty(cells, np.int64)
    theta, store, variance = _tilt(rates, x, linear, quadratic, n, ends[1:], starts, modes)
    # n! / n^n comes from taking rates n p for p.
    log_value = math.lgamma(n + 1.0) - n * math.log(n) - theta * n
    for c in range(cells):
        window = store[ends[c] : ends[c + 1]]
        total = window.sum()
        window /= total
        mode = modes[c]
        gap = abs(x[c] - mode)
        log_value += constant[c] - linear[c] * gap - quadratic[c] * gap * gap
        log_value += mode * (math.log(rates[c]) + theta) - math.lgamma(mode + 1.0) + math.log(total)
    smooth = linear.max() == 0.0
    return log_value + math.log(coefficient(store, ends, starts, modes, n, variance, smooth, means))


@numba.njit(cache=False)
def tables_log_likelihood(p: Any, x: Any, linear: Any, quadratic: Any, constant: Any, ends: Any, n: Any) -> Any:
    """Return each table's log-likelihood, and the posterior mean of every cell's count.

    Parameters
    ----------
    p, x
        Cell probabilities and released counts, table after table.
    linear, quadratic, constant
        The noise's log-density ``constant - linear |e| - quadratic e^2`` of every cell.
    ends
        Where each table ends.
    n
        Number of records.
    """
    values = np.empty(len(ends))
    means = np.zeros(len(p))
    start = 0
    for t in range(len(ends)):
        end = ends[t]
        part = slice(start, end)
        values[t] = _table(p[part], x[part], linear[part], quadratic[part], constant[part], n, means[part])
        start = end
    return values, means
