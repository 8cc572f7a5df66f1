"""Runs of the latent class system: release marginal tables, fit, synthesize, report, calibrate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, SkipValidation, model_validator

from dpbayes._arguments import Ints
from dpbayes._lazy import xr
from dpbayes.data import Domain, Marginal, datasets, marginals
from dpbayes.data.datasets import PERSON_LABELS, PERSON_LEVELS
from dpbayes.data.records import code_levels, readable, require_columns, scan_records, with_labels
from dpbayes.errors import SpecError
from dpbayes.latent_class.design import (
    MAX_EXACT_CELLS,
    MAX_RECORDED_CELLS,
    PROFILE_PRIOR,
    Design,
    Likelihood,
    by_table,
    checked_concentration,
    default_likelihood,
    default_spread,
    margin_name,
    profile_name,
    record_numbers,
    sampler_defaults,
)
from dpbayes.latent_class.synthesis import count_margin, count_records
from dpbayes.privacy.laws import NoiseName
from dpbayes.privacy.mechanism import release_tables
from dpbayes.privacy.release import NoisyTotal, Release
from dpbayes.privacy.sampling import release_values
from dpbayes.runs.protocol import Calibration, Context, Findings
from dpbayes.runs.registry import check_recorded, keep_model, load_model
from dpbayes.runs.spec import (
    Chains,
    Draws,
    Level,
    Positive,
    PrivacySection,
    PublishedData,
    PublishedSpec,
    Section,
    Seed,
    Share,
    Tune,
    check_tables,
)

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.privacy.ledger import Ledger

_CALLED = {
    "margin": "cells of the released tables",
    "cell": "cells of the full table",
    "exact_counts": "exact counts of the released tables",
}
_PREDICTED = 400  # releases drawn for the posterior predictive check
_PLACEHOLDER = 1000  # records of a placeholder where their number is not known


class Data(PublishedData):
    """Where the tables come from: exactly one of the four."""

    sources: ClassVar[tuple[str, ...]] = ("embedded", "microdata", "release", "published")
    files: ClassVar[tuple[str, ...]] = ("microdata", "published", "constraints")

    embedded: Literal["acs_tables", "persons"] | None = None
    """Tables that come with dpbayes: ten of the American Community Survey, or six of 5,000 simulated persons."""
    microdata: str | None = None
    """A CSV or Parquet file of confidential records, beside the spec."""
    levels: dict[str, list[str | Level]] | None = None
    """For microdata: the levels of each attribute, from the codebook; for published tables their order, if given."""
    labels: dict[str, dict[str, str]] = Field(default_factory=dict)
    """For microdata: what pages and pictures call levels, such as ``labels.age = {0 = "under 18", 1 = "18 or over"}``;
    a label reads by itself."""
    attribute_sets: list[list[str]] | Literal["all-pairs"] = "all-pairs"
    """For microdata: the tables to release."""

    @model_validator(mode="after")
    def _tables_fit(self) -> Data:
        if self.microdata is not None and not self.levels:
            raise ValueError("microdata need [data.levels], the levels of each attribute from the codebook")
        released_tables(self)  # its errors name the attribute at fault
        return self


def released_tables(data: Data) -> tuple[Domain, list[tuple[str, ...]]] | None:
    """Return the attributes that a run is to release, and the sets of them that its tables count; no file is read."""
    if data.release is not None or data.published is not None:
        return None
    if data.embedded == "acs_tables":
        counted = datasets.acs_tables()
        domain = Domain(tuple({attribute.name: attribute for table in counted for attribute in table.domain}.values()))
        return domain, [table.attributes for table in counted]
    everything = Domain.from_levels(PERSON_LEVELS if data.embedded else data.levels or {}, data.labels)
    all_pairs = data.embedded or data.attribute_sets == "all-pairs"
    named = combinations(everything.names, 2) if all_pairs else data.attribute_sets
    sets = [tuple(names) for names in named]
    check_tables(sets, everything, key="attribute_sets")
    return everything.project(list(dict.fromkeys(name for names in sets for name in names))), sets


class Privacy(PrivacySection):
    """What the release costs. Not used when a finished release is read."""

    epsilon: Positive | None = None
    """Total privacy-loss parameter over all tables, for two-sided geometric and Laplace noise."""
    rho: Positive | None = None
    """Total zero-concentrated DP parameter over all tables, for discrete Gaussian and Gaussian noise."""
    noise: NoiseName = "two-sided-geometric"
    """The noise law."""
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    """The relation between neighbouring data sets."""
    total_share: Share | None = None
    """Share of the budget spent on the number of records, under add-remove."""
    delta: Share | None = None
    """Share of the ledger's delta that plain addition charges for discrete Gaussian and Gaussian noise; left out where
    the ledger composes tightly."""

    @model_validator(mode="after")
    def _one_budget(self) -> Privacy:
        unit = "rho" if "gaussian" in self.noise else "epsilon"
        given = [name for name in ("epsilon", "rho") if getattr(self, name) is not None]
        if given != [unit]:
            raise ValueError(
                f"{self.noise} noise takes {unit} and nothing else; got {' and '.join(given) or 'neither'}"
            )
        if self.delta is not None and (self.ledger is None or self.rho is None):
            raise ValueError(
                f"delta = {self.delta:g} is what a ledger charges for Gaussian noise; leave it out, or give "
                "ledger and rho too"
            )
        return self

    @model_validator(mode="after")
    def _records_are_counted(self) -> Privacy:
        """Ask for the cost of the number of records where it is confidential, and only there."""
        noisy = self.adjacency == "add-remove"
        if noisy and self.total_share is None:
            raise ValueError(
                "under add-remove the number of records is confidential; give total_share = 0.05, say, to release it "
                'with 5 % of the budget, or set adjacency = "replace-one" if it is public'
            )
        if not noisy and self.total_share is not None:
            raise ValueError(
                f"total_share = {self.total_share:g} buys the number of records, which is public under replace-one; "
                'leave it out, or set adjacency = "add-remove"'
            )
        return self


class Model(Section):
    """The latent class model."""

    n_classes: int | None = Field(default=None, ge=1, le=200)
    """Number of classes at which the stick-breaking mixture is truncated; by default 8 to 20, after the tables."""
    likelihood: Literal["cells", "tables"] | None = None
    """Cell by cell given the classes' counts, or all tables jointly normal; by default as suits the release's noise."""
    file: str | None = None
    """Your own model: a Python file beside the spec that defines ``build_model(release, *, n_classes)``. It is run only
    with --allow-python. ``model = "file:mine.py"`` is short for this."""
    impossible: list[dict[str, str | Level | list[str | Level]]] = Field(default_factory=list)
    """Structural zeros: combinations of levels that cannot occur, each a level or several for some attributes."""
    concentration: Annotated[float | list[float] | None, SkipValidation] = None
    """Of the stick-breaking weights: a positive number, or shape and rate of its gamma prior; by default [40, 10],
    or [40, 40] where noise hides nearly everything."""
    profiles: Literal["common", "dirichlet"] | None = None
    """Prior of the class profiles: about the released shares (the default), or the paper's Dirichlet."""
    overdispersion: bool | None = None
    """Whether the population varies about the mixture; by default with many counts and little noise."""
    spread: float | None = Field(default=None, ge=0.01, le=50)
    """Standard deviation of the profiles about the released shares, on the log scale; by default 6, 4 for
    more than 1,500 classes times levels, 2.5 where noise is small against sampling too."""
    profile_prior: float | None = Field(default=None, ge=0.01, le=1_000_000)
    """Dirichlet parameter of every class profile, where profiles are Dirichlet; 0.5 by default."""
    margins: list[list[str]] = Field(default_factory=list)
    """Attribute sets whose probabilities the trace records besides the released ones, each as ``margin_A_B``."""

    @model_validator(mode="after")
    def _own_choices(self) -> Model:
        if self.concentration is not None:
            checked_concentration(self.concentration)
        if self.file is None:
            if self.profile_prior is not None and self.profiles != "dirichlet":
                raise ValueError(
                    f"profile_prior = {self.profile_prior:g} is the parameter of Dirichlet profiles; "
                    'set profiles = "dirichlet", or leave it out'
                )
            return self
        if self.impossible:
            raise ValueError("your own model states its own structural zeros; leave impossible out")
        own = (*_PRIORS, "likelihood", "overdispersion", "margins")
        given = [name for name in own if getattr(self, name) not in (None, [])]
        if given:
            raise ValueError(f"your own model states its own prior, margins and form; leave {' and '.join(given)} out")
        return self

    @property
    def priors(self) -> dict[str, Any]:
        """The priors of the package's model that are given."""
        return {name: value for name in _PRIORS if (value := getattr(self, name)) is not None}

    def options(self) -> dict[str, Any]:
        """Return what `dpbayes.latent_class.build_model` is told besides the release."""
        names = ("n_classes", "likelihood", "overdispersion", "margins", "impossible")
        return self.priors | {name: getattr(self, name) for name in names}

    def filled(self, design: Design | None) -> Model:
        """Return the same model with every default written out; `design` is None where it is not known yet."""
        given = None if self.concentration is None else checked_concentration(self.concentration)
        dirichlet = self.profiles == "dirichlet"
        update = {
            "n_classes": self.n_classes if design is None else design.n_classes,
            "concentration": list(given) if isinstance(given, tuple) else given,
            "profiles": self.profiles or "common",
            "profile_prior": self.profile_prior or PROFILE_PRIOR if dirichlet else self.profile_prior,
        }
        return self.model_copy(update=update)


