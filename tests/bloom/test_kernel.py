import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad

from dpbayes.bloom.kernel import reach_of_sets


def plain_reach(share, position, membership):
    """State the same formulas cell by cell, in NumPy or as a graph."""
    m = pt if isinstance(share, pytensor.graph.basic.Variable) else np
    logit = m.log(share) - m.log1p(-share)
    level = m.sqrt(1.0 + 0.346 * (position**2).mean(axis=0))[:, None] * logit
    p = 1.0 / (1.0 + m.exp(-level[:, :, None] - position.T[:, None, :]))
    mean, slope = p.mean(axis=2), (p * (1.0 - p)).mean(axis=2)
    level = level + (logit - m.log(mean) + m.log1p(-mean)) * mean * (1.0 - mean) / slope
    stay = -m.log1p(m.exp(level[:, :, None] + position.T[:, None, :]))
    missed = [m.exp(sum(stay[i] for i in np.flatnonzero(which))) for which in membership]
    return level, 1.0 - m.stack([one.mean(axis=1) for one in missed])


def audience(seed, k=4, weeks=5, classes=6, spread=1.5):
    rng = np.random.default_rng(seed)
    final = 1.0 / (1.0 + np.exp(2.0 - 1.5 * rng.normal(size=(k, 1))))
    return final * np.sort(rng.uniform(0.01, 1.0, (k, weeks)), axis=1), spread * rng.normal(size=(classes, k))


EVERY_SET = np.array([which for which in itertools.product([False, True], repeat=4) if any(which)])


def evaluated(reach, mode):
    """Compile levels and reach of every set, and slopes that enter through either or both."""
    share, position = pt.dmatrices("share", "position")
    weight = np.random.default_rng(1)
    along = [weight.normal(size=(4, 5)), weight.normal(size=(15, 5))]
    found = reach(share, position, EVERY_SET)
    outputs = [*found]
    for used in ((0,), (1,), (0, 1)):
        outputs += pt.grad(sum((along[i] * found[i]).sum() for i in used), [share, position])
    return pytensor.function([share, position], outputs, mode=mode)


@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE"])
def test_values_and_slopes_are_those_of_the_plain_formulas(mode):
    ours, plain = evaluated(reach_of_sets, mode), evaluated(plain_reach, "FAST_COMPILE")
    for seed, spread in ((2, 1.5), (3, 0.1), (4, 5.0)):
        point = audience(seed, spread=spread)
        for one, expected in zip(ours(*point), plain(*point), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_slopes_are_those_of_differences():
    verify_grad(lambda *free: reach_of_sets(*free, EVERY_SET)[1], audience(5), rng=np.random.default_rng(6))


def test_shares_and_positions_at_the_ends():
    """Shares down to 1e-12 and positions of 25 give the plain formulas' numbers."""
    share = np.array([[1e-12, 1e-3, 0.4], [0.5, 0.9, 0.999]])
    for position in (np.zeros((3, 2)), np.array([[-100.0, 60.0], [40.0, -20.0], [60.0, -40.0]]) / 4):
        sets = np.array([[True, False], [False, True], [True, True]])
        level, reach = (one.eval() for one in reach_of_sets(pt.constant(share), pt.constant(position), sets))
        plain_level, plain = plain_reach(share, position, sets)
        np.testing.assert_allclose(level, plain_level, rtol=1e-6)
        np.testing.assert_allclose(reach, plain, rtol=1e-9, atol=1e-15)
