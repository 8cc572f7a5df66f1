"""Epsilon of Bloom filters in one call, over every pair of neighbouring inputs, and the flip probability for a target.

The differing position holds logo a in D and b in D'; a `BackgroundShape` says how the logo c of all others lies to
them. With L_a(x) = T(a, x)/T(c, x) for the transition matrix T, delta(epsilon) of D' from D is the mean excess of one
sum of independent terms L_b - e^epsilon L_a. `all_pairs_epsilon` applies the theorem of docs/bloom.md to any
background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import comb, log
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import one_of, positive_finite, probability_below_one, whole_number
from dpbayes.bloom.claims import (
    MAX_FILTERS,
    MIN_FLIP_PROB,
    MOST_BITS,
    PEOPLE,
    Definition,
    EpsilonClaim,
    check_definition,
    check_flip_prob,
)
from dpbayes.bloom.filters import largest_loss
from dpbayes.bloom.many_filters import ROUNDING, binomial_law, column_sum, filters_loss
from dpbayes.bloom.one_filter import one_filter_epsilon
from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import Bounds
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


@dataclass(frozen=True, order=True)
class BackgroundShape:
    """How the logos a, b of the differing position and c of the others lie to each other."""

    differ: int  # filters h in which a and b differ
    like_b: int  # of these, filters i in which c agrees with b
    apart: int  # filters g in which a and b agree and c differs from them

    @property
    def from_a(self) -> int:
        """Filters in which c differs from a."""
        return self.like_b + self.apart

    @property
    def from_b(self) -> int:
        """Filters in which c differs from b."""
        return self.differ - self.like_b + self.apart

    def __str__(self) -> str:
        return (
            f"logos differ in {self.differ} filters, the others are {self.from_a} from the first "
            f"and {self.from_b} from the second"
        )


def background_shapes(n_filters: int, *, differ: int) -> list[BackgroundShape]:
    """Return all shapes of `n_filters` filters whose differing logos differ in `differ` of them."""
    return [BackgroundShape(differ, i, g) for i in range(differ + 1) for g in range(n_filters - differ + 1)]


def background_delta(
    shape: BackgroundShape, *, n_bits: int, flip_prob: float, epsilon: float, size: int = 2**14, exception: float = 1e-9
) -> Bounds:
    """Return certified bounds of delta(epsilon) of D' from D for one shape."""
    if epsilon >= largest_loss(shape.differ, flip_prob):
        return Bounds(0.0, 0.0)
    weights, values = _terms(shape, n_bits, flip_prob, epsilon)
    law = column_sum(
        weights, values, n=n_bits, x_max=np.inf, focus=0.0, side="upper", size=size, exception=exception, split=True
    )
    lower, upper = (float(end[0]) / n_bits for end in law.excess_bounds(np.zeros(1)))
    # The outputs that count have this probability under D' at most, and no more under D, e^epsilon times.
    counted = min(1.0, float(law.tail_bounds(np.zeros(1))[1][0]) * (1.0 / flip_prob - 1.0) ** shape.from_b)
    rounding = ROUNDING * (upper + 2.0 * counted)
    return Bounds(max(lower - rounding, 0.0), min(1.0, upper + rounding))


