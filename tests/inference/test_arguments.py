"""Bad and odd arguments of sampling, diagnostics and the latent class functions."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from dpbayes.data import Domain, Marginal
from dpbayes.errors import InputError
from dpbayes.inference import check_convergence, sample, summarize
from dpbayes.latent_class import build_model, margin_draws, synthesize
from dpbayes.latent_class import summarize as summarize_draws
from dpbayes.privacy import release_tables

HUGE = 10**5000
DRAWS = ("chain", "draw")
TRACE = xr.DataTree.from_dict(
    {"posterior": xr.Dataset({"theta": (DRAWS, np.random.default_rng(1).normal(size=(4, 100)))})}
)
DOMAIN = Domain.from_levels({"age": (0, 1), "sex": ("f", "m")})
RELEASE = release_tables([Marginal(DOMAIN, [[10, 20], [30, 40]])], epsilon=1.0, rng=np.random.default_rng(1))


@pytest.fixture(scope="module")
def model():
    with pm.Model() as built:
        pm.Normal("x")
    return built


def test_one_variable_may_be_named_alone():
    assert list(summarize(TRACE, var_names="theta").table.index) == ["theta"]
    assert check_convergence(TRACE, var_names="theta").variables == ("theta",)


@pytest.mark.parametrize(
    "call",
    [
        lambda: summarize(TRACE["posterior"].to_dataset()),
        lambda: summarize("trace.nc"),
        lambda: summarize(TRACE, prob="most"),
        lambda: summarize(TRACE, var_names=3),
        lambda: summarize(TRACE, var_names=[3]),
        lambda: check_convergence(None),
        lambda: summarize_draws(np.zeros((2, 10))),
        lambda: summarize_draws(xr.DataArray(np.zeros((2, 10)), dims=DRAWS), prob=None),
        lambda: synthesize(TRACE["posterior"].to_dataset(), n_datasets=1, n_rows=1, random_seed=1),
        lambda: margin_draws(None, ["age"]),
        lambda: margin_draws(xr.DataTree(), ["age"]),
        lambda: build_model(RELEASE, margins=3),
        lambda: build_model(RELEASE, margins=["age"]),
        lambda: build_model(RELEASE, impossible=3),
        lambda: build_model(RELEASE, concentration=HUGE),
        lambda: build_model(RELEASE, profile_prior=HUGE),
    ],
)
def test_a_bad_argument_is_one_clear_error(call):
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize(
    "bad",
    [
        {"draws": HUGE},
        {"tune": 2.5},
        {"target_accept": "high"},
        {"target_accept": None},
        {"prior_draws": 2.5},
        {"prior_draws": "many"},
        {"random_seed": "one"},
    ],
)
def test_a_bad_setting_of_the_sampler_is_one_clear_error(model, bad):
    with pytest.raises(InputError):
        sample(model, progressbar=False, **bad)


def test_only_a_model_is_sampled():
    with pytest.raises(InputError, match="model must be a Model, got str"):
        sample("model", predictive=False)
