"""Runs of the verifier: verify claims, study designs before any data are touched, or try claims on a public pilot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from dpbayes import verifier
from dpbayes._lazy import xr
from dpbayes.data.datasets import wages
from dpbayes.data.records import code_levels, readable, scan_records
from dpbayes.errors import InputError, SpecError
from dpbayes.privacy.laws import PureNoiseName
from dpbayes.runs.protocol import Calibration, Context, Findings
from dpbayes.runs.spec import Chains, DataSection, Draws, Level, Positive, PrivacySection, Real, RunSpec, Section, Seed
from dpbayes.verifier.formulas import check_coefficient_of, formula_columns
from dpbayes.verifier.partition import MOST_TABULATED, EstimateSums, PartitionCounts, is_count_table, release_counts

if TYPE_CHECKING:
    from dpbayes.privacy import Release
    from dpbayes.privacy.ledger import Ledger

# Below, draws of shares of counts that are all 0 can underflow together; above, the prior outweighs any count.
Alpha = Annotated[float, Field(ge=0.01, le=1_000_000)]
Part = Annotated[float, Field(ge=0, le=1)]
Partitions = Annotated[int, Field(ge=1, le=10**9)]
_MOST_DRAWS = 5_000_000  # a gigabyte
_FAR = 1e-3  # three counts, each moved up by noise of this chance: one release in ten million lies farther off

type Levels = dict[str, list[str | Level] | dict[str, list[str | Level]]]


class Data(DataSection):
    """Where the records come from: exactly one of embedded, microdata and release."""

    sources: ClassVar[tuple[str, ...]] = ("embedded", "microdata", "release")

    embedded: Literal["wages"] | None = None
    """Generated records that come with dpbayes."""
    n_persons: int = Field(default=2000, ge=1, le=10_000_000)
    """For embedded records: how many persons."""
    seed: Seed = 1
    """For embedded records: seed of the generator."""
    microdata: str | None = None
    """A CSV or Parquet file of confidential records, beside the spec."""
    levels: Levels = Field(default_factory=dict)
    """Levels of categorical columns whose type does not declare them: a list, or, to pool them by a public rule, what
    each pooled level stands for, ``sector = {farm = ["A"], other = ["B", "C"]}``."""
    level_shares: dict[str, dict[str, Part]] = Field(default_factory=dict)
    """Shares of levels that are public, from a codebook say: a run warns of partitions without a rare level."""
    unit: str | None = None
    """Column of the unit whose privacy is protected; all of its rows stay together. In a CSV file 1 and 01 are two
    units: names are compared as text."""
    n_units: int | None = Field(default=None, ge=1, le=10**12)
    """Public number of units: a run warns before anything is spent where partitions of so many are too small."""
    strata: str | None = None
    """A public column over whose values units are spread evenly among the partitions, under replace-one. The guarantee
    then speaks of replacing a unit by one with the same value."""

    @property
    def protected_unit(self) -> str | None:
        """The column of the unit, that of the generated records among them."""
        return self.unit or ("person" if self.embedded == "wages" else None)


class Question(Section):
    """A claim about a coefficient."""

    name: str = Field(min_length=1, max_length=200)
    """What to call it; public text."""
    formula: str = Field(max_length=10_000)
    """``response ~ terms``."""
    coefficient: str
    """The coefficient's name."""
    threshold: Real | None = None
    """What the claim compares the coefficient with."""
    direction: Literal["<=", ">", "<", ">="] = ">"
    """The side of the threshold that the claim names."""
    significant_at: float | None = Field(default=None, gt=0, lt=1)
    """Instead of a threshold: the level of a two-sided test against 0."""
    answer_by: Literal["share", "mean"] = "share"
    """``"share"``: the share of partitions in which the estimate lies beyond the threshold; ``"mean"``: the coefficient
    itself, by the mean of the partitions' estimates, which is right also where small samples are skewed."""
    lower: Real | None = None
    """For ``"mean"``: lower end of the public range to which a partition's estimate is clipped."""
    upper: Real | None = None
    """For ``"mean"``: its upper end."""
    family: Literal["gaussian", "logistic", "poisson"] = "gaussian"
    """The model."""
    absorb: list[str] = Field(default_factory=list, max_length=20)
    """Columns whose fixed effects are absorbed. In a CSV file they are compared as text, unless a formula calculates
    with them."""
    skew: Real | None = None
    """Skewness of the response, where it is public: a run warns of partitions that are too small for it."""
    share: Positive = 1.0
    """Relative share of epsilon."""

    @property
    def regression(self) -> dict[str, Any]:
        """What is fitted in every partition."""
        return self.model_dump(include={"formula", "coefficient", "family", "absorb"})

    @property
    def claim(self) -> dict[str, Any]:
        """What is asked of the coefficient."""
        test = self.significant_at is not None
        return self.model_dump(include={"significant_at"} if test else {"threshold", "direction"})

    @property
    def range(self) -> dict[str, Any]:
        """The public range of a partition's estimate."""
        return self.model_dump(include={"lower", "upper"})

    @field_validator("formula")
    @classmethod
    def _readable(cls, formula: str) -> str:
        formula_columns(formula)
        return formula

    @model_validator(mode="after")
    def _one_claim(self) -> Question:
        if (self.threshold is None) == (self.significant_at is None):
            raise ValueError("give either threshold or significant_at")
        if self.answer_by == "mean":
            from dpbayes.verifier.means import check_range

            if self.threshold is None:
                raise ValueError('answer_by = "mean" compares the coefficient with a threshold; give 0, say')
            if self.lower is None or self.upper is None:
                raise ValueError('answer_by = "mean" needs lower and upper, a public range of a partition\'s estimate')
            check_range(self.lower, self.upper)
        elif self.lower is not None or self.upper is not None:
            raise ValueError('lower and upper are the range of answer_by = "mean"; leave them out')
        return self


