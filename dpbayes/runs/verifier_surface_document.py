"""Report of a study of verification designs, built from the files of a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpbayes import __version__
from dpbayes.report.document import Block, Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.privacy_terms import PrivacyTerms
from dpbayes.runs.verifier_spec import Spec, Surface

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["surface_document"]

_LAWS = {"two-sided-geometric": "two-sided geometric", "laplace": "Laplace"}

type Designs = list[tuple[int, float, float | None]]


def surface_document(spec: Spec, study: dict[str, Any]) -> Document:
    """Build the report of a study of designs.

    Parameters
    ----------
    spec
        The run's spec.
    study
        What ``surface.json`` holds.

    Returns
    -------
    Document
        Decision rates, widths and coverage over M, epsilon and r, surfaces over the true counts, and the least epsilon.
    """
    import xarray as xr

    assert spec.surface is not None
    surface = xr.Dataset.from_dict(study["surface"])
    designs = [(d["n_partitions"], d["r"], d["epsilon"]) for d in study["designs"]]
    least = Table(
        "designs",
        "Least epsilon",
        [Column("M", "d", "n_partitions"), Column("r", ".3g"), Column("epsilon", ".4g")],
        designs,
    )
    wanted = Paragraph(
        f"The smallest epsilon with which the chance of the right decision reaches {spec.surface.wanted:g}; a dash "
        "where not even a release without noise reaches it."
    )
    lines = ["Sums over every possible release. Nothing was simulated or sampled."]
    if spec.surface.noise == "laplace":
        lines = ["Sums over every true count, and over two quadrature nodes between neighbouring whole numbers."]
    return Document(
        title=spec.title,
        question=spec.question,
        answer=_answer(spec.surface, designs),
        verdict=Callout("good", "Exact" if spec.surface.noise == "two-sided-geometric" else "By quadrature", lines),
        headline=[
            Fact("designs", "designs summed", surface["right"].size, f"{surface['right'].size}"),
            Fact("wanted", "wanted chance of the right decision", spec.surface.wanted, f"{spec.surface.wanted:g}"),
            Fact("worst", "largest chance of a wrong decision", _worst(surface), f"{_worst(surface):.3f}"),
        ],
        sections=[
            _assumptions(spec.surface),
            _designs(surface),
            Section("Least epsilon", [wanted, least]),
            _count_surfaces(spec.surface),
        ],
        provenance={"dpbayes": __version__},
        privacy=PrivacyTerms("either", "unit"),
    )


def _worst(surface: xr.Dataset) -> float:
    return float(surface["wrong"].max())


def _answer(surface: Surface, designs: Designs) -> str:
    """Say for each r, which nobody can choose, what the cheapest design is."""
    parts = []
    for r in sorted(surface.r, key=lambda share: -abs(share - 0.5)):
        reached = [(epsilon, m) for m, share, epsilon in designs if share == r and epsilon is not None]
        supposed = f"if the claim holds in {100 * r:g}\N{NO-BREAK SPACE}% of partitions"
        if reached:
            epsilon, m = min(reached)
            parts.append(f"epsilon {epsilon:.3g} with M = {m} {supposed}")
        else:
            parts.append(f"more than these designs offer {supposed}")
    return f"To decide rightly with chance {surface.wanted:g} takes {'; '.join(parts)}."


def _assumptions(surface: Surface) -> Section:
    alpha = ", ".join(f"{a:g}" for a in surface.alpha)
    text = (
        f"The claim holds in a share r of the partitions that can be computed; {100 * surface.failed:g} % cannot. True "
        f"counts are multinomial, and the noise is {_LAWS[surface.noise]} of scale 2 / epsilon. The analyst "
        f"starts from a Dirichlet({alpha}) prior and decides that r lies above one half when its posterior probability "
        f"reaches {surface.confidence:g}, below when the complement does, and stays undecided otherwise. A decision is "
        "right on the side of one half on which r lies. More partitions hold fewer units each: r itself moves towards "
        "one half as M grows, which no table here knows."
    )
    return Section("What is supposed", [Paragraph(text)])


def _designs(surface: xr.Dataset) -> Section:
    from dpbayes.verifier.plots import design_surface_plot

    names = ("right", "wrong", "width", "coverage", "mode_mean", "mode_sd")
    rows = [
        (int(m), float(e), float(r), *(float(surface[name].sel(n_partitions=m, epsilon=e, r=r)) for name in names))
        for m in surface["n_partitions"].values
        for e in surface["epsilon"].values
        for r in surface["r"].values
    ]
    columns = [Column("M", "d", "n_partitions"), Column("epsilon", ".3g"), Column("r", ".3g")]
    columns += [Column("right", ".3f"), Column("wrong", ".3f"), Column("width", ".3f"), Column("coverage", ".3f")]
    columns += [Column("mean of r-hat", ".3f", "mode_mean"), Column("sd of r-hat", ".3f", "mode_sd")]
    captions = {
        "right": "Chance of the right decision.",
        "width": "Mean width of the 95 % interval.",
        "coverage": "Coverage of the 95 % interval for a fixed r. It is 95 % on average over the prior, not at each r: "
        "a prior that is far from the truth costs coverage where the data say little.",
    }
    blocks: list[Block] = [
        Figure(design_surface_plot(surface, name), caption, f"{caption} Against epsilon, a line for each M.")
        for name, caption in captions.items()
    ]
    table = Table("surface", "Operating characteristics, over true counts and noise", columns, rows)
    return Section("Decisions and intervals", [*blocks, table])


def _count_surfaces(surface: Surface) -> Section:
    from dpbayes.verifier import count_surface
    from dpbayes.verifier.plots import count_surface_plot

    m = surface.n_partitions[len(surface.n_partitions) // 2]
    cost = surface.epsilon[len(surface.epsilon) // 2]
    counts = count_surface(m, epsilon=cost, alpha=surface.alpha, confidence=surface.confidence, noise=surface.noise)
    captions = {
        "mode_mean": "Mean of the posterior mode r-hat",
        "width": "Mean width of the 95 % interval",
        "coverage": "Coverage of S1 / (S1 + S0); blank where that is 0 or 1, which no equal-tailed interval holds",
        "right": "Chance to decide for the side of one half on which S1 / (S1 + S0) lies",
    }
    figures = [
        Figure(
            count_surface_plot(counts, name, solid=name == "mode_mean"),
            f"{caption}, for every possible triple of true counts at M = {m}, epsilon = {cost:g}.",
            f"Surface of {name} over the true counts beyond and not beyond.",
        )
        for name, caption in captions.items()
    ]
    return Section("Surfaces over the true counts", figures)
