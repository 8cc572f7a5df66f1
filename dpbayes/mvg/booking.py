"""Entering a Gaussian release in the budget book before its noise is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.noise import Gaussian

if TYPE_CHECKING:
    import numpy as np

    from dpbayes.privacy.ledger import Ledger

__all__ = ["reserve_gaussian"]


def reserve_gaussian(
    ledger: Ledger | None,
    *,
    mechanism: str,
    mu: float,
    adjacency: Adjacency,
    purpose: str,
    delta: float,
    rng: np.random.Generator | None,
) -> int | None:
    """Reserve a Gaussian release of price `mu` and return its entry, or None without a ledger.

    Parameters
    ----------
    ledger
        The book, or None.
    mechanism
        Short public name.
    mu
        Sensitivity over standard deviation. The entry says standard deviation 1 and sensitivity mu: the release in the
        coordinates in which its noise is standard.
    adjacency
        Neighbouring relation; must be the book's.
    purpose
        Public text.
    delta
        Share of the book's delta that a book of plain addition charges.
    rng
        The release's generator: a simulation is no release and must not be booked.

    Raises
    ------
    InputError
        If a simulation is to be booked.
    BudgetExceededError
        If the book has too little left.

    Examples
    --------
    >>> reserve_gaussian(None, mechanism="mvg", mu=0.2, adjacency="replace-one", purpose="", delta=0.0, rng=None)
    """
    if ledger is None:
        return None
    if rng is not None:
        raise InputError("a ledger records real releases; pass rng=None, or leave the ledger out of a simulation")
    return ledger.reserve(
        mechanism=mechanism, law=Gaussian(1.0), sensitivity=mu, adjacency=adjacency, purpose=purpose, delta=delta
    )
