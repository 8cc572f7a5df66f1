"""Runs of prior-aware estimation: release marginals, weigh them against a public prior, synthesize, report."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dpbayes._files import write_whole
from dpbayes._lazy import pl
from dpbayes.data.datasets import Population, two_level_population
from dpbayes.data.domain import Domain, check_rows
from dpbayes.data.records import code_levels, readable, require_columns, scan_records
from dpbayes.data.tables import marginals
from dpbayes.errors import InputError, SpecError
from dpbayes.ide.estimation import Estimate, check_all_published, estimate
from dpbayes.ide.groups import (
    GroupRelease,
    GroupSynthesis,
    Hierarchy,
    choose_workloads,
    mutual_information,
    release_groups,
    synthesize_groups,
)
from dpbayes.ide.noise_aware import measure
from dpbayes.ide.prior import (
    BIAS_LIMIT,
    COMPONENTS,
    Credibility,
    Prior,
    Score,
    bootstrap_score,
    grouping_attribute,
    k_marginal_score,
    strengthened,
)
from dpbayes.privacy.envelope import read_one_of
from dpbayes.privacy.laws import PureNoiseName
from dpbayes.privacy.mechanism import release_tables
from dpbayes.privacy.release import Release, in_a_line
from dpbayes.runs.protocol import Calibration, Context, Findings
from dpbayes.runs.spec import Positive, PrivacySection, PublishedData, PublishedSpec, Section, Seed, check_tables

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

type Released = Release | GroupRelease

_PLACEHOLDER = 1000  # records of a placeholder where their number is not known
# What `estimate` solves to, unless told otherwise.
_TOLERANCE = 1e-2
# Released cells beyond which a page does without intervals.
_MOST_CELLS = 5000
_DISTANCES = {"moved": ("estimate", "prior"), "released_from_prior": ("released", "prior")}
_DISTANCES |= {"left": ("released", "estimate")}


class Recode(Section):
    """How a number becomes a level: whole bands of `width` from 0, everything from `top` on in the last."""

    width: int = Field(ge=1, le=10**9)
    """Width of a band, in the column's unit."""
    top: int = Field(ge=1, le=10**9)
    """Label of the last band: values of top x width and more."""
    keep: list[str] = Field(default_factory=list)
    """Marks that are no numbers and stay as they are, such as "N" for not applicable."""


class Data(PublishedData):
    """Public and confidential records: files beside the spec, or the generated population."""

    sources: ClassVar[tuple[str, ...]] = ("embedded", "private", "release", "published")
    confidential: ClassVar[str] = "private"
    files: ClassVar[tuple[str, ...]] = ("public", "private", "published", "constraints")

    embedded: Literal["two-level"] | None = None
    """Generate a two-level population with a public sister (`dpbayes.data.datasets.two_level_population`)."""
    public: str | None = None
    """CSV or Parquet file of public records."""
    private: str | None = None
    """CSV or Parquet file of confidential records; left out beside a finished release."""
    levels: dict[str, list[str]] = Field(default_factory=dict)
    """Levels of each attribute, as text, from the codebook; with files."""
    recode: dict[str, Recode] = Field(default_factory=dict)
    """Numeric columns to cut into bands before they are read as levels."""
    by: str | None = None
    """Attribute that names the group within which marginals are compared and the prior is pooled."""
    tables: list[list[str]] | Literal["by-feature"] | None = None
    """Tables to release; "by-feature" releases `by` x each other attribute. Without [groups]."""
    size: int = Field(default=600, ge=10, le=10**7)
    """Mean records of a group of the generated population."""
    seed: Seed = 1
    """Seed of the generated population."""

    @model_validator(mode="after")
    def _sources_fit(self) -> Data:
        if (self.public is None) != (self.embedded is not None):
            raise ValueError(
                "give data.public, the records that make the prior, beside private, release or published; the "
                "embedded population has its own"
            )
        if self.embedded is None and not self.levels:
            raise ValueError("files need [data.levels], the levels of each attribute from the codebook")
        named = () if self.embedded is not None else (*self.recode, *([self.by] if self.by else []))
        if unknown := sorted(set(named) - set(self.levels)):
            raise ValueError(f"recode or by names {unknown}, which [data.levels] lacks")
        if self.levels and self.tables is not None:
            domain = Domain.from_levels(self.levels)  # its errors name the attribute and the level
            if self.tables != "by-feature":
                check_tables(self.tables, domain, key="tables")
        return self


