"""Coordinates of class profiles: inverses, Jacobians, priors, and what happens far out."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

from dpbayes.latent_class.attribute_totals import AttributeTotals
from dpbayes.latent_class.profile_coordinates import ArcsineNormal, ScaledByWeights, ScaledSticks

WEIGHTS = np.array([0.5, 0.3, 0.15, 0.05])
CENTRE = np.array([-1.2, 0.0, 0.7])


def values(seed, classes=4):
    return np.random.default_rng(seed).normal(size=(classes, CENTRE.size))


def profiles(value, weights=WEIGHTS):
    return ScaledByWeights(CENTRE).backward(pt.as_tensor(value), pt.as_tensor(weights)).eval()


def arcsine(z):
    return np.sin(0.5 * np.pi * stats.norm.cdf(z)) ** 2


@pytest.mark.parametrize("z", [-7.0, -4.0, -0.3, 0.0, 1.5, 3.5])
def test_arcsine_coordinates_make_the_profile_prior_normal(z):
    with pm.Model() as model:
        pm.Beta("p", 0.5, 0.5, default_transform=ArcsineNormal())
    assert model.compile_logp()({"p_arcsine__": np.array(z)}) == pytest.approx(stats.norm.logpdf(z), abs=1e-6)
    # Far out the complement of p is zero in double precision: the density stays finite, and so does its gradient.
    for far in (9.0, 30.0, -30.0):
        assert np.isfinite(model.compile_logp()({"p_arcsine__": np.array(far)}))


def test_arcsine_coordinates_invert():
    z = np.linspace(-5, 4, 19)  # beyond 4 the complement of p has lost its digits
    transform = ArcsineNormal()
    np.testing.assert_allclose(transform.forward(transform.backward(z)).eval(), z, atol=1e-6)


def test_a_heavy_class_moves_less():
    value = values(0)
    np.testing.assert_allclose(profiles(value), arcsine(CENTRE + value / (1.0 + 4.0 * WEIGHTS[:, None])), rtol=1e-12)


def test_scaled_coordinates_invert():
    value = values(1)
    back = ScaledByWeights(CENTRE).forward(profiles(value), pt.as_tensor(WEIGHTS)).eval()
    np.testing.assert_allclose(back, value, atol=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_the_determinant_is_that_of_the_map(seed):
    """Held to the determinant of a matrix of central differences, which have an error of 1e-9 of their size."""
    value, step = values(seed), 1e-6
    ends = np.eye(value.size).reshape(-1, *value.shape) * step
    columns = [(profiles(value + end) - profiles(value - end)).ravel() / (2 * step) for end in ends]
    expected = np.linalg.slogdet(np.array(columns))[1]
    found = ScaledByWeights(CENTRE).log_jac_det(pt.as_tensor(value), pt.as_tensor(WEIGHTS)).eval()
    assert found == pytest.approx(expected, abs=1e-6)


STICKS = np.array([[0.5, 0.2, 0.2, 0.1], [0.05, 0.05, 0.1, 0.8]])


def stick_profiles(value):
    return ScaledSticks(STICKS).backward(pt.as_tensor(value), pt.as_tensor(WEIGHTS)).eval()


def test_sticks_are_profiles_about_their_centre_and_invert():
    np.testing.assert_allclose(stick_profiles(np.zeros((4, 2, 3))), np.broadcast_to(STICKS, (4, 2, 4)), rtol=1e-12)
    value = np.random.default_rng(2).normal(size=(4, 2, 3))
    found = stick_profiles(value)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(ScaledSticks(STICKS).forward(found, pt.as_tensor(WEIGHTS)).eval(), value, atol=1e-6)
    far = stick_profiles(np.full((4, 2, 3), 200.0)), stick_profiles(np.full((4, 2, 3), -200.0))
    assert np.isfinite(np.log(far)).all()


@pytest.mark.parametrize("seed", range(2))
def test_the_determinant_of_sticks_is_that_of_the_map(seed):
    """Held to a matrix of central differences of all levels but the last, which have an error of 1e-9 of their size."""
    value, step = np.random.default_rng(seed).normal(size=(4, 2, 3)), 1e-6
    ends = np.eye(value.size).reshape(-1, *value.shape) * step
    moved = [(stick_profiles(value + end) - stick_profiles(value - end))[..., :-1].ravel() / (2 * step) for end in ends]
    expected = np.linalg.slogdet(np.array(moved))[1]
    found = ScaledSticks(STICKS).log_jac_det(pt.as_tensor(value), pt.as_tensor(WEIGHTS)).eval()
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_dirichlet_prior_of_sticks_integrates_to_one():
    """One class, one attribute of three levels; the trapezoidal rule, as for two levels below."""
    with pm.Model() as model:
        pm.CustomDist(
            "p",
            pt.as_tensor([1.0]),
            dist=lambda w, size: pm.Dirichlet.dist(np.full(3, 3.0), shape=(1, 1, 3)),
            logp=lambda value, w: pt.sum(pm.logp(pm.Dirichlet.dist(np.full(3, 3.0)), value)),
            support_point=lambda rv, size, w: pt.full((1, 1, 3), 1 / 3),
            signature="(k)->(k,j,l)",
            default_transform=ScaledSticks(np.array([[0.3, 0.5, 0.2]])),
        )
    logp, grid = model.compile_logp(), np.linspace(-20, 20, 81)
    density = [[np.exp(logp({"p_scaled__": np.array([[[x, y]]])})) for y in grid] for x in grid]
    assert np.sum(density) * (grid[1] - grid[0]) ** 2 == pytest.approx(1.0, abs=1e-6)


def test_probabilities_have_a_slope_where_the_tails_meet():
    """At zero dp/dz = pi / 2 times the normal density, by hand; the map is smooth there."""
    z = pt.dscalar()
    slope = pt.grad(ArcsineNormal().backward(z), z)
    for at in (-1e-9, 0.0, 1e-9):
        assert slope.eval({z: at}) == pytest.approx(0.5 * np.pi * stats.norm.pdf(0.0), rel=1e-8)


@pytest.mark.parametrize(
    ("transform", "grid"),
    [(ScaledByWeights(CENTRE[2:]), np.linspace(-20, 16, 91)), (AttributeTotals(), np.linspace(-5, 5, 101))],
    ids=["scaled", "totals"],
)
def test_a_prior_density_does_not_depend_on_the_coordinates(transform, grid):
    """A Beta(3, 3) prior of two classes of one attribute, integrated over the coordinates: one.

    The density is analytic with the tails of a normal law, so that the trapezoidal rule converges faster than any power
    of its step: half the step changes the sum by less than 2e-7, a wider grid by less than 1e-7.
    """
    weights = np.array([0.7, 0.3])
    with pm.Model() as model:
        pm.CustomDist(
            "p",
            pt.as_tensor(weights),
            dist=lambda w, size: pm.Beta.dist(3, 3, shape=(2, 1)),
            logp=lambda value, w: pt.sum(pm.logp(pm.Beta.dist(3, 3), value)),
            support_point=lambda rv, size, w: pt.full((2, 1), 0.5),
            signature="(k)->(k,j)",
            default_transform=transform,
        )
    logp, name = model.compile_logp(), f"p_{transform.name}__"
    density = [[np.exp(logp({name: np.array([[x], [y]])})) for y in grid] for x in grid]
    assert np.sum(density) * (grid[1] - grid[0]) ** 2 == pytest.approx(1.0, abs=1e-6)
