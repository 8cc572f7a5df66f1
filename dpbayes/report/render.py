"""Turn a `Document` into ``report.html`` and ``facts.json``."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path
from typing import Any

from dpbayes._files import write_text
from dpbayes.report.document import Document, Figure

_DPI = 100
"""Pixels of a page for an inch of a figure."""

_POWER = r"$\mathdefault{"
"""How the labels of a logarithmic axis begin, which are formulas indeed."""


def write_report(document: Document, folder: str | Path) -> Path:
    """Write a report into a folder: one self-contained page, and every number of its top and its tables.

    Parameters
    ----------
    document
        The report.
    folder
        An existing folder. Its ``report.html`` and ``facts.json`` are replaced only once the new ones are complete. The
        document's figures are closed.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.report import Callout, Document
    >>> document = Document("A title", "Why?", "Because.", Callout("good", "Passed"), [], [], {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(document, folder).name
    'report.html'
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    folder = Path(folder)
    environment = Environment(
        loader=PackageLoader("dpbayes.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["png"] = _png
    environment.filters["raw"] = _sortable
    page = environment.get_template("report.html.j2").render(document=document, kind=lambda b: type(b).__name__)
    facts = json.dumps(_plain(document.all_facts()), indent=1, allow_nan=False)
    for name, text in (("facts.json", facts + "\n"), ("report.html", page)):
        write_text(folder / name, text)
    return folder / "report.html"


def _png(figure: Figure) -> dict[str, Any]:
    """Return a figure as base64 PNG, twice as fine as it is shown, with its width in the page, and close it."""
    import matplotlib.pyplot as plt

    _spell_out(figure.figure)
    buffer = io.BytesIO()
    figure.figure.savefig(buffer, format="png", dpi=2 * _DPI, facecolor="white")
    plt.close(figure.figure)
    width = round(figure.figure.get_size_inches()[0] * _DPI)
    return {"data": base64.b64encode(buffer.getvalue()).decode("ascii"), "width": width}


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
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return ""
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(float(value)))


def _plain(value: Any) -> Any:
    """Return a value made of JSON's own types; a NaN becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
