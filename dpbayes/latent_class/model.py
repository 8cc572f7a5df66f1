"""The latent class mixture, fitted to released tables with their noise in the likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pymc as pm

from dpbayes.errors import InputError
from dpbayes.inference.composite_counts import noisy_tables
from dpbayes.inference.constant_map import constant_map
from dpbayes.inference.joint_counts import NUGGET, effect_counts
from dpbayes.inference.joint_pairs import released_pairs
from dpbayes.inference.margin_operator import Cell, MarginOperator, margin_operator
from dpbayes.inference.noisy_counts import ReleasedNoise, noisy_counts
from dpbayes.inference.pair_counts import only_pairs
from dpbayes.latent_class.mixture import Mixture
from dpbayes.latent_class.possible_margins import possible_margins
from dpbayes.latent_class.released_shares import released_shares
from dpbayes.latent_class.zeros import Impossible, ZeroSet, conditioned
from dpbayes.privacy.release import NoisyTotal, Release

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain

__all__ = ["build_model"]

MAX_RECORDED_CELLS = 4096

# From so many effects on, factoring their covariance is most of what a gradient costs, and summing pairs out takes a
# third of the time. In between the two forms were not compared by fits, and the proven one stays.
_MANY_EFFECTS = 100

# Names of dimensions and variables of the model, which no attribute may have: its own dimension would be theirs.
_DIMENSIONS = {"attribute", "break", "chain", "class", "count", "draw", "effect", "pair", "rank", "zero_part"}
_SAMPLED = {"alpha", "deviates_of_profiles", "deviates_of_sizes", "effects", "n", "pair_levels", "stick"}
_RECORDED = {"cell", "exact_counts", "margin", "released", "released_n", "weights", "weights_sorted"}
_RESERVED = _DIMENSIONS | _SAMPLED | _RECORDED


def build_model(
    release: Release,
    *,
    n_classes: int = 8,
    likelihood: Literal["joint", "composite"] = "joint",
    concentration: float | tuple[float, float] = (40.0, 10.0),
    profile_prior: float = 0.25,
    margins: Sequence[Sequence[str]] | None = None,
    record_cells: bool | None = None,
    impossible: Sequence[Impossible] = (),
    sum_out_pairs: bool | None = None,
) -> pm.Model:
    r"""State the latent class model of a release.

    .. math:: \pi_h = V_h \prod_{l<h} (1 - V_l), \quad V_h \sim \text{Beta}(1, \alpha), \quad
              \psi^{(j)}_h \sim \text{Dirichlet}(a, \dots, a), \quad
              P(x) = \sum_h \pi_h \prod_j \psi^{(j)}_{h x_j},

    with n records drawn from P behind all released tables, and the release's own noise on every count.

    Parameters
    ----------
    release
        The noisy tables.
    n_classes
        Number of classes k at which the sticks are cut off.
    likelihood
        ``"joint"``: all tables are margins of one confidential table (`dpbayes.inference.joint_counts`).
        ``"composite"``, as the paper: every table has a multinomial of its own
        (`dpbayes.inference.composite_counts`); n must be public, and a gradient takes a hundred times as long on the
        ACS tables (2 ms).
    concentration
        The stick-breaking concentration alpha: a positive number, or shape and rate of its gamma prior. The default
        keeps alpha near 4, so that all classes stay in use: where alpha is small, the posterior is a few classes in one
        of many arrangements, and chains take thousands of draws to leave it.
    profile_prior
        The Dirichlet parameter a of every class profile. Small values let a class pin an attribute to one level; what
        the released margins leave open is then more varied than under the uniform prior.
    margins
        Attribute sets whose probabilities are recorded besides the released ones, each as ``margin_A_B``.
    record_cells
        Whether to record the full table's probabilities as ``cell``; by default where it has at most 4,096 cells.
    impossible
        Structural zeros: combinations of levels that cannot occur, such as ``[{"age": "child", "married": 1}]``, each a
        level or several for some attributes. Records are drawn from the mixture conditioned on the others, and all
        recorded probabilities but ``weights`` and ``profile_A`` are conditional ones; the trace holds the combinations
        as ``structural_zeros`` in its constant data, where synthesis finds them.
    sum_out_pairs
        Whether the joint likelihood integrates the counts of pairs of attributes out (`dpbayes.inference.joint_pairs`):
        the same law, at a cost that is linear in tables. Needs binary attributes, tables of at most two of them, and no
        structural zeros. By default where that is so and there are more than 100 effects.

    Returns
    -------
    pymc.Model
        Free: ``alpha`` (unless fixed); ``stick`` (break); ``profiles_of_2`` (class, attribute of 2 levels), the
        probability of the second level; ``profiles_of_L`` (class, attribute of L levels, level). With the joint
        likelihood also ``effects`` (effect), counts in records, or, where pairs are summed out, the standard normal
        ``deviates_of_sizes`` (class), ``deviates_of_profiles`` (class, attribute of 2 levels) and ``pair_levels``
        (pair), and ``effects`` is recorded; and ``n``, where only a noisy number of records was released (a priori
        log-normal of scale 1 about that number, which is observed as ``released_n``).
        Recorded: ``weights`` (class); ``weights_sorted`` (rank, descending); ``profile_A`` (class, A) for each
        attribute A; ``margin`` (count), the probabilities of all released cells, table after table, in C order;
        ``cell``, with one dimension an attribute; ``margin_A_B``; with the joint likelihood ``exact_counts`` (count),
        the confidential tables' own counts, whose posterior mean estimates those tables better than n ``margin``, the
        estimate of what they were sampled from.
        Observed: ``released`` (count), its data in ``released_counts``.
        The attribute ``gate_variables`` names what convergence is judged on.

    Raises
    ------
    InputError
        If an argument is out of range, or an attribute set does not fit the domain.

    References
    ----------
    Barrientos, A. F. (2021). A latent class modeling approach for differentially private synthetic data for contingency
    tables; Dunson, D. B. and Xing, C. (2009), JASA 104, 1042-1051.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> model = build_model(release, n_classes=5)
    >>> [variable.name for variable in model.free_RVs]
    ['alpha', 'stick', 'profiles_of_2', 'effects']
    """
    _check(release, n_classes, likelihood, concentration, profile_prior)
    domain = release.domain
    requested = [tuple(names) for names in margins or ()]
    operator = margin_operator(domain, [table.attributes for table in release.tables])
    extra = [margin_operator(domain, [names]) for names in requested]
    zeros = ZeroSet.of(domain, impossible) if impossible else None
    sum_out_pairs = _sums_out_pairs(sum_out_pairs, operator, likelihood, zeros)
    if zeros is not None:
        operator = possible_margins(operator, zeros)
    if record_cells is None:
        record_cells = domain.size <= MAX_RECORDED_CELLS
    with pm.Model(coords=_coords(domain, operator, n_classes)) as model:
        data, noise, sizes = _released(release)
        starts = None if sum_out_pairs else released_shares(release, data)
        mixture = Mixture(domain, n_classes, concentration, profile_prior, starts=starts)
        probabilities = mixture.probabilities if zeros is None else partial(_possible, mixture, zeros)
        margin = pm.Deterministic("margin", probabilities(operator.cells), dims="count")
        for names, more in zip(requested, extra, strict=True):
            shape = [domain[name].size for name in names]
            pm.Deterministic("margin_" + "_".join(names), probabilities(more.cells).reshape(shape), dims=names)
        if record_cells:
            cells = margin_operator(domain, [domain.names]).cells
            pm.Deterministic("cell", probabilities(cells).reshape(domain.shape), dims=domain.names)
        if likelihood == "composite":
            assert isinstance(release.n, int)
            noisy_tables("released", margin, release.n, noise, sizes, observed=data, dims="count")
        else:
            n = float(release.n) if isinstance(release.n, int) else _noisy_total(release.n)
            _joint(data, noise, n, operator, mixture, probabilities, sum_out_pairs)
        if zeros is not None:
            model.add_coords({"zero_part": range(len(zeros.cells)), "attribute": domain.names})
            pm.Data("structural_zeros", zeros.to_array(), dims=("zero_part", "attribute"))
    # Classes may swap labels between chains: convergence counts on what does not depend on them.
    recorded = ["margin", "cell", *("margin_" + "_".join(names) for names in requested)]
    model.gate_variables = tuple(name for name in recorded if name in model.named_vars)
    return model


def _check(
    release: Release, n_classes: int, likelihood: str, concentration: float | tuple[float, float], profile_prior: float
) -> None:
    if isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 1:
        raise InputError(f"n_classes must be a whole number of at least 1, got {n_classes!r}")
    if likelihood not in ("joint", "composite"):
        raise InputError(f"likelihood must be 'joint' or 'composite', got {likelihood!r}")
    if likelihood == "composite" and not release.n_public:
        raise InputError("the composite likelihood needs a public n, and this release has a noisy one; use 'joint'")
    values = concentration if isinstance(concentration, tuple) else (concentration,)
    if len(values) > 2 or not all(math.isfinite(value) and value > 0 for value in values):
        raise InputError(
            f"concentration must be a positive number or the shape and rate of its gamma prior, got {concentration!r}"
        )
    if not (math.isfinite(profile_prior) and profile_prior > 0):
        raise InputError(f"profile_prior must be positive and finite, got {profile_prior!r}")
    for name in release.domain.names:
        if name in _RESERVED or name.startswith(("attribute_of_", "level_of_")):
            raise InputError(f"attribute {name!r} has the name of a part of the model; rename it")


def _coords(domain: Domain, operator: MarginOperator, n_classes: int) -> dict[str, Sequence[Any]]:
    coords: dict[str, Sequence[Any]] = {
        "class": range(n_classes),
        "rank": range(n_classes),
        "break": range(n_classes - 1),
        "count": [_label(domain, cell) for cell in operator.cells],
        "effect": [_label(domain, cell) for cell in operator.effects],
        "pair": [_label(domain, cell) for cell in operator.effects if len(cell) == 2],
    }
    for size in sorted(set(domain.shape)):
        coords[f"attribute_of_{size}"] = [attribute.name for attribute in domain if attribute.size == size]
        coords[f"level_of_{size}"] = range(size)
    return coords | {attribute.name: attribute.levels for attribute in domain}


def _label(domain: Domain, cell: Cell) -> str:
    attributes = domain.attributes
    return ", ".join(f"{attributes[axis].name}={attributes[axis].levels[level]}" for axis, level in cell)


def _possible(mixture: Mixture, zeros: ZeroSet, cells: Sequence[Cell]) -> Any:
    """Return the probabilities of cells given that nothing impossible happens."""
    plan = zeros.plan(cells)
    return conditioned(mixture.probabilities(plan.cells), plan)


def _sums_out_pairs(wanted: bool | None, operator: MarginOperator, likelihood: str, zeros: ZeroSet | None) -> bool:
    """Return whether the joint likelihood has the counts of pairs summed out."""
    possible = likelihood == "joint" and zeros is None and only_pairs(operator)
    if wanted and not possible:
        raise InputError(
            f"sum_out_pairs=True does not go with {_in_the_way(operator, likelihood, zeros)}: it needs the joint "
            "likelihood, binary attributes, tables of one or two of them, and no structural zeros; leave it out"
        )
    return possible and operator.n_effects > _MANY_EFFECTS if wanted is None else wanted


def _in_the_way(operator: MarginOperator, likelihood: str, zeros: ZeroSet | None) -> str:
    """Return in words the first thing for which pairs cannot be summed out."""
    if likelihood != "joint":
        return f"likelihood={likelihood!r}"
    if zeros is not None:
        return "structural zeros (impossible=)"
    for attribute in operator.domain:
        if attribute.size != 2:
            return f"attribute {attribute.name!r} of {attribute.size} levels"
    largest = max(operator.axes, key=len)
    return f"the table of {', '.join(operator.domain.names[axis] for axis in largest)}"


def _released(release: Release) -> tuple[Any, ReleasedNoise, list[int]]:
    """Add the released counts' data to the model; return them, their noise, and the number of counts of each table."""
    released = np.concatenate([table.counts.ravel() for table in release.tables]).astype(np.float64)
    sizes = [table.counts.size for table in release.tables]
    noise = ReleasedNoise.of_tables([table.noise for table in release.tables], sizes)
    return pm.Data("released_counts", released, dims="count"), noise, sizes


