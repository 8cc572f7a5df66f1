"""Run a spec from beginning to end, or say what a run of it will do: the steps that all systems have in common."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpbayes import __version__
from dpbayes._arguments import check_memory, shown
from dpbayes._files import write_text
from dpbayes.data.domain import check_rows
from dpbayes.data.records import require_file
from dpbayes.errors import ExistingRunError, InputError
from dpbayes.privacy.release import NoisyTable, Release, in_a_line, read_release
from dpbayes.report.document import Document, plain, show_range, write_report
from dpbayes.runs.folder import check_free, choose_folder, read_json, remove_results, workspace
from dpbayes.runs.progress import Progress
from dpbayes.runs.protocol import Context
from dpbayes.runs.registry import SAVED, check_allowed
from dpbayes.runs.spec import DataSection, LoadedSpec, load_spec

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.privacy.ledger import Ledger
    from dpbayes.runs.spec import PublishedSpec, RunSpec

RELEASE, TRACE, RESULT = "release.json", "trace.nc", "result.json"
WORKING_OUT, TRYING = "working out the noise that the spec asks for", "building the model and trying it"
_MANY_DRAWS = 100_000  # beyond which it is asked whether memory holds them
_MOST_TABLES = 12  # that are listed one by one before a run
_NOTES = {
    "published": "; post-processing of a published release, which costs nothing",
    "simulation": "; SIMULATION: a seeded generator drew the noise, no privacy guarantee",
}
_NOT_KEPT = {RELEASE, RESULT, "facts.json"}  # of the JSON files in a folder; `Context.keep` wrote the others


@dataclass(frozen=True)
class RunResult:
    """A finished folder, whether what it holds passed its check, and the verdict in words."""

    folder: Path
    passed: bool
    summary: str


def execute(
    loaded: LoadedSpec,
    *,
    out: Path | None = None,
    force: bool = False,
    allow_python: bool = False,
    progressbar: bool = True,
    echo: Callable[[str], None] = print,
    ledger_head: str | None = None,
) -> RunResult:
    """Run a spec and leave a run folder: spec, release, ``trace.nc`` or ``result.json``, facts and page.

    Parameters
    ----------
    loaded, out
        A validated spec, and the run folder; by default ``runs/<name of the spec>``, with a number if that is taken.
    force
        Replace `out` if it is a run folder. The former one stays until the new one is complete. Its release is not used
        again: a spec with confidential records draws a new one and spends epsilon again.
    allow_python
        Whether a spec may name a Python file of its own model, which is then run.
    progressbar, echo
        Whether to show progress: a line that is rewritten on a terminal, else one per tenth and per ten seconds; and
        what prints one line of it.
    ledger_head
        Digest of an entry that the ledger must hold, in place of the spec's ``privacy.ledger_head``.

    Raises
    ------
    ExistingRunError, SpecError
        If the folder is taken; if the spec names a Python file and `allow_python` is not set.
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
    ['facts.json', 'release.json', 'report.html', 'spec.toml', 'trace.nc', 'warnings.json']
    """
    check_allowed(loaded, allow_python=allow_python)
    folder = choose_folder(loaded.name) if out is None else Path(out)
    first = Path("runs", loaded.name)
    if out is None and folder != first and (cost := _cost_again(loaded, first, "This run")):
        echo(f"{first} is already there, so this run goes to {folder}{cost}")
    check_free(folder, force=force, cost=_cost_again(loaded, folder, "Either"))
    check_files(loaded, folder)
    if ledger_head is not None:
        open_ledger_of(loaded, ledger_head)
    with workspace(folder, loaded.resolved, partial(_draws_the_same, loaded)) as unfinished:
        # A run that finished between that check and the lock has its folder there by now.
        check_free(folder, force=force, cost=_cost_again(loaded, folder, "Either"))
        progress = Progress(echo) if progressbar else None
        said = echo if progress is None else progress.say
        context = Context(unfinished, loaded.path.parent, said, progress)
        own, saved = loaded.spec.setting("model.file"), unfinished / SAVED
        if own is not None and saved.exists() and saved.read_text("utf-8") != (context.beside / own).read_text("utf-8"):
            remove_results(unfinished)
        released = (unfinished / RELEASE).exists()
        try:
            with progress or nullcontext():
                passed, summary = _run(loaded, context, ledger_head)
        except KeyboardInterrupt as stop:
            kept = f" the release is kept in {unfinished};" if (unfinished / RELEASE).exists() else ""
            notes = " ".join(getattr(stop, "__notes__", ()))
            if notes and not kept:
                notes = f"interrupted. {notes} The same command draws a release anew, and pays for that one too"
            raise KeyboardInterrupt(notes or f"interrupted;{kept} the same command goes on") from stop
        except Exception as error:
            if not released and (unfinished / RELEASE).exists():
                error.add_note(f"The release was drawn before this and is kept in {unfinished}; a run goes on with it.")
            raise
    return RunResult(folder, passed, summary)


def rebuild_report(folder: Path, *, calibration: Path | None = None) -> Path:
    """Write ``report.html`` and ``facts.json`` of a finished run again, from its files; return the page.

    `calibration` is a study of the spec (`dpbayes sbc`), whose verdict goes on the page; by default that in
    ``<folder>-sbc``, if there. `FileNotFoundError` if the folder holds no ``spec.toml`` or `calibration` is no finished
    study, `InputError` if the study is of another system.
    """
    folder = Path(folder)
    if not (folder / "spec.toml").is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no spec.toml")
    document = _document(load_spec(folder / "spec.toml"), folder)
    beside = folder.with_name(folder.name + "-sbc")
    study = beside if calibration is None and (beside / "ranks.nc").is_file() else calibration
    if study is not None:
        from dpbayes.runs.calibration import calibration_section

        document = replace(document, sections=[*document.sections, calibration_section(folder, study)])
    return write_report(document, folder)


def open_ledger_of(loaded: LoadedSpec, head: str | None = None) -> Ledger | None:
    """Return the ledger that a spec names, None if it names none; an older copy of it is refused."""
    from dpbayes.privacy.ledger import open_ledger

    name = loaded.spec.setting("privacy.ledger")
    head = loaded.spec.setting("privacy.ledger_head") if head is None else head
    if name is None and head is not None:
        said = f"ledger_head {shown(head)} is an entry of privacy.ledger, and the spec names none"
        raise InputError(f"{said}; name it, or leave the head out")
    if name is None:
        return None
    beside, path = loaded.path.parent, Path(name)
    # Two ledgers of one name in two folders have two heads.
    kept = "-".join(part for part in path.parts if part not in (path.anchor, ".."))
    return open_ledger(beside / path, expected_head=head, head_file=beside / f"{kept}.head")


def rehearsed(loaded: LoadedSpec, ledger: Ledger | None) -> Any | None:
    """Return the release that a spec would make, of placeholder counts; refuse one that the ledger would refuse."""
    from dpbayes.privacy.ledger import Rehearsal

    rehearsal = None if ledger is None else Rehearsal(ledger)
    return loaded.module.design(cast("Any", loaded.spec), loaded.path.parent, ledger=rehearsal)


def finished_release(loaded: LoadedSpec) -> Any | None:
    """Return the release that a spec names, None if it draws its own."""
    name = loaded.spec.given_release
    if name is None:
        return None
    published = loaded.spec.setting("data.published") is not None
    path = require_file(loaded.path.parent / name, setting="data.published" if published else "data.release")
    if published:
        return cast("PublishedSpec", loaded.spec).published_release(loaded.path.parent)
    return _reader(loaded)(path)


def _run(loaded: LoadedSpec, context: Context, ledger_head: str | None = None) -> tuple[bool, str]:
    """Run the stages that the folder still lacks, and write the page."""
    from dpbayes.inference.convergence import Verdict

    study, spec, echo = loaded.module, loaded.spec, context.echo
    release = _release(loaded, context, ledger_head)
    if release is not None:
        echo(f"release: {described(loaded, release)}{_NOTES.get(release.sampler, '')}")
    context.at("building the model")
    result, made = _fit(loaded, release, context)
    check = Verdict.from_json(made["convergence"]).summary() if "convergence" in made else ""
    if check:
        echo(check)
    if hasattr(study, "synthesize"):
        context.at("drawing synthetic data")
        study.synthesize(spec, release, result, context)
    context.at("writing the page")
    document = _document(loaded, context.folder)
    words = " ".join([document.verdict.title.rstrip(".") + ".", *document.verdict.lines])
    if not check:
        echo(words)
    write_report(document, context.folder)
    return document.verdict.tone != "bad", check or words


def _release(loaded: LoadedSpec, context: Context, ledger_head: str | None = None) -> Any | None:
    """Draw the release, copy the one that the spec names, or read the one that was drawn."""
    study, spec = loaded.module, loaded.spec
    kept = kept_release(context.folder, loaded)
    if kept is not None:
        context.echo("release: already drawn, used again")
        if not _is_fitted(context.folder):  # or else these settings were tried
            try_fit(loaded, kept, context)
        return kept
    release = finished_release(loaded)
    if release is not None:
        try_fit(loaded, release, context)
    else:
        ledger = open_ledger_of(loaded, ledger_head)
        context.at(WORKING_OUT)
        design = rehearsed(loaded, ledger)
        if design is None:
            return None
        context.echo("model: trying it on placeholder counts, before anything is released")
        context.at(TRYING)
        try_fit(loaded, design, context)
        if spec.confidential_file is not None:
            context.echo(f"records: counting {spec.confidential_file}")
        context.at("counting and drawing the noise")
        seed = spec.setting("privacy.simulation_seed")
        rng = None if seed is None else np.random.default_rng(seed)  # None for OpenDP
        release = study.release(spec, context, rng=rng, ledger=ledger)
    try:
        release.write(context.folder / RELEASE)
    except BaseException as error:
        if spec.setting("privacy.ledger") is not None:
            error.add_note("The release was drawn and its cost is spent, but it is not on disk.")
        raise
    return release


def try_fit(loaded: LoadedSpec, design: Any, context: Context) -> Any | None:
    """Return the model of a design, if the system has one, and refuse what a later stage would refuse."""
    synthesis = loaded.spec.setting("synthesis")
    if isinstance(design, Release) and synthesis is not None and getattr(synthesis, "n_datasets", 1) > 0:
        check_rows(synthesis.n_rows or design.size, design.domain)
    tried = getattr(loaded.module, "try_fit", None)
    model = None if tried is None else tried(loaded.spec, design, context)
    draws = asked_draws(loaded.spec)
    if model is not None and draws > _MANY_DRAWS:
        what = f"{draws:,} draws of {recorded_numbers(model):,} numbers each"
        check_memory(8.0 * draws * recorded_numbers(model), what, remedy="lower draws or chains")
    return model


def asked_draws(spec: RunSpec) -> int:
    """Return the draws that a spec asks for, of all chains together; 0 where it leaves their number to the release."""
    return (spec.setting("sampling.draws") or 0) * (spec.setting("sampling.chains") or 0)


def recorded_numbers(model: pm.Model) -> int:
    """Return how many numbers a draw of a model's variables has."""
    shapes = [*model.eval_rv_shapes().values(), *(variable.type.shape for variable in model.deterministics)]
    return sum(math.prod(shape) for shape in shapes if None not in shape)


