r"""What a recorded release costs, by plain addition and tightly.

Sums of pure costs are rational numbers: a law's cost is its sensitivity divided by its scale, both read as the doubles
that the sampler uses; a `Guarantee` is read as the decimal that it prints as. What comes out of numerics (a Gaussian's
epsilon at delta, a tight bound) is an upper bound.

**Plain addition** adds epsilons and deltas (Dwork and Roth 2014, Theorem 3.16), also of releases chosen after looking
at earlier ones (Rogers, Roth, Ullman and Vadhan 2016). **Tight composition** is the smallest of these upper bounds, at
the total delta of the ledger:

- plain addition;
- Gaussian laws alone: mu = sensitivity / stddev adds in squares and the exact curve of one Gaussian holds (Dong, Roth
  and Su 2022, Corollary 3.3), also for parameters chosen on the way (Smith and Thakurta 2022);
- the bound of the Gaussian laws at that delta plus the epsilons of all pure mechanisms;
- certified convolution (`dpbayes.privacy.losses`) where every loss takes finitely many values, else dp-accounting's
  pessimistic privacy loss distributions, where no discrete Gaussian takes part;
- Renyi orders, converted as in Canonne, Kamath and Steinke 2020, Proposition 12.

The last two presume that the parameters of the releases do not depend on earlier noisy answers. `docs/privacy.md` says
why a scalar query stands for a vector, and why entries on disjoint groups add up.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite, probability_below_one, shown, whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.laws import ConcentratedNoise, NoiseLaw, PureNoise, noise_from_dict
from dpbayes.privacy.rounding import decimal_reading, float_down, float_up, float_up_or_decimal

_MOST_QUERIES = 10**9
# Relative allowance for double rounding in the closed forms below, whose own error is near 1e-12.
_ROUNDING = 1e-10
# dp-accounting convolves by FFT in doubles. Up to 2^18 grid points with an error near 1e-17 each stay below this mass,
# which comes off delta; below ten times it the numerics say nothing and only the other bounds are used.
_FFT_MASS = 1e-11
_GRID_POINTS = 2**17
# Beyond these a distribution would overflow doubles or memory.
_LARGEST_LOSS = 500.0
_LARGEST_MOVE = 10_000
_MOST_COMPOSED = 10**7
# Losses on no common lattice are composed one by one on a fine grid: seconds for a dozen.
_MOST_EXACT_GROUPS = 4


@dataclass(frozen=True)
class Guarantee:
    """A mechanism known only by its proven (epsilon, delta), randomized response for instance.

    It stands where a noise law would. Tight composition takes the worst mechanism with that guarantee (Kairouz, Oh and
    Viswanath 2015): fail with probability delta, else randomized response with epsilon. `InputError` unless epsilon, of
    one query, is positive and delta, its probability of failure, in [0, 1).

    Examples
    --------
    >>> Guarantee(0.5)
    Guarantee(epsilon=0.5, delta=0.0)
    """

    name: ClassVar[str] = "guarantee"
    is_pure: ClassVar[bool] = True
    adds_in_squares: ClassVar[bool] = False

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        epsilon = positive_finite(self.epsilon, "epsilon", remedy="state what was proven of one query")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta_in_range(self.delta, "delta"))

    def loss_steps(self, sensitivity: float) -> int:
        """Return 1: the worst mechanism is randomized response, whose loss is epsilon or -epsilon."""
        return 1

    def loss_distribution(self, sensitivity: float, **grid: Any) -> Any:
        """Return dp-accounting's distribution of randomized response, a discrete Laplace law that moves by 1."""
        from dp_accounting.pld.privacy_loss_distribution import from_discrete_laplace_mechanism

        return from_discrete_laplace_mechanism(float_up(decimal_reading(self.epsilon)), sensitivity=1, **grid)

    def to_dict(self) -> dict[str, Any]:
        """Return the record that the ledger stores."""
        return {"law": self.name, "epsilon": self.epsilon, "delta": self.delta}


