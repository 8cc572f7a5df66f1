import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import laplace, norm

from dpbayes.data import Domain, Marginal, datasets
from dpbayes.errors import AccuracyWarning, InputError
from dpbayes.ide import Prior, estimate
from dpbayes.ide import noise_aware as solver
from dpbayes.ide.noise_aware import HeldLoss, NoiseLoss, measure, noise_loss
from dpbayes.ide.strength import posterior_variance
from dpbayes.privacy import (
    DiscreteGaussian,
    Gaussian,
    Laplace,
    NoisyTable,
    Publication,
    Release,
    TwoSidedGeometric,
    release_tables,
)
from dpbayes.verifier import PartitionCounts, release_counts

PUBLICATION = Publication("An office", "https://example.org", "2026-11", "geometric noise, its scale beside each count")
LAWS = [TwoSidedGeometric(7.0), Laplace(7.0), Gaussian(9.0), DiscreteGaussian(9.0)]


def measurements_of(law, counts=((40, 10), (5, 45)), n=100, prior=None):
    domain = Domain.from_levels({"x": (0, 1), "y": (0, 1)})
    table = NoisyTable(domain, np.array(counts), law, 2.0, None)
    margin = NoisyTable(domain.project(["x"]), np.array([61, 33]), law, 2.0, None)
    return measure(prior or Prior.full(domain), Release(domain, (table, margin), "replace-one", n, "simulation"))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_loss_is_the_averaged_negative_log_likelihood_of_the_law(law):
    loss = noise_loss(measurements_of(law), 30.0)
    first = NoiseLoss(loss.absolute[:1], loss.scale[:1], loss.smoothing[:1])

    def averaged(r):
        # The law's negative log-density less that at zero, extended linearly between integers, against N(0, 30).
        energy = (lambda u: abs(r + u) / 7.0) if loss.absolute[0] else (lambda u: (r + u) ** 2 / 162.0)
        kink = [-r] if abs(r) < 60 else None
        return quad(lambda u: energy(u) * norm.pdf(u, scale=30**0.5), -60, 60, points=kink)[0]

    shift = averaged(0.0) - first.value(np.zeros(1))[0]
    for r in (-40.0, -3.0, 0.5, 11.0):
        assert first.value(np.array([r]))[0] + shift == pytest.approx(averaged(r), abs=1e-7)


@pytest.mark.parametrize("kind", [TwoSidedGeometric, DiscreteGaussian], ids=lambda law: law.name)
def test_cells_of_a_published_table_may_have_noise_of_their_own(kind):
    domain = Domain.from_levels({"x": (0, 1), "y": (0, 1)})
    spreads = np.array([[1.0, 20.0], [5.0, 20.0]])

    def published(own):
        counts = np.array([[40, 10], [5, 45]])
        table = NoisyTable(domain, counts, kind(float(own.max())), None, None, own)
        return Release(domain, (table,), "as published", 100, "published", publication=PUBLICATION)

    release = published(spreads)
    loss = noise_loss(measure(Prior.full(domain), release), 9.0)
    residual = np.array([3.0, -8.0, 2.0, 30.0])
    for cell, spread in enumerate(spreads.ravel()):
        alone = noise_loss(measurements_of(kind(float(spread))), 9.0)
        assert loss.value(residual)[cell] == alone.value(np.full(6, residual[cell]))[0]
    assert release.tables[0].noise_magnitude == pytest.approx(sum(kind(float(s)).mean_magnitude for s in spreads.flat))
    even = Release(
        domain, (NoisyTable(domain, release.tables[0].counts, kind(20.0), 2.0, None),), "replace-one", 100, "simulation"
    )
    found, other = (estimate(Prior.full(domain), one) for one in (published(np.full((2, 2), 20.0)), even))
    np.testing.assert_array_equal(found.weights, other.weights)
    # A cell with little noise is fitted more closely than the same cell with much.
    precise = estimate(Prior.full(domain), release)
    assert abs(precise.weights[0] - 0.4) < 0.5 * abs(other.weights[0] - 0.4)


@pytest.mark.parametrize("law", LAWS[:2], ids=lambda law: law.name)
def test_without_smoothing_the_loss_is_the_law_itself_at_integers(law):
    r = np.arange(-30, 31).astype(float)
    ones = np.ones(len(r))
    loss = NoiseLoss(ones > 0, 7.0 * ones, 1e-12 * ones)
    np.testing.assert_allclose(loss.value(r), law.log_prob(0) - law.log_prob(r), atol=1e-6)


