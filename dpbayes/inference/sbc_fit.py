"""One simulation of a calibration study: draw truth and data, fit, rank. What runs in a worker process."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes.errors import IncompleteSamplingError, InputError
from dpbayes.inference.compiled import CompiledModel, compile_model, observed_data_names
from dpbayes.inference.diagnostics import check_convergence
from dpbayes.inference.nuts import NutsSettings

if TYPE_CHECKING:
    import pymc as pm
    import xarray as xr

__all__ = ["FIT", "Simulator", "Study", "prior_simulator", "ranks_among", "simulate_one"]

Simulator = Callable[[int], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""From a seed to (true values by posterior variable, data by `pm.Data` variable)."""

FIT = ("passed", "rhat", "ess_bulk", "ess_tail", "divergent_share", "seconds")
"""What is recorded of each fit."""


@dataclass(frozen=True)
class Study:
    """All that a worker process needs to simulate, and nothing that is compiled.

    Parameters
    ----------
    build_model
        Returns the model.
    simulate
        Draws truth and data; None for the model's own prior.
    variables
        Posterior variables to rank.
    n_ranks
        Posterior draws that a true value is ranked among.
    settings
        NUTS settings of every fit.
    random_seed
        Seed of the study.
    rhat_max
        Of the gate.
    folder
        Where simulations are stored, if at all.
    """

    build_model: "Callable[[], pm.Model]"
    simulate: Simulator | None
    variables: tuple[str, ...]
    n_ranks: int
    settings: NutsSettings
    random_seed: int
    rhat_max: float
    folder: Path | None
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


# One compiled model a process: the last study's.
_COMPILED: dict[str, tuple[CompiledModel, Simulator]] = {}


def simulate_one(study: Study, index: int, *, cores: int | None = None) -> dict[str, Any]:
    """Run simulation `index` of a study.

    Parameters
    ----------
    study
        The study; its model is compiled at the first call in a process.
    index
        Number of the simulation. With the study's seed, it determines truth, data and sampler seed.
    cores
        Cores of the fit, if not those of the settings.

    Returns
    -------
    dict
        Arrays ``rank:NAME`` and ``truth:NAME`` of each variable (rank -1 where the fit found no start), and
        ``fit:NAME`` of each name in `FIT`.

    Raises
    ------
    IncompleteSamplingError
        If a fit ended early.
    InputError
        If the simulated truth or data do not fit the model.

    Examples
    --------
    See `dpbayes.inference.sbc.simulate_and_rank`, which calls this for each simulation.
    """
    if study.token not in _COMPILED:
        _COMPILED.clear()
        compiled = compile_model(study.build_model())
        _COMPILED[study.token] = compiled, study.simulate or prior_simulator(compiled.model, study.variables)
    compiled, simulate = _COMPILED[study.token]
    seeds = np.random.SeedSequence([study.random_seed, index]).generate_state(3)
    truth, data = simulate(int(seeds[0]))
    missing = [name for name in study.variables if name not in truth]
    if missing:
        raise InputError(f"the simulator gives no true value of {missing}")
    started = time.perf_counter()
    settings = study.settings if cores is None else replace(study.settings, cores=cores)
    try:
        trace = compiled.fit(settings, data=data, random_seed=int(seeds[1]), progressbar=False)
    except IncompleteSamplingError as error:
        if error.__cause__ is None:  # ended early: no result of the study
            raise
        record = _no_fit(truth, study)
    else:
        record = _ranked(truth, trace, study, np.random.default_rng(int(seeds[2])))
    return record | {"fit:seconds": np.float64(time.perf_counter() - started)}


def ranks_among(true: np.ndarray, draws: np.ndarray, *, n_ranks: int, rng: np.random.Generator) -> np.ndarray:
    """Rank true values among evenly spaced posterior draws.

    Parameters
    ----------
    true
        True values, any shape.
    draws
        Shape (chains, draws, *shape of true).
    n_ranks
        Draws to keep, spaced evenly over the chains laid end to end.
    rng
        Breaks ties: a value equal to t of the draws takes one of t + 1 ranks with the same probability.

    Returns
    -------
    numpy.ndarray
        Number of kept draws below each true value, from 0 to `n_ranks`.

    Raises
    ------
    InputError
        If the shapes do not fit.

    Examples
    --------
    >>> ranks_among(np.array(2.5), np.arange(10.0).reshape(2, 5), n_ranks=10, rng=np.random.default_rng(1))
    array(3)
    """
    pooled = draws.reshape(-1, *draws.shape[2:])
    if true.shape != pooled.shape[1:]:
        raise InputError(f"true values have shape {true.shape}, their posterior draws {pooled.shape[1:]}")
    spaced = pooled[((np.arange(n_ranks) + 0.5) * len(pooled) / n_ranks).astype(int)]
    below, ties = (spaced < true).sum(axis=0), (spaced == true).sum(axis=0)
    return np.asarray(below + rng.integers(0, ties + 1))