def _terms(shape: BackgroundShape, n: int, p: float, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the law of L_b - e^epsilon L_a for one of n positions: probabilities and ascending values."""
    groups = (shape.like_b, shape.differ - shape.like_b, shape.apart)
    flips = np.meshgrid(*(np.arange(size + 1) for size in groups), indexing="ij")
    weight = np.ones_like(flips[0], dtype=float)
    for flipped, size in zip(flips, groups, strict=True):
        weight = weight * binomial_law(size, p)[flipped]
    toward_a, toward_b, toward_both = flips
    odds = (1.0 - p) / p
    ratio_a = odds ** (2.0 * (toward_a + toward_both) - shape.from_a)
    ratio_b = odds ** (2.0 * (toward_b + toward_both) - shape.from_b)
    value = (ratio_b - np.exp(epsilon) * ratio_a).ravel()
    # With a term below -n times the largest the sum is negative whatever the others are: it may as well lie there.
    unique, place = np.unique(np.maximum(value, -n * max(value.max(), 0.0)), return_inverse=True)
    return np.bincount(place, weights=weight.ravel()), unique


# Lattices that rank shapes and that enclose the upper and the lower bound of one.
_RANK, _UPPER, _LOWER = 2**14, 2**18, 2**20
# The upper bound's relative accuracy, and the lower bound's first distance from it.
_STEP, _BACK = 1e-5, 2e-5


def worst_known_pair(*, n_filters: int, n_bits: int, flip_prob: float, delta: float) -> EpsilonClaim:
    """Return the largest epsilon over the pairs in which all positions but one hold the same logo.

    The named pair's epsilon is at least the lower bound, and no pair of this kind has one above the upper bound. The
    pair that the paper calls worst is of this kind, and not always the worst of it.
    """
    k, m = whole_number(n_filters, "n_filters", high=MAX_FILTERS), whole_number(n_bits, "n_bits", high=MOST_BITS)
    p = check_flip_prob(flip_prob)
    delta = probability_below_one(delta, "delta", remedy=PEOPLE)
    paper = filters_loss(n_filters=k, n_bits=m, flip_prob=p).epsilon_bounds(delta)
    low, high, name = paper.lower, paper.upper, BackgroundShape(k, 0, 0)
    # By monotonicity a shape is no worse than with all common filters apart; the paper's law is known more closely.
    left = [BackgroundShape(h, i, k - h) for h in range(1, k + 1) for i in range(h + 1) if h < k or 0 < i < k]
    search = _Search(m, p, delta)
    while left:
        excess = {shape: search.excess(shape, low, _RANK) for shape in left}
        left = [shape for shape in left if excess[shape] > 0.0]
        if left:
            left.remove(worst := max(left, key=excess.__getitem__))
            found = search.ends(worst, low)
            if found.lower > low:
                low, name = found.lower, worst
            high = max(high, found.upper)
    return EpsilonClaim(Bounds(low, high), delta, "tight", "one pair", str(name))


@dataclass(frozen=True)
class _Search:
    """Where the curve of a shape reaches delta."""

    n_bits: int
    flip_prob: float
    delta: float

    def curve(self, shape: BackgroundShape, epsilon: float, size: int) -> Bounds:
        """Return certified bounds of the shape's delta(epsilon)."""
        return background_delta(shape, n_bits=self.n_bits, flip_prob=self.flip_prob, epsilon=epsilon, size=size)

    def excess(self, shape: BackgroundShape, epsilon: float, size: int) -> float:
        """Return the log of the upper bound of the shape's curve over delta: at most 0 where it is safe."""
        return log(max(self.curve(shape, epsilon, size).upper, 1e-300) / self.delta)

    def ends(self, shape: BackgroundShape, least: float) -> Bounds:
        """Return certified bounds of where the curve falls to delta; a bound at `least` may lie further down."""
        upper, back = self._upper(shape, least), _BACK
        while (lower := upper * (1.0 - back)) > least:
            if self.curve(shape, lower, _LOWER).lower > self.delta:
                return Bounds(lower, upper)
            back = 2.0 * back
        return Bounds(least, upper)

    def _upper(self, shape: BackgroundShape, least: float) -> float:
        """Return an epsilon, at least `least`, at which the curve is at most delta for certain."""
        # scipy.optimize takes longer to import than the first answer for the paper's pair takes altogether.
        from scipy.optimize import brentq

        def over(epsilon: float) -> float:
            return self.excess(shape, epsilon, _UPPER)

        low, high, step = least, least, _STEP
        while over(high) > 0.0:
            low, high, step = high, max(high * (1.0 + step), 1e-9), 8.0 * step
        if high * (1.0 - _STEP) <= low:
            return high
        root, step = float(brentq(over, low, high, rtol=0.1 * _STEP)), 0.1 * _STEP
        while over(root * (1.0 + step)) > 0.0:  # the root may lie on either side of the curve's own
            step = 2.0 * step
        return root * (1.0 + step)


# Share of delta given to the event that there are few clones.
_FEW = 0.02
# Numbers of positions are tried on a geometric grid with this ratio.
_RATIO = 2.0**0.25
_GRID = {True: tuple(range(7)), False: (0, 1, 2, 4, 7, 12, 20)}
_SIZE = 2**12


def all_pairs_epsilon(*, n_filters: int, n_bits: int, flip_prob: float, delta: float) -> EpsilonClaim:
    """Return an epsilon (tight definition) that holds for every pair of neighbouring inputs of k filters."""
    worst = worst_known_pair(n_filters=n_filters, n_bits=n_bits, flip_prob=flip_prob, delta=delta)
    proof = _Proof(n_filters, n_bits, flip_prob, delta)
    low, high = max(worst.lower, 1e-12), largest_loss(n_filters, flip_prob)
    step = 1.02
    while low * step < high and not proof.holds(low * step):
        low, step = low * step, step**1.5
    high = min(high, low * step)
    while high - low > 0.01 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if proof.holds(middle) else (middle, high)
    bounds = Bounds(worst.lower, max(high, worst.upper))
    return EpsilonClaim(bounds, worst.delta, "tight", "all pairs, upper bound", f"any; {worst.pair}")


@dataclass
class _Proof:
    """Applies the theorem at one epsilon after another, keeping what carries over."""

    n_filters: int
    n_bits: int
    flip_prob: float
    delta: float
    # Number of positions on the grid that is enough for a shape, by the smallest epsilon at which that was found.
    enough: dict[BackgroundShape, list[tuple[float, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.few = _FEW * self.delta
        steps = int(np.ceil(np.log(self.n_bits) / np.log(_RATIO)))
        self.sizes = np.unique(np.rint(np.minimum(_RATIO ** np.arange(steps + 1), self.n_bits)).astype(int))

    def holds(self, epsilon: float) -> bool:
        """Whether the theorem proves (epsilon, delta) for logos at every distance."""
        return all(
            self._budget(h, epsilon) <= self.n_bits - 1
            for h in range(1, self.n_filters + 1)
            if epsilon < largest_loss(h, self.flip_prob)
        )

    def _budget(self, differ: int, epsilon: float) -> float:
        """Return sum_c y_c mu*_c at the best feasible y for logos that differ in `differ` filters."""
        from scipy.optimize import linprog

        shapes = background_shapes(self.n_filters, differ=differ)
        needed = np.array([self._mean_needed(shape, epsilon) for shape in shapes])
        if (needed == 0.0).any():
            return 0.0
        usable = np.flatnonzero(np.isfinite(needed))
        if not usable.size:
            return np.inf
        kernel = np.array([[self._kernel(row, shapes[column]) for column in usable] for row in shapes])
        common = self.n_filters - differ
        ways = [comb(differ, shapes[column].like_b) * comb(common, shapes[column].apart) for column in usable]
        cost = np.array(ways) * needed[usable]
        # Scaled to ones, the variables are the shares of the budget.
        solution = linprog(np.ones(usable.size), A_ub=-kernel / cost, b_ub=-np.ones(len(shapes)), bounds=(0, None))
        if solution.status != 0:
            return np.inf
        # Whatever the solver's tolerance, the scaled point is feasible: that is the proof.
        reach = float((kernel / cost @ solution.x).min())
        return float(solution.x.sum()) / reach * (1 + 1e-9) if reach > 0 else np.inf

    def _kernel(self, here: BackgroundShape, other: BackgroundShape) -> float:
        """Sum of kappa^H(c, c*) over the logos c* of shape `other`, for one c of shape `here`."""
        kappa = self.flip_prob / (1.0 - self.flip_prob)
        common = self.n_filters - here.differ
        return _ways(here.differ, here.like_b, other.like_b, kappa) * _ways(common, here.apart, other.apart, kappa)

    def _mean_needed(self, shape: BackgroundShape, epsilon: float) -> float:
        """Return mu* of a shape: infinite if even n_bits positions are too few, 0 if one is enough."""
        size = self._enough(self._coarse(shape), epsilon)
        if size is None:
            return np.inf
        clones, log_few = size - 1, float(np.log(1.0 / self.few))
        return 0.0 if clones == 0 else clones + log_few + float(np.sqrt(log_few**2 + 2 * log_few * clones))

    def _coarse(self, shape: BackgroundShape) -> BackgroundShape:
        """Return a shape of the grid that is at least as exposed."""
        grid = _GRID[self.n_filters <= 6]
        like_a, like_b, apart = (
            next(size for size in grid if size >= count)
            for count in (shape.differ - shape.like_b, shape.like_b, shape.apart)
        )
        return BackgroundShape(like_a + like_b, like_b, apart)

    def _enough(self, shape: BackgroundShape, epsilon: float) -> int | None:
        """Return a number of positions of the grid at which the shape is safe; smaller epsilons need more of them."""
        known = self.enough.setdefault(shape, [])
        low = max((place for at, place in known if at >= epsilon), default=0)
        high = min((place for at, place in known if at <= epsilon), default=self.sizes.size)
        while low < high:
            middle = (low + high) // 2
            bounds = background_delta(
                shape, n_bits=int(self.sizes[middle]), flip_prob=self.flip_prob, epsilon=epsilon, size=_SIZE
            )
            low, high = (low, middle) if bounds.upper <= self.delta - self.few else (middle + 1, high)
        known.append((epsilon, low))
        return int(self.sizes[low]) if low < self.sizes.size else None


def _ways(n: int, ones: int, other: int, kappa: float) -> float:
    """Sum of kappa^(Hamming distance) from a word of n bits, `ones` of them 1, to all words with `other` ones."""
    return sum(
        comb(ones, kept) * comb(n - ones, other - kept) * kappa ** (ones - kept + other - kept)
        for kept in range(max(0, other - (n - ones)), min(ones, other) + 1)
    )


# What the figures cover.
_COVERS = {
    "paper": "one filter: all pairs; several: the paper's pair; one position differs",
    "all": "all pairs (several filters: an upper bound); one position differs",
}
_LEAST = 1e-4
_GRID_OF_FLIPS = np.linspace(0.05, 0.45, 17)


def epsilon_figure(
    *,
    n_filters: Sequence[int],
    n_bits: Sequence[int],
    delta: float,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
    flip_probs: Sequence[float] | npt.NDArray[np.float64] = _GRID_OF_FLIPS,
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
