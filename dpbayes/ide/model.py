r"""The Bayesian reading of the noise-aware estimate, for supports of up to a few thousand rows.

:math:`e^{-\lambda KL(q\|p)}` weighs distributions on the prior's support as a Dirichlet law centred on p does, to
second order around p; here the Dirichlet itself is the prior, and the released counts are the exact counts n M q plus
noise of the released law, as in the latent class model. The posterior brings what the point estimate lacks: intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pymc as pm
import pytensor.tensor as pt

from dpbayes.errors import InputError
from dpbayes.ide.cells import CellMap
from dpbayes.ide.measurements import measure
from dpbayes.ide.prior import Prior
from dpbayes.ide.strength import Strength, choose_strength
from dpbayes.inference.noisy_counts import ReleasedNoise, noisy_counts
from dpbayes.privacy.release import Release

__all__ = ["MAX_ROWS", "build_model", "merge_rows", "sampler_defaults"]

MAX_ROWS = 5000
"""Largest support, after rows that no table tells apart are merged."""


def build_model(
    prior: Prior,
    release: Release,
    *,
    strength: float | Literal["release"] = "release",
    margins: Sequence[Sequence[str]] = (),
) -> pm.Model:
    r"""State the Dirichlet model of a distribution on a public prior's support.

    .. math:: q \sim \text{Dirichlet}(\lambda p), \qquad y_c \sim \text{noise law around } n (Mq)_c.

    Parameters
    ----------
    prior
        The public prior. Rows that agree on every attribute of the tables and of `margins` are merged first, which is
        exact: sums of a Dirichlet vector's parts are Dirichlet.
    release
        The noisy tables. A number of records that was released with noise enters as its estimate.
    strength
        :math:`\lambda` in records, or ``"release"`` to choose it from the release (`dpbayes.ide.strength`).
    margins
        Attribute sets whose probabilities are recorded besides the released ones, each as ``margin_A_B``.

    Returns
    -------
    pymc.Model
        Free: ``share`` (row), the distribution. Recorded: ``margin`` (count), the probabilities of all released cells,
        table after table in C order; ``margin_A_B`` with one dimension an attribute. Observed: ``released`` (count).
        The attribute ``gate_variables`` names what convergence is judged on.

    Raises
    ------
    InputError
        If the merged support has more than 5,000 rows, or the release does not fit the prior.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> model = build_model(Prior.full(release.domain), release, strength=20.0)
    >>> [variable.name for variable in model.free_RVs]
    ['share']
    """
    given = None if isinstance(strength, str) else Strength.given(strength)
    if isinstance(strength, str) and strength != "release":
        raise InputError(f"strength must be a number of records or 'release', got {strength!r}")
    requested = [tuple(names) for names in margins]
    measurements = measure(prior, release)
    if measurements.n <= 0:
        raise InputError(f"the released number of records is {measurements.n:g}: there is nothing to condition on")
    chosen = (given or choose_strength(measurements)).value
    used = {name for names in (*measurements.cells.attribute_sets, *requested) for name in names}
    merged = merge_rows(prior, [name for name in prior.domain.names if name in used])
    if merged.size > MAX_ROWS:
        raise InputError(
            f"the support has {merged.size:,} distinct rows and the model takes {MAX_ROWS:,}; restrict the prior "
            "(Prior.restrict), release fewer attributes, or use estimate(), which has no such limit"
        )
    concentration = np.maximum(chosen * merged.weights, 1e-300)
    cells = CellMap(merged, measurements.cells.attribute_sets)
    noise = ReleasedNoise.of_tables([table.noise for table in release.tables], cells.sizes)
    with pm.Model(coords=_coords(prior, release, merged, requested)) as model:
        share = pm.Dirichlet("share", a=concentration, dims="row")
        margin = pm.Deterministic("margin", _sum_cells(share, cells), dims="count")
        for names in requested:
            part = CellMap(merged, (names,))
            shape = [prior.domain[name].size for name in names]
            pm.Deterministic("margin_" + "_".join(names), _sum_cells(share, part).reshape(shape), dims=names)
        observed = pm.Data("released_counts", measurements.values, dims="count")
        pm.Data("prior_strength", chosen)
        noisy_counts("released", measurements.n * margin, noise, observed=observed, dims="count")
    model.gate_variables = ("margin", *("margin_" + "_".join(names) for names in requested))
    return model


def sampler_defaults() -> dict[str, Any]:
    """Return the sampler settings that pass the gate on models of this module.

    Tables leave most directions of the support to the prior and pin the others: a posterior that is long and thin, for
    which a diagonal metric needs trees of the largest depth and a low-rank one a quarter of that.

    Returns
    -------
    dict
        Keyword arguments of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_defaults()["adaptation"]
    'low_rank'
    """
    return {"adaptation": "low_rank", "target_accept": 0.9}


def merge_rows(prior: Prior, names: Sequence[str]) -> Prior:
    """Return the prior of some attributes: rows that agree on them are one, rows without weight are gone.

    Parameters
    ----------
    prior
        The prior.
    names
        Attributes to keep, in order.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> prior = Prior.full(Domain.from_levels({"x": (0, 1), "y": (0, 1)}), [[1, 2], [3, 4]])
    >>> merge_rows(prior, ["x"]).weights.round(9).tolist()
    [0.3, 0.7]
    """
    codes = prior.codes[:, list(prior.domain.axes(names))]
    rows, place = np.unique(codes, axis=0, return_inverse=True)
    weights = np.bincount(place.ravel(), prior.weights, len(rows))
    held = weights > 0
    return Prior(prior.domain.project(names), rows[held], weights[held], prior.n_records)


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
        coords |= {name: list(prior.domain[name].levels) for name in names}
    return coords