def kept_release(folder: Path, loaded: LoadedSpec) -> Any | None:
    """Return the release that a folder holds, unless the one that the spec names is another by now."""
    if not (folder / RELEASE).exists():
        return None
    kept, given = _reader(loaded)(folder / RELEASE), loaded.spec.given_release
    named = None if given is None else loaded.path.parent / given
    if named is None or not named.exists() or cast("Any", finished_release(loaded)).digest == kept.digest:
        return kept
    if _is_fitted(folder):
        raise ExistingRunError(
            f"{named.name} has changed since {folder} was begun; restore it to finish that run, or choose another --out"
        )
    return None


def _is_fitted(folder: Path) -> bool:
    return (folder / TRACE).exists() or (folder / RESULT).exists()


def _draws_the_same(loaded: LoadedSpec, begun: str) -> bool:
    """Return whether the spec of an unfinished run drew the release that this one would draw."""
    try:
        former = type(loaded.spec).model_validate(tomllib.loads(begun))
    except ValueError:  # of another system, or of another version
        return False
    return former.release_settings == loaded.spec.release_settings


def _fit(loaded: LoadedSpec, release: Any, context: Context) -> tuple[Any, Mapping[Any, Any]]:
    """Fit and write the result, or read that of a run that was stopped later on."""
    from dpbayes.inference.schema import annotate, write_trace

    folder = context.folder
    if _is_fitted(folder):
        context.echo("fit: already done, used again")
        return _read_result(folder)
    started = time.perf_counter()
    result = loaded.module.fit(loaded.spec, release, context)
    if isinstance(result, dict):
        made: dict[str, Any] = {"dpbayes_version": __version__, "spec_digest": loaded.digest}
        made["created_at"] = datetime.now(UTC).isoformat(timespec="seconds")
        made["sampling_seconds"] = time.perf_counter() - started
        write_text(folder / RESULT, json.dumps({"made": made, "result": plain(result)}))
    else:
        cost = {} if release is None else {"release_digest": release.digest, "privacy_record": release.privacy_record}
        write_trace(annotate(result, spec_digest=loaded.digest, **cost), folder / TRACE)
    return _read_result(folder)


