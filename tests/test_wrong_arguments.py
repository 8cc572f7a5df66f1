"""Each argument of functions that users call, in turn of every wrong kind: an error of dpbayes, never a raw one."""

import math

import numpy as np
import polars as pl
import pytest
import xarray as xr

import dpbayes.inference as inference
import dpbayes.latent_class as lc
import dpbayes.verifier as verifier
from dpbayes.data import Domain, marginals
from dpbayes.errors import DPBayesError
from dpbayes.inference.sampling import NutsSettings
from dpbayes.latent_class import synthesis
from dpbayes.privacy import release_tables

HUGE = 10**5000
WRONG = {
    "text": "text",
    "zero byte": "a\0b",
    "negative": -1,
    "huge": HUGE,
    "-huge": -HUGE,
    "nan": math.nan,
    "infinite": math.inf,
    "ragged": [[1], [2, 3]],
    "mixed": ["a", 3],
    "huge list": [HUGE, HUGE],
    "set": {1, 2},
    "dict": {"a": 1},
    "bytes": b"x",
    "complex": 1j,
    "object": object(),
    "array": np.zeros((2, 2)),
    "frame": pl.DataFrame({"zz": [1]}),
    "trace": xr.DataTree(),
}
RNG = np.random.default_rng(1)
DOMAIN = Domain.from_levels({"age": (0, 1), "sex": ("f", "m"), "vote": (0, 1)})
FRAME = pl.DataFrame({name: RNG.choice(DOMAIN[name].levels, 200) for name in DOMAIN.names})
RELEASE = release_tables(marginals(FRAME, [["age", "sex"], ["vote"]], domain=DOMAIN), epsilon=1.0, rng=RNG)
CLAIMED = pl.DataFrame({"y": [1.0, 2, 3, 4], "x": [0.0, 1, 0, 1], "person": [1, 2, 3, 4]})


def shares(*shape):
    values = RNG.random((2, 20, *shape))
    return values / values.sum(-1, keepdims=True)


def mixture_trace():
    profiles = {f"profile_{name}": (("chain", "draw", "class", name), shares(2, 2)) for name in DOMAIN.names}
    coords = {attribute.name: list(attribute.levels) for attribute in DOMAIN}
    posterior = xr.Dataset({"weights": (("chain", "draw", "class"), shares(2))} | profiles, coords=coords)
    return xr.DataTree.from_dict({"posterior": posterior.assign_coords(count=[str(i) for i in range(6)])})


TRACE = mixture_trace()
MARGIN = xr.DataArray(shares(4).reshape(2, 20, 2, 2), dims=("chain", "draw", "age", "sex"))
SYNTHETIC = [FRAME.sample(100, seed=seed) for seed in range(3)]
PLAN = lc.plan(DOMAIN, n_records=200, rho=0.5, choose=1)


def half_the_records(frame):
    return {"half": (0.5 * len(frame), 1.0)}


def no_model():
    raise DPBayesError("reached the model")


CALLS = {
    "write_trace": (inference.write_trace, {"trace": TRACE, "path": "trace.nc"}),
    "read_trace": (inference.read_trace, {"path": "trace.nc"}),
    "simulate_and_rank": (
        inference.simulate_and_rank,
        {"build_model": no_model, "n_simulations": 1, "random_seed": 1, "n_ranks": 9, "rhat_max": 1.1, "label": ""}
        | {"simulate": len, "settings": NutsSettings(draws=10, tune=10, chains=1), "n_jobs": 1},
    ),
    "combine": (lc.combine, {"frames": SYNTHETIC, "fit": half_the_records, "n": 100}),
    "cost_of": (
        lc.cost_of,
        {"domain": DOMAIN, "tables": [["age", "sex"]], "n_classes": 3, "likelihood": "cells"}
        | {"chains": 4, "draws": 10, "cores": 2},
    ),
    "functional": (lc.functional, {"draws": MARGIN, "function": lambda cells: cells[0], "name": "value"}),
    "predict_release": (
        synthesis.predict_release,
        {"trace": TRACE, "release": RELEASE, "n_datasets": 2, "random_seed": 1},
    ),
    "plan": (
        lc.plan,
        {"domain": DOMAIN, "n_records": 200, "rho": 0.5, "workload": [["age", "sex"]], "choose": 1, "public": FRAME},
    ),
    "release_plan": (lc.release_plan, {"frame": FRAME, "chosen": PLAN, "rng": RNG, "delta": 0.0, "purpose": "tables"}),
    "write_synthetic": (synthesis.write_synthetic, {"frames": SYNTHETIC, "folder": "synthetic", "format": "csv"}),
    "synthesize": (lc.synthesize, {"trace": TRACE, "n_datasets": 1, "n_rows": 5, "random_seed": 1, "law": "mean"}),
    "margin_draws": (lc.margin_draws, {"trace": TRACE, "names": ["age"], "target": "population", "thin": 1}),
    "regress": (lc.regress, {"trace": TRACE, "formula": "vote ~ age", "family": "logistic"}),
    "summarize": (lc.summarize, {"draws": MARGIN, "prob": 0.9}),
    "count_partitions": (
        verifier.count_partitions,
        {"frame": CLAIMED, "formula": "y ~ x", "coefficient": "x", "threshold": 0.0, "direction": ">"}
        | {"n_partitions": 2},
    ),
    "sum_estimates": (
        verifier.sum_estimates,
        {"frame": CLAIMED, "formula": "y ~ x", "coefficient": "x", "n_partitions": 2, "lower": -1.0, "upper": 1.0},
    ),
}


def works(call, arguments):
    """Say whether a call returns; a refusal by dpbayes, or by the file system for a path, is no raw error."""
    try:
        call(**arguments)
    except (DPBayesError, OSError):
        return False
    return True


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_raises_no_raw_error(name, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, good = CALLS[name]
    for argument in good:
        works(call, good | {argument: WRONG[wrong]})


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"write_trace", "read_trace", "simulate_and_rank"}))
def test_the_right_arguments_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, good = CALLS[name]
    assert works(call, good)
