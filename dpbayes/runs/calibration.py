"""Calibration studies: simulation from a run spec, the study's folder and page, and what it says on a run's page."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from dpbayes._files import write_text, write_whole
from dpbayes._names import given_name
from dpbayes.errors import ExistingRunError, InputError, SpecError
from dpbayes.inference.convergence import quantities_of, quantity_words
from dpbayes.inference.sampling import NutsSettings
from dpbayes.inference.sbc import SBC_SETTINGS, coverage, plot_ranks, simulate_and_rank, uniformity
from dpbayes.report.compare import differing_settings, read_run, read_settings, show
from dpbayes.report.document import Callout, Document, Fact, Figure, Paragraph, Section, Table, write_report
from dpbayes.runs.execution import RunResult, finished_release
from dpbayes.runs.folder import make_folder
from dpbayes.runs.progress import Progress
from dpbayes.runs.protocol import Calibration
from dpbayes.runs.spec import LoadedSpec

LEVEL = 0.01  # a study fails if its smallest p-value times the number of quantities is below this
_PROBS = (0.5, 0.8, 0.95)
_WORST = 12
_FEW = 100  # simulations


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
    found = calibration_of(loaded, n_records=n_records)
    folder = Path("runs") / f"{loaded.name}-sbc" if out is None else Path(out)
    make_folder(folder)
    if any(folder.iterdir()) and not (folder / "simulations" / "study.json").is_file():
        raise ExistingRunError(f"{folder} holds something else; choose another --out")
    settings = settings or replace(SBC_SETTINGS, **found.sampling)
    release = finished_release(loaded)
    decided = [loaded.resolved, str(n_records), *([] if release is None else [release.digest])]
    echo(f"calibration: {n_simulations} simulations, {found.design}")
    speaks = progressbar and not sys.stderr.isatty()
    with Progress(echo, "simulating, fitting and ranking") if speaks else nullcontext():
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


@dataclass(frozen=True)
class CalibrationVerdict:
    """What a study says, and for each quantity the p-value of uniform ranks and the coverage of 95 % intervals."""

    passed: bool
    summary: str
    p_values: dict[str, float]
    coverages: dict[str, float]
    adjusted_p: float  # the smallest, by Bonferroni's rule
    words: dict[str, str]  # what variables and quantities are called on the page


def judge(
    study: xr.DataTree, *, called: Mapping[str, str] | None = None, named: Mapping[str, Sequence[str]] | None = None
) -> CalibrationVerdict:
    """Judge a study by Bonferroni's rule over all quantities: a right model fails one study in a hundred at most."""
    ranks = study["prior_sbc"].to_dataset()
    words = {name: given_name(name).replace("_", " ") for name in map(str, ranks.data_vars)} | dict(called or {})
    words |= quantity_words(ranks, map(str, ranks.data_vars), named or {}, words)
    p_values, coverages = uniformity(study), coverage(study)
    worst = min(p_values, key=lambda name: p_values[name])
    adjusted = min(1.0, p_values[worst] * len(p_values))
    passed = adjusted >= LEVEL
    mean = float(np.mean(list(coverages.values())))
    size = study["prior_sbc"].sizes["simulation"]
    verdict = "No miscalibration found" if passed else "Not calibrated"
    summary = (
        f"{verdict}: over {size} simulations and {len(p_values)} quantities the smallest p-value of uniform ranks is "
        f"{p_values[worst]:.2g} at {words[worst]} ({adjusted:.2g} after Bonferroni); 95 % intervals covered "
        f"{100 * mean:.1f} % on average, {100 * min(coverages.values()):.1f} to {100 * max(coverages.values()):.1f} %."
    )
    return CalibrationVerdict(passed, summary, p_values, coverages, adjusted, words)


def calibration_document(
    study: xr.DataTree, verdict: CalibrationVerdict, *, title: str, design: str, settings: NutsSettings
) -> Document:
    """Build the page of a study: ECDF plots with bands, coverage, the worst quantities, and how the fits went."""
    size = study["prior_sbc"].sizes["simulation"]
    good = int(study["fit"]["passed"].sum())
    seconds = float(np.median(study["fit"]["seconds"]))
    caption = (
        "Cumulative share of the ranks less that of uniform ones, a line per quantity. A calibrated quantity's whole "
        "line stays in the band with probability 95 %, so of many lines a few leave it. Hill then valley: intervals "
        "too narrow; valley then hill: too wide; on one side throughout: biased."
    )
    alt = "Cumulative shares of the ranks less uniform ones, with simultaneous 95 % bands."
    worst = f"{verdict.adjusted_p:.2g}"
    return Document(
        title=f"{title}: calibration",
        question=f"Are posterior intervals right on average over the prior? Design: {design}.",
        answer=verdict.summary,
        verdict=_callout(verdict, size, good),
        headline=[
            Fact("n_simulations", "simulations", size, f"{size}"),
            Fact("n_quantities", "quantities", len(verdict.p_values), f"{len(verdict.p_values)}"),
            Fact("adjusted_p", "smallest p-value, after Bonferroni", verdict.adjusted_p, worst),
            Fact("fits_passed", "fits that passed the convergence check", good, f"{good} of {size}"),
        ],
        sections=[_coverage_section(study, verdict), _fits_section(study)],
        picture=Figure(plot_ranks(study, called=verdict.words), caption, alt),
        provenance={
            "study seed": str(study.attrs["random_seed"]),
            "ranked among": f"{study.attrs['n_ranks']} draws",
            "seconds per fit (median)": f"{seconds:.1f}",
            **{f"sampler {name}": str(value) for name, value in settings.to_dict().items()},
        },
        facts={"design": design, "p_values": verdict.p_values, "coverage_95": verdict.coverages},
    )


