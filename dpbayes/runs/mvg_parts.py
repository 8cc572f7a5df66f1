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

# Parts of the allowed epsilon, and of the optimal noise, from which on the page's words change.
_FAR, _LITTLE, _NOTHING = 0.1, 0.1, 5e-4


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
        Paragraph(f"{_paper_words(costs, spec.privacy.epsilon)} {_saving_words(costs, weighted=weighted)}"),
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


def _paper_words(costs: Sequence[NoiseCost], allowed: float) -> str:
    """Say what the noise that the paper's bound asks for really costs."""
    paid = sorted(cost.epsilon for cost in costs if cost.mechanism.startswith("paper's bound"))
    shown = " to ".join(dict.fromkeys(f"{epsilon:.2g}" for epsilon in (paid[0], paid[-1])))
    far = " and far from necessary" if paid[-1] < _FAR * allowed else ""
    return (
        f"The paper's bound is sufficient{far}: the noise that it asks for really costs an epsilon of {shown} at the "
        f"same delta, where {allowed:g} is allowed."
    )


def _saving_words(costs: Sequence[NoiseCost], *, weighted: bool) -> str:
    """Say what the optimal allocation saves over equal noise."""
    extra = next(cost.ratio for cost in costs if cost.mechanism == "i.i.d. analytic Gaussian") - 1.0
    if extra < _NOTHING:
        plain = "With equal ranges and equal weights nothing beats equal noise."
        return "The weights are too mild for anything to beat equal noise noticeably." if weighted else plain
    little = ": that saves little" if extra < _LITTLE else ""
    return f"Against the optimal allocation, equal noise is {100 * extra:.2g} % larger{little}."


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
