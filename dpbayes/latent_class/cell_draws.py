"""Posterior draws of any margin's probabilities: the population's, or those of the confidential records themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import Cell, margin_operator
from dpbayes.latent_class.synthesis import fitted_domain, fitted_zeros
from dpbayes.latent_class.zeros import Plan, ZeroSet, conditioned_draws

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data.domain import Domain
    from dpbayes.privacy.release import Release

__all__ = ["MAX_CELLS", "Target", "margin_draws"]

MAX_CELLS = 65_536
"""Most cells of a margin that is evaluated draw by draw."""

MAX_NUMBERS = 1 << 26  # cells times draws; 512 MiB, and a regression works with a few such arrays

MAX_RECORD_CELLS = 1024  # of the confidential records' own table: a covariance of that size is taken for each draw

# Draws times the cube of cells and effects together, what those covariances cost: 800 draws of 1,024 cells and 55
# effects, 0.18 s each on one core.
MAX_RECORD_WORK = 10**12

type Target = Literal["population", "records"]
type Array = npt.NDArray[np.float64]

_BLOCK = 1 << 23  # numbers in a work array

# As a share of the covariance that noise alone gives the effects: what the likelihood lets effects stray from the
# counts of a real table, where a cell's probability is near zero.
_SLACK = 1e-2

_LEAST_COUNT = 1e-6  # records; without rounding, a draw below it is moved here, so that log-odds stay finite


def margin_draws(
    trace: xr.DataTree,
    names: Sequence[str],
    *,
    target: Target = "population",
    release: Release | None = None,
    random_seed: int | None = None,
    whole: bool = True,
    thin: int = 1,
) -> xr.DataArray:
    r"""Return posterior draws of a margin's probabilities, for functionals that are evaluated draw by draw.

    Parameters
    ----------
    trace
        The fit of a latent class model.
    names
        Attributes of the margin, in the order of its axes. Only their cells are enumerated (65,536 at most), never the
        full table.
    target
        ``"population"``: the probabilities P that the records were drawn from. ``"records"``: the shares among the n
        confidential records, about which the released margins say more (needs `release`, a trace with
        ``exact_counts``, and at most 1,024 cells).
    release
        For ``"records"``: what was fitted.
    random_seed
        For ``"records"``: seed of the draws given P and the released margins' counts.
    whole
        For ``"records"``: make each draw a table of whole counts that sums to n (rounded by largest remainders), so
        that an interval can say that a cell is empty. Without it counts are real and at least a millionth of a record,
        so that log-odds stay finite.
    thin
        Take every so many-th draw of each chain. Cells times draws are at most 67 million (11,184 cells of 6,000
        draws); for ``"records"`` so are draws times the cube of cells and the release's effects together, 10^12.

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, then the attributes; each draw sums to one.

    Raises
    ------
    InputError
        If the trace is not of a latent class model, an attribute is unknown, or there are too many cells or draws.

    Notes
    -----
    For the records' own table, its margin M on `names` and the counts m of the release's effects are margins of one
    multinomial table; in the normal approximation that the likelihood makes,

    .. math:: M \mid m, P \sim N\bigl(nP_M + C_{Mm} C_{mm}^{-1} (m - n\mu),\; C_{MM} - C_{Mm} C_{mm}^{-1} C_{mM}\bigr),

    all covariances n times those of one record. A margin inside a released table follows ``exact_counts``; one outside
    is drawn with what the released ones leave open. Counts below zero are set to zero.

    Examples
    --------
    With `trace` a fit of `release`, tables of race, sex and income:

    >>> draws = margin_draws(trace, ["race", "income"])
    >>> draws.sizes
    Frozen({'chain': 2, 'draw': 100, 'race': 2, 'income': 2})
    >>> population = draws.sel(income=1).sum("race")
    >>> records = margin_draws(trace, ["income"], target="records", release=release, random_seed=1).sel(income=1)
    >>> bool(records.std() < population.std())  # sampling does not count
    True
    """
    import xarray as xr

    domain = fitted_domain(trace)
    margin = domain.project(names)
    if target not in ("population", "records"):
        raise InputError(f"target must be 'population' or 'records', got {target!r}")
    most = MAX_CELLS if target == "population" else MAX_RECORD_CELLS
    if margin.size > most:
        raise InputError(
            f"the margin {' x '.join(margin.names)} has {margin.size:,} cells, more than the {most:,} that are taken "
            "draw by draw; name fewer attributes, or fit synthetic data sets (dpbayes.latent_class.combine)"
        )
    posterior = _thinned(trace, thin)
    sizes = posterior.sizes
    _check_size(margin.size, sizes["chain"] * sizes["draw"], thin)
    cells = margin_operator(domain, [margin.names]).cells
    mixture = _Mixture.of(posterior, domain, fitted_zeros(trace, domain))
    if target == "population":
        lookup = mixture.lookup(cells)
        values = np.concatenate([block.probabilities(lookup) for block in mixture.blocks(len(cells))])
        values /= values.sum(axis=1, keepdims=True)
    else:
        values = _record_shares(posterior, release, domain, mixture, cells, random_seed, whole, thin)
    coords = {"chain": posterior["chain"], "draw": posterior["draw"]}
    levels = {attribute.name: list(attribute.levels) for attribute in margin}
    shaped = values.reshape(sizes["chain"], sizes["draw"], *margin.shape)
    return xr.DataArray(shaped, dims=("chain", "draw", *margin.names), coords=coords | levels, name="probability")


def _thinned(trace: xr.DataTree, thin: int) -> xr.Dataset:
    if isinstance(thin, bool) or not isinstance(thin, int) or thin < 1:
        raise InputError(f"thin must be a whole number of at least 1, got {thin!r}; 1 takes every draw")
    return trace["posterior"].to_dataset().isel(draw=slice(None, None, thin))


def _check_size(cells: int, draws: int, thin: int) -> None:
    """Refuse what would not fit into memory, before any of it is computed."""
    if cells * draws > MAX_NUMBERS:
        raise InputError(
            f"{cells:,} cells of {draws:,} draws are {cells * draws:,} numbers, more than the {MAX_NUMBERS:,} that are "
            f"held; pass thin={thin * math.ceil(cells * draws / MAX_NUMBERS)}, or name fewer attributes"
        )


def _check_work(size: int, draws: int, thin: int) -> None:
    """Refuse records' draws that would take hours, before any is made."""
    work = size**3 * draws
    if work > MAX_RECORD_WORK:
        raise InputError(
            f"target 'records' takes a covariance of {size:,} cells and effects for each of {draws:,} draws, which "
            f"would take hours; pass thin={thin * math.ceil(work / MAX_RECORD_WORK)}, or name fewer attributes"
        )


