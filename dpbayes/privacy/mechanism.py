"""The one way from a budget to a release: split, reserve, draw, confirm.

Every system releases through `reserve_draw_confirm`: whatever dies in between, the cost is in the ledger before any
noise is drawn. `release_tables` is the mechanism for contingency tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from dpbayes._arguments import finite, instance, ordered, positive_finite, shown, strictly_between
from dpbayes.data.domain import Domain
from dpbayes.data.tables import Marginal, check_consistent
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency, sensitivity_of_counts
from dpbayes.privacy.laws import NoiseLaw, law_named
from dpbayes.privacy.ledger_cost import Guarantee, delta_in_range
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release, check_unit
from dpbayes.privacy.rounding import decimal_down, decimal_reading, float_up
from dpbayes.privacy.sampling import check_drawable, release_values, sampler_name

if TYPE_CHECKING:
    import numpy as np

    from dpbayes.privacy.ledger import Ledger


class Digested(Protocol):
    """A release: whatever has a digest."""

    @property
    def digest(self) -> str: ...  # noqa: D102


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
    instance(purpose, str, "purpose", remedy="say what the release is for")
    finite(delta, "delta", remedy="0 charges epsilon alone")
    if ledger is None:
        if delta:
            raise InputError(f"delta {delta!r} is what a ledger charges; pass ledger= too, or leave delta out")
        return draw()
    if rng is not None and not ledger.rehearses:
        raise InputError("a ledger records real releases; pass rng=None, or leave the ledger out of a simulation")
    charged = decimal_reading(delta_in_range(delta, "delta"))
    requests = [
        {"mechanism": mechanism, "law": part.law, "sensitivity": part.sensitivity, "adjacency": adjacency}
        | {"purpose": part.purpose or purpose, "delta": decimal_down(charged * part.share)}
        for part in parts
    ]
    entries = ledger.reserve_all(requests)
    if ledger.rehearses:
        return draw()
    try:
        release = draw()
        ledger.confirm(entries, release.digest)
    except BaseException as error:
        numbers = f"entry {entries[0]}" if len(entries) == 1 else f"entries {entries[0]} to {entries[-1]}"
        error.add_note(f"The cost was reserved before this: {numbers} of {ledger.path} count as spent.")
        raise
    return release


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
    :math:`\rho_t = w_t \rho`) and noise calibrated to its sensitivity (`l1_sensitivity_of_counts`).

    Parameters
    ----------
    tables
        Exact tables of the same records. They must agree on every shared margin.
    epsilon, rho
        Total privacy cost, one of the two: pure epsilon for two-sided geometric and Laplace noise, zero-concentrated DP
        for discrete Gaussian and Gaussian noise.
    noise
        ``"two-sided-geometric"``, ``"laplace"``, ``"discrete-gaussian"`` or ``"gaussian"``.
    adjacency
        ``"replace-one"``: n is public. ``"add-remove"``: n is confidential, and `total_share` says what to spend on it.
    shares
        Relative share of the total for each table; even by default.
    total_share
        Share of the total, in (0, 1), spent on releasing n itself; add-remove requires it.
    rng
        None draws from OpenDP's exact samplers with cryptographic randomness: the real thing. A NumPy generator
        simulates; the release is then marked ``simulation`` and carries no guarantee.
    ledger
        Privacy-budget ledger in which every table is reserved, all or none, before any noise is drawn, and confirmed
        with the release's digest afterwards.
    delta
        Share of the ledger's delta that plain addition charges for the whole release, divided like the total; a ledger
        of plain addition needs it for Gaussian laws, which have no epsilon at delta 0.
    purpose
        What the ledger's entries say this is for. Public text.
    protected_unit, max_rows_per_unit
        The column whose equal values were one unit when the tables were counted, and the most rows of a unit that count
        (`dpbayes.data.marginals` bounds them). Sensitivities are that many times those of a row. More than one row
        makes n confidential: use add-remove.

    Raises
    ------
    InputError
        If a parameter is out of range or the tables contradict one another.
    BudgetExceededError
        If the ledger has too little left. Nothing is drawn then.

    References
    ----------
    Ghosh, A., Roughgarden, T. and Sundararajan, M. (2012). SIAM J. Comput. 41(6), 1673-1693. Geometric mechanism.
    Bun, M. and Steinke, T. (2016). Concentrated differential privacy. TCC. Proposition 1.6: Gaussian noise.

    Examples
    --------
    >>> import numpy as np
    >>> from dpbayes.data import datasets
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(7))
    >>> release.tables[0].noise
    TwoSidedGeometric(scale=20.0)
    """
    if isinstance(tables, Marginal):
        label = " x ".join(tables.attributes)
        raise InputError(f"tables must be a sequence of tables, got a single Marginal ({label}); pass [table]")
    tables = ordered(tables, "tables", remedy="count them from records with dpbayes.data.marginals", kind=Marginal)
    check_adjacency(adjacency)
    family, budget = _calibrated_by(noise, epsilon, rho)
    for_n = _check_total_share(total_share, adjacency) * budget
    weights = split_budget(1, shares, len(tables), name="epsilon" if family.is_pure else "rho")
    check_unit(protected_unit, max_rows_per_unit)
    n, rows = _check_rows(tables, adjacency, max_rows_per_unit), max_rows_per_unit
    per_row = sensitivity_of_counts(adjacency, pure=family.is_pure)
    sensitivity = per_row if rows == 1 else float_up(rows * Fraction(per_row))
    # Of every table, and of n where it is confidential: sensitivity, part of the budget, law, stated epsilon.
    spent = [(sensitivity, (budget - for_n) * weight) for weight in weights] + ([(rows, for_n)] if for_n else [])
    laws = [family.spending(part, sensitivity=change) for change, part in spent]
    stated = [float(part) if family.is_pure else None for _, part in spent]

    def draw() -> Release:
        released_n: int | NoisyTotal = n
        if for_n:
            value = release_values([n], laws[-1], rng=rng)[0].item()
            released_n = NoisyTotal(value, laws[-1], float(rows), stated[-1])
        noisy = (
            NoisyTable(table.domain, release_values(table.counts, law, rng=rng), law, sensitivity, cost)
            for table, law, cost in zip(tables, laws, stated, strict=False)
        )
        domain = Domain(tuple({one.name: one for table in tables for one in table.domain}.values()))
        unit: dict[str, Any] = {"protected_unit": protected_unit, "max_rows_per_unit": rows}
        return Release(domain, tuple(noisy), adjacency, released_n, sampler_name(rng), **unit)

    parts = [Part(law, change, part / budget) for law, (change, part) in zip(laws, spent, strict=True)]
    return reserve_draw_confirm(
        draw, parts, mechanism=noise, adjacency=adjacency, purpose=purpose, rng=rng, ledger=ledger, delta=delta
    )


