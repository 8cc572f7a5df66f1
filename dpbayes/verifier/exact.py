r"""The exact posterior of a verification release, as a finite mixture.

Given the true counts S, :math:`p \mid S \sim` Dirichlet(:math:`\alpha + S`), and the share of computable partitions
that lie beyond the threshold, :math:`r = p_1 / (p_1 + p_0)`, is Beta(:math:`\alpha_1 + S_1, \alpha_0 + S_0`). The
posterior given the noisy counts is therefore a mixture over the lattice of counts, and everything about it is a sum.
No sampler is needed. See `dpbayes.verifier.windows` for the weights and the certificate.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpbayes._arguments import number, shown
from dpbayes.errors import InputError
from dpbayes.privacy.noise import NoiseLaw
from dpbayes.privacy.release import Release
from dpbayes.verifier.checks import (
    OUTCOMES,
    check_alpha,
    check_explained,
    check_n_partitions,
    check_share,
    reachable,
    verification_table,
)
from dpbayes.verifier.lattice import mirrored, trim
from dpbayes.verifier.mixture import BetaMixture
from dpbayes.verifier.windows import lattice_axes, lattice_log_weights, omitted_mass_bound

__all__ = ["Posterior", "posterior", "posterior_of_counts"]

type FloatArray = npt.NDArray[np.float64]

DEFAULT_TOLERANCE = 1e-12
DEFAULT_MAX_TERMS = 4_000_000


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of p, of r and of the true counts.

    Made by `posterior`; the fields are what the mixture consists of.

    Parameters
    ----------
    alpha
        Dirichlet prior, in the order of the outcomes.
    n_partitions
        M.
    weights
        Posterior probabilities of the true counts, shape (failed, beyond); the remaining count is M minus both.
    low
        (beyond, failed): the counts at column 0 and row 0.
    truncation_error
        Certified upper bound on the posterior mass of the counts left out. Every probability below is within it.
    log_evidence
        Log-density of the released counts under prior and noise law.
    release_digest
        Digest of the release, or "" when the counts came without one.
    """

    alpha: tuple[float, ...]
    n_partitions: int
    weights: FloatArray
    low: tuple[int, int]
    truncation_error: float
    log_evidence: float
    release_digest: str = ""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes that were counted."""
        return OUTCOMES[: len(self.alpha)]

    @cached_property
    def r(self) -> BetaMixture:
        """Posterior of r = p1 / (p1 + p0), the share beyond among partitions that can be computed."""
        total = self.alpha[0] + self.alpha[1] + self.n_partitions - self.low[1]
        return BetaMixture(self.weights, self.alpha[0] + self.low[0], total)

    def share(self, outcome: str) -> BetaMixture:
        """Return the posterior of one component of p.

        Parameters
        ----------
        outcome
            One of `outcomes`.
        """
        index = self._index(outcome)
        counts, probabilities = self.counts(outcome)
        total = sum(self.alpha) + self.n_partitions
        return BetaMixture(probabilities[None, :], self.alpha[index] + int(counts[0]), total)

    def counts(self, outcome: str) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Return the posterior of one true count: its values, and their probabilities.

        Parameters
        ----------
        outcome
            One of `outcomes`.
        """
        index = self._index(outcome)
        rows, columns = self.weights.shape
        if index == 0:
            return self.low[0] + np.arange(columns), self.weights.sum(axis=0)
        if index == 2:
            return self.low[1] + np.arange(rows), self.weights.sum(axis=1)
        offset = np.arange(rows)[:, None] + np.arange(columns)[None, :]
        summed = np.bincount(offset.ravel(), weights=self.weights.ravel())
        values = self.n_partitions - sum(self.low) - np.arange(summed.size)
        # A corner of the rectangle may lie below zero; it carries no weight.
        return values[values >= 0][::-1], summed[values >= 0][::-1]

    def _index(self, outcome: str) -> int:
        if outcome not in self.outcomes:
            raise InputError(f"outcome must be one of {', '.join(map(repr, self.outcomes))}, got {outcome!r}")
        return self.outcomes.index(outcome)

    @cached_property
    def mean(self) -> float:
        """Posterior mean of r."""
        return self.r.mean

    @cached_property
    def sd(self) -> float:
        """Posterior standard deviation of r."""
        return self.r.sd

    @property
    def modes(self) -> dict[str, float]:
        """The paper's point estimates: modes of r (r-hat), of 1 - r (p0-hat), and of the failed share (e-hat).

        With two outcomes there is no e-hat.
        """
        estimates = {"r-hat": self.r.mode, "p0-hat": 1.0 - self.r.mode}
        if len(self.alpha) == 3:
            estimates["e-hat"] = self.share(OUTCOMES[2]).mode
        return estimates

    def interval(self, prob: float = 0.95) -> tuple[float, float]:
        """Return the equal-tailed credible interval of r."""
        return self.r.interval(prob)

    def hdi(self, prob: float = 0.95) -> tuple[float, float]:
        """Return the shortest credible interval of r."""
        return self.r.hdi(prob)

    def prob_greater(self, threshold: float) -> float:
        """Return P(r > threshold): with 0.5, the posterior probability that the claim holds in most partitions."""
        threshold = check_share(threshold, "threshold")
        # The mirrored mixture keeps relative precision when the probability is tiny.
        return float(self._mirrored.cdf(1.0 - threshold))

    @cached_property
    def _mirrored(self) -> BetaMixture:
        """Posterior of 1 - r."""
        swapped, low = mirrored(self.weights, self.low, self.n_partitions)
        total = self.alpha[0] + self.alpha[1] + self.n_partitions - low[1]
        return BetaMixture(swapped, self.alpha[1] + low[0], total)

    def summary(self, prob: float = 0.95) -> dict[str, float]:
        """Return the numbers a report shows."""
        low, high = self.interval(prob)
        short_low, short_high = self.hdi(prob)
        return {
            "mean": self.mean,
            "sd": self.sd,
            **self.modes,
            "interval_low": low,
            "interval_high": high,
            "hdi_low": short_low,
            "hdi_high": short_high,
            "prob_majority_beyond": self.prob_greater(0.5),
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{value:.4f}</td></tr>" for name, value in self.summary().items()
        )
        return f"<table><caption>Posterior of r, M = {self.n_partitions:,}, alpha {self.alpha}</caption>{rows}</table>"


