r"""The exact counts behind a release as nonnegative whole numbers.

For the cells x of a small domain, with all released tables margins of x and their noise under its own law,

.. math:: x_c \mid \mu, \theta \sim \text{Poisson}(\mu_c \theta_c), \qquad
          \theta_c \sim \text{Gamma}(r, r), \qquad \mu_c = n \prod_j \alpha_{j c_j}, \qquad
          \alpha_{jl} \sim \text{Gamma}(a_j, a_j k_j),

given that they sum to the number of records where it is exact: the independence of attributes up to a gamma factor per
cell; r and the a's are unknowns on grids, k_j is the number of levels. The sampler moves records between two cells at a
time, or in and out where their number is noisy (Metropolis, the factors integrated out), and draws everything else from
its conditional law.
"""

from __future__ import annotations

import time

import numba
import numpy as np
from scipy.special import gammaln

from dpbayes._arguments import Floats, Ints, whole_number
from dpbayes._lazy import xr
from dpbayes.errors import InputError
from dpbayes.inference.convergence import Verdict, mixing_findings_of, quantity_draws
from dpbayes.inference.schema import annotate, new_trace
from dpbayes.privacy.laws import NoiseLaw
from dpbayes.privacy.release import Release, check_of_records

MAX_CELLS = 4096  # of the domain
_MOST = 10**6  # draws, draws before them, and chains
_SWEEPS, _MOVES, _FACTOR_MOVES = 3, 20, 3  # per draw; per sweep, moves of records per cell and of each factor
# Large cells may look independent where those of rare levels are not: r, how alike, is at most 30.
_SHAPES = np.exp(np.linspace(np.log(0.05), np.log(30.0), 45))
_WEIGHTS = np.exp(np.linspace(np.log(0.05), np.log(5.0), 40))
_FAR = 30.0  # standard deviations above a threshold up to which the chance to be held back is tabled


