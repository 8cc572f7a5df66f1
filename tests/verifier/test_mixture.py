"""Mixtures of Beta distributions with weight nearer to an end of [0, 1] than double precision can tell."""

import numpy as np
import pytest

from dpbayes.privacy.noise import DiscreteGaussian, Laplace, TwoSidedGeometric
from dpbayes.verifier.exact import posterior_of_counts

# The doubles next to the ends at which quantiles stop.
LEAST, GREATEST = 4e-308, 1 - 2**-52

RELEASES = [
    ((4.0, -1.0, -3.0), DiscreteGaussian(0.3466509544498073), 2, (6.978285037805099, 0.010569382680890674, 28.9)),
    ((6.047777112765261, 13.47416557745878, 13.25995722297684), Laplace(6.069047631160639), 12, (0.0134, 0.0101, 14.4)),
    ((0.0, 5.0, 5.0), TwoSidedGeometric(1.0), 10, (0.001, 1.0, 1.0)),
    ((1.0, 0.0, 5.0), TwoSidedGeometric(2.0), 6, (0.001, 0.002, 1.0)),
]


@pytest.fixture(params=[*range(len(RELEASES))])
def mixtures(request):
    noisy, law, m, alpha = RELEASES[request.param]
    swapped = [(values[1], values[0], values[2]) for values in (noisy, alpha)]
    return posterior_of_counts(noisy, law, m, alpha=alpha).r, posterior_of_counts(
        swapped[0], law, m, alpha=swapped[1]
    ).r


def test_quantiles_are_an_end_where_nothing_before_it_reaches_the_probability(mixtures):
    q = np.linspace(0.001, 0.999, 500)
    for mixture in mixtures:
        found = mixture.quantile(q)
        at_zero, below_one = mixture.cdf(LEAST), mixture.cdf(GREATEST)
        assert np.all(found[q < at_zero - 1e-3] == 0)
        assert np.all(found[q > at_zero + 1e-3] > 0)
        assert np.all(found[q > below_one + 1e-3] == 1)
        assert np.all(found[q < below_one - 1e-3] < 1)
        # In order, to the spacing of the log-odds' doubles next to 1.
        assert np.all(np.diff(found) >= -(2**-52))


def test_intervals_with_weight_at_an_end_hold_what_they_say(mixtures):
    for mixture in mixtures:
        for low, high in (mixture.interval(0.9), mixture.hdi(0.9)):
            # The ends belong to the interval.
            below = mixture.cdf(np.nextafter(low, 0)) if low > 0 else 0.0
            assert mixture.cdf(high) - below >= 0.9 - 1e-9
    one, other = (mixture.hdi(0.9) for mixture in mixtures)
    assert other[1] - other[0] == pytest.approx(one[1] - one[0], abs=1e-15)
    assert mixtures[0].interval(0.9)[1] == pytest.approx(1 - mixtures[1].interval(0.9)[0], abs=2**-52)
