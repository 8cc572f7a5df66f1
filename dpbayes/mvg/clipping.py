"""Records inside their stated ranges: what every release starts from. Nothing of it leaves the custodian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.mvg.sensitivity import FeatureRanges

__all__ = ["ClippedRecords", "clip_records", "inside_ranges"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class ClippedRecords:
    """Records inside their stated ranges, and how much had to be moved. **Confidential**: it has no repr.

    Parameters
    ----------
    values
        Records of shape (m, n), every feature inside its range.
    n_clipped
        Values outside their range, per feature, shape (m,). It stays with the custodian: no release carries it.
    n_missing
        Values that were not finite and were set to the middle of the range, per feature, shape (m,). Stays likewise.
    ranges
        The ranges that the values were clipped to. A release whose noise was priced for others refuses them.

    Examples
    --------
    >>> unit = FeatureRanges([0.0], [1.0], "replace-one")
    >>> ClippedRecords(np.array([[0.0, 1.0]]), np.array([1]), np.array([0]), unit).values.shape
    (1, 2)
    """

    values: FloatArray
    n_clipped: npt.NDArray[np.int64]
    n_missing: npt.NDArray[np.int64]
    ranges: FeatureRanges


def clip_records(records: npt.ArrayLike, ranges: FeatureRanges) -> ClippedRecords:
    """Move every value into its feature's stated range, and a missing one to the middle.

    Each record is treated on its own and only the specification's bounds are used, so neighbours stay neighbours. The
    counts tell the custodian whether the stated ranges fit; they are as confidential as the records.

    Parameters
    ----------
    records
        Matrix of shape (m, n): rows are features, columns are records.
    ranges
        The specification.

    Returns
    -------
    ClippedRecords
        Clipped values and the two counts.

    Raises
    ------
    InputError
        If the shape does not fit.

    Examples
    --------
    >>> clipped = clip_records([[0.5, 7.0, float("nan")]], FeatureRanges([0.0], [1.0], "replace-one"))
    >>> clipped.values.tolist(), clipped.n_clipped.tolist(), clipped.n_missing.tolist()
    ([[0.5, 1.0, 0.5]], [1], [1])
    """
    try:
        values = np.asarray(records, dtype=float)
    except (TypeError, ValueError):
        # NumPy's own message quotes the value, and so would a chained exception.
        raise InputError("records must be numbers; code categories as numbers inside the stated ranges") from None
    if values.ndim != 2 or values.shape[0] != ranges.size or values.shape[1] < 1:
        raise InputError(
            f"records must have shape ({ranges.size}, n), one row a feature, got {values.shape}; transpose a table "
            "with one row a record"
        )
    low, high = ranges.lower[:, None], ranges.upper[:, None]
    missing = ~np.isfinite(values)
    filled = np.where(missing, (low + high) / 2.0, values)
    outside = (filled < low) | (filled > high)
    return ClippedRecords(np.clip(filled, low, high), outside.sum(axis=1), missing.sum(axis=1), ranges)


def inside_ranges(records: npt.ArrayLike | ClippedRecords, ranges: FeatureRanges) -> FloatArray:
    """Return the values of records inside the ranges that a release was priced for.

    Records that state other ranges are refused. Those that state these are clipped once more, because their array may
    have been filled by hand: whatever it holds, one record moves no further than the ranges allow.

    Parameters
    ----------
    records
        Matrix of shape (m, n), or the result of `clip_records`.
    ranges
        The ranges that set the sensitivity.

    Returns
    -------
    numpy.ndarray
        Values of shape (m, n), every one inside its range. **Confidential**.

    Raises
    ------
    InputError
        If the shape does not fit, or the records were clipped to other ranges.

    Examples
    --------
    >>> unit = FeatureRanges([0.0], [1.0], "replace-one")
    >>> inside_ranges(clip_records([[0.5, 7.0]], unit), unit).tolist()
    [[0.5, 1.0]]
    """
    if not isinstance(records, ClippedRecords):
        return clip_records(records, ranges).values
    _check_same(records.ranges, ranges)
    return clip_records(records.values, ranges).values


def _check_same(stated: FeatureRanges, used: FeatureRanges) -> None:
    """Refuse records whose stated ranges are not those that a release uses. Ranges are public, so they are named."""
    if stated.size != used.size:
        raise InputError(f"the records were clipped to {stated.size} ranges, the release uses {used.size}; use one")
    other = np.flatnonzero((stated.lower != used.lower) | (stated.upper != used.upper))
    if other.size:
        i = int(other[0])
        raise InputError(
            f"the records were clipped to [{stated.lower[i]:g}, {stated.upper[i]:g}] in feature {i}, but the noise was "
            f"priced for [{used.lower[i]:g}, {used.upper[i]:g}]; clip the original records to the ranges of the release"
        )
