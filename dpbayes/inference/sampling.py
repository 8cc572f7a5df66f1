"""Sample a model: compile, run NUTS, draw the predictives, judge. The result keeps the output contract."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes._arguments import instance, shown
from dpbayes.errors import InputError
from dpbayes.inference.compiled import checked_seed, compile_model
from dpbayes.inference.diagnostics import check_convergence
from dpbayes.inference.nuts import Adaptation, NutsSettings, check_options
from dpbayes.inference.schema import annotate

if TYPE_CHECKING:
    import pymc as pm
    import xarray as xr

__all__ = ["posterior_predictive", "prior_predictive", "sample"]


def sample(
    model: "pm.Model",
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    random_seed: int | None = None,
    target_accept: float = 0.9,
    max_treedepth: int = 10,
    adaptation: Adaptation = "diag",
    cores: int | None = None,
    progressbar: bool = True,
    predictive: bool = True,
    prior_draws: int = 500,
    options: Mapping[str, Any] | None = None,
) -> "xr.DataTree":
    """Fit a model by NUTS and judge the fit.

    Parameters
    ----------
    model
        A PyMC model with continuous free variables. An attribute `gate_variables` on it names the variables whose
        convergence counts (those that do not depend on labels); by default all do.
    draws, tune, chains
        Draws kept and draws spent on adaptation, of each of `chains` chains.
    random_seed
        Seed of the sampler and of the predictive draws; by default a fresh one. It is recorded in the trace: it touches
        nothing confidential. Same seed, same draws, on any number of cores.
    target_accept, max_treedepth, adaptation, cores, options
        See `dpbayes.inference.nuts.NutsSettings`.
    progressbar
        Show progress.
    predictive
        Draw the groups `prior`, `prior_predictive` and `posterior_predictive` too, by interpreting the model's graph
        (about a second each). The prior comes first: a model that cannot be simulated fails before it is sampled.
    prior_draws
        Draws from the prior.

    Returns
    -------
    xarray.DataTree
        Groups and attributes of `dpbayes.inference.schema`. The verdict is in the attribute `convergence`
        (`Verdict.from_trace`); a failed gate raises nothing here.

    Raises
    ------
    InputError
        If a setting is out of range or the model has no continuous free variable; before anything compiles.
    IncompleteSamplingError
        If sampling ended early, or no start was found.

    Examples
    --------
    >>> from dpbayes.inference import Verdict
    >>> import pymc as pm
    >>> with pm.Model() as model:  # a count released with Gaussian noise of standard deviation 2
    ...     count = pm.Normal("count", 50, 10)
    ...     _ = pm.Normal("released", count, 2, observed=pm.Data("noisy", 47.0))
    >>> trace = sample(model, draws=500, tune=200, chains=4, random_seed=1, progressbar=False)
    >>> Verdict.from_trace(trace).passed
    True
    >>> posterior_predictive(model, trace, random_seed=1)["released"].shape
    (4, 500)
    """
    import xarray as xr

    settings = NutsSettings(
        draws=draws,
        tune=tune,
        chains=chains,
        target_accept=target_accept,
        max_treedepth=max_treedepth,
        adaptation=adaptation,
        cores=cores,
        options=dict(instance(options or {}, Mapping, "options", remedy="give {name: value} of the sampler")),
    )
    check_options(settings)
    seed = checked_seed(random_seed)
    if isinstance(prior_draws, bool) or not isinstance(prior_draws, int | np.integer) or prior_draws < 1:
        raise InputError(f"prior_draws must be a whole number of at least 1, got {shown(prior_draws)}")
    before, after = (int(part.generate_state(1)[0]) for part in np.random.SeedSequence(seed).spawn(2))
    groups = prior_predictive(model, draws=prior_draws, random_seed=before) if predictive else {}
    trace: Any = compile_model(model).fit(settings, random_seed=seed, progressbar=progressbar)
    if predictive and model.observed_RVs:
        groups["posterior_predictive"] = posterior_predictive(model, trace, random_seed=after)
    trace = trace.assign({name: xr.DataTree(dataset) for name, dataset in groups.items()})
    return annotate(trace, verdict=check_convergence(trace))


def prior_predictive(model: "pm.Model", *, draws: int, random_seed: int) -> dict[str, "xr.Dataset"]:
    """Draw parameters and released values from the prior.

    Parameters
    ----------
    model
        Any PyMC model all of whose variables can be drawn; a `pm.Potential` takes no part.
    draws
        Number of draws.
    random_seed
        Seed of the draws.

    Returns
    -------
    dict
        Datasets `prior` and, where the model has observed variables, `prior_predictive`; dims (chain, draw, ...), one
        chain.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:  # a count released with Gaussian noise of standard deviation 2
    ...     count = pm.Normal("count", 50, 10)
    ...     _ = pm.Normal("released", count, 2, observed=pm.Data("noisy", 47.0))
    >>> prior_predictive(model, draws=100, random_seed=1)["prior_predictive"]["released"].shape
    (1, 100)
    """
    import pymc as pm

    with _quiet():
        drawn = pm.sample_prior_predictive(draws, model=model, random_seed=random_seed, compile_kwargs=_INTERPRET)
    return {name: _bare(drawn[name].to_dataset()) for name in ("prior", "prior_predictive") if name in drawn.children}


def posterior_predictive(model: "pm.Model", trace: "xr.DataTree", *, random_seed: int) -> "xr.Dataset":
    """Draw released values anew, one set for each posterior draw.

    Parameters
    ----------
    model
        The model that was fitted.
    trace
        Its trace.
    random_seed
        Seed of the draws.

    Returns
    -------
    xarray.Dataset
        One variable an observed variable of the model; dims (chain, draw, ...).

    Examples
    --------
    See `sample`, whose example draws one released count for each posterior draw.
    """
    import pymc as pm

    with _quiet():
        drawn = pm.sample_posterior_predictive(
            trace, model=model, random_seed=random_seed, progressbar=False, compile_kwargs=_INTERPRET
        )
    return _bare(drawn["posterior_predictive"].to_dataset())


# Interpreted graphs start in a tenth of a second; compiled ones spend twenty on draws that take one.
_INTERPRET = {"mode": "FAST_COMPILE"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back PyMC's list of the variables it draws."""
    logger = logging.getLogger("pymc.sampling.forward")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _bare(dataset: "xr.Dataset") -> "xr.Dataset":
    dataset.attrs.clear()
    return dataset
