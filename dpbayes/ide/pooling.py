r"""Credibility: let thin public records borrow strength, as far as the public data themselves justify (docs/ide.md).

A group's prior mixes four public distributions, :math:`q = \sum_k \beta_k q_k`, by its squared error over chosen
marginals, :math:`\beta^T G \beta - 2 \beta^T c` up to a constant, :math:`G_{kl} = \langle q_k, q_l\rangle`; averaging
:math:`q_k` over the group's own records, each left out in turn, estimates :math:`c_k = \langle q_k, p_g\rangle`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats, instance, whole_number
from dpbayes.errors import InputError
from dpbayes.ide.prior import Prior, Sets
from dpbayes.privacy.release import Release

type Codes = npt.NDArray[np.int32]

# The four distributions that a group's prior mixes.
COMPONENTS = ("own records", "other groups' records", "own recombined", "other groups recombined")
# Rows of all groups together beyond which other groups' records are sampled instead of copied to every group.
_MOST_ROWS = 1_000_000
_SEED = 20220114
_FACES = [list(face) for size in range(1, 5) for face in combinations(range(4), size)]


@dataclass(frozen=True, eq=False)
class Credibility:
    """How every group's prior is mixed: the weight of each of the four `COMPONENTS`, shape ``(levels of by, 4)``."""

    by: str | None
    weights: Floats

    @property
    def borrowed(self) -> Floats:
        """Weight that each group gives to the records of all other groups."""
        return self.weights[:, 1] + self.weights[:, 3]


def credibility(prior: Prior, *, by: str | None = None, sets: Sets | None = None) -> Credibility:
    """Estimate from public data how every group's prior should be mixed.

    Parameters
    ----------
    prior
        A sample (`n_records` set).
    by
        The attribute that names the group; without it all records are one group.
    sets
        The marginals that matter; all pairs of the other attributes by default.

    Returns
    -------
    Credibility
        A group without records takes the others' records as they are, a group of one record too.

    Raises
    ------
    InputError
        If the prior is no sample, has records in fewer than two levels of `by`, or there is nothing to compare.

    Examples
    --------
    Ten records at one place, 990 at another. The few borrow; the many need nobody.

    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1)})
    >>> prior = Prior(domain, [[0, 0], [0, 1], [1, 0], [1, 1]], [6, 4, 500, 490], n_records=1000)
    >>> credibility(prior, by="place", sets=[["x"]]).borrowed.round(2).tolist()
    [1.0, 0.03]
    """
    instance(prior, Prior, "prior", remedy="Prior.from_frame makes one")
    if prior.n_records is None:
        raise InputError("credibility weighs sampling error, and this prior is no sample: n_records is None")
    others = [name for name in prior.domain.names if name != by]
    chosen = list(combinations(others, 2)) if sets is None else [tuple(names) for names in sets]
    share, group = _groups(prior, by)
    if not chosen or (by is not None and np.count_nonzero(share) < 2):
        said = f"pooling over {by!r} needs records in two groups and two other attributes or more"
        raise InputError(f"{said}; leave the prior as it is (pool=False)")
    seen = share * prior.n_records > 1.0
    gram, cross = np.zeros((len(share), 4, 4)), np.zeros((len(share), 4))
    for names in chosen:
        products, judged = _products(prior, names, group, len(share))
        gram[seen] += products[seen]
        cross[seen] += judged[seen]
    weights = np.tile([0.0, 1.0, 0.0, 0.0], (len(share), 1))
    for place in np.flatnonzero(seen):
        weights[place] = _minimize(gram[place], cross[place], alone=share[place] >= 1.0)
    return Credibility(by, weights)


def _groups(prior: Prior, by: str | None) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return every group's share, and the group of each row; without an attribute all rows are one group."""
    if by is None:
        return np.ones(1), np.zeros(prior.size, dtype=np.intp)
    return prior.marginal([by]), prior.index([by])


