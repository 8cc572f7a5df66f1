"""A loss law on a grid, from above and from below.

Composition by FFT needs losses on a grid. Rounding each loss up would cost a grid step per composition. Two better
ways keep the error quadratic in the step. From above, an outcome between two grid points is split between them so that
both its P- and its Q-mass are kept: the hockey-stick curve is then interpolated linearly in exp(epsilon) between its
exact values at the grid ("connecting the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, Theorem 4.1). From
below, any convex piecewise linear curve with knots on the grid that lies under the true curve will do; here it is the
greatest convex minorant of the exact values lowered by the interpolation gap.
"""

from dataclasses import dataclass

import numpy as np

from dpbayes.privacy.loss_law import UNIT, LossLaw, suffix_sums

__all__ = ["GridLaw", "Lattice", "find_lattice", "on_grid"]

# The minorant works with exp(loss); outside this range outcomes are dropped (below) or rounded down (above).
_LOWEST, _HIGHEST = -200.0, 400.0
_MANY = 100.0


@dataclass(frozen=True, slots=True)
class Lattice:
    """Losses ``offset + step * integer``: the law is on a grid as it is, up to `residual`.

    `step` is 0 for a law of a single loss, which is on every grid.
    """

    offset: float
    step: float
    residual: float


@dataclass(frozen=True, slots=True)
class GridLaw:
    """Masses on ``offset + step * index``, with the errors that building it added."""

    index: np.ndarray
    mass: np.ndarray
    offset: float
    step: float
    log_error: float
    shift: float


def find_lattice(law: LossLaw, *, largest_size: int = 1 << 22, tolerance: float = 1e-11) -> Lattice | None:
    """Find the coarsest lattice that holds every loss, up to `tolerance` of the largest and the error of each; or None.

    Randomized response and integer noise of exponential or Gaussian shape have such losses, and their compositions are
    then exact up to rounding. Works like Euclid's algorithm on the gaps, all gaps at once.

    Examples
    --------
    >>> find_lattice(LossLaw(np.array([-0.5, 0.25, 1.0]), np.full(3, 1 / 3))).step
    0.75
    """
    loss = law.loss
    if not loss.size:
        return Lattice(0.0, 0.0, 0.0)
    tolerance = tolerance * float(np.max(np.abs(loss))) + 8 * law.shift
    span = float(loss[-1] - loss[0])
    if span <= tolerance:
        return Lattice(float(loss[0]), 0.0, span)
    gaps = np.diff(loss)
    gaps = gaps[gaps > tolerance]
    if not gaps.size:
        return None
    step = float(gaps.min())
    while step * largest_size >= span:
        rest = np.abs(gaps - step * np.rint(gaps / step))
        rest = rest[rest > tolerance]
        if rest.size == 0:
            count = np.rint((loss - loss[0]) / step)
            step = span / float(count[-1])
            residual = float(np.max(np.abs(loss - loss[0] - step * np.rint((loss - loss[0]) / step))))
            return Lattice(float(loss[0]), step, residual) if residual <= 10 * tolerance else None
        step = float(rest.min())
    return None


def on_grid(law: LossLaw, *, offset: float, step: float, kind: str) -> GridLaw:
    """Place `law` on a grid.

    Parameters
    ----------
    law
        Finite losses and masses; the mass at infinity is no concern of the grid.
    offset, step
        The grid.
    kind
        "nearest" when the losses lie on the grid, else "above" or "below" the hockey-stick curve.

    Returns
    -------
    GridLaw
    """
    position = (law.loss - offset) / step
    magnitude = float(np.max(np.abs(law.loss))) + abs(offset) if law.loss.size else 0.0
    rounding = 8 * UNIT * (magnitude + step)
    if kind == "nearest":
        index = np.rint(position).astype(np.int64)
        residual = float(np.max(np.abs(law.loss - (offset + step * index)), initial=0.0))
        return GridLaw(index, law.mass, offset, step, 0.0, rounding + residual)
    cell = np.floor(position).astype(np.int64)
    rise = np.clip(law.loss - (offset + step * cell), 0.0, step)
    whole = -np.expm1(-step)
    up = law.mass * (-np.expm1(-rise) / whole)
    down = law.mass * (np.exp(-rise) * -np.expm1(rise - step) / whole)
    if kind == "above":
        index, mass = np.concatenate([cell, cell + 1]), np.concatenate([down, up])
        return GridLaw(index[mass > 0], mass[mass > 0], offset, step, 16 * UNIT, rounding)
    index, mass = _minorant(law, cell, down, up, offset, step)
    return GridLaw(index, mass, offset, step, (64 + 16 * np.sqrt(index.size)) * UNIT, rounding)


def _minorant(
    law: LossLaw, cell: np.ndarray, down: np.ndarray, up: np.ndarray, offset: float, step: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Greatest convex minorant, on the grid, of the curve ``H(x) = E_Q (P/Q - x)_+`` lowered by its chord gap.

    With x = exp(loss) the curve is convex with slope minus the Q-mass above x. The chord over a cell lies above H by at
    most the sum over the cell's outcomes of q (x - x_left)(x_right - x) / (x_right - x_left). Lowering the value at
    each grid point by the larger gap of its two cells puts the interpolation under H; isotonic regression of the
    slopes, weighted by cell widths, then makes it convex (the slopes of a greatest convex minorant are just that).
    """
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
