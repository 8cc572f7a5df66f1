"""Many short chains of Hamiltonian Monte Carlo, evaluated as a batch: for posteriors with many modes.

All chains of a batch move together: one call of the batched log-density serves them, and what the chains have in common
adapts the sampler. Each chain starts from the prior and follows the likelihood as its power rises from 0 to 1 (the
powers are chosen so that the log-likelihood of the chains changes by about two of its standard deviations), so that
chains reach different modes in proportion to their mass near the prior. Where the modes that matter at power 1 have
little mass at low powers, chains would stay behind: a model's attribute `starts` says where they begin instead. From
there each climbs to the mode above it by Adam (Kingma and Ba 2015, ICLR), which takes an eighth of the gradients that
trajectories take to climb, and settles: trajectories lose what only a mode has, until the median of the log-likelihoods
changes by less than these differ. What a model's attribute `held` names stays where it starts until the others have
climbed, and climbs with them for a moment: what a mode has of it is far from where the posterior's mass is. What is
stuck far below the others goes on from where one of them stands. Then trajectories of jittered length are drawn; their
length is adapted by the ChEES criterion (Hoffman, Radul and Sountsov 2021, AISTATS), the step to an acceptance rate,
and the metric to the spread of positions over that of gradients (both across chains). Batches know nothing of one
another: R-hat between them is the nested R-hat of Margossian et al. (2024), Bayesian Analysis, with batches as
superchains.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from dpbayes._arguments import Floats, one_of, strictly_between, whole_number
from dpbayes.errors import IncompleteSamplingError, InputError
from dpbayes.inference.callbacks import compiled_function, over_points, parts_of, recorder
from dpbayes.inference.convergence import Finding

if TYPE_CHECKING:
    import pymc as pm

type Starts = Mapping[str, tuple[Any, float]]
"""Centre and standard deviation, on the unconstrained scale, of the starts of variables by name."""
type Evaluate = Callable[[Floats, float], tuple[Floats, Floats, Floats]]
"""Log-prior, log-likelihood and gradient at points, with the likelihood raised to a power."""
type Follow = Callable[[Floats, Floats, Floats, Floats, float, int, bool], tuple[Floats, ...]]
"""Leapfrogs from points, momenta and gradients with scales, a power and a number of steps: where they end, log-prior,
log-likelihood, gradient; and, if asked for, the sum of squared gradients at every `_SEEN`-th step."""
type Ascend = Callable[[Floats, Floats, Floats, Floats, float], tuple[Floats, Floats, Floats]]
"""Steps of Adam (Kingma and Ba 2015, algorithm 1) from points at some rates, a row a step, and a power; means of slopes
and of their squares go on."""
type Progress = Callable[[str, float], None]
"""Called with a stage in words and the share of the whole that is done."""

_MOST = 10**6
_ANNEALING_STEP = 2.0  # standard deviations of the log-likelihood by which one power differs from the next
_ANNEALING_MOVES = 2  # trajectories at each power
_ANNEALING_STEPS = 60  # the most of a trajectory while chains are annealed
_ADAM_RATE, _ADAM_FORGETS = 0.1, 0.1  # a step of Adam's, and the weight of its gradient in their means
_CLIMB, _CLIMBS = 100, 30  # steps of Adam's in a part of the climb, and the most parts
_LAST = 50  # steps of Adam's in which what was held climbs too
_KEPT_TOGETHER = 256  # draws of which what is kept is drawn together, at least
_FIRST_MOVES, _FIRST_STEPS = 24, 5  # short trajectories that look for a step where chains have climbed
_SETTLING_TIME = 3.0  # length of a trajectory from there
_CHANGE = 1.0  # interquartile ranges of the chains' log-likelihoods: they climb and settle on while they change by more
_BEHIND = 10.0  # interquartile ranges of log-densities below their median: a chain is stuck, and goes on from another
_PARTS = 12  # quarters of the adapting moves by which settling ends at the latest
_OWN, _SEEN = 0.75, 4  # power of a chain's own curvature in its scale; gradients of which one tells of it
_KEPT = ("points", "lp", "likelihood", "diverging", "accept", "steps", "step")
_CACHED = 2**15  # numbers in an array that the processor's cache holds: chains are evaluated so many at a time
_IN_MEMORY, _ON_DEVICE = 2**21, 2**25  # the same for JAX, whose graphs keep some dozens of such arrays
_STEEPER = 4.0  # by how much more curvature at most a refused trajectory counts
_SMALLER = 0.7  # by which steps are multiplied after a round with too many divergences
_TINY = 1e-300  # the least square of a slope
_NOT_FINITE = (
    "chains stand where the log-density is not finite; see model.point_logps(): a term that is -inf or NaN under the "
    "prior needs a parameterization that stays finite"
)
_DIVERGED = 1000.0  # error of the energy at which a trajectory counts as divergent

Backend = Literal["numba", "jax", "interpreted"]


@dataclass(frozen=True)
class ManyChainSettings:
    """Settings of a run of many chains."""

    chains: int = 128
    batches: int = 4
    draws: int = 24
    tune: int = 48
    trajectories: int = 48
    rounds: int = 4
    target_accept: float = 0.85
    max_steps: int = 400
    own_scales: bool = False
    backend: Backend = "numba"

    def __post_init__(self) -> None:
        # With fewer draws of a chain the effective sample size of chains that stand still would exceed their number.
        least = {"chains": 8, "batches": 2, "draws": 7, "tune": 1, "trajectories": 1, "rounds": 1, "max_steps": 1}
        for name, bound in least.items():
            whole_number(getattr(self, name), name, low=bound, high=_MOST)
        if self.chains % self.batches or self.chains < 8 * self.batches:
            raise InputError(
                f"chains must be a multiple of batches ({self.batches}) and at least 8 each, got {self.chains}"
            )
        if self.trajectories < self.draws:
            raise InputError(
                f"trajectories must be at least draws ({self.draws}), got {self.trajectories}; keep fewer draws of "
                "each chain, of more chains if need be"
            )
        strictly_between(self.target_accept, "target_accept", 0, 1, remedy="0.85 is the default")
        one_of(self.backend, get_args(Backend), "backend")
        if self.backend == "jax" and find_spec("jax") is None:
            raise InputError("backend = 'jax' needs JAX, which is not installed: pip install 'dpbayes[jax]'")


@dataclass(frozen=True)
class BatchedDensity:
    """A model's log-density and gradient over a batch of points on the unconstrained scale."""

    evaluate: Evaluate
    start: Callable[[np.random.Generator, int], Floats]
    recorded: Callable[[Floats], dict[str, Floats]]
    size: int
    climbs: bool = False  # chains from the starts that the model gives; else they are annealed from the prior
    moving: Floats | float = 1.0  # 0 for values that are held while chains climb
    together: int = 1024  # points for which what a trajectory touches stays in the processor's cache
    follow: Follow | None = None  # trajectories; else step by step in NumPy
    ascend: Ascend | None = None  # by Adam; else step by step in NumPy