def sample_whole_counts(
    release: Release, *, draws: int = 2000, tune: int = 300, chains: int = 4, random_seed: int = 1
) -> xr.DataTree:
    """Sample the exact counts behind a release: whole, never negative, of the exact total where there is one.

    Parameters
    ----------
    release
        Tables over a domain of at most 4,096 cells. Any law, one per cell, and counts that a threshold held back.
    draws, tune, chains
        Draws kept per chain, draws before them, and chains.
    random_seed
        Seed of the chains.

    Returns
    -------
    xarray.DataTree
        A trace whose ``posterior`` has ``counts`` (chain, draw, attributes) and ``shape`` r (chain, draw), with the
        verdict of the convergence check. Intervals are those of whole numbers: that of an empty cell begins at 0.

    Raises
    ------
    InputError
        If there are too many cells, or a setting is no whole number in its range.

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
    for name, value, least in (("draws", draws, 1), ("tune", tune, 0), ("chains", chains, 1)):
        whole_number(value, name, low=least, high=_MOST)
    whole_number(random_seed, "random_seed", low=0, high=2**53)
    check_of_records(release, "sampling whole counts")
    domain = release.domain
    if domain.size > MAX_CELLS:
        raise InputError(
            f"the domain has {domain.size:,} cells, and at most {MAX_CELLS:,} are sampled; leave tables out"
        )
    started = time.perf_counter()
    seeds = np.random.SeedSequence(random_seed).spawn(chains)
    found = [_chain(release, np.random.default_rng(seed), draws, tune) for seed in seeds]
    counts, shapes, accepted = (np.array(part) for part in zip(*found, strict=True))
    sample = ("chain", "draw")
    shaped = counts.reshape(chains, draws, *domain.shape)
    coords = {"chain": range(chains), "draw": range(draws)} | {a.name: list(a.levels) for a in domain}
    posterior = xr.Dataset({"counts": ((*sample, *domain.names), shaped), "shape": (sample, shapes)}, coords=coords)
    size = release.n if isinstance(release.n, int) else release.n.value
    tables = {table.label: ([f"{table.label}: {name}" for name in table.attributes], table.counts)
              for table in release.tables}  # fmt: skip
    groups = {
        "posterior": posterior,
        "sample_stats": xr.Dataset({"acceptance_rate": (sample, accepted)}, coords=posterior["shape"].coords),
        "observed_data": xr.Dataset(tables),
        "constant_data": xr.Dataset({"n": size}),
    }
    took, sampler = time.perf_counter() - started, "dpbayes: records moved between cells"
    tree = new_trace(groups, sampler=sampler, random_seed=random_seed, tune=tune, sampling_seconds=took)
    quantities, values = quantity_draws(tree)
    findings, worst = mixing_findings_of(values, quantities, rhat_max=1.01, ess_min=400.0)
    return annotate(tree, verdict=Verdict(tuple(findings), ("counts", "shape"), worst))


@numba.njit(cache=False)
def _seed(seed: int) -> None:
    np.random.seed(seed)  # noqa: NPY002


def _chain(release: Release, rng: np.random.Generator, draws: int, tune: int) -> tuple[Ints, Floats, Floats]:
    """Return draws of the cells, of r, and of the share of moves that were accepted."""
    shape = release.domain.shape
    n = float(release.size)
    levels = np.indices(shape).reshape(len(shape), -1)
    place, noise, released = _numbers(release, levels)
    sizes, open_total = np.array(shape), not isinstance(release.n, int)
    x = _start(n, place[:, : len(release.tables)], np.maximum(released, 0.5), rng)
    off = np.where(noise[2] < 0, released, 0.0)  # of a count that was held back: less what is there now
    for column in place.T:
        np.subtract.at(off, column, x)
    # Half a typical standard deviation of the noise, and up: most moves are of a few records.
    reach = float(np.sqrt(np.median([table.variances.mean() for table in release.tables]))) + 1.0
    factors = [np.full(size, 1.0 / size) for size in shape]
    r, kept = 1.0, []
    _seed(int(rng.integers(2**31)))
    for step in range(_SWEEPS * (tune + draws)):
        # A chain starts anywhere: the first moves are longer, so that thousands of records find their cells.
        far = max(reach, n / x.size / (1.0 + step)) if step < _SWEEPS * tune else reach
        mean = n * np.prod([factor[level] for factor, level in zip(factors, levels, strict=True)], axis=0)
        accepted = _move(x, off, place, *noise, np.log(mean / (r + mean)), r, _MOVES * x.size, far, sizes, open_total)
        r = _drawn_shape(x, mean, rng)
        weights = [_drawn_weight(factor, rng) for factor in factors]
        for _ in range(_FACTOR_MOVES):
            for axis, (factor, weight) in enumerate(zip(factors, weights, strict=True)):
                mean *= (moved := _factor_moves(factor, levels[axis], x, mean, r, weight, rng))[levels[axis]]
                factor *= moved
        if step >= _SWEEPS * tune and step % _SWEEPS == 0:
            kept.append((x.astype(np.int32), r, accepted / (_MOVES * x.size)))
    cells, shapes, rates = zip(*kept, strict=True)
    return np.array(cells), np.array(shapes), np.array(rates)


def _numbers(release: Release, levels: Ints) -> tuple[Ints, tuple[Floats, Floats, Ints, Floats], Floats]:
    """Return where each cell counts, what the noise of each released number is, and the numbers.

    Noise is a linear and a quadratic rate, and, of a number that was held back, the row of a table with the log of the
    chance of that by the exact count.
    """
    places, released, start = [], [], 0
    laws: list[NoiseLaw] = []
    limits: list[float | None] = []
    for table in release.tables:
        axes = list(release.domain.axes(table.attributes))
        places.append(start + np.ravel_multi_index(tuple(levels[axes]), table.domain.shape))
        held = table.withheld.ravel()
        released.append(np.where(held, 0.5 * (table.threshold or 0.0), table.counts.ravel()))
        laws += table.laws
        limits += [table.limit if one else None for one in held]
        start += table.counts.size
    if not isinstance(release.n, int):
        places.append(np.full(levels.shape[1], start))
        released.append(np.array([release.n.value]))
        laws.append(release.n.noise)
        limits.append(None)
    linear, quadratic = np.array([law.rates for law in laws]).T
    both = list(zip(laws, limits, strict=True))
    kinds = list(dict.fromkeys((law, limit) for law, limit in both if limit is not None))
    row = {key: place for place, key in enumerate(kinds)}
    held_rows = np.array([-1 if limit is None else row[law, limit] for law, limit in both])
    count = np.arange(2 + int(max((max(limit, 0.0) + _FAR * law.variance**0.5 for law, limit in kinds), default=0)))
    chances = np.array([law.cdf(limit - count) for law, limit in kinds]).reshape(len(kinds), len(count))
    below = np.log(np.maximum(chances, 1e-300))
    return np.stack(places, axis=1), (linear, quadratic, held_rows, below), np.concatenate(released).astype(float)


def _start(n: float, place: Ints, released: Floats, rng: np.random.Generator) -> Ints:
    """Return whole counts that sum to n near a table fitted to the released ones by proportions, moved by 10 %."""
    fitted = np.full(len(place), n / len(place))
    for _ in range(20):
        for column in place.T:
            now = np.bincount(column, fitted, len(released))[column]
            fitted *= released[column] / np.maximum(now, 1e-9)
    x = np.floor(fitted * n / fitted.sum() * rng.uniform(0.9, 1.1, len(fitted))).astype(np.int64)
    while (gap := round(n) - int(x.sum())) != 0:
        cells = rng.integers(0, len(x), abs(gap))
        np.add.at(x, cells, np.sign(gap))
        np.maximum(x, 0, out=x)
    return x


def _drawn_shape(x: Ints, mean: Floats, rng: np.random.Generator) -> float:
    """Draw r given the counts and their means, the factors integrated out: negative binomial counts."""
    r = _SHAPES[:, None]
    logp = gammaln(r + x) - gammaln(r) + r * np.log(r / (r + mean)) + x * np.log(mean / (r + mean))
    return float(_on_grid(_SHAPES, logp.sum(axis=1), rng))


def _drawn_weight(factor: Floats, rng: np.random.Generator) -> float:
    """Draw the weight a of an attribute's prior given its factors."""
    a, rate = _WEIGHTS[:, None], len(factor)
    logp = a * np.log(rate * a) - gammaln(a) + a * np.log(factor) - rate * a * factor
    return float(_on_grid(_WEIGHTS, logp.sum(axis=1), rng))


