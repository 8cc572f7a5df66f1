"""A model compiled once and fitted to many data sets.

Compiling costs ten seconds with warm caches and forty with cold ones; a fit of a small model costs two. Simulation
studies therefore keep observed values in `pm.Data` and exchange them under the compiled program.
"""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes._arguments import instance, shown
from dpbayes.errors import InputError
from dpbayes.inference.nuts import NutsSettings, draw

if TYPE_CHECKING:
    import pymc as pm
    import xarray as xr

__all__ = ["CompiledModel", "compile_model"]

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
        nutpie's compiled form.
    compile_seconds
        Wall time of compiling.
    """

    model: "pm.Model"
    program: Any
    compile_seconds: float

    def fit(
        self,
        settings: NutsSettings = _DEFAULT,
        *,
        data: Mapping[str, Any] | None = None,
        random_seed: int | None = None,
        progressbar: bool = True,
    ) -> "xr.DataTree":
        """Sample the posterior, given new data or those of the model, without compiling again.

        Parameters
        ----------
        settings
            Draws, tuning, chains and adaptation.
        data
            New values of `pm.Data` variables by name, each of the shape it had; others keep their values.
        random_seed
            Sampler seed; by default a fresh one, recorded in the trace. Same seed, same data, same draws.
        progressbar
            Show progress.

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
        import xarray as xr

        seed = checked_seed(random_seed)
        values = _checked_data(self.model, data or {})
        program = self.program.with_data(**values) if values else self.program
        posterior, sample_stats, attributes = draw(program, settings, random_seed=seed, progressbar=progressbar)
        tree = xr.DataTree.from_dict(
            {
                "posterior": posterior,
                "sample_stats": sample_stats,
                "observed_data": _observed(self.model, values),
                "constant_data": _constants(self.model, values),
            }
        )
        tree.attrs = _base_attributes(self.model) | attributes | {"compile_seconds": self.compile_seconds}
        return tree


def compile_model(model: "pm.Model") -> CompiledModel:
    """Compile a model's log-density and gradient for nutpie.

    Parameters
    ----------
    model
        A PyMC model whose free variables are continuous. What will change between fits lives in `pm.Data`. An attribute
        `gate_variables` on the model, if set, names the variables whose convergence counts.

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
    while another part of the program compiles. Parallel studies use processes. Machine code is cached on disk
    (`pytensor.config.base_compiledir`) by the structure of the graph, so the same model on other data of the same
    shape compiles in a quarter of the time.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:  # a count released with Gaussian noise of standard deviation 2
    ...     count = pm.Normal("count", 50, 10)
    ...     _ = pm.Normal("released", count, 2, observed=pm.Data("noisy", 47.0))
    >>> compile_model(model).program.n_dim
    1
    """
    import pymc as pm

    instance(model, pm.Model, "model", remedy="build_model of a system makes one")
    if not model.free_RVs:
        raise InputError(f"model {model.name!r} has no free variable: there is nothing to sample")
    discrete = [variable.name for variable in model.discrete_value_vars]
    if discrete:
        raise InputError(f"NUTS cannot sample the discrete variables {discrete}; sum them out of the likelihood")
    gate = _declared_gate(model)
    unknown = [name for name in gate or () if name not in {v.name for v in model.unobserved_RVs}]
    if unknown:
        raise InputError(f"model.gate_variables names {unknown}, which the model does not record")
    import nutpie
    import pytensor

    started = time.perf_counter()
    # With sums that may be reordered, code loaded from the disk rounds differently from code compiled a moment ago, and
    # the first run of a seed would not be repeated by the second. Strict sums cost nothing here.
    with _COMPILING, pytensor.config.change_flags(numba__fastmath=False):
        program = nutpie.compile_pymc_model(model)
    return CompiledModel(model, program, time.perf_counter() - started)


