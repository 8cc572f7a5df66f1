"""The latent class mixture, fitted to released tables with their noise in the likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from dpbayes.errors import InputError
from dpbayes.inference.joint_counts import effect_counts
from dpbayes.inference.margin_operator import Cell, MarginOperator, margin_operator
from dpbayes.inference.noisy_counts import ReleasedNoise, noisy_counts
from dpbayes.privacy.release import Release

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain

__all__ = ["build_model", "sampler_defaults"]

MAX_RECORDED_CELLS = 4096


def build_model(
    release: Release,
    *,
    n_classes: int = 6,
    likelihood: Literal["joint"] = "joint",
    concentration: float | tuple[float, float] = (2.0, 2.0),
    profile_prior: float = 0.5,
    margins: Sequence[Sequence[str]] | None = None,
    record_cells: bool | None = None,
) -> pm.Model:
    r"""State the latent class model of a release.

    .. math:: \pi_h = V_h \prod_{l<h} (1 - V_l), \quad V_h \sim \text{Beta}(1, \alpha), \quad
              \psi^{(j)}_h \sim \text{Dirichlet}(a, \dots, a), \quad
              P(x) = \sum_h \pi_h \prod_j \psi^{(j)}_{h x_j},

    one confidential table of n records behind all released tables (`dpbayes.inference.joint_counts`), and the release's
    own noise on every count.

    Parameters
    ----------
    release
        The noisy tables.
    n_classes
        Number of classes k at which the sticks are cut off.
    likelihood
        ``"joint"``: all tables are margins of one table.
    concentration
        The stick-breaking concentration alpha: a positive number, or shape and rate of its gamma prior.
    profile_prior
        The Dirichlet parameter a of every class profile.
    margins
        Attribute sets whose probabilities are recorded besides the released ones, each as ``margin_A_B``.
    record_cells
        Whether to record the full table's probabilities as ``cell``; by default where it has at most 4,096 cells.

    Returns
    -------
    pymc.Model
        Free: ``alpha`` (unless fixed), ``stick`` (break), ``profiles_of_2`` (class, attribute of 2 levels; the
        probability of the second level), ``profiles_of_L`` (class, attribute of L levels, level), and ``effects``
        (effect), in records. Recorded: ``profile_A`` (class, A) for each attribute A, ``weights`` (class),
        ``weights_sorted`` (rank, descending), ``margin`` (count): the probabilities of all released cells, table after
        table, in C order; ``cell`` with one dimension an attribute; ``margin_A_B``. Observed: ``released`` (count), its
        data in ``released_counts``. ``gate_variables`` names what convergence is judged on.

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
    noise = ReleasedNoise.of_tables([t.noise for t in release.tables], [t.counts.size for t in release.tables])
    if record_cells is None:
        record_cells = domain.size <= MAX_RECORDED_CELLS
    with pm.Model(coords=_coords(domain, operator, n_classes)) as model:
        weights = _weights(n_classes, concentration)
        mixture = _Mixture(domain, weights, profile_prior)
        pm.Deterministic("margin", mixture.probabilities(operator.cells), dims="count")
        for names, margin in zip(requested, extra, strict=True):
            shape = [domain[name].size for name in names]
            pm.Deterministic(
                "margin_" + "_".join(names), mixture.probabilities(margin.cells).reshape(shape), dims=names
            )
        if record_cells:
            cells = margin_operator(domain, [domain.names]).cells
            pm.Deterministic("cell", mixture.probabilities(cells).reshape(domain.shape), dims=domain.names)
        _joint(release, operator, noise, mixture)
    # Classes may swap labels between chains: convergence counts on what does not depend on them.
    recorded = ["margin", "cell", *("margin_" + "_".join(names) for names in requested)]
    model.gate_variables = tuple(name for name in recorded if name in model.named_vars)
    return model


def sampler_defaults(n_classes: int = 6) -> dict[str, Any]:
    """Return the sampler settings that pass the gate on the models of this module.

    Parameters
    ----------
    n_classes
        Number of classes of the model.

    Returns
    -------
    dict
        Keyword arguments of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_defaults()["target_accept"]
    0.9
    """
    return {"draws": 1000, "tune": 1000, "chains": 4, "target_accept": 0.9}


def _check(
    release: Release, n_classes: int, likelihood: str, concentration: float | tuple[float, float], profile_prior: float
) -> None:
    if isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 1:
        raise InputError(f"n_classes must be a whole number of at least 1, got {n_classes!r}")
    if likelihood != "joint":
        raise InputError(f"likelihood must be 'joint', got {likelihood!r}")
    values = concentration if isinstance(concentration, tuple) else (concentration,)
    if len(values) > 2 or not all(math.isfinite(value) and value > 0 for value in values):
        raise InputError(
            f"concentration must be a positive number or the shape and rate of its gamma prior, got {concentration!r}"
        )
    if not (math.isfinite(profile_prior) and profile_prior > 0):
        raise InputError(f"profile_prior must be positive and finite, got {profile_prior!r}")
    reserved = {"class", "break", "rank", "count", "effect", "chain", "draw", "alpha", "stick", "weights", "margin"}
    for name in release.domain.names:
        if (
            name in reserved
            or name in ("cell", "effects", "released")
            or name.startswith(("attribute_of_", "level_of_"))
        ):
            raise InputError(f"attribute {name!r} has the name of a part of the model; rename it")


