"""The noise-aware regression as a PyMC model, to vary and to calibrate; `posterior` draws from it without compiling."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from dpbayes._arguments import instance
from dpbayes.mvg.regression import RegressionPriors, WhitenedMoments


def sampler_defaults() -> dict[str, Any]:
    """Return the sampler settings that suit the model: correlated coefficients ask for a low-rank mass matrix."""
    return {"target_accept": 0.9, "adaptation": "low_rank"}


def build_moment_model(data: WhitenedMoments, *, priors: RegressionPriors | None = None) -> pm.Model:
    r"""Build the noise-aware regression on a released moment matrix.

    With u = (constant, predictors) of a record and G the confidential mean of uu', the response
    obeys y = u'b + N(0, tau^2). Given G, b and tau, the confidential moments
    :math:`g = \frac1n \sum u y` and :math:`h = \frac1n \sum y^2` have mean (Gb, b'Gb + tau^2) and
    covariance

    .. math:: \frac{\tau^2}{n} \begin{pmatrix} G & 2Gb \\ 2b^TG & 4b^TGb + 2\tau^2 \end{pmatrix};

    g is exactly normal, h nearly so (its skewness is of order n^-1/2, and noise of the release hides it at small n).
    The released g and h add independent noise of known variance, so both integrate out in one multivariate normal; the
    released G adds noise to the latent G, on which nothing but positive definiteness is assumed. The predictors need
    not be normal: the regression is conditional on them.

    Parameters
    ----------
    data
        From `whiten_moments`.
    priors
        Prior scales.

    Returns
    -------
    pymc.Model
        Free: ``intercept_range``, ``coefficient_range`` (predictor), ``residual_range``, ``mean_range`` (predictor),
        ``scatter_diagonal`` (predictor), ``scatter_lower`` (pair). Recorded in original units: ``intercept``,
        ``coefficient`` (predictor), ``residual_stddev``. Observed: ``released_gram`` (gram) and ``released_response``
        (response_moment), in whitened units.

    References
    ----------
    Bernstein, G. and Sheldon, D. (2019). Differentially private Bayesian linear regression. NeurIPS 32.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
    >>> from dpbayes.mvg.regression import whiten_moments
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), n=500, intercept=1.0)
    >>> noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    >>> release = release_moments(np.random.default_rng(1).random((2, 500)), noise)
    >>> [rv.name for rv in build_moment_model(whiten_moments(release)).observed_RVs]
    ['released_gram', 'released_response']
    """
    instance(data, WhitenedMoments, "data", remedy="use mvg.whiten_moments(release, features=...)")
    settings = RegressionPriors() if priors is None else priors
    rows, columns = data.gram_places
    noise = np.where(rows == columns, data.stddev, data.stddev / np.sqrt(2.0))
    with pm.Model(coords=data.coords) as model:
        b, tau2 = _regression(data, settings)
        gram = _gram(data, settings)
        observed = pm.Data("gram_values", data.moments[rows, columns], dims="gram")
        stddev = pm.Data("noise_stddev", noise, dims="gram")
        pm.Normal("released_gram", mu=gram[rows, columns], sigma=stddev, observed=observed, dims="gram")
        fitted = gram @ b
        explained = b @ fitted
        noise_free = pt.concatenate(
            [
                pt.concatenate([gram, 2.0 * fitted[:, None]], axis=1),
                pt.concatenate([2.0 * fitted[None, :], (4.0 * explained + 2.0 * tau2)[None, None]], axis=1),
            ]
        )
        released_noise = np.append(np.full(len(data.moments) - 1, data.stddev**2 / 2.0), data.stddev**2)
        pm.MvNormal(
            "released_response",
            mu=pt.concatenate([fitted, (explained + tau2)[None]]),
            cov=noise_free * tau2 / data.n + np.diag(released_noise),
            observed=pm.Data("response_values", data.moments[:, -1], dims="response_moment"),
            dims="response_moment",
        )
    model.convergence_variables = ("intercept", "coefficient", "residual_stddev")
    return model


def _regression(data: WhitenedMoments, priors: RegressionPriors) -> tuple[Any, Any]:
    """State the priors of coefficients and residual; return the whitened coefficients and residual variance."""
    coordinates = data.coordinates
    intercept = pm.Normal("intercept_range", sigma=priors.coefficient)
    slope = pm.Normal("coefficient_range", sigma=priors.coefficient, dims="predictor")
    residual = pm.HalfNormal("residual_range", sigma=priors.residual, default_transform=HalfNormalScore())
    coefficients = pt.concatenate([intercept[None], slope])
    original = coordinates.units @ coefficients
    pm.Deterministic("coefficient", original[1:], dims="predictor")
    pm.Deterministic("intercept", original[0] + coordinates.centre[-1])
    pm.Deterministic("residual_stddev", coordinates.half[-1] * residual)
    return data.slopes @ coefficients, (coordinates.to_white[-1, -1] * residual) ** 2


def _gram(data: WhitenedMoments, priors: RegressionPriors) -> Any:
    """State the prior of the predictors' means and covariance; return whitened moments of (constant, predictors)."""
    count, to_white = len(data.coordinates.predictors), data.coordinates.to_white[:-1, :-1]
    mean = pm.Normal("mean_range", sigma=priors.mean, dims="predictor")
    # Bartlett: the factor of a Wishart with q + 3 degrees of freedom.
    degrees = count + 3.0
    diagonal = pm.Gamma("scatter_diagonal", alpha=(degrees - np.arange(count)) / 2.0, beta=0.5, dims="predictor")
    factor = pt.diag(pt.sqrt(diagonal))
    if count > 1:
        below = pm.Normal("scatter_lower", dims="pair")
        factor = pt.set_subtensor(factor[np.tril_indices(count, -1)], below)
    root = to_white @ factor * (priors.spread / np.sqrt(degrees))
    means = pt.concatenate([[data.constant], to_white @ mean])
    gram = pt.outer(means, means)
    return pt.inc_subtensor(gram[1:, 1:], root @ root.T)


class HalfNormalScore(Transform):
    r"""Coordinates in which a half-normal scale is standard normal: :math:`2\Phi(\tau/s) - 1 = \Phi(z)`."""

    name = "score"
    ndim_supp = 0

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the scale, by the upper tails: they keep their digits where a scale is many times `s`."""
        return np.sqrt(2.0) * inputs[-1] * pt.erfcinv(0.5 * pt.erfc(value / np.sqrt(2.0)))

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the coordinate."""
        return np.sqrt(2.0) * pt.erfcinv(2.0 * pt.erfc(value / (np.sqrt(2.0) * inputs[-1])))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return log |d tau / dz|."""
        ratio = self.backward(value, *inputs) / inputs[-1]
        return 0.5 * (pt.sqr(ratio) - pt.sqr(value)) + pt.log(0.5 * inputs[-1])
