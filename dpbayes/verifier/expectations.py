"""What to expect of a verification, summed exactly over the true counts and the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import xlogy

from dpbayes._arguments import ordered, real_numbers
from dpbayes.errors import InputError
from dpbayes.verifier.checks import check_confidence, check_share, given_alpha
from dpbayes.verifier.coefficients import coefficient_table
from dpbayes.verifier.releases import NoiseName, releases_of

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Expectation", "counts_pmf", "decisions", "design_surface", "expected"]


@dataclass(frozen=True)
class Expectation:
    """What a verification will say if r and the failed share are as supposed; exact over partitions and noise.

    Parameters
    ----------
    right, wrong
        Chances that the analyst decides for the side of the threshold on which r lies, and for the other.
    width
        Mean width of the interval of r.
    coverage
        Chance that the interval holds r.
    mode_mean, mode_sd
        Mean and standard deviation of r-hat.
    mode_quantiles
        Quantiles of r-hat at .05, .25, .5, .75, .95.
    """

    right: float
    wrong: float
    width: float
    coverage: float
    mode_mean: float
    mode_sd: float
    mode_quantiles: tuple[float, ...]


def expected(
    n_partitions: int,
    *,
    epsilon: float,
    r: float,
    failed: float = 0.0,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
    noise: NoiseName = "two-sided-geometric",
) -> Expectation:
    """Return what to expect of a verification, summed exactly over the true counts and the noise.

    Parameters
    ----------
    n_partitions
        M, up to 201 (two-sided geometric noise) or 100 (Laplace); with two outcomes up to 301 or 150.
    epsilon
        Cost of the release.
    r
        Supposed share of computable partitions beyond the claim's threshold; not equal to `threshold`.
    failed
        Supposed share of partitions that cannot be computed.
    alpha
        The analyst's Dirichlet prior, of three outcomes or of two; all 1 by default.
    threshold, confidence
        The analyst decides that r exceeds `threshold` when its posterior probability reaches `confidence`, and that it
        does not when the complement does.
    prob
        Probability of the interval.
    noise
        Noise law; see `dpbayes.verifier.releases.releases_of`.

    Returns
    -------
    Expectation
        Decisions, width, coverage and the distribution of r-hat.

    Raises
    ------
    InputError
        If a parameter is out of range.

    Examples
    --------
    >>> more, less = (expected(20, epsilon=epsilon, r=0.9) for epsilon in (2.0, 0.5))
    >>> more.right > less.right, more.width < less.width
    (True, True)
    """
    right, wrong = decisions(n_partitions, epsilon, r, failed, alpha, threshold, confidence, noise)
    every = releases_of(n_partitions, epsilon=epsilon, alpha=alpha, prob=prob, noise=noise)
    chances = every.distribution(counts_pmf(n_partitions, r, failed))
    # Releases whose failed count is next to impossible here (1e-13 in all) are not worth their summaries.
    likely = np.flatnonzero(chances.sum(axis=(1, 2)) > 1e-13 / len(chances))
    chances = chances[likely] / chances[likely].sum()
    mode, low, high = np.stack([every.summaries_at(int(value)) for value in likely], axis=1)
    mean = float((chances * mode).sum())
    order = np.argsort(mode, axis=None)
    below = np.cumsum(chances.ravel()[order])
    picks = [int(np.searchsorted(below, q * below[-1])) for q in (0.05, 0.25, 0.5, 0.75, 0.95)]
    return Expectation(
        right=right,
        wrong=wrong,
        width=float((chances * (high - low)).sum()),
        coverage=float((chances * ((low <= r) & (r <= high))).sum()),
        mode_mean=mean,
        mode_sd=math.sqrt(max(float((chances * (mode - mean) ** 2).sum()), 0.0)),
        mode_quantiles=tuple(mode.ravel()[order][picks].tolist()),
    )


def design_surface(
    n_partitions: Sequence[int],
    epsilon: Sequence[float],
    *,
    r: float | Sequence[float],
    failed: float = 0.0,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
    noise: NoiseName = "two-sided-geometric",
) -> xr.Dataset:
    """Return `expected` over a grid of M, epsilon and r.

    Parameters
    ----------
    n_partitions, epsilon, r
        The grid.
    failed, alpha, threshold, confidence, prob, noise
        As in `expected`.

    Returns
    -------
    xarray.Dataset
        ``right``, ``wrong``, ``width``, ``coverage``, ``mode_mean``, ``mode_sd`` over n_partitions, epsilon and r.

    Examples
    --------
    >>> design_surface([5, 10], [1.0], r=[0.8, 0.9])["width"].shape
    (2, 1, 2)
    """
    import xarray as xr

    remedy = "give a list, if need be of one"
    n_partitions = ordered(n_partitions, "n_partitions", remedy=remedy)
    epsilon = ordered(epsilon, "epsilon", remedy=remedy)
    shares = np.atleast_1d(real_numbers(r, "r")).tolist()
    if not (n_partitions and epsilon and shares):
        raise InputError("the grid is empty; give at least one number of partitions, one epsilon and one r")
    names = ("right", "wrong", "width", "coverage", "mode_mean", "mode_sd")
    found = np.empty((len(names), len(n_partitions), len(epsilon), len(shares)))
    for i, m in enumerate(n_partitions):
        for j, cost in enumerate(epsilon):
            for k, share in enumerate(shares):
                result = expected(
                    m,
                    epsilon=cost,
                    r=share,
                    failed=failed,
                    alpha=alpha,
                    threshold=threshold,
                    confidence=confidence,
                    prob=prob,
                    noise=noise,
                )
                found[:, i, j, k] = [getattr(result, name) for name in names]
    dims = ("n_partitions", "epsilon", "r")
    coords = {"n_partitions": list(n_partitions), "epsilon": list(epsilon), "r": shares}
    attrs = {"failed": failed, "threshold": threshold, "confidence": confidence, "prob": prob, "noise": noise}
    return xr.Dataset({name: (dims, found[i]) for i, name in enumerate(names)}, coords, attrs)


def decisions(
    n_partitions: int,
    epsilon: float,
    r: float,
    failed: float,
    alpha: Sequence[float] | None,
    threshold: float,
    confidence: float,
    noise: NoiseName,
) -> tuple[float, float]:
    """Return the chances of the right and of the wrong decision."""
    check_confidence(confidence)
    if r == threshold:
        raise InputError(f"r = {r!r} lies on the threshold itself, where neither decision is right; choose another r")
    prior = None if alpha is None else given_alpha(alpha)
    if prior is not None and len(prior) == 2 and failed:
        raise InputError(f"failed = {failed!r} needs a prior of three outcomes; got alpha = {prior!r} of two")
    every = releases_of(n_partitions, epsilon=epsilon, alpha=prior, noise=noise)
    chances = every.distribution(counts_pmf(n_partitions, r, failed))
    above = every.prob_greater(threshold)
    yes = float(chances[above >= confidence].sum())
    no = float(chances[above <= 1 - confidence].sum())
    return (yes, no) if r > threshold else (no, yes)


def counts_pmf(n_partitions: int, r: float, failed: float) -> np.ndarray:
    """Return the multinomial probabilities of the true counts, shape (beyond, not beyond)."""
    r, failed = check_share(r, "r"), check_share(failed, "failed")
    shares = np.array([(1 - failed) * r, (1 - failed) * (1 - r), failed])
    table = coefficient_table(n_partitions)
    logs = table.log_coefficients + xlogy(table.counts, shares).sum(axis=1)
    pmf = np.zeros((n_partitions + 1,) * 2)
    pmf[table.counts[:, 0], table.counts[:, 1]] = np.exp(logs)
    return pmf
