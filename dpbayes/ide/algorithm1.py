r"""Algorithm 1, iterative distribution estimation: repeated updates to randomly chosen partial workloads.

**Update** (Definition 3.1) on a prior's support. Given a distribution p, disjoint cells (a partial
workload of unit L1 norm) and their wanted probabilities y, the update moves p to the distribution
that has these probabilities at the least relative entropy (Theorem 3.1):

====================================  =======================================================
row j is in cell i, mass(i) > 0       :math:`p_j\, y_i / \mathrm{mass}(i)`
row j is in cell i, mass(i) = 0       :math:`y_i` shared equally by the rows of cell i
row j is in no cell, they have mass   :math:`p_j\, (1 - \sum y) / (1 - \sum \mathrm{mass})`
row j is in no cell, they have none   :math:`1 - \sum y` shared equally by the rows in no cell
====================================  =======================================================

Rows are those of the support, not of the product domain, as section 3.3 suggests; a row may carry no mass.

**Projection** of noisy answers on the probability simplex and on the sub-simplex, in L1. The
minimizer of :math:`\lVert y - \tilde y\rVert_1` is not unique. Its value is: every negative answer
must be raised to 0 and the positive ones, S in sum, moved by :math:`|1 - S|` in total, so that

.. math:: \min_{y \ge 0,\, \sum y = 1} \lVert y - \tilde y \rVert_1 = \sum_i \max(-\tilde y_i, 0) + |1 - S|.

**Ties.** Any y that moves all answers in one direction after clipping attains it. The Euclidean
projection :math:`y_i = \max(\tilde y_i - \tau, 0)` does: for :math:`\tau \ge 0` it lowers positive
answers only, and for :math:`\tau < 0` it raises answers only, a negative one by its clipping plus a
part of :math:`1 - S`. So the rule is: among the L1 minimizers, take the one nearest in the
Euclidean sense. It is unique, continuous in the answers, and does not depend on their order; noise
spread over many empty cells is taken off evenly rather than kept in proportion.

**Many groups at once.** Groups share a support, so a partial workload's cells are the same for all;
what differs are the distributions, held as ``(rows, groups)``, and the answers. One PyTensor graph
updates them all; it is bound by memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from dpbayes._kernels import vectorized
from dpbayes.errors import DPBayesError, InputError
from dpbayes.ide.cells import Measurements
from dpbayes.ide.prior import Prior

type Floats = npt.NDArray[np.float64]

# Points of the trace: evaluating the loss over all workloads costs as much as updating them all once.
_TRACE_POINTS = 60


def project_simplex(answers: npt.ArrayLike) -> Floats:
    """Return the nearest probability vectors in L1 (ties: nearest in L2)."""
    values = _checked(answers)
    descending = -np.sort(-values, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1.0
    ranks = np.arange(1, values.shape[-1] + 1)
    # The number of positive cells: the last rank whose answer exceeds the threshold that the ranks so far imply.
    positive = np.count_nonzero(descending * ranks > excess, axis=-1, keepdims=True)
    threshold = np.take_along_axis(excess, positive - 1, axis=-1) / positive
    return np.maximum(values - threshold, 0.0)


def project_subsimplex(answers: npt.ArrayLike) -> Floats:
    """Return the nearest non-negative vectors in L1 that sum to at most 1 (ties: nearest in L2)."""
    values = _checked(answers)
    clipped = np.maximum(values, 0.0)
    return np.where(clipped.sum(axis=-1, keepdims=True) > 1.0, project_simplex(values), clipped)


def _checked(answers: npt.ArrayLike) -> Floats:
    values = np.asarray(answers, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise InputError("answers need at least one cell along their last axis")
    if not np.isfinite(values).all():
        raise InputError("answers must be finite, got NaN or infinity among them; divide by a positive size")
    return values


@dataclass(frozen=True, eq=False)
class PartialWorkload:
    """Disjoint cells with their answers: queries of which every row of the support satisfies at most one."""

    cell: npt.NDArray[np.intp]
    answers: Floats
    label: str = ""

    def __post_init__(self) -> None:
        cell, answers = np.asarray(self.cell), np.asarray(self.answers, dtype=np.float64)
        if cell.ndim != 1 or answers.ndim != 1 or cell.dtype.kind not in "iu":
            raise InputError("a partial workload is a vector of cells (integers) and a vector of answers")
        if cell.size and (cell.min() < -1 or cell.max() >= len(answers)):
            raise InputError(
                f"cells must lie between -1 (none) and {len(answers) - 1}, got {cell.min()} to {cell.max()}"
            )
        object.__setattr__(self, "cell", cell.astype(np.intp))
        object.__setattr__(self, "answers", answers)

    @property
    def covers(self) -> bool:
        """Whether every row of the support is in a cell."""
        return bool(np.all(self.cell >= 0))

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """Number of support rows in each cell."""
        return np.bincount(self.cell[self.cell >= 0], minlength=len(self.answers))

    def target(self) -> Floats:
        """Return the probabilities to reach: the answers' L1 projection."""
        held = self.rows > 0
        target = np.zeros_like(self.answers)
        if held.any():
            target[held] = (project_simplex if self.covers else project_subsimplex)(self.answers[held])
        return target


