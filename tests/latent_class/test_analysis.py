"""The posterior shortcut: margins and regressions draw by draw, against enumeration and statsmodels."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
import xarray as xr

from dpbayes.data import Domain, marginals
from dpbayes.errors import InputError
from dpbayes.latent_class import analysis
from dpbayes.latent_class.analysis import (
    functional,
    margin_draws,
    regress,
    summarize,
    weighted_linear,
    weighted_logistic,
)
from dpbayes.latent_class.synthesis import combine, synthesize
from dpbayes.latent_class.zeros import Support
from dpbayes.privacy import NoisyTotal, Release, release_tables

DOMAIN = Domain.from_levels({"a": (0, 1), "b": ("x", "y", "z"), "c": (0, 1), "d": (0, 1)})
N = 5000


def _trace(rng, *, chains=2, draws=3, classes=3, spread=None):
    """Draws of a random mixture: far apart, or one mixture up to a relative `spread`."""
    shape = (chains, draws)

    def dirichlet(*outer, size):
        if spread is None:
            return rng.dirichlet(np.ones(size), size=(*shape, *outer))
        centre = rng.dirichlet(np.full(size, 3.0), size=outer)
        noise = rng.gamma(1 / spread**2 * centre, size=(*shape, *outer, size))
        return noise / noise.sum(axis=-1, keepdims=True)

    posterior = {"weights": (("chain", "draw", "class"), dirichlet(size=classes))}
    for attribute in DOMAIN:
        dims = ("chain", "draw", "class", attribute.name)
        posterior[f"profile_{attribute.name}"] = (dims, dirichlet(classes, size=attribute.size))
    coords = {attribute.name: list(attribute.levels) for attribute in DOMAIN}
    coords |= {"chain": range(chains), "draw": range(draws)}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior, coords=coords)})


def _full(trace):
    """Probabilities of the full table, shape (chain, draw, a, b, c, d)."""
    posterior = trace["posterior"].to_dataset()
    profiles = [posterior[f"profile_{name}"].to_numpy() for name in DOMAIN.names]
    return np.einsum("stk,stka,stkb,stkc,stkd->stabcd", posterior["weights"].to_numpy(), *profiles)


@pytest.fixture
def trace():
    return _trace(np.random.default_rng(3))


@pytest.mark.parametrize("names", ["b", "db", "acb", "cadb"])
def test_margins_are_those_of_the_enumerated_mixture(trace, names):
    draws = margin_draws(trace, list(names))
    assert draws.dims == ("chain", "draw", *names)
    assert draws["b"].values.tolist() == ["x", "y", "z"]
    np.testing.assert_allclose(draws, np.einsum(f"stabcd->st{names}", _full(trace)), atol=1e-15)


def test_blocks_of_draws_change_nothing(trace, monkeypatch):
    whole = margin_draws(trace, ["a", "b", "c"])
    monkeypatch.setattr(analysis, "_BLOCK", 1)
    np.testing.assert_array_equal(margin_draws(trace, ["a", "b", "c"]), whole)


def test_functionals_are_evaluated_draw_by_draw(trace):
    draws = margin_draws(trace, ["a", "c"])
    odds = functional(draws, lambda p: p[1, 1] * p[0, 0] / (p[0, 1] * p[1, 0]), name="odds ratio")
    table = np.einsum("stabcd->stac", _full(trace))
    expected = table[..., 1, 1] * table[..., 0, 0] / (table[..., 0, 1] * table[..., 1, 0])
    np.testing.assert_allclose(odds, expected)
    assert functional(draws, lambda p: p.sum(axis=0)).dims == ("chain", "draw", "value_dim_0")
    with pytest.raises(InputError, match="different shapes"):
        functional(draws, lambda p: np.zeros(int(p[0, 0] * 1e6) % 7))


def _cells_frame(*names):
    domain = DOMAIN.project(names)
    grid = np.indices(domain.shape).reshape(len(names), -1)
    return {name: np.array(domain[name].levels)[index] for name, index in zip(names, grid, strict=True)}


def test_logistic_coefficients_are_those_of_a_weighted_fit(trace):
    coefficients = regress(trace, "a ~ b + c + c:d")
    assert coefficients["term"].values.tolist() == ["Intercept", "b[T.y]", "b[T.z]", "c", "c:d"]
    cells = _cells_frame("a", "b", "c", "d")
    design = np.column_stack(
        [np.ones(24), cells["b"] == "y", cells["b"] == "z", cells["c"], cells["c"] * cells["d"]]
    ).astype(float)
    for chain, draw in np.ndindex(2, 3):
        weights = _full(trace)[chain, draw].ravel()
        fitted = sm.GLM(cells["a"], design, family=sm.families.Binomial(), freq_weights=weights).fit(tol=1e-12)
        np.testing.assert_allclose(coefficients[chain, draw], fitted.params, atol=1e-6)


def test_linear_coefficients_and_text_outcomes(trace):
    coefficients = regress(trace, '{b == "z"} ~ a * d', family="linear")
    cells = _cells_frame("a", "b", "d")
    design = np.column_stack([np.ones(12), cells["a"], cells["d"], cells["a"] * cells["d"]]).astype(float)
    weights = np.einsum("stabcd->stabd", _full(trace))
    for chain, draw in np.ndindex(2, 3):
        fitted = sm.WLS((cells["b"] == "z").astype(float), design, weights=weights[chain, draw].ravel()).fit()
        np.testing.assert_allclose(coefficients[chain, draw], fitted.params, atol=1e-9)


def _with_zeros(trace, *impossible):
    zeros = Support.of(DOMAIN, impossible).to_array()
    constant = xr.Dataset(
        {"structural_zeros": (("zero_part", "attribute"), zeros)}, coords={"attribute": list(DOMAIN.names)}
    )
    return xr.DataTree.from_dict({"posterior": trace["posterior"].to_dataset(), "constant_data": constant})


@pytest.mark.parametrize("target", ["population", "records"])
@pytest.mark.parametrize("family", ["logistic", "linear"])
@pytest.mark.parametrize(
    ("impossible", "formula", "collinear"),
    [({"a": 1, "b": "z"}, "c ~ a * b", r"a:b\[T.z\]"), ({"b": "z"}, "c ~ a + b", r"b\[T.z\]")],
)
def test_terms_that_structural_zeros_leave_unidentified_are_refused(
    with_records, family, target, impossible, formula, collinear
):
    trace, release, _, _ = with_records
    with pytest.raises(InputError, match=rf"the terms \['{collinear}'\] of .* collinear over the cells that can occur"):
        regress(_with_zeros(trace, impossible), formula, family=family, target=target, release=release, thin=400)


@pytest.mark.parametrize("target", ["population", "records"])
def test_impossible_cells_take_no_part_in_a_fit(with_records, target):
    """Without c = d = 1 the terms c and d are saturated: coefficients are differences of the groups' own means."""
    trace, release, _, _ = with_records
    options = {"target": target, "release": release, "random_seed": 1, "thin": 400}
    trace = _with_zeros(trace, {"c": 1, "d": 1})
    cells = margin_draws(trace, ["a", "c", "d"], whole=False, **options)
    share = (cells.sel(a=1) / cells.sum("a")).to_numpy()
    for family, link in (("linear", lambda p: p), ("logistic", lambda p: np.log(p / (1 - p)))):
        found = regress(trace, "a ~ c + d", family=family, **options)
        groups = link(share)
        baseline = groups[..., 0, 0]
        expected = np.stack([baseline, groups[..., 1, 0] - baseline, groups[..., 0, 1] - baseline], axis=-1)
        np.testing.assert_allclose(found, expected, atol=1e-7)


