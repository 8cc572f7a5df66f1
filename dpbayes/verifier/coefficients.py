r"""The table of multinomial coefficients: every triple of counts and its log-coefficient, built once.

The paper's recurrence (section 6.3, lines 69-101), in logarithms: triples are listed in blocks k = 0, ..., M with
:math:`S_1 = M - k`, and inside a block by :math:`S_0 = 0, \dots, k`. From block k - 1 to block k,

.. math:: \log c_k[j] = \log c_{k-1}[j] + \log(M - k + 1) - \log(k - j), \quad j < k, \qquad c_k[k] = c_k[0].

In plain numbers it overflows from M = 650 on; in logarithms it holds up to the largest table that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.verifier.checks import check_n_partitions

__all__ = ["CoefficientTable", "coefficient_table"]

MOST_PARTITIONS = 2000


@dataclass(frozen=True, eq=False)
class CoefficientTable:
    """Possible counts and the logarithm of their multinomial coefficient.

    Parameters
    ----------
    counts
        Shape (rows, outcomes), integers; each row sums to M.
    log_coefficients
        Shape (rows,): log M! / (S1! S0! Se!).
    """

    counts: npt.NDArray[np.int64]
    log_coefficients: npt.NDArray[np.float64]

    def select(self, rows: npt.NDArray[np.bool_]) -> CoefficientTable:
        """Return some of the rows."""
        return CoefficientTable(self.counts[rows], self.log_coefficients[rows])


@lru_cache(maxsize=8)
def coefficient_table(n_partitions: int, n_outcomes: int = 3) -> CoefficientTable:
    """Build the coefficient table.

    Parameters
    ----------
    n_partitions
        M, at most 2,000 (two million triples).
    n_outcomes
        3, or 2 without a failure category.

    Returns
    -------
    CoefficientTable
        (M + 1)(M + 2) / 2 rows, or M + 1; cached, so its arrays are read-only.

    Raises
    ------
    InputError
        If M is out of range.

    References
    ----------
    Balmat, T., Barrientos, A. F. and Reiter, J. P. (2018), section 6.

    Examples
    --------
    >>> table = coefficient_table(2)
    >>> np.column_stack([table.counts, np.exp(table.log_coefficients).round()]).astype(int).tolist()
    [[2, 0, 0, 1], [1, 0, 1, 2], [1, 1, 0, 2], [0, 0, 2, 1], [0, 1, 1, 2], [0, 2, 0, 1]]
    """
    check_n_partitions(n_partitions)
    if n_partitions > MOST_PARTITIONS:
        raise InputError(
            f"a coefficient table of M = {n_partitions:,} partitions would have {(n_partitions + 1) ** 2 // 2:,} rows; "
            f"up to {MOST_PARTITIONS:,} are tabulated, and verifier.posterior has no such limit"
        )
    m = n_partitions
    log = np.concatenate([[0.0], np.log(np.arange(1, m + 1))])
    if n_outcomes == 2:
        beyond = np.arange(m, -1, -1)
        steps = np.concatenate([[0.0], log[m:0:-1] - log[1 : m + 1]])
        return _frozen(np.column_stack([beyond, m - beyond]), np.cumsum(steps))
    sizes = np.arange(1, m + 2)
    k = np.repeat(np.arange(m + 1), sizes)
    j = np.arange(k.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    logs = np.zeros(k.size)
    start = 0
    for block in range(1, m + 1):
        before, start = start, start + block
        logs[start : start + block] = logs[before : before + block] + log[m - block + 1] - log[block:0:-1]
        logs[start + block] = logs[start]
    return _frozen(np.column_stack([m - k, j, k - j]), logs)


def _frozen(counts: npt.NDArray[np.int64], logs: npt.NDArray[np.float64]) -> CoefficientTable:
    counts.setflags(write=False)
    logs.setflags(write=False)
    return CoefficientTable(counts, logs)
