"""Report of a verification, built from the files of a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes import __version__
from dpbayes.privacy.release import record_words
from dpbayes.report.document import Block, Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.runs.verifier_spec import Spec
from dpbayes.runs.verifier_words import claim_words, claims_of, reading, sentence

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy import Release
    from dpbayes.verifier.exact import Posterior

__all__ = ["verification_document"]

_EXACT = Callout("good", "Exact", ["The posterior is a finite sum. No sampler ran, so there is nothing to converge."])
_PERCENT = "\N{NO-BREAK SPACE}%"


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
    from dpbayes.report.released import privacy_fact, privacy_terms
    from dpbayes.verifier import posterior
    from dpbayes.verifier.plots import posterior_plot

    exact = {table.label: posterior(release, alpha=spec.model.alpha, question=table.label) for table in release.tables}
    figure = Figure(
        posterior_plot(exact),
        "Exact posterior density of r for each question; the dotted line is one half.",
        "Posterior densities of the share of partitions in which the claim holds.",
    )
    sections = [_released(release), _answers(spec, release, exact), Section("Posterior of r", [figure])]
    sections += [_sources(exact, pooled=spec.model.pooling == "partial"), _true_counts(release, exact)]
    verdict = _EXACT
    found = {name: (one.mean, *one.interval(), one.prob_greater(0.5)) for name, one in exact.items()}
    if spec.model.pooling == "partial":
        from dpbayes.inference import Verdict

        judged = Verdict.from_json(trace.attrs["convergence"])
        verdict = verdict_callout(judged)
        alone, found = found, {name: _of_draws(trace, name) for name in exact}
        sections += [_pooled(found, alone), _prior(trace)]
        sections.append(
            convergence_section(trace, judged, judged="All shares are judged, and what they have in common.")
        )
    claims, failed = claims_of(spec), {name: failed_share(one) for name, one in exact.items()}
    verdict = _with_failures(verdict, failed)
    left_out = max(one.truncation_error for one in exact.values())
    return Document(
        title=spec.title,
        question=spec.question,
        answer=" ".join(sentence(name, claims.get(name), failed[name], *numbers) for name, numbers in found.items()),
        verdict=verdict,
        headline=[
            privacy_fact(release),
            Fact("n_partitions", "partitions, a public number", int(release.n), f"{release.n:,}"),
            Fact("questions", "questions", len(exact), str(len(exact))),
            Fact("mass_left_out", "posterior mass left out, at most", left_out, f"{left_out:.0e}" if left_out else "0"),
        ],
        sections=sections,
        provenance={
            "dpbayes": __version__,
            "release": release.digest,
            "one record": record_words(release.protected_unit),
            "sampler of the noise": release.sampler,
            "random_seed": str(trace.attrs.get("random_seed", "")),
        },
        privacy=privacy_terms(release),
    )


def _released(release: Release) -> Section:
    change = (
        "Exchanging one record for another changes"
        if release.adjacency == "replace-one"
        else "A record more or less, each assigned by itself, changes"
    )
    blocks: list[Block] = [
        Paragraph(
            f"The records were split at random into {release.n:,} disjoint partitions. Only the noisy numbers below "
            f"left the custodian ({release.adjacency} adjacency; one record: {record_words(release.protected_unit)}). "
            f"{change} the outcome of one partition at most: one count falls by 1 and one rises by 1, an L1 "
            "sensitivity of 2. Noisy counts may be negative, and need not add to the number of partitions; the "
            "posterior takes both into account."
        )
    ]
    if release.sampler == "simulation":
        lines = ["Seeded generators drew partitions and noise, so that the run can be repeated: no privacy guarantee."]
        blocks.append(Callout("warning", "A simulation, not a release", lines))
    columns = [Column("question"), Column("outcome"), Column("noisy count", ".6g", "noisy"), Column("noise")]
    columns += [Column("noise sd", ".2f", "noise_sd"), Column("epsilon of the question", ".4g", "question_epsilon")]
    rows = [
        (table.label, level, float(value), _noise(table.noise), float(table.noise.variance**0.5), table.epsilon)
        for table in release.tables
        for level, value in zip(table.domain.attributes[0].levels, table.counts, strict=True)
    ]
    blocks.append(Table("released", "What left the custodian", columns, [tuple(map(_plain, row)) for row in rows]))
    return Section("What was released", blocks)


def _answers(spec: Spec, release: Release, exact: dict[str, Posterior]) -> Section:
    claims = claims_of(spec)
    columns = [
        Column("question"),
        Column("r-hat", ".3f"),
        Column("mean", ".3f"),
        Column("2.5 %", ".3f", "low"),
        Column("97.5 %", ".3f", "high"),
        Column("sd", ".3f"),
        Column("P(r > 1/2)", ".4f", "prob_majority"),
        Column("e-hat", ".3f"),
    ]
    rows = []
    for name, one in exact.items():
        low, high = one.interval()
        modes = one.modes
        rows.append((name, modes["r-hat"], one.mean, low, high, one.sd, one.prob_greater(0.5), modes.get("e-hat")))
    alpha = ", ".join(f"{a:g}" for a in next(iter(exact.values())).alpha)
    meaning = (
        f"r is the share of computable partitions in which the claim holds. Each partition holds one in {release.n:,} "
        f"of the units, so its estimate varies more than that of the whole data. {reading(claims, exact)} r-hat and "
        "e-hat are the posterior modes of r and of the share that cannot be computed. "
        f"Prior: Dirichlet({alpha})."
    )
    if spec.model.pooling == "partial":
        meaning += " Each question is answered alone here; pooled answers follow below."
    blocks: list[Block] = [Paragraph(claim_words(claims[name])) for name in exact if name in claims]
    blocks += [Table("answers", "Share r of partitions in which each claim holds", columns, rows), Paragraph(meaning)]
    return Section("Answers", blocks)


def _true_counts(release: Release, exact: dict[str, Posterior]) -> Section:
    """Tabulate where the true counts probably are: their exact posterior under the noise law."""
    columns = [Column("question"), Column("outcome"), Column("noisy", ".6g"), Column("mean", ".2f")]
    columns += [Column("2.5 %", "d", "low"), Column("97.5 %", "d", "high")]
    rows = []
    for table in release.tables:
        one = exact[table.label]
        for outcome, noisy in zip(one.outcomes, table.counts.tolist(), strict=True):
            values, probabilities = one.counts(outcome)
            below = np.cumsum(probabilities)
            low, high = (int(values[np.searchsorted(below, q * below[-1])]) for q in (0.025, 0.975))
            rows.append((table.label, outcome, float(noisy), float(values @ probabilities), low, high))
    return Section("Where the true counts lie", [Table("true_counts", "Posterior of the true counts", columns, rows)])


def _sources(exact: dict[str, Posterior], *, pooled: bool) -> Section:
    from dpbayes.report.variance_shares import shares_section
    from dpbayes.runs.width_sources import claim_variances

    meaning = (
        "The first would be gone had the true counts been released; it shrinks with more epsilon. The second would "
        "stay, and shrinks with more partitions: r is the share that endlessly many would give. Both parts are exact, "
        "the variance of the mean of r given the true counts, and the mean of its variance given them."
    )
    if pooled:
        meaning += " Each question is taken alone here, before pooling."
    return shares_section(
        [(name, *claim_variances(one)) for name, one in exact.items()],
        subject="question",
        rest="partitions",
        meaning=meaning,
        unit="of r",
        format=".4f",
    )


def _of_draws(trace: xr.DataTree, question: str) -> tuple[float, float, float, float]:
    """Return mean, 95 % interval and the probability of more than one half."""
    values = np.asarray(trace["posterior"].to_dataset()["r"].sel(question=question))
    low, high = np.quantile(values, [0.025, 0.975]).tolist()
    return float(values.mean()), low, high, float((values > 0.5).mean())


def _pooled(pooled: dict[str, tuple[float, ...]], alone: dict[str, tuple[float, ...]]) -> Section:
    columns = [Column("question")]
    for name, key in (("pooled", ""), ("alone", "alone_")):
        columns += [Column(f"{name}: mean", ".3f", f"{key}mean"), Column("2.5 %", ".3f", f"{key}low")]
        columns += [Column("97.5 %", ".3f", f"{key}high"), Column("P(r > 1/2)", ".3f", f"{key}prob_majority")]
    meaning = Paragraph(
        "The questions share a normal distribution of the log-odds of r, whose mean and spread are estimated with "
        "them: what one question says moves the others. The answer above is the pooled one."
    )
    rows: list[tuple[str | float, ...]] = [(name, *numbers, *alone[name]) for name, numbers in pooled.items()]
    return Section("Questions that inform one another", [meaning, Table("pooled", "r pooled and alone", columns, rows)])


def _prior(trace: xr.DataTree) -> Section:
    from dpbayes.report.sensitivity import prior_section
    from dpbayes.runs.log_densities import pooled_densities

    parts, likelihood = pooled_densities(trace)
    what = (
        "The parts are the priors of the common log-odds (of r, and of failing) and those of the spread between "
        "questions, which decides how much one question says about another."
    )
    return prior_section(trace, parts, variables=["r"], what=what, log_likelihood=likelihood)


def failed_share(exact: Posterior) -> float | None:
    """Return the posterior mean of the share of partitions that cannot be computed; None where it is not released.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, posterior, release_counts
    >>> release = release_counts(PartitionCounts(1, 1, 98), epsilon=1.0, rng=np.random.default_rng(3))
    >>> failed_share(posterior(release)) > 0.9
    True
    """
    return exact.share(exact.outcomes[2]).mean if len(exact.outcomes) == 3 else None


def _with_failures(verdict: Callout, failed: dict[str, float | None]) -> Callout:
    """Turn a good verdict into a warning where most partitions of a question probably could not be computed."""
    shares = {name: share for name, share in failed.items() if share is not None and share > 0.5}
    if not shares:
        return verdict
    lines = [
        f"\u201c{name}\u201d could not be computed in about {100 * share:.0f}{_PERCENT} of partitions. The answer "
        "speaks of the others only; where few are left it repeats the prior."
        for name, share in shares.items()
    ]
    lines.append("Fewer partitions hold more records each; a rare level or a singular design may fail in all of them.")
    judged = " ".join([verdict.title.rstrip(".") + ".", *verdict.lines])
    if verdict.tone == "good":
        return Callout("warning", "Most partitions could not be computed", [*lines, judged])
    return Callout(verdict.tone, verdict.title, [*verdict.lines, *lines])


def _noise(law: Any) -> str:
    name = {"TwoSidedGeometric": "two-sided geometric"}.get(type(law).__name__, type(law).__name__)
    return f"{name}, scale {law.scale:g}"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
