"""The paper's first experiment: eigenvalues of a covariance from a covariance query and from an identity query."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.mvg.accounting import MatrixGaussian, calibrate
from dpbayes.mvg.clipping import ClippedRecords, clip_records
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.mechanism import release_records
from dpbayes.mvg.moment_release import release_moments
from dpbayes.mvg.moments import MomentQuery
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.mvg.symmetric import SymmetricGaussian, calibrate_moments

__all__ = ["CovarianceResult", "component_rss", "covariance_study", "noise_alone_limits", "unit_records"]

type FloatArray = npt.NDArray[np.float64]

# Table of Appendix C, for plots and for the comparison in docs/mvg.md: n, query, RSS.
PAPER_RSS = (
    (20_000, "covariance", 0.070118),
    (20_000, "identity", 0.397775),
    (100_000, "covariance", 0.002646),
    (100_000, "identity", 0.398695),
    (350_000, "covariance", 0.000286),
    (350_000, "identity", 0.398079),
)


@dataclass(frozen=True)
class CovarianceResult:
    """One row of the paper's Appendix C.

    Parameters
    ----------
    n
        Sample size.
    query
        ``"covariance"`` or ``"identity"``.
    rss_shares
        Residual sum of squares of the eigenvalues as shares of their sum, one a draw.
    rss
        The same of the eigenvalues themselves, in squared units of the unit-scaled features.
    runtime
        Seconds of the fastest draw of the mechanism, query included.
    noise_alone
        For the identity query, the 2.5 % and 97.5 % quantiles that `rss_shares` would have if the released matrix held
        its noise and nothing else (`noise_alone_limits`).

    Examples
    --------
    >>> round(CovarianceResult(100, "covariance", (1e-4, 3e-4), (0.1, 0.2), 0.01).summary()["mean"], 9)
    0.0002
    """

    n: int
    query: str
    rss_shares: tuple[float, ...]
    rss: tuple[float, ...]
    runtime: float
    noise_alone: tuple[float, float] | None = None

    def summary(self) -> dict[str, float]:
        """Return the mean and the 2.5 % and 97.5 % quantiles of `rss_shares`."""
        low, high = np.quantile(self.rss_shares, [0.025, 0.975])
        return {"mean": float(np.mean(self.rss_shares)), "low": float(low), "high": float(high)}


def component_rss(exact: FloatArray, noisy: FloatArray, *, shares: bool) -> float:
    """Return the sum of squared differences between the ordered eigenvalues of two covariances.

    Parameters
    ----------
    exact, noisy
        Symmetric matrices of one shape.
    shares
        Divide each set of eigenvalues by the sum of its absolute values first (explained variance).

    Examples
    --------
    >>> component_rss(np.diag([3.0, 1.0]), np.diag([1.0, 2.0]), shares=False)
    1.0
    """
    first, second = np.linalg.eigvalsh(exact), np.linalg.eigvalsh(noisy)
    if shares:
        # A noisy covariance may have negative eigenvalues; its plain trace could vanish.
        first, second = first / np.abs(first).sum(), second / np.abs(second).sum()
    return float(np.sum((first - second) ** 2))


def noise_alone_limits(
    exact: FloatArray, n: int, *, rng: np.random.Generator, draws: int = 1_000
) -> tuple[float, float]:
    """Return the middle 95 % of the share error of a covariance that is taken from noise alone.

    Equal noise has the covariance ZZ'/n of n standard normal vectors: its scale leaves the shares, and the records
    enter only as what the shares are compared with.

    Parameters
    ----------
    exact
        The covariance of the records, shape (m, m).
    n
        Number of records.
    rng
        Generator of the noise.
    draws
        How many times noise is drawn.

    Returns
    -------
    tuple of float
        The 2.5 % and 97.5 % quantiles of `component_rss` with shares.

    Examples
    --------
    >>> low, high = noise_alone_limits(np.diag([3.0, 1.0]), 10_000, rng=np.random.default_rng(1))
    >>> round(low, 2), round(high, 2)  # equal shares would give 0.125, and noise never quite does
    (0.11, 0.12)
    """
    size = len(exact)
    found = [component_rss(exact, noise, shares=True) for noise in _standard_wishart(size, n, draws, rng)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _standard_wishart(size: int, n: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Return ZZ' of n standard normal vectors, `draws` times; without forming Z where n reaches the size."""
    from scipy.stats import wishart

    if n >= size:
        found = wishart.rvs(df=n, scale=np.eye(size), size=draws, random_state=rng)
        return np.reshape(found, (draws, size, size))
    z = rng.standard_normal((draws, size, n))
    return np.asarray(z @ z.transpose(0, 2, 1))


