"""Where the width of an interval comes from: privacy noise, and the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes.report.document import Column, Figure, Paragraph, Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

TITLE = "Where the width comes from"
PRIVACY = "privacy noise"


def shares_section(
    splits: Sequence[tuple[str, float, float]], *, subject: str, rest: str, meaning: str, unit: str, format: str
) -> Section:
    """Build the section for a few quantities."""
    rows = [
        (name, math.sqrt(noise + other), math.sqrt(noise), math.sqrt(other), _share(noise, other))
        for name, noise, other in splits
    ]
    shares = [row[4] for row in rows]
    low, high = min(shares), max(shares)
    ends = dict.fromkeys(f"{100 * share:.0f}" for share in (low, high))
    range_text = f"{' to '.join(ends)}\N{NO-BREAK SPACE}%"
    text = f"The privacy noise accounts for {range_text} of the posterior variance, {rest} for the rest. {meaning}"
    columns = [
        Column(subject, key="quantity"),
        Column("sd", format, "sd"),
        Column(f"{PRIVACY} alone", format, "privacy_sd"),
        Column(f"{rest} alone", format, "rest_sd"),
        Column("share of the noise", ".2f", "privacy_share"),
    ]
    return Section(
        TITLE,
        [
            Paragraph(text),
            Figure(
                _plot([row[0] for row in rows], shares, rest),
                f"Share of each posterior variance that the privacy noise accounts for, and {rest}.",
                f"Stacked bars: privacy noise has {range_text} of the variance.",
            ),
            Table("sources", f"Posterior standard deviations by source, {unit}; their squares add up", columns, rows),
        ],
    )


def _share(noise: float, other: float) -> float:
    return noise / (noise + other) if noise + other > 0 else 0.0


def _plot(labels: Sequence[str], shares: Sequence[float], rest: str) -> MatplotlibFigure:
    import matplotlib.pyplot as plt

    place, width = np.arange(len(labels)), 100 * np.asarray(shares)
    figure, axis = plt.subplots(figsize=(7.5, 1.0 + 0.32 * len(labels)), layout="constrained")
    axis.barh(place, width, 0.6, color="#0072b2", label=PRIVACY)
    axis.barh(place, 100 - width, 0.6, left=width, color="#e69f00", label=rest)
    axis.set_xlim(0, 100)
    axis.set_yticks(place, labels, fontsize=9)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("share of the posterior variance (%)", fontsize=9)
    axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2, frameon=False, fontsize=8)
    return figure


def split_variance(
    shares: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    r"""Split the posterior variance of population counts by the law of total variance over the confidential counts."""
    design = np.column_stack([np.ones(len(counts)), counts - counts.mean(axis=0)])
    coefficients, _, rank, _ = np.linalg.lstsq(design, shares, rcond=None)
    fitted = design @ coefficients
    residual = shares - fitted
    # Residual degrees of freedom: a regression on noise alone would seem to explain rank / draws.
    left = (residual**2).sum(axis=0) / max(len(counts) - int(rank), 1)
    return np.maximum(shares.var(axis=0, ddof=1) - left, 0.0), left
