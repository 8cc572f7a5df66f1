r"""The coefficient itself, by the mean of the partitions' estimates: right where small samples are skewed.

Each partition's estimate is clipped to a public range [L, U] and scaled to v = (2b - L - U) / (U - L) in [-1, 1].
Released are :math:`(\sum_m v_m, \tfrac12 \sum_m v_m^2, \tfrac12 F)`, where F partitions could not be computed and
count as v = 0. docs/verifier.md shows that one partition moves the three by 2 at most in L1, as the first alone, and
derives the posterior.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from scipy.special import betaln, gammaln, ndtr
from scipy.stats import chi2, ncx2

from dpbayes._arguments import Floats, finite, ordered, positive_finite, shown
from dpbayes.errors import InputError
from dpbayes.privacy.release import Release
from dpbayes.verifier.claim import Regression, estimate_partitions
from dpbayes.verifier.partition import GRID, Assignment, EstimateSums, Partitioned, question_table, range_of

_REACH = 16.0  # scales of the noise: beyond, 1e-7 of its mass


def sum_estimates(
    frame: Any,
    *,
    lower: float,
    upper: float,
    n_partitions: int,
    corrected: bool = True,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
    strata: str | None = None,
    **regression: Unpack[Regression],
) -> EstimateSums:
    """Sum the partitions' estimates of a coefficient, each clipped to a public range.

    For a claim about the coefficient in all records, which the share of partitions beyond a threshold does not answer
    where small samples are skewed. `release_counts` releases the sums, which are confidential.

    Parameters
    ----------
    lower, upper
        Public range of the estimates, chosen without looking at the data: wide enough for a partition's estimate,
        narrow enough for the noise, whose standard deviation on the mean is 1.4 (upper - lower) / (M epsilon).
    corrected
        Whether each partition's estimate b is freed of its bias of order M / n by its own halves: 2 b - (b1 + b2) / 2
        (Quenouille). A partition with a half that cannot be computed is not computed.
    frame, n_partitions, unit, assignment, random_state, strata, **regression
        As in `count_partitions`.

    Raises
    ------
    MissingColumnError, InputError
        As in `count_partitions`, or if the range is none.

    References
    ----------
    Smith, A. (2011). Privacy-preserving statistical estimation with optimal convergence rates. STOC.
    Quenouille, M. H. (1949). Approximate tests of correlation in time-series. JRSS B 11, 68-84.

    Examples
    --------
    >>> import polars as pl
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=5000)
    >>> frame = pl.DataFrame({"x": x, "y": 1 + 2 * x + rng.normal(size=5000)})
    >>> sums = sum_estimates(frame, formula="y ~ x", coefficient="x", lower=0, upper=4, n_partitions=50, random_state=1)
    >>> sums.n_partitions
    50
    """
    low, high = check_range(lower, upper)
    split: Partitioned = {"unit": unit, "assignment": assignment, "random_state": random_state}
    estimates = estimate_partitions(frame, n_partitions, corrected=corrected, strata=strata, **split, **regression)
    values = np.array([estimate.coefficient for estimate in estimates if estimate is not None])
    scaled = np.clip((2 * values - low - high) / (high - low), -1.0, 1.0)
    grid = np.rint(GRID * scaled).astype(np.int64)
    sums = int(grid.sum()), int((grid**2 // (2 * GRID)).sum()), len(estimates) - values.size
    return EstimateSums(*sums, low, high, int(n_partitions), assignment, random_state is not None, unit)


def check_range(lower: Any, upper: Any) -> tuple[float, float]:
    """Return the public range of the estimates as floats."""
    remedy = "lower < upper are the public range of a partition's estimate"
    low, high = finite(lower, "lower", remedy=remedy), finite(upper, "upper", remedy=remedy)
    if not low < high:
        raise InputError(f"lower must be below upper, got {shown(lower)} and {shown(upper)}; {remedy}")
    return low, high


@dataclass(frozen=True, eq=False)
class CoefficientPosterior:
    """Posterior of a coefficient from the noisy mean of the partitions' estimates."""

    values: Floats
    cdf: Floats
    noise_sd: float
    sampling_sd: float
    clipping_sd: float
    spread: float
    computed: float

    @property
    def mean(self) -> float:
        """Posterior mean."""
        return float(self._middles @ self._masses)

    @property
    def sd(self) -> float:
        """Posterior standard deviation."""
        return float(np.sqrt((self._middles - self.mean) ** 2 @ self._masses))

    @property
    def widening(self) -> float:
        """By what factor the allowance for clipping widens the posterior."""
        return float(1 / np.sqrt(max(1 - (self.clipping_sd / self.sd) ** 2, 1e-12)))

    @property
    def _middles(self) -> Floats:
        return 0.5 * (self.values[1:] + self.values[:-1])

    @property
    def _masses(self) -> Floats:
        return np.asarray(np.diff(self.cdf))

    def quantile(self, q: npt.ArrayLike) -> Floats:
        """Return quantiles."""
        return np.interp(np.asarray(q, dtype=float), self.cdf, self.values)

    def interval(self, prob: float = 0.95) -> tuple[float, float]:
        """Return the equal-tailed credible interval."""
        low, high = self.quantile([(1 - prob) / 2, (1 + prob) / 2]).tolist()
        return low, high

    def prob_greater(self, threshold: float) -> float:
        """Return P(coefficient > threshold)."""
        return 1.0 - float(np.interp(threshold, self.values, self.cdf, left=0.0, right=1.0))

    def density(self) -> tuple[Floats, Floats]:
        """Return points and the density there."""
        return self._middles, self._masses / np.diff(self.values)


