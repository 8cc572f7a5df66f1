"""Attributes' totals as coordinates: inverses, Jacobians, gradients, and what happens far out."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy import stats

from dpbayes.latent_class.attribute_totals import AttributeTotals, _common_shift, _CommonShift
from dpbayes.latent_class.profile_coordinates import ArcsineNormal

WEIGHTS = np.array([0.5, 0.3, 0.15, 0.05])


def values(seed, classes=4, attributes=3, spread=1.0):
    return spread * np.random.default_rng(seed).normal(size=(classes, attributes))


def profiles(value, weights=WEIGHTS):
    return AttributeTotals().backward(pt.as_tensor(value), pt.as_tensor(weights)).eval()


def arcsine(z):
    return np.sin(0.5 * np.pi * stats.norm.cdf(z)) ** 2


def test_the_first_row_is_the_total_of_each_attribute_and_the_others_are_contrasts():
    value = values(0)
    found = profiles(value)
    np.testing.assert_allclose(WEIGHTS @ found, arcsine(value[0]), rtol=1e-12)
    normals = ArcsineNormal().forward(found).eval()
    np.testing.assert_allclose(normals[1:] - normals[0], value[1:], atol=1e-7)


def test_totals_invert():
    value = values(1)
    back = AttributeTotals().forward(profiles(value), pt.as_tensor(WEIGHTS)).eval()
    np.testing.assert_allclose(back, value, atol=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_the_determinant_is_that_of_the_map(seed):
    """Held to the determinant of a matrix of central differences, which have an error of 1e-9 of their size."""
    value, step = values(seed, classes=3, attributes=2), 1e-6
    weights = WEIGHTS[:3] / WEIGHTS[:3].sum()
    ends = np.eye(value.size).reshape(-1, *value.shape) * step
    columns = [(profiles(value + end, weights) - profiles(value - end, weights)).ravel() / (2 * step) for end in ends]
    expected = np.linalg.slogdet(np.array(columns))[1]
    found = AttributeTotals().log_jac_det(pt.as_tensor(value), pt.as_tensor(weights)).eval()
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE"])
def test_the_common_shift_has_the_gradients_of_the_implicit_function_theorem(mode):
    contrasts, weights, totals = values(2), WEIGHTS, values(3)[0]
    inputs = pt.dmatrix(), pt.dvector(), pt.dvector()
    direction = np.array([1.0, -0.5, 2.0])
    along = pt.sum(_CommonShift()(*inputs) * direction)
    linker = Mode(linker="py", optimizer=None) if mode == "FAST_COMPILE" else mode
    gradients = pytensor.function(inputs, pytensor.grad(along, inputs), mode=linker)(contrasts, weights, totals)
    arguments = [contrasts, weights, totals]
    for place, gradient in enumerate(gradients):
        for index in np.ndindex(arguments[place].shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [argument.copy() for argument in arguments]
                moved[place][index] += sign * 1e-6
                ends.append(direction @ _common_shift(*moved))
            assert gradient[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("total", [-25.0, -8.0, 0.0, 8.0, 25.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_the_shift_is_found_far_out_and_turns_around_with_the_levels(total, spread):
    contrasts, totals = values(5, spread=spread), np.full(3, total)
    contrasts[0] = 0.0
    shift = _common_shift(contrasts, WEIGHTS, totals)
    low = -np.sign(total or 1.0)  # the tail in which the total is small, and all its digits are there
    found = np.log(WEIGHTS @ np.sin(0.5 * np.pi * stats.norm.cdf(low * (contrasts + shift))) ** 2)
    np.testing.assert_allclose(found, 2 * np.log(np.sin(0.5 * np.pi * stats.norm.cdf(low * total))), rtol=1e-9)
    np.testing.assert_allclose(_common_shift(-contrasts, WEIGHTS, -totals), -shift, rtol=1e-12)
    assert np.isfinite(_common_shift(contrasts, WEIGHTS, 2 * totals)).all()
