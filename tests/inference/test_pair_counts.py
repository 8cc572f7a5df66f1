"""Released pairs given the classes: the law of the joint likelihood, in other coordinates."""

from itertools import combinations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp

from dpbayes.data.domain import Domain
from dpbayes.inference.margin_operator import margin_operator, only_pairs
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.inference.pair_counts import PairCounts, PairEffects, PairTables
from dpbayes.inference.pair_kernels import pair_counts, pair_effects
from dpbayes.privacy.noise import Gaussian, TwoSidedGeometric

N = 2000.0
CLASSES = 3


def case(sets, *, classes=CLASSES, nugget=0.0):
    """Return operator, noise, tables and a point: weights, profiles, u, v, n and released counts."""
    names = sorted({name for names in sets for name in names})
    operator = margin_operator(Domain.from_levels({name: (0, 1) for name in names}), sets)
    laws = [(TwoSidedGeometric(15.0), Gaussian(9.0), TwoSidedGeometric(30.0))[t % 3] for t in operator.tables]
    noise = ReleasedNoise(tuple(laws))
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.full(classes, 3.0))
    profiles = rng.beta(1.0, 1.0, size=(classes, len(names)))
    deviates, sizes = rng.normal(size=(classes, len(names))), rng.normal(size=classes)
    released = N / 4 + 40.0 * rng.normal(size=len(operator.cells))
    return operator, noise, PairTables.of(operator, noise, nugget), (weights, profiles, deviates, sizes, N, released)


# All pairs of four attributes; one of them once more the other way round; and one attribute on its own.
SETS = [*combinations("abcd", 2), ("b", "a"), ("c",)]


def effects(point, tables, levels):
    return pair_effects(*point, np.asarray(levels, dtype=float), tuple(tables))


def test_deviates_give_the_multinomials_moments():
    """Mean and covariance of the effects before any release, from the map's own slopes in its deviates."""
    operator, _, tables, (weights, profiles, deviates, sizes, n, released) = case(SETS)
    silent = tables._replace(numbers=tables.numbers * [1, 1, 1, 1, 0, 0])  # noise so wide that nothing is learned
    pairs = len(tables.pairs)
    levels = np.zeros(pairs)

    def at(u, v, levels):
        return effects((weights, profiles, u, v, n, released), silent, levels)

    centre = at(0 * deviates, 0 * sizes, levels)
    columns = []  # the map is linear in all deviates
    for vector, place in ((deviates, 0), (sizes, 1), (levels, 2)):
        for i in range(vector.size):
            moved = [np.zeros_like(deviates), np.zeros_like(sizes), np.zeros(pairs)]
            moved[place].flat[i] = 1.0
            columns.append(at(*moved) - centre)
    covariance = np.column_stack(columns) @ np.column_stack(columns).T
    cells, position = operator.intersections
    p = np.array([weights @ np.prod([profiles[:, axis] for axis, _ in cell], axis=0) for cell in cells])
    mean, both = p[np.diag(position)], p[position]
    order = [effect[0][0] if len(effect) == 1 else None for effect in operator.effects]
    keys = [tuple(pair) for pair in tables.pairs.tolist()]
    order = [
        where if where is not None else 4 + keys.index(tuple(axis for axis, _ in effect))
        for where, effect in zip(order, operator.effects, strict=True)
    ]
    np.testing.assert_allclose(centre[order], N * mean, rtol=1e-9)
    np.testing.assert_allclose(
        covariance[np.ix_(order, order)], N * (both - np.outer(mean, mean)), rtol=1e-7, atol=1e-6 * N
    )