@given(st.floats(-50, 50), st.floats(0.1, 100), st.floats(0.5, 50), st.booleans())
def test_fenchel_young_holds_with_equality_at_the_slope(r, smoothing, scale, absolute):
    one = np.ones(1)
    loss = NoiseLoss(one > 0 if absolute else one < 0, scale * one, smoothing * one)
    r = r * one
    slope, _ = loss.slopes(r)
    at = loss.residual(slope)
    if np.abs(slope[0] * scale) < 0.999:  # beyond, the inverse of the error function has lost its digits
        np.testing.assert_allclose(at, r, rtol=1e-5, atol=1e-9)
        assert (loss.value(r) + loss.conjugate(slope) - slope * r)[0] == pytest.approx(0, abs=1e-7)
    other = 0.5 * slope
    assert (loss.value(r) + loss.conjugate(other) - other * r)[0] >= -1e-9
    step = 1e-5 * max(1.0, np.sqrt(smoothing))
    numeric = (loss.value(r + step) - loss.value(r - step)) / (2 * step)
    np.testing.assert_allclose(numeric, slope, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 5.0])
def test_loss_of_what_was_held_back_is_the_averaged_log_chance_of_it(absolute, ratio):
    """`ratio`: the normal error's standard deviation over the noise's; the rule of Gaussian noise is exact up to 1."""
    law, scale = laplace if absolute else norm, 2.0
    loss = HeldLoss(np.array([absolute]), np.array([scale]), np.array([(ratio * scale) ** 2]))

    def hazard(t):
        return np.exp(law.logpdf(t) - law.logcdf(t))

    def bend(t):
        return (hazard(t) * (hazard(t) + (1.0 if absolute else t))) * ((t > 0) | (not absolute))

    for r in ratio * np.array([-24.0, -3.0, 0.0, 1.5, 6.0]) + scale:

        def averaged(f, r=r):
            """Integrate by Gauss and Legendre between the whole standard deviations and the law's corner."""
            ends = np.unique([-r, *np.linspace(-9, 9, 19) * ratio * scale])
            half, nodes, weights = np.diff(ends)[:, None] / 2, *np.polynomial.legendre.leggauss(40)
            u = ends[:-1, None] + half * (1 + nodes)
            return np.sum(half * weights * f((r + u) / scale) * norm.pdf(u, scale=ratio * scale))

        at = np.array([r])
        found = [loss.value(at)[0], *(one[0] for one in loss.slopes(at))]
        wanted = [
            averaged(lambda t: -law.logcdf(t)),
            averaged(lambda t: -hazard(t)) / scale,
            averaged(bend) / scale**2,
        ]
        rtol, atol = (1e-9, 1e-13) if absolute or ratio <= 1 else (1e-2, 2e-5)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


@settings(deadline=None)
@given(st.floats(-300, 60), st.floats(0.1, 400), st.floats(2, 50), st.booleans())
def test_the_conjugate_of_what_was_held_back(r, smoothing, scale, absolute):
    loss = NoiseLoss(np.array([absolute]), np.array([scale]), np.array([smoothing]), np.array([True]))
    (slope, _), (low, high) = loss.slopes(np.array([r])), loss.ends
    inside = np.clip(slope, low, high)
    if inside == slope:
        assert (loss.value(np.array([r])) + loss.conjugate(slope) - slope * r)[0] == pytest.approx(0, abs=1e-7)
        assert loss.slopes(loss.residual(slope))[0] == pytest.approx(slope, rel=1e-6)
    for other in (0.5 * inside, np.maximum(1.3 * inside, low)):
        if low <= other <= high:
            grid = np.linspace(-400, 400, 1601)
            one = HeldLoss(*(np.broadcast_to(x, grid.shape) for x in (loss.absolute, loss.scale, loss.smoothing)))
            best = (other * grid - one.value(grid)).max()
            assert loss.conjugate(other)[0] >= best - 1e-9
            if abs(loss.residual(other)[0]) < 400:
                assert loss.conjugate(other)[0] == pytest.approx(best, abs=0.01 * abs(best) + 0.01)


