r"""Designing a verification before anything is spent: exact operating characteristics, pilots, public facts.

Under two-sided geometric noise a release takes finitely many distinguishable values, and sums over releases and true
counts are matrix products. The Beta components are tabulated at :math:`x = \sin^2(\theta / 2)`, :math:`\theta` evenly
spaced; quantiles come from cubic Hermite interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from scipy.special import betainc, betaincc, betaln, gammaln, xlogy

from dpbayes._arguments import Floats, Ints, generator, one_of, ordered, real_numbers, strictly_between
from dpbayes.errors import InputError
from dpbayes.privacy.laws import TwoSidedGeometric
from dpbayes.verifier.claim import Direction, Fitted, Regression, coefficient_verdict, halved, model_of
from dpbayes.verifier.exact import check_alpha, check_share, coefficient_table
from dpbayes.verifier.formulas import collect, column_values, model_columns
from dpbayes.verifier.means import check_range, least_coverage
from dpbayes.verifier.partition import PartitionCounts, check_n_partitions, rows_by_partition, unit_codes

SMALLEST_ALPHA = 0.5
"""Below it the density of a component is infinite in theta at an end of [0, 1]."""

MOST_PARTITIONS = {3: 201, 2: 301}
"""Largest M by the number of counts released: eight million releases of three, and as much work for two."""

_EPSILONS = (1e-3, 64.0)


class Supposed(TypedDict, total=False):
    """What a design supposes besides M, epsilon and r."""

    failed: float
    """Share of partitions that cannot be computed; 0 by default."""
    alpha: Sequence[float] | None
    """The analyst's Dirichlet prior, of three outcomes or, where no failures are released, of two; all 1 by default."""
    threshold: float
    """What r is compared with; 0.5 by default."""
    confidence: float
    """The analyst decides that r exceeds the threshold when its posterior probability reaches this, .95 by default, and
    that it does not when the complement does."""


