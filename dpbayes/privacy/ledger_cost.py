r"""What a recorded release costs, by plain addition and tightly.

**Exact numbers.** Sums of pure costs are rational numbers, never sums of doubles. A law's cost is its sensitivity
divided by its scale, both read as the doubles that the sampler and `dpbayes.privacy.noise` use; a `Guarantee` is read
as the decimal that it prints as, so that ten times 0.1 is exactly 1. What comes out of numerics (a Gaussian's epsilon
at delta, a tight bound) is an upper end.

**Plain addition** adds epsilons and deltas (Dwork and Roth 2014, Theorem 3.16). It holds even when the parameters of
a release are chosen after looking at the earlier ones (Rogers, Roth, Ullman and Vadhan 2016).

**Tight composition** is the smallest of the valid upper bounds below, at the total delta of the book:

- plain addition;
- Gaussian laws alone: mu = sensitivity / stddev adds in squares and the exact curve of one Gaussian holds (Dong, Roth
  and Su 2022, Corollary 3.3 of the arXiv version), also for parameters chosen on the way (Smith and Thakurta 2022);
- the bound of the Gaussian laws at that delta plus the epsilons of all pure mechanisms;
- privacy loss distributions of dp-accounting, rounded pessimistically, where no discrete Gaussian takes part;
- Renyi orders, converted as in Canonne, Kamath and Steinke 2020, Proposition 12.

The last two presume that the parameters of the releases (laws, sensitivities) do not depend on earlier noisy answers;
what is asked may. A custodian who cannot promise that opens a book of plain addition.

**Vectors.** Additive Laplace noise on a vector with L1 sensitivity D is dominated by the scalar query that moves by D.
For a move split in a + b the likelihood ratio of either experiment is a function exp(2t - D) of a statistic t in
[0, D] (the clipped output, or the sum of two clipped outputs), the two tail functions of t cross once, from above, and
both ratios average to 1: by Karlin and Novikoff's cut criterion the scalar experiment is the more informative one, in
the sense of Blackwell, and that order survives composition. The same computation holds for the two-sided geometric law
and whole moves. `tests/privacy/test_ledger_cost.py` enumerates it.

**Disjoint groups.** Entries always add up: a book knows no partition of the people, so it cannot count too little for
want of one. Noise on the parts of disjoint groups is one query, the vector of all parts, and parallel composition lies
in its sensitivity, where it can be checked: one person's data change the part of one group under add-remove, and of two
under replace-one. If the groups have different laws, record the one with the least noise. `tests/privacy/test_audit.py`
enumerates it.

References
----------
Canonne, C., Kamath, G. and Steinke, T. (2020). The discrete Gaussian for differential privacy. NeurIPS 33.
Dong, J., Roth, A. and Su, W. (2022). Gaussian differential privacy. JRSS B 84(1), 3-37. arXiv:1905.02383.
Dwork, C. and Roth, A. (2014). The algorithmic foundations of differential privacy.
Kairouz, P., Oh, S. and Viswanath, P. (2015). The composition theorem for differential privacy. ICML.
Rogers, R., Roth, A., Ullman, J. and Vadhan, S. (2016). Privacy odometers and filters. NeurIPS 29.
Smith, A. and Thakurta, A. (2022). Fully adaptive composition for Gaussian differential privacy. arXiv:2210.17520.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpbayes._arguments import positive_finite
from dpbayes.errors import InputError
from dpbayes.privacy.ledger_rounding import decimal_reading, float_down, float_up_or_decimal
from dpbayes.privacy.noise import DiscreteGaussian, Gaussian, Laplace, NoiseLaw, TwoSidedGeometric, noise_from_dict

__all__ = ["Cost", "Guarantee", "Spending", "law_from_dict"]

_MOST_QUERIES = 10**9


@dataclass(frozen=True)
class Guarantee:
    """A mechanism known only by its proven (epsilon, delta), randomized response for instance.

    It stands where a noise law would. Tight composition takes the worst mechanism with that guarantee (Kairouz, Oh and
    Viswanath 2015): fail with probability delta, else randomized response with epsilon.

    Parameters
    ----------
    epsilon
        Privacy-loss parameter of one query, positive.
    delta
        Probability of failure of one query, in [0, 1).

    Raises
    ------
    InputError
        If either is out of range.

    Examples
    --------
    >>> Guarantee(0.5)
    Guarantee(epsilon=0.5, delta=0.0)
    """

    epsilon: float
    delta: float = 0.0

    name = "guarantee"

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "epsilon", positive_finite(self.epsilon, "epsilon", remedy="state what was proven of one query")
        )
        object.__setattr__(self, "delta", delta_in_range(self.delta, "delta"))

    def to_dict(self) -> dict[str, Any]:
        """Return the record that the ledger stores."""
        return {"law": self.name, "epsilon": self.epsilon, "delta": self.delta}


def law_from_dict(record: Any) -> NoiseLaw | Guarantee:
    """Return the law or the guarantee that `to_dict` recorded.

    Raises
    ------
    InputError
        If the record is neither.

    Examples
    --------
    >>> law_from_dict({"law": "guarantee", "epsilon": 0.5, "delta": 0.0})
    Guarantee(epsilon=0.5, delta=0.0)
    """
    if isinstance(record, Mapping) and record.get("law") == Guarantee.name:
        if set(record) != {"law", "epsilon", "delta"}:
            raise InputError(f"a guarantee has the keys law, epsilon and delta, got {sorted(map(str, record))}")
        return Guarantee(record["epsilon"], record["delta"])
    return noise_from_dict(record)


def delta_in_range(value: Any, name: str) -> float:
    """Return `value` as a float in [0, 1), or raise `InputError`.

    Examples
    --------
    >>> delta_in_range(0, "delta")
    0.0
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return 0.0
    number = positive_finite(value, name, remedy="give 0 for pure differential privacy, else well below 1 / n")
    if number >= 1:
        raise InputError(f"{name} must be below 1, got {value!r}; a usual choice is well below 1 / n")
    return number


