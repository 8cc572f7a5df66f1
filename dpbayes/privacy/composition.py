"""Sums of independent privacy losses: certified tails by exponential tilting and FFT.

An FFT convolution has errors near 1e-16 of the *largest* probability, which drowns a delta of 1e-15. Here each law is
first tilted, mass times exp(tilt * loss) and normalized, so that the composed law is centred on the very losses that
decide the answer; the tilt is undone exactly afterwards and the error stays relative to delta (Keich 2005, "sFFT",
J. Comput. Biol. 12). What can go wrong is bounded and added to the ends: FFT and powering round-off, mass that wraps
around the window (Chernoff bound), rounding of sums, and the grid (`discretize`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dpbayes.privacy.discretize import find_lattice
from dpbayes.privacy.loss_law import Bounds, LossLaw
from dpbayes.privacy.tilting import TiltedSum, Tilter

__all__ = ["ComposedLoss"]

# A tilted sum serves a query when its absolute error stays below this share of the answer.
_GOOD = 1e-9
_KEPT = 4


@dataclass(frozen=True)
class ComposedLoss:
    """Law of a sum of independent privacy losses: pairs of a law and how often it occurs.

    Parameters
    ----------
    parts
        At least one pair (law, count >= 1).

    Examples
    --------
    >>> coin = LossLaw(np.log([1 / 3, 3]), np.array([0.25, 0.75]))
    >>> total = ComposedLoss(((coin, 3),))
    >>> bool(3 * np.log(3) in total.epsilon_bounds(0.0))
    True
    """

    parts: tuple[tuple[LossLaw, int], ...]
    _memo: dict = field(default_factory=dict, compare=False, repr=False)

    def repeat(self, count: int) -> "ComposedLoss":
        """Sum of `count` independent copies."""
        return ComposedLoss(tuple((law, count * times) for law, times in self.parts))

    def join(self, other: "ComposedLoss") -> "ComposedLoss":
        """Sum of this and another, independent; equal laws are counted together."""
        merged = list(self.parts)
        for law, times in other.parts:
            same = [i for i, (mine, _) in enumerate(merged) if mine is law]
            if same:
                merged[same[0]] = (law, merged[same[0]][1] + times)
            else:
                merged.append((law, times))
        return ComposedLoss(tuple(merged))

    @property
    def _single(self) -> LossLaw | None:
        return self.parts[0][0] if len(self.parts) == 1 and self.parts[0][1] == 1 else None

    @property
    def infinite(self) -> Bounds:
        """Mass of infinite loss: without and with what is missing from the laws."""
        with np.errstate(divide="ignore"):
            lower = sum(n * np.log1p(-min(1.0, law.infinite)) for law, n in self.parts)
            upper = sum(n * np.log1p(-min(1.0, law.infinite + law.missing)) for law, n in self.parts)
        return Bounds(float(-np.expm1(lower)) * (1 - 1e-12), min(1.0, float(-np.expm1(upper)) * (1 + 1e-12)))

    @property
    def largest(self) -> float:
        """Largest finite total loss, rounded up."""
        total = sum(n * (law.largest + law.shift) for law, n in self.parts)
        return float(total + 1e-14 * abs(total)) if np.isfinite(total) else float(total)

    def delta_bounds(self, epsilon: float) -> Bounds:
        """Certified ends of the hockey-stick divergence at `epsilon`."""
        if self._single is not None:
            return self._single.delta_bounds(epsilon)
        return self._tail_at(epsilon, "hockey")

    def tail_bounds(self, epsilon: float) -> Bounds:
        """Certified ends of the probability that the total loss exceeds `epsilon`."""
        if self._single is not None:
            return self._single.tail_bounds(epsilon)
        return self._tail_at(epsilon, "tail")

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Certified ends of the smallest epsilon >= 0 whose hockey-stick divergence is at most `delta`."""
        if self._single is not None:
            return self._single.epsilon_bounds(delta)
        return self._crossing(delta, "hockey")

    def quantile_bounds(self, delta: float) -> Bounds:
        """Certified ends of the smallest epsilon >= 0 that the total exceeds with probability at most `delta`."""
        if self._single is not None:
            return self._single.quantile_bounds(delta)
        return self._crossing(delta, "tail")

    def _tail_at(self, epsilon: float, mode: str) -> Bounds:
        infinite = self.infinite
        if epsilon >= self.largest:
            return infinite
        if epsilon == -np.inf:
            return Bounds(1.0, 1.0)
        best = Bounds(infinite.lower, 1.0)
        for tilted in self._sums(mode, epsilon=epsilon):
            found = tilted.bounds(epsilon, infinite)
            best = Bounds(max(best.lower, found.lower), min(best.upper, found.upper))
            if tilted.error_share(epsilon) <= _GOOD:
                break
        return best

    def _crossing(self, delta: float, mode: str) -> Bounds:
        infinite = self.infinite
        if delta < infinite.lower:
            return Bounds(np.inf, np.inf)
        best = Bounds(0.0, max(0.0, self.largest) if delta >= infinite.upper else np.inf)
        if best.upper == 0.0:
            return best
        for tilted in self._sums(mode, delta=delta - infinite.lower):
            found = tilted.crossing(delta, infinite)
            best = Bounds(max(best.lower, found.lower), min(best.upper, found.upper))
            if np.isfinite(found.upper) and tilted.error_share(0.5 * (found.lower + found.upper)) <= _GOOD:
                break
        return best

    def _sums(self, mode: str, *, epsilon: float = 0.0, delta: float | None = None) -> Iterator[TiltedSum]:
        """Tilted sums to try: those at hand, then one made for the query."""
        kept: list[TiltedSum] = self._memo.setdefault(mode, [])
        yield from list(kept)
        tilter = self._tilter
        tilt = tilter.tilt_for_epsilon(epsilon) if delta is None else tilter.tilt_for_delta(delta)
        if all(abs(tilt - old.tilt) > 1e-9 * (1 + tilt) for old in kept):
            kept.insert(0, tilter.tilted_sum(tilt, mode))
            del kept[_KEPT:]
            yield kept[0]

    @property
    def _tilter(self) -> Tilter:
        if "tilter" not in self._memo:
            lattices = [find_lattice(law) for law, _ in self.parts]
            self._memo["tilter"] = Tilter(self.parts, lattices)
        return self._memo["tilter"]
