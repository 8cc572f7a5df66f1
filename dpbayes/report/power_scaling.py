"""Power-scaling sensitivities of posterior quantities, and how large they come out where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["NOTICEABLE", "Sensitivities", "sensitivities"]

NOTICEABLE = 0.05
"""Sensitivity above which a side is felt (Kallioinen et al. 2024, section 3.3)."""

MOST_DRAWS = 4000
_SHIFTS = 40


@dataclass(frozen=True, eq=False)
class Sensitivities:
    """Sensitivities of quantities to parts of a posterior's density.

    Parameters
    ----------
    labels
        Names of the quantities.
    values
        Shape ``(quantities, parts)``.
    noise
        For each variable the sensitivities to the parts that nineteen in twenty quantities of its kind stay below when
        they have nothing to do with a part, from as many draws; each of shape ``(parts,)``.
    """

    labels: tuple[str, ...]
    values: npt.NDArray[np.float64]
    noise: Mapping[str, npt.NDArray[np.float64]]

    @property
    def felt(self) -> npt.NDArray[np.bool_]:
        """Whether each quantity feels each part: above `NOTICEABLE`, and above the noise; shape as `values`."""
        noise = np.array([self.noise[label.partition("[")[0]] for label in self.labels])
        return np.asarray(self.values > np.maximum(NOTICEABLE, noise))


def sensitivities(trace: xr.DataTree, densities: Mapping[str, xr.DataArray], variables: Sequence[str]) -> Sensitivities:
    """Estimate the sensitivity of every quantity to every part, and its noise.

    Parameters
    ----------
    trace
        A posterior.
    densities
        Log-density of each part at every draw, dims ``chain`` and ``draw``, up to a constant.
    variables
        Posterior variables.

    Notes
    -----
    The noise matters: a part that sums over many parameters varies much from draw to draw, its weights with it, and a
    reweighted sample of some thousand draws then differs from the sample itself by chance. It is estimated by shifting
    the draws of quantities against those of the densities, which keeps both laws and their autocorrelation and takes
    away what they have to do with each other.
    """
    from dpbayes.inference.convergence import is_constant

    posterior = trace["posterior"].to_dataset()[list(variables)]
    step = -(-posterior.sizes["chain"] * posterior.sizes["draw"] // MOST_DRAWS)
    thin = {"draw": slice(None, None, step)}
    thinned = {name: part.isel(thin) for name, part in densities.items()}
    values, noise = [], {}
    for name in variables:
        draws = np.asarray(posterior[name].transpose("chain", "draw", ...).isel(thin).to_numpy())
        draws = draws.reshape(*draws.shape[:2], -1)
        # A structural zero never moves, and the distance between two laws of one point is 0 / 0.
        moving = ~is_constant(np.moveaxis(draws, 2, 0))
        found, noise[name] = np.zeros((draws.shape[2], len(densities))), np.zeros(len(densities))
        if moving.any():
            found[moving] = _estimates(draws[:, :, moving], thinned)
            noise[name] = np.quantile(_estimates(_shifted(draws[:, :, moving]), thinned), 0.95, axis=0)
        values.append(found)
    labels = (label for name in variables for label in _labels(posterior[name]))
    return Sensitivities(tuple(labels), np.concatenate(values), noise)


def _estimates(draws: npt.NDArray[np.float64], densities: Mapping[str, xr.DataArray]) -> npt.NDArray[np.float64]:
    """Return sensitivities of quantities with draws of shape ``(chain, draw, quantities)`` to each density."""
    import xarray as xr
    from arviz_stats import psense

    quantities = xr.Dataset({"quantity": (("chain", "draw", "place"), draws)})
    data = xr.DataTree.from_dict({"posterior": quantities, "log_prior": xr.Dataset(dict(densities))})
    found = [
        psense(data, group="prior", group_var_names=[name], sample_dims=["chain", "draw"])["quantity"].to_numpy()
        for name in densities
    ]
    return np.column_stack(found)


def _shifted(draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return quantities, some more than once where they are few, each shifted in time and to other chains."""
    rng = np.random.default_rng(1)
    chains, length, count = draws.shape
    taken = np.resize(rng.permutation(count), _SHIFTS)
    later = rng.integers(length // 5, length - length // 5, size=_SHIFTS)
    other = rng.integers(chains, size=_SHIFTS)
    columns = [
        np.roll(draws[:, :, i], (chain, draw), axis=(0, 1)) for i, chain, draw in zip(taken, other, later, strict=True)
    ]
    return np.stack(columns, axis=2)


def _labels(variable: xr.DataArray) -> list[str]:
    dims = [str(dim) for dim in variable.dims if dim not in ("chain", "draw")]
    levels = [variable[dim].to_numpy().tolist() for dim in dims]
    labels = []
    for index in np.ndindex(*(len(level) for level in levels)):
        parts = [f"{dim}={level[i]}" for dim, level, i in zip(dims, levels, index, strict=True)]
        labels.append(f"{variable.name}[{', '.join(parts)}]" if parts else str(variable.name))
    return labels
