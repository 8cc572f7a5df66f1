"""What the command line says of an interrupt, and of an unforeseen error: without text that may quote records."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

__all__ = ["SHOW", "interruptible", "unexpected"]

EXIT_INTERRUPTED = 130  # as of a process that SIGINT ended

SHOW = "DPBAYES_TRACEBACK"
"""Environment variable that asks for the full traceback."""

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]


@contextmanager
def interruptible() -> Iterator[None]:
    """Answer an interrupt (Ctrl-C) with a sentence and an exit code of its own; the block must be able to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        said = str(stop) or "interrupted; the same command goes on"
        typer.secho(f"dpbayes: {said}", err=True, fg=typer.colors.RED)
        raise typer.Exit(EXIT_INTERRUPTED) from None


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
