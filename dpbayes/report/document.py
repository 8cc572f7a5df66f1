"""What a report is made of. Systems build a `Document`; one renderer turns it into a page and a file of facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dpbayes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

    from dpbayes.privacy.adjacency import Relation

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
        What there is to say, one line each.
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
        Format specification for numbers (``".4f"``, ``",d"``); ``"p"`` for a probability, which is never rounded to 0
        or 1; text is shown as it is.
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
        if isinstance(value, int | float) and self.format == "p":
            return show_probability(value)
        if isinstance(value, int | float) and self.format:
            return format(value, self.format)
        return str(value)


def show_probability(value: float, digits: int = 3) -> str:
    """Return a probability as text that does not claim certainty by rounding."""
    if value in (0, 1):
        return f"{value:g}"
    step = 10.0**-digits
    if value > 1 - step / 2:
        return f"> {1 - step:.{digits}f}"
    return f"< {step:.{digits}f}" if value < step / 2 else f"{value:.{digits}f}"


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
        One sequence of values per row.
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


_CHANGES = {
    "replace-one": "one {unit} replaced by another (replace-one)",
    "add-remove": "one {unit} more or less (add-remove)",
    "one-position": "one {unit} of the filters (one-position): a person more or less, or one person's other publishers",
    "either": "one {unit} replaced, or one {unit} more or less: the cost is the same under replace-one and add-remove",
}


@dataclass(frozen=True)
class PrivacyTerms:
    """What every epsilon of a page is relative to; without it, two epsilons do not compare.

    Parameters
    ----------
    adjacency
        The neighbouring relation: ``"replace-one"``, ``"add-remove"``, ``"one-position"`` (of Bloom filters), or
        ``"either"`` where the cost is the same under the first two.
    unit
        What neighbouring data sets differ in one of: ``"record"``, ``"individual"`` (all records of one),
        ``"person (all its rows)"`` for the verifier's column of the unit, ``"position"`` (of a Bloom filter).
    delta
        The delta at which the page's epsilons hold: 0 for pure epsilon, None where the cost is a curve.

    Raises
    ------
    InputError
        If the adjacency is none of the four, one-position has another unit than a position, or delta is not in [0, 1).

    Examples
    --------
    >>> print(PrivacyTerms("replace-one", delta=1e-5).sentence)
    Neighbouring data sets differ in one record replaced by another (replace-one). Delta is 1e-05.
    """

    adjacency: Relation | Literal["either"]
    unit: str = "record"
    delta: float | None = 0.0

    def __post_init__(self) -> None:
        if self.adjacency not in _CHANGES:
            raise InputError(f"adjacency must be one of {', '.join(_CHANGES)}, got {self.adjacency!r}")
        if self.adjacency == "one-position" and self.unit != "position":
            raise InputError(f"under one-position the unit is 'position', got {self.unit!r}")
        if self.delta is not None and not 0.0 <= self.delta < 1.0:
            raise InputError(f"delta must lie in [0, 1), got {self.delta}; None where the cost is a curve")

    @property
    def sentence(self) -> str:
        """The terms in words."""
        change = f"Neighbouring data sets differ in {_CHANGES[self.adjacency].format(unit=self.unit)}."
        if self.delta is None:
            return change
        return f"{change} " + (f"Delta is {self.delta:g}." if self.delta else "Epsilon is pure: delta is 0.")

    def facts(self) -> dict[str, Any]:
        """Return the terms as ``facts.json`` holds them."""
        return asdict(self)


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
        The convergence check's verdict, in words.
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
    picture
        The answer as a picture, for the first screen.
    caution
        What the answer depends on most beside the data, in a sentence; empty where there is nothing to say.

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
    picture: Figure | None = None
    caution: str = ""

    def __post_init__(self) -> None:
        if self.costs and self.privacy is None:
            cost = self.costs[0].name
            raise InputError(
                f"the headline states {cost!r} and no adjacency; pass privacy=PrivacyTerms(adjacency, ...)"
            )

    @property
    def costs(self) -> list[Fact]:
        """The headline's epsilons and rhos."""
        return [fact for fact in self.headline if fact.name.startswith(("epsilon", "rho"))]

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
            "caution": self.caution,
            "verdict": {"tone": self.verdict.tone, "title": self.verdict.title, "lines": list(self.verdict.lines)},
            "headline": {fact.name: fact.value for fact in self.headline},
            "privacy": None if self.privacy is None else self.privacy.facts(),
            "tables": tables,
            "about": about,
            "provenance": dict(self.provenance),
            **self.facts,
        }
