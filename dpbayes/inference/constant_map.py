"""Multiplication by a constant matrix, cheap to compile.

PyTensor's general product of matrices takes Numba two to six seconds to compile, for every use in a graph and again
for its gradient. The maps of a margin operator are small and constant: a loop serves them as well and compiles in a
tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from dpbayes.inference.compiled_ops import compiled_by

__all__ = ["constant_map"]


def constant_map(matrix: npt.ArrayLike, vector: Any) -> Any:
    """Return a constant matrix times a vector, as a graph.

    Parameters
    ----------
    matrix
        Numbers, shape ``(rows, columns)``.
    vector
        A graph or array, shape ``(columns,)``.

    Returns
    -------
    pytensor.tensor.TensorVariable
        Shape ``(rows,)``.

    Examples
    --------
    >>> constant_map([[1.0, 2.0], [0.0, 1.0]], np.array([3.0, 4.0])).eval()
    array([11.,  4.])
    """
    values = np.ascontiguousarray(matrix, dtype=np.float64)
    return _ConstantMap()(values, np.ascontiguousarray(values.T), vector)


@numba.njit(cache=False, fastmath={"reassoc", "contract"})
def _times(matrix: Any, vector: Any) -> Any:
    result = np.zeros(matrix.shape[0])
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            result[i] += matrix[i, j] * vector[j]
    return result


class _ConstantMap(Op):
    """A matrix times a vector; the transposed matrix comes along for the gradient."""

    __props__ = ()

    def make_node(self, matrix: Any, transposed: Any, vector: Any) -> Apply:
        matrix, transposed = pt.as_tensor(matrix, ndim=2), pt.as_tensor(transposed, ndim=2)
        vector = pt.cast(pt.as_tensor(vector, ndim=1), "float64")
        given, expected = vector.type.shape[0], matrix.type.shape[1]
        if None not in (given, expected) and given != expected:
            raise ValueError(f"a matrix of {expected} columns does not multiply a vector of length {given}")
        return Apply(self, [matrix, transposed, vector], [pt.tensor(dtype="float64", shape=(matrix.type.shape[0],))])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        outputs[0][0] = inputs[0] @ inputs[2]

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        return [(shapes[0][0],)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False], [False], [True]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        matrix, transposed, _ = inputs
        return [disconnected_type(), disconnected_type(), _ConstantMap()(transposed, matrix, cotangents[0])]


@compiled_by(_ConstantMap)
def _compile(op: _ConstantMap) -> Any:
    def times(matrix: Any, transposed: Any, vector: Any) -> Any:
        return _times(matrix, vector)

    return times
