"""Checks of arguments that every room shares, and how a message shows a value that was refused."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from dpbayes.errors import InputError

__all__ = ["as_array", "generator", "instance", "ordered", "shown"]

_LONGEST = 300


def shown(value: Any) -> str:
    """Return the repr of a refused value, cut where it is long, for a message.

    Python refuses to print an integer of more than 4,300 digits; it is described instead.

    Examples
    --------
    >>> shown("abc"), shown(-(10**5000))
    ("'abc'", 'a value of type int with too many digits to print')
    """
    try:
        text = repr(value)
    except ValueError:
        return f"a value of type {type(value).__name__} with too many digits to print"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def as_array(values: Any, name: str) -> np.ndarray:
    """Return `values` as an array, or raise `InputError` if their lengths do not fit together.

    Examples
    --------
    >>> as_array([[1], [2, 3]], "counts")
    Traceback (most recent call last):
    dpbayes.errors.InputError: counts must be one array of numbers, got rows of different lengths
    """
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be one array of numbers, got rows of different lengths") from None


def instance(value: Any, kind: type, name: str, *, remedy: str) -> Any:
    """Return `value` if it is of a kind, or raise `InputError`; what it holds may be confidential and is not shown.

    Examples
    --------
    >>> instance(2, str, "formula", remedy="such as 'y ~ x'")
    Traceback (most recent call last):
    dpbayes.errors.InputError: formula must be a str, got int; such as 'y ~ x'
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise InputError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}; {remedy}")
    return value


def ordered(values: Any, name: str, *, remedy: str, kind: type | None = None) -> tuple[Any, ...]:
    """Return several values as a tuple, or raise `InputError` if they are one text or one value, or have no order.

    With a kind, each of them must be of it.

    Examples
    --------
    >>> ordered(iter(["age", "sex"]), "names", remedy="give a list of names")
    ('age', 'sex')
    >>> ordered("age", "names", remedy="give a list of names")
    Traceback (most recent call last):
    dpbayes.errors.InputError: names must be a sequence, got str; give a list of names
    """
    if isinstance(values, str | bytes | set | frozenset) or not isinstance(values, Iterable) or _is_scalar(values):
        raise InputError(f"{name} must be a sequence, got {type(values).__name__}; {remedy}")
    given = tuple(values)
    return given if kind is None else tuple(instance(value, kind, f"each of {name}", remedy=remedy) for value in given)


def generator(random_state: Any, name: str) -> np.random.Generator:
    """Return the generator of a seed: a whole number of at least 0, None for a fresh one, or a generator itself.

    Examples
    --------
    >>> bool(generator(1, "random_state").random() == np.random.default_rng(1).random())
    True
    """
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if random_state is None or isinstance(random_state, np.random.Generator) or (whole and random_state >= 0):
        return np.random.default_rng(random_state)
    raise InputError(
        f"{name} must be a whole number of at least 0, a numpy.random.Generator or None, got {shown(random_state)}"
    )


def _is_scalar(values: Any) -> bool:
    # An array of no dimensions has __iter__ and refuses to be iterated.
    return getattr(values, "ndim", 1) == 0