def _calibrated_by(noise: str, epsilon: float | None, rho: float | None) -> tuple[type[NoiseLaw], Fraction]:
    """Return the family of a noise law and its budget, which the other of the two does not give."""
    family = law_named(noise)
    name, budget, other = ("epsilon", epsilon, rho) if family.is_pure else ("rho", rho, epsilon)
    if budget is None or other is not None:
        raise InputError(f"{noise} noise is calibrated by {name} alone; got epsilon={shown(epsilon)}, rho={shown(rho)}")
    return family, Fraction(positive_finite(budget, name, remedy="it is the total over all tables"))


def _check_rows(tables: Sequence[Marginal], adjacency: Adjacency, max_rows_per_unit: int) -> int:
    """Return the number of rows, which is public under replace-one: then above 0, and one of every unit."""
    if max_rows_per_unit > 1 and adjacency == "replace-one":
        raise InputError(
            f"under replace-one the number of rows is public, and a unit with up to {max_rows_per_unit} rows changes "
            'it; use adjacency = "add-remove" with a total_share, or max_rows_per_unit = 1'
        )
    n = check_consistent(tables)
    if n < 1 and adjacency == "replace-one":
        raise InputError("the tables hold no records; there is nothing to release")
    return n


def _check_total_share(total_share: float | None, adjacency: Adjacency) -> Fraction:
    if adjacency == "replace-one":
        if total_share is not None:
            raise InputError(f"leave total_share out under replace-one, where n is public; got {shown(total_share)}")
        return Fraction(0)
    if total_share is None:
        raise InputError(
            "under add-remove the number of records is confidential; pass total_share=0.05, say, to release it with 5 "
            "% of the budget, or use adjacency='replace-one' if n is public"
        )
    return Fraction(strictly_between(total_share, "total_share", 0, 1))
