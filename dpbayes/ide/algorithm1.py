r"""Algorithm 1, iterative distribution estimation: repeated updates to randomly chosen tables.

**Update** (Definition 3.1) on a prior's support. Given a distribution p and the wanted probabilities y of a table's
cells, into one of which every row falls, it moves p to the distribution that has these probabilities at the least
relative entropy (Theorem 3.1): a row of cell i gets :math:`p_j\, y_i / \mathrm{mass}(i)`, or an equal share of
:math:`y_i` where the cell has no mass. Rows are those of the support, not of the product domain, as section 3.3
suggests.

**Projection.** The wanted probabilities are the noisy answers' projection on the simplex in L1. It is not unique; the
Euclidean one attains the least distance :math:`\sum_i \max(-\tilde y_i, 0) + |1 - \sum_i \max(\tilde y_i, 0)|`,
since after clipping it moves all answers the same way, and is unique and continuous.

**Many groups at once.** Groups share a support, so a table's cells are the same for all; what differs are the
distributions, held as ``(rows, groups)``, and the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from dpbayes.errors import DPBayesError, InputError
from dpbayes.ide.cells import Measurements
from dpbayes.ide.prior import Prior

type Floats = npt.NDArray[np.float64]

# Points of the trace: evaluating the loss over all tables costs as much as updating them all once.
_TRACE_POINTS = 60


def project_simplex(answers: npt.ArrayLike) -> Floats:
    """Return the nearest probability vectors in L1 (ties: nearest in L2)."""
    values = np.asarray(answers, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise InputError("answers need at least one cell along their last axis")
    if not np.isfinite(values).all():
        raise InputError("answers must be finite, got NaN or infinity among them; divide by a positive size")
    descending = -np.sort(-values, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1.0
    ranks = np.arange(1, values.shape[-1] + 1)
    # The number of positive cells: the last rank whose answer exceeds the threshold that the ranks so far imply.
    positive = np.count_nonzero(descending * ranks > excess, axis=-1, keepdims=True)
    threshold = np.take_along_axis(excess, positive - 1, axis=-1) / positive
    return np.maximum(values - threshold, 0.0)


@dataclass(frozen=True, eq=False)
class TableAnswers:
    """A table's cell of every support row, and its answers: ``(cells,)``, or ``(cells, groups)`` for several groups."""

    cell: npt.NDArray[np.intp]
    answers: Floats
    label: str = ""

    @cached_property
    def _matrix(self) -> sparse.csc_array:
        rows, cells = len(self.cell), len(self.answers)
        return sparse.csr_array((np.ones(rows), self.cell, np.arange(rows + 1)), shape=(rows, cells)).T

    @cached_property
    def target(self) -> Floats:
        """The probabilities to reach: each group's answers projected on the cells that have rows."""
        held = np.bincount(self.cell, minlength=len(self.answers)) > 0
        target = np.zeros_like(self.answers)
        target[held] = project_simplex(self.answers[held].T).T
        return target

    def masses(self, weights: Floats) -> Floats:
        """Return the probability of every cell under a distribution, or under each group's."""
        return np.asarray(self._matrix @ weights)

    def update(self, weights: Floats) -> Floats:
        """Return the distribution with the cell probabilities to reach that is nearest in relative entropy."""
        mass = self.masses(weights)
        empty = mass <= 0.0
        factor = np.divide(self.target, mass, out=np.zeros_like(mass), where=~empty)
        updated = weights * factor[self.cell]
        if np.any(self.target[empty] > 0.0):
            updated += np.where(empty, self.target / np.maximum(self.masses(np.ones_like(weights)), 1.0), 0.0)[
                self.cell
            ]
        return updated


def kl_divergence(q: Floats, p: Floats) -> float:
    """Return KL(q || p) in nats; infinite where q has mass that p lacks."""
    held = q > 0
    if np.any(p[held] <= 0):
        return float("inf")
    return float(max(np.sum(q[held] * np.log(q[held] / p[held])), 0.0))


def table_answers(measurements: Measurements) -> tuple[TableAnswers, ...]:
    """Return the answers of every released table: its counts divided by the number of records."""
    if measurements.n <= 0:
        raise InputError(f"the released number of records is {measurements.n:g}; the prior is all there is to go by")
    return tuple(
        TableAnswers(cell, table.counts.ravel() / measurements.n, table.label)
        for cell, table in zip(measurements.cells.index, measurements.tables, strict=True)
    )


def advance(weights: Floats, tables: Sequence[TableAnswers], order: npt.ArrayLike) -> Floats:
    """Update a distribution, or every group's, to one table after another."""
    for place in np.asarray(order, dtype=np.intp):
        weights = tables[place].update(weights)
    return weights


def l1_loss(weights: Floats, tables: Sequence[TableAnswers]) -> Floats:
    """Return the L1 distance between the noisy answers and a distribution's, over all tables, of each group."""
    return np.sum([np.abs(table.masses(weights) - table.answers).sum(axis=0) for table in tables], axis=0)


@dataclass(frozen=True, eq=False)
class Iterations:
    """The distribution that Algorithm 1 reached and how it went there."""

    weights: Floats
    step: npt.NDArray[np.intp]
    l1_loss: Floats
    kl: Floats


def iterate(prior: Prior, tables: Sequence[TableAnswers], *, order: npt.ArrayLike) -> Iterations:
    """Run Algorithm 1, noting loss and divergence on the way."""
    steps, weights = np.asarray(order, dtype=np.intp), prior.weights
    marks = np.unique(np.linspace(0, len(steps), _TRACE_POINTS).round().astype(int))
    points = [(float(l1_loss(weights, tables)), 0.0)]
    for first, last in pairwise(marks):
        weights = advance(weights, tables, steps[first:last])
        points.append((float(l1_loss(weights, tables)), kl_divergence(weights, prior.weights)))
    loss, kl = np.array(points).T
    return Iterations(weights, marks, loss, kl)


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
