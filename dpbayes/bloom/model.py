"""True logo counts given released ones, in PyMC, and the reach that they stand for.

With logo probabilities theta a released logo is j with probability (T theta)_j, so the released counts are multinomial
and the true counts are summed out; given theta those behind a released j are multinomial, proportional to theta_i T_ij.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from dpbayes._arguments import Floats, Ints, instance, positive_finite, whole_number
from dpbayes._lazy import xr
from dpbayes._machine_code import kept, loop, source_key, writable
from dpbayes.bloom.claims import check_publishers
from dpbayes.bloom.filters import BitDistribution, BloomRelease, WeeklyFilters, transition_matrix
from dpbayes.bloom.reach import ReachNumbers, empty_positions, shown_sets
from dpbayes.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt


MAX_FILTERS = 8
CONCENTRATION = 0.5
"""Jeffreys' prior."""
_TINY = 1e-300
_ACTIVITY = 1.5  # prior median of the scale of activity
# Prior mean and standard deviation of its shape: 0 is log-normal; gamma laws of shape .3 to 2 have -.5 to -.2.
_SHAPE = (-0.3, 0.2)
_TASTE = 0.7  # scale of tastes
_REACH = 0.85  # how far the classes' normal scores go: 2.8 for 12 of them, from -2.8


def build_model(release: BloomRelease, *, concentration: float = CONCENTRATION) -> pm.Model:
    r"""State the model of the true logos behind a release of at most 8 filters."""
    instance(release, BloomRelease, "release", remedy="shuffle_flip makes it")
    if release.n_filters > MAX_FILTERS:
        raise InputError(f"the model takes at most {MAX_FILTERS} filters, got {release.n_filters}; use estimate_reach")
    positive_finite(concentration, "concentration", remedy="0.5 is Jeffreys' prior")
    logos = [format(logo, f"0{release.n_filters}b")[::-1] for logo in range(release.counts.size)]
    kernel = transition_matrix(release.n_filters, release.flip_prob)
    with pm.Model(coords={"logo": logos, "released_logo": logos}) as model:
        counts = pm.Data("released_counts", release.counts, dims="released_logo")
        theta = pm.Dirichlet("logo_probability", np.full(release.counts.size, float(concentration)), dims="logo")
        shown = pm.Deterministic("released_probability", pt.dot(kernel, theta), dims="released_logo")
        pm.Multinomial("released", n=release.n_bits, p=shown, observed=counts, dims="released_logo")
    return model


