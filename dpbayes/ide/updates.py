r"""The distribution update of Definition 3.1 on a prior's support.

Given a distribution p, disjoint cells (a partial workload of unit L1 norm) and their wanted probabilities y, the update
moves p to the distribution that has these probabilities at the least relative entropy (Theorem 3.1):

====================================  =======================================================
row j is in cell i, mass(i) > 0       :math:`p_j\, y_i / \mathrm{mass}(i)`
row j is in cell i, mass(i) = 0       :math:`y_i` shared equally by the rows of cell i
row j is in no cell, they have mass   :math:`p_j\, (1 - \sum y) / (1 - \sum \mathrm{mass})`
row j is in no cell, they have none   :math:`1 - \sum y` shared equally by the rows in no cell
====================================  =======================================================

Rows are those of the support, not of the product domain, as section 3.3 suggests; a row may carry no mass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.ide.projection import project_simplex, project_subsimplex

__all__ = ["PartialWorkload", "kl_divergence", "update"]

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PartialWorkload:
    """Disjoint cells with their answers: queries of which every row of the support satisfies at most one.

    Parameters
    ----------
    cell
        The cell of each row of the support, or -1 for a row in none; shape ``(rows,)``.
    answers
        Noisy probability of each cell, any real number; shape ``(cells,)``.
    label
        What to call it in traces.

    Raises
    ------
    InputError
        If a row's cell has no answer.

    Examples
    --------
    Two cells of three rows, with answers that sum to more than one:

    >>> workload = PartialWorkload(np.array([0, 0, 1]), np.array([0.9, 0.3]))
    >>> workload.target().round(9).tolist()
    [0.8, 0.2]
    """

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
        """Return the probabilities to reach: the answers' L1 projection.

        Only cells with rows can hold mass; the answers of the others are given up (they cost the same L1 distance
        whatever the distribution), and the rest is projected on the simplex, or on the sub-simplex where rows remain
        outside the cells.
        """
        held = self.rows > 0
        target = np.zeros_like(self.answers)
        if held.any():
            target[held] = (project_simplex if self.covers else project_subsimplex)(self.answers[held])
        return target


def update(weights: Floats, cell: npt.NDArray[np.intp], target: Floats) -> Floats:
    """Return the distribution with given cell probabilities that is nearest in relative entropy.

    Parameters
    ----------
    weights
        The present distribution, shape ``(rows,)``.
    cell
        Each row's cell, -1 for none.
    target
        Probability of each cell, as `PartialWorkload.target` returns it: non-negative, summing to 1 if every row is in
        a cell and to at most 1 otherwise, 0 in a cell without rows.

    Returns
    -------
    numpy.ndarray
        The updated distribution.

    References
    ----------
    Tao, Bater and Machanavajjhala (2022), Definition 3.1 and Theorem 3.1.

    Examples
    --------
    >>> update(np.array([0.2, 0.2, 0.6]), np.array([0, 0, 1]), np.array([0.8, 0.2])).tolist()
    [0.4, 0.4, 0.2]
    """
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
    """Return KL(q || p) in nats; infinite where q has mass that p lacks.

    Examples
    --------
    >>> kl_divergence(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    inf
    """
    held = q > 0
    if np.any(p[held] <= 0):
        return float("inf")
    return float(max(np.sum(q[held] * np.log(q[held] / p[held])), 0.0))