def prior_simulator(model: "pm.Model", variables: Sequence[str]) -> Simulator:
    """Make, once, a simulator of the model's own prior.

    Parameters
    ----------
    model
        Its observed values live in `pm.Data`.
    variables
        Variables whose true values are wanted.

    Returns
    -------
    Simulator
        From a seed to true values and data; interpreted, so that it starts at once.

    Raises
    ------
    InputError
        If no observed value is in `pm.Data`, or if the prior moves with the observed values (it is centred on them,
        say): then the model cannot simulate for itself.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:  # a count released with Gaussian noise of standard deviation 2
    ...     count = pm.Normal("count", 50, 10)
    ...     _ = pm.Normal("released", count, 2, observed=pm.Data("noisy", 47.0))
    >>> truth, data = prior_simulator(model, ["count"])(1)
    >>> sorted(truth), sorted(data)
    (['count'], ['noisy'])
    """
    from pymc.pytensorf import compile as compile_graph
    from pymc.pytensorf import find_rng_nodes, reseed_rngs

    sources = observed_data_names(model)
    if not sources:
        raise InputError("no observed variable of the model keeps its values in pm.Data: nothing could be exchanged")
    outputs = [model[name] for name in (*variables, *sources)]
    draw = compile_graph([], outputs, mode="FAST_COMPILE")
    generators = find_rng_nodes(draw.maker.fgraph.outputs)

    def values(seed: int) -> list[np.ndarray]:
        reseed_rngs(generators, seed)
        return draw()

    def simulate(seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        drawn = values(seed)
        truth, data = drawn[: len(variables)], drawn[len(variables) :]
        return dict(zip(variables, truth, strict=True)), dict(zip(sources.values(), data, strict=True))

    _check_free_of_data(model, list(sources.values()), values)
    return simulate


def _check_free_of_data(model: "pm.Model", names: list[str], values: Callable[[int], list[np.ndarray]]) -> None:
    """Refuse a prior that changes with the observed values, by changing them."""
    former = {name: model[name].get_value() for name in names}
    before = values(0)
    try:
        for name, value in former.items():
            model[name].set_value(value + np.asarray(1, value.dtype))
        after = values(0)
    finally:
        for name, value in former.items():
            model[name].set_value(value)
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True)):
        raise InputError(f"the model's prior depends on the observed values {names}; pass `simulate` to generate them")


def _ranked(truth: Mapping[str, Any], trace: "xr.DataTree", study: Study, rng: np.random.Generator) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name in study.variables:
        draws = trace["posterior"][name].transpose("chain", "draw", ...).to_numpy()
        true = np.asarray(truth[name], dtype=float)
        record[f"rank:{name}"] = ranks_among(true, draws, n_ranks=study.n_ranks, rng=rng)
        record[f"truth:{name}"] = true
    verdict = check_convergence(trace, var_names=study.variables, rhat_max=study.rhat_max, ess_min=study.n_ranks)
    fit = {"passed": verdict.passed, "divergent_share": verdict.value("divergences")}
    fit |= {name: verdict.value(name) for name in ("rhat", "ess_bulk", "ess_tail")}
    return record | {f"fit:{name}": np.asarray(value) for name, value in fit.items()}


def _no_fit(truth: Mapping[str, Any], study: Study) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name in study.variables:
        true = np.asarray(truth[name], dtype=float)
        record |= {f"rank:{name}": np.full(true.shape, -1), f"truth:{name}": true}
    nothing = {f"fit:{name}": np.asarray(np.nan) for name in ("rhat", "ess_bulk", "ess_tail", "divergent_share")}
    return record | nothing | {"fit:passed": np.asarray(False)}
