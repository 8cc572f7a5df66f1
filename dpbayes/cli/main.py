"""The root of the command line: runs, reports, and the sub-commands of the privacy floor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dpbayes import __version__
from dpbayes.cli import bench, bloom, compare, ledger, mvg, privacy, sbc
from dpbayes.cli._failures import SHOW, interruptible, unexpected
from dpbayes.errors import DPBayesError

__all__ = ["app", "main"]

EXIT_UNEXPECTED = 1
EXIT_BAD_INPUT = 2
EXIT_GATE_FAILED = 3

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich help costs 0.3 s at every start
    pretty_exceptions_enable=False,
    help="""Bayesian inference that knows about privacy noise.

    Start with `dpbayes models` to see the studies that come along, then
    `dpbayes run models/acs_latent_class.toml`, and open the `report.html` it names.""",
    epilog="Exit codes: 0 done, 1 unexpected error (DPBAYES_TRACEBACK=1 shows it), 2 bad input (nothing was run), "
    "3 done but a convergence check failed, 130 interrupted.",
)

app.add_typer(ledger.app, name="ledger")
app.add_typer(privacy.app, name="privacy")
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("sbc")(sbc.sbc)
privacy.app.command("bloom")(bloom.bloom)
privacy.app.command("mvg")(mvg.mvg)

SpecArgument = Annotated[Path, typer.Argument(help="A run spec (TOML), e.g. models/acs_latent_class.toml.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of the spec; may be given again."),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"dpbayes {__version__}")
        raise typer.Exit


@app.command()
def run(
    spec: SpecArgument,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/NAME, with a number if that is taken.")
    ] = None,
    overrides: SetOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace the run folder given by --out, its release too: where the spec draws one, this draws a new "
            "release and spends epsilon again.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
    allow_python: Annotated[
        bool, typer.Option("--allow-python", help="Run the Python file that the spec names as its model.")
    ] = False,
) -> None:
    """Run a study: release, fit, check, synthesize, report.

    The run folder holds `spec.toml` (every default written out), `release.json`, `trace.nc`, `synthetic/`, `facts.json`
    and `report.html`. A killed run is resumed by the same command. A finished one is not: where the spec draws a
    release, running it again draws a new one and spends epsilon again, which the terminal says.

    Example: `dpbayes run models/acs_latent_class.toml --set privacy.epsilon=0.5 --out runs/half`
    """
    with interruptible():
        from dpbayes.runs import execute, load_spec

        result = execute(
            load_spec(spec, overrides or ()),
            out=out,
            force=force,
            allow_python=allow_python,
            progressbar=not quiet,
            echo=typer.echo,
        )
    typer.echo(f"report: {result.folder / 'report.html'}")
    if not result.outcome.passed:
        raise typer.Exit(EXIT_GATE_FAILED)


@app.command()
def check(spec: SpecArgument, overrides: SetOption = None) -> None:
    """Validate a spec and print it with every default written out. Nothing is run, and no records are read.

    A budget book that the spec names must be there. `dpbayes keys` says what else a spec may hold.
    """
    from dpbayes.privacy.ledger import open_ledger
    from dpbayes.runs import load_spec

    loaded = load_spec(spec, overrides or ())
    book = getattr(getattr(loaded.spec, "privacy", None), "ledger", None)
    if book is not None:
        open_ledger(loaded.path.parent / book)
    typer.echo(loaded.resolved, nl=False)


@app.command()
def keys(
    system: Annotated[str, typer.Argument(help="bloom, ide, latent-class, mvg or verifier.")],
) -> None:
    """List every key that a run spec of a system may hold: what it takes, its default, its meaning.

    Example: `dpbayes keys latent-class`
    """
    from dpbayes.runs import key_lines

    typer.echo("\n".join(key_lines(system)), nl=False)


@app.command()
def models(
    folder: Annotated[Path, typer.Argument(help="Folder of run specs.")] = Path("models"),
) -> None:
    """List run specs with the question that each one asks."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from dpbayes.errors import SpecError
    from dpbayes.runs import load_spec

    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise FileNotFoundError(
            f"there are no run specs in {folder.absolute()}; pass a folder that holds some. Those of dpbayes are in "
            "the folder models of its repository and not in the installed package; `dpbayes keys SYSTEM` says what "
            "goes into one"
        )
    table = Table("spec", "system", "question", title=f"Run specs in {folder}", title_justify="left")
    for path in paths:
        try:
            spec = load_spec(path).spec
        except SpecError as error:
            table.add_row(path.name, Text("invalid", style="red"), str(error))
        else:
            table.add_row(path.name, spec.system, spec.question or spec.title)
    Console(markup=False).print(table)  # [privacy] in a sentence is a section, no style


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="A run folder.")],
    sbc_study: Annotated[
        Path | None, typer.Option("--sbc", help="Calibration study to cite. Default: RUN_DIR-sbc, if it is there.")
    ] = None,
) -> None:
    """Write the report of a finished run again, from the files in its folder."""
    from dpbayes.runs import rebuild_report

    typer.echo(f"report: {rebuild_report(run_dir, calibration=sbc_study)}")


def main() -> None:
    """Run the command line; an expected error becomes one line on standard error and exit code 2.

    An error that nobody foresaw becomes one line too, and exit code 1: a traceback ends with the error's text, and what
    pandas or Polars write there may quote the confidential records that a command works on.
    """
    try:
        app()
    except (DPBayesError, OSError) as error:
        typer.secho(f"dpbayes: {error}", err=True, fg=typer.colors.RED)
        sys.exit(EXIT_BAD_INPUT)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of Polars is no Exception
        if os.environ.get(SHOW):
            raise
        typer.secho(f"dpbayes: {unexpected(error)}", err=True, fg=typer.colors.RED)
        sys.exit(EXIT_UNEXPECTED)
