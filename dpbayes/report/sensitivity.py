"""How much the answer leans on the prior: power-scaling, without fitting again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes.report.document import Column, Figure, Paragraph, Section, Table
from dpbayes.report.power_scaling import NOTICEABLE, Sensitivities, sensitivities

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure as MatplotlibFigure

__all__ = ["NOTICEABLE", "prior_section"]

LIKELIHOOD = "released numbers"
"""Name of the likelihood's side in the table."""

NOISE = "(by chance alone)"
"""Marks the table's last rows."""

MOST_ROWS = 12
_UNKNOWN = "Only the prior is scaled here: the likelihood's side, which tells a conflict from weak data, is left out."

_COLOURS, _MARKERS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), "osD^"


def prior_section(
    trace: xr.DataTree,
    log_prior: Mapping[str, xr.DataArray],
    *,
    variables: Sequence[str],
    what: str,
    log_likelihood: xr.DataArray | None = None,
    answers: Sequence[str] = (),
) -> Section:
    """Build the section on sensitivity to the prior, and to the likelihood where it is known.

    Parameters
    ----------
    trace
        The fit.
    log_prior
        Parts of the prior to scale, each alone: name to the log-density of that part at every draw, dims ``chain`` and
        ``draw``. A constant does not matter.
    variables
        Posterior variables to judge.
    what
        A sentence on the parts of the prior.
    log_likelihood
        Log-density of all that was released at every draw, dims ``chain`` and ``draw``; scaled as a whole, since what
        one release says is one observation. None leaves the likelihood's side out, and the page says so.
    answers
        Those of `variables` that are the answer to the study's question: listed first, however little they move.

    Returns
    -------
    Section
        For each part of the prior the quantities that move most when that part is raised to a power near 1, beside how
        far the likelihood moves them.

    Notes
    -----
    The sensitivity of a quantity is the rate, per doubling of the exponent, at which the cumulative Jensen-Shannon
    distance between its posterior under ``prior^a`` and under the prior grows at a = 1. Posteriors for a = 0.99 and
    1.01 come from the same draws by Pareto-smoothed importance sampling; nothing is fitted again.

    References
    ----------
    Kallioinen, N., Paananen, T., Bürkner, P.-C. and Vehtari, A. (2024). Detecting and diagnosing prior and likelihood
    sensitivity with power-scaling. Statistics and Computing 34, 57.
    """
    scaled = dict(log_prior) if log_likelihood is None else {**log_prior, LIKELIHOOD: log_likelihood}
    found, parts = sensitivities(trace, scaled, variables), len(log_prior)
    largest = found.values[:, :parts].max(axis=1)
    order = sorted(
        range(len(largest)),
        key=lambda i: (_variable(found.labels[i]) not in answers, not found.felt[i, :parts].any(), -largest[i]),
    )
    listed = order[:MOST_ROWS]
    columns = [Column("quantity"), *(Column(part, ".3f") for part in scaled)]
    rows = [(found.labels[i], *found.values[i].tolist()) for i in listed]
    chance = [(f"{name} {NOISE}", *values.tolist()) for name, values in found.noise.items()]
    caption = "Power-scaling sensitivity to each part of the prior" + (
        ", and to the likelihood" * (len(scaled) > parts)
    )
    return Section(
        "How much does the prior decide?",
        [
            Paragraph(f"Each part of the prior is raised to a power near 1 and the posterior reweighted. {what}"),
            Paragraph(_verdict(found, parts, answers, len(listed))),
            _figure(found, listed, list(scaled)),
            Table("prior_sensitivity", caption, columns, [*rows, *chance]),
            Paragraph(_likelihood_text(found.felt, parts) if len(scaled) > parts else _UNKNOWN),
        ],
    )


def _verdict(found: Sensitivities, parts: int, answers: Sequence[str], listed: int) -> str:
    """Say how many quantities feel the prior, and how it is with the answer."""
    count, felt = len(found.labels), int(found.felt[:, :parts].any(axis=1).sum())
    text = (
        f"None of {count} quantities feels it: the data decide."
        if not felt
        else f"{felt} of {count} quantities {'feels' if felt == 1 else 'feel'} it: there the prior is part of the "
        "answer, and says what the release leaves open."
    )
    text += (
        f" To feel a part is to have a sensitivity above {NOTICEABLE}, and above what such a quantity shows by chance "
        "in one case of twenty, from as many draws, when it has nothing to do with the part (last rows)."
    )
    asked = [
        f"{label} {'feels' if feels.any() else 'does not feel'} it ({values.max():.3f})"
        for label, values, feels in zip(found.labels, found.values[:, :parts], found.felt[:, :parts], strict=True)
        if _variable(label) in answers
    ]
    text += f" The answer itself: {', '.join(asked)}." if asked else ""
    rest = f" Listed are the {listed} that move most" + (", after the answer." if asked else ".")
    return text + (rest if count > listed else "")