def update(weights: Floats, cell: npt.NDArray[np.intp], target: Floats) -> Floats:
    """Return the distribution with given cell probabilities that is nearest in relative entropy."""
    # Rows in no cell form one more cell, which takes what the others leave.
    places = np.where(cell < 0, len(target), cell)
    wanted = np.append(target, max(1.0 - float(target.sum()), 0.0))
    mass = np.bincount(places, weights, len(wanted))
    rows = np.bincount(places, minlength=len(wanted))
    empty = mass <= 0.0
    factor = np.divide(wanted, mass, out=np.zeros_like(wanted), where=~empty)
    share = np.divide(wanted, rows, out=np.zeros_like(wanted), where=empty & (rows > 0))
    updated = weights * factor[places]
    return updated + share[places] if share.any() else updated


def kl_divergence(q: Floats, p: Floats) -> float:
    """Return KL(q || p) in nats; infinite where q has mass that p lacks."""
    held = q > 0
    if np.any(p[held] <= 0):
        return float("inf")
    return float(max(np.sum(q[held] * np.log(q[held] / p[held])), 0.0))


@dataclass(frozen=True, eq=False)
class Iterations:
    """The distribution that Algorithm 1 reached and how it went there."""

    weights: Floats
    step: npt.NDArray[np.intp]
    l1_loss: Floats
    kl: Floats
    moved: Floats
    labels: tuple[str, ...]


def partial_workloads(measurements: Measurements) -> tuple[PartialWorkload, ...]:
    """Return one partial workload per released table: its counts divided by the number of records."""
    if measurements.n <= 0:
        raise InputError(f"the released number of records is {measurements.n:g}; the prior is all there is to go by")
    return tuple(
        PartialWorkload(cell, table.counts.ravel() / measurements.n, table.label)
        for cell, table in zip(measurements.cells.index, measurements.tables, strict=True)
    )


