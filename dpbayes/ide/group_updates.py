"""Algorithm 1 for many groups at once: the four-case update as one PyTensor graph over all of them.

Groups share a support, so a partial workload's cells are the same for all; what differs are the distributions, held as
``(rows, groups)``, and the answers. Cell sums and factors then run along contiguous groups, and an update reads and
writes each weight once: it is bound by memory, not by arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._kernels import vectorized
from dpbayes.errors import InputError
from dpbayes.ide.projection import project_simplex

__all__ = ["GroupTables", "advance"]

type Floats = npt.NDArray[np.float64]


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
    """One table's cells over a shared support, with the answers of every group.

    Parameters
    ----------
    cell
        Each row's cell, shape ``(rows,)``; tables cover the whole support.
    answers
        Noisy probabilities, shape ``(cells, groups)``.
    """

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
    """Run Algorithm 1 in all groups at once.

    Parameters
    ----------
    weights
        Starting distribution, shape ``(rows,)``, the same for all groups.
    tables
        The partial workloads.
    order
        The table of each iteration, the same for all groups.

    Returns
    -------
    weights : numpy.ndarray
        Final distributions, shape ``(rows, groups)``.
    l1_loss : numpy.ndarray
        L1 distance between each group's noisy answers and its distribution's, over all tables.

    Examples
    --------
    >>> table = GroupTables(np.array([0, 1, 1]), np.array([[0.2, 1.0], [0.8, 0.0]]))
    >>> advance(np.array([0.5, 0.25, 0.25]), [table], order=[0])[0].round(6).tolist()
    [[0.2, 1.0], [0.4, 0.0], [0.4, 0.0]]
    """
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
