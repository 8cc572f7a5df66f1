"""Sample a PyMC model: compile once, run, count what came back, draw the predictives, judge.

nutpie is called directly rather than through `pm.sample`, for three reasons: a program compiled once serves many data
sets, its machine code is kept on disk, and an interrupt stays one. (Left to wait by itself, nutpie answers it with the
draws it has, chains padded with NaN to the longest, and no error.)
"""

import json
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from dpbayes._arguments import Floats, instance, one_of, strictly_between, whole_number
from dpbayes._lazy import xr
from dpbayes.errors import IncompleteSamplingError, InputError
from dpbayes.inference.callbacks import POINT, callbacks
from dpbayes.inference.convergence import (
    DIVERGENT_SHARE,
    Finding,
    Quantity,
    check_convergence,
    drift_finding,
    mixing_findings_of,
)
from dpbayes.inference.many_chains import (
    Backend,
    BatchedDensity,
    ManyChainSettings,
    Progress,
    batched_density,
    draw_many,
)
from dpbayes.inference.schema import annotate, new_trace

if TYPE_CHECKING:
    import pymc as pm


_MOST = 10**9

Method = Literal["nuts", "many-chains"]
Adaptation = Literal["diag", "draw_diag", "low_rank"]

# nutpie's names -> those of the output contract, which are ArviZ's
_STATS = {
    "diverging": "diverging",
    "maxdepth_reached": "reached_max_treedepth",
    "depth": "tree_depth",
    "n_steps": "n_steps",
    "step_size": "step_size",
    "mean_tree_accept": "acceptance_rate",
    "energy": "energy",
    "logp": "lp",
}


@dataclass(frozen=True)
class NutsSettings:
    """Settings of a NUTS run."""

    draws: int = 1000
    tune: int = 1000
    chains: int = 4
    target_accept: float = 0.9
    max_treedepth: int = 10
    adaptation: Adaptation = "diag"
    cores: int | None = None

    def __post_init__(self) -> None:
        for name in ("draws", "tune", "chains", "max_treedepth", "cores"):
            if name != "cores" or self.cores is not None:
                object.__setattr__(self, name, whole_number(getattr(self, name), name, high=_MOST))
        accept = strictly_between(self.target_accept, "target_accept", 0, 1, remedy="0.9 is the default")
        object.__setattr__(self, "target_accept", accept)
        one_of(self.adaptation, get_args(Adaptation), "adaptation")

    def to_dict(self) -> dict[str, Any]:
        """Give the settings as plain data, without the number of cores, which does not change a draw."""
        return {name: value for name, value in asdict(self).items() if name != "cores"}


def _nuts(
    program: Any, settings: NutsSettings, seed: int, progressbar: bool, progress: Progress | None
) -> tuple[Floats, "xr.Dataset", dict[str, Any]]:
    """Run nutpie; return points (chain, draw, value), statistics and attributes as a trace has them."""
    import nutpie

    def tell(chains: list[Any]) -> None:
        """Report the share of all chains' draws."""
        total = max(sum(chain.total_draws for chain in chains), 1)
        cast("Progress", progress)("sampling", sum(chain.finished_draws for chain in chains) / total)

    started = time.perf_counter()
    with warnings.catch_warnings():
        # A short or interrupted run may have fewer draws than chains; ArviZ takes that for swapped dimensions.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer than draw dimension")
        try:
            options = asdict(settings)
            sampler = nutpie.sample(
                program,
                maxdepth=options.pop("max_treedepth"),
                seed=seed,
                progress_bar=progressbar and progress is None,
                progress_callback=None if progress is None else tell,
                save_warmup=False,
                blocking=False,
                **options,
            )
            try:
                raw: Any = sampler.wait()
            except KeyboardInterrupt:
                sampler.cancel()
                raise
        except RuntimeError as error:
            cause = " ".join(re.split(r"\n\s*Stack backtrace", str(error))[0].split())
            raise IncompleteSamplingError(
                f"the sampler stopped before its first draw ({cause}); see model.point_logps(): a term that is -inf or "
                "NaN at the starting point needs another start (initval) or a parameterization that stays finite"
            ) from error
    stats = raw["sample_stats"].to_dataset()
    check_complete(stats, settings)
    sample_stats = stats[list(_STATS)].rename(_STATS)
    attributes = {
        "sampler": f"nutpie {nutpie.__version__}",
        "sampler_settings": json.dumps(settings.to_dict()),
        "sampling_seconds": time.perf_counter() - started,
    }
    points = raw["posterior"][POINT].transpose("chain", "draw", ...).to_numpy()
    return points, _plain(sample_stats), attributes


