"""Posterior draws of any margin's probabilities: the population's, or those of the confidential records themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpbayes._arguments import Floats, one_of, whole_number
from dpbayes.errors import InputError
from dpbayes.inference.noisy_counts import released_vector
from dpbayes.latent_class.design import Cell, cells_of
from dpbayes.latent_class.record_numbers import record_numbers
from dpbayes.latent_class.synthesis import fitted_domain, fitted_mixture, fitted_zeros
from dpbayes.latent_class.zeros import ZeroSet, conditioned_draws

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data.domain import Domain
    from dpbayes.privacy.release import Release


_BLOCK = 1 << 23  # numbers in a work array
_CACHED = 1 << 16  # numbers of a table that are worked on together: those that the processor's cache holds


@dataclass(frozen=True, eq=False)
class Mixture:
    """Draws of weights ``(draws, classes)`` and of every attribute's profiles ``(draws, classes, levels)``."""

    weights: Floats
    profiles: Sequence[Floats]
    domain: Domain
    zeros: ZeroSet | None

    @classmethod
    def of(cls, posterior: xr.Dataset, domain: Domain, zeros: ZeroSet | None) -> Mixture:
        """Read the draws of a posterior, chains one after another."""
        return cls(*fitted_mixture(posterior, domain), domain, zeros)

    def margin(self, names: Sequence[str]) -> Floats:
        """Return the probabilities of a margin's cells in C order, shape ``(draws, cells)``; each draw sums to one."""
        if self.zeros is None:
            axes = self.domain.axes(names)
            # A cell is a product of two parts, whose sum over the classes is a product of matrices.
            sizes = [self.domain.shape[axis] for axis in axes]
            cut = min(range(len(axes)), key=lambda place: math.prod(sizes[:place]) + math.prod(sizes[place:]))
            parts = [
                np.matmul(np.swapaxes(one._outer(axes[:cut]) * one.weights[:, :, None], 1, 2), one._outer(axes[cut:]))
                for one in self._blocks(math.prod(sizes[:cut]) + math.prod(sizes[cut:]))
            ]
        else:
            plan = self.zeros.plan(cells_of(self.domain, names))
            parts = [conditioned_draws(one._cells(plan.cells), plan) for one in self._blocks(len(plan.cells))]
        values = np.concatenate(parts).reshape(len(self.weights), -1)
        return np.asarray(values / values.sum(axis=1, keepdims=True))

    def _blocks(self, width: int) -> Iterator[Mixture]:
        """Yield runs of draws whose work arrays of `width` numbers per class stay small."""
        step = max(1, _BLOCK // (width * self.weights.shape[1]))
        for start in range(0, len(self.weights), step):
            part = slice(start, start + step)
            yield Mixture(self.weights[part], [one[part] for one in self.profiles], self.domain, self.zeros)

    def _outer(self, axes: Sequence[int]) -> Floats:
        """Return the products of some attributes' profiles, shape ``(draws, classes, combinations)``."""
        start = np.ones((*self.weights.shape, 1))
        factors = [self.profiles[axis] for axis in axes]
        return reduce(lambda a, b: (a[..., None] * b[..., None, :]).reshape(*a.shape[:2], -1), factors, start)

    def _cells(self, cells: Sequence[Cell]) -> Floats:
        """Return the probability of each of some cells, shape ``(draws, cells)``."""
        columns = np.concatenate([*self.profiles, np.ones((*self.weights.shape, 1))], axis=2)
        first = (0, *np.cumsum(self.domain.shape).tolist())
        index = np.full((len(cells), max(map(len, cells), default=0)), first[-1])
        for row, cell in zip(index, cells, strict=True):
            row[: len(cell)] = [first[axis] + level for axis, level in cell]
        product = np.ones((*self.weights.shape, len(cells)))
        for column in index.T:
            product *= columns[:, :, column]
        return np.asarray(np.matmul(self.weights[:, None], product)[:, 0])


_LEAST_COUNT = 1e-6  # records; without rounding, a draw below it is moved here, so that log-odds stay finite
_ROUNDS = 30  # of proportional fitting, at most
_CLOSE = 1e-3  # records by which a round moves any cell, below which it was the last one


def check_fitted(trace: xr.DataTree, release: Release) -> None:
    """Refuse a release whose counts or noisy number of records are not those that a trace observed, if it says."""
    observed = trace["observed_data"].to_dataset() if "observed_data" in trace.children else {}
    given = {
        "released": released_vector(release),
        "released_n": np.array([] if isinstance(release.n, int) else [release.n.value]),
    }
    for name, values in given.items():
        if name in observed and not np.array_equal(observed[name].to_numpy().ravel(), values):
            what = "counts differ" if name == "released" else "number of records differs"
            raise InputError(
                f"the release given is not the one that this trace was fitted to: its {what} from the trace's "
                f"observed {name!r}; pass the release that was fitted"
            )


def record_shares(
    posterior: xr.Dataset,
    release: Release | None,
    mixture: Mixture,
    names: Sequence[str],
    random_seed: int | None,
    whole: bool,
) -> Floats:
    """Draw a margin's shares among the confidential records, shape ``(draws, cells)``; each draw sums to one."""
    if release is None:
        raise InputError("target 'records' needs the release that was fitted; pass release=...")
    if "exact_counts" not in posterior:
        raise InputError(
            "target 'records' needs exact_counts in the trace; they are drawn for releases of at most 20,000 counts"
        )
    exact = posterior["exact_counts"].transpose("chain", "draw", "count").to_numpy()
    exact = exact.reshape(-1, exact.shape[-1])
    if exact.shape[1] != release.n_counts:
        raise InputError(f"the trace holds {exact.shape[1]} exact counts, the release {release.n_counts}")
    n = np.maximum(np.rint(record_numbers(posterior, release).to_numpy().ravel()), 1.0)
    inside = _inside(release, names, exact)
    shape = release.domain.project(names).shape
    if inside and len(inside[-1][0]) == len(names):
        counts = inside[-1][1].reshape(len(n), -1)
    else:
        rng = np.random.default_rng(random_seed)
        law = np.maximum(mixture.margin(names), 0.0)
        counts = rng.multinomial(n.astype(np.int64), law / law.sum(axis=1, keepdims=True)).astype(np.float64)
        # A cell that holds nobody can be asked to hold somebody: proportional fitting needs a start above zero.
        counts = _fitted(np.maximum(counts, 0.05 * np.minimum(n[:, None] * law, 1.0)).reshape(-1, *shape), inside)
        counts = counts.reshape(len(n), -1)
    counts = _whole_tables(counts, n) if whole else np.maximum(counts, _LEAST_COUNT)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _inside(release: Release, names: Sequence[str], exact: Floats) -> list[tuple[tuple[int, ...], Floats]]:
    """Return the released margins of some attributes."""
    found: dict[tuple[int, ...], list[Floats]] = {}
    start = 0
    for table in release.tables:
        own = exact[:, start : start + table.counts.size].reshape(-1, *table.counts.shape)
        start += table.counts.size
        axes = [names.index(name) for name in table.attributes if name in names]
        if not axes:
            continue
        left_out = tuple(1 + place for place, name in enumerate(table.attributes) if name not in names)
        ordered = np.transpose(own.sum(axis=left_out), (0, *(1 + np.argsort(axes))))
        found.setdefault(tuple(sorted(axes)), []).append(ordered)
    margins = [(axes, np.maximum(np.mean(parts, axis=0), 0.0)) for axes, parts in found.items()]
    return sorted(margins, key=lambda margin: len(margin[0]))


def _fitted(counts: Floats, margins: Sequence[tuple[tuple[int, ...], Floats]]) -> Floats:
    """Fit tables ``(draws, ...)`` to margins by proportions, in place."""
    inner = range(counts.ndim - 1)
    sums = [
        (tuple(1 + axis for axis in inner if axis not in axes), np.maximum(wanted, 1e-9)) for axes, wanted in margins
    ]
    step = max(1, _CACHED // math.prod(counts.shape[1:]))
    for start in range(0, len(counts), step):
        part = counts[start : start + step]
        for _ in range(_ROUNDS):
            before = part.copy()
            for out, wanted in sums:
                now = part.sum(axis=out, keepdims=True)
                part *= wanted[start : start + step].reshape(now.shape) / np.maximum(now, 1e-9)
            if np.abs(part - before).max() < _CLOSE:
                break
    return counts


def _whole_tables(counts: Floats, n: Floats) -> Floats:
    """Round tables ``(draws, cells)`` to whole counts that sum to n, by largest remainders."""
    counts = np.maximum(counts, 0.0)
    counts *= (n / counts.sum(axis=1))[:, None]
    down = np.floor(counts)
    # How many cells of each table are rounded up: those of the largest remainders.
    up = n - down.sum(axis=1)
    largest = np.argsort(down - counts, axis=1, kind="stable")
    rounded = np.empty(counts.shape, dtype=bool)
    np.put_along_axis(rounded, largest, np.arange(counts.shape[1]) < up[:, None], axis=1)
    return down + rounded


MAX_CELLS = 65_536
"""Most cells of a margin that is evaluated draw by draw."""

MAX_NUMBERS = 1 << 26  # cells times draws; 512 MiB, and a regression works with a few such arrays

type Target = Literal["population", "records"]


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
        ``exact_counts``).
    release
        For ``"records"``: what was fitted.
    random_seed
        For ``"records"``: seed of the draws given P and the released margins' counts.
    whole
        For ``"records"``: make each draw a table of whole counts that sums to n, or to one record where a draw of a
        noisy n is less (rounded by largest remainders), so that an interval can say that a cell is empty. Without it
        counts are real and at least a millionth of a record, so that log-odds stay finite.
    thin
        Take every so many-th draw of each chain. Cells times draws are at most 67 million (11,184 cells of 6,000
        draws).

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, then the attributes; each draw sums to one.

    Raises
    ------
    InputError
        If the trace is not of a latent class model, an attribute is unknown, there are too many cells or draws, or
        `release` is not the one that the trace was fitted to.

    Notes
    -----
    For the records' own table, n records are drawn from each draw's mixture and the table is then fitted to that draw's
    ``exact_counts`` of all released margins inside it (iterative proportional fitting): what the release says of the
    records is kept, and what it leaves open varies as sampling does. A margin inside a released table follows
    ``exact_counts``. Counts below zero are set to zero.

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
    one_of(target, ("population", "records"), "target")
    if margin.size > MAX_CELLS:
        raise InputError(
            f"the margin {' x '.join(margin.names)} has {margin.size:,} cells, more than the {MAX_CELLS:,} that "
            "are taken draw by draw; name fewer attributes, or fit synthetic data sets (dpbayes.latent_class.combine)"
        )
    if target == "records" and release is not None:
        check_fitted(trace, release)
    posterior = _thinned(trace, thin)
    sizes = posterior.sizes
    _check_size(margin.size, sizes["chain"] * sizes["draw"], thin)
    mixture = Mixture.of(posterior, domain, fitted_zeros(trace, domain))
    if target == "population":
        values = mixture.margin(margin.names)
    else:
        values = record_shares(posterior, release, mixture, margin.names, random_seed, whole)
    coords = {"chain": posterior["chain"], "draw": posterior["draw"]}
    levels = {attribute.name: list(attribute.levels) for attribute in margin}
    shaped = values.reshape(sizes["chain"], sizes["draw"], *margin.shape)
    return xr.DataArray(shaped, dims=("chain", "draw", *margin.names), coords=coords | levels, name="probability")


def _thinned(trace: xr.DataTree, thin: int) -> xr.Dataset:
    thin = whole_number(thin, "thin", remedy="1 takes every draw")
    return trace["posterior"].to_dataset().isel(draw=slice(None, None, thin))


def _check_size(cells: int, draws: int, thin: int) -> None:
    """Refuse what would not fit into memory, before any of it is computed."""
    if cells * draws > MAX_NUMBERS:
        raise InputError(
            f"{cells:,} cells of {draws:,} draws are {cells * draws:,} numbers, more than the {MAX_NUMBERS:,} that are "
            f"held; pass thin={thin * math.ceil(cells * draws / MAX_NUMBERS)}, or name fewer attributes"
        )