def law_from_dict(record: Any) -> NoiseLaw | Guarantee:
    """Return the law or the guarantee that `to_dict` recorded."""
    if isinstance(record, Mapping) and record.get("law") == Guarantee.name:
        if set(record) != {"law", "epsilon", "delta"}:
            raise InputError(f"a guarantee has the keys law, epsilon and delta, got {sorted(map(str, record))}")
        return Guarantee(record["epsilon"], record["delta"])
    return noise_from_dict(record)


def delta_in_range(value: Any, name: str) -> float:
    """Return `value` as a float in [0, 1)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return 0.0
    return probability_below_one(value, name, remedy="give 0 for pure differential privacy, else well below 1 / n")


@dataclass(frozen=True)
class Cost:
    """What `count` queries of one mechanism cost."""

    law: NoiseLaw | Guarantee
    sensitivity: float | None
    count: int = 1
    delta: float = 0.0

    def __post_init__(self) -> None:
        law, count = self.law, self.count
        if not isinstance(law, NoiseLaw | Guarantee):
            raise InputError(f"law must be a noise law or a Guarantee, got {shown(law)}; see dpbayes.privacy.laws")
        whole_number(count, "count", high=_MOST_QUERIES)
        object.__setattr__(self, "delta", delta_in_range(self.delta, "delta"))
        if self.delta and law.is_pure:
            raise InputError(f"delta {self.delta!r} does not belong to {law}: its cost has no share to choose; drop it")
        if isinstance(law, Guarantee):
            if self.sensitivity is not None:
                raise InputError(
                    f"a Guarantee already counts its sensitivity; drop sensitivity={shown(self.sensitivity)}"
                )
            return
        remedy = "it bounds the change between neighbours under the ledger's adjacency"
        change = positive_finite(self.sensitivity, "sensitivity", remedy=remedy)
        if law.is_discrete and law.is_pure and change != math.floor(change):
            raise InputError(f"sensitivity {change!r} of a query on the integers must be whole; round it up")
        object.__setattr__(self, "sensitivity", change)

    @property
    def plain(self) -> tuple[Fraction | None, Fraction]:
        """Epsilon and delta by plain addition; epsilon is None where no finite one exists at this delta."""
        if isinstance(self.law, Guarantee):
            return self.count * decimal_reading(self.law.epsilon), self.count * decimal_reading(self.law.delta)
        if isinstance(self.law, PureNoise):
            return self.count * Fraction(self.sensitivity or 0) / Fraction(self.law.scale), Fraction(0)
        if not self.delta:
            return None, Fraction(0)
        one = _tight_epsilon(((self.kind, 1),), self.delta / self.count, -math.inf)
        return self.count * Fraction(one) if math.isfinite(one) else None, decimal_reading(self.delta)

    @property
    def kind(self) -> "Cost":
        """The same mechanism, asked once and without a share of delta: what tight composition groups by."""
        return Cost(self.law, self.sensitivity)


type Groups = tuple[tuple[Cost, int], ...]


@dataclass(frozen=True)
class Spending:
    """What a sequence of costs adds up to."""

    epsilon: Fraction | None = Fraction(0)
    delta: Fraction = Fraction(0)
    groups: Groups = ()

    def add(self, costs: Iterable[Cost]) -> "Spending":
        """Return the spending with these costs on top."""
        epsilon, delta, groups = self.epsilon, self.delta, dict(self.groups)
        for cost in costs:
            more_epsilon, more_delta = cost.plain
            epsilon = None if epsilon is None or more_epsilon is None else epsilon + more_epsilon
            delta += more_delta
            groups[cost.kind] = groups.get(cost.kind, 0) + cost.count
        return Spending(epsilon, delta, tuple(groups.items()))

    @property
    def is_rational(self) -> bool:
        """Whether every cost is a rational number: no Gaussian law, whose epsilon comes out of numerics."""
        return all(cost.law.is_pure for cost, _ in self.groups)

    def fits(self, epsilon: Fraction, delta: Fraction) -> bool:
        """Whether plain addition stays within these totals."""
        return self.epsilon is not None and self.epsilon <= epsilon and self.delta <= delta

    def tight_epsilon(self, delta: float, *, enough: float = -math.inf) -> float:
        """Return an upper bound on the epsilon at `delta`; infinite where there is none."""
        if self.epsilon is not None and self.delta <= decimal_reading(delta):
            return min(float_up_or_decimal(self.epsilon), _tight_epsilon(self.groups, delta, enough))
        return _tight_epsilon(self.groups, delta, enough)


@lru_cache(maxsize=256)
def _tight_epsilon(groups: Groups, delta: float, enough: float) -> float:
    """Upper bound on epsilon at delta over groups of equal queries."""
    if not groups:
        return 0.0
    # A guarantee with a delta of its own is its pure part plus a failure whose probability comes off the total.
    failures = sum((n * decimal_reading(c.law.delta) for c, n in groups if isinstance(c.law, Guarantee)), Fraction(0))
    left = decimal_reading(delta) - failures
    if left < 0:
        return math.inf
    pure = [c.plain[0] for c, _ in groups]
    bounds = [math.inf]
    if all(epsilon is not None for epsilon in pure):
        bounds.append(
            float_up_or_decimal(sum((e * n for e, (_, n) in zip(pure, groups, strict=True) if e), Fraction(0)))
        )
    if left > 0:
        bounds.append(epsilon_upper(groups, float_down(left), enough=enough))
    return min(bounds)


def epsilon_upper(groups: Groups, delta: float, *, enough: float = -math.inf) -> float:
    """Return an upper bound on the epsilon at `delta` of all groups together."""
    bounds = [_renyi_epsilon(groups, delta)]
    if bounds[0] <= enough:
        return bounds[0]
    if (apart := _epsilon_apart(groups, delta)) <= enough:
        return apart
    bounds.append(apart)
    laws = [cost.law for cost, _ in groups]
    if all(law.adds_in_squares for law in laws):
        bounds.append(_gaussian_epsilon(groups, delta))
    elif len(groups) <= _MOST_EXACT_GROUPS and all(_is_finite(cost, n) for cost, n in groups):
        bounds.append(_finite_epsilon(groups, delta))
    elif delta >= 10 * _FFT_MASS:
        bounds.append(_distribution_epsilon(groups, delta, bounds[0]))
    return min(bounds)


def _epsilon_apart(groups: Groups, delta: float) -> float:
    r"""Epsilon of the Gaussian laws at `delta` plus those of the pure mechanisms; infinite unless there are both."""
    gaussians = tuple((c, n) for c, n in groups if not c.law.is_pure)
    if not gaussians or len(gaussians) == len(groups):
        return math.inf
    first = epsilon_upper(gaussians, delta)
    if not math.isfinite(first):
        return math.inf
    pure = sum((c.plain[0] * n for c, n in groups if c.plain[0] is not None), Fraction(0))
    return float_up_or_decimal(Fraction(first) + pure)


def _mu_squared(cost: Cost) -> Fraction:
    """(sensitivity / stddev)^2 of a Gaussian law: twice its rho."""
    assert isinstance(cost.law, ConcentratedNoise)
    return (Fraction(cost.sensitivity or 0) / Fraction(cost.law.stddev)) ** 2


def _pure_epsilon(cost: Cost) -> float:
    """Upper bound of the epsilon of one query of a law with a pure guarantee."""
    epsilon = cost.plain[0]
    assert epsilon is not None
    return float_up(epsilon)


def _gaussian_epsilon(groups: Groups, delta: float) -> float:
    """Exact epsilon of Gaussians: mu adds in squares (Dong, Roth and Su 2022)."""
    from dpbayes.privacy.curves import gaussian_epsilon_upper

    square = sum((_mu_squared(cost) * n for cost, n in groups), Fraction(0))
    mu = math.sqrt(float_up(square))
    # The smallest double whose square is not below, or its neighbour.
    mu = mu if math.isinf(mu) or Fraction(mu) ** 2 >= square else math.nextafter(mu, math.inf)
    return gaussian_epsilon_upper(mu, delta) if math.isfinite(mu) else math.inf


def _renyi_epsilon(groups: Groups, delta: float) -> float:
    r"""Smallest epsilon over a grid of Renyi orders a."""
    orders: npt.NDArray[np.float64] = 1.0 + np.logspace(-3.0, 7.0, 2001)
    total = np.zeros_like(orders)
    with np.errstate(over="ignore", invalid="ignore"):
        for cost, n in groups:
            if cost.law.is_pure:
                e = _pure_epsilon(cost)
                total += n * (np.logaddexp(orders * e, (1 - orders) * e) - np.logaddexp(0.0, e)) / (orders - 1)
            else:
                total += n * orders * (float_up(_mu_squared(cost)) / 2)
        epsilon = total + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    epsilon = np.where(np.isfinite(epsilon), epsilon, np.inf)
    return max(0.0, float(epsilon.min())) * (1 + _ROUNDING) + 1e-12


def _is_finite(cost: Cost, n: int) -> bool:
    """Whether the privacy loss of one query takes finitely many values, few enough to list and to compose n times."""
    if not cost.law.is_pure or _pure_epsilon(cost) > _LARGEST_LOSS or n > _MOST_COMPOSED:
        return False
    steps = cost.law.loss_steps(cost.sensitivity or 1)
    return steps is not None and steps <= _LARGEST_MOVE


def _finite_epsilon(groups: Groups, delta: float) -> float:
    r"""Certified epsilon of laws whose loss takes finitely many values."""
    from dpbayes.privacy.losses import lattice_law, symmetric

    losses = []
    for cost, n in groups:
        move, most = cost.law.loss_steps(cost.sensitivity or 1) or 1, _pure_epsilon(cost)
        losses.append(symmetric(lattice_law(most / move, move, most), None).compose(n))
    return reduce(lambda one, other: one.compose(other), losses).epsilon(delta) * (1 + _ROUNDING)


def _distribution_epsilon(groups: Groups, delta: float, bound: float) -> float:
    """Epsilon of the composed privacy loss distributions of dp-accounting, a pessimistic one for every group."""
    groups = _one_gaussian(groups)
    if any(not cost.law.is_pure and not cost.law.adds_in_squares for cost, _ in groups):
        return math.inf
    losses = [_pure_epsilon(cost) if cost.law.is_pure else math.sqrt(float_up(_mu_squared(cost))) for cost, _ in groups]
    if max(losses) > _LARGEST_LOSS or max(n for _, n in groups) > _MOST_COMPOSED or not math.isfinite(bound):
        return math.inf
    interval = max(min(1e-4, min(losses) / 4), max(2 * bound, *losses) / _GRID_POINTS)
    grid, whole = {"value_discretization_interval": interval, "use_connect_dots": True}, None
    with np.errstate(all="ignore"):  # the far tails underflow, as they should
        for cost, n in groups:
            steps = cost.law.loss_steps(cost.sensitivity or 1)
            # A move of too many steps: any pure guarantee is at worst randomized response.
            law = Guarantee(_pure_epsilon(cost)) if steps is not None and steps > _LARGEST_MOVE else cost.law
            part = law.loss_distribution(cost.sensitivity or 1, **grid)
            part = part.self_compose(n) if n > 1 else part
            whole = part if whole is None else whole.compose(part)
        assert whole is not None
        epsilon = float(whole.get_epsilon_for_delta(delta - _FFT_MASS))
    return epsilon * (1 + _ROUNDING) + 1e-12 if epsilon >= 0 else math.inf


def _one_gaussian(groups: Groups) -> Groups:
    """Put one Gaussian in the place of all: mu adds in squares."""
    gaussians = [(cost, n) for cost, n in groups if cost.law.adds_in_squares]
    if not gaussians:
        return groups
    total = sum((_mu_squared(cost) * n for cost, n in gaussians), Fraction(0))
    mu = math.sqrt(float_up(total)) * (1 + _ROUNDING)
    # Sensitivity 1 and stddev 1 / mu, unless that overflows: then the loss is too large or too small to matter.
    if not 1e-150 < mu < 1e150:
        return groups
    law = gaussians[0][0].law
    assert isinstance(law, ConcentratedNoise)
    one = Cost(replace(law, stddev=1 / mu), 1.0)
    return ((one, 1), *((cost, n) for cost, n in groups if not cost.law.adds_in_squares))
