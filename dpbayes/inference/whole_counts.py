r"""The exact counts behind a release as nonnegative whole numbers that sum to the exact number of records.

For the cells x of a small domain, with all released tables margins of x and their noise under its own law,

.. math:: x_c \mid \mu, \theta \sim \text{Poisson}(\mu_c \theta_c) \text{ given } \sum_c x_c = n, \qquad
          \theta_c \sim \text{Gamma}(r, r), \qquad \mu_c = n \prod_j \alpha_{j c_j}, \qquad
          \alpha_{jl} \sim \text{Gamma}(a_j, a_j k_j),

the independence of attributes up to a gamma factor per cell; r and the a's are unknowns on grids, k_j is the number of
levels. The sampler moves records between two cells at a time (Metropolis, the factors integrated out), and draws
everything else from its conditional law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpbayes._arguments import whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.release import Release, check_all_published, check_of_records

if TYPE_CHECKING:
    import xarray as xr

type Array = npt.NDArray[np.float64]
type Whole = npt.NDArray[np.int64]

MAX_CELLS = 4096
"""Most cells of the domain."""

_MOST = 10**6  # draws, draws before them, and chains
_MOVES = 60  # tried per cell between two draws of the rest
_SHAPES = np.exp(np.linspace(np.log(0.05), np.log(30.0), 60))
_WEIGHTS = np.exp(np.linspace(np.log(0.05), np.log(5.0), 40))


def sample_whole_counts(
    release: Release, *, draws: int = 500, tune: int = 300, chains: int = 4, random_seed: int = 1
) -> xr.DataTree:
    """Sample the exact counts behind a release: whole, never negative, of the exact total.

    Parameters
    ----------
    release
        Tables over a domain of at most 4,096 cells, with an exact number of records. Any law, and one per cell.
    draws, tune, chains
        Draws kept per chain, draws before them, and chains.
    random_seed
        Seed of the chains.

    Returns
    -------
    xarray.DataTree
        ``posterior`` with ``counts`` (chain, draw, attributes) and ``shape`` r (chain, draw). Intervals are those of
        whole numbers: that of an empty cell begins at 0. Judge convergence as of any trace (`arviz.rhat`).

    Raises
    ------
    InputError
        If the number of records is noisy, a threshold held counts back, there are too many cells, or a setting is no
        whole number in its range.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> from dpbayes.privacy import DiscreteGaussian, NoisyTable, Publication, Release
    >>> domain = Domain.from_levels({"sex": ("f", "m"), "age": ("<18", "18+")})
    >>> table = NoisyTable(domain, [[-3, 41], [2, 55]], DiscreteGaussian(4.0), None, None)
    >>> stated = Publication("An office", "https://example.org", "2026", "discrete Gaussian of sd 4")
    >>> release = Release(domain, (table,), "as published", 100, "published", publication=stated)
    >>> counts = sample_whole_counts(release, draws=200)["posterior"]["counts"]
    >>> bool((counts >= 0).all()), bool((counts.sum(["sex", "age"]) == 100).all())
    (True, True)
    """
    import xarray as xr

    for name, value, least in (("draws", draws, 1), ("tune", tune, 0), ("chains", chains, 1)):
        whole_number(value, name, low=least, high=_MOST)
    whole_number(random_seed, "random_seed", low=0, high=2**53)
    check_of_records(release, "sampling whole counts")
    check_all_published(release, "sampling whole counts")
    domain = release.domain
    if not isinstance(release.n, int):
        raise InputError(
            f"whole counts sum to the exact number of records, and this release has a noisy one ({release.n.value:g}); "
            "give total where it is published, or use the latent class model"
        )
    if domain.size > MAX_CELLS:
        raise InputError(
            f"the domain has {domain.size:,} cells, and at most {MAX_CELLS:,} are sampled; leave tables out"
        )
    seeds = np.random.SeedSequence(random_seed).spawn(chains)
    found = [_chain(release, np.random.default_rng(seed), draws, tune) for seed in seeds]
    counts = np.array([x for x, _ in found]).reshape(chains, draws, *domain.shape)
    coords = {"chain": range(chains), "draw": range(draws)} | {a.name: list(a.levels) for a in domain}
    variables = {
        "counts": (("chain", "draw", *domain.names), counts),
        "shape": (("chain", "draw"), np.array([r for _, r in found])),
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(variables, coords=coords)})


def _chain(release: Release, rng: np.random.Generator, draws: int, tune: int) -> tuple[Whole, Array]:
    """Return draws of the cells and of r."""
    shape, n = release.domain.shape, float(release.n)  # type: ignore[arg-type]
    levels = np.indices(shape).reshape(len(shape), -1)
    places, starts = [], np.cumsum([0, *(table.counts.size for table in release.tables)])
    for table, start in zip(release.tables, starts, strict=False):
        axes = list(release.domain.axes(table.attributes))
        places.append(start + np.ravel_multi_index(tuple(levels[axes]), table.domain.shape))
    place = np.stack(places, axis=1)
    linear, quadratic = np.array([law.rates for table in release.tables for law in table.laws]).T
    off = np.concatenate([table.counts.ravel() for table in release.tables]).astype(np.float64)
    x = _start(int(n), place, np.maximum(off, 0.5), rng)
    for column in place.T:
        np.subtract.at(off, column, x)
    # Half a typical standard deviation of the noise, and up: most moves are of a few records.
    reach = float(np.sqrt(np.median([table.variances.mean() for table in release.tables]))) + 1.0
    factors = [np.full(size, 1.0 / size) for size in shape]
    r, kept, shapes = 1.0, [], []
    seed = int(rng.integers(2**31))
    _seed(seed)
    for step in range(tune + draws):
        # A chain starts anywhere: the first moves are longer, so that thousands of records find their cells.
        far = max(reach, n / x.size / (1.0 + step)) if step < tune else reach
        mean = n * np.prod([factor[level] for factor, level in zip(factors, levels, strict=True)], axis=0)
        _move(x, off, place, linear, quadratic, np.log(mean / (r + mean)), r, _MOVES * x.size, far)
        r = _drawn_shape(x, mean, rng)
        theta = rng.gamma(r + x) / (r + mean)
        for axis, factor in enumerate(factors):
            others = [f[level] for k, (f, level) in enumerate(zip(factors, levels, strict=True)) if k != axis]
            exposure = np.bincount(
                levels[axis], n * theta * np.prod(others, axis=0) if others else n * theta, len(factor)
            )
            factor[:] = _drawn_factor(np.bincount(levels[axis], x, len(factor)), exposure, rng)
        if step >= tune:
            kept.append(x.copy())
            shapes.append(r)
    return np.array(kept), np.array(shapes)


def _start(n: int, place: Whole, released: Array, rng: np.random.Generator) -> Whole:
    """Return whole counts that sum to n near a table fitted to the released ones by proportions, moved by 10 %."""
    fitted = np.full(len(place), n / len(place))
    for _ in range(20):
        for column in place.T:
            now = np.bincount(column, fitted, len(released))[column]
            fitted *= released[column] / np.maximum(now, 1e-9)
    x = np.floor(fitted * n / fitted.sum() * rng.uniform(0.9, 1.1, len(fitted))).astype(np.int64)
    while (gap := n - int(x.sum())) != 0:
        cells = rng.integers(0, len(x), abs(gap))
        np.add.at(x, cells, np.sign(gap))
        np.maximum(x, 0, out=x)
    return x


def _drawn_shape(x: Whole, mean: Array, rng: np.random.Generator) -> float:
    """Draw r given the counts and their means, the factors integrated out: negative binomial counts."""
    r = _SHAPES[:, None]
    logp = gammaln(r + x) - gammaln(r) + r * np.log(r / (r + mean)) + x * np.log(mean / (r + mean))
    return float(_on_grid(_SHAPES, logp.sum(axis=1), rng))


def _drawn_factor(total: Array, exposure: Array, rng: np.random.Generator) -> Array:
    """Draw an attribute's factors given its levels' records and exposures, and before that their prior's weight."""
    rate = len(total)
    a = _WEIGHTS[:, None]
    logp = a * np.log(rate * a) - gammaln(a) + gammaln(a + total) - (a + total) * np.log(rate * a + exposure)
    weight = _on_grid(_WEIGHTS, logp.sum(axis=1), rng)
    return np.maximum(rng.gamma(weight + total) / (rate * weight + exposure), 1e-30)


