"""The latent class mixture: class weights by stick breaking, class profiles, and the probabilities that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from dpbayes.inference.margin_operator import Cell
from dpbayes.latent_class.attribute_totals import AttributeTotals
from dpbayes.latent_class.cell_probabilities import CellProbabilities, cell_tree
from dpbayes.latent_class.profile_coordinates import ArcsineNormal, ScaledByWeights, ScaledSticks

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain

__all__ = ["Mixture"]


class _Columns:
    """Class profiles side by side, from a lowest level of each attribute on.

    Parameters
    ----------
    lowest
        The first level that has a column.
    """

    def __init__(self, lowest: int) -> None:
        self._lowest = lowest
        self._blocks: list[Any] = []
        self._first: dict[str, int] = {}
        self._width = 0

    def append(self, block: Any, names: Sequence[str], size: int) -> None:
        """Add the profiles of attributes that have so many columns each, shape ``(classes, names x size)``."""
        for name in names:
            self._first[name] = self._width - self._lowest
            self._width += size
        self._blocks.append(block)

    def of(self, name: str, level: int) -> int:
        """Return the column of an attribute's level."""
        return self._first[name] + level

    @property
    def values(self) -> Any:
        """All profiles, shape ``(classes, columns)``."""
        return self._blocks[0] if len(self._blocks) == 1 else pt.concatenate(self._blocks, axis=1)


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
        Profiles about which the sampler's coordinates are centred and chains start, for each number L of levels of
        shape ``(attributes of L levels, L)``; every class has its own coordinates, scaled by its weight
        (`ScaledByWeights`, `ScaledSticks`). With None, for attributes of two levels alone, their totals are coordinates
        (`AttributeTotals`), and chains start about one half.
    """

    def __init__(
        self,
        domain: Domain,
        n_classes: int,
        concentration: float | tuple[float, float],
        profile_prior: float,
        *,
        starts: Mapping[int, Any] | None,
    ) -> None:
        self.weights = _weights(n_classes, concentration)
        self._all, self._upper = _profiles(domain, n_classes, profile_prior, starts, self.weights)
        self._domain = domain

    @property
    def upper_levels(self) -> Any:
        """Probabilities of the second levels, shape ``(classes, attributes)``, where all attributes have two."""
        assert set(self._domain.shape) == {2}
        return self._upper.values

    def probabilities(self, cells: Sequence[Cell]) -> Any:
        """Return the probability of each cell, shape ``(cells,)``."""
        # Effects name no first levels: what a step of the sampler needs, it has without one minus the others.
        profiles = self._upper if all(level > 0 for cell in cells for _, level in cell) else self._all
        names = self._domain.names
        steps, places = cell_tree([[profiles.of(names[axis], level) for axis, level in cell] for cell in cells])
        return CellProbabilities()(self.weights, profiles.values, steps, places)[0]


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
    domain: Domain, n_classes: int, profile_prior: float, starts: Mapping[int, Any] | None, weights: Any
) -> tuple[_Columns, _Columns]:
    """Return the class profiles of all levels, and those of all levels but the first.

    Attributes of equally many levels share one random variable: the graph, and with it the time to compile, does not
    grow with the number of attributes.
    """
    everything, upper = _Columns(0), _Columns(1)
    for size in sorted(set(domain.shape)):
        names = [attribute.name for attribute in domain if attribute.size == size]
        dims, start = ("class", f"attribute_of_{size}"), None if starts is None else starts[size]
        if size == 2:
            about = None if start is None else start[:, 1]
            second = _upper_levels("profiles_of_2", profile_prior, about, weights, dims, (n_classes, len(names)))
            group = pt.stack([1.0 - second, second], axis=2)
        else:
            assert start is not None
            shape = (n_classes, len(names), size)
            every = (*dims, f"level_of_{size}")
            group = _levels(f"profiles_of_{size}", profile_prior, start, weights, every, shape)
            second = group[:, :, 1:].reshape((n_classes, len(names) * (size - 1)))
        for position, name in enumerate(names):
            pm.Deterministic(f"profile_{name}", group[:, position], dims=("class", name))
        everything.append(group.reshape((n_classes, len(names) * size)), names, size)
        upper.append(second, names, size - 1)
    return everything, upper


def _upper_levels(
    name: str, profile_prior: float, start: Any | None, weights: Any, dims: Sequence[str], shape: tuple[int, ...]
) -> Any:
    """Return the probabilities of second levels: their law does not depend on the weights, their coordinates do.

    Without a start the coordinates hold the attributes' totals.
    """
    transform = AttributeTotals() if start is None else ScaledByWeights(ArcsineNormal().forward(start))
    about = pt.full(shape, 0.5) if start is None else pt.broadcast_to(start, shape)
    return pm.CustomDist(
        name,
        weights,
        dist=lambda weights, size: pm.Beta.dist(profile_prior, profile_prior, shape=shape),
        logp=lambda value, weights: pt.sum(pm.logp(pm.Beta.dist(profile_prior, profile_prior), value)),
        support_point=lambda rv, size, weights: about,
        signature="(k)->(k,j)",
        class_name="Profiles",
        dims=dims,
        default_transform=transform,
    )


def _levels(
    name: str, profile_prior: float, start: Any, weights: Any, dims: Sequence[str], shape: tuple[int, ...]
) -> Any:
    """Return the profiles of attributes of more than two levels, whose coordinates depend on the weights as well."""
    prior = np.full(shape[-1], profile_prior)
    return pm.CustomDist(
        name,
        weights,
        dist=lambda weights, size: pm.Dirichlet.dist(prior, shape=shape),
        logp=lambda value, weights: pt.sum(pm.logp(pm.Dirichlet.dist(prior), value)),
        support_point=lambda rv, size, weights: pt.broadcast_to(start, shape),
        signature="(k)->(k,j,l)",
        class_name="Profiles",
        dims=dims,
        default_transform=ScaledSticks(start),
    )