def posterior(
    release: Release,
    *,
    alpha: Sequence[float] | None = None,
    question: str | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    max_terms: int = DEFAULT_MAX_TERMS,
) -> Posterior:
    r"""Return the exact posterior of a verification release.

    Parameters
    ----------
    release
        Noisy counts of partitions (see `dpbayes.verifier.release_counts`): a one-attribute table with three levels, or
        with two where no fit can fail.
    alpha
        Dirichlet parameters for (beyond, not beyond, not computed), positive; all 1 by default.
    question
        Which table, when the release answers several questions.
    tolerance
        Largest posterior mass of the counts that may be left out, certified.
    max_terms
        Largest number of terms of the mixture.

    Returns
    -------
    Posterior
        Of p, r and the true counts.

    Raises
    ------
    InputError
        If the release is no verification release, a parameter is out of range, no true counts can explain the released
        ones, these are too far outside their range for Gaussian noise, or the mixture needs more than `max_terms`
        terms.

    Notes
    -----
    With S the true counts, :math:`P(S \mid y) \propto
    \mathrm{DirichletMultinomial}(S; M, \alpha)\prod_j f(y_j - S_j)`. A full Gibbs sampler as in section 4 of the paper
    converges to this; the sum is exact and costs less than one of its sweeps.

    References
    ----------
    Balmat, T., Barrientos, A. F. and Reiter, J. P. (2018). Efficient evaluation of multinomial probabilities in
    differentially private synthetic data verification servers. Sections 3 and 4.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, release_counts
    >>> release = release_counts(PartitionCounts(45, 5, 0), epsilon=1.0, rng=np.random.default_rng(3))
    >>> exact = posterior(release)
    >>> 0.7 < exact.mean < 1, exact.truncation_error < 1e-12
    (True, True)
    """
    table = verification_table(release, question)
    assert isinstance(release.n, int)
    return posterior_of_counts(
        table.counts,
        table.noise,
        release.n,
        alpha=alpha,
        tolerance=tolerance,
        max_terms=max_terms,
        release_digest=release.digest,
    )


def posterior_of_counts(
    noisy: npt.ArrayLike,
    noise: NoiseLaw,
    n_partitions: int,
    *,
    alpha: Sequence[float] | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    max_terms: int = DEFAULT_MAX_TERMS,
    release_digest: str = "",
) -> Posterior:
    """Return the exact posterior from released values and their noise law; see `posterior`.

    For simulation studies that draw thousands of releases. The values must be released ones: exact counts have no
    place here.
    """
    values = np.asarray(noisy, dtype=np.float64)
    prior = check_alpha(alpha, values.size)
    check_n_partitions(n_partitions)
    if not 0 < number(tolerance, "tolerance") < 1:
        raise InputError(f"tolerance must lie strictly between 0 and 1, got {shown(tolerance)}; the default is 1e-12")
    values, log_shift = reachable(values, noise, n_partitions)
    axes, tilt = lattice_axes(values, noise, n_partitions, prior, tolerance=tolerance, max_terms=max_terms)
    log_weights = lattice_log_weights(axes, n_partitions)
    top = float(log_weights.max())
    check_explained(top, noise, n_partitions)
    weights = np.exp(log_weights - top)
    mass = float(weights.sum())
    weights /= mass
    omitted = omitted_mass_bound(axes, n_partitions)
    weights, low, trimmed = trim(weights, (axes[0].low, axes[2].low if len(axes) == 3 else 0))
    whole = sum(prior)
    log_prior = float(gammaln(whole) + gammaln(n_partitions + 1.0) - gammaln(whole + n_partitions))
    log_evidence = top + math.log(mass) + log_prior + log_shift - tilt * n_partitions
    return Posterior(prior, n_partitions, weights, low, omitted + trimmed, log_evidence, release_digest)