def workload_order(n_workloads: int, iterations: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return which partial workload each iteration takes, uniformly at random (line 6 of Algorithm 1)."""
    return rng.integers(0, n_workloads, iterations)


def iterate(
    prior: Prior, workloads: Sequence[PartialWorkload], *, order: npt.ArrayLike, trace_points: int = _TRACE_POINTS
) -> Iterations:
    """Run Algorithm 1."""
    if not workloads:
        raise InputError("no partial workload was given; pass one or more")
    for workload in workloads:
        if len(workload.cell) != prior.size:
            raise InputError(f"workload {workload.label!r} has {len(workload.cell)} rows, the prior {prior.size}")
    steps = np.asarray(order, dtype=np.intp)
    targets = [workload.target() for workload in workloads]
    weights = np.array(prior.weights)
    traced = set(np.unique(np.linspace(0, len(steps), trace_points).round().astype(int)).tolist())
    points = [(0, l1_loss(weights, workloads), 0.0)]
    for t, place in enumerate(steps, start=1):
        weights = update(weights, workloads[place].cell, targets[place])
        if t in traced:
            points.append((t, l1_loss(weights, workloads), kl_divergence(weights, prior.weights)))
    step, loss, kl = (np.array(column) for column in zip(*points, strict=True))
    moved = [float(np.abs(answer(weights, w) - answer(prior.weights, w)).sum()) for w in workloads]
    return Iterations(weights, step, loss, kl, np.array(moved), tuple(w.label for w in workloads))


def answer(weights: Floats, workload: PartialWorkload) -> Floats:
    """Return a distribution's probabilities of the cells."""
    inside = workload.cell >= 0
    return np.bincount(workload.cell[inside], weights[inside], len(workload.answers))


def l1_loss(weights: Floats, workloads: Sequence[PartialWorkload]) -> float:
    """Return the L1 distance between the noisy answers and a distribution's, over all workloads."""
    return float(sum(np.abs(answer(weights, workload) - workload.answers).sum() for workload in workloads))


@vectorized
def _update(weights: Any, cell: Any, target: Any, rows: Any) -> Any:
    """Return updated weights, and what rows of cells without mass still have to be given."""
    import pytensor.tensor as pt

    mass = pt.inc_subtensor(pt.zeros_like(target)[cell], weights)
    empty = pt.le(mass, 0.0)
    factor = pt.switch(empty, 0.0, target / pt.switch(empty, 1.0, mass))
    share = pt.switch(empty, target / pt.maximum(rows[:, None], 1.0), 0.0)
    return weights * factor[cell], share


@vectorized
def _answers(weights: Any, cell: Any, like: Any) -> Any:
    """Return the mass of every cell in every group."""
    import pytensor.tensor as pt

    return pt.inc_subtensor(pt.zeros_like(like)[cell], weights)


@dataclass(frozen=True, eq=False)
class GroupTables:
    """One table's cells over a shared support, with the answers of every group."""

    cell: npt.NDArray[np.int64]
    answers: Floats

    def rows(self) -> Floats:
        """Return the number of support rows in each cell."""
        return np.bincount(self.cell, minlength=len(self.answers)).astype(np.float64)

    def target(self) -> Floats:
        """Return every group's L1 projection on the cells that have rows."""
        held = self.rows() > 0
        target = np.zeros_like(self.answers)
        target[held] = project_simplex(self.answers[held].T).T
        return target


def advance(
    weights: Floats, tables: Sequence[GroupTables], *, order: Sequence[int] | npt.NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Run Algorithm 1 in all groups at once."""
    if not tables:
        raise InputError("no table was given; pass one or more")
    n_groups = tables[0].answers.shape[1]
    current = np.repeat(weights[:, None], n_groups, axis=1)
    targets, rows = [table.target() for table in tables], [table.rows() for table in tables]
    for place in order:
        cell = tables[place].cell
        current, share = _update(current, cell, targets[place], rows[place])
        if np.any(share > 0):
            current = current + share[cell]
    loss = np.zeros(n_groups)
    for table in tables:
        loss += np.abs(_answers(current, table.cell, table.answers) - table.answers).sum(axis=0)
    return current, loss


def least_l1_loss(measurements: Measurements) -> float:
    """Return the least L1 loss that a distribution on the support can have (stage 1), by HiGHS."""
    answers = measurements.values / measurements.n
    cells, rows = len(answers), measurements.prior.size
    held = measurements.prior.weights > 0
    map_ = sparse.csr_array(measurements.cells.matrix[:, held])
    slack = sparse.eye_array(cells, format="csr")
    # Mq + below - above = answers, sum q = 1; the loss is the sum of below and above.
    total = sparse.csr_array((np.ones(map_.shape[1]), (np.zeros(map_.shape[1], int), np.arange(map_.shape[1]))))
    constraints = sparse.block_array([[map_, slack, -slack], [total, None, None]], format="csr")
    cost = np.concatenate([np.zeros(map_.shape[1]), np.ones(2 * cells)])
    result = linprog(cost, A_eq=constraints, b_eq=np.append(answers, 1.0), method="highs")
    if result.status != 0:
        raise DPBayesError(f"HiGHS stopped without an optimum on {rows} rows and {cells} cells: {result.message}")
    return float(result.fun)
