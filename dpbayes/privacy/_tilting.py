"""Where to centre a composition: the tilt for a query, the window and its grid."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpbayes.privacy._convolution import Addend, convolve
from dpbayes.privacy._discretize import Lattice, find_lattice, on_grid
from dpbayes.privacy._tail_sums import TailSum, TiltedSum
from dpbayes.privacy.loss_law import Bounds, LossLaw

__all__ = ["Tilter"]

_SIZE = 1 << 20
_LATTICE_SIZE = 1 << 21
_COARSE = 4096
# Half width of the window in tilted standard deviations; a Gaussian has 1e-23 outside.
_SPREAD = 10.0


@dataclass(frozen=True)
class Tilter:
    """Chooses tilts for the sum of `parts`, pairs of a law with finite losses and its count, and composes there."""

    parts: tuple[tuple[LossLaw, int], ...]
    infinite: Bounds

    @cached_property
    def _lattices(self) -> list[Lattice | None]:
        return [find_lattice(law) for law, _ in self.parts]

    @cached_property
    def _lattice_step(self) -> float | None:
        """Step of a lattice that holds every law, or None; 1 when each law has a single loss."""
        if None in self._lattices:
            return None
        steps = np.array([lattice.step for lattice in self._lattices if lattice is not None and lattice.step > 0])
        if not steps.size:
            return 1.0
        multiples = steps / steps.min()
        return float(steps.min()) if np.all(np.abs(multiples - np.rint(multiples)) < 1e-12 * multiples) else None

    @cached_property
    def _coarse(self) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """Each law with at most `_COARSE` points: good enough to choose a tilt, which is free to be any number."""
        return [(*_coarsen(law), count) for law, count in self.parts]

    @cached_property
    def _reach(self) -> float:
        """Distance between the smallest and the largest total loss."""
        return float(sum(count * (law.loss[-1] - law.loss[0]) for law, count in self.parts))

    def _cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Cumulant generating function of the total loss at `tilt` and its first two derivatives."""
        total = np.zeros(3)
        for loss, log_mass, count in self._coarse:
            exponent = log_mass + tilt * loss
            peak = float(exponent.max())
            weight = np.exp(exponent - peak)
            mass = float(weight.sum())
            mean = float(weight @ loss) / mass
            total += count * np.array([peak + np.log(mass), mean, float(weight @ (loss - mean) ** 2) / mass])
        return float(total[0]), float(total[1]), float(total[2])

    def tilt_for_epsilon(self, epsilon: float) -> float:
        """Tilt >= 0 that centres the total loss on `epsilon`."""
        return self._root(lambda tilt, value, slope, curvature: slope >= epsilon)

    def tilt_for_delta(self, delta: float) -> float:
        """Tilt >= 0 whose saddle-point estimate of the hockey stick is `delta`."""
        goal = np.log(delta) if delta > 0 else -700.0

        def small(tilt: float, value: float, slope: float, curvature: float) -> bool:
            spread = np.log1p(tilt * (1 + tilt) * np.sqrt(2 * np.pi * max(curvature, 0.0)))
            return bool(value - tilt * slope - spread <= goal)

        return self._root(small)

    def _root(self, reached: Callable[[float, float, float, float], bool]) -> float:
        """Smallest tilt where `reached`, or where the tilted total already sits on its largest value."""
        most = sum(float(loss[-1]) * count for loss, _, count in self._coarse)

        def done(tilt: float) -> bool:
            value, slope, curvature = self._cumulants(tilt)
            return most - slope <= np.sqrt(curvature) + 1e-12 * abs(most) or reached(tilt, value, slope, curvature)

        if done(0.0):
            return 0.0
        low, high = 0.0, 1.0
        while not done(high) and high < 1e9:
            low, high = high, 2 * high
        for _ in range(20):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if done(middle) else (middle, high)
        return high

    def tilted_sum(self, tilt: float) -> TiltedSum:
        """Compose at `tilt`, widening the window until next to nothing wraps around it."""
        _, centre, variance = self._cumulants(tilt)
        width = min(self._reach, 2 * _SPREAD * float(np.sqrt(variance))) + 1e-9
        while True:
            step, size, exact = self._grid(width)
            above = self._compose(tilt, centre, step, size, "nearest" if exact else "above")
            if above.wrapped <= 1e-17 or width > 2 * self._reach:
                break
            width = 1.5 * width + 1e-9
        below = above if exact else self._compose(tilt, centre, step, size, "below")
        return TiltedSum(tilt, above, below, self.infinite)

    def _grid(self, width: float) -> tuple[float, int, bool]:
        """Step, number of points, and whether the losses lie on the grid as they are."""
        if self._lattice_step is not None:
            size = 1 << max(4, int(np.ceil(np.log2(width / self._lattice_step + 4))))
            if size <= _LATTICE_SIZE:
                return self._lattice_step, size, True
        step = width / (_SIZE - 4)
        if len(self.parts) == 1:
            # Both ends of the law on the grid: its extreme outcomes are then exact.
            span = float(self.parts[0][0].loss[-1] - self.parts[0][0].loss[0])
            step = span / max(1, int(span / step)) if span > 0 else step
        return step, _SIZE, False

    def _compose(self, tilt: float, centre: float, step: float, size: int, kind: str) -> TailSum:
        addends = [
            Addend(on_grid(law, offset=float(law.loss[-1]), step=step, kind=kind), count, law.log_error, law.shift)
            for law, count in self.parts
        ]
        addends = [Addend(a.grid, a.count, a.log_error + a.grid.log_error, a.shift + a.grid.shift) for a in addends]
        return convolve(addends, tilt=tilt, centre=centre, size=size, exact=kind == "nearest")


def _coarsen(law: LossLaw) -> tuple[np.ndarray, np.ndarray]:
    """Losses and log-masses of at most `_COARSE` groups of neighbouring outcomes."""
    loss, mass = law.loss, law.mass
    if loss.size <= _COARSE:
        return loss, np.log(mass)
    span = float(loss[-1] - loss[0])
    place = np.minimum(((loss - loss[0]) * (_COARSE / span)).astype(int), _COARSE - 1)
    total = np.bincount(place, mass, minlength=_COARSE)
    mean = np.bincount(place, mass * (loss - loss[0]), minlength=_COARSE)
    keep = total > 0
    return loss[0] + mean[keep] / total[keep], np.log(total[keep])
