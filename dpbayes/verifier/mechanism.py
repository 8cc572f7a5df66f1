r"""Releasing the three counts of a verification: the only thing of a study that leaves the custodian."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpbayes._arguments import ordered, shown
from dpbayes.data.domain import Attribute, Domain
from dpbayes.errors import InputError
from dpbayes.privacy._rounding import float_up
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.noise import Laplace, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, Release, record_words
from dpbayes.privacy.sampling import check_drawable, release_values, sampler_name
from dpbayes.verifier.checks import OUTCOMES, check_n_partitions, is_finite_number

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

__all__ = ["SENSITIVITY", "PartitionCounts", "law_of", "release_counts"]

SENSITIVITY = 2
"""L1 sensitivity of the three counts under either adjacency, see `release_counts`."""

_LAWS: dict[str, type[TwoSidedGeometric] | type[Laplace]] = {
    "two-sided-geometric": TwoSidedGeometric,
    "laplace": Laplace,
}

type Assignment = Literal["balanced", "independent"]


@dataclass(frozen=True)
class PartitionCounts:
    """Exact counts of partitions: confidential until released.

    Parameters
    ----------
    beyond, not_beyond, not_computed
        S1, S0 and Se of the paper: how many partitions lie beyond the threshold, do not, or could not be computed.
    assignment
        How units came to their partitions. ``"balanced"``: sizes differ by one at most, as fits replace-one
        neighbours; ``"independent"``: every unit by itself, as add-remove neighbours need. See
        `dpbayes.verifier.partition`.
    reproducible
        Whether the assignment came from a given seed or generator, as in a simulation. Such counts are never released
        in earnest.
    unit
        Column of the protected unit: all rows that share its value stayed in one partition, and are one record. None:
        every row is a record of its own.

    Raises
    ------
    InputError
        If a count is negative or not whole, all are 0, or the unit is not a name.

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

    def __post_init__(self) -> None:
        for name in ("beyond", "not_beyond", "not_computed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise InputError(f"{name} must be a count of at least 0; it counts partitions")
            object.__setattr__(self, name, int(value))
        if self.assignment not in ("balanced", "independent"):
            raise InputError(f"assignment must be 'balanced' or 'independent', got {self.assignment!r}")
        if self.unit is not None and not (isinstance(self.unit, str) and self.unit):
            raise InputError(f"unit must be the name of a column, or None for rows, got {self.unit!r}")
        check_n_partitions(self.n_partitions)

    @property
    def n_partitions(self) -> int:
        """M."""
        return self.beyond + self.not_beyond + self.not_computed

    def __repr__(self) -> str:
        # A notebook or a log shows reprs; exact counts must not reach it by accident.
        public = f"n_partitions={self.n_partitions}, assignment={self.assignment!r}, unit={self.unit!r}"
        return f"PartitionCounts(<confidential>, {public})"


def release_counts(
    counts: PartitionCounts | Mapping[str, PartitionCounts],
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
        Exact counts, or several of them by the name of their question. Questions asked of the same data compose.
    epsilon
        Total privacy-loss parameter over all questions.
    adjacency
        Neighbouring relation between the units that the counts protect (rows, or all rows of a person):
        ``"replace-one"`` or ``"add-remove"``. M is public under both, because the custodian sets it without looking at
        the data.
    noise
        ``"two-sided-geometric"`` or ``"laplace"``, the paper's.
    shares
        Relative share of epsilon for each question; even by default.
    with_failures
        False releases two counts, for questions whose fit cannot fail; a partition that fails all the same counts as
        not beyond.
    rng
        None draws exactly, for a release; a NumPy generator simulates.
    ledger
        Budget book: every question is reserved before any noise is drawn.
    purpose
        What the ledger's entries say this was for, beside the question and the protected unit. Public text.

    Returns
    -------
    Release
        One table a question; its attribute is the question's name, ``"outcome"`` when there is only one. It names the
        protected unit.

    Raises
    ------
    InputError
        If a parameter is out of range, the questions have different M or protect different units, a balanced
        assignment meets add-remove, or partitions drawn from a seed meet a real release. Nothing is reserved then.
    BudgetExceededError
        If the ledger has too little left. Nothing is drawn then.

    Notes
    -----
    *Sensitivity.* Let a(u) be the partition of unit u. Each partition yields exactly one of three outcomes and each
    outcome is a function of that partition's units alone.

    Replace-one: the new unit takes the old one's place, so for every assignment of D there is one of D', equally
    likely, under which only one partition differs. That partition's outcome stays or changes: one count falls by 1 and
    one rises by 1. Hence :math:`\|S - S'\|_1 \le 2`.

    Add-remove, units assigned independently of one another: the assignments of the other units have the same
    distribution with and without the one more unit, so again only its partition differs, and the number of partitions
    stays M. Hence :math:`\|S - S'\|_1 \le 2` again, not 1: a partition changes its outcome, it does not appear. (A
    balanced assignment has no such coupling: one unit more can move another unit between partitions to keep the sizes
    even, and two outcomes change. It is refused.)

    Conditionally on the coupled assignment the densities of the release differ by at most
    :math:`e^{2 / \text{scale}}` = :math:`e^\varepsilon` with scale :math:`2 / \varepsilon`, and so does their mixture
    over assignments. The assignment itself must therefore stay secret: it is drawn afresh and stored nowhere.

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
    parts = _split(epsilon, shares, len(questions))
    laws = [_law(noise, part) for part in parts]
    levels = OUTCOMES if with_failures else OUTCOMES[:2]
    domain = Domain(tuple(Attribute(name, levels) for name in questions))
    sampler = sampler_name(rng)
    for law in laws:
        check_drawable(law)
    costs = dict(zip(_purposes(purpose, list(questions), unit), laws, strict=True))
    entries = _reserve(ledger, costs, rng, noise=noise, adjacency=adjacency)
    tables = []
    for (name, exact), law, part in zip(questions.items(), laws, parts, strict=True):
        counted = (exact.beyond, exact.not_beyond, exact.not_computed)
        # Counting a failure as not beyond, rather than refusing it, keeps the failure from showing.
        values = np.array(counted if with_failures else (counted[0], counted[1] + counted[2]), dtype=np.int64)
        noisy = release_values(values, law, rng=rng)
        tables.append(NoisyTable(domain.project([name]), noisy, law, float(SENSITIVITY), float(part)))
    release = Release(domain, tuple(tables), adjacency, n_partitions, sampler, unit="partition", protected_unit=unit)
    if ledger is not None:
        ledger.confirm(entries, release.digest)
    return release


def law_of(noise: str, epsilon: float) -> TwoSidedGeometric | Laplace:
    """Return the noise law of three counts that costs epsilon under either adjacency.

    Examples
    --------
    >>> law_of("laplace", 0.5)
    Laplace(scale=4.0)
    """
    return _family(noise).from_epsilon(epsilon, sensitivity=SENSITIVITY)


def _law(noise: str, epsilon: Fraction) -> TwoSidedGeometric | Laplace:
    """Return the noise law that spends this epsilon, and never more in exact arithmetic."""
    return _family(noise)(float_up(SENSITIVITY / epsilon))


def _family(noise: str) -> type[TwoSidedGeometric] | type[Laplace]:
    if not isinstance(noise, str) or noise not in _LAWS:
        raise InputError(f"noise must be one of {', '.join(_LAWS)}, got {shown(noise)}")
    return _LAWS[noise]


def _reserve(
    ledger: Ledger | None,
    laws: Mapping[str, TwoSidedGeometric | Laplace],
    rng: np.random.Generator | None,
    *,
    noise: str,
    adjacency: Adjacency,
) -> list[int]:
    """Enter every question into the book, if there is one; the laws stand by what the entries say."""
    if ledger is None:
        return []
    if rng is not None:
        raise InputError("a ledger records real releases; pass rng=None, or leave the ledger out of a simulation")
    common = {"mechanism": noise, "sensitivity": SENSITIVITY, "adjacency": adjacency}
    return ledger.reserve_all([common | {"law": law, "purpose": purpose} for purpose, law in laws.items()])


def _purposes(purpose: str, questions: list[str], unit: str | None) -> list[str]:
    """Return what the book says of each question: what it is for, and what its guarantee protects."""
    if not isinstance(purpose, str) or not purpose.strip():
        raise InputError(f"purpose must be text, got {purpose!r}; say what the release is for")
    what = [purpose] if len(questions) == 1 else [f"{purpose}: {name}" for name in questions]
    return [f"{one} (one record: {record_words(unit)})" for one in what]


def _check_questions(questions: dict[str, PartitionCounts], adjacency: Adjacency, real: bool) -> tuple[int, str | None]:
    """Return M and the protected unit if the questions can be released together."""
    check_adjacency(adjacency)
    if not questions:
        raise InputError("no counts were given; give the PartitionCounts of at least one question")
    for name, exact in questions.items():
        if not isinstance(exact, PartitionCounts):
            raise InputError(f"question {name!r} must hold PartitionCounts, got {type(exact).__name__}")
        if adjacency == "add-remove" and exact.assignment != "independent":
            raise InputError(
                f"question {name!r} was counted on balanced partitions, where one unit more can change two of them; "
                "under add-remove count with assignment='independent'"
            )
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
        raise InputError(
            f"the questions protect different records ({said}), and one guarantee cannot speak of both; count all of "
            "them with the same unit="
        )
    return sizes.pop(), units.pop()


def _split(epsilon: float, shares: Sequence[float] | None, n_questions: int) -> list[Fraction]:
    """Return each question's part of epsilon, in exact arithmetic: the parts add to epsilon."""
    if not is_finite_number(epsilon) or epsilon <= 0:
        raise InputError(
            f"epsilon must be positive and finite, got {shown(epsilon)}; it is the total over all questions"
        )
    remedy = f"give {n_questions} positive numbers, one a question"
    weights = [1] * n_questions if shares is None else ordered(shares, "shares", remedy=remedy)
    if len(weights) != n_questions or not all(is_finite_number(weight) and weight > 0 for weight in weights):
        raise InputError(f"shares must give {n_questions} positive numbers, one a question, got {shown(shares)}")
    exact = [Fraction(float(weight)) for weight in weights]
    parts = [Fraction(float(epsilon)) * weight / sum(exact) for weight in exact]
    if not all(map(float, parts)):
        raise InputError(f"shares must leave every question a part of epsilon, got {shares!r}; even shares do")
    return parts
