"""Simulation-based calibration: whether the posterior is right on average over the prior.

Parameters drawn from the prior, data drawn given them, and a fit of those data: over many repeats the rank of each true
value among its posterior draws is uniform if model, likelihood and sampler are right (Talts et al. 2018). The ranks are
judged by a test made for ranks, and the plot's band is that test: ArviZ 1.3's for PIT values (``prit_c``) rejected
uniform ranks of 100 simulations at 5 % in 7 % and at 10 % in 15 % of 400 studies, and marks points instead of a band.
"""

import io
import json
import os
import time
import uuid
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln
from scipy.stats import binom

from dpbayes._arguments import function, instance, ordered, positive_finite, strictly_between, whole_number
from dpbayes._files import file_path, write_text, write_whole
from dpbayes._lazy import xr
from dpbayes.errors import DamagedFileError, ExistingRunError, IncompleteSamplingError, InputError
from dpbayes.inference.convergence import check_convergence, quantities_of
from dpbayes.inference.sampling import (
    CompiledModel,
    NutsSettings,
    checked_seed,
    compile_model,
    data_set,
    observed_data_names,
    prior_values,
    progress_shown,
)

if TYPE_CHECKING:
    import pymc as pm
    from matplotlib.figure import Figure


Simulator = Callable[[int], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""From a seed to (true values by posterior variable, data by `pm.Data` variable)."""

_MOST = 1_000_000


@dataclass(frozen=True)
class _Task:
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


# One compiled model in a process: the last study's.
_COMPILED: dict[str, tuple[CompiledModel, Simulator]] = {}


def _simulate_one(task: _Task, index: int, cores: int | None) -> tuple[int, dict[str, Any]]:
    """Run a simulation and store it: true values, their ranks, and what was found of the fit."""
    if task.token not in _COMPILED:
        _COMPILED.clear()
        compiled = compile_model(task.build_model())
        _COMPILED[task.token] = compiled, task.simulate or prior_simulator(compiled.model, task.variables)
    compiled, simulate = _COMPILED[task.token]
    seeds = np.random.SeedSequence([task.random_seed, index]).generate_state(3)
    truth, data = simulate(int(seeds[0]))
    if missing := [name for name in task.variables if name not in truth]:
        raise InputError(f"the simulator gives no true value of {missing}")
    true = {name: np.asarray(truth[name], dtype=float) for name in task.variables}
    fit = dict.fromkeys(("passed", "rhat", "ess_bulk", "ess_tail", "divergent_share"), np.nan) | {"passed": False}
    ranks = {name: np.full(values.shape, -1) for name, values in true.items()}  # of a fit that found no start
    started = time.perf_counter()
    try:
        trace = compiled.fit(task.settings, data=data, random_seed=int(seeds[1]), cores=cores, progressbar=False)
    except IncompleteSamplingError as error:
        if error.__cause__ is None:  # ended early: no result of the study
            raise
    else:
        rng = np.random.default_rng(int(seeds[2]))
        for name in true:
            draws = trace["posterior"][name].transpose("chain", "draw", ...).to_numpy()
            ranks[name] = ranks_among(true[name], draws, n_ranks=task.n_ranks, rng=rng)
        verdict = check_convergence(trace, var_names=task.variables, rhat_max=task.rhat_max, ess_min=task.n_ranks)
        fit = {name: verdict.value(name) for name in ("rhat", "ess_bulk", "ess_tail")}
        fit |= {"passed": verdict.passed, "divergent_share": verdict.value("divergences")}
    fit["seconds"] = time.perf_counter() - started
    parts: dict[str, Mapping[str, Any]] = {"truth": true, "rank": ranks, "fit": fit}
    record: dict[str, Any] = {
        f"{part}:{name}": np.asarray(value) for part, values in parts.items() for name, value in values.items()
    }
    if task.folder is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **record)
        write_whole(task.folder / f"simulation_{index:06d}.npz", lambda scratch: scratch.write_bytes(buffer.getvalue()))
    return index, record


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
    sources = observed_data_names(model)
    values = prior_values(model, [*variables, *sources])

    def simulate(seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        drawn = values(seed)
        return {name: drawn[name] for name in variables}, {data: drawn[name] for name, data in sources.items()}

    # A prior that changes with the observed values is refused, by changing them.
    held, before = {name: model[name].get_value() for name in sources.values()}, values(0)
    with data_set(model, {name: value + np.asarray(1, value.dtype) for name, value in held.items()}):
        after = values(0)
    if not all(np.array_equal(before[name], after[name], equal_nan=True) for name in before):
        raise InputError(
            f"the model's prior depends on the observed values {list(held)}; pass `simulate` to generate them"
        )
    return simulate


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
    n_simulations, random_seed
        Number of data sets, numbered from 0, and seed: simulation i depends on the seed and i alone.
    var_names
        Posterior variables to rank; by default the model's `convergence_variables`, else all it records.
    simulate
        Draws true values and data from a seed. By default both come from the model's own prior; give the process that
        makes data in truth where the model is an approximation to it.
    n_ranks
        Posterior draws, evenly spaced, that a true value is ranked among. Ranks are 0 to `n_ranks`.
    settings, rhat_max
        NUTS settings of every fit, chains x draws at least `n_ranks`; and the R-hat that its convergence check allows,
        which asks for `n_ranks` effective draws too, so that the ranked ones are nearly independent.
    folder
        Where each simulation is stored as it ends, whole or not at all; a folder of the same study is resumed, or
        extended to more simulations.
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
        and `seconds` of each simulation. A fit that found no start has NaN ranks and `passed` False; one that fails the
        check keeps its ranks, as dropping it would bias the rest. Judge it with `uniformity` and `plot_ranks`.

    Raises
    ------
    InputError
        If an argument is out of range, or the model has no `pm.Data` to exchange.
    ExistingRunError
        If the folder holds something else.

    References
    ----------
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), "Validating Bayesian inference algorithms with
    simulation-based calibration", algorithm 1.

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
    instance(settings, NutsSettings, "settings", remedy="such as SBC_SETTINGS")
    whole_number(n_simulations, "n_simulations", high=_MOST, remedy="200 are usual")
    whole_number(n_ranks, "n_ranks", high=settings.chains * settings.draws, remedy="there are chains x draws of each")
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
    variables, seed = _variables(model, var_names), checked_seed(random_seed)
    path = None if folder is None else file_path(folder)
    task = _Task(build_model, simulate, variables, n_ranks, settings, seed, rhat_max, path)
    records = _open(task, label)
    todo = [index for index in range(n_simulations) if index not in records]
    if n_jobs == 1:
        found = (_simulate_one(task, index, None) for index in todo)
    else:
        from joblib import Parallel, delayed

        parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
        found = parallel(delayed(_simulate_one)(task, index, 1) for index in todo)
    with progress_shown(None, progressbar) as said:
        for done, (index, record) in enumerate(found, start=1):
            records[index] = record
            said(f"calibration, {done} of {len(todo)} simulations", done / len(todo))
    return _assemble(model, task, [records[index] for index in range(n_simulations)])


def _variables(model: "pm.Model", var_names: Sequence[str] | None) -> tuple[str, ...]:
    later = getattr(getattr(model, "complete_posterior", None), "names", ())
    recorded = [*(variable.name for variable in model.unobserved_RVs), *later]
    asked = None if var_names is None else ordered(var_names, "var_names", remedy="give a list of names", kind=str)
    names = tuple(asked or getattr(model, "convergence_variables", None) or recorded)
    unknown = [name for name in names if name not in recorded]
    if unknown:
        raise InputError(f"the model does not record {unknown}; it records {recorded}")
    return names


def _open(task: _Task, label: str) -> dict[int, dict[str, Any]]:
    """Read what the folder holds of this study; make it if need be."""
    if task.folder is None:
        return {}
    settings = {name: getattr(task, name) for name in ("variables", "n_ranks", "random_seed", "rhat_max")}
    text = json.dumps(settings | {"label": label, "settings": task.settings.to_dict()}, indent=1, sort_keys=True)
    task.folder.mkdir(parents=True, exist_ok=True)
    path = task.folder / "study.json"
    if not path.exists():
        if any(task.folder.iterdir()):
            raise ExistingRunError(f"{task.folder} holds files of something else; choose another folder")
        write_text(path, text)
    elif path.read_text() != text:
        raise ExistingRunError(f"{path} records another study; choose another folder, or its settings")
    records = {}
    for found in task.folder.glob("simulation_*.npz"):
        try:
            with np.load(found, allow_pickle=False) as stored:
                records[int(found.stem.split("_")[1])] = dict(stored)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DamagedFileError(f"{found} does not read ({error}); delete it and run the study again") from error
    return records


def _assemble(model: "pm.Model", task: _Task, records: list[dict[str, Any]]) -> "xr.DataTree":
    coords: dict[str, Any] = {"simulation": range(len(records))}
    pit, truth = {}, {}
    for name in task.variables:
        ranks = np.stack([record[f"rank:{name}"] for record in records])
        named = model.named_vars_to_dims.get(name) or [f"{name}_dim_{axis}" for axis in range(ranks.ndim - 1)]
        dims = ["simulation", *named]
        for dim, length in zip(named, ranks.shape[1:], strict=True):
            coords[dim] = list(model.coords.get(dim) or range(length))  # ArviZ plots need labels on every dimension
        pit[name] = (dims, np.where(ranks < 0, np.nan, (ranks + 0.5) / (task.n_ranks + 1)))
        truth[name] = (dims, np.stack([record[f"truth:{name}"] for record in records]))
    found = [key for key in records[0] if key.startswith("fit:")]
    fit = {key[4:]: ("simulation", np.array([record[key][()] for record in records])) for key in found}
    groups = {name: xr.Dataset(values, coords=coords) for name, values in (("prior_sbc", pit), ("truth", truth))}
    groups["fit"] = xr.Dataset(fit, coords={"simulation": coords["simulation"]})
    tree = xr.DataTree.from_dict(groups)
    tree.attrs = {"n_ranks": task.n_ranks, "random_seed": str(task.random_seed)}
    return tree


_TIE = 1e-9  # tail probabilities that differ by less are one: mirrored counts at mirrored edges round differently


def uniformity(study: "xr.DataTree") -> dict[str, float]:
    """p-value of uniform ranks for each quantity.

    Parameters
    ----------
    study
        What `simulate_and_rank` returned.

    Returns
    -------
    dict
        Quantity name to p-value. A quantity with a missing rank has p-value 0: a fit that failed is no calibration.
        With q quantities, compare the smallest with alpha / q.

    Notes
    -----
    Säilynoja, Bürkner and Vehtari (2022), "Graphical test for discrete uniformity and its applications", Statistics and
    Computing 32, 32, section 2.2: the statistic is the smallest pointwise tail probability of the ECDF over all ranks.
    Its p-value is the exact probability that uniform ranks give as small a one, however small it is: of many quantities
    the smallest must be able to pass below alpha / q. The counts of ranks are independent Poisson ones given their
    total, and the law of their sums is followed from edge to edge within the bounds (Moscovich and Nadler 2017,
    "Fast calculation of boundary crossing probabilities for Poisson processes", Statistics and Probability Letters
    123).

    Examples
    --------
    >>> import xarray as xr
    >>> ranks = np.random.default_rng(1).integers(0, 100, size=200)
    >>> study = xr.DataTree.from_dict({"prior_sbc": xr.Dataset({"p": ("simulation", (ranks + 0.5) / 100)})})
    >>> study.attrs["n_ranks"] = 99
    >>> uniformity(study)["p"] > 0.01
    True
    """
    pit, labels, bins = _values(study)
    whole, p_values = np.isfinite(pit).all(axis=1), np.zeros(len(pit))
    # The smallest two-sided pointwise tail probability of each ECDF (Säilynoja et al. 2022, equation 9).
    tails = _tails(pit.shape[1], bins)[_ecdf_counts(pit[whole], bins).astype(int), np.arange(bins - 1)]
    statistics = tails.min(axis=-1)
    p_values[whole] = [_null_probability(pit.shape[1], bins, statistic) for statistic in statistics.tolist()]
    return dict(zip(labels, map(float, p_values), strict=True))


def coverage(study: "xr.DataTree", *, prob: float = 0.95) -> dict[str, float]:
    """Share of simulations whose central interval holds the true value, for each quantity.

    A rank stands for an interval of PIT values as long as 1 / (n_ranks + 1), and counts with the part of it that lies
    inside: so uniform ranks are covered with exactly the nominal probability, whatever their number.
    """
    strictly_between(prob, "prob", 0, 1)
    pit, labels, bins = _values(study)
    off, half = bins * np.abs(pit - 0.5), bins * prob / 2  # in ranks
    inside = np.clip(np.minimum(off + 0.5, half) - np.maximum(off - 0.5, -half), 0.0, 1.0)
    return dict(zip(labels, map(float, np.nan_to_num(inside).mean(axis=1)), strict=True))


def plot_ranks(
    study: "xr.DataTree",
    *,
    var_names: Sequence[str] | None = None,
    prob: float = 0.95,
    called: Mapping[str, str] | None = None,
) -> "Figure":
    """Plot the ECDF of the PIT values minus the uniform one, a panel per variable, with a simultaneous band.

    Parameters
    ----------
    study
        What `simulate_and_rank` returned.
    var_names
        Variables to show; by default all.
    prob
        Probability that the whole curve of a calibrated quantity stays inside the band.
    called
        Titles of variables that have one of their own.

    Returns
    -------
    matplotlib.figure.Figure
        One line per quantity. Above the band on the left and below on the right: posteriors too narrow; the reverse:
        too wide; on one side throughout: biased.

    Raises
    ------
    InputError
        If no variable is named, or one that was not ranked.

    Examples
    --------
    >>> import xarray as xr
    >>> ranks = np.random.default_rng(1).integers(0, 100, size=200)
    >>> study = xr.DataTree.from_dict({"prior_sbc": xr.Dataset({"p": ("simulation", (ranks + 0.5) / 100)})})
    >>> study.attrs["n_ranks"] = 99
    >>> plot_ranks(study).axes[0].get_title()
    'p'
    """
    from matplotlib.figure import Figure

    dataset = study["prior_sbc"].to_dataset()
    names = [str(name) for name in (dataset.data_vars if var_names is None else var_names)]
    if not names or not dataset.data_vars.keys() >= set(names):
        raise InputError(f"var_names must be some of {list(dataset.data_vars)}, got {names}")
    bins = int(study.attrs["n_ranks"]) + 1
    columns = min(3, len(names))
    figure = Figure(figsize=(4.0 * columns, 3.0 * -(-len(names) // columns)), layout="constrained")
    grid = np.arange(bins + 1) / bins
    for place, name in enumerate(names):
        pit = _pit(dataset, name)
        axes: Any = figure.add_subplot(-(-len(names) // columns), columns, place + 1)
        lower, upper = _band(pit.shape[1], bins, prob)
        axes.fill_between(grid, lower - grid, upper - grid, color="0.85", linewidth=0)
        for values in pit:
            counts = np.concatenate([[0], _ecdf_counts(values[None], bins)[0], [np.isfinite(values).sum()]])
            axes.plot(grid, counts / len(values) - grid, linewidth=0.8, alpha=0.7)
        axes.axhline(0.0, color="0.5", linewidth=0.8)
        title = (called or {}).get(name, name.replace("_", " "))
        axes.set(title=title, xlabel="share of draws below the truth", ylabel="cumulative less uniform")
    return figure


def _values(study: "xr.DataTree") -> tuple[np.ndarray, list[str], int]:
    """Return PIT values (quantities, simulations), names, and the number of ranks."""
    if "prior_sbc" not in getattr(study, "children", ()):
        raise InputError("not a calibration study: the group prior_sbc is missing")
    dataset = study["prior_sbc"].to_dataset()
    names = list(map(str, dataset.data_vars))
    labels = [str(quantity) for name in names for quantity in quantities_of(dataset, name)]
    return np.concatenate([_pit(dataset, name) for name in names]), labels, int(study.attrs["n_ranks"]) + 1


def _pit(dataset: "xr.Dataset", name: str) -> np.ndarray:
    """Return the PIT values of a ranked variable (quantities, simulations), the last label fastest."""
    return dataset[name].transpose("simulation", ...).to_numpy().reshape(dataset.sizes["simulation"], -1).T


def _ecdf_counts(pit: np.ndarray, bins: int) -> np.ndarray:
    """Count, for each row, the ranks below each inner edge of the `bins` possible ranks."""
    edges = np.arange(1, bins) / bins
    return np.stack([np.searchsorted(np.sort(row), edges) for row in pit]) if len(pit) else np.empty((0, bins - 1))


@cache
def _tails(simulations: int, bins: int) -> np.ndarray:
    """Two-sided tail probability, with the point itself, of every count below every inner edge."""
    counts = np.arange(simulations + 1)[:, None]
    z = np.arange(1, bins)[None, :] / bins
    return np.minimum(1.0, 2.0 * np.minimum(binom.cdf(counts, simulations, z), binom.sf(counts - 1, simulations, z)))


@cache
def _null_probability(simulations: int, bins: int, level: float) -> float:
    """Return the probability that uniform ranks have a statistic of `level` or less."""
    log_factorials = gammaln(np.arange(simulations + 1) + 1.0)

    def poisson(counts: np.ndarray, bins_together: int) -> np.ndarray:
        mean = bins_together * simulations / bins
        return np.asarray(np.exp(counts * np.log(mean) - mean - log_factorials[counts]))

    kernel = np.trim_zeros(poisson(np.arange(simulations + 1), 1), "b")
    passing = _tails(simulations, bins) <= level * (1.0 + _TIE)
    law, first, total = np.ones(1), 0, 0.0  # of the counts below an edge, from the first on, of ECDFs within the level
    for edge in range(1, bins):
        law = np.convolve(law, kernel)[: simulations + 1 - first]
        out = passing[first : first + len(law), edge - 1]
        total += float(law[out] @ poisson(simulations - first - np.flatnonzero(out), bins - edge))
        (within,) = np.nonzero(~out)
        if not len(within):
            break
        law, first = law[within[0] : within[-1] + 1], first + int(within[0])
    return min(1.0, total / float(poisson(np.array(simulations), bins)))


@cache
def _band_level(simulations: int, bins: int, prob: float) -> float:
    """Return the largest statistic that as small a one has at most the probability 1 - `prob`; below all if none."""
    levels = np.unique(_tails(simulations, bins)).tolist()
    place = bisect_right(levels, 1.0 - prob, key=lambda level: _null_probability(simulations, bins, level))
    return levels[place - 1] if place else -1.0


def _band(simulations: int, bins: int, prob: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest ECDF, at all edges from 0 to 1, that the test accepts."""
    accepted = _tails(simulations, bins) > _band_level(simulations, bins, prob) * (1.0 + _TIE)
    lower = accepted.argmax(axis=0)
    upper = simulations - accepted[::-1].argmax(axis=0)
    first, last = (np.concatenate([[0.0], edge, [simulations]]) / simulations for edge in (lower, upper))
    return first, last
