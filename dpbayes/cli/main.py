"""The root of the command line: runs, their pages, comparisons and calibration, and what it says of errors."""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbayes import __version__
from dpbayes.cli.init import init
from dpbayes.cli.ledger import app as ledger
from dpbayes.cli.privacy import app as privacy
from dpbayes.cli.tables import show_table
from dpbayes.errors import DPBayesError, InputError

if TYPE_CHECKING:
    from dpbayes.report.document import Document
    from dpbayes.runs.execution import RunResult
    from dpbayes.runs.progress import Progress

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_CHECK_FAILED = 3
EXIT_INTERRUPTED = 130  # as of a process that SIGINT ended

SHOW = "DPBAYES_TRACEBACK"
"""Environment variable that asks for the full traceback."""

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
_PRINTED = ("settings", "privacy_terms", "headline_shared", "headline_labels")
_DATA_FILES = (".csv", ".parquet", ".json", ".tsv")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # rich help costs 0.3 s at every start
    pretty_exceptions_enable=False,
    help="""Bayesian inference that knows about privacy noise.

    Start with `dpbayes models` to see the studies that come along, then
    `dpbayes run models/acs_latent_class.toml`, and open the `report.html` it names.""",
    epilog="Exit codes: 0 done, 1 an error after the release, or an unexpected one (DPBAYES_TRACEBACK=1 shows it), 2 "
    "bad input (nothing was run, nothing spent), 3 done but a convergence check failed, 130 interrupted.",
)

app.add_typer(ledger, name="ledger")
app.add_typer(privacy, name="privacy")
app.command()(init)

SpecArgument = Annotated[Path, typer.Argument(help="A run spec (TOML), e.g. models/acs_latent_class.toml.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of the spec; may be given again."),
]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"dpbayes {__version__}")
        raise typer.Exit


@app.command()
def run(
    spec: SpecArgument,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/NAME, numbered if that is taken.")] = None,
    overrides: SetOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace the run folder given by --out, its release too: where the spec draws one, this draws a new "
            "release and spends epsilon again.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    allow_python: Annotated[
        bool, typer.Option("--allow-python", help="Run the Python file that the spec names as its model.")
    ] = False,
    ledger_head: Annotated[
        str | None, typer.Option("--ledger-head", metavar="DIGEST", help="An entry that the ledger must hold.")
    ] = None,
) -> None:
    """Run a study: release, fit, check, synthesize, report.

    The run folder holds `spec.toml` (every default written out), `release.json`, `trace.nc`, `synthetic/`, `facts.json`
    and `report.html`. A killed run is resumed by the same command. A finished one is not: where the spec draws a
    release, running it again draws a new one and spends epsilon again, which the terminal says.

    Example: `dpbayes run models/acs_latent_class.toml --set privacy.epsilon=0.5 --out runs/half`
    """
    with interruptible():
        typer.echo(f"spec: {spec}")  # importing what a run needs takes seconds
        from dpbayes.runs.execution import execute
        from dpbayes.runs.spec import load_spec

        loaded = load_spec(spec, overrides or (), allow_python=allow_python)
        may: dict[str, Any] = {"force": force, "allow_python": allow_python, "ledger_head": ledger_head}
        result = execute(loaded, out=out, progressbar=not quiet, echo=typer.echo, **may)
    _finish(result)


def _finish(result: RunResult) -> None:
    """Name the page, and exit by the verdict."""
    typer.echo(f"report: {result.folder / 'report.html'}")
    if not result.passed:
        raise typer.Exit(EXIT_CHECK_FAILED)


@app.command()
def check(
    spec: SpecArgument,
    overrides: SetOption = None,
    allow_python: Annotated[
        bool, typer.Option("--allow-python", help="Read a system's study from a Python file that the spec names.")
    ] = False,
) -> None:
    """Validate a spec, say what a run of it will do, and print it with every default written out.

    Nothing is run, and no records are read; files and the ledger that the spec names must be there, and the model is
    built on placeholder counts. The plan comes first, as comments of the TOML that follows. `dpbayes keys` says what
    else a spec may hold.
    """
    with _signs_of_life("reading the spec") as progress:
        from dpbayes.runs.execution import plan_lines
        from dpbayes.runs.spec import load_spec

        loaded = load_spec(spec, overrides or (), allow_python=allow_python)
        plan = plan_lines(loaded, progress.at)
    for line in plan:
        typer.echo(f"# {line}")
    typer.echo(loaded.resolved, nl=False)