def _factor_moves(
    factor: Floats, level: Ints, x: Ints, mean: Floats, r: float, weight: float, rng: np.random.Generator
) -> Floats:
    """Return what each level's factor is multiplied by: Metropolis on its logarithm, the counts negative binomial.

    Levels are independent given the other attributes; the step's length follows from the counts, not from the factors.
    """
    size = len(factor)
    step = 2.4 / np.sqrt(weight + np.bincount(level, r * x / (r + x), size)) * rng.standard_normal(size)
    step = np.clip(step, -50.0, 50.0)
    cells = x * step[level] - (r + x) * np.log1p(mean * np.expm1(step)[level] / (r + mean))
    gain = weight * (step - size * factor * np.expm1(step)) + np.bincount(level, cells, size)
    gain[np.abs(np.log(factor) + step) > 300.0] = -np.inf
    return np.exp(np.where(np.log(rng.random(size)) < gain, step, 0.0))


def _on_grid(grid: Floats, logp: Floats, rng: np.random.Generator) -> float:
    chance = np.exp(logp - logp.max())
    return float(rng.choice(grid, p=chance / chance.sum()))


@numba.njit(cache=False)
def _log_noise(off: float, linear: float, quadratic: float, held: int, below: Floats) -> float:
    """Log-probability of a released number that lies `off` above its count, up to a constant."""
    if held < 0:
        return -linear * abs(off) - quadratic * off * off
    last = below.shape[1] - 1
    if -off <= last:
        return below[held, int(-off)]
    return below[held, last] + (-off - last) * (below[held, last] - below[held, last - 1])


@numba.njit(cache=False)
def _beside(i: int, j: int, sizes: Ints) -> int:
    """Return cell i with the level of one attribute that cell j has there: fewer tables tell the two apart."""
    axis, stride = np.random.randint(len(sizes)), 1  # noqa: NPY002
    for size in sizes[axis + 1 :]:
        stride *= size
    size = sizes[axis]
    return i + ((j // stride) % size - (i // stride) % size) * stride


@numba.njit(cache=False)
def _prior_gain(i: int, j: int, moved: int, x: Ints, log_share: Floats, r: float) -> float:
    """Return the change in the counts' log-probability where records move from cell i to cell j (-1: none)."""
    gain = 0.0
    if i >= 0:
        gain -= moved * log_share[i]
        for t in range(moved):
            gain += np.log((x[i] - t) / (r + x[i] - t - 1.0))
    if j >= 0:
        gain += moved * log_share[j]
        for t in range(moved):
            gain += np.log((r + x[j] + t) / (x[j] + 1.0 + t))
    return gain


@numba.njit(cache=False)
def _move(
    x: Ints,
    off: Floats,
    place: Ints,
    linear: Floats,
    quadratic: Floats,
    held: Ints,
    below: Floats,
    log_share: Floats,
    r: float,
    tries: int,
    reach: float,
    sizes: Ints,
    open_total: bool,
) -> int:
    """Move records between pairs of cells, or in and out of one, in place; return how many tries were accepted.

    Counts are negative binomial, the factors theta integrated out; a number of records and its way back are equally
    likely tries. `log_share` is log(mean / (r + mean)).
    """
    cells, tables = place.shape
    accepted = 0
    for _ in range(tries):
        i, j = np.random.randint(cells), np.random.randint(cells)  # noqa: NPY002
        if np.random.random() < 0.6:  # noqa: NPY002
            j = _beside(i, j, sizes)
        if open_total and np.random.random() < 0.3:  # noqa: NPY002
            i, j = (-1, j) if np.random.random() < 0.5 else (i, -1)  # noqa: NPY002
        moved = 1 + int(-np.log(1.0 - np.random.random()) * 2.0 * reach * np.random.random() ** 2)  # noqa: NPY002
        if i == j or (i >= 0 and x[i] < moved):
            continue
        gain = _prior_gain(i, j, moved, x, log_share, r)
        for k in range(tables):
            a, b = place[i, k] if i >= 0 else -1, place[j, k] if j >= 0 else -1
            if a == b:
                continue
            if a >= 0:
                gain += _log_noise(off[a] + moved, linear[a], quadratic[a], held[a], below)
                gain -= _log_noise(off[a], linear[a], quadratic[a], held[a], below)
            if b >= 0:
                gain += _log_noise(off[b] - moved, linear[b], quadratic[b], held[b], below)
                gain -= _log_noise(off[b], linear[b], quadratic[b], held[b], below)
        if np.log(np.random.random()) < gain:  # noqa: NPY002
            accepted += 1
            if i >= 0:
                x[i] -= moved
            if j >= 0:
                x[j] += moved
            for k in range(tables):
                if i >= 0:
                    off[place[i, k]] += moved
                if j >= 0:
                    off[place[j, k]] -= moved
    return accepted
