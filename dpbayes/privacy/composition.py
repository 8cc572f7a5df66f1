"""Sums of independent privacy losses with certified tails: enumeration where it is short, else tilting and FFT.

*Tilting.* Each law is tilted, mass times exp(tilt * loss) and normalized, so that the composed law is centred on the
very losses that decide the answer; the tilt is undone exactly and the error stays relative to delta (Keich 2005,
"sFFT", J. Comput. Biol. 12). *On a grid.* From above, an outcome is split between two points, its P- and Q-mass kept
("connecting the dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, Theorem 4.1); from below stands the
greatest convex minorant of the exact values lowered by the interpolation gap. Both errors are quadratic in the step.
*The transform.* With masses that add up to 1, each coefficient of an FFT of length N is off by at most 8 u log2 N
(Higham 2002, section 24.1); raising a coefficient F to the n multiplies that by n |F|^(n - 1) and adds n sqrt(5) u
|F|^n. Summing over coefficients bounds the error of every output, summing squares that of all together (Parseval).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce

import numpy as np

from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import UNIT, Bounds, LossLaw, last_where, outward
from dpbayes.privacy.rounding import suffix_sums

# The minorant works with exp(loss); outside this range outcomes are dropped (below) or rounded down (above).
_LOWEST, _HIGHEST = -200.0, 400.0
_MANY = 100.0
_LONGEST_LATTICE = 1 << 22


@dataclass(frozen=True)
class GridLaw:
    """Masses on ``offset + step * index``, with their errors: those of the law, and what placing it added."""

    index: np.ndarray
    mass: np.ndarray
    offset: float
    step: float
    log_error: float
    shift: float

    @cached_property
    def loss(self) -> np.ndarray:
        """Loss of each entry."""
        return self.offset + self.step * self.index

    @cached_property
    def log_mass(self) -> np.ndarray:
        """Natural logarithm of the mass of each entry."""
        return np.log(self.mass)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest loss."""
        return float(self.loss.min()), float(self.loss.max())

    def log_mgf(self, tilt: float) -> float:
        """Logarithm of the sum of mass times exp(tilt * loss)."""
        exponent = self.log_mass + tilt * self.loss
        peak = float(exponent.max())
        return peak + float(np.log(np.sum(np.exp(exponent - peak))))

    def tilted(self, tilt: float, size: int) -> tuple[np.ndarray, float, float]:
        """Tilted masses folded on `size` residues, the logarithm of their norm, and a relative error bound."""
        norm = self.log_mgf(tilt)
        residue = self.index % size
        folded = np.bincount(residue, np.exp(self.log_mass + tilt * self.loss - norm), minlength=size)
        crowd = int(np.bincount(residue, minlength=size).max())
        largest = max(abs(end) for end in self.ends)
        magnitude = float(np.max(np.abs(self.log_mass))) + 4 * abs(tilt) * largest + abs(norm)
        return folded, norm, (16 + crowd + 4 * magnitude) * UNIT


def find_lattice(law: LossLaw) -> float | None:
    """Return the coarsest step of a lattice with every loss, to 1e-11 of the largest; 0 for one loss; or None."""
    loss = law.loss
    if not loss.size:
        return 0.0
    tolerance = 1e-11 * float(np.max(np.abs(loss))) + 8 * law.shift
    span = float(loss[-1] - loss[0])
    if span <= tolerance:
        return 0.0
    gaps = np.diff(loss)
    gaps = gaps[gaps > tolerance]
    if not gaps.size:
        return None
    step = float(gaps.min())
    while step * _LONGEST_LATTICE >= span:
        rest = np.abs(gaps - step * np.rint(gaps / step))
        rest = rest[rest > tolerance]
        if rest.size == 0:
            step = span / float(np.rint(span / step))
            residual = float(np.max(np.abs(loss - loss[0] - step * np.rint((loss - loss[0]) / step))))
            return step if residual <= 10 * tolerance else None
        step = float(rest.min())
    return None