class Privacy(PrivacySection):
    """What the release costs."""

    epsilon: Positive
    """Total privacy-loss parameter over all questions."""
    n_partitions: Partitions = 50
    """M, public: chosen without looking at the data; under replace-one at most the number of units."""
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    """The relation between neighbouring sets of units."""
    noise: PureNoiseName = "two-sided-geometric"
    """The noise law."""
    with_failures: bool = True
    """False releases no number of failures; a partition that cannot be computed then counts as not beyond, or, for a
    mean, as an estimate in the middle of the range."""

    @property
    def assignment(self) -> Literal["balanced", "independent"]:
        """How units come to their partitions; see `dpbayes.verifier.release_counts` for why."""
        return "balanced" if self.adjacency == "replace-one" else "independent"


class Model(Section):
    """The posterior."""

    alpha: list[Alpha] | None = Field(default=None, min_length=2, max_length=3)
    """Dirichlet prior of the shares beyond, not beyond and, where failures are released, not computed; from 0.01 to
    1,000,000 each, all 1 by default."""
    pooling: Literal["none", "partial"] = "none"
    """``"none"`` is exact; ``"partial"`` lets several questions inform one another, by NUTS."""
    draws: Draws = 1000
    """Draws kept per chain."""
    chains: Chains = 4
    """Chains."""
    seed: Seed = 1
    """Seed of the draws (not of the partitions or the noise)."""

    @model_validator(mode="after")
    def _prior_fits(self) -> Model:
        if self.alpha is not None and self.pooling == "partial":
            raise ValueError(
                f"model.alpha = {self.alpha} is the prior of questions that are answered alone, and model.pooling = "
                '"partial" has its own; leave model.alpha out, or set model.pooling = "none"'
            )
        return self

    @property
    def drawing(self) -> dict[str, Any]:
        """What a sampler is told."""
        return {"draws": self.draws, "chains": self.chains, "random_seed": self.seed}