def coefficient_posterior(
    release: Release,
    *,
    question: str | None = None,
    failed_prior: Sequence[float] = (0.5, 4.5),
    allow_clipping: bool = True,
) -> CoefficientPosterior:
    r"""Return the posterior of a coefficient from released sums of the partitions' estimates.

    It is of the coefficient in the population that the records are drawn from, and wider than one of the coefficient in
    these records alone would be: there only `noise_sd` is unknown, up to terms of order M / n.

    Parameters
    ----------
    release
        From `release_counts` of `sum_estimates`; `InputError` if it holds no sums of estimates.
    question
        Which table, when the release answers several questions.
    failed_prior
        Beta prior of the share of partitions that cannot be computed.
    allow_clipping
        Whether the posterior allows for what clipping may have taken from the mean; `False` where no estimate can leave
        the range.

    Notes
    -----
    Given K computed partitions, the coefficient and the spread between partitions, the mean of the estimates is normal
    and their sum of squares chi-square, as for a t interval; the spread is released, not assumed. Scarf's inequality
    bounds what clipping may have taken from the mean, and the posterior is as wide as makes its 95 % interval cover
    whatever that is: the fixed-length interval of Armstrong and Kolesar.

    References
    ----------
    Scarf, H. (1958). A min-max solution of an inventory problem. Studies in the Mathematical Theory of Inventory
    and Production, 201-209.
    Armstrong, T. B. and Kolesar, M. (2018). Optimal inference in a class of regression models. Econometrica 86(2),
    655-683.

    Examples
    --------
    >>> from dpbayes.verifier import release_counts
    >>> sums = EstimateSums(0, 50 * GRID // 200, 0, 0.0, 4.0, 50, reproducible=True)
    >>> release = release_counts(sums, epsilon=1.0, rng=np.random.default_rng(3))
    >>> found = coefficient_posterior(release)
    >>> 1.5 < found.mean < 2.5, found.noise_sd < found.sd
    (True, True)
    """
    table, m = question_table(release, question, sums=True)
    lower, upper = range_of(table) or (0.0, 1.0)
    remedy = "give the two numbers of a beta law"
    prior = [
        positive_finite(a, "failed_prior", remedy=remedy) for a in ordered(failed_prior, "failed_prior", remedy=remedy)
    ]
    if len(prior) != 2:
        raise InputError(f"failed_prior holds {len(prior)} numbers; {remedy}")
    scale = table.noise.spread / GRID
    noisy = np.concatenate([table.counts / GRID, np.zeros(3 - table.counts.size)])
    # A value outside its range tells as much as the nearest end: the density falls at one rate beyond it.
    y = np.clip(noisy, [-m, 0.0, 0.0], [m, m / 2, m / 2])
    failed, log_failed = _failures(y[2], scale, m, prior) if table.counts.size == 3 else (np.zeros(1), np.zeros(1))
    total, half = _support(y[0], scale, -m, m), _support(y[1], scale, 0.0, m / 2)
    log_noise = -np.abs(y[0] - total[:, None]) / scale - np.abs(y[1] - half[None, :]) / scale
    parts = [_given_size(total, half, m - f) for f in failed]
    logs = np.stack([log_noise + of_size + of_f for (of_size, _), of_f in zip(parts, log_failed, strict=True)])
    weights = np.exp(logs - logs.max())
    cells = np.nonzero(weights > 1e-10)  # (failed, total, half)
    weights = weights[cells] / weights[cells].sum()
    size, middle = m - failed[cells[0]], total[cells[1]] / (m - failed[cells[0]])
    squares = np.stack([square for _, square in parts])[cells]
    # sigma^2 given q is q over chi-square: five of its quantiles stand for it.
    nodes = np.stack([chi2.ppf((np.arange(5) + 0.5) / 5, max(m - f - 2, 1)) for f in failed])
    sigma = np.sqrt(squares[:, None] / nodes[cells[0]])
    error = sigma / np.sqrt(size[:, None])
    whole, middles = np.broadcast_to(weights[:, None] / 5, sigma.shape), np.broadcast_to(middle[:, None], sigma.shape)
    width = 0.5 * (upper - lower)
    low, high = _taken_by_clipping(middles, sigma) if allow_clipping else (np.zeros(1), np.zeros(1))
    centres, most = middles + 0.5 * (high - low), 0.5 * (high + low)
    unclipped = float((whole * (error**2 + (centres - (whole * centres).sum()) ** 2)).sum())
    clipping = most**2 * _allowance(float(np.sqrt((whole * most**2).sum() / unclipped)))
    x, cdf = _normal_mixture(whole.ravel(), centres.ravel(), np.sqrt(error**2 + clipping).ravel())
    return CoefficientPosterior(
        0.5 * (lower + upper) + width * x,
        cdf,
        noise_sd=width * float(np.sqrt(weights @ (middle - weights @ middle) ** 2)),
        sampling_sd=width * float(np.sqrt((whole * error**2).sum())),
        clipping_sd=width * float(np.sqrt((whole * clipping).sum())),
        spread=width * float((whole * sigma).sum()),
        computed=float(weights @ size),
    )


