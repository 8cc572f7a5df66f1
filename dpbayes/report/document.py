"""What a report is made of, and how it becomes ``report.html`` and ``facts.json``."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python

from dpbayes._arguments import one_of
from dpbayes._files import write_text
from dpbayes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

    from dpbayes.privacy.adjacency import Relation

type Value = str | int | float | bool | None

_DPI = 100  # pixels of a page for an inch of a figure
_EXPONENT = re.compile(r"(?<![\w.])(\d(?:\.\d+)?)e([+-]\d{2,3})\b")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_POWER = r"$\mathdefault{"  # how the labels of a logarithmic axis begin, which are formulas indeed


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Callout:
    """A boxed statement with a tone, a title of a few words, and a line for each thing there is to say."""

    tone: Literal["good", "warning", "bad", "note"]
    title: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """A table's column: its heading, how its numbers are printed, and its name in ``facts.json``."""

    name: str
    format: str = ""  # a specification (".4f", ",d"), or "p" for a probability, never rounded to 0 or 1
    key: str = ""  # by default the heading

    def show(self, value: Value) -> str:
        """Return a value as the page prints it."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if not self.format or isinstance(value, str):
            return str(value)
        if self.format == "p":
            return show_probability(value)
        return show_number(value, self.format).replace("%", "\N{NO-BREAK SPACE}%")


def show_number(value: float, format: str) -> str:
    """Return a number as text, without a sign where it is rounded to zero.

    >>> show_number(-0.04, ".1f"), show_number(-0.04, "+.2f"), show_number(-math.inf, ".1f")
    ('0.0', '-0.04', '-inf')
    """
    text = f"{value:{format}}"
    return text if any(sign in text for sign in "123456789n") else text.lstrip("+-")


def show_range(values: Sequence[float], format: str) -> str:
    """Return the least and the largest of some numbers as text, once where they print alike."""
    return " to ".join(dict.fromkeys(f"{value:{format}}" for value in (min(values), max(values))))


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
    """A table of raw values under a name that no other has; the page rounds them, ``facts.json`` does not."""

    name: str
    caption: str  # what the table shows, with units
    columns: Sequence[Any]  # each a `Column`, or its heading, alone or with format and key
    rows: Sequence[Sequence[Value]]
    folded: bool = False  # a line on the page, until it is opened

    def __post_init__(self) -> None:
        parts = [(one,) if isinstance(one, str) else one for one in self.columns]
        columns = [one if isinstance(one, Column) else Column(*one) for one in parts]
        object.__setattr__(self, "columns", columns)
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(f"table {self.name!r} has {len(self.columns)} columns and a row of {len(row)} values")

    def facts(self) -> list[dict[str, Value]]:
        """Return the rows as records."""
        keys = [column.key or column.name for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def about(self) -> dict[str, Any]:
        """Return what the records of `facts` do not say: the caption with its units, the columns' heads and formats."""
        return {
            "caption": self.caption,
            "heads": {column.key or column.name: column.name for column in self.columns},
            "formats": {column.key or column.name: column.format for column in self.columns},
        }

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers (they are set right)."""
        return [any(is_number(row[i]) for row in self.rows) for i in range(len(self.columns))]

    def shown(self) -> list[list[str]]:
        """Return the rows as the page prints them."""
        return [[column.show(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]


@dataclass(frozen=True)
class Figure:
    """A figure with a caption, what to see in it, and a text for a reader who cannot see it."""

    figure: MatplotlibFigure
    caption: str
    alt: str


type Block = Paragraph | Callout | Table | Figure


@dataclass(frozen=True)
class Section:
    """A titled part of the page."""

    title: str
    blocks: Sequence[Block]
    caution: str = ""  # what it adds to the first screen, unless the page says more there


@dataclass(frozen=True)
class Fact:
    """A number at the top of the page: name in ``facts.json``, label with its unit, raw value, and as it is printed."""

    name: str
    label: str
    value: Value
    shown: str


_CHANGES = {
    "replace-one": "one replaced by another (replace-one)",
    "add-remove": "one more or less (add-remove)",
    "one-position": "one changed: a person more or less, or one person's other publishers (one-position)",
    "either": "one replaced, or one more or less: the cost is the same under replace-one and add-remove",
}


@dataclass(frozen=True)
class PrivacyTerms:
    """What every epsilon of a page is relative to; without it, two epsilons do not compare.

    >>> PrivacyTerms("replace-one", "row", 1e-5).sentence.partition(": ")[2]
    'neighbouring data sets have one replaced by another (replace-one). Delta is 1e-05.'
    """

    adjacency: Relation | Literal["either"]  # "either" where replace-one and add-remove cost the same
    unit: str = "record"  # neighbours differ in one: "row", "position" (of a Bloom filter), or the release's own words
    delta: float | None = 0.0  # at which the page's epsilons hold: 0 for pure epsilon, None where the cost is a curve

    def __post_init__(self) -> None:
        one_of(self.adjacency, _CHANGES, "adjacency")
        if self.adjacency == "one-position" and self.unit != "position":
            raise InputError(f"under one-position the unit is 'position', got {self.unit!r}")
        if self.delta is not None and not 0.0 <= self.delta < 1.0:
            raise InputError(f"delta must lie in [0, 1), got {self.delta}; None where the cost is a curve")

    @property
    def sentence(self) -> str:
        """The terms in words."""
        unit = "position of the filters" if self.adjacency == "one-position" else self.unit
        change = f"The guarantee protects one {unit}: neighbouring data sets have {_CHANGES[self.adjacency]}."
        if self.delta is None:
            return change
        return f"{change} " + (f"Delta is {self.delta:g}." if self.delta else "Epsilon is pure: delta is 0.")


@dataclass(frozen=True)
class Document:
    """A report.

    Parameters
    ----------
    title, question, answer
        The study's name, what was asked, and the answer in a sentence or two, with its interval.
    verdict, headline
        The convergence check's verdict in words, and numbers for the top of the page.
    sections, provenance, facts
        Sections in order; versions, seeds and digests; further values for ``facts.json`` that figures show.
    privacy
        What the page's epsilons are relative to; `InputError` if the headline states one and this is None.
    picture
        The answer as a picture, for the first screen.
    caution
        What the answer depends on most beside the data, in a sentence; empty where there is nothing to say.

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
        if self.privacy is None and self.costs:
            stated = f"the headline states {self.costs[0].name!r} and no adjacency"
            raise InputError(f"{stated}; pass privacy=PrivacyTerms(adjacency, ...)")

    @property
    def costs(self) -> list[Fact]:
        """The headline's epsilons and rhos."""
        return [fact for fact in self.headline if fact.name.startswith(("epsilon", "rho"))]

    @property
    def tiles(self) -> list[Fact]:
        """The headline without the privacy cost, which has a line of its own."""
        return [fact for fact in self.headline if fact not in self.costs and fact.name != "cost"]

    @property
    def free(self) -> str:
        """Why the page costs no privacy, or nothing."""
        return next((str(fact.value) for fact in self.headline if fact.name == "cost"), "")

    def all_facts(self) -> dict[str, Any]:
        """Return every number of the page's top and its tables under a name."""
        tables: dict[str, Any] = {}
        about: dict[str, Any] = {"headline": {fact.name: fact.label for fact in self.headline}}
        blocks = [block for section in self.sections for block in section.blocks]
        for table in (block for block in blocks if isinstance(block, Table)):
            if table.name == "headline":
                raise InputError("a table is named 'headline', as the numbers at the top are; rename it")
            if table.name in tables:
                raise InputError(f"two tables of the report are named {table.name!r}; name each its own way")
            tables[table.name], about[table.name] = table.facts(), table.about()
        words = {"title": self.title, "question": self.question, "answer": self.answer, "caution": self.caution}
        return words | {
            "verdict": asdict(self.verdict),
            "headline": {fact.name: fact.value for fact in self.headline},
            "privacy": None if self.privacy is None else asdict(self.privacy),
            "tables": tables,
            "about": about,
            "provenance": dict(self.provenance),
            **self.facts,
        }


