"""Records and public ranges of an MVG run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpbayes.runs.records import readable, require_columns, scan_records

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from dpbayes.mvg import FeatureRanges
    from dpbayes.runs.mvg import Spec

__all__ = ["feature_ranges", "load_records", "record_matrix"]


def load_records(spec: Spec, beside: Path) -> tuple[pl.DataFrame, dict[str, tuple[float, float]]]:
    """Return the records, one column a range, and the public ranges. The records may be confidential."""
    import polars as pl

    from dpbayes.data.patients import PATIENT_RANGES, patients, read_synthea
    from dpbayes.errors import InputError

    data = spec.data
    if data.embedded is not None:
        assert data.n is not None
        return patients(data.n, data.seed), PATIENT_RANGES
    assert data.file is not None
    path = beside / data.file
    given = data.ranges or {}
    ranges = {name: (low, high) for name, (low, high) in given.items()} or PATIENT_RANGES
    lazy = scan_records(path, setting="data.file", text=())
    if data.layout == "synthea":
        lazy = read_synthea(path).lazy()
    require_columns(lazy, ranges, path, source="data.ranges")
    with readable(path):
        frame = lazy.select(list(ranges)).collect()
    text = [name for name, kind in frame.schema.items() if not (kind.is_numeric() or kind == pl.Boolean)]
    if text:
        raise InputError(
            f"{path.name} has columns that are not numbers: {', '.join(text)}; code them inside data.ranges"
        )
    return frame.cast(pl.Float64), ranges


def feature_ranges(ranges: dict[str, tuple[float, float]], names: list[str]) -> FeatureRanges:
    """Return the public ranges of some columns, under replace-one."""
    from dpbayes.mvg import FeatureRanges

    return FeatureRanges([ranges[name][0] for name in names], [ranges[name][1] for name in names], "replace-one")


def record_matrix(frame: pl.DataFrame) -> np.ndarray:
    """Return the records as a matrix with one row a column of the table."""
    import numpy as np

    return np.ascontiguousarray(frame.to_numpy().T, dtype=float)
