"""PyTensor graphs behind NumPy-facing functions, compiled once a signature.

A kernel is written as a function from symbolic tensors to a graph and called with arrays. PyTensor is imported and the
graph compiled at the first call, so a module that defines kernels imports as fast as one that defines none.
"""

from collections.abc import Callable
from functools import update_wrapper
from threading import RLock
from typing import Any

import numpy as np

__all__ = ["Kernel", "vectorized"]

# PyTensor's compilation is not thread-safe: one lock for all kernels of the process.
_COMPILING = RLock()


class Kernel:
    """A function of arrays whose body is a PyTensor graph; made by `vectorized`.

    Parameters
    ----------
    build
        Takes one symbolic tensor for each array (positional) and plain hashable values (keyword), and returns a graph,
        or a tuple or list of graphs.
    """

    def __init__(self, build: Callable[..., Any]) -> None:
        update_wrapper(self, build)
        self._build = build
        self._compiled: dict[tuple, Callable[..., Any]] = {}

    @property
    def n_compiled(self) -> int:
        """Number of signatures compiled so far in this process."""
        return len(self._compiled)

    def __call__(self, *arrays: Any, **static: Any) -> Any:
        """Evaluate the graph; an array of integers or booleans enters as int64, any other as float64."""
        values = tuple(_standard(array) for array in arrays)
        signature = (
            tuple((value.dtype.char, tuple(length == 1 for length in value.shape)) for value in values),
            tuple(sorted(static.items())),
        )
        function = self._compiled.get(signature)
        if function is None:
            with _COMPILING:
                function = self._compiled.get(signature) or self._compile(values, static)
                self._compiled[signature] = function
        return function(*values)

    def _compile(self, values: tuple[np.ndarray, ...], static: dict[str, Any]) -> Callable[..., Any]:
        import pytensor
        import pytensor.tensor as pt

        inputs = [
            # A length of one broadcasts as it does in NumPy only if the graph knows of it.
            pt.tensor(f"x{place}", dtype=value.dtype.name, shape=tuple(1 if n == 1 else None for n in value.shape))
            for place, value in enumerate(values)
        ]
        graph = self._build(*inputs, **static)
        return pytensor.function(inputs, list(graph) if isinstance(graph, tuple | list) else graph)


def vectorized(build: Callable[..., Any]) -> Kernel:
    """Turn a graph builder into a function of arrays that compiles once a signature.

    Parameters
    ----------
    build
        Function from symbolic tensors (positional) and hashable constants (keyword) to a PyTensor graph or several.

    Returns
    -------
    Kernel
        Called with arrays in place of the tensors, it returns arrays. A signature is the dtype, the number of
        dimensions and the lengths that are one of every array, and the constants.

    Notes
    -----
    PyTensor rewrites float algebra (``(x + 1e-3) - x`` becomes ``1e-3``): keep directed rounding and compensated sums
    in NumPy.

    Examples
    --------
    >>> import numpy as np
    >>> @vectorized
    ... def scaled_square(x, *, factor):
    ...     return factor * x**2
    >>> scaled_square(np.array([1.0, 3.0]), factor=2)
    array([ 2., 18.])
    >>> scaled_square.n_compiled
    1
    """
    return Kernel(build)


def _standard(array: Any) -> np.ndarray:
    value = np.asarray(array)
    return value.astype(np.int64 if value.dtype.kind in "bui" else np.float64, copy=False)
