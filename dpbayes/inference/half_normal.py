"""Coordinates for a scale with a half-normal prior."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform
from scipy.special import erf, erfc, ndtri

__all__ = ["HalfNormalScore", "log_slope"]


class HalfNormalScore(Transform):
    r"""Coordinates in which a half-normal scale is standard normal: :math:`2\Phi(\tau/s) - 1 = \Phi(z)`.

    Where noise hides a scale its posterior reaches down to zero, as its prior does. The logarithm of the scale then has
    a tail like exp(x), which a sampler crosses slowly; here it is a normal law's.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     tau = pm.HalfNormal("tau", 0.3, default_transform=HalfNormalScore())
    >>> logp = model.compile_logp()
    >>> [round(float(logp({"tau_score__": np.array(z)})), 4) for z in (-3.0, 0.0, 2.0)]  # the normal log-density
    [-5.4189, -0.9189, -2.9189]
    """

    name = "score"
    ndim_supp = 0

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the scale, by the upper tails: they keep their digits where a scale is many times `s`."""
        return np.sqrt(2.0) * inputs[-1] * pt.erfcinv(0.5 * pt.erfc(value / np.sqrt(2.0)))

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinate."""
        return np.sqrt(2.0) * pt.erfcinv(2.0 * pt.erfc(value / (np.sqrt(2.0) * inputs[-1])))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return log |d tau / dz|."""
        ratio = self.backward(value, *inputs) / inputs[-1]
        return 0.5 * (pt.sqr(ratio) - pt.sqr(value)) + pt.log(0.5 * inputs[-1])


def log_slope(scale: npt.NDArray[np.float64], s: float) -> npt.NDArray[np.float64]:
    """Return log |d tau / dz| of `HalfNormalScore` at positive scales: what turns their density into that of z.

    Parameters
    ----------
    scale
        Scales tau, of any shape and in the unit of `s`.
    s
        Scale of the half-normal prior.

    Examples
    --------
    >>> log_slope(np.array([0.3]), 0.3).round(4)  # z = 0.4752
    array([-1.51])
    """
    x = scale / (np.sqrt(2.0) * s)
    # By the tail that is small, which has all its digits.
    z = np.where(x < 0.5, ndtri(erf(x)), -ndtri(erfc(x)))
    return np.asarray(np.square(x) - 0.5 * np.square(z) + np.log(0.5 * s))
