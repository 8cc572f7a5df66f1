r"""Every release that is possible, with its posterior and its probability.

Two-sided geometric noise makes every released count a whole number, and a count outside [0, M] tells as much as the
nearest end. So M + 1 values a count are all there are: the distribution of anything that is computed from a release is
a finite sum, and no simulation is needed. With the likelihood a product over the three counts, sums over all releases
and all true counts are matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, gammaln

from dpbayes.errors import InputError
from dpbayes.privacy.noise import TwoSidedGeometric
from dpbayes.verifier.checks import check_alpha, check_n_partitions
from dpbayes.verifier.coefficients import coefficient_table
from dpbayes.verifier.mechanism import SENSITIVITY
from dpbayes.verifier.mixture import check_prob
from dpbayes.verifier.nodes import hermite_quantile, node_table, peak

__all__ = ["MOST_PARTITIONS", "Releases", "releases_of"]

type FloatArray = npt.NDArray[np.float64]

MOST_PARTITIONS = 120
"""Largest M: the posterior of each of (M + 1)^3 releases is computed."""


@dataclass(frozen=True, eq=False)
class Releases:
    """Every release that is possible for one M, epsilon and prior, and its posterior. Made by `releases_of`.

    Parameters
    ----------
    n_partitions
        M.
    noise
        The noise law.
    alpha
        Dirichlet prior.
    prob
        Probability of the intervals.
    """

    n_partitions: int
    noise: TwoSidedGeometric
    alpha: tuple[float, ...]
    prob: float

    @cached_property
    def _kernel(self) -> FloatArray:
        """Likelihood of each clamped count (rows) at each true count (columns), up to a factor."""
        grid = np.arange(self.n_partitions + 1)
        return np.asarray(np.exp(-np.abs(grid[:, None] - grid[None, :]) / self.noise.scale))

    @cached_property
    def clamped(self) -> FloatArray:
        """Probability of each clamped count (columns) at each true count (rows)."""
        grid = np.arange(self.n_partitions + 1)
        pmf = np.exp(self.noise.log_prob(grid[None, :] - grid[:, None]))
        pmf[:, 0] = self.noise.cdf(-grid)
        pmf[:, -1] = self.noise.sf(self.n_partitions - 1 - grid)
        return np.asarray(pmf)

    @cached_property
    def _prior(self) -> FloatArray:
        """Prior probability of the true counts, shape (beyond, not beyond), 0 off the lattice."""
        size = self.n_partitions + 1
        counts = coefficient_table(self.n_partitions).counts
        k = np.arange(size)
        logs = sum((gammaln(a + k) - gammaln(k + 1.0))[counts[:, j]] for j, a in enumerate(self.alpha))
        prior = np.zeros((size, size))
        prior[counts[:, 0], counts[:, 1]] = np.exp(logs - np.max(logs))
        return prior / prior.sum()

    def integrate(self, values: FloatArray) -> FloatArray:
        """Sum a function of the true counts against prior and likelihood, for every release.

        Parameters
        ----------
        values
            Shape (beyond, not beyond).

        Returns
        -------
        numpy.ndarray
            Shape (failed, beyond, not beyond) of the released counts; divide by that of 1 for posterior means.
        """
        size = self.n_partitions + 1
        third = self.n_partitions - np.add.outer(np.arange(size), np.arange(size))
        inside = np.where(third >= 0, third, 0)
        weighted = np.where(third >= 0, self._prior * values, 0.0)
        out = np.empty((size, size, size))
        for failed in range(size):
            out[failed] = self._kernel @ (weighted * self._kernel[failed][inside]) @ self._kernel
        return out

    @cached_property
    def evidence(self) -> FloatArray:
        """Shape (failed, beyond, not beyond): likelihood of every release, up to a factor."""
        whole = self.integrate(np.ones_like(self._prior))
        # A release that no true counts can explain within the range of doubles has no weight anywhere either.
        return np.where(whole > 0, whole, np.inf)

    def prob_greater(self, threshold: float) -> FloatArray:
        """Posterior probability of r > threshold for every release."""
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold of r must lie in [0, 1], got {threshold!r}; r is a share of partitions")
        grid = np.arange(self.n_partitions + 1)
        above = betainc(self.alpha[1] + grid[None, :], self.alpha[0] + grid[:, None], 1 - threshold)
        return np.asarray(self.integrate(above) / self.evidence)

    @cached_property
    def summaries(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mode, lower and upper end of the equal-tailed interval of r for every release."""
        size = self.n_partitions + 1
        table = node_table(self.n_partitions, self.alpha)
        first, second = table.counts[:, 0], table.counts[:, 1]
        prior = self._prior[first, second]
        failed_kernel = self._kernel[:, table.counts[:, 2]] * prior[None, :]
        n = table.t.size
        out = np.empty((3, size, size * size))
        grid = np.zeros((2 * n, size, size))
        for failed in range(size):
            # Scatter the components onto (node, beyond, not beyond), then two products spread them over all releases.
            grid[:n, first, second] = table.cdf.T * failed_kernel[failed]
            grid[n:, first, second] = table.density.T * failed_kernel[failed]
            spread = (self._kernel @ grid @ self._kernel).reshape(2 * n, -1) / self.evidence[failed].ravel()
            cdf, density = np.ascontiguousarray(spread[:n].T), np.ascontiguousarray(spread[n:].T)
            ends = (1 - self.prob) / 2
            out[0, failed] = peak(table, density, unbounded=(self.alpha[0] < 1, self.alpha[1] < 1))
            out[1, failed] = hermite_quantile(table, cdf, density, ends)
            out[2, failed] = hermite_quantile(table, cdf, density, 1 - ends)
        mode, low, high = out.reshape(3, size, size, size)
        return mode, low, high

    def expect(self, values: FloatArray) -> FloatArray:
        """Average a function of the release over its noise, for every possible triple of true counts.

        Parameters
        ----------
        values
            Shape (failed, beyond, not beyond) of the released counts.

        Returns
        -------
        numpy.ndarray
            Shape (beyond, not beyond) of the true counts; NaN where they exceed M.
        """
        size = self.n_partitions + 1
        whole = np.einsum("fij,Ff->Fij", values, self.clamped, optimize=True)
        whole = np.einsum("Fij,Ii->FIj", whole, self.clamped, optimize=True)
        whole = np.einsum("FIj,Jj->FIJ", whole, self.clamped, optimize=True)
        beyond, other = np.indices((size, size))
        third = self.n_partitions - beyond - other
        return np.where(third >= 0, whole[np.where(third >= 0, third, 0), beyond, other], np.nan)

    def distribution(self, counts_pmf: FloatArray) -> FloatArray:
        """Return the probability of every release when the true counts have this distribution.

        Parameters
        ----------
        counts_pmf
            Shape (beyond, not beyond), summing to 1; 0 off the lattice.

        Returns
        -------
        numpy.ndarray
            Shape (failed, beyond, not beyond).
        """
        size = self.n_partitions + 1
        third = self.n_partitions - np.add.outer(np.arange(size), np.arange(size))
        inside = np.where(third >= 0, third, 0)
        weighted = np.where(third >= 0, counts_pmf, 0.0)
        out = np.empty((size, size, size))
        for failed in range(size):
            out[failed] = self.clamped.T @ (weighted * self.clamped[:, failed][inside]) @ self.clamped
        return out


