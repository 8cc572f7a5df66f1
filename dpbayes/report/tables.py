"""What left the custodian: its tables, noise laws and privacy cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpbayes.privacy.zcdp import zcdp_epsilon
from dpbayes.report.document import Block, Callout, Column, Fact, Paragraph, PrivacyTerms, Section, Table

if TYPE_CHECKING:
    from dpbayes.privacy import Release
    from dpbayes.privacy.laws import NoiseLaw
    from dpbayes.privacy.release import NoisyTable, NoisyTotal

_COLUMNS = [
    Column("table"),
    Column("counts", "d"),
    Column("noise"),
    Column("noise sd (records)", ".1f", "noise_sd"),
    Column("sensitivity", ".4g"),
]
_DELTAS = (1e-6, 1e-9)  # at which a page states the epsilon of Gaussian noise


def size_of(release: Release) -> float:
    """Return the number of records, or its noisy value."""
    return release.n if isinstance(release.n, int) else max(release.n.value, 1.0)


def privacy_fact(release: Release) -> Fact:
    """Return the total cost for the top of the page: epsilon, or rho where it is a curve of epsilon against delta."""
    if release.epsilon is None:
        return Fact("rho", f"rho (zero-concentrated) in total, {release.adjacency}", release.rho, f"{release.rho:.4g}")
    return Fact("epsilon", f"epsilon in total, {release.adjacency}", release.epsilon, f"{release.epsilon:g}")


def privacy_terms(release: Release) -> PrivacyTerms:
    """Return what the total cost is relative to: pure epsilon has delta 0, Gaussian noise a curve."""
    return PrivacyTerms(
        release.adjacency, release.protects.removeprefix("one "), None if release.epsilon is None else 0.0
    )


def released_section(release: Release) -> Section:
    """Build the section on a release: tables, noise laws, sensitivities, costs, and a warning if it is simulated."""
    parts: list[tuple[str, int, NoisyTable | NoisyTotal]] = [(t.label, t.counts.size, t) for t in release.tables]
    if not isinstance(release.n, int):
        parts.append(("number of records", 1, release.n))
    unit = Column("rho" if release.epsilon is None else "epsilon", ".4g")
    rows = [
        (label, size, _law(part.noise), math.sqrt(part.noise.variance), float(part.sensitivity), _cost(part, unit.name))
        for label, size, part in parts
    ]
    size = (
        f"{release.n:,} records, a public number"
        if isinstance(release.n, int)
        else "records, their number released with noise"
    )
    blocks: list[Block] = [
        Paragraph(
            f"{release.n_counts} counts in {len(release.tables)} tables of {size}. Neighbouring data sets are related "
            f"by {release.adjacency}; the guarantee protects {release.protects}. {_total_words(release)}"
        )
    ]
    blocks += simulation_warning(release.sampler)
    blocks.append(Table("released", "What left the custodian", [*_COLUMNS, unit], rows))
    return Section("What was released", blocks)


def _cost(part: NoisyTable | NoisyTotal, unit: str) -> float | None:
    return part.epsilon if unit == "epsilon" else part.noise.rho(sensitivity=part.sensitivity)


def _total_words(release: Release) -> str:
    """Say what all parts cost together."""
    if release.epsilon is not None:
        return f"By sequential composition the epsilons add to {release.epsilon:g}."
    bounds = {delta: math.ceil(1e3 * zcdp_epsilon(release.rho, delta)) / 1e3 for delta in _DELTAS}
    points = " and ".join(f"{epsilon:g} at delta {delta:g}" for delta, epsilon in bounds.items())
    return (
        f"The costs in zero-concentrated differential privacy add to rho = {release.rho:.4g}: epsilon is a curve "
        f"against delta, at most {points}."
    )


def simulation_warning(sampler: str) -> list[Callout]:
    """Return the warning of a release whose noise a seeded generator drew, and nothing for any other."""
    if sampler != "simulation":
        return []
    lines = ["A seeded generator drew the noise, so that the run can be repeated. It carries no privacy guarantee."]
    return [Callout("warning", "A simulation, not a release", lines)]


def _law(noise: NoiseLaw) -> str:
    return f"{noise.name}, {noise.parameter} {getattr(noise, noise.parameter):.6g}"
