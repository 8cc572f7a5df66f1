r"""One coefficient of a product of many series, and the mean share of each series in it.

Given probability weights :math:`w_c(m)` of d cells, each on a window of the integers,

.. math:: P_n = \sum_{m_1 + \dots + m_d = n} \prod_c w_c(m_c), \qquad
          \mathrm E[m_c] = \frac{1}{P_n} \sum_{m_1 + \dots + m_d = n} m_c \prod_c w_c(m_c).

*Sums.* The laws :math:`f_c` of :math:`S_c = m_1 + \dots + m_c` are found forwards, :math:`f_c = f_{c-1} * w_c`, and
the probabilities :math:`a_c(s)` that the cells after c make up :math:`n - s` backwards,
:math:`a_{c-1}(s) = \sum_m w_c(m) a_c(s + m)`. Then :math:`\mathrm E[S_c] = \sum_s s f_c(s) a_c(s) / P_n`, and the
means are differences. All terms are positive, and with the cells in ascending order no difference loses digits. Only
sums from which n can still be reached are kept. The cost is that of 2 d short convolutions, whatever the noise.

*Inversion*, for windows so wide that less work is

.. math:: \frac1N \sum_{k=0}^{N-1} e^{-i\omega_k n} \prod_c \varphi_c(\omega_k), \qquad \omega_k = 2\pi k / N,

with the characteristic functions. Its errors are the aliasing (N is 14 standard deviations) and the terms left out once
they are negligible: a handful where the noise is smooth; where its law has a kink, they fall like a power of k.
"""

import math
from typing import Any

import numba
import numpy as np

__all__ = ["coefficient"]

# What the inversion may leave out, against 1: below the 1e-6 that is promised.
_TERM = 1e-7
_PERIOD = 14.0
# What the law of a partial sum may leave out on either side, against its largest value.
_CUT = 1e-13
# Frequencies evaluated side by side, so that the processor's vector units are used.
_BLOCK = 8
# Pairs of terms of partial sums that take as long as one term of a window under inversion, measured. The first holds
# where all noise is smooth or the kinks of many wide windows multiply away.
_SMOOTH, _KINKED = 300.0, 1500.0
_MANY = 8


@numba.njit(cache=False, fastmath={"contract"})
def _correlate(weights: Any, values: Any, shift: Any, length: Any) -> Any:
    """Return sum_i weights[i] values[k + i + shift] for k below a length, values being zero outside.

    Four weights a pass, so that memory is not the limit, and only where one of them meets a value.
    """
    out = np.zeros(length)
    # Written in loops: an assignment to a slice takes two seconds longer to compile.
    filled = np.zeros(len(weights) + 3)
    for i in range(len(weights)):
        filled[i] = weights[i]
    padded = np.zeros(len(values) + 6)
    for i in range(len(values)):
        padded[3 + i] = values[i]
    for i in range(0, len(weights), 4):
        place = i + shift
        low, high = max(0, -place - 3), min(length, len(values) - place)
        if low >= high:
            continue
        w0, w1, w2, w3 = filled[i], filled[i + 1], filled[i + 2], filled[i + 3]
        at, wide = low + place + 3, high - low
        part = out[low:high]
        p0, p1 = padded[at : at + wide], padded[at + 1 : at + 1 + wide]
        p2, p3 = padded[at + 2 : at + 2 + wide], padded[at + 3 : at + 3 + wide]
        for k in range(wide):
            part[k] += w0 * p0[k] + w1 * p1[k] + w2 * p2[k] + w3 * p3[k]
    return out


@numba.njit(cache=False)
def _trimmed(values: Any) -> Any:
    """Return where a bell's values begin and end to matter."""
    least = _CUT * values.max()
    low, high = 0, len(values)
    while low < high - 1 and values[low] < least:
        low += 1
    while high > low + 1 and values[high - 1] < least:
        high -= 1
    return low, high


@numba.njit(cache=False)
def _by_sums(weights: Any, ends: Any, starts: Any, order: Any, n: Any, means: Any) -> Any:
    """Add up partial sums forwards and backwards, cells in ascending order; write the cells' means."""
    cells = len(order)
    least, most = np.zeros(cells + 1, np.int64), np.zeros(cells + 1, np.int64)  # of the cells from c on
    for c in range(cells - 1, -1, -1):
        cell = order[c]
        least[c] = least[c + 1] + starts[cell]
        most[c] = most[c + 1] + starts[cell] + ends[cell + 1] - ends[cell] - 1
    laws = [np.ones(1)]
    origins = np.zeros(cells, np.int64)
    for c in range(cells - 1):
        window = weights[ends[order[c]] : ends[order[c] + 1]]
        start, before, origin = starts[order[c]], laws[c], origins[c]
        low = max(origin + start, n - most[c + 1])
        high = min(origin + len(before) + start + len(window) - 2, n - least[c + 1])
        if low > high:
            return 0.0
        first = low - start - len(window) + 1
        law = _correlate(window[::-1], before, first - origin, high - low + 1)
        from_, to = _trimmed(law)
        laws.append(law[from_:to])
        origins[c + 1] = low + from_
    # The last cell makes up what is missing: a(s) = w(n - s).
    window = weights[ends[order[cells - 1]] : ends[order[cells - 1] + 1]]
    first = n - starts[order[cells - 1]] - len(window) + 1
    after, total, above = window[::-1].copy(), 0.0, float(n)
    for c in range(cells - 1, 0, -1):
        law, origin = laws[c], origins[c]
        window, start = np.ones(1), 0
        if c < cells - 1:
            window, start = weights[ends[order[c]] : ends[order[c] + 1]], starts[order[c]]
        after = _correlate(window, after, origin + start - first, len(law))
        first = origin
        total = moment = 0.0
        for s in range(len(law)):
            both = law[s] * after[s]
            total += both
            moment += s * both
        if total == 0.0:
            return 0.0
        mean = origin + moment / total
        means[order[c]] = above - mean
        above = mean
    means[order[0]] = above
    return total


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
def _by_inversion(weights: Any, offsets: Any, starts: Any, modes: Any, n: Any, variance: Any, means: Any) -> Any:
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
def coefficient(
    weights: Any, ends: Any, starts: Any, modes: Any, n: Any, variance: Any, smooth: Any, means: Any
) -> Any:
    """Return the coefficient of n in the product of some series, and write the mean index of each.

    Parameters
    ----------
    weights
        The windows' probabilities, one after the other.
    ends
        Zero, then where each window ends.
    starts, modes
        First and most likely index of each window.
    n
        The index wanted, about a standard deviation from the sum of the means or nearer.
    variance
        Of the sum.
    smooth
        Whether no series has a kink.
    means
        Written: E[index | sum is n] of every cell.
    """
    order = np.argsort(modes)
    cells, widest, wide = len(order), 0, 0
    for c in range(cells):
        widest = max(widest, ends[c + 1] - ends[c])
    pairs = terms = 0.0
    for c in range(cells):
        width = ends[order[c] + 1] - ends[order[c]]
        wide += 8 * width >= widest
        if 0 < c < cells - 1:
            pairs += terms * width
        terms += width
    if pairs > (_SMOOTH if smooth or wide >= _MANY else _KINKED) * terms:
        return _by_inversion(weights, ends, starts, modes, n, variance, means)
    return _by_sums(weights, ends, starts, order, n, means)
