"""Exact curves of single and composed pairs against enumeration and published numbers."""

import numpy as np
import pytest
from scipy.stats import binom

from dpbayes.errors import InputError
from dpbayes.privacy.curves import PrivacyLoss


def bloom_filter(m: int, ones: int, p: float) -> PrivacyLoss:
    """Output ones of a shuffled and flipped filter under D (`ones` ones in) and D' (one more), by convolution."""

    def pmf(count: int) -> np.ndarray:
        kept = binom.pmf(np.arange(count + 1), count, 1 - p)
        return np.convolve(kept, binom.pmf(np.arange(m - count + 1), m - count, p))

    with np.errstate(divide="ignore"):
        return PrivacyLoss.from_pmfs(np.log(pmf(ones)), np.log(pmf(ones + 1)), log_error=1e-11)


@pytest.mark.parametrize(
    ("ones", "quantile", "tight"), [(0, 1.2417131323, 0.9082699818), (50, 0.7926389842, 0.6113232874)]
)
def test_one_bloom_filter_reproduces_the_enumerated_numbers(ones, quantile, tight):
    pair = bloom_filter(100, ones, 0.1)
    assert pair.quantile_epsilon(1e-3) == pytest.approx(quantile, abs=2e-10)
    assert pair.epsilon(1e-3) == pytest.approx(tight, abs=2e-10)


@pytest.mark.parametrize("runs", [2, 7, 100])
@pytest.mark.parametrize("delta", [0.1, 1e-6, 1e-15])
def test_composed_randomized_response_equals_its_binomial_law(runs, delta):
    pair = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75])).compose(runs)
    heads = np.arange(runs + 1)
    losses = (2 * heads - runs) * np.log(3)
    exact = PrivacyLoss.from_losses(losses, binom.logpmf(heads, runs, 0.75), log_error=1e-12)
    for composed, enumerated in [
        (pair.epsilon_bounds(delta), exact.epsilon_bounds(delta)),
        (pair.quantile_bounds(delta), exact.quantile_bounds(delta)),
    ]:
        assert composed.lower <= enumerated.upper and enumerated.lower <= composed.upper
        assert composed.width < 1e-8


def test_losses_of_different_adjacency_do_not_compose():
    pair = [np.log([0.5, 0.5])] * 2
    one = PrivacyLoss.from_pmfs(*pair, adjacency="replace-one")
    with pytest.raises(InputError, match="do not compose"):
        one.compose(PrivacyLoss.from_pmfs(*pair, adjacency="add-remove"))