def check_complete(stats: "xr.Dataset", settings: NutsSettings) -> None:
    """Refuse a run that ended early."""
    came = np.isfinite(stats["step_size"].transpose("chain", "draw").to_numpy()).sum(axis=1)
    if len(came) == settings.chains and (came == settings.draws).all():
        return
    counts = ", ".join(map(str, came))
    raise IncompleteSamplingError(
        f"sampling ended early: {counts} of {settings.draws} draws came back from the {settings.chains} chains; "
        "nothing was kept: run it again, with fewer draws if time is short"
    )


def _plain(dataset: "xr.Dataset") -> "xr.Dataset":
    """Drop the conversion's attributes, and give text coordinates the type that other groups have."""
    dataset.attrs.clear()
    texts = {name: labels.astype(str) for name, labels in dataset.coords.items() if labels.dtype == object}
    return dataset.assign_coords(texts)


_COMPILING = threading.RLock()
_DEFAULT = NutsSettings()


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A model with its compiled log-density; made by `compile_model`.

    Parameters
    ----------
    model
        The model, untouched.
    program
        `dpbayes.inference.callbacks.Callbacks` for nutpie, or a `dpbayes.inference.many_chains.BatchedDensity`.
    compile_seconds
        Wall time of compiling.
    """

    model: "pm.Model"
    program: Any
    compile_seconds: float

    def fit(
        self,
        settings: NutsSettings | ManyChainSettings = _DEFAULT,
        *,
        data: Mapping[str, Any] | None = None,
        random_seed: int | None = None,
        cores: int | None = None,
        progressbar: bool = True,
        progress: Progress | None = None,
    ) -> "xr.DataTree":
        """Sample the posterior, given new data or those of the model, without compiling again.

        Parameters
        ----------
        settings
            Draws, tuning, chains and adaptation, of the method that the model was compiled for.
        data
            New values of `pm.Data` variables by name, each of the shape it had; others keep their values.
        random_seed
            Sampler seed; by default a fresh one, recorded in the trace. Same seed, same data, same draws.
        cores
            Chains, or batches of chains, that run at the same time; by default as many as there are processors.
        progressbar
            Show progress.
        progress
            Called with the stage in words and the share of it that is done; it takes the place of a bar.

        Returns
        -------
        xarray.DataTree
            Groups `posterior`, `sample_stats`, `observed_data`, `constant_data` of the output contract.

        Raises
        ------
        InputError
            If `data` names something else than a `pm.Data` variable, or a value does not fit it.
        IncompleteSamplingError
            If the sampler ended early or found no start.

        Examples
        --------
        >>> import pymc as pm
        >>> with pm.Model() as model:  # a count released with Gaussian noise of standard deviation 2
        ...     count = pm.Normal("count", 50, 10)
        ...     _ = pm.Normal("released", count, 2, observed=pm.Data("noisy", 47.0))
        >>> compiled, short = compile_model(model), NutsSettings(draws=300, tune=200, chains=2)
        >>> for noisy in (47.0, 61.0):
        ...     trace = compiled.fit(short, data={"noisy": noisy}, random_seed=1, progressbar=False)
        ...     print(f"{trace['posterior']['count'].mean():.0f}")
        47
        60
        """
        seed = checked_seed(random_seed)
        values = _checked_data(self.model, data or {})
        data_now = {v.name: values.get(v.name, v.get_value(borrow=True)) for v in self.model.data_vars}

        def completed(posterior: "xr.Dataset", place: int = 0) -> "xr.Dataset":
            complete, rng = getattr(self.model, "complete_posterior", None), np.random.default_rng([seed, 1, place])
            return posterior if complete is None else complete(posterior, data_now, rng)

        if isinstance(self.program, BatchedDensity) != isinstance(settings, ManyChainSettings):
            raise InputError(f"the model was compiled for another method than {type(settings).__name__}; compile anew")
        with data_set(self.model, values):
            groups = _data_groups(self.model)
        if isinstance(settings, ManyChainSettings):
            with data_set(self.model, values), progress_shown(progress, progressbar) as said:
                posterior, sample_stats, attributes = _many(self, settings, seed, cores, said, completed)
        else:
            settings = settings if cores is None else replace(settings, cores=cores)
            with data_set(self.model, values):
                points, sample_stats, attributes = _nuts(
                    self.program.for_nutpie(), settings, seed, progressbar, progress
                )
                recorded = self.program.recorded(points.reshape(-1, points.shape[-1]))
            drawn = {name: value.reshape(*points.shape[:2], *value.shape[1:]) for name, value in recorded.items()}
            posterior = completed(_dataset(self.model, drawn, _SAMPLE))
        declared = getattr(self.model, "convergence_variables", None)
        if declared is not None:
            attributes["convergence_variables"] = json.dumps(list(declared))
        groups = {"posterior": posterior, "sample_stats": sample_stats} | groups
        attributes |= {"random_seed": seed, "tune": settings.tune, "compile_seconds": self.compile_seconds}
        return new_trace(groups, **attributes)


def compile_model(model: "pm.Model", *, method: Method = "nuts", backend: Backend = "numba") -> CompiledModel:
    """Compile a model's log-density and gradient.

    Parameters
    ----------
    model
        A PyMC model whose free variables are continuous. What will change between fits lives in `pm.Data`. An attribute
        `convergence_variables` on the model, if set, names the variables whose convergence counts. An attribute
        `complete_posterior`, if set, is called with the posterior, the data by name and a generator, and returns the
        posterior with what is drawn given it.
    method
        ``"nuts"``: nutpie's No-U-Turn sampler. ``"many-chains"``: batches of many short chains
        (`dpbayes.inference.many_chains`).
    backend
        Of many chains: ``"numba"``; ``"jax"`` where JAX is installed; ``"interpreted"``, which compiles nothing and
        takes steps by NumPy.

    Returns
    -------
    CompiledModel
        Call its `fit`.

    Raises
    ------
    InputError
        If the model has no free variable, or a discrete one.

    Notes
    -----
    Compiling is not thread-safe in PyTensor: calls from several threads wait for each other here, and must not run
    while another part of the program compiles. Machine code is cached on disk (`pytensor.config.base_compiledir`) by
    the structure of the graph, so the same model on other data of the same shape compiles nothing.
    """
    import pymc as pm

    instance(model, pm.Model, "model", remedy="build_model of a system makes one")
    if not model.free_RVs:
        raise InputError(f"model {model.name!r} has no free variable: there is nothing to sample")
    discrete = [variable.name for variable in model.discrete_value_vars]
    if discrete:
        raise InputError(f"NUTS cannot sample the discrete variables {discrete}; sum them out of the likelihood")
    declared, recorded = getattr(model, "convergence_variables", None) or (), {v.name for v in model.unobserved_RVs}
    unknown = [name for name in declared if name not in recorded]
    if unknown:
        raise InputError(f"model.convergence_variables names {unknown}, which the model does not record")
    many = one_of(method, get_args(Method), "method") == "many-chains"
    started = time.perf_counter()
    with _COMPILING:
        program = batched_density(model, backend=backend) if many else callbacks(model)
    return CompiledModel(model, program, time.perf_counter() - started)


def checked_seed(random_seed: int | None) -> int:
    """Return a sampler seed: the one given, or a fresh one below 2 ** 63."""
    if random_seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))
    return whole_number(random_seed, "random_seed", low=0, high=2**63 - 1)


def observed_data_names(model: "pm.Model") -> dict[str, str]:
    """Map each observed variable to the `pm.Data` variable that holds its values."""
    from pytensor.graph.traversal import ancestors

    names, known = {}, set(model.data_vars)
    for variable in model.observed_RVs:
        sources = [source for source in ancestors([model.rvs_to_values[variable]]) if source in known]
        if len(sources) == 1:
            names[variable.name] = sources[0].name
    return names


def _checked_data(model: "pm.Model", data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    known = {variable.name: variable for variable in model.data_vars}
    checked = {}
    for name, value in data.items():
        if name not in known:
            raise InputError(f"the model has no pm.Data variable {name!r}; it has {sorted(known)}")
        former = known[name].get_value(borrow=True)
        given = np.asarray(value)
        if given.shape != former.shape:
            raise InputError(
                f"data {name!r} must keep its shape {former.shape}, got {given.shape}; compile anew for another"
            )
        with np.errstate(invalid="ignore"):
            cast = given.astype(former.dtype)
        if not np.array_equal(cast, given):
            raise InputError(f"data {name!r} holds values that {former.dtype} does not: give numbers of that type")
        checked[name] = cast
    return checked


def _data_groups(model: "pm.Model") -> dict[str, "xr.Dataset"]:
    """Give the observed values and the model's other data; data that only stand behind an observed one are left out."""
    from pymc.backends.arviz import find_constants, find_observations
    from pytensor.graph.traversal import ancestors

    entering = {variable.name for variable in ancestors([*model.basic_RVs, *model.deterministics, *model.potentials])}
    behind = set(observed_data_names(model).values()) - entering
    constants = {name: value for name, value in find_constants(model).items() if name not in behind}
    return {"observed_data": _dataset(model, find_observations(model)), "constant_data": _dataset(model, constants)}


