"""The latent class mixture: class weights by stick breaking, class profiles, and the probabilities that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from dpbayes.inference.margin_operator import Cell
from dpbayes.latent_class.cell_probabilities import CellProbabilities, cell_tree

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain

__all__ = ["ArcsineNormal", "Mixture"]


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
    """

    def __init__(
        self, domain: Domain, n_classes: int, concentration: float | tuple[float, float], profile_prior: float
    ) -> None:
        self.weights = _weights(n_classes, concentration)
        self._profiles, first = _profiles(domain, profile_prior)
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


class ArcsineNormal(Transform):
    r"""Coordinates in which a Beta(1/2, 1/2) probability is standard normal: :math:`p = \sin^2(\pi\Phi(z)/2)`.

    A class that holds few records has profiles that are left to their prior. In log-odds that prior has tails like
    exp(-|x|/2), which a sampler crosses slowly; here they are a normal law's: a fifth fewer gradients a draw on the ACS
    tables. Other beta priors are not normal in these coordinates, but their tails still are.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     p = pm.Beta("p", 0.5, 0.5, default_transform=ArcsineNormal())
    >>> logp = model.compile_logp()
    >>> [round(float(logp({"p_arcsine__": np.array(z)})), 4) for z in (-3.0, 0.0, 2.0)]  # the normal log-density
    [-5.4189, -0.9189, -2.9189]
    """

    name = "arcsine"
    ndim_supp = 0

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the probability, kept where its complement is not zero in double precision."""
        return pt.clip(pt.sqr(pt.sin(0.25 * np.pi * pt.erfc(-value / np.sqrt(2.0)))), 1e-300, 1.0 - 2.0**-53)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the normal coordinate."""
        return np.sqrt(2.0) * pt.erfinv(4.0 / np.pi * pt.arcsin(pt.sqrt(value)) - 1.0)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return log |dp/dz|; by symmetry it is taken in the lower tail, where nothing cancels."""
        sine = pt.sin(0.5 * np.pi * pt.erfc(pt.abs(value) / np.sqrt(2.0)))
        return pt.log(0.5 * np.pi * sine) - 0.5 * pt.sqr(value) - 0.5 * np.log(2.0 * np.pi)


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


def _profiles(domain: Domain, profile_prior: float) -> tuple[Any, dict[str, int]]:
    """Return all class profiles side by side, shape ``(classes, levels)``, and the first column of each attribute.

    Attributes of equally many levels share one random variable: the graph, and with it the time to compile, does not
    grow with the number of attributes.
    """
    blocks, start, first = [], 0, {}
    for size in sorted(set(domain.shape)):
        names = [attribute.name for attribute in domain if attribute.size == size]
        dims = ("class", f"attribute_of_{size}")
        if size == 2:
            upper = pm.Beta(
                "profiles_of_2",
                alpha=profile_prior,
                beta=profile_prior,
                dims=dims,
                default_transform=ArcsineNormal(),
            )
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
