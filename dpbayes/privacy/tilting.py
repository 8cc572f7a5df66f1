"""One tilted composition: where to centre it, the FFT, and the certified tails read from it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft

from dpbayes.privacy.discretize import GridLaw, Lattice, on_grid
from dpbayes.privacy.loss_law import UNIT, Bounds, LossLaw, suffix_sums

__all__ = ["TiltedSum", "Tilter"]

_SIZE = 1 << 20
_LATTICE_SIZE = 1 << 22
_COARSE = 4096
# Half width of the window in tilted standard deviations; a Gaussian has 1e-23 outside.
_SPREAD = 10.0


@dataclass(frozen=True)
class TailSum:
    """Tail sums of a composed law in one tilted window, with what is uncertain about them.

    With s the grid points, g the tilted masses and c the reference loss, ``plain`` holds sums of g exp(-tilt (s - c))
    from each point up and ``damped`` those of g exp(-(tilt + 1)(s - c)).
    """

    start: float
    step: float
    reference: float
    tilt: float
    log_scale: float
    plain: np.ndarray
    damped: np.ndarray
    bin_error: float
    wrapped: float
    log_error: float
    shift: float
    hockey: bool

    def value(self, epsilon: float) -> tuple[float, float]:
        """Return the computed tail at `epsilon` and its absolute error, both without the common scale factor."""
        first = int(np.clip(np.floor((epsilon - self.start) / self.step) + 1, 0, self.plain.size - 1))
        plain, weight = float(self.plain[first]), float(np.exp(-self.tilt * (epsilon - self.reference)))
        count = self.plain.size - first
        if self.hockey:
            value = plain - float(np.exp(epsilon - self.reference)) * float(self.damped[first])
            weights = 1.0 + 1.0 / (self.tilt * (self.tilt + 1) * self.step) if self.tilt else np.inf
        else:
            value = plain
            weights = 1.0 + 1.0 / (self.tilt * self.step) if self.tilt else np.inf
        rounding = 4 * (2 * np.sqrt(self.plain.size) + 64) * UNIT * plain
        return max(value, 0.0), weight * (self.bin_error * min(count, weights) + self.wrapped) + rounding

    @property
    def scale(self) -> float:
        """Factor that turns tilted sums into probabilities."""
        return float(np.exp(self.log_scale))


@dataclass(frozen=True)
class TiltedSum:
    """A composed law near one loss: tails from above and from below."""

    tilt: float
    above: TailSum
    below: TailSum

    def _inside(self, tail: TailSum, epsilon: float) -> bool:
        return tail.start <= epsilon < tail.start + tail.step * (tail.plain.size - 1)

    def upper(self, epsilon: float) -> float:
        """Upper end of the finite part of the tail at `epsilon`; 1 outside the window."""
        tail, point = self.above, epsilon - self.above.shift
        if not self._inside(tail, point):
            return 1.0
        value, error = tail.value(point)
        return min(1.0, tail.scale * (np.exp(tail.log_error) * value + error))

    def lower(self, epsilon: float) -> float:
        """Lower end of the finite part of the tail at `epsilon`; 0 outside the window."""
        tail, point = self.below, epsilon + self.below.shift
        if not self._inside(tail, point):
            return 0.0
        value, error = tail.value(point)
        return max(0.0, tail.scale * (np.exp(-tail.log_error) * value - error))

    def bounds(self, epsilon: float, infinite: Bounds) -> Bounds:
        """Certified ends of the tail at `epsilon`, infinite losses included."""
        return Bounds(min(1.0, self.lower(epsilon) + infinite.lower), min(1.0, self.upper(epsilon) + infinite.upper))

    def error_share(self, epsilon: float) -> float:
        """Absolute error at `epsilon` as a share of the tail; infinite outside the window."""
        if not self._inside(self.above, epsilon):
            return np.inf
        value, error = self.above.value(epsilon)
        return error / value if value > 0 else np.inf

    def crossing(self, delta: float, infinite: Bounds) -> Bounds:
        """Certified ends of the smallest epsilon >= 0 where the tail is at most `delta`, as far as the window tells."""
        finite = delta - infinite.lower
        low = max(0.0, self.above.start)
        high = self.above.start + self.above.step * (self.above.plain.size - 2)
        root = _last(low, high, lambda e: self.above.scale * self.above.value(e)[0] > finite)
        above_delta = lambda e: self.lower(e) + infinite.lower > delta  # noqa: E731
        below_delta = lambda e: self.upper(e) + infinite.upper <= delta  # noqa: E731
        return Bounds(
            _outward(root, -1, low, above_delta) if root > 0 else 0.0,
            _outward(root, +1, high, below_delta) if not below_delta(0.0) else 0.0,
        )


def _last(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Largest point of [low, high] up to which `holds` holds; `low` when it holds nowhere."""
    if high <= low or not holds(low):
        return low
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return low
        low, high = (middle, high) if holds(middle) else (low, middle)