def held_measurements(law):
    """Two counts of the table were held back below 30, one of the margin is seen."""
    domain = Domain.from_levels({"x": (0, 1), "y": (0, 1)})
    table = NoisyTable(domain, np.array([[np.nan, 35], [np.nan, 45]]), law, None, None, threshold=30)
    margin = NoisyTable(domain.project(["x"]), np.array([61, 33]), law, None, None)
    release = Release(domain, (table, margin), "as published", 100, "published", publication=PUBLICATION)
    return measure(Prior.full(domain), release), release


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("strength", [3.0, 100.0])
@pytest.mark.parametrize("held", [False, True])
def test_solution_is_the_minimizer_that_a_primal_solver_finds(law, strength, held):
    m = held_measurements(law)[0] if held else measurements_of(law)
    loss = noise_loss(m, 4.0)
    solution = solver.solve(m, loss, strength=strength, tolerance=1e-9)

    def objective(z):
        q = np.exp(z - z.max())
        q /= q.sum()
        kl = np.sum(q * np.log(q / m.prior.weights))
        return strength * kl + loss.value(m.values - m.n * m.cells.predict(q)).sum()

    found = min((minimize(objective, z, method="BFGS", tol=1e-10) for z in np.eye(4)), key=lambda r: r.fun)
    assert solution.gap <= 1e-9
    assert solution.objective == pytest.approx(found.fun, abs=1e-6)
    assert solution.objective <= found.fun + 1e-8
    q = np.exp(found.x - found.x.max())
    np.testing.assert_allclose(solution.weights, q / q.sum(), atol=2e-4)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_gap_bounds_what_is_left_to_gain_and_the_distance(law):
    m = measurements_of(law)
    loss = noise_loss(m, 4.0)
    best = solver.solve(m, loss, strength=20.0, tolerance=1e-10)
    rough = solver.solve(m, loss, strength=20.0, tolerance=1e3)
    assert rough.iterations == 0
    assert 0 <= rough.objective - best.objective <= rough.gap
    assert np.abs(rough.weights - best.weights).sum() <= rough.l1_bound
    assert best.gap <= 1e-10


def test_more_cells_than_fit_a_dense_system_are_solved_by_conjugate_gradients(monkeypatch):
    release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    m = measure(Prior.full(release.domain), release)
    loss = noise_loss(m, 50.0)
    dense = solver.solve(m, loss, strength=50.0, tolerance=1e-4)
    monkeypatch.setattr(solver, "_DENSE_CELLS", 10)
    matrix_free = solver.solve(m, loss, strength=50.0, tolerance=1e-4)
    assert max(dense.gap, matrix_free.gap) <= 1e-4
    assert np.abs(dense.weights - matrix_free.weights).sum() <= dense.l1_bound + matrix_free.l1_bound


@pytest.mark.parametrize(
    "law, n, weights",
    [
        (TwoSidedGeometric(0.2), 20_000, (0.49, 0.49, 0.005, 0.005, 0.005, 0.005)),
        (TwoSidedGeometric(2.0), 2_000_000, (0.97, 0.01, 0.005, 0.005, 0.005, 0.005)),
        (Gaussian(0.857), 7_030_806, (0.189, 0.005, 0.129, 0.001, 0.597, 0.079)),
    ],
    ids=["20 thousand", "2 million", "7 million"],
)
def test_a_prior_far_from_precise_tables_is_moved_all_the_way(law, n, weights):
    domain = Domain.from_levels({"a": ("x", "y"), "b": ("p", "q", "r")})
    a, b = np.array([n // 10, n - n // 10]), np.array([n // 20, n // 20, n - 2 * (n // 20)])
    tables = tuple(NoisyTable(domain.project([k]), v, law, 2.0, None) for k, v in (("a", a), ("b", b)))
    prior = Prior.full(domain).reweighted(np.array(weights) / np.sum(weights))
    release = Release(domain, tables, "replace-one", n, "simulation")
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        found = estimate(prior, release)
    strength, solution = found.solution.strength, found.solution
    assert solution.gap <= 1e-2
    # A distribution with these tables exists, and no distribution is further from the prior than its rarest cell tells:
    # that bounds the objective, which bounds the losses, which are at least |r| / scale or r^2 / 2 variance each.
    given = measure(prior, release)
    loss = noise_loss(given, posterior_variance(given, strength))
    assert solution.objective <= strength * np.log(1 / prior.weights.min()) + loss.value(np.zeros(5)).sum() + 1e-2
    off = np.abs(found.marginal(["a"]) * n - a).sum()
    assert off <= (
        2 * law.stddev * solution.objective**0.5 if isinstance(law, Gaussian) else law.scale * solution.objective
    )


@pytest.mark.parametrize("stddev, records", [(0.0018355475383915528, 237_556), (1e-6, 900_000)])
def test_tables_with_noise_far_below_a_record_are_met_to_the_record(stddev, records):
    domain = Domain.from_levels({"a": ("x", "y"), "b": ("p", "q", "r")})
    a, b = np.array([0.1, 0.9]), np.array([0.05, 0.05, 0.9])
    tables = tuple(
        NoisyTable(domain.project([name]), np.rint(records * share) + 0.25, Gaussian(stddev), 2.0, None)
        for name, share in (("a", a), ("b", b))
    )
    prior = Prior.full(domain).reweighted(np.array([0.0397, 0.5446, 0.0007, 0.0039, 0.0534, 0.3577]))
    release = Release(domain, tables, "replace-one", records, "simulation")
    found = estimate(prior, release)
    assert records * np.abs(found.marginal(["a"]) - a).sum() < 1
    with pytest.warns(AccuracyWarning, match="not solved to its tolerance"):
        estimate(prior, release, tolerance=1e-300)


def test_large_noise_leaves_the_prior_alone_and_small_noise_overrides_it():
    domain = datasets.acs_tables()[0].domain
    prior = Prior.full(domain, [[1, 2], [3, 4]])
    table = datasets.acs_tables()[0]

    def fit(epsilon):
        release = release_tables([table], epsilon=epsilon, rng=np.random.default_rng(1))
        return estimate(prior, release, strength=100.0)

    assert np.abs(fit(1e-5).weights - prior.weights).sum() < 1e-2
    assert np.abs(fit(100.0).marginal(domain.names) - table.counts / table.total).sum() < 1e-3


@pytest.mark.parametrize("factor", [2.0, 10.0])
def test_scaling_law_records_strength_and_noise_together(factor):
    # n, y, the noise scale and the strength times c, the smoothing times c^2: the same minimizer.
    one = measurements_of(Laplace(7.0))
    times = measurements_of(Laplace(7.0 * factor), counts=np.array([[40, 10], [5, 45]]) * factor, n=int(100 * factor))
    times.values[4:] = one.values[4:] * factor
    a = solver.solve(one, noise_loss(one, 9.0), strength=10.0, tolerance=1e-10)
    b = solver.solve(times, noise_loss(times, 9.0 * factor**2), strength=10.0, tolerance=1e-10)
    np.testing.assert_allclose(a.weights, b.weights, atol=1e-5)


def test_impossible_cells_stay_impossible_and_do_not_stop_the_solver():
    domain = Domain.from_levels({"x": (0, 1), "y": (0, 1)})
    m = measurements_of(TwoSidedGeometric(1.0), prior=Prior.full(domain, [[1, 0], [1, 2]]))
    solution = solver.solve(m, noise_loss(m, 4.0), strength=10.0)
    assert solution.weights[1] == 0
    assert solution.gap <= 1e-2


def test_weaker_priors_move_further():
    release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    prior = Prior.full(release.domain)
    kl = [estimate(prior, release, strength=s).kl for s in (1e5, 1e4, 1e3, 1e2)]
    assert kl == sorted(kl)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, True, "prior"])
