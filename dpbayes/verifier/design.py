"""Designing a verification: what it will say at which cost, summed exactly over the true counts and the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
from scipy.special import xlogy

from dpbayes._arguments import one_of, ordered, real_numbers, strictly_between
from dpbayes.errors import InputError
from dpbayes.privacy.laws import PureNoiseName
from dpbayes.verifier.every_release import Releases, most_partitions, releases_of
from dpbayes.verifier.exact import check_confidence, check_share, coefficient_table, given_alpha

if TYPE_CHECKING:
    import xarray as xr

type FloatArray = npt.NDArray[np.float64]

_EPSILONS = (1e-3, 64.0)


class Supposed(TypedDict, total=False):
    """What `expected` takes besides M, epsilon and r."""

    failed: float
    alpha: Sequence[float] | None
    threshold: float
    confidence: float
    prob: float
    noise: PureNoiseName


@dataclass(frozen=True)
class Expectation:
    """What a verification will say if r and the failed share are as supposed; exact over partitions and noise."""

    right: float
    """Chance that the analyst decides for the side of the threshold on which r lies."""
    wrong: float
    """Chance that the analyst decides for the other side."""
    width: float
    """Mean width of the interval of r."""
    coverage: float
    """Chance that the interval holds r."""
    mode_mean: float
    """Mean of r-hat."""
    mode_sd: float
    """Standard deviation of r-hat."""
    mode_quantiles: tuple[float, ...]
    """Quantiles of r-hat at .05, .25, .5, .75, .95."""


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
    noise: PureNoiseName = "two-sided-geometric",
) -> Expectation:
    """Return what to expect of a verification, summed exactly over the true counts and the noise.

    Parameters
    ----------
    n_partitions
        M, up to 201 (two-sided geometric noise) or 100 (Laplace); with two outcomes up to 301 or 150.
    epsilon
        Privacy cost of the release.
    r
        Supposed share of computable partitions beyond the claim's threshold; not equal to `threshold`.
    failed
        Supposed share of partitions that cannot be computed.
    alpha
        The analyst's Dirichlet prior, of three outcomes or of two; all 1 by default.
    threshold, confidence
        The analyst decides that r exceeds `threshold` when its posterior probability reaches
        `confidence`, and that it does not when the complement does.
    prob
        Probability of the interval.
    noise
        ``"two-sided-geometric"``, exact, or ``"laplace"``, by quadrature between whole numbers.

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
    given: Supposed = {"failed": failed, "alpha": alpha, "threshold": threshold}
    given |= {"confidence": confidence, "noise": noise}
    right, wrong = decisions(n_partitions, epsilon, r, **given)
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


def decisions(n_partitions: int, epsilon: float, r: float, **given: Unpack[Supposed]) -> tuple[float, float]:
    """Return the chances of the right and of the wrong decision."""
    alpha, failed = given.get("alpha"), given.get("failed", 0.0)
    threshold, confidence = given.get("threshold", 0.5), check_confidence(given.get("confidence", 0.95))
    if r == threshold:
        raise InputError(f"r = {r!r} lies on the threshold itself, where neither decision is right; choose another r")
    prior = None if alpha is None else given_alpha(alpha)
    if prior is not None and len(prior) == 2 and failed:
        raise InputError(f"failed = {failed!r} needs a prior of three outcomes; got alpha = {prior!r} of two")
    every = releases_of(n_partitions, epsilon=epsilon, alpha=prior, noise=given.get("noise", "two-sided-geometric"))
    chances = every.distribution(counts_pmf(n_partitions, r, failed))
    above = every.prob_greater(threshold)
    yes, no = float(chances[above >= confidence].sum()), float(chances[above <= 1 - confidence].sum())
    return (yes, no) if r > threshold else (no, yes)


def counts_pmf(n_partitions: int, r: float, failed: float) -> FloatArray:
    """Return the multinomial probabilities of the true counts, shape (beyond, not beyond)."""
    r, failed = check_share(r, "r"), check_share(failed, "failed")
    shares = np.array([(1 - failed) * r, (1 - failed) * (1 - r), failed])
    table = coefficient_table(n_partitions)
    logs = table.log_coefficients + xlogy(table.counts, shares).sum(axis=1)
    pmf = np.zeros((n_partitions + 1,) * 2)
    pmf[table.counts[:, 0], table.counts[:, 1]] = np.exp(logs)
    return pmf


