"""The quantities of a trace that the gate judges, by name, with their draws by position."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpbayes._arguments import instance, ordered
from dpbayes.errors import InputError
from dpbayes.inference.verdict import Quantity

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["gate_variables", "judged_variables", "quantity_draws"]


def gate_variables(trace: "xr.DataTree") -> tuple[str, ...]:
    """Names of the variables that the gate judges: those the trace declares, else all of its posterior.

    Parameters
    ----------
    trace
        Its attribute `gate_variables`, where there is one, is a JSON list of posterior variables.

    Returns
    -------
    tuple of str
        Names in the order declared.

    Examples
    --------
    >>> import xarray as xr
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"a": 0.0, "b": 1.0})})
    >>> tree.attrs["gate_variables"] = '["b"]'
    >>> gate_variables(tree)
    ('b',)
    """
    declared = trace.attrs.get("gate_variables")
    if declared is not None:
        return tuple(json.loads(declared))
    return tuple(str(name) for name in trace["posterior"].data_vars) if "posterior" in trace.children else ()


def judged_variables(trace: "xr.DataTree", var_names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Names of the posterior variables asked for, by default those that the gate judges; one may stand alone.

    A name that is given twice counts once.

    Examples
    --------
    >>> import xarray as xr
    >>> trace = xr.DataTree.from_dict({"posterior": xr.Dataset({"a": 0.0, "b": 1.0})})
    >>> judged_variables(trace, "b"), judged_variables(trace, ["b", "a", "b"])
    (('b',), ('b', 'a'))
    """
    import xarray as xr

    instance(trace, xr.DataTree, "trace", remedy="dpbayes.inference.sample and read_trace return one, with all groups")
    if var_names is None:
        return gate_variables(trace)
    names = [var_names] if isinstance(var_names, str) else var_names
    return tuple(dict.fromkeys(ordered(names, "var_names", remedy="give a list of variables", kind=str)))


def quantity_draws(trace: "xr.DataTree", *, var_names: Sequence[str] | None = None) -> dict[Quantity, np.ndarray]:
    """Draws of every quantity, found by position: a coordinate may hold a label twice.

    Parameters
    ----------
    trace
        Needs a group `posterior`.
    var_names
        As in `check_convergence`.

    Returns
    -------
    dict
        Quantity, as verdicts name it, to an array ``(chains, draws)``.

    Examples
    --------
    >>> import xarray as xr
    >>> values = xr.DataArray(np.zeros((2, 100, 2)), dims=("chain", "draw", "cell"), coords={"cell": ["a", "a"]})
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"p": values})})
    >>> [f"{quantity} {draws.shape}" for quantity, draws in quantity_draws(tree).items()]
    ['p[cell=a] (2, 100)', 'p[cell=a (2)] (2, 100)']
    """
    names = judged_variables(trace, var_names)
    if "posterior" not in trace.children:
        raise InputError("the trace has no posterior group; sample the model first")
    return _stacked(trace["posterior"].to_dataset(), names)


def _stacked(posterior: "xr.Dataset", names: Sequence[str]) -> dict[Quantity, np.ndarray]:
    missing = [name for name in names if name not in posterior]
    if missing or not names:
        raise InputError(f"posterior variables to judge not found: {missing}; it has {sorted(map(str, posterior))}")
    blocks, quantities = [], []
    for name in names:
        variable = posterior[name].transpose("chain", "draw", ...)
        chains, length, *shape = variable.shape
        blocks.append(np.moveaxis(np.asarray(variable, dtype=float).reshape(chains, length, -1), -1, 0))
        dims = [str(dim) for dim in variable.dims[2:]]
        labels = [_labels(posterior, dim) for dim in dims]
        for index in np.ndindex(*shape):
            where = ((dim, axis[place]) for dim, axis, place in zip(dims, labels, index, strict=True))
            quantities.append(Quantity(name, tuple(where)))
    return dict(zip(quantities, np.concatenate(blocks), strict=True))


def _labels(posterior: "xr.Dataset", dim: str) -> list[str | int | float]:
    """Return a dimension's labels, or its positions; a label that stood before is numbered, so that all differ."""
    values = posterior[dim].values.tolist() if dim in posterior.coords else range(posterior.sizes[dim])
    labels = [value if isinstance(value, str | int | float) else str(value) for value in values]
    stood: Counter[str | int | float] = Counter()
    for place, label in enumerate(labels):
        stood[label] += 1
        if stood[label] > 1:
            labels[place] = f"{label} ({stood[label]})"
    return labels
