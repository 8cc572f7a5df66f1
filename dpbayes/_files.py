"""Paths that are paths, and writing a file so that no reader ever meets half of it."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpbayes._arguments import shown
from dpbayes.errors import InputError


def file_path(path: Any) -> Path:
    """Return the path of a file, or raise `InputError` where no path is given."""
    if isinstance(path, str | os.PathLike) and "\0" not in str(path):
        return Path(path)
    raise InputError(f"path must be a str or a Path of a file, got {shown(path)}")


def input_file(path: Any) -> Path:
    """Return the path of a file to read, or raise `InputError` where it is a folder, or a pipe that never ends."""
    path = file_path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no file but a folder, a pipe or a device; give the path of a file")
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file (UTF-8), whole or not at all; `OSError` if it cannot be written, as on a full disk."""
    return write_whole(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def write_whole(path: str | Path, write: Callable[[Path], Any]) -> Path:
    """Let a function write a scratch file that then replaces `path`: readers meet the former file or the new one."""
    path = Path(path)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write(scratch)
        return scratch.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # what fails in the middle of writing names no file
        raise
    finally:
        scratch.unlink(missing_ok=True)
