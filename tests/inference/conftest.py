"""A conjugate model whose posterior is known, compiled once for the package's tests."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest

from dpbayes.inference.sampling import CompiledModel, compile_model

GROUPS = ["a", "b", "c"]
COUNTS = np.array([1, 2, 6])


def build_normal_means(observed: np.ndarray = COUNTS, *, stddev: float = 1.0) -> pm.Model:
    """Means with a N(0, 4) prior, one observation of unit variance each: posterior N(4 y / 5, 4 / 5)."""
    with pm.Model(coords={"group": GROUPS}) as model:
        released = pm.Data("released_counts", observed, dims="group")
        scale = pm.Data("prior_stddev", 2.0)
        mean = pm.Normal("mean", 0.0, scale, dims="group")
        pm.Deterministic("total", mean.sum())
        pm.Normal("released", mean, stddev, observed=released, dims="group")
    model.convergence_variables = ("mean", "total")
    return model


@pytest.fixture(scope="session")
def normal_means() -> Callable[..., pm.Model]:
    return build_normal_means


@pytest.fixture(scope="session")
def compiled() -> CompiledModel:
    return compile_model(build_normal_means())
