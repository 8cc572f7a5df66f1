"""One run of nutpie's NUTS: settings checked before it starts, draws counted after it ends, statistics by their names.

nutpie is called directly rather than through `pm.sample`, for two reasons: a program compiled once serves many data
sets, and an interrupt stays one. (Left to wait by itself, nutpie answers it with the draws it has, chains padded with
NaN to the longest, and no error.)
"""

import json
import math
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dpbayes._arguments import number, shown
from dpbayes.errors import IncompleteSamplingError, InputError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Adaptation", "NutsSettings", "draw"]

_MOST = 10**9

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
    """Settings of a NUTS run.

    Parameters
    ----------
    draws
        Draws to keep of each chain, at least 1.
    tune
        Warm-up draws of each chain, not kept, at least 1.
    chains
        Independent chains; the gate needs two or more.
    target_accept
        Mean acceptance probability that the step size is tuned to, between 0 and 1. Higher means smaller steps.
    max_treedepth
        A trajectory has at most 2 ** max_treedepth steps.
    adaptation
        Mass matrix: ``diag`` (from draws and gradients), ``draw_diag`` (from draws alone), or ``low_rank`` (diagonal
        and a few strong directions: for posteriors with strong correlations, at a higher cost a step).
    cores
        Chains that run at the same time; by default as many as there are, up to the processors of this process.
    options
        More options of `nutpie.sample`, such as ``mass_matrix_gamma`` or ``mass_matrix_eigval_cutoff``.

    Raises
    ------
    InputError
        If a setting is out of its range.

    Examples
    --------
    >>> NutsSettings(draws=500).chains
    4
    >>> NutsSettings(target_accept=1.5)
    Traceback (most recent call last):
    ...
    dpbayes.errors.InputError: target_accept must lie between 0 and 1, got 1.5; 0.9 is the default
    """

    draws: int = 1000
    tune: int = 1000
    chains: int = 4
    target_accept: float = 0.9
    max_treedepth: int = 10
    adaptation: Adaptation = "diag"
    cores: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = {"draws": 1, "tune": 1, "chains": 1, "max_treedepth": 1} | ({} if self.cores is None else {"cores": 1})
        for name, least in counts.items():
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
            if value > _MOST:
                raise InputError(f"{name} must be at most {_MOST:,}, got {shown(value)}")
            object.__setattr__(self, name, int(value))
        object.__setattr__(self, "target_accept", number(self.target_accept, "target_accept"))
        if not 0.0 < self.target_accept < 1.0:
            raise InputError(f"target_accept must lie between 0 and 1, got {self.target_accept}; 0.9 is the default")
        if self.adaptation not in get_args(Adaptation):
            raise InputError(f"adaptation must be one of {', '.join(get_args(Adaptation))}, got {self.adaptation!r}")

    def to_dict(self) -> dict[str, Any]:
        """Give the settings as plain data, without the number of cores, which does not change a draw."""
        names = ("draws", "tune", "chains", "target_accept", "max_treedepth", "adaptation")
        return {name: getattr(self, name) for name in names} | dict(self.options)


def draw(
    program: Any, settings: NutsSettings, *, random_seed: int, progressbar: bool = True
) -> tuple["xr.Dataset", "xr.Dataset", dict[str, Any]]:
    """Run nutpie on a compiled program.

    Parameters
    ----------
    program
        What `nutpie.compile_pymc_model` returned.
    settings
        How long and how to run.
    random_seed
        Seed of starts and trajectories; the same seed gives the same draws on any number of cores.
    progressbar
        Show a bar a chain.

    Returns
    -------
    posterior, sample_stats : xarray.Dataset
        Dims (chain, draw, ...), statistics by the names of `dpbayes.inference.schema.SAMPLE_STATS`.
    attributes : dict
        Sampler, settings, seed, tuning and seconds, for the root of the trace.

    Raises
    ------
    IncompleteSamplingError
        If a chain came back with fewer draws than asked for, or none could start.
    KeyboardInterrupt
        If it was interrupted.

    Examples
    --------
    >>> import nutpie, pymc as pm
    >>> with pm.Model() as model:
    ...     _ = pm.Normal("count", 50, 10)
    >>> program = nutpie.compile_pymc_model(model)
    >>> short = NutsSettings(draws=100, tune=100, chains=2)
    >>> posterior, stats, attributes = draw(program, short, random_seed=1, progressbar=False)
    >>> posterior["count"].shape, attributes["sampler"]
    ((2, 100), 'nutpie ...')
    """
    import nutpie

    started = time.perf_counter()
    with warnings.catch_warnings():
        # A short or interrupted run may have fewer draws than chains; ArviZ takes that for swapped dimensions.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer than draw dimension")
        try:
            sampler = nutpie.sample(
                program,
                draws=settings.draws,
                tune=settings.tune,
                chains=settings.chains,
                cores=settings.cores,
                seed=random_seed,
                adaptation=settings.adaptation,
                target_accept=settings.target_accept,
                maxdepth=settings.max_treedepth,
                progress_bar=progressbar,
                save_warmup=False,
                blocking=False,
                **settings.options,
            )
            raw = _waited(sampler)
        except RuntimeError as error:
            raise _no_start(error) from error
    stats = raw["sample_stats"].to_dataset()
    check_complete(stats, settings)
    sample_stats = stats[list(_STATS)].rename(_STATS)
    # With the option target_integration_time nutpie's flag also marks trajectories that went on for that time.
    deepest = sample_stats["tree_depth"] >= settings.max_treedepth
    sample_stats["reached_max_treedepth"] = sample_stats["reached_max_treedepth"] & deepest
    attributes = {
        "sampler": f"nutpie {nutpie.__version__}",
        "sampler_settings": json.dumps(settings.to_dict()),
        "random_seed": str(random_seed),
        "tune": int(settings.tune),
        "sampling_seconds": time.perf_counter() - started,
    }
    return _plain(raw["posterior"].to_dataset()), _plain(sample_stats), attributes