def test_strength_must_be_positive_or_release(bad):
    release = release_tables(datasets.acs_tables()[:1], epsilon=1.0, rng=np.random.default_rng(1))
    with pytest.raises(InputError, match="strength"):
        estimate(Prior.full(release.domain), release, strength=bad)


def test_tolerance_must_be_positive():
    release = release_tables([Marginal(Domain.from_levels({"x": (0, 1)}), [4, 5])], epsilon=1.0)
    with pytest.raises(InputError, match="tolerance"):
        estimate(Prior.full(release.domain), release, tolerance=0.0)


def test_exact_tables_are_no_release():
    tables = datasets.acs_tables()
    partitions = release_counts(PartitionCounts(20, 10, 0), epsilon=1.0, rng=np.random.default_rng(1))
    with pytest.raises(InputError, match="an estimate needs counts of records, and this release counts partitions"):
        estimate(Prior.full(partitions.domain), partitions)
    with pytest.raises(InputError, match=r"starts from a Release, got tuple; use privacy.release_tables"):
        estimate(Prior.full(tables[0].domain), tables)


def test_counts_held_back_are_estimated_by_the_noise_aware_method_alone():
    """What the threshold says moves the estimate the way that it must, and an interval is wider than a seen count's."""
    m, release = held_measurements(TwoSidedGeometric(3.0))
    found = estimate(m.prior, release, pool=False)
    assert found.solution.gap <= 1e-2
    low, high = found.interval(("x", "y"))
    assert 100 * low[0, 0] < 61 - 35 < 100 * high[0, 0] and np.all(100 * high[:, 0] < 45)
    seen = replace(release.tables[0], counts=np.array([[26, 35], [22, 45]]), threshold=None)
    less, more = estimate(
        m.prior, replace(release, tables=(seen, release.tables[1])), pool=False
    ).interval(("x", "y"))  # fmt: skip
    assert (high - low)[0, 0] > 1.1 * (more - less)[0, 0]
    with pytest.raises(InputError, match="table x x y has 2 of them held back below 30; leave the table out, or"):
        estimate(m.prior, release, noise_aware=False)
