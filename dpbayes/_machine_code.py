"""Machine code of loops, compiled once per machine for all graphs that use them, compiled or interpreted."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from pytensor import config
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS


@cache
def source_key(path: str) -> str:
    """Return the digest of a source file: PyTensor keeps code on disk by it, so that no other version's is found."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def kept(function: Callable[..., Any]) -> Any:
    """Compile a function whose machine code lies on disk beside PyTensor's."""
    CACHED_SRC_FUNCTIONS[function] = f"{source_key(function.__code__.co_filename)} {function.__name__}"
    return numba.njit(cache=config.numba__cache, error_model="numpy", fastmath=False)(function)


def loop(function: Callable[..., Any]) -> Any:
    """Compile a function into the machine code of those that call it."""
    return numba.njit(cache=False, error_model="numpy", fastmath=False)(function)


def writable(array: Any) -> np.ndarray:
    """Return an array as kept functions take it: Numba would compile once more for a constant, or another order."""
    return np.require(array, requirements=("C", "W"))
