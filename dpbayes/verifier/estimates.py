"""Fitting one model in every partition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.verifier.counting import partition_slices, row_partitions
from dpbayes.verifier.fits import FAMILIES, Estimate, fit_absorbed, fit_glm, fit_ols
from dpbayes.verifier.formulas import Design, collect, column_values, design
from dpbayes.verifier.mechanism import Assignment
from dpbayes.verifier.partition import missing_units, unit_codes

__all__ = ["Family", "estimate_partitions"]

type Family = Literal["gaussian", "logistic", "poisson"]
type IntArray = npt.NDArray[np.int64]


def estimate_partitions(
    frame: Any,
    *,
    formula: str,
    coefficient: str,
    n_partitions: int,
    unit: str | None = None,
    family: Family = "gaussian",
    absorb: str | Sequence[str] = (),
    levels: Mapping[str, Sequence[Any]] | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> list[Estimate | None]:
    """Return each partition's estimate, or None where it cannot be computed. Confidential.

    For the custodian and for tests; `count_partitions` and `count_significant` are what a study counts. Parameters as
    there. One pass: the design matrix is built once, sorted by partition, and each partition is a slice of it.
    """
    absorbed = [absorb] if isinstance(absorb, str) else list(absorb)
    if family != "gaussian" and family not in FAMILIES:
        raise InputError(f"family must be 'gaussian', 'logistic' or 'poisson', got {family!r}")
    if absorbed and family != "gaussian":
        raise InputError(f"fixed effects can be absorbed in least squares only, got family {family!r}; use C(column)")
    table = collect(frame)
    partition = row_partitions(table, unit, n_partitions, assignment, random_state)
    model = design(table, formula, levels=levels, intercept=not absorbed)
    if coefficient not in model.columns:
        raise InputError(f"coefficient {coefficient!r} is not in the model; it has {list(model.columns)!r}")
    column = model.columns.index(coefficient)
    named = [column_values(table, name) for name in absorbed]
    model = _complete(model, [missing_units(values) for values in named])
    groups = [unit_codes(values[model.rows])[0] for values in named]

    def fit(matrix: Any, response: Any, codes: list[IntArray]) -> Estimate | None:
        if codes:
            return fit_absorbed(matrix, response, column, [np.unique(c, return_inverse=True)[1] for c in codes])
        if family == "gaussian":
            return fit_ols(matrix, response, column)
        return fit_glm(matrix, response, column, family=family)

    return _by_partition(model, partition[model.rows], n_partitions, groups, fit)


def _complete(model: Design, missing: list[npt.NDArray[np.bool_]]) -> Design:
    """Return the design of the rows whose groups are all known."""
    whole = np.ones(model.rows.size, dtype=bool)
    for absent in missing:
        whole &= ~absent[model.rows]
    if whole.all():
        return model
    return Design(model.response[whole], model.matrix[whole], model.columns, model.rows[whole])


def _by_partition(
    model: Design,
    partition: IntArray,
    n_partitions: int,
    groups: list[IntArray],
    fit: Callable[[Any, Any, list[IntArray]], Estimate | None],
) -> list[Estimate | None]:
    """Fit every partition on its slice of the sorted design."""
    order, bounds = partition_slices(partition, n_partitions)
    matrix, response = model.matrix[order], model.response[order]
    sorted_groups = [codes[order] for codes in groups]
    estimates: list[Estimate | None] = []
    for first, last in itertools.pairwise(bounds):
        estimate = None
        if last > first:
            part = slice(first, last)
            estimate = fit(matrix[part], response[part], [codes[part] for codes in sorted_groups])
        # An estimate that overflowed is none.
        estimates.append(estimate if estimate is not None and math.isfinite(estimate.coefficient) else None)
    return estimates