def test_integrates_to_the_joint_likelihood():
    """One table and one class: both forms are integrals over at most three counts, taken on a grid."""
    operator, noise, tables, (weights, _, _, sizes, n, _) = case([("a", "b")], classes=1)
    profiles, released = np.array([[0.33, 0.48]]), np.array([700.0, 640.0, 310.0, 330.0])
    axis = np.linspace(-6, 6, 81)
    log_step = 2 * np.log(axis[1] - axis[0])
    terms = []
    for u in axis:
        for w in axis:
            value = pair_counts(weights, profiles, np.array([[u, w]]), sizes, n, released, tuple(tables))[0]
            terms.append(value + stats.norm.logpdf([u, w]).sum() + log_step)
    found = logsumexp(terms) + noise.coefficients[0].sum()
    a, b = profiles[0]
    mean = np.array([a, b, a * b])
    both = np.array([[a, a * b, a * b], [a * b, b, a * b], [a * b] * 3])
    root = np.linalg.cholesky(n * (both - np.outer(mean, mean)))
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    counts = operator.counts(n * mean + grid @ root.T, n)
    noisy = noise.coefficients[0] - noise.coefficients[1] * abs(released - counts)
    noisy -= noise.coefficients[2] * (released - counts) ** 2
    expected = logsumexp(noisy.sum(axis=1) + stats.norm.logpdf(grid).sum(axis=1) + 1.5 * log_step)
    # With 41, 81 and 121 points an axis the two differ by 7e-5, 1.3e-5 and 1.1e-6: the grid's error at the kinks.
    assert found == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_gradients_are_the_limits_of_differences(mode):
    _, _, tables, point = case(SETS, nugget=0.01)
    inputs = [pt.dvector(), pt.dmatrix(), pt.dmatrix(), pt.dvector(), pt.dscalar(), pt.dvector()]
    logp = PairCounts()(*inputs, *tables)[0]
    # Scaled, so that the test sees whether the incoming derivative is used.
    compiled = pytensor.function(inputs, [logp, *pt.grad(2.0 * logp, inputs[:5])], mode=mode)
    _, *found = compiled(*point)
    for position, step in enumerate((1e-7, 1e-7, 1e-5, 1e-5, 1e-3)):
        differences = []
        for index in range(np.size(point[position])):
            ends = []
            for sign in (1, -1):
                moved = [np.array(part, dtype=float) for part in point]
                moved[position].reshape(-1)[index] += sign * step
                ends.append(float(compiled(*moved)[0]))
            differences.append((ends[0] - ends[1]) / step)  # twice the derivative
        # Rounding of a log-density of some hundreds over these steps, and the kinks' bends within them.
        scale = np.abs(differences).max()
        np.testing.assert_allclose(np.ravel(found[position]), differences, rtol=1e-4, atol=1e-5 * scale)


def test_pairs_counts_follow_their_law_given_the_release():
    """A pair's count at a level of its law splits the integral in that proportion."""
    operator, _, tables, point = case([("a", "b")])
    weights, profiles, deviates, sizes, n, released = point
    totals = effects(point, tables, [0.0])[:2]
    off = np.sqrt(n * weights)[:, None] * np.sqrt(profiles * (1 - profiles)) * deviates
    root = np.sqrt(weights)
    having = (n * weights + np.sqrt(n) * root * (sizes - root * (root @ sizes)))[:, None] * profiles + off
    np.testing.assert_allclose(totals, having.sum(axis=0))
    mean = np.sum(having[:, 0] * profiles[:, 1] + off[:, 1] * profiles[:, 0])
    variance = n * np.sum(weights * np.prod(profiles * (1 - profiles), axis=1))
    grid = np.linspace(mean - 12 * variance**0.5, mean + 12 * variance**0.5, 20_001)
    counts = operator.counts(np.column_stack([np.tile(totals, (len(grid), 1)), grid]), n)
    rates = [(tables.numbers[c, 4], tables.numbers[c, 5]) for c in range(4)]
    log_density = stats.norm.logpdf(grid, mean, variance**0.5)
    for c, (kink, square) in enumerate(rates):
        log_density -= kink * abs(released[c] - counts[:, c]) + square * (released[c] - counts[:, c]) ** 2
    share = np.cumsum(np.exp(log_density - log_density.max()))
    for level in (-2.0, 0.0, 1.0):
        found = effects(point, tables, [level])[2]
        assert np.interp(found, grid, share / share[-1]) == pytest.approx(stats.norm.cdf(level), abs=1e-3)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_compiled_effects_are_those_of_the_loops(mode):
    _, _, tables, point = case(SETS)
    levels = np.linspace(-2, 2, len(tables.pairs))
    shift = pt.dvector()  # an input, so that nothing is evaluated beforehand
    compiled = pytensor.function([shift], PairEffects()(*point, levels + shift, *tables), mode=mode)
    np.testing.assert_allclose(compiled(np.zeros_like(levels)), effects(point, tables, levels), rtol=1e-12)


def test_only_binary_pairs_qualify():
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1), "c": (0, 1, 2)})
    assert not only_pairs(margin_operator(domain, [("a", "b")]))
    assert only_pairs(margin_operator(domain.project(["a", "b"]), [("a", "b"), ("b",)]))
