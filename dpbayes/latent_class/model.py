"""The latent class mixture, fitted to released tables with their noise in the likelihood."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from dpbayes.errors import AccuracyWarning
from dpbayes.inference.noisy_counts import ReleasedNoise, noisy_counts, release_noise, released_limits
from dpbayes.latent_class.analysis import Mixture, population_margins, population_shares
from dpbayes.latent_class.design import (
    MAX_EXACT_CELLS,
    MAX_RECORDED_CELLS,
    OVERDISPERSION,
    PROFILE_PRIOR,
    Design,
    Likelihood,
    Profiles,
    cell_labels,
    checked_concentration,
    default_concentration,
    default_likelihood,
    default_overdispersion,
    dimension_name,
    few_classes_hold_most,
    margin_name,
    noise_keeps_its_law,
    profile_name,
    record_numbers,
    single_precision_suffices,
    starts_near_shares,
)
from dpbayes.latent_class.kernel import NO_SCALE, NO_VARIANCE, CellShares, ReleasedCells, SumsWithin
from dpbayes.latent_class.likelihood import (
    NUGGET,
    Block,
    Columns,
    Products,
    Tables,
    as_input,
    classes_of,
    conditioned,
    of_columns,
    release_data,
    released_law,
    rest_of,
    turned,
)
from dpbayes.latent_class.planning import check_memory, cost_of
from dpbayes.latent_class.zeros import Impossible
from dpbayes.privacy.release import Release, check_of_records

START_SPREAD = 0.3  # standard deviation of the starts of chains, on the unconstrained scale
START_OVERDISPERSION = 30.0  # where the overdispersion of chains starts
_MANY = {"level_scores", "level_deviations"}  # with profiles, most of the numbers that a draw has
LOW_NOISE = 2.0  # standard deviation of a count's noise below which the sampling's normal law is seen through it


def build_model(
    release: Release,
    *,
    n_classes: int | None = None,
    concentration: float | Sequence[float] | None = None,
    profiles: Profiles = "common",
    spread: float | None = None,
    profile_prior: float = PROFILE_PRIOR,
    likelihood: Likelihood | None = None,
    overdispersion: bool | None = None,
    margins: Sequence[Sequence[str]] | None = None,
    record_cells: bool | None = None,
    impossible: Sequence[Impossible] = (),
) -> pm.Model:
    r"""State the latent class model of a release.

    .. math:: \pi_h = V_h \prod_{l<h} (1 - V_l), \quad V_h \sim \text{Beta}(1, \alpha), \quad
              \psi_{hjl} \propto p_{jl}\, e^{\sigma z_{hjl}}, \quad z \sim N(0, 1), \quad
              P(x) = \sum_h \pi_h \prod_j \psi_{h j x_j},

    with n records drawn from P behind all released tables, and the release's own noise on every count. The p are the
    levels' shares by the release itself (`dpbayes.latent_class.likelihood.released_shares`): data are used twice there,
    for what every table says most precisely.

    Parameters
    ----------
    release
        The noisy tables: attributes of any number of levels, tables of any number of attributes.
    n_classes
        Number of classes k at which the sticks are cut off; by default 1.4 times the root of the number of independent
        counts, at least 8 and at most 20.
    concentration
        The stick-breaking concentration alpha: a positive number, or shape and rate of its gamma prior. By default
        (40, 10), which keeps alpha near 4, so that all classes stay in use; where the ratio of sampling to noise is up
        to 1/50, (40, 40): the prior decides there how strong dependence may be, and fewer classes in use leave more.
    profiles, profile_prior
        ``"common"``: every class varies about the released shares, as above. ``"dirichlet"``, as the paper: profiles
        are Dirichlet(a, ..., a), independent of the release, a being `profile_prior`.
    spread
        The scale sigma of ``"common"`` profiles; by default 6, or 4 where classes times levels are more than 1,500, or
        2.5 where the population varies by default. Small values hold classes alike, and are confidently wrong where
        noise is large.
    likelihood
        ``"cells"``: the classes' counts are unknowns, and what is left of each table is integrated against its noise
        cell by cell (`dpbayes.latent_class.likelihood`). ``"tables"``: the exact counts are jointly normal, with the
        covariance of sampling that a pilot fit gives; up to 100 cells, or 600 where sampling is not more than noise,
        the noise keeps its own law, else only its variances. Right where noise is small against sampling, at a cost of
        the square of the number of cells. By default ``"tables"`` for at most 100 cells, or where the ratio of sampling
        to noise is above 1/2 and there are at most 1,500.
    overdispersion
        Whether the population varies about the mixture, where that is too coarse: Q ~ Dirichlet(kappa P), so that the
        exact counts have 1 + ``overdispersion`` times the covariance of a multinomial, that being a priori log-normal
        of median 1 and scale 2. Intervals are then as wide as the classes' misfit asks for, and the population is Q. By
        default with ``"cells"`` where the ratio of sampling to noise is above 1/2 and there are more than 1,500 counts,
        and at most 20,000.
    margins
        Attribute sets whose probabilities are recorded besides the released ones, each as ``margin_A_B``; these names
        must differ. What a variable's name may not have, such as a slash, stands there as in a URL: ``pay%2Fhour``.
    record_cells
        Whether to record the full table's probabilities as ``cell``; by default where it has at most 4,096 cells.
    impossible
        Structural zeros: combinations of levels that cannot occur, such as ``[{"age": "child", "married": 1}]``, each a
        level or several for some attributes. Records, and all recorded probabilities but ``weights`` and ``profiles``,
        are conditional on the others. The constant data keep them as ``structural_zeros`` for synthesis.

    Returns
    -------
    pymc.Model
        Free: ``alpha`` (unless fixed); ``stick`` (break); ``level_scores`` z (class, level), or ``level_weights`` of
        Dirichlet profiles; standard normal deviations of the exact counts from what P says: with likelihood
        ``"tables"`` ``count_deviations`` (summed out where the noise is normal or the cells are many), with ``"cells"``
        ``size_deviations`` (class) and ``level_deviations`` (class, level), or with structural zeros (case), a class in
        a case, and (case, combination), the possible combinations of attributes that zeros tie together; ``n``, where
        only a noisy number of records was released, observed as ``released_n``
        (`dpbayes.latent_class.design.prior_of_n`); and ``overdispersion``, where the population varies: in traces the
        recorded probabilities are then draws of the population's own.
        Recorded: ``weights`` (class); ``weights_sorted`` (rank, descending); ``profiles`` (class, level), the levels of
        all attributes side by side, in traces ``profile_A`` (class, A) for each attribute A; ``margin`` (count), the
        probabilities of all released cells, table after table, in C order (of more than 20,000, ``margin_sample``,
        those of evenly spaced ones, in its place); ``cell``, with one dimension an attribute; ``margin_A_B``; in traces
        ``exact_counts`` (count), draws of the confidential tables' own counts (of at most 20,000 cells), whose mean
        estimates those tables better than n ``margin``, the estimate of what they were sampled from.
        Observed: ``released`` (count), its data in ``released_counts``.
        The attribute ``convergence_variables`` names what convergence is judged on.

    Raises
    ------
    InputError
        If an argument is out of range, an attribute has the name of a part of the model (``class``, ``margin``, ...),
        an attribute set does not fit the domain, or the fit would not fit into memory.

    Warns
    -----
    AccuracyWarning
        If noise has a standard deviation below 2 counts: intervals of cells of few records can be far too narrow.

    References
    ----------
    Barrientos, A. F. (2021). A latent class modeling approach for differentially private synthetic data for contingency
    tables; Dunson, D. B. and Xing, C. (2009), JASA 104, 1042-1051.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=0.25, rng=np.random.default_rng(1))
    >>> model = build_model(release, n_classes=5)
    >>> [variable.name for variable in model.free_RVs]
    ['alpha', 'stick', 'level_scores', 'count_deviations']
    """
    check_of_records(release, "a model")
    design = Design.of(
        release.domain,
        [table.attributes for table in release.tables],
        n_classes=n_classes,
        concentration=concentration,
        profiles=profiles,
        spread=spread,
        profile_prior=profile_prior,
        likelihood=likelihood,
        overdispersion=overdispersion,
        margins=margins,
        impossible=impossible,
    )
    noise = _checked_noise(release)
    varies = default_overdispersion(release) if overdispersion is None else overdispersion
    form, support = likelihood or default_likelihood(release, overdispersion=overdispersion), design.support
    cost = cost_of(release.domain, design.tables, n_classes=design.n_classes, likelihood=form, impossible=impossible)
    check_memory(cost)
    tables, data = Tables.of(release, support), release_data(release, form, spread=spread, support=support)
    alpha = default_concentration(release) if concentration is None else checked_concentration(concentration)
    k, ends = design.n_classes, as_input("ends", np.cumsum(release.domain.shape))
    with pm.Model(coords=_coords(release, design)) as model:
        given = {name: pm.Data(name, value, dims=_DATA_DIMS.get(name)) for name, value in data.items()}
        n = _noisy_total(release, given) if "released_n_data" in data else given["n_records"]
        if isinstance(alpha, tuple):
            prior = pm.Data("concentration", np.asarray(alpha))
            alpha = pm.Gamma("alpha", alpha=prior[0], beta=prior[1])
        stick = pm.Beta("stick", alpha=1.0, beta=alpha, dims="break") if k > 1 else pt.zeros(0)
        weights = pm.Deterministic("weights", _broken(stick, k), dims="class")
        pm.Deterministic("weights_sorted", -pt.sort(-weights), dims="rank")
        if profiles == "common":
            scores = pm.Normal("level_scores", dims=("class", "level"))
            levels = given["released_shares"] * pt.exp(given["spread"] * scores)
        else:
            levels = pm.Gamma("level_weights", alpha=profile_prior, beta=1.0, dims=("class", "level"))
        psi = pm.Deterministic("profiles", levels / SumsWithin()(levels, ends), dims=("class", "level"))
        mixture = conditioned(support, weights, psi)
        margin = _recorded(release, design, mixture, record_cells)
        if form == "tables":
            _jointly(release, noise, given, n * margin)
        else:
            class_dim, level_dim = ("case", "combination") if support.cells else ("class", "level")
            sizes = pm.Normal("size_deviations", dims=class_dim)
            deviations = pm.Normal("level_deviations", dims=(class_dim, level_dim))
            dispersion = 1.0 + pm.LogNormal("overdispersion", sigma=OVERDISPERSION) if varies else pt.ones(())
            classes = of_columns(tables.columns, (*mixture, n, dispersion, sizes, deviations))
            _cell_by_cell(release, noise, tables, given, classes)
    _prepare_chains(model, release, tables, design)
    return model


_OF_BLOCK = ("floor", "scale", "limit", "rows", "columns", "bounds")
_DATA_DIMS = {"released_counts": "count", "released_shares": "level"}


def _coords(release: Release, design: Design) -> dict[str, Sequence[Any]]:
    domain, n_classes = release.domain, design.n_classes
    coords: dict[str, Sequence[Any]] = {
        "class": range(n_classes),
        "rank": range(n_classes),
        "break": range(n_classes - 1),
        "level": [f"{attribute.name}={level}" for attribute in domain for level in attribute.levels],
        "count": [label for table in release.tables for label in cell_labels(domain, table.attributes)],
    }
    return coords | design.support.coords(n_classes) | {dimension_name(one.name): one.levels for one in domain}


def _prepare_chains(model: pm.Model, release: Release, tables: Tables, design: Design) -> None:
    """Say what is drawn given the chains' draws, what their convergence is judged on, and where they start.

    Few classes hold most records at low powers of the likelihood and many do at power 1: where noise is small, chains
    that are annealed from the prior would stay behind. They start with profiles near the released shares, and classes
    about equal; or of the prior's sizes, held at first, where noise leaves no more classes than the prior has: a mode
    has all.
    """
    model.complete_posterior = Completion(release, tables, design.recorded)
    # Classes may swap labels between chains: convergence counts on what does not depend on them.
    judged = ["margin", "margin_sample", "cell", *map(margin_name, design.margins)]
    model.convergence_variables = tuple(name for name in judged if name in model.named_vars)
    if "level_scores" not in model.named_vars or not starts_near_shares(release):
        return
    few = few_classes_hold_most(release)
    centres: dict[str, Any] = {} if few else {"stick": -np.log(np.arange(design.n_classes - 1, 0, -1))}
    centres |= {"level_scores": 0.0}
    if "overdispersion" in model.named_vars:  # from above: the likelihood is flat until the classes fit
        centres |= {"overdispersion": np.log(START_OVERDISPERSION), "size_deviations": 0.0, "level_deviations": 0.0}
    model.starts = {name: (centre, START_SPREAD) for name, centre in centres.items() if name in model.named_vars}
    model.held = ("alpha", "stick") if few else ()


def _broken(stick: Any, k: int) -> Any:
    """Return the class weights: sticks broken off one after the other."""
    if k == 1:
        return pt.ones(1)
    own, before = as_input("own", np.eye(k, k - 1)), as_input("before", np.tri(k, k - 1, -1))
    return pt.exp(pt.sum(own * pt.log(stick) + before * pt.log1p(-stick), axis=1))


def _recorded(release: Release, design: Design, mixture: tuple[Any, Any], record_cells: bool | None) -> Any:
    """Record zeros and probabilities: of the released cells, of margins asked for, of all cells; return the first."""
    domain, support = release.domain, design.support

    def margin(sets: Sequence[Sequence[str]], name: str) -> Any:
        columns = Columns.of(support, sets)
        cells = [columns.factors(place) for place in range(len(sets))]
        possible = [support.possible(names) for names in sets]
        kept = [own[known[at]] for (at, own), known in zip(cells, possible, strict=True)]
        products, known = Products.of(columns.padded(kept), columns.of_columns), np.concatenate(possible)
        parts = np.full((len(known), 2), -1)
        parts[known] = products.parts
        profiles = columns.summed(mixture[1], name)
        arrays = as_input(f"left_of_{name}", products.left), as_input(f"parts_of_{name}", parts)
        return CellShares()(mixture[0], profiles, *arrays)

    tables = [table.attributes for table in release.tables]
    released, step = margin(tables, "margin"), -(-release.n_counts // MAX_EXACT_CELLS)
    if step == 1:
        pm.Deterministic("margin", released, dims="count")
    else:  # of very many those of evenly spaced ones
        pm.Deterministic("margin_sample", released[::step])
    with_cells = domain.size <= MAX_RECORDED_CELLS if record_cells is None else record_cells
    for name, names in design.recorded.items():
        if name == "cell" and not with_cells:
            continue
        values = margin([names], name).reshape(domain.project(names).shape)
        pm.Deterministic(name, values, dims=tuple(map(dimension_name, names)))
    if support.cells:
        coords = {"zero_part": range(len(support.cells)), "attribute": domain.names}
        pm.modelcontext(None).add_coords(coords)
        pm.Data("structural_zeros", support.to_array(), dims=("zero_part", "attribute"))
    return released


def _jointly(release: Release, noise: ReleasedNoise, given: dict[str, Any], mean: Any) -> None:
    """Add the released counts to the model, all tables at once: the exact ones are summed out where noise is normal.

    Where a threshold may hold counts back they are not.
    """
    limits, deviations = noise.limits, []
    arrays = [given[name] for name in ("sampling_root", "count_gain", "count_root")]
    own_law = bool(np.any(noise.coefficients[1])) and noise_keeps_its_law(release)
    parts: tuple[Any, ...] = (-0.5 * np.log(2.0 * np.pi * noise.stddev**2), 0.5 / noise.stddev**2)
    free = own_law or limits is not None
    if free:
        parts = noise.coefficients if own_law else (parts[0], 0.0 * parts[0], parts[1])
        deviations = [pm.Normal("count_deviations", shape=given["sampling_root"].shape[1])]
    arrays += [as_input(f"noise_{i}", part) for i, part in enumerate(parts)]

    def logp_given(value: Any, mean: Any, z: Any, root: Any, gain: Any, turn: Any, *law: Any) -> Any:
        constant, linear, quadratic = law
        off = (value if limits is None else pt.maximum(value, limits)) - mean
        moved = pt.dot(turn, pt.dot(gain, off) + z)
        left = off - pt.dot(root, moved)
        each = constant - linear * pt.abs(left) - quadratic * pt.sqr(left)
        density = pt.sum(each if limits is None else pt.switch(pt.isinf(value), noise.log_below(left), each))
        return density + 0.5 * (pt.sum(pt.sqr(z)) - pt.sum(pt.sqr(moved))) + pt.sum(pt.log(pt.diagonal(turn)))

    def logp(value: Any, mean: Any, root: Any, gain: Any, turn: Any, *law: Any) -> Any:
        constant, quadratic = law
        off = value - mean
        density = pt.sum(constant - quadratic * pt.sqr(off)) + 0.5 * pt.sum(pt.sqr(pt.dot(gain, off)))
        return density + pt.sum(pt.log(pt.diagonal(turn)))

    def dist(mean: Any, *inputs: Any) -> Any:
        root = inputs[len(deviations)]
        return noise.around(mean + pt.dot(root, pm.Normal.dist(shape=root.shape[1])), inputs[-1])

    law = ",(c)" * len(parts)
    pm.CustomDist(
        "released",
        mean,
        *deviations,
        *arrays,
        dist=dist,
        logp=logp_given if free else logp,
        class_name="ReleasedTables",
        signature=f"(c){',(e)' * free},(c,e),(e,c),(e,e){law}->(c)",
        observed=given["released_counts"],
        dims="count",
    )


def _cell_by_cell(
    release: Release, noise: ReleasedNoise, tables: Tables, given: dict[str, Any], classes: tuple[Any, ...]
) -> None:
    """Add the released counts to the model, cell by cell given the classes' counts."""
    arrays, single = _cell_inputs(release, tables, given), single_precision_suffices(release)
    laws = [(block.kind, block.products.left.shape[1] + 1) for block in tables.blocks]

    def logp(value: Any, *inputs: Any) -> Any:
        classes, at, total = inputs[:6], dict(zip(arrays, inputs[6:], strict=True)), 0.0
        for kind, _ in laws:
            places, *own = (at[f"{kind}_{name}"] for name in ("places", *_OF_BLOCK))
            turn, counts = (at["turn"], at["turned"]) if kind == "gaussian" else (at["no_turn"], value)
            entries = pt.concatenate([counts, [0.0]])[places]
            total += ReleasedCells(single=single)(*classes, turn, at["ends"], entries, *own)[0]
        return total

    def exact(classes: Any, at: dict[str, Any], turn: Any | None) -> tuple[Any, Any]:
        weights, psi, n, dispersion, sizes, deviations = classes
        counted = classes_of(weights, psi, n, dispersion, sizes, deviations, at["ends"])
        turns = {"gaussian": turn}
        found = [
            released_law(counted, (at[f"{kind}_left"], at[f"{kind}_parts"]), width, turns.get(kind))
            for kind, width in laws
        ]
        # Impossible cells hold nobody.
        last = [[0.0]] if sum(len(block.places) for block in tables.blocks) < release.n_counts else []
        mean, variance = (pt.concatenate([*parts, *last])[at["order"]] for parts in zip(*found, strict=True))
        return mean, variance

    def dist(*inputs: Any) -> Any:
        mean, variance = exact(inputs[:6], dict(zip(arrays, inputs[6:-1], strict=True)), None)
        return noise.around(pm.Normal.dist(mean, pt.sqrt(variance)), inputs[-1])

    if release.n_counts <= MAX_EXACT_CELLS:
        mean, variance = exact(classes, arrays, given["rotation"])
        pm.Deterministic("given_mean", mean, dims="count")
        pm.Deterministic("given_variance", variance, dims="count")
    axes = {name: [f"{name}{axis}".replace("_", "") for axis in range(array.ndim)] for name, array in arrays.items()}
    shapes = ["(k)", "(k,l)", "()", "()", "(k)", "(k,l)", *(f"({','.join(own)})" for own in axes.values())]
    pm.CustomDist(
        "released",
        *classes,
        *arrays.values(),
        dist=dist,
        logp=logp,
        class_name="ReleasedCells",
        signature=",".join(shapes) + "->(c)",
        observed=given["released_counts"],
        dims="count",
    )