@dataclass(frozen=True, eq=False)
class Releases:
    """Every release that is possible for one M, epsilon and prior, and its posterior. Made by `releases_of`."""

    n_partitions: int
    epsilon: float
    alpha: tuple[float, ...]

    @cached_property
    def _values(self) -> tuple[Floats, Floats]:
        """For a released and a true count: the likelihood, and the chance of all values that tell as much."""
        noise = TwoSidedGeometric.from_epsilon(self.epsilon, sensitivity=PartitionCounts.sensitivity)
        counts = np.arange(self.n_partitions + 1, dtype=np.float64)
        chances = np.exp(noise.log_prob(counts[None, :] - counts[:, None]))
        chances[:, 0], chances[:, -1] = noise.cdf(-counts), noise.sf(self.n_partitions - 1 - counts)
        return np.exp(-np.abs(counts[:, None] - counts[None, :]) / noise.scale), chances

    @cached_property
    def _failed_values(self) -> tuple[Floats, Floats]:
        """The same of the failed count: one value that tells nothing where it is not released."""
        size = self.n_partitions + 1
        return self._values if len(self.alpha) == 3 else (np.ones((1, size)), np.ones((size, 1)))

    @cached_property
    def _third(self) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Failed count for each (beyond, not beyond), 0 where there is none, and whether the two are possible."""
        counts = np.arange(self.n_partitions + 1)
        third = self.n_partitions - np.add.outer(counts, counts)
        possible = third >= 0 if len(self.alpha) == 3 else third == 0
        return np.where(possible, third, 0), possible

    @cached_property
    def _prior(self) -> Floats:
        """Dirichlet-multinomial probability of the true counts, shape (beyond, not beyond), 0 off the lattice."""
        third, possible = self._third
        k = np.arange(self.n_partitions + 1)
        factors = [gammaln(a + k) - gammaln(k + 1.0) for a in self.alpha]
        logs = np.add.outer(factors[0], factors[1])
        if len(factors) == 3:
            logs = logs + factors[2][third]
        prior = np.exp(np.where(possible, logs, -np.inf) - logs[possible].max())
        return np.asarray(prior / prior.sum())

    def _integrate(self, values: Floats) -> Floats:
        """Sum a function of the true counts against prior and likelihood, for every release."""
        third, possible = self._third
        weighted = np.where(possible, self._prior * values, 0.0)
        likelihood = self._values[0]
        return np.stack([likelihood @ (weighted * failed[third]) @ likelihood.T for failed in self._failed_values[0]])

    @cached_property
    def _evidence(self) -> Floats:
        """Likelihood of every release, up to a factor; a release no counts explain within doubles has no weight."""
        whole = self._integrate(np.ones_like(self._prior))
        return np.where(whole > 0, whole, np.inf)

    @cached_property
    def mean(self) -> Floats:
        """Posterior mean of r for every release, shape (failed, beyond, not beyond)."""
        a, b = (alpha + np.arange(self.n_partitions + 1) for alpha in self.alpha[:2])
        return self._integrate(a[:, None] / (a[:, None] + b[None, :])) / self._evidence

    def prob_greater(self, threshold: float) -> Floats:
        """Posterior probability of r > threshold for every release."""
        threshold, counts = check_share(threshold, "threshold"), np.arange(self.n_partitions + 1)
        above = betainc(self.alpha[1] + counts[None, :], self.alpha[0] + counts[:, None], 1 - threshold)
        return self._integrate(above) / self._evidence

    @cached_property
    def _components(self) -> tuple[Floats, Floats, Floats]:
        """Nodes in theta, and the distribution function and density of the component of every possible pair."""
        first, second = np.nonzero(self._third[1])
        a, b = self.alpha[0] + first[:, None], self.alpha[1] + second[:, None]
        enough = max(256, 2 * math.ceil(2 * math.pi * math.sqrt(self.n_partitions + sum(self.alpha[:2]))))
        theta = np.linspace(0, math.pi, enough + 1)
        # Both r and 1 - r to full relative precision: a small parameter puts weight next to either end.
        x, rest = np.sin(theta / 2) ** 2, np.sin(theta[::-1] / 2) ** 2
        cdf = np.where(x <= 0.5, betainc(a, b, x), betaincc(b, a, rest))
        # dx / dtheta = sqrt(x (1 - x)).
        density = np.exp(xlogy(a - 0.5, x) + xlogy(b - 0.5, rest) - betaln(a, b))
        return theta, cdf, density

    def intervals(self, failed: int) -> tuple[Floats, Floats]:
        """Return the ends of the 95 % interval of r for the releases with one value of the failed count."""
        theta, cdf, density = self._components
        third, possible = self._third
        weights = (self._prior * self._failed_values[0][failed][third])[possible]
        n, size, likelihood = theta.size, self.n_partitions + 1, self._values[0]
        # Scatter the components onto (node, beyond, not beyond), then two products spread them over all releases.
        lattice = np.zeros((2 * n, size, size))
        lattice[:n, possible], lattice[n:, possible] = cdf.T * weights, density.T * weights
        spread = (likelihood @ lattice @ likelihood.T).reshape(2 * n, -1) / self._evidence[failed].ravel()
        sums = (np.ascontiguousarray(spread[:n].T), np.ascontiguousarray(spread[n:].T))
        low, high = (_quantile(theta, *sums, q).reshape(size, size) for q in (0.025, 0.975))
        return low, high

    def expect(self, values: Floats) -> Floats:
        """Average a function of the release over its noise, for every possible triple of true counts."""
        chances = self._values[1]
        whole = np.einsum("fij,Ff->Fij", values, self._failed_values[1], optimize=True)
        whole = chances @ whole @ chances.T
        third, possible = self._third
        beyond, other = np.indices(third.shape)
        return np.where(possible, whole[third, beyond, other], np.nan)

    def coverage(self, low: Floats, high: Floats, share: Floats) -> Floats:
        """Return the chance that the interval holds the share of the true counts, for every triple of them."""
        third, possible = self._third
        chances, failed_chances = self._values[1], self._failed_values[1]
        out = np.full(share.shape, np.nan)
        for row, column in zip(*np.nonzero(possible & ~np.isnan(share)), strict=True):
            parts = failed_chances[third[row, column]], chances[row], chances[column]
            # Values outside this range have a chance of next to nothing.
            likely = [np.flatnonzero(part > 1e-17)[[0, -1]] + [0, 1] for part in parts]
            at = tuple(slice(*ends) for ends in likely)
            covered = (low[at] <= share[row, column]) & (share[row, column] <= high[at])
            by_failed, by_beyond, by_other = (part[one] for part, one in zip(parts, at, strict=True))
            out[row, column] = by_failed @ (covered.astype(np.float64) @ by_other @ by_beyond)
        return out

    def distribution(self, counts_pmf: Floats) -> Floats:
        """Return the probability of every release when the true counts have this distribution."""
        third, possible = self._third
        weighted, chances = np.where(possible, counts_pmf, 0.0), self._values[1]
        return np.stack([chances.T @ (weighted * failed[third]) @ chances for failed in self._failed_values[1].T])


def _quantile(theta: Floats, cdf: Floats, density: Floats, q: float) -> Floats:
    """Return the quantile of r for each row of distribution functions, by bisection of the cubic Hermite form."""
    left = np.clip((cdf <= q).sum(axis=1) - 1, 0, theta.size - 2)
    rows, step = np.arange(len(cdf)), theta[1]
    f0, f1 = cdf[rows, left], cdf[rows, left + 1]
    d0, d1 = density[rows, left] * step, density[rows, left + 1] * step
    low, high = np.zeros(len(cdf)), np.ones(len(cdf))
    for _ in range(40):
        t = 0.5 * (low + high)
        value = f0 * (1 + 2 * t) * (1 - t) ** 2 + d0 * t * (1 - t) ** 2 + f1 * t**2 * (3 - 2 * t) + d1 * t**2 * (t - 1)
        low, high = np.where(value < q, t, low), np.where(value < q, high, t)
    return np.asarray(np.sin((theta[left] + step * low) / 2) ** 2)


_cached = lru_cache(maxsize=2)(Releases)


def releases_of(n_partitions: int, epsilon: float, alpha: Sequence[float] | None) -> Releases:
    """Return every release that is possible, with its posterior computed when asked for. Cached."""
    prior = check_alpha(alpha)
    most = MOST_PARTITIONS[len(prior)]
    if check_n_partitions(n_partitions) > most:
        raise InputError(
            f"operating characteristics sum over every possible release, up to M = {most} with {len(prior)} outcomes, "
            f"got {n_partitions}; beyond it simulate releases with release_counts(rng=...) and take the posterior of "
            "each"
        )
    if min(prior[:2]) < SMALLEST_ALPHA:
        said = f"alpha must be at least {SMALLEST_ALPHA} for both shares in a study of designs, got {prior!r}"
        raise InputError(f"{said}; simulate releases with release_counts(rng=...) and take the posterior of each")
    TwoSidedGeometric.from_epsilon(epsilon, sensitivity=PartitionCounts.sensitivity)
    return _cached(n_partitions, epsilon, prior)


def decisions(n_partitions: int, epsilon: float, r: float, **supposed: Unpack[Supposed]) -> tuple[float, float]:
    """Return the chances of the right and of the wrong decision."""
    alpha, failed = supposed.get("alpha"), supposed.get("failed", 0.0)
    threshold, confidence = supposed.get("threshold", 0.5), supposed.get("confidence", 0.95)
    confidence = strictly_between(confidence, "confidence", 0.5, 1, remedy="0.95 is usual")
    if r == threshold:
        raise InputError(f"r = {r!r} lies on the threshold itself, where neither decision is right; choose another r")
    every = releases_of(n_partitions, epsilon, alpha)
    if failed and len(every.alpha) == 2:
        raise InputError(f"failed = {failed!r} needs a prior of three outcomes; got alpha = {alpha!r} of two")
    chances = every.distribution(counts_pmf(n_partitions, r, failed))
    above = every.prob_greater(threshold)
    yes, no = float(chances[above >= confidence].sum()), float(chances[above <= 1 - confidence].sum())
    return (yes, no) if r > threshold else (no, yes)


def counts_pmf(n_partitions: int, r: float, failed: float) -> Floats:
    """Return the multinomial probabilities of the true counts, shape (beyond, not beyond)."""
    r, failed = check_share(r, "r"), check_share(failed, "failed")
    shares = np.array([(1 - failed) * r, (1 - failed) * (1 - r), failed])
    table = coefficient_table(n_partitions)
    logs = table.log_coefficients + xlogy(table.counts, shares).sum(axis=1)
    pmf = np.zeros((n_partitions + 1,) * 2)
    pmf[table.counts[:, 0], table.counts[:, 1]] = np.exp(logs)
    return pmf


def expected(n_partitions: int, epsilon: float, r: float, **supposed: Unpack[Supposed]) -> dict[str, float]:
    """Return what one design will say, as `design_surface` names it."""
    right, wrong = decisions(n_partitions, epsilon, r, **supposed)
    every = releases_of(n_partitions, epsilon, supposed.get("alpha"))
    chances = every.distribution(counts_pmf(n_partitions, r, supposed.get("failed", 0.0)))
    # Releases whose failed count is next to impossible here (1e-13 in all) are not worth their intervals.
    likely = np.flatnonzero(chances.sum(axis=(1, 2)) > 1e-13 / len(chances))
    chances = chances[likely] / chances[likely].sum()
    low, high = np.stack([every.intervals(int(value)) for value in likely], axis=1)
    width, coverage = (float((chances * of).sum()) for of in (high - low, (low <= r) & (r <= high)))
    centre = float((chances * every.mean[likely]).sum())
    spread = math.sqrt(float((chances * (every.mean[likely] - centre) ** 2).sum()))
    found = {"right": right, "wrong": wrong, "width": width, "coverage": coverage}
    return found | {"estimate_mean": centre, "estimate_sd": spread}


def design_surface(
    n_partitions: Sequence[int], epsilon: Sequence[float], *, r: float | Sequence[float], **supposed: Unpack[Supposed]
) -> xr.Dataset:
    """Return what verifications of each design will say, summed exactly over the true counts and the noise.

    The noise is two-sided geometric. Up to epsilon 1 Laplace noise decides alike, with widths within a hundredth.

    Parameters
    ----------
    n_partitions
        Numbers of partitions M, up to 201 (with two outcomes 301).
    epsilon
        Privacy costs of the release.
    r
        Supposed shares of computable partitions beyond the claim's threshold. r depends on M, see `pilot_shares`.
    **supposed
        `failed`, `alpha`, `threshold` and `confidence`, see `dpbayes.verifier.design.Supposed`.

    Returns
    -------
    xarray.Dataset
        Over n_partitions, epsilon and r: chances of the ``right`` and of the ``wrong`` decision, mean ``width`` and
        ``coverage`` of the 95 % interval, and ``estimate_mean`` and ``estimate_sd`` of the posterior mean of r.

    Raises
    ------
    InputError
        If a parameter is out of range.

    Examples
    --------
    >>> found = design_surface([20], [0.5, 2.0], r=0.9).squeeze()
    >>> bool(found["right"][1] > found["right"][0]), bool(found["width"][1] < found["width"][0])
    (True, True)
    """
    remedy = "give a list, if need be of one"
    n_partitions = ordered(n_partitions, "n_partitions", remedy=remedy)
    epsilon = ordered(epsilon, "epsilon", remedy=remedy)
    shares = np.atleast_1d(real_numbers(r, "r")).tolist()
    if not (n_partitions and epsilon and shares):
        raise InputError("the grid is empty; give at least one number of partitions, one epsilon and one r")
    found = [expected(m, cost, share, **supposed) for m in n_partitions for cost in epsilon for share in shares]
    size, dims = (len(n_partitions), len(epsilon), len(shares)), ("n_partitions", "epsilon", "r")
    columns = {name: (dims, np.reshape([one[name] for one in found], size)) for name in found[0]}
    coords = {"n_partitions": list(n_partitions), "epsilon": list(epsilon), "r": shares}
    return xr.Dataset(columns, coords, {"failed": 0.0, "threshold": 0.5, "confidence": 0.95} | supposed)


def smallest_epsilon(
    n_partitions: int,
    *,
    r: float,
    wanted: float,
    quantity: Literal["right", "width"] = "right",
    **supposed: Unpack[Supposed],
) -> float:
    """Return the smallest epsilon that makes a verification good enough, rounded up to four digits.

    By bisection: as releases are whole numbers a decision rate is nearly, not strictly, monotone in epsilon. The value
    returned always reaches what is wanted.

    Parameters
    ----------
    n_partitions, r, **supposed
        As in `design_surface`, one of each.
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
    >>> design_surface([20], [epsilon], r=0.9)["right"].item() >= 0.8
    True
    """
    one_of(quantity, ("right", "width"), "quantity")
    strictly_between(wanted, "wanted", 0, 1)

    def enough(epsilon: float) -> bool:
        if quantity == "right":
            return decisions(n_partitions, epsilon, r, **supposed)[0] >= wanted
        return expected(n_partitions, epsilon, r, **supposed)["width"] <= wanted

    if not enough(_EPSILONS[1]):
        raise InputError(
            f"{quantity} {wanted!r} is out of reach with M = {n_partitions} partitions at r = {r!r}, however large "
            "epsilon; raise n_partitions, or want less"
        )
    low, high = map(math.log, _EPSILONS)
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    digits = 3 - math.floor(math.log10(math.exp(high)))
    rounded = math.ceil(math.exp(high) * 10**digits) / 10**digits
    return rounded if enough(rounded) else math.exp(high)


def count_surface(
    n_partitions: int,
    *,
    epsilon: float,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
) -> xr.Dataset:
    """Return the operating characteristics for every possible triple of true counts; arguments as in `design_surface`.

    Returns
    -------
    xarray.Dataset
        Over ``beyond`` and ``not_beyond``, the true counts, NaN where they are not possible: ``estimate_mean``
        and ``estimate_sd`` of the posterior mean of r, ``width`` of the interval, ``coverage`` of the share
        S1 / (S1 + S0), the chances ``decide_above``, ``decide_below`` and ``undecided``, and ``right``, the chance of
        the decision that fits the true share.

    Examples
    --------
    >>> above = count_surface(6, epsilon=2.0)["decide_above"]
    >>> bool(above.sel(beyond=6, not_beyond=0) > above.sel(beyond=3, not_beyond=3))
    True
    """
    strictly_between(confidence, "confidence", 0.5, 1, remedy="0.95 is usual")
    every = releases_of(n_partitions, epsilon, alpha)
    low, high = np.stack([every.intervals(failed) for failed in range(every.mean.shape[0])], axis=1)
    above = every.prob_greater(threshold)
    size = n_partitions + 1
    beyond, other = np.indices((size, size))
    share = np.where(beyond + other > 0, beyond / np.maximum(beyond + other, 1), np.nan)
    decide_above = every.expect((above >= confidence).astype(float))
    decide_below = every.expect((above <= 1 - confidence).astype(float))
    mean, square = every.expect(every.mean), every.expect(every.mean**2)
    found = {
        "estimate_mean": mean,
        "estimate_sd": np.sqrt(np.maximum(square - mean**2, 0.0)),
        "width": every.expect(high - low),
        "coverage": every.coverage(low, high, share),
        "decide_above": decide_above,
        "decide_below": decide_below,
        "undecided": 1 - decide_above - decide_below,
        "right": np.where(share > threshold, decide_above, np.where(share < threshold, decide_below, np.nan)),
    }
    coords = {"beyond": np.arange(size), "not_beyond": np.arange(size)}
    attrs = {"n_partitions": n_partitions, "epsilon": epsilon, "threshold": threshold, "confidence": confidence}
    return xr.Dataset({name: (("beyond", "not_beyond"), v) for name, v in found.items()}, coords, attrs)


MOST_FAILED = 0.1  # share of partitions that may fail in a design called safe
LEAST_COVERAGE = 0.93  # of a 95 % interval that a run does not warn of
_LEAST_REACH = 5.0  # standard deviations of an estimate to either side
_ROWS_PER_PARAMETER = 10


def pilot_shares(
    frame: Any,
    *,
    n_units: int,
    n_partitions: Sequence[int],
    threshold: float | None = None,
    direction: Direction | None = None,
    significant_at: float | None = None,
    lower: float | None = None,
    upper: float | None = None,
    unit: str | None = None,
    epsilon: float = 1.0,
    partitions: int = 400,
    random_state: int | np.random.Generator = 1,
    **regression: Unpack[Regression],
) -> xr.Dataset:
    """Try a claim on a pilot: the share r of partitions in which it holds, against M, and the largest safe M.

    Parameters
    ----------
    frame
        Public or simulated records like the confidential ones. What they say is not protected.
    n_units
        Public number of units of the confidential records; a partition holds n_units / M of them.
    n_partitions, partitions
        Numbers of partitions M to try, and how many partitions are drawn for each from the pilot, with replacement.
    threshold, direction, significant_at, unit, **regression
        The claim, as in `count_partitions`.
    lower, upper
        The public range of a question about the coefficient itself, as in `sum_estimates`: the estimates are then those
        that it sums, freed of bias by their halves.
    epsilon
        Privacy cost for which the chance of the right decision, the range and the coverage are given.
    random_state
        Seed or generator of the draws.

    Returns
    -------
    xarray.Dataset
        Over n_partitions: ``r`` and its standard error ``r_se``, the share ``failed``, mean and standard deviation of
        the estimates (``estimate``, ``estimate_sd``), ``range_from`` and ``range_to``, a public range for
        `sum_estimates`: to either side max(5, sqrt(M epsilon / 8 sqrt 2)) standard deviations, where what clipping may
        take from the mean is no more than the noise's; with `lower` and `upper` ``coverage``, that of the 95 % interval
        over all laws with the pilot's mean and spread, at the least; ``right``, the chance of the decision that the
        whole pilot makes; ``units`` per partition, and ``safe``: r lies on the whole pilot's side of one half by two
        standard errors, at most a tenth of the partitions fail, and so at every smaller M tried. Attributes: ``whole``,
        the pilot's estimate, ``beyond``, whether the claim holds there, and ``largest_safe``, the largest safe M, or 0.

    Raises
    ------
    MissingColumnError, InputError
        As in `count_partitions`; if an M exceeds `n_units`, or the whole pilot has no estimate.

    Examples
    --------
    >>> from dpbayes.data.datasets import wages
    >>> claim = {"formula": "wage ~ education", "coefficient": "education", "threshold": 0.0, "direction": ">"}
    >>> tried = pilot_shares(wages(500), n_units=2000, n_partitions=[10, 20], unit="person", partitions=40, **claim)
    >>> tried.attrs["largest_safe"]
    20
    """
    tried = sorted({check_n_partitions(m) for m in ordered(n_partitions, "n_partitions", remedy="give a list")})
    if not tried or tried[-1] > n_units:
        raise InputError(f"n_partitions must name numbers up to n_units = {n_units:,}, got {tried!r}")
    verdict = coefficient_verdict(threshold, direction, significant_at)
    given = None if lower is None and upper is None else check_range(lower, upper)
    rng = generator(random_state, "random_state")
    whole, draw = _resampled(frame, unit, regression, rng, corrected=given is not None)
    if whole is None:
        raise InputError("the claim cannot be computed on the whole pilot; check its rows, formula and levels")
    beyond, rows, safe = verdict(whole), [], True
    for m in tried:
        found = [draw(n_units // m) for _ in range(partitions)]
        row = _told_by(found, verdict, beyond, m, epsilon, given)
        safe = safe and row.pop("clear") and row["failed"] <= MOST_FAILED
        rows.append(row | {"units": n_units // m, "safe": safe})
    table = pd.DataFrame(rows, index=pd.Index(tried, name="n_partitions"))
    largest = int(max(table.index[table["safe"]], default=0))
    return table.to_xarray().assign_attrs(whole=whole.coefficient, beyond=int(beyond), largest_safe=largest)


def _resampled(
    frame: Any, unit: str | None, regression: Regression, rng: np.random.Generator, *, corrected: bool
) -> tuple[Fitted | None, Callable[[int], Fitted | None]]:
    """Return the estimate of the whole pilot, and a function to that of so many units drawn with replacement."""
    table = collect(frame)
    known, fit = model_of(table, **regression)
    codes, n_pilot = (np.arange(len(table)), len(table)) if unit is None else unit_codes(column_values(table, unit))
    places = rows_by_partition(codes[known], n_pilot)

    def fitted(units: Ints) -> Fitted | None:
        return fit(np.concatenate([places[unit] for unit in units]))

    def draw(size: int) -> Fitted | None:
        drawn = rng.integers(0, n_pilot, size=size)
        if not corrected or size < 2:
            return None if corrected else fitted(drawn)
        return halved(fitted(drawn), fitted(drawn[::2]), fitted(drawn[1::2]))

    return fit(np.arange(known.size)), draw


def _told_by(
    found: list[Fitted | None], verdict: Callable[[Fitted], bool], beyond: bool, m: int, epsilon: float, given: Any
) -> dict[str, Any]:
    """Say what the partitions of one size tell; "clear" where r lies on the whole pilot's side of one half."""
    computed = [one for one in found if one is not None]
    share = float(np.mean([verdict(one) for one in computed])) if computed else math.nan
    error = math.sqrt(max(share * (1 - share), 0.25 / len(found)) / max(len(computed), 1))
    failed = 1 - len(computed) / len(found)
    margin = (share - 0.5) if beyond else (0.5 - share)
    right = math.nan
    if m <= MOST_PARTITIONS[3] and share != 0.5 and computed:
        right = decisions(m, epsilon, share, failed=failed)[0 if margin > 0 else 1]
    said = {"r": share, "r_se": error, "failed": failed, "right": right, "clear": margin > 2 * error}
    values = np.array([one.coefficient for one in computed] or [math.nan])
    centre, spread = values.mean(), values.std()
    # Clipping w off the centre takes at most spread^2 / 4w; the noise of the mean is 2 sqrt(2) w / (M epsilon).
    reach = max(_LEAST_REACH, math.sqrt(m * epsilon / (8 * math.sqrt(2)))) * spread
    said |= {"estimate": centre, "estimate_sd": spread, "range_from": centre - reach, "range_to": centre + reach}
    if given is not None:
        size, noise_sd = m * values.size / len(found), 2 * math.sqrt(2) / (m * epsilon)
        covered = least_coverage(values, *given, size=size, noise_sd=noise_sd) if spread > 0 else math.nan
        said["coverage"] = covered
    return said


