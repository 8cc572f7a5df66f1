"""The flip probability that a privacy target asks for."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from dpbayes._arguments import positive_finite, probability_below_one
from dpbayes.bloom._checks import MAX_FILTERS, MIN_FLIP_PROB, Definition, check_count, check_definition
from dpbayes.bloom.all_pairs import all_pairs_epsilon
from dpbayes.bloom.claims import EpsilonClaim
from dpbayes.bloom.many_filters import filters_loss
from dpbayes.bloom.transition import largest_loss
from dpbayes.bloom.worst_count import one_filter_epsilon
from dpbayes.errors import InputError

__all__ = ["bloom_epsilon", "flip_prob_for"]

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

    Returns
    -------
    EpsilonClaim

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
    if pairs not in ("paper", "all"):
        raise InputError(f"pairs must be 'paper' or 'all', got {pairs!r}; only 'all' protects every input")
    k = check_count(n_filters, "n_filters", low=1, high=MAX_FILTERS)
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
        Deterministic. The upper end of `bloom_epsilon` at it does not exceed the target.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> p = flip_prob_for(epsilon=0.2, delta=1e-3, n_filters=1, n_bits=500)
    >>> bloom_epsilon(flip_prob=p, delta=1e-3, n_filters=1, n_bits=500).upper <= 0.2
    True
    """
    target = positive_finite(epsilon, "epsilon", remedy="ln 3 = 1.0986 is the paper's")
    delta = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / number of people")
    k = check_count(n_filters, "n_filters", low=1, high=MAX_FILTERS)
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
        return float(np.log(max(claim.upper, 1e-300)) - np.log(target))

    # Here each filter's share is target / k without any help from the crowd: enough for pure differential privacy.
    # The hair above it covers rounding where nothing less is enough.
    high = 1.0 / (1.0 + float(np.exp(target / k))) + 0.2 * _ACCURACY
    low, excess_low = high, 0.0
    while excess_low <= 0.0:
        high, low = low, 0.5 * low
        if low < MIN_FLIP_PROB:
            return high
        excess_low = excess(low)
    return _illinois(excess, low, high, excess_low)


def _illinois(excess: Callable[[float], float], low: float, high: float, excess_low: float) -> float:
    """Return the upper end of a bracket of the root, at most 1e-8 wide: false position, safeguarded."""
    excess_high, side = excess(high), 0
    if excess_high > 0.0:
        raise InputError(f"flip_prob {high} should be enough and is not; ask for a larger epsilon or delta")
    while high - low > _ACCURACY:
        span = high - low
        guess = high - span * max(excess_high, -50.0) / (max(excess_high, -50.0) - excess_low)
        # Aim a hair past the root, so that the far end of the bracket moves too.
        guess += 0.3 * _ACCURACY * (1 if side >= 0 else -1)
        middle = min(max(guess, low + 0.25 * _ACCURACY), high - 0.25 * _ACCURACY)
        value = excess(middle)
        if value <= 0.0:
            high, excess_high = middle, min(value, -1e-300)
            excess_low = 0.5 * excess_low if side == 1 else excess_low
            side = 1
        else:
            low, excess_low = middle, value
            excess_high = 0.5 * excess_high if side == -1 else excess_high
            side = -1
        if high - low > 0.5 * span:  # false position has stalled: halve once
            middle = 0.5 * (low + high)
            value = excess(middle)
            low, high = (low, middle) if value <= 0.0 else (middle, high)
            excess_low, excess_high = (excess_low, min(value, -1e-300)) if value <= 0.0 else (value, excess_high)
            side = 0
    return high
