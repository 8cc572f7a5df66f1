import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain, Marginal, datasets, marginals
from dpbayes.errors import InputError
from dpbayes.ide import Prior, estimate, iterate, measure, two_stage
from dpbayes.ide.algorithm1 import partial_workloads, workload_order
from dpbayes.privacy import NoisyTable, NoisyTotal, Release, TwoSidedGeometric, release_tables

DOMAIN = Domain.from_levels({"x": (0, 1, 2), "y": (0, 1), "z": (0, 1, 2, 3)})
SETS = [("x", "y"), ("y", "z"), ("x", "z")]


@pytest.fixture(scope="module")
def public():
    rng = np.random.default_rng(3)
    return Prior.full(DOMAIN, rng.gamma(2.0, size=DOMAIN.shape))


@pytest.fixture(scope="module")
def exact(public):
    """Tables of a distribution on the same support, released with next to no noise."""
    rng = np.random.default_rng(4)
    counts = rng.multinomial(10**6, (public.weights * rng.gamma(5.0, size=public.size)) / 1.0 / _mass(public, 5))
    whole = Marginal(DOMAIN, counts.reshape(DOMAIN.shape))
    return release_tables([whole.project(s) for s in SETS], epsilon=1e6, rng=np.random.default_rng(1))


def _mass(public, seed):
    rng = np.random.default_rng(4)
    return (public.weights * rng.gamma(5.0, size=public.size)).sum()


def proportional_fitting(table, margins, sweeps):
    """Textbook iterative proportional fitting on a dense array."""
    q = table.copy()
    for _ in range(sweeps):
        for axes, wanted in margins:
            rest = tuple(axis for axis in range(q.ndim) if axis not in axes)
            shape = [q.shape[axis] if axis in axes else 1 for axis in range(q.ndim)]
            q = q * (wanted / q.sum(axis=rest)).reshape(shape)
    return q


def test_uniform_prior_equals_iterative_proportional_fitting(exact):
    uniform = Prior.full(DOMAIN)
    workloads = partial_workloads(measure(uniform, exact))
    ours = iterate(uniform, workloads, order=np.tile([0, 1, 2], 50)).weights.reshape(DOMAIN.shape)
    axes = [(0, 1), (1, 2), (0, 2)]
    margins = [(a, t.counts / 10**6) for a, t in zip(axes, exact.tables, strict=True)]
    textbook = proportional_fitting(np.full(DOMAIN.shape, 1 / DOMAIN.size), margins, 50)
    np.testing.assert_allclose(ours, textbook, atol=1e-12)


def test_order_of_workloads_does_not_change_the_limit(public, exact):
    workloads = partial_workloads(measure(public, exact))
    limits = [
        iterate(public, workloads, order=workload_order(3, 3000, np.random.default_rng(seed))).weights
        for seed in (1, 2)
    ]
    np.testing.assert_allclose(*limits, atol=1e-9)


def test_limit_is_the_two_stage_solution_when_answers_agree(public, exact):
    measurements = measure(public, exact)
    reference = two_stage(measurements)
    reached = iterate(public, partial_workloads(measurements), order=np.tile([0, 1, 2], 400))
    assert reference.l1_minimum < 1e-9
    assert reached.l1_loss[-1] < 1e-9
    assert reached.kl[-1] == pytest.approx(reference.kl, abs=1e-5)
    np.testing.assert_allclose(reached.weights, reference.weights, atol=1e-4)


def test_nothing_moves_when_the_marginals_already_match(public):
    counts = np.rint(public.weights * 1e12).astype(np.int64).reshape(DOMAIN.shape)
    whole = Marginal(DOMAIN, counts)
    release = release_tables([whole.project(s) for s in SETS], epsilon=1e9, rng=np.random.default_rng(1))
    result = estimate(public, release, noise_aware=False, random_state=1)
    np.testing.assert_allclose(result.weights, public.weights, atol=1e-11)
    assert result.kl < 1e-14  # rounding of 24 terms of size 1e-16


