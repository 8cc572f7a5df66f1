"""The output contract: groups, statistics and attributes of every trace that dpbayes writes.

This file documents the names and `tests/inference/test_schema.py` locks them. A trace is an `xarray.DataTree`; every
dimension besides `chain`, `draw` and `sample` is a named one of the model, with its coordinates.
"""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpbayes._arguments import given_trace
from dpbayes._files import file_path, write_whole
from dpbayes._lazy import xr
from dpbayes.errors import DamagedFileError, InputError
from dpbayes.inference.convergence import Verdict

GROUPS: Mapping[str, str] = {
    "posterior": "draws of every parameter and recorded quantity; dims chain, draw, then the model's",
    "sample_stats": "one row per posterior draw: what the sampler says about the transition; see SAMPLE_STATS",
    "observed_data": "released values that the model conditions on; never a confidential one",
    "constant_data": "other data of the model: noise scales, designs, public totals",
    "prior": "draws of every parameter from the prior; dims chain (one), draw",
    "prior_predictive": "released values drawn from the prior",
    "posterior_predictive": "released values drawn anew for posterior draws",
    "log_likelihood": "of the released values at posterior draws, as pm.compute_log_likelihood adds it",
}
"""Groups of a trace. The last four are there where they were asked for."""

REQUIRED_GROUPS = ("posterior", "sample_stats", "observed_data", "constant_data")

SAMPLE_STATS: Mapping[str, str] = {
    "diverging": "bool: the transition left the typical set numerically",
    "reached_max_treedepth": "bool: the trajectory was cut at the maximal tree depth",
    "tree_depth": "int: doublings of the trajectory",
    "n_steps": "int: leapfrog steps of the transition",
    "step_size": "float: leapfrog step",
    "acceptance_rate": "float: mean acceptance probability over the trajectory",
    "energy": "float: Hamiltonian after the transition",
    "lp": "float: log-density of the draw on the unconstrained scale",
    "log_likelihood": "float: log-likelihood of the draw, summed over the observed variables (many chains)",
    "member": "int: which of the short chains that a chain consists of (many chains, laid end to end)",
}
"""Statistics under ArviZ's names, whichever sampler drew."""

ATTRIBUTES: Mapping[str, str] = {
    "dpbayes_version": "version of this package",
    "created_at": "ISO 8601 time, UTC",
    "sampler": "library and version, such as 'nutpie 0.16.11'",
    "sampler_settings": "JSON object of the sampler's settings",
    "random_seed": "sampler seed as decimal text; it touches nothing confidential. A noise seed is never stored",
    "tune": "warm-up draws of each chain, not kept",
    "compile_seconds": "wall time of compiling, 0 when an earlier compilation served",
    "sampling_seconds": "wall time of sampling",
    "convergence_variables": "JSON list of the posterior variables that the convergence check judges",
    "convergence": "JSON of the verdict of the convergence check (dpbayes.inference.convergence)",
    "spec_digest": "SHA-256 of the resolved run spec",
    "release_digest": "SHA-256 of the release that was conditioned on",
    "privacy_record": "JSON object: what the release cost, under which adjacency, by which mechanism",
}
"""Attributes of the root. The last three come from the run that sampled; `annotate` writes them."""


def new_trace(
    groups: Mapping[str, "xr.Dataset"], *, sampler: str, random_seed: int, **attributes: Any
) -> "xr.DataTree":
    """Return the groups of a fit as a trace, with the attributes that all have and those given."""
    from dpbayes import __version__

    trace = xr.DataTree.from_dict(dict(groups))
    trace.attrs = {"dpbayes_version": __version__, "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    trace.attrs |= {"sampler": sampler, "random_seed": str(random_seed), **attributes}
    return trace


def annotate(
    trace: "xr.DataTree",
    *,
    verdict: Verdict | None = None,
    spec_digest: str | None = None,
    release_digest: str | None = None,
    privacy_record: Mapping[str, Any] | None = None,
) -> "xr.DataTree":
    """Add a verdict and provenance to the attributes of a shallow copy of a trace; what is None stays as it is."""
    added = {
        "convergence": None if verdict is None else verdict.to_json(),
        "spec_digest": spec_digest,
        "release_digest": release_digest,
        "privacy_record": None if privacy_record is None else json.dumps(dict(privacy_record), allow_nan=False),
    }
    annotated: Any = trace.copy()
    annotated.attrs.update({name: value for name, value in added.items() if value is not None})
    return annotated


def check(trace: "xr.DataTree") -> None:
    """Hold a trace to the contract."""
    given_trace(trace)
    problems = []
    missing = [group for group in REQUIRED_GROUPS if group not in trace.children]
    if missing:
        problems.append(f"missing groups {missing}")
    for what, found, known in (
        ("groups", trace.children, GROUPS),
        ("attributes", trace.attrs, ATTRIBUTES),
        ("sample_stats", trace["sample_stats"].data_vars if "sample_stats" in trace.children else (), SAMPLE_STATS),
    ):
        unknown = [str(name) for name in found if name not in known]
        if unknown:
            problems.append(f"{what} outside the contract {unknown}")
    if problems:
        raise InputError(f"not a dpbayes trace: {'; '.join(problems)}; see dpbayes.inference.schema")


def write_trace(trace: "xr.DataTree", path: str | os.PathLike[str]) -> Path:
    """Write a trace as netCDF, whole or not at all.

    Parameters
    ----------
    trace
        A trace that keeps the contract.
    path
        File to write; an existing one is replaced in one step.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    InputError
        If the trace breaks the contract.

    Examples
    --------
    >>> import tempfile
    >>> import xarray as xr
    >>> trace = xr.DataTree.from_dict({group: xr.Dataset() for group in REQUIRED_GROUPS})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_trace(write_trace(trace, Path(folder, "trace.nc"))).identical(trace)
    True
    """
    check(trace)
    # Made in memory: on a disk that is full, HDF5 fails again when it closes the file, and takes the process along.
    content = trace.to_netcdf(engine="h5netcdf")
    return write_whole(file_path(path), lambda scratch: scratch.write_bytes(content))


def read_trace(path: str | os.PathLike[str]) -> "xr.DataTree":
    """Read a trace into memory and hold it to the contract.

    Parameters
    ----------
    path
        What `write_trace` wrote.

    Returns
    -------
    xarray.DataTree
        The trace; the file is closed.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    DamagedFileError
        If the file is not netCDF, or not a trace of this package.

    Examples
    --------
    >>> read_trace("no-such.nc")
    Traceback (most recent call last):
    ...
    FileNotFoundError: there is no file no-such.nc; give that of a trace
    """
    if not file_path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}; give that of a trace")
    try:
        with xr.open_datatree(path, engine="h5netcdf") as stored:
            trace = stored.load()
        check(trace)
    except (OSError, ValueError, KeyError) as error:
        raise DamagedFileError(f"{path} does not read as a dpbayes trace ({error}); sample again") from error
    return trace