def build_lattice_model(
    data: ReachNumbers | BloomRelease | WeeklyFilters, *, population: float, classes: int = 12
) -> pm.Model:
    r"""State the model of an audience behind published reach numbers, or behind released filters (docs/bloom.md).

    .. math::

        r_{cit} = \exp(\delta_{it} + a_{ci}), \qquad
        n_{St} = \text{population} \; \sum_c w_c \Bigl[1 - \exp\Bigl(-\sum_{i \in S} r_{cit}\Bigr)\Bigr].

    A person of class c is reached by publisher i at a rate that is r by the end of week t: reach is the chance to have
    been reached at least once.

    Parameters
    ----------
    data
        Reach numbers of at most 10 publishers and 52 weeks; or a release of uniformly hashed filters of at most 10
        publishers, or one for each week.
    population
        People who might be reached: public, such as a census count.
    classes
        Number C of classes.

    Returns
    -------
    pymc.Model
        Recorded: ``reach`` (set, week) of each publisher, each pair and all, in people; ``position`` (class, publisher)
        and ``level`` (publisher, week), from which `dpbayes.bloom.reach.ReachLattice` makes any other number.

    Notes
    -----
    The reach of each publisher alone is a parameter, from which :math:`\delta` follows: each number moves few
    parameters, and the sampler's steps stay long. The growth over weeks splits at the middle week, each half at its
    middle, and so on, with logistic-normal shares. The positions a are an activity of the class and a taste for each
    publisher, N(0, .7). Activity is (exp(h z) - 1) / h times one scale, z normal scores: log-normal where the shape h
    is 0; below it fewer people are very active and more are hardly ever reached, as in a gamma law. The classes'
    scores z are equidistant and their shares w normal, the trapezoidal rule.

    Examples
    --------
    >>> from dpbayes.bloom.reach import ReachNumbers
    >>> numbers = ReachNumbers.of({("A",): [300, 410], ("B",): [200, 350], ("A", "B"): [450, 600]}, stddev=25.0)
    >>> model = build_lattice_model(numbers, population=2000)
    >>> [variable.name for variable in model.observed_RVs]
    ['reach_number']
    """
    people = positive_finite(population, "population", remedy="give the number of people who might be reached")
    c = whole_number(classes, "classes", low=2, high=200)
    if isinstance(data, ReachNumbers):
        names, weeks = list(data.publishers), data.n_weeks
    else:
        if not isinstance(data, BloomRelease):
            instance(data, WeeklyFilters, "data", remedy="or give ReachNumbers, or a BloomRelease")
        names, weeks = [f"publisher {place + 1}" for place in range(data.n_filters)], len(data.weeks)
    k = len(names)
    sets = shown_sets(k)
    membership = np.array([[place in which for place in range(k)] for which in sets])
    coords = {
        "publisher": names,
        "class": range(1, c + 1),
        "week": range(1, weeks + 1),
        "set": [" + ".join(names[place] for place in which) for which in sets],
    }
    with pm.Model(coords=coords) as model:
        pm.Data("population", people)
        growth, (scores, size) = _growth(weeks), _classes(c)
        pm.Data("class_size", size, dims="class")
        # Numbers of all weeks fix the mean over weeks better than the last one, and the joint reach better than any of
        # the tastes behind it: the free variables are the former, and the scale of activity apart from tastes.
        ahead = pt.log(growth.mean(axis=1))
        final = pm.Normal("mean_share", -2.0 + ahead, 1.5, dims="publisher") - ahead
        final = pm.math.sigmoid(pm.Deterministic("final_share", final, dims="publisher"))  # logits
        share = final[:, None] * growth
        taste = pm.Normal("taste", 0.0, 1.0, dims=("class", "publisher"))
        # One scale and one shape say how unequal people are, since the joint reach of all fixes little else.
        apart = _TASTE * (taste - pt.dot(size, taste))  # the scores' mean is 0
        curve = _bent(scores, size, pm.Normal("activity_shape", *_SHAPE))
        offset = _offset(final, apart, curve, (scores, size), membership[-1:]) if k > 1 else 0.0
        scale = pm.Normal("activity_apart", np.log(_ACTIVITY) - offset, 0.5) + offset
        activity = pm.Deterministic("activity_sd", pt.exp(scale)) * curve
        position = pm.Deterministic("position", activity + apart, dims=("class", "publisher"))

        def reach(membership: npt.NDArray[np.bool_]) -> Any:
            return people * reach_of_sets(share, position, size, membership)[1]

        level, shown = reach_of_sets(share, position, size, membership)
        pm.Deterministic("level", level, dims=("publisher", "week"))
        pm.Deterministic("reach", people * shown, dims=("set", "week"))
        if isinstance(data, ReachNumbers):
            _observe_numbers(data, reach)
        else:
            _observe_filters(data.weeks, reach)
    model.convergence_variables = ("reach",)
    return model


def _observe_numbers(data: ReachNumbers, reach: Callable[[npt.NDArray[np.bool_]], Any]) -> None:
    """State the law of published reach numbers."""
    which, place = np.unique(data.sets, axis=0, return_inverse=True)
    mean = reach(which)[place, data.weeks - 1]
    values, stddev = pm.Data("published", data.values), pm.Data("stddev", data.stddev)
    if data.noise == "laplace":
        pm.Laplace("reach_number", mean, stddev / np.sqrt(2.0), observed=values)
    else:
        pm.Normal("reach_number", mean, stddev, observed=values)


