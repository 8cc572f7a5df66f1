"""Adding noise: exactly for a release, fast for a simulation.

A release passes its values *through* a sampler of OpenDP: exact discrete sampling in rational arithmetic from the
operating system's cryptographic generator. For the continuous laws the noisy value itself is drawn on the lattice of
spacing 2^-1074 and only then rounded to a double, so that which doubles can appear does not depend on the confidential
value. `value + rng.laplace()` has neither property: the generator's state can be recovered from its outputs, and the
low bits of the sum give the value away (Mironov 2012, "On significance of the least significant bits for differential
privacy"). NumPy generators therefore serve simulation only, and a `Release` says which of the two made it.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import as_array, shown
from dpbayes.errors import InputError
from dpbayes.privacy.laws import NoiseLaw, check_law

SamplerName = Literal["opendp", "simulation"]

# Results are 64-bit integers and saturate at their ends. With counts below 2^62 in size and this much noise at most,
# saturation has a probability below exp(-1000).
_LARGEST_DISCRETE = 2.0**52
# Doubles end at 1.8e308: below this parameter an infinite result has a probability below exp(-1000).
_LARGEST_CONTINUOUS = 1e300


def sampler_name(rng: np.random.Generator | None) -> SamplerName:
    """Return which sampler `rng` selects."""
    if rng is None:
        return "opendp"
    if isinstance(rng, np.random.Generator):
        return "simulation"
    raise InputError(
        f"rng must be None (a release) or a numpy.random.Generator (a simulation), got {shown(rng)}; "
        "to simulate from a seed pass numpy.random.default_rng(seed)"
    )


def release_values(values: npt.ArrayLike, law: NoiseLaw, *, rng: np.random.Generator | None = None) -> npt.NDArray[Any]:
    """Return `values` plus independent noise from `law`.

    Parameters
    ----------
    values
        Confidential numbers of any shape. A discrete law takes integers of at most 64 bits; a continuous law takes
        integers or finite floats.
    law
        The noise; its parameter is in the unit of `values`.
    rng
        None, the default, draws with OpenDP and is what a release must use. A generator simulates: **not for release**,
        because a seeded generator is predictable and floating-point addition leaks the value through its low bits.

    Returns
    -------
    numpy.ndarray
        int64 under a discrete law, float64 under a continuous one; the shape of `values`. A discrete result saturates
        at the ends of int64: post-processing, which costs no privacy, and with counts below 2^62 happens with
        probability below exp(-1000).

    Raises
    ------
    InputError
        If `rng` is neither None nor a generator, `values` have the wrong type or are not finite, or the law cannot be
        drawn (`check_drawable`). No message shows a value.

    Examples
    --------
    >>> from dpbayes.privacy import TwoSidedGeometric
    >>> released = release_values([[10, 20], [30, 40]], TwoSidedGeometric(scale=2.0))
    >>> released.shape, released.dtype
    ((2, 2), dtype('int64'))
    """
    source = sampler_name(rng)
    checked = _checked_values(values, law)
    if source == "opendp":
        noisy = law.measurement()(checked.ravel().tolist())
        return np.asarray(noisy, dtype=checked.dtype).reshape(checked.shape)
    assert rng is not None
    noise = law.simulate(checked.shape, rng)
    return _saturating_sum(checked, noise) if law.is_discrete else checked + noise


def check_drawable(law: NoiseLaw) -> None:
    """Raise unless noise from `law` can be drawn: to be asked before a ledger records the cost."""
    parameter = check_law(law).spread
    if law.is_discrete and parameter > _LARGEST_DISCRETE:
        raise InputError(
            f"{law.name} noise of {law.parameter} {parameter!r} exceeds 2**52 and would saturate 64-bit integers; "
            "use the continuous law, or a larger privacy cost"
        )
    if parameter > _LARGEST_CONTINUOUS:
        raise InputError(
            f"{law.name} noise of {law.parameter} {parameter!r} exceeds {_LARGEST_CONTINUOUS:g} and would overflow "
            "doubles; use a larger privacy cost"
        )


def _checked_values(values: npt.ArrayLike, law: NoiseLaw) -> npt.NDArray[Any]:
    check_drawable(law)
    array = as_array(values, "values")
    integers = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64)
    if array.size == 0:
        return np.zeros(array.shape, dtype=np.int64 if law.is_discrete else np.float64)
    if law.is_discrete:
        if not integers:
            raise InputError(
                f"a {law.name} law is added to integers of at most 64 bits, got an array of {array.dtype}; "
                "pass counts as int64, or use a continuous law"
            )
        return array.astype(np.int64)
    if not (integers or (array.dtype.kind == "f" and array.dtype.itemsize <= 8)):
        raise InputError(f"a {law.name} law is added to real numbers, got an array of {array.dtype}; pass float64")
    floats = array.astype(np.float64)
    if not np.isfinite(floats).all():
        raise InputError("values must be finite, got NaN or infinity among them; clip or drop them before the release")
    return floats


def _saturating_sum(values: npt.NDArray[np.int64], noise: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum that stops at the ends of int64, as OpenDP's does; NumPy's wraps around."""
    ends = np.iinfo(np.int64)
    room_up, room_down = ends.max - np.maximum(values, 0), ends.min - np.minimum(values, 0)
    return np.asarray(values + np.clip(noise, room_down, room_up))
