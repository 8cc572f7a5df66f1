"""Sampling: the right posterior, the same draws from a seed, a whole trace or an error."""

import _thread
import json
import signal
import threading

import numpy as np
import pymc as pm
import pytest

from dpbayes.errors import IncompleteSamplingError, InputError
from dpbayes.inference import Verdict, sample
from dpbayes.inference.sampling import NutsSettings, check_complete
from dpbayes.inference.schema import SAMPLE_STATS, check

SHORT = NutsSettings(draws=50, tune=50, chains=2)


@pytest.fixture(scope="module")
def trace(normal_means):
    return sample(normal_means(), draws=1000, tune=500, chains=4, random_seed=3, progressbar=False, prior_draws=2000)


@pytest.fixture
def no_compiling(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("bad input reached the compiler")

    monkeypatch.setattr("dpbayes.inference.sampling.callbacks", refuse)


def test_posterior_is_the_conjugate_one(trace):
    # Exact: N(0.8 y, 0.8). Effective sizes are above 2,000, so a standard error is below 0.02; 0.09 is 4.5 of them.
    draws = trace["posterior"]["mean"]
    np.testing.assert_allclose(draws.mean(("chain", "draw")), 0.8 * np.array([1, 2, 6]), atol=0.09)
    np.testing.assert_allclose(draws.var(("chain", "draw")), 0.8, atol=0.12)


def test_predictives_have_their_exact_moments(trace):
    # Prior predictive variance 4 + 1; posterior predictive mean 0.8 y and variance 0.8 + 1. A variance from 2,000
    # draws has relative standard error 0.032; 15 % is above 4.5 of them.
    np.testing.assert_allclose(trace["prior_predictive"]["released"].var(("chain", "draw")), 5.0, rtol=0.15)
    np.testing.assert_allclose(trace["prior"]["mean"].var(("chain", "draw")), 4.0, rtol=0.15)
    again = trace["posterior_predictive"]["released"]
    np.testing.assert_allclose(again.mean(("chain", "draw")), [0.8, 1.6, 4.8], atol=0.12)
    np.testing.assert_allclose(again.var(("chain", "draw")), 1.8, rtol=0.15)


def test_trace_keeps_the_contract_and_carries_its_verdict(trace):
    check(trace)
    assert set(trace.children) == {
        "posterior", "sample_stats", "observed_data", "constant_data",
        "prior", "prior_predictive", "posterior_predictive",
    }  # fmt: skip
    assert set(trace["sample_stats"].data_vars) == set(SAMPLE_STATS) - {"log_likelihood", "member"}  # of many chains
    assert trace["posterior"]["mean"].dims == ("chain", "draw", "group")
    assert trace["posterior_predictive"]["group"].values.tolist() == ["a", "b", "c"]
    assert trace["observed_data"]["released"].values.tolist() == [1.0, 2.0, 6.0]
    assert trace["constant_data"]["prior_stddev"].item() == 2.0
    assert "released_counts" not in trace["constant_data"]
    verdict = Verdict.from_trace(trace)
    assert verdict.passed, verdict.summary()
    assert verdict.variables == ("mean", "total")
    assert trace.attrs["random_seed"] == "3"
    assert json.loads(trace.attrs["sampler_settings"])["target_accept"] == 0.9


def test_same_seed_same_draws_on_any_number_of_cores(compiled):
    def draws(seed, cores):
        settings = NutsSettings(draws=50, tune=50, chains=2, cores=cores)
        return compiled.fit(settings, random_seed=seed, progressbar=False)["posterior"]["mean"].values

    first = draws(5, 1)
    np.testing.assert_array_equal(draws(5, 2), first)
    assert not np.array_equal(draws(6, 1), first)


def test_a_seed_is_drawn_and_recorded_when_none_is_given(compiled):
    once, twice = (compiled.fit(SHORT, progressbar=False) for _ in range(2))
    assert once.attrs["random_seed"] != twice.attrs["random_seed"]
    again = compiled.fit(SHORT, random_seed=int(once.attrs["random_seed"]), progressbar=False)
    np.testing.assert_array_equal(again["posterior"]["mean"], once["posterior"]["mean"])


def test_an_interrupt_ends_sampling_as_an_interrupt(compiled):
    endless = NutsSettings(draws=3_000_000, tune=50, chains=2)
    # A worker process of the test runner ignores SIGINT; this test wants what Python does by itself.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.8, _thread.interrupt_main)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled.fit(endless, random_seed=1, progressbar=False)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, former)


def test_the_maximal_depth_is_reported(compiled):
    settings = NutsSettings(draws=100, tune=200, chains=2, max_treedepth=1)
    stats = compiled.fit(settings, random_seed=1, progressbar=False)["sample_stats"]
    assert stats["reached_max_treedepth"].mean() > 0.5


def test_a_missing_chain_is_incomplete(compiled):
    stats = compiled.fit(SHORT, random_seed=1, progressbar=False)["sample_stats"].to_dataset()
    check_complete(stats, SHORT)
    with pytest.raises(IncompleteSamplingError, match="50, 50 of 50"):
        check_complete(stats, NutsSettings(draws=50, chains=3))


def test_no_start_names_the_cause(compiled):
    with pytest.raises(IncompleteSamplingError, match="before its first draw") as caught:
        compiled.fit(SHORT, data={"prior_stddev": np.inf}, random_seed=1, progressbar=False)
    assert "unknown" not in str(caught.value)


def test_fewer_draws_than_chains_is_no_warning(compiled):
    tiny = compiled.fit(NutsSettings(draws=1, tune=20, chains=2), random_seed=1, progressbar=False)
    assert dict(tiny["posterior"].sizes)["draw"] == 1


@pytest.mark.parametrize("adaptation", ["draw_diag", "low_rank"])
def test_other_adaptations_find_the_same_posterior(compiled, adaptation):
    settings = NutsSettings(draws=1000, tune=300, chains=2, adaptation=adaptation)
    draws = compiled.fit(settings, random_seed=2, progressbar=False)["posterior"]["mean"]
    np.testing.assert_allclose(draws.mean(("chain", "draw")), [0.8, 1.6, 4.8], atol=0.15)  # 5 standard errors of .03


@pytest.mark.usefixtures("no_compiling")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draws": 0}, "draws must be a whole number from 1 to 1,000,000,000, got 0"),
        ({"draws": 10.5}, "draws must be a whole number"),
        ({"tune": 0}, "tune must be a whole number from 1 to 1,000,000,000, got 0"),
        ({"chains": True}, "chains"),
        ({"cores": 0}, "cores"),
        ({"max_treedepth": 0}, "max_treedepth"),
        ({"target_accept": 1.0}, "target_accept must lie strictly between 0 and 1"),
        ({"target_accept": float("nan")}, "target_accept"),
        ({"adaptation": "full"}, "adaptation must be 'diag', 'draw_diag' or 'low_rank'"),
        ({"random_seed": -1}, "random_seed"),
        ({"random_seed": 1.5}, "random_seed"),
        ({"random_seed": 2**63}, "random_seed"),
        ({"prior_draws": 0}, "prior_draws"),
    ],
)
def test_bad_settings_are_refused_before_compiling(normal_means, settings, message):
    with pytest.raises(InputError, match=message):
        sample(normal_means(), **settings)


@pytest.mark.usefixtures("no_compiling")
def test_models_that_nuts_cannot_sample_are_refused_before_compiling():
    with pm.Model() as empty:
        pm.Data("counts", [1.0])
    with pytest.raises(InputError, match="no free variable"):
        sample(empty, predictive=False)
    with pm.Model() as discrete:
        pm.Poisson("hidden", 3.0)
    with pytest.raises(InputError, match=r"discrete variables \['hidden'\]"):
        sample(discrete, predictive=False)
    with pm.Model() as mistaken:
        pm.Normal("mean")
    mistaken.convergence_variables = ("means",)
    with pytest.raises(InputError, match=r"\['means'\]"):
        sample(mistaken, predictive=False)


def test_progress_is_told_by_stage_and_share(compiled):
    told = []
    settings = NutsSettings(draws=200, tune=200, chains=2)
    compiled.fit(settings, random_seed=1, progress=lambda stage, share: told.append((stage, share)))
    assert {stage for stage, _ in told} == {"sampling"}
    assert told[-1][1] == 1.0 and all(0.0 <= share <= 1.0 for _, share in told)
