"""Reports: a document made of sections, one self-contained page, and a file with every number on it."""

from dpbayes.report.document import Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.render import write_report

__all__ = [
    "Callout",
    "Column",
    "Document",
    "Fact",
    "Figure",
    "Paragraph",
    "Section",
    "Table",
    "write_report",
]
