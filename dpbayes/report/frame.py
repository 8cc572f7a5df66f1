"""The frame of every page: verdict, privacy cost, convergence and provenance, around what a system found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpbayes._lazy import xr
from dpbayes.errors import InputError
from dpbayes.report.document import Callout, Column, Document, Fact, Figure, Paragraph, PrivacyTerms, Section, Table

if TYPE_CHECKING:
    from dpbayes.inference.convergence import Verdict

_PANELS = 6  # rank plots of a page
NOISE_DRAWN_BY = {"opendp": "OpenDP", "simulation": "a seeded generator (simulation)"}
NOISE_DRAWN_BY |= {"secure": "the operating system's generator", "published": "its publisher"}
_PUBLICATION = {"publisher": "publisher", "source": "source", "date": "published on", "mechanism": "stated mechanism"}


@dataclass(frozen=True)
class Findings:
    """What a study has to say; the frame adds the rest of the page."""

    answer: str
    sections: Sequence[Section]
    headline: Sequence[Fact] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    verdict: Callout | None = None
    judged: str = ""
    picture: Figure | None = None
    caution: str = ""
    terms: PrivacyTerms | None = None
    cost: Sequence[Fact] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the quantities of a variable, in words


def framed(
    findings: Findings, *, title: str, question: str, release: Any, trace: xr.DataTree | None, made: Mapping[str, Any]
) -> Document:
    """Return the page of a study; `made` says how its result was made, as a trace's attributes do."""
    from dpbayes.privacy import Release
    from dpbayes.report.tables import privacy_fact, privacy_terms

    verdict, terms, cost = findings.verdict, findings.terms, list(findings.cost)
    if isinstance(release, Release):
        cost = cost or [privacy_fact(release)]
        terms = terms or privacy_terms(release)
    sections, headline = list(findings.sections), [*cost, *findings.headline]
    if trace is not None and "convergence" in trace.attrs:
        from dpbayes.inference.convergence import Verdict, quantity_words

        check = Verdict.from_json(trace.attrs["convergence"])
        verdict = verdict or verdict_callout(
            check, quantity_words(trace["posterior"].to_dataset(), check.variables, findings.named)
        )
        rhat, effective, sizes = check.value("rhat"), check.value("ess_bulk"), trace["posterior"].sizes
        draws = sizes["chain"] * sizes["draw"]
        headline.append(Fact("draws", "posterior draws", draws, f"{draws:,}"))
        headline.append(Fact("rhat", "largest R-hat (1 where chains agree)", rhat, f"{rhat:.3f}"))
        headline.append(Fact("ess_bulk", "fewest effective draws", effective, f"{effective:,.0f}"))
        sections.append(convergence_section(trace, check, judged=findings.judged, named=findings.named))
    if verdict is None:
        raise InputError("a study without a convergence check must say in Findings.verdict whether its numbers hold")
    provenance = _provenance(made, release) | dict(findings.provenance)
    rest: dict[str, Any] = {"facts": findings.facts, "privacy": terms, "picture": findings.picture}
    rest["caution"] = findings.caution or " ".join(filter(None, (section.caution for section in sections)))
    return Document(title, question, findings.answer, verdict, headline, sections, provenance, **rest)


def _provenance(made: Mapping[str, Any], release: Any | None) -> dict[str, str]:
    """Say what made the numbers, under the same names on every page."""
    seconds = {"compiling": made.get("compile_seconds"), "fitting": made.get("sampling_seconds")}
    published = getattr(release, "publication", None)
    found = {
        "dpbayes": made["dpbayes_version"],
        "fitted": made["created_at"],
        "sampler": made.get("sampler"),
        "sampler seed": made.get("random_seed"),
        **{name: None if value is None else f"{float(value):.0f} s" for name, value in seconds.items()},
        "noise drawn by": None if release is None else NOISE_DRAWN_BY[release.sampler],
        **({} if published is None else {_PUBLICATION[name]: value for name, value in vars(published).items()}),
        "spec digest": made["spec_digest"],
        "release digest": None if release is None else release.digest,
        "model.py digest": made.get("model_digest"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def verdict_callout(verdict: Verdict, words: Mapping[str, str] | None = None) -> Callout:
    """Return the verdict in words, with what to change if it failed."""
    called = words or {}
    if verdict.passed:
        return Callout("good", f"Convergence: all {len(verdict.findings)} checks passed.")
    lines = [
        f"{f.title}: {f.value_text} at {called.get(f.quantity, f.quantity)}, wanted {f.threshold_text}. {f.remedy}"
        for f in verdict.failures
    ]
    return Callout("bad", "Convergence: do not use these numbers yet.", lines)


def convergence_section(
    trace: xr.DataTree, verdict: Verdict, *, judged: str, named: Mapping[str, Sequence[str]] | None = None
) -> Section:
    """Build the section on convergence: what was judged, the checks, and plots of the worst quantities."""
    from dpbayes.inference.convergence import members_of, mixing, quantity_draws, quantity_words
    from dpbayes.report.plots import rank_plot

    words = quantity_words(trace["posterior"].to_dataset(), verdict.variables, named or {})
    columns = [Column("check"), Column("at"), Column("value", ",.4g"), Column("wanted"), Column("passed")]
    rows = [(f.title, words.get(f.quantity, f.quantity), f.value, f.threshold_text, f.passed) for f in verdict.findings]
    checks = Table("convergence", "Convergence checks, each at its worst quantity", columns, rows)
    title, shown = "Did the sampler converge?", verdict.worst[:_PANELS]
    if not shown:
        none = Paragraph("Too few chains or draws to compare, or none that moved: no rank plots.")
        return Section(title, [Paragraph(judged), checks, none])
    quantities, draws = quantity_draws(trace)
    chosen = draws[[quantities.index(quantity) for quantity in shown]]
    members = members_of(trace["sample_stats"].to_dataset())
    sizes, line = mixing(chosen, members=members).ess_bulk, f"{members} chains" if members > 1 else "a chain"
    ranks = Figure(
        rank_plot([words[str(quantity)] for quantity in shown], chosen, sizes),
        f"Rank plots of the quantities with the fewest effective draws. Each line is {line}; lines of the same "
        "distribution stay inside the grey band.",
        f"Rank ECDF difference plots of the worst-mixing quantities, a line for {line}, with a 95 % band.",
    )
    return Section(title, [Paragraph(judged), checks, ranks])
