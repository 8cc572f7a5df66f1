"""Checks of a pair of output distributions, and the loss law of one of its directions."""

from typing import Any

import numpy as np

from dpbayes._arguments import number, real_numbers
from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import Bounds, LossLaw

__all__ = ["check_pair", "direction_law", "log_masses", "probability", "worse"]

# Masses below this are kept only as a sum and a largest loss: their products and logarithms would underflow.
_DUST = 1e-300


def log_masses(values: Any, name: str) -> np.ndarray:
    """Return `values` as a flat float array, or say why they are no logarithms of probabilities."""
    array = np.ravel(real_numbers(values, name))
    if not array.size or np.isnan(array).any() or (array == np.inf).any():
        raise InputError(
            f"{name} must hold logarithms of probabilities, got "
            f"{'no entry' if not array.size else 'NaN or plus infinity'}; use minus infinity for an impossible outcome"
        )
    return array


def check_pair(loss: np.ndarray, log_p: np.ndarray, log_q: np.ndarray, finite: np.ndarray, log_error: float) -> None:
    """Refuse shapes that differ, and masses that contradict the losses."""
    if not loss.shape == log_p.shape == log_q.shape or np.isnan(loss).any():
        raise InputError(
            f"losses and log-masses must match and hold no NaN, got shapes {loss.shape}, {log_p.shape}, {log_q.shape}"
        )
    if not 0.0 <= log_error <= 0.01:
        raise InputError(f"log_error must be between 0 and 0.01, got {log_error}; it bounds rounding, not a guess")
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.where(finite, log_p - log_q - loss, 0.0))
    magnitude = 1.0 + np.where(finite & (log_p > -np.inf), np.abs(log_p), 0.0)
    wrong_side = ((loss == np.inf) & (log_q > -np.inf)) | ((loss == -np.inf) & (log_p > -np.inf))
    one_sided = finite & ((log_p == -np.inf) != (log_q == -np.inf))
    if wrong_side.any() or one_sided.any() or (gap > 4 * log_error + 1e-14 * magnitude).any():
        raise InputError(
            "the masses contradict the losses: a loss is ln(P-mass / Q-mass), infinite where one of them is 0; "
            f"the largest gap is {np.nanmax(gap):.3g} and log_error is {log_error:g}"
        )


def direction_law(loss: np.ndarray, log_mass: np.ndarray, infinite: float, log_error: float, side: str) -> LossLaw:
    """One direction: sorted finite losses, mass at infinity, and what is missing from a total of 1."""
    if not 0.0 <= infinite <= 1.0:
        raise InputError(f"the mass of an infinite loss must be between 0 and 1, got {infinite!r}")
    mass = np.exp(log_mass)
    at_infinity = float(np.sum(mass[loss == np.inf])) + float(infinite)
    possible = np.isfinite(loss) & (log_mass > -np.inf)
    ceiling = float(np.max(loss, where=possible, initial=-np.inf))
    listed = possible & (mass > _DUST)
    dust = 2 * _DUST * int(np.count_nonzero(possible & ~listed))
    loss, mass = loss[listed], mass[listed]
    order = np.argsort(loss, kind="stable")
    loss, mass = loss[order], mass[order]
    excess = float(np.sum(mass)) + at_infinity - 1.0
    allowed = np.expm1(log_error) + 2.0**-44
    if excess > allowed:
        raise InputError(
            f"the {side}-masses add up to 1 + {excess:.3g}, more than log_error {log_error:g} explains; "
            "normalize them, or state how exact they are with log_error="
        )
    missing = -excess if excess < -allowed else 0.0
    shift = 2 * log_error + 2.0**-52 * float(np.max(np.abs(loss), initial=max(0.0, ceiling)))
    return LossLaw(
        loss, mass, at_infinity, missing, dust=dust, ceiling=ceiling, log_error=log_error + 2.0**-50, shift=shift
    )


def worse(bounds: list[Bounds]) -> Bounds:
    """Return the ends of the larger of several bounded numbers."""
    return Bounds(max(b.lower for b in bounds), max(b.upper for b in bounds))


def probability(delta: Any) -> float:
    """Return `delta` as a float in [0, 1]."""
    result = number(delta, "delta")
    if not 0.0 <= result <= 1.0:
        raise InputError(f"delta must be between 0 and 1, got {delta!r}; it is a probability")
    return result