def _dataset(model: "pm.Model", values: Mapping[str, np.ndarray], lead: Sequence[str] = ()) -> "xr.Dataset":
    """Give arrays of a model's variables their dims and coordinates, after the leading dims of a sample."""
    named = {}
    for name, value in values.items():
        dims = model.named_vars_to_dims.get(name) or ()
        if len(dims) != value.ndim - len(lead):
            dims = [f"{name}_dim_{axis}" for axis in range(value.ndim - len(lead))]
        named[name] = ([*lead, *dims], value)
    used = {dim for dims, _ in named.values() for dim in dims}
    coords = {dim: list(labels) for dim, labels in model.coords.items() if dim in used and labels is not None}
    found = xr.Dataset(named, coords=coords)
    return _numbered(_plain(found)) if lead else found


def sample(
    model: "pm.Model",
    *,
    method: Method = "nuts",
    random_seed: int | None = None,
    cores: int | None = None,
    progressbar: bool = True,
    progress: Progress | None = None,
    predictive: bool = True,
    prior_draws: int = 500,
    **settings: Any,
) -> "xr.DataTree":
    """Fit a model and judge the fit.

    Parameters
    ----------
    model
        A PyMC model with continuous free variables. Its attribute `convergence_variables` names the variables whose
        convergence counts (those that do not depend on labels); by default all do.
    method
        ``"nuts"``, for models of a few dozen unknowns; ``"many-chains"``, for posteriors with many modes or thousands
        of unknowns (`dpbayes.inference.many_chains`).
    random_seed
        Seed of the sampler and of the predictive draws; by default a fresh one. It is recorded in the trace: it touches
        nothing confidential. Same seed, same draws, on any number of cores.
    cores
        Chains, or batches of chains, that run at the same time; by default as many as there are processors.
    progressbar
        Show progress.
    progress
        Called with the stage in words and the share of it that is done; it takes the place of a bar.
    predictive
        Draw the groups `prior`, `prior_predictive` and `posterior_predictive` too, by interpreting the model's graph
        (about a second each). One draw from the prior comes first: a model that cannot be simulated fails before it is
        sampled. The rest follow the sampling.
    prior_draws
        Draws from the prior.
    **settings
        Those of `dpbayes.inference.sampling.NutsSettings` (``draws=1000, tune=1000, chains=4, target_accept=0.9``, ...)
        or of `dpbayes.inference.many_chains.ManyChainSettings` (``chains=128, draws=24, rounds=4``, ...).

    Returns
    -------
    xarray.DataTree
        Groups and attributes of `dpbayes.inference.schema`. The verdict is in the attribute `convergence`
        (`Verdict.from_trace`); a failed check raises nothing here.

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
    >>> trace["posterior_predictive"]["released"].shape
    (4, 500)
    """
    import pymc as pm

    instance(model, pm.Model, "model", remedy="build_model of a system makes one")
    chosen = settings_of(method, settings)
    if cores is not None:
        whole_number(cores, "cores")
    seed = checked_seed(random_seed)
    whole_number(prior_draws, "prior_draws")
    before, after = (int(part.generate_state(1)[0]) for part in np.random.SeedSequence(seed).spawn(2))
    if predictive:
        prior_predictive(model, draws=1, random_seed=before)
    backend: Backend = getattr(chosen, "backend", "numba")
    if progress is not None and backend != "interpreted":
        progress("compiling, up to a minute the first time", 0.0)
    compiled = compile_model(model, method=method, backend=backend)
    trace: Any = compiled.fit(chosen, random_seed=seed, cores=cores, progressbar=progressbar, progress=progress)
    groups = prior_predictive(model, draws=prior_draws, random_seed=before) if predictive else {}
    if predictive and model.observed_RVs:
        groups["posterior_predictive"] = posterior_predictive(model, trace, random_seed=after)
    trace = trace.assign({name: xr.DataTree(dataset) for name, dataset in groups.items()})
    return annotate(trace, verdict=check_convergence(trace))


