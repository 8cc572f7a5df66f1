"""What a budget book has spent and has left, and the decision whether a request fits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpbayes.errors import BudgetExceededError, InputError
from dpbayes.privacy._rounding import nearest_float
from dpbayes.privacy.ledger_cost import Cost, Spending
from dpbayes.privacy.ledger_entries import BookTerms
from dpbayes.privacy.ledger_rounding import decimal_down, decimal_reading, float_down, float_up_or_decimal

__all__ = ["Remaining", "Spent", "check_budget", "remaining_of", "spent_of"]

_ROUNDING = Fraction(1, 10**12)


@dataclass(frozen=True)
class Spent:
    """What a book's releases have cost so far, confirmed or not.

    Parameters
    ----------
    basic_epsilon, basic_delta
        By plain addition, rounded up; epsilon is infinite when a Gaussian release took no share of delta.
    tight_epsilon
        Upper bound at the book's total delta; infinite where there is none. It may lie above a total that was kept: a
        pure request is also accepted by what `Remaining` promises, which the bound of all releases need not reach.
    epsilon
        The one of the two epsilons that is held against the total.
    releases, unconfirmed
        How many releases are recorded, and how many of them were never confirmed.

    Examples
    --------
    >>> from dpbayes.privacy.ledger_cost import Guarantee
    >>> terms = BookTerms("0" * 32, 1.0, 0.0, "add-remove", "basic", "census", "2026-01-01T00:00:00+00:00")
    >>> spent_of(Spending().add([Cost(Guarantee(0.1), None, count=4)]), terms, releases=4, unconfirmed=1)
    Spent(basic_epsilon=0.4, basic_delta=0.0, tight_epsilon=0.4, epsilon=0.4, releases=4, unconfirmed=1)
    """

    basic_epsilon: float
    basic_delta: float
    tight_epsilon: float
    epsilon: float
    releases: int
    unconfirmed: int


@dataclass(frozen=True)
class Remaining:
    """What is left: a release with this pure epsilon certainly fits.

    Under tight composition it fits by basic composition of what is spent, (epsilon_1, delta), and the release,
    (epsilon_2, 0): together (epsilon_1 + epsilon_2, delta). More may fit, because epsilons of several releases add up
    to less than their sum.

    Parameters
    ----------
    epsilon
        Total minus spent, rounded down.
    delta
        What plain addition has left of delta; the whole delta under tight composition, which counts at all of it.

    Examples
    --------
    >>> from dpbayes.privacy.ledger_cost import Guarantee
    >>> terms = BookTerms("0" * 32, 1.0, 0.0, "add-remove", "basic", "census", "2026-01-01T00:00:00+00:00")
    >>> remaining_of(Spending().add([Cost(Guarantee(0.1), None, count=4)]), terms)
    Remaining(epsilon=0.6, delta=0.0)
    """

    epsilon: float
    delta: float


def spent_of(spending: Spending, terms: BookTerms, *, releases: int, unconfirmed: int) -> Spent:
    """Return the summary of a spending under the terms of its book; counts as in `Spent`."""
    basic = math.inf if spending.epsilon is None else float_up_or_decimal(spending.epsilon)
    tight = spending.tight_epsilon(terms.delta)
    decides = basic if terms.composition == "basic" else tight
    return Spent(basic, float_up_or_decimal(spending.delta), tight, decides, releases, unconfirmed)


def remaining_of(spending: Spending, terms: BookTerms) -> Remaining:
    """Return what a spending leaves of the total of its book."""
    if terms.composition == "basic":
        assert spending.epsilon is not None  # check_budget lets no infinite cost into a basic book
        left = terms.exact_epsilon - spending.epsilon
        return Remaining(
            float_down(max(left, Fraction(0))), decimal_down(max(terms.exact_delta - spending.delta, Fraction(0)))
        )
    if spending.fits(terms.exact_epsilon, terms.exact_delta) and spending.epsilon is not None:
        exact = terms.exact_epsilon - spending.epsilon
    else:
        exact = Fraction(0)
    tight = spending.tight_epsilon(terms.delta)
    used = max(Fraction(tight), decimal_reading(tight)) if math.isfinite(tight) else terms.exact_epsilon
    return Remaining(float_down(max(exact, terms.exact_epsilon - used)), terms.delta)


def check_budget(spending: Spending, costs: Sequence[Cost], terms: BookTerms) -> None:
    """Raise unless these costs fit on top of a spending.

    Parameters
    ----------
    spending
        What the book holds.
    costs
        What is asked for, all of it or nothing.
    terms
        The book's total and the composition that decides.

    Raises
    ------
    BudgetExceededError
        If they do not fit.
    InputError
        If a Gaussian law asks a book of plain addition for a release without a share of delta.

    Examples
    --------
    >>> from dpbayes.privacy.ledger_cost import Guarantee
    >>> terms = BookTerms("0" * 32, 1.0, 0.0, "add-remove", "basic", "census", "2026-01-01T00:00:00+00:00")
    >>> check_budget(Spending(), [Cost(Guarantee(0.1), None, count=10)], terms)
    """
    after, asked = spending.add(costs), Spending().add(costs)
    if after.fits(terms.exact_epsilon, terms.exact_delta):
        return
    left = remaining_of(spending, terms)
    remedy = "nothing was recorded; lower epsilon (a larger noise scale) or leave the release out"
    if terms.composition == "basic":
        if asked.epsilon is None:
            laws = ", ".join(sorted({str(cost.law) for cost in costs if cost.plain[0] is None}))
            raise InputError(
                f"plain addition has no finite epsilon for {laws} without a share of delta; pass delta= (the book has "
                f"{left.delta!r} left) or release under a book of tight composition"
            )
        more = nearest_float(asked.epsilon)
        raise BudgetExceededError(
            f"the request asks for epsilon {more:.12g} and delta {float(asked.delta):.12g}; left by "
            f"plain addition under {terms.adjacency} are epsilon {left.epsilon:.12g} of {terms.epsilon:.12g} and delta "
            f"{left.delta:.12g} of {terms.delta:.12g}; {remedy}{_rounding_note(after, terms)}"
        )
    total = after.tight_epsilon(terms.delta, enough=terms.epsilon)
    if math.isfinite(total) and Fraction(total) <= terms.exact_epsilon:
        return
    # What is left was rounded down in both readings of its double, so either of them still fits.
    promised = max(Fraction(left.epsilon), decimal_reading(left.epsilon))
    if asked.epsilon is not None and not asked.delta and asked.epsilon <= promised:
        return
    alone = asked.tight_epsilon(terms.delta)
    raise BudgetExceededError(
        f"the request costs epsilon {alone:.6g} at delta {terms.delta:g} by itself and {total:.6g} together with what "
        f"is spent (tight composition, {terms.adjacency}); left is epsilon {left.epsilon:.6g} of {terms.epsilon:g}; "
        f"{remedy}{_rounding_note(after, terms)}"
    )


def _rounding_note(after: Spending, terms: BookTerms) -> str:
    """Say so when doubles, not the custodian, asked for too much."""
    if after.epsilon is None or after.delta > terms.exact_delta:
        return ""
    excess = after.epsilon - terms.exact_epsilon
    if not 0 < excess <= _ROUNDING * terms.exact_epsilon:
        return ""
    return (
        f". The excess is {float(excess):.1g}, a rounding of doubles: take the next larger noise scale, "
        "math.nextafter(scale, math.inf)"
    )