def batched_density(model: "pm.Model", *, backend: Backend = "numba") -> BatchedDensity:
    """Compile a model's log-density for batches; data and constants shared with the model are inputs of the code."""
    import pytensor.tensor as pt
    from pymc.logprob.utils import local_check_parameter_to_ninf_switch
    from pytensor.graph import FunctionGraph
    from pytensor.graph.rewriting.basic import out2in

    prior = model.logp(vars=model.free_RVs, sum=True)
    likelihood = model.logp(vars=[*model.observed_RVs, *model.potentials], sum=True)
    free = model.value_vars
    # A parameter out of its range, where a trajectory diverges, has probability zero for its own chain.
    checked = FunctionGraph(outputs=[prior, likelihood], clone=False)
    out2in(local_check_parameter_to_ninf_switch).rewrite(checked)
    prior, likelihood = checked.outputs
    power, point = pt.scalar("power"), model.initial_point(random_seed=0)
    shapes = [point[value.name].shape for value in free]
    outputs = [prior, likelihood, *pt.grad(prior + power * likelihood, free)]
    compiled: tuple[Any, ...]
    if backend == "jax":
        evaluate, compiled, most = _on_jax(model, outputs, power, shapes)
    else:
        evaluate, compiled, most = _by_pytensor(model, outputs, power, shapes, backend)
    size = sum(map(math.prod, shapes))
    observed = [model.rvs_to_values[one].size.eval(mode="FAST_COMPILE") for one in model.observed_RVs]
    largest = max(size, *map(int, observed), 1)
    evaluate(np.zeros((2, size)), 1.0)  # code is compiled at the first call
    near: Starts = getattr(model, "starts", {})
    moving = [variable.name not in getattr(model, "held", ()) for variable in model.free_RVs]
    moves = np.repeat(np.array(moving, float), [math.prod(shape) for shape in shapes])
    together = max(2, most // largest)
    start, recorded = _start_points(model, near), recorder(model, shapes)
    return BatchedDensity(evaluate, start, recorded, size, bool(near), moves, together, *compiled)


def _by_pytensor(
    model: "pm.Model", outputs: Sequence[Any], power: Any, shapes: Any, by: str
) -> tuple[Evaluate, tuple[()], int]:
    """Make a point's log-density one of many points; return also what else is compiled, and numbers in memory."""
    call = over_points(outputs, model.value_vars, by, [power])

    def evaluate(at: Floats, to: float) -> tuple[Floats, Floats, Floats]:
        prior, likelihood, *slopes = call(*parts_of(at, shapes), np.asarray(to))
        return prior, likelihood, np.concatenate([slope.reshape(len(at), -1) for slope in slopes], axis=1)

    return evaluate, (), _CACHED


def _on_jax(
    model: "pm.Model", outputs: Sequence[Any], power: Any, shapes: Any
) -> tuple[Evaluate, tuple[Follow, Ascend], int]:
    """Do the same by JAX: whole trajectories and climbs are compiled, so that what they change stays on a GPU."""
    import jax
    from jax import numpy as jnp
    from pytensor.compile.mode import JAX

    inputs, outputs = _for_jax(model, outputs, shapes)
    try:
        function = compiled_function([*inputs, power], outputs, JAX)
    except NotImplementedError as error:
        raise InputError(f"backend 'jax' cannot compile this model ({error}); use backend = 'numba'") from None
    data = function.vm.inputs[len(inputs) + 1 :]
    # Shapes that are known for one point need not be for many.
    many = jax.vmap(function.vm.jit_fn, in_axes=(*[0] * len(inputs), *[None] * (1 + len(data))))
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]

    def evaluate(at: Any, to: Any, given: Any) -> tuple[Any, ...]:
        parts = zip(jnp.split(at, ends, axis=1), shapes, strict=True)
        prior, likelihood, *slopes = many(*(part.reshape(-1, *shape) for part, shape in parts), to, *given)
        return prior, likelihood, jnp.concatenate([slope.reshape(len(at), -1) for slope in slopes], axis=1)

    def follow(
        at: Any, momentum: Any, gradient: Any, scale: Any, to: Any, steps: Any, learns: Any, given: Any
    ) -> tuple[Any, ...]:
        def step(place: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
            at, momentum, *_, squares = state
            at = at + scale * momentum
            prior, likelihood, gradient = evaluate(at, to, given)
            momentum = momentum + jnp.where(place < steps - 1, 1.0, 0.5) * scale * gradient
            seen = jnp.where(learns & ((steps - place) % _SEEN == 1), jnp.square(gradient), 0.0)
            return at, momentum, prior, likelihood, gradient, squares + seen

        none = jnp.zeros(len(at))
        start = at, momentum + 0.5 * scale * gradient, none, none, gradient, jnp.zeros_like(at)
        return jax.lax.fori_loop(0, steps, step, start)

    def ascend(at: Any, slopes: Any, squares: Any, rates: Any, to: Any, given: Any) -> tuple[Any, ...]:
        def step(state: tuple[Any, ...], rate: Any) -> tuple[tuple[Any, ...], None]:
            at, slopes, squares = state
            at = at + rate * slopes / jnp.sqrt(squares + _TINY)
            gradient = jnp.nan_to_num(evaluate(at, to, given)[2], posinf=0.0, neginf=0.0)
            slopes = slopes + _ADAM_FORGETS * (gradient - slopes)
            return (at, slopes, squares + _ADAM_FORGETS * (jnp.square(gradient) - squares)), None

        return jax.lax.scan(step, (at, slopes, squares), rates)[0]

    def called(code: Callable[..., Any]) -> Callable[..., Any]:
        on_device = jax.jit(code)
        return lambda *inputs: tuple(map(np.asarray, on_device(*inputs, [held[0] for held in data])))

    compiled = called(follow), called(ascend)
    return called(evaluate), compiled, _IN_MEMORY if jax.default_backend() == "cpu" else _ON_DEVICE


def _for_jax(model: "pm.Model", outputs: Sequence[Any], shapes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return inputs and outputs of a graph with all shapes fixed; operations may have a function `jax` of their own."""
    import pytensor.tensor as pt
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.replace import graph_replace
    from pytensor.graph.traversal import applys_between, graph_inputs
    from pytensor.link.jax.dispatch import jax_funcify

    for kind in {type(node.op) for node in applys_between([], outputs)}:
        if hasattr(kind, "jax"):
            jax_funcify.register(kind)(lambda op, **_: op.jax)
    fixed = {}
    for one in graph_inputs(outputs):
        if isinstance(one, SharedVariable):
            value, is_length = one.get_value(borrow=True), one in model.dim_lengths.values()
            fixed[one] = pt.constant(value) if is_length else pt.specify_shape(one, value.shape)
    points = [pt.tensor(value.name, shape=shape) for value, shape in zip(model.value_vars, shapes, strict=True)]
    return points, graph_replace(outputs, fixed | dict(zip(model.value_vars, points, strict=True)))


def _start_points(model: "pm.Model", near: Starts) -> Callable[[np.random.Generator, int], Floats]:
    """Return a function that draws points on the unconstrained scale: from the prior, or near what is given."""
    from pymc.pytensorf import compile as compile_graph
    from pymc.pytensorf import find_rng_nodes, reseed_rngs

    values = []
    for variable in model.free_RVs:
        transform = model.rvs_to_transforms[variable]
        moved = variable if transform is None else transform.forward(variable, *variable.owner.inputs)
        values.append(moved.flatten())
    draw = compile_graph([], values, mode="FAST_COMPILE")
    generators = find_rng_nodes(draw.maker.fgraph.outputs)
    names = [variable.name for variable in model.free_RVs]

    def start(rng: np.random.Generator, chains: int) -> Floats:
        reseed_rngs(generators, int(rng.integers(2**32)))
        drawn = [np.stack(one) for one in zip(*(draw() for _ in range(chains)), strict=True)]
        for name, (centre, spread) in near.items():
            own = drawn[names.index(name)]
            own[:] = np.ravel(centre) + spread * rng.standard_normal(own.shape)
        return np.concatenate(drawn, axis=1)

    return start


def _leapfrogs(
    evaluate: Evaluate,
    at: Floats,
    momentum: Floats,
    gradient: Floats,
    scale: Floats,
    power: float,
    steps: int,
    learns: bool,
) -> tuple[Floats, ...]:
    """Follow trajectories; see `Follow`."""
    at, momentum, squares = at.copy(), momentum + 0.5 * scale * gradient, np.zeros_like(at)
    change = np.empty_like(at)  # memory that every step uses again
    for left in range(steps, 0, -1):
        at += np.multiply(scale, momentum, out=change)
        prior, likelihood, gradient = evaluate(at, power)
        momentum += np.multiply(scale if left > 1 else 0.5 * scale, gradient, out=change)
        if learns and left % _SEEN == 1:
            squares += np.square(gradient, out=change)
    return at, momentum, prior, likelihood, gradient, squares


def _adam(
    evaluate: Evaluate, at: Floats, slopes: Floats, squares: Floats, rates: Floats, power: float
) -> tuple[Floats, Floats, Floats]:
    """Climb; see `Ascend`."""
    at, slopes, squares = at.copy(), slopes.copy(), squares.copy()
    with np.errstate(over="ignore", invalid="ignore"):  # such chains go on from others
        for rate in rates:
            at += rate * slopes / np.sqrt(squares + _TINY)
            gradient = _finite(evaluate(at, power)[2])
            slopes += _ADAM_FORGETS * (gradient - slopes)
            squares += _ADAM_FORGETS * (np.square(gradient) - squares)
    return at, slopes, squares


class Batch:
    """Chains that move together: their state, and what adapts to them. `tick` is called after every move."""

    def __init__(
        self,
        density: BatchedDensity,
        settings: ManyChainSettings,
        points: Floats,
        seed: np.random.SeedSequence,
        tick: Callable[[], None] = lambda: None,
    ):
        self.evaluate, self.settings, self.points, self.tick = density.evaluate, settings, points, tick
        self.follow = density.follow or partial(_leapfrogs, density.evaluate)
        self.ascend = density.ascend or partial(_adam, density.evaluate)
        self.moving = density.moving
        self.rng = np.random.default_rng(seed)
        self.groups = [slice(at, at + density.together) for at in range(0, len(points), density.together)]
        self.power, self.step, self.time = 0.0, 0.1, 1.5
        self.metric = np.ones(points.shape[1])  # variances of all chains: positions move by their roots
        self.curvature = np.zeros_like(points)  # mean squared gradients of every chain, where scales are their own
        self.learning = 0.0  # weight of a trajectory in them
        self.moments = np.zeros(2)  # of Adam, for the logarithm of the trajectory's length
        self.moves = 0
        self._refresh()

    def _refresh(self) -> None:
        found = [self.evaluate(self.points[group], self.power) for group in self.groups]
        self.prior, self.likelihood, self.gradient = (np.concatenate(one) for one in zip(*found, strict=True))

    def climb(self) -> None:
        """Climb from the starts to the modes above them, and find a step with which to leave these."""
        self.power = 1.0
        self._refresh()
        means = self._slopes()
        for _ in range(_CLIMBS):
            before = self.likelihood
            self._ascend(np.full(_CLIMB, _ADAM_RATE), *means, self.moving)
            if self._rise(before) < _CHANGE:
                break
        self._ascend(np.linspace(_ADAM_RATE, 0.0, _CLIMB), *means, self.moving)
        if not np.all(self.moving):
            self._ascend(np.linspace(_ADAM_RATE, 0.0, _LAST), *self._slopes(), 1.0)
        self._rescue()
        self._find_step()

    def _slopes(self) -> tuple[Floats, Floats]:
        slopes = _finite(self.gradient)
        return slopes, np.square(slopes)

    def _ascend(self, rates: Floats, slopes: Floats, squares: Floats, moving: Floats | float) -> None:
        """Climb at some rates with what is moving; means of slopes and squares go on."""
        rates = np.outer(rates, np.broadcast_to(moving, self.points.shape[1]))
        for group in self.groups:
            state = self.points[group], slopes[group], squares[group]
            self.points[group], slopes[group], squares[group] = self.ascend(*state, rates, self.power)
        self._refresh()

    def _find_step(self) -> None:
        """Take short trajectories, with larger steps while they are accepted and smaller ones while not."""
        self.time, self.learning = _SETTLING_TIME, 0.3 * self.settings.own_scales
        for _ in range(_FIRST_MOVES):
            self.move(_FIRST_STEPS)
            if self.accept < 0.6:
                self.step *= 0.6
                continue
            self._adapt_metric(0.3)
            if self.accept > 0.9:
                self.step *= 1.4

    def settle(self, moves: int) -> float:
        """Move from where chains climbed to, adapting after each move; return by how much they changed."""
        before = self.likelihood
        for _ in range(moves):
            self._settle(self.settings.max_steps)
            self.tick()
        self._rescue()
        return abs(self._rise(before))

    def _rise(self, before: Floats) -> float:
        """Return by how much the chains' median log-likelihood is above a former one, in units of their spread now."""
        middle, spread = _typical(self.likelihood)
        return (middle - _typical(before)[0]) / spread

    def _rescue(self) -> None:
        """Let chains that were left far behind go on from where others of the batch stand."""
        level = self.prior + self.power * self.likelihood
        middle, spread = _typical(level)
        fine = level >= middle - _BEHIND * spread
        source = np.where(fine, np.arange(len(level)), self.rng.choice(np.flatnonzero(fine), len(level)))
        for name in ("points", "prior", "likelihood", "gradient", "curvature"):
            setattr(self, name, getattr(self, name)[source])

    def _settle(self, steps: int) -> None:
        self.learning = 0.3 * self.settings.own_scales
        self.move(min(self._steps(), steps))
        self._adapt_step()
        self._adapt_metric(0.3)

    def anneal(self) -> None:
        """Raise the likelihood's power from 0 to 1, moving and adapting at each."""
        while self.power < 1.0:
            spread = float(np.std(self.likelihood[np.isfinite(self.likelihood)], ddof=1))
            rise = _ANNEALING_STEP / max(spread, 1e-9)
            self.power = min(1.0, self.power + (rise if self.power == 0.0 else min(rise, self.power)))
            self._refresh()
            for _ in range(_ANNEALING_MOVES):
                self._settle(_ANNEALING_STEPS)

    def tune(self, moves: int) -> None:
        """Adapt step, metric and length of the trajectories at power 1."""
        self.power = 1.0
        self._refresh()
        for place in range(moves):
            early = place < 0.8 * moves
            self.learning = 0.2 * (early and self.settings.own_scales)
            self.move(self._steps(), adapt_time=True)
            self.tick()
            self._adapt_step()
            if early and place % 4 == 0:
                self._adapt_metric(0.2)
        self.learning = 0.0

    def draw(self, moves: int, keep: npt.NDArray[np.intp]) -> dict[str, Floats]:
        """Move without adapting; return the kept states, dims (kept, chain, ...)."""
        kept, wanted = [], set(keep.tolist())
        for place in range(moves):
            steps = self._steps()
            accept, diverging = self.move(steps)
            self.tick()
            if place in wanted:
                now = self.points, self.prior + self.likelihood, self.likelihood, diverging, accept
                kept.append((*now, np.full(len(accept), steps), np.full(len(accept), self.step)))
        return {name: np.stack(values) for name, values in zip(_KEPT, zip(*kept, strict=True), strict=True)}

    def move(self, steps: int, *, adapt_time: bool = False) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Draw one trajectory per chain; return acceptance probabilities and which diverged."""
        momentum = self.rng.normal(size=self.points.shape)
        before = self.prior + self.power * self.likelihood - 0.5 * np.square(momentum).sum(axis=1)
        found = [self._trajectory(group, momentum[group], steps) for group in self.groups]
        points, momentum, prior, likelihood, gradient, squares = map(np.concatenate, zip(*found, strict=True))
        with np.errstate(over="ignore", invalid="ignore"):
            change = prior + self.power * likelihood - 0.5 * np.square(momentum).sum(axis=1) - before
        change = np.where(np.isfinite(change), change, -np.inf)
        accept = np.exp(np.minimum(change, 0.0))
        if adapt_time:
            self._adapt_time(points, momentum, accept, steps)
        taken = np.log(self.rng.random(len(points))) < change
        self.points = np.where(taken[:, None], points, self.points)
        self.gradient = np.where(taken[:, None], gradient, self.gradient)
        self.prior, self.likelihood = np.where(taken, prior, self.prior), np.where(taken, likelihood, self.likelihood)
        if self.learning:
            # A trajectory that is refused tells that scales are too large, though not by how much.
            bound = _STEEPER * np.maximum(self.curvature, 1.0 / self.metric)
            seen = np.where(taken[:, None], squares, np.fmin(squares, bound))
            self.curvature += self.learning * (seen - self.curvature)
        self.accept = float(accept.mean())
        return accept, change < -_DIVERGED

    def _trajectory(self, group: slice, momentum: Floats, steps: int) -> tuple[Floats, ...]:
        """Follow chains to the end: points, momenta, log-prior, log-likelihood, gradient; mean squares of gradients."""
        state, learns = (self.points[group], momentum, self.gradient[group]), self.learning > 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            *ends, squares = self.follow(*state, self.step * self._root(group), self.power, steps, learns)
        return *ends, squares / -(-steps // _SEEN)

    def _root(self, group: slice) -> Floats:
        """Return the scales by which a few chains move."""
        if not self.settings.own_scales:
            return np.sqrt(self.metric)
        return np.sqrt(self.metric / np.maximum(self.metric * self.curvature[group], 1.0) ** _OWN)

    def _steps(self) -> int:
        length = self.rng.uniform(0.5, 1.5) * self.time
        return int(np.clip(math.ceil(length / self.step), 1, self.settings.max_steps))

    def _adapt_step(self) -> None:
        """Robbins and Monro (1951) on the logarithm of the step."""
        self.step *= math.exp(0.4 * (self.accept - self.settings.target_accept))

    def _adapt_metric(self, weight: float) -> None:
        """Take the spread of positions over that of gradients, shrunk towards what it was as with five more chains."""
        chains = len(self.points)
        found = np.sqrt((self.points.var(axis=0, ddof=1) + 1e-12) / (self.gradient.var(axis=0, ddof=1) + 1e-12))
        target = (chains * found + 5.0 * self.metric) / (chains + 5.0)
        self.metric = np.exp((1.0 - weight) * np.log(self.metric) + weight * np.log(target))

    def _adapt_time(self, ends: Floats, momentum: Floats, accept: Floats, steps: int) -> None:
        """Climb the ChEES criterion (Hoffman et al. 2021, equation 7) in the logarithm of the length by Adam."""
        if accept.sum() < 1e-3:
            return
        fine, scale = accept > 0.0, np.sqrt(self.metric)  # what diverged may overflow when squared
        velocity = momentum * (self._root(slice(None)) / scale if self.settings.own_scales else 1.0)
        ends, velocity = np.where(fine[:, None], ends / scale, 0.0), np.where(fine[:, None], velocity, 0.0)
        starts = self.points / scale
        start, end = starts - starts.mean(axis=0), ends - np.average(ends, axis=0, weights=accept)
        moved = np.square(end).sum(axis=1) - np.square(start).sum(axis=1)
        slope = float(np.average(moved * (end * velocity).sum(axis=1), weights=accept)) * steps * self.step
        self.moves += 1
        self.moments = np.array([0.8, 0.95]) * self.moments + np.array([0.2, 0.05]) * np.array([slope, slope**2])
        first, second = self.moments / (1.0 - np.array([0.8, 0.95]) ** self.moves)
        change = np.clip(0.05 * first / (math.sqrt(second) + 1e-12), -0.1, 0.1)
        self.time = float(np.clip(self.time * math.exp(change), self.step, self.step * self.settings.max_steps))


class _Meter:
    """Counts the moves of all batches in a stage, and reports each hundredth of them."""

    def __init__(self, progress: Progress, batches: int):
        self.progress, self.batches, self.lock = progress, batches, threading.Lock()

    def begin(self, stage: str, moves: int) -> None:
        self.stage, self.moves, self.done, self.told = stage, moves * self.batches, 0, 0
        self.progress(stage, 0.0)

    def tick(self) -> None:
        with self.lock:
            self.done += 1
            if 100 * self.done // self.moves > self.told:
                self.told = 100 * self.done // self.moves
                self.progress(self.stage, self.done / self.moves)


def draw_many[Judged](
    density: BatchedDensity,
    settings: ManyChainSettings,
    *,
    random_seed: int,
    cores: int,
    complete: Callable[[dict[str, Floats], int], dict[str, Floats]],
    judge: Callable[[dict[str, Floats], dict[str, Floats]], tuple[Judged, list[Finding]]],
    progress: Progress,
) -> tuple[Judged, dict[str, Floats], dict[str, Any]]:
    """Anneal, tune and draw, round after round, until `judge` finds nothing that is short.

    A further round adds as many chains as the first has: one that stays near its mode has little more to say. What was
    drawn before the log-likelihood was flat is dropped, and what was drawn with steps that diverged: all chains draw
    again, twice as long or with smaller steps. `complete` says what is kept of the variables at some draws (1, draw,
    ...), given these and the number of the part. Returns what `judge` makes of them, and statistics, by chain and draw.
    """
    started, place, found = time.perf_counter(), 0, list[Finding]()
    workers = max(1, min(cores, settings.batches))
    # Batches share the processors: products of matrices that start threads of their own would wait for one another.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(max_workers=workers) as pool:
        run = _Run(density, settings, pool, random_seed, complete, progress)
        while True:
            place += 1
            run.extend({finding.check for finding in found})
            said = f" ({', '.join(f'{one.title} {one.value_text}' for one in found)})" if found else ""
            variables, stats = run.draw(f"sampling, round {place} of at most {settings.rounds}{said}")
            judged, found = judge(variables, stats)
            if not found or place == settings.rounds:
                return judged, stats, {"rounds": place, "sampling_seconds": time.perf_counter() - started}
            del judged  # the next round needs its memory


class _Run:
    """Sets of chains, each of all batches, and what they have drawn."""

    def __init__(
        self,
        density: BatchedDensity,
        settings: ManyChainSettings,
        pool: ThreadPoolExecutor,
        random_seed: int,
        complete: Callable[[dict[str, Floats], int], dict[str, Floats]],
        progress: Progress,
    ):
        self.density, self.settings, self.pool, self.complete = density, settings, pool, complete
        self.seeds, self.meter = np.random.SeedSequence(random_seed), _Meter(progress, settings.batches)
        self.sets: list[list[Batch]] = []
        self.drawn, self.variables, self.stats = 0, dict[str, Floats](), dict[str, Floats]()
        self.moves, self.tune, self.smaller = settings.trajectories, settings.tune, 1.0

    def extend(self, checks: Set[str]) -> None:
        """Add a set of chains, unless those there are have to draw again."""
        if not checks & {"divergences", "drift"}:
            self.sets.append(self._added())
            return
        self.drawn, self.variables, self.stats = 0, {}, {}
        if "divergences" in checks:
            self.smaller *= _SMALLER
            for batch in chain(*self.sets):
                batch.step *= _SMALLER
        if "drift" in checks:  # chains that come later move as long before they draw
            self.tune, self.moves = self.tune + self.moves, 2 * self.moves

    def _added(self) -> list[Batch]:
        """Anneal chains from the prior, or let them climb from the model's starts, and adapt at power 1."""
        settings, pool, meter = self.settings, self.pool, self.meter
        seeds = self.seeds.spawn(settings.batches + 1)
        points = np.split(self.density.start(np.random.default_rng(seeds[-1]), settings.chains), settings.batches)
        batches = [Batch(self.density, settings, *both, meter.tick) for both in zip(points, seeds, strict=False)]
        if not self.density.climbs:
            meter.begin("annealing", 1)
            list(pool.map(Batch.anneal, batches))
        else:
            meter.begin("climbing", 1)
            list(pool.map(Batch.climb, batches))
            _settle_all(pool, batches, -(-settings.tune // 4), meter)
        meter.begin("adapting", self.tune)
        list(pool.map(lambda batch: batch.tune(self.tune), batches))
        for batch in batches:
            batch.step *= self.smaller
        return batches

    def draw(self, stage: str) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Draw from the sets that have not drawn; return variables and statistics of all, by batch."""
        waiting = self.sets[self.drawn :]
        keep = np.linspace(0, self.moves, self.settings.draws + 1, dtype=int)[1:] - 1
        self.meter.begin(stage, self.moves * len(waiting))
        for batches in waiting:
            kept = list(self.pool.map(lambda batch: batch.draw(self.moves, keep), batches))
            stats = {name: np.stack([_end_to_end(one[name]) for one in kept]) for name in _KEPT if name != "points"}
            if not np.isfinite(stats["lp"]).all():
                raise IncompleteSamplingError(_NOT_FINITE)
            points = np.stack([_end_to_end(one.pop("points")) for one in kept])
            self.variables = _side_by_side(self.variables, self._recorded(points))
            self.stats = _side_by_side(self.stats, stats)
            self.drawn += 1
        return self.variables, self.stats

    def _recorded(self, points: Floats) -> dict[str, Floats]:
        """Evaluate what is kept at points (batch, draw, values): some after others, for memory."""
        flat, found = points.reshape(-1, points.shape[-1]), dict[str, Floats]()
        together = max(_KEPT_TOGETHER, 2**20 // points.shape[-1])
        parts = range(0, len(flat), together)
        for place, start in enumerate(parts, len(parts) * self.drawn):
            some = flat[start : start + together]
            variables = {name: values[None] for name, values in self.density.recorded(some).items()}
            for name, values in self.complete(variables, place).items():
                own = found.setdefault(name, np.empty((len(flat), *values.shape[2:]), values.dtype))
                own[start : start + together] = values[0]
        return {name: values.reshape(*points.shape[:2], *values.shape[1:]) for name, values in found.items()}


def _settle_all(pool: ThreadPoolExecutor, batches: Sequence[Batch], moves: int, meter: _Meter) -> None:
    """Settle for so many moves again and again while the chains of a batch still change."""
    for place in range(_PARTS):
        meter.begin("settling further, as chains still change" if place else "settling", moves)
        if max(pool.map(lambda batch: batch.settle(moves), batches)) < _CHANGE:
            return


def _finite(slopes: Floats) -> Floats:
    """Return slopes, those along which a chain has left where its density is finite as 0."""
    return np.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0)


def _typical(values: Floats) -> tuple[float, float]:
    """Return the median and the interquartile range, at least 1, of the chains' finite values."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise IncompleteSamplingError(_NOT_FINITE)
    low, middle, high = np.percentile(finite, (25.0, 50.0, 75.0))
    return float(middle), max(float(high - low), 1.0)


def _side_by_side(former: dict[str, Floats], new: dict[str, Floats]) -> dict[str, Floats]:
    """Lay the chains of every batch after those drawn before, one variable at a time, for memory."""
    return {
        name: np.concatenate([former.pop(name), new.pop(name)], axis=1) if former else new.pop(name)
        for name in list(new)
    }


def _end_to_end(kept: Floats) -> Floats:
    """Lay (draw, chain, ...) end to end, chain after chain."""
    return np.swapaxes(kept, 0, 1).reshape(-1, *kept.shape[2:])
