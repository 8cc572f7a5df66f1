"""The coordinates of a half-normal scale, against SciPy's quantiles and the normal density."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from dpbayes.mvg.model import HalfNormalScore

Z = np.array([-7.0, -3.0, -0.5, 0.0, 1.0, 4.0, 8.5, 20.0, 35.0])


@pytest.fixture(scope="module", params=[0.3, 20.0])
def model(request):
    with pm.Model() as model:
        # PyTensor takes the logarithm of a Python float that single precision holds in single precision.
        pm.HalfNormal("tau", np.float64(request.param), shape=Z.shape, default_transform=HalfNormalScore())
    model.scale = request.param
    return model


def test_a_scale_is_the_quantile_of_its_coordinate(model):
    transform, inputs = HalfNormalScore(), model["tau"].owner.inputs
    tau = transform.backward(Z, *inputs).eval()
    # Both by upper tails; at z = -7 the scale is 1e-12 of s, whose tail keeps four digits.
    np.testing.assert_allclose(tau, stats.halfnorm.isf(stats.norm.sf(Z), scale=model.scale), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(transform.forward(tau, *inputs).eval()[1:], Z[1:], rtol=1e-9, atol=1e-12)


def test_the_prior_is_standard_normal(model):
    logp = model.compile_logp(sum=False)({"tau_score__": Z})[0]
    np.testing.assert_allclose(logp, stats.norm.logpdf(Z), rtol=1e-12, atol=1e-12)
    slope = model.compile_dlogp()({"tau_score__": Z})
    np.testing.assert_allclose(slope, -Z, rtol=1e-6, atol=1e-6)
