r"""The joint likelihood of released margins: one confidential table behind all of them.

With P the cell probabilities of the full table, its counts are Multinomial(n, P), and the released counts are
n b + B m plus noise, where m are the counts of the effects of a `MarginOperator`. The likelihood needs the law of m
alone, and for that the normal law with the multinomial's mean and covariance is taken,

.. math:: m \sim N\bigl(n\,\mu,\; n\,(M - \mu\mu^\top)\bigr), \qquad \mu_a = P(\text{cell } a), \quad
          M_{ab} = P(\text{cell } a \text{ and cell } b),

while the noise keeps its own law on every count. How good that is depends on the scale of the
noise, hardly on n: where two binary attributes with cell probabilities down to .05 are enumerated
(tests/inference/test_joint_counts.py), the log-likelihood is off by less than .01 at scale 20 and .1 at scale 5, from
12 records on, by .3 at scale 2, and by one nat at scale 1, where a cell's expected count and its noise are both of the
order of one record and neither is normal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from dpbayes.inference.margin_operator import MarginOperator
from dpbayes.inference.noisy_counts import ReleasedNoise

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
        self._estimate = pt.dot(weighted, pt.as_tensor(released))
        self._share_of_n = weighted @ operator.constant

    def centre(self, n: Any) -> Any:
        """Return the least-squares estimate of the effects from the released counts and the number of records."""
        return self._estimate - n * self._share_of_n

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the effects. Inputs are those of `effect_counts`' variable: size, mean, covariance, n, generators."""
        return self.centre(inputs[3]) + pt.dot(self._root, value)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinates."""
        return pt.dot(self._inverse_root, value - self.centre(inputs[3]))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the log-determinant of `backward`, a constant."""
        return pt.as_tensor(np.log(np.diag(self._root)).sum())


def effect_counts(
    name: str, mean: Any, second_moment: Any, n: Any, *, operator: MarginOperator, noise: ReleasedNoise, released: Any
) -> Any:
    """Add the counts of the effects, given the probabilities, to the model on the context stack.

    Parameters
    ----------
    name
        Name of the variable.
    mean
        Probabilities of the effects' cells, shape ``(n_effects,)``.
    second_moment
        Probability that a record is in both of two effects' cells, shape ``(n_effects, n_effects)``.
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
    size_ = operator.n_effects

    def logp(value: Any, mu: Any, cov: Any, n: Any) -> Any:
        chol = pt.linalg.cholesky(cov + nugget)
        offset = pt.linalg.solve_triangular(chol, value - mu, lower=True, b_ndim=1)
        log_det = pt.sum(pt.log(pt.diagonal(chol)))
        return -0.5 * pt.sum(pt.sqr(offset)) - log_det - 0.5 * size_ * np.log(2.0 * np.pi)

    def dist(mu: Any, cov: Any, n: Any, size: Any) -> Any:
        return pm.MvNormal.dist(mu, cov + nugget, size=size)

    transform = NoiseCentred(operator, noise, released)
    return pm.CustomDist(
        name,
        n * mean,
        n * (second_moment - mean[:, None] * mean[None, :]),
        n,
        dist=dist,
        logp=logp,
        support_point=lambda rv, size, mu, cov, n: transform.centre(n),
        class_name="EffectCounts",
        signature="(e),(e,e),()->(e)",
        default_transform=transform,
        dims="effect",
    )
