"""Reports: a document made of sections, one self-contained page, and a file with the numbers of its tables.

What a document is made of is in `dpbayes.report.document`.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    compare=["compare_runs"],
    document=["Document", "write_report"],
)
