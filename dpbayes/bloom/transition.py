"""The channel that flipping puts between true and released logos.

The logo of a position is the number whose binary digits are the bits of the k filters there, filter 0 the lowest.
Flipping turns logo i into j with probability p^H q^(k - H), H their Hamming distance (the paper prints m - H for k -
H): the k-fold Kronecker power of the 2 x 2 channel of one bit. It acts on 2^k numbers in k sweeps and is never needed
as a matrix.
"""

import numpy as np

from dpbayes.bloom._checks import check_count, check_flip_prob
from dpbayes.errors import InputError

__all__ = ["apply_transition", "largest_loss", "solve_transition", "transition_matrix"]

_MAX_MATRIX = 10


def transition_matrix(n_filters: int, flip_prob: float) -> np.ndarray:
    """Return the matrix of logo transition probabilities; it is symmetric and its rows sum to 1.

    Parameters
    ----------
    n_filters
        Filters k, at most 10; beyond, use `apply_transition`.
    flip_prob
        Flip probability p.

    Returns
    -------
    numpy.ndarray
        Shape (2^k, 2^k).

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> transition_matrix(1, 0.25).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    k, p = check_count(n_filters, "n_filters", low=1, high=_MAX_MATRIX), check_flip_prob(flip_prob)
    bit = np.array([[1.0 - p, p], [p, 1.0 - p]])
    matrix = np.ones((1, 1))
    for _ in range(k):
        matrix = np.kron(matrix, bit)
    return matrix


def largest_loss(differ: int, flip_prob: float) -> float:
    """Return h ln(q/p), the largest loss between logos that differ in h filters, rounded up.

    Parameters
    ----------
    differ
        Filters h in which they differ.
    flip_prob
        Flip probability p, below 1/2.

    Returns
    -------
    float
        Above the exact value by a share of less than 4e-15.

    Examples
    --------
    >>> round(largest_loss(2, 0.25), 12) == round(2 * float(np.log(3)), 12)
    True
    """
    # The quotient keeps its relative accuracy up to p = 1/2; all roundings together stay below eight units of 2^-53.
    return differ * float(np.log1p((1.0 - 2.0 * flip_prob) / flip_prob)) * (1.0 + 2.0**-49)


def apply_transition(values: np.ndarray, flip_prob: float) -> np.ndarray:
    """Return the transition matrix times `values`, in k sweeps.

    Parameters
    ----------
    values
        Shape (2^k,) or (2^k, columns).
    flip_prob
        Flip probability p.

    Returns
    -------
    numpy.ndarray
        Float array of the same shape: expected released counts when `values` are true counts.

    Raises
    ------
    InputError
        If the length is no power of two.

    Examples
    --------
    >>> apply_transition(np.array([4.0, 0.0]), 0.25).tolist()
    [3.0, 1.0]
    """
    p = check_flip_prob(flip_prob)
    return _sweep(values, 1.0 - p, p)


def solve_transition(values: np.ndarray, flip_prob: float) -> np.ndarray:
    """Return the inverse of the transition matrix times `values`, in k sweeps: unbiased debiasing of released counts.

    Parameters
    ----------
    values, flip_prob
        As in `apply_transition`.

    Returns
    -------
    numpy.ndarray
        Float array of the same shape; debiased counts may be negative.

    Raises
    ------
    InputError
        If the length is no power of two.

    Examples
    --------
    >>> solve_transition(np.array([3.0, 1.0]), 0.25).tolist()
    [4.0, 0.0]
    """
    p = check_flip_prob(flip_prob)
    scale = 1.0 - 2.0 * p
    return _sweep(values, (1.0 - p) / scale, -p / scale)


def _sweep(values: np.ndarray, same: float, other: float) -> np.ndarray:
    """Apply [[same, other], [other, same]] along every binary digit of the first axis."""
    result = np.array(values, dtype=float)
    length = result.shape[0] if result.ndim else 0
    if length < 2 or length & (length - 1):
        raise InputError(f"logo values must number a power of two, got {length}; there is one for each of 2^k logos")
    stride = 1
    while stride < length:
        pairs = result.reshape(length // (2 * stride), 2, stride, -1)
        pairs[:] = np.stack(
            [same * pairs[:, 0] + other * pairs[:, 1], other * pairs[:, 0] + same * pairs[:, 1]], axis=1
        )
        stride *= 2
    return result
