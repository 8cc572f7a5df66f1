"""Mechanisms: what turns confidential tables into a `Release`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpbayes._arguments import number, ordered, positive_finite, shown
from dpbayes.data.domain import Attribute, Domain
from dpbayes.data.marginals import Marginal, check_consistent
from dpbayes.errors import InputError
from dpbayes.privacy._rounding import float_up
from dpbayes.privacy.adjacency import Adjacency, check_adjacency, l1_sensitivity_of_counts, l2_sensitivity_of_counts
from dpbayes.privacy.ledger_cost import delta_in_range
from dpbayes.privacy.ledger_rounding import decimal_down, decimal_reading, float_down
from dpbayes.privacy.noise import DiscreteGaussian, Gaussian, Laplace, NoiseLaw, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release
from dpbayes.privacy.sampling import check_drawable, release_values, sampler_name

if TYPE_CHECKING:
    import numpy as np

    from dpbayes.privacy.ledger import Ledger


__all__ = ["release_tables"]

_PURE: dict[str, Any] = {"two-sided-geometric": TwoSidedGeometric, "laplace": Laplace}
_ZERO_CONCENTRATED: dict[str, Any] = {"discrete-gaussian": DiscreteGaussian, "gaussian": Gaussian}


def release_tables(
    tables: Sequence[Marginal],
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    noise: str = "two-sided-geometric",
    adjacency: Adjacency = "replace-one",
    shares: Sequence[float] | None = None,
    total_share: float | None = None,
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    delta: float = 0.0,
    purpose: str = "marginal tables",
) -> Release:
    r"""Release marginal tables with independent noise on every count.

    Sequential composition splits the total over the tables: table :math:`t` gets :math:`\epsilon_t = w_t \epsilon` (or
    :math:`\rho_t = w_t \rho`) and noise calibrated to its sensitivity. Replacing one record moves one count of a table
    down and another up, so the L1 sensitivity of a table is 2 (L2: :math:`\sqrt 2`) under replace-one; adding or
    removing a record moves one count, so both are 1 under add-remove.

    Parameters
    ----------
    tables
        Exact tables of the same records. They must agree on every shared margin.
    epsilon
        Total privacy-loss parameter, for two-sided geometric and Laplace noise.
    rho
        Total zero-concentrated DP parameter, for discrete Gaussian and Gaussian noise. Give one of epsilon and rho.
    noise
        ``"two-sided-geometric"``, ``"laplace"``, ``"discrete-gaussian"`` or ``"gaussian"``.
    adjacency
        ``"replace-one"``: neighbours differ in one record and n is public. ``"add-remove"``: one record more or less,
        so n is confidential and `total_share` must say what to spend on it.
    shares
        Relative share of the total for each table; even by default. Only their ratios matter.
    total_share
        Share of the total, in (0, 1), spent on releasing n itself. Only under add-remove, where it is required.
    rng
        None draws from OpenDP's exact samplers with cryptographic randomness: the real thing. A NumPy generator
        simulates; the release is then marked ``simulation`` and carries no guarantee.
    ledger
        Budget book in which every table is reserved, all or none, before any noise is drawn, and confirmed with the
        release's digest afterwards.
    delta
        Share of the book's delta that plain addition charges for the whole release, divided like the total. Only with
        a ledger and Gaussian laws; a book of plain addition needs it then, because they have no epsilon at delta 0.
    purpose
        What the book's entries say this is for. Public text.

    Returns
    -------
    Release
        The noisy tables with their laws, cost, adjacency and sampler.

    Raises
    ------
    InputError
        If a parameter is out of range or the tables contradict one another.
    BudgetExceededError
        If the book has too little left. Nothing is drawn then.

    References
    ----------
    Ghosh, A., Roughgarden, T. and Sundararajan, M. (2012). Universally utility-maximizing privacy mechanisms. SIAM J.
    Comput. 41(6), 1673-1693. Two-sided geometric mechanism.
    Bun, M. and Steinke, T. (2016). Concentrated differential privacy. TCC. Proposition 1.6: Gaussian noise.

    Examples
    --------
    >>> import numpy as np
    >>> from dpbayes.data import datasets
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(7))
    >>> release.tables[0].noise
    TwoSidedGeometric(scale=20.0)
    """
    tables = _check_tables(tables)
    check_adjacency(adjacency)
    budget = _check_budget(noise, epsilon, rho)
    for_n = _check_total_share(total_share, adjacency) * Fraction(budget)
    weights = _check_shares(shares, len(tables))
    n = check_consistent(tables)
    if n < 1 and adjacency == "replace-one":
        raise InputError("the tables hold no records; there is nothing to release")
    sampler = sampler_name(rng)

    sensitivity = (l1_sensitivity_of_counts if noise in _PURE else l2_sensitivity_of_counts)(adjacency)
    table_budgets = [(Fraction(budget) - for_n) * weight for weight in weights]
    laws = [_law(noise, part, sensitivity) for part in table_budgets]
    total_law = _law(noise, for_n, 1.0) if for_n else None
    parts = [(law, sensitivity, part / Fraction(budget)) for law, part in zip(laws, table_budgets, strict=True)]
    if total_law is not None:
        parts.append((total_law, 1.0, for_n / Fraction(budget)))
    requests = _requests(parts, delta, mechanism=noise, adjacency=adjacency, purpose=purpose)
    entries = _reserve(ledger, requests, rng, delta)

    pure = noise in _PURE
    released_n: int | NoisyTotal = n
    if total_law is not None:
        value = release_values([n], total_law, rng=rng)[0]
        released_n = NoisyTotal(value.item(), total_law, 1.0, float(for_n) if pure else None)
    noisy = [
        NoisyTable(
            table.domain, release_values(table.counts, law, rng=rng), law, sensitivity, float(part) if pure else None
        )
        for table, law, part in zip(tables, laws, table_budgets, strict=True)
    ]
    release = Release(_union(tables), tuple(noisy), adjacency, released_n, sampler)
    if ledger is not None:
        ledger.confirm(entries, release.digest)
    return release


def _check_tables(tables: Sequence[Marginal]) -> tuple[Marginal, ...]:
    """Return the tables as a tuple."""
    if isinstance(tables, Marginal):
        label = " x ".join(tables.attributes)
        raise InputError(f"tables must be a sequence of tables, got a single Marginal ({label}); pass [table]")
    remedy = "count them from records with dpbayes.data.marginals"
    return ordered(tables, "tables", remedy=remedy, kind=Marginal)


def _requests(parts: Sequence[tuple[NoiseLaw, float, Fraction]], delta: float, **common: Any) -> list[dict[str, Any]]:
    """Return what a book is asked for: one request a part (law, sensitivity, share of delta)."""
    for law, _, _ in parts:
        check_drawable(law)
    whole = decimal_reading(delta_in_range(delta, "delta"))
    return [
        {"law": law, "sensitivity": sensitivity, "delta": decimal_down(whole * share), **common}
        for law, sensitivity, share in parts
    ]


def _reserve(
    ledger: Ledger | None, requests: Sequence[dict[str, Any]], rng: np.random.Generator | None, delta: float
) -> list[int]:
    """Enter what is about to be released into the book, if there is one."""
    if ledger is None:
        if delta:
            raise InputError(f"delta {delta!r} is what a book charges; pass ledger= too, or leave delta out")
        return []
    if rng is not None:
        raise InputError("a ledger records real releases; pass rng=None, or leave the ledger out of a simulation")
    return ledger.reserve_all(requests)


def _law(noise: str, budget: Fraction, sensitivity: float) -> NoiseLaw:
    """Return the noise law that spends this budget, and never more in exact arithmetic."""
    if noise in _PURE:
        return _PURE[noise](float_up(Fraction(sensitivity) / budget))
    return _ZERO_CONCENTRATED[noise].from_rho(float_down(budget), sensitivity=sensitivity)


def _check_budget(noise: str, epsilon: float | None, rho: float | None) -> float:
    """Return the total budget in the unit of the noise law."""
    if not isinstance(noise, str) or (noise not in _PURE and noise not in _ZERO_CONCENTRATED):
        raise InputError(f"noise must be one of {', '.join([*_PURE, *_ZERO_CONCENTRATED])}, got {shown(noise)}")
    name, value, other = ("epsilon", epsilon, rho) if noise in _PURE else ("rho", rho, epsilon)
    if value is None or other is not None:
        raise InputError(f"{noise} noise is calibrated by {name} alone; got epsilon={shown(epsilon)}, rho={shown(rho)}")
    return positive_finite(value, name, remedy="it is the total over all tables")


def _check_total_share(total_share: float | None, adjacency: Adjacency) -> Fraction:
    if adjacency == "replace-one":
        if total_share is not None:
            raise InputError(f"total_share must be left out under replace-one, where n is public; got {total_share!r}")
        return Fraction(0)
    if total_share is None:
        raise InputError(
            "under add-remove the number of records is confidential; pass total_share=0.05, say, to release it with 5 "
            "% of the budget, or use adjacency='replace-one' if n is public"
        )
    share = number(total_share, "total_share")
    if not 0 < share < 1:
        raise InputError(f"total_share must lie strictly between 0 and 1, got {total_share!r}")
    return Fraction(share)


def _check_shares(shares: Sequence[float] | None, n_tables: int) -> list[Fraction]:
    """Return one weight a table, summing to 1 exactly."""
    given = [1] * n_tables if shares is None else ordered(shares, "shares", remedy="give one number a table")
    if len(given) != n_tables:
        raise InputError(f"shares must give one number a table: {n_tables} tables, {len(given)} shares")
    weights = [Fraction(positive_finite(share, "shares", remedy="leave out unwanted tables")) for share in given]
    return [weight / sum(weights) for weight in weights]


def _union(tables: Sequence[Any]) -> Domain:
    """Return the domain of all attributes, in order of first appearance."""
    attributes: dict[str, Attribute] = {}
    for table in tables:
        for attribute in table.domain:
            attributes.setdefault(attribute.name, attribute)
    return Domain(tuple(attributes.values()))
