"""The latent class model's graph against enumeration of the full table."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

from dpbayes._names import given_name
from dpbayes.data import datasets
from dpbayes.data.domain import Domain
from dpbayes.data.tables import Marginal
from dpbayes.errors import AccuracyWarning, InputError
from dpbayes.inference.many_chains import batched_density
from dpbayes.latent_class import build_model
from dpbayes.latent_class import design as design_module
from dpbayes.latent_class.design import Design, default_likelihood, dimension_name, n_effects
from dpbayes.latent_class.likelihood import release_data
from dpbayes.latent_class.study import Simulator
from dpbayes.privacy import release_tables
from dpbayes.privacy.laws import DiscreteGaussian, Gaussian, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Publication, Release
from dpbayes.verifier import PartitionCounts, release_counts

DOMAIN = Domain.from_levels({"a": (0, 1), "b": ("x", "y", "z"), "c": (0, 1), "d": (0, 1)})
STATED = Publication("An office", "https://example.org", "2026", "as in this test")
SETS = [("a", "b"), ("b", "c"), ("d", "c")]


def _release(sets=SETS, *, n=500, laws=None, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.multinomial(n, rng.dirichlet(np.ones(DOMAIN.size))).reshape(DOMAIN.shape)
    tables = []
    for index, names in enumerate(sets):
        domain = DOMAIN.project(names)
        law = laws[index] if laws else TwoSidedGeometric(4.0)
        axes = DOMAIN.axes(names)
        rest = tuple(a for a in range(len(DOMAIN)) if a not in axes)
        exact = table.sum(axis=rest).transpose(np.argsort(np.argsort(axes)))
        noise = np.round(law.variance**0.5 * rng.normal(size=domain.shape))
        tables.append(NoisyTable(domain, exact + noise, law, 2.0, None))
    return Release(DOMAIN, tuple(tables), "replace-one", n, "simulation")


def _point(model, seed=0):
    """A random point of the sampler's space."""
    rng = np.random.default_rng(seed)
    return {name: value + 0.7 * rng.normal(size=np.shape(value)) for name, value in model.initial_point().items()}


def _evaluate(model, names):
    """A function from points of the sampler's space to the named variables."""
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    return model.compile_fn(graphs, inputs=model.value_vars, on_unused_input="ignore")


@pytest.fixture(scope="module")
def evaluated():
    """A model, and its recorded quantities at one random point."""
    release = _release()
    model = build_model(release, n_classes=3, margins=[("d", "a"), ("a", "b", "c")])
    names = [*(v.name for v in model.deterministics), *(v.name for v in model.free_RVs)]
    values = _evaluate(model, names)(_point(model))
    return release, model, dict(zip(names, values, strict=True))


def _full_table(values):
    profiles = np.split(values["profiles"], np.cumsum(DOMAIN.shape)[:-1], axis=1)
    return np.einsum("h,ha,hb,hc,hd->abcd", values["weights"], *profiles)


def test_margins_and_cells_are_those_of_the_enumerated_mixture(evaluated):
    _, _, values = evaluated
    table = _full_table(values)
    assert table.sum() == pytest.approx(1.0, abs=1e-14)
    np.testing.assert_allclose(values["cell"], table, atol=1e-15)
    expected = [np.einsum("abcd->ab", table), np.einsum("abcd->bc", table), np.einsum("abcd->dc", table)]
    np.testing.assert_allclose(values["margin"], np.concatenate([e.ravel() for e in expected]), atol=1e-15)
    np.testing.assert_allclose(values["margin_d_a"], np.einsum("abcd->da", table), atol=1e-15)
    np.testing.assert_allclose(values["margin_a_b_c"], table.sum(axis=3), atol=1e-15)


def test_weights_are_broken_sticks(evaluated):
    _, _, values = evaluated
    first, second = values["stick"]
    expected = [first, (1 - first) * second, (1 - first) * (1 - second)]
    np.testing.assert_allclose(values["weights"], expected, rtol=1e-14)
    np.testing.assert_allclose(values["weights_sorted"], sorted(expected, reverse=True), rtol=1e-14)


