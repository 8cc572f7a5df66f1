r"""Many posteriors at once: the components of all lattice points on one grid of nodes.

Every posterior with the same M and prior mixes the same Beta components. Tabulated once on nodes
:math:`x_i = \sin^2(\theta_i / 2)`, evenly spaced in :math:`\theta` where the components have about one width, a
thousand posteriors are one matrix product. Quantiles come from cubic Hermite interpolation of the distribution function
(values and densities at the nodes), modes from a parabola through the highest density and its neighbours.

A prior parameter below one half makes the density in :math:`\theta` infinite at an end. The nodes are then
:math:`\theta = \pi I_t(k, k)` with t evenly spaced and k = 1 / (smallest parameter), so that the distribution function
starts like :math:`t^2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincc, betaln, xlog1py, xlogy

from dpbayes.verifier.coefficients import coefficient_table

__all__ = ["SMALLEST_ALPHA", "NodeTable", "hermite_quantile", "node_table", "peak"]

type FloatArray = npt.NDArray[np.float64]

SMALLEST_ALPHA = 0.02
"""Below it a twentieth of a component lies below 1e-70, and nodes that resolve it are thousands."""


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Components of all lattice points on a grid of nodes.

    Parameters
    ----------
    counts
        Shape (points, outcomes): the lattice points.
    t
        Shape (nodes,): evenly from 0 to 1.
    power
        k of the module's substitution; 1 for none.
    cdf, density
        Shape (points, nodes): distribution function of r at each node, and its derivative in t.
    """

    counts: npt.NDArray[np.int64]
    t: FloatArray
    power: float
    cdf: FloatArray
    density: FloatArray

    def at(self, t: FloatArray) -> FloatArray:
        """Return r at values of t."""
        return np.asarray(np.sin(0.5 * math.pi * betainc(self.power, self.power, t)) ** 2)

    @property
    def rate(self) -> FloatArray:
        """Derivative of r in t at each node."""
        theta = math.pi * betainc(self.power, self.power, self.t)
        return np.asarray(0.5 * np.sin(theta) * _rate(self.power, self.t))


def _rate(power: float, t: FloatArray) -> FloatArray:
    """Return the derivative of theta in t."""
    logs = xlogy(power - 1, t) + xlog1py(power - 1, -t) - betaln(power, power)
    return np.asarray(math.pi * np.exp(logs))


def n_nodes(n_partitions: int, alpha: tuple[float, ...]) -> int:
    """Return how many nodes resolve the narrowest component.

    In theta a Beta(a, b) component has standard deviation about 1 / sqrt(a + b). Cubic Hermite interpolation with h
    between nodes is off by at most h^4 / 384 times the fourth derivative of the distribution function, which is below
    1.4 (a + b)^2: with four nodes to a standard deviation, by 1.5e-5. At the ends a parameter that is no multiple of a
    half leaves a kink; 257 nodes keep it below the tails of any interval in use. Where the substitution is not the
    identity its steepest part needs more.
    """
    power = _power(alpha)
    steepest = float(_rate(power, np.array([0.5]))[0]) / math.pi
    enough = max(256, 2 * math.ceil(2 * math.pi * math.sqrt(n_partitions + sum(alpha[:2]))))
    return 1 + 2 * math.ceil(0.5 * enough * steepest)


def _power(alpha: tuple[float, ...]) -> float:
    least = min(alpha[:2])
    return 1.0 if least >= 0.5 else 1.0 / least


@lru_cache(maxsize=4)
def node_table(n_partitions: int, alpha: tuple[float, ...]) -> NodeTable:
    """Tabulate the components of every lattice point.

    Parameters
    ----------
    n_partitions
        M; the table has (M + 1)(M + 2) / 2 rows with three outcomes.
    alpha
        Dirichlet prior, one an outcome; of the first two, `SMALLEST_ALPHA` or more.

    Returns
    -------
    NodeTable
        Cached, so its arrays are read-only.

    Examples
    --------
    >>> table = node_table(3, (1.0, 1.0, 1.0))
    >>> table.cdf.shape[0], bool(np.all(table.cdf[:, -1] == 1))
    (10, True)
    """
    counts = coefficient_table(n_partitions, len(alpha)).counts
    power = _power(alpha)
    t = np.linspace(0, 1, n_nodes(n_partitions, alpha))
    a, b = alpha[0] + counts[:, :1], alpha[1] + counts[:, 1:2]
    # Both r and 1 - r to full relative precision: a small parameter puts weight next to either end.
    x, rest = (np.sin(0.5 * math.pi * betainc(power, power, side)) ** 2 for side in (t, t[::-1]))
    cdf = np.where(x <= 0.5, betainc(a, b, x), betaincc(b, a, rest))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # dx / dtheta = sqrt(x (1 - x)).
        density = np.exp(xlogy(a - 0.5, x) + xlogy(b - 0.5, rest) - betaln(a, b)) * _rate(power, t)
    if power > 1:
        density[:, [0, -1]] = 0.0
    for array in (t, cdf, density):
        array.setflags(write=False)
    return NodeTable(counts, t, power, cdf, density)


