"""Composition by listing every total, where the totals are few: no grid, no FFT, rounding only."""

import numpy as np

from dpbayes.privacy.loss_law import UNIT, LossLaw

__all__ = ["enumerate_sum"]

# Totals and pairs of totals that are worth listing.
_TOTALS, _PAIRS = 1 << 17, 1 << 21
# Totals closer than this (relative to the largest) are the same number computed in a different order.
_SAME = 1e-13


def enumerate_sum(parts: tuple[tuple[LossLaw, int], ...]) -> LossLaw | None:
    """Return the law of the total loss as one list, or None where that would be long or underflow.

    Examples
    --------
    >>> coin = LossLaw(np.array([-1.0, 1.0]), np.array([0.25, 0.75]))
    >>> enumerate_sum(((coin, 2),)).mass
    array([0.0625, 0.375 , 0.5625])
    """
    # Products of masses below the smallest double would vanish without a trace.
    if sum(count * -np.log(law.mass.min()) for law, count in parts if law.mass.size) > 600.0:
        return None
    total: LossLaw | None = LossLaw(np.zeros(1), np.ones(1))
    for law, count in parts:
        power: LossLaw | None = law
        while count and total is not None and power is not None:
            if count & 1:
                total = _add(total, power)
            count >>= 1
            if count:
                power = _add(power, power)
        if count or total is None:
            return None
    return total


def _add(one: LossLaw, other: LossLaw) -> LossLaw | None:
    """Law of the sum of two independent losses, equal totals merged; None when there are too many."""
    if one.loss.size * other.loss.size > _PAIRS:
        return None
    loss = np.add.outer(one.loss, other.loss).ravel()
    mass = np.multiply.outer(one.mass, other.mass).ravel()
    order = np.argsort(loss, kind="stable")
    loss, mass = loss[order], mass[order]
    magnitude = float(np.max(np.abs(loss), initial=0.0))
    starts = np.flatnonzero(np.diff(loss, prepend=-np.inf) > _SAME * magnitude)
    if starts.size > _TOTALS or not loss.size:
        return None
    merged = np.add.reduceat(mass, starts)
    lengths = np.diff(np.append(starts, loss.size))
    spread = float(np.max(loss[starts + lengths - 1] - loss[starts]))
    return LossLaw(
        loss[starts],
        merged,
        log_error=one.log_error + other.log_error + (2 + int(lengths.max())) * UNIT,
        shift=one.shift + other.shift + spread + 2 * UNIT * magnitude,
    )