def test_profiles_vary_about_the_released_shares(evaluated):
    release, _, values = evaluated
    data = release_data(release, "cells")
    shares, spread = data["released_shares"], data["spread"]
    weights = np.split(shares * np.exp(spread * values["level_scores"]), np.cumsum(DOMAIN.shape)[:-1], axis=1)
    expected = np.concatenate([part / part.sum(axis=1, keepdims=True) for part in weights], axis=1)
    np.testing.assert_allclose(values["profiles"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("limit", "most", "spread"), [("SEVERAL", 1500, 6.0), ("SEVERAL", 10, 4.0), ("MAX_JOINT_CELLS", 0, 2.5)]
)
def test_profiles_vary_less_in_larger_models_and_where_the_population_varies(limit, most, spread, monkeypatch):
    monkeypatch.setattr(design_module, limit, most)  # classes times levels; counts, with as little noise
    release = _release(laws=[TwoSidedGeometric(1.5)] * len(SETS))
    assert release_data(release, "cells")["spread"] == spread
    assert build_model(release, spread=1.5, n_classes=2)["spread"].get_value() == 1.5


@pytest.mark.slow
def test_dirichlet_profiles_are_dirichlet():
    """Moments of 4,000 prior draws of a second level: standard errors of mean and variance below .006 and .003."""
    with build_model(_release(), n_classes=2, profiles="dirichlet", profile_prior=0.5):
        drawn = pm.sample_prior_predictive(4000, random_seed=1)
    level = drawn["prior"]["profiles"].to_numpy()[0, :, :, 3]  # b = y, of three levels
    law = stats.beta(0.5, 1.0)
    assert level.mean() == pytest.approx(law.mean(), abs=0.03)
    assert level.var() == pytest.approx(law.var(), abs=0.015)


def test_all_tables_jointly_with_laplace_noise():
    """The density of released counts and deviations: p(x) p(y | x) |dx / dz|."""
    release = _release(laws=[TwoSidedGeometric(4.0)] * 3)
    model = build_model(release, n_classes=2, likelihood="tables")
    point = _point(model)
    (margin,) = _evaluate(model, ["margin"])(point)
    data, z = release_data(release, "tables"), point["count_deviations"]
    root, half = data["sampling_root"], data["count_root"]
    off = data["released_counts"] - release.n * margin
    x = half @ (data["count_gain"] @ off + z)
    left = np.split(off - root @ x, np.cumsum([table.counts.size for table in release.tables])[:-1])
    noise = [table.noise.relaxed for table in release.tables]
    law = sum((c - a * np.abs(part) - b * part**2).sum() for (c, a, b), part in zip(noise, left, strict=True))
    expected = stats.norm.logpdf(x).sum() + law + np.linalg.slogdet(half)[1]
    found = model.compile_logp(vars=[model["released"], model["count_deviations"]])(point)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("law", [Gaussian(6.0), TwoSidedGeometric(4.0)], ids=lambda law: law.name)
def test_all_tables_jointly_with_normal_noise_or_many_cells(law, monkeypatch):
    monkeypatch.setattr(design_module, "FEW_CELLS", 0)
    monkeypatch.setattr(design_module, "SEVERAL_CELLS", 0)
    release = _release(laws=[law] * 3)
    model = build_model(release, n_classes=2, likelihood="tables")
    assert "count_deviations" not in model.named_vars
    point = _point(model)
    (margin,) = _evaluate(model, ["margin"])(point)
    data = release_data(release, "tables")
    off = data["released_counts"] - release.n * margin
    covariance = data["sampling_root"] @ data["sampling_root"].T + np.diag(
        np.concatenate([table.variances.ravel() for table in release.tables])
    )
    found = model.compile_logp(vars=[model["released"]])(point)
    assert found == pytest.approx(stats.multivariate_normal(cov=covariance).logpdf(off), rel=1e-9)


@pytest.mark.parametrize("law", [TwoSidedGeometric(4.0), Gaussian(5.0)], ids=lambda law: law.name)
def test_all_tables_jointly_with_counts_held_back(law):
    """The deviations integrated out, in the model's coordinates and in those of the sampling error: Sobol sequences."""
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1)})
    table = NoisyTable(domain, [[40, np.nan], [31, np.nan]], law, None, None, threshold=25)
    release = Release(domain, (table,), "as published", 100, "published", publication=STATED)
    model = build_model(release, n_classes=2, likelihood="tables", spread=4.0)
    point = _point(model)
    (margin,) = _evaluate(model, ["margin"])(point)
    data = release_data(release, "tables", spread=4.0)
    root = data["sampling_root"]
    normal = stats.norm.ppf(stats.qmc.Sobol(root.shape[1], seed=1).random_base2(11))
    density = model.compile_logp(vars=[model["released"], model["count_deviations"]])
    # The model's coordinates have nearly their posterior's spread; their standard normal part leaves the weight.
    found = [density(point | {"count_deviations": z}) - stats.norm.logpdf(z).sum() for z in normal]
    many = stats.norm.ppf(stats.qmc.Sobol(root.shape[1], seed=2).random_base2(17))
    off = np.where(table.withheld, table.limit, table.counts).ravel() - 100 * margin - many @ root.T
    if isinstance(law, Gaussian):
        seen, chance = stats.norm.logpdf(off, scale=5.0), stats.norm.logcdf(off, scale=5.0)
    else:
        scale = 1 / law.relaxed[1]
        seen, chance = stats.laplace.logpdf(off, scale=scale), stats.laplace.logcdf(off, scale=scale)
    each = np.where(table.withheld.ravel(), chance, seen).sum(axis=1)
    wanted = logsumexp(each) - np.log(len(many))
    assert logsumexp(found) - np.log(len(found)) == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("form", ["cells", "tables"])
