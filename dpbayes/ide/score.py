r"""The challenge's score: how far the k-way marginals of each group are from the truth.

.. math:: \text{score} = 500\,\frac1G\sum_g \Bigl(2 - \frac1{|S|}\sum_{S}\lVert q_g^S - t_g^S\rVert_1\Bigr),

an average over groups g and attribute sets S, so that 1000 is a perfect copy and 0 shares nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, whole_number
from dpbayes.errors import InputError
from dpbayes.ide.prior import Prior

BIAS_LIMIT = 250.0
"""Largest error of a group's number of records that is not penalized (Tao, Bater and Machanavajjhala, section 4)."""

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Score:
    """A score with what it is made of.

    Parameters
    ----------
    groups
        Levels of the grouping attribute that hold true records; the others are not scored.
    errors
        Mean L1 distance of each group, from 0 to 2.

    Examples
    --------
    >>> Score(("a", "b"), np.array([0.1, 0.3])).value
    900.0
    """

    groups: tuple[str | int, ...]
    errors: Floats

    @property
    def value(self) -> float:
        """The score, from 0 to 1000."""
        return float(500.0 * (2.0 - self.errors.mean()))

    def penalized(self, missed: npt.ArrayLike) -> Score:
        """Return the score where a group whose number of records misses the true one by more than 250 shares nothing.

        `missed` are the differences in numbers of records, one per group.
        """
        return Score(self.groups, np.where(np.abs(missed) > BIAS_LIMIT, 2.0, self.errors))


def k_marginal_score(
    estimate: Prior, truth: Prior, *, by: str, k: int = 2, sets: Sequence[Sequence[str]] | None = None
) -> Score:
    """Compare the k-way marginals of each group with the truth's.

    Parameters
    ----------
    estimate
        The distribution to judge, or synthetic records read by `Prior.from_frame`. Each group is normalized before it
        is compared; a group without mass scores the worst.
    truth
        The true records. Whoever computes a score sees confidential data: it belongs to trials, not to a release.
    by
        The attribute that names the group.
    k
        Attributes of a marginal, when `sets` is not given; all such sets are then compared.
    sets
        The attribute sets to compare.

    Raises
    ------
    InputError
        If the domains differ, or a set names an unknown attribute or `by` itself.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> truth, flat = Prior.full(domain, [[[4, 0], [0, 4]], [[1, 1], [1, 1]]]), Prior.full(domain)
    >>> k_marginal_score(flat, truth, by="place").errors.tolist()
    [1.0, 0.0]
    """
    instance(estimate, Prior, "estimate", remedy="Prior.from_frame makes one")
    instance(truth, Prior, "truth", remedy="Prior.from_frame makes one")
    chosen = _sets(truth, by, k, sets)
    if estimate.domain != truth.domain:
        raise InputError("the estimate and the truth have different domains; code both over one domain")
    present = truth.marginal([by]) > 0
    distances = np.stack([_distances(estimate, truth, by, names)[present] for names in chosen])
    groups = tuple(level for level, there in zip(truth.domain[by].levels, present, strict=True) if there)
    return Score(groups, distances.mean(axis=0))


def bootstrap_score(truth: Prior, *, by: str, rng: np.random.Generator, k: int = 2) -> Score:
    """Score a bootstrap sample of the true records: what another sample of the same population would score.

    `truth` needs its number of records (as `Prior.from_frame` sets it); `by` and `k` are those of `k_marginal_score`.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> truth = Prior.full(domain, np.arange(1, 9).reshape(2, 2, 2))
    >>> truth = Prior(domain, truth.codes, truth.weights, n_records=3600)
    >>> round(bootstrap_score(truth, by="place", rng=np.random.default_rng(1)).value)
    986
    """
    if truth.n_records is None:
        raise InputError("the truth must be a sample with n_records; read it by Prior.from_frame")
    n = int(np.rint(truth.weights * truth.n_records).sum())
    return k_marginal_score(truth.reweighted(rng.multinomial(n, truth.weights)), truth, by=by, k=k)


def _sets(truth: Prior, by: str, k: int, sets: Sequence[Sequence[str]] | None) -> tuple[tuple[str, ...], ...]:
    others = [name for name in truth.domain.names if name != by]
    truth.domain.axis(by)
    if sets is None:
        return tuple(combinations(others, whole_number(k, "k", high=len(others), remedy=f"{by!r} names the groups")))
    chosen = tuple(tuple(names) for names in sets)
    if not chosen:
        raise InputError("sets is empty; name at least one attribute set, or leave it out for all sets of k")
    for names in chosen:
        if by in names:
            raise InputError(f"set {names!r} names the grouping attribute {by!r}; marginals are compared within groups")
        truth.domain.axes(names)
    return chosen


def _distances(estimate: Prior, truth: Prior, by: str, names: tuple[str, ...]) -> Floats:
    """L1 distance of one marginal in every group; 2 where the estimate has no mass."""
    ours, theirs = (p.marginal([by, *names]).reshape(p.domain[by].size, -1) for p in (estimate, truth))
    mass = ours.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.abs(ours / mass - theirs / theirs.sum(axis=1, keepdims=True)).sum(axis=1)
    return np.where(mass[:, 0] > 0, gap, 2.0)