class Privacy(PrivacySection):
    """What the release costs. Not used when a finished release is read."""

    # Replace-one for tables, add-remove with [groups]: the spec checks what a unit may have there.
    adjacency: ClassVar[str] = "by the kind of study"

    epsilon: Positive
    """Total privacy-loss parameter."""
    noise: PureNoiseName = "two-sided-geometric"
    """The noise law."""


class Groups(Section):
    """Algorithm 2: upper units first, then their groups. Needs the generated population or a parent map."""

    attribute: str = "group"
    """Column that names the group of a record."""
    parent: dict[str, str] = Field(default_factory=dict)
    """Group to upper unit; the generated population and a finished release bring their own."""
    max_error: Positive = 0.2
    """Largest expected L1 error of a table that the workloads may choose."""
    max_information: Positive = 0.05
    """Largest mutual information, with natural logarithms, between attributes of the groups' workload."""
    n_jobs: int = Field(default=1, ge=1, le=1000)
    """Processes that share the groups."""


class Estimation(Section):
    """How the prior and the release are weighed."""

    method: Literal["noise-aware", "algorithm-1"] = "noise-aware"
    """Noise-aware, or the paper's iteration, which starts from the public prior as given."""
    pool: bool = True
    """Let thin public records borrow, between the groups of `by` and from independence, as the public data justify;
    Algorithm 1, and both methods with [groups], take the prior as given."""
    strength: Positive | None = None
    """Prior strength in records; by default it is chosen from the release alone."""
    iterations: int | None = Field(default=None, ge=1, le=1_000_000)
    """Updates of Algorithm 1, which is always run for comparison."""
    seed: Seed = 1
    """Seed of the updates' order and of the synthetic records (not of the noise)."""


class Synthesis(Section):
    """Synthetic records."""

    n_rows: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Records; by default as many as the release speaks of. Groups always take their released sizes."""
    format: Literal["parquet", "csv"] = "parquet"
    """File format."""


class Spec(PublishedSpec):
    """A run of prior-aware estimation."""

    system: Literal["ide"]
    """The system's name."""
    data: Data
    privacy: Privacy | None = None
    groups: Groups | None = None
    estimation: Estimation = Estimation()
    synthesis: Synthesis = Synthesis()

    @property
    def release_settings(self) -> dict[str, Any]:
        """What is counted, and with groups what chooses the tables; without them public records come after it."""
        decided = super().release_settings
        if self.given_release is None and self.groups is None:
            after = {"public"} if self.data.tables == "by-feature" else {"public", "by"}
            decided["data"] = {key: value for key, value in decided["data"].items() if key not in after}
        if self.given_release is None and self.groups is not None:
            decided["groups"] = self.groups.model_dump(exclude={"n_jobs"})
        return decided

    @model_validator(mode="after")
    def _fits(self) -> Spec:
        given = self.given_release is not None
        if self.data.embedded is not None and self.groups is None:
            raise ValueError("the two-level population is for groups; add the section [groups]")
        if self.groups is not None:
            if self.data.embedded is None and not self.groups.parent and not given:
                raise ValueError("groups of files need [groups.parent], the upper unit of each group")
            if self.data.tables is not None:
                raise ValueError("with [groups] the workloads are chosen from the public data; leave data.tables out")
        elif self.data.tables is None and not given:
            raise ValueError('name the tables to release: data.tables = "by-feature", or a list of attribute sets')
        elif self.data.max_rows_per_unit > 1:
            raise ValueError(
                f"max_rows_per_unit = {self.data.max_rows_per_unit} needs [groups]: under replace-one the number of "
                "records is public, and counting several rows per unit would tell it apart; set max_rows_per_unit = 1"
            )
        if self.data.tables == "by-feature" and self.data.by is None:
            raise ValueError("by-feature tables need data.by, the attribute that names the group")
        return self


