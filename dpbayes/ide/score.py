r"""The challenge's score: how far the k-way marginals of each group are from the truth.

.. math:: \text{score} = 500\,\frac1G\sum_g \Bigl(2 - \frac1{|S|}\sum_{S}\lVert q_g^S - t_g^S\rVert_1\Bigr),

an average over groups g and attribute sets S, so that 1000 is a perfect copy and 0 shares nothing.
A group whose number of records is off by more than 250 counts as sharing nothing (the bias penalty
of section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

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
        Mean L1 distance of each group, from 0 to 2, the bias penalty included.
    set_errors
        Mean L1 distance of each attribute set over the groups, without penalty.
    sets
        The attribute sets.
    penalized
        Whether each group's number of records missed by more than the limit.

    Examples
    --------
    >>> score = Score(("a", "b"), np.array([0.1, 0.3]), np.array([0.2]), (("x", "y"),), np.zeros(2, bool))
    >>> score.value
    900.0
    """

    groups: tuple[str | int, ...]
    errors: Floats
    set_errors: Floats
    sets: tuple[tuple[str, ...], ...]
    penalized: npt.NDArray[np.bool_]

    @property
    def value(self) -> float:
        """The score, from 0 to 1000."""
        return float(500.0 * (2.0 - self.errors.mean()))

    @property
    def mean_l1(self) -> float:
        """The mean L1 distance, from 0 to 2."""
        return float(self.errors.mean())


def k_marginal_score(
    estimate: Prior,
    truth: Prior,
    *,
    by: str,
    k: int = 2,
    sets: Sequence[Sequence[str]] | None = None,
    group_sizes: npt.ArrayLike | None = None,
    true_sizes: npt.ArrayLike | None = None,
    bias_limit: float = BIAS_LIMIT,
) -> Score:
    """Compare the k-way marginals of each group with the truth's.

    Parameters
    ----------
    estimate
        The distribution to judge, or synthetic records read by `Prior.from_frame`. Each group is
        normalized before it is compared; a group without mass scores the worst.
    truth
        The true records. Whoever computes a score sees confidential data: it belongs to trials, not
        to a release.
    by
        The attribute that names the group.
    k
        Attributes a marginal, when `sets` is not given; all such sets are then compared.
    sets
        The attribute sets to compare, a fixed list for reproducible scores.
    group_sizes, true_sizes
        Estimated and true numbers of records of every level of `by`; without them there is no bias penalty.
    bias_limit
        Largest error of a size that goes unpenalized, in records.

    Returns
    -------
    Score
        The score and its parts.

    Raises
    ------
    InputError
        If the domains differ, a set names an unknown attribute or `by` itself, or only one kind of
        size is given.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> truth, flat = Prior.full(domain, [[[4, 0], [0, 4]], [[1, 1], [1, 1]]]), Prior.full(domain)
    >>> k_marginal_score(flat, truth, by="place").errors.tolist()
    [1.0, 0.0]
    """
    chosen = _sets(truth, by, k, sets)
    if estimate.domain != truth.domain:
        raise InputError("the estimate and the truth have different domains; code both over one domain")
    if (group_sizes is None) != (true_sizes is None):
        raise InputError("the bias penalty needs group_sizes and true_sizes; give both or neither")
    present = truth.marginal([by]) > 0
    distances = np.stack([_distances(estimate, truth, by, names)[present] for names in chosen])
    errors = distances.mean(axis=0)
    penalized = np.zeros(errors.shape, dtype=bool)
    if group_sizes is not None and true_sizes is not None:
        gap = np.abs(np.asarray(group_sizes, dtype=np.float64) - np.asarray(true_sizes, dtype=np.float64))
        penalized = gap[present] > bias_limit
    groups = tuple(level for level, there in zip(truth.domain[by].levels, present, strict=True) if there)
    return Score(groups, np.where(penalized, 2.0, errors), distances.mean(axis=1), chosen, penalized)


def bootstrap_score(truth: Prior, *, by: str, rng: np.random.Generator, k: int = 2) -> Score:
    """Score a bootstrap sample of the true records: what another sample of the same population would score.

    Parameters
    ----------
    truth
        The true records, with `n_records` set (as `Prior.from_frame` does).
    by, k
        As in `k_marginal_score`.
    rng
        Generator of the sample.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> truth = Prior.full(domain, np.arange(1, 9).reshape(2, 2, 2))
    >>> truth = Prior(domain, truth.codes, truth.weights, n_records=3600)
    >>> round(bootstrap_score(truth, by="place", rng=np.random.default_rng(1)).value)
    986
    """
    counts = _counts(truth)
    return k_marginal_score(truth.reweighted(rng.multinomial(counts.sum(), truth.weights)), truth, by=by, k=k)


def _counts(truth: Prior) -> npt.NDArray[np.int64]:
    if truth.n_records is None:
        raise InputError("the truth must be a sample with n_records; read it by Prior.from_frame")
    return np.rint(truth.weights * truth.n_records).astype(np.int64)


def _sets(truth: Prior, by: str, k: int, sets: Sequence[Sequence[str]] | None) -> tuple[tuple[str, ...], ...]:
    others = [name for name in truth.domain.names if name != by]
    truth.domain.axis(by)
    if sets is None:
        if not 1 <= k <= len(others):
            raise InputError(f"k must lie between 1 and {len(others)}, the attributes besides {by!r}; got {k!r}")
        return tuple(combinations(others, k))
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
