"""Releasing counts: what it costs, audited by enumeration, and what is refused."""

import html
import itertools
import json

import numpy as np
import pytest
from audit import assert_claimed_delta, clamped_log_pmf, product_log_pmf

from dpbayes.errors import BudgetExceededError, DamagedFileError, InputError
from dpbayes.privacy import read_release
from dpbayes.privacy.laws import Laplace, TwoSidedGeometric
from dpbayes.privacy.ledger import create_ledger
from dpbayes.privacy.release import Release
from dpbayes.verifier import PartitionCounts, posterior, release_counts
from dpbayes.verifier.partition import OUTCOMES

RNG = np.random.default_rng


def test_a_release_says_what_it_is(tmp_path):
    release = release_counts(PartitionCounts(41, 7, 2), epsilon=0.5, rng=RNG(1))
    table = release.tables[0]
    assert (release.n, release.unit, release.epsilon, release.adjacency) == (50, "partition", 0.5, "replace-one")
    assert table.domain.attributes[0].levels == OUTCOMES
    assert table.noise == TwoSidedGeometric(4.0)
    assert read_release(release.write(tmp_path / "release.json")).digest == release.digest


def test_m_is_public_under_add_remove_for_independent_partitions(tmp_path):
    counts = PartitionCounts(41, 7, 2, "independent")
    release = release_counts(counts, epsilon=1.0, adjacency="add-remove", noise="laplace", rng=RNG(1))
    assert release.tables[0].noise == Laplace(2.0)
    assert read_release(release.write(tmp_path / "release.json")).unit == "partition"
    with pytest.raises(InputError, match="balanced partitions"):
        release_counts(PartitionCounts(41, 7, 2), epsilon=1.0, adjacency="add-remove", rng=RNG(1))


def test_a_real_release_uses_the_exact_sampler():
    release = release_counts(PartitionCounts(41, 7, 2), epsilon=1.0)
    assert release.sampler == "opendp"
    with pytest.raises(InputError, match="seed or generator"):
        release_counts(PartitionCounts(41, 7, 2, reproducible=True), epsilon=1.0)


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
def test_white_box_audit(epsilon):
    # Neighbours differ in one partition's outcome: every pair of neighbouring counts at M = 3, every output after
    # clamping, both orders.
    law = release_counts(PartitionCounts(1, 1, 1), epsilon=epsilon, rng=RNG(0)).tables[0].noise
    states = [(i, j, 3 - i - j) for i in range(4) for j in range(4 - i)]

    def outputs(state):
        return product_log_pmf(clamped_log_pmf(law, value, -1, 4) for value in state)

    pairs = [
        (f"{a} and {b}", outputs(a), outputs(b))
        for k, a in enumerate(states)
        for b in states[k + 1 :]
        if sum(abs(x - y) for x, y in zip(a, b, strict=True)) == 2
    ]
    assert len(pairs) == 18
    worst = assert_claimed_delta(pairs, lambda e: 0.0 if e >= epsilon else 1.0, epsilons=[epsilon, 1.01 * epsilon])
    assert worst.claimed == 0.0
    # The claim is tight: a little less epsilon is not enough.
    with pytest.raises(AssertionError, match="exceeds"):
        assert_claimed_delta(pairs, lambda e: 0.0, epsilons=[0.98 * epsilon])


def test_laplace_densities_of_neighbours_differ_by_the_claim():
    # Laplace(2 / epsilon) as printed: the log-ratio of two product densities is piecewise linear, so its extremes lie
    # at the kinks, whole numbers here.
    epsilon = 0.7
    law = release_counts(PartitionCounts(1, 1, 1), epsilon=epsilon, noise="laplace", rng=RNG(0)).tables[0].noise
    # The scale is rounded up, never down.
    assert 0 <= law.scale - 2 / epsilon < 1e-14
    y = np.stack(np.meshgrid(*[np.arange(-2, 6)] * 3), axis=-1).reshape(-1, 3)
    for a, b in (((2, 1, 0), (1, 2, 0)), ((3, 0, 0), (2, 0, 1)), ((0, 1, 2), (1, 1, 1))):
        ratio = (law.log_prob(y - np.array(a)) - law.log_prob(y - np.array(b))).sum(axis=1)
        assert np.abs(ratio).max() == pytest.approx(epsilon, abs=1e-12)