def on_grid(law: LossLaw, *, offset: float, step: float, kind: str) -> GridLaw:
    """Place `law` on a grid."""
    position = (law.loss - offset) / step
    magnitude = float(np.max(np.abs(law.loss))) + abs(offset) if law.loss.size else 0.0
    rounding = 8 * UNIT * (magnitude + step)
    if kind == "nearest":
        index = np.rint(position).astype(np.int64)
        residual = float(np.max(np.abs(law.loss - (offset + step * index)), initial=0.0))
        return GridLaw(index, law.mass, offset, step, law.log_error, law.shift + rounding + residual)
    cell = np.floor(position).astype(np.int64)
    rise = np.clip(law.loss - (offset + step * cell), 0.0, step)
    whole = -np.expm1(-step)
    up = law.mass * (-np.expm1(-rise) / whole)
    down = law.mass * (np.exp(-rise) * -np.expm1(rise - step) / whole)
    if kind == "above":
        index, mass = np.concatenate([cell, cell + 1]), np.concatenate([down, up])
        keep, added = mass > 0, 16 * UNIT
        return GridLaw(index[keep], mass[keep], offset, step, law.log_error + added, law.shift + rounding)
    index, mass = _minorant(law, cell, down, up, offset, step)
    added = (64 + 16 * np.sqrt(index.size)) * UNIT
    return GridLaw(index, mass, offset, step, law.log_error + added, law.shift + rounding)


