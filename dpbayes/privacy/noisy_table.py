"""Released tables and totals: values with the noise law they carry and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import as_array, instance, positive_finite
from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.privacy.noise import Laplace, NoiseLaw, TwoSidedGeometric, check_law

__all__ = ["NoisyTable", "NoisyTotal"]

_LARGEST = 2.0**62
# A stated number may fall short of the exact one by this share of it: a few roundings of doubles.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A released table: exact counts plus independent noise, and what it cost.

    Parameters
    ----------
    domain
        The table's attributes, in the order of its axes.
    counts
        Released values of shape ``domain.shape``: whole numbers under a discrete noise law. They may be negative. A
        read-only copy is kept (int64 for a discrete law, float64 otherwise).
    noise
        The law of the noise added to every count.
    sensitivity
        Sensitivity of the table under the release's adjacency, in counts: L1 for two-sided geometric and Laplace
        noise, L2 for Gaussian noise.
    epsilon
        Privacy-loss parameter of this table alone, at least sensitivity / scale up to 1e-12 of it. More than that is a
        weaker claim that still holds, so it is allowed. None where it is not stated, and always under Gaussian noise,
        whose cost is a curve, not a number.

    Raises
    ------
    InputError
        If shape, values, sensitivity or epsilon contradict the domain or the law.

    Examples
    --------
    >>> from dpbayes.privacy.noise import TwoSidedGeometric
    >>> table = NoisyTable(Domain.from_levels({"sex": ("f", "m")}), [51, -2], TwoSidedGeometric(2.0), 1.0, 0.5)
    >>> table.label, table.counts.tolist()
    ('sex', [51, -2])
    """

    domain: Domain
    counts: npt.NDArray[Any]
    noise: NoiseLaw
    sensitivity: float
    epsilon: float | None

    def __post_init__(self) -> None:
        check_law(self.noise)
        domain = instance(self.domain, Domain, "domain", remedy="Domain.from_levels makes one")
        values = _checked_values(self.counts, domain.shape, self.noise, self.label)
        object.__setattr__(self, "counts", values)
        _set_cost(self, f"table {self.label}")

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes, in the order of the axes."""
        return self.domain.names

    @property
    def label(self) -> str:
        """The attributes as one line of text."""
        return " x ".join(self.domain.names)


@dataclass(frozen=True)
class NoisyTotal:
    """A released number of records, for when the size of the data is itself confidential.

    Parameters
    ----------
    value
        The released number; it may be negative.
    noise
        The law of its noise.
    sensitivity
        Sensitivity of the number of records (1 under add-remove).
    epsilon
        Privacy-loss parameter of this number alone, as in `NoisyTable`.

    Raises
    ------
    InputError
        If the value, the sensitivity or epsilon contradict the law.

    Examples
    --------
    >>> from dpbayes.privacy.noise import TwoSidedGeometric
    >>> NoisyTotal(998, TwoSidedGeometric(2.0), 1.0, 0.5).value
    998
    """

    value: float
    noise: NoiseLaw
    sensitivity: float
    epsilon: float | None

    def __post_init__(self) -> None:
        check_law(self.noise)
        _set_cost(self, "the number of records")
        value = _checked_values(self.value, (), self.noise, "of the number of records")
        object.__setattr__(self, "value", value.item())


def falls_short(stated: float, exact: float) -> bool:
    """Whether a stated number lies below the exact one by more than roundings of doubles.

    Examples
    --------
    >>> falls_short(0.1 + 0.2, 0.3), falls_short(0.2, 0.3)
    (False, True)
    """
    return stated < exact * (1.0 - _ROUNDING)


def _set_cost(part: NoisyTable | NoisyTotal, what: str) -> None:
    """Keep sensitivity and epsilon as numbers of Python, unless they are none or the law does not give them."""
    for name, remedy in (("sensitivity", "it is what one record changes"), ("epsilon", "None leaves it unstated")):
        value = getattr(part, name)
        if not (value is None and name == "epsilon"):
            number = positive_finite(value, f"{name} of {what}", remedy=remedy)
            # The digest tells 1 from 1.0, so that what Python can write as JSON stays as it is.
            object.__setattr__(part, name, value if isinstance(value, int | float) else number)
    _check_cost(part.noise, part.sensitivity, part.epsilon, what)


def _check_cost(noise: NoiseLaw, sensitivity: float, epsilon: float | None, what: str) -> None:
    """Refuse an epsilon that the law does not give."""
    if epsilon is None:
        return
    if not isinstance(noise, TwoSidedGeometric | Laplace):
        raise InputError(
            f"epsilon of {what} must be None under {noise}, whose cost is a curve and no number, got {epsilon!r}; "
            "noise.epsilon(delta=, sensitivity=) gives a point of it"
        )
    if falls_short(epsilon, exact := noise.epsilon(sensitivity=sensitivity)):
        raise InputError(
            f"epsilon of {what} must be at least sensitivity / scale = {exact!r} under {noise} with sensitivity "
            f"{sensitivity!r}, got {epsilon!r}; state noise.epsilon(sensitivity=), or use the noise of "
            "from_epsilon(epsilon, sensitivity=)"
        )


def _checked_values(values: Any, shape: tuple[int, ...], noise: NoiseLaw, label: str) -> npt.NDArray[Any]:
    """Return released values as a read-only array of the type that the noise law gives."""
    array = as_array(values, f"table {label}")
    if array.shape != shape:
        raise InputError(f"table {label} has shape {array.shape}, its domain {shape}")
    if array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
        raise InputError(f"table {label} holds a value that is not a finite number")
    if noise.is_discrete and not np.all(array == np.floor(array)):
        raise InputError(f"table {label} holds a fraction, but its noise {noise} is on the integers")
    if noise.is_discrete and np.any(np.abs(array.astype(np.float64)) > _LARGEST):
        raise InputError(f"table {label} holds a count beyond {_LARGEST:g}, which no table of records reaches")
    array = array.astype(np.int64 if noise.is_discrete else np.float64)
    array.setflags(write=False)
    return array