def test_weights_that_all_but_vanish_still_have_a_fit():
    """Log-odds of 1e-9 against .5 in one group: far from the start, and Newton gets there."""
    matrix = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    weights = np.array([[0.25, 0.25, 1e-9, 0.5], [0.25, 0.25, 0.25, 0.25], [0.5, 1e-12, 1e-12, 0.5]])
    found = weighted_logistic(weights, matrix, np.array([0.0, 1.0, 0.0, 1.0]))
    assert found[0, 1] == pytest.approx(np.log(0.5 / 1e-9), rel=1e-2)
    np.testing.assert_allclose(found[1], 0.0, atol=1e-12)
    assert np.all(np.abs(found[2]) > 15)
    np.testing.assert_allclose(weighted_linear(weights, matrix, matrix[:, 1])[:, 1], 1.0, atol=1e-9)


CODINGS = {
    "rare level": [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]],
    "rare baseline": [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]],
    "centred, in thousandths": [[1.0, -1e3], [1.0, -1e3], [1.0, 1e3], [1.0, 1e3]],
}


@pytest.mark.parametrize("rare", [1e-6, 1e-9, 1e-10, 1e-14, 1e-20])
@pytest.mark.parametrize("coding", CODINGS)
def test_the_slope_of_a_rare_group_does_not_depend_on_how_rare_it_is(coding, rare):
    """Log-odds log 3 and log 27, in closed form: a slope of log 9 = 2.197 between the groups."""
    matrix = np.array(CODINGS[coding])
    weights = np.array([[0.25 * (1 - rare), 0.75 * (1 - rare), rare / 28, 27 * rare / 28], [0.25] * 4])
    found = weighted_logistic(weights, matrix, np.array([0.0, 1.0, 0.0, 1.0])) @ matrix[[0, 2]].T
    np.testing.assert_allclose(found, [[np.log(3), np.log(27)], [0.0, 0.0]], atol=1e-9)
    shares = weighted_linear(weights, matrix, np.array([0.0, 1.0, 0.0, 1.0])) @ matrix[[0, 2]].T
    np.testing.assert_allclose(shares, [[0.75, 27 / 28], [0.5, 0.5]], atol=1e-9)


