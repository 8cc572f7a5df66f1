r"""Coordinates in which class profiles are sampled.

Every probability of an upper level of two is :math:`\psi = F(z) = \sin^2(\pi\Phi(z)/2)` (`ArcsineNormal`). The released
tables pin totals over classes, :math:`\sum_h \pi_h \psi_{hj}`, so that a coordinate :math:`z_{hj}` is as stiff as its
class is heavy; and in the course of a chain one class is heavy, then another. No constant metric suits them, and steps
are those of the heaviest. The sampler therefore sees x (`ScaledByWeights`),

.. math:: z_{hj} = c_j + \frac{x_{hj}}{1 + \kappa\pi_h},

about the coordinates :math:`c_j` of the released shares: no coordinate of a heavy class is much stiffer than those of a
light one. The larger :math:`\kappa`, the more the scale of the prior changes as a class fades, which is a funnel of its
own.

Profiles of more levels are sticks (`ScaledSticks`): every level breaks a part :math:`F(z_{hjl})` off what the levels
before it have left. Under a symmetric Dirichlet law the parts are independent beta variables, with the tails that they
have with two levels.

Where the counts of pairs are summed out the totals are coordinates themselves (`attribute_totals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

__all__ = ["STRETCH", "ArcsineNormal", "ScaledByWeights", "ScaledSticks", "class_weights"]

_LEAST = 1e-300  # of a probability, so that it has a logarithm

STRETCH = 4.0
"""Kappa: how much more the coordinates of a class of all records are stretched than those of one of none, less one."""
# On the ACS tables with eight classes the square root of the largest curvature has a median of 21 and a 99th
# percentile of 25 with 3, of 35 and 50 without. At 10 a sampler begins to meet the funnel.


class ArcsineNormal(Transform):
    r"""Coordinates in which a Beta(1/2, 1/2) probability is standard normal: :math:`p = \sin^2(\pi\Phi(z)/2)`.

    A class that holds few records has profiles that are left to their prior. In log-odds that prior has tails like
    exp(-|x|/2), which a sampler crosses slowly; here they are a normal law's: a fifth fewer gradients a draw on the ACS
    tables. Other beta priors are not normal in these coordinates, but their tails still are.

    Examples
    --------
    >>> import pymc as pm
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
        angle = _lower_angle(value)
        p = pt.switch(value < 0.0, pt.sqr(pt.sin(angle)), pt.sqr(pt.cos(angle)))
        return pt.clip(p, _LEAST, 1.0 - 2.0**-53)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinate."""
        return np.sqrt(2.0) * pt.erfinv(4.0 / np.pi * pt.arcsin(pt.sqrt(value)) - 1.0)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return log |dp/dz|."""
        angle = _lower_angle(value)
        return pt.log(np.pi * pt.sin(angle) * pt.cos(angle)) - 0.5 * pt.sqr(value) - 0.5 * np.log(2.0 * np.pi)


def _lower_angle(normal: Any) -> Any:
    """Return half pi times the smaller of the two tails, where nothing cancels."""
    # An absolute value would have no slope at zero, where probabilities do.
    return 0.25 * np.pi * pt.erfc(pt.switch(normal < 0.0, -normal, normal) / np.sqrt(2.0))


_ONE = ArcsineNormal()


