"""What a privacy number of this room stands for: its definition, and which pairs of inputs it covers."""

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Literal

from dpbayes.bloom._checks import Definition
from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import Bounds

__all__ = ["EpsilonClaim", "Scope", "exchange_bound", "outward"]

Scope = Literal["one pair", "paper's pair, certified", "all pairs, exhaustive", "all pairs, upper bound"]
"""Which neighbouring inputs a number covers; only the last two protect every input."""


@dataclass(frozen=True)
class EpsilonClaim:
    """An epsilon at one delta, with certified ends and the pairs of inputs that it covers.

    Parameters
    ----------
    epsilon
        Certified ends. Under an upper bound for all pairs the lower end is that of the worst pair found.
    delta
        The delta it holds at.
    definition
        "tight" (hockey-stick divergence, so (epsilon, delta)-differential privacy) or "quantile" (the paper's).
    scope
        The pairs of inputs covered. Neighbours differ in one position of the filters (one-position): a person more or
        less, or one person's other publishers. For a person exchanged for another see `exchange_bound`.
    pair
        The pair behind the number, in words.

    Examples
    --------
    >>> claim = EpsilonClaim(Bounds(0.9, 1.0), 1e-3, "tight", "all pairs, upper bound", "any")
    >>> claim.upper, str(claim)
    (1.0, 'epsilon 1 at delta 0.001 (tight; all pairs, upper bound)')
    """

    epsilon: Bounds
    delta: float
    definition: Definition
    scope: Scope
    pair: str

    @property
    def lower(self) -> float:
        """Lower end of epsilon."""
        return self.epsilon.lower

    @property
    def upper(self) -> float:
        """Upper end of epsilon: the number to promise."""
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
    if not claim.scope.startswith("all pairs"):
        raise InputError(
            f"an epsilon for all pairs is needed to bound the exchange of a person, got one for {claim.scope!r}; "
            "all_pairs_epsilon gives it"
        )
    # The last factor covers the roundings of the exponential, the sum and the product.
    delta = (1.0 + math.exp(min(claim.upper, 700.0))) * claim.delta * (1.0 + 2.0**-50)
    return 2.0 * claim.upper, min(delta, 1.0)


def outward(value: float, *, digits: int = 6, up: bool = True) -> str:
    """Print a certified end without moving it inwards: a promise is never made smaller by printing it.

    Parameters
    ----------
    value
        The end.
    digits
        Significant digits.
    up
        Round upwards, for an upper end; else downwards.

    Examples
    --------
    >>> outward(2.4127401, digits=4), outward(2.4127401, digits=4, up=False), outward(0.5)
    ('2.413', '2.412', '0.5')
    """
    direction = ROUND_CEILING if up else ROUND_FLOOR
    shown = Context(prec=digits, rounding=direction).create_decimal(repr(float(value))).normalize()
    return f"{shown:f}" if abs(value) >= 1e-4 else f"{shown:g}"
