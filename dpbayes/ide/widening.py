"""`pool`: a prior in which every group is the mixture that `dpbayes.ide.pooling` found, as a weighted support."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.ide.pooling import Credibility, credibility
from dpbayes.ide.prior import Prior
from dpbayes.privacy.release import Release

__all__ = ["grouping_attribute", "justified", "pool"]

type Floats = npt.NDArray[np.float64]
type Codes = npt.NDArray[np.int32]

# Rows of all groups together beyond which other groups' records are sampled instead of copied to every group.
_MOST_ROWS = 1_000_000
_SEED = 20220114


def pool(prior: Prior, credible: Credibility, *, n_rows: int = 2000) -> Prior:
    r"""Return the prior in which every group borrows, from the others and from independence.

    Parameters
    ----------
    prior
        The prior to strengthen.
    credible
        What `credibility` found.
    n_rows
        Rows that stand for each recombined component of a group. Every attribute is sampled systematically, so that
        one-way margins are exact to one row, and shuffled by itself.

    Returns
    -------
    Prior
        The groups keep their shares. It is worth more records: a group's error falls from :math:`S_g` to about
        :math:`S_g (1 - \beta_g)` with :math:`\beta_g` borrowed from other groups, and the total is taken as
        :math:`m / (1 - \bar\beta)`, at most the records that there are times the groups. Recombination adds support
        but no record: it leaves one-way margins as they are. The draw is of public data, from a fixed seed.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1)})
    >>> prior = Prior(domain, [[0, 0], [0, 1], [1, 0], [1, 1]], [6, 4, 5, 5], n_records=20)
    >>> half = Credibility("place", np.array([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    >>> pool(prior, half).marginal(["place", "x"]).tolist()
    [[0.275, 0.225], [0.25, 0.25]]
    """
    if n_rows < 1:
        raise InputError(f"n_rows must be at least 1, got {n_rows!r}")
    rng = np.random.default_rng(_SEED)
    axis = None if credible.by is None else prior.domain.axis(credible.by)
    share = np.ones(1) if credible.by is None else prior.marginal([credible.by])
    group = np.zeros(prior.size, dtype=np.int32) if axis is None else prior.codes[:, axis]
    most = max(n_rows, _MOST_ROWS // len(share))
    codes, weights = [], []
    for place, (part, mixed) in enumerate(zip(share, credible.weights, strict=True)):
        if part <= 0:
            continue
        for component, weight in enumerate(mixed):
            inside = (group == place) if component in (0, 2) else (group != place)
            if weight <= 0 or not inside.any():
                continue
            drawn, shares = _rows(prior, inside, n_rows if component >= 2 else most, recombined=component >= 2, rng=rng)
            if axis is not None:
                drawn[:, axis] = place
            codes.append(drawn)
            weights.append(part * weight * shares)
    mean = min(float(share @ credible.borrowed), 1.0 - 1.0 / len(share))
    records = None if prior.n_records is None else prior.n_records / (1.0 - mean)
    return Prior(prior.domain, np.concatenate(codes), np.concatenate(weights), records)


def grouping_attribute(release: Release) -> str | None:
    """Return the one attribute that stands in every table of a release, or None where there is none or several.

    Examples
    --------
    >>> from dpbayes.data import Domain, Marginal
    >>> from dpbayes.privacy import release_tables
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> whole = Marginal(domain, [[[5, 1], [1, 2]], [[1, 1], [4, 5]]])
    >>> tables = [whole.project(["place", "x"]), whole.project(["place", "y"])]
    >>> grouping_attribute(release_tables(tables, epsilon=1.0, rng=np.random.default_rng(1)))
    'place'
    """
    common = set.intersection(*(set(table.attributes) for table in release.tables)) if release.tables else set()
    return common.pop() if len(common) == 1 else None


def justified(prior: Prior, by: str | None) -> Credibility | None:
    """Return what a prior may borrow, or None where there is nothing to borrow and it stays as it is.

    A prior that is no sample has no sampling error to reduce, one attribute has no pairs, and groups may have records
    enough of their own.

    Examples
    --------
    Four records at one place borrow; a prior that is no sample does not:

    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> codes = [[0, 0, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]]
    >>> thin = Prior(domain, codes, [3, 1, 400, 380], n_records=784)
    >>> bool(justified(thin, "place").borrowed[0] > 0.3), justified(Prior(domain, codes, [3, 1, 400, 380]), "place")
    (True, None)
    """
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
