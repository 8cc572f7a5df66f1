r"""Exact law of a noisy multinomial table, compiled: the confidential counts are summed out.

With :math:`g_c` the noise of cell c and :math:`b_c(m) = p_c^m g_c(x_c - m) / m!`,

.. math:: p(x \mid p) = n! \sum_{m_1 + \dots + m_d = n} \prod_c b_c(m_c).

The sum over tables is one coefficient of a product of d series. Each series is tilted, :math:`b_c(m) e^{\theta m}`,
until the cells' means add up to n; the coefficient is then near the top of a bell, and the Fourier inversion

.. math:: \frac1N \sum_{k=0}^{N-1} e^{-i\omega_k n} \prod_c \varphi_c(\omega_k), \qquad \omega_k = 2\pi k / N,

of the tilted laws' characteristic functions loses no digits. Its errors are the aliasing (N is 14 standard deviations)
and the terms left out once they are negligible. Every series is log-concave and is walked from its mode outwards by the
ratio of neighbours until nothing that matters is left, so that n may be in the millions.
"""

import math
from typing import Any

import numba
import numpy as np

__all__ = ["tables_log_likelihood"]

# What a series, the inversion and the aliasing may leave out, against 1: together below the 1e-6 that is promised.
_CUT = 1e-13
_TERM = 1e-7
_PERIOD = 14.0
_TILT_STEPS = 60
_TINY = 1e-300
# Frequencies evaluated side by side, so that the processor's vector units are used.
_BLOCK = 8


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
def _window(rate: Any, x: Any, linear: Any, quadratic: Any, n: Any) -> Any:
    """Return mode, first and last index of what double precision sees, and the sums of b, m b, m^2 b about the mode."""
    mode = _mode(rate, x, linear, quadratic, n)
    total, first, second = 1.0, 0.0, 0.0
    value, last = 1.0, mode
    while last < n:
        value *= _ratio(last, rate, x, linear, quadratic)
        if value < _CUT:
            break
        last += 1
        away = last - mode
        total, first, second = total + value, first + away * value, second + away * away * value
    value, start = 1.0, mode
    while start > 0:
        value /= _ratio(start - 1, rate, x, linear, quadratic)
        if value < _CUT:
            break
        start -= 1
        away = start - mode
        total, first, second = total + value, first + away * value, second + away * away * value
    return mode, start, last, total, first, second


@numba.njit(cache=False)
def _fill(weights: Any, mode: Any, start: Any, rate: Any, x: Any, linear: Any, quadratic: Any, total: Any) -> Any:
    """Write the series over its window, normalized."""
    top = mode - start
    weights[top] = 1.0 / total
    for i in range(top + 1, len(weights)):
        weights[i] = weights[i - 1] * _ratio(start + i - 1, rate, x, linear, quadratic)
    for i in range(top - 1, -1, -1):
        weights[i] = weights[i + 1] / _ratio(start + i, rate, x, linear, quadratic)


@numba.njit(cache=False)
def _characteristic(weights: Any, omegas: Any, shift: Any, work: Any, values: Any, slopes: Any) -> Any:
    """Write sum_j w_j z^(j + shift) and sum_j j w_j z^(j + shift) at every z = exp(i omega), by Horner's rule."""
    cosine, sine, f_re, f_im, h_re, h_im = work[0], work[1], work[2], work[3], work[4], work[5]
    for k in range(_BLOCK):
        cosine[k], sine[k] = math.cos(omegas[k]), math.sin(omegas[k])
        f_re[k] = f_im[k] = h_re[k] = h_im[k] = 0.0
    # Horner for f(z) = sum w_j z^j and for h(z) = z f'(z) = sum j w_j z^j.
    for j in range(len(weights) - 1, -1, -1):
        weight = weights[j]
        for k in range(_BLOCK):
            f = f_re[k] * cosine[k] - f_im[k] * sine[k]
            h = h_re[k] * cosine[k] - h_im[k] * sine[k]
            f_im[k] = f_re[k] * sine[k] + f_im[k] * cosine[k]
            h_im[k] = h_re[k] * sine[k] + h_im[k] * cosine[k] + f_im[k]
            h_re[k] = h + f
            f_re[k] = f + weight
    for k in range(_BLOCK):
        turn = complex(math.cos(omegas[k] * shift), math.sin(omegas[k] * shift))
        values[k] = complex(f_re[k], f_im[k]) * turn
        slopes[k] = complex(h_re[k], h_im[k]) * turn


@numba.njit(cache=False)
def _coefficient_of_two(first: Any, second: Any, starts: Any, n: Any, means: Any) -> Any:
    """Sum the product of two normalized series over the tables of two cells; write the cells' means."""
    total = mean = 0.0
    for i in range(len(first)):
        j = n - starts[0] - i - starts[1]
        if 0 <= j < len(second):
            value = first[i] * second[j]
            total += value
            mean += (starts[0] + i) * value
    means[0] = mean / total
    means[1] = n - means[0]
    return total