def _observe_filters(filters: Sequence[BloomRelease], reach: Callable[[npt.NDArray[np.bool_]], Any]) -> None:
    """State the law of the empty positions of each set's filters, the flips taken out, in units of its normal noise."""
    which, counts, root = (np.array(part) for part in zip(*map(empty_positions, filters), strict=True))
    bits = np.array([[float(week.n_bits)] for week in filters])
    whitening, expected = np.linalg.inv(root), bits * pt.exp(-reach(which[0]).T / bits)
    observed = pm.Data("whitened_counts", np.einsum("tij,tj->ti", whitening, counts))
    mean = (pm.Data("whitening", whitening) * expected[:, None, :]).sum(axis=-1)
    pm.Normal("empty_positions", mean, 1.0, observed=observed)


def _classes(c: int) -> tuple[Floats, Floats]:
    """Return equidistant normal scores and the classes' shares of the people: the trapezoidal rule for a normal law."""
    scores = np.linspace(-1.0, 1.0, c) * _REACH * np.sqrt(c - 1.0)
    size = np.exp(-0.5 * scores**2)
    return scores, size / size.sum()


def _bent(scores: Floats, size: Floats, shape: Any) -> Any:
    """Return the classes' activity, of mean 0, as a column: (exp(shape z) - 1) / shape, which is z at 0."""
    shape = pt.switch(pt.eq(shape, 0.0), 1e-9, shape)
    curve = pt.expm1(shape * scores) / shape
    return (curve - pt.dot(size, curve))[:, None]


def _offset(
    final: Any, apart: Any, curve: Any, classes: tuple[Floats, Floats], everybody: npt.NDArray[np.bool_]
) -> Any:
    """Return the change in the log scale of activity that makes up for tastes and shape: a secant step near its median.

    With neither all publishers together would reach as many people, on average over quarters of their growth. A step is
    at most 1, since long ones overshoot; the small term of the slope is for shares so small that nobody overlaps.
    """
    share, (scores, size) = final[:, None] * np.array([0.25, 0.5, 0.75, 1.0]), classes
    positions = [_ACTIVITY * np.exp(step) * curve + apart for step in (-0.25, 0.25)]
    positions.append(_ACTIVITY * scores[:, None] + pt.zeros_like(apart))
    low, high, without = (reach_of_sets(share, one, size, everybody)[1].mean() for one in positions)
    slope = pt.sqrt(pt.sqr((high - low) / 0.5) + pt.sqr(0.003 * without))  # of a fall
    return pt.tanh((0.5 * (low + high) - without) / slope)


def _growth(weeks: int) -> Any:
    """Share of its final reach that each publisher has by each week, dims publisher and week: halves of halves."""
    if weeks == 1:
        return np.ones((1, 1))
    left, right = np.zeros((weeks, weeks - 1)), np.zeros((weeks, weeks - 1))
    spans: list[tuple[int, int]] = []
    todo = [(0, weeks)]
    while todo:
        start, stop = todo.pop()
        if stop - start > 1:
            middle = (start + stop) // 2
            left[start:middle, len(spans)] = right[middle:stop, len(spans)] = 1.0
            spans.append((middle - start, stop - middle))
            todo += [(start, middle), (middle, stop)]
    first, second = np.array(spans, dtype=float).T
    model = pm.modelcontext(None)
    model.add_coord("split", range(1, weeks))
    # Independent weekly parts of relative variance v make a log-ratio of halves of variance v (1/first + 1/second).
    uneven = pm.HalfNormal("unevenness", 1.0) * np.sqrt(1.0 / first + 1.0 / second)
    split = np.log(first / second) + uneven * pm.Normal("split_share", 0.0, 1.0, dims=("publisher", "split"))
    # A half's log share is -softplus(-split), the other's that less the split.
    parts = pt.exp(-pt.dot(pt.softplus(-split), (left + right).T) - pt.dot(split, right.T))
    return pt.minimum(pt.dot(parts, np.triu(np.ones((weeks, weeks)))), 1.0)


