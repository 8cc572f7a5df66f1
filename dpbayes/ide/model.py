r"""The Bayesian reading of the noise-aware estimate, for supports of up to a few thousand rows.

:math:`e^{-\lambda KL(q\|p)}` weighs distributions on the prior's support as a Dirichlet law centred
on p does, to second order around p; here the Dirichlet itself is the prior, and the released counts
are the exact counts n M q plus noise of the released law, as in the latent class model. The
posterior brings what the point estimate lacks: intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pymc as pm
import pytensor.tensor as pt

from dpbayes._names import variable_name
from dpbayes.errors import InputError
from dpbayes.ide.noise_aware import CellMap, measure
from dpbayes.ide.prior import Prior
from dpbayes.ide.strength import Strength, scalar_strength
from dpbayes.inference.noisy_counts import noisy_counts, release_noise
from dpbayes.privacy.release import Release

MAX_ROWS = 5000
"""Largest support, after rows that no table tells apart are merged."""


def build_model(
    prior: Prior,
    release: Release,
    *,
    strength: float | Literal["release"] = "release",
    margins: Sequence[Sequence[str]] = (),
) -> pm.Model:
    r"""State the Dirichlet model of a distribution on a public prior's support."""
    given, requested = Strength.of(strength), [tuple(names) for names in margins]
    measurements = measure(prior, release)
    if measurements.n <= 0:
        raise InputError(f"the released number of records is {measurements.n:g}: there is nothing to condition on")
    chosen = (given or scalar_strength(measurements)).value
    used = {name for names in (*measurements.cells.attribute_sets, *requested) for name in names}
    merged = merge_rows(prior, [name for name in prior.domain.names if name in used])
    if merged.size > MAX_ROWS:
        raise InputError(
            f"the support has {merged.size:,} distinct rows and the model takes {MAX_ROWS:,}; restrict the prior "
            "(Prior.restrict), release fewer attributes, or use estimate(), which has no such limit"
        )
    concentration = np.maximum(chosen * merged.weights, 1e-300)
    cells = CellMap(merged, measurements.cells.attribute_sets)
    noise = release_noise(release)
    with pm.Model(coords=_coords(prior, release, merged, requested)) as model:
        share = pm.Dirichlet("share", a=concentration, dims="row")
        margin = pm.Deterministic("margin", _sum_cells(share, cells), dims="count")
        for names in requested:
            part = CellMap(merged, (names,))
            shape = [prior.domain[name].size for name in names]
            dims = tuple(map(variable_name, names))
            pm.Deterministic(_margin_name(names), _sum_cells(share, part).reshape(shape), dims=dims)
        observed = pm.Data("released_counts", measurements.values, dims="count")
        pm.Data("prior_strength", chosen)
        noisy_counts("released", measurements.n * margin, noise, observed=observed, dims="count")
    model.convergence_variables = ("margin", *map(_margin_name, requested))
    return model


def sampler_defaults() -> dict[str, Any]:
    """Return the sampler settings that pass the convergence check on models of this module."""
    return {"adaptation": "low_rank", "target_accept": 0.9}


def merge_rows(prior: Prior, names: Sequence[str]) -> Prior:
    """Return the prior of some attributes: rows that agree on them are one, rows without weight are gone."""
    codes = prior.codes[:, list(prior.domain.axes(names))]
    rows, place = np.unique(codes, axis=0, return_inverse=True)
    weights = np.bincount(place.ravel(), prior.weights, len(rows))
    held = weights > 0
    return Prior(prior.domain.project(names), rows[held], weights[held], prior.n_records)


def _margin_name(names: Sequence[str]) -> str:
    return variable_name("_".join(["margin", *names]))


def _sum_cells(share: Any, cells: CellMap) -> Any:
    """Add up the rows of every cell of every table."""
    parts = [
        pt.inc_subtensor(pt.zeros(size)[index], share) for size, index in zip(cells.sizes, cells.index, strict=True)
    ]
    return pt.concatenate(parts)


def _coords(
    prior: Prior, release: Release, merged: Prior, requested: Sequence[tuple[str, ...]]
) -> dict[str, npt.ArrayLike]:
    labels = [label for table in release.tables for label in table.domain.cell_labels()]
    coords: dict[str, npt.ArrayLike] = {"row": np.arange(merged.size), "count": labels}
    for names in requested:
        coords |= {variable_name(name): list(prior.domain[name].levels) for name in names}
    return coords
