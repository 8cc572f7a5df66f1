"""What a report is made of. Systems build a `Document`; one renderer turns it into a page and a file of facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dpbayes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

    from dpbayes.report.privacy_terms import PrivacyTerms

__all__ = ["Callout", "Column", "Document", "Fact", "Figure", "Paragraph", "Section", "Table"]

type Value = str | int | float | bool | None


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Callout:
    """A boxed statement with a tone.

    Parameters
    ----------
    tone
        ``"good"``, ``"warning"``, ``"bad"`` or ``"note"``.
    title
        A few words.
    lines
        What there is to say, a line each.
    """

    tone: Literal["good", "warning", "bad", "note"]
    title: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """A table's column.

    Parameters
    ----------
    name
        Heading.
    format
        Format specification for numbers (``".4f"``, ``",d"``); text is shown as it is.
    key
        Name in ``facts.json``; the heading by default.
    """

    name: str
    format: str = ""
    key: str = ""

    def show(self, value: Value) -> str:
        """Return a value as the page prints it.

        Examples
        --------
        >>> Column("count", ",d").show(1234567)
        '1,234,567'
        """
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float) and self.format:
            return format(value, self.format)
        return str(value)


@dataclass(frozen=True)
class Table:
    """A table of raw values; the page rounds them, ``facts.json`` does not.

    Parameters
    ----------
    name
        Key in ``facts.json``; unique in the document.
    caption
        What the table shows, with units.
    columns
        Columns in order.
    rows
        One sequence of values a row.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(f"table {self.name!r} has {len(self.columns)} columns and a row of {len(row)} values")

    def facts(self) -> list[dict[str, Value]]:
        """Return the rows as records."""
        keys = [column.key or column.name for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def about(self) -> dict[str, Any]:
        """Return what the records of `facts` do not say: the caption with its units, and the columns' formats."""
        return {
            "caption": self.caption,
            "formats": {column.key or column.name: column.format for column in self.columns},
        }

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers (they are set right)."""
        return [
            any(isinstance(row[i], int | float) and not isinstance(row[i], bool) for row in self.rows)
            for i in range(len(self.columns))
        ]

    def shown(self) -> list[list[str]]:
        """Return the rows as the page prints them."""
        return [[column.show(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]


@dataclass(frozen=True)
class Figure:
    """A figure with the text that stands in for it.

    Parameters
    ----------
    figure
        A Matplotlib figure.
    caption
        What to see in it.
    alt
        What it shows, for a reader who cannot see it.
    """

    figure: MatplotlibFigure
    caption: str
    alt: str


type Block = Paragraph | Callout | Table | Figure


@dataclass(frozen=True)
class Section:
    """A titled part of the page."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fact:
    """A number at the top of the page.

    Parameters
    ----------
    name
        Key in ``facts.json``.
    label
        What it is, with its unit.
    value
        The raw value.
    shown
        The value as the page prints it.
    """

    name: str
    label: str
    value: Value
    shown: str


@dataclass(frozen=True)
class Document:
    """A report.

    Parameters
    ----------
    title
        The study's name.
    question
        What was asked.
    answer
        The answer in a sentence or two, with its interval.
    verdict
        The convergence gate's verdict, in words.
    headline
        Numbers for the top of the page.
    sections
        Sections in order.
    provenance
        Versions, seeds and digests.
    facts
        Further values for ``facts.json`` that figures show.
    privacy
        What the page's epsilons are relative to; None for a page that is not about privacy.

    Raises
    ------
    InputError
        If the headline states an epsilon or a rho and `privacy` is None.

    Examples
    --------
    >>> epsilon = Fact("epsilon", "epsilon in total", 1.0, "1")
    >>> Document("A title", "Why?", "Because.", Callout("good", "Passed"), [epsilon], [], {})
    Traceback (most recent call last):
    dpbayes.errors.InputError: the headline states 'epsilon' and no adjacency; pass privacy=PrivacyTerms(adjacency, ...)
    """

    title: str
    question: str
    answer: str
    verdict: Callout
    headline: Sequence[Fact]
    sections: Sequence[Section]
    provenance: Mapping[str, Value]
    facts: Mapping[str, Any] = field(default_factory=dict)
    privacy: PrivacyTerms | None = None

    def __post_init__(self) -> None:
        cost = next((fact.name for fact in self.headline if fact.name.startswith(("epsilon", "rho"))), None)
        if cost is not None and self.privacy is None:
            raise InputError(
                f"the headline states {cost!r} and no adjacency; pass privacy=PrivacyTerms(adjacency, ...)"
            )

    def all_facts(self) -> dict[str, Any]:
        """Return every number of the page's top and its tables under a name.

        Raises
        ------
        InputError
            If two tables share a name, or one is named ``"headline"``.
        """
        tables: dict[str, Any] = {}
        about: dict[str, Any] = {"headline": {fact.name: fact.label for fact in self.headline}}
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Table):
                    if block.name == "headline":
                        raise InputError("a table is named 'headline', as the numbers at the top are; rename it")
                    if block.name in tables:
                        raise InputError(f"two tables of the report are named {block.name!r}; name each its own way")
                    tables[block.name], about[block.name] = block.facts(), block.about()
        return {
            "title": self.title,
            "question": self.question,
            "answer": self.answer,
            "verdict": {"tone": self.verdict.tone, "title": self.verdict.title, "lines": list(self.verdict.lines)},
            "headline": {fact.name: fact.value for fact in self.headline},
            "privacy": None if self.privacy is None else self.privacy.facts(),
            "tables": tables,
            "about": about,
            "provenance": dict(self.provenance),
            **self.facts,
        }
