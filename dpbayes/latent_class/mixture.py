"""The latent class mixture: class weights by stick breaking, class profiles, and the probabilities that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from dpbayes.inference.margin_operator import Cell
from dpbayes.latent_class.cell_probabilities import CellProbabilities, cell_tree
from dpbayes.latent_class.profile_coordinates import ArcsineNormal, AttributeTotals

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain

__all__ = ["Mixture"]


class Mixture:
    """Cell probabilities of any margin of a latent class mixture, as graphs on the context stack's model.

    Building one adds ``alpha`` (unless fixed), ``stick``, ``weights``, ``weights_sorted``, ``profiles_of_L`` and
    ``profile_A`` to the model.

    Parameters
    ----------
    domain
        All attributes.
    n_classes
        Number of classes.
    concentration
        The stick-breaking concentration: a number, or shape and rate of its gamma prior.
    profile_prior
        The Dirichlet parameter of every profile.
    starts
        Probabilities of the second levels of attributes of two levels about which the sampler's coordinates are
        centred and chains start, shape ``(attributes of two levels,)``.
    by_totals
        Whether the totals of attributes of two levels are coordinates of the sampler (`AttributeTotals`), which are
        not centred.
    """

    def __init__(
        self,
        domain: Domain,
        n_classes: int,
        concentration: float | tuple[float, float],
        profile_prior: float,
        *,
        starts: Any,
        by_totals: bool = False,
    ) -> None:
        self.weights = _weights(n_classes, concentration)
        self._profiles, first = _profiles(domain, n_classes, profile_prior, starts, self.weights if by_totals else None)
        self._shape = domain.shape
        self._first = [first[name] for name in domain.names]

    @property
    def upper_levels(self) -> Any:
        """Probabilities of the second levels, shape ``(classes, attributes)``, where all attributes have two."""
        assert set(self._shape) == {2}
        return self._profiles[:, 1::2]

    def probabilities(self, cells: Sequence[Cell]) -> Any:
        """Return the probability of each cell, shape ``(cells,)``."""
        steps, places = cell_tree([[self._first[axis] + level for axis, level in cell] for cell in cells])
        return CellProbabilities()(self.weights, self._profiles, steps, places)


def _weights(n_classes: int, concentration: float | tuple[float, float]) -> Any:
    """Return the class weights: sticks broken off one after the other."""
    if isinstance(concentration, tuple):
        alpha = pm.Gamma("alpha", alpha=concentration[0], beta=concentration[1])
    else:
        alpha = concentration
    if n_classes == 1:
        weights = pt.ones(1)
    else:
        stick = pm.Beta("stick", alpha=1.0, beta=alpha, dims="break")
        rest = pt.concatenate([[1.0], pt.cumprod(1.0 - stick)])
        weights = pt.concatenate([stick, [1.0]]) * rest
    pm.Deterministic("weights_sorted", -pt.sort(-weights), dims="rank")
    return pm.Deterministic("weights", weights, dims="class")


def _profiles(
    domain: Domain, n_classes: int, profile_prior: float, starts: Any, weights: Any
) -> tuple[Any, dict[str, int]]:
    """Return all class profiles side by side, shape ``(classes, levels)``, and the first column of each attribute.

    Attributes of equally many levels share one random variable: the graph, and with it the time to compile, does not
    grow with the number of attributes.
    """
    blocks, start, first = [], 0, {}
    for size in sorted(set(domain.shape)):
        names = [attribute.name for attribute in domain if attribute.size == size]
        dims = ("class", f"attribute_of_{size}")
        if size == 2:
            upper = _upper_levels("profiles_of_2", profile_prior, starts, weights, dims, (n_classes, len(names)))
            group = pt.stack([1.0 - upper, upper], axis=2)
        else:
            group = pm.Dirichlet(
                f"profiles_of_{size}", a=np.full(size, profile_prior), dims=(*dims, f"level_of_{size}")
            )
        for position, name in enumerate(names):
            pm.Deterministic(f"profile_{name}", group[:, position], dims=("class", name))
            first[name] = start + position * size
        blocks.append(group.reshape((group.shape[0], len(names) * size)))
        start += len(names) * size
    return pt.concatenate(blocks, axis=1), first


def _upper_levels(
    name: str, profile_prior: float, starts: Any, weights: Any, dims: tuple[str, str], shape: tuple[int, int]
) -> Any:
    """Return the probabilities of second levels; with weights, in coordinates that hold the attributes' totals."""
    if weights is None:
        return pm.Beta(
            name,
            profile_prior,
            profile_prior,
            dims=dims,
            initval=pt.broadcast_to(starts, shape),
            default_transform=ArcsineNormal(ArcsineNormal().forward(starts)),
        )
    # The law does not depend on the weights; the coordinates do.
    return pm.CustomDist(
        name,
        weights,
        dist=lambda weights, size: pm.Beta.dist(profile_prior, profile_prior, shape=shape),
        logp=lambda value, weights: pt.sum(pm.logp(pm.Beta.dist(profile_prior, profile_prior), value)),
        support_point=lambda rv, size, weights: pt.full(shape, 0.5),
        signature="(k)->(k,j)",
        class_name="Profiles",
        dims=dims,
        default_transform=AttributeTotals(),
    )