def _products(prior: Prior, names: Sequence[str], group: npt.NDArray[np.intp], n_groups: int) -> tuple[Floats, Floats]:
    """Return G and the estimate of c for one table, shapes ``(groups, 4, 4)`` and ``(groups, 4)``."""
    cells, place = np.unique(prior.index(names), return_inverse=True)
    levels = np.unravel_index(cells, prior.domain.project(names).shape)
    own, rest, records = _shares(place, len(cells), group, n_groups, prior)
    less = records[:, None] - 1.0

    def without_one(share: Floats) -> Floats:
        return np.divide(less * share + share - 1.0, less, out=np.zeros_like(share), where=less > 0)

    recombined, elsewhere, left_out = np.ones_like(own), np.ones_like(own), np.ones_like(own)
    alike, mixed, others = np.ones(n_groups), np.ones(n_groups), np.ones(n_groups)
    for name, level in zip(names, levels, strict=True):
        here, there, _ = _shares(prior.index([name]), prior.domain[name].size, group, n_groups, prior)
        recombined, elsewhere = recombined * here[:, level], elsewhere * there[:, level]
        left_out = left_out * without_one(here[:, level])
        alike, mixed = alike * (here * here).sum(axis=1), mixed * (here * there).sum(axis=1)
        others = others * (there * there).sum(axis=1)
    found = np.stack([own, rest, recombined, elsewhere], axis=1)
    gram = found @ found.transpose(0, 2, 1)
    gram[:, 2, 2], gram[:, 3, 3], gram[:, 2, 3], gram[:, 3, 2] = alike, others, mixed, mixed
    judged = np.stack([without_one(own), rest, left_out, elsewhere], axis=1)
    return gram, np.einsum("gkx,gx->gk", judged, own)


def _shares(
    cell: npt.NDArray[np.intp], n_cells: int, group: npt.NDArray[np.intp], n_groups: int, prior: Prior
) -> tuple[Floats, Floats, Floats]:
    """Return each group's distribution over cells, that of all others, and each group's number of records."""
    mass = np.bincount(group * n_cells + cell, prior.weights, n_groups * n_cells).reshape(n_groups, n_cells)
    outside = np.clip(mass.sum(axis=0) - mass, 0.0, None)
    inside, beyond = mass.sum(axis=1, keepdims=True), outside.sum(axis=1, keepdims=True)
    own = np.divide(mass, inside, out=np.zeros_like(mass), where=inside > 0)
    # What rounding leaves outside a group that holds everything is nothing.
    rest = np.divide(outside, beyond, out=np.zeros_like(mass), where=beyond > 1e-12)
    return own, rest, inside[:, 0] * (prior.n_records or 0.0)


def _minimize(gram: Floats, cross: Floats, *, alone: bool) -> Floats:
    """Minimize b'Gb - 2b'c over the simplex; the best face has its minimum in its inside."""
    best, least = np.array([1.0, 0.0, 0.0, 0.0]), gram[0, 0] - 2.0 * cross[0]
    for face in _FACES:
        if alone and not {0, 2}.issuperset(face):
            continue
        size = len(face)
        system = np.ones((size + 1, size + 1))
        system[:size, :size], system[size, size] = gram[np.ix_(face, face)], 0.0
        # Two components that agree on every table make a singular face; the smaller face holds its minimum.
        found = np.linalg.lstsq(system, np.append(cross[face], 1.0), rcond=1e-10)[0][:size]
        if found.min() < 0.0:
            continue
        trial = np.zeros(4)
        trial[face] = found / found.sum()
        value = trial @ gram @ trial - 2.0 * trial @ cross
        if value < least - 1e-12 * abs(least):
            best, least = trial, value
    return best


