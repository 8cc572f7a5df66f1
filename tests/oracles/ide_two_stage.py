r"""The two-stage problem of section 3.1, solved to see how far Algorithm 1 stops from it.

Stage 1, the least L1 loss on the support, is a linear program
(`least_l1_loss`, by HiGHS). Stage 2 is the distribution of least KL divergence among
those that attain it; the minimizing answers need not be unique, so the constraint is the loss, not
one vertex's answers. It is solved by the exact penalty :math:`KL(q\|p) + \mu \lVert Mq - \tilde
y\rVert_1` in the dual of `dpbayes.ide.noise_aware`: once :math:`\mu` exceeds the largest
multiplier, the penalized minimizer attains the least loss, and any minimizer exceeds it by at most
:math:`KL^*/\mu`. :math:`\mu` grows until the loss meets the linear program's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from dpbayes.errors import DPBayesError, InputError
from dpbayes.ide.estimation import kl_divergence
from dpbayes.ide.noise_aware import Measurements, NoiseLoss, solve

type Floats = npt.NDArray[np.float64]

_PENALTIES: Sequence[float] = (10.0, 40.0, 160.0, 640.0, 2560.0)
_WIDTHS: Sequence[float] = (1e-2, 1e-3, 1e-4, 1e-5)


@dataclass(frozen=True, eq=False)
class Reference:
    """The two-stage solution."""

    weights: Floats
    l1_loss: float
    l1_minimum: float
    kl: float
    penalty: float

    @property
    def excess(self) -> float:
        """L1 loss above the minimum."""
        return self.l1_loss - self.l1_minimum


def two_stage(measurements: Measurements, *, tolerance: float = 1e-5) -> Reference:
    """Return the distribution of least KL divergence among those of least L1 loss."""
    if not tolerance > 0:
        raise InputError(f"tolerance must be positive, got {tolerance!r}")
    minimum = least_l1_loss(measurements)
    unit = replace(measurements, values=measurements.values / measurements.n, n=1.0)
    ones = np.ones(len(unit.values))
    best: Reference | None = None
    for penalty in _PENALTIES:
        for width in _WIDTHS:
            loss = NoiseLoss(ones > 0, ones / penalty, ones * width**2)
            solution = solve(unit, loss, strength=1.0, tolerance=0.1 * tolerance)
        attained = measurements.l1_loss(solution.weights)
        kl = kl_divergence(solution.weights, measurements.prior.weights)
        if best is None or attained < best.l1_loss:
            best = Reference(solution.weights, attained, minimum, kl, penalty)
        if best.excess <= tolerance * max(1.0, minimum):
            break
    assert best is not None
    return best


def least_l1_loss(measurements: Measurements) -> float:
    """Return the least L1 loss that a distribution on the support can have (stage 1), by HiGHS."""
    answers = measurements.values / measurements.n
    cells, rows = len(answers), measurements.prior.size
    held = measurements.prior.weights > 0
    map_ = sparse.csr_array(measurements.cells.matrix[:, held])
    slack = sparse.eye_array(cells, format="csr")
    # Mq + below - above = answers, sum q = 1; the loss is the sum of below and above.
    total = sparse.csr_array((np.ones(map_.shape[1]), (np.zeros(map_.shape[1], int), np.arange(map_.shape[1]))))
    constraints = sparse.block_array([[map_, slack, -slack], [total, None, None]], format="csr")
    cost = np.concatenate([np.zeros(map_.shape[1]), np.ones(2 * cells)])
    result = linprog(cost, A_eq=constraints, b_eq=np.append(answers, 1.0), method="highs")
    if result.status != 0:
        raise DPBayesError(f"HiGHS stopped without an optimum on {rows} rows and {cells} cells: {result.message}")
    return float(result.fun)
