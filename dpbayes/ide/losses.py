r"""The negative log-likelihood of released counts, averaged over what the estimate leaves uncertain.

For one cell with noise density h and an exact count known to the estimate up to a normal error of variance V,

.. math:: \ell(r) = E_{u \sim N(0, V)}\bigl[-\log h(r + u)\bigr] - \text{const},

r being the released count minus the predicted one. It is the likelihood term of the Gaussian variational bound on the
posterior, convex in r whatever V. At V = 0 it is the noise law itself: :math:`|r|/s` for two-sided geometric and
Laplace noise (the convex extension of the discrete law's negative log-pmf to the reals), :math:`r^2/2\sigma^2` for the
two Gaussians, where V changes only a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfinv

from dpbayes.ide.measurements import Measurements
from dpbayes.privacy.noise import Laplace, TwoSidedGeometric

__all__ = ["NoiseLoss", "noise_loss"]

type Floats = npt.NDArray[np.float64]

_ROOT_PI = math.sqrt(math.pi)
# A count is a whole number and the prediction is not: rounding leaves at least the variance of a unit interval.
_ROUNDING = 1.0 / 12.0


@dataclass(frozen=True, eq=False)
class NoiseLoss:
    """Convex losses of a vector of cells, with their conjugates.

    Parameters
    ----------
    absolute
        Whether each cell's noise has exponential tails (two-sided geometric, Laplace) rather than Gaussian ones.
    scale
        Its scale, or its standard deviation; in counts.
    smoothing
        V of each cell, in squared counts, positive; not used for Gaussian noise.
    """

    absolute: npt.NDArray[np.bool_]
    scale: Floats
    smoothing: Floats

    def __getitem__(self, cells: npt.NDArray[np.bool_]) -> NoiseLoss:
        return NoiseLoss(self.absolute[cells], self.scale[cells], self.smoothing[cells])

    @property
    def _width(self) -> Floats:
        return np.sqrt(2.0 * self.smoothing)

    def value(self, residual: Floats) -> Floats:
        """Return the loss at residuals, in nats."""
        x = residual / self._width
        folded = (residual * erf(x) + self._width / _ROOT_PI * np.exp(-(x**2))) / self.scale
        return np.where(self.absolute, folded, 0.5 * (residual / self.scale) ** 2)

    def slope(self, residual: Floats) -> Floats:
        """Return the derivative, per count."""
        return np.where(self.absolute, erf(residual / self._width) / self.scale, residual / self.scale**2)

    def curvature(self, residual: Floats) -> Floats:
        """Return the second derivative, per squared count."""
        folded = 2.0 / (self._width * _ROOT_PI * self.scale) * np.exp(-((residual / self._width) ** 2))
        return np.where(self.absolute, folded, 1.0 / self.scale**2)

    def conjugate(self, slope: Floats) -> Floats:
        """Return the convex conjugate at slopes strictly inside `bound`."""
        x = erfinv(np.where(self.absolute, slope * self.scale, 0.0))
        folded = -self._width / (_ROOT_PI * self.scale) * np.exp(-(x**2))
        return np.where(self.absolute, folded, 0.5 * (slope * self.scale) ** 2)

    def residual(self, slope: Floats) -> Floats:
        """Return the residual at which the loss has a slope: the derivative of the conjugate."""
        x = erfinv(np.where(self.absolute, slope * self.scale, 0.0))
        return np.where(self.absolute, self._width * x, slope * self.scale**2)

    @property
    def bound(self) -> Floats:
        """Largest size of a slope: 1 / scale, or infinite for Gaussian noise."""
        return np.where(self.absolute, 1.0 / self.scale, np.inf)


def noise_loss(measurements: Measurements, smoothing: Floats | float) -> NoiseLoss:
    """Return the losses of all cells.

    Parameters
    ----------
    measurements
        The released counts and their noise laws.
    smoothing
        Variance of each exact count given the estimate, in squared counts; it is raised to at least 1/12, the variance
        that rounding leaves.

    Examples
    --------
    Far out the loss of a geometric law grows by 1 / scale a count:

    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> loss = noise_loss(measurements, 50.0)
    >>> zero, far = loss.value(np.zeros(40))[0], loss.value(np.full(40, 200.0))[0]
    >>> round(float(far - zero), 1), measurements.tables[0].noise.scale
    (9.7, 20.0)
    """
    laws = [table.noise for table in measurements.tables]
    absolute = [isinstance(law, TwoSidedGeometric | Laplace) for law in laws]
    scale = [law.scale if isinstance(law, TwoSidedGeometric | Laplace) else law.stddev for law in laws]
    wide = measurements.cells.per_cell([1.0] * len(laws)) * np.maximum(smoothing, _ROUNDING)
    return NoiseLoss(measurements.cells.per_cell(absolute) > 0, measurements.cells.per_cell(scale), wide)
