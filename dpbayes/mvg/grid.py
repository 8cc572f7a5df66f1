"""Theorem 2 over grids: one PyTensor graph, called with arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import real_numbers
from dpbayes._kernels import vectorized
from dpbayes.errors import InputError
from dpbayes.mvg.bound import ZetaReading, bound_formula, check_reading, zeta_printed

__all__ = ["precision_bound_grid"]

type FloatArray = npt.NDArray[np.float64]


def precision_bound_grid(
    *,
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    gamma: npt.ArrayLike,
    sensitivity: npt.ArrayLike,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    zeta: ZetaReading = "printed",
) -> FloatArray:
    """Return the precision bound of Theorem 2 over arrays that broadcast against each other.

    Parameters
    ----------
    m, n
        Positive integers.
    gamma, sensitivity, epsilon
        Positive finite numbers.
    delta
        Numbers in (0, 1).
    zeta
        The reading, as in `precision_bound`.

    Returns
    -------
    numpy.ndarray
        B, of the broadcast shape; equal to `precision_bound` at every point.

    Raises
    ------
    InputError
        If a number is out of range or the shapes do not broadcast.

    Examples
    --------
    >>> precision_bound_grid(m=2, n=2, gamma=1.0, sensitivity=1.0, epsilon=[0.5, 1.0], delta=1e-5).shape
    (2,)
    """
    check_reading(zeta)
    sizes = {name: _sizes(value, name) for name, value in (("m", m), ("n", n))}
    reals = {
        name: _positive(value, name)
        for name, value in (("gamma", gamma), ("sensitivity", sensitivity), ("epsilon", epsilon), ("delta", delta))
    }
    if np.any(reals["delta"] >= 1):
        raise InputError(f"delta must be below 1, got {np.max(reals['delta']):g}; a usual choice is below 1 / n")
    try:
        shape = np.broadcast_shapes(*(np.shape(value) for value in (*sizes.values(), *reals.values())))
    except ValueError as error:
        raise InputError(f"the grids do not broadcast against each other: {error}") from error
    rank = np.minimum(sizes["m"], sizes["n"])
    terms = np.arange(1, int(np.max(rank)) + 1, dtype=float)
    h, h_half = (np.cumsum(terms**-power)[rank - 1] for power in (1.0, 0.5))
    arguments = (
        sizes["m"].astype(float) * sizes["n"],
        h,
        h_half,
        reals["gamma"],
        reals["sensitivity"],
        reals["epsilon"],
        np.log(reals["delta"]),
    )
    # Equal dimensions everywhere: one compiled graph serves every grid of that many dimensions.
    padded = [np.reshape(value, (1,) * (len(shape) - np.ndim(value)) + np.shape(value)) for value in arguments]
    return np.broadcast_to(_bound_graph(*padded, rooted=zeta == "laurent-massart"), shape).copy()


@vectorized
def _bound_graph(
    size: Any, h: Any, h_half: Any, gamma: Any, s2: Any, epsilon: Any, log_delta: Any, *, rooted: bool
) -> Any:
    zeta = zeta_printed(size, log_delta)
    return bound_formula(gamma, s2, epsilon, zeta**0.5 if rooted else zeta, size, h, h_half)[2]


def _sizes(values: Any, name: str) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.size == 0 or np.any(array < 1):
        raise InputError(f"{name} must hold positive integers, got {values!r}")
    return array.astype(np.int64)


def _positive(values: Any, name: str) -> FloatArray:
    array = real_numbers(values, name)
    if array.size == 0 or not np.all(np.isfinite(array) & (array > 0)):
        raise InputError(f"{name} must hold positive finite numbers, got {values!r}")
    return array
