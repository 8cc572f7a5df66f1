"""The two-sided geometric law."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import probability_below_one
from dpbayes.privacy import _graphs
from dpbayes.privacy._laws import PureNoise

__all__ = ["TwoSidedGeometric", "at_integers"]


@dataclass(frozen=True, slots=True)
class TwoSidedGeometric(PureNoise):
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


def _rate(scale: float) -> float:
    """1 / scale; infinite where that overflows, which every formula here survives."""
    return 1.0 / scale if scale > 1e-300 else 1e300


def at_integers(values: npt.NDArray[np.float64], log_pmf: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Put -inf where `values` are no integers (infinities included), and keep NaN as NaN."""
    with np.errstate(invalid="ignore"):
        off = (values != np.floor(values)) | np.isinf(values)
    return np.asarray(np.where(off & ~np.isnan(values), -np.inf, log_pmf))
