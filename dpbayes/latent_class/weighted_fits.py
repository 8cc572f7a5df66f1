"""Weighted regressions over the cells of a table, for many sets of weights at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError

__all__ = ["weighted_linear", "weighted_logistic"]

type Array = npt.NDArray[np.float64]

# Of the last step's change in any cell's log-odds. A score is no measure: that of a rare cell is small from the start.
_TOLERANCE = 1e-8

# Changes below this that no longer halve from step to step are rounding: where the baseline itself is rare, its
# log-odds are a difference of sums over common cells.
_ROUNDING = 1e-3

_LONGEST = 5.0  # a step's change in log-odds
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
    back = _from_common_cells(weights, matrix)
    basis = matrix @ back
    fitted = np.linalg.solve(_gram(weights, basis), ((weights * outcome) @ basis)[..., None])[..., 0]
    return np.asarray(fitted @ back.T)


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
        If Newton's method is still moving some cell's log-odds after 100 steps: in some draw the outcome is separated.

    Notes
    -----
    Each draw stops by its own log-odds, in every cell however rare, so that the scales of columns and weights do not
    matter. The unknowns are the log-odds of as many common cells as there are terms: with a rare baseline the
    coefficients themselves would be small differences of sums over all other cells.

    Examples
    --------
    >>> x = np.array([[1.0], [1.0]])
    >>> weighted_logistic(np.array([[0.25, 0.75]]), x, np.array([0.0, 1.0])).round(6)  # log 3
    array([[1.098612]])
    """
    back = _from_common_cells(weights, matrix)
    return np.asarray(_maximize(weights, matrix @ back, outcome) @ back.T)


def _maximize(weights: Array, matrix: Array, outcome: Array) -> Array:
    """Return the coefficients of largest weighted log-likelihood, draw by draw."""
    beta = np.zeros((len(weights), matrix.shape[1]))
    active, last = np.arange(len(weights)), np.full(len(weights), np.inf)
    for _ in range(_MOST_STEPS):
        step = _newton_step(beta[active], weights[active], matrix, outcome)
        beta[active] += step
        change = np.abs(step @ matrix.T).max(axis=1)
        open_ = (change > _TOLERANCE) & ((change > _ROUNDING) | (change <= last / 2))
        active, last = active[open_], change[open_]
        if not active.size:
            return beta
    raise InputError(
        f"the regression has no finite solution in {active.size} of {len(weights)} draws: a term separates the "
        "outcome; leave a term out"
    )


def _from_common_cells(weights: Array, matrix: Array) -> Array:
    """Return the map from linear predictors of the most common cells to coefficients, shape ``(terms, terms)``.

    The cells are the most common ones whose rows are linearly independent, one for each term.
    """
    # Rows such as (1, 2019, 2019^2) and (1, 2020, 2020^2) are all but parallel; those of an orthonormal basis are not.
    rows = np.linalg.qr(matrix)[0]
    found: list[int] = []
    basis = np.empty((0, matrix.shape[1]))
    for cell in np.argsort(-weights.mean(axis=0), kind="stable").tolist():
        row = rows[cell]
        rest = row - (row @ basis.T) @ basis
        if (size := np.linalg.norm(rest)) > 1e-9 * np.linalg.norm(row):
            found.append(cell)
            basis = np.vstack([basis, rest / size])
        if len(found) == matrix.shape[1]:
            break
    return np.asarray(np.linalg.inv(matrix[found]))


def _newton_step(beta: Array, weights: Array, matrix: Array, outcome: Array) -> Array:
    """Return a step of Newton's method that does not go far beyond the best point on its line."""
    eta = beta @ matrix.T
    one, zero = _chances(eta)
    score = (weights * (outcome * zero - (1 - outcome) * one)) @ matrix
    curvature = _gram(weights * one * zero, matrix)
    # In units of the coefficients' own curvatures a rare cell's is as large as a common one's.
    scale = np.sqrt(np.maximum(np.diagonal(curvature, axis1=1, axis2=2), np.finfo(float).tiny))
    curvature /= scale[:, :, None] * scale[:, None, :]
    # A ridge far below the curvature of any sensible fit: steps stay finite where terms are all but collinear.
    curvature += 1e-14 * np.eye(matrix.shape[1])
    step = np.linalg.solve(curvature, (score / scale)[..., None])[..., 0] / scale
    step /= np.maximum(1.0, np.abs(step @ matrix.T).max(axis=1, keepdims=True) / _LONGEST)
    rise = (score * step).sum(axis=1)
    for _ in range(30):  # halve the steps that go too far: the slope there points back, half as steep or more
        along = step @ matrix.T
        one, zero = _chances(eta + along)
        slope = (weights * (outcome * zero - (1 - outcome) * one) * along).sum(axis=1)
        too_far = (slope < -0.5 * rise) & (np.abs(along).max(axis=1) > _ROUNDING)
        if not too_far.any():
            break
        step[too_far] /= 2
        rise[too_far] /= 2
    return np.asarray(step)


def _chances(eta: Array) -> tuple[Array, Array]:
    """Return the probabilities of one and of zero, each with all its digits however small it is."""
    small = np.exp(-np.abs(eta))
    large = 1.0 / (1.0 + small)
    small *= large
    return np.where(eta > 0, large, small), np.where(eta > 0, small, large)


def _gram(weights: Array, matrix: Array) -> Array:
    """Return X' diag(w) X for each row w, by one product with the pairs of columns."""
    pairs = (matrix[:, :, None] * matrix[:, None, :]).reshape(len(matrix), -1)
    return (weights @ pairs).reshape(len(weights), matrix.shape[1], matrix.shape[1])
