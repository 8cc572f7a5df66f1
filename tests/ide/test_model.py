import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta, dirichlet, laplace

from dpbayes.data import Domain, marginals
from dpbayes.data.datasets import two_level_population
from dpbayes.errors import InputError
from dpbayes.ide import Prior
from dpbayes.ide import model as ide_model
from dpbayes.privacy import Laplace, NoisyTable, Release, release_tables

ONE = Domain.from_levels({"x": (0, 1)})
LAW = Laplace(6.0)
TWO = Domain.from_levels({"x": (0, 1), "y": (0, 1, 2)})


def release_of(domain, *tables, law=LAW, n=100):
    noisy = tuple(NoisyTable(domain.project(names), np.array(counts), law, 2.0, None) for names, counts in tables)
    return Release(domain, noisy, "replace-one", n, "simulation")


def test_log_density_is_dirichlet_times_the_noise_law():
    prior = Prior.full(TWO, [[1, 2, 3], [4, 5, 6]])
    counts = [[4, 15, 21], [30, 9, 27]]
    model = ide_model.build_model(prior, release_of(TWO, (["x", "y"], counts)), strength=30.0)
    share = np.random.default_rng(1).dirichlet(np.ones(6))
    value = model.rvs_to_values[model["share"]]
    point = {value.name: model.rvs_to_transforms[model["share"]].forward(share).eval()}
    parts = model.compile_fn(model.logp(jacobian=False, sum=False))(point)
    expected = dirichlet.logpdf(share, 30.0 * prior.weights)
    noise = laplace.logpdf(np.ravel(counts), 100 * share, 6.0).sum()
    assert sum(np.sum(part) for part in parts) == pytest.approx(expected + noise, abs=1e-8)


def test_posterior_of_one_share_by_quadrature():
    release = release_of(ONE, (["x"], [35.0, 70.0]))
    model = ide_model.build_model(Prior.full(ONE, [1, 3]), release, strength=40.0)
    name = model.rvs_to_values[model["share"]].name
    grid = np.linspace(-3, 1, 2001)
    logp, backward = model.compile_logp(), model.rvs_to_transforms[model["share"]].backward
    density = np.exp([logp({name: np.array([z])}) for z in grid])
    shares = 1 / (1 + np.exp(-2 * grid))  # the simplex transform of two parts
    assert backward(grid[:1]).eval()[0] == pytest.approx(shares[0])
    ours = np.sum(density * shares) / np.sum(density)

    def weight(q):
        return beta.pdf(q, 10, 30) * np.exp(-abs(35 - 100 * q) / 6 - abs(70 - 100 * (1 - q)) / 6)

    exact = quad(lambda q: q * weight(q), 0, 1, points=[0.3, 0.35])[0] / quad(weight, 0, 1, points=[0.3, 0.35])[0]
    assert ours == pytest.approx(exact, abs=1e-6)


def test_rows_that_no_table_tells_apart_are_merged():
    prior = Prior.full(TWO, np.arange(6).reshape(2, 3))
    merged = ide_model.merge_rows(prior, ["y"])
    np.testing.assert_allclose(merged.weights, np.array([3, 5, 7]) / 15)
    model = ide_model.build_model(prior, release_of(TWO, (["y"], [10, 20, 70])), strength=30.0)
    assert model.dim_lengths["row"].eval() == 3


def test_too_large_a_support_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(ide_model, "MAX_ROWS", 5)
    with pytest.raises(InputError, match=r"6 distinct rows"):
        ide_model.build_model(Prior.full(TWO), release_of(TWO, (["x", "y"], [[1, 2, 3], [4, 5, 6]])))
    with pytest.raises(InputError, match="strength"):
        ide_model.build_model(Prior.full(TWO), release_of(TWO, (["x"], [1, 2])), strength="none")


@pytest.mark.slow
def test_intervals_cover_the_exact_margins_of_a_drifted_population():
    from dpbayes.inference import Verdict, sample

    population = two_level_population(n_units=1, groups_per_unit=1, group_size=3000, seed=2)
    domain = population.domain.project(["age", "sex", "household", "tenure"])
    tables = marginals(population.private, [(name,) for name in domain.names], domain=domain)
    release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(1))
    model = ide_model.build_model(Prior.from_frame(population.public, domain), release)
    trace = sample(
        model, draws=500, tune=500, chains=2, random_seed=1, progressbar=False, **ide_model.sampler_defaults()
    )
    assert Verdict.from_json(trace.attrs["convergence"]).passed
    low, high = trace["posterior"]["margin"].quantile([0.025, 0.975], ("chain", "draw")).values
    exact = np.concatenate([table.counts for table in tables]) / tables[0].total
    # 16 margins at 95 %: fewer than 13 covered has a probability below 1 % even if all were independent.
    assert np.sum((low <= exact) & (exact <= high)) >= 13


def test_package_model_is_the_plain_statement():
    """models/prior_aware.py, read from its file, with rows that all tables tell apart."""
    path = Path(__file__).parents[2] / "models" / "prior_aware.py"
    spec = importlib.util.spec_from_file_location("prior_aware", path)
    statement = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(statement)

    prior = Prior.full(TWO, [[1, 2, 3], [4, 5, 6]])
    release = release_of(TWO, (["x", "y"], [[10, 5, 20], [30, 25, 14]]), (["y"], [45.0, 31.0, 40.0]))
    ours = ide_model.build_model(prior, release, strength=30.0)
    plain = statement.prior_aware(prior, release, 30.0)
    for seed in range(3):
        share = np.random.default_rng(seed).dirichlet(np.ones(6))
        values = []
        for model, name in ((ours, "share"), (plain, "q")):
            variable = model[name]
            point = {model.rvs_to_values[variable].name: model.rvs_to_transforms[variable].forward(share).eval()}
            values.append(float(model.compile_logp()(point)))
        # pm.Laplace takes the logarithm of a constant scale in single precision, nine times here.
        assert values[0] == pytest.approx(values[1], abs=9 * 6e-8 * 2.5)
