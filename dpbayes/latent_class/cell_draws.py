"""Posterior draws of any margin's probabilities: the population's, or those of the confidential records themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import margin_operator
from dpbayes.latent_class.mixture_draws import Mixture
from dpbayes.latent_class.record_draws import MAX_RECORD_CELLS, check_fitted, record_shares
from dpbayes.latent_class.synthesis import fitted_domain, fitted_zeros

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release

__all__ = ["MAX_CELLS", "Target", "margin_draws"]

MAX_CELLS = 65_536
"""Most cells of a margin that is evaluated draw by draw."""

MAX_NUMBERS = 1 << 26  # cells times draws; 512 MiB, and a regression works with a few such arrays

type Target = Literal["population", "records"]
type Array = npt.NDArray[np.float64]


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
        For ``"records"``: make each draw a table of whole counts that sums to n, or to one record where a draw of a
        noisy n is less (rounded by largest remainders), so that an interval can say that a cell is empty. Without it
        counts are real and at least a millionth of a record, so that log-odds stay finite.
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
        If the trace is not of a latent class model, an attribute is unknown, there are too many cells or draws, or
        `release` is not the one that the trace was fitted to.

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
    if target == "records" and release is not None:
        check_fitted(trace, release)
    posterior = _thinned(trace, thin)
    sizes = posterior.sizes
    _check_size(margin.size, sizes["chain"] * sizes["draw"], thin)
    cells = margin_operator(domain, [margin.names]).cells
    mixture = Mixture.of(posterior, domain, fitted_zeros(trace, domain))
    if target == "population":
        lookup = mixture.lookup(cells)
        values = np.concatenate([block.probabilities(lookup) for block in mixture.blocks(len(cells))])
        values /= values.sum(axis=1, keepdims=True)
    else:
        values = record_shares(posterior, release, domain, mixture, cells, random_seed, whole, thin)
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