_PRIORS = ("concentration", "profiles", "spread", "profile_prior")
_MOST_OF_A_CHAIN = 48  # draws of each of many chains up to which trajectories are as many


class Sampling(Section):
    """Settings of the sampler; what is left out is `dpbayes.latent_class.sampler_defaults`."""

    method: Literal["many-chains", "nuts"] = "many-chains"
    """Many short chains in batches, or four long ones."""
    draws: Draws | None = None
    """Draws kept per chain."""
    tune: Tune | None = None
    """Draws (trajectories, of many chains) spent on adaptation, per chain."""
    chains: Chains | None = None
    """Chains; convergence is judged across them, or across their batches."""
    target_accept: Share | None = None
    """Acceptance rate that the step size aims at."""
    rounds: int | None = Field(default=None, ge=1, le=10)
    """Rounds of many chains at most; each further one adds as many chains."""
    backend: Literal["numba", "jax", "interpreted"] | None = None
    """What computes the density of many chains: Numba's code (default), JAX's for a GPU (``pip install
    'dpbayes[jax]'``), or NumPy ("interpreted"), slower, without the minute in which an unusual model is compiled."""
    seed: Seed = 1
    """Seed of the sampler, of the synthetic data and of the predictive check (not of the noise)."""

    @model_validator(mode="after")
    def _rounds_of_many(self) -> Sampling:
        for name in ("rounds", "backend"):
            if self.method == "nuts" and getattr(self, name) is not None:
                raise ValueError(f"{name} is a setting of method = 'many-chains'; leave it out, or set the method")
        return self

    def settings(self, release: Release | None = None) -> dict[str, Any]:
        """Return what `dpbayes.inference.sample` is told, of a release of this size."""
        names = ("draws", "tune", "chains", "target_accept", "rounds", "backend")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        settings = sampler_defaults(release, method=self.method) | given
        if self.method == "many-chains":  # a thousand draws, meant for NUTS, are refused
            settings["trajectories"] = max(settings["trajectories"], min(settings["draws"], _MOST_OF_A_CHAIN))
        return settings