@pytest.mark.parametrize(
    "levels", [(2016, 2017, 2018, 2019, 2020), (100_000, 100_001, 100_003), (2_016_0101, 2_017_0101, 2_018_0101)]
)
def test_a_polynomial_of_levels_far_from_zero_is_that_of_the_centred_ones(levels):
    """The parabola of years: 2019 and 2020 in one part of 2,000, their squares in all but the last digits."""
    x, y = (axis.ravel().astype(float) for axis in np.meshgrid(levels, [0.0, 1.0], indexing="ij"))
    near = x - levels[1]
    powers, centred = (np.column_stack([np.ones_like(t), t, t**2]) for t in (x, near))
    weights = np.random.default_rng(2).dirichlet(np.ones(len(x)), size=3)
    # c0 + c1 (x - m) + c2 (x - m)^2 has the slope c1 - 2 c2 m at zero.
    for fit in (weighted_linear, weighted_logistic):
        expected = fit(weights, centred, y)
        found = fit(weights, powers, y)
        np.testing.assert_allclose(found[:, 2], expected[:, 2], rtol=1e-6)
        np.testing.assert_allclose(found[:, 1], expected[:, 1] - 2 * levels[1] * expected[:, 2], rtol=1e-6)


def test_terms_of_very_different_units_are_not_collinear():
    """A date as a number and its square: beside 4e14 a constant looks like nothing."""
    rng = np.random.default_rng(7)
    days = (20160101, 20170101, 20180101)
    posterior = {"weights": (("chain", "draw", "class"), rng.dirichlet(np.ones(2), size=(1, 2)))}
    for name, size in (("day", 3), ("c", 2)):
        posterior[f"profile_{name}"] = (("chain", "draw", "class", name), rng.dirichlet(np.ones(size), size=(1, 2, 2)))
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(posterior, coords={"day": list(days), "c": [0, 1]})})
    share = margin_draws(tree, ["day", "c"])
    share = (share.sel(c=1) / share.sum("c")).to_numpy()[0]
    found = regress(tree, "c ~ day + I(day ** 2)", family="linear")[0]
    np.testing.assert_allclose(found[:, 2], np.diff(share, n=2)[:, 0] / 2 / 10_000.0**2, rtol=1e-6)


