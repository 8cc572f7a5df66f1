"""Synthetic microdata from the posterior of a latent class model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import as_array, generator, given_trace, instance, one_of, ordered, shown, whole_number
from dpbayes._files import file_path
from dpbayes._names import given_name
from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.latent_class.design import profile_name
from dpbayes.latent_class.record_numbers import record_numbers
from dpbayes.latent_class.zeros import ZeroSet

if TYPE_CHECKING:
    import polars as pl
    import xarray as xr

    from dpbayes.privacy import Release


_MOST_ROUNDS = 1000
_MOST_RECORDS = 10**9
_MOST_DATASETS = 10**6


type Law = Literal["draws", "mean"]
"""What synthetic records are drawn from: each data set from one posterior draw, or all from the posterior mean."""


def synthesize(
    trace: xr.DataTree, *, n_datasets: int, n_rows: int, random_seed: int, law: Law = "draws"
) -> list[pl.DataFrame]:
    """Draw posterior predictive microdata.

    Each data set takes one posterior draw of the class weights and profiles, then draws its records from that mixture,
    so that the data sets differ by the posterior uncertainty (privacy noise included) as well as by sampling. Or each
    record takes a draw of its own: records of the posterior mean, closer to the truth than those of any one draw.

    Parameters
    ----------
    trace
        What `dpbayes.inference.sample` returned for a latent class model.
    n_datasets
        Number of data sets. They come from draws spread evenly over the trace.
    n_rows
        Records in each.
    random_seed
        Seed of the draws.
    law
        ``"draws"``: several data sets, whose estimates `combine` turns into intervals. ``"mean"``: where one data set
        is to serve every use; it says nothing of the uncertainty, and `combine` does not apply.

    Returns
    -------
    list of polars.DataFrame
        One frame a data set, one column an attribute, holding the domain's labels.

    Raises
    ------
    InputError
        If a number is below 1, there are fewer draws than data sets, or the trace is not of a latent class model.

    References
    ----------
    Barrientos, A. F. (2021). Latent class modeling approach, slide "Bayesian modeling approach and inference":
    synthetic records from the posterior predictive distribution.

    Examples
    --------
    With `trace` a fit of tables of race, sex and income:

    >>> frames = synthesize(trace, n_datasets=5, n_rows=10_000, random_seed=1)
    >>> len(frames), frames[0].columns, frames[0].height
    (5, ['race', 'sex', 'income'], 10000)
    """
    import polars as pl

    domain = fitted_domain(trace)
    frames = []
    for records in predictive_records(
        trace, domain, n_datasets=n_datasets, n_rows=n_rows, random_seed=random_seed, law=law
    ):
        columns = {}
        for column, attribute in zip(records.T, domain, strict=True):
            columns[attribute.name] = np.array(attribute.levels)[column]
        frames.append(pl.DataFrame(columns))
    return frames


def fitted_domain(trace: xr.DataTree) -> Domain:
    """Return the domain of the release behind a fit, from the coordinates of its class profiles."""
    posterior = given_trace(trace, "posterior")["posterior"].to_dataset()
    profiles = [posterior[name] for name in posterior if str(name).startswith("profile_")]
    names = [dim for profile in profiles for dim in profile.dims if dim not in ("chain", "draw", "class")]
    if not names or "weights" not in posterior:
        raise InputError("the trace has no class weights and profiles; it is not of a latent class model")
    return Domain.from_levels({given_name(str(name)): posterior[name].to_numpy().tolist() for name in names})


def predictive_records(
    trace: xr.DataTree,
    domain: Domain,
    *,
    n_datasets: int,
    n_rows: int | npt.NDArray[np.int64],
    random_seed: int,
    law: Law = "draws",
) -> Iterator[npt.NDArray[np.intp]]:
    """Yield posterior predictive records as level indices, shape ``(n_rows, attributes)``, a data set at a time.

    The attributes come in the order of `domain`. `n_rows` may be an array: of a number for every draw of the trace,
    chains one after another. The other parameters and the errors are those of `synthesize`.
    """
    instance(domain, Domain, "domain", remedy="that of the release")
    one_of(law, ("draws", "mean"), "law")
    weights, profiles = _mixture(trace, domain)
    whole_number(n_datasets, "n_datasets", high=_MOST_DATASETS)
    if n_datasets > len(weights) and law == "draws":
        raise InputError(f"{n_datasets} data sets need as many draws, and the trace has {len(weights)}; ask for fewer")
    rng, zeros = generator(random_seed, "random_seed"), fitted_zeros(trace, domain)
    rows = _numbers_of_rows(n_rows, len(weights))
    for draw in np.linspace(0, len(weights) - 1, n_datasets).round().astype(int):
        if law == "mean":  # every draw as often as any other, but for one record
            of = rng.permutation(np.linspace(0, len(weights), rows[draw], endpoint=False).astype(np.intp))
            yield draw_records(weights, profiles, of, rng, zeros=zeros)
        else:
            one = slice(draw, draw + 1)
            of = np.zeros(rows[draw], np.intp)
            yield draw_records(weights[one], [profile[one] for profile in profiles], of, rng, zeros=zeros)


def _numbers_of_rows(n_rows: int | npt.NDArray[np.int64], n_draws: int) -> list[int]:
    """Return the number of records that each draw of the trace would give."""
    rows = as_array(n_rows, "n_rows")
    whole = rows.dtype.kind in "iu" and rows.shape in ((), (n_draws,))
    if not whole or rows.min() < 1 or rows.max() > _MOST_RECORDS:
        raise InputError(f"n_rows must be a whole number from 1 to {_MOST_RECORDS:,}, got {shown(n_rows)}")
    return np.broadcast_to(rows, n_draws).tolist()


def predict_release(trace: xr.DataTree, release: Release, *, n_datasets: int, random_seed: int) -> xr.Dataset:
    """Draw releases from the posterior predictive distribution: records, their exact tables, the same noise.

    Where the number of records was released with noise, each has as many as its draw's n (at least one).

    Parameters
    ----------
    trace
        The fit of a latent class model.
    release
        The release that was fitted; its tables and noise laws are used again.
    n_datasets
        Number of predicted releases.
    random_seed
        Seed of the draws: a simulation, which reads nothing confidential.

    Returns
    -------
    xarray.Dataset
        ``released`` with dims ``chain`` (one), ``draw`` and ``count``.

    Examples
    --------
    With `trace` a fit of `release`, three tables of four counts:

    >>> predict_release(trace, release, n_datasets=100, random_seed=1)["released"].shape
    (1, 100, 12)
    """
    import xarray as xr

    from dpbayes.privacy.release import Release

    instance(release, Release, "release", remedy="the one that was fitted")
    rng = generator(random_seed, "random_seed")
    numbers = record_numbers(given_trace(trace, "posterior")["posterior"].to_dataset(), release).to_numpy().ravel()
    n_rows = np.maximum(np.rint(numbers), 1).astype(np.int64)
    sizes = np.cumsum([table.counts.size for table in release.tables])[:-1]
    predicted = []
    for records in predictive_records(
        trace, release.domain, n_datasets=n_datasets, n_rows=n_rows, random_seed=random_seed
    ):
        exact = np.split(count_records(records, release), sizes)
        noisy = [part + t.simulated_noise(rng).ravel() for part, t in zip(exact, release.tables, strict=True)]
        predicted.append(np.concatenate(noisy))
    counts = trace["posterior"]["count"]
    return xr.Dataset({"released": (("chain", "draw", "count"), np.array([predicted]))}, coords={"count": counts})


def count_records(records: npt.NDArray[np.intp], release: Release) -> npt.NDArray[np.int64]:
    """Count records into the tables of a release, table after table in C order."""
    counts = []
    for table in release.tables:
        columns = records[:, list(release.domain.axes(table.attributes))]
        cells = np.ravel_multi_index(tuple(columns.T), table.domain.shape)
        counts.append(np.bincount(cells, minlength=table.domain.size))
    return np.concatenate(counts).astype(np.int64)


def write_synthetic(
    frames: list[pl.DataFrame], folder: str | Path, *, format: Literal["parquet", "csv"] = "parquet"
) -> list[Path]:
    """Write data sets as ``synthetic_01.parquet``, ``synthetic_02.parquet``, ...

    Parameters
    ----------
    frames
        The data sets.
    folder
        Where to write; made if need be.
    format
        ``"parquet"`` or ``"csv"``.

    Returns
    -------
    list of Path
        The files, each written whole or not at all.
    """
    import polars as pl

    frames = list(ordered(frames, "frames", remedy="as synthesize returns them", kind=pl.DataFrame))
    one_of(format, ("parquet", "csv"), "format")
    folder = file_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, frame in enumerate(frames, start=1):
        path = folder / f"synthetic_{number:02d}.{format}"
        temporary = path.with_suffix(".tmp")
        (frame.write_parquet if format == "parquet" else frame.write_csv)(temporary)
        paths.append(temporary.replace(path))
    return paths


def _mixture(trace: xr.DataTree, domain: Domain) -> tuple[npt.NDArray[np.float64], list[npt.NDArray[np.float64]]]:
    """Return weights ``(draws, classes)`` and a profile ``(draws, classes, levels)`` for each attribute."""
    posterior = given_trace(trace, "posterior")["posterior"].to_dataset()
    needed = ["weights", *map(profile_name, domain.names)]
    for name in needed:
        if name not in posterior:
            raise InputError(f"the trace has no {name!r}; it is not of a latent class model on this domain")
    flat = posterior[needed].stack(draws=("chain", "draw"))
    weights = flat["weights"].transpose("draws", ...).to_numpy()
    profiles = [flat[name].transpose("draws", "class", ...).to_numpy() for name in needed[1:]]
    return weights, profiles


def draw_records(
    weights: npt.NDArray[np.float64],
    profiles: Sequence[npt.NDArray[np.float64]],
    draws: npt.NDArray[np.intp],
    rng: np.random.Generator,
    *,
    zeros: ZeroSet | None = None,
) -> npt.NDArray[np.intp]:
    """Draw a record from each of some draws of the mixture: a class, then the attributes independently."""
    if zeros is None:
        return _draw(weights, profiles, draws, rng)
    records = np.empty((len(draws), len(profiles)), dtype=np.intp)
    missing = np.arange(len(draws))
    for _ in range(_MOST_ROUNDS):
        asked = np.resize(missing, len(draws))  # the last ones are tried many times at once
        drawn = _draw(weights, profiles, draws[asked], rng)
        possible = ~zeros.holds(drawn)
        found, first = np.unique(asked[possible], return_index=True)
        records[found] = drawn[possible][first]
        missing = np.setdiff1d(missing, found)
        if not missing.size:
            return records
    raise InputError(
        f"{missing.size} of {len(draws)} records are still impossible after {_MOST_ROUNDS} rounds; check the zeros"
    )


def fitted_zeros(trace: xr.DataTree, domain: Domain) -> ZeroSet | None:
    """Return the impossible combinations that a fit was told of, or None."""
    if "constant_data" not in trace.children or "structural_zeros" not in trace["constant_data"]:
        return None
    parts = trace["constant_data"]["structural_zeros"].sel(attribute=list(domain.names))
    return ZeroSet.from_array(domain, parts.to_numpy())


def _draw(
    weights: npt.NDArray[np.float64],
    profiles: Sequence[npt.NDArray[np.float64]],
    draws: npt.NDArray[np.intp],
    rng: np.random.Generator,
) -> npt.NDArray[np.intp]:
    def chosen(shares: npt.NDArray[np.float64], *of: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        upper = np.cumsum(shares, axis=-1)
        upper = upper[..., :-1] / upper[..., -1:]
        return np.asarray((rng.random(len(draws))[:, None] >= upper[of]).sum(axis=1))

    classes = chosen(weights, draws)
    return np.column_stack([chosen(profile, draws, classes) for profile in profiles])