def design(spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Ledger | None = None) -> Released:
    """Return the release of a spec with the counts of uniformly drawn records; only public records are read."""
    domain, hierarchy = _domain(spec)
    n = n_records or (_PLACEHOLDER if hierarchy is None else _PLACEHOLDER * len(hierarchy.groups))
    rng = np.random.default_rng(0)
    whole = list(domain) if hierarchy is None else [hierarchy.as_attribute, *domain]
    drawn = {a.name: np.asarray(a.levels, dtype=object)[rng.integers(0, a.size, n)].tolist() for a in whole}
    if spec.data.unit is not None:
        drawn[spec.data.unit] = list(range(n))
    return _release_of(spec, pl.DataFrame(drawn), beside, rng=rng, ledger=ledger)


def try_fit(spec: Spec, design: Released, context: Context) -> None:
    """Read the public records, and refuse what a later stage would refuse."""
    if (grouped := isinstance(design, GroupRelease)) != (spec.groups is not None):
        kind, remedy = ("groups", "add the section [groups]") if grouped else ("tables", "leave [groups] out")
        raise SpecError(f"{spec.data.release} is a release of {kind}; {remedy}")
    prior = public_prior(spec, context.beside)
    if isinstance(design, GroupRelease):
        parts = [*design.units.values(), *design.groups.values()]
        rows = sum(one.size for one in design.groups.values())
    else:
        parts, rows = [design], spec.synthesis.n_rows or design.size
    for one in parts:
        measured = measure(prior, one)
        if spec.estimation.method == "algorithm-1":
            check_all_published(measured)
    check_rows(rows, prior.domain)


def release(spec: Spec, context: Context, *, rng: np.random.Generator | None, ledger: Ledger | None) -> Released:
    """Count the confidential records, and release the tables."""
    return _release_of(spec, _records(spec, context.beside, "private"), context.beside, rng=rng, ledger=ledger)


def read_release(path: Path) -> Released:
    """Read a release of tables or of groups, whichever the file says it is."""
    return read_one_of(path, GroupRelease, Release)


def describe(spec: Spec, release: Released) -> str:
    """Return the release in a line for the terminal."""
    if isinstance(release, GroupRelease):
        what = f"{len(release.units)} units, {len(release.groups)} groups"
        return f"{what} at epsilon {release.epsilon:g} in total, {release.adjacency}"
    return in_a_line(release)


def fit(spec: Spec, release: Released, context: Context) -> dict[str, Any]:
    """Estimate, write the synthetic records, and return what was found as plain data."""
    prior = public_prior(spec, context.beside)
    public = spec.data.truth_public or spec.data.embedded is not None
    records = _records(spec, context.beside, "private") if public else None
    if isinstance(release, GroupRelease):
        result, frame = group_results(spec, prior, release, records)
    else:
        truth = None if records is None else Prior.from_frame(records, prior.domain)
        result, found = table_results(spec, prior, release, truth)
        rows = spec.synthesis.n_rows or round(max(found.n, 1.0))
        frame = found.sample(rows, rng=np.random.default_rng(spec.estimation.seed))
    folder, form = context.folder / "synthetic", spec.synthesis.format
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"synthetic-1.{form}", frame.write_parquet if form == "parquet" else frame.write_csv)
    context.echo(f"synthetic data: {len(frame):,} records")
    return result


def sections(spec: Spec, release: Released, result: Mapping[str, Any], kept: Mapping[str, Any]) -> Findings:
    """Return what the page says; see `dpbayes.ide.page`."""
    from dpbayes.ide.page import group_findings, table_findings

    return group_findings(release, result) if isinstance(release, GroupRelease) else table_findings(release, result)


def calibration(spec: Spec, design: Released, beside: Path, n_records: int | None) -> Calibration:
    """Return the Dirichlet model whose second-order form the estimate and its intervals are."""
    from dpbayes.ide.model import build_model, sampler_defaults

    if isinstance(design, GroupRelease):
        raise SpecError("groups are point estimates without a posterior: there is nothing to calibrate")
    if n_records is None and spec.given_release is None:
        raise SpecError("a calibration study reads no confidential record; say how many to simulate (--n-records)")
    if n_records is not None and spec.given_release is not None:
        raise SpecError("the finished release says how many records there are; leave --n-records out")
    prior = public_prior(spec, beside)
    n = max(round(design.estimated_size[0]), 1)
    strength = spec.estimation.strength or 1.0 / (1.0 / n + (1.0 / prior.n_records if prior.n_records else 0.0))
    law = design.tables[0].noise
    return Calibration(
        build_model=partial(build_model, prior, design, strength=strength),
        design=f"{n:,} records of {len(design.domain)} attributes, {len(design.tables)} tables, {design.adjacency}, "
        f"{law.words} noise of {law.parameter} {law.spread:g}, a prior worth {strength:,.0f} records",
        sampling=sampler_defaults(),
    )


