"""Runs of the latent class system: release marginal tables, fit, check, synthesize, report."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dpbayes.runs.execute import Context, Outcome
from dpbayes.runs.folder import write_text
from dpbayes.runs.spec import RunSpec, Section

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data import Marginal
    from dpbayes.privacy import Release
    from dpbayes.privacy.ledger import Ledger
    from dpbayes.report import Document

__all__ = ["Spec", "document", "run"]

_RELEASE, _TRACE, _TRUTH = "release.json", "trace.nc", "truth.json"
_PREDICTED = 400  # releases drawn for the posterior predictive check


class Data(Section):
    """Where the tables come from: exactly one of the three."""

    embedded: Literal["acs_tables"] | None = None
    """Tables that come with dpbayes."""
    microdata: str | None = None
    """A CSV or Parquet file of confidential records, beside the spec."""
    release: str | None = None
    """A release that was written before, beside the spec: nothing is released then."""
    levels: dict[str, list[str | int]] | None = None
    """For microdata: the levels of each attribute, from the codebook."""
    attribute_sets: list[list[str]] | Literal["all-pairs"] = "all-pairs"
    """For microdata: the tables to release."""
    truth_public: bool = False
    """Whether the exact tables are public, so that the report may show them beside the estimates."""

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        given = [name for name in ("embedded", "microdata", "release") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of embedded, microdata and release; got {' and '.join(given) or 'none'}"
            )
        if self.microdata is not None and not self.levels:
            raise ValueError("microdata need [data.levels], the levels of each attribute from the codebook")
        if self.release is not None and self.truth_public:
            raise ValueError("truth_public needs exact tables, and a release holds none; leave it out")
        return self


class Privacy(Section):
    """What the release costs. Not used when a finished release is read."""

    epsilon: float | None = Field(default=None, gt=0)
    """Total privacy-loss parameter over all tables, for two-sided geometric and Laplace noise."""
    rho: float | None = Field(default=None, gt=0)
    """Total zero-concentrated DP parameter over all tables, for discrete Gaussian and Gaussian noise."""
    noise: Literal["two-sided-geometric", "laplace", "discrete-gaussian", "gaussian"] = "two-sided-geometric"
    """The noise law."""
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    """The relation between neighbouring data sets."""
    total_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of the budget spent on the number of records, under add-remove."""
    ledger: str | None = None
    """Budget book, beside the spec, in which the release is reserved before noise is drawn."""
    simulation_seed: int | None = Field(default=None, ge=0)
    """Draw reproducible noise from a seeded generator instead of OpenDP: a simulation, with no privacy guarantee."""

    @model_validator(mode="after")
    def _one_budget(self) -> Privacy:
        unit = "rho" if "gaussian" in self.noise else "epsilon"
        given = [name for name in ("epsilon", "rho") if getattr(self, name) is not None]
        if given != [unit]:
            raise ValueError(
                f"{self.noise} noise takes {unit} and nothing else; got {' and '.join(given) or 'neither'}"
            )
        return self


class Model(Section):
    """The latent class model."""

    n_classes: int = Field(default=8, ge=1, le=200)
    """Number of classes at which the stick-breaking mixture is truncated."""


class Sampling(Section):
    """NUTS settings."""

    draws: int = Field(default=800, ge=10)
    """Draws kept a chain."""
    tune: int = Field(default=600, ge=10)
    """Draws spent on adaptation, a chain."""
    chains: int = Field(default=4, ge=1)
    """Chains; convergence is judged across them."""
    target_accept: float = Field(default=0.9, gt=0, lt=1)
    """Acceptance rate that the step size aims at."""
    max_treedepth: int = Field(default=12, ge=1, le=20)
    """Doublings at which a trajectory is cut; a few of this model's need more than the usual 10."""
    adaptation: Literal["diag", "low_rank"] = "low_rank"
    """Mass matrix: a diagonal, or a diagonal and the few directions that it misses."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampler, of the synthetic data and of the predictive check (not of the noise)."""


class Synthesis(Section):
    """Synthetic data."""

    n_datasets: int = Field(default=5, ge=0)
    """Number of data sets."""
    n_rows: int | None = Field(default=None, ge=1)
    """Records in each; by default as many as the confidential data have."""
    format: Literal["parquet", "csv"] = "parquet"
    """File format."""


class Spec(RunSpec):
    """A run of the latent class system."""

    system: Literal["latent-class"]
    """The system's name."""
    data: Data
    privacy: Privacy | None = None
    model: Model = Model()
    sampling: Sampling = Sampling()
    synthesis: Synthesis = Synthesis()

    @model_validator(mode="after")
    def _privacy_where_needed(self) -> Spec:
        if (self.privacy is None) == (self.data.release is None):
            raise ValueError(
                "a finished release carries its own cost; leave [privacy] out"
                if self.privacy
                else "add the section [privacy] with epsilon = 1.0, say: what the release may cost"
            )
        return self


def run(spec: Spec, context: Context) -> Outcome:
    """Run the stages that the folder still lacks: release, trace, synthetic data.

    Parameters
    ----------
    spec
        The validated spec.
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        The convergence gate's verdict.
    """
    release = _release(spec, context)
    cost = "at its noise laws' cost" if release.epsilon is None else f"at epsilon {release.epsilon:g} in total"
    context.echo(f"release: {release.n_counts} counts in {len(release.tables)} tables {cost}, {release.adjacency}")
    trace = _trace(spec, release, context)

    from dpbayes.inference.verdict import Verdict

    verdict = Verdict.from_json(trace.attrs["convergence"])
    context.echo(verdict.summary())
    _synthetic(spec, release, trace, context)
    return Outcome(verdict.passed, verdict.summary())