def _taken_by_clipping(mean: Floats, sigma: Floats) -> tuple[Floats, Floats]:
    """Return by how much clipping to [-1, 1] may have raised and lowered a mean, by Scarf's bound."""
    low, high = (0.5 * (np.hypot(sigma, gap) - gap) for gap in (np.maximum(1 + mean, 0), np.maximum(1 - mean, 0)))
    return low, high


def _allowance(most: float) -> float:
    """Return the variance, in squares of the largest bias `most`, both in units of the sd, that makes intervals cover.

    Of |N(b, 1)| with b up to `most` the .95 quantile c(most) is that of noncentral chi-square, rooted: the half-width
    of the interval that covers, 1.96 times the root of 1 + variance. From 1 where `most` is small it falls to .26.
    """
    most = max(most, 1e-2)
    return float((ncx2.ppf(0.95, 1, most**2) / chi2.ppf(0.95, 1) - 1) / most**2)


def least_coverage(estimates: Floats, lower: float, upper: float, *, size: float, noise_sd: float) -> float:
    """Return what the 95 % interval covers at the least, over all laws with the mean and the spread of `estimates`.

    `size` partitions are computed; `noise_sd` is that of the noise on the mean, in half ranges.
    """
    values = (2 * estimates - lower - upper) / (upper - lower)
    inside = np.clip(values, -1.0, 1.0)
    sd = float(np.hypot(inside.std() / np.sqrt(size), noise_sd))
    allowed, taken = (_taken_by_clipping(np.array(one.mean()), np.array(one.std())) for one in (inside, values))
    most = 0.5 * (allowed[0] + allowed[1])
    half = 1.96 * np.hypot(sd, most * np.sqrt(_allowance(float(most) / sd)))
    # Of the mean of the clipped estimates, where the interval's middle lies and where the coefficient may.
    middle, ends = 0.5 * (allowed[1] - allowed[0]), np.array([-taken[0], taken[1]])
    return float((ndtr((middle + half - ends) / sd) - ndtr((middle - half - ends) / sd)).min())


