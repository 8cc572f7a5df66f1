"""The C function of a model: its own density and slopes; present data; machine code from the disk; variables."""

import ctypes

import numpy as np
import pymc as pm
import pytest
from pymc.blocking import DictToArrayBijection
from pytensor.raise_op import assert_op

from dpbayes.inference.callbacks import callbacks


def build():
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        present = pm.Data("present", np.array([True, False]), dims="group")
        scale = pm.Data("scale", 2.0)
        centre = pm.Normal("centre", 1.0, 3.0)
        spread = pm.HalfNormal("spread", scale, dims="group")
        both = pm.Deterministic("both", (centre * spread)[:, None] + np.arange(3.0))
        pm.Normal("seen", both * present[:, None], 1.5, observed=pm.Data("counts", np.arange(6).reshape(2, 3)))
    return model


def call(function, sizes, point, *outputs, given):
    """Call a C function as nutpie does."""
    pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for array in (point, *outputs)]
    data = given.user_data.ctypes.data_as(ctypes.POINTER(ctypes.c_void_p))
    return function.ctypes(*sizes, *pointers, data)


def density_at(given, point):
    slopes, value = np.empty(len(point)), np.empty(1)
    returned = call(given.compiled_logp_func, [len(point)], point, slopes, value, given=given)
    return returned, value[0], slopes


def test_density_and_slopes_are_those_of_the_model_with_the_data_that_it_has_now():
    """Both sum some dozens of terms in another order: 1e-13 is a thousand roundings."""
    model = build()
    found, reference = callbacks(model), model.logp_dlogp_function(ravel_inputs=True)
    rng = np.random.default_rng(1)
    for data in ({}, {"scale": 0.3}, {"present": np.array([False, True]), "counts": -np.arange(6).reshape(2, 3)}):
        with model:
            pm.set_data(data)
        reference.set_extra_values({})
        for _ in range(3):
            point = rng.normal(size=3)
            returned, value, slopes = density_at(found.for_nutpie(), point)
            wanted, wanted_slopes = reference(point)
            assert returned == 0
            np.testing.assert_allclose(value, wanted, rtol=1e-13)
            np.testing.assert_allclose(slopes, wanted_slopes, rtol=0.0, atol=1e-13 * np.abs(wanted_slopes).max())


def test_recorded_variables_are_those_of_the_model():
    """At points that nutpie keeps as they are; more of them than are evaluated together."""
    found, points = callbacks(build()), np.random.default_rng(1).normal(size=(30_000, 3))
    given, values = found.for_nutpie(), np.empty(3)
    assert call(given.compiled_expand_func, [3, 3], points[0], values, given=given) == 0
    np.testing.assert_array_equal(values, points[0])
    recorded, centre, spread = found.recorded(points), points[:, 0], np.exp(points[:, 1:])
    assert list(recorded) == ["centre", "spread", "both"]
    np.testing.assert_array_equal(recorded["centre"], centre)
    np.testing.assert_allclose(recorded["spread"], spread, rtol=1e-14)
    both = (centre[:, None] * spread)[:, :, None] + np.arange(3.0)
    np.testing.assert_allclose(recorded["both"], both, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_a_point_without_a_finite_density_is_refused(value):
    given = callbacks(build()).for_nutpie()
    assert density_at(given, np.array([value, 0.0, 0.0]))[0] != 0


def test_a_parameter_out_of_its_range_is_refused():
    with pm.Model() as model:
        spread = pm.Normal("spread")
        pm.Normal("seen", 0.0, spread, observed=1.0)
    given = callbacks(model).for_nutpie()
    assert density_at(given, np.array([0.5]))[0] == 0
    assert density_at(given, np.array([-0.5]))[0] != 0


def test_a_model_of_the_same_kind_loads_its_code_from_the_disk():
    callbacks(build())
    again = callbacks(build())
    assert again.density.cache_hits == 1


def test_starts_are_those_of_pymc():
    model = build()
    near = pm.initial_point.make_initial_point_fn(model=model, jitter_rvs=set(model.free_RVs), return_transformed=True)
    wanted = DictToArrayBijection.map({value.name: near(7)[value.name] for value in model.value_vars}).data
    np.testing.assert_array_equal(callbacks(model).start(7), wanted)


def test_what_is_recorded_is_real_and_fails_before_anything_is_drawn():
    with build() as model:
        pm.Deterministic("positive", model["centre"] > 0.0)
    positive = callbacks(model).recorded(np.array([[0.4, 0.0, 0.0], [-0.4, 0.0, 0.0]]))["positive"]
    assert positive.dtype == np.float64 and positive.tolist() == [1.0, 0.0]
    with model:
        pm.Deterministic("refused", assert_op(model["centre"], model["centre"] > 1e9))
    with pytest.raises(AssertionError):
        callbacks(model)