def test_rare_cells_in_a_model_with_fewer_terms_than_cells():
    """Against statsmodels on the rare group alone, whose slope the common cells do not enter."""
    group, x, y = np.indices((2, 3, 2)).reshape(3, -1).astype(float)
    matrix = np.column_stack([np.ones(12), x, group, group * x])
    share = np.array([[1.0, 2.0], [3.0, 1.0], [1.0, 4.0]]).ravel()
    weights = np.concatenate([share / 12 * (1 - 1e-10), share[::-1] / 12 * 1e-10])
    found = weighted_logistic(weights[None], matrix, y)[0]
    rare = group == 1
    fitted = sm.GLM(y[rare], matrix[rare][:, :2], sm.families.Binomial(), freq_weights=share[::-1]).fit(tol=1e-14)
    np.testing.assert_allclose(found[:2] + found[2:], fitted.params, atol=1e-7)


@pytest.mark.parametrize("weight", [0.0, 1e-300])
def test_a_separated_outcome_is_refused(weight):
    matrix = np.array(CODINGS["rare level"])
    weights = np.array([[0.25, 0.25, weight, 0.5], [0.25, 0.25, 0.25, 0.25]])
    with pytest.raises(InputError, match="no finite solution in 1 of 2 draws"):
        weighted_logistic(weights, matrix, np.array([0.0, 1.0, 0.0, 1.0]))


def test_a_step_that_goes_too_far_is_shortened():
    """With log-odds of 0 to find, undamped steps of at most 5 go from 2.5 to -2.5 and back for ever."""
    matrix, weights, outcome = np.ones((2, 1)), np.array([[0.5, 0.5]]), np.array([0.0, 1.0])
    assert abs(2.5 + analysis._newton_step(np.array([[2.5]]), weights, matrix, outcome).item()) < 0.1


def _records(rng, p):
    table = rng.multinomial(N, p.ravel()).reshape(DOMAIN.shape)
    return {name: np.array(DOMAIN[name].levels)[np.repeat(axis.ravel(), table.ravel())]
            for name, axis in zip(DOMAIN.names, np.indices(DOMAIN.shape), strict=True)}, table  # fmt: skip


SETS = [("a", "b"), ("b", "c"), ("d", "c")]


@pytest.fixture
def with_records():
    """A trace whose draws are all one mixture and one confidential table, with its release."""
    rng = np.random.default_rng(5)
    one = _trace(rng, chains=1, draws=1)
    columns, table = _records(rng, _full(one)[0, 0])
    tables = marginals(pl.DataFrame(columns), SETS, domain=DOMAIN)
    release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(6))
    exact = np.concatenate([t.counts.ravel() for t in tables]).astype(float)
    posterior = one["posterior"].to_dataset().assign(exact_counts=(("chain", "draw", "count"), exact[None, None]))
    repeated = posterior.isel(draw=np.zeros(4000, dtype=int)).assign_coords(draw=range(4000))
    return xr.DataTree.from_dict({"posterior": repeated}), release, table, _full(one)[0, 0]