def _read_result(folder: Path) -> tuple[Any, Mapping[Any, Any]]:
    """Return what was fitted, and how it was made."""
    from dpbayes.inference.schema import read_trace

    if (folder / TRACE).exists():
        trace = read_trace(folder / TRACE)
        return trace, trace.attrs
    held = read_json(folder / RESULT)
    return held["result"], held["made"]


def _document(loaded: LoadedSpec, folder: Path) -> Document:
    """Build the page from the files of a run folder."""
    from dpbayes.report.frame import framed

    study, spec = loaded.module, loaded.spec
    release = _reader(loaded)(folder / RELEASE) if (folder / RELEASE).exists() else None
    result, made = _read_result(folder)
    kept = {path.stem: read_json(path) for path in sorted(folder.glob("*.json")) if path.name not in _NOT_KEPT}
    own = folder / SAVED
    if own.exists():
        made = {**made, "model_digest": hashlib.sha256(own.read_bytes()).hexdigest()}
    trace = None if isinstance(result, dict) else result
    words = {"title": spec.title, "question": spec.question}
    return framed(study.sections(spec, release, result, kept), release=release, trace=trace, made=made, **words)


def _reader(loaded: LoadedSpec) -> Callable[[Path], Any]:
    return getattr(loaded.module, "read_release", read_release)


