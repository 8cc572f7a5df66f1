r"""Probabilities of margin cells under a mixture of products, and their gradients, as one compiled step each.

.. math:: P_u = \sum_h \pi_h \prod_{c \in u} \psi_{h c},

where a cell u is a set of columns of the classes' profiles. Cells that begin with the same columns share their product:
they are the nodes of a tree, each its parent times one column, and the gradient runs the tree backwards. So a cell
costs one multiplication a class, and profiles may be exactly zero.
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

from dpbayes.inference.compiled_ops import compiled_by

__all__ = ["CellProbabilities", "cell_tree"]

_SUMS = {"reassoc", "contract"}


def cell_tree(columns: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tree of products that leads to all cells, and which node of it each cell is.

    Parameters
    ----------
    columns
        The columns of each cell.

    Returns
    -------
    steps : array of shape ``(nodes, 2)``
        Parent and column of the nodes 1, 2, ...; node 0 is the empty product.
    places : array of shape ``(cells,)``

    Examples
    --------
    >>> steps, places = cell_tree([(0, 3), (0, 4), ()])
    >>> steps.tolist(), places.tolist()
    ([[0, 0], [1, 3], [1, 4]], [2, 3, 0])
    """
    nodes: dict[tuple[int, ...], int] = {(): 0}
    steps = []
    for cell in columns:
        for length in range(1, len(cell) + 1):
            path = tuple(cell[:length])
            if path not in nodes:
                nodes[path] = len(nodes)
                steps.append((nodes[path[:-1]], path[-1]))
    places = [nodes[tuple(cell)] for cell in columns]
    # Unsigned: compiled loops then do not ask whether an index is negative.
    return np.array(steps, dtype=np.uint64).reshape(-1, 2), np.array(places, dtype=np.uint64)


@numba.njit(cache=False)
def _products(profiles: Any, steps: Any) -> Any:
    """Return the product of every node, shape ``(nodes, classes)``."""
    by_column = profiles.T.copy()
    n_classes = by_column.shape[1]
    products = np.empty((steps.shape[0] + 1, n_classes))
    products[0, :] = 1.0
    for step in range(steps.shape[0]):
        parent, column = steps[step, 0], steps[step, 1]
        for h in range(n_classes):
            products[step + 1, h] = products[parent, h] * by_column[column, h]
    return products


@numba.njit(cache=False, fastmath=_SUMS)
def _probabilities(weights: Any, profiles: Any, steps: Any, places: Any) -> Any:
    products = _products(profiles, steps)
    result = np.empty(places.size)
    for cell in range(places.size):
        total = 0.0
        for h in range(weights.size):
            total += weights[h] * products[places[cell], h]
        result[cell] = total
    return result, products


@numba.njit(cache=False)
def _gradients(weights: Any, profiles: Any, steps: Any, places: Any, products: Any, cotangent: Any) -> Any:
    by_column = profiles.T.copy()
    in_weights, in_columns = np.zeros(weights.size), np.zeros(by_column.shape)
    in_products = np.zeros(products.shape)
    for cell in range(places.size):
        node = places[cell]
        for h in range(weights.size):
            in_weights[h] += cotangent[cell] * products[node, h]
            in_products[node, h] += cotangent[cell] * weights[h]
    for step in range(steps.shape[0] - 1, -1, -1):
        parent, column = steps[step, 0], steps[step, 1]
        for h in range(weights.size):
            in_columns[column, h] += in_products[step + 1, h] * products[parent, h]
            in_products[parent, h] += in_products[step + 1, h] * by_column[column, h]
    return in_weights, in_columns.T.copy()


def _checked(weights: Any, profiles: Any, steps: Any, places: Any) -> list[Any]:
    return [
        pt.cast(pt.as_tensor(weights, ndim=1), "float64"),
        pt.cast(pt.as_tensor(profiles, ndim=2), "float64"),
        pt.cast(pt.as_tensor(steps, ndim=2), "uint64"),
        pt.cast(pt.as_tensor(places, ndim=1), "uint64"),
    ]


class CellProbabilities(Op):
    """Probabilities of cells, and the products of all nodes of their tree.

    Inputs are class weights, shape ``(classes,)``; the profiles side by side, shape ``(classes, columns)``; and what
    `cell_tree` returned. The products, shape ``(nodes, classes)``, are for the gradient; they have none themselves.
    """

    __props__ = ()

    def make_node(self, weights: Any, profiles: Any, steps: Any, places: Any) -> Apply:
        """Return the node of double-precision inputs."""
        inputs = _checked(weights, profiles, steps, places)
        return Apply(self, inputs, [pt.tensor(dtype="float64", shape=inputs[3].type.shape), pt.dmatrix()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        outputs[0][0], outputs[1][0] = _probabilities(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return one probability a cell, and a row a node."""
        return [shapes[3], (shapes[2][0] + 1, shapes[0][0])]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that the probabilities have a gradient in weights and profiles."""
        return [[True, False], [True, False], [False, False], [False, False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the gradients in weights and profiles."""
        in_weights, in_profiles = _CellGradients()(*inputs, outputs[1], cotangents[0])
        return [in_weights, in_profiles, disconnected_type(), disconnected_type()]


class _CellGradients(Op):
    """What `CellProbabilities` pulls back: gradients in the weights and the profiles."""

    __props__ = ()

    def make_node(self, weights: Any, profiles: Any, steps: Any, places: Any, products: Any, cotangent: Any) -> Apply:
        inputs = [*_checked(weights, profiles, steps, places), products, pt.cast(cotangent, "float64")]
        return Apply(self, inputs, [inputs[0].type(), inputs[1].type()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        outputs[0][0], outputs[1][0] = _gradients(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        return [shapes[0], shapes[1]]


@compiled_by(CellProbabilities)
def _compile(op: CellProbabilities) -> Any:
    def probabilities(weights: Any, profiles: Any, steps: Any, places: Any) -> Any:
        return _probabilities(weights, profiles, steps, places)

    return probabilities


@compiled_by(_CellGradients)
def _compile_gradients(op: _CellGradients) -> Any:
    def gradients(weights: Any, profiles: Any, steps: Any, places: Any, products: Any, cotangent: Any) -> Any:
        return _gradients(weights, profiles, steps, places, products, cotangent)

    return gradients