class Synthesis(Section):
    """Synthetic data."""

    n_datasets: int = Field(default=5, ge=0, le=100_000)
    """Number of data sets."""
    law: Literal["draws", "mean"] = "draws"
    """What the records are of: each data set of one posterior draw, or all of the posterior mean (closer to the truth,
    without a measure of uncertainty)."""
    n_rows: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Records in each; by default as many as the confidential data have, or the posterior mean of a noisy number."""
    format: Literal["parquet", "csv"] = "parquet"
    """File format."""
    labels: bool = False
    """Whether the records hold the levels' labels in place of their codes."""


class Spec(PublishedSpec):
    """A run of the latent class system."""

    system: Literal["latent-class"]
    """The system's name."""
    data: Data
    privacy: Privacy | None = None
    model: Model = Model()
    sampling: Sampling = Sampling()
    synthesis: Synthesis = Synthesis()

    @model_validator(mode="after")
    def _model_fits(self) -> Spec:
        """Hold the package's model to the tables, and write out the defaults that depend on its form."""
        from dpbayes.inference.sampling import settings_of

        if self.model.file is None:
            tables = released_tables(self.data)
            design = None if tables is None else Design.of(*tables, **self.model.options())
            object.__setattr__(self, "model", self.model.filled(design))
        settings = self.sampling.settings()
        # Refuses what the sampler would refuse, before anything is released.
        settings_of(self.sampling.method, {name: value for name, value in settings.items() if name != "method"})
        _check_draws(self, settings)
        return self


def _check_draws(spec: Spec, settings: Mapping[str, Any]) -> None:
    draws = settings["draws"] * settings["chains"]
    if spec.synthesis.n_datasets > draws and spec.synthesis.law == "draws":
        raise SpecError(
            f"{spec.synthesis.n_datasets} synthetic data sets need as many draws, and [sampling] keeps {draws} of "
            "all chains; lower synthesis.n_datasets, or raise sampling.draws"
        )


