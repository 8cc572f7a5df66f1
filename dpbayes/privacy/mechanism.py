"""The one way from a budget to a release: split, reserve, draw, confirm.

Every system releases through `reserve_draw_confirm`: whatever dies in between, the cost is in the ledger before any
noise is drawn. `release_tables` is the mechanism for contingency tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from dpbayes._arguments import number, ordered, positive_finite, shown
from dpbayes.data.domain import Attribute, Domain
from dpbayes.data.tables import Marginal, check_consistent
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency, l1_sensitivity_of_counts, l2_sensitivity_of_counts
from dpbayes.privacy.laws import NoiseLaw, law_named
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release, check_unit
from dpbayes.privacy.rounding import decimal_down, decimal_reading, float_up
from dpbayes.privacy.sampling import check_drawable, release_values, sampler_name

if TYPE_CHECKING:
    import numpy as np

    from dpbayes.privacy.ledger import Ledger
    from dpbayes.privacy.ledger_cost import Guarantee


class Digested(Protocol):
    """A release: whatever has a digest."""

    @property
    def digest(self) -> str:
        """SHA-256 that the ledger keeps."""
        ...


@dataclass(frozen=True)
class Part:
    """One query of a release: what its entry in the ledger says."""

    law: NoiseLaw | Guarantee
    sensitivity: float | None
    share: Fraction = Fraction(1)
    purpose: str | None = None


def reserve_draw_confirm[R: Digested](
    draw: Callable[[], R],
    parts: Sequence[Part],
    *,
    mechanism: str,
    adjacency: Adjacency,
    purpose: str,
    rng: np.random.Generator | None,
    ledger: Ledger | None,
    delta: float = 0.0,
) -> R:
    """Reserve all parts or none, draw, and confirm with the digest of what was drawn."""
    for part in parts:
        if isinstance(part.law, NoiseLaw):
            check_drawable(part.law)
    sampler_name(rng)
    if ledger is None:
        if delta:
            raise InputError(f"delta {delta!r} is what a ledger charges; pass ledger= too, or leave delta out")
        return draw()
    if rng is not None:
        raise InputError("a ledger records real releases; pass rng=None, or leave the ledger out of a simulation")
    common = {"mechanism": mechanism, "adjacency": adjacency}
    entries = ledger.reserve_all(
        [
            common
            | {"law": part.law, "sensitivity": part.sensitivity, "purpose": part.purpose or purpose}
            | {"delta": _delta_of(delta, part.share)}
            for part in parts
        ]
    )
    try:
        release = draw()
        ledger.confirm(entries, release.digest)
    except BaseException as error:
        numbers = f"entry {entries[0]}" if len(entries) == 1 else f"entries {entries[0]} to {entries[-1]}"
        error.add_note(f"The cost was reserved before this: {numbers} of {ledger.path} count as spent.")
        raise
    return release


def _delta_of(delta: float, share: Fraction) -> float:
    from dpbayes.privacy.ledger_cost import delta_in_range

    return decimal_down(decimal_reading(delta_in_range(delta, "delta")) * share)


def split_budget(
    total: Any, shares: Sequence[float] | None, n_parts: int, *, name: str = "epsilon", part: str = "table"
) -> list[Fraction]:
    """Return each part of a budget in exact arithmetic; the parts add up to the total and none rounds to 0."""
    exact = Fraction(positive_finite(total, name, remedy=f"it is the total over every {part}"))
    given = [1] * n_parts if shares is None else ordered(shares, "shares", remedy=f"give one number per {part}")
    if len(given) != n_parts:
        raise InputError(f"shares must give one number per {part}: {n_parts} {part}s, {len(given)} shares")
    weights = [Fraction(positive_finite(share, "shares", remedy=f"leave out an unwanted {part}")) for share in given]
    parts = [exact * weight / sum(weights) for weight in weights]
    if not all(map(float, parts)):
        raise InputError(f"shares must leave every {part} a part of {name}, got {shown(shares)}; even shares do")
    return parts


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
    protected_unit: str | None = None,
    max_rows_per_unit: int = 1,
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
        Privacy-budget ledger in which every table is reserved, all or none, before any noise is drawn, and confirmed
        with the release's digest afterwards.
    delta
        Share of the ledger's delta that plain addition charges for the whole release, divided like the total. Only with
        a ledger and Gaussian laws; a ledger of plain addition needs it then, because they have no epsilon at delta 0.
    purpose
        What the ledger's entries say this is for. Public text.
    protected_unit, max_rows_per_unit
        The column whose equal values were one unit when the tables were counted, and the most rows of a unit that count
        (`dpbayes.data.marginals` bounds them). Sensitivities are that many times those of a row. With more than one
        row, their number is confidential under either relation: use add-remove.

    Returns
    -------
    Release
        The noisy tables with their laws, cost, adjacency and sampler.

    Raises
    ------
    InputError
        If a parameter is out of range or the tables contradict one another.
    BudgetExceededError
        If the ledger has too little left. Nothing is drawn then.

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
    family = law_named(noise)
    name, budget, other = ("epsilon", epsilon, rho) if family.is_pure else ("rho", rho, epsilon)
    if budget is None or other is not None:
        raise InputError(f"{noise} noise is calibrated by {name} alone; got epsilon={shown(epsilon)}, rho={shown(rho)}")
    positive_finite(budget, name, remedy="it is the total over all tables")
    for_n = _check_total_share(total_share, adjacency) * Fraction(budget)
    weights = split_budget(1, shares, len(tables), name=name)
    budgets = [(Fraction(budget) - for_n) * weight for weight in weights]
    check_unit(protected_unit, max_rows_per_unit)
    if max_rows_per_unit > 1 and adjacency == "replace-one":
        raise InputError(
            f"under replace-one the number of rows is public, and a unit with up to {max_rows_per_unit} rows changes "
            'it; use adjacency = "add-remove" with a total_share, or max_rows_per_unit = 1'
        )
    n = check_consistent(tables)
    if n < 1 and adjacency == "replace-one":
        raise InputError("the tables hold no records; there is nothing to release")

    rows = max_rows_per_unit
    per_row = l1_sensitivity_of_counts(adjacency) if family.norm == 1 else l2_sensitivity_of_counts(adjacency)
    sensitivity = per_row if rows == 1 else float_up(rows * Fraction(per_row))
    laws = [family.spending(part, sensitivity=sensitivity) for part in budgets]
    parts = [Part(law, sensitivity, part / Fraction(budget)) for law, part in zip(laws, budgets, strict=True)]
    total_law = family.spending(for_n, sensitivity=rows) if for_n else None
    if total_law is not None:
        parts.append(Part(total_law, rows, for_n / Fraction(budget)))

    def draw() -> Release:
        released_n: int | NoisyTotal = n
        if total_law is not None:
            value = release_values([n], total_law, rng=rng)[0]
            released_n = NoisyTotal(value.item(), total_law, float(rows), float(for_n) if family.is_pure else None)
        noisy = []
        for table, law, part in zip(tables, laws, budgets, strict=True):
            values = release_values(table.counts, law, rng=rng)
            noisy.append(NoisyTable(table.domain, values, law, sensitivity, float(part) if family.is_pure else None))
        return Release(
            _union(tables),
            tuple(noisy),
            adjacency,
            released_n,
            sampler_name(rng),
            protected_unit=protected_unit,
            max_rows_per_unit=rows,
        )

    return reserve_draw_confirm(
        draw, parts, mechanism=noise, adjacency=adjacency, purpose=purpose, rng=rng, ledger=ledger, delta=delta
    )


def _check_tables(tables: Sequence[Marginal]) -> tuple[Marginal, ...]:
    """Return the tables as a tuple."""
    if isinstance(tables, Marginal):
        label = " x ".join(tables.attributes)
        raise InputError(f"tables must be a sequence of tables, got a single Marginal ({label}); pass [table]")
    remedy = "count them from records with dpbayes.data.marginals"
    return ordered(tables, "tables", remedy=remedy, kind=Marginal)


def _check_total_share(total_share: float | None, adjacency: Adjacency) -> Fraction:
    if adjacency == "replace-one":
        if total_share is not None:
            raise InputError(
                f"total_share must be left out under replace-one, where n is public; got {shown(total_share)}"
            )
        return Fraction(0)
    if total_share is None:
        raise InputError(
            "under add-remove the number of records is confidential; pass total_share=0.05, say, to release it with 5 "
            "% of the budget, or use adjacency='replace-one' if n is public"
        )
    share = number(total_share, "total_share")
    if not 0 < share < 1:
        raise InputError(f"total_share must lie strictly between 0 and 1, got {shown(total_share)}")
    return Fraction(share)


def _union(tables: Sequence[Any]) -> Domain:
    """Return the domain of all attributes, in order of first appearance."""
    attributes: dict[str, Attribute] = {}
    for table in tables:
        for attribute in table.domain:
            attributes.setdefault(attribute.name, attribute)
    return Domain(tuple(attributes.values()))
