"""Before any record is read: which tables to release, how much of the budget each gets, and what their fit will take.

Noise on all pairs of d attributes grows with their number: at fifty attributes and an epsilon of 1 every pair is noise.
A plan either takes all tables of the workload, or releases every attribute alone and the few pairs that are worth it:
chosen from public records at no cost, or from the confidential ones by the noisy top k of how far each pair is from
independence (McKenna, Miklau and Sheldon 2021, "Winning the NIST contest", section 3.1; the score's penalty for noise
is that of AIM, McKenna, Mullins, Sheldon and Miklau 2022, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from dpbayes._arguments import Ints, instance, one_of, ordered, positive_finite, shown, whole_number
from dpbayes._arguments import check_memory as check_bytes
from dpbayes.data.domain import Domain
from dpbayes.data.tables import Marginal, marginals
from dpbayes.errors import InputError
from dpbayes.latent_class.design import (
    MAX_EXACT_CELLS,
    MAX_RECORDED_CELLS,
    SEVERAL_CELLS,
    Likelihood,
    classes_for,
    n_effects,
)
from dpbayes.latent_class.zeros import Impossible, Support
from dpbayes.privacy.adjacency import Adjacency, sensitivity_of_counts
from dpbayes.privacy.laws import NoiseLaw, law_named
from dpbayes.privacy.ledger_cost import Guarantee
from dpbayes.privacy.mechanism import Part, reserve_draw_confirm
from dpbayes.privacy.release import NoisyTable, Release
from dpbayes.privacy.sampling import Selection, noisy_top_k, release_values, sampler_name, selection_within

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

FAIR_ERROR = 0.1  # expected, of a released pair (absolute errors of its shares), up to which a plan takes all pairs
_ADJACENCY: Adjacency = "replace-one"  # a plan takes the number of records as public
_SHARE_OF_ATTRIBUTES, _SHARE_OF_SELECTION = Fraction(1, 10), Fraction(1, 10)


@dataclass(frozen=True)
class Plan:
    """Tables to release and how; `plan` makes it, and `release_plan` carries it out.

    Parameters
    ----------
    domain, tables, laws
        The attributes, the sets of them that are released whatever the records say, and the noise of each.
    candidates, selection, chosen_law
        Pairs among which some are chosen privately, the cost of choosing, and the noise of each chosen pair; empty and
        None where nothing is chosen.
    n_records, budget
        Number of records that expected errors are relative to, and the total, under replace-one: ``("epsilon", 1.0)``
        or ``("rho", 0.01)``.
    """

    domain: Domain
    tables: tuple[tuple[str, ...], ...]
    laws: tuple[NoiseLaw, ...]
    candidates: tuple[tuple[str, ...], ...]
    selection: Selection | None
    chosen_law: NoiseLaw | None
    n_records: int
    budget: tuple[str, float]

    @property
    def n_tables(self) -> int:
        """Tables in all."""
        return len(self.tables) + self._chosen

    @property
    def n_counts(self) -> int:
        """Released counts; chosen pairs at the mean size of the candidates."""
        fixed = sum(self.domain.project(names).size for names in self.tables)
        return fixed + round(self._chosen * self._mean_size)

    @property
    def pair_error(self) -> float:
        """Expected sum of absolute errors of a released pair's shares, from the noise alone; the mean over pairs."""
        fixed = zip(self.tables, self.laws, strict=True)
        pairs = [(float(self.domain.project(names).size), law) for names, law in fixed if len(names) == 2]
        if self.chosen_law is not None:
            pairs.append((self._mean_size, self.chosen_law))
        errors = [size * law.mean_magnitude / self.n_records for size, law in pairs]
        return float(np.mean(errors)) if errors else math.nan

    @property
    def _chosen(self) -> int:
        return 0 if self.selection is None else self.selection.n_chosen

    @property
    def _mean_size(self) -> float:
        return float(np.mean([self.domain.project(pair).size for pair in self.candidates])) if self.candidates else 0.0

    def __str__(self) -> str:
        name, total = self.budget
        lines = [f"{self.n_tables:,} tables with {self.n_counts:,} counts at {name} {total:g} in total, {_ADJACENCY}"]
        for order in sorted({len(names) for names in self.tables}):
            laws = [law for names, law in zip(self.tables, self.laws, strict=True) if len(names) == order]
            spread = sorted(math.sqrt(law.variance) for law in laws)
            what = {1: "attributes alone", 2: "pairs", 3: "triples"}.get(order, f"tables of {order} attributes")
            sizes = f"{spread[0]:.3g}" if spread[0] == spread[-1] else f"{spread[0]:.3g} to {spread[-1]:.3g}"
            lines.append(f"  {len(laws):,} {what}: noise standard deviation per cell {sizes} records")
        if self.selection is not None and self.chosen_law is not None:
            lines.append(
                f"  {self._chosen:,} of {self.selection.n_candidates:,} pairs chosen privately "
                f"({name} {getattr(self.selection, name):.3g}): noise standard deviation per cell "
                f"{math.sqrt(self.chosen_law.variance):.3g} records"
            )
        lines.append(
            f"  expected error of a released pair before the fit: {self.pair_error:.3f} "
            f"(sum of absolute errors of its shares, {self.n_records:,} records)"
        )
        return "\n".join(lines)


