"""The Laplace law."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import probability_below_one
from dpbayes.privacy import _graphs
from dpbayes.privacy._laws import PureNoise

__all__ = ["Laplace"]


@dataclass(frozen=True, slots=True)
class Laplace(PureNoise):
    r"""The Laplace law on the real line.

    .. math:: p(x) = \frac{1}{2s}\, e^{-|x|/s}.

    Added to reals whose L1 sensitivity is :math:`\Delta`, it costs exactly :math:`\varepsilon = \Delta / s`
    (Dwork and Roth 2014, Theorem 3.6). A release must draw it on a lattice, see
    `dpbayes.privacy.sampling.release_values`.

    Parameters
    ----------
    scale
        s, in the unit of the released values; positive and finite.

    Raises
    ------
    InputError
        If the scale is no positive finite number.

    Examples
    --------
    >>> law = Laplace.from_epsilon(0.5, sensitivity=1)
    >>> law.scale, law.variance, float(law.sf(0.0))
    (2.0, 8.0, 0.5)
    """

    name: ClassVar[str] = "laplace"
    is_discrete: ClassVar[bool] = False

    @property
    def variance(self) -> float:
        """The variance, 2 scale^2."""
        return 2.0 * self.scale * self.scale

    def log_prob(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the log-density at `x`, an array of any shape.

        Returns
        -------
        numpy.ndarray
            float64 of the same shape.
        """
        values = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore"):
            # log 2 + log s, since 2 s overflows for the largest doubles.
            return np.asarray(-np.abs(values) / self.scale - (math.log(2.0) + math.log(self.scale)))

    def logp(self, x: Any) -> Any:
        """Return the log-density as a PyTensor graph, see `dpbayes.privacy.noise.laplace_logp`."""
        return _graphs.laplace_logp(x, self.scale)

    def sf(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return P(X > x); relative precision is kept in the upper tail down to 1e-300."""
        values = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore"):
            half = 0.5 * np.exp(-np.abs(values) / self.scale)
        return np.asarray(np.where(values >= 0, half, 1.0 - half))

    def cdf(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return P(X <= x); relative precision is kept in the lower tail."""
        return self.sf(-np.asarray(x, dtype=np.float64))

    def tail_radius(self, mass: float) -> float:
        r"""Return a number r with P(\|X\| > r) <= `mass`."""
        share = probability_below_one(mass, "mass", remedy="it is the probability outside the radius")
        return math.nextafter(-self.scale * math.log(share), math.inf)
