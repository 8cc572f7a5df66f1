"""Tables that commands print: they fit the terminal."""

import itertools
import re
import shutil
import textwrap
from collections.abc import Sequence

import typer

_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?|–|infinite|")
_NARROWEST = 10


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table: numbers stand right, long texts fold at words, nothing is cut."""
    columns = [[cell.split("\n") for cell in column] for column in zip(head, *rows, strict=True)]
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    terminal = shutil.get_terminal_size((100, 24)).columns
    right = [all(_NUMBER.fullmatch(row[place]) for row in rows) for place in range(len(head))]
    texts = [place for place, number in enumerate(right) if not number]
    while sum(widths) + 2 * (len(widths) - 1) > terminal and texts:
        widest = max(texts, key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    lines = textwrap.wrap(title, terminal)
    for number, row in enumerate([head, *rows]):
        folded = [
            [part for line in cell.split("\n") for part in textwrap.wrap(line, width) or [""]]
            for cell, width in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*folded, fillvalue=""):
            cells = [p.rjust(w) if r else p.ljust(w) for p, w, r in zip(parts, widths, right, strict=True)]
            lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("─" * (sum(widths) + 2 * (len(widths) - 1)))
    typer.echo("\n".join(lines))
