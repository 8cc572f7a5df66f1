r"""Credibility: let a group's thin public records borrow from the other groups, as far as the public data justify.

A group g of :math:`m_g` public records has marginals :math:`\hat p_g`; the other groups together have :math:`\hat
p_{-g}`. With weight :math:`\beta` on the others the expected squared error of the mixture, summed over cells, is

.. math:: (1-\beta)^2 S_g + \beta^2 B_g, \qquad
          S_g = E\lVert \hat p_g - p_g\rVert^2, \quad B_g = E\lVert \hat p_{-g} - p_g\rVert^2,

because the two are independent. Its minimum is at :math:`\beta_g = S_g / (S_g + B_g)`. Both parts have unbiased
estimates: :math:`S_g` from the multinomial, :math:`\sum_S (1 - \lVert\hat p_g^S\rVert^2)/(m_g - 1)` over the attribute
sets S, and :math:`S_g + B_g` from :math:`\lVert \hat p_g - \hat p_{-g}\rVert^2` itself. So the weight needs public data
only, and costs no privacy. It is the least-squares credibility of Bühlmann (1967, ASTIN Bulletin 4), group by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.ide.prior import Prior

__all__ = ["Credibility", "credibility", "pool"]


@dataclass(frozen=True, eq=False)
class Credibility:
    """How much each group borrows.

    Parameters
    ----------
    by
        The grouping attribute.
    borrowed
        Weight in [0, 1] that each level of it gives to the records of all other levels.
    """

    by: str
    borrowed: npt.NDArray[np.float64]


def credibility(prior: Prior, *, by: str, sets: Sequence[Sequence[str]] | None = None) -> Credibility:
    """Estimate from public data how much each group should borrow.

    Parameters
    ----------
    prior
        A sample (`n_records` set) over groups.
    by
        The attribute that names the group.
    sets
        The marginals that matter; all pairs of the other attributes by default.

    Returns
    -------
    Credibility
        A group without records borrows everything, a group of one record too.

    Raises
    ------
    InputError
        If the prior is no sample, or has records in fewer than two groups.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1)})
    >>> prior = Prior(domain, [[0, 0], [0, 1], [1, 0], [1, 1]], [6, 4, 500, 490], n_records=1000)
    >>> credibility(prior, by="place", sets=[["x"]]).borrowed.round(2).tolist()
    [1.0, 0.03]
    """
    if prior.n_records is None:
        raise InputError("credibility weighs sampling error, and this prior is no sample: n_records is None")
    others = [name for name in prior.domain.names if name != by]
    chosen = list(combinations(others, min(2, len(others)))) if sets is None else [tuple(names) for names in sets]
    share = prior.marginal([by])
    records = share * prior.n_records
    if np.count_nonzero(share) < 2 or not chosen:
        raise InputError(f"pooling over {by!r} needs records in two groups and one other attribute or more")
    sampling, distance = np.zeros(len(share)), np.zeros(len(share))
    with np.errstate(invalid="ignore", divide="ignore"):
        for names in chosen:
            mass = prior.marginal([by, *names]).reshape(len(share), -1)
            own, rest = mass / share[:, None], (mass.sum(axis=0) - mass) / (1.0 - share)[:, None]
            sampling += (1.0 - (own**2).sum(axis=1)) / (records - 1.0)
            distance += ((own - rest) ** 2).sum(axis=1)
        borrowed = np.where(records > 1.0, np.minimum(sampling / distance, 1.0), 1.0)
    return Credibility(by, np.where(np.isnan(borrowed), 0.0, borrowed))


def pool(prior: Prior, credible: Credibility) -> Prior:
    r"""Return the prior in which every group borrows from the others.

    Parameters
    ----------
    prior
        The prior to smooth.
    credible
        What `credibility` found.

    Returns
    -------
    Prior
        Every record stands in every group that borrows; the groups keep their shares. It is worth more records: a
        group's error falls from :math:`S_g` to :math:`S_g (1 - \beta_g)`, as if it had :math:`m_g/(1-\beta_g)` records,
        and the total is taken as :math:`m / (1 - \bar\beta)` (at most the records that there are times the groups).

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1)})
    >>> prior = Prior(domain, [[0, 0], [0, 1], [1, 0], [1, 1]], [6, 4, 5, 5], n_records=20)
    >>> pool(prior, Credibility("place", np.array([0.5, 0.0]))).marginal(["place", "x"]).tolist()
    [[0.275, 0.225], [0.25, 0.25]]
    """
    axis = prior.domain.axis(credible.by)
    share = prior.marginal([credible.by])
    group = prior.codes[:, axis]
    codes, weights = [], []
    for place, (part, borrowed) in enumerate(zip(share, credible.borrowed, strict=True)):
        own = group == place
        inside = np.where(own, prior.weights * (1.0 - borrowed), 0.0)
        if borrowed > 0 and part < 1:
            inside = inside + np.where(own, 0.0, prior.weights * (borrowed * part / (1.0 - part)))
        kept = inside > 0
        moved = prior.codes[kept].copy()
        moved[:, axis] = place
        codes.append(moved)
        weights.append(inside[kept])
    mean = min(float(share @ credible.borrowed), 1.0 - 1.0 / len(share))
    records = None if prior.n_records is None else prior.n_records / (1.0 - mean)
    return Prior(prior.domain, np.concatenate(codes), np.concatenate(weights), records)
