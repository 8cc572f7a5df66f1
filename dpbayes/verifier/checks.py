"""What a verification release must look like, and the ranges of its parameters."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import number, ordered, positive_finite, shown
from dpbayes.errors import InputError
from dpbayes.privacy.noise import DiscreteGaussian, Gaussian, NoiseLaw
from dpbayes.privacy.release import NoisyTable, Release

__all__ = ["OUTCOMES", "check_alpha", "check_explained", "check_n_partitions", "reachable", "verification_table"]

type FloatArray = npt.NDArray[np.float64]

OUTCOMES = ("beyond", "not beyond", "not computed")
"""Levels of a verification release: how many partitions lie beyond the threshold, do not, or could not be computed."""


def verification_table(release: Release, question: str | None = None) -> NoisyTable:
    """Return the table of a verification release, or say why it is none."""
    if not isinstance(release, Release):
        raise InputError(f"a posterior starts from a Release, got {type(release).__name__}; use release_counts")
    tables = {table.label: table for table in release.tables}
    if question is None and len(tables) > 1:
        raise InputError(f"the release answers {len(tables)} questions; name one with question=, of {list(tables)!r}")
    if question is not None and question not in tables:
        raise InputError(f"question {question!r} is not in the release; it has {list(tables)!r}")
    table = tables[question] if question is not None else release.tables[0]
    if len(table.domain) != 1 or table.domain.attributes[0].levels not in (OUTCOMES, OUTCOMES[:2]):
        raise InputError(
            f"table {table.label} holds no verification counts: its levels must be {OUTCOMES!r} or the first two; "
            "release counts of partitions with verifier.release_counts"
        )
    if not isinstance(release.n, int):
        raise InputError("the number of partitions is not public in this release; it is M, set by the custodian")
    return table


def check_alpha(alpha: Sequence[float] | None, n_outcomes: int) -> tuple[float, ...]:
    """Return the Dirichlet parameters, one an outcome, all positive and finite."""
    if n_outcomes not in (2, 3):
        raise InputError(f"a verification release has two or three counts, got {n_outcomes}")
    values = (1.0,) * n_outcomes if alpha is None else given_alpha(alpha)
    if len(values) != n_outcomes:
        raise InputError(f"alpha must give {n_outcomes} numbers, one an outcome, got {values!r}")
    return values


def given_alpha(alpha: Any) -> tuple[float, ...]:
    """Return Dirichlet parameters as positive floats, however many they are."""
    given = ordered(alpha, "alpha", remedy="give one number an outcome")
    return tuple(positive_finite(value, "alpha", remedy="1 for each is the uniform prior") for value in given)


def check_share(value: Any, name: str) -> float:
    """Return a share of partitions, or a threshold of it, as a float from 0 to 1.

    Examples
    --------
    >>> check_share(1, "r")
    1.0
    """
    share = number(value, name)
    if not 0 <= share <= 1:
        raise InputError(f"{name} must lie in [0, 1], got {shown(value)}; it is a share of partitions")
    return share


def check_confidence(value: Any) -> float:
    """Return the posterior probability from which an analyst decides, as a float above 0.5 and below 1.

    Examples
    --------
    >>> check_confidence(0.95)
    0.95
    """
    confidence = number(value, "confidence")
    if not 0.5 < confidence < 1:
        raise InputError(f"confidence must lie strictly between 0.5 and 1, got {shown(value)}; 0.95 is usual")
    return confidence


def check_n_partitions(n_partitions: Any) -> int:
    """Return M if it is a whole number of at least 1."""
    if isinstance(n_partitions, bool) or not isinstance(n_partitions, int | np.integer) or n_partitions < 1:
        raise InputError(f"the number of partitions must be at least 1, got {shown(n_partitions)}; 50 is usual")
    return int(n_partitions)


def is_finite_number(value: Any) -> bool:
    """Whether a value is a finite real number, of Python or of NumPy, and no truth value.

    Examples
    --------
    >>> is_finite_number(np.int64(3)), is_finite_number("3"), is_finite_number(True)
    (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the doubles
        return False


def reachable(values: FloatArray, noise: NoiseLaw, n_partitions: int) -> tuple[FloatArray, float]:
    """Return values for which the noise law can be evaluated, and the change of log-density that this makes.

    A two-sided geometric or Laplace density falls at one rate beyond [0, M], so a value outside tells as much about
    the counts as the nearest end: moving it there changes the likelihood by a constant. Gaussian laws have no such
    end; beyond 40 standard deviations their densities lose all digits.
    """
    if not np.all(np.isfinite(values)):
        raise InputError("a released count is not finite; ask the custodian for the release again")
    if noise.is_discrete and np.any(values != np.floor(values)):
        raise InputError(
            f"no true counts can explain released counts that are not whole, got {values.tolist()} with noise {noise}; "
            "check the noise law: Laplace and Gaussian noise make such counts"
        )
    ends = np.clip(values, 0, n_partitions)
    if isinstance(noise, DiscreteGaussian | Gaussian):
        if np.any(np.abs(values - ends) > 40 * noise.stddev):
            raise InputError(
                f"released counts {values.tolist()} lie more than 40 standard deviations outside [0, {n_partitions}]; "
                f"noise {noise} cannot have done this: check M and the noise law"
            )
        return values, 0.0
    return ends, -float(np.abs(values - ends).sum()) / noise.scale


def check_explained(log_weights: npt.ArrayLike, noise: NoiseLaw, n_partitions: int) -> None:
    """Refuse released counts to which no true counts lead: the largest log-weight of each release must be finite."""
    if np.any(np.asarray(log_weights) == -math.inf):
        raise InputError(
            f"no true counts of {n_partitions} partitions can explain the released counts under noise {noise}; check "
            "that M and the noise law are those of the release"
        )