def draw_true_counts(probabilities: npt.ArrayLike, release: BloomRelease, *, random_seed: int) -> Ints:
    """Draw true logo counts given the release, one row for each posterior draw of the logo probabilities."""
    theta = np.asarray(probabilities, dtype=float)
    if theta.ndim != 2 or theta.shape[1] != release.counts.size:
        raise InputError(f"probabilities must have shape (draws, {release.counts.size}), got {theta.shape}")
    rng = np.random.default_rng(random_seed)
    kernel = transition_matrix(release.n_filters, release.flip_prob)
    counts = np.empty(theta.shape, dtype=np.int64)
    for row, shares in enumerate(theta):
        origin = kernel * shares
        origin /= origin.sum(axis=1, keepdims=True)
        counts[row] = rng.multinomial(release.counts, origin).sum(axis=0)
    return counts


def draw_reach(
    true_counts: Ints, distribution: BitDistribution, *, publishers: tuple[int, ...] | None = None, random_seed: int
) -> Floats:
    """Draw the number of people that a set of publishers has reached together, given draws of the true counts."""
    size, m = true_counts.shape[1], distribution.n_bits
    code = check_publishers(publishers, size.bit_length() - 1)
    empty = true_counts[:, (np.arange(size) & code) == 0].sum(axis=1) / m
    people = np.maximum(distribution.people(empty), 0.0)
    slope = distribution.slope(np.maximum(people, 1e-9))
    # Positions are independent for a Poisson number of people; fixing the number takes its variance away.
    variance = np.maximum((empty - distribution.zero_fraction(2.0 * people)) / (m * slope**2) - people, 0.0)
    return people + np.sqrt(variance) * np.random.default_rng(random_seed).normal(size=people.size)


def reach_variances(
    true_counts: Ints,
    distribution: BitDistribution,
    *,
    publishers: tuple[int, ...] | None = None,
    random_seed: int,
    repeats: int = 20,
) -> tuple[float, float]:
    """Split the variance of the people reached over the true logo counts: from flipping, and from hashing."""
    again = np.repeat(true_counts, repeats, axis=0)
    people = draw_reach(again, distribution, publishers=publishers, random_seed=random_seed).reshape(-1, repeats)
    within = float(people.var(axis=1, ddof=1).mean())
    return max(float(people.mean(axis=1).var(ddof=1)) - within / repeats, 0.0), within


def logo_densities(trace: xr.DataTree, counts: npt.ArrayLike) -> tuple[xr.DataArray, xr.DataArray]:
    """Return log prior (with the default concentration) and log-likelihood at every draw, up to constants."""
    posterior, dims = trace["posterior"].to_dataset(), ("chain", "draw")
    shares, shown = (
        np.log(np.maximum(posterior[name].transpose(*dims, ...).to_numpy(), _TINY))
        for name in ("logo_probability", "released_probability")
    )
    prior = (CONCENTRATION - 1.0) * shares.sum(axis=-1)
    return xr.DataArray(prior, dims=dims), xr.DataArray(shown @ np.asarray(counts, dtype=float), dims=dims)


# --- the reach of sets of publishers and its gradient, as one operation of a graph ------------------------------------


@loop
def _exposure(level: float, own: Floats, size: Floats) -> tuple[float, float, float]:
    """Return the log of -log of the mean of exp(-rate), its slope in the level, and the slope of the slope's log."""
    rate, reached, missed, first, second = math.exp(level), 0.0, 0.0, 0.0, 0.0
    for c in range(len(own)):
        x = rate * own[c]
        q = size[c] * math.exp(-x)
        reached += size[c] - q if x > 1e-3 else size[c] * x * (1.0 - x * (0.5 - x / 6.0))
        missed += q
        first += q * x
        second += q * x * x
    exposure = -math.log1p(-reached) if reached < missed else -math.log(missed)
    slope = first / (missed * exposure)
    return math.log(exposure), slope, 1.0 - second / first + first / missed - slope


