"""Runs of the verifier: count partitions, release, answer; or the operating characteristics of a design."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dpbayes.runs.execute import Context, Outcome
from dpbayes.runs.folder import write_text
from dpbayes.runs.spec import RunSpec, Section

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy import Release
    from dpbayes.report import Document

__all__ = ["Spec", "document", "run"]

RELEASE, TRACE, SURFACE = "release.json", "trace.nc", "surface.json"


class Data(Section):
    """Where the records come from: exactly one of the three."""

    embedded: Literal["wages"] | None = None
    """Generated records that come with dpbayes."""
    n_persons: int = Field(default=2000, ge=1)
    """For embedded records: how many persons."""
    seed: int = Field(default=1, ge=0)
    """For embedded records: seed of the generator."""
    microdata: str | None = None
    """A CSV or Parquet file of confidential records, beside the spec."""
    release: str | None = None
    """A release that was written before, beside the spec: nothing is released then."""
    levels: dict[str, list[str | int]] = Field(default_factory=dict)
    """Levels of categorical columns whose type does not declare them."""
    unit: str | None = None
    """Column of the unit whose privacy is protected; all of its rows stay together."""

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        given = [name for name in ("embedded", "microdata", "release") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of embedded, microdata and release; got {' and '.join(given) or 'none'}"
            )
        return self


class Question(Section):
    """A claim about a coefficient."""

    name: str = Field(min_length=1)
    """What to call it; public text."""
    formula: str
    """``response ~ terms``."""
    coefficient: str
    """The coefficient's name."""
    threshold: float | None = None
    """What the claim compares the coefficient with."""
    direction: Literal["<=", ">", "<", ">="] = ">"
    """The side of the threshold that the claim names."""
    significant_at: float | None = Field(default=None, gt=0, lt=1)
    """Instead of a threshold: the level of a two-sided test against 0."""
    family: Literal["gaussian", "logistic", "poisson"] = "gaussian"
    """The model."""
    absorb: list[str] = Field(default_factory=list)
    """Columns whose fixed effects are absorbed."""
    share: float = Field(default=1.0, gt=0)
    """Relative share of epsilon."""

    @model_validator(mode="after")
    def _one_claim(self) -> Question:
        if (self.threshold is None) == (self.significant_at is None):
            raise ValueError("give either threshold or significant_at")
        return self


class Privacy(Section):
    """What the release costs."""

    epsilon: float = Field(gt=0)
    """Total privacy-loss parameter over all questions."""
    n_partitions: int = Field(default=50, ge=1)
    """M, public: chosen without looking at the data."""
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    """The relation between neighbouring sets of units."""
    noise: Literal["two-sided-geometric", "laplace"] = "two-sided-geometric"
    """The noise law."""
    ledger: str | None = None
    """Budget book, beside the spec, in which the release is reserved before noise is drawn."""
    simulation_seed: int | None = Field(default=None, ge=0)
    """Draw partitions and noise reproducibly: a simulation, with no privacy guarantee."""


class Model(Section):
    """The posterior."""

    alpha: list[float] = Field(default_factory=lambda: [1.0, 1.0, 1.0], min_length=3, max_length=3)
    """Dirichlet prior of the shares beyond, not beyond and not computed."""
    pooling: Literal["none", "partial"] = "none"
    """``"none"`` is exact; ``"partial"`` lets several questions inform one another, by NUTS."""
    draws: int = Field(default=1000, ge=10)
    """Draws kept a chain."""
    chains: int = Field(default=4, ge=1)
    """Chains."""
    seed: int = Field(default=1, ge=0)
    """Seed of the draws (not of the partitions or the noise)."""

    @model_validator(mode="after")
    def _positive(self) -> Model:
        if min(self.alpha) <= 0:
            raise ValueError("alpha must be positive")
        return self