def plan(
    domain: Domain,
    *,
    n_records: int,
    epsilon: float | None = None,
    rho: float | None = None,
    workload: Sequence[Sequence[str]] | None = None,
    choose: int | None = None,
    public: Any = None,
) -> Plan:
    r"""Propose tables to release from the codebook alone.

    Parameters
    ----------
    domain
        The attributes with their levels.
    n_records
        Public number of records, or a public guess: expected errors are relative to it.
    epsilon, rho
        The total budget: epsilon gives two-sided geometric noise, for few tables; rho (zero-concentrated DP) gives
        discrete Gaussian noise, for many.
    workload
        Attribute sets of the tables that are wanted; all pairs by default.
    choose
        How many pairs to choose, besides every attribute alone. By default none where the expected error of the
        workload is at most 0.1, else as many as keep it there, at least one less than there are attributes.
    public
        Public records of a similar population (any data frame with the attributes). Pairs are then chosen from it, at
        no privacy cost; else they are chosen from the confidential records when the plan is carried out.

    Returns
    -------
    Plan
        Its text says tables, noise and expected errors; `release_plan` carries it out.

    Raises
    ------
    InputError
        If not exactly one of epsilon and rho is given, or an argument is out of range.

    Notes
    -----
    Within the fixed tables the budget is split so that the sum of expected absolute errors is least: epsilon in
    proportion to the square root of a table's cells, rho to their power 2/3.

    Examples
    --------
    >>> domain = Domain.from_levels({f"question {i}": range(6) for i in range(1, 31)})
    >>> print(plan(domain, n_records=30_000, rho=0.02))
    73 tables with 1,728 counts at rho 0.02 in total, replace-one
      30 attributes alone: noise standard deviation per cell 122 records
      43 of 435 pairs chosen privately (rho 0.002): noise standard deviation per cell 51.8 records
      expected error of a released pair before the fit: 0.050 (sum of absolute errors of its shares, 30,000 records)
    """
    if (epsilon is None) == (rho is None):
        raise InputError(f"give one of epsilon and rho, got epsilon={shown(epsilon)}, rho={shown(rho)}")
    instance(domain, Domain, "domain", remedy="Domain.from_levels makes one")
    n_records = whole_number(n_records, "n_records", remedy="a public guess will do")
    name, total = ("epsilon", epsilon) if rho is None else ("rho", rho)
    exact = Fraction(positive_finite(total, name, remedy="it is the total over all tables"))
    pairs: tuple[tuple[str, ...], ...] = tuple(combinations(domain.names, 2))
    if workload is None:
        sets = list(pairs) or [domain.names]
    else:
        named = ordered(workload, "workload", remedy="give lists of attributes")
        sets = [domain.project(names).names for names in named]
    whole = _fixed(domain, sets, exact, name, n_records)
    if choose is None:
        if whole.pair_error <= FAIR_ERROR or math.isnan(whole.pair_error) or len(domain) < 3:
            return whole
        choose = _affordable(domain, pairs, exact, name, n_records)
    choose = whole_number(choose, "choose", high=len(pairs), remedy=f"there are {len(pairs)} pairs")
    alone = [(attribute,) for attribute in domain.names]
    if public is not None:
        best = _best(domain, pairs, choose, public, exact, name)
        return _fixed(domain, [*alone, *best], exact, name, n_records)
    ones = _fixed(domain, alone, exact * _SHARE_OF_ATTRIBUTES, name, n_records)
    selection = selection_within(len(pairs), choose, sensitivity=2.0, **{name: float(exact * _SHARE_OF_SELECTION)})
    law = _spending(name, (exact * (1 - _SHARE_OF_ATTRIBUTES - _SHARE_OF_SELECTION)) / choose)
    return Plan(domain, ones.tables, ones.laws, pairs, selection, law, n_records, (name, float(exact)))


