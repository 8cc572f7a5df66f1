"""Weighted regressions over the cells of a table, for many sets of weights at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError

__all__ = ["weighted_linear", "weighted_logistic"]

type Array = npt.NDArray[np.float64]

_TOLERANCE = 1e-10  # of the score of a distribution whose weights sum to one
_MOST_STEPS = 100


def weighted_linear(weights: Array, matrix: Array, outcome: Array) -> Array:
    """Solve weighted least squares for many sets of weights.

    Parameters
    ----------
    weights
        Shape (draws, cells), positive.
    matrix
        Shape (cells, terms).
    outcome
        Shape (cells,).

    Returns
    -------
    array of shape (draws, terms)

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> weighted_linear(np.array([[0.5, 0.5]]), x, np.array([1.0, 3.0])).round(12)
    array([[1., 2.]])
    """
    gram = _gram(weights, matrix)
    return np.asarray(np.linalg.solve(gram, ((weights * outcome) @ matrix)[..., None])[..., 0])


def weighted_logistic(weights: Array, matrix: Array, outcome: Array) -> Array:
    """Maximize the weighted logistic log-likelihood for many sets of weights at once.

    Parameters
    ----------
    weights
        Shape (draws, cells), positive; each row sums to one.
    matrix
        Shape (cells, terms).
    outcome
        Shape (cells,), between 0 and 1.

    Returns
    -------
    array of shape (draws, terms)

    Raises
    ------
    InputError
        If Newton's method does not reach a score of 1e-10 within 100 steps: in some draw the outcome is separated.

    Examples
    --------
    >>> x = np.array([[1.0], [1.0]])
    >>> weighted_logistic(np.array([[0.25, 0.75]]), x, np.array([0.0, 1.0])).round(6)  # log 3
    array([[1.098612]])
    """
    beta = np.zeros((len(weights), matrix.shape[1]))
    value = _log_likelihood(beta, weights, matrix, outcome)
    active = np.arange(len(weights))
    for _ in range(_MOST_STEPS):
        w = weights[active]
        fitted = _expit(beta[active] @ matrix.T)
        score = (w * (outcome - fitted)) @ matrix
        open_ = np.abs(score).max(axis=1) > _TOLERANCE
        active, w, fitted, score = active[open_], w[open_], fitted[open_], score[open_]
        if not active.size:
            return beta
        curvature = _gram(w * fitted * (1 - fitted), matrix)
        # A ridge far below the curvature of any sensible fit: steps stay finite where weights all but vanish.
        curvature += 1e-14 * np.eye(matrix.shape[1])
        step = np.linalg.solve(curvature, score[..., None])[..., 0]
        step /= np.maximum(1.0, np.abs(step).max(axis=1, keepdims=True) / 5.0)
        for _ in range(30):  # halve the steps that go too far
            tried = _log_likelihood(beta[active] + step, w, matrix, outcome)
            worse = tried < value[active] - 1e-15
            if not worse.any():
                break
            step[worse] /= 2
        beta[active] += step
        value[active] = tried
    raise InputError(
        f"the regression has no finite solution in {active.size} of {len(weights)} draws: a term separates the "
        "outcome; leave a term out"
    )


def _gram(weights: Array, matrix: Array) -> Array:
    """Return X' diag(w) X for each row w, by one product with the pairs of columns."""
    pairs = (matrix[:, :, None] * matrix[:, None, :]).reshape(len(matrix), -1)
    return (weights @ pairs).reshape(len(weights), matrix.shape[1], matrix.shape[1])


def _expit(x: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(x))


def _log_likelihood(beta: Array, weights: Array, matrix: Array, outcome: Array) -> Array:
    eta = beta @ matrix.T
    return np.asarray((weights * (outcome * eta - np.logaddexp(0.0, eta))).sum(axis=1))