def test_records_shares_keep_what_was_released_and_vary_as_sampling_leaves_open(with_records):
    """Means against the normal law given the released margins, by enumeration; spreads within a quarter of it.

    4,000 draws: the standard error of a mean is 1.6 % of a standard deviation. Proportional fitting of a multinomial
    table is not that law where cells hold a handful of records, by up to a fifth of a standard deviation.
    """
    trace, release, _, p = with_records
    draws = margin_draws(trace, ["a", "b", "c"], target="records", release=release, random_seed=1, whole=False)[0] * N
    cells = np.array(list(np.ndindex(*DOMAIN.shape)))
    onto = np.array([np.all(cells[:, :3] == key, axis=1) for key in np.ndindex(DOMAIN.shape[:3])]).astype(float)
    known = np.array([np.all(cells[:, DOMAIN.axes(names)] == key, axis=1)
                      for names in SETS for key in np.ndindex(DOMAIN.project(names).shape)]).astype(float)  # fmt: skip
    sigma = N * (np.diag(p.ravel()) - np.outer(p, p))
    gain = onto @ sigma @ known.T @ np.linalg.pinv(known @ sigma @ known.T, rcond=1e-9)
    exact = trace["posterior"]["exact_counts"].to_numpy()[0, 0]
    mean = onto @ p.ravel() * N + gain @ (exact - N * known @ p.ravel())
    sd = np.sqrt(np.maximum(np.diag(onto @ sigma @ onto.T - gain @ known @ sigma @ onto.T), 0.0))
    drawn = draws.to_numpy().reshape(4000, -1)
    assert np.all(np.abs(drawn.mean(0) - mean) < 0.2 * sd + 1.0)
    assert np.all(np.abs(drawn.std(0) - sd) < 0.25 * sd + 0.5)
    totals = draws.sum("c").to_numpy().reshape(4000, -1)
    np.testing.assert_allclose(totals, np.broadcast_to(exact[: totals.shape[1]], totals.shape), atol=0.5)


def test_a_population_that_varies_lies_between_the_mixture_and_its_records(with_records):
    """4,000 draws of Dirichlet(kappa P + M): 5 standard errors of a mean, and a tenth of a standard deviation."""
    trace, release, _, p = with_records
    posterior = trace["posterior"].to_dataset()
    varied = posterior.assign(overdispersion=(("chain", "draw"), np.full((1, 4000), 3.0)))
    trace = xr.DataTree.from_dict({"posterior": varied})
    with pytest.raises(InputError, match=r"pass release=\.\.\., or build the model with overdispersion=False"):
        margin_draws(trace, ["a", "b"])
    kappa = (N - 1) / 3.0 - 1
    shapes = kappa * p.sum(axis=(2, 3)).ravel() + varied["exact_counts"].to_numpy()[0, 0, : p[:, :, 0, 0].size]
    drawn = margin_draws(trace, ["a", "b"], release=release, random_seed=1).to_numpy().reshape(4000, -1)
    mean = shapes / shapes.sum()
    sd = np.sqrt(mean * (1 - mean) / (shapes.sum() + 1))
    np.testing.assert_array_less(np.abs(drawn.mean(0) - mean), 5 * sd / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(0), sd, rtol=0.1)


def test_records_are_whole_and_may_be_none(with_records):
    trace, release, _, _ = with_records
    options = {"target": "records", "release": release, "random_seed": 1}
    whole = margin_draws(trace, ["a", "c", "d"], **options).to_numpy().reshape(-1, 8) * N
    real = margin_draws(trace, ["a", "c", "d"], **options, whole=False).to_numpy().reshape(-1, 8) * N
    np.testing.assert_allclose(whole, np.rint(whole), atol=1e-8)
    np.testing.assert_allclose(whole.sum(axis=1), N, atol=1e-8)
    assert np.abs(whole - real).max() < 1.0
    tables = analysis._whole_tables(np.array([[-3.0, 0.2, 9.8], [0.4, 0.4, 4.2]]), np.array([10.0, 5.0]))
    np.testing.assert_array_equal(tables, [[0, 0, 10], [1, 0, 4]])


def test_a_released_margin_of_the_records_is_known(with_records):
    """No more is added to a margin that the effects determine than the likelihood's own slack."""
    trace, release, table, _ = with_records
    draws = margin_draws(trace, ["b", "a"], target="records", release=release, random_seed=2)
    true = table.sum(axis=(2, 3)).T / N
    noise = release.tables[0].noise.variance ** 0.5 / N
    assert np.abs(draws.mean(("chain", "draw")) - true).max() < 0.2 * noise
    assert draws.std(("chain", "draw")).max() < 0.2 * noise
    population = margin_draws(trace, ["b", "a"])
    assert np.abs(population.mean(("chain", "draw")) - true).max() > np.abs(draws.mean(("chain", "draw")) - true).max()


