"""The two-sided geometric law."""

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

__all__ = ["TwoSidedGeometric", "at_integers"]


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
        object.__setattr__(self, "scale", positive_finite(self.scale, "scale", remedy=SCALE_REMEDY))

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
        return cls(scale_from_epsilon(epsilon, sensitivity))

    @classmethod
    def from_rho(cls, rho: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that pure DP certifies to cost at most `rho` of zCDP.

        Parameters
        ----------
        rho
            The zCDP cost of one release; positive and finite.
        sensitivity
            Largest L1 change of the released integers between neighbours, under the caller's adjacency.

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
            Largest L1 change of the released integers between neighbours, under the caller's adjacency.
        """
        return epsilon_from_scale(self.scale, sensitivity)

    def rho(self, *, sensitivity: float) -> float:
        """Return a zCDP cost of one release: epsilon^2 / 2 (Bun and Steinke 2016, Proposition 1.4), an upper bound.

        Parameters
        ----------
        sensitivity
            Largest L1 change of the released integers between neighbours, under the caller's adjacency.
        """
        return rho_from_stddev(self.scale, sensitivity)

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


def _rate(scale: float) -> float:
    """1 / scale; infinite where that overflows, which every formula here survives."""
    return 1.0 / scale if scale > 1e-300 else 1e300


def at_integers(values: npt.NDArray[np.float64], log_pmf: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Put -inf where `values` are no integers (infinities included), and keep NaN as NaN."""
    with np.errstate(invalid="ignore"):
        off = (values != np.floor(values)) | np.isinf(values)
    return np.asarray(np.where(off & ~np.isnan(values), -np.inf, log_pmf))
