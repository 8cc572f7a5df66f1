"""The graph over grids equals the scalar bound at every point and compiles once a shape of grid."""

import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.mvg import precision_bound, precision_bound_grid
from dpbayes.mvg.grid import _bound_graph

BASE = {"m": 3, "n": 40, "gamma": 2.0, "sensitivity": 1.5, "epsilon": 1.0, "delta": 1e-5}


@pytest.mark.parametrize("zeta", ["printed", "laurent-massart"])
def test_grid_equals_scalars(zeta):
    m, epsilon = np.array([[1], [4], [10], [300]]), np.array([0.1, 1.0, 10.0])
    found = precision_bound_grid(**(BASE | {"m": m, "epsilon": epsilon}), zeta=zeta)
    expected = [[precision_bound(**(BASE | {"m": int(i), "epsilon": e}), zeta=zeta) for e in epsilon] for i in m[:, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_scalars_give_a_scalar_array():
    assert float(precision_bound_grid(**BASE)) == pytest.approx(precision_bound(**BASE), rel=1e-13)


def test_a_second_grid_compiles_nothing():
    precision_bound_grid(**(BASE | {"epsilon": [0.1, 0.2]}))
    before = _bound_graph.n_compiled
    precision_bound_grid(**(BASE | {"epsilon": [0.1, 0.2, 0.5, 0.7]}))
    assert _bound_graph.n_compiled == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": [1.5]}, "m must hold positive integers"),
        ({"n": [0, 2]}, "n must hold positive integers"),
        ({"gamma": [1.0, -1.0]}, "gamma must hold positive"),
        ({"delta": [0.5, 1.0]}, "delta must be below 1"),
        ({"epsilon": [1.0, 2.0], "delta": [0.1, 0.2, 0.3]}, "do not broadcast"),
        ({"zeta": "other"}, "zeta must be one of"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(InputError, match=message):
        precision_bound_grid(**(BASE | change))
