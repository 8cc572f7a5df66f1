"""The laws of pure differential privacy: two-sided geometric and Laplace."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dpbayes.privacy import _graphs
from dpbayes.privacy._checks import float_up, positive_finite, probability_below_one

__all__ = ["Laplace", "TwoSidedGeometric"]

_SCALE_REMEDY = "the scale of the noise is sensitivity / epsilon"
_EPSILON_REMEDY = "it is the cost of the one release that this noise protects"
_SENSITIVITY_REMEDY = "it is the largest L1 change between neighbours, in the unit of the released values"


def _scale_from_epsilon(epsilon: float, sensitivity: float) -> float:
    """Smallest double scale with sensitivity / scale <= epsilon in exact arithmetic."""
    cost = positive_finite(epsilon, "epsilon", remedy=_EPSILON_REMEDY)
    change = positive_finite(sensitivity, "sensitivity", remedy=_SENSITIVITY_REMEDY)
    return float_up(Fraction(change) / Fraction(cost))


def _epsilon_from_scale(scale: float, sensitivity: float) -> float:
    """Smallest double that is not below sensitivity / scale."""
    change = positive_finite(sensitivity, "sensitivity", remedy=_SENSITIVITY_REMEDY)
    return float_up(Fraction(change) / Fraction(scale))


@dataclass(frozen=True, slots=True)
class TwoSidedGeometric:
    r"""The two-sided geometric (discrete Laplace) law on the integers.

    .. math:: P(X = x) = \tanh\frac{1}{2s}\; e^{-|x|/s}, \qquad x \in \mathbb Z.

    Added to integers whose L1 sensitivity is :math:`\Delta`, it costs exactly :math:`\varepsilon = \Delta / s`
    (Ghosh, Roughgarden and Sundararajan 2012, the geometric mechanism with :math:`\alpha = e^{-1/s}`).

    Parameters
    ----------
    scale
        s, in the unit of the counts; positive and finite.

    Raises
    ------
    InputError
        If the scale is no positive finite number.

    Examples
    --------
    >>> law = TwoSidedGeometric.from_epsilon(0.1, sensitivity=2)
    >>> law.scale, round(law.variance, 2), law.epsilon(sensitivity=2)
    (20.0, 799.83, 0.1)
    """

    name: ClassVar[str] = "two-sided-geometric"
    is_discrete: ClassVar[bool] = True

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive_finite(self.scale, "scale", remedy=_SCALE_REMEDY))

    @classmethod
    def from_epsilon(cls, epsilon: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that costs at most `epsilon`.

        Parameters
        ----------
        epsilon
            The pure-DP cost of one release; positive and finite.
        sensitivity
            Largest L1 change of the released integers between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If either is not positive and finite.

        Notes
        -----
        The quotient is rounded upwards, so the cost of the double that is stored never exceeds `epsilon`.
        """
        return cls(_scale_from_epsilon(epsilon, sensitivity))

    def epsilon(self, *, sensitivity: float) -> float:
        """Return the pure-DP cost of one release, sensitivity / scale rounded upwards.

        Parameters
        ----------
        sensitivity
            Largest L1 change of the released integers between neighbours, under the caller's adjacency.
        """
        return _epsilon_from_scale(self.scale, sensitivity)

    @property
    def mean(self) -> float:
        """The mean, 0."""
        return 0.0

    @property
    def variance(self) -> float:
        r"""The variance, :math:`2q / (1-q)^2` with :math:`q = e^{-1/s}`."""
        rate = _rate(self.scale)
        # expm1 keeps the digits that 1 - q loses at large scales.
        root = math.expm1(-rate)
        return 2.0 * math.exp(-rate) / root / root

    @property
    def _log_normalizer(self) -> float:
        # -log tanh(rate / 2), written so that neither a tiny nor a huge rate cancels.
        rate = _rate(self.scale)
        q = math.exp(-rate)
        log_one_minus_q = math.log(-math.expm1(-rate)) if rate < math.log(2.0) else math.log1p(-q)
        return math.log1p(q) - log_one_minus_q

    def log_prob(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the log-pmf: -inf where `x` is no integer, NaN where it is NaN.

        Parameters
        ----------
        x
            Array of any shape; unit of the counts.

        Returns
        -------
        numpy.ndarray
            float64 of the same shape.
        """
        values = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore"):
            log_pmf = -np.abs(values) / self.scale - self._log_normalizer
        return at_integers(values, log_pmf)

    def logp(self, x: Any) -> Any:
        """Return the log-pmf as a PyTensor graph, see `dpbayes.privacy.noise.two_sided_geometric_logp`."""
        return _graphs.two_sided_geometric_logp(x, self.scale)

    def sf(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        r"""Return P(X > x), :math:`q^m / (1 + q)` with :math:`m = \lfloor x \rfloor + 1` for :math:`x \ge 0`.

        Parameters
        ----------
        x
            Array of any shape; unit of the counts.

        Returns
        -------
        numpy.ndarray
            float64 of the same shape; relative precision is kept in the upper tail down to 1e-300.
        """
        return self._upper(np.floor(np.asarray(x, dtype=np.float64)) + 1.0)

    def cdf(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return P(X <= x); relative precision is kept in the lower tail. Arguments as in `sf`."""
        return self._upper(-np.floor(np.asarray(x, dtype=np.float64)))

    def _upper(self, m: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """P(X >= m) at integers m, which is P(X <= -m) by symmetry."""
        rate = _rate(self.scale)
        with np.errstate(over="ignore"):
            tail = np.exp(-np.maximum(m, 1.0 - m) * rate) / (1.0 + math.exp(-rate))
        return np.asarray(np.where(m >= 1.0, tail, 1.0 - tail))

    def tail_radius(self, mass: float) -> int:
        r"""Return an integer r with P(\|X\| > r) <= `mass`: where an enumeration may stop.

        Examples
        --------
        >>> TwoSidedGeometric(1.0).tail_radius(1e-12)
        29
        """
        share = probability_below_one(mass, "mass", remedy="it is the probability outside the radius")
        # P(|X| > r) = 2 q^(r+1) / (1 + q) <= 2 q^(r+1); the one cell to spare covers the rounding of the logarithm.
        return math.ceil(self.scale * math.log(2.0 / share))

    def to_dict(self) -> dict[str, Any]:
        """Return the record of this law that a release or a ledger stores."""
        return {"law": self.name, "scale": self.scale}


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
        object.__setattr__(self, "scale", positive_finite(self.scale, "scale", remedy=_SCALE_REMEDY))

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
        return cls(_scale_from_epsilon(epsilon, sensitivity))

    def epsilon(self, *, sensitivity: float) -> float:
        """Return the pure-DP cost of one release, sensitivity / scale rounded upwards.

        Parameters
        ----------
        sensitivity
            Largest L1 change of the released values between neighbours, under the caller's adjacency.
        """
        return _epsilon_from_scale(self.scale, sensitivity)

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


def _rate(scale: float) -> float:
    """1 / scale; infinite where that overflows, which every formula here survives."""
    return 1.0 / scale if scale > 1e-300 else 1e300


def at_integers(values: npt.NDArray[np.float64], log_pmf: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Put -inf where `values` are no integers (infinities included), and keep NaN as NaN."""
    with np.errstate(invalid="ignore"):
        off = (values != np.floor(values)) | np.isinf(values)
    return np.asarray(np.where(off & ~np.isnan(values), -np.inf, log_pmf))
