"""Where a key stands in a TOML file, so that an error can name the line."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["line_of"]

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def line_of(text: str, location: Sequence[str | int]) -> int | None:
    r"""Return the 1-based line on which a key, or the nearest table around it, stands.

    Parameters
    ----------
    text
        A TOML document that parses.
    location
        Keys from the root to the value; list positions are ignored.

    Returns
    -------
    int or None
        The line, or None if not even the outermost table is in the text (a missing section, say).

    Examples
    --------
    >>> line_of("title = 'a'\n[privacy]\nepsilon = -1.0\n", ("privacy", "epsilon"))
    3
    >>> line_of("[privacy]\n", ("privacy", "epsilon"))
    1
    """
    keys = tuple(key for key in location if isinstance(key, str))
    lines = _index(text)
    for end in range(len(keys), 0, -1):
        if keys[:end] in lines:
            return lines[keys[:end]]
    return None


def _index(text: str) -> dict[tuple[str, ...], int]:
    """Return the first line of every table and key."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _split(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault(table + _split(key[1]), number)
    return found


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.\s]+", dotted))