def test_regression_on_the_records_recovers_theirs(with_records):
    """Between attributes of one released table, the coefficients are those of the confidential records."""
    trace, release, table, _ = with_records
    coefficients = regress(trace, "c ~ d", target="records", release=release, random_seed=3)
    cells = table.sum(axis=(0, 1)).astype(float)
    slope = np.log(cells[1, 1] * cells[0, 0] / (cells[0, 1] * cells[1, 0]))
    summary = summarize(coefficients.sel(term="d"))
    assert summary["mean"].item() == pytest.approx(slope, abs=0.1)
    assert summary["stddev"].item() < 0.1


def test_the_shortcut_and_the_combining_rule_agree():
    """Many large synthetic data sets say what the draws say: the same mean, and a standard error of the same size.

    T has relative standard error about sqrt(2 / 199) = 10 % from 200 data sets; 4 of them.
    """
    trace = _trace(np.random.default_rng(8), chains=1, draws=200, spread=0.15)
    frames = synthesize(trace, n_datasets=200, n_rows=5000, random_seed=4)

    def linear(frame):
        x = np.column_stack([np.ones(len(frame)), frame["d"]]).astype(float)
        return sm.OLS(frame["c"].to_numpy().astype(float), x).fit()

    combined = combine(frames, linear, n=5000)
    shortcut = summarize(regress(trace, "c ~ d", family="linear"))
    stderr = np.sqrt(combined.variance)
    assert np.all(np.abs(combined.estimate - shortcut["mean"].to_numpy()) < 0.25 * stderr)
    np.testing.assert_allclose(stderr, shortcut["stddev"], rtol=0.4)


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("a ~ 0", {}, "empty"),
        ("a ~ (b", {}, "parse"),
        ("a + b", {}, "no outcome"),
        ("a ~ zz", {}, r"names \['zz'\]"),
        ("b ~ a", {}, "write a comparison"),
        ("a ~ c + I(2 * c)", {}, "collinear"),
        ("a ~ c", {"family": "probit"}, "'probit'"),
        ("{2 * a} ~ c", {}, "lies between 0 and 1"),
        ("a ~ c", {"target": "both"}, "'both'"),
        ("a ~ c", {"target": "records"}, "needs the release"),
    ],
)
def test_bad_requests_are_refused(trace, formula, options, message):
    with pytest.raises(InputError, match=message):
        regress(trace, formula, **options)


def test_too_many_cells_are_refused(trace, monkeypatch):
    monkeypatch.setattr(analysis, "MAX_CELLS", 10)
    with pytest.raises(InputError, match="12 cells, more than the 10"):
        margin_draws(trace, ["a", "b", "d"])


def test_too_many_draws_are_refused_before_they_are_made(with_records, monkeypatch):
    """4,000 draws: of 4 cells."""
    trace, _, _, _ = with_records
    monkeypatch.setattr(analysis, "MAX_NUMBERS", 8_000)
    monkeypatch.setattr(analysis.Mixture, "of", lambda *_: pytest.fail("the draws were read"))
    with pytest.raises(InputError, match=r"4 cells of 4,000 draws are 16,000 numbers.*pass thin=2,"):
        margin_draws(trace, ["a", "c"])
    with pytest.raises(InputError, match=r"4 cells of 1,334 draws are 5,336 numbers.*pass thin=6,"):
        monkeypatch.setattr(analysis, "MAX_NUMBERS", 5_000)
        margin_draws(trace, ["a", "c"], thin=3)


def test_thinned_draws_are_every_so_many_th_of_each_chain(trace):
    every = margin_draws(trace, ["a", "c"])
    xr.testing.assert_allclose(margin_draws(trace, ["a", "c"], thin=2), every.isel(draw=[0, 2]), rtol=1e-12)
    assert regress(trace, "a ~ c", thin=3).sizes == {"chain": 2, "draw": 1, "term": 2}
    for thin in (0, 1.5, True):
        with pytest.raises(InputError, match="thin must be a whole number"):
            margin_draws(trace, ["a", "c"], thin=thin)