class Surface(Section):
    """Operating characteristics over a grid of designs."""

    n_partitions: list[int] = Field(min_length=1)
    """Numbers of partitions, at most 120 each."""
    epsilon: list[float] = Field(min_length=1)
    """Epsilons."""
    r: list[float] = Field(min_length=1)
    """Supposed shares of partitions in which the claim holds."""
    failed: float = Field(default=0.0, ge=0, lt=1)
    """Supposed share of partitions that cannot be computed."""
    alpha: list[float] = Field(default_factory=lambda: [1.0, 1.0, 1.0], min_length=3, max_length=3)
    """The analyst's prior."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Posterior probability from which the analyst decides."""
    wanted: float = Field(default=0.9, gt=0, lt=1)
    """Chance of the right decision for which the least epsilon is sought."""


class Spec(RunSpec):
    """A run of the verifier: a verification, or a study of designs."""

    system: Literal["verifier"]
    """The system's name."""
    data: Data | None = None
    privacy: Privacy | None = None
    questions: list[Question] = Field(default_factory=list)
    model: Model = Model()
    surface: Surface | None = None

    @model_validator(mode="after")
    def _one_study(self) -> Spec:
        if (self.data is None) == (self.surface is None):
            raise ValueError("add the section [data] for a verification, or [surface] for a study of designs, not both")
        if self.surface is not None and (self.privacy or self.questions):
            raise ValueError("a study of designs takes no [privacy] and no [[questions]]")
        if self.data is not None and self.data.release is None and not (self.privacy and self.questions):
            raise ValueError("a verification needs [privacy] and at least one [[questions]]")
        if self.data is not None and self.data.release is not None and (self.privacy or self.questions):
            raise ValueError("a finished release carries its own cost and questions; leave them out")
        names = [question.name for question in self.questions]
        if len(set(names)) < len(names):
            raise ValueError(f"questions must have different names, got {names!r}")
        return self


def run(spec: Spec, context: Context) -> Outcome:
    """Run the stages that the folder still lacks.

    Parameters
    ----------
    spec
        The validated spec.
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        The convergence gate's verdict where NUTS ran; exact answers always pass.
    """
    if spec.surface is not None:
        return _run_surface(spec.surface, context)
    release = _release(spec, context)
    cost = f"at epsilon {release.epsilon:g} in total"
    context.echo(f"release: {len(release.tables)} question(s), {release.n} partitions, {cost}, {release.adjacency}")
    trace = _trace(spec, release, context)
    if spec.model.pooling == "none":
        return Outcome(True, "Exact: no sampler ran, so there is no convergence to judge.")

    from dpbayes.inference import Verdict

    verdict = Verdict.from_json(trace.attrs["convergence"])
    context.echo(verdict.summary())
    return Outcome(verdict.passed, verdict.summary())


def document(spec: Spec, folder: Path) -> Document:
    """Build the report from the files of a run folder.

    Parameters
    ----------
    spec
        The run's spec.
    folder
        A run folder with ``release.json`` and ``trace.nc``, or with ``surface.json``.

    Returns
    -------
    Document
        The report.
    """
    from dpbayes.runs.verifier_document import surface_document, verification_document

    if spec.surface is not None:
        return surface_document(spec, json.loads((folder / SURFACE).read_text()))
    from dpbayes.inference import read_trace
    from dpbayes.privacy import read_release

    return verification_document(spec, read_release(folder / RELEASE), read_trace(folder / TRACE))


def _release(spec: Spec, context: Context) -> Release:
    """Count and release, or read the release that was drawn. The exact counts never touch a file."""
    import numpy as np

    from dpbayes.privacy import read_release
    from dpbayes.verifier import release_counts

    path = context.folder / RELEASE
    if path.exists():
        context.echo("release: already drawn, used again")
        return read_release(path)
    assert spec.data is not None
    if spec.data.release is not None:
        release = read_release(context.beside / spec.data.release)
    else:
        assert spec.privacy is not None
        seed = spec.privacy.simulation_seed
        rng = None if seed is None else np.random.default_rng(seed)
        frame = _records(spec.data, context.beside)
        release = release_counts(
            {question.name: _count(frame, question, spec, rng) for question in spec.questions},
            epsilon=spec.privacy.epsilon,
            adjacency=spec.privacy.adjacency,
            noise=spec.privacy.noise,
            shares=[question.share for question in spec.questions],
            rng=rng,
            ledger=_open_ledger(spec.privacy.ledger, context.beside),
            purpose=spec.title,
        )
    release.write(path)
    return release