@loop
def _levels(share: Floats, position: Floats, size: Floats) -> Floats:
    """Return levels by publisher and week, by Halley's method; a week starts from what was last found."""
    k, weeks = share.shape
    level = np.empty((k, weeks))
    for i in range(k):
        own = np.exp(position[:, i])
        at = math.log(share[i, 0]) - math.log((size * own).sum())
        value, slope, curvature = _exposure(at, own, size)
        for t in range(weeks):
            target = math.log(-math.log1p(-share[i, t]))
            for _ in range(60):
                newton = (target - value) / slope
                step = min(max(newton / (1.0 + max(0.5 * newton * curvature, -0.5)), -2.0), 2.0)
                if abs(step) < 1e-3:  # a step is of third order: 1e-9 is left
                    break
                at += step
                value, slope, curvature = _exposure(at, own, size)
            level[i, t] = at + step
    return level


@loop
def _cells(level: Floats, position: Floats) -> tuple[Floats, Floats]:
    """Return rates, and probabilities of having missed a person, by publisher, class and week."""
    (k, weeks), classes = level.shape, len(position)
    rate, missed = np.empty((k, classes, weeks)), np.empty((k, classes, weeks))
    own, at = np.exp(position), np.exp(level)
    for i in range(k):
        for c in range(classes):
            for t in range(weeks):
                rate[i, c, t] = at[i, t] * own[c, i]
                missed[i, c, t] = math.exp(-rate[i, c, t])
    return rate, missed


@loop
def _multiply(missed: Floats, c: int, which: Ints, product: Floats) -> None:
    """Write a class's probabilities of not having been reached by any of these publishers, by week."""
    product[:] = 1.0
    for i in which:
        for t in range(len(product)):
            product[t] *= missed[i, c, t]


@kept
def _reach(share: Floats, position: Floats, size: Floats, ends: Ints, members: Ints) -> tuple[Floats, Floats]:
    """Return levels and the share reached by each set."""
    level = _levels(share, position, size)
    missed = _cells(level, position)[1]
    classes, weeks = len(position), share.shape[1]
    reach = np.empty((len(ends), weeks))
    product, total, start = np.empty(weeks), np.empty(weeks), 0
    for s in range(len(ends)):
        total[:] = 0.0
        for c in range(classes):
            _multiply(missed, c, members[start : ends[s]], product)
            for t in range(weeks):
                total[t] += size[c] * product[t]
        for t in range(weeks):
            reach[s, t] = 1.0 - total[t]
        start = ends[s]
    return level, reach


@loop
def _cells_back(rate: Floats, missed: Floats, size: Floats, ends: Ints, members: Ints, along_reach: Floats) -> Floats:
    """Return the slopes in l_i + a_ic by publisher, class and week, given those in the sets' reach."""
    k, classes, weeks = missed.shape
    slopes, product, start = np.zeros(missed.shape), np.empty(weeks), 0
    for s in range(len(ends)):
        which = members[start : ends[s]]
        for c in range(classes):
            _multiply(missed, c, which, product)
            for t in range(weeks):
                product[t] *= along_reach[s, t] * size[c]
            for i in which:
                for t in range(weeks):
                    slopes[i, c, t] += product[t]
        start = ends[s]
    for i in range(k):
        for c in range(classes):
            for t in range(weeks):
                slopes[i, c, t] *= rate[i, c, t]
    return slopes


@kept
def _reach_back(
    level: Floats,
    position: Floats,
    size: Floats,
    ends: Ints,
    members: Ints,
    along_level: Floats,
    along_reach: Floats,
) -> tuple[Floats, Floats]:
    """Return the slopes in shares and positions, given those in levels and in the sets' reach."""
    rate, missed = _cells(level, position)
    inside = _cells_back(rate, missed, size, ends, members, along_reach)
    k, classes, weeks = missed.shape
    in_share, in_position = np.zeros((k, weeks)), np.empty(position.shape)
    for i in range(k):
        for c in range(classes):
            for t in range(weeks):
                missed[i, c, t] *= rate[i, c, t] * size[c]
        for t in range(weeks):
            in_share[i, t] = (along_level[i, t] + inside[i, :, t].sum()) / missed[i, :, t].sum()
        for c in range(classes):
            along = 0.0
            for t in range(weeks):
                along += inside[i, c, t] - in_share[i, t] * missed[i, c, t]
            in_position[c, i] = along
    return in_share, in_position


