"""How much the answer leans on the prior: power-scaling, without fitting again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpbayes.report.document import Column, Figure, Paragraph, Section, Table

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure as MatplotlibFigure

__all__ = ["NOTICEABLE", "prior_section"]

NOTICEABLE = 0.05
"""Sensitivity above which the prior is felt (Kallioinen et al. 2024, section 3.3)."""

LIKELIHOOD = "released numbers"
"""Name of the likelihood's side in the table."""

MOST_ROWS, MOST_DRAWS = 12, 2000

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
    parts = list(log_prior)
    scaled = dict(log_prior) if log_likelihood is None else {**log_prior, LIKELIHOOD: log_likelihood}
    rows = _sensitivities(trace, scaled, variables)
    worst = sorted(rows, key=lambda row: (_variable(row[0]) not in answers, -max(row[1][: len(parts)])))[:MOST_ROWS]
    felt = sum(max(values[: len(parts)]) > NOTICEABLE for _, values in rows)
    verdict = (
        f"None of {len(rows)} quantities has a sensitivity to it above {NOTICEABLE}: the data decide."
        if not felt
        else f"{felt} of {len(rows)} quantities {'has' if felt == 1 else 'have'} a sensitivity to it above "
        f"{NOTICEABLE}: there the prior is part of the answer, and says what the release leaves open."
    )
    asked = [f"{label} has {max(values[: len(parts)]):.3f}" for label, values in rows if _variable(label) in answers]
    if asked:
        verdict += f" The answer itself: {', '.join(asked)}."
    if len(rows) > len(worst):
        verdict += " The largest are listed" + (", after the answer." if answers else ".")
    columns = [Column("quantity"), *(Column(part, ".3f") for part in scaled)]
    return Section(
        "How much does the prior decide?",
        [
            Paragraph(f"Each part of the prior is raised to a power near 1 and the posterior reweighted. {what}"),
            Paragraph(verdict),
            _figure(rows if len(rows) > MOST_ROWS else worst, list(scaled)),
            Table(
                "prior_sensitivity",
                "Power-scaling sensitivity to each part of the prior"
                + (", and to the likelihood" if len(scaled) > len(parts) else ""),
                columns,
                [(label, *values) for label, values in worst],
            ),
            Paragraph(_likelihood_text([values for _, values in rows], len(parts), log_likelihood is not None)),
        ],
    )


def _likelihood_text(values: Sequence[Sequence[float]], parts: int, known: bool) -> str:
    """Read prior and likelihood together, after the diagnosis of the paper's Table 1."""
    if not known:
        return (
            "Only the prior is scaled here: the likelihood's side, which tells a conflict from weak data, is left out."
        )
    text = f"The column “{LIKELIHOOD}” scales the likelihood of the whole release. "
    prior = np.array([max(row[:parts]) > NOTICEABLE for row in values])
    likelihood = np.array([row[parts] > NOTICEABLE for row in values])
    both, alone = int((prior & likelihood).sum()), int((prior & ~likelihood).sum())
    neither = int((~prior & ~likelihood).sum())
    found = []
    if both:
        found.append(f"{both} of {len(values)} feel both sides: prior and release pull on them, and may disagree.")
    if alone:
        found.append(f"{alone} of {len(values)} feel the prior alone: the release says little of them.")
    if neither:
        found.append(f"{neither} of {len(values)} feel neither side: a small change of either moves them little.")
    return text + (" ".join(found) or "All feel the release alone.")