def releases_over_assignments(values, m, assignment, outcome, law):
    """Distribution of the clamped release of a tiny data set, summed over every assignment of its units."""
    n, mixture = len(values), {}
    if assignment == "independent":
        assignments = list(itertools.product(range(m), repeat=n))
    else:
        # As assign_partitions deals: which partitions are larger is random, and so is who goes where.
        assignments = [
            tuple(np.resize(order, n)[list(who)])
            for order in itertools.permutations(range(m))
            for who in itertools.permutations(range(n))
        ]
    for one in assignments:
        parts = [tuple(v for v, k in zip(values, one, strict=True) if k == part) for part in range(m)]
        verdicts = [outcome(part) for part in parts]
        counts = tuple(verdicts.count(kind) for kind in (True, False, None))
        mixture[counts] = mixture.get(counts, 0) + 1 / len(assignments)
    logs = [
        np.log(weight) + product_log_pmf(clamped_log_pmf(law, value, -1, m + 1) for value in counts)
        for counts, weight in mixture.items()
    ]
    return np.logaddexp.reduce(logs, axis=0)


def arbitrary_outcome(seed):
    """Any function of a partition's rows: beyond, not beyond or not computed, drawn once for each set of rows."""
    rng, known = RNG(seed), {}
    return lambda part: known.setdefault(tuple(sorted(part)), (True, False, None)[rng.integers(3)])


@pytest.mark.parametrize("seed", range(8))
def test_white_box_audit_over_assignments(seed):
    # From the units to the release: every assignment, arbitrary verdicts, both relations, exact sums.
    epsilon, m = 0.8, 3
    law, outcome = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2), arbitrary_outcome(seed)
    neighbours = {
        "replace-one": [("balanced", (1, 2, 3, 4), (1, 2, 3, 5)), ("independent", (1, 2, 3, 4), (1, 2, 3, 5))],
        "add-remove": [("independent", (1, 2, 3, 4), (1, 2, 3)), ("independent", (1,), ())],
    }
    pairs = [
        (
            f"{adjacency}, {assignment}: {one} and {other}",
            releases_over_assignments(one, m, assignment, outcome, law),
            releases_over_assignments(other, m, assignment, outcome, law),
        )
        for adjacency, cases in neighbours.items()
        for assignment, one, other in cases
    ]
    assert_claimed_delta(pairs, lambda e: 0.0, epsilons=[epsilon])


def test_a_balanced_deal_breaks_add_remove():
    # Why it is refused. Units a and b in two partitions are always dealt one and one; with a third, a and b share a
    # partition one time in three, and then the outcomes of both partitions change: 2/3 + 1/3 exp(2 epsilon).
    epsilon = 2.0
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)

    def outcome(part):
        return part not in (("a", "b"), ("x",))

    pair = [releases_over_assignments(tuple(units), 2, "balanced", outcome, law) for units in ("ab", "abx")]
    with pytest.raises(AssertionError, match="exceeds"):
        assert_claimed_delta([("balanced", *pair)], lambda e: 0.0, epsilons=[epsilon])
    pair = [releases_over_assignments(tuple(units), 2, "independent", outcome, law) for units in ("ab", "abx")]
    assert_claimed_delta([("independent", *pair)], lambda e: 0.0, epsilons=[epsilon])


