"""A budget book as JSON, CSV and HTML."""

import csv
import html
import io
import json
import math
from typing import TYPE_CHECKING, Any

from dpbayes.privacy.ledger_cost import Cost
from dpbayes.privacy.ledger_rounding import float_up_or_decimal

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

__all__ = ["describe_cost", "to_csv", "to_html", "to_json"]

_COLUMNS = (
    "entry", "time", "mechanism", "law", "sensitivity", "count", "epsilon", "delta", "purpose", "status", "digest",
)  # fmt: skip


def describe_cost(cost: Cost) -> dict[str, Any]:
    """Return the public numbers of a cost; epsilon and delta by plain addition, None where epsilon is infinite.

    Examples
    --------
    >>> from dpbayes.privacy import Laplace
    >>> describe_cost(Cost(Laplace(10.0), 1.0))["epsilon"]
    0.1
    """
    epsilon, delta = cost.plain
    return {
        "law": str(cost.law),
        "sensitivity": cost.sensitivity,
        "count": cost.count,
        "epsilon": None if epsilon is None else float_up_or_decimal(epsilon),
        "delta": float_up_or_decimal(delta),
    }


def release_rows(book: "Ledger") -> list[dict[str, Any]]:
    """Return one flat record a release, confirmed or not."""
    rows = []
    for release in book.entries():
        rows.append(
            {"entry": release.entry, "time": release.time, "mechanism": release.mechanism}
            | describe_cost(release.cost)
            | {"purpose": release.purpose, "status": "confirmed" if release.digest else "unconfirmed, counts as spent"}
            | {"digest": release.digest}
        )
    return rows


def to_json(book: "Ledger") -> str:
    """Return the whole book as JSON: terms, sums, releases, head digest.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.privacy.ledger import create_ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     book = create_ledger(f"{folder}/b.db", epsilon=1.0, delta=0.0, adjacency="add-remove")
    ...     json.loads(to_json(book))["total"]["epsilon"]
    1.0
    """
    terms, spent, left = book.terms, book.spent(), book.remaining()
    return json.dumps(
        {
            "format": "dpbayes-ledger",
            "book": terms.book,
            "dataset": terms.dataset,
            "created": terms.created,
            "adjacency": terms.adjacency,
            "composition": terms.composition,
            "total": {"epsilon": terms.epsilon, "delta": terms.delta},
            "spent": {
                "basic": {"epsilon": _finite(spent.basic_epsilon), "delta": spent.basic_delta},
                "tight": {"epsilon": _finite(spent.tight_epsilon), "delta": terms.delta},
                "decides": _finite(spent.epsilon),
            },
            "remaining": {"epsilon": left.epsilon, "delta": left.delta},
            "unconfirmed": [release.entry for release in book.unconfirmed()],
            "head": book.head,
            "releases": release_rows(book),
        },
        indent=1,
        allow_nan=False,
    )


def to_csv(book: "Ledger") -> str:
    """Return one line a release, with a header.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.privacy.ledger import create_ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     book = create_ledger(f"{folder}/b.db", epsilon=1.0, delta=0.0, adjacency="add-remove")
    ...     to_csv(book).split(",")[:3]
    ['entry', 'time', 'mechanism']
    """
    target = io.StringIO()
    writer = csv.DictWriter(target, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(release_rows(book))
    return target.getvalue()


def to_html(book: "Ledger") -> str:
    """Return an HTML table for notebooks; every text is escaped."""
    terms, spent, left = book.terms, book.spent(), book.remaining()
    caption = (
        f"{terms.dataset}: epsilon {spent.epsilon:.6g} of {terms.epsilon:g} spent at delta {terms.delta:g} "
        f"({terms.composition}, {terms.adjacency}), {left.epsilon:.6g} left, {spent.unconfirmed} unconfirmed"
    )
    shown = ("entry", "time", "mechanism", "law", "count", "epsilon", "purpose", "status")
    head = "".join(f"<th>{name}</th>" for name in shown)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape('–' if row[n] is None else str(row[n]))}</td>" for n in shown) + "</tr>"
        for row in release_rows(book)
    )
    return f"<table><caption>{html.escape(caption)}</caption><tr>{head}</tr>{rows}</table>"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
