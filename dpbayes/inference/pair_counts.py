r"""Released tables of binary attributes, two at a time, given the classes: log-density and gradient as one step.

Let :math:`x_j` be a record's level of attribute j in class h, with probability :math:`\psi_{hj}` and standard deviation
:math:`s_{hj}`. Standardized levels :math:`z_j` and their products :math:`z_i z_j` are uncorrelated within a class, and

.. math:: x_i x_j = \psi_{hi}\psi_{hj} + \psi_{hj} s_{hi} z_i + \psi_{hi} s_{hj} z_j + s_{hi} s_{hj} z_i z_j .

Summed over the records of all classes, the normal law with the multinomial's mean and covariance (`joint_counts`) is
therefore, with independent standard normal :math:`v_h`, :math:`u_{hj}` and :math:`\zeta_{ij}`,

.. math:: N_h = n\pi_h + \sqrt{n\pi_h}\,(v_h - \sqrt{\pi_h}\textstyle\sum_g\sqrt{\pi_g} v_g), \qquad
          W_{hj} = \sqrt{n\pi_h}\, s_{hj} u_{hj}, \qquad A_{hj} = N_h\psi_{hj} + W_{hj},

.. math:: m_j = \sum_h A_{hj}, \qquad
          m_{ij} = \sum_h (A_{hi}\psi_{hj} + W_{hj}\psi_{hi}) + \tau_{ij}\zeta_{ij}, \qquad
          \tau_{ij}^2 = n\sum_h \pi_h s_{hi}^2 s_{hj}^2 .

A pair's own deviate enters the counts of that pair's tables alone, and is summed out of them (`summed_count`): what is
left is a product over pairs, at a cost that is linear in pairs and classes, and no covariance is factored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from dpbayes.inference.compiled_ops import compiled_by
from dpbayes.inference.margin_operator import MarginOperator
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.inference.pair_kernels import pair_counts, pair_effects

__all__ = ["PairCounts", "PairEffects", "PairTables"]


class PairTables(NamedTuple):
    """Where each released count stands, in arrays for compiled code.

    Parameters
    ----------
    pairs
        Axes of each pair of attributes that some table holds, shape ``(pairs, 2)``.
    ends
        Where the counts of each pair begin and end in `cells`; those of one-way tables come after the last.
    cells
        Place in the release and the axes of the two totals that the count depends on, shape ``(counts, 3)``.
    numbers
        Coefficients of n, of the two totals and of the pair's count; rates of ``|x|`` and ``x^2`` of the noise; shape
        ``(counts, 6)``.
    nugget
        Added to the variance of each pair's count.
    """

    pairs: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]
    nugget: npt.NDArray[np.float64]

    @classmethod
    def of(cls, operator: MarginOperator, noise: ReleasedNoise, nugget: float) -> PairTables:
        """Return the arrays of a release.

        Parameters
        ----------
        operator
            The map from effects to released counts, of which `dpbayes.inference.margin_operator.only_pairs` is true.
        noise
            The laws of the counts.
        nugget
            What is added to each pair's variance, as a share of what the noise alone would leave of it.
        """
        _, linear, quadratic = noise.coefficients
        single = {effect[0][0]: column for column, effect in enumerate(operator.effects) if len(effect) == 1}
        double = {(e[0][0], e[1][0]): column for column, e in enumerate(operator.effects) if len(e) == 2}
        holders: dict[tuple[int, ...], list[int]] = {key: [] for key in (*double, *((axis,) for axis in single))}
        for place, table in enumerate(operator.tables):
            holders[tuple(sorted(operator.axes[table]))].append(place)
        ends, cells, numbers, least = [0], [], [], []
        for axes, places in holders.items():
            for place in places:
                row = operator.matrix[place]
                totals = (row[single[axes[0]]], row[single[axes[1]]] if len(axes) == 2 else 0.0)
                own = row[double[axes]] if len(axes) == 2 else 0.0
                cells.append((place, axes[0], axes[-1]))
                numbers.append((operator.constant[place], *totals, own, linear[place], quadratic[place]))
            if len(axes) == 2:
                ends.append(len(cells))
                least.append(nugget / np.sum(noise.stddev[places] ** -2.0))
        return cls(
            np.array(list(double), dtype=np.int64).reshape(-1, 2),
            np.array(ends, dtype=np.int64),
            np.array(cells, dtype=np.int64),
            np.array(numbers, dtype=np.float64),
            np.array(least, dtype=np.float64),
        )


def _inputs(values: Sequence[Any], ranks: Sequence[int], tables: PairTables) -> list[Any]:
    """Return graph inputs: floats of the given ranks, then the arrays of the tables."""
    floats = [pt.cast(pt.as_tensor(value, ndim=rank), "float64") for value, rank in zip(values, ranks, strict=True)]
    return [*floats, *(pt.as_tensor(field) for field in tables)]


class PairCounts(Op):
    """Log-density of released counts, without its constants; the gradients are its further outputs.

    Inputs are those of `pair_counts`, outputs what it returns. Only the first output is differentiable.
    """

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node: weights, profiles, deviates, sizes, n, released, then the fields of `PairTables`."""
        values = _inputs(inputs[:6], (1, 2, 2, 1, 0, 1), PairTables(*inputs[6:]))
        return Apply(self, values, [pt.dscalar(), pt.dvector(), pt.dmatrix(), pt.dmatrix(), pt.dvector(), pt.dscalar()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        weights, profiles, deviates, sizes, n, released, *tables = inputs
        results = pair_counts(weights, profiles, deviates, sizes, float(n), released, tuple(tables))
        for storage, result, variable in zip(outputs, results, node.outputs, strict=True):
            storage[0] = np.asarray(result, dtype=variable.dtype)

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return the shapes of the gradients' variables."""
        return [(), *shapes[:5]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that all but the data have a gradient."""
        return [[True] * 6] * 5 + [[False] * 6] * 6

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the gradients, which the node has computed already."""
        density = cotangents[0]
        return [*(density * gradient for gradient in outputs[1:]), *(disconnected_type() for _ in range(6))]


class PairEffects(Op):
    """Counts of attributes and pairs at quantiles of their law given the classes; without a gradient.

    Inputs are those of `pair_effects`.
    """

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node: the inputs of `PairCounts` with the levels before the fields of `PairTables`."""
        values = _inputs(inputs[:7], (1, 2, 2, 1, 0, 1, 1), PairTables(*inputs[7:]))
        return Apply(self, values, [pt.dvector()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        weights, profiles, deviates, sizes, n, released, levels, *tables = inputs
        outputs[0][0] = pair_effects(weights, profiles, deviates, sizes, float(n), released, levels, tuple(tables))

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return the number of attributes and pairs."""
        return [(shapes[1][1] + shapes[7][0],)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that nothing has a gradient."""
        return [[False]] * 12


@compiled_by(PairCounts)
def _compile_counts(op: PairCounts) -> Any:
    def counts(weights: Any, profiles: Any, deviates: Any, sizes: Any, n: Any, released: Any, *tables: Any) -> Any:
        logp, in_weights, in_profiles, in_deviates, in_sizes, in_n = pair_counts(
            weights, profiles, deviates, sizes, n.item(), released, tables
        )
        return np.asarray(logp), in_weights, in_profiles, in_deviates, in_sizes, np.asarray(in_n)

    return counts


@compiled_by(PairEffects)
def _compile_effects(op: PairEffects) -> Any:
    def effects(weights: Any, profiles: Any, deviates: Any, sizes: Any, n: Any, *rest: Any) -> Any:
        return pair_effects(weights, profiles, deviates, sizes, n.item(), rest[0], rest[1], rest[2:])

    return effects
