"""The command that sets finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpbayes.report import Document

__all__ = ["compare"]

_PRINTED = ("settings", "privacy_terms", "headline_shared", "headline_labels")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page. Default: runs/comparison, with a number if that is taken.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the page in the folder given by --out.")] = False,
) -> None:
    """Compare finished runs: the same quantities side by side, in tables and plots.

    Runs that differ in one number (an epsilon ladder, a ladder of classes) are plotted along it. The folder gets
    `report.html` and `facts.json`.

    Example: `dpbayes compare runs/half runs/one runs/two --out runs/ladder`
    """
    from dpbayes.errors import ExistingRunError
    from dpbayes.report import compare_runs, write_report
    from dpbayes.runs.folder import choose_folder, make_folder

    folder = choose_folder("comparison") if out is None else out
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not force:
            raise ExistingRunError(f"{folder} is already there; choose another --out, or pass --force to replace it")
        if (folder / "spec.toml").exists() or not folder.is_dir():
            raise ExistingRunError(f"{folder} is no comparison; --force replaces only the page of a comparison")
    document = compare_runs(runs)
    make_folder(folder)
    page = write_report(document, folder)
    _print(document)
    typer.echo(f"report: {page}")


def _print(document: Document) -> None:
    """Print the answer, the warnings, and the tables of settings and of the numbers at the top of the pages."""
    from rich.console import Console
    from rich.table import Table as RichTable

    from dpbayes.report import Callout, Table

    console = Console(markup=False)  # a title in square brackets is no style
    for section in document.sections[:2]:
        for block in section.blocks:
            if isinstance(block, Callout) and block.tone == "warning":
                said = f"{block.title}: " + "\n  ".join(block.lines)
                console.print(said, style="yellow", highlight=False)
            if isinstance(block, Table) and block.name in _PRINTED:
                table = RichTable(*(column.name for column in block.columns), title=block.caption, title_justify="left")
                for row in block.shown():
                    table.add_row(*row)
                console.print(table)
    console.print(f"{document.verdict.title} {document.answer}", highlight=False)