def release_plan(
    frame: Any,
    chosen: Plan,
    *,
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    delta: float = 0.0,
    purpose: str = "planned tables",
) -> Release:
    """Carry out a plan: count, choose pairs privately where it says so, and release.

    Parameters
    ----------
    frame
        Confidential records, as `dpbayes.data.marginals` reads them.
    chosen
        What `plan` returned.
    rng, ledger, delta, purpose
        As in `dpbayes.privacy.release_tables`. A ledger books every round of the selection by its pure epsilon, which
        is up to four times its zero-concentrated cost.

    Returns
    -------
    Release
        The fixed tables, then the chosen pairs; its cost includes the selection's.

    Raises
    ------
    InputError
        If the records do not fit the domain.
    BudgetExceededError
        If the ledger has too little left. Nothing is drawn then.

    Examples
    --------
    >>> import polars as pl
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"a": (0, 1), "b": (0, 1), "c": (0, 1)})
    >>> rng = np.random.default_rng(1)
    >>> a = rng.integers(0, 2, 5000)
    >>> frame = pl.DataFrame({"a": a, "b": a, "c": rng.integers(0, 2, 5000)})
    >>> release = release_plan(frame, plan(domain, n_records=5000, rho=0.05, choose=1), rng=rng)
    >>> [table.attributes for table in release.tables], round(release.rho, 6)
    ([('a',), ('b',), ('c',), ('a', 'b')], 0.05)
    """
    instance(chosen, Plan, "chosen", remedy="dpbayes.latent_class.plan returns it")
    instance(purpose, str, "purpose", remedy="say what the release is for")
    exact = marginals(frame, [*chosen.tables, *chosen.candidates], domain=chosen.domain)
    n = exact[0].total
    fixed, pairs = exact[: len(chosen.tables)], exact[len(chosen.tables) :]
    pure = chosen.budget[0] == "epsilon"
    sensitivity = sensitivity_of_counts(_ADJACENCY, pure=pure)
    parts = [Part(law, sensitivity) for law in chosen.laws]
    if chosen.selection is not None and chosen.chosen_law is not None:
        rounds = chosen.selection.n_chosen
        parts += [Part(Guarantee(chosen.selection.epsilon_of_one), None, purpose=f"{purpose}: selection")] * rounds
        parts += [Part(chosen.chosen_law, sensitivity)] * rounds

    def noisy(table: Marginal, law: NoiseLaw) -> NoisyTable:
        spent = sensitivity / law.spread if pure else None
        return NoisyTable(table.domain, release_values(table.counts, law, rng=rng), law, sensitivity, spent)

    def draw() -> Release:
        tables = [noisy(table, law) for table, law in zip(fixed, chosen.laws, strict=True)]
        if chosen.selection is not None and chosen.chosen_law is not None:
            scores = _scores(pairs, tables, n, chosen.chosen_law)
            places = noisy_top_k(scores, chosen.selection, pure=pure, rng=rng)
            tables += [noisy(pairs[place], chosen.chosen_law) for place in sorted(places)]
        source = sampler_name(rng)
        return Release(chosen.domain, tuple(tables), _ADJACENCY, n, source, selection=chosen.selection)

    return reserve_draw_confirm(
        draw, parts, mechanism="planned tables", adjacency=_ADJACENCY, purpose=purpose, rng=rng, ledger=ledger,
        delta=delta,
    )  # fmt: skip


