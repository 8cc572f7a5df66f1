"""Keeping what a data engine says of confidential records out of error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpbayes.errors import DPBayesError, InputError, UnreadableDataError

__all__ = ["UNREADABLE", "as_frame", "hide_values"]

UNREADABLE = (
    "the data could not be read by their engine: the source is damaged, or a value does not fit its column's type; "
    "mend the source, or read such columns as text (what the engine says is not shown: it may quote records)"
)
"""What to say of a frame whose file, if it has one, is not known."""


def as_frame(frame: Any) -> Any:
    """Return a data frame as narwhals reads it, or raise `InputError` where it is none.

    Examples
    --------
    >>> as_frame([[1, 2]])
    Traceback (most recent call last):
    dpbayes.errors.InputError: the records must be a data frame (Polars, pandas, PyArrow, DuckDB, Spark), got list
    """
    import narwhals as nw

    try:
        return nw.from_native(frame)
    except nw.exceptions.DuplicateError:
        raise InputError("the records name a column twice; give each column a name of its own") from None
    except TypeError:
        raise InputError(
            f"the records must be a data frame (Polars, pandas, PyArrow, DuckDB, Spark), got {type(frame).__name__}"
        ) from None


@contextmanager
def hide_values(message: str) -> Iterator[None]:
    """Raise `UnreadableDataError` with this message in place of what a data engine raises.

    Polars, DuckDB, Spark and Arrow quote what they cannot parse: a value, or all that is left of a file after an open
    quote. Put this around every place where confidential records are read, lazy ones where they are collected. The
    errors of dpbayes pass, but an `UnreadableDataError` from deeper down gets this message, which knows the file.

    Parameters
    ----------
    message
        What is wrong and what to do, without any value.

    Examples
    --------
    >>> with hide_values("records.csv does not read as CSV; mend the file"):
    ...     int("SECRET")
    Traceback (most recent call last):
    dpbayes.errors.UnreadableDataError: records.csv does not read as CSV; mend the file
    """
    try:
        yield
    except UnreadableDataError:
        raise UnreadableDataError(message) from None
    except (DPBayesError, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception:
        raise UnreadableDataError(message) from None
