"""What bounds for general shuffled randomizers say about one filter, beside the exact number.

A filter's bit is binary randomized response with epsilon_0 = ln(q/p), shuffled among n = m people. Bounds that hold
for any randomizer reduce it to clones: of the n - 1 others, C ~ Binomial(n - 1, 2 r) answer like one of the two
inputs at random, A ~ Binomial(C, 1/2) of them like the first, and the differing person answers like the first with
probability beta_p, like the second with beta_1, like neither otherwise. The pair to tell apart is the two orders of
(A + first, C - A + second).
"""

from typing import Literal

import numpy as np
from scipy.stats import binom

from dpbayes._arguments import probability_below_one, whole_number
from dpbayes.bloom.claims import check_flip_prob
from dpbayes.errors import InputError


def general_shuffle_epsilon(
    *, n_bits: int, flip_prob: float, delta: float, method: Literal["clones", "variation-ratio"]
) -> float:
    """Return a bound on one filter's epsilon that uses nothing but its local randomizer's privacy."""
    m, p = whole_number(n_bits, "n_bits"), check_flip_prob(flip_prob)
    delta = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / number of people")
    ratio = (1 - p) / p
    if method == "clones":
        # Each other answers like a given input with probability at least e^-epsilon_0 / 2.
        clone, first = 1.0 / ratio, ratio / (ratio + 1.0)
    elif method == "variation-ratio":
        # alpha = beta / (ratio - 1) with beta = q - p the total variation; r = alpha ratio / ratio.
        alpha = (1 - 2 * p) / (ratio - 1.0)
        clone, first = 2.0 * alpha, alpha * ratio
    else:
        raise InputError(f"method must be 'clones' or 'variation-ratio', got {method!r}")
    low, high = 0.0, float(np.log(ratio))
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _delta(middle, m - 1, clone, first) > delta else (low, middle)
    return high


def _delta(epsilon: float, n: int, clone: float, first: float) -> float:
    """Return the hockey-stick divergence of the reduced pair, whose differing answer is one of the two for certain.

    Given s = C + 1 answers that are like one of the inputs, the count of firsts a has probability first Bin(a - 1) +
    (1 - first) Bin(a) under one order, with Bin the law of Binomial(s - 1, 1/2), and the other way round under the
    other; the ratio grows with a, and Bin(a - 1) / Bin(a) = a / (s - a) gives the threshold.
    """
    clones = np.arange(int(binom.ppf(1e-13, n, clone)), int(binom.isf(1e-13, n, clone)) + 1)
    grow, other = np.exp(epsilon), 1.0 - first
    gain_first, gain_other = first - grow * other, other - grow * first
    if gain_first <= 0.0:
        return 0.0
    total = clones + 1
    # first count a at which gain_first a + gain_other (total - a) > 0
    threshold = np.floor(-gain_other * total / (gain_first - gain_other)) + 1
    tail = binom.sf(threshold - 1, clones, 0.5)
    before = binom.sf(threshold - 2, clones, 0.5)
    return float(binom.pmf(clones, n, clone) @ np.maximum(gain_first * before + gain_other * tail, 0.0)) + 2e-13