def pool(prior: Prior, credible: Credibility, *, n_rows: int = 2000) -> Prior:
    r"""Return the prior in which every group borrows, from the others and from independence.

    Parameters
    ----------
    prior, credible
        The prior to strengthen, and what `credibility` found.
    n_rows
        Rows that stand for each recombined component of a group. Every attribute is sampled
        systematically, so that one-way margins are exact to one row, and shuffled by itself.

    Returns
    -------
    Prior
        The groups keep their shares. It is worth more records: a group's error falls from :math:`S_g` to about
        :math:`S_g (1 - \beta_g)` with :math:`\beta_g` borrowed from other groups, and the total is taken as
        :math:`m / (1 - \bar\beta)`, at most the records that there are times the groups. Recombination adds support but
        no record: it leaves one-way margins as they are. The draw is of public data, from a fixed seed.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1)})
    >>> prior = Prior(domain, [[0, 0], [0, 1], [1, 0], [1, 1]], [6, 4, 5, 5], n_records=20)
    >>> half = Credibility("place", np.array([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    >>> pool(prior, half).marginal(["place", "x"]).tolist()
    [[0.275, 0.225], [0.25, 0.25]]
    """
    instance(credible, Credibility, "credible", remedy="credibility makes one")
    instance(prior, Prior, "prior", remedy="Prior.from_frame makes one")
    whole_number(n_rows, "n_rows")
    rng = np.random.default_rng(_SEED)
    share, group = _groups(prior, credible.by)
    most = max(n_rows, _MOST_ROWS // len(share))
    codes, weights = [], []
    for place, component in np.ndindex(credible.weights.shape):
        inside = (group == place) if component in (0, 2) else (group != place)
        weight = share[place] * credible.weights[place, component]
        if weight <= 0 or not inside.any():
            continue
        drawn, shares = _rows(prior, inside, n_rows if component >= 2 else most, recombined=component >= 2, rng=rng)
        if credible.by is not None:
            drawn[:, prior.domain.axis(credible.by)] = place
        codes.append(drawn)
        weights.append(weight * shares)
    mean = min(float(share @ credible.borrowed), 1.0 - 1.0 / len(share))
    records = None if prior.n_records is None else prior.n_records / (1.0 - mean)
    return Prior(prior.domain, np.concatenate(codes), np.concatenate(weights), records)


def grouping_attribute(release: Release) -> str | None:
    """Return the one attribute that stands in every table of a release, or None where there is none or several."""
    common = set.intersection(*(set(table.attributes) for table in release.tables)) if release.tables else set()
    return common.pop() if len(common) == 1 else None


def justified(prior: Prior, by: str | None) -> Credibility | None:
    """Return what a prior may borrow, or None where there is nothing to borrow and it stays as it is."""
    if by is not None and np.count_nonzero(prior.marginal([by])) < 2:
        by = None
    if prior.n_records is None or len(prior.domain) - (by is not None) < 2:
        return None
    credible = credibility(prior, by=by)
    return None if np.all(credible.weights[:, 0] == 1.0) else credible


def _rows(
    prior: Prior, inside: npt.NDArray[np.bool_], n_rows: int, *, recombined: bool, rng: np.random.Generator
) -> tuple[Codes, Floats]:
    """Return rows of one component and their shares, which sum to 1."""
    codes, weights = prior.codes[inside], prior.weights[inside]
    held = weights > 0
    codes, weights = codes[held], weights[held] / weights.sum()
    if recombined:
        columns = [rng.permutation(_systematic(np.bincount(column, weights), n_rows, rng)) for column in codes.T]
        return np.stack(columns, axis=1).astype(np.int32), np.full(n_rows, 1.0 / n_rows)
    if len(codes) > n_rows:
        return codes[_systematic(weights, n_rows, rng)], np.full(n_rows, 1.0 / n_rows)
    return codes.copy(), weights


def _systematic(weights: Floats, n_rows: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Draw positions at evenly spaced points of the cumulative weight: each its share of times, to one."""
    points = (np.arange(n_rows) + rng.random()) / n_rows
    return np.minimum(np.searchsorted(np.cumsum(weights), points, side="right"), len(weights) - 1)
