"""Epsilon of Bloom filters in one call, the flip probability that a target asks for, and figures of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from dpbayes._arguments import one_of, positive_finite, probability_below_one, whole_number
from dpbayes.bloom.all_pairs import all_pairs_epsilon
from dpbayes.bloom.claims import MAX_FILTERS, MIN_FLIP_PROB, PEOPLE, Definition, EpsilonClaim, check_definition
from dpbayes.bloom.filters import largest_loss
from dpbayes.bloom.many_filters import filters_loss
from dpbayes.bloom.one_filter import one_filter_epsilon
from dpbayes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pairs = Literal["paper", "all"]
_ACCURACY = 1e-8


def bloom_epsilon(
    *,
    flip_prob: float,
    delta: float,
    n_filters: int,
    n_bits: int,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
) -> EpsilonClaim:
    """Return epsilon of k filters, saying which pairs of inputs it covers.

    Parameters
    ----------
    flip_prob, delta, n_filters, n_bits
        Flip probability p, delta, filters k and positions m.
    definition
        "tight" or "quantile".
    pairs
        "paper" for the pair that the paper calls worst, "all" for a number that holds for every pair (tight only). One
        filter is always covered exhaustively.

    Raises
    ------
    InputError
        If a value is out of range, or a quantile is asked for all pairs of several filters.

    Examples
    --------
    >>> print(bloom_epsilon(flip_prob=0.2, delta=1e-3, n_filters=1, n_bits=1000))
    epsilon 0.0813509 at delta 0.001 (tight; all pairs, exhaustive)
    """
    check_definition(definition)
    one_of(pairs, get_args(Pairs), "pairs", remedy="only 'all' protects every input")
    k = whole_number(n_filters, "n_filters", high=MAX_FILTERS)
    if k == 1:
        return one_filter_epsilon(n_bits=n_bits, flip_prob=flip_prob, delta=delta, definition=definition)
    if pairs == "paper":
        loss = filters_loss(n_filters=k, n_bits=n_bits, flip_prob=flip_prob)
        return loss.claim(delta, definition=definition)
    if definition == "quantile":
        raise InputError("the bound for all pairs is for the tight definition; the quantile one bounds no other pair")
    return all_pairs_epsilon(n_filters=k, n_bits=n_bits, flip_prob=flip_prob, delta=delta)


def flip_prob_for(
    *,
    epsilon: float,
    delta: float,
    n_filters: int,
    n_bits: int,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
) -> float:
    """Return the smallest flip probability, to 1e-8, whose certified epsilon is at most `epsilon`.

    Parameters
    ----------
    epsilon
        Target, between 1e-8 k, below which flip probabilities agree with 1/2 to 1e-8, and k ln(1e12) = 27.6 k, the
        cost of k filters at the least flip probability supported, 1e-12.
    delta, n_filters, n_bits, definition, pairs
        As in `bloom_epsilon`, of which this is the inverse.

    Returns
    -------
    float
        Deterministic. The upper bound of `bloom_epsilon` at it does not exceed the target.

    Examples
    --------
    >>> p = flip_prob_for(epsilon=0.2, delta=1e-3, n_filters=1, n_bits=500)
    >>> bloom_epsilon(flip_prob=p, delta=1e-3, n_filters=1, n_bits=500).upper <= 0.2
    True
    """
    # scipy.optimize takes longer to import than the first answer for the paper's pair takes altogether.
    from scipy.optimize import brentq

    target = positive_finite(epsilon, "epsilon", remedy="ln 3 = 1.0986 is the paper's")
    delta = probability_below_one(delta, "delta", remedy=PEOPLE)
    k = whole_number(n_filters, "n_filters", high=MAX_FILTERS)
    low, high = _ACCURACY * k, largest_loss(k, MIN_FLIP_PROB)
    if not low <= target <= high:
        raise InputError(
            f"epsilon must be between {low:g} and {high:.4g} for n_filters={k}, got {target!r}; "
            f"that is what flip probabilities from {MIN_FLIP_PROB:g} to 0.5 can promise"
        )

    def excess(flip_prob: float) -> float:
        claim = bloom_epsilon(
            flip_prob=flip_prob, delta=delta, n_filters=k, n_bits=n_bits, definition=definition, pairs=pairs
        )
        return float(np.log(max(claim.upper / target, 1e-9)))

    # Here each filter's share is target / k without any help from the others, as pure
    # differential privacy needs. The hair above it covers rounding where nothing less is enough.
    high = 1.0 / (1.0 + float(np.exp(target / k))) + 0.2 * _ACCURACY
    low = high
    while excess(low) <= 0.0:
        high, low = low, 0.5 * low
        if low < MIN_FLIP_PROB:
            return high
    # The certified bound is not quite continuous: step from its root to where it is kept.
    flip_prob = float(brentq(excess, low, high, xtol=0.2 * _ACCURACY)) if low < high else high
    while excess(flip_prob) > 0.0:
        flip_prob += 0.2 * _ACCURACY
        if flip_prob >= 0.5:
            raise InputError(f"no flip_prob below 0.5 is enough for epsilon {target!r}; ask for a larger one, or delta")
    return flip_prob


# What the figures cover.
_COVERS = {
    "paper": "one filter: all pairs; several: the paper's pair; one position differs",
    "all": "all pairs (several filters: an upper bound); one position differs",
}
_LEAST = 1e-4


def epsilon_figure(
    *,
    n_filters: Sequence[int],
    n_bits: Sequence[int],
    delta: float,
    flip_probs: Sequence[float] | None = None,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
) -> Figure:
    """Plot epsilon against the flip probability, one line for each number of filters and of bits."""
    import matplotlib.pyplot as plt

    grid = np.linspace(0.05, 0.45, 17) if flip_probs is None else np.asarray(flip_probs)
    figure, axis = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for colour, k in enumerate(n_filters):
        for m, style in zip(n_bits, ("-", "--", ":", "-.") * len(n_bits), strict=False):
            epsilons = [
                bloom_epsilon(flip_prob=p, delta=delta, n_filters=k, n_bits=m, definition=definition, pairs=pairs).upper
                for p in grid
            ]
            # Below the total variation delta is enough on its own: epsilon 0 has no place on a log axis.
            visible = np.where(np.array(epsilons) > _LEAST, epsilons, np.nan)
            axis.plot(grid, visible, color=f"C{colour}", linestyle=style, label=f"k = {k}, m = {m:,}")
    axis.set_yscale("log")
    axis.set_xlabel("flip probability")
    axis.set_ylabel(f"epsilon at delta {delta:g} ({definition})")
    axis.set_title(
        f"{_COVERS[pairs]}\na line ends where delta {delta:g} is enough for epsilon 0", fontsize=9, loc="left"
    )
    axis.legend(fontsize=8)
    return figure


def flip_prob_figure(
    *,
    n_filters: Sequence[int],
    n_bits: Sequence[int],
    epsilon: float,
    delta: float,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
    flip_probs: Mapping[tuple[int, int], float] | None = None,
) -> Figure:
    """Plot the flip probability that a target asks for against the number of filters."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    for m in n_bits:
        needed = [
            flip_prob_for(epsilon=epsilon, delta=delta, n_filters=k, n_bits=m, definition=definition, pairs=pairs)
            if flip_probs is None
            else flip_probs[k, m]
            for k in n_filters
        ]
        axis.plot(list(n_filters), needed, marker="o", label=f"m = {m:,}")
    axis.set_xticks(list(n_filters))
    axis.set_xlabel("filters")
    axis.set_ylabel(f"flip probability for epsilon {epsilon:.4g}\nat delta {delta:g} ({definition})")
    axis.set_title(_COVERS[pairs], fontsize=9, loc="left")
    axis.legend()
    return figure
