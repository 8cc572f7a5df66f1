"""The tables of `dpbayes ledger show`: readable in 80 columns, nothing cut off."""

import datetime
import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger, Reservation

__all__ = ["budget_table", "release_table"]


def budget_table(book: "Ledger") -> Table:
    """Return the total, what is spent and what is left."""
    terms, spent, left = book.terms, book.spent(), book.remaining()
    decides = {"basic": "plain addition", "tight": "tight composition"}[terms.composition]
    title = Text(f"{terms.dataset}: {terms.adjacency}, {decides} decides, opened {_when(terms.created)} UTC")
    table = Table("", "epsilon", "delta", title=title, title_justify="left")
    table.add_row("total", repr(terms.epsilon), repr(terms.delta))
    table.add_row("spent, plain addition", f"{spent.basic_epsilon:.6g}", f"{spent.basic_delta:.6g}")
    table.add_row("spent, tight", f"{spent.tight_epsilon:.6g}", f"{terms.delta:.6g}")
    table.add_row("remaining", f"{left.epsilon:.6g}", f"{left.delta:.6g}")
    table.add_row("entries", str(spent.releases), "")
    table.add_row("unconfirmed", str(spent.unconfirmed), "")
    return table


def release_table(book: "Ledger") -> Table:
    """Return one line a release: the entries that were confirmed together for one purpose, and their sum."""
    groups = [list(group) for _, group in itertools.groupby(book.entries(), key=_release)]
    with_delta = any(entry.cost.plain[1] for group in groups for entry in group)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # What a reader compares stays on one line; texts fold.
    table.add_column("entries", no_wrap=True)
    table.add_column("UTC", width=10, overflow="fold")
    for name in ("queries", "epsilon", "delta") if with_delta else ("queries", "epsilon"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("purpose, noise", min_width=20, overflow="fold")
    for group in groups:
        # Text, not str: a purpose in square brackets is no markup.
        table.add_row(*map(Text, _cells(group, with_delta=with_delta)))
    return table


def _release(entry: "Reservation") -> tuple[str | None, str, str]:
    """Return what neighbouring entries of one release have in common."""
    return entry.digest, entry.mechanism, entry.purpose


def _cells(group: Sequence["Reservation"], *, with_delta: bool) -> list[str]:
    first, last = group[0], group[-1]
    cells = [
        str(first.entry) if first is last else f"{first.entry}–{last.entry}",
        _when(first.time),
        str(sum(entry.cost.count for entry in group)),
        _epsilon(group),
    ]
    if with_delta:
        cells.append(f"{float(sum(entry.cost.plain[1] for entry in group)):.4g}")
    return [
        *cells,
        "\n".join([first.purpose, _law(group), *([] if first.digest else ["unconfirmed, counts as spent"])]),
    ]


def _when(time: str) -> str:
    return datetime.datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M:%S")


def _epsilon(group: Sequence["Reservation"]) -> str:
    """Plain sum of the epsilons, or a dash where a law has none."""
    parts = [entry.cost.plain[0] for entry in group]
    known = [part for part in parts if part is not None]
    return f"{float(sum(known, Fraction(0))):.4g}" if len(known) == len(parts) else "–"


def _law(group: Sequence["Reservation"]) -> str:
    """Law, parameters and sensitivities of a group; the mechanism too where the law does not say it."""
    lines = []
    for name, same in itertools.groupby(group, key=lambda entry: entry.cost.law.name):
        entries = list(same)
        words = [name] if name == entries[0].mechanism else [f"{entries[0].mechanism} ({name})"]
        for key in ("scale", "stddev"):
            if values := [value for entry in entries if (value := entry.cost.law.to_dict().get(key)) is not None]:
                words.append(f"{key} {_span(values)}")
        if values := [entry.cost.sensitivity for entry in entries if entry.cost.sensitivity is not None]:
            words.append(f"sensitivity {_span(values)}")
        lines.append(", ".join(words))
    return "\n".join(lines)


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"
