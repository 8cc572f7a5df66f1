"""The paper's route to the privacy loss of one filter, an independent check of the enumeration.

With z = (q/p)^2 and xi hypergeometric, R(y_x | y_d) = (p/q) E z^xi(m, y_d + 1, y_x) / E z^xi(m, y_d, y_x), and the
ratio of the two means is (m - y_d - y_x) / (m - y_d) times 2F1(a, b; c; z) / 2F1(a + 1, b; c + 1; z), a = -y_d - 1, b
= -y_x, c = m - y_x - y_d (the released code divides by m - y_x; the paper's m - y_d is right). Gauss's continued
fraction gives that last ratio,

    2F1(a, b; c; z) / 2F1(a + 1, b; c + 1; z) = 1 + k_0 z / (1 + k_1 z / (1 + ...)),

    k_i = (a - c - i/2)(b + i/2) / ((c + i)(c + i + 1))               for even i,
    k_i = (b - c - (i + 1)/2)(a + (i + 1)/2) / ((c + i)(c + i + 1))   for odd i.

For c > 0 no k_i is negative until one is zero, which ends the fraction after at most 2 min(y_x, y_d + 1) terms; and
with positive terms the value lies between the fraction cut after n terms and after n + 1. Complementing bits, (y_d,
y_x) to (m - y_d - 1, m - y_x) and R to 1/R, maps c <= 0 to c > 0.
"""

from typing import Any

import numpy as np

from dpbayes._arguments import whole_number
from dpbayes.bloom.claims import check_flip_prob
from dpbayes.errors import InputError

_BLOCK = 16


def _fraction_block(tail: Any, a: Any, b: Any, c: Any, z: Any, start: Any) -> Any:
    """Fold `_BLOCK` terms, from start + _BLOCK - 1 down to start (even), into 1 + k_i z / tail."""
    for offset in reversed(range(_BLOCK)):
        i = start + offset
        half = (i + offset % 2) / 2.0
        numerator = (b - c - half) * (a + half) if offset % 2 else (a - c - half) * (b + half)
        # Past the term that is zero the fraction has ended; what stands there must not matter, nor change sign.
        term = np.maximum(numerator, 0.0) / ((c + i) * (c + i + 1))
        tail = 1.0 + term * z / tail
    return tail


def gauss_log_ratio(
    count_ones: Any, output_ones: Any, *, n_bits: int, flip_prob: float, rtol: float = 1e-13
) -> np.ndarray:
    """Return the paper's ln R(y_x | y_d) of one filter through Gauss's continued fraction."""
    m, p = whole_number(n_bits, "n_bits"), check_flip_prob(flip_prob)
    y_d, y_x = (np.asarray(value) for value in (count_ones, output_ones))
    for name, value, high in (("count_ones", y_d, m - 1), ("output_ones", y_x, m)):
        if value.dtype.kind not in "iu" or (value < 0).any() or (value > high).any():
            raise InputError(f"{name} must be whole numbers between 0 and {high}, got {value!r}")
    y_d, y_x = np.broadcast_arrays(y_d, y_x)
    shape = y_d.shape
    flat_d, flat_x = y_d.ravel().astype(float), y_x.ravel().astype(float)
    mirrored = flat_x + flat_d >= m
    ones = np.where(mirrored, m - flat_d - 1, flat_d)
    out = np.where(mirrored, m - flat_x, flat_x)
    fraction = _fraction(-ones - 1, -out, m - out - ones, ((1 - p) / p) ** 2, rtol)
    log_ratio = np.log(p / (1 - p)) + np.log((m - ones - out) / (m - ones)) + np.log(fraction)
    return np.where(mirrored, -log_ratio, log_ratio).reshape(shape)


def _fraction(a: np.ndarray, b: np.ndarray, c: np.ndarray, z: float, rtol: float) -> np.ndarray:
    """Evaluate with 16, 32, 64, ... terms until two successive convergents agree or every fraction has ended."""
    longest = int(2 * np.min([np.max(-a, initial=1), np.max(-b, initial=1)])) + 2
    terms = _BLOCK
    while True:
        ends = []
        # The last tail being 1 or the next convergent's: the two bracket the value.
        for tail in (np.ones_like(a), np.full_like(a, np.inf)):
            for start in range(terms - _BLOCK, -1, -_BLOCK):
                tail = _fraction_block(tail, a, b, c, np.float64(z), np.float64(start))
            ends.append(tail)
        if terms >= longest or np.all(np.abs(ends[0] - ends[1]) <= rtol * np.abs(ends[0])):
            return ends[0]
        terms *= 2


def simulated_quantile_epsilon(
    *, n_bits: int, flip_prob: float, count_ones: int, delta: float, n_simulations: int, rng: np.random.Generator
) -> float:
    """Return the paper's simulated epsilon of one filter: a check, not a certificate."""
    m, p = whole_number(n_bits, "n_bits"), check_flip_prob(flip_prob)
    ones = whole_number(count_ones, "count_ones", low=0, high=m - 1)

    def log_ratio(inputs: int) -> np.ndarray:
        out = rng.binomial(inputs, 1 - p, size=n_simulations) + rng.binomial(m - inputs, p, size=n_simulations)
        values, place = np.unique(out, return_inverse=True)
        return gauss_log_ratio(ones, values, n_bits=m, flip_prob=p)[place]

    under = np.quantile(-log_ratio(ones), 1 - delta, method="inverted_cdf")
    under_alternative = np.quantile(log_ratio(ones + 1), 1 - delta, method="inverted_cdf")
    return float(max(under, under_alternative))
