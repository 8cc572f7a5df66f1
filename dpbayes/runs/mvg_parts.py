"""Parts that the reports of the MVG system share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpbayes import __version__
from dpbayes.mvg import FeatureRanges, mu_for
from dpbayes.report.document import Column, Fact, Figure, Paragraph, Section, Table
from dpbayes.runs.mvg import Spec

if TYPE_CHECKING:
    from dpbayes.mvg.comparison import NoiseCost

__all__ = ["guarantee", "noise_section", "provenance"]


def noise_section(costs: Sequence[NoiseCost], ranges: FeatureRanges, names: Sequence[str]) -> Section:
    """Return the section on what each mechanism would need in noise for the same guarantee."""
    from dpbayes.mvg.plots import noise_ellipses

    columns = [
        Column("mechanism"),
        Column("noise sd / range", ".4g", "stddev"),
        Column("times optimal", ".4g", "ratio"),
        Column("exact epsilon", ".4g", "epsilon"),
        Column("mu known by", "", "method"),
    ]
    rows = [(c.mechanism, c.stddev, c.ratio, c.epsilon, c.noise.mu.method) for c in costs]
    blocks: list[Any] = [
        Table("noise", "Noise that the same guarantee takes on the records themselves", columns, rows),
        Paragraph(
            "The paper's bound is sufficient and far from necessary: what it asks for costs an epsilon of almost zero. "
            "With equal ranges and equal weights nothing beats equal noise."
        ),
    ]
    if ranges.size > 1:
        caption = "The guarantee is that the box fits inside the ellipse; the cost is the ellipse."
        alt = "Noise ellipses of the mechanisms around the box of changes that one record can make."
        blocks.append(Figure(noise_ellipses(costs, ranges, names=names), caption, alt))
    return Section("What the guarantee costs in noise", blocks)


def guarantee(spec: Spec) -> list[Fact]:
    """Return epsilon and mu for the top of the page."""
    epsilon, delta = spec.privacy.epsilon, spec.privacy.delta
    return [
        Fact("epsilon", f"epsilon at delta {delta:g}, replace-one", epsilon, f"{epsilon:g}"),
        Fact("mu", "Gaussian price mu", mu_for(epsilon, delta), f"{mu_for(epsilon, delta):.4g}"),
    ]


def provenance(spec: Spec) -> dict[str, str]:
    """Return where records and noise came from."""
    seed = spec.privacy.simulation_seed
    noise = "OpenDP" if seed is None else f"a seeded generator (simulation, seed {seed})"
    source = f"{spec.data.n:,} generated patients, seed {spec.data.seed}" if spec.data.n else str(spec.data.file)
    return {"dpbayes": __version__, "records": source, "noise drawn by": noise}
