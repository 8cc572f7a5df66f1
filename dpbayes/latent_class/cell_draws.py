"""Posterior draws of any margin's probabilities: the population's, or those of the confidential records themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import Cell, MarginOperator, margin_operator
from dpbayes.latent_class.synthesis import fitted_domain, fitted_zeros
from dpbayes.latent_class.zeros import ZeroSet, conditioned_draws

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data.domain import Domain
    from dpbayes.privacy.release import Release

__all__ = ["MAX_CELLS", "Target", "margin_draws"]

MAX_CELLS = 65_536
"""Most cells of a margin that is evaluated draw by draw."""

MAX_RECORD_CELLS = 1024  # of the confidential records' own table: a covariance of that size is taken for each draw

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

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, then the attributes; each draw sums to one.

    Raises
    ------
    InputError
        If the trace is not of a latent class model, an attribute is unknown, or there are too many cells.

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
    cells = margin_operator(domain, [margin.names]).cells
    mixture = _Mixture.of(trace, domain)
    if target == "population":
        values = np.concatenate([block.probabilities(cells) for block in mixture.blocks(len(cells))])
        values /= values.sum(axis=1, keepdims=True)
    else:
        values = _record_shares(trace, release, domain, mixture, cells, random_seed, whole)
    sizes = trace["posterior"].sizes
    coords = {"chain": trace["posterior"]["chain"], "draw": trace["posterior"]["draw"]}
    levels = {attribute.name: list(attribute.levels) for attribute in margin}
    shaped = values.reshape(sizes["chain"], sizes["draw"], *margin.shape)
    return xr.DataArray(shaped, dims=("chain", "draw", *margin.names), coords=coords | levels, name="probability")


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Draws of weights ``(draws, classes)`` and of all profiles side by side, padded by a last column of ones."""

    weights: Array
    columns: Array
    first: tuple[int, ...]
    zeros: ZeroSet | None

    @classmethod
    def of(cls, trace: xr.DataTree, domain: Domain) -> _Mixture:
        posterior = trace["posterior"].to_dataset()
        needed = ["weights", *(f"profile_{name}" for name in domain.names)]
        flat = posterior[needed].stack(draws=("chain", "draw"))
        weights = flat["weights"].transpose("draws", ...).to_numpy()
        profiles = [flat[f"profile_{name}"].transpose("draws", "class", ...).to_numpy() for name in domain.names]
        first = (0, *np.cumsum([profile.shape[2] for profile in profiles])[:-1].tolist())
        columns = np.concatenate([*profiles, np.ones((*weights.shape, 1))], axis=2)
        return cls(weights, columns, first, fitted_zeros(trace, domain))

    def blocks(self, width: int) -> Iterator[_Mixture]:
        """Yield runs of draws whose work arrays of `width` numbers a class stay small."""
        step = max(1, _BLOCK // (width * self.weights.shape[1]))
        for start in range(0, len(self.weights), step):
            part = slice(start, start + step)
            yield _Mixture(self.weights[part], self.columns[part], self.first, self.zeros)

    def probabilities(self, cells: Sequence[Cell]) -> Array:
        """Return the probability of each cell, shape ``(draws, cells)``."""
        if self.zeros is None:
            return self._unconditioned(cells)
        plan = self.zeros.plan(cells)
        return conditioned_draws(self._unconditioned(plan.cells), plan)

    def _unconditioned(self, cells: Sequence[Cell]) -> Array:
        index = np.full((len(cells), max(map(len, cells), default=0)), self.columns.shape[2] - 1)
        for row, cell in zip(index, cells, strict=True):
            row[: len(cell)] = [self.first[axis] + level for axis, level in cell]
        product = np.ones((*self.weights.shape, len(cells)))
        for column in index.T:
            product *= self.columns[:, :, column]
        return np.asarray(np.matmul(self.weights[:, None], product)[:, 0])

    def both(self, first: Sequence[Cell], second: Sequence[Cell]) -> Array:
        """Return the probability that a record is in a cell of both lists, shape ``(draws, first, second)``."""
        met: dict[Cell, int] = {}
        place = np.full((len(first), len(second)), -1, dtype=np.intp)
        for i, j in np.ndindex(*place.shape):
            joined = dict(first[i])
            if all(joined.setdefault(axis, level) == level for axis, level in second[j]):
                place[i, j] = met.setdefault(tuple(sorted(joined.items())), len(met))
        padded = np.concatenate([self.probabilities(tuple(met)), np.zeros((len(self.weights), 1))], axis=1)
        return padded[:, place]


def _record_shares(
    trace: xr.DataTree,
    release: Release | None,
    domain: Domain,
    mixture: _Mixture,
    cells: Sequence[Cell],
    random_seed: int | None,
    whole: bool,
) -> Array:
    """Draw the margin's shares among the confidential records, shape ``(draws, cells)``."""
    if release is None:
        raise InputError("target 'records' needs the release that was fitted; pass release=...")
    if "exact_counts" not in trace["posterior"]:
        raise InputError("target 'records' needs exact_counts in the trace; fit with likelihood='joint'")
    operator = margin_operator(domain, [table.attributes for table in release.tables])
    flat = trace["posterior"].to_dataset().stack(draws=("chain", "draw"))
    exact = flat["exact_counts"].transpose("draws", ...).to_numpy()
    if exact.shape[1] != len(operator.cells):
        raise InputError(f"the trace holds {exact.shape[1]} exact counts, the release {len(operator.cells)}")
    n = np.full(len(exact), float(release.n)) if isinstance(release.n, int) else flat["n"].to_numpy()
    effects = (exact - n[:, None] * operator.constant) @ np.linalg.pinv(operator.matrix).T
    stddev = np.repeat([t.noise.variance**0.5 for t in release.tables], [t.counts.size for t in release.tables])
    scaled = operator.matrix / stddev[:, None]
    slack = _SLACK * np.linalg.inv(scaled.T @ scaled)
    rng = np.random.default_rng(random_seed)
    start, drawn = 0, []
    for block in mixture.blocks((len(cells) + operator.n_effects) ** 2):
        part = slice(start, start + len(block.weights))
        drawn.append(_draw_counts(block, operator, cells, effects[part], n[part], slack, rng))
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


def _draw_counts(
    mixture: _Mixture,
    operator: MarginOperator,
    cells: Sequence[Cell],
    effects: Array,
    n: Array,
    slack: Array,
    rng: np.random.Generator,
) -> Array:
    """Draw the margin's counts given the effects' counts, from the normal law of `margin_draws`."""
    size = n[:, None, None]
    mean, mean_effects = mixture.probabilities(cells), mixture.probabilities(operator.effects)
    cov_effects = (
        size * (mixture.both(operator.effects, operator.effects) - mean_effects[:, :, None] * mean_effects[:, None])
        + slack
    )
    cross = size * (mixture.both(cells, operator.effects) - mean[:, :, None] * mean_effects[:, None])
    cov = size * (np.eye(len(cells)) * mean[:, :, None] - mean[:, :, None] * mean[:, None])
    gain = np.linalg.solve(cov_effects, cross.transpose(0, 2, 1)).transpose(0, 2, 1)
    offset = effects - n[:, None] * mean_effects
    left = cov - np.matmul(gain, cross.transpose(0, 2, 1))
    values, vectors = np.linalg.eigh((left + left.transpose(0, 2, 1)) / 2)
    noise = np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(values.shape)
    return n[:, None] * mean + np.einsum("dce,de->dc", gain, offset) + np.einsum("dck,dk->dc", vectors, noise)
