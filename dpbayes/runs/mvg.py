"""Runs of the MVG system: the covariance study, the regression study, and a noise-aware regression."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dpbayes.runs.execution import Context, Outcome
from dpbayes.runs.folder import read_json, write_text
from dpbayes.runs.simulated import refuse_seed
from dpbayes.runs.spec import RunSpec, Section

if TYPE_CHECKING:
    from dpbayes.report import Document

__all__ = ["Spec", "document", "run"]

STUDY, RELEASE, TRACE, TRUTH = "study.json", "release.json", "trace.nc", "truth.json"


class Data(Section):
    """Where the records come from: generated patients or a file."""

    embedded: Literal["patients"] | None = None
    """Patients that dpbayes generates. They are invented, so the data are public."""
    n: int | None = Field(default=None, ge=40)
    """How many patients to generate."""
    seed: int = Field(default=1, ge=0)
    """Seed of the generated patients."""
    file: str | None = None
    """A CSV or Parquet file of records, beside the spec."""
    layout: Literal["table", "synthea"] = "table"
    """Whether the file is one row a record, or Synthea's vitals with one row a patient and day: of synthetic persons,
    since which of them are complete, and with them the public number of records, hangs on their values."""
    truth_public: bool = False
    """Whether a file's records are public. The studies measure errors against exact answers and need it, as does a
    noise seed."""
    ranges: dict[str, list[float]] | None = None
    """Public bounds [lower, upper] of each column of a file; those of the patients by default."""

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        if (self.embedded is None) == (self.file is None):
            raise ValueError("give exactly one of embedded and file")
        if self.embedded is not None and self.n is None:
            raise ValueError("embedded patients need n, how many to generate")
        if self.embedded is not None and (self.ranges is not None or self.truth_public):
            raise ValueError("embedded patients are public and have known ranges; leave truth_public and ranges out")
        if self.layout == "synthea" and not self.truth_public:
            raise ValueError(
                'layout = "synthea" counts the patients whose values are complete, so their number is no public one; '
                "it is for Synthea's synthetic persons, with truth_public = true"
            )
        for name, bounds in (self.ranges or {}).items():
            if len(bounds) != 2 or not bounds[0] < bounds[1]:
                raise ValueError(f"ranges.{name} must be [lower, upper] with lower < upper, got {bounds}")
        return self


class Privacy(Section):
    """The guarantee of every release."""

    epsilon: float = Field(gt=0)
    """Privacy-loss parameter."""
    delta: float = Field(gt=0, lt=1)
    """Failure probability, well below one over the number of records."""
    adjacency: Literal["replace-one"] = "replace-one"
    """The relation between neighbouring data sets; the number of records is public."""
    simulation_seed: int | None = Field(default=None, ge=0)
    """Seed of simulated noise. The studies need it; a regression without it draws from OpenDP. It gives the noise away,
    so that with a file it needs data.truth_public."""
    ledger: str | None = None
    """For a regression: budget book, beside the spec, in which the release is reserved before noise is drawn."""


class CovarianceStudy(Section):
    """Covariance query against identity query."""

    sizes: list[int] = Field(min_length=1)
    """Sample sizes."""
    draws: int = Field(default=25, ge=2)
    """Draws a mechanism."""


class SvrStudySection(Section):
    """Support vector regression of the last column of the ranges on the others."""

    epsilons: list[float] = Field(min_length=1)
    """Guarantees to compare, in place of [privacy] epsilon."""
    draws: int = Field(default=25, ge=2)
    """Draws a mechanism."""
    tuning: float = Field(default=0.15, gt=0, lt=1)
    """Part of the records for tuning."""
    holdout: float = Field(default=0.15, gt=0, lt=1)
    """Part of the records for the final error."""
    favoured: list[str] = Field(min_length=1)
    """Columns that the binary allocation favours."""
    share: float = Field(default=0.8, gt=0, lt=1)
    """Part of the precision they get."""
    costs: list[float] = Field(default=[0.01, 0.1, 1.0], min_length=1)
    """Grid of C."""
    gammas: list[float] = Field(default=[0.3, 1.0], min_length=1)
    """Grid of gamma, relative to one over (features times variance)."""
    public_seed: int = Field(default=99, ge=0)
    """Seed of the public patients from which the weights of the optimal allocation are taken."""


class Regression(Section):
    """Noise-aware linear regression from a released moment matrix."""

    predictors: list[str] = Field(min_length=1)
    """Columns to regress on."""
    response: str
    """Column to explain."""
    intercept: float | None = Field(default=None, gt=0)
    """The intercept's constant, in half-widths of the ranges; the square root of the number of columns by default."""
    draws: int = Field(default=1000, ge=10)
    """Draws kept a chain."""
    tune: int = Field(default=1000, ge=10)
    """Draws spent on adaptation, a chain."""
    chains: int = Field(default=4, ge=1)
    """Chains; convergence is judged across them."""
    target_accept: float = Field(default=0.9, gt=0, lt=1)
    """Acceptance rate that the step size aims at."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampler (not of the noise)."""


