"""The paper's composite likelihood: a multinomial for each released table, its confidential counts summed out exactly.

All tables are counted on the same records, which this likelihood ignores: it takes their sampling for independent. The
likelihood that keeps the dependence is `dpbayes.inference.joint_counts`; this one is for comparison with the paper, and
for a release of a single table, where it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from dpbayes.errors import InputError
from dpbayes.inference.compiled_ops import compiled_by
from dpbayes.inference.count_kernels import TINY, tables_log_likelihood
from dpbayes.inference.noisy_counts import ReleasedNoise

__all__ = ["TablesLogLikelihood", "noisy_tables", "tables_likelihood"]


class TablesLogLikelihood(Op):
    """Log-likelihood of independent noisy multinomial tables, and the posterior means of their counts.

    Inputs are those of `tables_log_likelihood`, with the number of records third; outputs are one log-likelihood a
    table and E[count | released] of every cell. The gradient in the probabilities is the second divided by the first
    input (the score of a multinomial at its expected counts); no other gradient is given. Noise and sizes are inputs as
    well, so that releases of any noise and number of tables run the same machine code.
    """

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node: probabilities, released counts, n, then the noise's rates and the ends of the tables."""
        ranks, dtypes = (1, 1, 0, 1, 1, 1, 1), ("float64", "float64", "int64", *["float64"] * 3, "int64")
        given = zip(inputs, ranks, dtypes, strict=True)
        values = [pt.cast(pt.as_tensor(value, ndim=rank), dtype) for value, rank, dtype in given]
        return Apply(self, values, [pt.dvector(), pt.dvector()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        p, x, n, *noise_and_ends = inputs
        outputs[0][0], outputs[1][0] = tables_log_likelihood(p, x, *noise_and_ends, int(n))

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return one value a table and one a cell."""
        return [shapes[6], shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that only the probabilities have a gradient."""
        return [[True, True]] + [[False, False]] * 6

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the gradient of the log-likelihoods in the probabilities."""
        probabilities, ends = inputs[0], inputs[6]
        table = pt.searchsorted(ends, pt.arange(probabilities.shape[0]), side="right")
        # A structural zero has probability and expected count zero: 0 / 0 would reach every other gradient.
        score = outputs[1] / pt.maximum(probabilities, TINY)
        return [cotangents[0][table] * score, *(disconnected_type() for _ in range(6))]


@compiled_by(TablesLogLikelihood)
def _compile(op: TablesLogLikelihood) -> Any:
    def tables(p: Any, x: Any, n: Any, linear: Any, quadratic: Any, constant: Any, ends: Any) -> Any:
        return tables_log_likelihood(p, x, linear, quadratic, constant, ends, n.item())

    return tables


def tables_likelihood(
    probabilities: Any, released: Any, n: Any, noise: ReleasedNoise, sizes: Sequence[int]
) -> tuple[Any, Any]:
    """Return the log-likelihood of each noisy table, and the posterior means of the counts, as graphs.

    Parameters
    ----------
    probabilities, released
        Cell probabilities (each table's add up to one) and released counts, table after table, shape ``(counts,)``.
    n
        Number of records.
    noise
        The law of each count's noise.
    sizes
        Number of cells of each table.

    Returns
    -------
    tuple of pytensor.tensor.TensorVariable
        Log-likelihoods in nats, shape ``(tables,)``, and E[count | released] in records, shape ``(counts,)``.

    Raises
    ------
    InputError
        If the sizes do not add up to the number of noise laws.

    References
    ----------
    The likelihood of Barrientos (2021), summed over the counts as `dpbayes.inference.count_kernels` says.

    Examples
    --------
    >>> from dpbayes.privacy.noise import TwoSidedGeometric
    >>> noise = ReleasedNoise((TwoSidedGeometric(2.0),) * 3)
    >>> p = pt.dvector("p")
    >>> _, means = tables_likelihood(p, [5.0, 5.0, 10.0], 20, noise, [3])
    >>> means.eval({p: [0.2, 0.3, 0.5]}).round(3)
    array([ 4.603,  5.338, 10.059])
    """
    values, means = TablesLogLikelihood()(probabilities, released, n, *noise.rates, _ends(noise, sizes))
    return values, means


def _ends(noise: ReleasedNoise, sizes: Sequence[int]) -> Any:
    """Return where each table ends."""
    if sum(sizes) != len(noise):
        raise InputError(f"tables of {list(sizes)} cells do not hold {len(noise)} counts; give each table's own size")
    return np.cumsum(sizes)


def noisy_tables(
    name: str, probabilities: Any, n: int, noise: ReleasedNoise, sizes: Sequence[int], **kwargs: Any
) -> Any:
    """Add released tables, each a multinomial with noise, to the model on the context stack.

    Parameters
    ----------
    name
        Name of the variable.
    probabilities
        Cell probabilities, table after table; each table's add up to one.
    n
        Number of records.
    noise
        The law of each count's noise.
    sizes
        Number of cells of each table.
    **kwargs
        Passed to `pymc.CustomDist`: ``observed``, ``dims``.

    Returns
    -------
    pytensor.tensor.TensorVariable
        The released counts; forward draws give every table a multinomial of its own.

    Raises
    ------
    InputError
        If the sizes do not add up to the number of noise laws.

    Examples
    --------
    >>> from dpbayes.privacy.noise import TwoSidedGeometric
    >>> noise = ReleasedNoise((TwoSidedGeometric(2.0),) * 3)
    >>> with pm.Model() as model:
    ...     x = noisy_tables("x", np.array([0.2, 0.3, 0.5]), 20, noise, [3])
    >>> round(float(model.compile_logp()({"x": np.array([5.0, 5.0, 10.0])})), 6)
    -6.057715
    """
    starts = np.concatenate([[0], _ends(noise, sizes)])

    def dist(p: Any, size: Any) -> Any:
        counts = [pm.Multinomial.dist(n=n, p=p[..., start:end], size=size) for start, end in pairwise(starts)]
        return noise.around(pt.concatenate(counts, axis=-1).astype("float64"))

    return pm.CustomDist(
        name,
        probabilities,
        dist=dist,
        logp=lambda value, p: pt.sum(tables_likelihood(p, value, n, noise, sizes)[0]),
        class_name="NoisyTables",
        signature="(c)->(c)",
        **kwargs,
    )
