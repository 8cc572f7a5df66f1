"""Compiled loops as operations of a graph, kept on disk under a key that follows their source.

PyTensor keeps machine code on disk by the structure of the graph and a whole number for each operation; other checkouts
and later versions of the package find it there. A number raised by hand would one day not be raised, and a fit would
run the loops of yesterday. Here it is a digest of the source files of all compiled functions that an operation reaches.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

__all__ = ["compiled_by", "source_files", "source_version"]


def compiled_by(op_type: type) -> Callable[[Callable[[Any], Callable[..., Any]]], Any]:
    """Register how an operation is compiled.

    Parameters
    ----------
    op_type
        A subclass of `pytensor.graph.op.Op` whose ``__props__`` say all that its compiled function depends on.

    Returns
    -------
    callable
        A decorator of a function that takes the operation and returns a Python function which Numba can compile.
    """

    def register(make: Callable[[Any], Callable[..., Any]]) -> Any:
        @register_funcify_default_op_cache_key(op_type)
        def compile_op(op: Any, node: Any, **kwargs: Any) -> Any:
            function = make(op)
            return numba_njit(function), source_version(function)

        return compile_op

    return register


def source_version(function: Callable[..., Any]) -> int:
    """Return a number that changes with the source of what a function compiles to.

    Parameters
    ----------
    function
        A Python function that calls compiled ones.

    Returns
    -------
    int
        The first 60 bits of the SHA-256 of `source_files`.
    """
    digest = hashlib.sha256()
    for path in source_files(function):
        digest.update(_digest(path))
    return int.from_bytes(digest.digest()[:8], "big") >> 4


def source_files(function: Callable[..., Any]) -> list[Path]:
    """Return the files that hold a function and all compiled functions that it reaches, in order.

    Parameters
    ----------
    function
        A Python function, or one compiled by Numba.

    Examples
    --------
    >>> from dpbayes.inference.pair_kernels import pair_counts
    >>> [path.name for path in source_files(pair_counts)]
    ['mills_ratio.py', 'pair_kernels.py', 'summed_count.py']
    """
    waiting, seen = [_plain(function)], set()
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += _reached(one)
    return sorted({Path(inspect.getfile(one)) for one in seen})


def _plain(function: Any) -> Any:
    """Return the Python function behind a compiled one."""
    return getattr(function, "py_func", function)


def _reached(function: Any) -> Iterator[Any]:
    """Yield the Python functions behind the compiled ones that a function names."""
    names = set(_names(function.__code__))
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in [*(function.__globals__.get(name) for name in names), *cells]:
        if hasattr(value, "py_func"):
            yield value.py_func


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
