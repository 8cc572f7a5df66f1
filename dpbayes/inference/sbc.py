"""Simulation-based calibration: whether the posterior is right on average over the prior.

Parameters drawn from the prior, data drawn given them, and a fit of those data: over many repeats the rank of each true
value among its posterior draws is uniform if model, likelihood and sampler are right (Talts et al. 2018). The model is
compiled once in each process and refitted with new data; every simulation has its own seed and its own file, so a study
can be stopped, resumed and extended.
"""

import io
import json
import os
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes._arguments import function, instance, ordered, positive_finite, whole_number
from dpbayes._files import file_path
from dpbayes.errors import DamagedFileError, ExistingRunError, IncompleteSamplingError, InputError
from dpbayes.inference.convergence import check_convergence
from dpbayes.inference.sampling import (
    CompiledModel,
    NutsSettings,
    check_options,
    checked_seed,
    compile_model,
    observed_data_names,
)

if TYPE_CHECKING:
    import pymc as pm
    import xarray as xr


Simulator = Callable[[int], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""From a seed to (true values by posterior variable, data by `pm.Data` variable)."""

FIT = ("passed", "rhat", "ess_bulk", "ess_tail", "divergent_share", "seconds")
"""What is recorded of each fit."""

_MOST = 1_000_000


@dataclass(frozen=True)
class Study:
    """All that a worker process needs to simulate, and nothing that is compiled."""

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
    """Run simulation `index` of a study."""
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
    """Rank true values among evenly spaced posterior draws."""
    pooled = draws.reshape(-1, *draws.shape[2:])
    if true.shape != pooled.shape[1:]:
        raise InputError(f"true values have shape {true.shape}, their posterior draws {pooled.shape[1:]}")
    spaced = pooled[((np.arange(n_ranks) + 0.5) * len(pooled) / n_ranks).astype(int)]
    below, ties = (spaced < true).sum(axis=0), (spaced == true).sum(axis=0)
    return np.asarray(below + rng.integers(0, ties + 1))


def prior_simulator(model: "pm.Model", variables: Sequence[str]) -> Simulator:
    """Make, once, a simulator of the model's own prior."""
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


SBC_SETTINGS = NutsSettings(draws=500, tune=500, chains=2)


def simulate_and_rank(
    build_model: "Callable[[], pm.Model]",
    *,
    n_simulations: int = 200,
    random_seed: int,
    var_names: Sequence[str] | None = None,
    simulate: Simulator | None = None,
    n_ranks: int = 99,
    settings: NutsSettings = SBC_SETTINGS,
    rhat_max: float = 1.05,
    folder: str | os.PathLike[str] | None = None,
    label: str = "",
    n_jobs: int | None = 1,
    progressbar: bool = True,
) -> "xr.DataTree":
    """Run a calibration study.

    Parameters
    ----------
    build_model
        Returns the model; observed values live in `pm.Data`. It is called once in each process, so with `n_jobs` above
        1 it must pickle (cloudpickle: closures do).
    n_simulations
        Number of data sets, numbered from 0. Simulation i depends on `random_seed` and i alone.
    random_seed
        Seed of the study.
    var_names
        Posterior variables to rank; by default the model's `convergence_variables`, else all it records.
    simulate
        Draws true values and data from a seed. By default both come from the model's own prior; give the process that
        makes data in truth where the model is an approximation to it.
    n_ranks
        Posterior draws, evenly spaced, that a true value is ranked among. Ranks are 0 to `n_ranks`.
    settings
        NUTS settings of every fit; chains x draws must be `n_ranks` or more.
    rhat_max
        Of the convergence check, with `n_ranks` as the effective draws it asks for, so that the ranked draws are
        nearly independent.
    folder
        Where each simulation is stored as it ends, whole or not at all. A folder of the same study is resumed.
    label
        Identifies the model in the folder's record (a spec's digest, say); a folder with another label is refused.
    n_jobs
        Processes, by joblib; None leaves it to `joblib.parallel_config`, which also reaches a cluster. Each process
        compiles for itself. Fits in parallel use one core each.
    progressbar
        Show one bar for the study.

    Returns
    -------
    xarray.DataTree
        Group `prior_sbc`: PIT = (rank + 1/2) / (n_ranks + 1) of each variable, dims (simulation, ...). Group `truth`:
        true values. Group `fit`: `passed` (the convergence check), `rhat`, `ess_bulk`, `ess_tail`, `divergent_share`
        and `seconds`
        of each simulation. A fit that found no start has NaN ranks and `passed` False; none is left out. Judge it with
        `dpbayes.inference.ranks`.

    Raises
    ------
    InputError
        If an argument is out of range, or the model has no `pm.Data` to exchange.
    ExistingRunError
        If the folder holds something else.

    Notes
    -----
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), "Validating Bayesian inference algorithms with
    simulation-based calibration", algorithm 1. A fit that fails the check keeps its ranks: dropping it would bias
    the rest.

    Examples
    --------
    >>> import pymc as pm
    >>> def build():  # a count released with Gaussian noise of standard deviation 2
    ...     with pm.Model() as model:
    ...         count = pm.Normal("count", 50, 10)
    ...         pm.Normal("released", count, 2, observed=pm.Data("noisy", 47.0))
    ...     return model
    >>> short = NutsSettings(draws=200, tune=200, chains=2)
    >>> study = simulate_and_rank(
    ...     build, n_simulations=5, n_ranks=19, settings=short, random_seed=1, n_jobs=1, progressbar=False
    ... )
    >>> study["prior_sbc"]["count"].sizes
    Frozen({'simulation': 5})
    """
    _check_sizes(n_simulations, n_ranks, settings)
    if simulate is not None:
        function(simulate, "simulate", remedy="it gives true values and data for a seed")
    if n_jobs is not None:
        instance(n_jobs, int, "n_jobs", remedy="1 runs one process, None leaves it to joblib")
        # More processes would only fill the memory; joblib counts a negative number back from all processors.
        whole_number(abs(n_jobs), "n_jobs", high=4 * (os.cpu_count() or 1), remedy="-1 takes every processor")
    positive_finite(rhat_max, "rhat_max", remedy="1.05 is usual")
    instance(label, str, "label", remedy="such as a spec's digest")
    model = function(build_model, "build_model", remedy="it returns the model")()
    if simulate is None and not observed_data_names(model):
        raise InputError("no observed variable of the model keeps its values in pm.Data: nothing could be exchanged")
    study = Study(
        build_model=build_model,
        simulate=simulate,
        variables=_variables(model, var_names),
        n_ranks=n_ranks,
        settings=settings,
        random_seed=checked_seed(random_seed),
        rhat_max=rhat_max,
        folder=None if folder is None else file_path(folder),
    )
    records = _open(study, label)
    todo = [index for index in range(n_simulations) if index not in records]
    for index, record in _progress(_run(study, todo, n_jobs), len(todo), progressbar):
        records[index] = record
    return _assemble(model, study, [records[index] for index in range(n_simulations)])


def _check_sizes(n_simulations: int, n_ranks: int, settings: NutsSettings) -> None:
    instance(settings, NutsSettings, "settings", remedy="such as SBC_SETTINGS")
    whole_number(n_simulations, "n_simulations", high=_MOST, remedy="200 are usual")
    whole_number(n_ranks, "n_ranks", high=settings.chains * settings.draws, remedy="there are chains x draws of each")
    check_options(settings)


def _variables(model: "pm.Model", var_names: Sequence[str] | None) -> tuple[str, ...]:
    later = getattr(getattr(model, "complete_posterior", None), "names", ())
    recorded = [*(variable.name for variable in model.unobserved_RVs), *later]
    asked = None if var_names is None else ordered(var_names, "var_names", remedy="give a list of names", kind=str)
    names = tuple(asked or getattr(model, "convergence_variables", None) or recorded)
    unknown = [name for name in names if name not in recorded]
    if unknown:
        raise InputError(f"the model does not record {unknown}; it records {recorded}")
    return names


def _open(study: Study, label: str) -> dict[int, dict[str, Any]]:
    """Read what the folder holds of this study; make it if need be."""
    if study.folder is None:
        return {}
    settings = {
        "label": label,
        "variables": list(study.variables),
        "n_ranks": study.n_ranks,
        "settings": study.settings.to_dict(),
        "random_seed": study.random_seed,
        "rhat_max": study.rhat_max,
    }
    text = json.dumps(settings, indent=1, sort_keys=True)
    study.folder.mkdir(parents=True, exist_ok=True)
    path = study.folder / "study.json"
    if not path.exists():
        if any(study.folder.iterdir()):
            raise ExistingRunError(f"{study.folder} holds files of something else; choose another folder")
        _write(path, text.encode())
    elif path.read_text() != text:
        raise ExistingRunError(f"{path} records another study; choose another folder, or its settings")
    return {int(found.stem.split("_")[1]): _read(found) for found in study.folder.glob("simulation_*.npz")}


def _run(study: Study, todo: list[int], n_jobs: int | None) -> Iterable[tuple[int, dict[str, Any]]]:
    if n_jobs == 1:
        return (_simulate_and_store(study, index, None) for index in todo)
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    return parallel(delayed(_simulate_and_store)(study, index, 1) for index in todo)


def _simulate_and_store(study: Study, index: int, cores: int | None) -> tuple[int, dict[str, Any]]:
    record = simulate_one(study, index, cores=cores)
    if study.folder is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **record)
        _write(study.folder / f"simulation_{index:06d}.npz", buffer.getvalue())
    return index, record


