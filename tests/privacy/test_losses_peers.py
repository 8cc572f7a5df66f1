"""dp-accounting's pessimistic and optimistic estimates enclose ours, mechanism by mechanism, and ours is tighter.

Its losses are rounded to a grid of 1e-4 here, so its bracket has positive width wherever they are off the grid. Nine
mechanisms, two numbers of runs and three deltas make 54 cases.
"""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peer

from dpbayes.privacy.curves import gaussian_epsilon
from dpbayes.privacy.loss_law import Bounds
from dpbayes.privacy.losses import (
    PrivacyLoss,
    discrete_gaussian_loss,
    geometric_loss,
    laplace_loss,
    randomized_response_loss,
)

DELTAS = (1e-2, 1e-5, 1e-8)
RUNS = (1, 30)


class GaussianLoss:
    """The closed form behind the same two methods."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def compose(self, runs: int) -> "GaussianLoss":
        return GaussianLoss(self.mu * np.sqrt(runs))

    def epsilon_bounds(self, delta: float) -> Bounds:
        value = gaussian_epsilon(self.mu, delta)
        return Bounds(value * (1 - 1e-12), value * (1 + 1e-12))


def random_pair(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(size, 4.0))
    q = p * np.exp(generator.normal(0.0, 0.2, size))
    return np.log(p), np.log(q / q.sum())


def peer_pair(seed: int, size: int, **options):
    log_p, log_q = (dict(enumerate(values.tolist())) for values in random_pair(seed, size))
    return peer.from_two_probability_mass_functions(log_q, log_p, symmetric=False, **options)


def case(name, ours, build, *, dots=True):
    return pytest.param(ours, build, dots, id=name)


CASES = [
    case("gaussian 2", lambda: GaussianLoss(0.5), lambda **o: peer.from_gaussian_mechanism(2.0, **o)),
    case("gaussian 20", lambda: GaussianLoss(0.05), lambda **o: peer.from_gaussian_mechanism(20.0, **o)),
    case("laplace 1", lambda: laplace_loss(scale=1.0), lambda **o: peer.from_laplace_mechanism(1.0, **o)),
    case("laplace 20", lambda: laplace_loss(scale=20.0), lambda **o: peer.from_laplace_mechanism(20.0, **o)),
    case(
        "geometric 3, sensitivity 2",
        lambda: geometric_loss(scale=3.0, sensitivity=2),
        lambda **o: peer.from_discrete_laplace_mechanism(1 / 3.0, 2, **o),
    ),
    case(
        "discrete gaussian 4",
        lambda: discrete_gaussian_loss(stddev=4.0),
        lambda **o: peer.from_discrete_gaussian_mechanism(4.0, **o),
    ),
    case(
        "randomized response .6",
        lambda: randomized_response_loss(truth_probability=0.6),
        lambda **o: peer.from_randomized_response(0.8, 2, **o),
        dots=False,
    ),
    case(
        "five outcomes, asymmetric",
        lambda: PrivacyLoss.from_pmfs(*random_pair(5, 5)),
        lambda **o: peer_pair(5, 5, **o),
        dots=False,
    ),
    case(
        "three hundred outcomes, asymmetric",
        lambda: PrivacyLoss.from_pmfs(*random_pair(6, 300)),
        lambda **o: peer_pair(6, 300, **o),
        dots=False,
    ),
]


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize(("ours", "build", "dots"), CASES)
def test_epsilon_lies_inside_the_bracket_of_dp_accounting_and_is_tighter(ours, build, dots, runs):
    options = {"use_connect_dots": True} if dots else {}
    above = build(pessimistic_estimate=True, value_discretization_interval=1e-4, **options).self_compose(runs)
    options = {"use_connect_dots": False} if dots else {}
    below = build(pessimistic_estimate=False, value_discretization_interval=1e-4, **options).self_compose(runs)
    loss = ours().compose(runs)
    for delta in DELTAS:
        bounds = loss.epsilon_bounds(delta)
        outer = Bounds(below.get_epsilon_for_delta(delta), above.get_epsilon_for_delta(delta))
        # Its ends are estimates, not certificates: it drops 1e-15 of mass, a share of 1e-7 of the smallest delta here,
        # and an FFT in doubles leaves as much again; d epsilon / d ln delta is below 1 in every case.
        slack = 2e-7
        assert outer.lower - slack <= bounds.lower <= bounds.upper <= outer.upper + slack
        assert bounds.width <= max(0.5 * outer.width, slack)
