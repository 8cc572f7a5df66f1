r"""Probabilities of margin cells under a mixture of products, and their gradients, as one compiled step each.

.. math:: P_u = \sum_h \pi_h \prod_{c \in u} \psi_{h c},

where a cell u is a set of columns of the classes' profiles. The derivative in :math:`\psi_{hc}` is the product of the
other columns, so that profiles may be exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

__all__ = ["CellProbabilities", "cell_columns"]


def cell_columns(columns: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of all cells one after the other, and where each cell's begin and the last one's end.

    Parameters
    ----------
    columns
        The columns of each cell.

    Examples
    --------
    >>> cell_columns([(0, 3), (4,)])
    (array([0, 3, 4]), array([0, 2, 3]))
    """
    ends = np.cumsum([0, *(len(cell) for cell in columns)])
    return np.array([column for cell in columns for column in cell], dtype=np.int64), ends.astype(np.int64)


@numba.njit(cache=False)
def _probabilities(weights: Any, profiles: Any, columns: Any, ends: Any) -> Any:
    n_classes, n_cells = weights.size, ends.size - 1
    by_column = profiles.T.copy()
    result = np.zeros(n_cells)
    product = np.empty(n_classes)
    for cell in range(n_cells):
        product[:] = weights
        for column in columns[ends[cell] : ends[cell + 1]]:
            for h in range(n_classes):
                product[h] *= by_column[column, h]
        for h in range(n_classes):
            result[cell] += product[h]
    return result


@numba.njit(cache=False)
def _gradients(weights: Any, profiles: Any, columns: Any, ends: Any, cotangent: Any) -> Any:
    n_classes = weights.size
    by_column = profiles.T.copy()
    in_weights, in_columns = np.zeros(n_classes), np.zeros(by_column.shape)
    product = np.empty(n_classes)
    for cell in range(ends.size - 1):
        members = columns[ends[cell] : ends[cell + 1]]
        # Left out: none of the columns, then each in turn.
        for left_out in range(-1, members.size):
            product[:] = cotangent[cell]
            for position in range(members.size):
                if position != left_out:
                    for h in range(n_classes):
                        product[h] *= by_column[members[position], h]
            for h in range(n_classes):
                if left_out < 0:
                    in_weights[h] += product[h]
                else:
                    in_columns[members[left_out], h] += product[h] * weights[h]
    return in_weights, in_columns.T.copy()


def _checked(weights: Any, profiles: Any, columns: Any, ends: Any) -> list[Any]:
    return [
        pt.cast(pt.as_tensor(weights, ndim=1), "float64"),
        pt.cast(pt.as_tensor(profiles, ndim=2), "float64"),
        pt.cast(pt.as_tensor(columns, ndim=1), "int64"),
        pt.cast(pt.as_tensor(ends, ndim=1), "int64"),
    ]


class CellProbabilities(Op):
    """Probabilities of cells.

    Inputs are class weights, shape ``(classes,)``; the profiles side by side, shape ``(classes, columns)``; and what
    `cell_columns` returned.
    """

    __props__ = ()
    _cache_version = 1

    def make_node(self, weights: Any, profiles: Any, columns: Any, ends: Any) -> Apply:
        """Return the node of double-precision inputs."""
        inputs = _checked(weights, profiles, columns, ends)
        return Apply(self, inputs, [pt.tensor(dtype="float64", shape=(_static_cells(inputs[3]),))])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        outputs[0][0] = _probabilities(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return one probability a cell."""
        return [(shapes[3][0] - 1,)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that weights and profiles have a gradient."""
        return [[True], [True], [False], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the gradients in weights and profiles."""
        in_weights, in_profiles = _CellGradients()(*inputs, cotangents[0])
        return [in_weights, in_profiles, disconnected_type(), disconnected_type()]


class _CellGradients(Op):
    """What `CellProbabilities` pulls back: gradients in the weights and the profiles."""

    __props__ = ()
    _cache_version = 1

    def make_node(self, weights: Any, profiles: Any, columns: Any, ends: Any, cotangent: Any) -> Apply:
        inputs = _checked(weights, profiles, columns, ends)
        return Apply(self, [*inputs, pt.cast(cotangent, "float64")], [inputs[0].type(), inputs[1].type()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        outputs[0][0], outputs[1][0] = _gradients(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        return [shapes[0], shapes[1]]


def _static_cells(ends: Any) -> int | None:
    length = ends.type.shape[0]
    return None if length is None else length - 1


@register_funcify_default_op_cache_key(CellProbabilities)
def _compile(op: CellProbabilities, node: Apply, **kwargs: Any) -> Any:
    @numba_njit
    def probabilities(weights: Any, profiles: Any, columns: Any, ends: Any) -> Any:
        return _probabilities(weights, profiles, columns, ends)

    return probabilities, op._cache_version


@register_funcify_default_op_cache_key(_CellGradients)
def _compile_gradients(op: _CellGradients, node: Apply, **kwargs: Any) -> Any:
    @numba_njit
    def gradients(weights: Any, profiles: Any, columns: Any, ends: Any, cotangent: Any) -> Any:
        return _gradients(weights, profiles, columns, ends, cotangent)

    return gradients, op._cache_version