def _spending(name: str, part: Fraction) -> NoiseLaw:
    """Return the law of least noise for a part of the budget, under replace-one."""
    law = law_named("two-sided-geometric" if name == "epsilon" else "discrete-gaussian")
    return law.spending(part, sensitivity=sensitivity_of_counts(_ADJACENCY, pure=law.is_pure))


def _fixed(domain: Domain, sets: Sequence[tuple[str, ...]], total: Fraction, name: str, n_records: int) -> Plan:
    """Split the budget over fixed tables: least sum of expected absolute errors."""
    power = 1 / 2 if name == "epsilon" else 2 / 3
    weights = [Fraction(round(1e6 * domain.project(names).size ** power)) for names in sets]
    laws = tuple(_spending(name, total * weight / sum(weights)) for weight in weights)
    return Plan(domain, tuple(sets), laws, (), None, None, n_records, (name, float(total)))


def _affordable(domain: Domain, pairs: Sequence[tuple[str, ...]], total: Fraction, name: str, n_records: int) -> int:
    """Return the most pairs whose expected error stays fair; at least one less than there are attributes."""
    size = float(np.mean([domain.project(pair).size for pair in pairs]))
    left = total * (1 - _SHARE_OF_ATTRIBUTES - _SHARE_OF_SELECTION)
    least = most = len(domain) - 1
    while most < min(len(pairs), 4 * least):
        law = _spending(name, left / (most + 1))
        if size * law.mean_magnitude / n_records > FAIR_ERROR / 2:
            break
        most += 1
    return most


def _best(
    domain: Domain, pairs: Sequence[tuple[str, ...]], choose: int, public: Any, total: Fraction, name: str
) -> list[tuple[str, ...]]:
    """Choose pairs from public records: the farthest from independence, less what noise would hide."""
    tables = marginals(public, [*((attribute,) for attribute in domain.names), *pairs], domain=domain)
    n = tables[0].total
    scores = _scores(tables[len(domain) :], tables[: len(domain)], n, _spending(name, total / choose))
    return [pairs[place] for place in sorted(np.argsort(-scores, kind="stable")[:choose])]


def _scores(pairs: Sequence[Marginal], alone: Sequence[Any], n: int, law: NoiseLaw) -> Ints:
    """Return how far each pair is from the product of its attributes, in records, less the noise of releasing it."""
    shares = {}
    for table in alone:
        if len(table.domain.names) == 1:
            values = np.maximum(np.asarray(table.counts, dtype=float), 0.0) + 1e-9
            shares[table.domain.names[0]] = values / values.sum()
    scores = []
    for table in pairs:
        first, second = table.domain.names
        expected = np.rint(n * np.outer(shares[first], shares[second])).astype(np.int64)
        penalty = round(law.mean_magnitude * table.counts.size)
        scores.append(int(np.abs(table.counts - expected).sum()) - penalty)
    return np.asarray(scores, dtype=np.int64)


# --- what a fit will take --------------------------------------------------------------------------------------------

# Measured on one core of a shared machine: matrix products; what an unknown takes in value and gradient, a released
# cell per class, and its noise; and an element of an array that passes through memory.
_FLOPS = 4e10
_SECONDS_PER_UNKNOWN = 2e-8
_SECONDS_PER_ENTRY = 2e-9
_SECONDS_PER_CELL = 5e-9
_SECONDS_PER_ELEMENT = 3e-10
_CACHED = 2**20  # elements of a matrix that the processor's cache holds
# Gradients of one chain before it adapts, and the share of the most steps that its trajectories have from then on.
_FIRST_GRADIENTS, _STEPS_USED = 2_000, 0.75
_COMPILING = 0.5  # minutes