def test_gradients_with_counts_held_back_are_those_of_finite_differences(form):
    release = _release(laws=[TwoSidedGeometric(4.0), DiscreteGaussian(5.0), TwoSidedGeometric(4.0)])
    tables = [
        replace(t, counts=np.where(t.counts < np.median(t.counts), np.nan, t.counts), sensitivity=None, epsilon=None,
                threshold=float(np.median(t.counts)))
        for t in release.tables
    ]  # fmt: skip
    release = replace(release, tables=tuple(tables), adjacency="as published", sampler="published", publication=STATED)
    assert sum(table.withheld.sum() for table in release.tables) >= 3
    model = build_model(release, n_classes=2, likelihood=form)
    names = [variable.name for variable in model.value_vars]
    density, slopes, at = model.compile_logp(), model.compile_dlogp(), _point(model)
    slope, rng = np.split(slopes(at), np.cumsum([at[name].size for name in names])[:-1]), np.random.default_rng(1)
    for name, own in zip(names, slope, strict=True):
        way = 1e-5 * rng.normal(size=at[name].shape)
        ahead, back = (density(at | {name: at[name] + sign * way}) for sign in (1, -1))
        assert own @ way.ravel() == pytest.approx((ahead - back) / 2, rel=1e-5, abs=1e-9)