def _coords(domain: Domain, operator: MarginOperator, n_classes: int) -> dict[str, Sequence[Any]]:
    coords: dict[str, Sequence[Any]] = {
        "class": range(n_classes),
        "rank": range(n_classes),
        "break": range(n_classes - 1),
        "count": [_label(domain, cell) for cell in operator.cells],
        "effect": [_label(domain, cell) for cell in operator.effects],
    }
    for size in sorted(set(domain.shape)):
        coords[f"attribute_of_{size}"] = [attribute.name for attribute in domain if attribute.size == size]
        coords[f"level_of_{size}"] = range(size)
    return coords | {attribute.name: attribute.levels for attribute in domain}


def _label(domain: Domain, cell: Cell) -> str:
    attributes = domain.attributes
    return ", ".join(f"{attributes[axis].name}={attributes[axis].levels[level]}" for axis, level in cell)


def _weights(n_classes: int, concentration: float | tuple[float, float]) -> Any:
    """Return the class weights: sticks broken off one after the other."""
    if isinstance(concentration, tuple):
        alpha = pm.Gamma("alpha", alpha=concentration[0], beta=concentration[1])
    else:
        alpha = concentration
    if n_classes == 1:
        weights = pt.ones(1)
    else:
        stick = pm.Beta("stick", alpha=1.0, beta=alpha, dims="break")
        rest = pt.concatenate([[1.0], pt.cumprod(1.0 - stick)])
        weights = pt.concatenate([stick, [1.0]]) * rest
    pm.Deterministic("weights_sorted", -pt.sort(-weights), dims="rank")
    return pm.Deterministic("weights", weights, dims="class")


def _profiles(domain: Domain, profile_prior: float) -> tuple[Any, dict[str, int]]:
    """Return all class profiles side by side, shape ``(classes, levels)``, and the first column of each attribute.

    Attributes of equally many levels share one random variable: the graph, and with it the time to compile, does not
    grow with the number of attributes.
    """
    blocks, start, first = [], 0, {}
    for size in sorted(set(domain.shape)):
        names = [attribute.name for attribute in domain if attribute.size == size]
        dims = ("class", f"attribute_of_{size}")
        if size == 2:
            upper = pm.Beta("profiles_of_2", alpha=profile_prior, beta=profile_prior, dims=dims)
            group = pt.stack([1.0 - upper, upper], axis=2)
        else:
            group = pm.Dirichlet(
                f"profiles_of_{size}", a=np.full(size, profile_prior), dims=(*dims, f"level_of_{size}")
            )
        for position, name in enumerate(names):
            pm.Deterministic(f"profile_{name}", group[:, position], dims=("class", name))
            first[name] = start + position * size
        blocks.append(group.reshape((group.shape[0], len(names) * size)))
        start += len(names) * size
    return pt.concatenate(blocks, axis=1), first


class _Mixture:
    """Cell probabilities of any margin, from class weights and profiles."""

    def __init__(self, domain: Domain, weights: Any, profile_prior: float) -> None:
        columns, first = _profiles(domain, profile_prior)
        self._first = [first[name] for name in domain.names]
        self._ones = sum(domain.shape)
        self._weights = weights
        # A last column of ones pads the cells of fewer attributes.
        self._columns = pt.concatenate([columns, pt.ones((columns.shape[0], 1))], axis=1)

    def given_class(self, cells: Sequence[Cell]) -> Any:
        """Return the probability of each cell in each class, shape ``(classes, cells)``."""
        index = np.full((len(cells), max(map(len, cells))), self._ones)
        for row, cell in zip(index, cells, strict=True):
            row[: len(cell)] = [self._first[axis] + level for axis, level in cell]
        product = self._columns[:, index[:, 0]]
        for column in index.T[1:]:
            product = product * self._columns[:, column]
        return product

    def probabilities(self, cells: Sequence[Cell]) -> Any:
        """Return the probability of each cell, shape ``(cells,)``."""
        return pt.dot(self._weights, self.given_class(cells))

    def second_moment(self, operator: MarginOperator) -> Any:
        """Return the probability that a record is in the cells of both of two effects, for all pairs."""
        cells, position = operator.intersections
        given_class = self.given_class(operator.effects)
        met = pt.concatenate([self.probabilities(cells), [0.0]])[np.maximum(position, 0)]
        if np.all(position >= 0):
            return met
        # Effects without a common attribute are independent given the class.
        apart = pt.dot(given_class.T * self._weights, given_class)
        return pt.where(position >= 0, met, apart)


def _joint(release: Release, operator: MarginOperator, noise: ReleasedNoise, mixture: _Mixture) -> None:
    released = np.concatenate([table.counts.ravel() for table in release.tables]).astype(np.float64)
    data = pm.Data("released_counts", released, dims="count")
    n = float(release.n) if isinstance(release.n, int) else None
    if n is None:
        raise InputError("the joint likelihood needs a public n; release under replace-one")
    effects = effect_counts(
        "effects",
        mixture.probabilities(operator.effects),
        mixture.second_moment(operator),
        n,
        operator=operator,
        noise=noise,
        released=data,
    )
    exact = n * operator.constant + pt.dot(operator.matrix, effects)
    noisy_counts("released", exact, noise, observed=data, dims="count")