def described(loaded: LoadedSpec, release: Any) -> str:
    """Return a release in a line, in every system with what it protects."""
    describe = getattr(loaded.module, "describe", lambda spec, release: in_a_line(release))
    protects = None if getattr(release, "publication", None) is not None else getattr(release, "protects", None)
    return f"{describe(loaded.spec, release)}{f', protects {protects}' if protects else ''}"


def check_files(loaded: LoadedSpec, folder: Path) -> None:
    """Refuse a spec whose files are not there, but for those that a release in the partial folder stands for."""
    data = loaded.spec.setting("data")
    if not isinstance(data, DataSection):
        return
    folder = folder.resolve()  # a spec in the working directory lies in ".", which has no name
    drawn = (folder.with_name(folder.name + ".partial") / RELEASE).exists()
    for key in (*data.files, "release"):
        name = data.path_of(key)
        if name is not None and not (drawn and key in (data.confidential, "release")):
            require_file(loaded.path.parent / name, setting=f"data.{key}", source=data.source)


def _cost_again(loaded: LoadedSpec, folder: Path, subject: str) -> str:
    """Say that running a spec again costs epsilon, and how to fit the former release; nothing where it is free."""
    spec, release = loaded.spec, folder / RELEASE
    simulated = spec.setting("privacy.simulation_seed") is not None and spec.setting("privacy.ledger") is None
    if spec.setting("privacy") is None or simulated or not release.is_file():
        return ""
    said = f". {subject} draws a new release and spends epsilon again"
    if "release" not in getattr(type(spec.setting("data")), "model_fields", {}):
        return said
    beside = Path(os.path.relpath(release, loaded.path.parent)).as_posix()
    return f'{said}; to fit the one that is there, set data.release = "{beside}" in place of the records and [privacy]'


