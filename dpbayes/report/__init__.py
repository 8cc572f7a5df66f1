"""Reports: a document made of sections, one self-contained page, and a file with the numbers of its tables."""

from typing import Any

from dpbayes.report.document import Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.privacy_terms import PrivacyTerms
from dpbayes.report.render import write_report

__all__ = [
    "Callout",
    "Column",
    "Document",
    "Fact",
    "Figure",
    "Paragraph",
    "PrivacyTerms",
    "Section",
    "Table",
    "compare_runs",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "compare_runs":  # plots: Matplotlib is imported on first use
        from dpbayes.report.comparison import compare_runs

        return compare_runs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
