"""Parts that the reports of the MVG system share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpbayes import __version__
from dpbayes.mvg import FeatureRanges, mu_for
from dpbayes.report.document import Column, Fact, Figure, Paragraph, Section, Table
from dpbayes.runs.mvg import Spec

if TYPE_CHECKING:
    from dpbayes.mvg.comparison import NoiseCost

__all__ = ["guarantee", "noise_section", "provenance"]


def noise_section(
    spec: Spec, costs: Sequence[NoiseCost], ranges: FeatureRanges, names: Sequence[str], *, weighted: bool
) -> Section:
    """Return the section on what each mechanism would need in noise for the same guarantee.

    `weighted` says whether columns count by public weights rather than alike.
    """
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
        Table(
            "noise",
            f"Noise on the records themselves for epsilon {spec.privacy.epsilon:g} at delta {spec.privacy.delta:g}, "
            "replace-one: root mean square over the columns, in parts of their ranges"
            + (", weighted by what public patients say a column is worth." if weighted else "."),
            columns,
            rows,
        ),
        Paragraph(
            "The paper's bound is sufficient and far from necessary: the noise that it asks for really costs the exact "
            "epsilon in the table, almost zero. "
            + (
                "Columns that matter less take more noise in the optimal allocation; with weights this mild that saves "
                "little over equal noise."
                if weighted
                else "With equal ranges and equal weights nothing beats equal noise."
            )
        ),
    ]
    if ranges.size > 1:
        caption = (
            f"Two of the {ranges.size} columns. The guarantee is that the box of all columns fits inside the "
            "ellipsoid: the room left here is what the others use up. The cost is the ellipse."
        )
        shown = ", ".join(f"{c.mechanism} {c.stddev:.3g}" for c in costs)
        alt = f"Noise ellipses around the box of changes that one record can make. Noise over range: {shown}."
        figure = noise_ellipses(costs, ranges, names=[n.replace("_", " ") for n in names], unit="ranges")
        blocks.append(Figure(figure, caption, alt))
    return Section("What the guarantee costs in noise", blocks)


def guarantee(spec: Spec) -> list[Fact]:
    """Return epsilon and mu for the top of the page."""
    epsilon, delta = spec.privacy.epsilon, spec.privacy.delta
    return [
        Fact("epsilon", f"epsilon at delta {delta:g}, replace-one", epsilon, f"{epsilon:g}"),
        Fact("mu", "Gaussian price mu", mu_for(epsilon, delta), f"{mu_for(epsilon, delta):.4g}"),
    ]


def provenance(spec: Spec, made: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return where records and noise came from, and for a study what `dpbayes.runs.mvg.run` noted of its making."""
    seed = spec.privacy.simulation_seed
    noise = "OpenDP" if seed is None else f"a seeded generator (simulation, seed {seed})"
    source = f"{spec.data.n:,} generated patients, seed {spec.data.seed}" if spec.data.n else str(spec.data.file)
    found = {"dpbayes": __version__, "records": source, "noise drawn by": noise}
    if made is not None:
        found |= {"time": f"{made['seconds']:.0f} s", "spec digest": made["spec_digest"]}
    return found
