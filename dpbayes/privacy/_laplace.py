"""The Laplace law."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dpbayes.privacy import _graphs
from dpbayes.privacy._calibration import (
    SCALE_REMEDY,
    epsilon_from_scale,
    rho_from_stddev,
    scale_from_epsilon,
    stddev_from_rho,
)
from dpbayes.privacy._checks import positive_finite, probability_below_one

__all__ = ["Laplace"]


@dataclass(frozen=True, slots=True)
class Laplace:
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

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive_finite(self.scale, "scale", remedy=SCALE_REMEDY))

    @classmethod
    def from_epsilon(cls, epsilon: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that costs at most `epsilon`.

        Parameters
        ----------
        epsilon
            The pure-DP cost of one release; positive and finite.
        sensitivity
            Largest L1 change of the released values between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If either is not positive and finite.
        """
        return cls(scale_from_epsilon(epsilon, sensitivity))

    @classmethod
    def from_rho(cls, rho: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that pure DP certifies to cost at most `rho` of zCDP.

        Parameters
        ----------
        rho
            The zCDP cost of one release; positive and finite.
        sensitivity
            Largest L1 change of the released values between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If either is not positive and finite.
        """
        return cls(stddev_from_rho(rho, sensitivity))

    def epsilon(self, *, sensitivity: float) -> float:
        """Return the pure-DP cost of one release, sensitivity / scale rounded upwards.

        Parameters
        ----------
        sensitivity
            Largest L1 change of the released values between neighbours, under the caller's adjacency.
        """
        return epsilon_from_scale(self.scale, sensitivity)

    def rho(self, *, sensitivity: float) -> float:
        """Return a zCDP cost of one release: epsilon^2 / 2 (Bun and Steinke 2016, Proposition 1.4), an upper bound.

        Parameters
        ----------
        sensitivity
            Largest L1 change of the released values between neighbours, under the caller's adjacency.
        """
        return rho_from_stddev(self.scale, sensitivity)

    @property
    def mean(self) -> float:
        """The mean, 0."""
        return 0.0

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

    def to_dict(self) -> dict[str, Any]:
        """Return the record of this law that a release or a ledger stores."""
        return {"law": self.name, "scale": self.scale}
