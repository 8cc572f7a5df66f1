"""Algorithm 1, iterative distribution estimation: repeated updates to randomly chosen partial workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.ide.measurements import Measurements
from dpbayes.ide.prior import Prior
from dpbayes.ide.updates import PartialWorkload, kl_divergence, update

__all__ = ["Iterations", "iterate", "partial_workloads", "workload_order"]

type Floats = npt.NDArray[np.float64]

# Points of the trace: evaluating the loss over all workloads costs as much as updating them all once.
_TRACE_POINTS = 60


@dataclass(frozen=True, eq=False)
class Iterations:
    """The distribution that Algorithm 1 reached and how it went there.

    Parameters
    ----------
    weights
        Distribution on the support.
    step
        Iterations at which the trace was taken; the first is 0, the prior.
    l1_loss
        L1 distance between all of the workload's answers and the distribution's, at each of them.
    kl
        KL divergence from the prior, in nats.
    moved
        L1 distance by which the workload moved the distribution's answers from the prior's, one a partial workload.
    labels
        Names of the partial workloads.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> prior = Prior.full(Domain.from_levels({"x": (0, 1)}))
    >>> workload = PartialWorkload(prior.index(["x"]), np.array([0.8, 0.2]), "x")
    >>> iterate(prior, [workload], order=[0]).moved.round(9).tolist()
    [0.6]
    """

    weights: Floats
    step: npt.NDArray[np.intp]
    l1_loss: Floats
    kl: Floats
    moved: Floats
    labels: tuple[str, ...]


def partial_workloads(measurements: Measurements) -> tuple[PartialWorkload, ...]:
    """Return one partial workload a released table: its counts divided by the number of records.

    Raises
    ------
    InputError
        If the number of records is not positive (it was released with noise, and noise won).

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> [workload.label for workload in partial_workloads(measurements)][:2]
    ['citizenship x age', 'citizenship x race']
    """
    if measurements.n <= 0:
        raise InputError(f"the released number of records is {measurements.n:g}; the prior is all there is to go by")
    return tuple(
        PartialWorkload(cell, table.counts.ravel() / measurements.n, table.label)
        for cell, table in zip(measurements.cells.index, measurements.tables, strict=True)
    )


def workload_order(n_workloads: int, iterations: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return which partial workload each iteration takes, uniformly at random (line 6 of Algorithm 1).

    Examples
    --------
    >>> workload_order(3, 5, np.random.default_rng(1)).tolist()
    [1, 1, 2, 2, 0]
    """
    return rng.integers(0, n_workloads, iterations)


def iterate(
    prior: Prior, workloads: Sequence[PartialWorkload], *, order: npt.ArrayLike, trace_points: int = _TRACE_POINTS
) -> Iterations:
    """Run Algorithm 1.

    Parameters
    ----------
    prior
        Where to start.
    workloads
        Partial workloads over the prior's support.
    order
        The workload of each iteration, as `workload_order` draws it.
    trace_points
        How many iterations, evenly spaced, to evaluate the L1 loss and the KL divergence at.

    Returns
    -------
    Iterations
        The last distribution and the trace.

    Notes
    -----
    Answers that no distribution attains together (noise makes them so) leave no limit: the iteration goes on cycling
    between the projections, at a distance from the best L1 loss that `dpbayes.ide.reference` measures.

    References
    ----------
    Tao, Bater and Machanavajjhala (2022), Algorithm 1.

    Examples
    --------
    Five of ten tables, once each:

    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> result = iterate(measurements.prior, partial_workloads(measurements), order=[0, 1, 2, 3, 4])
    >>> result.l1_loss.round(2)[[0, -1]].tolist()
    [8.5, 0.33]
    """
    if not workloads:
        raise InputError("no partial workload was given; pass one or more")
    for workload in workloads:
        if len(workload.cell) != prior.size:
            raise InputError(f"workload {workload.label!r} has {len(workload.cell)} rows, the prior {prior.size}")
    steps = np.asarray(order, dtype=np.intp)
    targets = [workload.target() for workload in workloads]
    weights = np.array(prior.weights)
    traced = set(np.unique(np.linspace(0, len(steps), trace_points).round().astype(int)).tolist())
    points = [(0, l1_loss(weights, workloads), 0.0)]
    for t, place in enumerate(steps, start=1):
        weights = update(weights, workloads[place].cell, targets[place])
        if t in traced:
            points.append((t, l1_loss(weights, workloads), kl_divergence(weights, prior.weights)))
    step, loss, kl = (np.array(column) for column in zip(*points, strict=True))
    moved = [float(np.abs(answer(weights, w) - answer(prior.weights, w)).sum()) for w in workloads]
    return Iterations(weights, step, loss, kl, np.array(moved), tuple(w.label for w in workloads))


def answer(weights: Floats, workload: PartialWorkload) -> Floats:
    """Return a distribution's probabilities of the cells."""
    inside = workload.cell >= 0
    return np.bincount(workload.cell[inside], weights[inside], len(workload.answers))


def l1_loss(weights: Floats, workloads: Sequence[PartialWorkload]) -> float:
    """Return the L1 distance between the noisy answers and a distribution's, over all workloads."""
    return float(sum(np.abs(answer(weights, workload) - workload.answers).sum() for workload in workloads))
