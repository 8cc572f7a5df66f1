"""Keeping what a data engine says of confidential records out of error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpbayes.errors import DPBayesError, InputError, UnreadableDataError

if TYPE_CHECKING:
    import polars as pl

    from dpbayes.data.domain import Domain

UNREADABLE = (
    "the data could not be read by their engine: the source is damaged, or a value does not fit its column's type; "
    "correct the source, or read such columns as text (what the engine says is not shown: it may quote records)"
)
"""What to say of a frame whose file, if it has one, is not known."""


def as_frame(frame: Any) -> Any:
    """Return a data frame as narwhals reads it, or raise `InputError` where it is none."""
    import narwhals as nw

    try:
        read = nw.from_native(frame)
        if read.implementation.is_pyarrow():  # whose windows do not bound the rows of a unit; Polars shares its memory
            import polars as pl

            read = nw.from_native(pl.from_arrow(frame))
        return read
    except nw.exceptions.DuplicateError:
        raise InputError("the records name a column twice; give each column a name of its own") from None
    except TypeError:
        raise InputError(
            f"the records must be a data frame (Polars, pandas, PyArrow, DuckDB, Spark), got {type(frame).__name__}"
        ) from None


@contextmanager
def hide_values(message: str) -> Iterator[None]:
    """Raise `UnreadableDataError` with this message in place of what a data engine raises."""
    try:
        yield
    except UnreadableDataError:
        raise UnreadableDataError(message) from None
    except (DPBayesError, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception:
        raise UnreadableDataError(message) from None


def with_labels(frame: pl.DataFrame, domain: Domain) -> pl.DataFrame:
    """Return a frame with labels in place of levels, in the columns of attributes that have some."""
    import polars as pl

    columns = [
        pl.col(attribute.name).replace_strict(dict(zip(attribute.levels, attribute.words, strict=True)))
        for attribute in domain
        if attribute.labels and attribute.name in frame.columns
    ]
    return frame.with_columns(columns)