def _joint(
    data: Any,
    noise: ReleasedNoise,
    n: Any,
    operator: MarginOperator,
    mixture: Mixture,
    probabilities: Callable[[Sequence[Cell]], Any],
    sum_out_pairs: bool,
) -> None:
    """Add the released counts to the model, all tables as margins of one."""
    if sum_out_pairs:
        counts = released_pairs(
            "released",
            mixture.weights,
            mixture.upper_levels,
            n,
            operator=operator,
            noise=noise,
            nugget=NUGGET,
            observed=data,
        )
        effects = pm.Deterministic("effects", counts, dims="effect")
    else:
        effects = effect_counts(
            "effects", probabilities(operator.intersections[0]), n, operator=operator, noise=noise, released=data
        )
    exact = pm.Deterministic(
        "exact_counts", n * operator.constant + constant_map(operator.matrix, effects), dims="count"
    )
    if not sum_out_pairs:
        noisy_counts("released", exact, noise, observed=data, dims="count")


def _noisy_total(total: NoisyTotal) -> Any:
    """Return the number of records where only a noisy number was released."""
    # Any size within a factor of seven of the released one is plausible a priori; the release itself says far more.
    n = pm.LogNormal("n", mu=math.log(max(total.value, 1.0)), sigma=1.0)
    data = pm.Data("released_n_data", np.array([float(total.value)]))
    noisy_counts("released_n", n[None], ReleasedNoise((total.noise,)), observed=data)
    return n
