"""Adding noise, and choosing the best k with noise: exactly for a release, fast for a simulation.

A release passes its values *through* a sampler of OpenDP: exact discrete sampling from the operating system's
generator; a continuous law is drawn on the lattice of spacing 2^-1074 and only then rounded, so that which doubles can
appear does not depend on the value. `value + rng.laplace()` gives the value away (Mironov 2012): NumPy generators serve
simulation only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Ints, as_array, positive_finite, shown, whole_number
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
        Confidential numbers of any shape: integers of at most 64 bits, or finite floats under a continuous law.
    law
        The noise; its parameter is in the unit of `values`.
    rng
        None, the default, draws with OpenDP and is what a release must use. A generator simulates: **not for release**.

    Returns
    -------
    numpy.ndarray
        int64 under a discrete law, float64 under a continuous one; the shape of `values`. A discrete result saturates
        at the ends of int64: post-processing, which costs no privacy, and improbable for counts below 2^62.

    Raises
    ------
    InputError
        If an argument is wrong or the law cannot be drawn (`check_drawable`). No message shows a value.

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
    given = f"{law.name} noise of {law.parameter} {check_law(law).spread!r} exceeds"
    if law.is_discrete and law.spread > _LARGEST_DISCRETE:
        raise InputError(f"{given} 2**52 and would saturate 64-bit integers; use the continuous law, or a larger cost")
    if law.spread > _LARGEST_CONTINUOUS:
        raise InputError(f"{given} {_LARGEST_CONTINUOUS:g} and would overflow doubles; use a larger privacy cost")


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


def _saturating_sum(values: Ints, noise: Ints) -> Ints:
    """Sum that stops at the ends of int64, as OpenDP's does; NumPy's wraps around."""
    ends = np.iinfo(np.int64)
    room_up, room_down = ends.max - np.maximum(values, 0), ends.min - np.minimum(values, 0)
    return np.asarray(values + np.clip(noise, room_down, room_up))


# --- the noisy top k -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    r"""What a noisy top-k selection cost: k rounds of the exponential mechanism, one after another."""

    n_candidates: int
    n_chosen: int
    scale: float
    sensitivity: float

    def __post_init__(self) -> None:
        for name in ("n_candidates", "n_chosen"):
            whole_number(getattr(self, name), name)
        if self.n_chosen > self.n_candidates:
            raise InputError(f"n_chosen must be at most the {self.n_candidates} candidates, got {self.n_chosen}")
        for name in ("scale", "sensitivity"):
            object.__setattr__(self, name, positive_finite(getattr(self, name), name, remedy="see Selection"))

    @property
    def epsilon(self) -> float:
        """Pure privacy-loss parameter of all rounds."""
        return self.n_chosen * self.epsilon_of_one

    @property
    def epsilon_of_one(self) -> float:
        """Pure privacy-loss parameter of one round."""
        return 2.0 * self.sensitivity / self.scale

    @property
    def rho(self) -> float:
        """Zero-concentrated DP parameter of all rounds."""
        return self.n_chosen * self.sensitivity**2 / (2.0 * self.scale**2)


def selection_within(
    n_candidates: int, n_chosen: int, *, sensitivity: float, rho: float | None = None, epsilon: float | None = None
) -> Selection:
    """Return the selection of least noise that costs at most `rho`, or at most `epsilon`."""
    if rho is not None:
        scale = sensitivity * float(np.sqrt(n_chosen / (2.0 * rho)))
    else:
        assert epsilon is not None
        scale = 2.0 * sensitivity * n_chosen / epsilon
    return Selection(n_candidates, n_chosen, scale * (1.0 + 1e-12), sensitivity)  # roundings must not cost more


def noisy_top_k(
    scores: Sequence[int] | Ints, selection: Selection, *, pure: bool, rng: np.random.Generator | None
) -> list[int]:
    """Return the places of the noisy top k; `rng` None draws with OpenDP, a generator simulates."""
    values = np.asarray(scores, dtype=np.int64)
    if len(values) != selection.n_candidates:
        raise InputError(f"the selection is over {selection.n_candidates} candidates, got {len(values)} scores")
    if rng is not None:
        noisy = values + rng.gumbel(scale=selection.scale, size=len(values))
        return np.argsort(-noisy)[: selection.n_chosen].tolist()
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_top_k
    from opendp.measures import max_divergence, zero_concentrated_divergence
    from opendp.metrics import linf_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    measure = max_divergence() if pure else zero_concentrated_divergence()
    domain = vector_domain(atom_domain(T="i64"))
    drawn = make_noisy_top_k(domain, linf_distance(T="i64"), measure, k=selection.n_chosen, scale=selection.scale)
    return [int(place) for place in drawn(values.tolist())]