def check_options(settings: NutsSettings) -> None:
    """Refuse options that nutpie does not know or that would keep chains from moving, before anything compiles.

    Parameters
    ----------
    settings
        Settings whose `options` are to be passed on.

    Raises
    ------
    InputError
        If nutpie has no option of that name for this adaptation, the value is of another type, or trajectories may end
        within one step: steps then grow past ``target_integration_time``, and chains stand still.

    Examples
    --------
    >>> check_options(NutsSettings(options={"max_energy": 5}))
    Traceback (most recent call last):
    ...
    dpbayes.errors.InputError: nutpie refuses the options {'max_energy': 5}: Unknown settings attribute: max_energy; ...
    >>> check_options(NutsSettings(options={"target_integration_time": 2.0}))
    Traceback (most recent call last):
    ...
    dpbayes.errors.InputError: target_integration_time must be at least 3.46, the longest step, got 2.0: ...
    """
    if not settings.options:
        return
    from nutpie._lib import PyNutsSettings

    made = PyNutsSettings.LowRank(0) if settings.adaptation == "low_rank" else PyNutsSettings.Diag(0)
    try:
        made.update(dict(settings.options))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        remedy = "names and values are those of nutpie.sample"
        raise InputError(f"nutpie refuses the options {dict(settings.options)}: {error}; {remedy}") from error
    time = settings.options.get("target_integration_time")
    longest = settings.options.get("max_step_size", math.pi) * (1.0 + settings.options.get("step_size_jitter", 0.1))
    if time is not None and time < longest:
        raise InputError(
            f"target_integration_time must be at least {longest:.2f}, the longest step, got {time}: steps would grow "
            "past it and chains stand still; give more, or leave it out"
        )


def check_complete(stats: "xr.Dataset", settings: NutsSettings) -> None:
    """Refuse a run that ended early.

    Parameters
    ----------
    stats
        nutpie's statistics; a row past a chain's end has a NaN step size.
    settings
        What was asked for.

    Raises
    ------
    IncompleteSamplingError
        If any chain has fewer draws than asked for; the message says how many each has.

    Examples
    --------
    >>> import xarray as xr
    >>> steps = xr.Dataset({"step_size": (("chain", "draw"), [[0.1, 0.1], [0.1, np.nan]])})
    >>> check_complete(steps, NutsSettings(draws=2, chains=2))
    Traceback (most recent call last):
    ...
    dpbayes.errors.IncompleteSamplingError: sampling ended early: 2, 1 of 2 draws came back from the 2 chains; ...
    """
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


def _waited(sampler: Any) -> Any:
    """Return what a sampler in the background gives when it is done; on an interrupt, stop it and let that through."""
    try:
        return sampler.wait()
    except KeyboardInterrupt:
        sampler.cancel()
        raise


def _no_start(error: RuntimeError) -> IncompleteSamplingError:
    cause = re.split(r"\n\s*Stack backtrace", str(error))[0]
    cause = " ".join(cause.split())
    return IncompleteSamplingError(
        f"the sampler stopped before its first draw ({cause}); see model.point_logps(): a term that is -inf or "
        "NaN at the starting point needs another start (initval) or a parameterization that stays finite"
    )
