r"""Releasing the three counts of a verification: the only thing of a study that leaves the custodian."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from dpbayes.data.domain import Attribute, Domain
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.laws import PureNoise, law_named
from dpbayes.privacy.mechanism import Part, reserve_draw_confirm, split_budget
from dpbayes.privacy.release import NoisyTable, Release, record_words
from dpbayes.privacy.sampling import release_values, sampler_name
from dpbayes.verifier import means
from dpbayes.verifier.means import EstimateSums
from dpbayes.verifier.partition import PartitionCounts

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger


OUTCOMES = ("beyond", "not beyond", "not computed")
"""Levels of a verification release: how many partitions lie beyond the threshold, do not, or could not be computed."""


def is_count_table(table: NoisyTable) -> bool:
    """Whether a table holds verification counts; other tables of a verification hold sums of estimates."""
    return len(table.domain) == 1 and table.domain.attributes[0].levels in (OUTCOMES, OUTCOMES[:2])


def verification_table(release: Release, question: str | None = None) -> NoisyTable:
    """Return the table of a verification release, or say why it is none."""
    if not isinstance(release, Release):
        raise InputError(f"a posterior starts from a Release, got {type(release).__name__}; use release_counts")
    tables = {table.label: table for table in release.tables}
    if question is None and len(tables) > 1:
        raise InputError(f"the release answers {len(tables)} questions; name one with question=, of {list(tables)!r}")
    if question is not None and question not in tables:
        raise InputError(f"question {question!r} is not in the release; it has {list(tables)!r}")
    table = tables[question] if question is not None else release.tables[0]
    if not is_count_table(table):
        raise InputError(
            f"table {table.label} holds no verification counts: its levels must be {OUTCOMES!r} or the first two; "
            "release counts of partitions with verifier.release_counts"
        )
    if not isinstance(release.n, int):
        raise InputError("the number of partitions is not public in this release; it is M, set by the custodian")
    return table


SENSITIVITY = 2
"""L1 sensitivity of the three counts under either adjacency, see `release_counts`."""


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
        Exact counts, sums of estimates (`sum_estimates`), or several of them by the name of their
        question. Questions asked of the same data compose.
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
    *Sensitivity.* Each partition yields exactly one of three outcomes, a function of that partition's units alone.
    Replace-one: the new unit takes the old one's place, so for every assignment of D there is one of D', equally
    likely, under which only one partition differs. That partition's outcome stays or changes: one count falls by 1 and
    one rises by 1. Hence :math:`\|S - S'\|_1 \le 2`.

    Add-remove, units assigned independently of one another: the assignments of the other units have the same
    distribution with and without the one more unit, so again only its partition differs, and the number of partitions
    stays M: 2 again, not 1, since a partition changes its outcome and does not appear. (A balanced assignment has no
    such coupling: one unit more can move another unit between partitions, and two outcomes change. It is refused.)

    Conditionally on the coupled assignment the densities of the release differ by at most
    :math:`e^{2 / \text{scale}} = e^\varepsilon` with scale :math:`2 / \varepsilon`, and so does their mixture over
    assignments. The assignment itself must therefore stay secret: it is drawn afresh and stored nowhere.

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
    sensitivities = [sensitivity_of(exact) for exact in questions.values()]
    laws = [kind.spending(part, sensitivity=s) for part, s in zip(epsilons, sensitivities, strict=True)]
    n_levels = 3 if with_failures else 2
    named = [(name, exact.levels if isinstance(exact, EstimateSums) else OUTCOMES) for name, exact in questions.items()]
    domain = Domain(tuple(Attribute(name, levels[:n_levels]) for name, levels in named))

    def draw() -> Release:
        tables = []
        for index, (name, exact) in enumerate(questions.items()):
            noisy = release_values(_values(exact, with_failures), laws[index], rng=rng)
            cost = float(sensitivities[index]), float(epsilons[index])
            tables.append(NoisyTable(domain.project([name]), noisy, laws[index], *cost))
        sampler = sampler_name(rng)
        return Release(domain, tuple(tables), adjacency, n_partitions, sampler, unit="partition", protected_unit=unit)

    parts = [
        Part(law, s, purpose=said)
        for law, s, said in zip(laws, sensitivities, _purposes(purpose, list(questions), unit), strict=True)
    ]
    return reserve_draw_confirm(
        draw, parts, mechanism=noise, adjacency=adjacency, purpose=purpose, rng=rng, ledger=ledger
    )


def law_of(noise: str, epsilon: float) -> PureNoise:
    """Return the noise law of three counts that costs epsilon under either adjacency."""
    return cast("type[PureNoise]", law_named(noise, pure=True)).from_epsilon(epsilon, sensitivity=SENSITIVITY)


def sensitivity_of(exact: PartitionCounts | EstimateSums) -> int:
    """Return the L1 sensitivity of what is released of a question."""
    return means.SENSITIVITY if isinstance(exact, EstimateSums) else SENSITIVITY


def _values(exact: PartitionCounts | EstimateSums, with_failures: bool) -> npt.NDArray[np.int64]:
    """Return the whole numbers to release."""
    if isinstance(exact, EstimateSums):
        return np.array(exact.values[: 2 + with_failures], dtype=np.int64)
    counted = exact.beyond, exact.not_beyond, exact.not_computed
    return np.array(counted if with_failures else (counted[0], counted[1] + counted[2]), dtype=np.int64)


def _purposes(purpose: str, questions: list[str], unit: str | None) -> list[str]:
    """Return what the ledger says of each question: what it is for, and what its guarantee protects."""
    if not isinstance(purpose, str) or not purpose.strip():
        raise InputError(f"purpose must be text, got {purpose!r}; say what the release is for")
    what = [purpose] if len(questions) == 1 else [f"{purpose}: {name}" for name in questions]
    return [f"{one} (one record: {record_words(unit)})" for one in what]


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
