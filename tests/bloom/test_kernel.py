import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad
from scipy.optimize import brentq

from dpbayes.bloom.model import reach_of_sets

SIZE = np.array([0.05, 0.1, 0.15, 0.2, 0.2, 0.3])


def solved(share, position, size):
    """Return the levels at which the mean of exp(-exp(level + position)) is what is left of each share."""

    def excess(level, weight, target):
        return np.log(-size @ np.expm1(-np.exp(level) * weight)) - target

    targets = np.log(share)
    weights = np.exp(position.T)
    return np.array(
        [
            [brentq(excess, -60.0, 10.0 - np.log(weight.min()), args=(weight, t), xtol=1e-13) for t in row]
            for weight, row in zip(weights, targets, strict=True)
        ]
    )


def plain_reach(share, position, size, membership, level):
    """State the same formulas cell by cell; the slopes of a Newton step from the solved levels are the levels' own."""
    m = pt if isinstance(share, pytensor.graph.basic.Variable) else np
    weight = m.exp(position.T[:, None, :])
    rate = m.exp(level)[:, :, None] * weight
    level = level + (share + m.dot(m.expm1(-rate), size)) / m.dot(m.exp(-rate) * rate, size)
    rate = m.exp(level)[:, :, None] * weight
    return level, m.stack([1.0 - m.dot(m.exp(-sum(rate[i] for i in np.flatnonzero(s))), size) for s in membership])


def audience(seed, k=4, weeks=5, classes=6, spread=1.5):
    rng = np.random.default_rng(seed)
    final = 1.0 / (1.0 + np.exp(2.0 - 1.5 * rng.normal(size=(k, 1))))
    return final * np.sort(rng.uniform(0.01, 1.0, (k, weeks)), axis=1), spread * rng.normal(size=(classes, k))


EVERY_SET = np.array([which for which in itertools.product([False, True], repeat=4) if any(which)])


def evaluated(reach, mode, *more):
    """Compile levels and reach of every set, and slopes that enter through either or both."""
    share, position = pt.dmatrices("share", "position")
    weight = np.random.default_rng(1)
    along = [weight.normal(size=(4, 5)), weight.normal(size=(15, 5))]
    found = reach(share, position, SIZE, EVERY_SET, *more)
    outputs = [*found]
    for used in ((0,), (1,), (0, 1)):
        outputs += pt.grad(sum((along[i] * found[i]).sum() for i in used), [share, position])
    return pytensor.function([share, position, *more], outputs, mode=mode)


@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE"])
def test_values_and_slopes_are_those_of_the_plain_formulas(mode):
    ours, plain = evaluated(reach_of_sets, mode), evaluated(plain_reach, "FAST_COMPILE", pt.dmatrix("level"))
    for seed, spread in ((2, 1.5), (3, 0.1), (4, 5.0)):
        point = audience(seed, spread=spread)
        for one, expected in zip(ours(*point), plain(*point, solved(*point, SIZE)), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max())


def test_slopes_are_those_of_differences():
    verify_grad(lambda *free: reach_of_sets(*free, SIZE, EVERY_SET)[1], audience(5), rng=np.random.default_rng(6))


def test_shares_and_positions_at_the_ends():
    """Shares down to 1e-12 and positions of 25 give the plain formulas' numbers."""
    share, size = np.array([[1e-12, 1e-3, 0.4], [0.5, 0.9, 0.999]]), np.array([0.2, 0.3, 0.5])
    for position in (np.zeros((3, 2)), np.array([[-100.0, 60.0], [40.0, -20.0], [60.0, -40.0]]) / 4):
        sets = np.array([[True, False], [False, True], [True, True]])
        level, reach = (one.eval() for one in reach_of_sets(pt.constant(share), pt.constant(position), size, sets))
        plain_level, plain = plain_reach(share, position, size, sets, solved(share, position, size))
        np.testing.assert_allclose(level, plain_level, rtol=1e-6)
        np.testing.assert_allclose(reach, plain, rtol=1e-9, atol=1e-15)