class ScaledByWeights(Transform):
    r"""Coordinates of a matrix of probabilities, classes by attributes, scaled by the weights of the classes.

    .. math:: z_{hj} = c_j + x_{hj} / (1 + \kappa\pi_h), \qquad \kappa = 4,

    for a distribution whose only parameter of floating type is the vector of class weights.

    Parameters
    ----------
    centre
        The normal coordinates c at which the sampler's are zero, and about which chains start: a graph or array, shape
        ``(attributes,)``.

    Examples
    --------
    >>> transform, weights = ScaledByWeights(np.zeros(2)), pt.as_tensor([0.75, 0.25])
    >>> value = transform.forward(np.array([[0.2, 0.5], [0.2, 0.5]]), weights)
    >>> value.eval().round(3)  # four and two times the normal coordinates
    array([[-2.153,  0.   ],
           [-1.077,  0.   ]])
    >>> transform.backward(value, weights).eval()
    array([[0.2, 0.5],
           [0.2, 0.5]])
    """

    name = "scaled"
    ndim_supp = 2

    def __init__(self, centre: Any) -> None:
        self._centre = centre

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the probabilities."""
        return _ONE.backward(self._centre + value / _scales(inputs))

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinates."""
        return (_ONE.forward(value) - self._centre) * _scales(inputs)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the determinant."""
        scales = _scales(inputs)
        return pt.sum(_ONE.log_jac_det(self._centre + value / scales) - pt.log(scales))


class ScaledSticks(Transform):
    r"""Coordinates of profiles of more than two levels, scaled by the weights of the classes.

    .. math:: \psi_{hjl} = v_{hjl} \prod_{i<l} (1 - v_{hji}), \qquad v_{hjl} = F(z_{hjl}), \qquad
              z_{hjl} = c_{jl} + x_{hjl} / (1 + \kappa\pi_h), \qquad l < L,

    for a distribution of arrays, classes by attributes by levels, whose only parameter of floating type is the vector
    of class weights.

    Parameters
    ----------
    centre
        The profiles at which the sampler's coordinates are zero, and about which chains start: a graph or array of
        positive numbers that add up to one, shape ``(attributes, levels)``.

    Examples
    --------
    >>> transform, weights = ScaledSticks(np.array([[0.5, 0.25, 0.25]])), pt.as_tensor([0.75, 0.25])
    >>> value = transform.forward(np.array([[[0.2, 0.4, 0.4]], [[0.2, 0.4, 0.4]]]), weights)
    >>> value.eval().round(3)  # four and two times the normal coordinates
    array([[[-2.153,  0.   ]],
           [[-1.077,  0.   ]]])
    >>> transform.backward(value, weights).eval()
    array([[[0.2, 0.4, 0.4]],
           [[0.2, 0.4, 0.4]]])
    """

    name = "scaled"
    ndim_supp = 3

    def __init__(self, centre: Any) -> None:
        self._centre = _ONE.forward(_parts(centre))

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the profiles."""
        normals = self._normals(value, inputs)
        left = _left(normals)
        return pt.concatenate([_ONE.backward(normals) * left[..., :-1], left[..., -1:]], axis=-1)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinates."""
        return (_ONE.forward(_parts(value)) - self._centre) * _scales(inputs)[..., None]

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the determinant of the first L - 1 levels' profiles."""
        normals = self._normals(value, inputs)
        of_parts = _ONE.log_jac_det(normals) - pt.log(_scales(inputs)[..., None])
        return pt.sum(of_parts + pt.log(_left(normals)[..., :-1]))

    def _normals(self, value: Any, inputs: Sequence[Any]) -> Any:
        return self._centre + value / _scales(inputs)[..., None]


def _parts(profiles: Any) -> Any:
    """Return the part that each level but the last breaks off what the levels before it have left."""
    left = pt.cumsum(profiles[..., ::-1], axis=-1)[..., ::-1]
    return (profiles / left)[..., :-1]


def _left(normals: Any) -> Any:
    """Return what is left before each level, kept off zero: one for the first, the profile itself for the last."""
    others = _ONE.backward(-normals)  # F(-z) = 1 - F(z), with all its digits
    return pt.concatenate([pt.ones_like(others[..., :1]), pt.maximum(pt.cumprod(others, axis=-1), _LEAST)], axis=-1)


def _scales(inputs: Sequence[Any]) -> Any:
    """Return what coordinates are scaled by, shape ``(classes, 1)``."""
    return (1.0 + STRETCH * class_weights(inputs))[:, None]


def class_weights(inputs: Sequence[Any]) -> Any:
    """Return the class weights among the inputs of a random variable, which has its size and its generator besides."""
    [weights] = [variable for variable in inputs if getattr(variable.type, "dtype", "").startswith("float")]
    return weights
