import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dpbayes.inference.constant_map import constant_map

MATRIX = np.random.default_rng(1).normal(size=(5, 3))


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_is_the_matrix_times_the_vector_and_pulls_back_its_transpose(mode):
    x, weights = pt.dvector(), np.arange(5.0)
    y = constant_map(MATRIX, x)
    value, gradient = pytensor.function([x], [y, pt.grad(pt.dot(weights, y), x)], mode=mode)(np.array([1.0, -2.0, 0.5]))
    np.testing.assert_allclose(value, MATRIX @ [1.0, -2.0, 0.5], rtol=1e-13)
    np.testing.assert_allclose(gradient, weights @ MATRIX, rtol=1e-13)


def test_knows_its_length_before_it_is_evaluated():
    assert constant_map(MATRIX, pt.dvector()).type.shape == (5,)


def test_refuses_a_vector_of_another_length():
    with pytest.raises(ValueError, match="3 columns"):
        constant_map(MATRIX, np.ones(4))