def public_prior(spec: Spec, beside: Path) -> Prior:
    """Return the prior that the public records make."""
    return Prior.from_frame(_records(spec, beside, "public"), _domain(spec)[0])


def _domain(spec: Spec) -> tuple[Domain, Hierarchy | None]:
    """Return the attributes, and the groups of a run with groups that draws its own release."""
    if spec.data.embedded is not None:
        population = _population(spec.data.size, spec.data.seed)
        return population.domain, Hierarchy("group", population.parent)
    if spec.groups is None:
        return Domain.from_levels(spec.data.levels), None
    named = spec.groups.attribute
    domain = Domain.from_levels({name: levels for name, levels in spec.data.levels.items() if name != named})
    return domain, Hierarchy(named, dict(spec.groups.parent)) if spec.groups.parent else None


@lru_cache(maxsize=1)
def _population(size: int, seed: int) -> Population:
    """Return the generated population, which a run asks for at every stage."""
    return two_level_population(group_size=size, seed=seed)


def _records(spec: Spec, beside: Path, key: Literal["public", "private"]) -> pl.DataFrame:
    """Read the public records, or the confidential ones with their group and unit: all that a release counts."""
    data, attributes = spec.data, _domain(spec)[0].names
    if data.embedded is not None:
        return getattr(_population(data.size, data.seed), key)
    group, unit = None if spec.groups is None else spec.groups.attribute, data.unit
    wanted = attributes if key == "public" else (group, *attributes, unit)
    names = list(dict.fromkeys(name for name in wanted if name is not None))
    path = beside / getattr(data, key)
    lazy = scan_records(path, setting=f"data.{key}")
    require_columns(lazy, names, path, source="[data.levels]")
    with readable(path):
        plain = {name: levels for name, levels in data.levels.items() if name not in data.recode}
        frame = code_levels(lazy.select(pl.col(name).cast(pl.String) for name in names), plain).collect()
    if not len(frame):
        raise InputError(f"{path.name} has no rows")
    for name in data.recode.keys() & names:
        how, text = data.recode[name], pl.col(name)
        number = (text.cast(pl.Int64, strict=False) // how.width).clip(upper_bound=how.top).cast(pl.String)
        frame = frame.with_columns(pl.when(text.is_in(how.keep)).then(text).otherwise(number).alias(name))
    return frame


def _release_of(
    spec: Spec, records: pl.DataFrame, beside: Path, *, rng: np.random.Generator | None, ledger: Ledger | None
) -> Released:
    assert spec.privacy is not None
    domain, hierarchy = _domain(spec)
    epsilon, data = spec.privacy.epsilon, spec.data
    how: dict[str, Any] = {"noise": spec.privacy.noise, "purpose": spec.title, "rng": rng, "ledger": ledger}
    if hierarchy is None:
        by_feature = [[str(data.by), name] for name in domain.names if name != data.by]
        sets = data.tables if isinstance(data.tables, list) else by_feature
        tables = marginals(records, sets, domain=domain, **data.counted_by)
        return release_tables(tables, epsilon=epsilon, **how, **data.released_by)
    assert spec.groups is not None
    limits: dict[str, Any] = {"max_rows_per_unit": data.max_rows_per_unit, "max_error": spec.groups.max_error}
    limits |= {"max_information": spec.groups.max_information}
    unit_sets, group_sets = choose_workloads(public_prior(spec, beside), hierarchy, epsilon=epsilon, **limits)
    how |= {"unit_sets": unit_sets, "group_sets": group_sets, **data.counted_by}
    return release_groups(records, hierarchy, domain, epsilon=epsilon, **how)


def table_results(spec: Spec, public: Prior, release: Release, truth: Prior | None) -> tuple[dict[str, Any], Estimate]:
    """Estimate: noise-aware from the pooled prior, Algorithm 1 from the public one; both where they can be scored."""
    settings, by = spec.estimation, spec.data.by
    prior, borrowed = strengthened(public, by or grouping_attribute(release)) if settings.pool else (public, None)
    scored, found = truth is not None and by is not None, {}
    if scored or settings.method == "noise-aware":
        found["noise-aware"] = estimate(prior, release, strength=settings.strength or "release", pool=False)
    if scored or settings.method == "algorithm-1":
        how: dict[str, Any] = {"iterations": settings.iterations, "random_state": settings.seed}
        found["algorithm-1"] = estimate(public, release, noise_aware=False, **how)
    chosen = found[settings.method]
    trace = chosen.iterations
    result: dict[str, Any] = {
        "method": chosen.method,
        "prior": {"rows": chosen.prior.size, "records": chosen.prior.n_records},
        "public": {"rows": public.size, "records": public.n_records},
        "borrowed": None if chosen.prior is public or borrowed is None else _borrowed(public, borrowed),
        "certificate": _certificate(chosen),
        "trace": trace and {"step": trace.step, "l1_loss": trace.l1_loss, "kl": np.nan_to_num(trace.kl, posinf=0.0)},
        "moved": moved_tables(chosen),
        "kl": chosen.kl,
    }
    if truth is not None and by is not None:
        compared = {"prior": public, **({} if borrowed is None else {"pooled prior": prior})}
        compared |= {name: one.distribution for name, one in found.items()}
        result["scores"] = _said({name: k_marginal_score(q, truth, by=by) for name, q in compared.items()}, truth, by)
    result["passed"], result["summary"] = _verdict(chosen, result["certificate"])
    return result, chosen


def group_results(
    spec: Spec, prior: Prior, released: GroupRelease, truth: pl.DataFrame | None
) -> tuple[dict[str, Any], pl.DataFrame]:
    """Run Algorithm 2 and, where the truth is public, score what came out."""
    settings, jobs = spec.estimation, 1 if spec.groups is None else spec.groups.n_jobs
    how: dict[str, Any] = {"iterations": settings.iterations, "random_state": settings.seed}
    synthetic = synthesize_groups(prior, released, method=settings.method, n_jobs=jobs, **how)
    units, groups, parent = synthetic.units, synthetic.groups, released.hierarchy.parent
    result: dict[str, Any] = {
        "method": settings.method,
        "workloads": {"names": prior.domain.names, "information": mutual_information(prior)},
        "units": [
            {"unit": str(unit), "kl": one.kl, "certificate": _certificate(one), "n": one.n}
            for unit, one in units.items()
        ],
        "groups": [
            {"group": str(group), "unit": str(parent[group]), "size": one.size, "l1_loss": one.l1_loss, "kl": one.kl}
            for group, one in groups.items()
        ],
    }
    if truth is not None:
        result["scores"] = _group_scores(prior, synthetic, truth)
    gaps = [one.solution.gap for one in units.values() if one.solution is not None]
    gaps += [one.gap for one in groups.values() if not np.isnan(one.gap)]
    worst = max(gaps, default=0.0)
    result["passed"] = worst <= _TOLERANCE
    optimum = f"; objectives within {worst:.2g} of their minimum (tolerance {_TOLERANCE:g})" if gaps else ""
    result["summary"] = f"{int(synthetic.sizes.sum()):,} synthetic records in {len(groups)} groups{optimum}"
    return result, synthetic.frame()


def _group_scores(prior: Prior, synthetic: GroupSynthesis, truth: pl.DataFrame) -> dict[str, Any]:
    """Score the synthetic records, and the public prior put in every group, against the true records."""
    name, groups = synthetic.hierarchy.attribute, len(synthetic.groups)
    domain = Domain((synthetic.hierarchy.as_attribute, *prior.domain.attributes))
    true = Prior.from_frame(truth, domain)
    sizes = np.rint(true.marginal([name]) * (true.n_records or 0))
    copies = np.repeat(np.arange(groups, dtype=np.int32), prior.size)[:, None]
    everywhere = Prior(domain, np.hstack([copies, np.tile(prior.codes, (groups, 1))]), np.tile(prior.weights, groups))
    untouched = k_marginal_score(everywhere, true, by=name)
    if len(frame := synthetic.frame()):
        found = k_marginal_score(Prior.from_frame(frame, domain), true, by=name)
    else:
        found = Score(untouched.groups, np.full_like(untouched.errors, 2.0))
    scores, present = {"prior": untouched, "synthetic": found}, sizes > 0
    missed = (synthetic.sizes - sizes)[present]
    # How far each group's number of records is off, and what the bias penalty would make of each score.
    told = {"limit": BIAS_LIMIT, "missed": missed.astype(int), "off": np.abs(missed) > BIAS_LIMIT}
    told["penalized_score"] = {kind: score.penalized(missed).value for kind, score in scores.items()}
    return _said(scores, true, name) | {"sizes": told | {"empty": synthetic.sizes[present] == 0}}


def _said(scores: dict[str, Score], truth: Prior, by: str) -> dict[str, Any]:
    """Return scores as plain data, that of another sample of the same people beside them."""
    scores = scores | {"bootstrap of the truth": bootstrap_score(truth, by=by, rng=np.random.default_rng(1))}
    return {
        "by": by,
        "groups": [str(group) for group in scores["prior"].groups],
        "errors": {name: score.errors for name, score in scores.items()},
        "score": {name: score.value for name, score in scores.items()},
    }


def _certificate(found: Estimate) -> dict[str, Any] | None:
    if found.solution is None or found.strength is None:
        return None
    solved = {name: getattr(found.solution, name) for name in ("gap", "l1_bound", "iterations")}
    read = {name: value for name, value in vars(found.strength).items() if name != "value"}
    return solved | {"tolerance": _TOLERANCE, "strength": found.strength.value} | read


def _verdict(found: Estimate, certificate: dict[str, Any] | None) -> tuple[bool, str]:
    if found.method == "prior":
        return True, "The released number of records is not positive: the prior stands as it is."
    if found.method == "algorithm-1" or certificate is None:
        return True, f"Algorithm 1 ended at a KL divergence of {found.kl:.3g} from the prior; nothing bounds its error."
    passed = certificate["gap"] <= certificate["tolerance"]
    return passed, (
        f"{'Solved' if passed else 'NOT solved'}: the objective within {certificate['gap']:.2g} of its minimum "
        f"(tolerance {certificate['tolerance']:g}), any marginal within {certificate['l1_bound']:.2g} in L1 distance; "
        f"prior worth {certificate['strength']:,.0f} records"
    )


def _borrowed(prior: Prior, credible: Credibility) -> list[dict[str, Any]]:
    """How each group's prior was mixed, and from how many public records of its own."""
    by, n = credible.by, prior.n_records or 0.0
    names = ["all records"] if by is None else [str(level) for level in prior.domain[by].levels]
    share = np.ones(1) if by is None else prior.marginal([by])
    return [
        {"group": name, "records": part * n, "weights": dict(zip(COMPONENTS, mixed, strict=True))}
        for name, part, mixed in zip(names, share, credible.weights, strict=True)
    ]


def moved_tables(found: Estimate) -> list[dict[str, Any]]:
    """Set out every released table: the L1 distances between prior, release and estimate, and its cells' shares."""
    measurements = found.measurements
    before, after = measurements.prior_chance, measurements.cells.predict(found.weights)
    released = np.where(measurements.held, np.nan, measurements.values / max(measurements.n, 1.0))
    starts = measurements.cells.starts
    intervals = found.solution is not None and int(starts[-1]) <= _MOST_CELLS
    entries = []
    for table, first, last in zip(measurements.tables, starts, starts[1:], strict=False):
        shares = {"prior": before[first:last], "released": released[first:last], "estimate": after[first:last]}
        ends = zip(("low", "high"), found.interval(table.attributes), strict=True) if intervals else ()
        distances = {name: float(np.nansum(np.abs(shares[a] - shares[b]))) for name, (a, b) in _DISTANCES.items()}
        cells = {"cells": table.domain.cell_labels(), **{end: values.ravel() for end, values in ends}, **shares}
        entries.append({"table": table.label, **distances, **cells})
    return entries