def test_simulated_releases_hold_back_what_the_threshold_does():
    """Of the same exact tables, the counts without noise to speak of that are below the threshold, and no others."""
    law = TwoSidedGeometric(0.01)
    table = NoisyTable(DOMAIN.project(["a", "b"]), [[40, np.nan, 60], [90, 50, 80]], law, None, None, threshold=30)
    release = Release(DOMAIN, (table,), "as published", 300, "published", publication=STATED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        design = Design.of(DOMAIN, [("a", "b")], n_classes=2, likelihood="cells")
        build = partial(build_model, release, n_classes=2, likelihood="cells")
        simulate = Simulator(release, build, design, "cells", 6.0)
        found = [simulate(seed) for seed in range(4)]
    exact = np.array([truth["exact_counts"] for truth, _ in found])
    seen = np.array([data["released_counts"] for _, data in found])
    assert 2 <= (exact < 30).sum() <= 20
    np.testing.assert_array_equal(seen, np.where(exact < 30, -np.inf, exact))


def test_the_form_follows_from_the_release(monkeypatch):
    quiet, loud = _release(), _release(laws=[TwoSidedGeometric(40.0)] * 3)
    assert [default_likelihood(release) for release in (quiet, loud)] == ["tables"] * 2  # few cells
    monkeypatch.setattr(design_module, "FEW_CELLS", 0)
    assert [default_likelihood(release) for release in (quiet, loud)] == ["tables", "cells"]
    assert "level_deviations" in {v.name for v in build_model(loud).free_RVs}
    assert "level_deviations" in {v.name for v in build_model(quiet, likelihood="cells").free_RVs}


@pytest.mark.parametrize(("scale", "kept"), [(1.5, False), (40.0, True)])
def test_noise_of_several_cells_keeps_its_law_unless_sampling_is_more(scale, kept, monkeypatch):
    release = _release(laws=[TwoSidedGeometric(scale)] * 3)
    assert "count_deviations" in build_model(release, likelihood="tables").named_vars  # few cells
    monkeypatch.setattr(design_module, "FEW_CELLS", 0)
    assert ("count_deviations" in build_model(release, likelihood="tables").named_vars) is kept


def test_the_population_varies_where_noise_is_small(monkeypatch):
    quiet, loud = _release(), _release(laws=[TwoSidedGeometric(40.0)] * 3)
    assert "overdispersion" not in {v.name for v in build_model(quiet, likelihood="cells").free_RVs}  # few counts
    monkeypatch.setattr(design_module, "MAX_JOINT_CELLS", 0)
    names = [{v.name for v in build_model(one, likelihood="cells").free_RVs} for one in (quiet, loud)]
    assert ["overdispersion" in found for found in names] == [True, False]
    assert "overdispersion" not in {v.name for v in build_model(quiet).free_RVs}  # few counts are taken jointly
    chosen = {v.name for v in build_model(quiet, overdispersion=True).free_RVs}
    assert {"overdispersion", "level_deviations"} <= chosen
    with pytest.raises(InputError, match="overdispersion=True needs likelihood='cells'"):
        build_model(quiet, overdispersion=True, likelihood="tables")
    with pytest.raises(InputError, match=r"overdispersion must be True, False or None .* got 'yes'"):
        build_model(quiet, overdispersion="yes")
    monkeypatch.setattr(design_module, "MAX_EXACT_CELLS", 3)
    with pytest.raises(InputError, match=r"overdispersion=True needs draws of the exact counts, of at most 3 cells"):
        build_model(quiet, overdispersion=True)


def test_the_number_of_classes_follows_from_the_tables():
    assert n_effects(DOMAIN, SETS) == 1 + 2 + 1 + 1 + 2 + 2 + 1
    assert build_model(_release()).coords["class"] == tuple(range(8))
    domain = Domain.from_levels({f"x{i}": (0, 1) for i in range(16)})
    pairs = [(a, b) for i, a in enumerate(domain.names) for b in domain.names[:i]]
    assert Design.of(domain, pairs).n_classes == 17


@pytest.mark.slow
@pytest.mark.parametrize("law", [TwoSidedGeometric(40.0), Gaussian(60.0)])
def test_prior_draws_have_the_multinomials_spread_and_the_noise(law):
    """4,000 draws of 16 counts: means and variances of standardized counts have errors below .02 and .05.

    Six of these are no false alarm.
    """
    release = _release(laws=[law] * 3)
    with build_model(release, n_classes=2, likelihood="cells"):
        drawn = pm.sample_prior_predictive(4000, random_seed=1)
    margin = drawn["prior"]["margin"].to_numpy()[0]
    counts = drawn["prior_predictive"]["released"].to_numpy()[0]
    standard = (counts - 500 * margin) / np.sqrt(500 * margin * (1 - margin) + law.variance)
    np.testing.assert_allclose(standard.mean(axis=0), 0.0, atol=0.12)
    np.testing.assert_allclose(standard.var(axis=0), 1.0, atol=0.3)


@pytest.mark.parametrize("likelihood", ["cells", "tables"])
def test_new_data_make_it_the_model_of_another_release(likelihood):
    first, second = _release(), _release(seed=1)
    model, other = (build_model(release, n_classes=2, likelihood=likelihood) for release in (first, second))
    point = _point(model)
    for name, value in release_data(second, likelihood).items():
        model.set_data(name, value)
    assert model.compile_logp()(point) == pytest.approx(float(other.compile_logp()(point)), rel=1e-12)


@pytest.mark.slow
def test_chains_start_with_equal_classes_near_the_released_shares():
    release = _release()
    model = build_model(release, n_classes=5)
    density = batched_density(model, backend="interpreted")
    drawn = density.recorded(density.start(np.random.default_rng(1), 4000))
    assert density.climbs
    # Weights vary by some .3 of themselves, and are equal up to second order; 4,000 starts.
    np.testing.assert_allclose(drawn["weights"].mean(axis=0), 0.2, atol=0.01)
    shares = release_data(release, "tables")["released_shares"]
    typical = np.exp(np.log(drawn["profiles"]).mean(axis=(0, 1)))
    for own, block in zip(*(np.split(all_levels, [2, 5, 7]) for all_levels in (typical, shares)), strict=True):
        np.testing.assert_allclose(own / own.sum(), block, atol=0.02)
    varied = batched_density(build_model(release, n_classes=5, overdispersion=True), backend="interpreted")
    found = varied.recorded(varied.start(np.random.default_rng(1), 4000))
    # A log-normal of scale .3 has its median within 5 standard errors: 5 x 1.25 x .3 / sqrt(4000) = .03.
    assert np.median(found["overdispersion"]) == pytest.approx(30.0, rel=0.03)
    # That of 4,000 x 5 x 7 normal values is within 5 / sqrt(2 x 140,000) = .01 of itself.
    assert found["level_deviations"].std() == pytest.approx(0.3, rel=0.01)
    assert "stick" not in build_model(release, n_classes=1).starts
    assert not hasattr(build_model(release, n_classes=5, profiles="dirichlet"), "starts")
    assert not hasattr(build_model(_release(laws=[TwoSidedGeometric(400.0)] * 3)), "starts")


def test_sizes_of_classes_start_from_their_prior_where_noise_leaves_few_classes():
    """A mean of 4,000 largest weights has a standard error of .0025: .02 is more than five of the difference's."""
    model = build_model(_release(laws=[TwoSidedGeometric(30.0)] * 3), n_classes=5)
    assert set(model.starts) == {"level_scores"} and model.held == ("alpha", "stick")
    density = batched_density(model, backend="interpreted")
    drawn = density.recorded(density.start(np.random.default_rng(1), 4000))
    alpha = np.random.default_rng(2).gamma(40.0, 1 / 10.0, size=(4000, 1))
    stick = np.random.default_rng(3).beta(1.0, np.broadcast_to(alpha, (4000, 4)))
    left = np.cumprod(1.0 - stick, axis=1)
    largest = np.maximum(np.max(stick * np.insert(left, 0, 1.0, axis=1)[:, :4], axis=1), left[:, -1])
    assert drawn["weights_sorted"][:, 0].mean() == pytest.approx(largest.mean(), abs=0.02)
    assert (density.moving == 0.0).sum() == 1 + 4


def test_fewer_classes_are_in_use_where_noise_hides_nearly_everything():
    for scale, expected in ((400.0, (40.0, 40.0)), (4.0, (40.0, 10.0))):
        release = _release(laws=[TwoSidedGeometric(scale)] * 3)
        model = build_model(release, n_classes=5)
        np.testing.assert_array_equal(model["concentration"].get_value(), expected)
        alpha = pm.draw(model["alpha"], draws=4000, random_seed=1)
        # Four thousand draws, five standard errors of a mean.
        assert alpha.mean() == pytest.approx(expected[0] / expected[1], rel=5 / np.sqrt(40 * 4000))


def test_what_chains_climb_near_their_starts_has_a_finite_mass():
    """The density falls along every free variable; a parabola through three far points."""
    for likelihood, law, varies in (
        ("cells", TwoSidedGeometric(3.0), False),
        ("cells", TwoSidedGeometric(3.0), True),
        ("tables", TwoSidedGeometric(3.0), False),
        ("tables", Gaussian(3.0), False),
    ):
        model = build_model(_release(laws=[law] * 3), n_classes=2, likelihood=likelihood, overdispersion=varies)
        density = batched_density(model, backend="interpreted")
        at = density.start(np.random.default_rng(1), 1)[0]
        steps = np.array([-200.0, 0.0, 200.0])
        for place in range(density.size):
            points = np.tile(at, (3, 1))
            points[:, place] += steps
            prior, likelihood_there, _ = density.evaluate(points, 1.0)
            joint = prior + likelihood_there
            assert joint[1] > max(joint[0], joint[2])


@pytest.mark.parametrize("likelihood", ["tables", "cells"])
def test_one_class_and_fixed_concentration(monkeypatch, likelihood):
    monkeypatch.setattr("dpbayes.latent_class.design.ROUNDING", 0.0)  # chains in double precision, as the model
    model = build_model(_release(), n_classes=1, concentration=0.5, likelihood=likelihood)
    assert "alpha" not in model.named_vars and "stick" not in model.named_vars
    expected = float(model.compile_logp()(model.initial_point()))
    density = batched_density(model, backend="interpreted")
    start = np.concatenate([np.ravel(model.initial_point()[value.name]) for value in model.value_vars])
    prior, given, slopes = density.evaluate(np.stack([start, start]), 1.0)
    assert np.isfinite(expected) and np.isfinite(slopes).all()
    np.testing.assert_allclose(prior + given, expected, rtol=1e-10)


def test_large_domain_is_never_enumerated():
    domain = Domain.from_levels({f"x{i}": (0, 1) for i in range(30)})
    tables = tuple(
        NoisyTable(domain.project((f"x{i}", f"x{i + 1}")), np.full((2, 2), 25), TwoSidedGeometric(4.0), 2.0, 0.5)
        for i in range(29)
    )
    model = build_model(Release(domain, tables, "replace-one", 100, "simulation"), n_classes=2)
    assert "cell" not in model.named_vars
    assert model["margin"].type.ndim == 1


def _noisy_total_release():
    public = _release()
    total = NoisyTotal(503.0, TwoSidedGeometric(6.0), 1.0, 0.2)
    return Release(DOMAIN, public.tables, "add-remove", total, "simulation")


@pytest.mark.parametrize("likelihood", ["cells", "tables"])
def test_noisy_number_of_records_is_inferred(likelihood):
    release = _noisy_total_release()
    model = build_model(release, n_classes=2, likelihood=likelihood)
    point = _point(model) | {"n_log__": np.array(np.log(490.0))}
    (n,) = _evaluate(model, ["n"])(point)
    assert n == pytest.approx(490.0)
    scale = np.sqrt(TwoSidedGeometric(6.0).variance / 2)
    observed = model.compile_logp(vars=[model["released_n"]])(point)
    assert observed == pytest.approx(stats.laplace(scale=scale).logpdf(503.0 - 490.0), rel=1e-9)
    logp, step = model.compile_logp(), 1e-6
    ends = [logp(point | {"n_log__": point["n_log__"] + sign * step}) for sign in (1, -1)]
    slope = model.compile_dlogp(vars=[model["n"]])(point)[0]
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_classes": 0}, "n_classes"),
        ({"n_classes": 2.5}, "n_classes"),
        ({"concentration": -1.0}, "concentration"),
        ({"concentration": (1.0, float("nan"))}, "concentration"),
        ({"concentration": (3.0,)}, r"such as \(40, 10\), the shape from 0\.1 .* got \(3\.0,\)"),
        ({"concentration": ()}, "concentration"),
        ({"concentration": (1.0, 2.0, 3.0)}, "concentration"),
        ({"concentration": "4"}, "concentration .* got '4'"),
        ({"concentration": ("4", "1")}, "concentration"),
        ({"concentration": True}, "concentration"),
        ({"profile_prior": 0.0}, "profile_prior"),
        ({"profile_prior": "4"}, "profile_prior .* got '4'"),
        ({"profiles": "flat"}, "'flat'"),
        ({"spread": -1.0}, "spread"),
        ({"likelihood": "guess"}, "'guess'"),
        ({"margins": [("a", "zz")]}, "'zz'"),
        ({"margins": [("a", "b"), ["a", "b"]]}, r"\['a', 'b'\] twice, recorded as 'margin_a_b'"),
        ({"margins": ["ab"]}, "lists of attributes"),
        ({"margins": "ab"}, "lists of attributes"),
    ],
)
def test_refuses_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        build_model(_release(), **arguments)


