"""What is drawn once a fit is there: the confidential tables' own counts, given the classes and the release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtri_exp

from dpbayes._names import variable_name
from dpbayes.latent_class.design import profile_name
from dpbayes.latent_class.likelihood import Tables, turned_back

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release

type Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Completion:
    """Adds to a posterior what needs no gradient: profiles by attribute, and the exact counts behind the release."""

    release: Release
    tables: Tables

    @property
    def names(self) -> tuple[str, ...]:
        """What a trace has that the model has not."""
        return ("exact_counts", *map(profile_name, self.release.domain.names))

    def __call__(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.Dataset:
        """Return the completed posterior."""
        ends = np.cumsum(self.release.domain.shape)
        profiles = posterior["profiles"]
        for attribute, end in zip(self.release.domain, ends, strict=True):
            dim = variable_name(attribute.name)
            own = profiles.isel(level=slice(end - attribute.size, end)).drop_vars("level").rename(level=dim)
            posterior[profile_name(attribute.name)] = own.assign_coords({dim: list(attribute.levels)})
        kept = posterior.drop_vars(["profiles", "level", "given_mean", "given_variance"], errors="ignore")
        if "sampling_root" in data:
            kept["exact_counts"] = self._jointly(posterior, data, rng)
        elif "given_mean" in posterior:
            kept["exact_counts"] = self._cell_by_cell(posterior, data, rng)
        return kept

    def _jointly(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.DataArray:
        """Return the counts that the deviations say (`likelihood.joint_law`), drawn here where they are summed out."""
        margin = posterior["margin"].transpose("chain", "draw", "count")
        mean = margin * (posterior["n"] if "n" in posterior else data["n_records"])
        off = data["released_counts"] - mean.to_numpy()
        pulled = off @ data["count_gain"].T
        free = "count_deviations" in posterior
        z = posterior["count_deviations"].to_numpy() if free else rng.standard_normal(pulled.shape)
        return mean + (pulled + z) @ data["count_root"].T @ data["sampling_root"].T

    def _cell_by_cell(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.DataArray:
        mean, variance = posterior["given_mean"], posterior["given_variance"]
        counts = np.array(mean.to_numpy())
        for block in self.tables.blocks:
            at, spread = counts[..., block.places], np.maximum(variance.to_numpy()[..., block.places], 1e-12)
            if block.kind != "laplace":
                share = spread / (spread + block.variances)
                counts_name = "rotated_counts" if block.gaussian else "released_counts"
                drawn = share * (data[counts_name][block.places] - at)
                drawn += np.sqrt(share * block.variances) * rng.standard_normal(at.shape)
            else:
                off = data["released_counts"][block.places] - at
                drawn = normal_given_laplace(off, spread, np.sqrt(0.5 * block.variances), rng)
            counts[..., block.places] = at + drawn
        return mean.copy(data=turned_back(self.release, self.tables, data["rotation"], counts))


def normal_given_laplace(off: Array, variance: Array, scale: Array, rng: np.random.Generator) -> Array:
    """Draw normal variables of mean zero, given their sums with Laplace variables."""
    root, shift = np.sqrt(variance), variance / scale
    below, above = log_ndtr((off - shift) / root) - off / scale, log_ndtr(-(off + shift) / root) + off / scale
    lower = np.log(rng.random(off.shape)) < below - np.logaddexp(below, above)
    u = np.log(rng.random(off.shape))
    left = shift + root * ndtri_exp(log_ndtr((off - shift) / root) + u)
    right = -shift - root * ndtri_exp(log_ndtr(-(off + shift) / root) + u)
    return np.where(lower, left, right)
