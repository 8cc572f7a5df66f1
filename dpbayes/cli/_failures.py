"""What the command line says of an error that nobody foresaw, without the text that may quote confidential records."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

__all__ = ["SHOW", "unexpected"]

SHOW = "DPBAYES_TRACEBACK"
"""Environment variable that asks for the full traceback."""

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]


def unexpected(error: BaseException) -> str:
    """Say which kind of error it was and where it arose: in dpbayes, or in the user's own model.

    Examples
    --------
    >>> try:
    ...     int("SECRET")
    ... except ValueError as error:
    ...     print(unexpected(error))
    unexpected ValueError; its text is not shown, as it may quote confidential records. Set DPBAYES_TRACEBACK=1 to see
    all of it, where only those may look who may see the records
    """
    return (
        f"unexpected {type(error).__name__}{_place(error)}; its text is not shown, as it may quote confidential "
        f"records. Set {SHOW}=1 to see all of it, where only those may look who may see the records"
    )


def _place(error: BaseException) -> str:
    """Return the innermost line outside libraries; a file's name and a line number are no data."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(_PACKAGE):
            return f" at {path.relative_to(_PACKAGE.parent).as_posix()}:{frame.lineno}"
        if path.is_file() and not any(path.resolve().is_relative_to(library) for library in _LIBRARIES):
            return f" at {path}:{frame.lineno}"
    return ""
