"""Coordinates for a scale with a half-normal prior."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform
from scipy.special import erf, erfc, ndtri


class HalfNormalScore(Transform):
    r"""Coordinates in which a half-normal scale is standard normal: :math:`2\Phi(\tau/s) - 1 = \Phi(z)`."""

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
    """Return log |d tau / dz| of `HalfNormalScore` at positive scales: what turns their density into that of z."""
    x = scale / (np.sqrt(2.0) * s)
    # By the tail that is small, which has all its digits.
    z = np.where(x < 0.5, ndtri(erf(x)), -ndtri(erfc(x)))
    return np.asarray(np.square(x) - 0.5 * np.square(z) + np.log(0.5 * s))