@dataclass(frozen=True, eq=False)
class _Lookup:
    """Which columns of a `_Mixture` each cell multiplies, and how structural zeros take part."""

    index: npt.NDArray[np.intp]
    plan: Plan | None


@dataclass(frozen=True, eq=False)
class _Meetings:
    """Where each cell of one list meets each cell of another: an entry of the lookup, or -1 for nowhere."""

    lookup: _Lookup
    place: npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Draws of weights ``(draws, classes)`` and of all profiles side by side, padded by a last column of ones."""

    weights: Array
    columns: Array
    first: tuple[int, ...]
    zeros: ZeroSet | None

    @classmethod
    def of(cls, posterior: xr.Dataset, domain: Domain, zeros: ZeroSet | None) -> _Mixture:
        needed = ["weights", *(f"profile_{name}" for name in domain.names)]
        flat = posterior[needed].stack(draws=("chain", "draw"))
        weights = flat["weights"].transpose("draws", ...).to_numpy()
        profiles = [flat[f"profile_{name}"].transpose("draws", "class", ...).to_numpy() for name in domain.names]
        first = (0, *np.cumsum([profile.shape[2] for profile in profiles])[:-1].tolist())
        columns = np.concatenate([*profiles, np.ones((*weights.shape, 1))], axis=2)
        return cls(weights, columns, first, zeros)

    def blocks(self, width: int) -> Iterator[_Mixture]:
        """Yield runs of draws whose work arrays of `width` numbers a class stay small."""
        step = max(1, _BLOCK // (width * self.weights.shape[1]))
        for start in range(0, len(self.weights), step):
            part = slice(start, start + step)
            yield _Mixture(self.weights[part], self.columns[part], self.first, self.zeros)

    def lookup(self, cells: Sequence[Cell]) -> _Lookup:
        """Prepare what `probabilities` needs of some cells, once for all blocks."""
        plan = None if self.zeros is None else self.zeros.plan(cells)
        cells = cells if plan is None else plan.cells
        index = np.full((len(cells), max(map(len, cells), default=0)), self.columns.shape[2] - 1)
        for row, cell in zip(index, cells, strict=True):
            row[: len(cell)] = [self.first[axis] + level for axis, level in cell]
        return _Lookup(index, plan)

    def probabilities(self, lookup: _Lookup) -> Array:
        """Return the probability of each cell, shape ``(draws, cells)``."""
        product = np.ones((*self.weights.shape, len(lookup.index)))
        for column in lookup.index.T:
            product *= self.columns[:, :, column]
        values = np.asarray(np.matmul(self.weights[:, None], product)[:, 0])
        return values if lookup.plan is None else conditioned_draws(values, lookup.plan)

    def meetings(self, first: Sequence[Cell], second: Sequence[Cell]) -> _Meetings:
        """Prepare what `both` needs of two lists of cells, once for all blocks."""
        met: dict[Cell, int] = {}
        place = np.full((len(first), len(second)), -1, dtype=np.intp)
        for i, j in np.ndindex(*place.shape):
            joined = dict(first[i])
            if all(joined.setdefault(axis, level) == level for axis, level in second[j]):
                place[i, j] = met.setdefault(tuple(sorted(joined.items())), len(met))
        return _Meetings(self.lookup(tuple(met)), place)

    def both(self, meetings: _Meetings) -> Array:
        """Return the probability that a record is in a cell of both lists, shape ``(draws, first, second)``."""
        values = self.probabilities(meetings.lookup)
        return np.concatenate([values, np.zeros((len(values), 1))], axis=1)[:, meetings.place]


def _record_shares(
    posterior: xr.Dataset,
    release: Release | None,
    domain: Domain,
    mixture: _Mixture,
    cells: Sequence[Cell],
    random_seed: int | None,
    whole: bool,
    thin: int,
) -> Array:
    """Draw the margin's shares among the confidential records, shape ``(draws, cells)``."""
    if release is None:
        raise InputError("target 'records' needs the release that was fitted; pass release=...")
    if "exact_counts" not in posterior:
        raise InputError("target 'records' needs exact_counts in the trace; fit with likelihood='joint'")
    operator = margin_operator(domain, [table.attributes for table in release.tables])
    flat = posterior.stack(draws=("chain", "draw"))
    exact = flat["exact_counts"].transpose("draws", ...).to_numpy()
    if exact.shape[1] != len(operator.cells):
        raise InputError(f"the trace holds {exact.shape[1]} exact counts, the release {len(operator.cells)}")
    _check_work(len(cells) + operator.n_effects, len(exact), thin)
    n = np.full(len(exact), float(release.n)) if isinstance(release.n, int) else flat["n"].to_numpy()
    effects = (exact - n[:, None] * operator.constant) @ np.linalg.pinv(operator.matrix).T
    stddev = np.repeat([t.noise.variance**0.5 for t in release.tables], [t.counts.size for t in release.tables])
    scaled = operator.matrix / stddev[:, None]
    slack = _SLACK * np.linalg.inv(scaled.T @ scaled)
    rng = np.random.default_rng(random_seed)
    law = _RecordsLaw.of(mixture, cells, operator.effects, slack)
    start, drawn = 0, []
    for block in mixture.blocks((len(cells) + operator.n_effects) ** 2):
        part = slice(start, start + len(block.weights))
        drawn.append(law.draw(block, effects[part], n[part], rng))
        start = part.stop
    counts = np.concatenate(drawn)
    counts = _whole_tables(counts, np.rint(n)) if whole else np.maximum(counts, _LEAST_COUNT)
    return counts / counts.sum(axis=1, keepdims=True)