def pilot_warnings(tried: xr.Dataset, name: str) -> list[str]:
    """Say what a pilot tells against the designs tried, by the coefficient itself where a range was given."""
    found, by_mean = [], "coverage" in tried
    for m, one in tried.to_dataframe().to_dict("index").items():
        size = f"{m:,} partitions ({one['units']:,} units each)"
        if one["failed"] > MOST_FAILED:
            found.append(
                f"\u201c{name}\u201d: on the pilot {100 * one['failed']:.0f} % of {size} cannot be computed; take "
                "fewer partitions, pool rare levels, or spread a public column evenly (strata)"
            )
        if not by_mean and not math.isnan(one["r"]) and (one["r"] > 0.5) != bool(tried.attrs["beyond"]):
            found.append(
                f"\u201c{name}\u201d: on the pilot the claim {'holds' if tried.attrs['beyond'] else 'does not hold'} "
                f"in all records and in {100 * one['r']:.0f} % of {size}; small samples are skewed here. Take "
                'fewer partitions, or ask about the coefficient itself (answer_by = "mean")'
            )
        if by_mean and one["coverage"] < LEAST_COVERAGE:
            found.append(
                f"\u201c{name}\u201d: if estimates spread as on the pilot, what the range cuts off may leave the 95 % "
                f"interval of {size} a coverage of {100 * one['coverage']:.0f} %; take lower = "
                f"{one['range_from']:.3g} and upper = {one['range_to']:.3g}, or fewer partitions"
            )
    return found