def test_several_questions_share_the_budget():
    questions = {"wage gap": PartitionCounts(10, 8, 2), "returns": PartitionCounts(18, 1, 1)}
    release = release_counts(questions, epsilon=1.0, shares=(3, 1), rng=RNG(4))
    assert [table.epsilon for table in release.tables] == [0.75, 0.25]
    assert release.epsilon == 1.0
    assert [t.noise.scale for t in release.tables] == pytest.approx([2 / 0.75, 8.0], rel=1e-15)
    assert posterior(release, question="returns").mean != posterior(release, question="wage gap").mean
    with pytest.raises(InputError, match="name one"):
        posterior(release)
    with pytest.raises(InputError, match="not in the release"):
        posterior(release, question="returns to education")


def test_two_outcomes():
    release = release_counts(PartitionCounts(10, 8, 2), epsilon=1.0, with_failures=False, rng=RNG(4))
    assert release.tables[0].counts.shape == (2,)
    assert posterior(release).outcomes == OUTCOMES[:2]
    # Failures count as not beyond: over many simulated releases the two counts average 10 and 10.
    rng = RNG(6)
    counts = [
        release_counts(PartitionCounts(10, 8, 2), epsilon=50.0, with_failures=False, rng=rng).tables[0].counts
        for _ in range(20)
    ]
    assert np.round(np.mean(counts, axis=0)).tolist() == [10, 10]


