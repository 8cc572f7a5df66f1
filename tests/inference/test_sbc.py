"""Calibration studies: a right model passes, a wrong one fails, a stopped study goes on, failures stay visible."""

import json
from itertools import product

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import binom, multinomial, norm

from dpbayes.errors import DamagedFileError, ExistingRunError, InputError
from dpbayes.inference import sbc
from dpbayes.inference.sampling import NutsSettings
from dpbayes.inference.sbc import (
    _band,
    coverage,
    plot_ranks,
    prior_simulator,
    ranks_among,
    simulate_and_rank,
    uniformity,
)

QUICK = NutsSettings(draws=150, tune=150, chains=2, cores=1)


def continuous(noise_stddev):
    """Simulate the model below by hand, with a noise of one's own."""

    def simulate(seed):
        rng = np.random.default_rng(seed)
        mean = rng.normal(0, 2, size=3)
        return {"mean": mean, "total": mean.sum()}, {"values": rng.normal(mean, noise_stddev)}

    return simulate


def build():
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        values = pm.Data("values", np.zeros(3), dims="group")
        mean = pm.Normal("mean", 0.0, 2.0, dims="group")
        pm.Deterministic("total", mean.sum())
        pm.Normal("released", mean, 1.0, observed=values, dims="group")
    return model


@pytest.fixture(scope="module")
def program():
    return sbc.compile_model(build())


@pytest.fixture
def study(monkeypatch, program):
    compilations = []

    def served(model):
        compilations.append(model)
        return program

    monkeypatch.setattr(sbc, "compile_model", served)

    def run(n_simulations=40, **options):
        given = {"random_seed": 1, "settings": QUICK, "progressbar": False, "n_ranks": 99} | options
        return simulate_and_rank(build, n_simulations=n_simulations, **given)

    run.compilations = compilations
    return run


def fake_study(pit, n_ranks=99):
    dims = ("simulation", "cell")[: np.ndim(pit)]
    tree = xr.DataTree.from_dict({"prior_sbc": xr.Dataset({"p": (dims, pit)})})
    tree.attrs["n_ranks"] = n_ranks
    return tree


def uniform_pit(rng, shape, n_ranks=99):
    return (rng.integers(0, n_ranks + 1, size=shape) + 0.5) / (n_ranks + 1)


def test_a_right_model_is_calibrated(study):
    result = study()
    # False alarm: four quantities at 0.001 each, 0.4 %; the seed is fixed.
    assert min(uniformity(result).values()) > 0.001
    assert result["prior_sbc"]["mean"].dims == ("simulation", "group")
    assert result["prior_sbc"]["group"].values.tolist() == ["a", "b", "c"]
    assert bool(result["fit"]["passed"].all())
    assert len(study.compilations) == 1
    np.testing.assert_allclose(result["truth"]["total"], result["truth"]["mean"].sum("group"))


def test_a_wrong_model_fails(study):
    # Noise of stddev 2 where the model says 1: errors 1.84 posterior standard deviations wide.
    result = study(simulate=continuous(2.0))
    assert max(uniformity(result)[f"mean[group={g}]"] for g in "abc") < 0.001
    assert max(coverage(result).values()) < 0.9
    # Nor does a bias pass.
    biased = study(25, simulate=lambda seed: _shifted(continuous(1.0)(seed)))
    assert max(uniformity(biased).values()) < 0.001


def _shifted(simulated):
    truth, data = simulated
    return truth, {"values": data["values"] + 1.5}


def test_own_prior_and_simulator_by_hand_agree(study):
    own, by_hand = study(30), study(30, simulate=continuous(1.0))
    for result in (own, by_hand):
        assert min(uniformity(result).values()) > 0.001
        spread = result["truth"]["mean"].std().item()
        assert spread == pytest.approx(2.0, abs=0.6)  # 90 values: relative standard error 0.075; 4 of them


