"""The prior of a number of records that was released with noise."""

import numpy as np
import pytest
from scipy import stats

from dpbayes.data import Domain
from dpbayes.latent_class import build_model
from dpbayes.latent_class.design import prior_of_n
from dpbayes.privacy import NoisyTable, NoisyTotal, Release
from dpbayes.privacy.laws import TwoSidedGeometric

DOMAIN = Domain.from_levels({"a": (0, 1), "b": (0, 1)})
NOISE, NOISE_OF_N = TwoSidedGeometric(40.0), TwoSidedGeometric(150.0)


def _release(number):
    """150 records in one table of four counts, and a number whose noise has a standard deviation of 212."""
    table = NoisyTable(DOMAIN, np.array([[60, 30], [40, 20]]), NOISE, 1.0, None)
    return Release(DOMAIN, (table,), "add-remove", NoisyTotal(number, NOISE_OF_N, 1.0, None), "simulation")


@pytest.mark.parametrize(
    ("number", "median"),
    [
        (130, (130 / NOISE_OF_N.variance + 150 / (4 * NOISE.variance))),
        (-900, None),  # an estimate below its own standard deviation
    ],
)
def test_the_model_has_the_prior_that_the_number_and_the_tables_centre(number, median):
    precision = 1 / NOISE_OF_N.variance + 1 / (4 * NOISE.variance)
    expected = precision**-0.5 if median is None else median / precision
    model = build_model(_release(number), n_classes=1)
    logp = model.compile_logp(vars=[model["n"]], jacobian=False)
    for n in (20.0, 490.0):
        found = logp(model.initial_point() | {"n_log__": np.array(np.log(n))})
        assert found == pytest.approx(stats.lognorm(s=1.0, scale=expected).logpdf(n), rel=1e-9)


@pytest.mark.parametrize("number", [-400, -60, 0, 130, 600])
def test_a_released_number_near_zero_does_not_hold_n_there(number):
    """The posterior of n by quadrature, the law of the table's sum taken for normal.

    Under a prior about the released number alone, the 95 % interval was 0 to 8 for a released -60.
    """
    mean, scale = prior_of_n(_release(number))
    n = np.arange(1.0, 4000.0)
    log_p = stats.lognorm(s=scale, scale=np.exp(mean)).logpdf(n) + NOISE_OF_N.log_prob(number - n)
    log_p += stats.norm(scale=np.sqrt(4 * NOISE.variance)).logpdf(150 - n)
    p = np.exp(log_p - log_p.max())
    low, high = np.interp([0.025, 0.975], np.cumsum(p) / p.sum(), n)
    assert low < 100 < 200 < high