def plan_lines(loaded: LoadedSpec, at: Callable[[str], None] = lambda stage: None) -> list[str]:
    """Return what a run will release, fit and charge, and refuse what it would refuse; `at` hears each stage."""
    spec = cast("Any", loaded.spec)
    check_files(loaded, loaded.path.parent)
    ledger = open_ledger_of(loaded)
    at(WORKING_OUT)
    given = finished_release(loaded)
    design = rehearsed(loaded, ledger) if given is None else given
    if design is None:
        return ["release: nothing is released"]
    known = spec.confidential_file is None
    lines = [f"release: {described(loaded, design)}", *_table_lines(design, known=known)]
    stated = getattr(given, "publication", None)
    if stated is not None:
        from dpbayes.privacy.overlap import check_stated_noise

        said = f"{stated.publisher}, {stated.date}, {stated.source}; stated mechanism: {stated.mechanism}"
        lines.append(f"published: {said}")
        lines.append("privacy: post-processing of a published release; this run costs nothing and charges no ledger")
        lines += [f"stated noise: {line}" for line in check_stated_noise(cast("Release", given)).lines]
    elif given is not None:
        lines.append("privacy: the release was paid for when it was made; this run costs nothing")
    elif ledger is not None:
        left = ledger.remaining()
        lines.append(f"ledger: {spec.privacy.ledger} has epsilon {left.epsilon:g} and delta {left.delta:g} left")
    at(TRYING)
    return lines + _model_lines(loaded, design)


def _table_lines(design: Any, *, known: bool) -> list[str]:
    """Say how large the noise is in every table, beside a typical count where the number of records is known."""
    if not isinstance(design, Release) or design.unit != "record":
        return []
    if len(design.tables) > _MOST_TABLES:
        sizes = [table.counts.size for table in design.tables]
        many = f", {show_range([design.size / size for size in sizes], ',.3g')} records per cell" if known else ""
        spread = _spread(design.tables)
        return [f"  tables of {min(sizes):,} to {max(sizes):,} cells; {spread} in every cell{many}"]
    lines = []
    for table in design.tables:
        size = table.counts.size
        typical = f", beside {design.size / size:,.0f} records per cell on average" if known else ""
        law = "" if table.sensitivity is not None else f"{table.noise.words} "
        held = f", {table.withheld.sum():,} held back below {table.threshold:g}" if table.threshold is not None else ""
        lines.append(f"  {table.label}: {size:,} cells, {law}{_spread([table])} in each{held}{typical}")
    return lines


def _spread(tables: Sequence[NoisyTable]) -> str:
    ends = [math.sqrt(end) for table in tables for end in (table.variances.min(), table.variances.max())]
    return f"noise of standard deviation {show_range(ends, ',.3g')}"


def _model_lines(loaded: LoadedSpec, design: Any) -> list[str]:
    """Build the model on the design, and say how large it and its draws are."""
    study, spec = loaded.module, cast("Any", loaded.spec)
    if spec.setting("model.file") is not None:
        return [f"model: {spec.model.file}, which is not run here"]
    with TemporaryDirectory() as folder:
        model = try_fit(loaded, design, Context(Path(folder), loaded.path.parent, echo=lambda line: None))
    if model is None:
        return []
    unknowns = sum(math.prod(value.shape) for value in model.initial_point().values())
    expected = [f"fit: {study.expected_cost(spec, design)}"] if hasattr(study, "expected_cost") else []
    kept = ""
    if draws := asked_draws(spec):
        size = 8e-9 * draws * recorded_numbers(model)
        kept = f", {draws:,} draws in {spec.sampling.chains} chains; they take {size:.2g} GB at least"
    return [f"model: {unknowns:,} unknowns{kept}", *expected]