def test_the_ledger_is_charged_before_and_confirmed_after(tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    questions = {"a": PartitionCounts(10, 8, 2), "b": PartitionCounts(18, 1, 1)}
    release = release_counts(questions, epsilon=0.75, ledger=book, purpose="study 7")
    entries = book.entries()
    said = [f"study 7: {name} (one record: a row)" for name in "ab"]
    assert [entry.purpose for entry in entries] == said
    assert not book.unconfirmed()
    assert {entry.digest for entry in entries} == {release.digest}
    assert book.remaining().epsilon == pytest.approx(0.25)
    with pytest.raises(BudgetExceededError):
        release_counts(questions, epsilon=0.5, ledger=book)
    assert len(book.entries()) == 2
    with pytest.raises(InputError, match="ledger records real releases"):
        release_counts(questions, epsilon=0.1, ledger=book, rng=RNG(0))
    assert release.sampler == "opendp"


def test_the_protected_unit_is_on_record(tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    by_row = release_counts(PartitionCounts(10, 8, 2), epsilon=0.25, ledger=book)
    by_person = release_counts(PartitionCounts(10, 8, 2, unit="person"), epsilon=0.25, ledger=book)
    assert [release.protected_unit for release in (by_row, by_person)] == [None, "person"]
    assert [release.privacy_record["protected_unit"] for release in (by_row, by_person)] == [None, "person"]
    words = "one record: all rows that share a value of column 'person'"
    assert words in book.entries()[1].purpose
    assert html.escape("protects one unit of column 'person'") in by_person._repr_html_()
    path = by_person.write(tmp_path / "release.json")
    assert json.loads(path.read_text())["protected_unit"] == "person"
    assert read_release(path).protected_unit == "person"
    assert read_release(path).digest == by_person.digest


def test_a_release_of_partitions_that_does_not_name_its_unit_is_refused():
    record = release_counts(PartitionCounts(10, 8, 2), epsilon=1.0, rng=RNG(0)).to_dict()
    del record["protected_unit"]
    with pytest.raises(DamagedFileError, match="protected_unit"):
        Release.from_dict(record)


def test_questions_that_protect_different_units_are_refused(tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    questions = {"a": PartitionCounts(10, 8, 2, unit="person"), "b": PartitionCounts(18, 1, 1)}
    with pytest.raises(InputError, match=r"'a': all rows .* 'person'; 'b': a row.*same unit="):
        release_counts(questions, epsilon=0.5, ledger=book)
    assert not book.entries()


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        ({"": PartitionCounts(5, 4, 1)}, {}),
        ({7: PartitionCounts(5, 4, 1)}, {}),
        (PartitionCounts(5, 4, 1), {"epsilon": 1e-20}),
        (PartitionCounts(5, 4, 1), {"epsilon": 5e-324}),
        (PartitionCounts(5, 4, 1), {"epsilon": "0.5"}),
        ({"a": PartitionCounts(5, 4, 1), "b": PartitionCounts(5, 4, 1)}, {"shares": (1.0, 5e-324)}),
        ({"a": PartitionCounts(5, 4, 1), "b": PartitionCounts(5, 4, 1)}, {"shares": (1.0, "2")}),
        (PartitionCounts(5, 4, 1), {"purpose": "two\nlines"}),
        (PartitionCounts(5, 4, 1), {"purpose": " "}),
    ],
)
def test_what_is_refused_costs_nothing(counts, options, tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    with pytest.raises(InputError):
        release_counts(counts, **{"epsilon": 0.5, "ledger": book} | options)
    assert book.remaining().epsilon == 1.0
    assert not book.entries()


@pytest.mark.parametrize("n", [3, 7, 11, 23])
def test_parts_of_the_budget_add_to_the_budget(n, tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=0.1, delta=0.0, adjacency="replace-one")
    questions = {f"q{i}": PartitionCounts(5, 4, 1) for i in range(n)}
    release = release_counts(questions, epsilon=0.1, ledger=book)
    assert not book.unconfirmed()
    assert release.epsilon == pytest.approx(0.1, rel=1e-15)
    assert book.remaining().epsilon < 1e-15


def test_entries_are_confirmed_together(tmp_path, monkeypatch):
    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    calls = []
    monkeypatch.setattr(book, "confirm", lambda entries, digest: calls.append((entries, digest)))
    questions = {"a": PartitionCounts(10, 8, 2), "b": PartitionCounts(18, 1, 1)}
    release = release_counts(questions, epsilon=0.5, ledger=book)
    assert calls == [([1, 2], release.digest)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon must be positive"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"epsilon": float("inf")}, "epsilon must be positive"),
        ({"noise": "gaussian"}, "'two-sided-geometric' or 'laplace', got 'gaussian'"),
        ({"adjacency": "bounded"}, "adjacency"),
        ({"shares": (1, 2)}, "shares"),
        ({"rng": 7}, "rng"),
        ({"counts": {}}, "at least one question"),
        ({"counts": {"a": (1, 2, 3)}}, "PartitionCounts"),
        ({"epsilon": True}, "epsilon must be a real number"),
        ({"counts": {"a": PartitionCounts(1, 2, 3), "b": PartitionCounts(1, 2, 4)}}, "different numbers"),
    ],
)
def test_bad_input(change, message):
    arguments = {"counts": PartitionCounts(10, 8, 2), "epsilon": 1.0, "rng": RNG(0)} | change
    counts = arguments.pop("counts")
    with pytest.raises(InputError, match=message):
        release_counts(counts, **arguments)


@pytest.mark.parametrize("counts", [(-1, 5, 5), (1.5, 2, 3), (0, 0, 0), (True, 2, 3)])
def test_counts_that_are_none(counts):
    with pytest.raises(InputError):
        PartitionCounts(*counts)


@pytest.mark.parametrize("unit", ["", 3, ("person",)])
def test_units_that_are_no_column(unit):
    with pytest.raises(InputError, match="name of a column"):
        PartitionCounts(1, 2, 3, unit=unit)


def test_errors_show_no_count():
    with pytest.raises(InputError) as error:
        PartitionCounts(-17, 5, 5)
    assert "17" not in str(error.value)


def test_only_verification_releases_have_a_posterior():
    from dpbayes.data import datasets
    from dpbayes.privacy import release_tables

    with pytest.raises(InputError, match="Release"):
        posterior(PartitionCounts(1, 2, 3))
    tables = release_tables(datasets.acs_tables()[:1], epsilon=1.0, rng=RNG(0))
    with pytest.raises(InputError, match="no verification counts"):
        posterior(tables)
