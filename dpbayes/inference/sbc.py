"""Simulation-based calibration: whether the posterior is right on average over the prior.

Parameters drawn from the prior, data drawn given them, and a fit of those data: over many repeats the rank of each true
value among its posterior draws is uniform if model, likelihood and sampler are right (Talts et al. 2018). The model is
compiled once in each process and refitted with new data; every simulation has its own seed and its own file, so a study
can be stopped, resumed and extended.
"""

import io
import json
import os
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes.errors import DamagedFileError, ExistingRunError, InputError
from dpbayes.inference.compiled import checked_seed, observed_data_names
from dpbayes.inference.nuts import NutsSettings, check_options
from dpbayes.inference.sbc_fit import FIT, Simulator, Study, simulate_one

if TYPE_CHECKING:
    import pymc as pm
    import xarray as xr

__all__ = ["SBC_SETTINGS", "simulate_and_rank"]

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
        Posterior variables to rank; by default the model's `gate_variables`, else all it records.
    simulate
        Draws true values and data from a seed. By default both come from the model's own prior; give the process that
        makes data in truth where the model is an approximation to it.
    n_ranks
        Posterior draws, evenly spaced, that a true value is ranked among. Ranks are 0 to `n_ranks`.
    settings
        NUTS settings of every fit; chains x draws must be `n_ranks` or more.
    rhat_max
        Of the gate, with `n_ranks` as the effective draws it asks for, so that the ranked draws are nearly independent.
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
        true values. Group `fit`: `passed` (the gate), `rhat`, `ess_bulk`, `ess_tail`, `divergent_share` and `seconds`
        of each simulation. A fit that found no start has NaN ranks and `passed` False; none is left out. Judge it with
        `dpbayes.inference.sbc_ranks`.

    Raises
    ------
    InputError
        If an argument is out of range, or the model has no `pm.Data` to exchange.
    ExistingRunError
        If the folder holds something else.

    Notes
    -----
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), "Validating Bayesian inference algorithms with
    simulation-based calibration", algorithm 1. A fit that fails the gate keeps its ranks: dropping it would bias
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
    model = build_model()
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
        folder=None if folder is None else Path(folder),
    )
    records = _open(study, label)
    todo = [index for index in range(n_simulations) if index not in records]
    for index, record in _progress(_run(study, todo, n_jobs), len(todo), progressbar):
        records[index] = record
    return _assemble(model, study, [records[index] for index in range(n_simulations)])


def _check_sizes(n_simulations: int, n_ranks: int, settings: NutsSettings) -> None:
    most = settings.chains * settings.draws
    if n_simulations < 1:
        raise InputError(f"n_simulations must be at least 1, got {n_simulations}")
    if not 1 <= n_ranks <= most:
        raise InputError(f"n_ranks must lie between 1 and chains x draws = {most}, got {n_ranks}")
    check_options(settings)


def _variables(model: "pm.Model", var_names: Sequence[str] | None) -> tuple[str, ...]:
    recorded = [variable.name for variable in model.unobserved_RVs]
    names = tuple(var_names or getattr(model, "gate_variables", None) or recorded)
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
