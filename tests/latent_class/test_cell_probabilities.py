import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from dpbayes.latent_class.cell_probabilities import CellProbabilities, cell_tree

# Two classes, three binary attributes in columns 0-1, 2-3, 4-5; one profile is at a corner.
WEIGHTS = np.array([0.7, 0.3])
PROFILES = np.array([[0.2, 0.8, 1.0, 0.0, 0.5, 0.5], [0.9, 0.1, 0.4, 0.6, 0.25, 0.75]])
CELLS = [(0,), (1, 3), (0, 2, 5), (1, 2, 4), ()]


def plain(weights, profiles):
    return np.array([np.sum(weights * np.prod(profiles[:, list(cell)], axis=1)) for cell in CELLS])


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_probabilities_and_gradients(mode):
    weights, profiles = pt.dvector(), pt.dmatrix()
    p = CellProbabilities()(weights, profiles, *cell_tree(CELLS))[0]
    cotangent = np.array([1.0, -2.0, 0.5, 3.0, 0.25])
    outputs = [p, *pt.grad(pt.dot(cotangent, p), [weights, profiles])]
    value, in_weights, in_profiles = pytensor.function([weights, profiles], outputs, mode=mode)(WEIGHTS, PROFILES)
    np.testing.assert_allclose(value, plain(WEIGHTS, PROFILES), rtol=1e-14)

    # The function is linear in every single argument, so that a difference of any size is the derivative.
    for h in range(2):
        moved = WEIGHTS + np.eye(2)[h]
        expected = cotangent @ (plain(moved, PROFILES) - plain(WEIGHTS, PROFILES))
        assert in_weights[h] == pytest.approx(expected, rel=1e-12)
    for h, column in np.ndindex(PROFILES.shape):
        moved = PROFILES.copy()
        moved[h, column] += 1.0
        expected = cotangent @ (plain(WEIGHTS, moved) - plain(WEIGHTS, PROFILES))
        assert in_profiles[h, column] == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_knows_the_number_of_cells_before_it_is_evaluated():
    assert CellProbabilities()(pt.dvector(), pt.dmatrix(), *cell_tree(CELLS))[0].type.shape == (len(CELLS),)