def _whole_tables(counts: Array, n: Array) -> Array:
    """Round tables ``(draws, cells)`` to whole counts that sum to n, by largest remainders."""
    counts = np.maximum(counts, 0.0)
    counts *= (n / counts.sum(axis=1))[:, None]
    down = np.floor(counts)
    # How many cells of each table are rounded up: those of the largest remainders.
    up = n - down.sum(axis=1)
    rank = np.argsort(np.argsort(down - counts, axis=1, kind="stable"), axis=1)
    return down + (rank < up[:, None])


@dataclass(frozen=True, eq=False)
class _RecordsLaw:
    """The normal law of `margin_draws` for a margin's counts given the effects' counts."""

    cells: _Lookup
    effects: _Lookup
    crossed: _Meetings
    among_effects: _Meetings
    slack: Array

    @classmethod
    def of(cls, mixture: _Mixture, cells: Sequence[Cell], effects: Sequence[Cell], slack: Array) -> _RecordsLaw:
        crossed, among_effects = mixture.meetings(cells, effects), mixture.meetings(effects, effects)
        return cls(mixture.lookup(cells), mixture.lookup(effects), crossed, among_effects, slack)

    def draw(self, mixture: _Mixture, effects: Array, n: Array, rng: np.random.Generator) -> Array:
        """Draw the margin's counts, shape ``(draws, cells)``."""
        size = n[:, None, None]
        mean, mean_effects = mixture.probabilities(self.cells), mixture.probabilities(self.effects)
        both_effects = mixture.both(self.among_effects)
        cov_effects = size * (both_effects - mean_effects[:, :, None] * mean_effects[:, None]) + self.slack
        cross = size * (mixture.both(self.crossed) - mean[:, :, None] * mean_effects[:, None])
        cov = size * (np.eye(mean.shape[1]) * mean[:, :, None] - mean[:, :, None] * mean[:, None])
        gain = np.linalg.solve(cov_effects, cross.transpose(0, 2, 1)).transpose(0, 2, 1)
        offset = effects - n[:, None] * mean_effects
        left = cov - np.matmul(gain, cross.transpose(0, 2, 1))
        values, vectors = np.linalg.eigh((left + left.transpose(0, 2, 1)) / 2)
        noise = np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(values.shape)
        return n[:, None] * mean + np.einsum("dce,de->dc", gain, offset) + np.einsum("dck,dk->dc", vectors, noise)
