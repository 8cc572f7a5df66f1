"""Losses of the noise laws against sums over the laws themselves, closed forms and forty digits; refusals."""

import mpmath
import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.privacy.curves import gaussian_delta, gaussian_epsilon, gaussian_stddev
from dpbayes.privacy.laws import DiscreteGaussian, TwoSidedGeometric
from dpbayes.privacy.losses import (
    PrivacyLoss,
    discrete_gaussian_loss,
    geometric_loss,
    laplace_loss,
    randomized_response_loss,
)


def summed(log_prob, move: int, epsilon: float, reach: int) -> float:
    x = np.arange(-reach, reach + 1, dtype=float)
    p, q = np.exp(log_prob(x)), np.exp(log_prob(x - move))
    return float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0)))


def laplace_delta(epsilon, *, scale, sensitivity=1.0):
    return max(0.0, -np.expm1((epsilon - sensitivity / scale) / 2))


def laplace_epsilon(delta, *, scale, sensitivity=1.0):
    return max(0.0, sensitivity / scale + 2 * np.log1p(-delta))


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.5, 60.0])
@pytest.mark.parametrize("move", [1, 2, 5])
def test_geometric_curve_is_the_sum_over_its_law(scale, move):
    law, loss = TwoSidedGeometric(scale), geometric_loss(scale=scale, sensitivity=move)
    for share in (0.0, 0.1, 0.37, 0.5, 0.9, 0.999):
        epsilon = share * move / scale
        expected = summed(law.log_prob, move, epsilon, int(45 * scale) + 10)
        assert loss.delta(epsilon) == pytest.approx(expected, rel=1e-10, abs=1e-14)
    assert loss.delta(move / scale * (1 + 1e-14)) == 0.0


def test_geometric_and_laplace_bounds_hold_the_truth():
    generator = np.random.default_rng(250)
    for case in range(60):
        scale, move = 10.0 ** generator.uniform(-1.5, 4), int(generator.integers(1, 60))
        # From the middle of the curve to where next to nothing of it is left, in the last digits of epsilon.
        epsilon = max(0.0, move / scale * (1 - 10.0 ** generator.uniform(-16 if case % 2 else -3, 0)))
        with mpmath.workdps(60):
            s, e = mpmath.mpf(scale), mpmath.mpf(epsilon)
            a = mpmath.exp(-1 / s)
            terms = ((1 if j == 0 else 1 - a) * a**j * -mpmath.expm1(e - (move - 2 * j) / s) for j in range(move))
            geometric = sum(term for term in terms if term > 0) / (1 + a)
            laplace = max(mpmath.mpf(0), -mpmath.expm1((e - move / s) / 2))
        for loss, exact in (
            (geometric_loss(scale=scale, sensitivity=move), geometric),
            (laplace_loss(scale=scale, sensitivity=move, cells=1 << 12), laplace),
        ):
            bounds = loss.delta_bounds(epsilon)
            assert bounds.lower <= exact <= bounds.upper


@pytest.mark.parametrize("stddev", [0.4, 1.0, 3.7, 40.0])
@pytest.mark.parametrize("move", [1, 3])
def test_discrete_gaussian_curve_is_the_sum_over_its_law(stddev, move):
    law, loss = DiscreteGaussian(stddev), discrete_gaussian_loss(stddev=stddev, sensitivity=move)
    for epsilon in (0.0, 0.2, 1.0, 4.0):
        expected = summed(law.log_prob, move, epsilon, int(40 * stddev) + 10)
        assert loss.delta(epsilon) == pytest.approx(expected, rel=1e-10, abs=1e-15)


def test_discrete_gaussian_tail_keeps_its_digits():
    # The first outcome beyond the threshold dominates: compare with forty digits.
    with mpmath.workdps(40):
        norm = mpmath.fsum(mpmath.exp(-(mpmath.mpf(x) ** 2) / 8) for x in range(-80, 81))
        loss = [(mpmath.mpf(1) / 2 - x) / 4 for x in range(-60, 1)]
        terms = [
            mpmath.exp(-(mpmath.mpf(x) ** 2) / 8) / norm * (1 - mpmath.exp(8 - value))
            for x, value in zip(range(-60, 1), loss, strict=True)
            if value > 8
        ]
        expected = float(mpmath.fsum(terms))
    assert expected < 1e-50
    assert discrete_gaussian_loss(stddev=2.0).delta(8.0) == pytest.approx(expected, rel=1e-12)


def test_discrete_gaussian_meets_the_gaussian_when_the_noise_is_wide():
    assert discrete_gaussian_loss(stddev=3000.0, sensitivity=800).delta(1.0) == pytest.approx(
        gaussian_delta(800 / 3000, 1.0), rel=1e-5
    )


