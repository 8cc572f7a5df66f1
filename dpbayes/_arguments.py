"""Arguments that all packages share: the types of arrays, checks, and how a message shows a value that was refused."""

import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._lazy import xr
from dpbayes.errors import InputError

type Floats = npt.NDArray[np.float64]
type Ints = npt.NDArray[np.int64]

_LONGEST = 300
LONGEST_NAME = 1_000  # characters of a column's name or of a level, which messages and pages show whole


def shown(value: Any) -> str:
    """Return the repr of a refused value, cut where it is long, for a message.

    Python refuses to print an integer of more than 4,300 digits; it is described instead.
    """
    try:
        text = repr(value)
    except ValueError:
        return f"a value of type {type(value).__name__} with too many digits to print"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _refused(name: str, need: str, value: Any, remedy: str = "") -> InputError:
    """Return the error that says what a value must be."""
    return InputError(f"{name} must be {need}, got {shown(value)}{remedy and '; '}{remedy}")


def check_memory(needed: float, what: str, *, remedy: str) -> None:
    """Refuse what takes more bytes than this machine's memory has."""
    held = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > held:
        raise InputError(
            f"{what} would take {needed / 2**30:,.1f} GB, and this machine has {held / 2**30:,.1f}; {remedy}"
        )


def as_array(values: Any, name: str) -> np.ndarray:
    """Return `values` as an array, or raise `InputError` if their lengths do not fit together."""
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be one array of numbers, got rows of different lengths") from None
    except TypeError:
        raise InputError(f"{name} must be one array of numbers, got {type(values).__name__}") from None


def instance(value: Any, kind: type, name: str, *, remedy: str) -> Any:
    """Return `value` if it is of a kind, or raise `InputError`; what it holds may be confidential and is not shown."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise InputError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}; {remedy}")
    return value


def function(value: Any, name: str, *, remedy: str) -> Any:
    """Return `value` if it can be called, or raise `InputError`."""
    if not callable(value):
        raise _refused(name, "a function", value, remedy)
    return value


def ordered(values: Any, name: str, *, remedy: str, kind: type | None = None) -> tuple[Any, ...]:
    """Return several values as a tuple, or raise `InputError` if they are one text or one value, or have no order.

    With a kind, each of them must be of it.
    """
    # An array of no dimensions has __iter__ and refuses to be iterated.
    is_one = isinstance(values, str | bytes | set | frozenset) or getattr(values, "ndim", 1) == 0
    if is_one or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a sequence, got {type(values).__name__}; {remedy}")
    given = tuple(values)
    return given if kind is None else tuple(instance(value, kind, f"each of {name}", remedy=remedy) for value in given)


def positive_finite(value: Any, name: str, *, remedy: str) -> float:
    """Return `value` as a float, or say why it cannot be a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, (Real, Integral)):
        raise _refused(name, "a real number", value, remedy)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise _refused(name, "positive and finite", value, remedy)
    return number


def probability_below_one(value: Any, name: str, *, remedy: str) -> float:
    """Return `value` as a float strictly between 0 and 1, or raise `InputError`."""
    number = positive_finite(value, name, remedy=remedy)
    if number >= 1:
        raise _refused(name, "below 1", value, remedy)
    return number


def whole_number(value: Any, name: str, *, low: int = 1, high: int | None = None, remedy: str = "") -> int:
    """Return `value` as an int from `low` to `high`, or raise `InputError`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        span = f"of at least {low}" if high is None else f"from {low} to {'2^53' if high == 2**53 else f'{high:,}'}"
        raise _refused(name, f"a whole number {span}", value, remedy)
    return int(value)


def one_of(value: Any, options: Iterable[str], name: str, *, remedy: str = "") -> Any:
    """Return `value` if it is one of some texts, or raise `InputError`."""
    known = list(options)
    if not isinstance(value, str) or value not in known:
        words = " or ".join([", ".join(map(repr, known[:-1])), repr(known[-1])])
        raise _refused(name, words, value, remedy)
    return value


def strictly_between(value: Any, name: str, low: float, high: float, *, remedy: str = "") -> float:
    """Return `value` as a float above `low` and below `high`, or raise `InputError`."""
    result = number(value, name)
    if not low < result < high:
        said = f"{name} must lie strictly between {low} and {high}, got {shown(value)}"
        raise InputError(f"{said}{remedy and '; '}{remedy}")
    return result


def real_numbers(value: Any, name: str) -> np.ndarray:
    """Return `value` as an array of doubles, so that no later step computes in a narrower type."""
    try:
        # NumPy would read "0.7" as 0.7 and True as 1.
        if np.asarray(value).dtype.kind not in "USbc":
            return np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        pass
    raise _refused(name, "real and within the range of doubles", value, "give it as plain numbers")


def number(value: Any, name: str) -> float:
    """Return `value` as a float that is not NaN, or raise `InputError`."""
    result = real_numbers(value, name)
    if result.ndim or np.isnan(result):
        raise _refused(name, "a number", value)
    return float(result)


def finite(value: Any, name: str, *, remedy: str = "") -> float:
    """Return `value` as a finite float, or raise `InputError`."""
    try:
        result = number(value, name)
    except InputError:
        result = math.nan
    if not math.isfinite(result):
        raise _refused(name, "a finite number", value, remedy)
    return result


def generator(random_state: Any, name: str) -> np.random.Generator:
    """Return the generator of a seed: a whole number of at least 0, None for a fresh one, or a generator itself."""
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if random_state is None or isinstance(random_state, np.random.Generator) or (whole and random_state >= 0):
        return np.random.default_rng(random_state)
    raise _refused(name, "a whole number of at least 0, a numpy.random.Generator or None", random_state)


def given_trace(trace: Any, *groups: str) -> "xr.DataTree":
    """Return a trace that has some groups, or raise `InputError`."""
    instance(trace, xr.DataTree, "trace", remedy="inference.sample makes one")
    for group in groups:
        if group not in trace.children:
            raise InputError(f"the trace has no {group} group; sample the model first")
    return trace
