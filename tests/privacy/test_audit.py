"""White-box audit of table releases: every neighbour of a small instance, every output, both orders."""

import math

import numpy as np
import pytest
from audit import (
    assert_claimed_delta,
    clamped_log_pmf,
    hockey_stick,
    neighbouring_tables,
    product_log_pmf,
)

from dpbayes.data.domain import Domain
from dpbayes.data.tables import Marginal
from dpbayes.privacy import curves
from dpbayes.privacy.laws import DiscreteGaussian, TwoSidedGeometric
from dpbayes.privacy.mechanism import release_tables

RELATIONS = ["replace-one", "add-remove"]
DOMAIN = Domain.from_levels({"a": (0, 1), "b": (0, 1)})
WORKLOADS = {"the 2 x 2 table": [("a", "b")], "both one-way tables": [("a",), ("b",)]}
LARGEST = 3
LOW, HIGH = -1, 4


def delta_of_zcdp(rho, epsilon):
    """Delta for which rho-zCDP implies (epsilon, delta)-DP."""
    return min(1.0, math.exp(min(0.0, curves._log_zcdp_delta(rho, epsilon))))


def workload_counts(counts, workload):
    """The released numbers of a workload, exactly, and which table each belongs to."""
    full = Marginal(DOMAIN, np.reshape(counts, DOMAIN.shape))
    return [full.project(names) for names in workload]


def noise_of_release(workload, adjacency, **budget):
    """What `release_tables` really uses: one law a table, the law of n if released, and what it says it costs."""
    tables = workload_counts([1, 1, 1, 1], workload)
    total = {"total_share": 0.25} if adjacency == "add-remove" else {}
    release = release_tables(tables, adjacency=adjacency, rng=np.random.default_rng(0), **budget, **total)
    law_of_n = None if release.n_public else release.n.noise
    return [table.noise for table in release.tables], law_of_n, release.epsilon


def output_log_pmf(counts, workload, laws, law_of_n):
    tables = workload_counts(counts, workload)
    cells = [
        clamped_log_pmf(law, int(value), LOW, HIGH)
        for table, law in zip(tables, laws, strict=True)
        for value in table.counts.ravel()
    ]
    if law_of_n is not None:
        cells.append(clamped_log_pmf(law_of_n, int(np.sum(counts)), LOW, HIGH))
    return product_log_pmf(cells)


def audit(workload, adjacency, laws, law_of_n, claim, epsilons):
    cache = {}

    def outputs(counts):
        key = tuple(counts)
        if key not in cache:
            cache[key] = output_log_pmf(counts, workload, laws, law_of_n)
        return cache[key]

    pairs = (
        (f"{left} ~ {right}", outputs(left), outputs(right))
        for left, right in neighbouring_tables(adjacency, DOMAIN.size, LARGEST)
    )
    return assert_claimed_delta(pairs, claim, epsilons=epsilons)


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_two_sided_geometric_release_costs_what_it_claims(workload, adjacency, epsilon):
    laws, law_of_n, claimed = noise_of_release(workload, adjacency, epsilon=epsilon)
    assert claimed == pytest.approx(epsilon, rel=1e-15)
    audit(workload, adjacency, laws, law_of_n, lambda _: 0.0, epsilons=[claimed, 1.5 * claimed])
    # The claim is exact: a thousandth less is not enough, for some pair of neighbours.
    with pytest.raises(AssertionError, match="exceeds the claimed"):
        audit(workload, adjacency, laws, law_of_n, lambda _: 0.0, epsilons=[0.999 * claimed])


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_discrete_gaussian_release_stays_below_its_zcdp_curve(workload, adjacency, rho):
    laws, law_of_n, _ = noise_of_release(workload, adjacency, rho=rho, noise="discrete-gaussian")
    epsilons = rho + math.sqrt(rho) * np.array([0.5, 1.0, 2.0, 4.0])
    audit(workload, adjacency, laws, law_of_n, lambda epsilon: delta_of_zcdp(rho, epsilon), epsilons=epsilons)


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_discrete_gaussian_costs_its_rho_in_renyi_divergence(adjacency, rho):
    # zCDP itself: order-a Renyi divergence <= a rho for every pair; the bound is attained in the limit of large
    # noise, so it is also shown to be tight to a few per cent.
    workload = [("a", "b")]
    laws, law_of_n, _ = noise_of_release(workload, adjacency, rho=rho, noise="discrete-gaussian")
    if law_of_n is not None:
        rho = 0.75 * rho
    largest = 0.0
    for left, right in neighbouring_tables(adjacency, DOMAIN.size, 1):
        p, q = (wide_log_pmf(counts, laws[0]) for counts in (left, right))
        for order in (1.5, 2.0, 8.0):
            divergence = float(np.logaddexp.reduce(order * p - (order - 1) * q)) / (order - 1)
            assert divergence <= order * rho * (1 + 1e-12)
            largest = max(largest, divergence / (order * rho))
    assert largest > 0.95


