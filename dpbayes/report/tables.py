"""What left the custodian: its tables, noise laws and privacy cost."""

import math

import numpy as np
import numpy.typing as npt

from dpbayes.privacy.curves import zcdp_epsilon
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Publication, Release
from dpbayes.report.document import Block, Callout, Column, Fact, Paragraph, PrivacyTerms, Section, Table

_PARTS = [Column("table"), Column("counts", "d"), Column("noise")]
POST_PROCESSING = "post-processing of a published release"
NO_COST = Fact("cost", "privacy cost of this analysis", POST_PROCESSING, "none")
_DELTAS = (1e-6, 1e-9)  # at which a page states the epsilon of Gaussian noise


def mean_and_interval(draws: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the mean and the 95 % interval's ends over the first axis of posterior draws, as the last axis."""
    values = np.asarray(draws, dtype=float)
    return np.stack([values.mean(axis=0), *np.quantile(values, [0.025, 0.975], axis=0)], axis=-1)


def show_interval(mean: float, low: float, high: float) -> tuple[str, str, str]:
    """Return a mean and a 95 % interval of counts as text, to two digits of the standard deviation, or whole.

    >>> show_interval(2_728_061, 2_644_730, 2_809_537), show_interval(17.4, 12.6, 24.2)
    (('2,728,000', '2,645,000', '2,810,000'), ('17', '13', '24'))
    """
    stddev = (high - low) / 3.92
    place = max(0, math.floor(math.log10(stddev)) - 1) if stddev > 0 else 0
    return f"{round(mean, -place):,.0f}", f"{round(low, -place):,.0f}", f"{round(high, -place):,.0f}"


def interval_columns(format: str) -> list[Column]:
    """Return the columns of `mean_and_interval`."""
    return [Column("mean", format), Column("2.5 %", format, "low"), Column("97.5 %", format, "high")]


def privacy_fact(release: Release) -> Fact:
    """Return the total cost for the top of the page: epsilon, or rho where it is a curve of epsilon against delta."""
    if release.publication is not None:
        return NO_COST
    if release.epsilon is None:
        assert release.rho is not None
        return Fact("rho", f"rho (zero-concentrated) in total, {release.adjacency}", release.rho, f"{release.rho:.4g}")
    return Fact("epsilon", f"epsilon in total, {release.adjacency}", release.epsilon, f"{release.epsilon:g}")


def privacy_terms(release: Release) -> PrivacyTerms | None:
    """Return what the total cost is relative to: pure epsilon has delta 0, Gaussian noise a curve."""
    if release.publication is not None:
        return None
    assert release.adjacency != "as published"
    delta = None if release.epsilon is None else 0.0
    return PrivacyTerms(release.adjacency, release.protects.removeprefix("one "), delta)


def released_columns(release: Release) -> list[Column]:
    """Return the columns of `released_rows`."""
    costs = [Column("noise sd (records)", ".1f", "noise_sd"), Column("sensitivity", ".4g")]
    return [*_PARTS, *costs, Column("rho" if release.epsilon is None else "epsilon", ".4g")]


def released_rows(release: Release) -> list[tuple[str, int, str, float, float | None, float | None]]:
    """Return the label, number of counts, noise, its standard deviation, sensitivity and cost of each released part."""
    parts: list[tuple[str, int, NoisyTable | NoisyTotal]] = [(t.label, t.counts.size, t) for t in release.tables]
    if not isinstance(release.n, int):
        parts.append(("number of records", 1, release.n))
    rows = []
    for label, size, part in parts:
        noise, cost = part.noise, part.epsilon
        if release.epsilon is None and part.sensitivity is not None:
            cost = noise.rho(sensitivity=part.sensitivity)
        law = f"{noise.words}, {noise.parameter} {noise.spread:.6g}"
        rows.append((label, size, law, math.sqrt(noise.variance), part.sensitivity, cost))
    return rows


def released_section(release: Release) -> Section:
    """Build the section on a release: tables, noise laws, sensitivities, costs, and a warning if it is simulated."""
    if release.publication is not None:
        return _published_section(release, release.publication)
    public = isinstance(release.n, int)
    size = f"{release.n:,} records, a public number" if public else "records, their number released with noise"
    if release.epsilon is not None:
        cost = f"By sequential composition the epsilons add to {release.epsilon:g}."
    else:
        assert release.rho is not None
        bounds = {delta: math.ceil(1e3 * zcdp_epsilon(release.rho, delta)) / 1e3 for delta in _DELTAS}
        points = " and ".join(f"{epsilon:g} at delta {delta:g}" for delta, epsilon in bounds.items())
        cost = (
            f"The costs in zero-concentrated differential privacy add to rho = {release.rho:.4g}: epsilon is a curve "
            f"against delta, at most {points}."
        )
    tables = f"{release.n_counts} counts in {len(release.tables)} tables of {size}"
    text = f"{tables}, under {release.adjacency} adjacency. {cost}"
    table = Table("released", "What left the custodian", released_columns(release), released_rows(release))
    return Section("What was released", [Paragraph(text), *simulation_warning(release.sampler), table])


def _published_section(release: Release, publication: Publication) -> Section:
    """Say what somebody else published and stated, and what the tables say of it where they overlap."""
    from dpbayes.privacy.overlap import check_stated_noise

    size = f"{release.n:,} records, as published" if isinstance(release.n, int) else "a noisy number of records"
    words = (
        f"{publication.publisher} published {release.n_counts:,} counts in {len(release.tables)} tables of {size} "
        f"({publication.date}; {publication.source}). The stated mechanism: {publication.mechanism}. This analysis is "
        f"{POST_PROCESSING}: it costs no privacy and charges no ledger. That the noise was drawn as stated is the "
        "publisher's word."
    )
    rows = []
    for table in release.tables:
        least, largest = (math.sqrt(float(end)) for end in (table.variances.min(), table.variances.max()))
        part = table.label, table.counts.size, table.noise.words
        rows.append((*part, least, largest, int(table.withheld.sum()), table.threshold))
    columns = [*_PARTS, Column("least noise sd", ".4g", "least_sd"), Column("largest", ".4g", "largest_sd")]
    columns += [Column("held back", ",d", "held_back"), Column("threshold", "g")]
    check = check_stated_noise(release)
    seen = [(row.table, row.dof, row.ratio, row.lower, row.upper, row.z) for row in check.rows]
    blocks: list[Block] = [Paragraph(words), Table("released", "What was published", columns, rows)]
    blocks.append(Callout("note" if check.agrees else "bad", "The stated noise against the data", check.lines))
    if seen:
        of = [Column("table"), Column("degrees of freedom", ",d", "dof"), Column("noise seen / stated", ".3f", "ratio")]
        of += [Column("99 % from", ".3f", "lower"), Column("to", ".3f", "upper"), Column("z", ".1f")]
        blocks.append(Table("stated_noise", "Standard deviation of the noise where tables overlap", of, seen))
    return Section("What was published", blocks)


def simulation_warning(sampler: str) -> list[Callout]:
    """Return the warning of a release whose noise a seeded generator drew, and nothing for any other."""
    if sampler != "simulation":
        return []
    lines = ["A seeded generator drew the noise, so that the run can be repeated. It carries no privacy guarantee."]
    return [Callout("warning", "A simulation, not a release", lines)]
