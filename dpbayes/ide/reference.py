r"""The reference solution of the two-stage problem (section 3.1), to see how far Algorithm 1 stops from it.

Stage 1, the least L1 loss :math:`v^* = \min_q \lVert Mq - \tilde y\rVert_1` on the support, is a linear program
(HiGHS). Stage 2 is the distribution of least KL divergence among those that attain it; the minimizing answers
:math:`y^*` need not be unique, so the constraint is the loss, not one vertex's answers. It is solved by the exact
penalty :math:`KL(q\|p) + \mu \lVert Mq - \tilde y\rVert_1` in the dual of `dpbayes.ide.noise_aware`: once :math:`\mu`
exceeds the largest multiplier, the penalized minimizer attains :math:`v^*`, and any minimizer has
:math:`\lVert Mq - \tilde y\rVert_1 - v^* \le KL^*/\mu`. :math:`\mu` grows until the loss meets the linear program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from dpbayes.errors import DPBayesError, InputError
from dpbayes.ide.algorithm1 import l1_loss, partial_workloads
from dpbayes.ide.losses import NoiseLoss
from dpbayes.ide.measurements import Measurements
from dpbayes.ide.noise_aware import solve
from dpbayes.ide.updates import kl_divergence

__all__ = ["Reference", "least_l1_loss", "two_stage"]

type Floats = npt.NDArray[np.float64]

_PENALTIES: Sequence[float] = (10.0, 40.0, 160.0, 640.0, 2560.0)
_WIDTHS: Sequence[float] = (1e-2, 1e-3, 1e-4, 1e-5)


@dataclass(frozen=True, eq=False)
class Reference:
    """The two-stage solution.

    Parameters
    ----------
    weights
        Distribution on the support.
    l1_loss
        Its L1 distance from the noisy answers, over all tables.
    l1_minimum
        The linear program's optimum: no distribution on the support has less.
    kl
        Its KL divergence from the prior, in nats.
    penalty
        The weight of the loss at which it was attained.
    """

    weights: Floats
    l1_loss: float
    l1_minimum: float
    kl: float
    penalty: float

    @property
    def excess(self) -> float:
        """L1 loss above the minimum."""
        return self.l1_loss - self.l1_minimum


def least_l1_loss(measurements: Measurements) -> float:
    """Return the least L1 loss that a distribution on the support can have (stage 1), by HiGHS.

    Parameters
    ----------
    measurements
        The release set against the prior.

    Raises
    ------
    DPBayesError
        If HiGHS does not reach the optimum.

    Examples
    --------
    Ten noisy tables that contradict each other:

    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> round(least_l1_loss(measure(Prior.full(release.domain), release)), 3)
    0.079
    """
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


def two_stage(measurements: Measurements, *, tolerance: float = 1e-5) -> Reference:
    """Return the distribution of least KL divergence among those of least L1 loss.

    Parameters
    ----------
    measurements
        The release set against the prior; meant for supports up to 1e5 rows.
    tolerance
        Loss above the linear program's optimum, relative where that exceeds 1, at which stage 2 is taken as solved.

    Returns
    -------
    Reference
        The solution. Its `excess` says whether the tolerance was met by the largest penalty.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> reference = two_stage(measure(Prior.full(release.domain), release))
    >>> abs(reference.excess) < 1e-5
    True
    """
    if not tolerance > 0:
        raise InputError(f"tolerance must be positive, got {tolerance!r}")
    workloads = partial_workloads(measurements)
    minimum = least_l1_loss(measurements)
    unit = measurements.rescaled()
    ones = np.ones(len(unit.values))
    start: Floats | None = None
    best: Reference | None = None
    for penalty in _PENALTIES:
        for width in _WIDTHS:
            loss = NoiseLoss(ones > 0, ones / penalty, ones * width**2)
            solution = solve(unit, loss, strength=1.0, tolerance=0.1 * tolerance, start=start, max_iterations=60)
            start = solution.multipliers
        attained = l1_loss(solution.weights, workloads)
        kl = kl_divergence(solution.weights, measurements.prior.weights)
        if best is None or attained < best.l1_loss:
            best = Reference(solution.weights, attained, minimum, kl, penalty)
        if best.excess <= tolerance * max(1.0, minimum):
            break
    assert best is not None
    return best
