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


def prior_section(
    trace: xr.DataTree,
    log_prior: Mapping[str, xr.DataArray],
    *,
    variables: Sequence[str],
    what: str,
    log_likelihood: xr.DataArray | None = None,
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
    worst = sorted(rows, key=lambda row: -max(row[1][: len(parts)]))[:MOST_ROWS]
    felt = sum(max(values[: len(parts)]) > NOTICEABLE for _, values in rows)
    verdict = (
        f"None of {len(rows)} quantities has a sensitivity above {NOTICEABLE}: the data decide."
        if not felt
        else f"{felt} of {len(rows)} quantities have a sensitivity above {NOTICEABLE}: for them the prior is part "
        "of the answer, and says what the released counts leave open. The largest are listed."
    )
    columns = [Column("quantity"), *(Column(part, ".3f") for part in scaled)]
    return Section(
        "How much does the prior decide?",
        [
            Paragraph(f"Each part of the prior is raised to a power near 1 and the posterior reweighted. {what}"),
            Paragraph(verdict),
            Figure(
                _plot([values for _, values in rows], list(scaled)),
                f"Sensitivities of all {len(rows)} quantities, each line sorted by itself. The dotted line is "
                f"{NOTICEABLE}.",
                f"Sorted power-scaling sensitivities to {' and '.join(scaled)}, with a line at {NOTICEABLE}.",
            ),
            Table(
                "prior_sensitivity",
                "Sensitivity to the prior (power-scaling)",
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
    prior = np.array([max(row[:parts]) > NOTICEABLE for row in values])
    likelihood = np.array([row[parts] > NOTICEABLE for row in values])
    both, alone = int((prior & likelihood).sum()), int((prior & ~likelihood).sum())
    return (
        f"The column “{LIKELIHOOD}” scales the likelihood of the whole release. {both} quantities feel both sides: "
        f"prior and release pull on them, and may disagree. {alone} feel the prior alone: the release says little."
    )


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


def _plot(values: Sequence[Sequence[float]], parts: Sequence[str]) -> MatplotlibFigure:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    columns = np.array(values, dtype=float).T
    for part, column, colour in zip(parts, columns, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=False):
        axis.plot(np.arange(1, len(column) + 1), np.sort(column)[::-1], ".-", color=colour, linewidth=1, label=part)
    axis.axhline(NOTICEABLE, color="0.4", linestyle=":", linewidth=1)
    axis.set_ylim(0, None)
    axis.set_xlabel("quantities, sorted", fontsize=9)
    axis.set_ylabel("sensitivity", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.legend(frameon=False, fontsize=8)
    return figure
