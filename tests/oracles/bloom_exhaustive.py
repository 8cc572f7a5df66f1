"""The worst pair of inputs of a few short filters, by trying all of them.

The output's histogram of logos is all that the shuffle leaves, so its law under every input can be listed.
Complementing a filter and exchanging filters are bijections of outputs that map inputs to inputs; hence the differing
position may be taken to hold logo 0 against the logo with ones in the first h filters, h = 1, ..., k, and only the
multiset of the other m - 1 logos is enumerated.
"""

from collections.abc import Iterator
from math import comb

import numpy as np

from dpbayes._arguments import probability_below_one, whole_number
from dpbayes.bloom.claims import MAX_FILTERS, Definition, EpsilonClaim, check_definition, check_flip_prob
from dpbayes.bloom.filters import transition_matrix
from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import Bounds, LossLaw

# Table entries touched by a search: a few seconds.
_MOST_WORK = 3e8


def worst_pair(
    *, n_filters: int, n_bits: int, flip_prob: float, delta: float, definition: Definition = "tight"
) -> EpsilonClaim:
    """Return epsilon of a few short filters over every pair of neighbouring inputs, and the worst pair."""
    k, m = whole_number(n_filters, "n_filters", high=MAX_FILTERS), whole_number(n_bits, "n_bits")
    p, quantile = check_flip_prob(flip_prob), check_definition(definition) == "quantile"
    delta = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / number of people")
    # The histogram table has an axis for every logo but the last, whose count is what is left.
    log_work = (2**k - 1) * np.log(m + 1.0) + np.log(float(k)) + np.log(float(min(comb(m + 2**k - 2, m - 1), 10**18)))
    if log_work > np.log(_MOST_WORK):
        raise InputError(
            f"n_filters={k} with n_bits={m} has too many inputs and outputs to try all; "
            "use all_pairs_epsilon for an upper bound of any size"
        )
    kernel = transition_matrix(k, p)
    best, name = Bounds(0.0, 0.0), ""
    for counts, law in common_laws(kernel, m - 1):
        for differ in range(1, k + 1):
            first, second = _add(law, kernel[0]), _add(law, kernel[2**differ - 1])
            for one, two in ((first, second), (second, first)):
                found = _epsilon(one, two, delta, best.upper, quantile)
                if found.upper > best.upper:
                    best = found
                    name = f"logo 0 against {2**differ - 1} among others with logo counts {counts}"
    return EpsilonClaim(best, delta, definition, "all pairs, exhaustive", name)


def common_laws(kernel: np.ndarray, n: int) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield every multiset of `n` logos, as counts, with the law of the output histogram."""
    logos = kernel.shape[0]
    empty = np.zeros((n + 2,) * (logos - 1))
    empty[(0,) * (logos - 1)] = 1.0

    def extend(counts: tuple[int, ...], law: np.ndarray, left: int) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        if len(counts) == logos - 1:
            for _ in range(left):
                law = _add(law, kernel[logos - 1])
            yield (*counts, left), law
            return
        here = law
        for count in range(left + 1):
            yield from extend((*counts, count), here, left - count)
            if count < left:
                here = _add(here, kernel[len(counts)])

    yield from extend((), empty, n)


def _add(law: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Convolve a histogram law with one more position that gives logo x with probability row[x]."""
    added = row[-1] * law
    for axis in range(law.ndim):
        moved = [slice(None)] * law.ndim
        stay = [slice(None)] * law.ndim
        moved[axis], stay[axis] = slice(1, None), slice(None, -1)
        added[tuple(moved)] += row[axis] * law[tuple(stay)]
    return added


def _epsilon(p: np.ndarray, q: np.ndarray, delta: float, floor: float, quantile: bool) -> Bounds:
    """Return epsilon of P against Q if it may exceed `floor`, else zero."""
    keep = p > 0.0
    p, q = p[keep], q[keep]
    loss = np.log(p / q)
    over = p[loss > floor].sum() if quantile else np.maximum(p - np.exp(floor) * q, 0.0).sum()
    if over <= delta:
        return Bounds(0.0, 0.0)
    order = np.argsort(loss, kind="stable")
    law = LossLaw(loss[order], p[order], log_error=1e-13, shift=2e-13)
    return law.crossing(delta, tail=quantile)