@lru_cache(maxsize=4)
def _cached(n_partitions: int, scale: float, alpha: tuple[float, ...], prob: float) -> Releases:
    return Releases(n_partitions, TwoSidedGeometric(scale), alpha, prob)


def releases_of(
    n_partitions: int, *, epsilon: float, alpha: Sequence[float] | None = None, prob: float = 0.95
) -> Releases:
    """Return every release that is possible, with its posterior computed when asked for.

    Parameters
    ----------
    n_partitions
        M, at most 120.
    epsilon
        Cost of the release, under either adjacency; the noise is two-sided geometric of scale 2 / epsilon.
    alpha
        Dirichlet prior, three numbers of at least 1/2; all 1 by default.
    prob
        Probability of the intervals.

    Returns
    -------
    Releases
        Cached.

    Raises
    ------
    InputError
        If a parameter is out of range.

    Examples
    --------
    >>> every = releases_of(4, epsilon=1.0)
    >>> bool(np.isclose(every.distribution(np.eye(5)[::-1] / 5).sum(), 1))
    True
    """
    if check_n_partitions(n_partitions) > MOST_PARTITIONS:
        raise InputError(f"operating characteristics are exact up to M = {MOST_PARTITIONS}, got {n_partitions}")
    prior = check_alpha(alpha, 3)
    if min(prior[:2]) < 0.5:
        raise InputError(f"alpha must be at least 1/2 for both shares here, got {prior!r}")
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=SENSITIVITY)
    return _cached(n_partitions, law.scale, prior, check_prob(prob))
