"""What a recorded release costs, by plain addition and tightly.

Sums of pure costs are rational numbers: sensitivity divided by scale, both read as the doubles that the sampler uses; a
`Guarantee` is read as the decimal that it prints as. What comes out of numerics is an upper bound. Plain addition
(Dwork and Roth 2014, Theorem 3.16) holds of releases chosen after looking at earlier ones too (Rogers, Roth, Ullman and
Vadhan 2016). Tight composition is the smallest, at the total delta of the ledger, of plain addition; of the exact curve
of one Gaussian, whose mu adds in squares (Dong, Roth and Su 2022, Corollary 3.3; Smith and Thakurta 2022), plus the
epsilons of all pure mechanisms; of certified convolution where no discrete Gaussian takes part; and of Renyi orders
(Canonne, Kamath and Steinke 2020, Proposition 12). The last two presume that no release depends on earlier noisy
answers: docs/privacy.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite, probability_below_one, shown, whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.composition import ComposedLoss
from dpbayes.privacy.curves import gaussian_epsilon_upper
from dpbayes.privacy.laws import ConcentratedNoise, NoiseLaw, PureNoise, noise_from_dict
from dpbayes.privacy.losses import PrivacyLoss, gaussian_law, lattice_law, symmetric
from dpbayes.privacy.rounding import decimal_reading, float_down, float_up, float_up_or_decimal

_MOST_QUERIES = 10**9
# Relative allowance for double rounding in the closed forms below, whose own error is near 1e-12.
_ROUNDING = 1e-10
# Grid points of a composition of few losses, and of many: seconds for a hundred of them.
_FEW, _FINE, _COARSE = 4, 1 << 20, 1 << 17
# Outside of these, and for moves of more steps, a loss is that of randomized response, or infinite.
_LEAST_LOSS, _LARGEST_LOSS, _MOST_STEPS = 1e-100, 500.0, 10_000


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

    def loss(self) -> PrivacyLoss:
        """Return the loss of the worst mechanism, which is randomized response: epsilon or -epsilon."""
        epsilon = float_up(decimal_reading(self.epsilon))
        return symmetric(lattice_law(epsilon, 1, epsilon), None)

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
                given = shown(self.sensitivity)
                raise InputError(f"a Guarantee already counts its sensitivity; drop sensitivity={given}")
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
    def kind(self) -> Cost:
        """The same mechanism, asked once and without a share of delta: what tight composition groups by."""
        return Cost(self.law, self.sensitivity)


type Groups = tuple[tuple[Cost, int], ...]


@dataclass(frozen=True)
class Spending:
    """What a sequence of costs adds up to."""

    epsilon: Fraction | None = Fraction(0)
    delta: Fraction = Fraction(0)
    groups: Groups = ()

    def add(self, costs: Iterable[Cost]) -> Spending:
        """Return the spending with these costs on top."""
        epsilon, delta, groups = self.epsilon, self.delta, dict(self.groups)
        for cost in costs:
            more_epsilon, more_delta = cost.plain
            epsilon = None if epsilon is None or more_epsilon is None else epsilon + more_epsilon
            delta += more_delta
            groups[cost.kind] = groups.get(cost.kind, 0) + cost.count
        return Spending(epsilon, delta, tuple(groups.items()))

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
    return epsilon_upper(groups, float_down(left), enough=enough) if left > 0 else math.inf


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
    elif all(law.is_pure or law.adds_in_squares for law in laws):
        bounds.append(_composed_epsilon(groups, delta))
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


def _composed_epsilon(groups: Groups, delta: float) -> float:
    """Certified convolution of all losses, one Gaussian in the place of all: their mu adds in squares."""
    gaussians = [(cost, n) for cost, n in groups if not cost.law.is_pure]
    pure = [(cost, n) for cost, n in groups if cost.law.is_pure]
    mu = math.sqrt(float_up(sum((_mu_squared(cost) * n for cost, n in gaussians), Fraction(0)))) * (1 + _ROUNDING)
    if max([mu, *(_pure_epsilon(cost) for cost, _ in pure)]) > _LARGEST_LOSS:
        return math.inf
    losses = [_pure_loss(cost).repeat(n) for cost, n in pure]
    if gaussians:
        losses.append(ComposedLoss(((gaussian_law(mu, left_out=1e-6 * delta), 1),)))
    size = _FINE if len(losses) <= _FEW else _COARSE
    return reduce(ComposedLoss.join, losses).upper_crossing(delta, size=size) * (1 + _ROUNDING)


def _pure_loss(cost: Cost) -> ComposedLoss:
    """Return the loss of one query; that of randomized response, which no pure guarantee exceeds, where it is long."""
    epsilon, law = _pure_epsilon(cost), cost.law
    long = isinstance(law, NoiseLaw) and law.is_discrete and (cost.sensitivity or 0) > _MOST_STEPS
    if isinstance(law, Guarantee) or long or epsilon < _LEAST_LOSS:
        return Guarantee(epsilon).loss().forward
    loss: PrivacyLoss = law.loss(sensitivity=cost.sensitivity)
    return loss.forward