def test_loss_falls_and_kl_rises_from_the_prior(public, exact):
    trace = iterate(public, partial_workloads(measure(public, exact)), order=np.tile([0, 1, 2], 20))
    assert trace.step[0] == 0
    assert trace.kl[0] == 0
    assert trace.step[-1] == 60
    assert trace.l1_loss[-1] < 1e-3 * trace.l1_loss[0]
    assert np.all(np.diff(trace.kl[:2]) > 0)
    assert len(trace.moved) == 3
    assert np.all(trace.moved > 0)


def test_contradicting_answers_stop_short_of_the_linear_program():
    release = release_tables(datasets.acs_tables(), epsilon=0.1, rng=np.random.default_rng(2))
    prior = Prior.full(release.domain)
    reference = two_stage(measure(prior, release))
    result = estimate(prior, release, noise_aware=False, random_state=1)
    assert reference.l1_minimum > 0.1
    assert result.iterations.l1_loss[-1] > reference.l1_minimum
    assert reference.excess < 1e-5 * max(1, reference.l1_minimum)


def test_stage_two_is_the_least_kl_among_least_losses():
    # Both answers lie outside the simplex's reach: q = (1, 0) is forced, whatever the prior.
    domain = Domain.from_levels({"x": (0, 1)})
    table = NoisyTable(domain, np.array([15, -5]), TwoSidedGeometric(1.0), 2.0, 2.0)
    release = Release(domain, (table,), "replace-one", 10, "simulation")
    reference = two_stage(measure(Prior.full(domain), release))
    assert reference.l1_minimum == pytest.approx(1.0)
    np.testing.assert_allclose(reference.weights, [1, 0], atol=1e-5)


def test_attributes_missing_from_the_prior_are_named():
    release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(2))
    smaller = Prior.full(release.domain.project(["age", "race"]))
    with pytest.raises(InputError, match=r"'citizenship', which the prior lacks"):
        estimate(smaller, release)


def test_answers_outside_the_priors_levels_are_refused():
    wide, narrow = (Domain.from_levels({"x": levels}) for levels in ((0, 1, 2), (0, 1)))
    release = release_tables([Marginal(wide, [1, 2, 3])], epsilon=1.0, rng=np.random.default_rng(1))
    with pytest.raises(InputError, match="outside the prior's"):
        estimate(Prior.full(narrow), release)


@pytest.mark.parametrize("noise_aware", [True, False])
def test_a_released_size_below_one_half_returns_the_prior(noise_aware):
    domain = Domain.from_levels({"x": (0, 1)})
    law = TwoSidedGeometric(10.0)
    table = NoisyTable(domain, np.array([-4, 1]), law, 1.0, 0.1)
    release = Release(domain, (table,), "add-remove", NoisyTotal(-7, law, 1.0, 0.1), "simulation")
    result = estimate(Prior.full(domain, [1, 3]), release, noise_aware=noise_aware)
    assert (result.method, result.n) == ("prior", 0.0)
    np.testing.assert_array_equal(result.weights, [0.25, 0.75])


def test_no_iteration_is_the_prior_and_a_fraction_of_one_is_refused(public, exact):
    assert estimate(public, exact, noise_aware=False, iterations=0).kl == 0
    with pytest.raises(InputError, match="iterations"):
        estimate(public, exact, noise_aware=False, iterations=-1)


def test_sampled_rows_follow_the_estimate():
    domain = Domain.from_levels({"x": ("a", "b"), "n": (1, 2)})
    prior = Prior.from_frame(pl.DataFrame({"x": ["a", "b", "b"], "n": [1, 2, 2]}), domain)
    release = release_tables(
        marginals(pl.DataFrame({"x": ["a"] * 90 + ["b"] * 10, "n": [1] * 90 + [2] * 10}), [["x"]], domain=domain),
        epsilon=1e6,
        rng=np.random.default_rng(1),
    )
    result = estimate(prior, release, noise_aware=False)
    frame = result.sample(20_000, rng=np.random.default_rng(5))
    assert frame.columns == ["x", "n"]
    # A share of .9 from 20,000 draws: six standard errors are .013, a false alarm once in 10^8.
    assert (frame["x"] == "a").mean() == pytest.approx(0.9, abs=0.013)
    assert frame.filter(pl.col("x") == "a")["n"].unique().to_list() == [1]
