"""What is drawn given a fit, without gradients: the exact counts behind a release, and the population's own shares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from dpbayes._arguments import Floats
from dpbayes.inference.noisy_counts import released_limits
from dpbayes.latent_class.analysis import Mixture, population_margins, population_shares
from dpbayes.latent_class.design import dimension_name, profile_name, record_numbers
from dpbayes.latent_class.likelihood import Block, Tables, turned

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release


@dataclass(frozen=True, eq=False)
class Completion:
    """Adds to a posterior what needs no gradient: profiles by attribute, and the exact counts behind the release.

    Where the population varies about the mixture, its own shares take the mixture's place in what the model records:
    `recorded` says of which attributes, by the variable's name.
    """

    release: Release
    tables: Tables
    recorded: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """What a trace has that the model has not."""
        return ("exact_counts", *map(profile_name, self.release.domain.names))

    def __call__(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.Dataset:
        """Return the completed posterior."""
        ends = np.cumsum(self.release.domain.shape)
        profiles = posterior["profiles"]
        for attribute, end in zip(self.release.domain, ends, strict=True):
            dim = dimension_name(attribute.name)
            own = profiles.isel(level=slice(end - attribute.size, end)).drop_vars("level").rename(level=dim)
            posterior[profile_name(attribute.name)] = own.assign_coords({dim: list(attribute.levels)})
        kept = posterior.drop_vars(["profiles", "level", "given_mean", "given_variance"], errors="ignore")
        if "sampling_root" in data:
            kept["exact_counts"] = self._jointly(posterior, data, rng)
        elif "given_mean" in posterior:
            kept["exact_counts"] = self._cell_by_cell(posterior, data, rng)
        if "overdispersion" in posterior:
            self._vary(kept, rng)
            # Synthesis takes from it which tables the counts are of.
            kept["exact_counts"].attrs["tables"] = json.dumps([table.attributes for table in self.release.tables])
        return kept

    def _vary(self, posterior: xr.Dataset, rng: np.random.Generator) -> None:
        """Put draws of the population's shares in the place of the mixture's."""
        margin, exact, varied = (
            posterior[name].transpose("chain", "draw", ...) for name in ("margin", "exact_counts", "overdispersion")
        )
        law = record_numbers(posterior, self.release).to_numpy(), varied.to_numpy(), rng
        shares = population_margins(self.release, margin.to_numpy(), exact.to_numpy(), *law)
        posterior["margin"] = margin.copy(data=shares)
        mixture = Mixture.of(posterior, self.release.domain, None)
        for name, attributes in self.recorded.items():
            if name not in posterior:
                continue
            shares = population_shares(posterior, self.release, mixture, attributes, rng)
            posterior[name] = posterior[name].copy(data=shares.reshape(posterior[name].shape))

    def _jointly(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.DataArray:
        """Return the counts that the deviations say (`likelihood.joint_law`), drawn here where they are summed out."""
        margin = posterior["margin"].transpose("chain", "draw", "count")
        mean = margin * (posterior["n"] if "n" in posterior else data["n_records"])
        # Those held back are pulled towards their limit, as in the model.
        off = np.maximum(data["released_counts"], released_limits(self.release)) - mean.to_numpy()
        pulled = off @ data["count_gain"].T
        free = "count_deviations" in posterior
        z = posterior["count_deviations"].to_numpy() if free else rng.standard_normal(pulled.shape)
        return mean + (pulled + z) @ data["count_root"].T @ data["sampling_root"].T

    def _cell_by_cell(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.DataArray:
        mean, limits = posterior["given_mean"].transpose("chain", "draw", "count"), released_limits(self.release)
        counts = np.array(mean.to_numpy())
        variances = posterior["given_variance"].transpose(*mean.dims).to_numpy()
        for own, spread in zip(counts, variances, strict=True):  # of a chain
            for block in self.tables.blocks:
                own[:, block.places] += _rest_of(block, own, spread, data, limits, rng)
            own[:] = turned(self.release, data["rotation"].T, own)
        return mean.copy(data=counts)


def _rest_of(
    block: Block, mean: Floats, variance: Floats, data: Mapping[str, Any], limits: Floats, rng: np.random.Generator
) -> Floats:
    """Draw what exact counts (draw, cell of the block) have beyond their means, given the released ones."""
    spread, noise = np.maximum(variance[:, block.places], 1e-12), block.variances
    released = data["rotated_counts" if block.kind == "gaussian" else "released_counts"][block.places]
    held, laplace, mean = np.isinf(released), block.kind == "laplace", mean[:, block.places]
    off = np.where(held, 0.0, released) - mean
    if laplace:
        found = normal_given_laplace(off, spread, np.sqrt(0.5 * noise), rng)
    else:
        share = spread / (spread + noise)
        found = share * off + np.sqrt(share * noise) * rng.standard_normal(off.shape)
    if held.any():
        room = (limits[block.places] - mean)[:, held]
        unseen = np.broadcast_to(noise[held], room.shape)
        found[:, held] = normal_given_below(laplace, room, spread[:, held], unseen, rng)
    return found


def normal_given_laplace(off: Floats, variance: Floats, scale: Floats, rng: np.random.Generator) -> Floats:
    """Draw normal variables of mean zero, given their sums with Laplace variables."""
    root, shift = np.sqrt(variance), variance / scale
    below, above = log_ndtr((off - shift) / root) - off / scale, log_ndtr(-(off + shift) / root) + off / scale
    lower = np.log(rng.random(off.shape)) < below - np.logaddexp(below, above)
    u = np.log(rng.random(off.shape))
    left = shift + root * ndtri_exp(log_ndtr((off - shift) / root) + u)
    right = -shift - root * ndtri_exp(log_ndtr(-(off + shift) / root) + u)
    return np.where(lower, left, right)


def normal_given_below(laplace: bool, x: Floats, variance: Floats, noise: Floats, rng: np.random.Generator) -> Floats:
    """Draw normal variables of mean zero, given that their sums with noise are below x.

    With Laplace noise of scale b by rejection: the envelope is their density, times exp((x - c)/b)/2 beyond x.
    """
    if not laplace:
        total = np.sqrt(variance + noise)
        off = total * ndtri_exp(log_ndtr(x / total) + np.log(rng.random(x.shape)))
        return variance / total**2 * off + np.sqrt(variance * noise) / total * rng.standard_normal(x.shape)
    scale, root = np.sqrt(0.5 * noise), np.sqrt(variance)
    drawn, open_ = np.empty(x.shape), np.ones(x.shape, dtype=bool)
    while open_.any():
        r, b, sd = x[open_], scale[open_], root[open_]
        shift = sd**2 / b
        inside, outside = log_ndtr(r / sd), log_ndtr(-(r + shift) / sd)
        first, where, kept = np.log(rng.random((3, len(r))))
        is_inside = first < -np.logaddexp(0.0, outside + (r + 0.5 * shift) / b - np.log(2.0) - inside)
        low, high = sd * ndtri_exp(inside + where), -shift - sd * ndtri_exp(outside + where)
        taken = ~is_inside | (kept < np.log1p(-0.5 * np.exp(np.minimum((low - r) / b, 0.0))))
        places = np.flatnonzero(open_)[taken]
        drawn.flat[places], open_.flat[places] = np.where(is_inside, low, high)[taken], False
    return drawn
