"""Simulation-based calibration of a run spec, and the study's folder."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dpbayes._files import write_text, write_whole
from dpbayes.errors import ExistingRunError, SpecError
from dpbayes.report.document import write_report
from dpbayes.runs.execution import RunResult, finished_release
from dpbayes.runs.folder import make_folder
from dpbayes.runs.progress import Progress
from dpbayes.runs.protocol import Calibration
from dpbayes.runs.spec import LoadedSpec

if TYPE_CHECKING:
    from dpbayes.inference.sampling import NutsSettings


def calibration_of(loaded: LoadedSpec, *, n_records: int | None = None) -> Calibration:
    """Return what a study of a spec needs. No confidential record is read, and nothing is compiled."""
    study, spec = loaded.module, loaded.spec
    if n_records is not None and n_records < 1:
        raise SpecError(f"the number of records must be at least 1, got {n_records}")
    if not hasattr(study, "calibration"):
        raise SpecError(f"a run of {spec.system!r} gives a point estimate, no posterior: there is nothing to calibrate")
    design = finished_release(loaded)
    if design is None:
        design = study.design(spec, loaded.path.parent, n_records=n_records)
    found: Calibration = study.calibration(spec, design, loaded.path.parent, n_records)
    return found


def calibrate(
    loaded: LoadedSpec,
    *,
    out: Path | None = None,
    n_simulations: int = 200,
    n_records: int | None = None,
    random_seed: int = 1,
    settings: NutsSettings | None = None,
    n_jobs: int | None = 1,
    progressbar: bool = True,
    echo: Callable[[str], None] = print,
) -> RunResult:
    """Calibrate a spec's model by simulation, and leave a study folder.

    The folder holds ``spec.toml``, ``simulations/``, ``ranks.nc``, ``facts.json`` and ``report.html``.

    Parameters
    ----------
    loaded, out
        A validated spec whose run has a posterior, and the folder; by default ``runs/<name>-sbc``. A stopped study goes
        on in it, and more simulations extend it.
    n_simulations, n_records
        Simulated data sets, each fitted, and the records of each; by default as many as the spec says.
    random_seed, settings, n_jobs
        See `dpbayes.inference.sbc.simulate_and_rank`.
    progressbar, echo
        Whether to show a bar, or signs of life where there is no terminal; prints one line of progress.

    Raises
    ------
    SpecError, ExistingRunError, InputError
        As `calibration_of`; if the folder holds something else, or cannot be made.

    Examples
    --------
    >>> from dpbayes.runs import load_spec
    >>> from dpbayes.inference.sampling import NutsSettings
    >>> import tempfile
    >>> spec = load_spec("models/bloom_audience.toml")
    >>> short = NutsSettings(draws=100, tune=100, chains=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     study = calibrate(
    ...         spec, out=Path(folder, "study"), n_simulations=2, settings=short, progressbar=False,
    ...         echo=lambda line: None,
    ...     )  # fmt: skip
    ...     sorted(path.name for path in study.folder.iterdir())
    ['facts.json', 'ranks.nc', 'report.html', 'simulations', 'spec.toml']
    """
    from dpbayes.inference.sampling import NutsSettings
    from dpbayes.inference.sbc import SBC_SETTINGS, simulate_and_rank
    from dpbayes.report.calibration import calibration_document, judge

    found = calibration_of(loaded, n_records=n_records)
    folder = _folder(loaded, out)
    if settings is None:
        base = SBC_SETTINGS
        settings = NutsSettings(draws=base.draws, tune=base.tune, chains=base.chains, **found.sampling)
    release = finished_release(loaded)
    decided = [loaded.resolved, str(n_records), *([] if release is None else [release.digest])]
    echo(f"calibration: {n_simulations} simulations, {found.design}")
    waiting = Progress(echo) if progressbar and not sys.stderr.isatty() else nullcontext()
    if isinstance(waiting, Progress):
        waiting.at("simulating, fitting and ranking")
    with waiting:
        study = simulate_and_rank(
            found.build_model,
            simulate=found.simulate,
            n_simulations=n_simulations,
            random_seed=random_seed,
            var_names=found.var_names or None,
            n_ranks=min(99, settings.chains * settings.draws),
            settings=settings,
            folder=folder / "simulations",
            label=hashlib.sha256("\n".join(decided).encode()).hexdigest(),
            n_jobs=n_jobs,
            progressbar=progressbar,
        )
    write_text(folder / "spec.toml", loaded.resolved)
    write_whole(folder / "ranks.nc", lambda scratch: study.to_netcdf(scratch, engine="h5netcdf"))
    verdict = judge(study, called=found.called, named=found.named)
    title = loaded.spec.title
    write_report(calibration_document(study, verdict, title=title, design=found.design, settings=settings), folder)
    echo(verdict.summary)
    return RunResult(folder, verdict.passed, verdict.summary)


def _folder(loaded: LoadedSpec, out: Path | None) -> Path:
    """Return the study's folder; one of something else is refused before anything compiles."""
    folder = Path("runs") / f"{loaded.name}-sbc" if out is None else Path(out)
    make_folder(folder)
    if any(folder.iterdir()) and not (folder / "simulations" / "study.json").is_file():
        raise ExistingRunError(f"{folder} holds something else; choose another --out")
    return folder
