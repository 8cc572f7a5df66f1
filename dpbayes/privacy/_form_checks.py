"""What the closed forms share: checks of their arguments and the symmetric pair."""

import math
import sys
from typing import Any

import numpy as np

from dpbayes._arguments import number, positive_finite, real_numbers
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.composition import ComposedLoss
from dpbayes.privacy.curves import PrivacyLoss
from dpbayes.privacy.loss_law import LossLaw

__all__ = [
    "ROUNDING",
    "checked_delta",
    "each",
    "integer_move",
    "listed",
    "move_of",
    "ratio",
    "rounding_of",
    "symmetric",
    "width",
]

# Relative error of masses computed with exp and expm1 of exactly scaled arguments.
ROUNDING = 1e-14
_DUST = 1e-300


def symmetric(law: LossLaw, adjacency: Adjacency | None) -> PrivacyLoss:
    """Pair whose two directions have the same law."""
    total = ComposedLoss(((law, 1),))
    return PrivacyLoss(total, total, adjacency)


def listed(loss: np.ndarray, mass: np.ndarray, *, log_error: float, shift: float) -> LossLaw:
    """Law without the masses at which doubles end, which are counted as dust; losses ascend."""
    keep = mass > _DUST
    dropped = loss[~keep]
    return LossLaw(
        loss[keep],
        mass[keep],
        dust=2 * _DUST * dropped.size,
        ceiling=float(dropped.max(initial=-np.inf)),
        log_error=log_error,
        shift=shift,
    )


def rounding_of(largest: float) -> float:
    """Relative error of masses exp(-x) with x up to `largest`; beyond 1e3 there is no mass left."""
    return ROUNDING * (1 + min(largest, 1e3))


def each(curve: Any, epsilon: Any) -> Any:
    """Apply `curve` to each epsilon, after checking that none is negative."""
    values = real_numbers(epsilon, "epsilon")
    if not (values >= 0).all():
        raise InputError(f"epsilon must be at least 0, got {epsilon!r}")
    result = np.vectorize(curve, otypes=[float])(values)
    return float(result) if values.ndim == 0 else result


def checked_delta(delta: float) -> float:
    """Return `delta` as a float in [0, 1)."""
    value = number(delta, "delta")
    if not 0.0 <= value < 1.0:
        raise InputError(f"delta must be at least 0 and below 1, got {delta!r}; a usual choice is below 1 / n")
    return value


def width(value: float, name: str) -> float:
    """Return a positive scale or stddev."""
    return positive_finite(value, name, remedy="it is the spread of the noise, in the unit of the number released")


def ratio(move: float, spread: float) -> float:
    """Return sensitivity / spread, or refuse it where its square, a variance of losses, is no double."""
    value = move / spread
    if not sys.float_info.min <= value * value < math.inf:
        raise InputError(
            f"a sensitivity of {move:g} over noise of spread {spread:g} is a ratio whose square no double holds; "
            "no release has such a cost, so check the unit of both"
        )
    return value


def move_of(sensitivity: float, adjacency: Adjacency | None = None) -> float:
    """Return a positive sensitivity, stated under a relation that exists."""
    if adjacency is not None:
        check_adjacency(adjacency)
    return positive_finite(
        sensitivity, "sensitivity", remedy="it is the largest change between neighbours under the adjacency in use"
    )


def integer_move(sensitivity: float, adjacency: Adjacency | None = None) -> int:
    """Return a positive whole sensitivity, stated under a relation that exists."""
    move = move_of(sensitivity, adjacency)
    if move != int(move):
        raise InputError(f"sensitivity must be a whole number, got {sensitivity!r}; integer noise protects integers")
    return int(move)