def _minorant(
    law: LossLaw, cell: np.ndarray, down: np.ndarray, up: np.ndarray, offset: float, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Greatest convex minorant, on the grid, of the curve ``H(x) = E_Q (P/Q - x)_+`` lowered by its chord gap."""
    # scipy.optimize takes longer to import than a short query takes to answer.
    from scipy.optimize import isotonic_regression

    inside = (law.loss >= _LOWEST) & (law.loss <= _HIGHEST)
    high = law.loss > _HIGHEST
    rest = cell[high], law.mass[high]
    if not inside.any():
        return rest
    cell, down, up = cell[inside], down[inside], up[inside]
    points, place = np.unique(np.concatenate([cell, cell + 1]), return_inverse=True)
    left = place[: cell.size]
    centre = 0.5 * (offset + step * (points[0] + points[-1]))
    x = np.exp(offset + step * points - centre)
    width = x[:-1] * np.expm1(step * np.diff(points))
    p = np.bincount(place, np.concatenate([down, up]), minlength=points.size)
    above = np.append(suffix_sums(p / x)[1:], 0.0)
    height = np.append(suffix_sums(width * above[:-1]), 0.0)
    # One outcome split into `down` at the left point and `up` at the right one has Q-mass q and place `share`.
    q = down / x[left] + up / x[left + 1]
    share = np.divide(up / x[left + 1], q, out=np.zeros_like(up), where=q > 0)
    gap, drop = (
        np.bincount(left, q * part * width[left], minlength=points.size)[:-1] for part in (share * (1 - share), share)
    )
    # Where the curve to the right of a cell is not far above its gap (isolated outcomes, the end of the support), the
    # line through the exact value at the right point is the better one: it lowers only the left point, by `drop`.
    even = height[1:] >= _MANY * gap
    lowered = np.maximum(np.append(np.where(even, gap, drop), 0.0), np.insert(np.where(even, gap, 0.0), 0, 0.0))
    value = height - lowered
    slope = -above[:-1] - np.diff(lowered) / width
    # From the first non-positive value on the minorant is 0; that point is lowered by all its height, enough for both.
    zero = int(np.argmax(value <= 0))
    value[zero:] = 0.0
    slope[zero:] = 0.0
    if zero:
        slope[zero - 1] = -value[zero - 1] / width[zero - 1]
    total = float(np.sum(p))
    slopes = np.insert(slope, 0, (value[0] - total) / x[0])
    fitted = isotonic_regression(slopes, weights=np.insert(width, 0, x[0])).x
    masses = np.diff(np.append(fitted, 0.0)) * x
    keep = masses > 0
    return np.concatenate([points[keep], rest[0]]), np.concatenate([masses[keep], rest[1]])


# Logarithm of factors that no answer needs: what would be multiplied by more is not known at all.
_FAR = 600.0


@dataclass(frozen=True)
class TailSum:
    """Tail sums of a composed law in one tilted window, with what is uncertain about them."""

    start: float
    step: float
    reference: float
    tilt: float
    log_scale: float
    plain: np.ndarray
    damped: np.ndarray
    bin_error: float
    square_error: float
    wrapped: float
    log_error: float
    shift: float
    whole: bool

    @property
    def end(self) -> float:
        """Last point where the tail can be read."""
        return self.start + self.step * (self.plain.size - 2)

    def covers(self, epsilon: float) -> bool:
        """Tell whether the tail can be read at `epsilon`: errors of a very long composition may swallow everything."""
        says_nothing = max(self.log_scale, self.log_error) > _FAR
        return not says_nothing and (self.whole or self.start <= epsilon) and epsilon <= self.end

    @property
    def scale(self) -> float:
        """Factor that turns tilted sums into probabilities."""
        return float(np.exp(min(self.log_scale, _FAR)))

    def value(self, epsilon: float) -> tuple[float, float]:
        """Return the hockey stick at `epsilon` and its absolute error, before the common `scale`."""
        first = int(np.clip(np.floor((epsilon - self.start) / self.step) + 1, 0, self.plain.size - 1))
        plain = float(self.plain[first])
        ahead = epsilon - self.reference
        # That far ahead the factor overflows and the damped sum underflows: between nothing and the plain sum.
        if ahead > _FAR:
            return 0.0, plain * (1 + 1e-9) + self.bin_error * float(self.plain.size - first) + self.wrapped
        value = plain - float(np.exp(ahead)) * float(self.damped[first])
        # Left of the window no outcome is near epsilon, so the factor 1 - exp(-t) may be 1 for each.
        most, total, squares = self._weights(float(self.plain.size - first), whole=epsilon < self.start)
        noise = min(self.bin_error * total, self.square_error * np.sqrt(squares))
        weight = float(np.exp(-self.tilt * (max(epsilon, self.start) - self.reference)))
        rounding = 4 * (2 * np.sqrt(self.plain.size) + 64) * UNIT * plain
        return max(value, 0.0), weight * (float(noise) + most * self.wrapped) + rounding

    def _weights(self, count: float, *, whole: bool) -> tuple[float, float, float]:
        """Largest value, sum and sum of squares of the weights of the outcomes above a point."""
        a = self.tilt
        if a == 0:
            return 1.0, count, count
        if whole:
            return 1.0, min(count, 1 / (a * self.step) + 1), min(count, 1 / (2 * a * self.step) + 1)
        most = 1 / (1 + a)
        total = 1 / (a * (a + 1) * self.step) + most
        squares = 1 / (2 * a * (2 * a + 1) * (a + 1) * self.step) + most * most
        return most, min(count * most, total), min(count * most * most, squares)


@dataclass(frozen=True)
class TiltedSum:
    """A composed law near one loss: from above and from below, plus the mass at infinity."""

    tilt: float
    above: TailSum
    from_below: Callable[[], TailSum]
    infinite: Bounds

    @cached_property
    def below(self) -> TailSum:
        """The law from below: computed where a lower end is asked for."""
        return self.from_below()

    def upper(self, epsilon: float) -> float:
        """Upper end of the hockey stick at `epsilon`; 1 outside the window."""
        law, point = self.above, epsilon - self.above.shift
        if not law.covers(point):
            return 1.0
        value, error = law.value(point)
        return float(min(1.0, law.scale * (float(np.exp(law.log_error)) * value + error) + self.infinite.upper))

    def lower(self, epsilon: float) -> float:
        """Lower end of the hockey stick at `epsilon`; that at infinity outside."""
        law, point = self.below, epsilon + self.below.shift
        if not law.whole:
            point = max(point, law.start)  # the curve falls: on its left it is at least what it is there
        if not law.covers(point):
            return self.infinite.lower
        value, error = law.value(point)
        finite = max(0.0, law.scale * (float(np.exp(-law.log_error)) * value - error))
        return float(min(1.0, finite + self.infinite.lower))

    def error_share(self, epsilon: float) -> float:
        """Absolute error at `epsilon` as a share of the hockey stick; infinite outside the window."""
        if not self.above.covers(epsilon):
            return np.inf
        value, error = self.above.value(epsilon)
        return error / value if value > 0 else np.inf

    @property
    def good_share(self) -> float:
        """Error share that a better tilt would not improve by much: that at the centre of this one, or 1e-9."""
        return max(1e-9, 100 * self.error_share(self.above.reference))

    def _root(self, delta: float) -> float:
        """Epsilon in the window up to which the curve as computed is above `delta`."""
        low = 0.0 if self.above.whole else max(0.0, self.above.start)
        finite = delta - self.infinite.lower
        return last_where(low, max(low, self.above.end), lambda e: self.above.scale * self.above.value(e)[0] > finite)

    def upper_crossing(self, delta: float) -> float:
        """Upper end, within the window, of the smallest epsilon >= 0 where the curve is at most `delta`."""
        if self.upper(0.0) <= delta:
            return 0.0
        return outward(self._root(delta), +1, self.above.end, lambda e: self.upper(e) <= delta)

    def crossing(self, delta: float) -> Bounds:
        """Return both ends of it."""
        root, low = self._root(delta), 0.0 if self.above.whole else max(0.0, self.above.start)
        lower = outward(root, -1, low, lambda e: self.lower(e) > delta) if root > 0 else 0.0
        return Bounds(lower, self.upper_crossing(delta))


# Tail probabilities are bounded at these multiples of 1 / (half a window) beyond the tilt itself.
_TURNS = (20.0, 60.0, 100.0, 150.0)


def lattice_sum(parts: Sequence[tuple[np.ndarray, int]], *, first: int) -> tuple[np.ndarray, float, float]:
    """Return the masses of a sum of lattice variables modulo the window, the error of each, and of all in 2-norm."""
    size = parts[0][0].size
    stage = 8 * UNIT * np.log2(size)
    product: np.ndarray | float = 1.0
    log_bound: np.ndarray | float = 0.0
    growth: np.ndarray | float = 0.0
    for folded, count in parts:
        spectrum = np.fft.rfft(folded)
        bound = np.abs(spectrum) + stage
        product = product * _powers(spectrum, count)
        log_bound = log_bound + count * np.log(bound)
        growth = growth + count * (stage + 6 * UNIT) / bound
    # The forward error is known coefficient by coefficient, the inverse transform's from the whole spectrum.
    errors = np.exp(log_bound) * growth, stage * np.abs(product)
    mass = np.roll(np.maximum(np.fft.irfft(product, size), 0.0), -(first % size))
    bin_error = 2 * sum(float(np.sum(e)) for e in errors) / size
    return mass, bin_error, sum(float(np.sqrt(2 * np.sum(e * e) / size)) for e in errors)


def convolve(addends: list[tuple[GridLaw, int]], *, tilt: float, centre: float, size: int) -> TailSum:
    """Compose grid laws, each as often as its count, at `tilt` in a window of `size` grid points around `centre`."""
    step = addends[0][0].step
    offset = sum(n * law.offset for law, n in addends)
    least, most = (sum(n * law.ends[side] for law, n in addends) for side in (0, 1))
    # Centred on the tilted mean, but not reaching past the support while something is left out on the other side.
    left = max(min(centre - 0.5 * size * step, most + 2 * step - size * step), least - step)
    first = int(np.floor((left - offset) / step))
    tilted = [(*law.tilted(tilt, size), n) for law, n in addends]
    mass, bin_error, square_error = lattice_sum([(folded, n) for folded, _, _, n in tilted], first=first)
    log_scale = sum(n * norm for _, norm, _, n in tilted)
    magnitude = sum(n * abs(norm) for _, norm, _, n in tilted)
    log_error = sum(n * (law.log_error + part[2]) for (law, n), part in zip(addends, tilted, strict=True))
    start = offset + step * first
    # Left of this, undoing the tilt would overflow; nothing that far from the centre is ever asked for.
    keep = min(max(0, int(np.ceil((centre - 600.0 / (tilt + 1) - start) / step))), size - 2)
    points = start + step * np.arange(keep, size)
    plain = mass[keep:] * np.exp(-tilt * (points - centre))
    rounding = 16 * UNIT * (abs(start) + step * size + abs(offset))
    return TailSum(
        start=float(points[0]),
        step=step,
        reference=centre,
        tilt=tilt,
        log_scale=log_scale - tilt * centre,
        plain=suffix_sums(plain),
        damped=suffix_sums(plain * np.exp(centre - points)),
        bin_error=bin_error,
        square_error=square_error,
        wrapped=_wrapped(addends, tilt, (start, start + step * (size - 1)), (least, most)),
        log_error=log_error + 8 * UNIT * (magnitude + abs(tilt * centre)) + tilt * rounding,
        shift=sum(n * law.shift for law, n in addends) + rounding,
        whole=keep == 0 and start <= least,
    )


def _wrapped(
    addends: list[tuple[GridLaw, int]], tilt: float, window: tuple[float, float], support: tuple[float, float]
) -> float:
    """Chernoff bound on the tilted mass outside `window`: E exp(t (S - top)) above, E exp(t (bottom - S)) below."""
    margin = 1e-12 * (abs(support[0]) + abs(support[1]))
    slack = 1e-9 + 1e-12 * sum(n for _, n in addends)

    def log_mgf(at: float) -> float:
        return sum(n * law.log_mgf(at) for law, n in addends)

    total = 0.0
    for sign, side in ((1, 1), (-1, 0)):
        if sign * (support[side] - window[side]) > margin:
            pushes = [sign * turn / (0.5 * (window[1] - window[0])) for turn in _TURNS]
            tries = [log_mgf(tilt + push) - log_mgf(tilt) - push * window[side] for push in pushes]
            total += float(np.exp(min(0.0, *tries) + slack))
    return total


def _power[T](base: T, count: int, times: Callable[[T, T], T]) -> T:
    """Raise `base` to the `count` by repeated squaring: in floating point, count - 1 roundings of `times`."""
    half, odd = divmod(count, 2)
    if not half:
        return base
    power = _power(times(base, base), half, times)
    return times(power, base) if odd else power


def _powers(spectrum: np.ndarray, count: int) -> np.ndarray:
    """Raise coefficients to the `count`, as many at a time as the processor's cache holds: ten times as fast."""
    found = np.empty_like(spectrum)
    for start in range(0, len(spectrum), _CACHED):
        found[start : start + _CACHED] = _power(spectrum[start : start + _CACHED], count, np.multiply)
    return found


_CACHED = 4096  # coefficients: 64 kB
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
    size: int = _SIZE

    @cached_property
    def _lattice_step(self) -> float | None:
        """Step of a lattice that holds every law, or None; 1 when each law has a single loss."""
        found = [find_lattice(law) for law, _ in self.parts]
        steps = np.array([step for step in found if step])
        if None in found or not steps.size:
            return None if None in found else 1.0
        multiples = steps / steps.min()
        return float(steps.min()) if np.all(np.abs(multiples - np.rint(multiples)) < 1e-12 * multiples) else None

    @cached_property
    def _coarse(self) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """Each law with at most `_COARSE` points: good enough to choose a tilt, which is free to be any number."""
        return [(*_coarsen(law), count) for law, count in self.parts]

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
        """Smallest tilt, to a bit, where `reached`, or where the tilted total already sits on its largest value."""
        most = sum(float(loss[-1]) * count for loss, _, count in self._coarse)

        def done(tilt: float) -> bool:
            value, slope, curvature = self._cumulants(tilt)
            return most - slope <= np.sqrt(curvature) + 1e-12 * abs(most) or reached(tilt, value, slope, curvature)

        return last_where(0.0, 1e9, lambda tilt: not done(tilt))

    def tilted_sum(self, tilt: float) -> TiltedSum:
        """Compose at `tilt`, widening the window until next to nothing wraps around it."""
        _, centre, variance = self._cumulants(tilt)
        reach = float(sum(count * (law.loss[-1] - law.loss[0]) for law, count in self.parts))
        width = min(reach, 2 * _SPREAD * float(np.sqrt(variance))) + 1e-9
        while True:
            step, size, exact = self._grid(width)
            above = self._compose(tilt, centre, step, size, "nearest" if exact else "above")
            if above.wrapped <= 1e-17 or width > 2 * reach:
                break
            width = 1.5 * width + 1e-9
        below = partial(self._compose, tilt, centre, step, size, "below")
        return TiltedSum(tilt, above, (lambda: above) if exact else below, self.infinite)

    def _grid(self, width: float) -> tuple[float, int, bool]:
        """Step, number of points, and whether the losses lie on the grid as they are."""
        if self._lattice_step is not None:
            size = 1 << max(4, int(np.ceil(np.log2(width / self._lattice_step + 4))))
            if size <= _LATTICE_SIZE:
                return self._lattice_step, size, True
        step = width / (self.size - 4)
        if len(self.parts) == 1:
            # Both ends of the law on the grid: its extreme outcomes are then exact.
            span = float(self.parts[0][0].loss[-1] - self.parts[0][0].loss[0])
            step = span / max(1, int(span / step)) if span > 0 else step
        return step, self.size, False

    def _compose(self, tilt: float, centre: float, step: float, size: int, kind: str) -> TailSum:
        addends = [(on_grid(law, offset=float(law.loss[-1]), step=step, kind=kind), count) for law, count in self.parts]
        return convolve(addends, tilt=tilt, centre=centre, size=size)


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


_KEPT = 4
# An error of 1e-12 in the logarithm of a mass adds up to 1 over as many runs.
_MOST_RUNS = 10**12


@dataclass(frozen=True)
class ComposedLoss:
    """Law of a sum of independent privacy losses: pairs of a law and how often it occurs."""

    parts: tuple[tuple[LossLaw, int], ...]
    _sums: list[TiltedSum] = field(default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (runs := sum(count for _, count in self.parts)) > _MOST_RUNS:
            shown = f"{runs:,}" if runs < 10**30 else "far more"
            raise InputError(f"a loss composes at most {_MOST_RUNS:,} times, got {shown}; doubles certify no more")

    def repeat(self, count: int) -> "ComposedLoss":
        """Sum of `count` independent copies."""
        return ComposedLoss(tuple((law, count * times) for law, times in self.parts))

    def join(self, other: "ComposedLoss") -> "ComposedLoss":
        """Sum of this and another, independent; a law that occurs in both is counted together."""
        merged: dict[int, tuple[LossLaw, int]] = {}
        for law, times in (*self.parts, *other.parts):
            merged[id(law)] = law, times + merged.get(id(law), (law, 0))[1]
        return ComposedLoss(tuple(merged.values()))

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
        return Tilter(self.parts, Bounds(self.infinite.lower, self.infinite.upper + self._underflow))

    @cached_property
    def _underflow(self) -> float:
        return 2 * sum(n * law.underflow for law, n in self.parts)

    @cached_property
    def _highest(self) -> Bounds:
        """Largest finite total loss."""
        total = float(sum(n * law.highest for law, n in self.parts))
        slack = sum(n * law.shift for law, n in self.parts) + 1e-14 * abs(total) if np.isfinite(total) else 0.0
        return Bounds(total - slack, total + slack)

    def _at_least(self, rest: float) -> float:
        """Lower end of epsilon when the largest listed total alone has more mass than `rest`; else 0."""
        log_mass = sum(n * (np.log(law.mass[-1]) - law.log_error) for law, n in self.parts)
        log_mass -= 1e-13 * abs(log_mass)
        if rest >= np.exp(log_mass):
            return 0.0
        slack = sum(n * law.shift for law, n in self.parts)
        total = sum(n * law.largest for law, n in self.parts)
        return float(max(0.0, total + np.log1p(-rest * np.exp(-log_mass)) - slack - 1e-14 * abs(total)))

    def _never_finite(self) -> bool:
        return any(not law.loss.size for law, _ in self.parts)

    def bounds(self, epsilon: float) -> Bounds:
        """Return certified bounds of the hockey-stick divergence at `epsilon`."""
        if self._law is not None:
            return self._law.bounds(epsilon)
        infinite = self.infinite
        if self._never_finite() or epsilon >= self._highest.upper:
            return infinite
        if epsilon == -np.inf:
            return Bounds(1.0, 1.0)
        best = Bounds(infinite.lower, 1.0)
        for tilted in self._candidates(lambda: self._tilter.tilt_for_epsilon(epsilon)):
            best = Bounds(max(best.lower, tilted.lower(epsilon)), min(best.upper, tilted.upper(epsilon)))
            if tilted.error_share(epsilon) <= tilted.good_share:
                break
        return best

    def quantile(self, delta: float) -> Bounds:
        """Return certified bounds of the smallest epsilon >= 0 that the loss exceeds with mass at most `delta`."""
        if self._law is None:
            raise InputError("the quantile of a loss needs values that can be listed; ask for epsilon instead")
        return self._law.crossing(delta, tail=True)

    def crossing(self, delta: float) -> Bounds:
        """Return certified bounds of the smallest epsilon >= 0 where that is at most `delta`."""
        if self._law is not None:
            return self._law.crossing(delta)
        infinite, highest = self.infinite, self._highest
        if delta < infinite.lower:
            return Bounds(np.inf, np.inf)
        top = max(0.0, highest.upper) if delta >= infinite.upper else np.inf
        if delta == 0.0:
            return Bounds(max(0.0, highest.lower), top)
        if self._never_finite():
            return Bounds(0.0, top)
        rest = delta - infinite.lower
        best = Bounds(self._at_least(rest), top)
        if best.upper == 0.0:
            return best
        for tilted in self._candidates(lambda: self._tilter.tilt_for_delta(rest)):
            found = tilted.crossing(delta)
            best = Bounds(max(best.lower, found.lower), min(best.upper, found.upper))
            if np.isfinite(found.upper) and tilted.error_share(found.upper) <= tilted.good_share:
                break
        return best

    def upper_crossing(self, delta: float, *, size: int) -> float:
        """Return an upper bound of `crossing` from one window of `size` points: quick where the parts are many."""
        if self._law is not None or self._never_finite() or delta <= self.infinite.upper:
            return self.crossing(delta).upper
        tilter = replace(self._tilter, size=size)
        tilted = tilter.tilted_sum(tilter.tilt_for_delta(delta - self.infinite.lower))
        return min(max(0.0, self._highest.upper), tilted.upper_crossing(delta))

    def _candidates(self, tilt_for_query: Callable[[], float]) -> Iterator[TiltedSum]:
        """Tilted sums at hand, then one made for the query; the last few are kept."""
        yield from list(self._sums)
        tilt = tilt_for_query()
        if all(abs(tilt - known.tilt) > 1e-9 * (1 + tilt) for known in self._sums):
            self._sums.insert(0, self._tilter.tilted_sum(tilt))
            del self._sums[_KEPT:]
            yield self._sums[0]


# Totals and pairs of totals that are worth listing.
_TOTALS, _PAIRS = 1 << 17, 1 << 21
# Totals closer than this (relative to the largest) are the same number computed in a different order.
_SAME = 1e-13


def enumerate_sum(parts: tuple[tuple[LossLaw, int], ...]) -> LossLaw | None:
    """Return the law of the total loss as one list, or None where that would be long or underflow."""
    # Products of masses below the smallest double would vanish without a trace.
    if sum(count * -np.log(law.mass.min()) for law, count in parts if law.mass.size) > 600.0:
        return None
    laws: list[tuple[LossLaw | None, int]] = list(parts)
    return reduce(_add, [_power(law, count, _add) for law, count in laws])


def _add(one: LossLaw | None, other: LossLaw | None) -> LossLaw | None:
    """Law of the sum of two independent losses, equal totals merged; None when there are too many, or of None."""
    if one is None or other is None or one.loss.size * other.loss.size > _PAIRS:
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