class Surface(Section):
    """Operating characteristics over a grid of designs."""

    n_partitions: list[Partitions] = Field(min_length=1, max_length=100)
    """Numbers of partitions, at most 201 each."""
    epsilon: list[Positive] = Field(min_length=1, max_length=100)
    """Epsilons."""
    r: list[Part] = Field(min_length=1, max_length=20)
    """Supposed shares of partitions in which the claim holds."""
    failed: float = Field(default=0.0, ge=0, lt=1)
    """Supposed share of partitions that cannot be computed."""
    alpha: list[Alpha] = Field(default_factory=lambda: [1.0, 1.0, 1.0], min_length=2, max_length=3)
    """The analyst's prior, of three outcomes or, without a failure category, of two."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Posterior probability from which the analyst decides."""
    wanted: float = Field(default=0.9, gt=0, lt=1)
    """Chance of the right decision for which the least epsilon is sought."""

    @model_validator(mode="after")
    def _grid_fits(self) -> Surface:
        for name in ("n_partitions", "epsilon", "r"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} gives a number twice, got {values}; give each once")
        return self


class Pilot(Section):
    """Public or simulated records like the confidential ones, on which claims are tried before anything is spent."""

    file: str | None = None
    """A CSV or Parquet file, beside the spec. It must be public: what it says is not protected."""
    embedded: Literal["wages"] | None = None
    """In place of a file: generated records that come with dpbayes, 5,000 persons."""
    n_units: int = Field(ge=2, le=10**12)
    """Public number of units of the confidential records."""
    n_partitions: list[Partitions] = Field(default_factory=lambda: [10, 25, 50, 100, 200], min_length=1, max_length=50)
    """Numbers of partitions to try."""
    partitions: int = Field(default=400, ge=20, le=100_000)
    """Partitions drawn from the pilot for each."""
    unit: str | None = None
    """Column of the unit; by default data.unit."""
    levels: Levels = Field(default_factory=dict)
    """Levels of categorical columns; by default data.levels."""
    epsilon: Positive = 1.0
    """Privacy cost, for each question, of which the chance of the right decision, the range and the coverage are given
    in a trial without [data]; a verification has its own."""
    seed: Seed = 1
    """Seed of the partitions drawn."""

    @model_validator(mode="after")
    def _one_source(self) -> Pilot:
        if (self.file is None) == (self.embedded is None):
            raise ValueError("give exactly one of pilot.file and pilot.embedded")
        return self


class Spec(RunSpec):
    """A run of the verifier: a verification, a study of designs, or claims tried on a pilot."""

    decisive: ClassVar[set[str]] = {"data", "privacy", "questions"}
    # What is publicly known of the records only warns.
    idle: ClassVar[dict[str, Any]] = RunSpec.idle | {
        "data": {"source", "level_shares", "n_units"},
        "questions": {"__all__": {"skew"}},
    }

    system: Literal["verifier"]
    """The system's name."""
    data: Data | None = None
    privacy: Privacy | None = None
    questions: list[Question] = Field(default_factory=list, max_length=100)
    model: Model = Model()
    surface: Surface | None = None
    pilot: Pilot | None = None

    @model_validator(mode="after")
    def _one_study(self) -> Spec:
        if self.data is None and self.surface is None and self.pilot is None:
            raise ValueError("add the section [data] for a verification, [pilot] for a trial, or [surface] for designs")
        if self.surface is not None and (self.data or self.pilot or self.privacy or self.questions):
            raise ValueError("a study of designs, [surface], takes no [data], [pilot], [privacy] or [[questions]]")
        if self.data is None and self.pilot is not None and (self.privacy or not self.questions):
            raise ValueError("claims tried on a [pilot] alone take [[questions]] and no [privacy]")
        if self.data is not None and self.data.release is None and not (self.privacy and self.questions):
            raise ValueError("a verification needs [privacy] and at least one [[questions]]")
        if self.data is not None and self.data.release is not None and (self.questions or self.pilot):
            raise ValueError("a finished release carries its own questions; leave [[questions]] and [pilot] out")
        names = [question.name for question in self.questions]
        if len(set(names)) < len(names):
            raise ValueError(f"questions must have different names, got {names!r}")
        return self

    @model_validator(mode="after")
    def _settings_fit(self) -> Spec:
        if self.privacy is not None:
            self._check_release(self.privacy)
        draws = self.model.draws * self.model.chains * max(len(self.questions), 1)
        if draws > _MOST_DRAWS:
            raise ValueError(
                f"model.draws = {self.model.draws} with model.chains = {self.model.chains} are {draws:,} draws over "
                f"all questions, and a run keeps at most {_MOST_DRAWS:,}; lower model.draws or model.chains"
            )
        return self

    def _check_release(self, privacy: Privacy) -> None:
        outcomes, alpha, pooled = 3 if privacy.with_failures else 2, self.model.alpha, self.model.pooling == "partial"
        if alpha is not None and len(alpha) != outcomes:
            raise ValueError(f"model.alpha must give {outcomes} numbers, one per outcome, got {alpha}")
        if self.data is not None and self.data.strata and privacy.adjacency != "replace-one":
            raise ValueError("data.strata balances partitions, as fits replace-one; leave it out under add-remove")
        if pooled and privacy.n_partitions > MOST_TABULATED:
            raise ValueError(
                f'model.pooling = "partial" takes at most {MOST_TABULATED:,} partitions, got n_partitions = '
                f'{privacy.n_partitions}; lower privacy.n_partitions, or set model.pooling = "none"'
            )
        if pooled and any(question.answer_by == "mean" for question in self.questions):
            raise ValueError('model.pooling = "partial" pools shares; set answer_by = "share" for every question')


