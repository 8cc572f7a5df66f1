"""`dpbayes ledger`: open, show, verify and export a privacy-budget ledger."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dpbayes.cli.tables import show_budget, show_releases
from dpbayes.errors import InputError

app = typer.Typer(
    name="ledger",
    help="Keep the privacy budget of one confidential dataset in a ledger that cannot be overspent.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LedgerFile = Annotated[Path, typer.Argument(metavar="LEDGER", help="File of the privacy-budget ledger.")]
Head = Annotated[str | None, typer.Option(metavar="DIGEST", help="Head digest noted before; it must be in the ledger.")]


@app.command("open")
def open_command(
    path: Annotated[Path, typer.Argument(metavar="LEDGER", help="New file; an existing one is never overwritten.")],
    epsilon: Annotated[float, typer.Option(help="Total epsilon over all releases.")],
    adjacency: Annotated[Literal["replace-one", "add-remove"], typer.Option(help="What neighbouring datasets are.")],
    delta: Annotated[float, typer.Option(help="Total delta; 0 allows pure mechanisms only.")] = 0.0,
    composition: Annotated[
        Literal["basic", "tight"],
        typer.Option(help="basic: plain addition, always valid. tight: parameters fixed beforehand."),
    ] = "basic",
    dataset: Annotated[str, typer.Option(help="Public name of the dataset.")] = "confidential dataset",
) -> None:
    """Create the privacy-budget ledger of one confidential dataset."""
    from dpbayes.privacy.ledger import create_ledger

    created = create_ledger(
        path, epsilon=epsilon, delta=delta, adjacency=adjacency, composition=composition, dataset=dataset
    )
    terms = created.terms
    typer.echo(
        f"{path}: epsilon {terms.epsilon!r} and delta {terms.delta!r} for {terms.dataset} under {terms.adjacency}, "
        f"{terms.composition} composition decides."
    )
    typer.echo(f"head {created.head}")


@app.command()
def show(path: LedgerFile, head: Head = None) -> None:
    """Print the total, what is spent by plain addition and tightly, what is left, and every release."""
    from dpbayes.privacy.ledger import open_ledger

    opened = open_ledger(path, expected_head=head)
    show_budget(opened)
    if opened.entries():
        show_releases(opened)
    if waiting := opened.unconfirmed():
        numbers = ", ".join(str(release.entry) for release in waiting)
        typer.echo(f"Reserved and never confirmed, counted as spent: entries {numbers}.")


@app.command()
def verify(path: LedgerFile, head: Head = None) -> None:
    """Check every entry, the chain of digests and the head; exit 2 with a sentence if anything is wrong."""
    from dpbayes.privacy.ledger import open_ledger

    opened = open_ledger(path, expected_head=head)
    spent = opened.spent()
    typer.echo(
        f"{path} is intact: {spent.releases} releases, {spent.unconfirmed} of them never confirmed, epsilon "
        f"{spent.epsilon:.6g} of {opened.terms.epsilon!r} spent."
    )
    typer.echo(f"head {opened.head}")
    if head is None:
        typer.echo("Without --head, a ledger that was rewritten as a whole looks intact; note the head elsewhere.")


@app.command()
def export(
    path: LedgerFile,
    form: Annotated[Literal["json", "csv"], typer.Option("--format", help="What to write.")] = "json",
    out: Annotated[Path | None, typer.Option(help="New file to write; standard output by default.")] = None,
) -> None:
    """Write the ledger as JSON (all of it) or CSV (one line per release)."""
    from dpbayes.privacy.ledger import open_ledger

    opened = open_ledger(path)
    text = opened.to_csv() if form == "csv" else opened.to_json() + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        with out.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        remedy = "choose another name" if isinstance(error, FileExistsError) else "check its folder"
        raise InputError(f"{out} cannot be written: {error.strerror}; {remedy}") from error