@pytest.mark.parametrize("likelihood", ["tables", "cells"])
def test_noise_that_cannot_be_told_from_none_is_refused_before_anything_is_computed(likelihood):
    table = Marginal(Domain.from_levels({"a": (0, 1)}), [60, 40])
    release = release_tables([table], epsilon=4000.0, rng=np.random.default_rng(1))
    with pytest.raises(InputError, match=r"zero in all but name.*lower epsilon"):
        build_model(release, likelihood=likelihood)


def _release_of(*names, n=100):
    """Counts of one table of binary attributes."""
    domain = Domain.from_levels({name: (0, 1) for name in names})
    table = NoisyTable(domain, np.full(domain.shape, 25), TwoSidedGeometric(4.0), 2.0, 0.5)
    return Release(domain, (table,), "replace-one" if isinstance(n, int) else "add-remove", n, "simulation")


def test_a_pair_may_be_a_list_or_an_array():
    point = build_model(_release(), n_classes=2).initial_point()
    pairs = [(3, 2.0), [3, 2], np.array([3, 2])]
    values = {float(build_model(_release(), n_classes=2, concentration=pair).compile_logp()(point)) for pair in pairs}
    assert len(values) == 1
    assert values != {float(build_model(_release(), n_classes=2).compile_logp()(point))}


