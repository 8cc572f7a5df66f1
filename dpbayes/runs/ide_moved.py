"""What a release moved: its tables under the prior, as released, and under the estimate, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dpbayes.ide import Estimate
    from dpbayes.ide.measurements import Measurements

__all__ = ["moved_tables"]


def moved_tables(measurements: Measurements, found: Estimate) -> list[dict[str, Any]]:
    """Set out every released table: the L1 distances between prior, release and estimate, and its cells' shares.

    Parameters
    ----------
    measurements
        The release set against the prior of `found`.
    found
        The estimate.

    Returns
    -------
    list of dict
        One entry a table: ``table``, its label; ``moved``, ``released_from_prior`` and ``left``, L1 distances;
        ``cells``, labels; ``prior``, ``released`` and ``estimate``, their shares.
    """
    before, after = measurements.prior_chance, measurements.cells.predict(found.weights)
    released = measurements.values / max(measurements.n, 1.0)
    starts = measurements.cells.starts
    entries = []
    for table, first, last in zip(measurements.tables, starts, starts[1:], strict=False):
        shares = {"prior": before[first:last], "released": released[first:last], "estimate": after[first:last]}
        entries.append(
            {
                "table": table.label,
                "moved": _distance(shares["estimate"], shares["prior"]),
                "released_from_prior": _distance(shares["released"], shares["prior"]),
                "left": _distance(shares["released"], shares["estimate"]),
                "cells": table.domain.cell_labels(),
                **{name: [float(value) for value in values] for name, values in shares.items()},
            }
        )
    return entries


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).sum())
