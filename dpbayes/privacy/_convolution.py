"""The tilted FFT convolution of grid laws, with a bound on everything that it gets wrong."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpbayes.privacy._discretize import GridLaw
from dpbayes.privacy._tail_sums import TailSum
from dpbayes.privacy.loss_law import UNIT, suffix_sums

__all__ = ["Addend", "convolve"]

# Tail probabilities are bounded at these multiples of 1 / (half a window) beyond the tilt itself.
_TURNS = (20.0, 60.0, 100.0, 150.0)


@dataclass(frozen=True)
class Addend:
    """A grid law that occurs `count` times in the sum, and the input errors of one occurrence."""

    grid: GridLaw
    count: int
    log_error: float
    shift: float

    @cached_property
    def loss(self) -> np.ndarray:
        """Loss of each entry."""
        return self.grid.offset + self.grid.step * self.grid.index

    @cached_property
    def log_mass(self) -> np.ndarray:
        """Natural logarithm of the mass of each entry."""
        return np.log(self.grid.mass)

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
        residue = self.grid.index % size
        folded = np.bincount(residue, np.exp(self.log_mass + tilt * self.loss - norm), minlength=size)
        crowd = int(np.bincount(residue, minlength=size).max())
        largest = max(abs(end) for end in self.ends)
        magnitude = float(np.max(np.abs(self.log_mass))) + 4 * abs(tilt) * largest + abs(norm)
        return folded, norm, (16 + crowd + 4 * magnitude) * UNIT


def convolve(addends: list[Addend], *, tilt: float, centre: float, size: int, exact: bool) -> TailSum:
    r"""Compose `addends` at `tilt` in a window of `size` grid points around `centre`.

    Notes
    -----
    With masses that add up to 1, each coefficient of an FFT of length 2^s is off by at most 8 s u (per stage a twiddle
    rounded to u, a complex product at sqrt(5) u and an addition; Higham 2002, section 24.1, componentwise). Raising a
    coefficient F to the n multiplies that by n |F|^(n - 1) and adds n sqrt(5) u |F|^n. Summing over coefficients bounds
    the error of every output, and summing squares that of all together (Parseval). Negative outputs are errors and are
    set to 0, which can only help.
    """
    step = addends[0].grid.step
    offset = sum(a.count * a.grid.offset for a in addends)
    least, most = (sum(a.count * a.ends[side] for a in addends) for side in (0, 1))
    # Centred on the tilted mean, but not reaching past the support while something is left out on the other side.
    left = max(min(centre - 0.5 * size * step, most + 2 * step - size * step), least - step)
    first = int(np.floor((left - offset) / step))
    stage = 8 * UNIT * np.log2(size)
    product: np.ndarray | float = 1.0
    log_bound: np.ndarray | float = 0.0
    growth: np.ndarray | float = 0.0
    log_scale = log_error = shift = magnitude = 0.0
    for addend in addends:
        folded, norm, rounding = addend.tilted(tilt, size)
        spectrum = np.fft.rfft(folded)
        bound = np.abs(spectrum) + stage
        product = product * _power(spectrum, addend.count)
        log_bound = log_bound + addend.count * np.log(bound)
        growth = growth + addend.count * (stage + 6 * UNIT) / bound
        log_scale += addend.count * norm
        log_error += addend.count * (addend.log_error + rounding)
        shift += addend.count * addend.shift
        magnitude += addend.count * abs(norm)
    # The forward error is known coefficient by coefficient, the inverse transform's from the whole spectrum.
    errors = np.exp(log_bound) * growth, stage * np.abs(product)
    masses = np.roll(np.maximum(np.fft.irfft(product, size), 0.0), -(first % size))
    start = offset + step * first
    # Left of this, undoing the tilt would overflow; nothing that far from the centre is ever asked for.
    keep = min(max(0, int(np.ceil((centre - 600.0 / (tilt + 1) - start) / step))), size - 2)
    points = start + step * np.arange(keep, size)
    plain = masses[keep:] * np.exp(-tilt * (points - centre))
    rounding = 16 * UNIT * (abs(start) + step * size + abs(offset))
    return TailSum(
        start=float(points[0]),
        step=step,
        reference=centre,
        tilt=tilt,
        log_scale=log_scale - tilt * centre,
        plain=suffix_sums(plain),
        damped=suffix_sums(plain * np.exp(centre - points)),
        bin_error=2 * sum(float(np.sum(e)) for e in errors) / size,
        square_error=sum(float(np.sqrt(2 * np.sum(e * e) / size)) for e in errors),
        wrapped=_wrapped(addends, tilt, (start, start + step * (size - 1)), (least, most)),
        log_error=log_error + 8 * UNIT * (magnitude + abs(tilt * centre)) + tilt * rounding,
        shift=shift + rounding,
        exact=exact,
        whole=keep == 0 and start <= least,
    )


def _wrapped(addends: list[Addend], tilt: float, window: tuple[float, float], support: tuple[float, float]) -> float:
    """Chernoff bound on the tilted mass outside `window`: E exp(t (S - top)) above, E exp(t (bottom - S)) below."""
    margin = 1e-12 * (abs(support[0]) + abs(support[1]))
    slack = 1e-9 + 1e-12 * sum(a.count for a in addends)
    total = 0.0
    for sign, side in ((1, 1), (-1, 0)):
        if sign * (support[side] - window[side]) > margin:
            pushes = [sign * turn / (0.5 * (window[1] - window[0])) for turn in _TURNS]
            base = sum(a.count * a.log_mgf(tilt) for a in addends)
            moved = [sum(a.count * a.log_mgf(tilt + push) for a in addends) for push in pushes]
            tries = [m - base - push * window[side] for m, push in zip(moved, pushes, strict=True)]
            total += float(np.exp(min(0.0, *tries) + slack))
    return total


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