def hermite_quantile(table: NodeTable, cdf: FloatArray, density: FloatArray, q: float) -> FloatArray:
    """Return the quantile of r for each row of distribution functions.

    Parameters
    ----------
    table
        The nodes.
    cdf, density
        Shape (rows, nodes): distribution functions and their derivatives in t.
    q
        Probability, in (0, 1).

    Returns
    -------
    numpy.ndarray
        Shape (rows,).
    """
    left = np.clip((cdf <= q).sum(axis=1) - 1, 0, table.t.size - 2)
    rows = np.arange(len(cdf))
    step = table.t[1] - table.t[0]
    f0, f1 = cdf[rows, left], cdf[rows, left + 1]
    d0, d1 = density[rows, left] * step, density[rows, left + 1] * step
    low, high = np.zeros(len(cdf)), np.ones(len(cdf))
    for _ in range(40):
        t = 0.5 * (low + high)
        value = f0 * (1 + 2 * t) * (1 - t) ** 2 + d0 * t * (1 - t) ** 2 + f1 * t**2 * (3 - 2 * t) + d1 * t**2 * (t - 1)
        below = value < q
        low, high = np.where(below, t, low), np.where(below, high, t)
    return table.at(table.t[left] + step * low)


def peak(table: NodeTable, density: FloatArray, *, unbounded: tuple[bool, bool] = (False, False)) -> FloatArray:
    """Return the mode of r for each row of densities in t.

    Parameters
    ----------
    table
        The nodes.
    density
        Shape (rows, nodes): densities in t.
    unbounded
        Whether the density of r is infinite at 0 and at 1. Such an end is no mode where there is another local maximum;
        where there is none, the mode is the end on the side of the median.

    Returns
    -------
    numpy.ndarray
        Shape (rows,), within about 1e-4 of the true mode.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        in_r = density / table.rate
    # Extrapolate to the ends, where the change of variable degenerates.
    in_r[:, 0], in_r[:, -1] = 2 * in_r[:, 1] - in_r[:, 2], 2 * in_r[:, -2] - in_r[:, -3]
    if any(unbounded):
        return _refined(table, in_r, _best_local(in_r, density, unbounded))
    # Where several are equally high (a flat or a mirrored density), the middle of the outermost.
    top = in_r.max(axis=1, keepdims=True) * (1 - 1e-9)
    last = table.t.size - 1 - (in_r >= top)[:, ::-1].argmax(axis=1)
    first = (in_r >= top).argmax(axis=1)
    return 0.5 * (_refined(table, in_r, first) + _refined(table, in_r, last))


def _refined(table: NodeTable, in_r: FloatArray, best: npt.NDArray[np.int64]) -> FloatArray:
    """Return r at the top of the parabola through each row's highest node and its neighbours."""
    t = table.t
    inner = np.clip(best, 2, t.size - 3)
    rows = np.arange(len(in_r))
    with np.errstate(divide="ignore", invalid="ignore"):
        left, middle, right = (np.log(in_r[rows, inner + shift]) for shift in (-1, 0, 1))
        shift = np.clip(0.5 * (left - right) / (left - 2 * middle + right), -1, 1)
    refined = t[inner] + np.nan_to_num(shift) * (t[1] - t[0])
    return table.at(np.where(best == 0, 0.0, np.where(best == t.size - 1, 1.0, refined)))


def _best_local(in_r: FloatArray, density: FloatArray, unbounded: tuple[bool, bool]) -> npt.NDArray[np.int64]:
    """Return the highest local maximum that is no unbounded end, or the end on the side of the median."""
    higher = np.diff(in_r, axis=1) > 0
    local = np.zeros(in_r.shape, dtype=bool)
    local[:, 1:-1] = higher[:, :-1] & ~higher[:, 1:]
    local[:, 0], local[:, -1] = ~higher[:, 0] & (not unbounded[0]), higher[:, -1] & (not unbounded[1])
    best = np.where(local, in_r, -np.inf).argmax(axis=1)
    half = np.cumsum(density, axis=1)
    median = (half < 0.5 * half[:, -1:]).sum(axis=1)
    side = np.where(median >= in_r.shape[1] / 2, in_r.shape[1] - 1, 0)
    return np.asarray(np.where(local.any(axis=1), best, side))
