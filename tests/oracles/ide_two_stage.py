r"""The two-stage problem of section 3.1, solved to see how far Algorithm 1 stops from it.

Stage 1, the least L1 loss on the support, is a linear program
(`dpbayes.ide.algorithm1.least_l1_loss`). Stage 2 is the distribution of least KL divergence among
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

from dpbayes.errors import InputError
from dpbayes.ide.algorithm1 import kl_divergence, l1_loss, least_l1_loss, table_answers
from dpbayes.ide.cells import Measurements
from dpbayes.ide.noise_aware import NoiseLoss, solve

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
    tables = table_answers(measurements)
    minimum = least_l1_loss(measurements)
    unit = replace(measurements, values=measurements.values / measurements.n, n=1.0)
    ones = np.ones(len(unit.values))
    start: Floats | None = None
    best: Reference | None = None
    for penalty in _PENALTIES:
        for width in _WIDTHS:
            loss = NoiseLoss(ones > 0, ones / penalty, ones * width**2)
            solution = solve(unit, loss, strength=1.0, tolerance=0.1 * tolerance, start=start, max_iterations=60)
            start = solution.multipliers
        attained = float(l1_loss(solution.weights, tables))
        kl = kl_divergence(solution.weights, measurements.prior.weights)
        if best is None or attained < best.l1_loss:
            best = Reference(solution.weights, attained, minimum, kl, penalty)
        if best.excess <= tolerance * max(1.0, minimum):
            break
    assert best is not None
    return best