def _open_ledger(name: str | None, beside: Path) -> Any:
    from dpbayes.privacy.ledger import open_ledger

    return None if name is None else open_ledger(beside / name)


def _records(data: Data, beside: Path) -> Any:
    import polars as pl

    if data.embedded is not None:
        from dpbayes.data.wages import wages

        return wages(data.n_persons, seed=data.seed)
    assert data.microdata is not None
    path = beside / data.microdata
    if not path.is_file():
        raise FileNotFoundError(f"there is no microdata file {path}; data.microdata is resolved beside the spec")
    return pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)


def _count(frame: Any, question: Question, spec: Spec, rng: Any) -> Any:
    from dpbayes.verifier import count_partitions, count_significant

    assert spec.data is not None and spec.privacy is not None
    unit = spec.data.unit or ("person" if spec.data.embedded == "wages" else None)
    common: dict[str, Any] = {
        "formula": question.formula,
        "coefficient": question.coefficient,
        "n_partitions": spec.privacy.n_partitions,
        "unit": unit,
        "family": question.family,
        "absorb": question.absorb,
        "levels": spec.data.levels,
        "assignment": "balanced" if spec.privacy.adjacency == "replace-one" else "independent",
        "random_state": rng,
    }
    if question.significant_at is not None:
        return count_significant(frame, level=question.significant_at, **common)
    assert question.threshold is not None
    return count_partitions(frame, threshold=question.threshold, direction=question.direction, **common)


def _trace(spec: Spec, release: Release, context: Context) -> xr.DataTree:
    """Draw from the exact posteriors, or sample the pooled model."""
    from dpbayes.inference import annotate, check_convergence, read_trace, sample, write_trace
    from dpbayes.verifier import build_model, draw_release

    path = context.folder / TRACE
    if path.exists():
        context.echo("posterior: already drawn, used again")
        return read_trace(path)
    settings = spec.model
    if settings.pooling == "none":
        trace = draw_release(
            release, alpha=settings.alpha, draws=settings.draws, chains=settings.chains, random_seed=settings.seed
        )
    else:
        context.echo("model: compiling (half a minute the first time)")
        trace = sample(
            build_model(release, pooling="partial"),
            draws=settings.draws,
            chains=settings.chains,
            random_seed=settings.seed,
            target_accept=0.95,
            progressbar=context.progressbar,
        )
        trace = annotate(trace, verdict=check_convergence(trace))
    trace = annotate(
        trace,
        spec_digest=context.spec_digest,
        release_digest=release.digest,
        privacy_record=release.privacy_record,
    )
    write_trace(trace, path)
    return trace


def _run_surface(surface: Surface, context: Context) -> Outcome:
    """Sum the operating characteristics of every design, and seek the least epsilon for each M and r."""
    from dpbayes.errors import InputError
    from dpbayes.verifier import design_surface, smallest_epsilon

    path = context.folder / SURFACE
    if path.exists():
        context.echo("surface: already summed, used again")
        return Outcome(True, "Exact sums over the noise: nothing was sampled.")
    common: dict[str, Any] = {"failed": surface.failed, "alpha": surface.alpha, "confidence": surface.confidence}
    found = design_surface(surface.n_partitions, surface.epsilon, r=surface.r, **common)
    designs = []
    for m in surface.n_partitions:
        for r in surface.r:
            try:
                least: float | None = smallest_epsilon(m, r=r, wanted=surface.wanted, **common)
            except InputError:
                # Out of reach with this M: said in the report as a dash.
                least = None
            designs.append({"n_partitions": m, "r": r, "epsilon": least})
        context.echo(f"design: M = {m} done")
    write_text(path, json.dumps({"surface": found.to_dict(), "designs": designs}))
    return Outcome(True, "Exact sums over the noise: nothing was sampled.")