def _sensitivities(
    trace: xr.DataTree, log_prior: Mapping[str, xr.DataArray], variables: Sequence[str]
) -> list[tuple[str, tuple[float, ...]]]:
    """Return one row a quantity: its name, and its sensitivity to every part of the prior."""
    import xarray as xr
    from arviz_stats import psense

    from dpbayes.inference.convergence import is_constant

    posterior = trace["posterior"].to_dataset()[list(variables)]
    step = -(-posterior.sizes["chain"] * posterior.sizes["draw"] // MOST_DRAWS)
    thin = {"draw": slice(None, None, step)}
    flat = [np.asarray(posterior[name].transpose("chain", "draw", ...).isel(thin).to_numpy()) for name in variables]
    draws = np.concatenate([values.reshape(*values.shape[:2], -1) for values in flat], axis=2)
    # A structural zero never moves, and the distance between two laws of one point is 0 / 0.
    moving = ~is_constant(np.moveaxis(draws, 2, 0))
    quantities = xr.Dataset({"quantity": (("chain", "draw", "place"), draws[:, :, moving])})
    groups = {"posterior": quantities, "log_prior": xr.Dataset(dict(log_prior)).isel(thin)}
    data = xr.DataTree.from_dict(groups)
    values = np.zeros((len(log_prior), draws.shape[2]))
    for part, name in enumerate(log_prior):
        found = psense(data, group="prior", group_var_names=[name], sample_dims=["chain", "draw"])
        values[part, moving] = found["quantity"].to_numpy()
    labels = [label for name in variables for label in _labels(posterior[name])]
    return [(label, tuple(map(float, row))) for label, row in zip(labels, values.T, strict=True)]


def _labels(variable: xr.DataArray) -> list[str]:
    dims = [str(dim) for dim in variable.dims if dim not in ("chain", "draw")]
    levels = [variable[dim].to_numpy().tolist() for dim in dims]
    labels = []
    for index in np.ndindex(*(len(level) for level in levels)):
        parts = [f"{dim}={level[i]}" for dim, level, i in zip(dims, levels, index, strict=True)]
        labels.append(f"{variable.name}[{', '.join(parts)}]" if parts else str(variable.name))
    return labels


def _variable(label: str) -> str:
    return label.partition("[")[0]


def _short(label: str) -> str:
    """Return a label without the names of its dimensions, as rank plots have them."""
    variable, _, place = label.rstrip("]").partition("[")
    return " ".join([variable, ", ".join(part.partition("=")[2] for part in place.split(", "))]).strip()


def _figure(rows: Sequence[tuple[str, tuple[float, ...]]], parts: Sequence[str]) -> Figure:
    """Draw a few quantities by name, or many as sorted curves."""
    sides, line = (
        " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts),
        f"The dotted line is {NOTICEABLE}.",
    )
    if len(rows) <= MOST_ROWS:
        caption = f"Sensitivity of each quantity to {sides}. {line}"
        return Figure(_by_name(rows, parts), caption, f"Power-scaling sensitivities to {sides}, a row a quantity.")
    caption = f"Sensitivities of all {len(rows)} quantities to {sides}, each curve sorted by itself. {line}"
    return Figure(_sorted([values for _, values in rows], parts), caption, f"Sorted sensitivities to {sides}.")


def _by_name(rows: Sequence[tuple[str, tuple[float, ...]]], parts: Sequence[str]) -> MatplotlibFigure:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 1.0 + 0.36 * len(rows)), layout="constrained")
    place, largest = np.arange(len(rows)), max(2 * NOTICEABLE, *(max(row[1]) for row in rows))
    axis.hlines(place, 0, 1, transform=axis.get_yaxis_transform(), color="0.9", linewidth=1, zorder=0)
    for i, (part, colour, marker) in enumerate(zip(parts, _COLOURS, _MARKERS, strict=False)):
        # Side by side: several parts often have no influence at all.
        beside = place + 0.16 * (i - (len(parts) - 1) / 2)
        axis.plot([row[1][i] for row in rows], beside, marker, color=colour, markersize=5, label=part, clip_on=False)
    axis.axvline(NOTICEABLE, color="0.4", linestyle=":", linewidth=1)
    axis.set_xlim(-0.02 * largest, 1.05 * largest)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_yticks(place, [_short(row[0]) for row in rows], fontsize=8)
    axis.set_xlabel("sensitivity", fontsize=9)
    axis.tick_params(axis="x", labelsize=8)
    figure.legend(loc="outside upper center", ncols=len(parts), frameon=False, fontsize=8)
    return figure


def _sorted(values: Sequence[Sequence[float]], parts: Sequence[str]) -> MatplotlibFigure:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    columns = np.array(values, dtype=float).T
    for part, column, colour, marker in zip(parts, columns, _COLOURS, _MARKERS, strict=False):
        descending = np.sort(column)[::-1]
        axis.plot(np.arange(1, len(column) + 1), descending, f"{marker}-", color=colour, linewidth=1, markersize=3,
                  label=part)  # fmt: skip
    axis.axhline(NOTICEABLE, color="0.4", linestyle=":", linewidth=1)
    axis.set_ylim(0, None)
    axis.set_xlabel("quantities, sorted", fontsize=9)
    axis.set_ylabel("sensitivity", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.legend(frameon=False, fontsize=8)
    return figure
