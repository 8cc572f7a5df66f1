"""The Gaussian law."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import number, probability_below_one
from dpbayes.privacy import _graphs
from dpbayes.privacy._calibration import epsilon_from_scale
from dpbayes.privacy._laws import ConcentratedNoise

__all__ = ["Gaussian"]

# Relative error that the closed-form curve allows itself; added on the safe side.
_CURVE_ERROR = 1e-12


@dataclass(frozen=True, slots=True)
class Gaussian(ConcentratedNoise):
    r"""The Gaussian law on the real line.

    Added to reals whose L2 sensitivity is :math:`\Delta`, it costs :math:`\rho = \Delta^2/2\sigma^2` of zCDP (Bun and
    Steinke 2016, Proposition 1.6) and, exactly, the curve delta(epsilon) of Balle and Wang 2018, Theorem 8. A release
    must draw it on a lattice, see `dpbayes.privacy.sampling.release_values`.

    Parameters
    ----------
    stddev
        sigma, in the unit of the released values; positive and finite.

    Raises
    ------
    InputError
        If the stddev is no positive finite number.

    Examples
    --------
    >>> law = Gaussian(2.0)
    >>> law.variance, law.rho(sensitivity=1)
    (4.0, 0.125)
    """

    name: ClassVar[str] = "gaussian"
    is_discrete: ClassVar[bool] = False

    @classmethod
    def from_epsilon(cls, epsilon: float, *, delta: float, sensitivity: float) -> Self:
        """Return the law with the least noise that is (epsilon, delta)-DP, by the exact curve.

        Parameters
        ----------
        epsilon, delta
            The cost of one release.
        sensitivity
            Largest L2 change of the released values between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If one of them is out of range.

        Notes
        -----
        Balle and Wang (2018), Theorem 8; 1e-12 of the stddev is added for the rounding of the curve.

        Examples
        --------
        >>> round(Gaussian.from_epsilon(1.0, delta=1e-5, sensitivity=1).stddev, 8)
        3.73063163
        """
        from dpbayes.privacy.gaussian import gaussian_stddev

        cost = number(epsilon, "epsilon"), number(delta, "delta")
        return cls(gaussian_stddev(number(sensitivity, "sensitivity"), *cost) * (1.0 + _CURVE_ERROR))

    def epsilon(self, *, delta: float, sensitivity: float) -> float:
        """Return the smallest epsilon of one release at `delta`, by the exact curve.

        Parameters
        ----------
        delta
            Strictly between 0 and 1.
        sensitivity
            Largest L2 change of the released values between neighbours, under the caller's adjacency.
        """
        from dpbayes.privacy.gaussian import gaussian_epsilon

        mu = epsilon_from_scale(self.stddev, sensitivity)  # sensitivity / stddev, rounded upwards
        return gaussian_epsilon(mu, number(delta, "delta")) * (1.0 + _CURVE_ERROR)

    @property
    def variance(self) -> float:
        """The variance, stddev^2."""
        return self.stddev * self.stddev

    def log_prob(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the log-density at `x`, an array of any shape.

        Returns
        -------
        numpy.ndarray
            float64 of the same shape.
        """
        values = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore"):
            log_density = -0.5 * (values / self.stddev) ** 2
        return np.asarray(log_density - (math.log(self.stddev) + 0.5 * math.log(2.0 * math.pi)))

    def logp(self, x: Any) -> Any:
        """Return the log-density as a PyTensor graph, see `dpbayes.privacy.noise.gaussian_logp`."""
        return _graphs.gaussian_logp(x, self.stddev)

    def sf(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return P(X > x); relative precision is kept in the upper tail down to 1e-300."""
        return self.cdf(-np.asarray(x, dtype=np.float64))

    def cdf(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return P(X <= x); relative precision is kept in the lower tail."""
        from scipy.special import ndtr

        with np.errstate(over="ignore"):
            return np.asarray(ndtr(np.asarray(x, dtype=np.float64) / self.stddev))

    def tail_radius(self, mass: float) -> float:
        r"""Return a number r with P(\|X\| > r) <= `mass`, by the Chernoff bound 2 exp(-r^2 / 2 sigma^2)."""
        share = probability_below_one(mass, "mass", remedy="it is the probability outside the radius")
        return math.nextafter(self.stddev * math.sqrt(2.0 * math.log(2.0 / share)), math.inf)
