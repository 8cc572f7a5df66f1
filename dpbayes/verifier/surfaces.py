"""Operating characteristics over the true counts: what a verification will say, averaged exactly over its noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import ordered
from dpbayes.errors import InputError
from dpbayes.verifier.checks import check_confidence, given_alpha
from dpbayes.verifier.releases import NoiseName, Releases, releases_of

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["count_surface", "count_surfaces"]

type FloatArray = npt.NDArray[np.float64]


def count_surface(
    n_partitions: int,
    *,
    epsilon: float,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
    noise: NoiseName = "two-sided-geometric",
) -> xr.Dataset:
    """Return the operating characteristics for every possible triple of true counts.

    Parameters
    ----------
    n_partitions, epsilon, alpha, prob, noise
        As in `releases_of`.
    threshold
        The analyst asks whether r exceeds it.
    confidence
        Posterior probability from which the analyst decides; between this and its complement the answer is open.

    Returns
    -------
    xarray.Dataset
        Over ``beyond`` and ``not_beyond``, the true counts, NaN where they are not possible: ``mode_mean`` and
        ``mode_sd`` of r-hat, ``width`` of the interval, ``coverage`` of the share S1 / (S1 + S0), the chances
        ``decide_above``, ``decide_below`` and ``undecided``, and ``right``, the chance of the decision that fits the
        true share.

    Raises
    ------
    InputError
        If a parameter is out of range.

    Examples
    --------
    >>> surface = count_surface(6, epsilon=2.0)
    >>> bool(surface["decide_above"].sel(beyond=6, not_beyond=0) > surface["decide_above"].sel(beyond=3, not_beyond=3))
    True
    """
    import xarray as xr

    check_confidence(confidence)
    every = releases_of(n_partitions, epsilon=epsilon, alpha=alpha, prob=prob, noise=noise)
    mode, low, high = every.summaries
    above = every.prob_greater(threshold)
    size = n_partitions + 1
    beyond, other = np.indices((size, size))
    with np.errstate(invalid="ignore"):
        share = np.where(beyond + other > 0, beyond / (beyond + other), np.nan)
    decide_above = every.expect((above >= confidence).astype(float))
    decide_below = every.expect((above <= 1 - confidence).astype(float))
    mode_mean = every.expect(mode)
    mode_square = every.expect(mode**2)
    right = np.where(share > threshold, decide_above, np.where(share < threshold, decide_below, np.nan))
    found = {
        "mode_mean": mode_mean,
        "mode_sd": np.sqrt(np.maximum(mode_square - mode_mean**2, 0.0)),
        "width": every.expect(high - low),
        "coverage": _coverage(every, share),
        "decide_above": decide_above,
        "decide_below": decide_below,
        "undecided": 1 - decide_above - decide_below,
        "right": right,
    }
    coords = {"beyond": np.arange(size), "not_beyond": np.arange(size)}
    attrs = {
        "n_partitions": n_partitions,
        "epsilon": epsilon,
        "noise": noise,
        "threshold": threshold,
        "confidence": confidence,
        "prob": prob,
    }
    return xr.Dataset({name: (("beyond", "not_beyond"), v) for name, v in found.items()}, coords, attrs)


def count_surfaces(
    n_partitions: Sequence[int],
    epsilon: Sequence[float],
    *,
    priors: Sequence[Sequence[float]] = ((1.0, 1.0, 1.0),),
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
    noise: NoiseName = "two-sided-geometric",
) -> xr.Dataset:
    """Return `count_surface` over a grid of M, epsilon and priors.

    Parameters
    ----------
    n_partitions, epsilon
        The grid.
    priors
        Dirichlet parameters of each prior, as `alpha` of `count_surface`.
    threshold, confidence, prob, noise
        As in `count_surface`.

    Returns
    -------
    xarray.Dataset
        Its variables over n_partitions, epsilon, prior, beyond and not_beyond; NaN where counts are not possible.

    Raises
    ------
    InputError
        If the grid is empty or a parameter is out of range.

    Examples
    --------
    >>> found = count_surfaces([3, 5], [1.0, 2.0], priors=[(1, 1, 1), (0.5, 0.5, 0.5)])
    >>> dict(found.sizes)
    {'n_partitions': 2, 'epsilon': 2, 'prior': 2, 'beyond': 6, 'not_beyond': 6}
    """
    import xarray as xr

    remedy = "give a list, if need be of one"
    n_partitions = ordered(n_partitions, "n_partitions", remedy=remedy)
    epsilon = ordered(epsilon, "epsilon", remedy=remedy)
    priors = [given_alpha(prior) for prior in ordered(priors, "priors", remedy=remedy)]
    if not (n_partitions and epsilon and priors):
        raise InputError("the grid is empty; give at least one number of partitions, one epsilon and one prior")
    labels = [", ".join(f"{value:g}" for value in prior) for prior in priors]
    common: dict[str, Any] = {"threshold": threshold, "confidence": confidence, "prob": prob, "noise": noise}
    by_size = [
        xr.concat(
            [
                xr.concat([count_surface(m, epsilon=cost, alpha=prior, **common) for prior in priors], dim="prior")
                for cost in epsilon
            ],
            dim="epsilon",
        )
        for m in n_partitions
    ]
    found = xr.concat(by_size, dim="n_partitions", join="outer")
    coords = {"n_partitions": list(n_partitions), "epsilon": list(epsilon), "prior": labels}
    return found.assign_coords(coords).assign_attrs(common)


def _coverage(every: Releases, share: FloatArray) -> FloatArray:
    """Chance that the interval holds the share of the true counts."""
    size = every.n_partitions + 1
    _, low, high = every.summaries
    chances, failed_chances = every.grid.probability, every.failed_grid.probability
    possible = ~np.isnan(every.expect(np.zeros(every.shape))) & ~np.isnan(share)
    out = np.full((size, size), np.nan)
    for row, column in zip(*np.nonzero(possible), strict=True):
        failed = size - 1 - row - column
        likely = tuple(map(_likely, (failed_chances[failed], chances[row], chances[column])))
        covered = (low[likely] <= share[row, column]) & (share[row, column] <= high[likely])
        by_failed = covered.astype(np.float64) @ chances[column][likely[2]] @ chances[row][likely[1]]
        out[row, column] = failed_chances[failed][likely[0]] @ by_failed
    return out


def _likely(chances: FloatArray) -> slice:
    """Return the range of values outside which every chance is next to nothing, 1e-17."""
    found = np.flatnonzero(chances > 1e-17)
    return slice(int(found[0]), int(found[-1]) + 1)
