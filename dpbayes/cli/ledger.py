"""`dpbayes ledger`: open, show, verify and export a privacy-budget ledger."""

import datetime
import itertools
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpbayes.cli.tables import show_table
from dpbayes.errors import InputError

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Reservation

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
    terms, spent, left = opened.terms, opened.spent(), opened.remaining()
    rows = [
        ("total", repr(terms.epsilon), repr(terms.delta)),
        ("spent, plain addition", f"{spent.basic_epsilon:.6g}", f"{spent.basic_delta:.6g}"),
        ("spent, tight", f"{spent.tight_epsilon:.6g}", f"{terms.delta:.6g}"),
        ("remaining", f"{left.epsilon:.6g}", f"{left.delta:.6g}"),
        ("entries", str(spent.releases), ""),
        ("unconfirmed", str(spent.unconfirmed), ""),
    ]
    decides = {"basic": "plain addition", "tight": "tight composition"}[terms.composition]
    title = f"{terms.dataset}: {terms.adjacency}, {decides} decides, opened {_when(terms.created)} UTC"
    show_table(("", "epsilon", "delta"), rows, title=title)
    if entries := opened.entries():
        # One row per release: the entries that were confirmed together for one purpose, and their sum.
        releases = itertools.groupby(entries, key=lambda entry: (entry.digest, entry.mechanism, entry.purpose))
        with_delta = any(entry.cost.plain[1] for entry in entries)
        columns = ["entries", "UTC", "queries", "epsilon", *(["delta"] if with_delta else []), "purpose, noise"]
        typer.echo("")
        show_table(columns, [_cells(list(group), with_delta=with_delta) for _, group in releases])
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


def _cells(group: Sequence["Reservation"], *, with_delta: bool) -> list[str]:
    first, last = group[0], group[-1]
    parts = [entry.cost.plain[0] for entry in group]
    known = [part for part in parts if part is not None]  # a law without an epsilon has none
    return [
        str(first.entry) if first is last else f"{first.entry}–{last.entry}",
        _when(first.time).replace(" ", "\n"),
        str(sum(entry.cost.count for entry in group)),
        f"{float(sum(known, Fraction(0))):.4g}" if len(known) == len(parts) else "–",
        *([f"{float(sum(entry.cost.plain[1] for entry in group)):.4g}"] if with_delta else []),
        "\n".join([first.purpose, _law(group), *([] if first.digest else ["unconfirmed, counts as spent"])]),
    ]


def _when(time: str) -> str:
    return datetime.datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M:%S")


def _law(group: Sequence["Reservation"]) -> str:
    """Return law, parameters and sensitivities of a group; the mechanism too where the law does not say it."""
    from dpbayes.report.document import show_range

    lines = []
    for name, same in itertools.groupby(group, key=lambda entry: entry.cost.law.name):
        entries = list(same)
        words = [name] if name == entries[0].mechanism else [f"{entries[0].mechanism} ({name})"]
        told = [entry.cost.law.to_dict() | {"sensitivity": entry.cost.sensitivity} for entry in entries]
        for key in ("scale", "stddev", "sensitivity"):
            if values := [one[key] for one in told if one.get(key) is not None]:
                words.append(f"{key} {show_range(values, '.4g')}")
        lines.append(", ".join(words))
    return "\n".join(lines)