def _outward(root: float, direction: int, end: float, holds: Callable[[float], bool]) -> float:
    """First point from `root` outward where `holds` certifies the end; 0 or infinity when the window has none.

    The certified curves are not monotone over a whole window, because the absolute error weighs more far from the
    centre; hence the search starts at the root.
    """
    gap, inner, outer = 4 * UNIT * max(1.0, abs(root)), root, root
    while not holds(outer):
        if (outer - end) * direction >= 0:
            return 0.0 if direction < 0 else np.inf
        inner, outer, gap = outer, outer + direction * gap, 2 * gap
    for _ in range(40):
        middle = 0.5 * (inner + outer)
        inner, outer = (inner, middle) if holds(middle) else (middle, outer)
    return max(0.0, outer)


@dataclass(frozen=True)
class Tilter:
    """Chooses tilts for the sum of `parts` and builds the tilted sums."""

    parts: tuple[tuple[LossLaw, int], ...]
    lattices: list[Lattice | None]

    @cached_property
    def _coarse(self) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """Each law with at most `_COARSE` points: good enough to choose a tilt, which is free to be any number."""
        return [(*_coarsen(law), count) for law, count in self.parts if law.loss.size]

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
        high = 1.0
        while not done(high) and high < 1e9:
            high *= 2
        low = 0.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if done(middle) else (middle, high)
        return high

    def _grid(self, width: float) -> tuple[float, int, bool]:
        """Step, number of points, and whether the losses lie on the grid as they are."""
        steps = {lattice.step for lattice in self.lattices if lattice is not None and lattice.step > 0}
        if None not in self.lattices and len(steps) <= 1:
            step = steps.pop() if steps else 1.0
            size = 1 << max(4, int(np.ceil(np.log2(width / step + 4))))
            if size <= _LATTICE_SIZE:
                return step, size, True
        return width / (_SIZE - 4), _SIZE, False

    def tilted_sum(self, tilt: float, mode: str) -> TiltedSum:
        """Compose at `tilt`; `mode` is "hockey" for the divergence, "tail" for plain tail probabilities."""
        _, centre, variance = self._cumulants(tilt)
        reach = sum(n * (law.loss[-1] - law.loss[0]) for law, n in self.parts if law.loss.size)
        # A smooth sum needs a few standard deviations; a part that occurs rarely may put single outcomes far out.
        width = min(float(reach), 2 * _SPREAD * float(np.sqrt(variance)) + 1e-9)
        for _ in range(60):
            step, size, exact = self._grid(max(width, 1e-9))
            above = self._tail(tilt, centre, step, size, ("nearest" if exact else _UPPER[mode]), mode)
            if above.wrapped <= 1e-17 or size * step >= reach + 4 * step * sum(n for _, n in self.parts):
                break
            width *= 1.5
        below = above if exact else self._tail(tilt, centre, step, size, _LOWER[mode], mode)
        return TiltedSum(tilt, above, below)

    def _tail(self, tilt: float, centre: float, step: float, size: int, kind: str, mode: str) -> TailSum:
        laws = []
        for (law, count), lattice in zip(self.parts, self.lattices, strict=True):
            if law.loss.size:
                offset = lattice.offset if lattice is not None else float(law.loss[0])
                laws.append((on_grid(law, offset=offset, step=step, kind=kind), count, law))
        return _compose(laws, tilt, centre, size, mode == "hockey")


_UPPER = {"hockey": "above", "tail": "ceil"}
_LOWER = {"hockey": "below", "tail": "floor"}