class Spec(RunSpec):
    """A run of the MVG system: one of its three kinds."""

    system: Literal["mvg"]
    """The system's name."""
    data: Data
    privacy: Privacy
    covariance: CovarianceStudy | None = None
    svr: SvrStudySection | None = None
    regression: Regression | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Spec:
        given = [name for name in ("covariance", "svr", "regression") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of [covariance], [svr] and [regression]; got {' and '.join(given) or 'none'}"
            )
        if self.regression is None:
            if self.data.file is not None and not self.data.truth_public:
                raise ValueError(
                    "a study compares with exact answers and needs public records; set data.truth_public = true"
                )
            if self.privacy.simulation_seed is None:
                raise ValueError("a study simulates its noise; set privacy.simulation_seed")
        file = None if self.data.file is None else "file"
        refuse_seed(self.privacy.simulation_seed, file=file, public=self.data.truth_public, ledger=self.privacy.ledger)
        return self

    @model_validator(mode="after")
    def _columns_are_known(self) -> Spec:
        from dpbayes.data.patients import PATIENT_RANGES

        known = list(self.data.ranges or PATIENT_RANGES)
        if self.regression is not None:
            names = [*self.regression.predictors, self.regression.response]
            _check_columns(names, known, where="regression")
        if self.svr is not None:
            _check_columns(self.svr.favoured, known, where="svr.favoured")
        return self


def _check_columns(names: list[str], known: list[str], *, where: str) -> None:
    """Refuse columns that are named twice, or for which no range is known."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{where} names a column twice: {', '.join(repeated)}; name each once")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"no range is known for {', '.join(unknown)} of {where}; add it to data.ranges or choose of {known}"
        )


def run(spec: Spec, context: Context) -> Outcome:
    """Run the stage that the folder still lacks.

    Parameters
    ----------
    spec
        The validated spec.
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        The convergence gate's verdict for a regression; a study always passes.
    """
    if spec.regression is not None:
        from dpbayes.runs.mvg_regression import run_regression

        return run_regression(spec, context)
    path = context.folder / STUDY
    if path.exists():
        context.echo("study: already done, used again")
    else:
        started = time.perf_counter()
        study = _covariance(spec, context) if spec.covariance is not None else _svr(spec, context)
        made = {"seconds": time.perf_counter() - started, "spec_digest": context.spec_digest}
        write_text(path, json.dumps(study | {"provenance": made}))
    return Outcome(True, "The study is a simulation; there was nothing to converge.")


def document(spec: Spec, folder: Path) -> Document:
    """Build the report from the files of a run folder.

    Parameters
    ----------
    spec
        The run's spec.
    folder
        A run folder with ``study.json``, or with ``release.json`` and ``trace.nc``.

    Returns
    -------
    Document
        The report.
    """
    from dpbayes.runs.mvg_document import covariance_document, svr_document
    from dpbayes.runs.mvg_regression_document import regression_document

    if spec.covariance is not None:
        return covariance_document(spec, read_json(folder / STUDY))
    if spec.svr is not None:
        return svr_document(spec, read_json(folder / STUDY))
    return regression_document(spec, folder)


def _covariance(spec: Spec, context: Context) -> dict[str, Any]:
    import numpy as np

    from dpbayes.mvg import covariance_study
    from dpbayes.runs.mvg_records import feature_ranges, load_records, record_matrix

    assert spec.covariance is not None
    frame, ranges = load_records(spec, context.beside)
    results = covariance_study(
        record_matrix(frame),
        feature_ranges(ranges, frame.columns),
        sizes=spec.covariance.sizes,
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        draws=spec.covariance.draws,
        rng=np.random.default_rng(spec.privacy.simulation_seed),
    )
    return {"features": frame.columns, "results": [asdict(row) for row in results]}


def _svr(spec: Spec, context: Context) -> dict[str, Any]:
    import numpy as np

    from dpbayes.data.patients import patients
    from dpbayes.mvg import SvrConfig, svr_study
    from dpbayes.mvg.svr import public_weights
    from dpbayes.runs.mvg_records import feature_ranges, load_records, record_matrix

    assert spec.svr is not None
    frame, ranges = load_records(spec, context.beside)
    public = patients(2_000, spec.svr.public_seed)
    features = feature_ranges(ranges, frame.columns)
    same = frame.columns == public.columns
    weights = public_weights(record_matrix(public), features) if same else np.ones(len(frame.columns))
    config = SvrConfig(
        epsilons=tuple(spec.svr.epsilons),
        delta=spec.privacy.delta,
        draws=spec.svr.draws,
        tuning=spec.svr.tuning,
        holdout=spec.svr.holdout,
        favoured=tuple(frame.columns.index(name) for name in spec.svr.favoured),
        share=spec.svr.share,
        costs=tuple(spec.svr.costs),
        gammas=tuple(spec.svr.gammas),
    )
    rng = np.random.default_rng(spec.privacy.simulation_seed)
    study = svr_study(record_matrix(frame), features, weights=weights, config=config, rng=rng, progress=context.echo)
    return {"features": frame.columns, "weights": weights.tolist(), "study": asdict(study)}
