"""What a release says beside the prior: the sections on estimated shares and on how far each table moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpbayes.report.document import Column, Paragraph, Section, Table
from dpbayes.report.released import mean_magnitude, size_of

if TYPE_CHECKING:
    from dpbayes.privacy import Release

__all__ = ["estimate_section", "most_moved", "moved_section"]

_MOST_CELLS = 200

type Tables = Sequence[Mapping[str, Any]]


def most_moved(tables: Tables) -> str:
    """Say in a sentence which cell the release moved most.

    Parameters
    ----------
    tables
        ``moved`` of ``estimate.json`` (`dpbayes.runs.ide_moved`).
    """
    table, cell, before, released, after = _cells(tables)[0]
    return (
        f"The release moves {cell} (table {table}) most: {after:.1%} of the records by the estimate, {before:.1%} by "
        f"the prior, {released:.1%} as released."
    )


def estimate_section(tables: Tables, release: Release) -> Section:
    """Build the section with the shares of the released tables' cells.

    Parameters
    ----------
    tables
        ``moved`` of ``estimate.json`` (`dpbayes.runs.ide_moved`).
    release
        What was released.
    """
    cells = _cells(tables)
    noise = {table.label: mean_magnitude(table.noise) / size_of(release) for table in release.tables}
    columns = [
        Column("table"),
        Column("cell"),
        Column("prior", ".4f"),
        Column("released", ".4f"),
        Column("estimate", ".4f"),
        Column("mean size of the noise", ".4f", "noise"),
    ]
    rows = [(*entry, noise[entry[0]]) for entry in cells[:_MOST_CELLS]]
    shown = "" if len(rows) == len(cells) else f", the {len(rows)} most moved of {len(cells):,}"
    text = (
        "Shares of the records. The estimate is one distribution, so that its tables agree with one another and no "
        "share is negative; it is a point with a certificate and no interval."
    )
    if shown:
        text += " The other cells are in estimate.json."
    caption = f"Cells of the released tables{shown}"
    return Section("What the estimate says", [Paragraph(text), Table("estimated", caption, columns, rows)])


def moved_section(tables: Tables, release: Release) -> Section:
    """Build the section on how far each table moved from the prior.

    Parameters
    ----------
    tables
        ``moved`` of ``estimate.json`` (`dpbayes.runs.ide_moved`).
    release
        What was released.
    """
    noise = {
        table.label: table.counts.size * mean_magnitude(table.noise) / size_of(release) for table in release.tables
    }
    columns = [
        Column("table"),
        Column("moved from the prior", ".4f", "moved"),
        Column("released from the prior", ".4f", "released_from_prior"),
        Column("left to the released", ".4f", "left"),
        Column("expected of noise alone", ".4f", "noise"),
    ]
    entries = sorted(tables, key=lambda entry: -entry["moved"])
    rows = [(e["table"], e["moved"], e["released_from_prior"], e["left"], noise[e["table"]]) for e in entries]
    caption = "L1 distances of each table's probabilities, the most moved first"
    text = (
        "A released table differs from the prior by what truly changed and by its noise: what the column 'released "
        "from the prior' has beyond 'expected of noise alone' cannot, on average, be noise. The estimate moves by what "
        "the noise law lets it believe. There is no width to split by source."
    )
    return Section("Which marginals moved", [Paragraph(text), Table("moved", caption, columns, rows)])


def _cells(tables: Tables) -> list[tuple[str, str, float, float, float]]:
    """Return table, cell, and its shares by prior, release and estimate; those furthest from the prior first."""
    cells = [
        (entry["table"], *cell)
        for entry in tables
        for cell in zip(entry["cells"], entry["prior"], entry["released"], entry["estimate"], strict=True)
    ]
    return sorted(cells, key=lambda cell: -abs(cell[4] - cell[2]))
