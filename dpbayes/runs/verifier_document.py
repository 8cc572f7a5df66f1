"""Reports of the verifier, built from the files of a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes import __version__
from dpbayes.report.document import Block, Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.runs.verifier_spec import Spec, Surface

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy import Release
    from dpbayes.verifier.exact import Posterior

__all__ = ["surface_document", "verification_document"]

_EXACT = Callout("good", "Exact", ["The posterior is a finite sum. No sampler ran, so there is nothing to converge."])


def verification_document(spec: Spec, release: Release, trace: xr.DataTree) -> Document:
    """Build the report of a verification.

    Parameters
    ----------
    spec
        The run's spec.
    release
        What was released.
    trace
        Draws from the posterior.

    Returns
    -------
    Document
        What was released, the answer to each question, and where the true counts probably are.
    """
    from dpbayes.report.convergence import convergence_section, verdict_callout
    from dpbayes.report.released import privacy_fact
    from dpbayes.verifier import posterior
    from dpbayes.verifier.plots import posterior_plot

    exact = {table.label: posterior(release, alpha=spec.model.alpha, question=table.label) for table in release.tables}
    sections = [_released(release), _answers(spec, exact)]
    verdict = _EXACT
    if spec.model.pooling == "partial":
        from dpbayes.inference import Verdict

        judged = Verdict.from_json(trace.attrs["convergence"])
        verdict = verdict_callout(judged)
        sections += [_pooled(trace, exact), convergence_section(trace, judged, judged="All shares are judged.")]
    figure = Figure(
        posterior_plot(exact),
        "Exact posterior density of r for each question; the dotted line is one half.",
        "Posterior densities of the share of partitions in which the claim holds.",
    )
    sections.insert(2, Section("Posterior of r", [figure]))
    return Document(
        title=spec.title,
        question=spec.question,
        answer=" ".join(_sentence(name, one) for name, one in exact.items()),
        verdict=verdict,
        headline=[
            privacy_fact(release),
            Fact("n_partitions", "partitions, a public number", int(release.n), f"{release.n:,}"),
            Fact("questions", "questions", len(exact), str(len(exact))),
        ],
        sections=sections,
        provenance={
            "dpbayes": __version__,
            "release": release.digest,
            "sampler of the noise": release.sampler,
            "random_seed": str(trace.attrs.get("random_seed", "")),
        },
    )


def surface_document(spec: Spec, study: dict[str, Any]) -> Document:
    """Build the report of a study of designs.

    Parameters
    ----------
    spec
        The run's spec.
    study
        What ``surface.json`` holds.

    Returns
    -------
    Document
        Decision rates, widths and coverage over M, epsilon and r, surfaces over the true counts, and the least epsilon.
    """
    import xarray as xr

    assert spec.surface is not None
    surface = xr.Dataset.from_dict(study["surface"])
    designs = [(d["n_partitions"], d["r"], d["epsilon"]) for d in study["designs"]]
    best = min((d for d in designs if d[2] is not None), key=lambda d: d[2], default=None)
    wanted = f"a chance of {spec.surface.wanted:g} to decide rightly"
    answer = (
        f"No design of the grid reaches {wanted}."
        if best is None
        else f"The least epsilon that gives {wanted} is {best[2]:.3g}, with M = {best[0]} partitions and "
        f"r = {best[1]:g}."
    )
    least = Table(
        "designs",
        f"The smallest epsilon that gives {wanted}; a dash where none does",
        [Column("M", "d", "n_partitions"), Column("r", ".3g"), Column("epsilon", ".4g")],
        designs,
    )
    return Document(
        title=spec.title,
        question=spec.question,
        answer=answer,
        verdict=Callout("good", "Exact", ["Sums over every possible release. Nothing was simulated or sampled."]),
        headline=[Fact("designs", "designs summed", surface["right"].size, f"{surface['right'].size}")],
        sections=[_designs(surface), _count_surfaces(spec.surface), Section("Least epsilon", [least])],
        provenance={"dpbayes": __version__},
    )


def _designs(surface: xr.Dataset) -> Section:
    from dpbayes.verifier.plots import design_surface_plot

    names = ("right", "wrong", "width", "coverage", "mode_mean", "mode_sd")
    rows = [
        (int(m), float(e), float(r), *(float(surface[name].sel(n_partitions=m, epsilon=e, r=r)) for name in names))
        for m in surface["n_partitions"].values
        for e in surface["epsilon"].values
        for r in surface["r"].values
    ]
    columns = [Column("M", "d", "n_partitions"), Column("epsilon", ".3g"), Column("r", ".3g")]
    columns += [Column(name.replace("_", " "), ".3f", name) for name in names]
    captions = {"right": "Chance of the right decision.", "width": "Mean width of the 95 % interval."}
    blocks: list[Block] = [
        Figure(design_surface_plot(surface, name), caption, f"{caption} Against epsilon, a line for each M.")
        for name, caption in captions.items()
    ]
    table = Table("surface", "Operating characteristics, exact over counts and noise", columns, rows)
    return Section("Decisions and intervals", [*blocks, table])


def _count_surfaces(surface: Surface) -> Section:
    from dpbayes.verifier import count_surface
    from dpbayes.verifier.plots import count_surface_plot

    m = surface.n_partitions[len(surface.n_partitions) // 2]
    cost = surface.epsilon[len(surface.epsilon) // 2]
    counts = count_surface(m, epsilon=cost, alpha=surface.alpha, confidence=surface.confidence)
    figures = [
        Figure(
            count_surface_plot(counts, name, solid=solid),
            f"Every possible triple of true counts at M = {m}, epsilon = {cost:g}.",
            f"Surface of {name} over the true counts beyond and not beyond.",
        )
        for name, solid in (("mode_mean", True), ("width", False), ("undecided", False))
    ]
    return Section("Surfaces over the true counts", figures)


def _released(release: Release) -> Section:
    blocks: list[Block] = [
        Paragraph(
            f"The units were split at random into {release.n:,} disjoint partitions. Only the noisy numbers below left "
            f"the custodian. Neighbouring data sets are related by {release.adjacency} of one unit; either way one "
            "partition's outcome changes, so the L1 sensitivity of the three counts is 2."
        )
    ]
    if release.sampler == "simulation":
        lines = ["Seeded generators drew partitions and noise, so that the run can be repeated: no privacy guarantee."]
        blocks.append(Callout("warning", "A simulation, not a release", lines))
    columns = [Column("question"), Column("outcome"), Column("noisy count", ".6g", "noisy"), Column("noise")]
    rows = [
        (table.label, level, float(value), str(table.noise))
        for table in release.tables
        for level, value in zip(table.domain.attributes[0].levels, table.counts, strict=True)
    ]
    blocks.append(Table("released", "What left the custodian", columns, [tuple(map(_plain, row)) for row in rows]))
    return Section("What was released", blocks)


def _answers(spec: Spec, exact: dict[str, Posterior]) -> Section:
    claims = {question.name: question for question in spec.questions}
    columns = [
        Column("question"),
        Column("r-hat", ".3f"),
        Column("mean", ".3f"),
        Column("2.5 %", ".3f", "low"),
        Column("97.5 %", ".3f", "high"),
        Column("P(r > 1/2)", ".4f", "prob_majority"),
        Column("e-hat", ".3f"),
        Column("mass left out", ".1e", "truncation_error"),
    ]
    rows = []
    for name, one in exact.items():
        low, high = one.interval()
        modes = one.modes
        failed = modes.get("e-hat")
        rows.append((name, modes["r-hat"], one.mean, low, high, one.prob_greater(0.5), failed, one.truncation_error))
    blocks: list[Block] = [Paragraph(_claim(claims[name])) for name in exact if name in claims]
    blocks.append(Table("answers", "Share r of partitions in which each claim holds", columns, rows))
    return Section("Answers", blocks)


def _pooled(trace: xr.DataTree, exact: dict[str, Posterior]) -> Section:
    draws = trace["posterior"]["r"]
    rows = []
    for name, one in exact.items():
        values = np.asarray(draws.sel(question=name))
        low, high = np.quantile(values, [0.025, 0.975]).tolist()
        rows.append((name, float(values.mean()), low, high, one.mean, *one.interval()))
    columns = [Column("question"), Column("pooled mean", ".3f", "mean"), Column("2.5 %", ".3f", "low")]
    columns += [Column("97.5 %", ".3f", "high"), Column("alone: mean", ".3f", "alone_mean")]
    columns += [Column("alone: 2.5 %", ".3f", "alone_low"), Column("alone: 97.5 %", ".3f", "alone_high")]
    return Section("Questions that inform one another", [Table("pooled", "r pooled and alone", columns, rows)])


def _sentence(name: str, one: Posterior) -> str:
    low, high = one.interval()
    share = one.prob_greater(0.5)
    return f"{name}: the claim holds in {one.mean:.0%} of partitions [{low:.0%}, {high:.0%}], P(r > 1/2) = {share:.3f}."


def _claim(question: Any) -> str:
    claim = (
        f"significant at {question.significant_at:g}"
        if question.significant_at is not None
        else f"{question.direction} {question.threshold:g}"
    )
    absorbed = f", fixed effects of {', '.join(question.absorb)}" if question.absorb else ""
    return f"{question.name}: in {question.formula} ({question.family}{absorbed}), is {question.coefficient} {claim}?"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
