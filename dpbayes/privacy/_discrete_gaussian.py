"""The discrete Gaussian law."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import probability_below_one
from dpbayes.privacy import _graphs
from dpbayes.privacy._geometric import at_integers
from dpbayes.privacy._laws import ConcentratedNoise

__all__ = ["DiscreteGaussian"]


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(ConcentratedNoise):
    r"""The discrete Gaussian law on the integers.

    .. math:: P(X = x) = \frac{e^{-x^2/2\sigma^2}}{\sum_{k \in \mathbb Z} e^{-k^2/2\sigma^2}}, \qquad x \in \mathbb Z.

    Added to integers whose L2 sensitivity is :math:`\Delta`, it costs :math:`\rho = \Delta^2/2\sigma^2` of zCDP
    (Canonne, Kamath and Steinke 2020, Theorem 4). `stddev` is the parameter sigma: the law's standard deviation is
    below it, and equals it to sixteen digits from sigma = 1.5 on.

    Parameters
    ----------
    stddev
        sigma, in the unit of the counts; positive and finite.

    Raises
    ------
    InputError
        If the stddev is no positive finite number.

    Examples
    --------
    >>> law = DiscreteGaussian.from_rho(0.5, sensitivity=3)
    >>> round(law.stddev, 12), round(law.variance, 12), law.rho(sensitivity=3) <= 0.5
    (3.0, 9.0, True)
    """

    name: ClassVar[str] = "discrete-gaussian"
    is_discrete: ClassVar[bool] = True

    @classmethod
    def from_epsilon(cls, epsilon: float, *, delta: float, sensitivity: float) -> Self:
        """Return a law that is (epsilon, delta)-DP by way of zCDP, in any dimension.

        Parameters
        ----------
        epsilon, delta
            The cost of one release; delta strictly between 0 and 1.
        sensitivity
            Largest L2 change of the released integers between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If one of them is out of range.

        Notes
        -----
        The exact curve of a vector depends on the direction of the change, not on its length alone; this bound does
        not (Canonne, Kamath and Steinke 2020, Corollary 13).
        """
        from dpbayes.privacy.zcdp import zcdp_rho

        return cls.from_rho(zcdp_rho(epsilon, delta), sensitivity=sensitivity)

    def epsilon(self, *, delta: float, sensitivity: float) -> float:
        """Return an epsilon of one release at `delta` by way of zCDP; an upper bound in any dimension.

        Parameters
        ----------
        delta
            Strictly between 0 and 1.
        sensitivity
            Largest L2 change of the released integers between neighbours, under the caller's adjacency.
        """
        from dpbayes.privacy.zcdp import zcdp_epsilon

        return zcdp_epsilon(self.rho(sensitivity=sensitivity), delta)

    @property
    def variance(self) -> float:
        """The exact variance: below stddev^2, and 2 exp(-1 / (2 stddev^2)) as stddev goes to 0."""
        sigma = self.stddev
        if sigma < _graphs.THETA_CROSSING:
            terms = _direct_terms(sigma)
            return _second_moment(terms) / (1.0 + 2.0 * sum(terms))
        terms = _dual_terms(sigma)
        curvature = (2.0 * math.pi * sigma) ** 2 * _second_moment(terms) if terms[0] > 0 else 0.0
        return sigma * sigma * (1.0 - curvature / (1.0 + 2.0 * sum(terms)))

    @property
    def _log_normalizer(self) -> float:
        sigma = self.stddev
        if sigma < _graphs.THETA_CROSSING:
            return math.log1p(2.0 * sum(_direct_terms(sigma)))
        # log sigma + log sqrt(2 pi), since the product overflows for the largest doubles.
        return math.log(sigma) + 0.5 * math.log(2.0 * math.pi) + math.log1p(2.0 * sum(_dual_terms(sigma)))

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
            log_pmf = -0.5 * (values / self.stddev) ** 2 - self._log_normalizer
        return at_integers(values, log_pmf)

    def logp(self, x: Any) -> Any:
        """Return the log-pmf as a PyTensor graph, see `dpbayes.privacy.noise.discrete_gaussian_logp`."""
        return _graphs.discrete_gaussian_logp(x, self.stddev)

    def tail_radius(self, mass: float) -> int:
        r"""Return an integer r with P(\|X\| > r) <= `mass`: where an enumeration may stop.

        By Poisson summation :math:`\sum_k e^{-(k-a)^2/2\sigma^2}` is largest at integer a, so
        :math:`E e^{tX} \le e^{t^2\sigma^2/2}` and Chernoff's bound :math:`2 e^{-r^2/2\sigma^2}` holds as for the
        Gaussian.

        Examples
        --------
        >>> DiscreteGaussian(1.0).tail_radius(1e-12)
        8
        """
        share = probability_below_one(mass, "mass", remedy="it is the probability outside the radius")
        return math.ceil(self.stddev * math.sqrt(2.0 * math.log(2.0 / share)))


def _direct_terms(sigma: float) -> list[float]:
    """exp(-k^2 / 2 sigma^2) for k = 1, 2, 3; all of them 0 where the square overflows."""
    ratio = 1.0 / max(sigma, 1e-3)
    return [math.exp(-0.5 * (k * ratio) ** 2) for k in _graphs.THETA_TERMS]


def _dual_terms(sigma: float) -> list[float]:
    """exp(-2 pi^2 sigma^2 k^2) for k = 1, 2, 3; all of them 0 from sigma = 10 on."""
    return [math.exp(-2.0 * (math.pi * k * min(sigma, 1e3)) ** 2) for k in _graphs.THETA_TERMS]


def _second_moment(terms: list[float]) -> float:
    return 2.0 * sum(k * k * term for k, term in zip(_graphs.THETA_TERMS, terms, strict=True))
