"""Random partitions of units, drawn without looking at the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import generator
from dpbayes.errors import InputError
from dpbayes.verifier.checks import check_n_partitions

if TYPE_CHECKING:
    from dpbayes.verifier.mechanism import Assignment

__all__ = ["assign_partitions", "missing_units", "unit_codes"]


def assign_partitions(
    n_units: int,
    n_partitions: int,
    *,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> npt.NDArray[np.int64]:
    """Assign each unit to one of M partitions at random.

    Parameters
    ----------
    n_units
        Number of units (persons, firms, ...), at least 1.
    n_partitions
        M, at least 1; at most the number of units where the assignment is balanced, since that number is public under
        replace-one. Independent assignment may leave partitions empty; those cannot be computed.
    assignment
        ``"balanced"`` permutes the units and deals them out, so that sizes differ by one at most: for replace-one
        neighbours. ``"independent"`` draws each unit's partition by itself: for add-remove neighbours, where a unit
        more must not move any other. `dpbayes.verifier.mechanism.release_counts` derives why.
    random_state
        None draws from the operating system's entropy and keeps no trace of it: for a real measurement. A seed or a
        generator is for simulation only, because the guarantee averages over assignments that nobody knows.

    Returns
    -------
    numpy.ndarray
        Partition of each unit, in 0, ..., M - 1.

    Raises
    ------
    InputError
        If a number is out of range, or a balanced assignment would leave partitions empty.

    Examples
    --------
    >>> np.bincount(assign_partitions(10, 3)).tolist() in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    True
    """
    check_n_partitions(n_partitions)
    if n_units < 1:
        raise InputError("there are no units to partition; the data are empty")
    rng = generator(random_state, "random_state")
    if assignment == "independent":
        return rng.integers(0, n_partitions, size=n_units)
    if assignment != "balanced":
        raise InputError(f"assignment must be 'balanced' or 'independent', got {assignment!r}")
    if n_partitions > n_units:
        raise InputError(
            f"{n_partitions:,} partitions are more than the {n_units:,} units, and an empty one cannot be computed; "
            "choose at most as many partitions as units, and many fewer for a fit"
        )
    # Which partitions hold one unit more is drawn as well, so that no partition is larger by its number.
    dealt = np.resize(rng.permutation(n_partitions), n_units)
    return np.asarray(rng.permutation(dealt))


def unit_codes(units: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """Return a code from 0 for the unit of each row, and the number of units.

    Raises
    ------
    InputError
        If a unit is missing: a row without its person cannot stay with that person's other rows.

    Examples
    --------
    >>> unit_codes(np.array(["b", "a", "b"]))
    (array([1, 0, 1]), 2)
    """
    if missing_units(units).any():
        raise InputError("the unit column holds a missing value; every row must name its unit")
    _, codes = np.unique(units.astype(str) if units.dtype == object else units, return_inverse=True)
    return codes.astype(np.int64), int(codes.max(initial=-1)) + 1


def missing_units(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where the name of a unit or of a group is missing.

    Examples
    --------
    >>> missing_units(np.array(["a", None], dtype=object))
    array([False,  True])
    """
    if units.dtype.kind == "O":
        import pandas as pd

        return np.asarray(pd.isna(units))
    if units.dtype.kind in "Mm":
        return np.isnat(units)
    return np.isnan(units) if units.dtype.kind in "fc" else np.zeros(units.shape, dtype=bool)
