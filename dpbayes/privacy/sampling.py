"""Adding noise: exactly for a release, fast for a simulation.

A release passes its values *through* a sampler of OpenDP: exact discrete sampling in rational arithmetic from the
operating system's cryptographic generator. For the continuous laws the noisy value itself is drawn on the lattice of
spacing 2^-1074 and only then rounded to a double, so that which doubles can appear does not depend on the confidential
value. `value + rng.laplace()` has neither property: the generator's state can be recovered from its outputs, and the
low bits of the sum give the value away (Mironov 2012, "On significance of the least significant bits for differential
privacy"). NumPy generators therefore serve simulation only, and a `Release` says which of the two made it.
"""

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import as_array, shown
from dpbayes.errors import InputError
from dpbayes.privacy.noise import DiscreteGaussian, Gaussian, Laplace, NoiseLaw, TwoSidedGeometric, check_law

if TYPE_CHECKING:
    from opendp.mod import Measurement

__all__ = ["SamplerName", "check_drawable", "draw_noise", "release_values", "sampler_name"]

SamplerName = Literal["opendp", "simulation"]

# Results are 64-bit integers and saturate at their ends. With counts below 2^62 in size and this much noise at most,
# saturation has a probability below exp(-1000).
_LARGEST_DISCRETE = 2.0**52
# Doubles end at 1.8e308: below this parameter an infinite result has a probability below exp(-1000).
_LARGEST_CONTINUOUS = 1e300
_BLOCK = 1 << 14
_MOSTLY_ZERO = 0.5


def sampler_name(rng: np.random.Generator | None) -> SamplerName:
    """Return which sampler `rng` selects.

    Parameters
    ----------
    rng
        None for a release, a NumPy generator for a simulation.

    Returns
    -------
    str
        `"opendp"` or `"simulation"`.

    Raises
    ------
    InputError
        For anything else: a seed is no generator, and a release has no seed.

    Examples
    --------
    >>> sampler_name(None), sampler_name(np.random.default_rng(1))
    ('opendp', 'simulation')
    """
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
        int64 under a discrete law, float64 under a continuous one; the shape of `values`.

    Raises
    ------
    InputError
        If `rng` is neither None nor a generator, `values` have the wrong type or are not finite, or the law cannot be
        drawn (`check_drawable`). No message shows a value.

    Notes
    -----
    Results under a discrete law saturate at the ends of int64. That is post-processing, so it costs no privacy,
    whatever the values; with counts below 2^62 it happens with probability below exp(-1000).

    Examples
    --------
    >>> released = release_values([[10, 20], [30, 40]], TwoSidedGeometric(scale=2.0))
    >>> released.shape, released.dtype
    ((2, 2), dtype('int64'))
    """
    source = sampler_name(rng)
    checked = _checked_values(values, law)
    if source == "opendp":
        measurement = _measurement(law)
        noisy = measurement(checked.ravel().tolist())
        return np.asarray(noisy, dtype=checked.dtype).reshape(checked.shape)
    assert rng is not None
    noise = _simulate(law, checked.shape, rng)
    return _saturating_sum(checked, noise) if law.is_discrete else checked + noise


def draw_noise(
    law: NoiseLaw, shape: int | tuple[int, ...], *, rng: np.random.Generator | None = None
) -> npt.NDArray[Any]:
    """Return independent noise from `law`.

    Parameters
    ----------
    law
        The noise.
    shape
        Shape of the result.
    rng
        None draws with OpenDP; a generator simulates, which is **not for release**: see `release_values`.

    Returns
    -------
    numpy.ndarray
        int64 under a discrete law, float64 under a continuous one.

    Raises
    ------
    InputError
        As for `release_values`; and for a continuous law without a generator, since noise that is added to a value
        in floating point gives the value away however well it was drawn.

    Examples
    --------
    >>> draw_noise(TwoSidedGeometric(scale=2.0), 3, rng=np.random.default_rng(5)).dtype
    dtype('int64')
    """
    check_drawable(law)
    size = _checked_shape(shape)
    if sampler_name(rng) == "opendp" and not law.is_discrete:
        raise InputError(
            f"noise of the continuous law {law.name} must not be added to a value afterwards; pass the value through "
            "release_values(values, law), or give rng=numpy.random.default_rng(seed) to simulate"
        )
    if rng is None:
        return release_values(np.zeros(size, dtype=np.int64), law)
    return _simulate(law, size, rng)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    lengths = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    for length in lengths:
        whole = isinstance(length, int | np.integer) and not isinstance(length, bool)
        if not (whole and 0 <= length <= np.iinfo(np.int64).max):
            raise InputError(f"shape must be a whole number of at least 0 or a tuple of such, got {shown(shape)}")
    return tuple(map(int, lengths))


def check_drawable(law: NoiseLaw) -> None:
    """Raise unless noise from `law` can be drawn: to be asked before a book records the cost.

    Parameters
    ----------
    law
        The noise.

    Raises
    ------
    InputError
        If the law's parameter is so large that 64-bit integers would saturate, or doubles overflow.

    Examples
    --------
    >>> check_drawable(TwoSidedGeometric(scale=2.0))
    >>> check_drawable(TwoSidedGeometric(scale=1e17))
    Traceback (most recent call last):
    dpbayes.errors.InputError: two-sided-geometric noise of scale 1e+17 exceeds 2**52...
    """
    parameter = getattr(check_law(law), law.parameter)
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


def _measurement(law: NoiseLaw) -> "Measurement":
    """Return OpenDP's exact sampler of `law` over vectors."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian, make_laplace
    from opendp.metrics import l1_distance, l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    atoms = atom_domain(T="i64") if law.is_discrete else atom_domain(T="f64", nan=False)
    if isinstance(law, TwoSidedGeometric | Laplace):
        metric = l1_distance(T="i64" if law.is_discrete else "f64")
        return make_laplace(vector_domain(atoms), metric, scale=law.scale)
    return make_gaussian(vector_domain(atoms), l2_distance(T="f64"), scale=law.stddev)


