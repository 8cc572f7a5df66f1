"""Reports: a document made of sections, one self-contained page, and a file with the numbers of its tables."""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Callout": "document",
        "Column": "document",
        "Document": "document",
        "Fact": "document",
        "Figure": "document",
        "Paragraph": "document",
        "PrivacyTerms": "document",
        "Section": "document",
        "Table": "document",
        "compare_runs": "compare",
        "write_report": "render",
    },
)