def _cell_inputs(release: Release, tables: Tables, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the law of released cells takes besides the classes, by name."""
    limits = released_limits(release)
    fixed = {"order": tables.order(release.n_counts), "ends": tables.columns.ends, "no_turn": np.zeros((0, 0))}
    for block in tables.blocks:
        own = _block_data(block, limits[block.places])
        fixed |= {f"{block.kind}_{name}": value for name, value in own.items()}
    turned_ones = {"turn": given["rotation"], "turned": given["rotated_counts"]}
    return turned_ones | {name: as_input(name, value) for name, value in fixed.items()}


def _block_data(block: Block, limits: Any) -> dict[str, Any]:
    """Return a block's cells, and what the operation takes of it: by entry, of which some may be no cells."""
    by_entry, laplace = block.rectangles.entries, block.kind == "laplace"
    return {
        "left": block.products.left,
        "parts": block.products.parts,
        "places": by_entry(block.places, -1),
        "floor": by_entry(NUGGET * block.variances if laplace else block.variances, 1.0 if laplace else NO_VARIANCE),
        "scale": by_entry(np.sqrt(0.5 * block.variances), NO_SCALE) if laplace else np.zeros(0),
        "limit": by_entry(limits, -np.inf) if np.isfinite(limits).any() else np.zeros(0),
        "rows": block.rectangles.left,
        "columns": block.rectangles.right,
        "bounds": block.rectangles.bounds,
    }


def _noisy_total(release: Release, given: dict[str, Any]) -> Any:
    """Return the number of records where only a noisy number was released."""
    assert not isinstance(release.n, int)
    n = pm.LogNormal("n", mu=given["n_prior"][0], sigma=given["n_prior"][1])
    noisy_counts("released_n", n[None], ReleasedNoise((release.n.noise,)), observed=given["released_n_data"])
    return n


def _checked_noise(release: Release) -> ReleasedNoise:
    """Return the noise of a release, and warn where it is small; what divides as none would is refused."""
    noise = release_noise(release)
    low = [table for table in release.tables if table.variances.min() < LOW_NOISE**2]
    if low:
        names = ", ".join(" x ".join(table.attributes) for table in low[:3]) + (", ..." if len(low) > 3 else "")
        stddev = min(table.variances.min() for table in low) ** 0.5
        warnings.warn(
            f"the noise of {names} has a standard deviation of {stddev:.3g} counts, below {LOW_NOISE:g}: the "
            "likelihood takes the sampling of records for normal, and intervals of cells that hold few of them can be "
            "far too narrow; check the intervals by simulation (dpbayes sbc), or release with more noise",
            AccuracyWarning,
            stacklevel=3,
        )
    return noise


@dataclass(frozen=True, eq=False)
class Completion:
    """Adds to a posterior what needs no gradient: profiles by attribute, and the exact counts behind the release.

    Where the population varies about the mixture, its own shares take the mixture's place in what the model records:
    `recorded` says of which attributes, by the variable's name.
    """

    release: Release
    tables: Tables
    recorded: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """What a trace has that the model has not."""
        return ("exact_counts", *map(profile_name, self.release.domain.names))

    def __call__(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.Dataset:
        """Return the completed posterior."""
        ends = np.cumsum(self.release.domain.shape)
        profiles = posterior["profiles"]
        for attribute, end in zip(self.release.domain, ends, strict=True):
            dim = dimension_name(attribute.name)
            own = profiles.isel(level=slice(end - attribute.size, end)).drop_vars("level").rename(level=dim)
            posterior[profile_name(attribute.name)] = own.assign_coords({dim: list(attribute.levels)}).astype("float32")
        kept = posterior.drop_vars(["profiles", "level", "given_mean", "given_variance"], errors="ignore")
        for name in _MANY.intersection(kept):  # for memory: seven digits of a draw do
            kept[name] = kept[name].astype("float32")
        if "sampling_root" in data:
            kept["exact_counts"] = self._jointly(posterior, data, rng)
        elif "given_mean" in posterior:
            kept["exact_counts"] = self._cell_by_cell(posterior, data, rng)
        if "overdispersion" in posterior:
            self._vary(kept, rng)
            # Synthesis takes from it which tables the counts are of.
            kept["exact_counts"].attrs["tables"] = json.dumps([table.attributes for table in self.release.tables])
        return kept

    def _vary(self, posterior: xr.Dataset, rng: np.random.Generator) -> None:
        """Put draws of the population's shares in the place of the mixture's."""
        margin, exact, varied = (
            posterior[name].transpose("chain", "draw", ...) for name in ("margin", "exact_counts", "overdispersion")
        )
        law = record_numbers(posterior, self.release).to_numpy(), varied.to_numpy(), rng
        shares = population_margins(self.release, margin.to_numpy(), exact.to_numpy(), *law)
        posterior["margin"] = margin.copy(data=shares)
        mixture = Mixture.of(posterior, self.tables.columns.support)
        for name, attributes in self.recorded.items():
            if name not in posterior:
                continue
            shares = population_shares(posterior, self.release, mixture, attributes, rng)
            posterior[name] = posterior[name].copy(data=shares.reshape(posterior[name].shape))

    def _jointly(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.DataArray:
        """Return the counts that the deviations say (`likelihood.joint_law`), drawn here where they are summed out."""
        margin = posterior["margin"].transpose("chain", "draw", "count")
        mean = margin * (posterior["n"] if "n" in posterior else data["n_records"])
        # Those held back are pulled towards their limit, as in the model.
        off = np.maximum(data["released_counts"], released_limits(self.release)) - mean.to_numpy()
        pulled = off @ data["count_gain"].T
        free = "count_deviations" in posterior
        z = posterior["count_deviations"].to_numpy() if free else rng.standard_normal(pulled.shape)
        return mean + (pulled + z) @ data["count_root"].T @ data["sampling_root"].T

    def _cell_by_cell(self, posterior: xr.Dataset, data: Mapping[str, Any], rng: np.random.Generator) -> xr.DataArray:
        mean, limits = posterior["given_mean"].transpose("chain", "draw", "count"), released_limits(self.release)
        counts = np.array(mean.to_numpy())
        variances = posterior["given_variance"].transpose(*mean.dims).to_numpy()
        for own, spread in zip(counts, variances, strict=True):  # of a chain
            for block in self.tables.blocks:
                own[:, block.places] += rest_of(block, own, spread, data, limits, rng)
            own[:] = turned(self.release, self.tables.columns, data["rotation"].T, own)
        return mean.copy(data=counts)