def unit_records(records: npt.ArrayLike, ranges: FeatureRanges) -> tuple[ClippedRecords, FeatureRanges]:
    """Clip records to their public ranges and scale every feature to [0, 1]; return them with the unit ranges.

    Examples
    --------
    >>> scaled, unit = unit_records([[20.0, 35.0]], FeatureRanges([20.0], [40.0], "replace-one"))
    >>> scaled.values.tolist(), unit.upper.tolist()
    ([[0.0, 0.75]], [1.0])
    """
    clipped = clip_records(records, ranges)
    scaled = (clipped.values - ranges.lower[:, None]) / ranges.widths[:, None]
    unit = FeatureRanges(np.zeros(ranges.size), np.ones(ranges.size), ranges.adjacency)
    return ClippedRecords(np.clip(scaled, 0.0, 1.0), clipped.n_clipped, clipped.n_missing, unit), unit


def covariance_study(
    records: npt.ArrayLike,
    ranges: FeatureRanges,
    *,
    sizes: Sequence[int],
    epsilon: float,
    delta: float,
    draws: int,
    rng: np.random.Generator,
) -> tuple[CovarianceResult, ...]:
    """Compare a covariance query with an identity query at the same guarantee, as in Section 0.5.1.

    Both see the same records, scaled to [0, 1] by their public ranges and centred in the middle. The covariance query
    releases (1/n) XX' with symmetric noise; the identity query releases X with i.i.d. noise and takes the covariance
    of that. Noise is simulated: the study measures error, which needs the exact answer.

    Parameters
    ----------
    records
        Matrix of shape (m, N), columns are records; the first n serve for sample size n.
    ranges
        Public bounds, with the adjacency.
    sizes
        Sample sizes, at most N.
    epsilon, delta
        The guarantee of each release.
    draws
        Draws a mechanism.
    rng
        Generator of the noise.

    Returns
    -------
    tuple of CovarianceResult
        Two a sample size.

    Raises
    ------
    InputError
        If a size is out of range or `draws` is not positive.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> twice = np.tile(rng.random(5000), (2, 1))
    >>> study = covariance_study(twice, ranges, sizes=[5000], epsilon=1.0, delta=1e-5, draws=5, rng=rng)
    >>> bool(study[0].summary()["mean"] < study[1].summary()["mean"])
    True
    """
    scaled, unit = unit_records(records, ranges)
    available = scaled.values.shape[1]
    if not sizes or min(sizes) < 2 or max(sizes) > available:
        raise InputError(f"sizes must lie between 2 and the {available} records, got {list(sizes)}")
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}")
    results = []
    for n in sizes:
        part = replace(scaled, values=np.ascontiguousarray(scaled.values[:, :n]))
        query = MomentQuery(unit, int(n))
        moments = calibrate_moments(query, epsilon=epsilon, delta=delta)
        matrix = calibrate(Covariance.identity(unit.size), Covariance.identity(n), unit, epsilon=epsilon, delta=delta)
        exact = query.value(part)

        by_covariance = partial(_by_covariance, part, moments, rng)
        by_identity = partial(_by_identity, part, matrix, unit, rng)
        results.append(_repeat(int(n), "covariance", by_covariance, exact, draws))
        identity = _repeat(int(n), "identity", by_identity, exact, draws)
        # A generator of its own: the draws of the queries stay those of the seed.
        limits = noise_alone_limits(exact, int(n), rng=rng.spawn(1)[0])
        results.append(replace(identity, noise_alone=limits))
    return tuple(results)


def _by_covariance(records: ClippedRecords, noise: SymmetricGaussian, rng: np.random.Generator) -> FloatArray:
    return release_moments(records, noise, rng=rng).value


def _by_identity(
    records: ClippedRecords, noise: MatrixGaussian, ranges: FeatureRanges, rng: np.random.Generator
) -> FloatArray:
    centred = release_records(records, noise, ranges=ranges, rng=rng).values - 0.5
    return np.asarray(centred @ centred.T / centred.shape[1])


def _repeat(n: int, name: str, mechanism: Callable[[], FloatArray], exact: FloatArray, draws: int) -> CovarianceResult:
    plain, shares, fastest = [], [], float("inf")
    for _ in range(draws):
        started = time.perf_counter()
        noisy = mechanism()
        fastest = min(fastest, time.perf_counter() - started)
        plain.append(component_rss(exact, noisy, shares=False))
        shares.append(component_rss(exact, noisy, shares=True))
    return CovarianceResult(n, name, tuple(shares), tuple(plain), fastest)
