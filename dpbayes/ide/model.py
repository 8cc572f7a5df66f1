r"""The Bayesian reading of the noise-aware estimate, for supports of up to a few thousand rows.

:math:`e^{-\lambda KL(q\|p)}` weighs distributions as Dirichlet(:math:`\lambda p`) does, to second order around p; here
the Dirichlet itself is the prior, and the released counts are n M q plus noise of the released law.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from dpbayes.errors import InputError
from dpbayes.ide.noise_aware import CellMap, measure
from dpbayes.ide.prior import Prior
from dpbayes.ide.strength import Strength, scalar_strength
from dpbayes.inference.noisy_counts import noisy_counts, release_noise, released_vector
from dpbayes.privacy.release import Release

MAX_ROWS = 5000  # of the support, after rows that no table tells apart are merged


def build_model(prior: Prior, release: Release, *, strength: float | Literal["release"] = "release") -> pm.Model:
    r"""State the Dirichlet model of a distribution on a public prior's support."""
    measurements, given = measure(prior, release), Strength.of(strength)
    if measurements.n <= 0:
        raise InputError(f"the released number of records is {measurements.n:g}: there is nothing to condition on")
    chosen = (given or scalar_strength(measurements)).value
    used = {name for names in measurements.cells.attribute_sets for name in names}
    merged = merge_rows(prior, [name for name in prior.domain.names if name in used])
    if merged.size > MAX_ROWS:
        said = f"the support has {merged.size:,} distinct rows and the model takes {MAX_ROWS:,}"
        raise InputError(f"{said}; release fewer or coarser attributes, or use estimate(), which has no such limit")
    cells = CellMap(merged, measurements.cells.attribute_sets)
    labels = [label for table in release.tables for label in table.domain.cell_labels()]
    with pm.Model(coords={"row": np.arange(merged.size), "count": labels}) as model:
        share = pm.Dirichlet("share", a=np.maximum(chosen * merged.weights, 1e-300), dims="row")
        parts = [pt.inc_subtensor(pt.zeros(n)[index], share) for n, index in zip(cells.sizes, cells.index, strict=True)]
        margin = pm.Deterministic("margin", pt.concatenate(parts), dims="count")
        observed = pm.Data("released_counts", released_vector(release), dims="count")
        pm.Data("prior_strength", chosen)
        noisy_counts("released", measurements.n * margin, release_noise(release), observed=observed, dims="count")
    model.convergence_variables = ("margin",)
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