def _likelihood_text(felt: npt.NDArray[np.bool_], parts: int) -> str:
    """Read prior and likelihood together, after the diagnosis of the paper's Table 1."""
    count, prior, likelihood = len(felt), felt[:, :parts].any(axis=1), felt[:, parts]
    both, alone, neither = (int(kind.sum()) for kind in (prior & likelihood, prior & ~likelihood, ~prior & ~likelihood))
    text = f"The column “{LIKELIHOOD}” scales the likelihood of the whole release. "
    if both:
        text += f"{both} of {count} feel both sides: prior and release pull on them, and may disagree. "
    if alone:
        text += f"{alone} of {count} feel the prior alone: the release says little of them. "
    if neither:
        text += f"{neither} of {count} feel neither side: a small change of either moves them little. "
    return text.rstrip() if both or alone or neither else f"{text}All feel the release alone."


def _variable(label: str) -> str:
    return label.partition("[")[0]


def _short(label: str) -> str:
    """Return a label without the names of its dimensions, as rank plots have them."""
    variable, _, place = label.rstrip("]").partition("[")
    return " ".join([variable, ", ".join(part.partition("=")[2] for part in place.split(", "))]).strip()


def _figure(found: Sensitivities, listed: Sequence[int], parts: Sequence[str]) -> Figure:
    """Draw a few quantities by name, or many as sorted curves."""
    sides = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    lines = f"Filled: felt. Open: not told from chance, or below {NOTICEABLE} (dotted)."
    if len(found.labels) <= MOST_ROWS:
        caption = f"Sensitivity of each quantity to {sides}. {lines}"
        alt = f"Power-scaling sensitivities to {sides}, a row a quantity."
        return Figure(_by_name(found, listed, parts), caption, alt)
    caption = f"Sensitivities of all {len(found.labels)} quantities to {sides}, each curve sorted by itself. {lines}"
    return Figure(_sorted(found, parts), caption, f"Sorted sensitivities to {sides}.")


def _by_name(found: Sensitivities, listed: Sequence[int], parts: Sequence[str]) -> MatplotlibFigure:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 1.0 + 0.36 * len(listed)), layout="constrained")
    values, felt = found.values[listed], found.felt[listed]
    place, largest = np.arange(len(listed)), max(2 * NOTICEABLE, values.max())
    axis.hlines(place, 0, 1, transform=axis.get_yaxis_transform(), color="0.9", linewidth=1, zorder=0)
    for i, part in enumerate(parts):
        # Side by side: several parts often have no influence at all.
        _markers(axis, values[:, i], place + 0.16 * (i - (len(parts) - 1) / 2), felt[:, i], i, part, size=5)
    axis.axvline(NOTICEABLE, color="0.4", linestyle=":", linewidth=1)
    axis.set_xlim(-0.02 * largest, 1.05 * largest)
    axis.set_ylim(len(listed) - 0.5, -0.5)
    axis.set_yticks(place, [_short(found.labels[i]) for i in listed], fontsize=8)
    axis.set_xlabel("sensitivity", fontsize=9)
    axis.tick_params(axis="x", labelsize=8)
    figure.legend(loc="outside upper center", ncols=len(parts), frameon=False, fontsize=8)
    return figure


def _sorted(found: Sensitivities, parts: Sequence[str]) -> MatplotlibFigure:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    for i, part in enumerate(parts):
        order = np.argsort(-found.values[:, i], kind="stable")
        rank, descending = np.arange(1, len(order) + 1), found.values[order, i]
        axis.plot(rank, descending, color=_COLOURS[i % len(_COLOURS)], linewidth=1)
        _markers(axis, rank, descending, found.felt[order, i], i, part, size=3.5)
    axis.axhline(NOTICEABLE, color="0.4", linestyle=":", linewidth=1)
    axis.set_ylim(0, None)
    axis.set_xlabel("quantities, sorted", fontsize=9)
    axis.set_ylabel("sensitivity", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.legend(frameon=False, fontsize=8)
    return figure


def _markers(axis: Any, x: Any, y: Any, felt: Any, part: int, label: str, *, size: float) -> None:
    """Plot points of one part: filled where it is felt, open elsewhere."""
    style = {"color": _COLOURS[part % len(_COLOURS)], "marker": _MARKERS[part % len(_MARKERS)], "markersize": size,
             "linestyle": "none", "clip_on": False}  # fmt: skip
    # An empty line that is not clipped lies at the figure's corner, and the layout makes room for it.
    if not felt.all():
        axis.plot(x[~felt], y[~felt], markerfacecolor="white", **style)
    if felt.any():
        axis.plot(x[felt], y[felt], **style)
    axis.plot([], [], label=label, **style | {"clip_on": True})