class _Operation(Op):
    """An operation on shares (publisher, week), positions (class, publisher), class sizes, and sets."""

    __props__ = ()
    code: ClassVar[Any]
    infer_shape: Any  # a function of the node and its inputs' shapes

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node, whose two outputs are matrices; known shapes save checks and their compiling."""
        given = list(map(pt.as_tensor, inputs))
        shapes = self.infer_shape(None, [one.type.shape for one in given])
        return Apply(self, given, [pt.tensor(dtype="float64", shape=shape) for shape in shapes])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        for place, one in zip(outputs, self.code(*map(writable, inputs)), strict=True):
            place[0] = one


class SetReach(_Operation):
    r"""Levels (publisher, week) and the share that each set has reached (set, week).

    Class c holds the share :math:`w_c` of the people. Within it publisher i has shown itself at a rate :math:`r_{ic} =
    \exp(l_i + a_{ic})`, so that it has missed a person with probability :math:`q_{ic} = \exp(-r_{ic})`. The level l_i
    follows from the publisher's share s, by Halley's method in l, from :math:`\sum_c w_c q_{ic} = 1 - s`. A set S has
    reached the share :math:`n_S = 1 - \sum_c w_c P_{Sc}`, :math:`P_{Sc} = \prod_{i \in S} q_{ic}`, so that, with
    :math:`u_i = \sum_c w_c q_{ic} r_{ic}`,

    .. math:: \frac{\partial n_S}{\partial (l_i + a_{ic})} = w_c P_{Sc} r_{ic}, \qquad
        \frac{\partial l_i}{\partial s} = \frac1{u_i}, \qquad
        \frac{\partial l_i}{\partial a_{ic}} = -\frac{w_c q_{ic} r_{ic}}{u_i}.
    """

    code = staticmethod(_reach)

    def infer_shape(self, node: Apply | None, shapes: Any) -> list[Any]:
        """Return the shapes of levels and reach."""
        return [shapes[0], (shapes[3][0], shapes[0][1])]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that shares and positions have a gradient."""
        return [[True] * 2] * 2 + [[False] * 2] * 3

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the slopes of levels and reach."""
        along = [
            pt.zeros_like(output) if isinstance(one.type, DisconnectedType) else one
            for one, output in zip(cotangents, outputs, strict=True)
        ]
        slopes = _SetReachBack()(outputs[0], *inputs[1:], *along)
        return [*slopes, *(disconnected_type() for _ in inputs[2:])]


class _SetReachBack(_Operation):
    """The slopes of `SetReach` in shares and positions."""

    code = staticmethod(_reach_back)

    def infer_shape(self, node: Apply | None, shapes: Any) -> list[Any]:
        """Return the shapes of shares and positions."""
        return shapes[:2]


@register_funcify_and_cache_key(SetReach)
@register_funcify_and_cache_key(_SetReachBack)
def _compile(op: _Operation, node: Apply, **kwargs: Any) -> Any:
    # Copies, as Numba would compile once more for arrays that are constants.
    @numba_njit
    def there(share: Any, position: Any, size: Any, ends: Any, members: Any) -> Any:
        return _reach(share.copy(), position.copy(), size.copy(), ends.copy(), members.copy())

    @numba_njit
    def back(level: Any, position: Any, size: Any, ends: Any, members: Any, in_level: Any, in_reach: Any) -> Any:
        return _reach_back(
            level.copy(), position.copy(), size.copy(), ends.copy(), members.copy(), in_level.copy(), in_reach.copy()
        )

    return there if isinstance(op, SetReach) else back, f"{source_key(__file__)} {type(op).__name__}"


def reach_of_sets(share: Any, position: Any, size: Floats, membership: npt.NDArray[np.bool_]) -> tuple[Any, Any]:
    """Return levels (publisher, week) and the share of people that each set has reached (set, week)."""
    ends = membership.sum(axis=1).cumsum()
    return SetReach()(share, position, size, ends, np.nonzero(membership)[1])
