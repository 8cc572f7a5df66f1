"""Synthetic microdata from the posterior of a latent class model, and what several data sets say together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import (
    Floats,
    Ints,
    as_array,
    function,
    generator,
    given_trace,
    instance,
    one_of,
    ordered,
    shown,
    strictly_between,
    whole_number,
)
from dpbayes._files import file_path, write_whole
from dpbayes._lazy import pd, pl, xr
from dpbayes._names import given_name
from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.latent_class.design import by_table, flat_draws, profile_name, record_numbers
from dpbayes.latent_class.zeros import Support

if TYPE_CHECKING:
    from dpbayes.privacy import Release


_BLOCK = 1 << 23  # numbers in a work array
_MOST_RECORDS = 10**9
_MOST_DATASETS = 10**6
_AVERAGED = 20  # draws of the mixture behind the mean of a population that varies about it
_FEWEST_ATOMS, _MOST_ATOMS = 50_000, 400_000  # records that stand for such a population
_FITTING_ROUNDS = 10

type Records = npt.NDArray[np.intp]
"""Level indices, shape ``(records, attributes)``."""
type Law = Literal["draws", "mean"]
"""What synthetic records are drawn from: each data set from one posterior draw, or all from the posterior mean."""


def synthesize(
    trace: xr.DataTree, *, n_datasets: int, n_rows: int, random_seed: int, law: Law = "draws"
) -> list[pl.DataFrame]:
    """Draw posterior predictive microdata.

    Each data set takes one posterior draw of the class weights and profiles, then draws its records from that mixture,
    so that the data sets differ by the posterior uncertainty (privacy noise included) as well as by sampling. Or each
    record takes a draw of its own: records of the posterior mean, closer to the truth than those of any one draw. Where
    the population varies about the mixture, records of the mixture are reweighted to a draw of that population
    (for the posterior mean, of twenty draws).

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
        One frame per data set, one column per attribute, holding the domain's labels.

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
    domain, frames = fitted_domain(trace), []
    drawn = predictive_records(trace, domain, n_datasets=n_datasets, n_rows=n_rows, random_seed=random_seed, law=law)
    for records in drawn:
        pairs = zip(records.T, domain, strict=True)
        frames.append(pl.DataFrame({one.name: np.array(one.levels)[column] for column, one in pairs}))
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
    trace: xr.DataTree, domain: Domain, *, n_datasets: int, n_rows: int | Ints, random_seed: int, law: Law = "draws"
) -> Iterator[Records]:
    """Yield data sets of records as level indices, ``(n_rows, attributes)``; `n_rows` may be a number per draw."""
    one_of(law, ("draws", "mean"), "law")
    posterior = given_trace(trace, "posterior")["posterior"].to_dataset()
    weights, profiles = fitted_mixture(posterior, domain)
    whole_number(n_datasets, "n_datasets", high=_MOST_DATASETS)
    if n_datasets > len(weights) and law == "draws":
        raise InputError(f"{n_datasets} data sets need as many draws, and the trace has {len(weights)}; ask for fewer")
    rng, support = generator(random_seed, "random_seed"), fitted_support(trace, domain)
    rows = _numbers_of_rows(n_rows, len(weights))
    varied = VariedPopulation.of(posterior, support) if "overdispersion" in posterior else None
    for draw in _evenly(len(weights), n_datasets):
        if varied is not None:
            yield varied.mean_records(rows[draw], rng) if law == "mean" else varied.records(draw, rows[draw], rng)
        elif law == "mean":  # every draw as often as any other, but for one record
            of = rng.permutation(np.linspace(0, len(weights), rows[draw], endpoint=False).astype(np.intp))
            yield draw_records(weights, profiles, of, rng, support)
        else:
            one = slice(draw, draw + 1)
            of = np.zeros(rows[draw], np.intp)
            yield draw_records(weights[one], [profile[one] for profile in profiles], of, rng, support)


def _evenly(n_draws: int, n_datasets: int) -> list[int]:
    """Return the draws that data sets come from."""
    return np.linspace(0, n_draws - 1, n_datasets).round().astype(int).tolist()


def _numbers_of_rows(n_rows: int | Ints, n_draws: int) -> list[int]:
    """Return the number of records that each draw of the trace would give."""
    rows = as_array(n_rows, "n_rows")
    whole = rows.dtype.kind in "iu" and rows.shape in ((), (n_draws,))
    if not whole or rows.min() < 1 or rows.max() > _MOST_RECORDS:
        raise InputError(f"n_rows must be a whole number from 1 to {_MOST_RECORDS:,}, got {shown(n_rows)}")
    return np.broadcast_to(rows, n_draws).tolist()