@numba.njit(cache=False)
def _coefficient(weights: Any, offsets: Any, starts: Any, modes: Any, n: Any, variance: Any, means: Any) -> Any:
    """Invert the product of the characteristic functions at n; write the cells' means."""
    cells = len(starts)
    support = offsets[cells] - cells + 1
    nodes = min(math.ceil(_PERIOD * math.sqrt(variance)) + 16, support)
    target = float(n - modes.sum())
    omegas = np.empty(_BLOCK)
    work = np.empty((6, _BLOCK))
    values = np.empty((cells, _BLOCK), np.complex128)
    slopes = np.empty((cells, _BLOCK), np.complex128)
    before = np.empty(cells + 1, np.complex128)
    total = 0.0
    sums = np.zeros(cells)
    last = nodes // 2
    done = False
    for block in range(0, last + 1, _BLOCK):
        for i in range(_BLOCK):
            omegas[i] = 2.0 * math.pi * (block + i) / nodes
        for c in range(cells):
            window = weights[offsets[c] : offsets[c + 1]]
            _characteristic(window, omegas, float(starts[c] - modes[c]), work, values[c], slopes[c])
        for i in range(min(_BLOCK, last + 1 - block)):
            k = block + i
            share = (1.0 if k == 0 or 2 * k == nodes else 2.0) / nodes
            after = share * complex(math.cos(omegas[i] * target), -math.sin(omegas[i] * target))
            before[0] = 1.0
            for c in range(cells):
                before[c + 1] = before[c] * values[c, i]
            total += (after * before[cells]).real
            for c in range(cells - 1, -1, -1):
                sums[c] += (after * before[c] * slopes[c, i]).real
                after *= values[c, i]
            # A kink in the noise makes the terms fall like k^-2d: what is left is below k times the last one.
            done = abs(before[cells]) * share * min(k + 1, last - k) < _TERM * total
        if done:
            break
    for c in range(cells):
        means[c] = starts[c] + sums[c] / total
    return total


@numba.njit(cache=False)
def _tilt(rates: Any, x: Any, linear: Any, quadratic: Any, n: Any, windows: Any, sums: Any) -> Any:
    """Find the tilt at which the cells' means add up to n, within one standard deviation; fill the windows there."""
    theta = 0.0
    variance = 0.0
    for _ in range(_TILT_STEPS):
        mean = variance = 0.0
        scale = math.exp(theta)
        for c in range(len(rates)):
            mode, start, last, total, first, second = _window(rates[c] * scale, x[c], linear[c], quadratic[c], n)
            windows[c, 0], windows[c, 1], windows[c, 2], sums[c] = mode, start, last, total
            centre = first / total
            mean += mode + centre
            variance += second / total - centre * centre
        gap = n - mean
        if gap * gap <= variance or variance < 1e-12:
            break
        theta += min(max(gap / variance, -2.0), 2.0)
    return theta, variance


@numba.njit(cache=False)
def _table(p: Any, x: Any, linear: Any, quadratic: Any, constant: Any, n: Any, means: Any) -> Any:
    """Return the log-likelihood of one table and write E[counts | released]."""
    cells = len(p)
    rates = np.maximum(p, _TINY) * n
    if cells == 1:
        means[0] = n
        gap = abs(x[0] - n)
        return n * math.log(max(p[0], _TINY)) + constant[0] - linear[0] * gap - quadratic[0] * gap * gap
    windows = np.empty((cells, 3), np.int64)
    sums = np.empty(cells)
    theta, variance = _tilt(rates, x, linear, quadratic, n, windows, sums)
    scale = math.exp(theta)
    offsets = np.zeros(cells + 1, np.int64)
    for c in range(cells):
        offsets[c + 1] = offsets[c] + windows[c, 2] - windows[c, 1] + 1
    weights = np.empty(offsets[cells])
    # n! / n^n comes from taking rates n p for p.
    log_value = math.lgamma(n + 1.0) - n * math.log(n) - theta * n
    for c in range(cells):
        mode, start = windows[c, 0], windows[c, 1]
        part = weights[offsets[c] : offsets[c + 1]]
        _fill(part, mode, start, rates[c] * scale, x[c], linear[c], quadratic[c], sums[c])
        gap = abs(x[c] - mode)
        log_value += constant[c] - linear[c] * gap - quadratic[c] * gap * gap
        log_value += mode * (math.log(rates[c]) + theta) - math.lgamma(mode + 1.0) + math.log(sums[c])
    starts, modes = windows[:, 1].copy(), windows[:, 0].copy()
    if cells == 2:
        first, second = weights[: offsets[1]], weights[offsets[1] :]
        return log_value + math.log(_coefficient_of_two(first, second, starts, n, means))
    return log_value + math.log(_coefficient(weights, offsets, starts, modes, n, variance, means))


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
    means = np.empty(len(p))
    start = 0
    for t in range(len(ends)):
        end = ends[t]
        part = slice(start, end)
        values[t] = _table(p[part], x[part], linear[part], quadratic[part], constant[part], n, means[part])
        start = end
    return values, means
