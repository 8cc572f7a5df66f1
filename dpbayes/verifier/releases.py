r"""Every release that is possible, with its posterior and its probability.

Two-sided geometric noise makes every released count a whole number, and a count outside [0, M] tells as much as the
nearest end. So M + 1 values a count are all there are: the distribution of anything that is computed from a release is
a finite sum, and no simulation is needed. With the likelihood a product over the counts, sums over all releases and all
true counts are matrix products. Laplace noise is summed over the nodes of `dpbayes.verifier.count_grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, gammaln

from dpbayes.errors import InputError
from dpbayes.privacy.noise import Laplace, TwoSidedGeometric
from dpbayes.verifier.checks import check_alpha, check_n_partitions, check_share, given_alpha
from dpbayes.verifier.coefficients import coefficient_table
from dpbayes.verifier.count_grid import CountGrid, count_grid, no_count
from dpbayes.verifier.mechanism import law_of
from dpbayes.verifier.mixture import check_prob
from dpbayes.verifier.nodes import SMALLEST_ALPHA, NodeTable, hermite_quantile, node_table, peak

__all__ = ["Releases", "most_partitions", "releases_of"]

type FloatArray = npt.NDArray[np.float64]
type NoiseName = Literal["two-sided-geometric", "laplace"]

# Values of a count, by the number of counts released: eight million releases of three, and as much work for two.
_MOST_VALUES = {3: 202, 2: 302}


@dataclass(frozen=True, eq=False)
class Releases:
    """Every release that is possible for one M, noise law and prior, and its posterior. Made by `releases_of`.

    Arrays over releases have shape (failed, beyond, not beyond); with two outcomes the first axis has length 1.

    Parameters
    ----------
    n_partitions
        M.
    noise
        The noise law.
    alpha
        Dirichlet prior, for three outcomes or two.
    prob
        Probability of the intervals.
    """

    n_partitions: int
    noise: TwoSidedGeometric | Laplace
    alpha: tuple[float, ...]
    prob: float

    @cached_property
    def grid(self) -> CountGrid:
        """Values of the beyond and of the not-beyond count."""
        return count_grid(self.noise, self.n_partitions)

    @cached_property
    def failed_grid(self) -> CountGrid:
        """Values of the failed count."""
        return self.grid if len(self.alpha) == 3 else no_count(self.n_partitions)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of arrays over releases."""
        n = self.grid.kernel.shape[0]
        return self.failed_grid.kernel.shape[0], n, n

    @cached_property
    def _third(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Failed count for each (beyond, not beyond), 0 where there is none, and whether the two are possible."""
        counts = np.arange(self.n_partitions + 1)
        third = self.n_partitions - np.add.outer(counts, counts)
        possible = third >= 0 if len(self.alpha) == 3 else third == 0
        return np.where(possible, third, 0), possible

    @cached_property
    def _prior(self) -> FloatArray:
        """Prior probability of the true counts, shape (beyond, not beyond), 0 off the lattice."""
        size = self.n_partitions + 1
        counts = coefficient_table(self.n_partitions, len(self.alpha)).counts
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
            Over releases; divide by that of 1 for posterior means.
        """
        third, possible = self._third
        weighted = np.where(possible, self._prior * values, 0.0)
        kernel, out = self.grid.kernel, np.empty(self.shape)
        for failed, likelihood in enumerate(self.failed_grid.kernel):
            out[failed] = kernel @ (weighted * likelihood[third]) @ kernel.T
        return out

    @cached_property
    def evidence(self) -> FloatArray:
        """Likelihood of every release, up to a factor."""
        whole = self.integrate(np.ones_like(self._prior))
        # A release that no true counts can explain within the range of doubles has no weight anywhere either.
        return np.where(whole > 0, whole, np.inf)

    def prob_greater(self, threshold: float) -> FloatArray:
        """Posterior probability of r > threshold for every release."""
        threshold = check_share(threshold, "threshold")
        grid = np.arange(self.n_partitions + 1)
        above = betainc(self.alpha[1] + grid[None, :], self.alpha[0] + grid[:, None], 1 - threshold)
        return np.asarray(self.integrate(above) / self.evidence)

    @cached_property
    def _components(self) -> tuple[NodeTable, FloatArray]:
        """Beta components at their nodes, and the prior at their lattice points."""
        table = node_table(self.n_partitions, self.alpha)
        return table, self._prior[table.counts[:, 0], table.counts[:, 1]]

    @cached_property
    def _summarized(self) -> dict[int, FloatArray]:
        return {}

    def summaries_at(self, failed: int) -> FloatArray:
        """Return mode, lower and upper end of the equal-tailed interval of r, for releases with one failed value.

        Parameters
        ----------
        failed
            Index of the failed value.

        Returns
        -------
        numpy.ndarray
            Shape (3, beyond, not beyond).
        """
        if failed not in self._summarized:
            table, prior = self._components
            first, second = table.counts[:, 0], table.counts[:, 1]
            weights = prior * self.failed_grid.kernel[failed][self.n_partitions - first - second]
            n, tail, size = table.t.size, (1 - self.prob) / 2, self.n_partitions + 1
            # Scatter the components onto (node, beyond, not beyond), then two products spread them over all releases.
            lattice = np.zeros((2 * n, size, size))
            lattice[:n, first, second] = table.cdf.T * weights
            lattice[n:, first, second] = table.density.T * weights
            kernel = self.grid.kernel
            spread = (kernel @ lattice @ kernel.T).reshape(2 * n, -1) / self.evidence[failed].ravel()
            cdf, density = np.ascontiguousarray(spread[:n].T), np.ascontiguousarray(spread[n:].T)
            mode = peak(table, density, unbounded=(self.alpha[0] < 1, self.alpha[1] < 1))
            ends = (hermite_quantile(table, cdf, density, q) for q in (tail, 1 - tail))
            self._summarized[failed] = np.stack([mode, *ends]).reshape(3, *self.shape[1:])
        return self._summarized[failed]

    @cached_property
    def summaries(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mode, lower and upper end of the equal-tailed interval of r for every release."""
        mode, low, high = np.stack([self.summaries_at(failed) for failed in range(self.shape[0])], axis=1)
        return mode, low, high

    def expect(self, values: FloatArray) -> FloatArray:
        """Average a function of the release over its noise, for every possible triple of true counts.

        Parameters
        ----------
        values
            Over releases.

        Returns
        -------
        numpy.ndarray
            Shape (beyond, not beyond) of the true counts; NaN where they are not possible.
        """
        chances = self.grid.probability
        whole = np.einsum("fij,Ff->Fij", values, self.failed_grid.probability, optimize=True)
        whole = np.einsum("Fij,Ii->FIj", whole, chances, optimize=True)
        whole = np.einsum("FIj,Jj->FIJ", whole, chances, optimize=True)
        third, possible = self._third
        beyond, other = np.indices(third.shape)
        return np.where(possible, whole[third, beyond, other], np.nan)

    def distribution(self, counts_pmf: FloatArray) -> FloatArray:
        """Return the probability of every release when the true counts have this distribution.

        Parameters
        ----------
        counts_pmf
            Shape (beyond, not beyond), summing to 1; 0 off the lattice.

        Returns
        -------
        numpy.ndarray
            Over releases.
        """
        third, possible = self._third
        weighted = np.where(possible, counts_pmf, 0.0)
        chances, out = self.grid.probability, np.empty(self.shape)
        for failed, chance in enumerate(self.failed_grid.probability.T):
            out[failed] = chances.T @ (weighted * chance[third]) @ chances
        return out


def most_partitions(noise: NoiseName, n_outcomes: int) -> int:
    """Return the largest M whose releases are summed: three outcomes 201 or, with Laplace noise, 100; two 301 or 150.

    Examples
    --------
    >>> most_partitions("two-sided-geometric", 3)
    201
    """
    values = _MOST_VALUES[n_outcomes]
    return values - 1 if noise == "two-sided-geometric" else values // 2 - 1


@lru_cache(maxsize=2)
def _cached(n_partitions: int, noise: TwoSidedGeometric | Laplace, alpha: tuple[float, ...], prob: float) -> Releases:
    return Releases(n_partitions, noise, alpha, prob)


def releases_of(
    n_partitions: int,
    *,
    epsilon: float,
    alpha: Sequence[float] | None = None,
    prob: float = 0.95,
    noise: NoiseName = "two-sided-geometric",
) -> Releases:
    """Return every release that is possible, with its posterior computed when asked for.

    Parameters
    ----------
    n_partitions
        M, up to `most_partitions`.
    epsilon
        Cost of the release, under either adjacency; the noise has scale 2 / epsilon.
    alpha
        Dirichlet prior, three numbers or, for releases without a failure category, two; the shares' at least 0.02. All
        three are 1 by default.
    prob
        Probability of the intervals.
    noise
        ``"two-sided-geometric"``, exact, or ``"laplace"``, by quadrature between whole numbers.

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
    law = law_of(noise, epsilon)
    prior = check_alpha(alpha, 3 if alpha is None else len(given_alpha(alpha)))
    most = most_partitions(noise, len(prior))
    if check_n_partitions(n_partitions) > most:
        raise InputError(
            f"operating characteristics sum over every possible release, up to M = {most} with {noise} noise and "
            f"{len(prior)} outcomes, got {n_partitions}; beyond it draw releases with privacy.sampling.release_values "
            "and summarize them with verifier.posterior_batch"
        )
    if min(prior[:2]) < SMALLEST_ALPHA:
        raise InputError(
            f"alpha must be at least {SMALLEST_ALPHA} for both shares here, got {prior!r}: below it the posterior has "
            "weight nearer to its ends than double precision can tell"
        )
    return _cached(n_partitions, law, prior, check_prob(prob))