def settings_of(method: Method, settings: Mapping[str, Any]) -> NutsSettings | ManyChainSettings:
    """Return the checked settings of a method."""
    kind = {"nuts": NutsSettings, "many-chains": ManyChainSettings}[one_of(method, get_args(Method), "method")]
    unknown = sorted(set(settings) - {field.name for field in fields(kind)})
    if unknown:
        names = ", ".join(field.name for field in fields(kind))
        raise InputError(f"method {method!r} has no setting {unknown[0]!r}; it has {names}")
    return kind(**settings)


_SAMPLE = ("chain", "draw")


def _numbered(found: "xr.Dataset") -> "xr.Dataset":
    return found.assign_coords({name: range(found.sizes[name]) for name in _SAMPLE})


def _many(
    compiled: CompiledModel,
    settings: ManyChainSettings,
    seed: int,
    cores: int | None,
    progress: Progress,
    completed: Callable[["xr.Dataset", int], "xr.Dataset"],
) -> tuple["xr.Dataset", "xr.Dataset", dict[str, Any]]:
    """Run many chains; return the completed posterior, statistics and attributes as a trace has them."""
    model, form = compiled.model, xr.Dataset()
    judged = getattr(model, "convergence_variables", None) or [variable.name for variable in model.unobserved_RVs]

    def complete(variables: dict[str, Any], place: int) -> dict[str, Any]:
        """Return the variables of some draws with what is drawn given them."""
        nonlocal form
        found = completed(_dataset(model, variables, _SAMPLE), place).transpose(*_SAMPLE, ...)
        form = found.isel(chain=slice(0), draw=slice(0)).copy(deep=True)  # dimensions and coordinates, without draws
        return {str(name): values.to_numpy() for name, values in found.items()}

    def judge(variables: dict[str, Any], stats: dict[str, Any]) -> tuple["xr.Dataset", list[Finding]]:
        """Return the posterior, and what is short of it."""
        members = stats["lp"].shape[1] // settings.draws
        arrays = {name: (form[name].dims, values, form[name].attrs) for name, values in variables.items()}
        posterior = _numbered(form.drop_vars([*_SAMPLE, *arrays]).assign(arrays))
        values = [posterior[name].to_numpy().reshape(*stats["lp"].shape, -1) for name in judged]
        draws = np.concatenate([np.moveaxis(one, -1, 0) for one in values])
        places = [Quantity(str(place)) for place in range(len(draws))]
        findings, _ = mixing_findings_of(draws, places, rhat_max=1.01, ess_min=400.0, members=members)
        findings += [
            drift_finding(stats["likelihood"], members),
            Finding.of("divergences", "transitions", stats["diverging"].mean(), DIVERGENT_SHARE, ""),
        ]
        return posterior, [finding for finding in findings if not finding.passed]

    cores = cores or len(os.sched_getaffinity(0))
    how: dict[str, Any] = {"random_seed": seed, "cores": cores, "progress": progress}
    posterior, stats, said = draw_many(compiled.program, settings, complete=complete, judge=judge, **how)
    member = np.tile(posterior["draw"].to_numpy() // settings.draws, (settings.batches, 1))
    names = {"lp": "lp", "log_likelihood": "likelihood", "diverging": "diverging", "acceptance_rate": "accept",
             "n_steps": "steps", "step_size": "step"}  # fmt: skip
    statistics = {name: (_SAMPLE, stats[source]) for name, source in names.items()}
    sample_stats = xr.Dataset(statistics | {"member": (_SAMPLE, member)}, coords=posterior[[*_SAMPLE]].coords)
    attributes = {
        "sampler": f"dpbayes many chains ({settings.backend})",
        "sampler_settings": json.dumps(asdict(settings) | {"rounds": said["rounds"]}),
        "sampling_seconds": said["sampling_seconds"],
    }
    return posterior, sample_stats, attributes


@contextmanager
def data_set(model: "pm.Model", values: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Exchange the values of a model's `pm.Data` for the time of a fit."""
    former = {name: model[name].get_value() for name in values}
    try:
        for name, value in values.items():
            model[name].set_value(value)
        yield
    finally:
        for name, value in former.items():
            model[name].set_value(value)


@contextmanager
def progress_shown(progress: Progress | None, progressbar: bool) -> Iterator[Progress]:
    """Give a function that reports progress: to a bar, to the caller's, or to nobody."""
    if progress is not None or not progressbar:
        yield progress or (lambda stage, share: None)
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    with Bars(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()) as bars:
        task = bars.add_task("starting", total=1.0)
        yield lambda stage, share: bars.update(task, description=stage, completed=share)


def prior_values(model: "pm.Model", names: Sequence[str]) -> "Callable[[int], dict[str, np.ndarray]]":
    """Compile, once, a function from a seed to a prior draw of some variables."""
    from pymc.pytensorf import compile as compile_graph
    from pymc.pytensorf import find_rng_nodes, reseed_rngs

    draw = compile_graph([], [model[name] for name in names], **_INTERPRET)
    generators = find_rng_nodes(draw.maker.fgraph.outputs)

    def values(seed: int) -> dict[str, np.ndarray]:
        reseed_rngs(generators, seed)
        return dict(zip(names, draw(), strict=True))

    return values


def prior_predictive(model: "pm.Model", *, draws: int, random_seed: int) -> dict[str, "xr.Dataset"]:
    """Draw parameters and released values from the prior."""
    import pymc as pm

    with _quiet():
        drawn = pm.sample_prior_predictive(draws, model=model, random_seed=random_seed, compile_kwargs=_INTERPRET)
    return {name: _plain(drawn[name].to_dataset()) for name in ("prior", "prior_predictive") if name in drawn.children}


def posterior_predictive(model: "pm.Model", trace: "xr.DataTree", *, random_seed: int) -> "xr.Dataset":
    """Draw released values anew, one set for each posterior draw."""
    import pymc as pm

    with _quiet():
        drawn = pm.sample_posterior_predictive(
            trace, model=model, random_seed=random_seed, progressbar=False, compile_kwargs=_INTERPRET
        )
    return _plain(drawn["posterior_predictive"].to_dataset())


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
