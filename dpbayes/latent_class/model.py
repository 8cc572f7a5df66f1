"""The latent class mixture, fitted to released tables with their noise in the likelihood."""

from __future__ import annotations

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
from dpbayes.latent_class.cautions import caution
from dpbayes.latent_class.design import CONCENTRATION, Design, checked_concentration, margin_name
from dpbayes.latent_class.mixture import Mixture
from dpbayes.latent_class.record_numbers import prior_of_n
from dpbayes.latent_class.released_shares import released_shares
from dpbayes.latent_class.zeros import Impossible, ZeroSet, conditioned
from dpbayes.privacy.release import Release, check_of_records

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain

__all__ = ["build_model"]

MAX_RECORDED_CELLS = 4096


def build_model(
    release: Release,
    *,
    n_classes: int = 8,
    likelihood: Literal["joint", "composite"] = "joint",
    concentration: float | Sequence[float] = CONCENTRATION,
    profile_prior: float | None = None,
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
        The stick-breaking concentration alpha: a positive number, or shape and rate of its gamma prior. The default,
        (40, 10), keeps alpha near 4, so that all classes stay in use: where alpha is small, the posterior is a few
        classes in one of many arrangements, and chains take thousands of draws to leave it.
    profile_prior
        The Dirichlet parameter a of every class profile; by default 0.25, and 0.5 for more than eight attributes.
        Small values let a class pin an attribute to one level; what the released margins leave open is then more varied
        than under the uniform prior. But every class and attribute then has a choice, and where there are many, chains
        stay in one set of choices for thousands of draws.
    margins
        Attribute sets whose probabilities are recorded besides the released ones, each as ``margin_A_B``; these names
        must differ.
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
        (pair), and ``effects`` is recorded; and ``n``, where only a noisy number of records was released, which is
        observed as ``released_n`` (a priori log-normal of scale 1 about an estimate from the release itself,
        `dpbayes.latent_class.record_numbers.prior_of_n`).
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
        If an argument is out of range, an attribute has the name of a part of the model (``class``, ``profile_A``, ...)
        or a ``/`` in it, or an attribute set does not fit the domain.

    Warns
    -----
    AccuracyWarning
        With the joint likelihood, if a table's noise has a standard deviation below 2 counts: intervals of cells that
        hold few records can be far too narrow. For a single table with a public n the composite likelihood is exact.
    CostWarning
        If more than 200 effects are sampled: a fit at the defaults may take hours.

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
    check_of_records(release, "a model")
    design = Design.of(
        release.domain,
        [table.attributes for table in release.tables],
        n_classes=n_classes,
        likelihood=likelihood,
        concentration=concentration,
        profile_prior=profile_prior,
        margins=margins,
        impossible=impossible,
        sum_out_pairs=sum_out_pairs,
    )
    if likelihood == "composite" and not release.n_public:
        raise InputError("the composite likelihood needs a public n, and this release has a noisy one; use 'joint'")
    domain, operator, zeros = design.domain, design.operator, design.zeros
    with pm.Model(coords=_coords(domain, operator, n_classes)) as model:
        data, noise, sizes = _released(release)
        caution(release, likelihood, operator.n_effects, pairs_summed_out=design.sum_out_pairs)
        starts = None if design.sum_out_pairs else released_shares(release, data)
        mixture = Mixture(domain, n_classes, checked_concentration(concentration), design.profile_prior, starts=starts)
        probabilities = mixture.probabilities if zeros is None else partial(_possible, mixture, zeros)
        margin = pm.Deterministic("margin", probabilities(operator.cells), dims="count")
        _record(design, probabilities, record_cells)
        if likelihood == "composite":
            assert isinstance(release.n, int)
            noisy_tables("released", margin, release.n, noise, sizes, observed=data, dims="count")
        else:
            n = float(release.n) if isinstance(release.n, int) else _noisy_total(release)
            _joint(data, noise, n, operator, mixture, probabilities, design.sum_out_pairs)
        if zeros is not None:
            model.add_coords({"zero_part": range(len(zeros.cells)), "attribute": domain.names})
            pm.Data("structural_zeros", zeros.to_array(), dims=("zero_part", "attribute"))
    # Classes may swap labels between chains: convergence counts on what does not depend on them.
    recorded = ["margin", "cell", *map(margin_name, design.margins)]
    model.gate_variables = tuple(name for name in recorded if name in model.named_vars)
    return model


def _record(design: Design, probabilities: Callable[[Sequence[Cell]], Any], record_cells: bool | None) -> None:
    """Add the probabilities of margins that were not released, and of all cells, to the model."""
    domain = design.domain
    for names, cells in design.margins.items():
        shape = domain.project(names).shape
        pm.Deterministic(margin_name(names), probabilities(cells).reshape(shape), dims=names)
    if domain.size <= MAX_RECORDED_CELLS if record_cells is None else record_cells:
        every = margin_operator(domain, [domain.names]).cells
        pm.Deterministic("cell", probabilities(every).reshape(domain.shape), dims=domain.names)


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


def _noisy_total(release: Release) -> Any:
    """Return the number of records where only a noisy number was released."""
    assert not isinstance(release.n, int)
    noise = ReleasedNoise((release.n.noise,))
    mean, scale = prior_of_n(release)
    n = pm.LogNormal("n", mu=mean, sigma=scale)
    data = pm.Data("released_n_data", np.array([float(release.n.value)]))
    noisy_counts("released_n", n[None], noise, observed=data)
    return n