def test_a_study_is_resumed_and_extended(study, tmp_path):
    whole = study(6)
    first = study(3, folder=tmp_path, label="toy")
    (tmp_path / "simulation_000001.npz").unlink()
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("simulation_*")}
    again = study(6, folder=tmp_path, label="toy")
    assert again["prior_sbc"].to_dataset().identical(whole["prior_sbc"].to_dataset())
    assert first["prior_sbc"].to_dataset().identical(whole["prior_sbc"].to_dataset().isel(simulation=slice(0, 3)))
    assert all((tmp_path / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    assert len(list(tmp_path.iterdir())) == 7
    finished = len(study.compilations)
    study(6, folder=tmp_path, label="toy")
    assert len(study.compilations) == finished  # nothing left to do, nothing compiled


def test_a_folder_of_something_else_is_left_alone(study, tmp_path):
    study(1, folder=tmp_path / "a", label="toy")
    for change in ({"label": "other"}, {"random_seed": 2}, {"n_ranks": 50}, {"var_names": ["mean"]}):
        with pytest.raises(ExistingRunError, match="another study"):
            study(1, folder=tmp_path / "a", **{"label": "toy"} | change)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(ExistingRunError, match="something else"):
        study(1, folder=tmp_path / "b")
    assert json.loads((tmp_path / "a" / "study.json").read_text())["label"] == "toy"
    (tmp_path / "a" / "simulation_000000.npz").write_bytes(b"half")
    with pytest.raises(DamagedFileError, match="simulation_000000"):
        study(1, folder=tmp_path / "a", label="toy")


def test_fits_that_fail_are_recorded_not_dropped(study):
    def sometimes(seed):
        truth, data = continuous(1.0)(seed)
        broken = seed % 2 == 0
        return truth, {"values": np.full(3, np.inf) if broken else data["values"]}

    result = study(8, simulate=sometimes)
    broken = np.isnan(result["fit"]["rhat"].values)
    assert 0 < broken.sum() < 8
    assert not result["fit"]["passed"].values[broken].any()
    assert np.isnan(result["prior_sbc"]["mean"].values[broken]).all()
    assert np.isfinite(result["prior_sbc"]["mean"].values[~broken]).all()
    assert set(uniformity(result).values()) == {0.0}
    assert max(coverage(result).values()) <= 1 - broken.mean()


def test_a_check_that_is_missed_keeps_its_ranks(study):
    result = study(4, rhat_max=1.0)
    assert not result["fit"]["passed"].values.all()
    assert np.isfinite(result["prior_sbc"]["mean"].values).all()


def test_a_simulation_depends_on_its_number_alone(study):
    assert study(2)["truth"].to_dataset().identical(study(4)["truth"].to_dataset().isel(simulation=slice(0, 2)))
    assert not np.array_equal(study(2)["truth"]["mean"], study(2, random_seed=9)["truth"]["mean"])


def test_a_prior_that_looks_at_its_data_is_refused():
    with pm.Model() as model:
        values = pm.Data("values", np.zeros(2))
        mean = pm.Normal("mean", values.mean(), 1.0)
        pm.Normal("released", mean, 1.0, observed=values)
    with pytest.raises(InputError, match="prior depends on the observed values"):
        prior_simulator(model, ["mean"])
    assert model["values"].get_value().tolist() == [0.0, 0.0]


def test_a_prior_simulator_draws_what_the_model_states():
    simulate = prior_simulator(build(), ["mean", "total"])
    truth, data = zip(*[simulate(seed) for seed in range(400)], strict=True)
    residual = np.array([d["values"] - t["mean"] for t, d in zip(truth, data, strict=True)])
    assert residual.std() == pytest.approx(1.0, abs=0.09)  # 1,200 values: standard error .02
    assert np.std([t["mean"] for t in truth]) == pytest.approx(2.0, abs=0.18)
    np.testing.assert_array_equal(simulate(3)[1]["values"], data[3]["values"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_simulations": 0}, "n_simulations"),
        ({"n_ranks": 301}, "from 1 to 300, got 301; there are chains x draws"),
        ({"random_seed": -1}, "random_seed"),
        ({"n_jobs": 0}, "n_jobs must be a whole number from 1"),
        ({"n_jobs": 10**6}, "n_jobs must be .* got 1000000; -1 takes every processor"),
        ({"var_names": ["means"]}, r"does not record \['means'\]"),
        ({"simulate": lambda seed: ({}, {})}, "no true value"),
        ({"simulate": lambda seed: ({"mean": 0.0, "total": 0.0}, {})}, r"shape \(\)"),
    ],
)
def test_bad_arguments_are_refused(study, options, message):
    with pytest.raises(InputError, match=message):
        study(**{"n_simulations": 1} | options)


def test_a_model_with_its_data_built_in_is_refused():
    def fixed():
        with pm.Model() as model:
            pm.Normal("released", pm.Normal("mean"), 1.0, observed=[1.0])
        return model

    with pytest.raises(InputError, match=r"pm\.Data"):
        simulate_and_rank(fixed, random_seed=1)


def test_ties_take_every_rank_alike():
    rng = np.random.default_rng(5)
    ranks = [int(ranks_among(np.array(0.0), np.zeros((2, 10)), n_ranks=19, rng=rng)) for _ in range(4000)]
    # 20 bins of 200: a count's standard deviation is 13.8; 5 of them, 20 bins: false alarm 1e-5.
    assert abs(np.bincount(ranks, minlength=20) - 200).max() < 69


def test_uniformity_keeps_its_level():
    # 1,000 studies of uniform ranks: rejections at 5 % have standard deviation 0.7 %, at 50 % 1.6 %.
    pit = uniform_pit(np.random.default_rng(6), (50, 1000))
    p_values = np.array(list(uniformity(fake_study(pit)).values()))
    assert (p_values <= 0.05).mean() == pytest.approx(0.05, abs=0.025)
    assert (p_values <= 0.5).mean() <= 0.55


@pytest.mark.parametrize(("simulations", "bins"), [(4, 3), (6, 4), (3, 5)])
def test_p_values_are_those_of_all_studies_enumerated(simulations, bins):
    """Every way in which the ranks may fall, with its multinomial probability."""
    edges = np.arange(1, bins) / bins
    ways = [way for way in product(range(simulations + 1), repeat=bins) if sum(way) == simulations]
    weights = multinomial.pmf(ways, simulations, np.full(bins, 1 / bins))
    below = np.cumsum(ways, axis=1)[:, :-1]
    tails = 2 * np.minimum(binom.cdf(below, simulations, edges), binom.sf(below - 1, simulations, edges))
    statistics = np.minimum(tails.min(axis=1), 1.0)
    for way, statistic in zip(ways, statistics, strict=True):
        study = fake_study((np.repeat(np.arange(bins), way) + 0.5) / bins, n_ranks=bins - 1)
        expected = weights[statistics <= statistic * (1 + 1e-9)].sum()
        assert uniformity(study)["p"] == pytest.approx(expected, rel=1e-9)


def test_p_values_have_no_floor():
    """With q quantities the smallest is held to 1 % / q: a p-value that cannot be small finds no fault with many."""
    ranks = np.random.default_rng(8).integers(0, 50, size=200)
    # Half of uniform ranks lie below one half: for all 200 to do so has a probability of 2^-200.
    assert 2.0**-210 < uniformity(fake_study((ranks + 0.5) / 100))["p"] < 2.0**-190


def test_the_band_is_the_test():
    rng = np.random.default_rng(7)
    lower, upper = _band(80, 100, 0.95)
    grid = np.arange(101) / 100
    for pit in uniform_pit(rng, (200, 80)) ** rng.choice([1.0, 1.2], size=(200, 1)):
        pit = (np.floor(pit * 100) + 0.5) / 100
        ecdf = (pit[:, None] < grid).mean(axis=0)
        inside = ((ecdf >= lower - 1e-12) & (ecdf <= upper + 1e-12)).all()
        assert inside == (uniformity(fake_study(pit))["p"] > 0.05)


def test_a_band_of_few_bins_holds_its_probability():
    """The statistic of thirty simulations and two ranks has few values: the band takes the wider side."""
    lower, upper = _band(30, 2, 0.95)
    counts = np.arange(31)
    inside = (counts / 30 >= lower[1]) & (counts / 30 <= upper[1])
    assert 0.95 <= binom.pmf(counts[inside], 30, 0.5).sum() < 0.98


def test_raw_ranks_scaled_by_their_maximum_would_hide_a_bias():
    # Why PIT values are stored: half the ranks' range looks uniform once divided by the largest observed.
    ranks = np.random.default_rng(8).integers(0, 50, size=200)
    assert uniformity(fake_study((ranks + 0.5) / 100))["p"] < 0.001
    assert uniformity(fake_study((ranks + 0.5) / (ranks.max() + 1)))["p"] > 0.01


def test_coverage_counts_misses_and_missing():
    pit = np.array([0.01, 0.03, 0.5, 0.97, 0.99, np.nan])
    assert coverage(fake_study(pit), prob=0.95) == {"p": pytest.approx(3 / 6)}
    with pytest.raises(InputError, match="prob"):
        coverage(fake_study(pit), prob=1.0)
    with pytest.raises(InputError, match="prior_sbc"):
        coverage(xr.DataTree())


@pytest.mark.parametrize("bins", [2, 3, 10, 11, 100])
@pytest.mark.parametrize("prob", [0.02, 0.05, 0.3, 0.5, 0.95, 0.999])
def test_uniform_ranks_are_covered_with_the_nominal_probability(bins, prob):
    """Also where the whole interval lies within one rank's."""
    study = fake_study((np.arange(bins) + 0.5) / bins, n_ranks=bins - 1)
    assert coverage(study, prob=prob)["p"] == pytest.approx(prob, rel=1e-12)


@pytest.mark.parametrize(("spread", "sign"), [(0.5, 1), (2.0, -1)])
def test_narrow_posteriors_rise_above_on_the_left(spread, sign):
    """How the plot is read: with posteriors half as wide as they should be the line is high on the left, low right."""
    rng = np.random.default_rng(10)
    z = norm.cdf(rng.normal(size=400) / spread)
    study = fake_study((np.floor(100 * z) + 0.5) / 100)
    line = plot_ranks(study).axes[0].lines[0].get_ydata()
    assert sign * line[20] > 0.05 and sign * line[80] < -0.05


def test_plots_draw_a_panel_a_variable_and_arviz_reads_the_study():
    study = fake_study(uniform_pit(np.random.default_rng(9), (40, 2)))
    study["prior_sbc"] = study["prior_sbc"].to_dataset().assign_coords(cell=["a", "b"])
    figure = plot_ranks(study)
    assert len(figure.axes) == 1
    assert len(figure.axes[0].lines) == 3  # two cells and the zero line
    collection = az.plot_ecdf_pit(
        study, method="prit_c", envelope_prob=0.95, sample_dims="simulation", backend="matplotlib"
    )
    assert "figure" in collection.viz
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.mark.slow
def test_processes_give_the_same_study(tmp_path):
    alone = simulate_and_rank(build, n_simulations=4, random_seed=3, settings=QUICK, progressbar=False)
    together = simulate_and_rank(
        build, n_simulations=4, random_seed=3, settings=QUICK, n_jobs=2, folder=tmp_path, progressbar=True
    )
    assert together["prior_sbc"].to_dataset().identical(alone["prior_sbc"].to_dataset())
    assert len(list(tmp_path.glob("simulation_*.npz"))) == 4


@pytest.mark.parametrize("names", [[], ["q"]])
def test_variables_that_were_not_ranked_are_refused(names):
    study = fake_study(uniform_pit(np.random.default_rng(9), 20))
    with pytest.raises(InputError, match=r"var_names must be some of \['p'\]"):
        plot_ranks(study, var_names=names)


def test_quantities_of_one_label_are_judged_apart():
    pit = (np.stack([np.arange(100), np.full(100, 3), np.arange(100)], axis=1) + 0.5) / 100
    study = fake_study(pit)
    dataset = xr.Dataset({"share": (("simulation", "city"), pit)}, {"city": ["Ulm", "Bonn", "Ulm"]})
    study["prior_sbc"] = xr.DataTree(dataset)
    p_values = uniformity(study)
    assert list(p_values) == list(coverage(study)) == ["share[city=Ulm]", "share[city=Bonn]", "share[city=Ulm (2)]"]
    assert [p > 0.01 for p in p_values.values()] == [True, False, True]