def test_laplace_curve_lies_in_the_bracket_of_its_loss_after_composition_too():
    loss = laplace_loss(scale=2.0, sensitivity=3.0, cells=1 << 12)
    for epsilon in (0.0, 0.3, 1.0, 1.49):
        assert laplace_delta(epsilon, scale=2.0, sensitivity=3.0) in loss.delta_bounds(epsilon)
    for delta in (0.0, 1e-9, 1e-3, 0.2):
        bounds = loss.epsilon_bounds(delta)
        assert laplace_epsilon(delta, scale=2.0, sensitivity=3.0) in bounds
        assert bounds.width < 1e-6
    assert loss.compose(20).epsilon_bounds(1e-5).width < 1e-4


@pytest.mark.parametrize("scale", [1e150, 1e9, 1e7, 1e-4, 1e-8, 1e-9, 1e-150])
def test_laplace_bracket_holds_at_extreme_scales(scale):
    loss = laplace_loss(scale=scale, cells=1 << 10)
    for delta in (0.0, 1e-6, 0.3):
        bounds = loss.epsilon_bounds(delta)
        assert laplace_epsilon(delta, scale=scale) in bounds
        assert bounds.width <= max(2e-3 / scale, 8e-15 / scale)
    many = loss.compose(1000)
    assert many.epsilon_bounds(0.0).lower <= 1000 / scale <= many.epsilon_bounds(0.0).upper
    if scale > 1:
        # A fair coin of two losses -1 / scale and 1 / scale nearly: by the central limit theorem up to 1 / 1000.
        limit = gaussian_epsilon(1000**0.5 / scale, 1e-6)
        assert many.epsilon(1e-6) == pytest.approx(limit, rel=1e-3, abs=1e-15 / scale)


@pytest.mark.parametrize("scale", [1e-150, 1e-9, 0.002, 1e9, 1e150])
def test_geometric_noise_of_extreme_scale_is_a_sum_of_its_losses(scale):
    # Losses -1 / scale and 1 / scale: with q = exp(-1 / scale) the top one has mass 1 / (1 + q).
    loss = geometric_loss(scale=scale)
    share = 1 / (1 + np.exp(-1 / scale))
    for delta in (0.0, 1e-6, 0.3):
        exact = max(0.0, 1 / scale + np.log1p(-delta / share))
        bounds = loss.epsilon_bounds(delta)
        assert bounds.lower * (1 - 1e-12) <= exact <= bounds.upper * (1 + 1e-12)
    assert 1000 / scale in loss.compose(1000).epsilon_bounds(0.0)


@pytest.mark.parametrize(("stddev", "move"), [(1e-150, 1), (1e-9, 3), (0.02, 1), (1.0, 10**12), (5.0, 10**6)])
def test_discrete_gaussian_noise_far_below_the_sensitivity_hides_nothing(stddev, move):
    # Every outcome within 40 stddev of the centre has a loss near move**2 / (2 stddev**2), far above 1.
    options = {"stddev": stddev, "sensitivity": move}
    loss = discrete_gaussian_loss(**options)
    assert loss.delta([0.0, 1.0]) == pytest.approx(1.0, abs=1e-12)
    found = loss.epsilon_bounds(1e-6)
    least, most = ((0.5 * move + x) * (move / stddev**2) for x in (-6 * stddev, 6 * stddev))
    assert least * (1 - 1e-9) - 1 <= found.lower <= found.upper <= most * (1 + 1e-9)


@pytest.mark.parametrize("categories", [2, 3, 10])
@pytest.mark.parametrize("truth", [0.05, 0.5, 0.9])
def test_randomized_response_curve_is_the_sum_over_its_law(categories, truth):
    lie = (1 - truth) / (categories - 1)
    p, q = np.full(categories, lie), np.full(categories, lie)
    p[0] = q[1] = truth
    pair = PrivacyLoss.from_pmfs(np.log(p), np.log(q))
    ours = randomized_response_loss(truth_probability=truth, categories=categories)
    for epsilon in (0.0, 0.5, 2.0):
        closed = np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0))
        assert closed in pair.delta_bounds(epsilon)
        assert closed == pytest.approx(ours.delta(epsilon), abs=1e-13)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble])
def test_a_probability_of_another_type_is_the_double_of_its_value(kind):
    truth = kind(0.7)
    options, same = {"truth_probability": truth, "categories": np.uint8(250)}, {"truth_probability": float(truth)}
    same["categories"] = 250
    for runs in (1, 1000):
        ours, expected = (randomized_response_loss(**o).compose(runs) for o in (options, same))
        assert ours.epsilon_bounds(0.0) == expected.epsilon_bounds(0.0)
    exact = np.log(float(truth)) - np.log((1 - float(truth)) / 249)
    assert exact in randomized_response_loss(**options).epsilon_bounds(0.0)


