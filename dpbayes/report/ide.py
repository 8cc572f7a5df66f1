"""The reports of prior-aware estimation: one release, or a hierarchy of groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpbayes.report.document import Block, Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.ide_errors import error_section, sizes_off
from dpbayes.report.ide_moved import estimate_section, most_moved, moved_section
from dpbayes.report.ide_plots import dependence_plot, strength_plot, trace_plot
from dpbayes.report.privacy_terms import PrivacyTerms
from dpbayes.report.released import (
    privacy_fact,
    privacy_terms,
    released_section,
    simulation_warning,
    size_of,
)

if TYPE_CHECKING:
    from dpbayes.ide import GroupRelease
    from dpbayes.privacy import Release

__all__ = ["groups_document", "tables_document"]


def tables_document(title: str, question: str, release: Release, result: Mapping[str, Any]) -> Document:
    """Build the report of an estimate from one release.

    Parameters
    ----------
    title, question
        What the study is called and asks.
    release
        What was released.
    result
        What `dpbayes.runs.ide_results.table_results` found, read back from ``estimate.json``.
    """
    sections = [
        released_section(release),
        _prior_section(result),
        estimate_section(result["moved"], release),
        moved_section(result["moved"], release),
        _trace_section(result),
    ]
    headline = [
        privacy_fact(release),
        Fact("n_counts", "noisy counts released", release.n_counts, f"{release.n_counts}"),
        Fact("n", "records", size_of(release), f"{size_of(release):,.0f}"),
        Fact("kl", "KL from the prior (nats)", result["kl"].get(result["method"], 0.0), _kl(result)),
    ]
    if "scores" in result:
        sections.append(error_section(result["scores"], result["method"]))
        headline.append(_score_fact(result["scores"], result["method"]))
    return Document(
        title=title,
        question=question,
        answer=_answer(result, result["moved"]),
        verdict=_verdict(result),
        headline=headline,
        sections=sections,
        provenance=_provenance(release, result),
        facts={"kl": result["kl"], "scores": result.get("scores")},
        privacy=privacy_terms(release),
    )


def groups_document(title: str, question: str, released: GroupRelease, result: Mapping[str, Any]) -> Document:
    """Build the report of Algorithm 2 over a hierarchy.

    Parameters
    ----------
    title, question
        What the study is called and asks.
    released
        What was released.
    result
        What `dpbayes.runs.ide_results.group_results` found, read back from ``estimate.json``.
    """
    records = sum(entry["size"] for entry in result["groups"])
    sections = [_group_release_section(released), _workload_section(result), _group_section(result)]
    sections.append(_trace_section(result))
    headline = [
        Fact("epsilon", f"epsilon for one individual, {released.adjacency}", released.epsilon, f"{released.epsilon:g}"),
        Fact("n_groups", "groups", len(released.groups), f"{len(released.groups)}"),
        Fact("n", "synthetic records", records, f"{records:,}"),
    ]
    if "scores" in result:
        sections.append(error_section(result["scores"], "synthetic"))
        headline.append(_score_fact(result["scores"], "synthetic"))
    return Document(
        title=title,
        question=question,
        answer=_answer(result),
        verdict=_verdict(result),
        headline=headline,
        sections=sections,
        provenance=_provenance(released, result),
        facts={"scores": result.get("scores")},
        privacy=PrivacyTerms(released.adjacency, "individual"),
    )


def _answer(result: Mapping[str, Any], tables: Sequence[Mapping[str, Any]] = ()) -> str:
    scores = result.get("scores")
    if scores is None:
        return most_moved(tables) if tables and result["method"] != "prior" else result["summary"] + "."
    name = "synthetic" if "synthetic" in scores["score"] else result["method"]
    text = (
        f"Two-way marginals within {scores['by']} score {scores['score'][name]:.1f} of 1000 against the true records; "
        f"the public prior untouched scores {scores['score']['prior']:.1f}."
    )
    return f"{text} {sizes_off(scores)}" if any(scores.get("sizes", {}).get("off", ())) else text


def _verdict(result: Mapping[str, Any]) -> Callout:
    tone: Any = "good" if result["passed"] else "bad"
    return Callout(tone, "Certificate" if result["method"] == "noise-aware" else "Algorithm 1", [result["summary"]])


def _score_fact(scores: Mapping[str, Any], name: str) -> Fact:
    value = scores["score"].get(name, scores["score"]["prior"])
    return Fact("score", "score (prior untouched " + f"{scores['score']['prior']:.1f})", value, f"{value:.1f}")


def _kl(result: Mapping[str, Any]) -> str:
    return f"{result['kl'].get(result['method'], 0.0):.3g}"


def _prior_section(result: Mapping[str, Any]) -> Section:
    certificate = result["certificate"]
    blocks: list[Block] = [Paragraph(_prior_text(result))]
    if result["borrowed"] is not None:
        rows = [(entry["group"], entry["records"], *entry["weights"].values()) for entry in result["borrowed"]]
        shares = [Column(name, ".3f") for name in result["borrowed"][0]["weights"]]
        caption = (
            "What each group's prior is mixed of, chosen on the public data alone. Recombined: every attribute drawn "
            "by itself, so that no pair of values is missing."
        )
        blocks.append(Table("borrowed", caption, [Column("group"), Column("public records", ",.0f"), *shares], rows))
    if certificate is not None:
        whose = "The prior" if result["method"] == "noise-aware" else "For the noise-aware estimate the prior"
        blocks.append(
            Paragraph(
                f"{whose} counts as {certificate['strength']:,.0f} records against the release (most likely "
                f"{certificate['most_likely']:,.0f}; sampling error allows {certificate['bound']:,.0f} at most). The "
                f"convex problem was solved in {certificate['iterations']} Newton steps to a duality gap of "
                f"{certificate['gap']:.2g} nats: every marginal is within {certificate['l1_bound']:.2g} in L1 of the "
                "optimum."
            )
        )
        if certificate["grid"]:
            figure = strength_plot(certificate["grid"], certificate["log_likelihood"], certificate["strength"])
            caption = (
                "Strength read off the release: the largest whose log-likelihood is within 1.92 of the best (a nominal "
                "95 % interval), and at most what sampling error allows."
            )
            alt = (
                f"Log-likelihood over strengths: largest at {certificate['most_likely']:,.0f} records, "
                f"{certificate['strength']:,.0f} taken, {certificate['bound']:,.0f} at most."
            )
            blocks.append(Figure(figure, caption, alt))
    return Section("The prior and what it is worth", blocks)


def _prior_text(result: Mapping[str, Any]) -> str:
    """Say where each method starts: only the noise-aware form pools."""
    prior = result["prior"]
    given = f"{prior['public_rows']:,} weighted rows, {_worth(prior['public_records'])}"
    if result["borrowed"] is None:
        return f"The prior lies on {given}."
    pooled = f"{prior['rows']:,} weighted rows, {_worth(prior['records'])}"
    if result["method"] == "algorithm-1":
        return f"Algorithm 1 takes the prior as given: {given}. Beside it, the noise-aware form pools it: {pooled}."
    return f"The pooled prior lies on {pooled}. Beside it, Algorithm 1 takes the prior as given: {given}."


def _worth(records: float | None) -> str:
    return "no sample" if records is None else f"worth {records:,.0f} records"


def _trace_section(result: Mapping[str, Any]) -> Section:
    trace = result["trace"]
    where = f" for unit {trace['unit']}" if "unit" in trace else ""
    if not trace["step"]:
        return Section("Algorithm 1 by iteration", [Paragraph("Algorithm 1 did not run: there was nothing to go by.")])
    minimum = result.get("l1_minimum")
    least = "" if minimum is None else f"; no distribution on the support has less than {minimum:.4g}"
    text = (
        f"Algorithm 1{where} trusts the released answers fully. It ended at an L1 loss of {trace['l1_loss'][-1]:.4g} "
        f"and {trace['kl'][-1]:.3g} nats from the prior as given{least}."
    )
    figure = trace_plot(trace["step"], trace["l1_loss"], trace["kl"], minimum)
    alt = f"L1 loss from {trace['l1_loss'][0]:.3g} to {trace['l1_loss'][-1]:.3g} over {trace['step'][-1]} iterations."
    caption = (
        f"L1 loss over all tables, and KL divergence, before the first of {trace['step'][-1]} iterations and after "
        f"{len(trace['step']) - 1} of them. Each update fits one table and disturbs the others."
    )
    return Section("Algorithm 1 by iteration", [Paragraph(text), Figure(figure, caption, alt)])


def _group_release_section(released: GroupRelease) -> Section:
    rows = []
    for level, releases in (("units", released.units), ("groups", released.groups)):
        first = next(iter(releases.values()))
        size: Any = first.n
        rows.append((level, "number of records", 1, size.noise.name, _stddev(size.noise), size.epsilon))
        for table in first.tables:
            noise = table.noise
            rows.append((level, table.label, table.counts.size, noise.name, _stddev(noise), table.epsilon))
    columns = [
        Column("level"),
        Column("table"),
        Column("counts", "d"),
        Column("noise"),
        Column("noise sd (records)", ".1f", "noise_sd"),
        Column("epsilon", ".4g"),
    ]
    most = "one record" if released.stability == 1 else f"{released.stability} records"
    blocks: list[Block] = [
        Paragraph(
            f"{len(released.units)} units and {len(released.groups)} groups. Neighbours differ in one individual, who "
            f"has at most {most}. Units are disjoint, and so are groups: each level costs what "
            f"one of its releases costs, and both levels together epsilon {released.epsilon:g}, a quarter a part."
        )
    ]
    blocks += simulation_warning(released.sampler)
    blocks.append(Table("released", "What left the custodian, for each unit and each group", columns, rows))
    return Section("What was released", blocks)


def _workload_section(result: Mapping[str, Any]) -> Section:
    chosen = result["workloads"]
    roots = [name for names in chosen["group_sets"] for name in names]
    largest = max(value for row in chosen["information"] for value in row)
    figure = dependence_plot(chosen["names"], chosen["information"], roots, chosen["unit_sets"])
    cliques = "; ".join(" x ".join(names) for names in chosen["unit_sets"])
    places = [chosen["names"].index(name) for name in roots]
    shared = max((chosen["information"][i][j] for i in places for j in places if i != j), default=0.0)
    text = (
        f"Chosen on the public data. Units: {cliques}. Groups, whose records are few, one-way: {', '.join(roots)}"
        + (f"; no two of these share more than {shared:.2g} nats." if len(roots) > 1 else ".")
    )
    caption = (
        "Mutual information on the public data. Framed pairs are in a unit's table; starred attributes in a group's."
    )
    alt = f"Heat map of {len(chosen['names'])} attributes with what is said above; the largest value is {largest:.2g}."
    return Section("Which marginals were asked for", [Paragraph(text), Figure(figure, caption, alt)])


def _group_section(result: Mapping[str, Any]) -> Section:
    units = [
        (entry["unit"], entry["n"], entry["kl"], entry["certificate"] and entry["certificate"]["strength"])
        for entry in result["units"]
    ]
    unit_columns = [
        Column("unit"),
        Column("records", ",.0f"),
        Column("KL from the prior", ".4g", "kl"),
        Column("prior worth (records)", ",.0f", "strength"),
    ]
    columns = [
        Column("group"),
        Column("unit"),
        Column("records", ",d", "size"),
        Column("L1 to the released, all tables", ".4f", "l1_loss"),
        Column("KL from the unit", ".4g", "kl"),
    ]
    rows = [(e["group"], e["unit"], e["size"], e["l1_loss"], e["kl"]) for e in result["groups"]]
    return Section(
        "Units and groups",
        [
            Paragraph("Estimates are points without intervals: there is no width to split by source."),
            Table("units", "Upper level: the public prior refined for each unit", unit_columns, units),
            Table("groups", "Groups, each from its unit's distribution", columns, rows),
        ],
    )


def _stddev(noise: Any) -> float:
    return math.sqrt(noise.variance)


def _provenance(released: Release | GroupRelease, result: Mapping[str, Any]) -> dict[str, Any]:
    import dpbayes

    made = result["provenance"]
    return {
        "dpbayes": dpbayes.__version__,
        "method": result["method"],
        "time": f"{made['seconds']:.1f} s",
        "noise drawn by": "OpenDP" if released.sampler == "opendp" else "a seeded generator (simulation)",
        "spec digest": made["spec_digest"],
        "release digest": released.digest,
    }