def predict_release(trace: xr.DataTree, release: Release, *, n_datasets: int, random_seed: int) -> xr.Dataset:
    """Draw releases anew from the posterior: records, as many as the draw's n, their exact tables, the same noise.

    Counts that the tables' thresholds would hold back are -inf.
    """
    from dpbayes.privacy.release import Release

    instance(release, Release, "release", remedy="the one that was fitted")
    rng = generator(random_seed, "random_seed")
    posterior = given_trace(trace, "posterior")["posterior"].to_dataset()
    n_rows = np.maximum(np.rint(record_numbers(posterior, release).to_numpy().ravel()), 1).astype(np.int64)
    predicted = []
    if "overdispersion" in posterior:  # the population's own margins, each by itself
        margin = flat_draws(posterior, "margin")
        draws = ((n_rows[draw], by_table(margin[draw], release)) for draw in _evenly(len(margin), n_datasets))
        tables = ([rng.multinomial(n, part / part.sum()) for part in parts] for n, parts in draws)
    else:
        drawn = predictive_records(trace, release.domain, n_datasets=n_datasets, n_rows=n_rows, random_seed=random_seed)
        tables = (by_table(count_records(records, release), release) for records in drawn)
    for exact in tables:
        noisy = [part + t.simulated_noise(rng).ravel() for part, t in zip(exact, release.tables, strict=True)]
        shown = [np.where(part < t.limit, -np.inf, part) for part, t in zip(noisy, release.tables, strict=True)]
        predicted.append(np.concatenate(shown))
    counts = trace["posterior"]["count"]
    return xr.Dataset({"released": (("chain", "draw", "count"), np.array([predicted]))}, coords={"count": counts})


@dataclass(frozen=True, eq=False)
class VariedPopulation:
    """Posterior draws of a population that varies about the mixture: records of the mixture, reweighted.

    Records of the mixture P stand for it. They are fitted to the draw's exact counts (iterative proportional fitting)
    to stand for the confidential records as well, X; the population is then Dirichlet(kappa P + X) over them.
    """

    weights: Floats
    profiles: Sequence[Floats]
    overdispersion: Floats
    exact: Floats
    support: Support
    tables: Sequence[Sequence[str]]

    @classmethod
    def of(cls, posterior: xr.Dataset, support: Support) -> VariedPopulation:
        """Read the draws of a posterior, chains one after another."""
        about = posterior["exact_counts"].attrs
        if "tables" not in about:
            raise InputError(
                "exact_counts of the trace lost its attribute 'tables', which says what the counts are of; pass the "
                "trace as sample returned it, or as it was read from its file"
            )
        varied, flat = flat_draws(posterior, "overdispersion"), flat_draws(posterior, "exact_counts")
        return cls(*fitted_mixture(posterior, support.domain), varied, flat, support, json.loads(about["tables"]))

    def records(self, draw: int, n_rows: int, rng: np.random.Generator) -> Records:
        """Draw records from one draw of the population."""
        atoms, shapes = self._atoms(draw, n_rows, rng)
        shares = rng.standard_gamma(shapes)
        return atoms[rng.choice(len(atoms), n_rows, p=shares / shares.sum())]

    def mean_records(self, n_rows: int, rng: np.random.Generator) -> Records:
        """Draw records from the mean of the population, over a few draws of the mixture."""
        draws = _evenly(len(self.weights), min(_AVERAGED, len(self.weights), n_rows))
        found = []
        for place, draw in enumerate(draws):
            own = n_rows * (place + 1) // len(draws) - n_rows * place // len(draws)
            atoms, shapes = self._atoms(draw, own, rng)
            found.append(atoms[rng.choice(len(atoms), own, p=shapes / shapes.sum())])
        return rng.permutation(np.concatenate(found))

    def _atoms(self, draw: int, n_rows: int, rng: np.random.Generator) -> tuple[Records, Floats]:
        """Return records of a draw of the mixture, and the shapes of their gamma weights."""
        size = min(max(_FEWEST_ATOMS, 4 * n_rows), _MOST_ATOMS)
        one = slice(draw, draw + 1)
        of = np.zeros(size, np.intp)
        domain, profiles = self.support.domain, [profile[one] for profile in self.profiles]
        records = draw_records(self.weights[one], profiles, of, rng, self.support)
        ends = np.cumsum([domain.project(names).size for names in self.tables])[:-1]
        wanted = [np.maximum(own, 0.0) for own in np.split(self.exact[draw], ends)]
        cells = [_cells(records, domain, names) for names in self.tables]
        n = float(np.mean([own.sum() for own in wanted]))
        return records, concentration_of(n, self.overdispersion[draw]) / size + _fitted(cells, wanted, size, n)