def design_surface(
    n_partitions: Sequence[int],
    epsilon: Sequence[float],
    *,
    r: float | Sequence[float],
    **given: Unpack[Supposed],
) -> xr.Dataset:
    """Return `expected` over a grid of M, epsilon and r; ``**given`` are its other arguments.

    Returns
    -------
    xarray.Dataset
        ``right``, ``wrong``, ``width``, ``coverage``, ``mode_mean``, ``mode_sd`` over n_partitions,
        epsilon and r.

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
                result = expected(m, epsilon=cost, r=share, **given)
                found[:, i, j, k] = [getattr(result, name) for name in names]
    dims = ("n_partitions", "epsilon", "r")
    coords = {"n_partitions": list(n_partitions), "epsilon": list(epsilon), "r": shares}
    attrs = {"failed": 0.0, "threshold": 0.5, "confidence": 0.95, "prob": 0.95, "noise": "two-sided-geometric"}
    attrs |= {name: value for name, value in given.items() if name in attrs}
    return xr.Dataset({name: (dims, found[i]) for i, name in enumerate(names)}, coords, attrs)


def smallest_epsilon(
    n_partitions: int,
    *,
    r: float,
    wanted: float,
    quantity: Literal["right", "width"] = "right",
    **given: Unpack[Supposed],
) -> float:
    """Return the smallest epsilon that makes a verification good enough, rounded up to four digits.

    Bisection on a logarithmic scale. A decision rate is nearly, not strictly, monotone in epsilon, because
    releases are whole numbers; the value returned always reaches what is wanted.

    Parameters
    ----------
    n_partitions, r, **given
        As in `expected`.
    wanted
        Least chance of the right decision, or largest mean width of the interval.
    quantity
        ``"right"`` or ``"width"``.

    Raises
    ------
    InputError
        If not even epsilon 64, next to no noise, suffices, or a parameter is out of range.

    Examples
    --------
    >>> epsilon = smallest_epsilon(20, r=0.9, wanted=0.8)
    >>> expected(20, epsilon=epsilon, r=0.9).right >= 0.8
    True
    """
    enough = _criterion(quantity, wanted, r, given)
    if not enough(n_partitions, _EPSILONS[1]):
        raise InputError(
            f"{quantity} {wanted!r} is out of reach with M = {n_partitions} partitions at r = {r!r}, however large "
            "epsilon; raise n_partitions, or want less"
        )
    low, high = map(math.log, _EPSILONS)
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(n_partitions, math.exp(middle)) else (middle, high)
    digits = 3 - math.floor(math.log10(math.exp(high)))
    rounded = math.ceil(math.exp(high) * 10**digits) / 10**digits
    return rounded if enough(n_partitions, rounded) else math.exp(high)


def smallest_partitions(
    *,
    epsilon: float,
    r: float,
    wanted: float,
    quantity: Literal["right", "width"] = "right",
    **given: Unpack[Supposed],
) -> int:
    """Return the smallest number of partitions that makes a verification good enough, at a given epsilon.

    More partitions hold fewer units each, so r itself depends on M; r here is what is supposed at the M
    returned (`dpbayes.verifier.pilot.pilot_shares` shows how r moves). It suffices, and so does every larger M up to
    the next power-of-two step that was tried. Arguments are those of `smallest_epsilon`.

    Raises
    ------
    InputError
        If the largest M that `expected` takes does not suffice, or a parameter is out of range.

    Examples
    --------
    >>> smallest_partitions(epsilon=2.0, r=0.95, wanted=0.8) <= 20
    True
    """
    enough = _criterion(quantity, wanted, r, given)
    alpha = given.get("alpha")
    most = most_partitions(given.get("noise", "two-sided-geometric"), 3 if alpha is None else len(alpha))
    low, high = 0, 1
    while not enough(high, epsilon):
        if high == most:
            raise InputError(
                f"{quantity} {wanted!r} is out of reach up to M = {most} at epsilon {epsilon!r} and "
                f"r = {r!r}; raise epsilon, or want less"
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle, epsilon) else (middle, high)
    return high


def _criterion(quantity: str, wanted: float, r: float, given: Supposed) -> Callable[[int, float], bool]:
    """Return the question whether M and epsilon suffice."""
    one_of(quantity, ("right", "width"), "quantity")
    strictly_between(wanted, "wanted", 0, 1)
    if quantity == "right":
        return lambda n_partitions, epsilon: decisions(n_partitions, epsilon, r, **given)[0] >= wanted
    return lambda n_partitions, epsilon: expected(n_partitions, epsilon=epsilon, r=r, **given).width <= wanted


def count_surface(
    n_partitions: int,
    *,
    epsilon: float,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
    noise: PureNoiseName = "two-sided-geometric",
) -> xr.Dataset:
    """Return the operating characteristics for every possible triple of true counts; arguments as in `expected`.

    Returns
    -------
    xarray.Dataset
        Over ``beyond`` and ``not_beyond``, the true counts, NaN where they are not possible: ``mode_mean``
        and ``mode_sd`` of r-hat, ``width`` of the interval, ``coverage`` of the share S1 / (S1 + S0), the
        chances ``decide_above``, ``decide_below`` and ``undecided``, and ``right``, the chance of the
        decision that fits the true share.

    Examples
    --------
    >>> above = count_surface(6, epsilon=2.0)["decide_above"]
    >>> bool(above.sel(beyond=6, not_beyond=0) > above.sel(beyond=3, not_beyond=3))
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
    mode_mean, mode_square = every.expect(mode), every.expect(mode**2)
    found = {
        "mode_mean": mode_mean,
        "mode_sd": np.sqrt(np.maximum(mode_square - mode_mean**2, 0.0)),
        "width": every.expect(high - low),
        "coverage": _coverage(every, share),
        "decide_above": decide_above,
        "decide_below": decide_below,
        "undecided": 1 - decide_above - decide_below,
        "right": np.where(share > threshold, decide_above, np.where(share < threshold, decide_below, np.nan)),
    }
    coords = {"beyond": np.arange(size), "not_beyond": np.arange(size)}
    attrs = {"n_partitions": n_partitions, "epsilon": epsilon, "noise": noise}
    attrs |= {"threshold": threshold, "confidence": confidence, "prob": prob}
    return xr.Dataset({name: (("beyond", "not_beyond"), v) for name, v in found.items()}, coords, attrs)


def _coverage(every: Releases, share: FloatArray) -> FloatArray:
    """Return the chance that the interval holds the share of the true counts."""
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
