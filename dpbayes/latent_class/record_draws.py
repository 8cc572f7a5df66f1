"""Posterior draws of a margin's shares among the confidential records, given the released margins' counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import Cell, margin_operator
from dpbayes.latent_class.mixture_draws import Lookup, Meetings, Mixture

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data.domain import Domain
    from dpbayes.privacy.release import Release

__all__ = ["MAX_RECORD_CELLS", "check_fitted", "record_shares"]

MAX_RECORD_CELLS = 1024  # of the confidential records' own table: a covariance of that size is taken for each draw

# Draws times the cube of cells and effects together, what those covariances cost: 800 draws of 1,024 cells and 55
# effects, 0.18 s each on one core.
MAX_RECORD_WORK = 10**12

type Array = npt.NDArray[np.float64]

# As a share of the covariance that noise alone gives the effects: what the likelihood lets effects stray from the
# counts of a real table, where a cell's probability is near zero.
_SLACK = 1e-2

_LEAST_COUNT = 1e-6  # records; without rounding, a draw below it is moved here, so that log-odds stay finite


def check_fitted(trace: xr.DataTree, release: Release) -> None:
    """Refuse a release whose counts or noisy number of records are not those that a trace observed.

    Parameters
    ----------
    trace
        A fit. One without its observed data is taken at its word.
    release
        What is said to have been fitted.

    Raises
    ------
    InputError
        If it is another one.
    """
    observed = trace["observed_data"].to_dataset() if "observed_data" in trace.children else {}
    given = {
        "released": np.concatenate([table.counts.ravel() for table in release.tables]),
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
    domain: Domain,
    mixture: Mixture,
    cells: Sequence[Cell],
    random_seed: int | None,
    whole: bool,
    thin: int,
) -> Array:
    """Draw a margin's shares among the confidential records: `margin_draws` with ``target="records"``.

    Parameters
    ----------
    posterior
        Draws of a fit, with ``exact_counts``.
    release
        What was fitted.
    domain
        Its attributes.
    mixture
        The posterior's mixtures.
    cells
        The margin's cells.
    random_seed, whole, thin
        As of `margin_draws`.

    Returns
    -------
    numpy.ndarray
        Shape ``(draws, cells)``; each draw sums to one.

    Raises
    ------
    InputError
        If there is no release, the trace lacks its exact counts, or the draws would take hours.
    """
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
    counts = _whole_tables(counts, np.maximum(np.rint(n), 1.0)) if whole else np.maximum(counts, _LEAST_COUNT)
    return counts / counts.sum(axis=1, keepdims=True)


def _check_work(size: int, draws: int, thin: int) -> None:
    """Refuse records' draws that would take hours, before any is made."""
    work = size**3 * draws
    if work > MAX_RECORD_WORK:
        raise InputError(
            f"target 'records' takes a covariance of {size:,} cells and effects for each of {draws:,} draws, which "
            f"would take hours; pass thin={thin * math.ceil(work / MAX_RECORD_WORK)}, or name fewer attributes"
        )


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

    cells: Lookup
    effects: Lookup
    crossed: Meetings
    among_effects: Meetings
    slack: Array

    @classmethod
    def of(cls, mixture: Mixture, cells: Sequence[Cell], effects: Sequence[Cell], slack: Array) -> _RecordsLaw:
        crossed, among_effects = mixture.meetings(cells, effects), mixture.meetings(effects, effects)
        return cls(mixture.lookup(cells), mixture.lookup(effects), crossed, among_effects, slack)

    def draw(self, mixture: Mixture, effects: Array, n: Array, rng: np.random.Generator) -> Array:
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
