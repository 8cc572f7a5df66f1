"""The frame of every page: verdict, privacy cost, convergence and provenance, around what a system found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpbayes.errors import InputError
from dpbayes.report.document import Callout, Document, Fact, Figure, PrivacyTerms, Section, Value

if TYPE_CHECKING:
    import xarray as xr

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
    provenance: Mapping[str, Value] = field(default_factory=dict)


def framed(
    findings: Findings,
    *,
    title: str,
    question: str,
    release: Any | None,
    trace: xr.DataTree | None,
    made: Mapping[str, Any],
) -> Document:
    """Return the page of a study; `made` says how its result was made, as a trace's attributes do."""
    from dpbayes.privacy import Release
    from dpbayes.report.convergence import convergence_facts, convergence_section, verdict_callout
    from dpbayes.report.tables import privacy_fact, privacy_terms

    verdict, terms, cost = findings.verdict, findings.terms, list(findings.cost)
    if isinstance(release, Release):
        cost = cost or [privacy_fact(release)]
        terms = terms or privacy_terms(release)
    sections, headline = list(findings.sections), [*cost, *findings.headline]
    if trace is not None and "convergence" in trace.attrs:
        from dpbayes.inference.convergence import Verdict

        check = Verdict.from_json(trace.attrs["convergence"])
        verdict = verdict or verdict_callout(check)
        headline += convergence_facts(trace, check)
        sections.append(convergence_section(trace, check, judged=findings.judged))
    if verdict is None:
        raise InputError("a study without a convergence check must say in Findings.verdict whether its numbers hold")
    return Document(
        title=title,
        question=question,
        answer=findings.answer,
        verdict=verdict,
        headline=headline,
        sections=sections,
        provenance={**_provenance(made, release), **findings.provenance},
        facts=findings.facts,
        privacy=terms,
        picture=findings.picture,
        caution=findings.caution,
    )


def _provenance(made: Mapping[str, Any], release: Any | None) -> dict[str, Value]:
    """Say what made the numbers, under the same names on every page."""
    publication = getattr(release, "publication", None)
    found = {
        "dpbayes": made["dpbayes_version"],
        "fitted": made["created_at"],
        "sampler": made.get("sampler"),
        "sampler seed": made.get("random_seed"),
        "compiling": _seconds(made.get("compile_seconds")),
        "fitting": _seconds(made.get("sampling_seconds")),
        "noise drawn by": None if release is None else NOISE_DRAWN_BY[release.sampler],
        **({} if publication is None else {_PUBLICATION[name]: value for name, value in vars(publication).items()}),
        "spec digest": made["spec_digest"],
        "release digest": None if release is None else release.digest,
        "model.py digest": made.get("model_digest"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _seconds(value: Any) -> str | None:
    return None if value is None else f"{float(value):.0f} s"