def design(spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Ledger | None = None) -> Release | None:
    """Return a release of the spec's design with placeholder counts; None for a study that releases nothing."""
    if spec.privacy is None:
        return None
    m, unit = spec.privacy.n_partitions, spec.data.protected_unit if spec.data else None
    split: dict[str, Any] = {"assignment": spec.privacy.assignment, "unit": unit}
    placeholder = {
        question.name: EstimateSums(0, 0, 0, n_partitions=m, **question.range, **split)
        if question.answer_by == "mean"
        else PartitionCounts(m - m // 2, m // 2, 0, **split)
        for question in spec.questions
    }
    return release_counts(placeholder, rng=np.random.default_rng(0), ledger=ledger, **_releasing(spec))


def _releasing(spec: Spec) -> dict[str, Any]:
    assert spec.privacy is not None
    shares = [question.share for question in spec.questions]
    return spec.privacy.model_dump(include={"epsilon", "adjacency", "noise", "with_failures"}) | {"shares": shares}


def try_fit(spec: Spec, design: Release, context: Context) -> None:
    """Draw from the posterior of the placeholder, sum the posteriors hardest to sum, and warn of small partitions."""
    if spec.privacy is not None:
        for question in spec.questions:
            check_coefficient_of(question.formula, question.coefficient, spec.data.levels if spec.data else {})
        _try_extremes(spec, design)
        if warnings := _warnings(spec, context):
            context.keep("warnings", warnings)
        for line in warnings:
            context.echo(f"warning: {line}")
    if spec.model.pooling == "partial":
        verifier.build_model(design, pooling="partial")
    else:
        verifier.draw_posterior(design, alpha=spec.model.alpha, **spec.model.drawing)


def _try_extremes(spec: Spec, design: Release) -> None:
    """Refuse M, epsilon and prior that admit releases whose posterior has too many terms."""
    from dpbayes.verifier.exact import DEFAULT_MAX_TERMS, posterior_of_counts

    m, alpha, size = design.n, spec.model.alpha, design.tables[0].counts.size
    assert isinstance(m, int) and spec.privacy is not None
    # The windows of the sum are widest where the counts do not add to M, and where they contradict the prior.
    extremes = np.vstack([np.full((1, size), m // size), m * np.eye(size)])
    try:
        for law in {table.noise for table in design.tables if is_count_table(table)}:
            for counts in extremes + np.floor(law.tail_radius(_FAR)):
                posterior_of_counts(counts, law, m, alpha=alpha)
    except InputError as error:
        most = round(DEFAULT_MAX_TERMS ** (1 / (size - 1))) - 1
        prior = "" if alpha is None else f" and model.alpha = {alpha}"
        raise SpecError(
            f"with privacy.n_partitions = {m}, privacy.epsilon = {spec.privacy.epsilon:g}{prior} the posterior of a "
            f"release can have more than {DEFAULT_MAX_TERMS:,} terms; lower n_partitions (up to {most:,} every release "
            f"has fewer){', weaken alpha' if prior else ''} or raise epsilon"
        ) from error


def _warnings(spec: Spec, context: Context) -> list[str]:
    """Return what public facts say against the partitions' size: the declared ones, and those of the pilot."""
    from dpbayes.verifier.design import partition_warnings, pilot_warnings

    data, privacy = spec.data, spec.privacy
    assert data is not None and privacy is not None
    n_units = data.n_persons if data.embedded else data.n_units
    n_units = spec.pilot.n_units if n_units is None and spec.pilot is not None else n_units
    public = data.model_dump(include={"levels", "level_shares", "strata"}) | {"n_partitions": privacy.n_partitions}
    found: list[str] = []
    for question in spec.questions:
        if n_units is not None:
            fitted = question.model_dump(include={"formula", "family"})
            skew = question.skew if question.answer_by == "share" else None
            found += partition_warnings(n_units=n_units, skew=skew, **fitted, **public)
        if spec.pilot is not None:
            cost = privacy.epsilon * question.share / sum(one.share for one in spec.questions)
            tried = _tried(spec, question, context.beside, [privacy.n_partitions], cost)
            found += pilot_warnings(tried, question.name)
    return list(dict.fromkeys(found))


def _tried(spec: Spec, question: Question, beside: Path, n_partitions: list[int], epsilon: float) -> xr.Dataset:
    """Return how a question's claim does on the pilot, at a privacy cost."""
    pilot = spec.pilot
    assert pilot is not None
    levels = pilot.levels or (spec.data.levels if spec.data is not None else {})
    unit = pilot.unit or (spec.data.unit if spec.data is not None else None)
    if pilot.file is not None:
        frame = _read(beside / pilot.file, levels, [question], (unit,), setting="pilot.file")
    else:
        frame, unit = wages(5000, seed=pilot.seed), unit or "person"
    settings = pilot.model_dump(include={"n_units", "partitions"}) | {"random_state": pilot.seed}
    settings |= {"n_partitions": n_partitions, "epsilon": epsilon} | question.range
    return verifier.pilot_shares(frame, unit=unit, levels=levels, **settings, **question.regression, **question.claim)


def release(spec: Spec, context: Context, *, rng: np.random.Generator | None, ledger: Ledger | None) -> Release:
    """Count and release. The exact counts stay in memory."""
    data, privacy = spec.data, spec.privacy
    assert data is not None and privacy is not None
    if data.microdata is None:
        frame = wages(data.n_persons, seed=data.seed)
    else:
        path, columns = context.beside / data.microdata, (data.unit, data.strata)
        frame = _read(path, data.levels, spec.questions, columns, setting="data.microdata")
    common = data.model_dump(include={"levels", "strata"}) | {"unit": data.protected_unit, "random_state": rng}
    common |= {"n_partitions": privacy.n_partitions, "assignment": privacy.assignment}
    counts = {}
    for question in spec.questions:
        if question.answer_by == "mean":
            found = verifier.sum_estimates(frame, **question.range, **question.regression, **common)
        else:
            found = verifier.count_partitions(frame, **question.claim, **question.regression, **common)
        counts[question.name] = found
    given = "" if data.strata is None else f" (given the public {data.strata!r})"
    return release_counts(counts, rng=rng, ledger=ledger, purpose=f"{spec.title}{given}", **_releasing(spec))


def _read(path: Path, levels: Levels, questions: list[Question], columns: Sequence[str | None], *, setting: str) -> Any:
    """Read a file; columns of units, groups and strata are text, unless a formula calculates with them."""
    named = {name for name in columns if name}.union(*(question.absorb for question in questions))
    text = named.difference(*(formula_columns(question.formula) for question in questions))
    flat = {name: [*chain(*given.values())] if isinstance(given, dict) else given for name, given in levels.items()}
    frame = scan_records(path, setting=setting, text={*levels, *text})
    with readable(path):
        return code_levels(frame, flat).collect()


def describe(spec: Spec, release: Release) -> str:
    """Say the release in a line."""
    asked = f"{len(release.tables)} question{'s' if len(release.tables) > 1 else ''}"
    return f"{asked}, {release.n:,} partitions, at {release.cost} in total, {release.adjacency}"


def fit(spec: Spec, release: Release | None, context: Context) -> xr.DataTree | dict[str, Any]:
    """Draw from the exact posteriors or sample the pooled model; sum the designs; or try the claims on the pilot."""
    if spec.surface is not None:
        return _surface(spec.surface, context)
    if release is None:
        assert spec.pilot is not None
        pilot = spec.pilot
        tried = {q.name: _tried(spec, q, context.beside, pilot.n_partitions, pilot.epsilon) for q in spec.questions}
        return {"pilot": {name: found.to_dict() for name, found in tried.items()}}
    if spec.model.pooling == "none":
        return verifier.draw_posterior(release, alpha=spec.model.alpha, **spec.model.drawing)
    from dpbayes.inference import sample

    how = spec.model.drawing | {"target_accept": 0.95, "progressbar": False, "progress": context.progress}
    return sample(verifier.build_model(release, pooling="partial"), **how)


def _surface(surface: Surface, context: Context) -> dict[str, Any]:
    """Sum the operating characteristics of every design, and seek the least epsilon for each M and r."""
    common = surface.model_dump(include={"failed", "alpha", "confidence"})
    found = verifier.design_surface(surface.n_partitions, surface.epsilon, r=surface.r, **common)
    designs = []
    for m in surface.n_partitions:
        for r in surface.r:
            try:
                least: float | None = verifier.smallest_epsilon(m, r=r, wanted=surface.wanted, **common)
            except InputError:
                # Out of reach with this M: said in the report as a dash.
                least = None
            designs.append({"n_partitions": m, "r": r, "epsilon": least})
        context.echo(f"design: {m} partitions done")
    return {"surface": found.to_dict(), "designs": designs}


def sections(spec: Spec, release: Release | None, result: Any, kept: Mapping[str, Any]) -> Findings:
    """Return what the page says."""
    from dpbayes.verifier.page import pilot_findings, surface_findings, verification_findings

    if spec.surface is not None:
        return surface_findings(spec.surface, result)
    if release is None:
        return pilot_findings(spec, result)
    return verification_findings(spec, release, result, kept.get("warnings", []))


def calibration(spec: Spec, design: Release | None, beside: Path, n_records: int | None) -> Calibration:
    """Return the model; its likelihood is exact, so that it simulates for itself."""
    from dpbayes.verifier.page import SHARE

    if design is None:
        raise SpecError("a study of designs sums operating characteristics; it has no posterior to calibrate")
    if n_records is not None:
        raise SpecError("a verifier's data are partitions, not records; set privacy.n_partitions in the spec instead")
    if not all(map(is_count_table, design.tables)):
        raise SpecError('questions with answer_by = "mean" have no sampled model to calibrate; leave them out')
    questions, pooling = len(design.tables), spec.model.pooling
    outcomes = design.tables[0].counts.size
    alpha = tuple((spec.model.alpha or [1.0] * outcomes)[:outcomes])
    return Calibration(
        build_model=partial(verifier.build_model, design, alpha=alpha, pooling=pooling),
        var_names=("r", "p"),
        called={"r": SHARE, "p": "probability of an outcome"},
        sampling={"target_accept": 0.95 if pooling == "partial" else 0.9},
        design=f"{design.n} partitions, {questions} question{'s' if questions > 1 else ''}, pooling {pooling}, "
        f"{design.adjacency}, noise {design.tables[0].noise}",
    )
