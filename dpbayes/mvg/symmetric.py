r"""Symmetric Gaussian noise for covariance queries.

The noise is :math:`E = F G F^T` with :math:`F F^T` the shape and G symmetric: :math:`G_{ii} \sim N(0, \sigma^2)`,
:math:`G_{ij} \sim N(0, \sigma^2/2)`, independent on and above the diagonal. Its density depends on
:math:`\|F^{-1} E F^{-T}\|_F` alone, so the release is a Gaussian mechanism with mu = (whitened Frobenius sensitivity)
/ sigma; m(m+1)/2 numbers are drawn and the result stays symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite
from dpbayes.errors import InputError
from dpbayes.mvg.accounting import mu_for
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.mvg.moments import MomentQuery
from dpbayes.mvg.vertices import Maximum
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.gaussian import gaussian_delta, gaussian_epsilon

__all__ = ["SymmetricGaussian", "calibrate_moments"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SymmetricGaussian:
    """Symmetric noise for a moment query, with its exact price.

    Parameters
    ----------
    query
        What is asked, with its adjacency.
    stddev
        sigma, in units of the whitened moments.
    shape
        Shape over the features, m x m; the identity when None.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [2.0, 2.0], "replace-one"), n=100)
    >>> SymmetricGaussian(query, stddev=0.1).mu.value
    0.282842712474619
    """

    query: MomentQuery
    stddev: float
    shape: CovarianceLike | None = None

    def __post_init__(self) -> None:
        remedy = "calibrate_moments finds it from epsilon and delta"
        object.__setattr__(self, "stddev", positive_finite(self.stddev, "stddev", remedy=remedy))
        size = self.query.ranges.size
        shape = Covariance.identity(size) if self.shape is None else as_covariance(self.shape, "shape", size=size)
        object.__setattr__(self, "shape", shape)

    @property
    def row_cov(self) -> Covariance:
        """The shape over all rows of the moment matrix, with a one for the intercept."""
        assert isinstance(self.shape, Covariance)
        if self.query.intercept is None:
            return self.shape
        matrix = np.eye(self.query.size)
        matrix[1:, 1:] = self.shape.matrix()
        return Covariance.from_matrix(matrix)

    @cached_property
    def mu(self) -> Maximum:
        """Sensitivity over stddev, and whether the sensitivity is attained or an upper bound."""
        assert self.shape is not None
        found = self.query.sensitivity(self.shape)
        return Maximum(found.value / self.stddev, found.method, found.lower / self.stddev)

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.query.ranges.adjacency

    @property
    def variances(self) -> FloatArray:
        r"""Noise variance of every entry, :math:`\sigma^2 (\Sigma_{ii} \Sigma_{jj} + \Sigma_{ij}^2) / 2`.

        Under replace-one the corner of an intercept is a known constant and carries no noise: its variance is 0.
        """
        matrix = self.row_cov.matrix()
        diagonal = np.diagonal(matrix)
        variances = self.stddev**2 * (np.outer(diagonal, diagonal) + matrix**2) / 2.0
        if self.query.intercept is not None and self.adjacency == "replace-one":
            variances[0, 0] = 0.0
        return np.asarray(variances)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at this `delta` (an upper bound when mu is one)."""
        return gaussian_epsilon(self.mu.value, delta)

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta at this `epsilon` (an upper bound when mu is one)."""
        return gaussian_delta(self.mu.value, epsilon)


def calibrate_moments(
    query: MomentQuery,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    mu: float | None = None,
    shape: CovarianceLike | None = None,
) -> SymmetricGaussian:
    """Return symmetric noise of a given shape that just satisfies a guarantee.

    Parameters
    ----------
    query
        What is asked.
    epsilon, delta
        The guarantee; or
    mu
        its Gaussian price, for example one part of `split_mu`.
    shape
        Shape over the features; the identity when None.

    Returns
    -------
    SymmetricGaussian
        Its ``mu.value`` is the price asked for.

    Raises
    ------
    InputError
        If neither or both of mu and (epsilon, delta) are given, or a value is out of range.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [2.0, 2.0], "replace-one"), n=100)
    >>> round(calibrate_moments(query, epsilon=1.0, delta=1e-5).stddev, 6)
    0.105518
    """
    if mu is None:
        if epsilon is None or delta is None:
            raise InputError(f"give epsilon and delta, or mu; got epsilon {epsilon}, delta {delta}, mu {mu}")
        price = mu_for(epsilon, delta)
    elif epsilon is not None or delta is not None:
        raise InputError("give either mu or epsilon and delta, not both")
    else:
        price = positive_finite(mu, "mu", remedy="it is the Gaussian price of the release")
    row = Covariance.identity(query.ranges.size) if shape is None else as_covariance(shape, "shape")
    return SymmetricGaussian(query, query.sensitivity(row).value / price, row)
