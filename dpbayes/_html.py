"""What a notebook shows of a noun: a small table, every text escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table; None is a dash, and without a head there is no row of headings."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in head)] if head else []
    lines += ["".join(f"<td>{escape('–' if cell is None else str(cell))}</td>" for cell in row) for row in rows]
    return f"<table><caption>{escape(caption)}</caption>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
