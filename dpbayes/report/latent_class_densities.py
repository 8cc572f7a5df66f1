"""Log-densities of a latent class fit at every draw, up to constants: what power-scaling reweights by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes.latent_class.design import CONCENTRATION, checked_concentration, checked_profile_prior
from dpbayes.latent_class.record_numbers import prior_of_n

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy import Release

    type FloatArray = npt.NDArray[np.float64]

__all__ = ["latent_class_densities"]

# A probability that underflows counts as the smallest normal number.
TINY = float(np.finfo(float).tiny)


def latent_class_densities(
    trace: xr.DataTree,
    release: Release,
    *,
    concentration: float | Sequence[float] = CONCENTRATION,
    profile_prior: float | None = None,
) -> tuple[dict[str, xr.DataArray], xr.DataArray]:
    r"""Return the parts of the prior of a latent class fit, and its log-likelihood.

    Parameters
    ----------
    trace
        A fit of `dpbayes.latent_class.build_model`.
    release
        What was fitted.
    concentration, profile_prior
        What `build_model` was given.

    Returns
    -------
    parts : dict
        ``"class weights"`` (if anything of them is free) and ``"class profiles"``, each with dims ``chain`` and
        ``draw``; ``"number of records"`` where only a noisy number of records was released.
    log_likelihood : xarray.DataArray
        The log-density of everything else, given weights and profiles: :math:`\log p(y \mid m) + \log p(m \mid P)`
        with the joint likelihood, y the released counts and m the confidential ones that the fit carries along
        (``effects``, or the standard normal deviates that stand for them); :math:`\log p(y \mid P)` with the composite
        one, which sums m out. Taken as what is left of the trace's ``lp`` once the prior and the Jacobians of the
        sampler's coordinates are off, so that it costs the same for any number of tables.

    Notes
    -----
    m belongs to the likelihood: its law is the drawing of n records, which no analyst chose. For normal laws of fixed
    variance, raising both factors to a power a and integrating m out gives the a-th power of the likelihood of y alone,
    up to a constant: variances add, and both are divided by a.
    """
    posterior = trace["posterior"].to_dataset()
    weights, weights_jacobian = _weights(posterior, concentration)
    profiles, profiles_jacobian = _profiles(posterior, checked_profile_prior(profile_prior, release.domain))
    free_weights = "alpha" in posterior or "stick" in posterior
    parts = ({"class weights": weights} if free_weights else {}) | {"class profiles": profiles}
    jacobian = weights_jacobian + profiles_jacobian
    if "n" in posterior:
        n = _values(posterior, "n")[..., 0]
        mean, scale = prior_of_n(release)
        # The Jacobian takes the log-normal density's own 1 / n away.
        parts["number of records"] = -np.log(n) - 0.5 * np.square((np.log(n) - mean) / scale)
        jacobian = jacobian + np.log(n)
    lp = np.asarray(trace["sample_stats"]["lp"].transpose("chain", "draw"), dtype=float)
    if "pair_levels" in posterior:  # they say which draw of the pairs' counts is recorded, and nothing else
        lp = lp + 0.5 * np.square(_values(posterior, "pair_levels")).sum(axis=-1)
    likelihood = lp - sum(parts.values()) - jacobian
    return {name: _named(part) for name, part in parts.items()}, _named(likelihood)


def _weights(posterior: xr.Dataset, concentration: float | Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """Return log-prior and log-Jacobian of the concentration (sampled as its logarithm) and the sticks (log-odds)."""
    from scipy import stats

    prior = jacobian = np.zeros((posterior.sizes["chain"], posterior.sizes["draw"], 1))
    given = checked_concentration(concentration)
    alpha: float | FloatArray
    if isinstance(given, tuple):
        alpha = _values(posterior, "alpha")
        prior, jacobian = stats.gamma.logpdf(alpha, given[0], scale=1 / given[1]), np.log(alpha)
    else:
        alpha = given
    if "stick" in posterior:
        stick = _values(posterior, "stick")
        prior = prior + stats.beta.logpdf(stick, 1.0, alpha).sum(axis=-1, keepdims=True)
        jacobian = jacobian + (np.log(stick) + np.log1p(-stick)).sum(axis=-1, keepdims=True)
    return prior[..., 0], jacobian[..., 0]


def _profiles(posterior: xr.Dataset, concentration: float) -> tuple[FloatArray, FloatArray]:
    """Return log-prior and log-Jacobian of all class profiles.

    What is sampled is the z of p = sin^2(pi Phi(z) / 2), so that dp/dz = pi sqrt(p (1 - p)) phi(z), scaled by the
    weight of the class, for two levels and for the part that each of more levels breaks off what is left
    (`dpbayes.latent_class.profile_coordinates`); or, where pairs are summed out, with the attribute's total in place of
    one class's z (`dpbayes.latent_class.attribute_totals`).
    """
    from dpbayes.latent_class.profile_coordinates import STRETCH

    prior = jacobian = np.zeros(tuple(posterior.sizes[dim] for dim in ("chain", "draw")))
    weights = posterior["weights"].transpose("chain", "draw", "class").to_numpy()
    for name in map(str, posterior.data_vars):
        if not name.startswith("profile_"):
            continue
        level = str(posterior[name].dims[-1])
        values = posterior[name].transpose("chain", "draw", ..., level).to_numpy().clip(TINY)
        prior = prior + (concentration - 1) * np.log(values).sum(axis=(-1, -2))
        left = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]
        parts = np.stack([values[..., :-1], left[..., 1:]], axis=-1) / left[..., :-1, None]
        slopes = _log_slopes(parts.clip(TINY))
        jacobian = jacobian + (slopes + np.log(left[..., :-1])).sum(axis=(-1, -2))
        if "pair_levels" in posterior:
            total = (weights[..., None] * values).sum(axis=-2)
            of_total = np.log((weights * np.exp(slopes[..., 0])).sum(axis=-1))
            jacobian = jacobian + _log_slopes(total) - of_total
        else:
            jacobian = jacobian - (values.shape[-1] - 1) * np.log1p(STRETCH * weights).sum(axis=-1)
    return prior, jacobian


def _log_slopes(levels: FloatArray) -> FloatArray:
    """Return log dp/dz of probabilities of two levels, up to a constant; by symmetry in the smaller one."""
    from scipy.special import ndtri

    z = ndtri(2.0 / np.pi * np.arcsin(np.sqrt(levels.min(axis=-1))))
    return 0.5 * np.log(levels).sum(axis=-1) - 0.5 * np.square(z)


def _values(posterior: xr.Dataset, name: str) -> FloatArray:
    """Return draws as an array of shape (chain, draw, values)."""
    values = np.asarray(posterior[name].transpose("chain", "draw", ...), dtype=float)
    return values.reshape(*values.shape[:2], -1)


def _named(values: FloatArray) -> xr.DataArray:
    import xarray as xr

    return xr.DataArray(values, dims=("chain", "draw"))
