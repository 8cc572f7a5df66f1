"""Compile once, refit: no second compilation, the right posterior for each data set, the right data in the trace."""

import os
import subprocess
import sys
import threading

import numpy as np
import pymc as pm
import pytest
from numba.core.ccallback import CFunc

from dpbayes.errors import InputError
from dpbayes.inference.sampling import NutsSettings, compile_model, observed_data_names

SETTINGS = NutsSettings(draws=1000, tune=300, chains=2)


def test_refits_do_not_compile(monkeypatch, normal_means):
    functions, compile_function = [], CFunc.compile

    def counted_function(self):
        functions.append(1)
        return compile_function(self)

    monkeypatch.setattr(CFunc, "compile", counted_function)
    model = normal_means()
    compiled = compile_model(model)
    assert len(functions) == 1
    compiled.fit(NutsSettings(draws=10, tune=20, chains=1), progressbar=False)
    functions.clear()  # the first fit of a process may have compiled what copies a point
    for count in range(3):
        counts = np.full(3, count)
        compiled.fit(NutsSettings(draws=10, tune=20, chains=1), data={"released_counts": counts}, progressbar=False)
    assert not functions


@pytest.mark.parametrize("counts", [[0, 0, 0], [10, -5, 3]])
def test_refit_conditions_on_the_new_data(compiled, counts):
    # Exact posterior N(0.8 y, 0.8); effective sizes above 1,000 give standard errors below .03.
    trace = compiled.fit(SETTINGS, data={"released_counts": counts}, random_seed=1, progressbar=False)
    np.testing.assert_allclose(trace["posterior"]["mean"].mean(("chain", "draw")), 0.8 * np.array(counts), atol=0.15)
    assert trace["observed_data"]["released"].values.tolist() == counts
    assert compiled.model["released_counts"].get_value().tolist() == [1, 2, 6]


def test_constants_may_change_too(compiled):
    trace = compiled.fit(SETTINGS, data={"prior_stddev": 0.01}, random_seed=1, progressbar=False)
    assert abs(trace["posterior"]["mean"]).max() < 0.1
    assert trace["constant_data"]["prior_stddev"].item() == 0.01


def test_fits_leave_no_trace_in_one_another(compiled):
    def draws(**data):
        settings = NutsSettings(draws=20, tune=50, chains=1)
        return compiled.fit(settings, data=data, random_seed=4, progressbar=False)["posterior"]["mean"].values

    before = draws()
    draws(released_counts=[100, 100, 100])
    np.testing.assert_array_equal(draws(), before)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"released": [1, 2, 3]}, r"no pm.Data variable 'released'; it has \['prior_stddev', 'released_counts'\]"),
        ({"released_counts": [1, 2]}, r"shape \(3,\), got \(2,\)"),
        ({"released_counts": [1.5, 2.0, 3.0]}, "holds values that int32 does not"),
        ({"released_counts": [1.0, 2.0, np.nan]}, "holds values that int32 does not"),
        ({"prior_stddev": np.nan}, "holds values that float64 does not"),
    ],
)
def test_data_that_do_not_fit_are_refused(compiled, data, message):
    with pytest.raises(InputError, match=message):
        compiled.fit(SETTINGS, data=data, progressbar=False)


def test_observed_data_names_follow_casts_and_skip_fixed_values():
    with pm.Model() as model:
        counts = pm.Data("counts", np.array([1, 2]))
        mean = pm.Normal("mean")
        pm.Normal("cast", mean, 1.0, observed=counts)
        pm.Normal("fixed", mean, 1.0, observed=[1.0, 2.0])
    assert observed_data_names(model) == {"cast": "counts"}


def test_threads_take_turns_at_the_compiler(monkeypatch, normal_means):
    inside, most = [], []

    def slow(model):
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.pop()
        return None

    monkeypatch.setattr("dpbayes.inference.sampling.callbacks", slow)
    threads = [threading.Thread(target=compile_model, args=(normal_means(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


_FIT = """
import numpy as np
from dpbayes.data import datasets
from dpbayes.inference import sample
from dpbayes.latent_class import build_model
from dpbayes.privacy import release_tables

release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
trace = sample(
    build_model(release, n_classes=3), draws=20, tune=150, chains=2, random_seed=1, progressbar=False, predictive=False
)
print(trace["posterior"]["cell"].to_numpy().tobytes().hex())
"""


@pytest.mark.slow
def test_the_first_run_of_a_seed_draws_what_later_ones_draw(tmp_path):
    # The first process compiles, the second loads machine code from the disk: reordered sums would tell them apart.
    flags = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path}"}
    runs = [subprocess.run([sys.executable, "-c", _FIT], env=flags, capture_output=True, check=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