@dataclass(frozen=True)
class Cost:
    """What a fit will take, with geometric or Laplace noise; normal noise takes less."""

    unknowns: int
    cells: int
    microseconds: float
    minutes: float
    gigabytes: float

    @property
    def words(self) -> str:
        """Time and memory in a few words."""
        time = "a minute" if self.minutes < 1.5 else f"{self.minutes:,.0f} minutes"
        return f"about {time} and {self.gigabytes:.1f} GB of memory"


def cost_of(
    domain: Domain,
    tables: Sequence[Sequence[str]],
    *,
    n_classes: int | None = None,
    likelihood: Likelihood = "cells",
    impossible: Sequence[Impossible] = (),
    chains: int = 576,
    draws: int = 6912,
    moves: int = 36,
    max_steps: int = 60,
    cores: int = 2,
) -> Cost:
    """Estimate what a fit of some tables will take, to a factor of two or so.

    Parameters
    ----------
    domain, tables
        All attributes, and those of each table.
    n_classes, likelihood, impossible
        As in `build_model`, whose number of classes is the default.
    chains, draws
        Chains, and draws of all of them.
    moves, max_steps
        Trajectories of a chain in adapting and drawing, and the most steps of one.
    cores
        Processors that share the work.

    Examples
    --------
    >>> from itertools import combinations
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({f"x{i}": tuple(range(7)) for i in range(14)})
    >>> cost_of(domain, list(combinations(domain.names, 2))).cells
    4459
    """
    instance(domain, Domain, "domain", remedy="Domain.from_levels makes one")
    one_of(likelihood, get_args(Likelihood.__value__), "likelihood")
    tables = ordered(tables, "tables", remedy="give the attributes of each table, as in [['age', 'sex']]")
    numbers = {"chains": chains, "draws": draws, "moves": moves, "max_steps": max_steps, "cores": cores}
    for name, value in {"n_classes": n_classes, **numbers}.items():
        if value is not None:
            whole_number(value, name, high=2**53)
    sizes = dict(zip(domain.names, domain.shape, strict=True))
    k, columns = n_classes or classes_for(domain, tables), sum(domain.shape)
    cells = [domain.project(names).size for names in tables]
    higher = sum(math.prod(sorted(sizes[name] for name in names)[:-1]) for names in tables if len(names) > 2)
    total = sum(cells)
    effects = n_effects(domain, tables) if likelihood == "tables" else 0
    support = Support.of(domain, impossible)
    cased, parts = k * support.n_cases, support.n_parts  # classes in cases, combinations in cases
    if likelihood == "tables":
        elements = 40 * k * columns + 8 * columns**2 + 14 * k * higher
        elements += 2 * total * effects if total * effects > _CACHED else 0
        products = 18 * k * columns**2 + 24 * k * columns * len(domain) + 5 * total * effects
        seconds = products / _FLOPS + elements * _SECONDS_PER_ELEMENT
    else:
        seconds = total * (cased * _SECONDS_PER_ENTRY + _SECONDS_PER_CELL)
        seconds += k * (columns + parts) * _SECONDS_PER_UNKNOWN
    unknowns = k + k * columns + (effects * (total <= SEVERAL_CELLS) if likelihood == "tables" else k * parts + cased)
    kept = (4 * total if total <= MAX_EXACT_CELLS else MAX_EXACT_CELLS) + 2 * unknowns
    kept += domain.size if domain.size <= MAX_RECORDED_CELLS else 0
    moving = 64 * (4 * columns**2 + 6 * k * higher + 6 * total + 12 * unknowns)
    held = 8 * (2 * kept * draws + moving + (6 * total**2 if likelihood == "tables" else 0))
    gradients = _FIRST_GRADIENTS + _STEPS_USED * max_steps * moves
    minutes = _COMPILING + gradients * chains * seconds / cores / 60
    return Cost(unknowns, total, 1e6 * seconds, minutes, 0.6 + held / 2**30)


def check_memory(cost: Cost) -> None:
    """Refuse a fit that this machine's memory does not hold."""
    what = f"a fit of {cost.cells:,} counts with {cost.unknowns:,} unknowns"
    remedy = "release or fit fewer tables (dpbayes.latent_class.plan proposes them), or merge levels"
    check_bytes(cost.gigabytes * 2**30, what, remedy=remedy)