def document(spec: Spec, folder: Path) -> Document:
    """Build the report from the files of a run folder.

    Parameters
    ----------
    spec
        The run's spec.
    folder
        A run folder with ``release.json``, ``trace.nc`` and, where the truth is public, ``truth.json``.

    Returns
    -------
    Document
        The report.
    """
    from dpbayes.inference.schema import read_trace
    from dpbayes.privacy import read_release
    from dpbayes.report.latent_class import latent_class_document

    truth = folder / _TRUTH
    return latent_class_document(
        read_trace(folder / _TRACE),
        read_release(folder / _RELEASE),
        truth=_read_tables(truth) if truth.exists() else None,
        title=spec.title,
        question=spec.question,
    )


def _release(spec: Spec, context: Context) -> Release:
    """Draw the release, or read the one that was drawn; note the truth only where it is public."""
    import numpy as np

    from dpbayes.privacy import read_release, release_tables

    path = context.folder / _RELEASE
    if path.exists():
        context.echo("release: already drawn, used again")
        return read_release(path)
    if spec.data.release is not None:
        release = read_release(context.beside / spec.data.release)
    else:
        assert spec.privacy is not None
        tables = _tables(spec.data, context.beside)
        if spec.data.truth_public:
            write_text(context.folder / _TRUTH, json.dumps([_table_to_dict(table) for table in tables]))
        seed = spec.privacy.simulation_seed
        release = release_tables(
            tables,
            epsilon=spec.privacy.epsilon,
            rho=spec.privacy.rho,
            noise=spec.privacy.noise,
            adjacency=spec.privacy.adjacency,
            total_share=spec.privacy.total_share,
            rng=None if seed is None else np.random.default_rng(seed),
            ledger=_open_ledger(spec.privacy.ledger, context.beside),
            purpose=spec.title,
        )
    release.write(path)
    return release


def _open_ledger(name: str | None, beside: Path) -> Ledger | None:
    from dpbayes.privacy.ledger import open_ledger

    return None if name is None else open_ledger(beside / name)


def _tables(data: Data, beside: Path) -> tuple[Marginal, ...]:
    """Count the exact tables. They stay in memory."""
    from dpbayes.data import Domain, datasets, marginals

    if data.embedded is not None:
        return datasets.acs_tables()

    import polars as pl

    assert data.microdata is not None and data.levels is not None
    path = beside / data.microdata
    if not path.is_file():
        raise FileNotFoundError(f"there is no microdata file {path}; data.microdata is resolved beside the spec")
    frame = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_csv(path)
    sets = list(combinations(data.levels, 2)) if data.attribute_sets == "all-pairs" else data.attribute_sets
    return marginals(frame, sets, domain=Domain.from_levels(data.levels))


def _trace(spec: Spec, release: Release, context: Context) -> xr.DataTree:
    """Fit and judge, or read the trace of a run that was stopped later on."""
    from dpbayes.inference import check_convergence, sample
    from dpbayes.inference.schema import annotate, read_trace, write_trace
    from dpbayes.latent_class import build_model, predict_release

    path = context.folder / _TRACE
    if path.exists():
        context.echo("posterior: already sampled, used again")
        return read_trace(path)
    context.echo("model: compiling (half a minute the first time)")
    model = build_model(release, n_classes=spec.model.n_classes)
    settings = spec.sampling
    trace = sample(
        model,
        draws=settings.draws,
        tune=settings.tune,
        chains=settings.chains,
        target_accept=settings.target_accept,
        max_treedepth=settings.max_treedepth,
        adaptation=settings.adaptation,
        random_seed=settings.seed,
        progressbar=context.progressbar,
    )
    predicted = min(_PREDICTED, settings.draws * settings.chains)
    trace["posterior_predictive"] = predict_release(trace, release, n_datasets=predicted, random_seed=settings.seed)
    trace = annotate(
        trace,
        verdict=check_convergence(trace),
        spec_digest=context.spec_digest,
        release_digest=release.digest,
        privacy_record=release.privacy_record,
    )
    write_trace(trace, path)
    return trace


def _synthetic(spec: Spec, release: Release, trace: xr.DataTree, context: Context) -> None:
    from dpbayes.latent_class import synthesize, write_synthetic

    settings = spec.synthesis
    if settings.n_datasets == 0:
        return
    rows = settings.n_rows or round(max(release.n if isinstance(release.n, int) else release.n.value, 1))
    frames = synthesize(trace, n_datasets=settings.n_datasets, n_rows=rows, random_seed=spec.sampling.seed)
    paths = write_synthetic(frames, context.folder / "synthetic", format=settings.format)
    context.echo(f"synthetic data: {len(paths)} sets of {rows:,} records")


def _table_to_dict(table: Marginal) -> dict[str, Any]:
    return {"domain": table.domain.to_dict(), "counts": table.counts.tolist()}


def _read_tables(path: Path) -> tuple[Marginal, ...]:
    from dpbayes.data import Domain, Marginal

    return tuple(Marginal(Domain.from_dict(t["domain"]), t["counts"]) for t in json.loads(path.read_text()))
