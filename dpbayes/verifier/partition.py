r"""Random partitions of units, what is counted of them, and its release: the only thing that leaves the custodian.

Partitions are drawn without looking at the data. `dpbayes.verifier.claim` and `dpbayes.verifier.means` count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict, get_args

import narwhals as nw
import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Ints, generator, one_of, shown, whole_number
from dpbayes._lazy import pd
from dpbayes.data.domain import Attribute, Domain
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.laws import law_named
from dpbayes.privacy.ledger import Ledger
from dpbayes.privacy.mechanism import Part, reserve_draw_confirm, split_budget
from dpbayes.privacy.release import NoisyTable, Release, check_release, record_words
from dpbayes.privacy.sampling import release_values, sampler_name
from dpbayes.verifier.formulas import column_values

type Assignment = Literal["balanced", "independent"]

MOST_TABULATED = 2000
"""Largest M of a table of all triples of counts, which the sampled models sum over."""

OUTCOMES = ("beyond", "not beyond", "not computed")
"""Levels of a verification release: how many partitions lie beyond the threshold, do not, or could not be computed."""

GRID = 1 << 16
"""G: estimates are rounded to 1 / 65,536 of half the public range."""


class Partitioned(TypedDict, total=False):
    """How rows come to partitions, besides their number; see `dpbayes.verifier.count_partitions`."""

    unit: str | None
    assignment: Assignment
    random_state: int | np.random.Generator | None


@dataclass(frozen=True)
class PartitionCounts:
    """Exact counts of partitions: confidential until released.

    Parameters
    ----------
    beyond, not_beyond, not_computed
        S1, S0 and Se of the paper: how many partitions lie beyond the threshold, do not, or could not be computed.
        `InputError` if one is negative or not whole, or all are 0.
    assignment
        How units came to their partitions. ``"balanced"``: sizes differ by one at most, as fits replace-one neighbours;
        ``"independent"``: every unit by itself, as add-remove neighbours need.
    reproducible
        Whether the assignment came from a given seed or generator. Such counts are released in simulations only.
    unit
        Column of the protected unit: all rows that share its value are one record. None: every row is one.

    Examples
    --------
    >>> PartitionCounts(41, 7, 2).n_partitions
    50
    """

    beyond: int
    not_beyond: int
    not_computed: int
    assignment: Assignment = "balanced"
    reproducible: bool = False
    unit: str | None = None

    levels: ClassVar[tuple[str, str, str]] = OUTCOMES
    sensitivity: ClassVar[int] = 2
    """L1 sensitivity of the three counts under either adjacency, see `dpbayes.verifier.release_counts`."""

    def __post_init__(self) -> None:
        for name in ("beyond", "not_beyond", "not_computed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise InputError(f"{name} must be a count of at least 0; it counts partitions")
            object.__setattr__(self, name, int(value))
        one_of(self.assignment, get_args(Assignment.__value__), "assignment")
        if self.unit is not None and not (isinstance(self.unit, str) and self.unit):
            raise InputError(f"unit must be the name of a column, or None for rows, got {self.unit!r}")
        check_n_partitions(self.n_partitions)

    @property
    def n_partitions(self) -> int:
        """M."""
        return self.beyond + self.not_beyond + self.not_computed

    def released(self, *, with_failures: bool) -> tuple[int, ...]:
        """Return the whole numbers to release; failures not told apart count as not beyond."""
        if with_failures:
            return self.beyond, self.not_beyond, self.not_computed
        return self.beyond, self.not_beyond + self.not_computed

    def __repr__(self) -> str:
        # A notebook or a log shows reprs; exact counts must not reach it by accident.
        public = f"n_partitions={self.n_partitions}, assignment={self.assignment!r}, unit={self.unit!r}"
        return f"PartitionCounts(<confidential>, {public})"


@dataclass(frozen=True)
class EstimateSums:
    """Sums over the partitions' clipped estimates: confidential until released. Made by `sum_estimates`."""

    total: int
    half_squares: int
    not_computed: int
    lower: float
    upper: float
    n_partitions: int
    assignment: Assignment = "balanced"
    reproducible: bool = False
    unit: str | None = None

    sensitivity: ClassVar[int] = 2 * GRID
    """L1 sensitivity of the three released whole numbers, see `dpbayes.verifier.means`."""

    @property
    def levels(self) -> tuple[str, str, str]:
        """What the three released numbers are called; the public range is part of it."""
        return f"sum of estimates from {self.lower!r} to {self.upper!r}", "half sum of squares", "not computed"

    def released(self, *, with_failures: bool) -> tuple[int, ...]:
        """Return the whole numbers to release; failures not told apart lie in the middle of the range."""
        return (self.total, self.half_squares, self.not_computed * (GRID // 2))[: 2 + with_failures]

    def __repr__(self) -> str:
        public = f"lower={self.lower!r}, upper={self.upper!r}, n_partitions={self.n_partitions}, unit={self.unit!r}"
        return f"EstimateSums(<confidential>, {public})"


def check_n_partitions(n_partitions: Any) -> int:
    """Return M if it is a whole number of at least 1."""
    return whole_number(n_partitions, "the number of partitions", high=2**53, remedy="50 is usual")


def assign_partitions(
    n_units: int,
    n_partitions: int,
    *,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
    strata: npt.NDArray[Any] | None = None,
) -> Ints:
    """Assign each unit to one of M partitions at random."""
    check_n_partitions(n_partitions)
    rng = generator(random_state, "random_state")
    if one_of(assignment, get_args(Assignment.__value__), "assignment") == "independent":
        return rng.integers(0, n_partitions, size=n_units)
    if n_partitions > n_units:
        raise InputError(
            f"{shown(n_partitions)} partitions are more than the {n_units:,} units, and an empty one cannot be "
            "computed; choose at most as many partitions as units, and many fewer for a fit"
        )
    if strata is not None:
        # Shuffled, then by stratum: consecutive units go round the partitions, from a random one on.
        order = rng.permutation(n_units)
        order = order[np.argsort(strata[order], kind="stable")]
        out = np.empty(n_units, dtype=np.int64)
        out[order] = np.resize(rng.permutation(n_partitions), n_units)
        return out
    # Which partitions hold one unit more is drawn as well, so that no partition is larger by its number.
    dealt = np.resize(rng.permutation(n_partitions), n_units)
    return np.asarray(rng.permutation(dealt))


def unit_codes(units: npt.NDArray[Any]) -> tuple[Ints, int]:
    """Return a code from 0 for the unit of each row, and the number of units; names are compared as text."""
    if pd.isna(units).any():
        raise InputError("the unit column holds a missing value; every row must name its unit")
    if units.dtype == object:
        # As an array of text each row would take as many bytes as the longest name.
        units = np.array([str(unit) for unit in units], dtype=object)
    codes, names = pd.factorize(units, sort=True)
    return codes.astype(np.int64), len(names)


def row_partitions(
    table: nw.DataFrame[Any],
    n_partitions: int,
    *,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
    strata: str | None = None,
) -> Ints:
    """Return the partition of every row; `strata` names a public column."""
    codes, n_units = (np.arange(len(table)), len(table)) if unit is None else unit_codes(column_values(table, unit))
    public = None if strata is None else _strata(column_values(table, strata), codes, n_units, strata, assignment)
    of_units = assign_partitions(n_units, n_partitions, assignment=assignment, random_state=random_state, strata=public)
    return of_units[codes]


def _strata(values: npt.NDArray[Any], codes: Ints, n_units: int, name: str, assignment: Assignment) -> Ints:
    """Return the stratum of each unit; refuse a column that differs between the rows of a unit."""
    if assignment != "balanced":
        raise InputError(f"strata = {name!r} balances partitions, as fits replace-one; leave it out under add-remove")
    of_rows, _ = unit_codes(values)
    of_units = np.empty(n_units, dtype=np.int64)
    of_units[codes] = of_rows
    if np.any(of_units[codes] != of_rows):
        raise InputError(f"strata = {name!r} differs between the rows of one unit; name a public column that does not")
    return of_units


def rows_by_partition(partition: Ints, n_partitions: int) -> list[Ints]:
    """Return the rows of each partition."""
    # NumPy sorts 16-bit integers by radix.
    keys = partition.astype(np.uint16) if n_partitions <= 1 << 16 else partition
    ends = np.cumsum(np.bincount(partition, minlength=n_partitions))
    return np.split(np.argsort(keys, kind="stable"), ends[:-1])


_SUMS = re.compile(r"sum of estimates from (\S+) to (\S+)")


def is_count_table(table: NoisyTable) -> bool:
    """Whether a table holds verification counts; other tables of a verification hold sums of estimates."""
    return len(table.domain) == 1 and table.domain.attributes[0].levels in (OUTCOMES, OUTCOMES[:2])


def range_of(table: NoisyTable) -> tuple[float, float] | None:
    """Return the public range of a table of sums of estimates; None for any other table."""
    found = _SUMS.fullmatch(str(table.domain.attributes[0].levels[0])) if len(table.domain) == 1 else None
    return None if found is None else (float(found.group(1)), float(found.group(2)))


def question_table(release: Release, question: str | None = None, *, sums: bool = False) -> tuple[NoisyTable, int]:
    """Return the counts of a question of a verification, or its sums of estimates, and M; say why there are none."""
    check_release(release, "a posterior")
    what, source = ("sums of estimates", "sum_estimates") if sums else ("verification counts", "count_partitions")
    is_asked = (lambda table: range_of(table) is not None) if sums else is_count_table
    labels = [table.label for table in release.tables]
    if question is not None and question not in labels:
        raise InputError(f"question {question!r} is not in the release; it has {labels!r}")
    tables = {table.label: table for table in release.tables if is_asked(table)}
    if not tables or question not in (None, *tables):
        holder = "the release" if question is None else f"question {question!r} of the release"
        raise InputError(
            f"{holder} holds no {what}; release what verifier.{source} returns, or name one of {list(tables)!r}"
        )
    if question is None and len(tables) > 1:
        raise InputError(f"the release answers {len(tables)} questions; name one with question=, of {list(tables)!r}")
    if not isinstance(release.n, int):
        raise InputError("the number of partitions is not public in this release; it is M, set by the custodian")
    return tables[question] if question is not None else next(iter(tables.values())), release.n


def release_counts(
    counts: PartitionCounts | EstimateSums | Mapping[str, PartitionCounts | EstimateSums],
    *,
    epsilon: float,
    adjacency: Adjacency = "replace-one",
    noise: str = "two-sided-geometric",
    shares: Sequence[float] | None = None,
    with_failures: bool = True,
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    purpose: str = "verification of a regression",
) -> Release:
    r"""Release counts of partitions with independent noise on each.

    Parameters
    ----------
    counts
        Exact counts, sums of estimates (`sum_estimates`), or several of them by the name of their question. Questions
        asked of the same data compose.
    epsilon
        Total privacy-loss parameter over all questions.
    adjacency
        Neighbouring relation between the protected units (rows, or all rows of a person): ``"replace-one"`` or
        ``"add-remove"``. M is public under both, because the custodian sets it without looking at the data.
    noise
        ``"two-sided-geometric"`` or ``"laplace"``, the paper's.
    shares
        Relative share of epsilon for each question; even by default.
    with_failures
        False releases two counts, for questions whose fit cannot fail; one that fails then counts as not beyond.
    rng
        None draws exactly, for a release; a NumPy generator simulates.
    ledger
        Privacy-budget ledger: every question is reserved before any noise is drawn.
    purpose
        What the ledger's entries say this was for, beside the question and the protected unit. Public text.

    Returns
    -------
    Release
        One table per question; its attribute is the question's name, ``"outcome"`` when there is only one.

    Raises
    ------
    InputError
        If a parameter is out of range, the questions have different M or protect different units, a balanced
        assignment meets add-remove, or partitions drawn from a seed meet a real release. Nothing is reserved then.
    BudgetExceededError
        If the ledger has too little left. Nothing is drawn then.

    Notes
    -----
    Each partition yields one of three outcomes, a function of its units alone, and coupled assignments of neighbours
    differ in one partition: :math:`\|S - S'\|_1 \le 2` under both relations. The assignment must stay secret: it is
    drawn afresh and stored nowhere. docs/verifier.md has the argument.

    References
    ----------
    Balmat, T., Barrientos, A. F. and Reiter, J. P. (2018), section 4: `rlaplace(3, 0, 2/epsilon)`.
    Ghosh, A., Roughgarden, T. and Sundararajan, M. (2012). Universally utility-maximizing privacy mechanisms. SIAM J.
    Comput. 41(6), 1673-1693.

    Examples
    --------
    >>> release = release_counts(PartitionCounts(41, 7, 2), epsilon=1.0, rng=np.random.default_rng(8))
    >>> release.n, release.epsilon, release.tables[0].noise
    (50, 1.0, TwoSidedGeometric(scale=2.0))
    """
    questions = dict(counts) if isinstance(counts, Mapping) else {"outcome": counts}
    n_partitions, unit = _check_questions(questions, adjacency, rng is None)
    epsilons = split_budget(epsilon, shares, len(questions), part="question")
    kind = law_named(noise, pure=True)
    exact = list(questions.values())
    laws = [kind.spending(part, sensitivity=one.sensitivity) for part, one in zip(epsilons, exact, strict=True)]
    n_levels = 3 if with_failures else 2
    domain = Domain(tuple(Attribute(name, one.levels[:n_levels]) for name, one in questions.items()))

    def draw() -> Release:
        tables = []
        for name, one, law, part in zip(questions, exact, laws, epsilons, strict=True):
            values = np.array(one.released(with_failures=with_failures), dtype=np.int64)
            noisy = release_values(values, law, rng=rng)
            tables.append(NoisyTable(domain.project([name]), noisy, law, float(one.sensitivity), float(part)))
        sampler = sampler_name(rng)
        return Release(domain, tuple(tables), adjacency, n_partitions, sampler, unit="partition", protected_unit=unit)

    if not isinstance(purpose, str) or not purpose.strip():
        raise InputError(f"purpose must be text, got {purpose!r}; say what the release is for")
    what = [purpose] if len(questions) == 1 else [f"{purpose}: {name}" for name in questions]
    # What each entry of the ledger is for, and what its guarantee protects.
    said = [f"{one} (one record: {record_words(unit)})" for one in what]
    parts = [Part(law, one.sensitivity, purpose=words) for law, one, words in zip(laws, exact, said, strict=True)]
    return reserve_draw_confirm(
        draw, parts, mechanism=noise, adjacency=adjacency, purpose=purpose, rng=rng, ledger=ledger
    )


def _check_questions(
    questions: dict[str, PartitionCounts | EstimateSums], adjacency: Adjacency, real: bool
) -> tuple[int, str | None]:
    """Return M and the protected unit if the questions can be released together."""
    check_adjacency(adjacency)
    if not questions:
        raise InputError("no counts were given; give the PartitionCounts of at least one question")
    for name, exact in questions.items():
        if not isinstance(exact, PartitionCounts | EstimateSums):
            raise InputError(f"question {name!r} must hold PartitionCounts, got {type(exact).__name__}")
        if adjacency == "add-remove" and exact.assignment != "independent":
            said = f"question {name!r} was counted on balanced partitions, where one unit more can change two of them"
            raise InputError(f"{said}; under add-remove count with assignment='independent'")
        if real and exact.reproducible:
            raise InputError(
                f"question {name!r} was counted on partitions drawn from a given seed or generator, which can be "
                "redrawn; count with random_state=None, or pass rng= to simulate the release as well"
            )
    sizes = {exact.n_partitions for exact in questions.values()}
    if len(sizes) > 1:
        raise InputError(f"the questions have different numbers of partitions, {sorted(sizes)}; release them apart")
    units = {exact.unit for exact in questions.values()}
    if len(units) > 1:
        said = "; ".join(f"{name!r}: {record_words(exact.unit)}" for name, exact in questions.items())
        said = f"the questions protect different records ({said}), and one guarantee cannot speak of both"
        raise InputError(f"{said}; count all of them with the same unit=")
    return sizes.pop(), units.pop()