def _progress(results: Iterable[Any], total: int, show: bool) -> Iterator[Any]:
    if not show:
        yield from results
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("calibration"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        yield from bar.track(results, total=total)


def _assemble(model: "pm.Model", study: Study, records: list[dict[str, Any]]) -> "xr.DataTree":
    import xarray as xr

    coords: dict[str, Any] = {"simulation": range(len(records))}
    pit, truth = {}, {}
    for name in study.variables:
        ranks = np.stack([record[f"rank:{name}"] for record in records])
        named = model.named_vars_to_dims.get(name) or [f"{name}_dim_{axis}" for axis in range(ranks.ndim - 1)]
        dims = ["simulation", *named]
        for dim, length in zip(named, ranks.shape[1:], strict=True):
            coords[dim] = list(model.coords.get(dim) or range(length))  # ArviZ plots need labels on every dimension
        pit[name] = (dims, np.where(ranks < 0, np.nan, (ranks + 0.5) / (study.n_ranks + 1)))
        truth[name] = (dims, np.stack([record[f"truth:{name}"] for record in records]))
    fit = {name: ("simulation", np.array([record[f"fit:{name}"][()] for record in records])) for name in FIT}
    tree = xr.DataTree.from_dict(
        {
            "prior_sbc": xr.Dataset(pit, coords=coords),
            "truth": xr.Dataset(truth, coords=coords),
            "fit": xr.Dataset(fit, coords={"simulation": coords["simulation"]}),
        }
    )
    tree.attrs = {"n_ranks": study.n_ranks, "random_seed": str(study.random_seed)}
    return tree


def _write(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        scratch.write_bytes(content)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedFileError(f"{path} does not read ({error}); delete it and run the study again") from error