def test_margins_whose_names_join_alike_are_refused():
    release = _release_of("a_b", "a", "b")
    message = r"\['a_b'\] and \['a', 'b'\], recorded as 'margin_a_b' alike"
    with pytest.raises(InputError, match=message):
        build_model(release, margins=[("a_b",), ("a", "b")])
    model = build_model(release, margins=[("a", "b"), ("b", "a")], n_classes=1)
    assert model.convergence_variables == ("margin", "cell", "margin_a_b", "margin_b_a")


@pytest.mark.parametrize("name", ["chain", "draw", "draws", "quantile", "sample"])
def test_attributes_with_the_names_of_dimensions_of_draws_are_refused(name):
    with pytest.raises(
        InputError, match=f"attribute '{name}' has the name of a dimension of posterior draws; rename it"
    ):
        build_model(_release_of(name, "b"))


def test_no_attribute_has_the_dimension_of_a_variable_or_dimension_of_any_form():
    noisy = NoisyTotal(100.0, TwoSidedGeometric(6.0), 1.0, 0.2)
    models = [
        build_model(_release_of("a", "b", n=noisy), n_classes=2, margins=[("a",)], impossible=[{"a": 1, "b": 1}]),
        build_model(_release_of("a", "b"), n_classes=2, profiles="dirichlet", likelihood="cells"),
        build_model(_release(), n_classes=2, likelihood="tables"),
    ]
    taken = {name for model in models for name in (*model.named_vars, *model.coords)} - set(DOMAIN.names)
    taken |= {"exact_counts", "profile_a"}  # of a trace
    assert {"class", "released_counts", "structural_zeros", "level_deviations", "n"} <= taken
    for name in sorted(taken):
        assert dimension_name(name) not in taken and given_name(dimension_name(name)) == name