def design(spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Ledger | None = None) -> Release:
    """Return a release of the spec's tables, noise and number of records, its records placeholders."""
    tables = released_tables(spec.data)
    assert tables is not None
    domain, sets = tables
    embedded = spec.data.embedded
    n = n_records or (_PLACEHOLDER if embedded is None else embedded_tables(embedded)[0].total)
    rng = np.random.default_rng(0)
    records = np.column_stack([rng.integers(0, size, n) for size in domain.shape])
    parts = [domain.project(names) for names in sets]
    counted = [Marginal(part, count_margin(records, domain, part.names).reshape(part.shape)) for part in parts]
    return _resized(_release_of(counted, spec, rng=rng, ledger=ledger), n)  # a noisy n is not the one asked for


def try_fit(spec: Spec, design: Release, context: Context) -> pm.Model:
    """Return the model, and refuse what a later stage would refuse."""
    _check_counts(spec, design)
    return _model(spec, design, context)


def _check_counts(spec: Spec, design: Release) -> None:
    if design.unit != "record":
        raise SpecError(f"{spec.data.release} counts {design.unit}s, not records; it is a release of the verifier's")
    if spec.model.file is None and design.n_counts > MAX_EXACT_CELLS:
        raise SpecError(
            f"{design.n_counts:,} released counts are more than the {MAX_EXACT_CELLS:,} whose draws a page is made of; "
            "release fewer or smaller tables, or fit them in Python (dpbayes.latent_class.build_model)"
        )


def _form(options: Mapping[str, Any], release: Release) -> Likelihood:
    """Return the form of the likelihood that `build_model` takes."""
    return options["likelihood"] or default_likelihood(release, overdispersion=options["overdispersion"])


def expected_cost(spec: Spec, design: Release) -> str:
    """Say what the package's model will take on such a release."""
    from dpbayes.latent_class.planning import cost_of

    settings = spec.sampling.settings(design)
    words = cost_of(
        design.domain,
        [table.attributes for table in design.tables],
        n_classes=spec.model.n_classes,
        likelihood=_form(spec.model.options(), design),
        impossible=spec.model.impossible,
        chains=settings["chains"],
        draws=settings["chains"] * settings["draws"],
        moves=settings["tune"] + settings.get("trajectories", settings["draws"]),
        max_steps=settings.get("max_steps", 400),
    ).words
    backend = settings.get("backend", "numba")
    return words if backend == "numba" else f"{words} with backend = 'numba' (yours is {backend!r})"


def release(spec: Spec, context: Context, *, rng: np.random.Generator | None, ledger: Ledger | None) -> Release:
    """Count the confidential records, and release the tables; the exact ones are kept only where they are public."""
    tables = _tables(spec.data, context.beside)
    if spec.data.truth_public:
        context.keep("truth", [{"domain": t.domain.to_dict(), "counts": t.counts.tolist()} for t in tables])
    return _release_of(tables, spec, rng=rng, ledger=ledger)


def fit(spec: Spec, release: Release, context: Context) -> xr.DataTree:
    """Sample the posterior, and releases predicted from it."""
    from dpbayes.inference import sample
    from dpbayes.inference.sampling import prior_predictive
    from dpbayes.latent_class.synthesis import predict_release

    model = _model(spec, release, context)
    seed, settings = spec.sampling.seed, spec.sampling.settings(release)
    _check_draws(spec, settings)  # of this release, which may keep fewer than most do
    if spec.model.file:  # a model of one's own that cannot be simulated fails before sampling
        prior_predictive(model, draws=1, random_seed=seed)
    trace = sample(model, random_seed=seed, predictive=False, progressbar=False, progress=context.progress, **settings)
    for name, drawn in prior_predictive(model, draws=500, random_seed=seed).items():
        trace[name] = xr.DataTree(drawn)
    predicted = min(_PREDICTED, settings["draws"] * settings["chains"])
    trace["posterior_predictive"] = predict_release(trace, release, n_datasets=predicted, random_seed=seed)
    return trace


