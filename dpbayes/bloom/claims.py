"""What a privacy number of Bloom filters stands for: its definition, and which pairs of inputs it covers.

Neighbouring inputs differ in one position of the filters (one-position). A person more or less, or one person's other
publishers, costs a number once; one person exchanged for another costs more: `exchange_bound`. See docs/bloom.md.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, Literal, get_args

from dpbayes._arguments import instance, number, one_of, ordered, shown, strictly_between, whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import Bounds

Definition = Literal["tight", "quantile"]
"""Reading of (epsilon, delta): the hockey-stick divergence, or the paper's quantile of the privacy loss."""

PEOPLE = "a usual choice is below 1 / number of people"
"""What a message about delta adds."""

MAX_FILTERS, MAX_WEEKS = 20, 52
MOST_BITS = 10**10
"""Longest filters that are certified: the lattice of the sum over their positions grows as the root of that."""
MAX_POSITIONS = 10_000_000
MIN_FLIP_PROB = 1e-12
"""Least flip probability supported: below it, 1 - p and powers of p/q run out of digits."""


def check_definition(value: Any) -> Definition:
    """Return `value` if it names a definition of epsilon."""
    return one_of(value, get_args(Definition), "definition", remedy="only 'tight' implies (epsilon, delta)")


def check_flip_prob(value: Any) -> float:
    """Return `value` as a float from 1e-12 up and below 1/2."""
    remedy = "0 publishes the bits as they are and 0.5 leaves nothing of them"
    value = strictly_between(value, "flip_prob", 0, 0.5, remedy=remedy)
    if value < MIN_FLIP_PROB:
        raise InputError(f"flip_prob must be at least {MIN_FLIP_PROB:g}, got {value!r}; less publishes the bits")
    return value


def check_publishers(value: Any, n_publishers: int) -> int:
    """Return a set of publishers, given by number, as a logo: digit i says that publisher i is in it."""
    remedy = f"publishers must be numbers from 0 to {n_publishers - 1}, at least one"
    chosen = range(n_publishers) if value is None else ordered(value, "publishers", remedy=remedy)
    if not chosen:
        raise InputError(f"{remedy}, got {shown(value)}")
    return sum({1 << whole_number(place, "each of publishers", low=0, high=n_publishers - 1) for place in chosen})


def check_decay(value: Any) -> float:
    """Return `value` as a finite float of at least 0."""
    decay = number(value, "decay")
    if not 0.0 <= decay < math.inf:
        raise InputError(f"decay must be finite and not negative, got {shown(value)}; 0 is uniform, 10 is usual")
    return decay


Scope = Literal["one pair", "paper's pair, certified", "all pairs, exhaustive", "all pairs, upper bound"]
"""Which neighbouring inputs a number covers; only the last two protect every input."""


@dataclass(frozen=True)
class EpsilonClaim:
    """An epsilon at one delta, with certified bounds and the pairs of inputs that it covers."""

    epsilon: Bounds
    delta: float
    definition: Definition
    scope: Scope
    pair: str

    @property
    def lower(self) -> float:
        """Lower bound of epsilon."""
        return self.epsilon.lower

    @property
    def upper(self) -> float:
        """Upper bound of epsilon: the number to promise."""
        return self.epsilon.upper

    def __str__(self) -> str:
        return f"epsilon {outward(self.upper)} at delta {self.delta:g} ({self.definition}; {self.scope})"


def exchange_bound(claim: EpsilonClaim) -> tuple[float, float]:
    r"""Return an (epsilon, delta) that holds when one person is exchanged for another.

    The person who goes and the person who comes change up to two positions, one after the other. Two steps of
    (epsilon, delta) make (2 epsilon, (1 + e^epsilon) delta), by group privacy.

    Parameters
    ----------
    claim
        An epsilon at one position that covers all pairs: the inputs in between may be any.

    Returns
    -------
    tuple of float
        Epsilon and delta, rounded up. A delta of 1 promises nothing.

    Raises
    ------
    InputError
        If the claim covers one pair alone.

    References
    ----------
    Vadhan, "The complexity of differential privacy" (2017), Lemma 2.2.

    Examples
    --------
    >>> epsilon, delta = exchange_bound(EpsilonClaim(Bounds(0.4, 0.5), 1e-3, "tight", "all pairs, exhaustive", "any"))
    >>> epsilon, round(delta, 6)
    (1.0, 0.002649)
    """
    instance(claim, EpsilonClaim, "claim", remedy="bloom_epsilon(..., pairs='all') gives it")
    if not claim.scope.startswith("all pairs"):
        raise InputError(
            f"an epsilon for all pairs is needed to bound the exchange of a person, got one for {claim.scope!r}; "
            "bloom_epsilon(..., pairs='all') gives it"
        )
    # The last factor covers the roundings of the exponential, the sum and the product.
    delta = (1.0 + math.exp(min(claim.upper, 700.0))) * claim.delta * (1.0 + 2.0**-50)
    return 2.0 * claim.upper, min(delta, 1.0)


def outward(value: float, *, digits: int = 6, up: bool = True) -> str:
    """Print a certified bound without moving it inwards: a promise is never made smaller by printing it."""
    direction = ROUND_CEILING if up else ROUND_FLOOR
    shown = Context(prec=digits, rounding=direction).create_decimal(repr(float(value))).normalize()
    return f"{shown:f}" if abs(value) >= 1e-4 else f"{shown:g}"