def _failures(y: float, scale: float, m: int, prior: Sequence[float]) -> tuple[Floats, Floats]:
    """Return possible numbers of failures, at most 24 of them, and their log-weights; two partitions are computed."""
    reach = 2 * scale * _REACH
    low, high = max(0, np.floor(2 * y - reach)), min(max(m - 2, 0), np.ceil(2 * y + reach))
    failed = np.unique(np.rint(np.linspace(min(low, high), high, 24)))
    binomial = gammaln(m + 1) - gammaln(failed + 1) - gammaln(m - failed + 1)
    beta = betaln(failed + prior[0], m - failed + prior[1])
    # Where the numbers are thinned out, each stands for those around it.
    gaps = np.gradient(failed) if failed.size > 1 else np.ones(1)
    return failed, binomial + beta - np.abs(y - failed / 2) / scale + np.log(gaps)


def _support(y: float, scale: float, low: float, high: float) -> Floats:
    """Return the values behind a noisy one that the noise and the range leave."""
    return np.linspace(max(y - _REACH * scale, low), min(y + _REACH * scale, high), 101)


def _given_size(total: Floats, half: Floats, size: float) -> tuple[Floats, Floats]:
    r"""Return the log-prior of the sum and of the half sum of squares of `size` estimates, and q of each pair."""
    q = 2 * half[None, :] - (total**2 / size)[:, None]
    least = 0.25 * (half[1] - half[0])
    possible = (q > -least) & (2 * half[None, :] <= size)
    q = np.maximum(q, least)
    k = max(size, 3.0)
    logs = gammaln((k - 2) / 2) - gammaln((k - 1) / 2) - 0.5 * np.log(q) - np.log(size)
    return np.where(possible, logs, -np.inf), q


def _normal_mixture(w: Floats, centre: Floats, sd: Floats) -> tuple[Floats, Floats]:
    """Return points and the distribution function of a mixture of many normals, each within [-1, 1]."""
    mean = float(w @ centre) / w.sum()
    reach = 9 * float(np.sqrt(w @ ((centre - mean) ** 2 + sd**2) / w.sum())) + 1e-12
    x = np.linspace(max(mean - reach, -1.0), min(mean + reach, 1.0), 1201)
    step = x[1] - x[0]
    at = np.clip((centre - x[0]) / step, 0, x.size - 1 - 1e-9)
    errors = np.geomspace(max(sd.min(), 0.25 * step), max(sd.max(), 0.5 * step), 48)
    variance = np.clip(sd**2, errors[0] ** 2, errors[-1] ** 2)
    column = np.clip(np.searchsorted(errors**2, variance, side="right") - 1, 0, 46)
    share = (variance - errors[column] ** 2) / (errors[column + 1] ** 2 - errors[column] ** 2)
    row = at.astype(np.int64)
    flat = np.zeros(x.size * errors.size)
    for shift, along in ((0, 1 - (at - row)), (1, at - row)):
        for side, across in ((0, 1 - share), (1, share)):
            cells = (row + shift) * errors.size + column + side
            flat += np.bincount(cells, weights=w * along * across, minlength=flat.size)
    table = flat.reshape(x.size, errors.size)
    gaps = step * np.arange(1 - x.size, x.size)
    cdf = sum(np.convolve(table[:, j], ndtr(gaps / e))[x.size - 1 : 2 * x.size - 1] for j, e in enumerate(errors))
    cdf = np.maximum.accumulate(np.asarray(cdf))
    return x, (cdf - cdf[0]) / (cdf[-1] - cdf[0])