def test_another_release_than_the_fitted_one_is_refused(with_records):
    """Other counts, of tables as large; and another number of records, or a public one in place of a noisy one."""
    trace, release, _, _ = with_records
    noisy = replace(release, adjacency="add-remove", n=NoisyTotal(float(N), release.tables[0].noise, 1.0, None))
    counts = np.concatenate([table.counts.ravel() for table in release.tables]).astype(float)
    posterior = trace["posterior"].to_dataset().isel(draw=slice(4))
    posterior = posterior.assign(n=(("chain", "draw"), np.full((1, 4), float(N))))
    observed = {"released": ("count", counts), "released_n": ("released_n_dim_0", [float(N)])}
    fitted = xr.DataTree.from_dict({"posterior": posterior, "observed_data": xr.Dataset(observed)})
    options = {"target": "records", "random_seed": 1}
    assert margin_draws(fitted, ["a"], release=noisy, **options).sizes["draw"] == 4
    first = release.tables[0]
    moved = replace(noisy, tables=(replace(first, counts=first.counts + 1), *release.tables[1:]))
    with pytest.raises(InputError, match=r"not the one that this trace was fitted to: its counts differ.*'released';"):
        regress(fitted, "a ~ c", release=moved, **options)
    for other in (release, replace(noisy, n=replace(noisy.n, value=4711.0))):
        with pytest.raises(InputError, match=r"its number of records differs.*'released_n'; pass the release"):
            margin_draws(fitted, ["a"], release=other, **options)


def test_summaries_refuse_a_probability_out_of_range():
    with pytest.raises(InputError, match="prob"):
        summarize(xr.DataArray(np.zeros((1, 3)), dims=("chain", "draw")), prob=0.0)


def test_records_of_an_unknown_number_use_the_draws_of_n(with_records):
    """With n drawn too, the released margin's shares are the exact counts over the drawn n."""
    trace, release, table, _ = with_records
    drawn = np.linspace(N, 1.02 * N, 4000)[None]
    scaled = trace["posterior"].to_dataset()
    scaled = scaled.assign(n=(("chain", "draw"), drawn), exact_counts=scaled["exact_counts"] * drawn[..., None] / N)
    noisy = NoisyTotal(float(N), release.tables[0].noise, 1.0, None)
    added = Release(release.domain, release.tables, "add-remove", noisy, "simulation")
    tree = xr.DataTree.from_dict({"posterior": scaled})
    draws = margin_draws(tree, ["a", "b"], target="records", release=added, random_seed=2)
    noise = release.tables[0].noise.variance ** 0.5 / N
    assert np.abs(draws.mean(("chain", "draw")) - table.sum(axis=(2, 3)) / N).max() < 0.2 * noise


def test_a_draw_of_less_than_half_a_record_is_a_table_of_one(with_records):
    """A noisy number of records leaves draws of n that round to zero: no share of nothing is a share."""
    trace, release, _, _ = with_records
    posterior = trace["posterior"].to_dataset().isel(draw=slice(4))
    drawn = np.array([[0.2, 0.49, 1.2, float(N)]])
    scaled = posterior["exact_counts"] * drawn[..., None] / N
    tree = xr.DataTree.from_dict({"posterior": posterior.assign(n=(("chain", "draw"), drawn), exact_counts=scaled)})
    noisy = NoisyTotal(1.0, release.tables[0].noise, 1.0, None)
    added = Release(release.domain, release.tables, "add-remove", noisy, "simulation")
    draws = margin_draws(tree, ["a", "b"], target="records", release=added, random_seed=2)
    np.testing.assert_allclose(draws.sum(("a", "b")), 1.0)
    assert np.array_equal(draws[0, :3].max(("a", "b")), np.ones(3))