@app.command()
def keys(system: Annotated[str, typer.Argument(help="bloom, ide, latent-class, mvg or verifier.")]) -> None:
    """List every key that a run spec of a system may hold: what it takes, its default, its meaning.

    Example: `dpbayes keys latent-class`
    """
    from dpbayes.runs.spec import key_lines

    typer.echo("\n".join(key_lines(system)), nl=False)


@app.command()
def models(folder: Annotated[Path, typer.Argument(help="Folder of run specs.")] = Path("models")) -> None:
    """List run specs with the question that each one asks; `dpbayes check` validates one."""
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise FileNotFoundError(
            f"there are no run specs in {folder.absolute()}; pass a folder that holds some. Those of dpbayes are in "
            "the folder models of its repository and not in the installed package; `dpbayes keys SYSTEM` says what "
            "goes into one"
        )
    show_table(("spec", "system", "question"), [_listed(path) for path in paths], title=f"Run specs in {folder}")


def _listed(path: Path) -> tuple[str, str, str]:
    """Return name, system and question of a spec, from its TOML alone: validating it would load its system."""
    try:
        spec = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return path.name, "invalid", str(error)
    question = str(spec.get("question") or spec.get("title") or "")
    data = spec.get("data")
    named = data.values() if isinstance(data, dict) else ()
    missing = [value for value in named if isinstance(value, str) and Path(value).suffix in _DATA_FILES
               and not (path.parent / value).is_file()]  # fmt: skip
    if missing:
        question += f"\n(not here: {', '.join(missing)}; the spec says where to get it)"
    return path.name, str(spec.get("system", "none given")), question


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="A run folder.")],
    sbc_study: Annotated[
        Path | None, typer.Option("--sbc", help="Calibration study to cite. Default: RUN_DIR-sbc, if it is there.")
    ] = None,
) -> None:
    """Write the report of a finished run again, from the files in its folder."""
    with _signs_of_life("writing the page"):
        from dpbayes.runs.execution import rebuild_report

        page = rebuild_report(run_dir, calibration=sbc_study)
    typer.echo(f"report: {page}")


@app.command()
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
    from dpbayes.report.compare import compare_runs
    from dpbayes.report.document import write_report
    from dpbayes.runs.folder import choose_folder, make_folder

    folder = choose_folder("comparison") if out is None else out
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not force:
            raise ExistingRunError(f"{folder} is already there; choose another --out, or pass --force to replace it")
        if (folder / "spec.toml").exists() or not folder.is_dir():
            raise ExistingRunError(f"{folder} is no comparison; --force replaces only the page of a comparison")
    with _signs_of_life("comparing the runs"):
        document = compare_runs(runs)
        make_folder(folder)
        page = write_report(document, folder)
    _print_comparison(document)
    typer.echo(f"report: {page}")


def _print_comparison(document: Document) -> None:
    """Print the answer, the warnings, and the tables of settings and of the numbers at the top of the pages."""
    from dpbayes.report.document import Callout, Table

    for section in document.sections[:2]:
        for block in section.blocks:
            if isinstance(block, Callout) and block.tone == "warning":
                typer.secho(f"{block.title}: " + "\n  ".join(block.lines), fg=typer.colors.YELLOW)
            if isinstance(block, Table) and block.name in _PRINTED:
                show_table([column.name for column in block.columns], block.shown(), title=block.caption)
                typer.echo("")
    typer.echo(f"{document.verdict.title} {document.answer}")


