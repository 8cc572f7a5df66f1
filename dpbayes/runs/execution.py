"""Run a spec from beginning to end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpbayes.runs.folder import check_free, choose_folder, workspace
from dpbayes.runs.spec import LoadedSpec, load_spec
from dpbayes.runs.variant import check_allowed

__all__ = ["Context", "Outcome", "RunResult", "execute", "rebuild_report"]

_RELEASE = "release.json"


@dataclass(frozen=True)
class Context:
    """What a system's ``run`` gets to work with.

    Parameters
    ----------
    folder
        The partial run folder. A stage whose file is already there was finished before and is not repeated.
    beside
        The spec's folder: relative paths in the spec start here.
    spec_digest
        SHA-256 of the resolved spec.
    progressbar
        Whether to show progress bars.
    echo
        Prints one line to the person who waits.
    """

    folder: Path
    beside: Path
    spec_digest: str
    progressbar: bool
    echo: Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    passed
        Whether every check passed; False makes the command exit with its own code.
    summary
        The verdict in words, with what to change if it failed.
    """

    passed: bool
    summary: str


@dataclass(frozen=True)
class RunResult:
    """A finished run folder and its outcome."""

    folder: Path
    outcome: Outcome


def execute(
    loaded: LoadedSpec,
    *,
    out: Path | None = None,
    force: bool = False,
    allow_python: bool = False,
    progressbar: bool = True,
    echo: Callable[[str], None] = print,
) -> RunResult:
    """Run a spec and leave a run folder.

    Parameters
    ----------
    loaded
        A validated spec.
    out
        The run folder; by default ``runs/<name of the spec>``, with a number if that is taken.
    force
        Replace `out` if it is a run folder. The former one stays until the new one is complete. Its release is not used
        again: a spec with confidential records draws a new one and spends epsilon again.
    allow_python
        Whether a spec may name a Python file of its own model, which is then run.
    progressbar
        Whether to show progress bars.
    echo
        Where lines for the person who waits go.

    Returns
    -------
    RunResult
        The folder (``spec.toml``, the system's files, ``facts.json``, ``report.html``) and the outcome.

    Raises
    ------
    ExistingRunError
        If the folder is taken.
    SpecError
        If the spec names a Python file and `allow_python` is not set.
    KeyboardInterrupt
        If it was interrupted; the text says what was kept.

    Examples
    --------
    >>> from dpbayes.runs import execute, load_spec
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spec = load_spec("models/verifier_threshold.toml")
    ...     result = execute(spec, out=Path(folder, "run"), progressbar=False, echo=lambda line: None)
    ...     sorted(path.name for path in result.folder.iterdir())
    ['facts.json', 'release.json', 'report.html', 'spec.toml', 'trace.nc']
    """
    from dpbayes.report import write_report

    check_allowed(loaded, allow_python=allow_python)
    folder = choose_folder(loaded.name) if out is None else Path(out)
    if out is None:
        _say_price_of_another(loaded, folder, echo)
    check_free(folder, force=force, cost=_cost_again(loaded, folder, "Either"))
    with workspace(folder, loaded.resolved) as partial:
        # A run that finished between that check and the lock has its folder there by now.
        check_free(folder, force=force, cost=_cost_again(loaded, folder, "Either"))
        context = Context(partial, loaded.path.parent, loaded.digest, progressbar, echo)
        try:
            outcome = loaded.module.run(loaded.spec, context)
            write_report(loaded.module.document(loaded.spec, partial), partial)
        except KeyboardInterrupt as stop:
            kept = f" the release is kept in {partial};" if (partial / _RELEASE).exists() else ""
            raise KeyboardInterrupt(f"interrupted;{kept} the same command goes on") from stop
    return RunResult(folder, outcome)


def rebuild_report(folder: Path, *, calibration: Path | None = None) -> Path:
    """Write ``report.html`` and ``facts.json`` of a finished run again, from the files in its folder.

    Parameters
    ----------
    folder
        A run folder.
    calibration
        A study of the spec (`dpbayes sbc`), whose verdict goes on the page; by default ``<folder>-sbc``, if there.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    FileNotFoundError
        If the folder holds no ``spec.toml``, or `calibration` is given and is no finished study.
    InputError
        If the study is of another system.
    """
    from dataclasses import replace

    from dpbayes.report import write_report

    spec = Path(folder) / "spec.toml"
    if not spec.is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no spec.toml")
    loaded = load_spec(spec)
    document = loaded.module.document(loaded.spec, Path(folder))
    beside = Path(folder).with_name(Path(folder).name + "-sbc")
    study = beside if calibration is None and (beside / "ranks.nc").is_file() else calibration
    if study is not None:
        from dpbayes.report.calibrated import calibration_section

        document = replace(document, sections=[*document.sections, calibration_section(folder, study)])
    return write_report(document, Path(folder))


def _say_price_of_another(loaded: LoadedSpec, folder: Path, echo: Callable[[str], None]) -> None:
    """Say so where a run without a folder of its own goes beside a finished one whose release was paid for."""
    first = folder.with_name(loaded.name)
    cost = _cost_again(loaded, first, "This run")
    if folder != first and cost:
        echo(f"{first} is already there, so this run goes to {folder}{cost}")


def _cost_again(loaded: LoadedSpec, folder: Path, subject: str) -> str:
    """Say that running a spec again costs epsilon, and how to fit the former release; nothing where it is free."""
    privacy, release = getattr(loaded.spec, "privacy", None), folder / _RELEASE
    simulated = getattr(privacy, "simulation_seed", None) is not None and getattr(privacy, "ledger", None) is None
    if privacy is None or simulated or not release.is_file():
        return ""
    said = f". {subject} draws a new release and spends epsilon again"
    if "release" not in getattr(type(getattr(loaded.spec, "data", None)), "model_fields", {}):
        return said
    beside = Path(os.path.relpath(release, loaded.path.parent)).as_posix()
    return f'{said}; to fit the one that is there, set data.release = "{beside}" in place of the records and [privacy]'
