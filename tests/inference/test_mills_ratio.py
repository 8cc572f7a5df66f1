"""The Mills ratio in compiled code, beside scipy's scaled complementary error function."""

import numpy as np
import pytest
from scipy.special import erfcx

from dpbayes.inference.mills_ratio import mills_ratio


def test_is_the_scaled_error_function():
    for z in (*np.linspace(0.0, 60.0, 5_000), *np.logspace(-12, 200, 1_000)):
        expected = np.sqrt(np.pi / 2) * erfcx(z / np.sqrt(2))
        assert mills_ratio(z) == pytest.approx(expected, rel=4e-15, abs=0)  # scipy's own error included


def test_infinitely_far_out_it_is_zero():
    assert mills_ratio(np.inf) == 0.0
