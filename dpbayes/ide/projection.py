r"""L1 projection of noisy answers on the probability simplex and on the sub-simplex.

The minimizer of :math:`\lVert y - \tilde y\rVert_1` is not unique. Its value is: every negative answer must be raised
to 0 and the positive ones, S in sum, moved by :math:`|1 - S|` in total, so that

.. math:: \min_{y \ge 0,\, \sum y = 1} \lVert y - \tilde y \rVert_1 = \sum_i \max(-\tilde y_i, 0) + |1 - S|.

**Ties.** Any y that moves all answers in one direction after clipping attains it. The Euclidean projection
:math:`y_i = \max(\tilde y_i - \tau, 0)` does: for :math:`\tau \ge 0` it lowers positive answers only, and for
:math:`\tau < 0` it raises answers only, a negative one by its clipping plus a part of :math:`1 - S`. So the rule is:
among the L1 minimizers, take the one nearest in the Euclidean sense. It is unique, continuous in the answers, and does
not depend on their order; noise spread over many empty cells is taken off evenly rather than kept in proportion.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError

__all__ = ["project_simplex", "project_subsimplex"]

type Floats = npt.NDArray[np.float64]


def project_simplex(answers: npt.ArrayLike) -> Floats:
    """Return the nearest probability vectors in L1 (ties: nearest in L2).

    Parameters
    ----------
    answers
        Finite numbers; the last axis runs over the cells.

    Returns
    -------
    numpy.ndarray
        Non-negative, summing to 1 along the last axis; same shape.

    Raises
    ------
    InputError
        If an answer is not finite or there is no cell.

    References
    ----------
    Tao, Y., Bater, J. and Machanavajjhala, A. (2022). Prior-aware distribution estimation for differential privacy.
    Algorithm 1, line 9. Held, M., Wolfe, P. and Crowder, H. (1974). Validation of subgradient optimization.
    Mathematical Programming 6, 62-88: the threshold by sorting.

    Examples
    --------
    >>> project_simplex([0.75, 0.5, -0.25]).tolist()
    [0.625, 0.375, 0.0]
    """
    values = _checked(answers)
    descending = -np.sort(-values, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1.0
    ranks = np.arange(1, values.shape[-1] + 1)
    # The number of positive cells: the last rank whose answer exceeds the threshold that the ranks so far imply.
    positive = np.count_nonzero(descending * ranks > excess, axis=-1, keepdims=True)
    threshold = np.take_along_axis(excess, positive - 1, axis=-1) / positive
    return np.maximum(values - threshold, 0.0)


def project_subsimplex(answers: npt.ArrayLike) -> Floats:
    """Return the nearest non-negative vectors in L1 that sum to at most 1 (ties: nearest in L2).

    Parameters
    ----------
    answers
        As in `project_simplex`.

    Returns
    -------
    numpy.ndarray
        Same shape. Algorithm 1, line 11.

    Examples
    --------
    >>> project_subsimplex([0.25, 0.5, -0.25]).tolist()
    [0.25, 0.5, 0.0]
    """
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