def checked_seed(random_seed: int | None) -> int:
    """Return a sampler seed: the one given, or a fresh one below 2 ** 63.

    Parameters
    ----------
    random_seed
        Whole number from 0 to 2 ** 63 - 1, or None.

    Returns
    -------
    int
        The seed.

    Raises
    ------
    InputError
        If it is out of range or no whole number.

    Examples
    --------
    >>> checked_seed(7)
    7
    """
    if random_seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))
    if isinstance(random_seed, bool) or not isinstance(random_seed, int | np.integer) or not 0 <= random_seed < 2**63:
        raise InputError(f"random_seed must be a whole number from 0 to 2**63 - 1, got {shown(random_seed)}")
    return int(random_seed)


def observed_data_names(model: "pm.Model") -> dict[str, str]:
    """Map each observed variable to the `pm.Data` variable that holds its values.

    Parameters
    ----------
    model
        A model with observed variables.

    Returns
    -------
    dict
        Names, in the model's order; a variable whose values are fixed in the model is left out.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:  # a count released with Gaussian noise of standard deviation 2
    ...     count = pm.Normal("count", 50, 10)
    ...     _ = pm.Normal("released", count, 2, observed=pm.Data("noisy", 47.0))
    >>> observed_data_names(model)
    {'released': 'noisy'}
    """
    names = {}
    for variable in model.observed_RVs:
        sources = _data_sources(model, model.rvs_to_values[variable])
        if len(sources) == 1:
            names[variable.name] = sources[0].name
    return names


def _declared_gate(model: "pm.Model") -> tuple[str, ...] | None:
    names = getattr(model, "gate_variables", None)
    return None if names is None else tuple(names)


def _base_attributes(model: "pm.Model") -> dict[str, Any]:
    from dpbayes import __version__

    attributes = {"dpbayes_version": __version__, "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    gate = _declared_gate(model)
    return attributes if gate is None else attributes | {"gate_variables": json.dumps(list(gate))}


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


def _data_sources(model: "pm.Model", value: Any) -> list[Any]:
    from pytensor.graph.traversal import ancestors

    known = set(model.data_vars)
    return [variable for variable in ancestors([value]) if variable in known]


def _observed(model: "pm.Model", data: Mapping[str, np.ndarray]) -> "xr.Dataset":
    from pytensor.graph import clone_replace
    from pytensor.tensor import as_tensor

    values = {}
    for variable in model.observed_RVs:
        value = model.rvs_to_values[variable]
        # The value may be a cast or another function of its pm.Data variable.
        given = {source: as_tensor(_value(source, data)) for source in _data_sources(model, value)}
        (fixed,) = clone_replace([value], replace=given)
        values[variable.name] = np.asarray(fixed.eval(mode="FAST_COMPILE"))
    return _dataset(model, values)


def _constants(model: "pm.Model", data: Mapping[str, np.ndarray]) -> "xr.Dataset":
    observed_only = set(observed_data_names(model).values()) - _used_as_input(model)
    values = {source.name: _value(source, data) for source in model.data_vars if source.name not in observed_only}
    return _dataset(model, values)


def _used_as_input(model: "pm.Model") -> set[str]:
    from pytensor.graph.traversal import ancestors

    known = set(model.data_vars)
    graph = ancestors([*model.basic_RVs, *model.deterministics, *model.potentials])
    return {variable.name for variable in graph if variable in known}


def _value(source: Any, data: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(data.get(source.name, source.get_value()))


def _dataset(model: "pm.Model", values: Mapping[str, np.ndarray]) -> "xr.Dataset":
    import xarray as xr

    dims = {name: list(model.named_vars_to_dims.get(name, ())) for name in values}
    for name, value in values.items():
        if len(dims[name]) != value.ndim:
            dims[name] = [f"{name}_dim_{axis}" for axis in range(value.ndim)]
    used = {dim for names in dims.values() for dim in names}
    coords = {dim: list(labels) for dim, labels in model.coords.items() if dim in used and labels is not None}
    return xr.Dataset({name: (dims[name], value) for name, value in values.items()}, coords=coords)
