"""Privacy curve of randomized response."""

import sys
from typing import Any

import numpy as np

from dpbayes._arguments import number
from dpbayes.errors import InputError
from dpbayes.privacy._form_checks import ROUNDING, checked_delta, each, symmetric
from dpbayes.privacy.curves import PrivacyLoss
from dpbayes.privacy.loss_law import LossLaw

__all__ = ["randomized_response_delta", "randomized_response_epsilon", "randomized_response_loss"]


def randomized_response_delta(epsilon: Any, *, truth_probability: float, categories: int = 2) -> Any:
    """Return the smallest delta of randomized response under replacement of the respondent's answer.

    Parameters
    ----------
    epsilon
        At least 0; scalar or array.
    truth_probability
        Probability t of the true category; each other one has (1 - t) / (categories - 1).
    categories
        Number of categories, at least 2.

    Returns
    -------
    float or numpy.ndarray
        The larger probability minus exp(epsilon) times the smaller one, or 0.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(randomized_response_delta(0.0, truth_probability=0.75), 9)
    0.5
    """
    high, low = sorted(_response(truth_probability, categories)[:2], reverse=True)
    return each(lambda e: max(0.0, high * -float(np.expm1(min(0.0, e - np.log(high / low))))), epsilon)


def randomized_response_epsilon(delta: float, *, truth_probability: float, categories: int = 2) -> float:
    """Return the smallest epsilon of randomized response under replacement of the respondent's answer.

    Parameters
    ----------
    delta
        At least 0 and below 1.
    truth_probability, categories
        As in `randomized_response_delta`.

    Returns
    -------
    float
        The logarithm of (larger probability - delta) / smaller probability, or 0.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(randomized_response_epsilon(0.0, truth_probability=0.75), 6)
    1.098612
    """
    high, low = sorted(_response(truth_probability, categories)[:2], reverse=True)
    rest = high - checked_delta(delta)
    return max(0.0, float(np.log(rest / low))) if rest > low else 0.0


def randomized_response_loss(*, truth_probability: float, categories: int = 2) -> PrivacyLoss:
    """Return the privacy loss of randomized response; its adjacency is replace-one.

    Parameters
    ----------
    truth_probability, categories
        As in `randomized_response_delta`.

    Returns
    -------
    PrivacyLoss

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(randomized_response_loss(truth_probability=0.75).compose(100).epsilon(1e-6), 4)
    94.2899
    """
    truth, other, count = _response(truth_probability, categories)
    same = (count - 2) * other
    step = abs(float(np.log(truth / other)))
    values = np.array([-step, 0.0, step]), np.array([min(truth, other), same, max(truth, other)])
    keep = values[1] > 0
    return symmetric(
        LossLaw(values[0][keep], values[1][keep], log_error=ROUNDING, shift=1e-15 * (1 + step)), "replace-one"
    )


def _response(truth_probability: float, categories: int) -> tuple[float, float, float]:
    """Return the probabilities of the true category and of each other one, and the number of categories."""
    truth, count = number(truth_probability, "truth_probability"), number(categories, "categories")
    if not 2 <= count < np.inf or count != np.floor(count):
        raise InputError(f"categories must be a whole number of at least 2, got {categories!r}")
    if not 0.0 < truth < 1.0:
        raise InputError(
            f"truth_probability must be between 0 and 1, both excluded, got {truth_probability!r}; 1 hides nothing"
        )
    other = (1.0 - truth) / (count - 1)
    if min(truth, other) < sys.float_info.min:
        raise InputError(
            f"truth_probability {truth:g} with {count:g} categories gives a probability of {min(truth, other):g}, "
            "too small for doubles; move it away from 0 and 1, or merge categories"
        )
    return truth, other, count