def synthesize(spec: Spec, release: Release, result: xr.DataTree, context: Context) -> None:
    """Write the synthetic data sets."""
    from dpbayes.latent_class.synthesis import synthesize, write_synthetic

    settings = spec.synthesis
    if settings.n_datasets == 0:
        return
    rows = settings.n_rows or max(round(float(record_numbers(result["posterior"].to_dataset(), release).mean())), 1)
    seed, law = spec.sampling.seed, settings.law
    frames = synthesize(result, n_datasets=settings.n_datasets, n_rows=rows, random_seed=seed, law=law)
    if settings.labels:
        frames = [with_labels(frame, release.domain) for frame in frames]
    paths = write_synthetic(frames, context.folder / "synthetic", format=settings.format)
    context.echo(f"synthetic data: {len(paths)} sets of {rows:,} records")


def sections(spec: Spec, release: Release, result: xr.DataTree, kept: Mapping[str, Any]) -> Findings:
    """Return what the page says; see `dpbayes.latent_class.page`."""
    from dpbayes.latent_class.page import findings

    truth = [Marginal(Domain.from_dict(t["domain"]), t["counts"]) for t in kept["truth"]] if "truth" in kept else None
    priors = spec.model.priors if spec.model.file is None else None
    return findings(result, release, truth=truth, priors=priors, question=spec.question or "")


def calibration(spec: Spec, design: Release, beside: Path, n_records: int | None) -> Calibration:
    """Return the model and the simulator: real records, real counts, the release's own noise."""
    if spec.model.file is not None:
        raise SpecError("a study of a spec runs the package's model; calibrate your own with dpbayes.inference.sbc")
    _check_counts(spec, design)
    if spec.data.microdata is not None and n_records is None:
        raise SpecError("a calibration study reads no confidential record; say how many to simulate (--n-records)")
    from dpbayes.latent_class.model import build_model
    from dpbayes.latent_class.page import quantity_names

    release = design if n_records is None else _resized(design, n_records)
    options = spec.model.options()
    options["likelihood"] = likelihood = _form(options, release)
    form = Design.of(release.domain, [table.attributes for table in release.tables], **options)
    build = partial(build_model, release, **options)
    n = release.n if isinstance(release.n, int) else round(release.n.value)
    laws = {str(table.noise): table.noise for table in release.tables}
    law = next(iter(laws.values()))
    noise = f"{law.words} noise of {law.parameter} {law.spread:g}" if len(laws) == 1 else f"{len(laws)} noise laws"
    names, cell = quantity_names(release), ["cell"] if release.domain.size <= MAX_RECORDED_CELLS else []
    return Calibration(
        build_model=build,
        simulate=Simulator(release, build, form, likelihood, spec.model.spread or default_spread(release)),
        var_names=("margin", *cell, *map(margin_name, form.margins), "exact_counts"),
        sampling={"target_accept": spec.sampling.target_accept or 0.9},
        design=f"{n:,} records of {len(release.domain)} attributes, {len(release.tables)} tables, "
        f"{release.adjacency}, {noise}",
        called=_CALLED,
        named=names | {"exact_counts": [f"exact count of {name}" for name in names["margin"]]},
    )