@pytest.mark.parametrize("given", [datasets.acs_tables(), {"a": 1}])
def test_exact_tables_are_no_release(given):
    partitions = release_counts(PartitionCounts(20, 10, 0), epsilon=1.0, rng=np.random.default_rng(1))
    with pytest.raises(InputError, match="a model needs counts of records, and this release counts partitions"):
        build_model(partitions)
    with pytest.raises(InputError, match=r"starts from a Release, got (tuple|dict); use privacy.release_tables"):
        build_model(given)


def test_exact_counts_have_their_law_in_every_chain():
    """The law by quadrature; 4.5 standard errors of a mean in each of 16 cells and 2 chains: false alarm 2e-4.

    A standard deviation of 3,000 draws has a standard error of 1.3 % with normal tails, a tenth is seven of them.
    """
    release = _release(laws=[TwoSidedGeometric(8.0)] * 3)
    model = build_model(release, n_classes=2, likelihood="cells")
    counts = np.concatenate([table.counts.ravel() for table in release.tables])
    mean, variance = counts + np.resize([-20.0, 0.0, 9.0], counts.size), np.resize([30.0, 90.0], counts.size)
    given = {"given_mean": mean, "given_variance": variance}
    posterior = xr.Dataset(
        {name: (("chain", "draw", "count"), np.broadcast_to(one, (2, 3500, 16))) for name, one in given.items()}
        | {"profiles": (("chain", "draw", "class", "level"), np.full((2, 3500, 2, 9), 0.5))},
        coords={"level": np.arange(9)},
    )
    data = {one.name: one.get_value() for one in model.data_vars}
    completed = model.complete_posterior(posterior, data, np.random.default_rng(1))
    x = np.linspace(-80, 80, 8001)[:, None]
    root = np.sqrt(release.tables[0].noise.variance / 2)
    law = np.exp(-0.5 * x**2 / variance - np.abs(counts - mean - x) / root)
    law /= law.sum(axis=0)
    centre = (law * x).sum(axis=0)
    spread = np.sqrt((law * (x - centre) ** 2).sum(axis=0))
    for drawn in completed["exact_counts"].to_numpy() - mean:
        assert np.abs((drawn.mean(axis=0) - centre) / spread * np.sqrt(len(drawn))).max() < 4.5
        assert np.abs(drawn.std(axis=0) / spread - 1.0).max() < 0.1
