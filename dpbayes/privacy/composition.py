"""Sums of independent privacy losses with certified tails: enumeration where it is short, else tilting and FFT.

An FFT convolution has errors near 1e-16 of the *largest* probability, which drowns a delta of 1e-15. Here each law is
first tilted, mass times exp(tilt * loss) and normalized, so that the composed law is centred on the very losses that
decide the answer; the tilt is undone exactly afterwards and the error stays relative to delta (Keich 2005, "sFFT",
J. Comput. Biol. 12). What can go wrong is bounded and added to the ends: FFT and powering round-off, mass that wraps
around the window (Chernoff bound), rounding of sums, and the grid.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpbayes.errors import InputError
from dpbayes.privacy.convolution import TiltedSum, Tilter, last_where, tail_lower, tail_upper
from dpbayes.privacy.loss_law import UNIT, Bounds, LossLaw

type Curve = Callable[[float], float]
type TailBound = Callable[[Curve, Curve, float], float]

_KEPT = 4
# An error of 1e-12 in the logarithm of a mass adds up to 1 over as many runs.
_MOST_RUNS = 10**12


@dataclass(frozen=True)
class ComposedLoss:
    """Law of a sum of independent privacy losses: pairs of a law and how often it occurs."""

    parts: tuple[tuple[LossLaw, int], ...]
    _sums: list[TiltedSum] = field(default_factory=list, compare=False, repr=False)

    def repeat(self, count: int) -> "ComposedLoss":
        """Sum of `count` independent copies."""
        return ComposedLoss(_checked(tuple((law, count * times) for law, times in self.parts)))

    def join(self, other: "ComposedLoss") -> "ComposedLoss":
        """Sum of this and another, independent; a law that occurs in both is counted together."""
        merged = list(self.parts)
        for law, times in other.parts:
            same = next((i for i, (mine, _) in enumerate(merged) if mine is law), None)
            if same is None:
                merged.append((law, times))
            else:
                merged[same] = (law, merged[same][1] + times)
        return ComposedLoss(_checked(tuple(merged)))

    @cached_property
    def infinite(self) -> Bounds:
        """Mass of infinite loss: without and with what is missing from the laws."""
        slack = 1e-13 + sum(n * law.log_error for law, n in self.parts)
        with np.errstate(divide="ignore"):
            lower = sum(n * np.log1p(-min(1.0, law.infinite)) for law, n in self.parts)
            upper = sum(n * np.log1p(-min(1.0, law.infinite + law.missing)) for law, n in self.parts)
        ends = float(-np.expm1(lower) * np.exp(-slack)), float(-np.expm1(upper) * np.exp(slack))
        return Bounds(ends[0] + 0.0, min(1.0, ends[1] + 0.0))  # no negative zero

    @cached_property
    def _law(self) -> LossLaw | None:
        """The whole law as one list, where it is short or not composed at all."""
        if len(self.parts) == 1 and self.parts[0][1] == 1:
            return self.parts[0][0]
        law = enumerate_sum(self.parts)
        if law is None:
            return None
        infinite, highest = self.infinite, self._highest
        law = replace(law, infinite=infinite.lower, missing=infinite.upper - infinite.lower)
        if not self._underflow:
            return law
        # The ceiling is as uncertain as the total, and `shift` must say so in both directions.
        ceiling = highest.lower + 0.5 * highest.width
        return replace(law, underflow=self._underflow, ceiling=ceiling, shift=max(law.shift, 0.5 * highest.width))

    @cached_property
    def _tilter(self) -> Tilter:
        infinite = Bounds(self.infinite.lower, self.infinite.upper + self._underflow)
        return Tilter(self.parts, infinite)

    @cached_property
    def _underflow(self) -> float:
        return 2 * sum(n * law.underflow for law, n in self.parts)

    @cached_property
    def _highest(self) -> Bounds:
        """Largest finite total loss."""
        total = float(sum(n * law.highest for law, n in self.parts))
        slack = sum(n * law.shift for law, n in self.parts) + 1e-14 * abs(total) if np.isfinite(total) else 0.0
        return Bounds(total - slack, total + slack)

    def _at_least(self, rest: float, *, tail: bool) -> float:
        """Lower end of epsilon when the largest listed total alone has more mass than `rest`; else 0."""
        log_mass = sum(n * (np.log(law.mass[-1]) - law.log_error) for law, n in self.parts)
        log_mass -= 1e-13 * abs(log_mass)
        if rest >= np.exp(log_mass):
            return 0.0
        slack = sum(n * law.shift for law, n in self.parts)
        total = sum(n * law.largest for law, n in self.parts)
        drop = 0.0 if tail else float(np.log1p(-rest * np.exp(-log_mass)))
        return float(max(0.0, total + drop - slack - 1e-14 * abs(total)))

    def bounds(self, epsilon: float, *, tail: bool = False) -> Bounds:
        """Return certified bounds of the hockey-stick divergence at `epsilon`, or of the mass of losses above it."""
        return self._law.bounds(epsilon, tail=tail) if self._law is not None else self._read(epsilon, tail=tail)

    def crossing(self, delta: float, *, tail: bool = False) -> Bounds:
        """Return certified bounds of the smallest epsilon >= 0 where that is at most `delta`."""
        return self._law.crossing(delta, tail=tail) if self._law is not None else self._cross(delta, tail=tail)

    def _never_finite(self) -> bool:
        return any(not law.loss.size for law, _ in self.parts)

    def _read(self, epsilon: float, *, tail: bool) -> Bounds:
        infinite = self.infinite
        if self._never_finite() or epsilon >= self._highest.upper:
            return infinite
        if epsilon == -np.inf:
            return Bounds(1.0, 1.0)
        best = Bounds(infinite.lower, 1.0)
        for tilted in self._candidates(lambda: self._tilter.tilt_for_epsilon(epsilon)):
            found = tilted.bounds(epsilon, tail=tail)
            best = Bounds(max(best.lower, found.lower), min(best.upper, found.upper))
            if tilted.error_share(epsilon) <= tilted.good_share:
                break
        return best

    def _cross(self, delta: float, *, tail: bool) -> Bounds:
        infinite, highest = self.infinite, self._highest
        if delta < infinite.lower:
            return Bounds(np.inf, np.inf)
        top = max(0.0, highest.upper) if delta >= infinite.upper else np.inf
        if delta == 0.0:
            return Bounds(max(0.0, highest.lower), top)
        if self._never_finite():
            return Bounds(0.0, top)
        rest = delta - infinite.lower
        best = Bounds(self._at_least(rest, tail=tail), top)
        if best.upper == 0.0:
            return best
        for tilted in self._candidates(lambda: self._tilter.tilt_for_delta(rest)):
            found = tilted.crossing(delta, tail=tail)
            best = Bounds(max(best.lower, found.lower), min(best.upper, found.upper))
            if np.isfinite(found.upper) and tilted.error_share(found.upper) <= tilted.good_share:
                break
        return best

    def _candidates(self, tilt_for_query: Callable[[], float]) -> Iterator[TiltedSum]:
        """Tilted sums at hand, then one made for the query; the last few are kept."""
        yield from list(self._sums)
        tilt = tilt_for_query()
        if all(abs(tilt - known.tilt) > 1e-9 * (1 + tilt) for known in self._sums):
            self._sums.insert(0, self._tilter.tilted_sum(tilt))
            del self._sums[_KEPT:]
            yield self._sums[0]


@dataclass(frozen=True)
class BracketedLoss:
    """A total loss known only between two others: `above` dominates it, `below` is dominated by it."""

    above: ComposedLoss
    below: ComposedLoss

    def repeat(self, count: int) -> "BracketedLoss":
        """Sum of `count` independent copies."""
        return BracketedLoss(self.above.repeat(count), self.below.repeat(count))

    def bounds(self, epsilon: float) -> Bounds:
        """Return certified bounds of the hockey-stick divergence at `epsilon`."""
        return Bounds(self.below.bounds(epsilon).lower, self.above.bounds(epsilon).upper)

    def crossing(self, delta: float, *, tail: bool = False) -> Bounds:
        """Return certified bounds of the smallest epsilon >= 0 where that, or the tail, is at most `delta`."""
        least = Bounds(self.below.crossing(delta).lower, self.above.crossing(delta).upper)
        if not tail:
            return least
        if delta < self.below.infinite.lower:
            return Bounds(np.inf, np.inf)

        def beyond(epsilon: float, read: TailBound) -> bool:
            return read(lambda e: self.bounds(e).upper, lambda e: self.bounds(e).lower, epsilon) > delta

        # The tail weighs every loss by 1, the hockey stick by less: the quantile is at least epsilon(delta).
        far = max(least.upper, 1.0) if np.isfinite(least.upper) else np.inf
        while np.isfinite(far) and beyond(far, tail_upper):
            far = 2 * far if far < 1e6 else np.inf
        if not np.isfinite(far):
            return Bounds(least.lower, np.inf)
        high = np.nextafter(last_where(least.lower, far, lambda e: beyond(e, tail_upper)), np.inf)
        return Bounds(float(last_where(least.lower, far, lambda e: beyond(e, tail_lower))), float(high))


def _checked(parts: tuple[tuple[LossLaw, int], ...]) -> tuple[tuple[LossLaw, int], ...]:
    """Refuse more runs than doubles can certify."""
    if (runs := sum(count for _, count in parts)) > _MOST_RUNS:
        shown = f"{runs:,}" if runs < 10**30 else "far more"
        raise InputError(f"a loss composes at most {_MOST_RUNS:,} times, got {shown}; doubles certify no more")
    return parts


def join(one: ComposedLoss | BracketedLoss, other: ComposedLoss | BracketedLoss) -> ComposedLoss | BracketedLoss:
    """Sum of two independent totals; bracketed when one of them is."""
    if isinstance(one, ComposedLoss) and isinstance(other, ComposedLoss):
        return one.join(other)
    ends = [(loss, loss) if isinstance(loss, ComposedLoss) else (loss.above, loss.below) for loss in (one, other)]
    return BracketedLoss(ends[0][0].join(ends[1][0]), ends[0][1].join(ends[1][1]))


# Totals and pairs of totals that are worth listing.
_TOTALS, _PAIRS = 1 << 17, 1 << 21
# Totals closer than this (relative to the largest) are the same number computed in a different order.
_SAME = 1e-13


def enumerate_sum(parts: tuple[tuple[LossLaw, int], ...]) -> LossLaw | None:
    """Return the law of the total loss as one list, or None where that would be long or underflow."""
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