def partition_warnings(
    *,
    n_units: int,
    n_partitions: int,
    formula: str,
    family: str = "gaussian",
    levels: Mapping[str, Any] | None = None,
    level_shares: Mapping[str, Mapping[str, float]] | None = None,
    skew: float | None = None,
    strata: str | None = None,
) -> list[str]:
    """Say what public facts alone tell against partitions of n_units / M units."""
    size = n_units / n_partitions
    said, about = [], f"{n_partitions:,} partitions of about {size:.0f} units"
    columns = model_columns(formula, levels or {})
    if columns is not None and size < _ROWS_PER_PARAMETER * len(columns):
        most = n_units // (_ROWS_PER_PARAMETER * len(columns))
        what = "vary much and some fail" if family == "gaussian" else "vary much, some fail, and the rest are biased"
        said.append(
            f"{about} hold fewer than ten for each of the {len(columns)} parameters of {formula}: estimates {what}; "
            + (f"take at most {most:,} partitions" if most else "this formula needs more records")
        )
    if skew is not None and size < 28 + 25 * skew**2:
        most = int(n_units / (28 + 25 * skew**2))
        said.append(
            f"{about} are too small for a response of skewness {skew:g}, which asks for {28 + 25 * skew**2:,.0f}: the "
            "share of partitions beyond a threshold may lie on the other side of one half than the coefficient of all "
            f'records; take at most {most:,} partitions, or ask about the coefficient itself (answer_by = "mean")'
        )
    for name, shares in (level_shares or {}).items():
        # Spread evenly, a level is in a share of the partitions; otherwise each unit draws it by itself.
        present = [min(1.0, s * size) if strata == name else 1 - (1 - s) ** size for s in map(float, shares.values())]
        missing = 1 - math.prod(present)
        if missing > 0.05:
            said.append(
                f"{100 * missing:.0f} % of the {about} are expected to lack a level of {name!r} by its declared "
                "shares, and cannot be computed; take fewer partitions, pool rare levels "
                f"(levels.{name} = {{common = [...], other = [...]}}), or set strata = {name!r} if the column is public"
            )
    return said
