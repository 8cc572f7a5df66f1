"""Log-densities of prior and likelihood at every draw of a run, up to constants: what power-scaling reweights by.

Priors are closed forms of the parameters that the trace records. Where parameters are positive or free, the
log-likelihood is what is left of the trace's ``lp`` once the prior and the Jacobians of the coordinates are taken off;
nothing is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["logo_densities", "pooled_densities", "regression_densities"]

type FloatArray = npt.NDArray[np.float64]
type Densities = tuple[dict[str, xr.DataArray], xr.DataArray]

# The smallest normal number: a share that underflows counts as this.
TINY = float(np.finfo(float).tiny)


def regression_densities(trace: xr.DataTree) -> Densities:
    """Return the parts of the prior of a regression on released moments, and its log-likelihood.

    Parameters
    ----------
    trace
        A fit of `dpbayes.mvg.build_moment_model` with its default priors, as every run has.

    Returns
    -------
    tuple
        Parts ``"coefficients"``, ``"residual"`` and ``"predictors"`` (means and covariance), each with dims ``chain``
        and ``draw``; and the log-likelihood.
    """
    from dpbayes.inference.half_normal import log_slope
    from dpbayes.mvg.model import RegressionPriors

    priors, values = RegressionPriors(), _Draws(trace)
    diagonal, residual = values("scatter_diagonal"), values("residual_range")
    count = diagonal.shape[-1]
    shape = (count + 3.0 - np.arange(count)) / 2.0
    parts = {
        "coefficients": values.normal("intercept_range", priors.coefficient)
        + values.normal("coefficient_range", priors.coefficient),
        "residual": values.normal("residual_range", priors.residual),
        "predictors": values.normal("mean_range", priors.mean)
        + values.normal("scatter_lower", 1.0)
        + ((shape - 1.0) * np.log(diagonal) - diagonal / 2.0).sum(axis=-1),
    }
    jacobian = log_slope(residual, priors.residual).sum(axis=-1) + np.log(diagonal).sum(axis=-1)
    return values.named(parts, values.lp - sum(parts.values()) - jacobian)


def pooled_densities(trace: xr.DataTree) -> Densities:
    """Return the parts of the prior of pooled verification questions, and their log-likelihood.

    Parameters
    ----------
    trace
        A fit of `dpbayes.verifier.build_model` with ``pooling="partial"`` and its default priors, as every run has.

    Returns
    -------
    tuple
        Parts ``"centre"`` (of the log-odds) and ``"spread"`` (between questions), each with dims ``chain`` and
        ``draw``; and the log-likelihood. The standard normal offsets of the questions are the model's, no prior of its
        own: a power of them would only rescale the spread.
    """
    import inspect

    from dpbayes.verifier import build_model

    default = {name: value.default for name, value in inspect.signature(build_model).parameters.items()}
    values = _Draws(trace)
    kinds = [("", "centre"), ("_failed", "failed_centre")]
    centre, spread, rest = (np.zeros(values.lp.shape) for _ in range(3))
    for suffix, prior in kinds:
        centre += values.normal(f"mu{suffix}", default[prior][1], mean=default[prior][0])
        spread += values.normal(f"tau{suffix}", default["between_sd"])
        rest += values.normal(f"offset{suffix}", 1.0)
        if f"tau{suffix}" in values:
            rest += np.log(values(f"tau{suffix}")).sum(axis=-1)
    return values.named({"centre": centre, "spread": spread}, values.lp - centre - spread - rest)


def logo_densities(trace: xr.DataTree, counts: npt.ArrayLike) -> Densities:
    """Return the prior of the logo probabilities behind released filters, and their log-likelihood.

    Parameters
    ----------
    trace
        A fit of `dpbayes.bloom.build_model` with its default prior, as every run has.
    counts
        The released logo counts.

    Returns
    -------
    tuple
        The part ``"logo shares"`` with dims ``chain`` and ``draw``; and the log-likelihood.
    """
    import inspect

    from dpbayes.bloom.model import build_model

    concentration = inspect.signature(build_model).parameters["concentration"].default
    values = _Draws(trace)
    prior = (concentration - 1.0) * np.log(values("logo_probability").clip(TINY)).sum(axis=-1)
    likelihood = np.log(values("released_probability").clip(TINY)) @ np.asarray(counts, dtype=float)
    return values.named({"logo shares": prior}, likelihood)


class _Draws:
    """Posterior draws as arrays of shape (chain, draw, values)."""

    def __init__(self, trace: xr.DataTree) -> None:
        self.posterior = trace["posterior"].to_dataset()
        self.lp: FloatArray = np.asarray(trace["sample_stats"]["lp"].transpose("chain", "draw"))

    def __contains__(self, name: str) -> bool:
        return name in self.posterior

    def __call__(self, name: str) -> FloatArray:
        values = np.asarray(self.posterior[name].transpose("chain", "draw", ...), dtype=float)
        return values.reshape(*values.shape[:2], -1)

    def normal(self, name: str, stddev: float, *, mean: float = 0.0) -> FloatArray:
        """Log-density of independent normals, or half-normals; zero for a variable that the model does not have."""
        if name not in self:
            return np.zeros(self.lp.shape)
        return -0.5 * np.square((self(name) - mean) / stddev).sum(axis=-1)

    def named(self, parts: dict[str, FloatArray], likelihood: Any) -> Densities:
        """Put the dims on."""
        import xarray as xr

        dims = ("chain", "draw")
        return {name: xr.DataArray(part, dims=dims) for name, part in parts.items()}, xr.DataArray(
            likelihood, dims=dims
        )
