"""A posterior's mixtures of products, draw by draw: the probability of any cell under each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes.inference.margin_operator import Cell
from dpbayes.latent_class.zeros import Plan, ZeroSet, conditioned_draws

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data.domain import Domain

__all__ = ["Lookup", "Meetings", "Mixture"]

type Array = npt.NDArray[np.float64]

_BLOCK = 1 << 23  # numbers in a work array


@dataclass(frozen=True, eq=False)
class Lookup:
    """Which columns of a `Mixture` each cell multiplies, and how structural zeros take part."""

    index: npt.NDArray[np.intp]
    plan: Plan | None


@dataclass(frozen=True, eq=False)
class Meetings:
    """Where each cell of one list meets each cell of another: an entry of the lookup, or -1 for nowhere."""

    lookup: Lookup
    place: npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Draws of weights ``(draws, classes)`` and of all profiles side by side, padded by a last column of ones."""

    weights: Array
    columns: Array
    first: tuple[int, ...]
    zeros: ZeroSet | None

    @classmethod
    def of(cls, posterior: xr.Dataset, domain: Domain, zeros: ZeroSet | None) -> Mixture:
        """Read the draws of a posterior, chains one after another."""
        needed = ["weights", *(f"profile_{name}" for name in domain.names)]
        flat = posterior[needed].stack(draws=("chain", "draw"))
        weights = flat["weights"].transpose("draws", ...).to_numpy()
        profiles = [flat[f"profile_{name}"].transpose("draws", "class", ...).to_numpy() for name in domain.names]
        first = (0, *np.cumsum([profile.shape[2] for profile in profiles])[:-1].tolist())
        columns = np.concatenate([*profiles, np.ones((*weights.shape, 1))], axis=2)
        return cls(weights, columns, first, zeros)

    def blocks(self, width: int) -> Iterator[Mixture]:
        """Yield runs of draws whose work arrays of `width` numbers a class stay small."""
        step = max(1, _BLOCK // (width * self.weights.shape[1]))
        for start in range(0, len(self.weights), step):
            part = slice(start, start + step)
            yield Mixture(self.weights[part], self.columns[part], self.first, self.zeros)

    def lookup(self, cells: Sequence[Cell]) -> Lookup:
        """Prepare what `probabilities` needs of some cells, once for all blocks."""
        plan = None if self.zeros is None else self.zeros.plan(cells)
        cells = cells if plan is None else plan.cells
        index = np.full((len(cells), max(map(len, cells), default=0)), self.columns.shape[2] - 1)
        for row, cell in zip(index, cells, strict=True):
            row[: len(cell)] = [self.first[axis] + level for axis, level in cell]
        return Lookup(index, plan)

    def probabilities(self, lookup: Lookup) -> Array:
        """Return the probability of each cell, shape ``(draws, cells)``."""
        product = np.ones((*self.weights.shape, len(lookup.index)))
        for column in lookup.index.T:
            product *= self.columns[:, :, column]
        values = np.asarray(np.matmul(self.weights[:, None], product)[:, 0])
        return values if lookup.plan is None else conditioned_draws(values, lookup.plan)

    def meetings(self, first: Sequence[Cell], second: Sequence[Cell]) -> Meetings:
        """Prepare what `both` needs of two lists of cells, once for all blocks."""
        met: dict[Cell, int] = {}
        place = np.full((len(first), len(second)), -1, dtype=np.intp)
        for i, j in np.ndindex(*place.shape):
            joined = dict(first[i])
            if all(joined.setdefault(axis, level) == level for axis, level in second[j]):
                place[i, j] = met.setdefault(tuple(sorted(joined.items())), len(met))
        return Meetings(self.lookup(tuple(met)), place)

    def both(self, meetings: Meetings) -> Array:
        """Return the probability that a record is in a cell of both lists, shape ``(draws, first, second)``."""
        values = self.probabilities(meetings.lookup)
        return np.concatenate([values, np.zeros((len(values), 1))], axis=1)[:, meetings.place]
