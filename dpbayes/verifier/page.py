"""Pages of verifications, of studies of designs and of claims tried on a pilot: words, tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Picture

from dpbayes.inference.convergence import Verdict
from dpbayes.privacy.release import Release, record_words
from dpbayes.report.document import Callout, Fact, Figure, Paragraph, PrivacyTerms, Section, Table, show_probability
from dpbayes.report.frame import Findings, verdict_callout
from dpbayes.report.plots import COLOURS, log_ticks, panel_grid
from dpbayes.report.sensitivity import prior_section, shares_section
from dpbayes.report.tables import mean_and_interval, released_rows, simulation_warning
from dpbayes.verifier.design import LEAST_COVERAGE, MOST_FAILED, pilot_warnings
from dpbayes.verifier.exact import Posterior, posterior
from dpbayes.verifier.means import CoefficientPosterior, coefficient_posterior
from dpbayes.verifier.partition import is_count_table
from dpbayes.verifier.study import Question, Spec, Surface

# Points, density there, interval, and the claim's threshold.
type Panel = tuple[Any, Any, tuple[float, float], float | None]

SHARE = "share of partitions in which the claim holds"
SHARE_CAUTION = (
    "What is verified is a share of partitions, small random parts of the records, and not the coefficient of all "
    "records: where small samples are skewed, the two can differ."
)
_LINE = "#0072b2"
_WIDENING = 1.1  # of an interval by the allowance for clipping: beyond, the page warns
_PERCENT = "\N{NO-BREAK SPACE}%"
_FAMILIES = {"gaussian": "least squares", "logistic": "logistic regression", "poisson": "Poisson regression"}
_LABELS = {"right": "chance of the right decision", "width": "mean width of the 95 % interval"}
_LABELS |= {"coverage": "coverage of the 95 % interval"}


def _table_of(data: xr.Dataset, name: str, caption: str, columns: Sequence[Sequence[str]]) -> Table:
    """Return a dataset as a table, whose first columns are its dimensions."""
    keys = [column[2] if len(column) > 2 else column[0] for column in columns]
    frame = data.to_dataframe(dim_order=keys[: len(data.sizes)]).reset_index()[keys]
    return Table(name, caption, columns, frame.to_records(index=False).tolist())


def _interval(format: str, key: str = "") -> list[Sequence[str]]:
    """Return the columns of a 95 % interval."""
    return [("2.5 %", format, f"{key}low"), ("97.5 %", format, f"{key}high")]


def _asked(claims: Mapping[str, Question], names: Iterable[str]) -> list[Paragraph]:
    """Say what each question asks, where it is known."""
    return [Paragraph(claim_words(claims[name])) for name in names if name in claims]


def verification_findings(spec: Spec, release: Release, trace: xr.DataTree, warnings: Sequence[str]) -> Findings:
    """Return what a verification says: the answer to each question, what was released, where the true counts lie."""
    claims, alpha = {question.name: question for question in spec.questions}, spec.model.alpha
    labels = [table.label for table in release.tables]
    counted = [table.label for table in release.tables if is_count_table(table)]
    shares = {name: posterior(release, alpha=alpha, question=name) for name in counted}
    means = {name: coefficient_posterior(release, question=name) for name in labels if name not in shares}
    pooled = spec.model.pooling == "partial"
    alone = {name: (one.mean, *one.interval(), one.prob_greater(0.5)) for name, one in shares.items()}
    found = alone
    if pooled:
        draws = {name: trace["posterior"]["r"].sel(question=name).to_numpy().ravel() for name in shares}
        found = {name: (*mean_and_interval(of).tolist(), float((of > 0.5).mean())) for name, of in draws.items()}
    failed = {name: failed_share(one) for name, one in shares.items()}
    told = {name: mean_sentence(name, claims.get(name), one) for name, one in means.items()}
    told |= {name: sentence(name, claims.get(name), failed[name], *found[name]) for name in shares}
    sections = [_answers(claims, release, shares, pooled=pooled)] if shares else []
    sections += [_coefficients(claims, means)] if means else []
    sections += [_sources(shares, means, pooled=pooled), _released(release)]
    sections += [_true_counts(release, shares)] if shares else []
    sections += [_pooled(found, alone), _prior(trace, release)] if pooled else []
    left_out = max((one.truncation_error for one in shares.values()), default=0.0)
    panels = {name: share_panel(one) for name, one in shares.items()} or _coefficient_panels(claims, means)
    what = SHARE if shares else "coefficient"
    caption = f"Posterior density of the {what}, for each claim; dotted: {'one half' if shares else 'its threshold'}."
    plot = density_plot(panels, what, shared=bool(shares))
    return Findings(
        answer=" ".join(told[name] for name in labels),
        sections=sections,
        headline=[
            Fact("n_partitions", "partitions, a public number", round(release.size), f"{release.n:,}"),
            Fact("questions", "question" if len(labels) == 1 else "questions", len(labels), str(len(labels))),
        ],
        verdict=_verdict(trace, failed, means, pooled=pooled),
        judged="All shares are judged, and what they have in common.",
        picture=Figure(plot, caption, f"Posterior densities of the {what}."),
        caution=" ".join([*(f"{one}." for one in warnings), *([SHARE_CAUTION] if shares else [])]),
        facts={"mass_left_out": left_out},
    )


def sentence(
    name: str, claim: Question | None, failed: float | None, mean: float, low: float, high: float, majority: float
) -> str:
    """Answer a question by the share: its interval and, unless the claim is one of significance, the majority."""
    among = "partitions"
    if failed is not None:
        among = f"the computable partitions (about {100 * failed:.0f}{_PERCENT} could not be computed)"
    share = (
        f"\u201c{name}\u201d holds in {100 * mean:.0f}{_PERCENT} of {among}, 95{_PERCENT} interval "
        f"{100 * low:.0f} to {100 * high:.0f}{_PERCENT}"
    )
    if claim is not None and claim.significant_at is not None:
        return f"{share}: the power of the test in one partition, not whether the whole data are significant."
    return f"{share}, and in most of them with probability {show_probability(majority)}."


def mean_sentence(name: str, claim: Question | None, found: CoefficientPosterior) -> str:
    """Answer a question by the coefficient itself."""
    low, high = found.interval()
    said = f"\u201c{name}\u201d: the coefficient is {found.mean:.4g}, 95{_PERCENT} interval {low:.4g} to {high:.4g}"
    if claim is None or claim.threshold is None:
        return f"{said}."
    above = found.prob_greater(claim.threshold)
    chance = show_probability(above if claim.direction.startswith(">") else 1 - above)
    return f"{said}, and the claim holds ({claim.direction} {claim.threshold:g}) with probability {chance}."


def claim_words(question: Question) -> str:
    """Say what a question asks."""
    test = question.significant_at
    claim = f"{question.direction} {question.threshold:g}" if test is None else f"significant at {test:g}"
    absorbed = f", fixed effects of {', '.join(question.absorb)}" if question.absorb else ""
    return (
        f"\u201c{question.name}\u201d: is the coefficient of {question.coefficient} {claim} in {question.formula} "
        f"({_FAMILIES[question.family]}{absorbed})?"
    )


def reading(claims: Mapping[str, Question], names: Iterable[str]) -> str:
    """Say what a share tells of the whole data: claims about a threshold and of significance read differently."""
    asked, said = [claims.get(name) for name in names], []
    if any(one is None or one.threshold is not None for one in asked):
        said.append(
            "A claim about a threshold holds in more than half of the partitions exactly where it holds in the whole "
            "data, if estimates scatter evenly about the truth; hence the probability of a majority. Estimates of "
            "small parts of skewed data do not, and the share may then fall on the other side as partitions get "
            'smaller: ask about the coefficient itself (answer_by = "mean") where the response has a heavy tail.'
        )
    if any(one is None or one.significant_at is not None for one in asked):
        said.append(
            "For a claim of significance the share is the power of the test in one partition, which falls as "
            "partitions get smaller: a majority does not say whether the coefficient is significant in the whole data."
        )
    return " ".join(said)


def failed_share(exact: Posterior) -> float | None:
    """Return the posterior mean of the share of partitions that cannot be computed; None where it is not released."""
    return exact.share(exact.outcomes[2]).mean if len(exact.outcomes) == 3 else None


def _released(release: Release) -> Section:
    added = "A record more or less, each assigned by itself,"
    change = "Exchanging one record for another" if release.adjacency == "replace-one" else added
    text = (
        f"The records were split at random into {release.n:,} disjoint partitions. Only the noisy numbers below "
        f"left the custodian ({release.adjacency} adjacency; one record: {record_words(release.protected_unit)}). "
        f"{change} changes the outcome of one partition at most: one count falls by 1 and one rises by 1, an L1 "
        "sensitivity of 2. Noisy counts may be negative, and need not add to the number of partitions; the "
        "posterior takes both into account."
    )
    if not all(map(is_count_table, release.tables)):
        text += (
            " Of a question about the coefficient itself, each partition's estimate was clipped to a public range, and "
            "the sums of estimates and of their squares were released beside the number of failures: together they "
            "move no more than the sum alone."
        )
    rows: list[tuple[Any, ...]] = []
    for table, (label, _, law, sd, _, cost) in zip(release.tables, released_rows(release), strict=True):
        counts = zip(table.domain.attributes[0].levels, table.counts.tolist(), strict=True)
        rows += [(label, level, float(value), law, sd, cost) for level, value in counts]
    columns = ["question", "outcome", ("noisy count", ".6g", "noisy"), "noise", ("noise sd", ".1f", "noise_sd")]
    columns += [("epsilon of the question", ".4g", "question_epsilon")]
    warned = [
        Callout(one.tone, one.title, ["Seeded generators drew partitions and noise.", *one.lines])
        for one in simulation_warning(release.sampler)
    ]
    left = Table("released", "What left the custodian", columns, rows)
    return Section("What was released", [Paragraph(text), *warned, left])


def _answers(claims: Mapping[str, Question], release: Release, exact: Mapping[str, Posterior], pooled: bool) -> Section:
    columns = ["question", ("most likely share", ".3f", "r-hat"), ("mean", ".3f"), *_interval(".3f"), ("sd", ".3f")]
    columns += [("probability of a majority", "p", "prob_majority"), ("not computable, mean", ".3f", "failed")]
    rows: list[tuple[Any, ...]] = [
        (name, one.r.mode, one.mean, *one.interval(), one.sd, one.prob_greater(0.5), failed_share(one))
        for name, one in exact.items()
    ]
    alpha = ", ".join(f"{a:g}" for a in next(iter(exact.values())).alpha)
    meaning = (
        "What is verified: the share of computable partitions in which the estimate lies where the claim says. "
        f"Each partition holds one in {release.n:,} of the units, so its estimate varies more than that of the whole "
        f"data. {reading(claims, exact)} Most likely shares are posterior modes. Prior: Dirichlet({alpha})."
    )
    if pooled:
        meaning += " Each question is answered alone here; pooled answers follow below."
    table = Table("answers", "Share of partitions in which each claim holds", columns, rows)
    return Section("Answers", [*_asked(claims, exact), table, Paragraph(meaning)])


def _coefficients(claims: Mapping[str, Question], means: Mapping[str, CoefficientPosterior]) -> Section:
    columns = ["question", ("mean", ".4g"), ("sd", ".3g"), *_interval(".4g")]
    columns += [("probability above the threshold", "p", "prob_greater"), ("spread of estimates", ".3g", "spread")]
    columns += [("partitions computed", ".1f", "computed")]
    panels = _coefficient_panels(claims, means)
    rows: list[tuple[Any, ...]] = []
    for name, one in means.items():
        threshold = panels[name][-1]
        above = None if threshold is None else one.prob_greater(threshold)
        rows.append((name, one.mean, one.sd, *one.interval(), above, one.spread, one.computed))
    text = (
        "The coefficient itself, by the mean of the partitions' estimates. The posterior takes in the privacy noise "
        "and the variation between partitions, which was released too, and speaks of the population that the records "
        "are drawn from. Each estimate was freed of its bias of order one over the rows of a partition by its own "
        "halves; what bias is left is of the square of that, and of estimates beyond the public range."
    )
    caption = "Posterior density of each coefficient, 95 % interval shaded; the dotted line is the claim's threshold."
    figure = Figure(density_plot(panels, "coefficient"), caption, "Posterior densities of coefficients.")
    table = Table("coefficients", "Coefficients by the mean of the partitions' estimates", columns, rows)
    return Section("Coefficients", [*_asked(claims, means), table, Paragraph(text), figure])


def _true_counts(release: Release, exact: Mapping[str, Posterior]) -> Section:
    """Tabulate where the true counts probably are: their exact posterior under the noise law."""
    columns = ["question", "outcome", ("noisy", ".6g"), ("mean", ".1f"), *_interval("d")]
    rows: list[tuple[Any, ...]] = []
    for table in filter(is_count_table, release.tables):
        one = exact[table.label]
        for outcome, noisy in zip(one.outcomes, table.counts.tolist(), strict=True):
            values, probabilities = one.counts(outcome)
            below = np.cumsum(probabilities)
            low, high = (int(values[np.searchsorted(below, q * below[-1])]) for q in (0.025, 0.975))
            rows.append((table.label, outcome, float(noisy), float(values @ probabilities), low, high))
    found = Table("true_counts", "Posterior of the true counts", columns, rows)
    return Section("Where the true counts lie", [found])


def _sources(shares: Mapping[str, Posterior], means: Mapping[str, CoefficientPosterior], *, pooled: bool) -> Section:
    meaning = (
        "The first would be gone had the true counts been released; it shrinks with more epsilon. The second would "
        "stay, and shrinks with more partitions: the share is what endlessly many would give. Both parts are exact, "
        "the variance of the mean of the share given the true counts, and the mean of its variance given them."
    )
    if means:
        meaning += (
            " Of a coefficient, the first includes what clipping may have taken from the mean, and the second is the "
            "variation between partitions, which shrinks with more records."
        )
    if pooled:
        meaning += " Each question is taken alone here, before pooling."
    # Between the true counts lies privacy noise's part, within them that of the number of partitions.
    splits = [(name, *one.r.variances) for name, one in shares.items()]
    splits += [(name, one.noise_sd**2 + one.clipping_sd**2, one.sampling_sd**2) for name, one in means.items()]
    return shares_section(
        splits, subject="question", rest="partitions", meaning=meaning, unit="of the share", format="#.3g"
    )


def _pooled(pooled: Mapping[str, tuple[float, ...]], alone: Mapping[str, tuple[float, ...]]) -> Section:
    columns: list[Sequence[str]] = ["question"]
    for name, key in (("pooled", ""), ("alone", "alone_")):
        columns += [(f"{name}: mean", ".3f", f"{key}mean"), *_interval(".3f", key)]
        columns.append(("probability of a majority", "p", f"{key}prob_majority"))
    meaning = Paragraph(
        "The log-odds of the questions' shares have a common normal distribution, whose mean and spread are estimated "
        "with them: what one question says moves the others. The answer above is the pooled one."
    )
    rows: list[tuple[Any, ...]] = [(name, *numbers, *alone[name]) for name, numbers in pooled.items()]
    table = Table("pooled", "Shares, pooled and alone", columns, rows)
    return Section("Questions that inform one another", [meaning, table])


def _prior(trace: xr.DataTree, release: Release) -> Section:
    from dpbayes.verifier.model import pooled_densities

    parts, likelihood = pooled_densities(trace, release)
    what = (
        "The parts are the priors of the common log-odds (of the share, and of failing) and those of the spread "
        "between questions, which decides how much one question says about another."
    )
    return prior_section(trace, parts, variables=["r"], what=what, log_likelihood=likelihood)


def _verdict(
    trace: xr.DataTree, failed: Mapping[str, float | None], means: Mapping[str, CoefficientPosterior], *, pooled: bool
) -> Callout:
    """Return the verdict; a good one becomes a warning where few partitions count, or many estimates were clipped."""
    if pooled:
        verdict = verdict_callout(Verdict.from_json(trace.attrs["convergence"]))
    else:
        said = "The posterior is a finite sum. No sampler ran, so there is nothing to converge."
        verdict = Callout("good", "Exact", [said])
    lines = [
        f"\u201c{name}\u201d could not be computed in about {100 * share:.0f}{_PERCENT} of partitions. The answer "
        "speaks of the others only; where few are left it repeats the prior."
        for name, share in failed.items()
        if share is not None and share > 0.5
    ]
    title = "Most partitions could not be computed" if lines else "The range of the estimates is narrow"
    if lines:
        lines.append("Fewer partitions hold more records each; a rare level or a singular design may fail in all.")
    # Where the noise is the larger part, a wider range would add more than it takes away.
    clipped = [name for name, one in means.items() if one.widening > _WIDENING and one.clipping_sd > one.noise_sd]
    if clipped:
        lines.append(
            f"Estimates of {', '.join(f'\u201c{name}\u201d' for name in clipped)} may leave the range to which they "
            "are clipped, and the allowance for what that may take from their mean widens the interval by more than "
            "a tenth. Widen lower and upper, or take fewer partitions."
        )
    if lines and verdict.tone == "good":
        return Callout("warning", title, [*lines, " ".join([verdict.title.rstrip(".") + ".", *verdict.lines])])
    return Callout(verdict.tone, verdict.title, [*verdict.lines, *lines])


def surface_findings(asked: Surface, study: Mapping[str, Any]) -> Findings:
    """Return what a study of designs says: decision rates, widths and coverage over M, epsilon and r."""
    surface = xr.Dataset.from_dict(study["surface"])
    designs = [(d["n_partitions"], d["r"], d["epsilon"]) for d in study["designs"]]
    columns = [("partitions", "d", "n_partitions"), ("share in which the claim holds", ".3g", "r"), ("epsilon", ".3g")]
    wanted = Paragraph(
        f"The smallest epsilon with which the chance of the right decision reaches {asked.wanted:g}; a dash "
        "where not even a release without noise reaches it."
    )
    lines = ["Sums over every possible release. Nothing was simulated or sampled."]
    worst = float(surface["wrong"].max())
    alpha = ", ".join(f"{a:g}" for a in asked.alpha)
    supposed = Paragraph(
        f"The claim holds in a share of the partitions that can be computed; {100 * asked.failed:g} % cannot. True "
        "counts are multinomial, and the noise is two-sided geometric of scale 2 / epsilon. The analyst starts from a "
        f"Dirichlet({alpha}) prior and decides that the share lies above one half when its posterior probability "
        f"reaches {asked.confidence:g}, below when the complement does, and stays undecided otherwise. A decision is "
        "right on the side of one half on which the share lies. More partitions hold fewer units each: the share moves "
        "towards one half, and beyond it where small samples are skewed, which no table here knows; a pilot does."
    )
    least, plot = Table("designs", "Least epsilon", columns, designs), design_surface_plot(surface, "right")
    return Findings(
        answer=_design_answer(asked, designs),
        verdict=Callout("good", "Exact", lines),
        headline=[
            Fact("designs", "designs summed", surface["right"].size, f"{surface['right'].size}"),
            Fact("wanted", "wanted chance of the right decision", asked.wanted, f"{asked.wanted:g}"),
            Fact("worst", "largest chance of a wrong decision", worst, f"{worst:.3f}"),
        ],
        sections=[
            Section("What is supposed", [supposed]),
            Section("Least epsilon", [wanted, least]),
            _designs(surface),
        ],
        picture=Figure(plot, "Chance of the right decision.", "Against epsilon, a line per design."),
        caution="The share in which the claim holds is supposed here. More partitions hold fewer units each, and the "
        "share itself moves: try the claim on public records ([pilot] in a spec).",
        terms=PrivacyTerms("either", "unit"),
    )


def _design_answer(surface: Surface, designs: Sequence[tuple[int, float, float | None]]) -> str:
    """Say for each share, which nobody can choose, what the cheapest design is."""
    parts = []
    for r in sorted(surface.r, key=lambda share: -abs(share - 0.5)):
        reached = [(epsilon, m) for m, share, epsilon in designs if share == r and epsilon is not None]
        supposed = f"if the claim holds in {100 * r:g}{_PERCENT} of partitions"
        if reached:
            epsilon, m = min(reached)
            parts.append(f"epsilon {epsilon:.3g} with {m} partitions {supposed}")
        else:
            parts.append(f"more than these designs offer {supposed}")
    return f"To decide rightly with chance {surface.wanted:g} takes {'; '.join(parts)}."


def _designs(surface: xr.Dataset) -> Section:
    columns = [("partitions", "d", "n_partitions"), ("epsilon", ".3g"), ("share in which the claim holds", ".3g", "r")]
    columns += [("right", ".3f"), ("wrong", ".3f"), ("width", ".3f"), ("coverage", ".3f")]
    columns += [("mean estimate", ".3f", "estimate_mean"), ("its sd", ".3f", "estimate_sd")]
    captions = {
        "width": "Mean width of the 95 % interval.",
        "coverage": "Coverage of the 95 % interval for a fixed share. It is 95 % on average over the prior, not at "
        "each share: a prior that is far from the truth costs coverage where the data say little.",
    }
    lines = "Against epsilon, a line per number of partitions."
    figures = [Figure(design_surface_plot(surface, name), said, f"{said} {lines}") for name, said in captions.items()]
    table = _table_of(surface, "surface", "Operating characteristics, over true counts and noise", columns)
    return Section("Decisions and intervals", [*figures, table])


def pilot_findings(spec: Spec, study: Mapping[str, Any]) -> Findings:
    """Return what claims tried on a pilot say: the share against M, and the largest M that is safe."""
    assert spec.pilot is not None
    tried = {name: xr.Dataset.from_dict(found) for name, found in study["pilot"].items()}
    parts, warnings = [], []
    for name, found in tried.items():
        largest = int(found.attrs["largest_safe"])
        said, how = f"up to {largest} partitions", "verify by shares"
        if "coverage" in found:
            good = (found["coverage"] >= LEAST_COVERAGE) & (found["failed"] <= MOST_FAILED)
            sizes = found["n_partitions"].values[good.values].tolist()
            largest, how = len(sizes), "answer by the mean, with its range,"
            said = f"at {', '.join(f'{m:,}' for m in sizes)} partitions"
        said = said if largest else "at none of the numbers of partitions tried"
        parts.append(f"\u201c{name}\u201d is safe to {how} {said}")
        warnings += pilot_warnings(found, name)
    return Findings(
        answer="; ".join(parts) + ".",
        verdict=Callout(
            "warning" if warnings else "good",
            "Some designs mislead" if warnings else "All designs tried are safe",
            warnings or ["On the pilot the claim holds in most partitions exactly where it holds in all records."],
        ),
        headline=[
            Fact("n_units", "units of the confidential records", spec.pilot.n_units, f"{spec.pilot.n_units:,}"),
            Fact("partitions", "partitions drawn for each number", spec.pilot.partitions, f"{spec.pilot.partitions:,}"),
        ],
        sections=[
            *(_tried_section(question, tried[question.name]) for question in spec.questions),
            _reading_section(with_means=any(question.answer_by == "mean" for question in spec.questions)),
        ],
        picture=Figure(
            pilot_plot(tried), f"The {SHARE}, against their number; bars of two standard errors.", f"The {SHARE}."
        ),
        caution="A pilot speaks of itself: the confidential records may be more skewed.",
        terms=PrivacyTerms("either", "unit"),
    )


def _tried_section(question: Question, found: xr.Dataset) -> Section:
    columns = [("partitions", "d", "n_partitions"), ("units each", ",d", "units"), ("share", ".3f", "r")]
    columns += [("standard error", ".3f", "r_se"), ("not computed", ".3f", "failed")]
    columns += [("mean estimate", ".4g", "estimate"), ("its sd", ".3g", "estimate_sd")]
    columns += [("range from", ".4g", "range_from"), ("to", ".4g", "range_to")]
    columns += [("coverage", ".3f", "coverage")] * (question.answer_by == "mean")
    columns += [("right decision", ".3f", "right"), ("safe", "", "safe")]
    whole = float(found.attrs["whole"])
    text = (
        f"{claim_words(question)} In all of the pilot the coefficient is {whole:.4g}: the claim "
        f"{'holds' if found.attrs['beyond'] else 'does not hold'}."
    )
    table = _table_of(found, f"pilot_{question.name}", f"\u201c{question.name}\u201d on the pilot", columns)
    return Section(question.name, [Paragraph(text), table])


def _reading_section(*, with_means: bool) -> Section:
    text = (
        "The share is that of partitions, drawn from the pilot with replacement, in which the claim holds. Safe: it "
        "lies on the pilot's side of one half by two standard errors, at most a tenth of the partitions fail, and so "
        "at every smaller number. Right decision: its chance at the privacy cost asked for. The range is a public one "
        'for a question about the coefficient itself (answer_by = "mean"): five standard deviations of the estimates '
        "to either side, or, with many partitions, as many as make what it may cut off no more than the noise."
    )
    if with_means:
        text += (
            " Coverage: that of the 95 % interval with the question's own range, at the least over all laws of "
            "estimates with this mean and standard deviation."
        )
    return Section("How to read the tables", [Paragraph(text)])


def density_plot(panels: Mapping[str, Panel], xlabel: str, *, shared: bool = False) -> Picture:
    """Plot a posterior density for each question, its 95 % interval shaded, and the claim's threshold."""
    columns = 1 if len(panels) <= 3 else 2 if len(panels) <= 8 else 3
    rows = -(-len(panels) // columns)
    heights = [2.7 if rows == 1 else 1.7 if rows <= 3 else 1.2] * rows
    figure, axes = panel_grid(len(panels), columns=columns, size=(8.0 / columns, 0.0), heights=heights, sharex=shared)
    for axis, (name, (x, density, (low, high), threshold)) in zip(axes, panels.items(), strict=True):
        axis.plot(x, density, color=_LINE)
        inside = (x >= low) & (x <= high)
        axis.fill_between(x[inside], density[inside], color=_LINE, alpha=0.25, label="95 % interval")
        if threshold is not None:
            axis.axvline(threshold, color="0.4", linestyle=":")
        axis.set_title(fill(name, 90 // columns), loc="left", fontsize=9)
        axis.set_yticks([])
        axis.set_ylim(0, None)
    figure.supylabel("density", fontsize=9)
    figure.supxlabel(xlabel, fontsize=9)
    axes[0].legend(loc="best", frameon=False, fontsize=9)
    return figure


def share_panel(one: Posterior) -> Panel:
    """Return the density of r on [0, 1], finer where it is."""
    low, high = one.r.quantile([1e-4, 1 - 1e-4]).tolist()
    inner = np.clip(np.linspace(low, high, 200), 1e-6, 1 - 1e-6)
    grid = np.unique(np.concatenate([np.linspace(1e-3, 1 - 1e-3, 120), inner]))
    return grid, one.r.pdf(grid), one.interval(), 0.5


def _coefficient_panels(claims: Mapping[str, Question], means: Mapping[str, CoefficientPosterior]) -> dict[str, Panel]:
    thresholds = {name: claims[name].threshold if name in claims else None for name in means}
    return {name: (*one.density(), one.interval(), thresholds[name]) for name, one in means.items()}


def design_surface_plot(surface: xr.Dataset, variable: str) -> Picture:
    """Plot an operating characteristic over epsilon and M, one panel per supposed r."""
    shares, costs = surface["r"].values, surface["epsilon"].values
    size = (2.0 + 2.8 * shares.size, 3.6)
    figure, axes = plt.subplots(1, shares.size, figsize=size, sharey=True, squeeze=False, layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, surface.sizes["n_partitions"]))
    for axis, r in zip(axes[0], shares, strict=True):
        for colour, m in zip(colours, surface["n_partitions"].values, strict=True):
            values = surface[variable].sel(r=r, n_partitions=m).values
            axis.plot(costs, values, marker="o", markersize=3, color=colour, label=f"{m} partitions")
        if variable == "coverage":
            axis.axhline(0.95, color="0.4", linestyle=":")
        axis.set_title(f"claim holds in {100 * r:g} %", fontsize=10)
        axis.set_xlabel("epsilon", fontsize=9)
        axis.grid(color="0.92")
        log_ticks(axis, costs)
    axes[0, 0].set_ylabel(_LABELS[variable], fontsize=9)
    axes[0, -1].legend(frameon=False, fontsize=9)
    return figure


def pilot_plot(tried: Mapping[str, xr.Dataset]) -> Picture:
    """Plot for each claim the share in which it holds on a pilot against M, with two standard errors, and one half."""
    figure, axis = plt.subplots(figsize=(8.0, 3.4 + 0.25 * len(tried)), layout="constrained")
    for place, (name, found) in enumerate(tried.items()):
        colour = COLOURS[place % len(COLOURS)]
        m, r, error = (found[one].values.astype(float) for one in ("n_partitions", "r", "r_se"))
        axis.errorbar(m, r, yerr=2 * error, marker="o", markersize=4, capsize=2, color=colour, label=name)
        log_ticks(axis, m)
    axis.axhline(0.5, color="0.4", linestyle=":")
    axis.set(ylim=(0, 1), xlabel="number of partitions", ylabel=SHARE)
    figure.legend(loc="outside upper left", frameon=False, fontsize=9)
    return figure