def _fitted(cells: Sequence[Ints], wanted: Sequence[Floats], size: int, n: float) -> Floats:
    """Return weights of records whose tables are those wanted, as far as these agree; they sum to n."""
    counts = np.full(size, n / size)
    for _ in range(_FITTING_ROUNDS):
        for own, table in zip(cells, wanted, strict=True):
            now = np.bincount(own, counts, minlength=table.size)
            counts *= np.divide(table, now, out=np.zeros(table.size), where=now > 0.0)[own]
    return counts * (n / counts.sum())


def of_varied_population(records: Records, overdispersion: float, rng: np.random.Generator) -> Records:
    """Return records of a population that varies about the mixture from records of the mixture.

    Given P, Q ~ Dirichlet(kappa P) and records from Q are Pólya's urn (Blackwell and MacQueen 1973): record i is new
    with probability kappa / (kappa + i), else it repeats one of the i before it.
    """
    place, kappa = np.arange(len(records)), concentration_of(len(records), overdispersion)
    repeats = rng.random(len(records)) >= kappa / (kappa + place)
    source = np.where(repeats, rng.integers(0, np.maximum(place, 1)), place)
    while np.any(source != (further := source[source])):
        source = further
    return records[source]


def concentration_of(n: Any, overdispersion: Any) -> Any:
    """Return the kappa at which n records' counts have 1 + overdispersion times the multinomial's covariance."""
    # (n + kappa) / (1 + kappa) = 1 + overdispersion; beyond n - 1 it has no solution.
    return np.maximum((n - 1.0) / overdispersion - 1.0, 1.0)


def count_records(records: Records, release: Release) -> Ints:
    """Count records into the tables of a release, table after table in C order."""
    return np.concatenate([count_margin(records, release.domain, table.attributes) for table in release.tables])


def count_margin(records: Records, domain: Domain, names: Sequence[str]) -> Ints:
    """Count records into the cells of a margin, in C order."""
    return np.bincount(_cells(records, domain, names), minlength=domain.project(names).size).astype(np.int64)


def _cells(records: Records, domain: Domain, names: Sequence[str]) -> Ints:
    """Return in which cell of a margin each record is, in C order."""
    return np.ravel_multi_index(tuple(records[:, list(domain.axes(names))].T), domain.project(names).shape)


def write_synthetic(
    frames: list[pl.DataFrame], folder: str | Path, *, format: Literal["parquet", "csv"] = "parquet"
) -> list[Path]:
    """Write data sets as ``synthetic_01.parquet``, ``synthetic_02.parquet``, ..., each whole or not at all."""
    frames = list(ordered(frames, "frames", remedy="as synthesize returns them", kind=pl.DataFrame))
    one_of(format, ("parquet", "csv"), "format")
    folder = file_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, frame in enumerate(frames, start=1):
        write = frame.write_parquet if format == "parquet" else frame.write_csv
        paths.append(write_whole(folder / f"synthetic_{place:02d}.{format}", write))
    return paths


def fitted_mixture(posterior: xr.Dataset, domain: Domain) -> tuple[Floats, list[Floats]]:
    """Return weights ``(draws, classes)`` and a profile ``(draws, classes, levels)`` for each attribute."""
    needed = ["weights", *map(profile_name, domain.names)]
    for name in needed:
        if name not in posterior:
            raise InputError(f"the trace has no {name!r}; it is not of a latent class model on this domain")
    flat = posterior[needed].stack(draws=("chain", "draw"))
    weights = flat["weights"].transpose("draws", ...).to_numpy()
    return weights, [flat[name].transpose("draws", "class", ...).to_numpy().astype(float) for name in needed[1:]]


