"""The compiled normal law of effect counts, against SciPy and against differences of itself."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

from dpbayes.data.domain import Domain
from dpbayes.inference.margin_operator import margin_operator
from dpbayes.inference.normal_counts import NormalCounts

N = 500.0


@pytest.fixture(scope="module", params=[((2, 2, 2), [("a", "b"), ("b", "c")]), ((3, 2, 2), [("a", "b", "c")])])
def case(request):
    shape, sets = request.param
    domain = Domain.from_levels({name: range(size) for name, size in zip("abc", shape, strict=True)})
    operator = margin_operator(domain, sets)
    cells, pairs = operator.intersections
    table = np.random.default_rng(4).dirichlet(np.full(domain.size, 2.0)).reshape(domain.shape)

    def probability(cell):
        return table[tuple(dict(cell).get(axis, slice(None)) for axis in range(3))].sum()

    p = np.array([probability(cell) for cell in cells])
    mean = p[np.diag(pairs)]
    value = N * mean + np.random.default_rng(5).normal(scale=8.0, size=len(mean))
    return p, value, pairs, 0.3 * np.eye(len(mean))


def gradients(*, mode):
    p, value, n = pt.dvector(), pt.dvector(), pt.dscalar()
    pairs, extra = pt.lmatrix(), pt.dmatrix()
    logp = NormalCounts()(p, value, n, pairs, extra)[0]
    # Scaled, so that the test sees whether the incoming derivative is used.
    outputs = [logp, *pt.grad(2.0 * logp, [p, value, n])]
    return pytensor.function([p, value, n, pairs, extra], outputs, mode=mode)


def test_is_the_normal_density(case):
    p, value, pairs, extra = case
    both = np.append(p, 0.0)[pairs]
    mean = np.diag(both)
    expected = stats.multivariate_normal(N * mean, N * (both - np.outer(mean, mean)) + extra).logpdf(value)
    assert float(NormalCounts()(p, value, N, pairs, extra)[0].eval()) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_gradients_are_the_limits_of_differences(case, mode):
    p, value, pairs, extra = case
    compiled = gradients(mode=mode)

    def logp(p, value, n):
        return float(compiled(p, value, n, pairs, extra)[0])

    _, *found = compiled(p, value, N, pairs, extra)
    for position, step in ((0, 1e-6), (1, 1e-3), (2, 1e-2)):
        point = [p, value, np.array([N])]
        differences = []
        for index in range(point[position].size):
            ends = []
            for sign in (1, -1):
                moved = [part.copy() for part in point]
                moved[position][index] += sign * step
                ends.append(logp(moved[0], moved[1], moved[2][0]))
            differences.append((ends[0] - ends[1]) / step)  # twice the derivative
        np.testing.assert_allclose(np.ravel(found[position]), differences, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_a_covariance_that_is_none_has_no_density(case, mode):
    p, value, pairs, extra = case
    logp, *found = gradients(mode=mode)(p, value, N, pairs, -1e6 * extra)
    assert logp == -np.inf
    assert all(np.all(part == 0.0) for part in found)