def wide_log_pmf(counts, law):
    """Two cells are enough: neighbours agree in law on the others, which cancel from a divergence."""
    moved = [int(counts[0]), int(counts[1])]
    high = 12 * math.ceil(law.stddev) + 12
    return product_log_pmf([clamped_log_pmf(law, value, -high, high) for value in moved])


def test_audit_catches_the_sensitivity_of_the_wrong_relation():
    # Noise for add-remove (sensitivity 1) under replace-one neighbours costs twice the claim.
    workload, laws = [("a", "b")], [TwoSidedGeometric.from_epsilon(1.0, sensitivity=1)]
    audit(workload, "add-remove", laws, None, lambda _: 0.0, epsilons=[1.0])
    with pytest.raises(AssertionError, match="exceeds the claimed"):
        audit(workload, "replace-one", laws, None, lambda _: 0.0, epsilons=[1.0])
    audit(workload, "replace-one", laws, None, lambda _: 0.0, epsilons=[2.0])


@pytest.mark.parametrize(("adjacency", "moves"), [("add-remove", (1, 0)), ("replace-one", (1, 1))])
def test_disjoint_groups_are_one_query_with_the_least_noise(adjacency, moves):
    """Two groups (rows of the table), each with its own law: what the book asks to be recorded is the exact cost."""
    laws = [TwoSidedGeometric(2.0), TwoSidedGeometric(5.0)]

    def outputs(counts):
        return product_log_pmf([clamped_log_pmf(laws[cell // 2], int(n), LOW, HIGH) for cell, n in enumerate(counts)])

    pairs = [
        (f"{left} ~ {right}", outputs(left), outputs(right))
        for left, right in neighbouring_tables(adjacency, DOMAIN.size, 2)
    ]
    # One record in one group; or out of one cell and into another of the group with the least noise.
    cost = laws[0].epsilon(sensitivity=sum(moves))
    assert_claimed_delta(pairs, lambda _: 0.0, epsilons=[cost])
    with pytest.raises(AssertionError, match="exceeds the claimed"):
        assert_claimed_delta(pairs, lambda _: 0.0, epsilons=[0.999 * cost])


def test_audit_catches_a_forgotten_table():
    laws = [TwoSidedGeometric.from_epsilon(1.0, sensitivity=2)] * 2
    with pytest.raises(AssertionError, match="exceeds the claimed"):
        audit([("a",), ("b",)], "replace-one", laws, None, lambda _: 0.0, epsilons=[1.0])


def test_audit_catches_an_error_in_one_order_only():
    # Q puts mass where P has none; the forward order sees nothing of it.
    log_p, log_q = np.log([0.5, 0.5, 1e-320]), np.log([0.25, 0.25, 0.5])
    assert hockey_stick(log_p, log_q, 1.0)[0] == 0.0
    with pytest.raises(AssertionError, match=r"\(D', D\)"):
        assert_claimed_delta([("pair", log_p, log_q)], lambda _: 0.1, epsilons=[1.0])


@pytest.mark.parametrize(
    ("log_p", "log_q", "needle"),
    [
        (np.log([0.5, 0.4]), np.log([0.5, 0.5]), "not 1"),
        (np.log([0.5, 0.5]), np.log([0.5, 0.25, 0.25]), "outcomes"),
    ],
)
def test_audit_refuses_an_incomplete_enumeration(log_p, log_q, needle):
    with pytest.raises(AssertionError, match=needle):
        assert_claimed_delta([("pair", log_p, log_q)], lambda _: 1.0, epsilons=[1.0])
    with pytest.raises(AssertionError, match="no pair"):
        assert_claimed_delta([], lambda _: 1.0, epsilons=[1.0])


def test_hockey_stick_of_a_known_pair():
    # Randomized response with ln 3: delta(epsilon) = 3/4 - exp(epsilon) / 4.
    log_p, log_q = np.log([0.75, 0.25]), np.log([0.25, 0.75])
    for epsilon in (0.0, 0.5, 1.0):
        assert hockey_stick(log_p, log_q, epsilon)[0] == pytest.approx(0.75 - math.exp(epsilon) / 4, abs=1e-15)
    assert hockey_stick(log_p, log_q, math.log(3) + 1e-9)[0] == 0.0


@pytest.mark.parametrize("law", [TwoSidedGeometric(1.7), DiscreteGaussian(0.8)])
def test_clamping_loses_no_mass(law):
    log_pmf = clamped_log_pmf(law, 2, -1, 4)
    assert math.fsum(np.exp(log_pmf)) == pytest.approx(1.0, abs=1e-14)
    assert log_pmf[3] == pytest.approx(float(law.log_prob(0)), abs=1e-14)