@dataclass
class Simulator:
    """Draw a mixture from the model's prior, records from the mixture, and a release of their tables."""

    release: Release
    build_model: Callable[[], pm.Model]
    design: Design
    likelihood: Likelihood
    spread: float
    _draw: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the compiled function behind: it does not pickle."""
        return self.__dict__ | {"_draw": None}

    def __call__(self, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return true values and data."""
        from dpbayes.inference.sampling import prior_values
        from dpbayes.latent_class.likelihood import release_data
        from dpbayes.latent_class.synthesis import draw_records, of_varied_population

        if self._draw is None:
            model = self.build_model()
            wanted = ["weights", "profiles", *model.convergence_variables, "n", "overdispersion"]
            self._draw = prior_values(model, [name for name in wanted if name in model.named_vars])
        prior_seed, data_seed = np.random.SeedSequence(seed).generate_state(2)
        truth = self._draw(int(prior_seed))
        rng = np.random.default_rng(data_seed)
        total = self.release.n
        n = total if isinstance(total, int) else max(round(float(truth["n"])), 1)
        if not isinstance(total, int):
            truth["n"] = np.asarray(float(n))
            total = replace(total, value=float(release_values(np.array([n]), total.noise, rng=rng)[0]))
        profiles = np.split(truth.pop("profiles"), np.cumsum(self.release.domain.shape)[:-1], axis=1)
        one = truth["weights"][None], [profile[None] for profile in profiles]
        records = draw_records(*one, np.zeros(n, np.intp), rng, self.design.support)
        if "overdispersion" in truth:
            varied = truth.pop("overdispersion")
            records = of_varied_population(records, float(varied), rng)
            truth |= self._varied(truth, records, varied, rng)
        exact = count_records(records, self.release)
        parts = zip(by_table(exact, self.release), self.release.tables, strict=True)
        noisy = [
            replace(table, counts=table.held_back(part.reshape(table.counts.shape) + table.simulated_noise(rng)))
            for part, table in parts
        ]
        drawn = replace(self.release, tables=tuple(noisy), n=total)
        data = release_data(drawn, self.likelihood, spread=self.spread, support=self.design.support)
        return truth | {"exact_counts": exact.astype(float)}, data

    def _varied(
        self, truth: Mapping[str, Any], records: Any, overdispersion: Any, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Return the population's own shares, every margin by itself."""
        from dpbayes.latent_class.analysis import population_given_records, population_margins

        domain, law = self.release.domain, (np.asarray(float(len(records))), overdispersion, rng)
        exact = count_records(records, self.release).astype(float)
        found = {"margin": population_margins(self.release, truth["margin"], exact, *law)}
        for name, names in self.design.recorded.items():
            if name in truth:
                counts = count_margin(records, domain, names).astype(float)
                own = population_given_records(truth[name].ravel(), counts, *law)
                found[name] = own.reshape(truth[name].shape)
        return found


def _model(spec: Spec, release: Release, context: Context) -> pm.Model:
    """Build the model, the package's or the user's, and hold the later stages' settings to its form."""
    if spec.model.file is None:
        from dpbayes.latent_class.model import build_model

        return build_model(release, **spec.model.options())
    path = context.beside / spec.model.file
    context.echo(f"model: {path.name} (SHA-256 {keep_model(path, context.folder)[:12]})")
    # The predictive check draws records of the mixture, whether or not synthetic data are asked for.
    names = ["margin", "exact_counts", "weights", *map(profile_name, release.domain.names)]
    theirs = load_model(path)(release, n_classes=spec.model.n_classes or 8)
    return check_recorded(theirs, names, file=path.name)


def _tables(data: Data, beside: Path) -> tuple[Marginal, ...]:
    """Count the exact tables. They stay in memory."""
    if data.embedded is not None:
        return embedded_tables(data.embedded)
    tables = released_tables(data)
    assert tables is not None and data.microdata is not None and data.levels is not None
    (domain, sets), path = tables, beside / data.microdata
    frame = scan_records(path, setting="data.microdata")
    wanted = dict.fromkeys([*domain.names, *([data.unit] if data.unit else [])])
    require_columns(frame, wanted, path, source="[data]")
    with readable(path):
        return marginals(code_levels(frame, data.levels), sets, domain=domain, **data.counted_by)


def embedded_tables(name: str) -> tuple[Marginal, ...]:
    """Return ``"acs_tables"``, or of ``"persons"`` all pairs of attributes of 5,000 simulated persons."""
    if name == "acs_tables":
        return datasets.acs_tables()
    frame = datasets.persons(5000, rng=np.random.default_rng(2026))
    domain = Domain.from_levels(PERSON_LEVELS, PERSON_LABELS)
    return marginals(frame, list(combinations(PERSON_LEVELS, 2)), domain=domain)


def _release_of(tables: Any, spec: Spec, *, rng: np.random.Generator | None, ledger: Ledger | None) -> Release:
    """Release tables as [privacy] says."""
    privacy = spec.privacy
    assert privacy is not None
    return release_tables(
        tables,
        epsilon=privacy.epsilon,
        rho=privacy.rho,
        noise=privacy.noise,
        adjacency=privacy.adjacency,
        total_share=privacy.total_share,
        rng=rng,
        ledger=ledger,
        delta=0.0 if ledger is None else privacy.delta or 0.0,
        purpose=spec.title,
        **spec.data.released_by,
    )


def _resized(release: Release, n: int) -> Release:
    """Return the same release of another number of records."""
    if isinstance(release.n, int):
        return replace(release, n=n)
    total = release.n
    # The prior of n is centred by the tables' sums too: they are made n.
    tables = tuple(replace(table, counts=table.held_back(_spread(n, table.counts.shape))) for table in release.tables)
    return replace(release, tables=tables, n=NoisyTotal(float(n), total.noise, total.sensitivity, total.epsilon))


def _spread(n: int, shape: tuple[int, ...]) -> Ints:
    """Return whole counts that sum to n, as even as may be."""
    size = math.prod(shape)
    return np.diff(np.arange(size + 1, dtype=np.int64) * n // size).reshape(shape)