def _on_grid(grid: Array, logp: Array, rng: np.random.Generator) -> float:
    chance = np.exp(logp - logp.max())
    return float(rng.choice(grid, p=chance / chance.sum()))


@numba.njit(cache=False)
def _seed(seed: int) -> None:
    np.random.seed(seed)  # noqa: NPY002


@numba.njit(cache=False)
def _move(
    x: Whole,
    off: Array,
    place: Whole,
    linear: Array,
    quadratic: Array,
    log_share: Array,
    r: float,
    tries: int,
    reach: float,
) -> None:
    """Move records between pairs of cells, in place; counts are negative binomial, the factors theta integrated out.

    A number of records and its way back are equally likely tries. `log_share` is log(mean / (r + mean)).
    """
    cells, tables = place.shape
    for _ in range(tries):
        i, j = np.random.randint(cells), np.random.randint(cells)  # noqa: NPY002
        moved = 1 + int(-np.log(1.0 - np.random.random()) * 2.0 * reach * np.random.random() ** 2)  # noqa: NPY002
        if i == j or x[i] < moved:
            continue
        gain = moved * (log_share[j] - log_share[i])
        for t in range(moved):
            gain += np.log((x[i] - t) / (r + x[i] - t - 1.0) * (r + x[j] + t) / (x[j] + 1.0 + t))
        for k in range(tables):
            a, b = place[i, k], place[j, k]
            if a != b:
                up, down = off[a] + moved, off[b] - moved
                gain -= linear[a] * (abs(up) - abs(off[a])) + quadratic[a] * (up * up - off[a] * off[a])
                gain -= linear[b] * (abs(down) - abs(off[b])) + quadratic[b] * (down * down - off[b] * off[b])
        if np.log(np.random.random()) < gain:  # noqa: NPY002
            x[i] -= moved
            x[j] += moved
            for k in range(tables):
                a, b = place[i, k], place[j, k]
                if a != b:
                    off[a] += moved
                    off[b] -= moved
