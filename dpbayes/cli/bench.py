"""The command that times the systems beside their peers and writes a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench"]


def bench(
    report: Annotated[Path, typer.Option(help="Markdown file to write; a picture of the scaling goes beside it.")],
    only: Annotated[str, typer.Option("--only", metavar="SYSTEM", help="One system, such as mvg.")] = "",
    folder: Annotated[Path, typer.Option(help="Folder of the benchmarks, in a checkout.")] = Path("tests/benchmarks"),
) -> None:
    """Time every system beside its peers, in one run on this machine, and write a table with machine, versions, date.

    Times of one group are comparable; times of different machines are not, ratios within a group mostly are.

    Example: `dpbayes bench --report benchmarks.md --only verifier`
    """
    from dpbayes.report.benchmarks import run_benchmarks, write_benchmarks

    report.parent.mkdir(parents=True, exist_ok=True)  # first: a mistake here must not cost what was measured
    measured = run_benchmarks(folder, only=only, echo=typer.echo)
    typer.echo(f"report: {write_benchmarks(measured, report)}")
