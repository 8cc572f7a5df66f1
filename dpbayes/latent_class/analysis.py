"""Questions to the posterior, draw by draw: any margin's probabilities, functionals of them, regressions.

A margin is the population's, or that of the confidential records themselves. A regression is a functional of the joint
distribution of its attributes: the coefficients that maximize the expected log-likelihood under the cell probabilities.
Evaluated at every posterior draw it has a posterior of its own, with privacy noise, sampling and what the released
margins leave open all in it; no synthetic data stand between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dpbayes._arguments import Floats, instance, one_of, strictly_between, whole_number
from dpbayes._arguments import function as given_function
from dpbayes._lazy import pd, xr
from dpbayes.errors import InputError
from dpbayes.inference.noisy_counts import released_vector
from dpbayes.latent_class.design import by_table, flat_draws, record_numbers
from dpbayes.latent_class.synthesis import _BLOCK, concentration_of, fitted_domain, fitted_mixture, fitted_support
from dpbayes.latent_class.zeros import Support

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain
    from dpbayes.privacy.release import Release

_CACHED = 1 << 16  # numbers of a table that are worked on together: those that the processor's cache holds


@dataclass(frozen=True, eq=False)
class Mixture:
    """Draws of weights ``(draws, classes)`` and of every attribute's profiles ``(draws, classes, levels)``."""

    weights: Floats
    profiles: Sequence[Floats]
    support: Support

    @classmethod
    def of(cls, posterior: xr.Dataset, support: Support) -> Mixture:
        """Read the draws of a posterior, chains one after another."""
        return cls(*fitted_mixture(posterior, support.domain), support)

    def margin(self, names: Sequence[str]) -> Floats:
        """Return the probabilities of a margin's cells in C order, shape ``(draws, cells)``; each draw sums to one."""
        axes = self.support.domain.axes(names)
        shape = [self.support.domain.shape[axis] for axis in axes]
        width = math.prod(shape[: len(axes) // 2]) + math.prod(shape[len(axes) // 2 :]) + self.support.n_parts
        parts = [self.support.margin(*one.support.conditioned(one.weights, one.profiles, axes), axes)
                 for one in self._blocks(width)]  # fmt: skip
        values = np.concatenate(parts)
        return np.asarray(values / values.sum(axis=1, keepdims=True))

    def _blocks(self, width: int) -> Iterator[Mixture]:
        """Yield runs of draws whose work arrays of `width` numbers per class stay small."""
        step = max(1, _BLOCK // (width * self.weights.shape[1]))
        for start in range(0, len(self.weights), step):
            part = slice(start, start + step)
            yield Mixture(self.weights[part], [one[part] for one in self.profiles], self.support)


_LEAST_COUNT = 1e-6  # records; without rounding, a draw below it is moved here, so that log-odds stay finite
_ROUNDS = 30  # of proportional fitting, at most
_CLOSE = 1e-3  # records by which a round moves any cell, below which it was the last one


def check_fitted(trace: xr.DataTree, release: Release) -> None:
    """Refuse a release whose counts or noisy number of records are not those that a trace observed, if it says."""
    observed = trace["observed_data"].to_dataset() if "observed_data" in trace.children else {}
    given = {
        "released": released_vector(release),
        "released_n": np.array([] if isinstance(release.n, int) else [release.n.value]),
    }
    for name, values in given.items():
        if name in observed and not np.array_equal(observed[name].to_numpy().ravel(), values):
            what = "counts differ" if name == "released" else "number of records differs"
            raise InputError(
                f"the release given is not the one that this trace was fitted to: its {what} from the trace's "
                f"observed {name!r}; pass the release that was fitted"
            )


def record_shares(
    posterior: xr.Dataset,
    release: Release | None,
    mixture: Mixture,
    names: Sequence[str],
    rng: int | np.random.Generator | None,
    whole: bool,
) -> Floats:
    """Draw a margin's shares among the confidential records, shape ``(draws, cells)``; each draw sums to one."""
    if release is None:
        raise InputError("target 'records' needs the release that was fitted; pass release=...")
    if "exact_counts" not in posterior:
        raise InputError(
            "target 'records' needs exact_counts in the trace; they are drawn for releases of at most 20,000 counts"
        )
    exact = flat_draws(posterior, "exact_counts")
    if exact.shape[1] != release.n_counts:
        raise InputError(f"the trace holds {exact.shape[1]} exact counts, the release {release.n_counts}")
    n = np.maximum(np.rint(record_numbers(posterior, release).to_numpy().ravel()), 1.0)
    inside = _inside(release, names, exact)
    shape = release.domain.project(names).shape
    if inside and len(inside[-1][0]) == len(names):
        counts = inside[-1][1].reshape(len(n), -1)
    else:
        rng = np.random.default_rng(rng)
        law = np.maximum(mixture.margin(names), 0.0)
        counts = rng.multinomial(n.astype(np.int64), law / law.sum(axis=1, keepdims=True)).astype(np.float64)
        # A cell that holds nobody can be asked to hold somebody: proportional fitting needs a start above zero.
        counts = _fitted(np.maximum(counts, 0.05 * np.minimum(n[:, None] * law, 1.0)).reshape(-1, *shape), inside)
        counts = counts.reshape(len(n), -1)
    counts = _whole_tables(counts, n) if whole else np.maximum(counts, _LEAST_COUNT)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def population_shares(
    posterior: xr.Dataset,
    release: Release | None,
    mixture: Mixture,
    names: Sequence[str],
    rng: int | np.random.Generator | None,
) -> Floats:
    """Draw a margin's shares in the population, shape ``(draws, cells)``; each draw sums to one."""
    shares = mixture.margin(names)
    if "overdispersion" not in posterior:
        return shares
    if release is None:
        raise InputError(
            "this fit lets the population vary about the mixture (overdispersion), which needs the release that was "
            "fitted; pass release=..., or build the model with overdispersion=False"
        )
    rng = np.random.default_rng(rng)
    n = record_numbers(posterior, release).to_numpy().ravel()
    of_records = record_shares(posterior, release, mixture, names, rng, whole=False)
    return population_given_records(shares, n[:, None] * of_records, n, flat_draws(posterior, "overdispersion"), rng)


def population_given_records(
    shares: Floats, counts: Floats, n: Floats, overdispersion: Floats, rng: np.random.Generator
) -> Floats:
    r"""Draw the population's shares of a margin given the mixture's P and the records' counts M, ``(..., cells)``.

    Q ~ Dirichlet(:math:`\kappa P`) and n records from Q leave Q ~ Dirichlet(:math:`\kappa P + M`).
    """
    kappa = np.asarray(concentration_of(n, overdispersion))
    drawn = np.maximum(rng.standard_gamma(kappa[..., None] * shares + np.maximum(counts, 0.0)), _LEAST_COUNT)
    return np.asarray(drawn / drawn.sum(axis=-1, keepdims=True))


def population_margins(
    release: Release, shares: Floats, counts: Floats, n: Floats, overdispersion: Floats, rng: np.random.Generator
) -> Floats:
    """Draw the population's shares of all released margins, ``(..., cells)``, every one by itself."""
    parts = zip(by_table(shares, release), by_table(counts, release), strict=True)
    return np.concatenate([population_given_records(*part, n, overdispersion, rng) for part in parts], axis=-1)


def _inside(release: Release, names: Sequence[str], exact: Floats) -> list[tuple[tuple[int, ...], Floats]]:
    """Return the released margins of some attributes."""
    found: dict[tuple[int, ...], list[Floats]] = {}
    for table, own in zip(release.tables, by_table(exact, release), strict=True):
        axes = [names.index(name) for name in table.attributes if name in names]
        left_out = tuple(1 + place for place, name in enumerate(table.attributes) if name not in names)
        if axes:
            kept = own.reshape(-1, *table.counts.shape).sum(axis=left_out)
            found.setdefault(tuple(sorted(axes)), []).append(np.transpose(kept, (0, *(1 + np.argsort(axes)))))
    margins = [(axes, np.maximum(np.mean(parts, axis=0), 0.0)) for axes, parts in found.items()]
    return sorted(margins, key=lambda margin: len(margin[0]))


def _fitted(counts: Floats, margins: Sequence[tuple[tuple[int, ...], Floats]]) -> Floats:
    """Fit tables ``(draws, ...)`` to margins by proportions, in place."""
    inner = range(counts.ndim - 1)
    sums = [
        (tuple(1 + axis for axis in inner if axis not in axes), np.maximum(wanted, 1e-9)) for axes, wanted in margins
    ]
    step = max(1, _CACHED // math.prod(counts.shape[1:]))
    for start in range(0, len(counts), step):
        part = counts[start : start + step]
        for _ in range(_ROUNDS):
            before = part.copy()
            for out, wanted in sums:
                now = part.sum(axis=out, keepdims=True)
                part *= wanted[start : start + step].reshape(now.shape) / np.maximum(now, 1e-9)
            if np.abs(part - before).max() < _CLOSE:
                break
    return counts


def _whole_tables(counts: Floats, n: Floats) -> Floats:
    """Round tables ``(draws, cells)`` to whole counts that sum to n, by largest remainders."""
    counts = np.maximum(counts, 0.0)
    counts *= (n / counts.sum(axis=1))[:, None]
    down = np.floor(counts)
    # How many cells of each table are rounded up: those of the largest remainders.
    up = n - down.sum(axis=1)
    largest = np.argsort(down - counts, axis=1, kind="stable")
    rounded = np.empty(counts.shape, dtype=bool)
    np.put_along_axis(rounded, largest, np.arange(counts.shape[1]) < up[:, None], axis=1)
    return down + rounded


MAX_CELLS = 65_536  # of a margin that is evaluated draw by draw
MAX_NUMBERS = 1 << 26  # cells times draws; 512 MiB, and a regression works with a few such arrays

type Target = Literal["population", "records"]


def margin_draws(
    trace: xr.DataTree,
    names: Sequence[str],
    *,
    target: Target = "population",
    release: Release | None = None,
    random_seed: int | None = None,
    whole: bool = True,
    thin: int = 1,
) -> xr.DataArray:
    r"""Return posterior draws of a margin's probabilities, for functionals that are evaluated draw by draw.

    Parameters
    ----------
    trace
        The fit of a latent class model.
    names
        Attributes of the margin, in the order of its axes. Only their cells are enumerated (65,536 at most), never the
        full table.
    target
        ``"population"``: the probabilities that the records were drawn from. ``"records"``: the shares among the n
        confidential records, about which the released margins say more (needs `release`, a trace with
        ``exact_counts``).
    release
        What was fitted: for ``"records"``, and for the population where it varies about the mixture (a trace with
        ``overdispersion``).
    random_seed
        Seed of the draws given the mixture and the released margins' counts, for the same.
    whole
        For ``"records"``: make each draw a table of whole counts that sums to n, or to one record where a draw of a
        noisy n is less (rounded by largest remainders), so that an interval can say that a cell is empty. Without it
        counts are real and at least a millionth of a record, so that log-odds stay finite.
    thin
        Take every so many-th draw of each chain. Cells times draws are at most 67 million (11,184 cells of 6,000
        draws).

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, then the attributes; each draw sums to one.

    Raises
    ------
    InputError
        If the trace is not of a latent class model, an attribute is unknown, there are too many cells or draws, or
        `release` is missing where it is needed, or not the one that the trace was fitted to.

    Notes
    -----
    For the records' own table, n records are drawn from each draw's mixture and the table is then fitted to that draw's
    ``exact_counts`` of all released margins inside it (iterative proportional fitting): what the release says of the
    records is kept, and what it leaves open varies as sampling does. A margin inside a released table follows
    ``exact_counts``. Counts below zero are set to zero.

    Examples
    --------
    With `trace` a fit of `release`, tables of race, sex and income:

    >>> draws = margin_draws(trace, ["race", "income"])
    >>> draws.sizes
    Frozen({'chain': 2, 'draw': 128, 'race': 2, 'income': 2})
    >>> population = draws.sel(income=1).sum("race")
    >>> records = margin_draws(trace, ["income"], target="records", release=release, random_seed=1).sel(income=1)
    >>> bool(records.std() < population.std())  # sampling does not count
    True
    """
    domain = fitted_domain(trace)
    margin = domain.project(names)
    one_of(target, ("population", "records"), "target")
    if margin.size > MAX_CELLS:
        raise InputError(
            f"the margin {' x '.join(margin.names)} has {margin.size:,} cells, more than the {MAX_CELLS:,} that "
            "are taken draw by draw; name fewer attributes, or fit synthetic data sets (dpbayes.latent_class.combine)"
        )
    if release is not None:
        check_fitted(trace, release)
    thin = whole_number(thin, "thin", remedy="1 takes every draw")
    posterior = trace["posterior"].to_dataset().isel(draw=slice(None, None, thin))
    sizes = posterior.sizes
    draws, numbers = sizes["chain"] * sizes["draw"], sizes["chain"] * sizes["draw"] * margin.size
    if numbers > MAX_NUMBERS:
        raise InputError(
            f"{margin.size:,} cells of {draws:,} draws are {numbers:,} numbers, more than the {MAX_NUMBERS:,} that are "
            f"held; pass thin={thin * math.ceil(numbers / MAX_NUMBERS)}, or name fewer attributes"
        )
    mixture = Mixture.of(posterior, fitted_support(trace, domain))
    if target == "population":
        values = population_shares(posterior, release, mixture, margin.names, random_seed)
    else:
        values = record_shares(posterior, release, mixture, margin.names, random_seed, whole)
    coords = {"chain": posterior["chain"], "draw": posterior["draw"]}
    levels = {attribute.name: list(attribute.levels) for attribute in margin}
    shaped = values.reshape(sizes["chain"], sizes["draw"], *margin.shape)
    return xr.DataArray(shaped, dims=("chain", "draw", *margin.names), coords=coords | levels, name="probability")


# --- regressions -----------------------------------------------------------------------------------------------------

_TOLERANCE = 1e-8  # of the last step's change in any cell's log-odds: the score of a rare cell is small from the start
# Changes below this that no longer halve from step to step are rounding: where the baseline itself is rare, its
# log-odds are a difference of sums over common cells.
_ROUNDING = 1e-3
_LONGEST = 5.0  # a step's change in log-odds
_MOST_STEPS = 100


def weighted_linear(weights: Floats, matrix: Floats, outcome: Floats) -> Floats:
    """Solve weighted least squares for many sets of weights."""
    back = _from_common_cells(weights, matrix)
    basis = matrix @ back
    fitted = np.linalg.solve(_gram(weights, basis), ((weights * outcome) @ basis)[..., None])[..., 0]
    return np.asarray(fitted @ back.T)


def weighted_logistic(weights: Floats, matrix: Floats, outcome: Floats) -> Floats:
    """Maximize the weighted logistic log-likelihood for many sets of weights, in the log-odds of common cells.

    With a rare baseline the coefficients themselves would be small differences of sums over all other cells.
    """
    back = _from_common_cells(weights, matrix)
    basis, beta = matrix @ back, np.zeros((len(weights), matrix.shape[1]))
    active, last = np.arange(len(weights)), np.full(len(weights), np.inf)
    for _ in range(_MOST_STEPS):
        step = _newton_step(beta[active], weights[active], basis, outcome)
        beta[active] += step
        change = np.abs(step @ basis.T).max(axis=1)
        open_ = (change > _TOLERANCE) & ((change > _ROUNDING) | (change <= last / 2))
        active, last = active[open_], change[open_]
        if not active.size:
            return np.asarray(beta @ back.T)
    raise InputError(
        f"the regression has no finite solution in {active.size} of {len(weights)} draws: a term separates the "
        "outcome; leave a term out"
    )


def _from_common_cells(weights: Floats, matrix: Floats) -> Floats:
    """Return the map from linear predictors of the most common cells to coefficients, shape ``(terms, terms)``."""
    # Rows such as (1, 2019, 2019^2) and (1, 2020, 2020^2) are all but parallel; those of an orthonormal basis are not.
    rows = np.linalg.qr(matrix)[0]
    found: list[int] = []
    basis = np.empty((0, matrix.shape[1]))
    for cell in np.argsort(-weights.mean(axis=0), kind="stable").tolist():
        row = rows[cell]
        rest = row - (row @ basis.T) @ basis
        if (size := np.linalg.norm(rest)) > 1e-9 * np.linalg.norm(row):
            found.append(cell)
            basis = np.vstack([basis, rest / size])
        if len(found) == matrix.shape[1]:
            break
    return np.asarray(np.linalg.inv(matrix[found]))


def _newton_step(beta: Floats, weights: Floats, matrix: Floats, outcome: Floats) -> Floats:
    """Return a step of Newton's method that does not go far beyond the best point on its line."""
    eta = beta @ matrix.T
    one, zero = expit(eta), expit(-eta)  # each with all its digits however small it is
    score = (weights * (outcome * zero - (1 - outcome) * one)) @ matrix
    curvature = _gram(weights * one * zero, matrix)
    # In units of the coefficients' own curvatures a rare cell's is as large as a common one's.
    scale = np.sqrt(np.maximum(np.diagonal(curvature, axis1=1, axis2=2), np.finfo(float).tiny))
    curvature /= scale[:, :, None] * scale[:, None, :]
    # A ridge far below the curvature of any sensible fit: steps stay finite where terms are all but collinear.
    curvature += 1e-14 * np.eye(matrix.shape[1])
    step = np.linalg.solve(curvature, (score / scale)[..., None])[..., 0] / scale
    step /= np.maximum(1.0, np.abs(step @ matrix.T).max(axis=1, keepdims=True) / _LONGEST)
    rise = (score * step).sum(axis=1)
    for _ in range(30):  # halve the steps that go too far: the slope there points back, half as steep or more
        along = step @ matrix.T
        one, zero = expit(eta + along), expit(-eta - along)
        slope = (weights * (outcome * zero - (1 - outcome) * one) * along).sum(axis=1)
        too_far = (slope < -0.5 * rise) & (np.abs(along).max(axis=1) > _ROUNDING)
        if not too_far.any():
            break
        step[too_far] /= 2
        rise[too_far] /= 2
    return np.asarray(step)


def _gram(weights: Floats, matrix: Floats) -> Floats:
    """Return X' diag(w) X for each row w, by one product with the pairs of columns."""
    pairs = (matrix[:, :, None] * matrix[:, None, :]).reshape(len(matrix), -1)
    return (weights @ pairs).reshape(len(weights), matrix.shape[1], matrix.shape[1])


def functional(
    draws: xr.DataArray, function: Callable[[Floats], npt.ArrayLike], *, name: str = "value"
) -> xr.DataArray:
    """Evaluate a function of the cell probabilities at every draw.

    Parameters
    ----------
    draws
        What `dpbayes.latent_class.margin_draws` returned.
    function
        From one draw's probabilities, an array with one axis per attribute, to a number or an array of numbers, of the
        same shape for all draws.
    name
        Name of the result.

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, and one for each axis of what the function returns.

    Examples
    --------
    >>> import xarray as xr
    >>> p = xr.DataArray([[[0.2, 0.8], [0.5, 0.5]]], dims=("chain", "draw", "vote"))
    >>> functional(p, lambda cells: cells[1] / cells[0], name="odds").values
    array([[4., 1.]])
    """
    _check_draws(draws)
    given_function(function, "function", remedy="it takes one draw's probabilities")
    instance(name, str, "name", remedy="name the result")
    values = draws.transpose("chain", "draw", ...).to_numpy()
    rows = [np.asarray(function(cells)) for cells in values.reshape(-1, *values.shape[2:])]
    if len({row.shape for row in rows}) > 1:
        raise InputError(f"the function returned different shapes: {sorted({row.shape for row in rows})}")
    result = np.array(rows).reshape(*values.shape[:2], *rows[0].shape)
    dims = ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(rows[0].ndim)))
    coords = {dim: draws.coords[dim] for dim in ("chain", "draw") if dim in draws.coords}
    return xr.DataArray(result, dims=dims, coords=coords, name=name)


def regress(
    trace: xr.DataTree,
    formula: str,
    *,
    family: Literal["logistic", "linear"] = "logistic",
    target: Target = "population",
    release: Release | None = None,
    random_seed: int | None = None,
    thin: int = 1,
) -> xr.DataArray:
    r"""Return the posterior of a regression of one attribute on others.

    .. math:: \beta(P) = \arg\max_\beta \sum_x P(x)\, \ell(y_x, z_x^\top \beta),

    solved for all draws at once (Newton's method for the logistic family).

    Parameters
    ----------
    trace
        The fit of a latent class model.
    formula
        ``outcome ~ terms`` in Wilkinson's notation. Levels that are numbers enter as numbers, unless written as
        C(name); text levels enter as indicators against the first level. A name that is more than letters, digits and
        underscores stands in backticks. For a text outcome write ``{sex == "f"} ~ age``. Terms
        see one row per cell of the attributes in the formula; the fit has those rows that structural zeros leave
        possible.
    family
        ``"logistic"``: the outcome lies between 0 and 1. ``"linear"``: least squares.
    target, release, random_seed
        Whose coefficients: those of the population, or those that the n confidential records would give; see
        `dpbayes.latent_class.margin_draws`. The second interval is the narrower one.
    thin
        Take every so many-th draw of each chain.

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, ``term``. `summarize` gives intervals.

    Raises
    ------
    InputError
        If the formula does not parse, names unknown attributes, its terms are collinear over the possible cells, or a
        draw has no finite solution; or as `dpbayes.latent_class.margin_draws`.

    Notes
    -----
    The interval is one for :math:`\beta(P)`, which the attributes' joint distribution defines whether or not the
    regression holds exactly, as is a sandwich interval from confidential records.

    Examples
    --------
    With `trace` a fit of tables of race, sex and income:

    >>> coefficients = regress(trace, "income ~ race + sex")
    >>> coefficients.sizes
    Frozen({'chain': 2, 'draw': 128, 'term': 3})
    >>> list(summarize(coefficients))  # a number for each term
    ['mean', 'stddev', 'lower', 'upper']
    """
    one_of(family, ("logistic", "linear"), "family")
    instance(formula, str, "formula", remedy="such as 'income ~ race + sex'")
    domain = fitted_domain(trace)
    names, outcome, matrix, terms = _cells_design(domain, formula)
    possible = fitted_support(trace, domain).possible(names)
    outcome, matrix = outcome[possible], matrix[possible]
    _check_rank(matrix, terms, formula)
    if family == "logistic" and not np.all((outcome >= 0) & (outcome <= 1)):
        raise InputError(
            f"a logistic outcome lies between 0 and 1, and that of {formula!r} takes {sorted(set(outcome.tolist()))}; "
            "write a comparison, as in {age == 2} ~ sex, or use family='linear'"
        )
    # Real counts: an empty cell would put a coefficient at infinity.
    draws = margin_draws(trace, names, target=target, release=release, random_seed=random_seed, whole=False, thin=thin)
    values = draws.to_numpy()
    solve = weighted_logistic if family == "logistic" else weighted_linear
    weights = values.reshape(-1, len(possible))[:, possible]
    coefficients = solve(weights / weights.sum(axis=1, keepdims=True), matrix, outcome)
    coords = {"chain": draws.chain, "draw": draws.draw, "term": list(terms)}
    shaped = coefficients.reshape(*values.shape[:2], -1)
    return xr.DataArray(shaped, dims=("chain", "draw", "term"), coords=coords, name="coefficient")


def summarize(draws: xr.DataArray, *, prob: float = 0.95) -> xr.Dataset:
    """Summarize posterior draws.

    Parameters
    ----------
    draws
        Dims ``chain``, ``draw`` and any others.
    prob
        Probability of the equal-tailed interval.

    Returns
    -------
    xarray.Dataset
        ``mean``, ``stddev``, ``lower``, ``upper`` over the other dims.

    Examples
    --------
    >>> import xarray as xr
    >>> draws = xr.DataArray(np.arange(101.0)[None], dims=("chain", "draw"))
    >>> summary = summarize(draws, prob=0.9)
    >>> [round(summary[name].item(), 9) for name in ("mean", "lower", "upper")]
    [50.0, 5.0, 95.0]
    """
    _check_draws(draws)
    strictly_between(prob, "prob", 0, 1, remedy="0.95 is usual")
    over = ("chain", "draw")
    ends = draws.quantile([(1 - prob) / 2, (1 + prob) / 2], over)
    lower, upper = ends.isel(quantile=0, drop=True), ends.isel(quantile=1, drop=True)
    return xr.Dataset({"mean": draws.mean(over), "stddev": draws.std(over, ddof=1), "lower": lower, "upper": upper})


def _check_draws(draws: Any) -> None:
    remedy = "margin_draws and regress return them"
    dims = instance(draws, xr.DataArray, "draws", remedy=remedy).dims
    if not {"chain", "draw"} <= set(dims):
        raise InputError(f"draws must have the dimensions chain and draw, got {dims}; {remedy}")


def _cells_design(domain: Domain, formula: str) -> tuple[tuple[str, ...], Floats, Floats, tuple[str, ...]]:
    """Return the attributes in a formula, and outcome and design with one row per cell of theirs."""
    from formulaic import Formula, model_matrix
    from formulaic.errors import FormulaicError

    # A name in backticks may hold what formulaic takes for its own, such as a full stop.
    tokens = {f"quoted_attribute_{axis}_": name for axis, name in enumerate(domain.names)}
    asked = formula
    for token, name in tokens.items():
        asked = asked.replace(f"`{name}`", token)
    try:
        parsed: Any = Formula(asked)
        used = {tokens.get(str(name), str(name)) for name in parsed.required_variables}
        two_sided = hasattr(parsed, "lhs") and hasattr(parsed, "rhs")
    except (FormulaicError, SyntaxError, AttributeError, TypeError) as error:
        raise InputError(f"formula {formula!r} does not parse as 'outcome ~ terms': {error}") from error
    if not two_sided:
        raise InputError(f"formula {formula!r} has no outcome; write 'outcome ~ terms'")
    if unknown := sorted(used - set(domain.names)):
        raise InputError(
            f"formula {formula!r} names {unknown}; the attributes are {list(domain.names)}, in `backticks` where a "
            "name is more than letters, digits and underscores"
        )
    names = tuple(name for name in domain.names if name in used)
    levels = [domain[name].levels for name in names]
    grid = np.indices([len(of) for of in levels]).reshape(len(names), -1)
    columns = {name: _column(of, index) for name, of, index in zip(names, levels, grid, strict=True)}
    columns |= {token: columns[name] for token, name in tokens.items() if name in columns}
    try:
        matrices = model_matrix(parsed, pd.DataFrame(columns), context={}, output="pandas")
    except (FormulaicError, NameError, TypeError, ValueError) as error:
        raise InputError(f"formula {formula!r} cannot be evaluated on the cells: {error}") from error
    left, right = matrices.lhs, matrices.rhs
    if left.shape[1] != 1:
        raise InputError(
            f"the outcome of {formula!r} has the columns {list(left.columns)}; write a comparison with one level, as "
            'in {sex == "f"} ~ age'
        )
    terms = [
        reduce(lambda term, token: term.replace(token, tokens[token]), tokens, str(name)) for name in right.columns
    ]
    matrix = np.ascontiguousarray(right.to_numpy(dtype=np.float64))
    return names, left.to_numpy(dtype=np.float64)[:, 0], matrix, tuple(terms)


def _check_rank(matrix: Floats, terms: Sequence[str], formula: str) -> None:
    """Refuse terms whose coefficients the cells do not determine, by the names of those that take part."""
    if not terms:
        raise InputError(f"the terms of {formula!r} are empty; name one, or an intercept: 'outcome ~ 1'")
    # Each column in its own unit: beside the square of a year, a constant would look like nothing.
    scaled = matrix / np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    null = np.eye(len(terms))[np.linalg.matrix_rank(scaled) :] @ np.linalg.svd(scaled)[2]
    if len(null):
        collinear = [term for term, part in zip(terms, np.abs(null).max(axis=0), strict=True) if part > 1e-9]
        raise InputError(
            f"the terms {collinear} of {formula!r} are collinear over the cells that can occur: no record tells their "
            "coefficients apart; leave one out"
        )


def _column(levels: tuple[Any, ...], index: npt.NDArray[np.intp]) -> Any:
    if all(isinstance(level, int) for level in levels):
        return np.array(levels, dtype=np.float64)[index]
    return pd.Categorical.from_codes(index, categories=[str(level) for level in levels])