def draw_records(
    weights: Floats, profiles: Sequence[Floats], draws: Ints, rng: np.random.Generator, support: Support
) -> Records:
    """Draw a record from each of some draws of the mixture: a class, then its units independently."""
    step = max(1, _BLOCK // (support.n_parts * weights.shape[1]))
    found = np.empty((len(draws), len(support.domain)), dtype=np.intp)
    for start in range(0, len(weights), step):
        part = slice(start, start + step)
        own = np.flatnonzero((draws >= start) & (draws < start + step))
        if own.size:
            classes, units = support.conditioned(weights[part], [profile[part] for profile in profiles])
            drawn = _draw(classes, [unit for unit in units if unit is not None], draws[own] - start, rng)
            found[own] = support.records(drawn)
    return found


def fitted_support(trace: xr.DataTree, domain: Domain) -> Support:
    """Return the possible records that a fit was told of."""
    if "constant_data" not in trace.children or "structural_zeros" not in trace["constant_data"]:
        return Support.of(domain)
    parts = trace["constant_data"]["structural_zeros"].sel(attribute=list(domain.names))
    return Support.from_array(domain, parts.to_numpy())


def _draw(weights: Floats, profiles: Sequence[Floats], draws: Ints, rng: np.random.Generator) -> list[Ints]:
    def chosen(shares: Floats, *of: Ints) -> Ints:
        upper = np.cumsum(shares, axis=-1)
        upper = upper[..., :-1] / upper[..., -1:]
        return np.asarray((rng.random(len(draws))[:, None] >= upper[of]).sum(axis=1))

    classes = chosen(weights, draws)
    return [chosen(profile, draws, classes) for profile in profiles]


type Estimates = Mapping[str, tuple[float, float]]
"""Quantity name to (estimate, estimated sampling variance) in one data set."""


@dataclass(frozen=True, eq=False)
class Combined:
    r"""What synthetic data sets say together about population quantities; `combine` makes it.

    Arrays of shape ``(quantities,)``, in the order of `names`: `estimate`, its variance T and degrees of freedom `df`;
    the variance of the estimates `between` the data sets, and the mean sampling variance `within` one; `adjusted`,
    where T was not positive and :math:`(n_{syn} / n)\, \bar u` took its place.
    """

    names: tuple[str, ...]
    estimate: Floats
    variance: Floats
    df: Floats
    between: Floats
    within: Floats
    adjusted: npt.NDArray[np.bool_]

    def interval(self, prob: float = 0.95) -> Floats:
        """Return the central intervals, shape ``(quantities, 2)``."""
        from scipy.stats import t

        strictly_between(prob, "prob", 0, 1, remedy="0.95 is usual")
        half = t.ppf(0.5 + prob / 2, self.df) * np.sqrt(self.variance)
        return np.column_stack([self.estimate - half, self.estimate + half])

    def table(self, prob: float = 0.95) -> pd.DataFrame:
        """Return one row per quantity: estimate, standard error, ends of the interval, degrees of freedom."""
        lower, upper = self.interval(prob).T
        columns = {"estimate": self.estimate, "stderr": np.sqrt(self.variance), "lower": lower, "upper": upper}
        return pd.DataFrame(columns | {"df": self.df}, index=list(self.names))


def combine(frames: Sequence[Any], fit: Callable[[Any], Estimates | Any], *, n: int) -> Combined:
    r"""Fit every synthetic data set and combine the results.

    Parameters
    ----------
    frames
        Two or more synthetic data sets of equally many records, each drawn from a posterior draw of its own
        (`dpbayes.latent_class.synthesize`).
    fit
        What an analyst would do with one confidential data set: it takes a frame and returns either a mapping from
        names to (estimate, sampling variance), or a fitted statsmodels result, whose ``params`` and ``bse`` are taken.
        Shares of levels need no synthetic records: `dpbayes.latent_class.margin_draws` gives all of them.
    n
        Records in the confidential data.

    Returns
    -------
    Combined
        Estimates, variances and intervals for the *population* that the confidential records were drawn from.

    Raises
    ------
    InputError
        If there are fewer than two data sets, they differ in size or in quantities, or `fit` returns something else or
        a number that is not finite.

    Notes
    -----
    .. math:: T = (1 + 1/m)\, b - \bar u, \qquad \nu = (m - 1) (1 - 1/r)^2, \quad r = (1 + 1/m)\, b / \bar u.

    b holds the posterior variance of the quantity, privacy noise included, and the sampling variance of a synthetic
    data set; subtracting u takes the second out again, so that the rule holds for any number of synthetic records.
    Where T is not positive, :math:`(n_{syn} / n)\, \bar u` takes its place (Reiter 2002): ask for many data sets (20)
    of many records (5 n). Intervals are of the t law with nu degrees of freedom, at least 1; in simulations
    (docs/latent_class.md) they cover at least their nominal share.

    References
    ----------
    Raghunathan, T. E., Reiter, J. P. and Rubin, D. B. (2003). Multiple imputation for statistical disclosure
    limitation. Journal of Official Statistics 19, 1-16, section 2; Reiter, J. P. (2002). Satisfying disclosure
    restrictions with synthetic data sets. Journal of Official Statistics 18, 531-543, section 2.

    Examples
    --------
    >>> import polars as pl
    >>> def mean_vote(frame):
    ...     p = frame["vote"].mean()
    ...     return {"vote=1": (p, p * (1 - p) / len(frame))}
    >>> frames = [pl.DataFrame({"vote": [0] * (60 - 4 * i) + [1] * (40 + 4 * i)}) for i in range(5)]
    >>> combined = combine(frames, mean_vote, n=100)
    >>> combined.names, combined.estimate.round(2).tolist(), combined.variance.round(4).tolist()
    (('vote=1',), [0.48], [0.0023])
    """
    frames = ordered(frames, "frames", remedy="give two synthetic data sets or more, as synthesize returns them")
    function(fit, "fit", remedy="it takes a frame and gives {name: (estimate, variance)}")
    if len(frames) < 2:
        raise InputError(f"combining takes two synthetic data sets or more, got {len(frames)}")
    sizes = {_n_records(frame) for frame in frames}
    if len(sizes) > 1:
        raise InputError(f"the synthetic data sets must have equally many records, got {sorted(sizes)}")
    fits = [_estimates(fit(frame)) for frame in frames]
    names = tuple(fits[0])
    if not names:
        raise InputError("the fitting function returned an empty mapping; name the quantities to combine")
    for place, found in enumerate(fits):
        if tuple(found) != names:
            raise InputError(f"data set {place} gave the quantities {list(found)}, the first one {list(names)}")
    whole_number(n, "n", high=_MOST_RECORDS)
    values = np.array([[found[name] for name in names] for found in fits], dtype=np.float64)
    q, u = values[..., 0], values[..., 1]
    if not (np.all(np.isfinite(q)) and np.all(np.isfinite(u)) and np.all(u >= 0)):
        raise InputError("every estimate must be finite and every variance finite and not negative; one fit failed")
    return combine_estimates(q, u, names=names, n_synthetic=sizes.pop(), n=n)


def combine_estimates(q: Floats, u: Floats, *, names: tuple[str, ...], n_synthetic: int, n: int) -> Combined:
    """Combine estimates and their sampling variances, shape ``(data sets, quantities)``."""
    m = len(q)
    between, within = q.var(axis=0, ddof=1), u.mean(axis=0)
    total = (1 + 1 / m) * between - within
    silent = (np.ptp(q, axis=0) == 0) & np.all(u == 0, axis=0)
    adjusted = (total <= 0) & ~silent
    share = np.divide(within, (1 + 1 / m) * between, out=np.ones_like(within), where=total > 0)
    df = np.where(adjusted, m - 1.0, np.maximum((m - 1) * (1 - share) ** 2, 1.0))
    variance = np.where(silent, np.nan, np.where(adjusted, n_synthetic / n * within, total))
    return Combined(names, q.mean(axis=0), variance, df, between, within, adjusted)


def _n_records(frame: Any) -> int:
    """Return the number of records of a data set, of whatever kind the fitting function takes."""
    try:
        return len(frame)
    except TypeError:
        raise InputError(f"each of frames must be a data set, got {shown(frame)}; synthesize returns them") from None


def _estimates(fitted: Any) -> dict[str, tuple[float, float]]:
    """Read a mapping, or the coefficients and standard errors of a statsmodels result."""
    if isinstance(fitted, Mapping):
        return {str(name): _pair(name, pair) for name, pair in fitted.items()}
    try:
        params, stderr = fitted.params, np.asarray(fitted.bse, dtype=np.float64)
    except AttributeError:
        raise InputError(
            f"the fitting function returned {type(fitted).__name__}; it must return a mapping from names to "
            "(estimate, variance), or a result with params and bse"
        ) from None
    if stderr.ndim != 1 or np.shape(params) != stderr.shape:
        raise InputError(
            f"the fitted result has params of shape {np.shape(params)} and bse of shape {stderr.shape}; one number a "
            "coefficient is combined: return a mapping from names to (estimate, variance)"
        )
    names = getattr(params, "index", range(len(stderr)))
    return {str(name): (float(v), float(s) ** 2) for name, v, s in zip(names, np.asarray(params), stderr, strict=True)}


def _pair(name: Any, given: Any) -> tuple[float, float]:
    """Read an estimate and its sampling variance."""
    try:
        estimate, variance = given
        return float(estimate), float(variance)
    except (TypeError, ValueError):
        raise InputError(
            f"the fitting function returned {shown(given)} for {str(name)!r}; it must be a pair of numbers, the "
            "estimate and its sampling variance"
        ) from None
