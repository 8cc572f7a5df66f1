r"""Coordinates of class profiles in which the totals of attributes stand.

Many tables tell attributes' totals :math:`t_j = \sum_h \pi_h \psi_{hj}` far better than any class's part in them:
across the classes' normal coordinates z (`profile_coordinates`) the posterior is then a thin sheet for every attribute,
and steps must be as short as the sheets are thin. `AttributeTotals` makes the totals coordinates of their own,

.. math:: t_j = F(x_{1j}), \qquad z_{hj} = a_j + c_{hj}, \qquad c_{1j} = 0, \quad c_{hj} = x_{hj} \;\text{ for } h > 1,

with :math:`a_j` the only root of :math:`\sum_h \pi_h F(a_j + c_{hj}) = F(x_{1j})`. By the implicit function theorem,
with :math:`D_j = \sum_h \pi_h F'(z_{hj})`,

.. math:: \frac{\partial a_j}{\partial x_{1j}} = \frac{F'(x_{1j})}{D_j}, \qquad
          \frac{\partial a_j}{\partial c_{hj}} = -\frac{\pi_h F'(z_{hj})}{D_j}, \qquad
          \frac{\partial a_j}{\partial \pi_h} = -\frac{F(z_{hj})}{D_j}

.. math:: \log\Bigl|\frac{\partial\psi}{\partial x}\Bigr| = \sum_{hj} \log F'(z_{hj})
          + \sum_j \bigl(\log F'(x_{1j}) - \log D_j\bigr).

Weights sum to one, so that their derivatives are defined up to a constant. For a total above one half they are taken
from the same equation of the complements, :math:`\sum_h \pi_h F(-z_{hj}) = F(-x_{1j})`, in which nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from dpbayes.inference.compiled_ops import compiled_by
from dpbayes.latent_class.profile_coordinates import ArcsineNormal, class_weights

__all__ = ["AttributeTotals"]

# Farther out F is no normal number in double precision; totals stop here.
_FARTHEST = 26.0
_ROOT_HALF_PI = math.sqrt(0.5 * math.pi)

_ONE = ArcsineNormal()


class AttributeTotals(Transform):
    """Coordinates of a matrix of probabilities, classes by attributes, in which each attribute's total is one of them.

    For a distribution whose only parameter of floating type is the vector of class weights. Its value has the shape of
    the matrix: the totals' normal coordinates in the first row, then how far every other class's coordinates are from
    the first class's.

    Examples
    --------
    >>> weights, profiles = pt.as_tensor([0.75, 0.25]), np.array([[0.2, 0.5], [0.6, 0.5]])
    >>> transform = AttributeTotals()
    >>> value = transform.forward(profiles, weights)
    >>> ArcsineNormal().backward(value[0]).eval()  # 0.75 * 0.2 + 0.25 * 0.6
    array([0.3, 0.5])
    >>> transform.backward(value, weights).eval().round(9)
    array([[0.2, 0.5],
           [0.6, 0.5]])
    """

    name = "totals"
    ndim_supp = 2

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the probabilities."""
        return _ONE.backward(_normals(value, class_weights(inputs)))

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinates."""
        normals = _ONE.forward(value)
        totals = _ONE.forward(pt.sum(class_weights(inputs)[:, None] * value, axis=0))
        return pt.concatenate([totals[None], normals[1:] - normals[0]], axis=0)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the determinant."""
        weights = class_weights(inputs)
        logs = _ONE.log_jac_det(_normals(value, weights))
        of_totals = pt.log(pt.sum(weights[:, None] * pt.exp(logs), axis=0))
        return pt.sum(logs) + pt.sum(_ONE.log_jac_det(value[0]) - of_totals)


def _normals(value: Any, weights: Any) -> Any:
    """Return the normal coordinates of all probabilities."""
    contrasts = pt.concatenate([pt.zeros_like(value[:1]), value[1:]], axis=0)
    return contrasts + _CommonShift()(contrasts, weights, value[0])


@numba.njit(cache=False, error_model="numpy")
def _common_shift(contrasts: Any, weights: Any, totals: Any) -> Any:
    """Return the root a of sum_h w_h F(a + c_h) = F(x), column by column, by Halley's method on log F.

    Totals above one half are turned around (F(-z) = 1 - F(z)), so that what is solved for is never close to one. The
    root lies between x - max c and x - min c; a step that leaves what is known of it is replaced by bisection.
    """
    classes, columns = contrasts.shape
    shifts = np.empty(columns)
    for j in range(columns):
        sign = -1.0 if totals[j] > 0.0 else 1.0
        x = max(sign * totals[j], -_FARTHEST)
        target = 2.0 * math.log(math.sin(0.25 * math.pi * math.erfc(-x / math.sqrt(2.0))))
        low, high, shift = math.inf, -math.inf, x
        for h in range(classes):
            c = sign * contrasts[h, j]
            low, high = min(low, x - c), max(high, x - c)
            shift -= weights[h] * c
        for _ in range(100):
            whole = slope = bend = 0.0
            for h in range(classes):
                z = shift + sign * contrasts[h, j]
                angle = 0.25 * math.pi * math.erfc(-z / math.sqrt(2.0))
                sine, cosine, bell = math.sin(angle), math.cos(angle), math.exp(-0.5 * z * z)
                rise = weights[h] * _ROOT_HALF_PI * sine * cosine * bell
                whole += weights[h] * sine * sine
                slope += rise
                bend += weights[h] * 0.25 * math.pi * (cosine * cosine - sine * sine) * bell * bell - z * rise
            over = math.log(whole) - target if whole > 0.0 else -math.inf
            if over > 0.0:
                high = shift
            else:
                low = shift
            step = math.inf
            if slope > 0.0:
                step = over * whole / slope
                step /= 1.0 - 0.5 * step * (bend / slope - slope / whole)
            after = shift - step
            if not low <= after <= high:
                after = 0.5 * (low + high)
            done = abs(after - shift) <= 1e-4  # a further step would be about the cube of this one
            shift = after
            if done:
                break
        shifts[j] = sign * shift
    return shifts


class _CommonShift(Op):
    """What is added to all classes' contrasts so that the attributes have their totals; inputs of `_common_shift`."""

    __props__ = ()

    def make_node(self, contrasts: Any, weights: Any, totals: Any) -> Apply:
        """Return the node."""
        inputs = [pt.as_tensor(contrasts), pt.as_tensor(weights), pt.as_tensor(totals)]
        return Apply(self, [pt.cast(each, "float64") for each in inputs], [pt.dvector()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        outputs[0][0] = _common_shift(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return the number of attributes."""
        return [shapes[2]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the gradients, by the implicit function theorem."""
        contrasts, weights, totals = inputs
        normals = contrasts + outputs[0]
        slopes = pt.exp(_ONE.log_jac_det(normals))
        pull = cotangents[0] / pt.sum(weights[:, None] * slopes, axis=0)
        sign = pt.switch(totals > 0.0, -1.0, 1.0)
        return [
            -pull * weights[:, None] * slopes,
            -pt.sum(pull * sign * _ONE.backward(sign * normals), axis=1),
            pull * pt.exp(_ONE.log_jac_det(totals)),
        ]


@compiled_by(_CommonShift)
def _compile(op: _CommonShift) -> Any:
    def shift(contrasts: Any, weights: Any, totals: Any) -> Any:
        return _common_shift(contrasts, weights, totals)

    return shift
