"""Paths that are paths, and writing a file so that no reader ever meets half of it."""

import os
from pathlib import Path
from typing import Any

from dpbayes._arguments import shown
from dpbayes.errors import InputError

__all__ = ["file_path", "write_text"]


def file_path(path: Any) -> Path:
    """Return the path of a file, or raise `InputError` where no path is given.

    Examples
    --------
    >>> file_path(3)
    Traceback (most recent call last):
    dpbayes.errors.InputError: path must be a str or a Path of a file, got 3
    """
    if isinstance(path, str | os.PathLike) and "\0" not in str(path):
        return Path(path)
    raise InputError(f"path must be a str or a Path of a file, got {shown(path)}")


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file (UTF-8) so that it is either the former one or the whole new one.

    Parameters
    ----------
    path
        File to write; an existing one is replaced only once the new one is complete.
    text
        What it is to hold.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        If the text cannot be written, for example on a full disk. The former file stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/note.txt", "whole").read_text()
    'whole'
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        return temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