@app.command()
def sbc(
    spec: Annotated[Path, typer.Argument(help="A run spec (TOML) whose run has a posterior.")],
    simulations: Annotated[int, typer.Option("-n", "--simulations", help="Simulated data sets, each fitted.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Study folder. Default: runs/NAME-sbc.")] = None,
    n_records: Annotated[
        int | None, typer.Option(help="Records of a simulated data set, if not as many as the spec says.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the study.")] = 1,
    draws: Annotated[int, typer.Option(help="Draws kept per chain.")] = 500,
    tune: Annotated[int, typer.Option(help="Warm-up draws per chain.")] = 500,
    chains: Annotated[int, typer.Option(help="Chains per fit.")] = 2,
    jobs: Annotated[int, typer.Option(help="Processes; each compiles for itself.")] = 1,
    overrides: SetOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Calibrate a spec by simulation: draw truth and data from its prior, fit, rank the truth among the draws.

    No confidential record is read: the design (attributes, tables, noise, number of records) is simulated. A stopped
    study goes on by the same command; more simulations extend it. The folder holds `ranks.nc`, `facts.json` and
    `report.html` with the ECDF plots. Exit code 3: the ranks are not uniform.

    Example: `dpbayes sbc models/acs_latent_class.toml -n 200 --n-records 500 --set privacy.epsilon=0.5`
    """
    from dpbayes.inference.sampling import NutsSettings
    from dpbayes.runs.calibration import calibrate, calibration_of
    from dpbayes.runs.spec import load_spec

    loaded = load_spec(spec, overrides or ())
    sampling = calibration_of(loaded, n_records=n_records).sampling
    settings = NutsSettings(draws=draws, tune=tune, chains=chains, **sampling)
    study: dict[str, Any] = {"n_simulations": simulations, "n_records": n_records, "random_seed": seed, "n_jobs": jobs}
    with interruptible():
        result = calibrate(loaded, out=out, settings=settings, progressbar=not quiet, echo=typer.echo, **study)
    _finish(result)


@app.command()
def bench(
    report: Annotated[Path, typer.Option(help="Markdown file to write; a picture of the scaling goes beside it.")],
    only: Annotated[str, typer.Option("--only", metavar="SYSTEM", help="One system, such as mvg.")] = "",
    folder: Annotated[Path, typer.Option(help="Folder of the benchmarks, in a checkout.")] = Path("tests/benchmarks"),
) -> None:
    """Time every system beside its peers, in one run on this machine, and write a table with machine, versions, date.

    Times of one group are comparable; times of different machines are not, ratios within a group mostly are.

    Example: `dpbayes bench --report benchmarks.md --only verifier`
    """
    script = Path(__file__).parents[2] / "tests" / "benchmarks" / "benchmark_page.py"
    if not script.is_file():
        raise InputError("benchmarks are no part of the installed package; run this in a checkout of dpbayes")
    page = runpy.run_path(str(script))
    report.parent.mkdir(parents=True, exist_ok=True)  # first: a mistake here must not cost what was measured
    measured = page["run_benchmarks"](folder, only=only, echo=typer.echo)
    typer.echo(f"report: {page['write_benchmarks'](measured, report)}")


def main() -> None:
    """Run the command line; an expected error becomes one line on standard error and exit code 2, 1 after a release.

    An error that nobody foresaw becomes one line too, and exit code 1: a traceback ends with the error's text, and what
    pandas or Polars write there may quote the confidential records that a command works on. A warning is a sentence.
    """
    warnings.formatwarning = lambda message, *where, **line: f"warning: {message}\n"
    try:
        app()
    except (DPBayesError, OSError) as error:
        typer.secho(f"dpbayes: {error}{_notes(error)}", err=True, fg=typer.colors.RED)
        sys.exit(EXIT_FAILED if _notes(error) else EXIT_BAD_INPUT)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of Polars is no Exception
        if os.environ.get(SHOW):
            raise
        typer.secho(f"dpbayes: {unexpected(error)}{_notes(error)}", err=True, fg=typer.colors.RED)
        sys.exit(EXIT_FAILED)


def _notes(error: BaseException) -> str:
    """Return what is to be known besides: that something was released, or privacy budget spent."""
    return "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))


def _signs_of_life(stage: str) -> Progress:
    """Return a context in which standard error, beside the output, hears every ten seconds that a stage goes on."""
    from dpbayes.runs.progress import Progress

    return Progress(lambda line: typer.echo(line, err=True), stage)


@contextmanager
def interruptible() -> Iterator[None]:
    """Answer an interrupt (Ctrl-C) with a sentence and an exit code of its own; the block must be able to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        said = str(stop) or "interrupted; the same command goes on"
        typer.secho(f"dpbayes: {said}", err=True, fg=typer.colors.RED)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def unexpected(error: BaseException) -> str:
    """Say which kind of error it was and where it arose: in dpbayes, or in the user's own model."""
    return (
        f"unexpected {type(error).__name__}{_place(error)}; its text is not shown, as it may quote confidential "
        f"records. Set {SHOW}=1 to see all of it, where only those may look who may see the records"
    )


def _place(error: BaseException) -> str:
    """Return the innermost line outside libraries; a file's name and a line number are no data."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(_PACKAGE):
            return f" at {path.relative_to(_PACKAGE.parent).as_posix()}:{frame.lineno}"
        # Not Path.is_file: it raises where a folder may not be read, and what is being handled must not be shown.
        if os.path.isfile(path) and not any(path.resolve().is_relative_to(library) for library in _LIBRARIES):
            return f" at {path}:{frame.lineno}"
    return ""