def _callout(verdict: CalibrationVerdict, size: int, good: int) -> Callout:
    """Return the verdict with what weakens it."""
    if not verdict.passed:
        return Callout("bad", "Not calibrated: intervals of this model do not hold their level.")
    cautions = []
    if size < _FEW:
        cautions.append(f"{size} simulations show gross errors alone; -n 200 tells a coverage to 1.5 points.")
    if good < 0.9 * size:
        cautions.append(
            f"{good} of {size} fits passed the convergence check; more --draws and --tune make their ranks reliable."
        )
    return Callout("warning" if cautions else "good", "No miscalibration found.", cautions)


def _coverage_section(study: xr.DataTree, verdict: CalibrationVerdict) -> Section:
    by_prob = {prob: coverage(study, prob=prob) for prob in _PROBS}
    rows: list[list[Any]] = []
    dataset = study["prior_sbc"].to_dataset()
    for name in map(str, dataset.data_vars):
        labels = list(map(str, quantities_of(dataset, name)))
        p = min(verdict.p_values[label] for label in labels)
        shares = [np.array([by_prob[prob][label] for label in labels]) for prob in _PROBS]
        rows.append([verdict.words[name], len(labels), p, *(float(s.mean()) for s in shares), float(shares[-1].min())])
    columns = ["variable", ("quantities", "d"), ("smallest p-value", ".3g", "p_value")]
    columns += [(f"{100 * prob:g} % intervals", ".1%", f"coverage_{prob:g}") for prob in _PROBS]
    columns += [("95 % intervals, worst", ".1%", "coverage_worst")]
    ordered = sorted(verdict.p_values, key=lambda label: verdict.p_values[label])[:_WORST]
    few = ["quantity", ("p-value", ".3g", "p_value"), ("95 % coverage", ".1%", "coverage")]
    worst = [(verdict.words[label], verdict.p_values[label], verdict.coverages[label]) for label in ordered]
    text = (
        "Parameters were drawn from the prior, data given them, and the model was fitted to those data. If model and "
        "sampler are right, the rank of each true value among its posterior draws is uniform."
    )
    caption = "Variables: the smallest p-value among their quantities, and mean coverage of central intervals"
    tables = [Table("variables", caption, columns, rows)]
    tables.append(Table("worst", "Quantities with the smallest p-values", few, worst))
    return Section("Ranks and coverage", [Paragraph(text), *tables])


def _fits_section(study: xr.DataTree) -> Section:
    fit = study["fit"].to_dataset()
    told = {"rhat": "largest R-hat", "ess_bulk": "fewest effective draws"}
    told |= {"divergent_share": "share of divergent draws", "seconds": "seconds"}
    rows: list[list[Any]] = []
    for name, words in told.items():
        if np.isfinite(fit[name]).any():
            levels = (0.5, 0.1, 0.0) if name == "ess_bulk" else (0.5, 0.9, 1.0)
            rows.append([words, *(float(np.nanquantile(fit[name], level)) for level in levels)])
    columns = ["of a fit", ("median", ".3g"), ("no worse in 90 %", ".3g", "q90"), ("worst", ".3g")]
    text = (
        "A fit that failed the convergence check keeps its ranks: leaving it out would bias the rest. A fit that found "
        "no start counts against its quantities."
    )
    return Section("The fits", [Paragraph(text), Table("fits", "Convergence and time of the fits", columns, rows)])


def calibration_section(run: str | Path, study: str | Path) -> Section:
    """Build the section on calibration of a run's page (`dpbayes report RUN --sbc STUDY`)."""
    ours, theirs = read_settings(Path(run)), read_run(study)
    if not (Path(study) / "ranks.nc").is_file():
        raise FileNotFoundError(f"{study} is no calibration study: it has no ranks.nc; make one with `dpbayes sbc`")
    system, calibrated = ours.get("system"), theirs.settings.get("system")
    if system != calibrated:
        raise InputError(f"the study calibrates {calibrated!r} and the run is of {system!r}; calibrate the run's spec")
    verdict = theirs.facts["verdict"]
    said = (
        f"{theirs.facts['answer']} The study draws truth and data from the spec's prior, fits each data set, and ranks "
        "every truth among its posterior draws; it reads no confidential record. Its own page has the plots."
    )
    # Sampler settings, synthesis and seeds are the study's own; what was calibrated is the design and the model.
    differing = {
        name: values
        for name, values in differing_settings([ours, theirs.settings]).items()
        if name.partition(".")[0] not in ("sampling", "synthesis") and not name.endswith("seed")
    }
    columns = ["setting", "this run", "the study"]
    rows = [(name, *map(show, values)) for name, values in differing.items()]
    differs = Table("calibration_differs", "The study's design is not this run's", columns, rows)
    cited = Callout(verdict["tone"], verdict["title"], verdict["lines"])
    return Section("Are the intervals calibrated?", [cited, Paragraph(said), *([differs] if rows else [])])