def write_report(document: Document, folder: str | Path) -> Path:
    """Write a report into a folder: one self-contained page, and every number of its top and its tables.

    Parameters
    ----------
    document, folder
        The report, and an existing folder. Its ``report.html`` and ``facts.json`` are replaced only once the new ones
        are complete. The document's figures are closed.

    Examples
    --------
    >>> import tempfile
    >>> document = Document("A title", "Why?", "Because.", Callout("good", "Passed"), [], [], {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(document, folder).name
    'report.html'
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    folder = Path(folder)
    strict: dict[str, Any] = {"undefined": StrictUndefined, "finalize": _in_powers}
    strict["autoescape"] = select_autoescape(default=True)
    loader = PackageLoader("dpbayes.report")
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **strict)
    environment.filters |= {"png": _png, "raw": _sortable}
    page = environment.get_template("report.html.j2").render(document=document, kind=lambda b: type(b).__name__)
    facts = json.dumps(plain(document.all_facts()), indent=1, allow_nan=False)
    write_text(folder / "facts.json", facts + "\n")
    return write_text(folder / "report.html", page)


def _in_powers(value: Any) -> Any:
    """Return text with powers of ten in place of a computer's exponents; markup stays as it is.

    >>> _in_powers("6.09e+10 at delta 1e-06, digest 1e06")
    '6.09\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10¹⁰ at delta 10⁻⁶, digest 1e06'
    """
    return _EXPONENT.sub(_power, value) if type(value) is str else value


def _power(found: re.Match[str]) -> str:
    times = "" if found[1] == "1" else f"{found[1]}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}"
    return f"{times}10{str(int(found[2])).translate(_RAISED)}"


def _png(figure: Figure) -> dict[str, Any]:
    """Return a figure as base64 PNG, twice as fine as it is shown, with its width in the page, and close it."""
    import matplotlib.pyplot as plt
    from markupsafe import Markup

    _spell_out(figure.figure)
    buffer = io.BytesIO()
    with warnings.catch_warnings(record=True) as said:
        warnings.filterwarnings("always", "Glyph .* missing from font")
        figure.figure.savefig(buffer, format="png", dpi=2 * _DPI, facecolor="white")
    plt.close(figure.figure)
    width = round(figure.figure.get_size_inches()[0] * _DPI)
    note = " A letter that the figure's font lacks is drawn as a box." if said else ""
    return {"data": Markup(base64.b64encode(buffer.getvalue()).decode("ascii")), "width": width, "note": note}


def _spell_out(figure: Any) -> None:
    """Let a dollar sign in a name or a level stand for itself."""
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_ticklabels(which="both")  # gives the labels their texts
    for text in figure.findobj(Text):
        if not text.get_text().startswith(_POWER):
            text.set_parse_math(False)


def _sortable(value: Any) -> str:
    """Return a number as the page's script reads it; empty where there is none."""
    from markupsafe import Markup

    if not is_number(value) or math.isnan(value):
        return ""
    return Markup({math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(float(value))))


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Return a value made of JSON's own types; a number that is not finite becomes null."""
    return to_jsonable_python(value, inf_nan_mode="null", fallback=lambda item: item.tolist())
