"""The convergence check: its verdict in words, and the section with its details."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpbayes._names import given_name
from dpbayes.inference.convergence import Quantity, Verdict, bfmi, mixing_table, quantity_draws
from dpbayes.report.document import Block, Callout, Column, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.plots import energy_plot, evolution_plot, rank_plot

if TYPE_CHECKING:
    import xarray as xr


_PANELS = 6


def verdict_callout(verdict: Verdict) -> Callout:
    """Return the verdict in words, with what to change if it failed."""
    if verdict.passed:
        return Callout("good", f"Convergence: all {len(verdict.findings)} checks passed.")
    lines = [
        f"{f.title}: {f.value_text} at {f.quantity}, wanted {f.threshold_text}. {f.remedy}" for f in verdict.failures
    ]
    return Callout("bad", "Convergence: do not use these numbers yet.", lines)


def convergence_facts(trace: xr.DataTree, verdict: Verdict) -> list[Fact]:
    """Return draws, largest R-hat and fewest effective draws for the top of the page."""
    sizes = trace["posterior"].sizes
    draws = sizes["chain"] * sizes["draw"]
    rhat, effective = verdict.value("rhat"), verdict.value("ess_bulk")
    return [
        Fact("draws", "posterior draws", draws, f"{draws:,}"),
        Fact("rhat", "largest R-hat", rhat, f"{rhat:.3f}"),
        Fact("ess_bulk", "fewest effective draws", effective, f"{effective:,.0f}"),
    ]


def convergence_section(trace: xr.DataTree, verdict: Verdict, *, judged: str) -> Section:
    """Build the section on convergence: what was judged, the checks, and plots of the worst quantities."""
    columns = [Column("check"), Column("at"), Column("value", ".4g"), Column("wanted"), Column("passed")]
    rows = [(f.title, f.quantity, f.value, f.threshold_text, f.passed) for f in verdict.findings]
    return Section(
        "Did the sampler converge?",
        [
            Paragraph(judged),
            Table("convergence", "Convergence checks, each at its worst quantity", columns, rows),
            *_worst(trace, verdict),
            *_energy(trace),
        ],
    )


def _worst(trace: xr.DataTree, verdict: Verdict) -> list[Block]:
    """Return the plots of the worst quantities."""
    if not verdict.worst:
        return [Paragraph("Too few chains or draws to compare, or none that moved: no rank plots.")]
    draws, mixing = quantity_draws(trace), mixing_table(trace)
    worst = {_title(q): draws[q] for q in verdict.worst[:_PANELS]}
    effective = {_title(q): mixing[str(q)]["ess_bulk"] for q in verdict.worst[:_PANELS]}
    return [
        Figure(
            rank_plot(worst, effective),
            "Rank plots of the quantities with the fewest effective draws. Each line is a chain; chains that "
            "sample the same distribution stay inside the grey band.",
            "Rank ECDF difference plots of the worst-mixing quantities, one line per chain, with a 95 % band.",
        ),
        Figure(
            evolution_plot(worst),
            "Effective draws of the same quantities as sampling goes on, from the first part of every chain: they "
            "should grow in proportion. Solid: bulk; dashed: tails; dotted: the 400 that the check asks for.",
            "Bulk and tail effective sample sizes against draws, one colour per quantity.",
        ),
    ]


def _energy(trace: xr.DataTree) -> list[Block]:
    """Return the energy plot, or a sentence where the sampler noted no energy."""
    stats = trace["sample_stats"].to_dataset()
    if "energy" not in stats:
        return [Paragraph("The sampler noted no energy: no energy plot.")]
    energy = np.asarray(stats["energy"].transpose("chain", "draw").to_numpy(), dtype=float)
    return [
        Figure(
            energy_plot(energy, bfmi(energy)),
            "Energy of the draws (filled) and its change from draw to draw (line). Where the change is much narrower, "
            "the momentum explores too slowly: a BFMI below 0.3.",
            "Histograms of energies and of energy changes, a panel per chain, with the BFMI in the title.",
        )
    ]


def _title(quantity: Quantity) -> str:
    """Return a short title: the variable and its levels."""
    return f"{given_name(quantity.name)} {' '.join(str(label) for _, label in quantity.where)}"