@dataclass(frozen=True)
class Cost:
    """What `count` queries of one mechanism cost.

    Parameters
    ----------
    law
        A noise law, or a `Guarantee`.
    sensitivity
        L1 sensitivity of one query (two-sided geometric: a whole number, Laplace), L2 sensitivity (discrete Gaussian,
        Gaussian), None for a `Guarantee`. A vector of counts is one query.
    count
        How many queries of this kind, each with fresh noise.
    delta
        Share of the total delta that plain addition charges for all of them together. Only for the Gaussian laws,
        which have no finite epsilon at delta 0; tight composition does not need it.

    Raises
    ------
    InputError
        If a value is out of range or does not belong to the law.

    Examples
    --------
    >>> Cost(TwoSidedGeometric(20.0), 2, count=10).plain
    (Fraction(1, 1), Fraction(0, 1))
    """

    law: NoiseLaw | Guarantee
    sensitivity: float | None
    count: int = 1
    delta: float = 0.0

    def __post_init__(self) -> None:
        law, count = self.law, self.count
        if not isinstance(law, NoiseLaw | Guarantee):
            raise InputError(f"law must be a noise law or a Guarantee, got {law!r}; see dpbayes.privacy.noise")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_QUERIES:
            raise InputError(f"count must be a whole number from 1 to {_MOST_QUERIES}, got {count!r}")
        object.__setattr__(self, "delta", delta_in_range(self.delta, "delta"))
        if self.delta and not isinstance(law, Gaussian | DiscreteGaussian):
            raise InputError(f"delta {self.delta!r} does not belong to {law}: its cost has no share to choose; drop it")
        if isinstance(law, Guarantee):
            if self.sensitivity is not None:
                raise InputError(f"a Guarantee already counts its sensitivity; drop sensitivity={self.sensitivity!r}")
            return
        remedy = "it bounds the change between neighbours under the book's adjacency"
        change = positive_finite(self.sensitivity, "sensitivity", remedy=remedy)
        if isinstance(law, TwoSidedGeometric) and change != math.floor(change):
            raise InputError(f"sensitivity {change!r} of a query on the integers must be whole; round it up")
        object.__setattr__(self, "sensitivity", change)

    @property
    def plain(self) -> tuple[Fraction | None, Fraction]:
        """Epsilon and delta by plain addition; epsilon is None where no finite one exists at this delta."""
        if isinstance(self.law, Guarantee):
            return self.count * decimal_reading(self.law.epsilon), self.count * decimal_reading(self.law.delta)
        change = Fraction(self.sensitivity or 0)
        if isinstance(self.law, TwoSidedGeometric | Laplace):
            return self.count * change / Fraction(self.law.scale), Fraction(0)
        if not self.delta:
            return None, Fraction(0)
        each = self.delta / self.count
        one = _tight_epsilon(((self.kind, 1),), each, -math.inf)
        return self.count * Fraction(one) if math.isfinite(one) else None, decimal_reading(self.delta)

    @property
    def kind(self) -> "Cost":
        """The same mechanism, asked once and without a share of delta: what tight composition groups by."""
        return Cost(self.law, self.sensitivity)


@dataclass(frozen=True)
class Spending:
    """What a sequence of costs adds up to.

    Examples
    --------
    >>> spent = Spending().add([Cost(Guarantee(0.1), None, count=10)])
    >>> spent.epsilon, spent.tight_epsilon(0.0)
    (Fraction(1, 1), 1.0)
    >>> spent.tight_epsilon(1e-3) < 1
    True
    """

    epsilon: Fraction | None = Fraction(0)
    delta: Fraction = Fraction(0)
    groups: tuple[tuple[Cost, int], ...] = ()

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
        return not any(isinstance(cost.law, Gaussian | DiscreteGaussian) for cost, _ in self.groups)

    def fits(self, epsilon: Fraction, delta: Fraction) -> bool:
        """Whether plain addition stays within these totals."""
        return self.epsilon is not None and self.epsilon <= epsilon and self.delta <= delta

    def tight_epsilon(self, delta: float, *, enough: float = -math.inf) -> float:
        """Return an upper bound on the epsilon at `delta`; infinite where there is none.

        Parameters
        ----------
        delta
            Total delta of the book, in [0, 1).
        enough
            Stop at the first bound that is not above this: enough for a decision.
        """
        if self.epsilon is not None and self.delta <= decimal_reading(delta):
            return min(float_up_or_decimal(self.epsilon), _tight_epsilon(self.groups, delta, enough))
        return _tight_epsilon(self.groups, delta, enough)


@lru_cache(maxsize=256)
def _tight_epsilon(groups: tuple[tuple[Cost, int], ...], delta: float, enough: float) -> float:
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
        from dpbayes.privacy import ledger_compose

        bounds.append(ledger_compose.epsilon_upper(groups, float_down(left), enough=enough))
    return min(bounds)
