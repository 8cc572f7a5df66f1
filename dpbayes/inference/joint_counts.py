r"""The joint likelihood of released margins: one confidential table behind all of them.

With P the cell probabilities of the full table, its counts are Multinomial(n, P), and the released counts are
n b + B m plus noise, where m are the counts of the effects of a `MarginOperator`. The likelihood needs the law of m
alone, and for that the normal law with the multinomial's mean and covariance is taken,

.. math:: m \sim N\bigl(n\,\mu,\; n\,(M - \mu\mu^\top)\bigr), \qquad \mu_a = P(\text{cell } a), \quad
          M_{ab} = P(\text{cell } a \text{ and cell } b),

while the noise keeps its own law on every count. How good that is depends on the scale of the
noise, hardly on n: where two binary attributes with cell probabilities down to .05 are enumerated
(tests/inference/test_joint_counts.py), with 12 and 60 records, the log-likelihood is off by at most .05 at scale 20
(.004 without the nugget), .06 at scale 5, .3 at scale 2, and 1.2 at scale 1, where a cell's expected count and its
noise are both of the order of one record and neither is normal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from dpbayes.inference.constant_map import constant_map
from dpbayes.inference.margin_operator import MarginOperator
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.inference.normal_counts import NormalCounts

__all__ = ["NUGGET", "NoiseCentred", "anchor_covariance", "effect_counts"]

# Added to the sampling covariance, as a share of the covariance that the noise alone gives the effects. A cell whose
# probability falls to zero has no sampling variance, and its count would be tied to its mean ever more tightly: a
# funnel that NUTS answers with divergences (11 of 4,000 draws on the ACS tables; with a hundredth, none to two). It
# widens no interval by more than half a percent.
NUGGET = 1e-2


def anchor_covariance(operator: MarginOperator, noise: ReleasedNoise) -> npt.NDArray[np.float64]:
    """Return the covariance of the weighted least-squares estimate of the effects from the released counts alone.

    Parameters
    ----------
    operator
        The map from effects to released counts.
    noise
        The laws of the counts.

    Returns
    -------
    array of shape ``(n_effects, n_effects)``
    """
    scaled = operator.matrix / noise.stddev[:, None]
    return np.linalg.inv(scaled.T @ scaled)


class NoiseCentred(Transform):
    r"""Coordinates for effect counts: their offset from what the release says, in units of its noise.

    The effects are :math:`m = \hat m(y) + L u` with :math:`\hat m` the least-squares estimate from the released counts
    y and :math:`L L^\top` its covariance. Given the release, u is of order one in every direction, whatever the
    classes.

    Parameters
    ----------
    operator
        The map from effects to released counts.
    noise
        The laws of the counts.
    released
        The released counts, as a graph or array, so that new data move the centre along.
    """

    name = "noise_centred"
    ndim_supp = 1

    def __init__(self, operator: MarginOperator, noise: ReleasedNoise, released: Any) -> None:
        covariance = anchor_covariance(operator, noise)
        self._root = np.linalg.cholesky(covariance)
        self._inverse_root = np.linalg.inv(self._root)
        weighted = covariance @ (operator.matrix / noise.stddev[:, None] ** 2).T
        self._estimate = constant_map(weighted, released)
        self._share_of_n = weighted @ operator.constant

    def centre(self, n: Any) -> Any:
        """Return the least-squares estimate of the effects from the released counts and the number of records."""
        return self._estimate - n * self._share_of_n

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the effects. Inputs are those of `effect_counts`' variable: size, probabilities, n, generators."""
        return self.centre(inputs[2]) + constant_map(self._root, value)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinates."""
        return constant_map(self._inverse_root, value - self.centre(inputs[2]))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the log-determinant of `backward`, a constant."""
        return pt.as_tensor(np.log(np.diag(self._root)).sum())


def effect_counts(
    name: str, probabilities: Any, n: Any, *, operator: MarginOperator, noise: ReleasedNoise, released: Any
) -> Any:
    """Add the counts of the effects, given the probabilities, to the model on the context stack.

    Parameters
    ----------
    name
        Name of the variable.
    probabilities
        Probabilities of the cells where two effects meet, in the order of ``operator.intersections``.
    n
        Number of records.
    operator
        The map from effects to released counts.
    noise
        The laws of the released counts.
    released
        The released counts (data): they centre the sampler's coordinates and do not enter the law.

    Returns
    -------
    pytensor.tensor.TensorVariable
        Real-valued counts of shape ``(n_effects,)``.
    """
    nugget = NUGGET * anchor_covariance(operator, noise)
    _, pairs = operator.intersections

    def logp(value: Any, p: Any, n: Any) -> Any:
        return NormalCounts()(p, value, n, pairs, nugget)[0]

    def dist(p: Any, n: Any, size: Any) -> Any:
        mean = p[np.diag(pairs)]
        both = pt.concatenate([p, [0.0]])[pairs]
        return pm.MvNormal.dist(n * mean, n * (both - mean[:, None] * mean[None, :]) + nugget, size=size)

    transform = NoiseCentred(operator, noise, released)
    return pm.CustomDist(
        name,
        probabilities,
        n,
        dist=dist,
        logp=logp,
        support_point=lambda rv, size, p, n: transform.centre(n),
        class_name="EffectCounts",
        signature="(u),()->(e)",
        default_transform=transform,
        dims="effect",
    )