def _compose(laws: list[tuple[GridLaw, int, LossLaw]], tilt: float, centre: float, size: int, hockey: bool) -> TailSum:
    """Tilt, transform, power, transform back, and account for every error on the way."""
    step = laws[0][0].step
    offset = sum(count * grid.offset for grid, count, _ in laws)
    first = int(np.floor((centre - offset) / step)) - size // 2
    stage = 8 * UNIT * np.log2(size)
    product: np.ndarray | float = 1.0
    log_bound: np.ndarray | float = 0.0
    growth: np.ndarray | float = 0.0
    log_scale = log_error = shift = magnitude = 0.0
    for grid, count, law in laws:
        loss = grid.offset + step * grid.index
        exponent = np.log(grid.mass) + tilt * loss
        peak = float(exponent.max())
        norm = peak + float(np.log(np.sum(np.exp(exponent - peak))))
        spectrum = fft.rfft(np.bincount(grid.index % size, np.exp(exponent - norm), minlength=size))
        bound = np.abs(spectrum) + stage
        product = product * _power(spectrum, count)
        log_bound = log_bound + count * np.log(bound)
        growth = growth + count * (stage + 3 * UNIT) / bound
        log_scale += count * norm
        crowd = int(np.bincount(grid.index - grid.index.min()).max()) if _narrow(grid) else grid.index.size
        size_of = float(np.max(np.abs(exponent))) + abs(norm)
        log_error += count * (law.log_error + grid.log_error + (8 + crowd + 8 * size_of) * UNIT)
        shift += count * (law.shift + grid.shift)
        magnitude += count * abs(norm)
    spectral = np.exp(log_bound) * growth + stage * np.abs(product)
    bin_error = 2 * float(np.sum(spectral)) / size
    masses = np.maximum(fft.irfft(product, size), 0.0)
    masses = np.roll(masses, -(first % size))
    start = offset + step * first
    wrapped = _wrapped(laws, tilt, start, start + step * (size - 1))
    # exp(-(tilt + 1)(s - centre)) must not overflow at the left end: nothing that far left is ever asked for.
    keep = max(0, int(np.ceil((centre - 600.0 / (tilt + 1) - start) / step)))
    points = start + step * np.arange(keep, size)
    plain = masses[keep:] * np.exp(-tilt * (points - centre))
    shift += 16 * UNIT * (abs(start) + step * size + abs(offset))
    return TailSum(
        start=float(points[0]),
        step=step,
        reference=centre,
        tilt=tilt,
        log_scale=log_scale - tilt * centre,
        plain=suffix_sums(plain),
        damped=suffix_sums(plain * np.exp(centre - points)),
        bin_error=bin_error,
        wrapped=wrapped,
        log_error=log_error + 8 * UNIT * (magnitude + abs(tilt * centre)),
        shift=shift,
        hockey=hockey,
    )


def _wrapped(laws: list[tuple[GridLaw, int, LossLaw]], tilt: float, bottom: float, top: float) -> float:
    """Chernoff bound on the tilted mass outside the window: E exp(t (S - top)) above, E exp(t (bottom - S)) below."""
    least = sum(count * (grid.offset + grid.step * int(grid.index.min())) for grid, count, _ in laws)
    most = sum(count * (grid.offset + grid.step * int(grid.index.max())) for grid, count, _ in laws)
    margin = 1e-12 * (abs(least) + abs(most))
    total = 0.0
    for sign, edge, needed in ((1, top, most > top - margin), (-1, bottom, least < bottom + margin)):
        if not needed:
            continue
        tries = [0.0]
        for turn in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0):
            push = sign * turn * 2 * _SPREAD / (top - bottom) * 2 * _SPREAD / 2
            tries.append(sum(n * (_log_mgf(g, tilt + push) - _log_mgf(g, tilt)) for g, n, _ in laws) - push * edge)
        total += float(np.exp(min(tries) + 1e-9))
    return total


def _log_mgf(grid: GridLaw, tilt: float) -> float:
    exponent = np.log(grid.mass) + tilt * (grid.offset + grid.step * grid.index)
    peak = float(exponent.max())
    return peak + float(np.log(np.sum(np.exp(exponent - peak))))


def _narrow(grid: GridLaw) -> bool:
    return int(grid.index.max()) - int(grid.index.min()) < 1 << 23


def _power(base: np.ndarray, count: int) -> np.ndarray:
    """Raise `base` to the `count` by repeated squaring: relative error count - 1 product roundings."""
    result: np.ndarray | None = None
    while count:
        if count & 1:
            result = base if result is None else result * base
        count >>= 1
        if count:
            base = base * base
    assert result is not None
    return result


def _coarsen(law: LossLaw) -> tuple[np.ndarray, np.ndarray]:
    loss, mass = law.loss, law.mass
    if loss.size <= _COARSE:
        return loss, np.log(mass)
    span = float(loss[-1] - loss[0])
    place = np.minimum(((loss - loss[0]) * (_COARSE / max(span, 1e-300))).astype(int), _COARSE - 1)
    total = np.bincount(place, mass, minlength=_COARSE)
    mean = np.bincount(place, mass * (loss - loss[0]), minlength=_COARSE)
    keep = total > 0
    return loss[0] + mean[keep] / total[keep], np.log(total[keep])