def _simulate(law: NoiseLaw, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    match law:
        case TwoSidedGeometric():
            return _simulate_two_sided_geometric(law.scale, shape, rng)
        case Laplace():
            return rng.laplace(0.0, law.scale, shape)
        case DiscreteGaussian():
            return _simulate_discrete_gaussian(law.stddev, shape, rng)
        case Gaussian():
            return rng.normal(0.0, law.stddev, shape)


def _simulate_two_sided_geometric(
    scale: float, shape: tuple[int, ...], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    drawn = np.empty(int(np.prod(shape)), dtype=np.int64)
    fill = _fill_sparse if scale < _MOSTLY_ZERO else _fill_dense
    # Blocks that fit the cache: the arithmetic around the generator then costs next to nothing.
    for start in range(0, drawn.size, _BLOCK):
        fill(drawn[start : start + _BLOCK], scale, rng)
    return drawn.reshape(shape)


def _fill_dense(block: npt.NDArray[np.int64], scale: float, rng: np.random.Generator) -> None:
    r"""Two-sided geometric by inversion of one exponential E for the magnitude, one random bit for the sign.

    With q = exp(-1 / scale), P(|X| >= k) = 2 q^k / (1 + q) = P(E >= k / scale - c) for k >= 1, where
    c = log(2 / (1 + q)) = log(1 + tanh(1 / (2 scale))); hence |X| = floor(scale E + scale c).
    """
    magnitude = rng.standard_exponential(block.size)
    magnitude *= scale
    magnitude += scale * math.log1p(math.tanh(0.5 / scale))
    np.multiply(magnitude.astype(np.int64), _random_signs(block.size, rng), out=block)


def _fill_sparse(block: npt.NDArray[np.int64], scale: float, rng: np.random.Generator) -> None:
    """Two-sided geometric at small scales: most draws are 0, and given |X| >= 1 the excess |X| - 1 is geometric."""
    q = math.exp(-1.0 / max(scale, 1e-3))
    block[:] = 0
    hits = np.flatnonzero(rng.random(block.size) < 2.0 * q / (1.0 + q))
    excess = (scale * rng.standard_exponential(hits.size)).astype(np.int64)
    block[hits] = (excess + 1) * _random_signs(hits.size, rng)


def _random_signs(size: int, rng: np.random.Generator) -> npt.NDArray[np.int8]:
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8), count=size)
    signs = bits.view(np.int8)
    signs *= 2
    signs -= 1
    return signs


def _simulate_discrete_gaussian(
    stddev: float, shape: tuple[int, ...], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Rejection from the two-sided geometric law (Canonne, Kamath and Steinke 2020, Algorithm 3)."""
    wanted = int(np.prod(shape))
    drawn = np.empty(wanted, dtype=np.int64)
    # P(X != 0) is below exp(-500,000) at 1e-3 already; going lower would only overflow the squares below.
    stddev = max(stddev, 1e-3)
    scale = float(np.floor(stddev)) + 1.0
    have = 0
    while have < wanted:
        # Between 0.46 (tiny stddev) and 0.77 of the proposals survive; the surplus keeps the number of rounds small.
        proposals = _simulate_two_sided_geometric(scale, (2 * (wanted - have) + 16,), rng)
        gap = (np.abs(proposals) - stddev * (stddev / scale)) / stddev
        kept = proposals[rng.standard_exponential(proposals.shape) >= 0.5 * gap * gap][: wanted - have]
        drawn[have : have + kept.size] = kept
        have += kept.size
    return drawn.reshape(shape)


def _saturating_sum(values: npt.NDArray[np.int64], noise: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum that stops at the ends of int64, as OpenDP's does; NumPy's wraps around."""
    ends = np.iinfo(np.int64)
    room_up, room_down = ends.max - np.maximum(values, 0), ends.min - np.minimum(values, 0)
    return np.asarray(values + np.clip(noise, room_down, room_up))