@pytest.mark.parametrize("delta", [0.0, 1e-12, 1e-4, 0.05])
def test_epsilon_inverts_delta(delta):
    for loss in (
        geometric_loss(scale=3.0, sensitivity=2),
        randomized_response_loss(truth_probability=0.8),
        discrete_gaussian_loss(stddev=3.0),
    ):
        epsilon = loss.epsilon(delta)
        assert epsilon == np.inf or loss.delta(epsilon) == pytest.approx(delta, rel=1e-9, abs=1e-14)


def test_geometric_noise_on_a_finer_lattice_tends_to_laplace_noise():
    fine = geometric_loss(scale=2000.0, sensitivity=1000).delta(0.4)
    assert fine == pytest.approx(laplace_delta(0.4, scale=2.0), rel=1e-3)


def test_composed_integer_noise_is_exact_to_rounding():
    for loss in (geometric_loss(scale=4.0, sensitivity=3), discrete_gaussian_loss(stddev=5.0)):
        assert loss.compose(200).epsilon_bounds(1e-9).width < 1e-8


RESPONSE = {"truth_probability": 0.5}


@pytest.mark.parametrize(
    ("form", "given", "match"),
    [
        (laplace_loss, {"scale": 1e-10, "sensitivity": 1e300}, r"sensitivity of 1e\+300 over noise of spread 1e-10 is"),
        (laplace_loss, {"scale": 1e-320}, "over noise of spread .* check the unit of both"),
        (laplace_loss, {"scale": 1e300, "sensitivity": 1e-10}, "over noise of spread .* check the unit of both"),
        (laplace_loss, {"scale": 1.0, "cells": 1}, "cells must be a whole number from 2"),
        (geometric_loss, {"scale": 0.0}, "scale must be positive and finite, got 0.0"),
        (geometric_loss, {"scale": 1.0, "sensitivity": 1.5}, "sensitivity must be a whole number, got 1.5"),
        (geometric_loss, {"scale": 1.0, "sensitivity": 1 << 21}, "needs a list of as many losses"),
        (geometric_loss, {"scale": 1e-300}, "sensitivity of 1 over noise of spread 1e-300"),
        (discrete_gaussian_loss, {"stddev": 1e-160}, "sensitivity of 1 over noise of spread 1e-160"),
        (discrete_gaussian_loss, {"stddev": 1.0, "sensitivity": 1e300}, r"sensitivity of 1e\+300 over noise"),
        (discrete_gaussian_loss, {"stddev": 1e7}, "stddev must be at most 1e6, got 1e"),
        (randomized_response_loss, {"truth_probability": 1.0}, "truth_probability must lie strictly between 0 and 1"),
        (randomized_response_loss, RESPONSE | {"categories": 1}, "whole number of at least 2, got 1"),
        (randomized_response_loss, RESPONSE | {"categories": np.nan}, "categories must be a number"),
        (randomized_response_loss, RESPONSE | {"categories": None}, "categories must be a number, got"),
        (randomized_response_loss, RESPONSE | {"categories": 10**400}, "categories must be real and"),
        (randomized_response_loss, {"truth_probability": 1e-320}, "too small for doubles; move it away from 0"),
        (randomized_response_loss, {"truth_probability": None}, "must be a number, got None"),
        (randomized_response_loss, {"truth_probability": "0.7"}, "truth_probability must be real and"),
        (geometric_loss(scale=1.0).delta, {"epsilon": [0.5, 10**400]}, "epsilon must be real and within the range"),
        (geometric_loss(scale=1.0).epsilon, {"delta": [0.5]}, "delta must be a number, got"),
        (geometric_loss(scale=1.0).epsilon, {"delta": "0.1"}, "delta must be real and .*, got '0.1'; give it as plain"),
    ],
)
def test_a_refusal_gives_the_value(form, given, match):
    with pytest.raises(InputError, match=match):
        form(**given)


@pytest.mark.parametrize(
    "form",
    [
        lambda **a: geometric_loss(scale=2.0, **a).epsilon(0.1),
        lambda **a: laplace_loss(scale=2.0, **a).epsilon(0.1),
        lambda **a: discrete_gaussian_loss(stddev=2.0, **a).epsilon(0.1),
        lambda **a: gaussian_stddev(1.0, 1.0, 1e-5, **a),
    ],
)
def test_every_form_that_takes_a_sensitivity_states_its_relation(form):
    assert form() == form(adjacency="replace-one") == form(adjacency="add-remove")
    with pytest.raises(InputError, match="adjacency must be 'replace-one'"):
        form(adjacency="substitute")


def test_losses_of_different_relations_do_not_compose():
    one = geometric_loss(scale=2.0, sensitivity=2, adjacency="replace-one")
    two = laplace_loss(scale=2.0, adjacency="add-remove")
    with pytest.raises(InputError, match="do not compose"):
        one.compose(two)
    assert one.compose(one).adjacency == "replace-one"
