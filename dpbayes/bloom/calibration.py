"""Epsilon of Bloom filters in one call, the flip probability for a target, and the exact epsilon of one filter.

One filter's neighbouring inputs D and D' differ in one bit, 0 in D and 1 in D', and share the other m - 1 bits,
`count_ones` of which are 1. C counts the output ones among the shared bits; with f its pmf and G(t) = P(C >= t),

    quantile: ln R at the largest output t with P(D' gives >= t) = G(t) + q f(t - 1) > delta
    tight:    delta(epsilon) = max_t [(q - e^epsilon p) f(t - 1) - (e^epsilon - 1) G(t)].

`CountTails` reads f and G of all counts at once off a tilted characteristic function; those within 1e-8 of the maximum
are enumerated exactly. Neither definition is unimodal in the count, so no shortcut is taken (docs/bloom.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from scipy.special import ndtri

from dpbayes._arguments import Floats, Ints, one_of, positive_finite, probability_below_one, whole_number
from dpbayes.bloom.claims import (
    MAX_FILTERS,
    MIN_FLIP_PROB,
    PEOPLE,
    Definition,
    EpsilonClaim,
    check_definition,
    check_flip_prob,
)
from dpbayes.bloom.filters import largest_loss
from dpbayes.bloom.many_filters import all_pairs_epsilon, filters_loss
from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import Bounds
from dpbayes.privacy.losses import PrivacyLoss
from dpbayes.privacy.rounding import least_where_kept

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
        return filters_loss(n_filters=k, n_bits=n_bits, flip_prob=flip_prob).claim(delta, definition=definition)
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
    target = positive_finite(epsilon, "epsilon", remedy="ln 3 = 1.0986 is the paper's")
    delta = probability_below_one(delta, "delta", remedy=PEOPLE)
    k = whole_number(n_filters, "n_filters", high=MAX_FILTERS)
    low, high = _ACCURACY * k, largest_loss(k, MIN_FLIP_PROB)
    if not low <= target <= high:
        raise InputError(
            f"epsilon must be between {low:g} and {high:.4g} for n_filters={k}, got {target!r}; "
            f"that is what flip probabilities from {MIN_FLIP_PROB:g} to 0.5 can promise"
        )

    @cache
    def excess(flip_prob: float) -> float:
        if flip_prob >= 0.5:
            return -1.0  # ends the search
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
    flip_prob = least_where_kept(excess, low, high, step=0.2 * _ACCURACY)
    if flip_prob >= 0.5:
        raise InputError(f"no flip_prob below 0.5 is enough for epsilon {target!r}; ask for a larger one, or delta")
    return flip_prob


# --- one filter ------------------------------------------------------------------------------------------------------

# Log of the mass, relative to the mode, below which a binomial is cut; what is cut stays below 1e-59.
_FLOOR = 140.0
# Outputs rarer than this (relative to the mode) are left out: there the cut terms would show in the ratio.
_TRIM = 95.0


def output_laws(*, n_bits: int, flip_prob: float, count_ones: int) -> tuple[Ints, Floats, Floats]:
    """Return what one filter can give out under two inputs that differ in one bit: counts of ones, their two laws."""
    m, p = whole_number(n_bits, "n_bits"), check_flip_prob(flip_prob)
    ones = whole_number(count_ones, "count_ones", low=0, high=m - 1)
    q = 1.0 - p
    (first_one, law_one), (first_zero, law_zero) = _binomial(ones, q), _binomial(m - 1 - ones, p)
    shared = np.convolve(law_one, law_zero)
    without = q * np.append(shared, 0.0) + p * np.append(0.0, shared)
    with_one = p * np.append(shared, 0.0) + q * np.append(0.0, shared)
    keep = np.flatnonzero(np.minimum(without, with_one) > np.exp(-_TRIM) * without.max())
    return first_one + first_zero + keep, without[keep], with_one[keep]


def _binomial(n: int, p: float) -> tuple[int, np.ndarray]:
    """Return a binomial law cut where it is below e^-140 of its mode."""
    if n == 0:
        return 0, np.ones(1)
    mode = min(n, int((n + 1) * p))
    half = int(np.sqrt(2.0 * _FLOOR * n * p * (1.0 - p)) + _FLOOR) + 2
    above, below = np.arange(mode, min(n, mode + half)), np.arange(max(0, mode - half), mode)
    odds = p / (1.0 - p)
    rise = np.cumsum(np.log((n - above) / (above + 1.0) * odds))
    fall = np.cumsum(np.log((n - below) / (below + 1.0) * odds)[::-1])[::-1]
    logs = np.concatenate([-fall, [0.0], rise])
    keep = np.flatnonzero(logs > -_FLOOR)
    mass = np.exp(logs[keep[0] : keep[-1] + 1])
    return max(0, mode - half) + int(keep[0]), mass / mass.sum()


_Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

# Outputs around the guessed one that every pass evaluates.
_REACH = np.arange(-4, 5)
_ROWS = 4096
# How often the window is moved; a count whose answer is still outside is left to enumeration.
_MOVES = 200
_BASE = 256
_PI = np.longdouble("3.14159265358979323846264338327950288")
# Bernstein's inequality with this exponent leaves 1e-17 outside a period.
_EXPONENT = 40.0


class _Nodes:
    """Characteristic function of the tilted law at the nodes of one period."""

    def __init__(self, n: int, p: float, theta: float) -> None:
        grow, q = np.exp(np.longdouble(theta)), 1 - np.longdouble(p)
        zero, one = p * grow / (q + p * grow), q * grow / (p + q * grow)
        self.theta = theta
        self.mean = float(zero), float(one)  # of a shared bit 0 and 1, tilted
        # Log moment-generating functions, less theta times the mean.
        self.log_scale = float(np.log(q + p * grow) - theta * zero), float(np.log(p + q * grow) - theta * one)
        variance = n * float(max(zero * (1 - zero), one * (1 - one)))
        half = _EXPONENT / 3 + np.sqrt((_EXPONENT / 3) ** 2 + 2 * _EXPONENT * variance)
        self.period = period = 2 * int(np.ceil(half)) + 2 * _REACH.size
        # Extended precision: frequencies and logs of characteristic factors are multiplied by counts up to m.
        omega = 2 * _PI * np.arange(period // 2 + 1, dtype=np.longdouble) / period
        log_zero, log_one = (np.log(1 - mean + mean * np.exp(1j * omega)) for mean in (zero, one))
        weight = np.full(omega.size, 2.0 / period)  # a node stands for its conjugate too
        weight[[0, -1]] = 1.0 / period  # the period is even: the nodes 0 and pi are their own conjugates
        keep = n * np.maximum(log_zero.real, log_one.real) > -_EXPONENT - 4
        keep[0] = True
        self.weight, self.omega, self.log_zero, self.log_one = (x[keep] for x in (weight, omega, log_zero, log_one))


def _powers(exponent: np.ndarray, largest: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return exp(count * exponent) as a function of whole counts, from two tables of _BASE rows each or so."""
    ones, bases = np.arange(_BASE), _BASE * np.arange(largest // _BASE + 1)
    low, high = (np.exp(counts[:, None] * exponent).astype(complex) for counts in (ones, bases))
    return lambda counts: high[counts // _BASE] * low[counts % _BASE]


class CountTails:
    """Upper tails of the output count for every count of shared ones."""

    def __init__(self, n_bits: int, flip_prob: float, z: float) -> None:
        self.n = n_bits - 1
        self.p, self.q = flip_prob, 1.0 - flip_prob
        self.stddev = float(np.sqrt(self.n * self.p * self.q))
        self.z = z
        # The tilt that moves a Gaussian's mean z standard deviations up, kept moderate for nearly empty laws.
        nodes = self._nodes = _Nodes(self.n, self.p, float(np.clip(z / max(self.stddev, 1e-9), 0.0, 2.0)))
        self._ones = _powers(nodes.log_one - nodes.log_zero, self.n)
        self._start = (np.exp(self.n * nodes.log_zero) * nodes.weight).astype(complex)
        # The phase repeats with the period, so outputs are reduced modulo it.
        self._outputs = _powers(-1j * nodes.omega, nodes.period)

    @classmethod
    def for_epsilon(cls, n_bits: int, flip_prob: float, epsilon: float) -> CountTails:
        """Look where R = e^epsilon, which must be below q/p: a Gaussian law of the output puts it at this z."""
        p, q, grow = flip_prob, 1.0 - flip_prob, np.exp(epsilon)
        slope = float(np.log((grow * q - p) / (q - grow * p)))
        return cls(n_bits, flip_prob, slope * float(np.sqrt((n_bits - 1) * p * q)))

    def _guess(self, ones: np.ndarray) -> np.ndarray:
        """Cornish-Fisher guess of the output at `z`."""
        p, q, zeros = self.p, self.q, self.n - ones
        skew = p * q * (1 - 2 * p) * (zeros - ones) / max(self.stddev, 1.0) ** 3
        shift = np.clip(self.z, -40, 40) + np.clip(skew * (self.z**2 - 1) / 6, -1, 1)
        return np.rint(ones * q + zeros * p + self.stddev * shift).astype(np.int64)

    def around(self, ones: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f and G at ``centre + _REACH`` for each count, shape (counts, reach)."""
        nodes = self._nodes
        mean = ones * nodes.mean[1] + (self.n - ones) * nodes.mean[0]
        wave = self._ones(ones) * self._outputs(centre % nodes.period) * self._start
        log_scale = ones * nodes.log_scale[1] + (self.n - ones) * nodes.log_scale[0]
        scale = np.exp(log_scale - nodes.theta * (centre - mean))
        step = np.exp(-(nodes.theta + 1j * nodes.omega.astype(float)))
        at = step[:, None] ** _REACH[None, :]
        # Geometric sum over t, t + 1, ...; what lies beyond half a period past t is below 1e-17 of the whole.
        length = nodes.period // 2
        with np.errstate(invalid="ignore", divide="ignore"):
            sums = np.where(np.abs(1 - step) < 1e-15, length, (1 - step**length) / (1 - step))
        both = (wave @ np.hstack([at, at * sums[:, None]])).real * scale[:, None]
        return both[:, : _REACH.size], both[:, _REACH.size :]

    def quantile_log_ratios(self, delta: float) -> np.ndarray:
        """Return, for every count of shared ones, ln R at the quantile of the paper's definition; shape (m,)."""

        def quantile(mass: np.ndarray, tail: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            upper = tail[:, 1:] + self.q * mass[:, :-1]  # P(D' gives >= t) at centre + _REACH[1:]
            above = (upper > delta).sum(axis=1)
            move = np.where(above == 0, -1, np.where(above == upper.shape[1], 1, 0))
            place = np.clip(above, 1, upper.shape[1])[:, None]
            here, before = np.take_along_axis(mass, place, 1)[:, 0], np.take_along_axis(mass, place - 1, 1)[:, 0]
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.log((self.p * here + self.q * before) / (self.q * here + self.p * before))
            return ratio, move

        return self._each(quantile, np.arange(self.n + 1))

    def deltas(self, epsilon: float, ones: np.ndarray) -> np.ndarray:
        """Return delta(epsilon) of ln R under D' for the given counts."""
        gain = self.q - np.exp(epsilon) * self.p

        def hockey_stick(mass: np.ndarray, tail: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value = gain * mass[:, :-1] - np.expm1(epsilon) * tail[:, 1:]
            best = value.argmax(axis=1)
            # R is increasing, so the value rises up to the best threshold and falls after it: a maximum inside is it.
            move = np.where(best == 0, -1, np.where(best == value.shape[1] - 1, 1, 0))
            return value.max(axis=1), move

        return self._each(hockey_stick, ones)

    def _each(self, evaluate: _Evaluate, ones: np.ndarray) -> np.ndarray:
        """Evaluate in rows, moving the window where the answer lies outside; infinite where it is never found."""
        answer = np.empty(ones.size)
        for start in range(0, ones.size, _ROWS):
            rows = np.arange(start, min(start + _ROWS, ones.size))
            centre = self._guess(ones[rows])
            for _ in range(_MOVES):
                value, move = evaluate(*self.around(ones[rows], centre))
                answer[rows[move == 0]] = value[move == 0]
                rows, centre = rows[move != 0], (centre + move * (_REACH.size - 3))[move != 0]
                if not rows.size:
                    break
            answer[rows] = np.inf
        return answer


# Relative error allowed to the scan; whatever comes this close to the maximum is enumerated again.
_SCAN_ERROR = 1e-8
# Filters this short are enumerated count by count.
_ALL_BELOW = 128


def one_filter_loss(*, n_bits: int, flip_prob: float, count_ones: int) -> PrivacyLoss:
    """Return the exact privacy loss of one filter: D has `count_ones` ones, D' 1 more; "backward" is ln R under D'."""
    _, without, with_one = output_laws(n_bits=n_bits, flip_prob=flip_prob, count_ones=count_ones)
    # A convolution of that many positive terms and the running sums before it: two roundings a term.
    log_error = max(1e-13, 2.0**-51 * without.size)
    return PrivacyLoss.from_pmfs(np.log(without), np.log(with_one), log_error=log_error, adjacency="one-position")


def one_filter_epsilon(
    *, n_bits: int, flip_prob: float, delta: float, definition: Definition = "tight"
) -> EpsilonClaim:
    """Return epsilon of one filter over every pair of neighbouring inputs, by an exhaustive scan of the counts."""
    m, p = whole_number(n_bits, "n_bits"), check_flip_prob(flip_prob)
    delta = probability_below_one(delta, "delta", remedy=PEOPLE)
    quantile = check_definition(definition) == "quantile"
    search = _Search(m, p, delta, quantile)
    if m <= _ALL_BELOW:
        for count in range(m):
            search.enumerate(count)
    elif quantile:
        search.settle(CountTails(m, p, -float(ndtri(delta))).quantile_log_ratios(delta * (1 - _SCAN_ERROR)))
    else:
        search.climb()
    pair = f"{search.count} ones against {search.count + 1}"
    return EpsilonClaim(search.best, delta, definition, "all pairs, exhaustive", pair)


class _Search:
    """The largest epsilon over counts, each candidate enumerated at most once."""

    def __init__(self, m: int, p: float, delta: float, quantile: bool) -> None:
        self.m, self.p, self.delta, self.quantile = m, p, delta, quantile
        self.best, self.count = Bounds(0.0, 0.0), 0
        self._seen: set[int] = set()

    def enumerate(self, count: int) -> None:
        """Enumerate one count, in the direction that the scan covers (ln R under D')."""
        self._seen.add(count)
        law = one_filter_loss(n_bits=self.m, flip_prob=self.p, count_ones=count).backward.parts[0][0]
        if law.bounds(self.best.lower, tail=self.quantile).upper <= self.delta:
            return  # no worse than the best
        found = law.crossing(self.delta, tail=self.quantile)
        if found.upper > self.best.upper:
            self.count = count
        self.best = Bounds(max(found.lower, self.best.lower), max(found.upper, self.best.upper))

    def settle(self, scanned: np.ndarray) -> None:
        """Enumerate counts from the largest scanned value down until none can exceed the best."""
        for count in np.argsort(-scanned, kind="stable"):
            if scanned[count] < self.best.upper - _SCAN_ERROR * (1 + self.best.upper):
                break
            self.enumerate(int(count))

    def climb(self) -> None:
        """Raise epsilon to that of the worst count left, until no count exceeds delta at it."""
        # A good start spares passes: maxima lie near either end.
        ends = np.unique(np.geomspace(1, self.m, 12).astype(int)) - 1
        for count in np.unique(np.concatenate([ends, self.m - 1 - ends])):
            self.enumerate(int(count))
        left = np.arange(self.m)
        largest = float(np.log1p(-self.p) - np.log(self.p))
        while left.size and self.best.lower < largest * (1 - 1e-12):
            epsilon = self.best.lower
            deltas = CountTails.for_epsilon(self.m, self.p, epsilon).deltas(epsilon, left)
            exceeds = deltas > self.delta * (1 - _SCAN_ERROR)
            left, deltas = left[exceeds], deltas[exceeds]
            fresh = ~np.isin(left, list(self._seen))
            left, deltas = left[fresh], deltas[fresh]
            if left.size:
                self.enumerate(int(left[np.argmax(deltas)]))


# --- figures ---------------------------------------------------------------------------------------------------------

# What the figures cover.
_COVERS = {
    "paper": "one filter: all pairs; several: the paper's pair; one position differs",
    "all": "all pairs (several filters: an upper bound); one position differs",
}
_LEAST = 1e-4
_FLIP_PROBS = np.linspace(0.05, 0.45, 17)


def epsilon_figure(
    *,
    n_filters: Sequence[int],
    n_bits: Sequence[int],
    delta: float,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
    flip_probs: Sequence[float] | Floats = _FLIP_PROBS,
) -> Figure:
    """Plot epsilon against the flip probability, one line for each number of filters and of bits."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    common: dict[str, Any] = {"delta": delta, "definition": definition, "pairs": pairs}
    for colour, k in enumerate(n_filters):
        for m, style in zip(n_bits, ("-", "--", ":", "-.") * len(n_bits), strict=False):
            epsilons = [bloom_epsilon(flip_prob=p, n_filters=k, n_bits=m, **common).upper for p in flip_probs]
            # Below the total variation delta is enough on its own: epsilon 0 has no place on a log axis.
            visible = np.where(np.array(epsilons) > _LEAST, epsilons, np.nan)
            axis.plot(flip_probs, visible, color=f"C{colour}", linestyle=style, label=f"k = {k}, m = {m:,}")
    axis.set(yscale="log", xlabel="flip probability", ylabel=f"epsilon at delta {delta:g} ({definition})")
    title = f"{_COVERS[pairs]}\na line ends where delta {delta:g} is enough for epsilon 0"
    axis.set_title(title, fontsize=9, loc="left")
    axis.legend(fontsize=8)
    return figure


def flip_prob_figure(
    flip_probs: Mapping[tuple[int, int], float], *, epsilon: float, delta: float, definition: Definition, pairs: Pairs
) -> Figure:
    """Plot the flip probabilities that a target asks for, by (filters, bits), against the number of filters."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    n_filters = list(dict.fromkeys(k for k, _ in flip_probs))
    for m in dict.fromkeys(m for _, m in flip_probs):
        axis.plot(n_filters, [flip_probs[k, m] for k in n_filters], marker="o", label=f"m = {m:,}")
    label = f"flip probability for epsilon {epsilon:.4g}\nat delta {delta:g} ({definition})"
    axis.set(xticks=n_filters, xlabel="filters", ylabel=label)
    axis.set_title(_COVERS[pairs], fontsize=9, loc="left")
    axis.legend()
    return figure
