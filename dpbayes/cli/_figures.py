"""Where a command may write its figure: asked before the work, not after it."""

from __future__ import annotations

from pathlib import Path

from dpbayes.errors import InputError

__all__ = ["check_figure"]

_SUFFIXES = (".png", ".svg", ".pdf")


def check_figure(path: Path | None) -> None:
    """Check that ``--plot`` names a file that can be written.

    Raises
    ------
    InputError
        If the file's name ends otherwise, or its folder is not there.

    Examples
    --------
    >>> check_figure(Path("noise.xyz"))
    Traceback (most recent call last):
    dpbayes.errors.InputError: --plot needs a file ending in .png, .svg, .pdf, got noise.xyz
    """
    if path is None:
        return
    if path.suffix not in _SUFFIXES:
        raise InputError(f"--plot needs a file ending in {', '.join(_SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}; create it first")
