"""What the answer depends on beside the data: the prior (power-scaling) and the privacy noise (variance by source)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats
from dpbayes._lazy import xr
from dpbayes.report.document import Block, Column, Figure, Paragraph, Section, Table, show_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

type Flags = npt.NDArray[np.bool_]

NOTICEABLE = 0.05  # sensitivity that counts (Kallioinen et al. 2024, section 3.3)
MOST_DRAWS, MOST_ROWS, MOST_BARS = 4000, 12, 24
LIKELIHOOD = "released numbers"  # name of the likelihood's side in the table
NOISE = "(by chance alone)"  # marks the table's last rows
WIDTH_TITLE = "Where the width comes from"
PRIVACY = "privacy noise"
_SHIFTS = 40
_TITLE = "How much does the prior decide?"
_UNKNOWN = "Only the prior is scaled here: the likelihood's side, which tells a conflict from weak data, is left out."


def prior_section(
    trace: xr.DataTree,
    log_prior: Mapping[str, xr.DataArray],
    *,
    variables: Sequence[str],
    what: str,
    log_likelihood: xr.DataArray | None = None,
    answers: Sequence[str] = (),
    called: Mapping[str, str] | None = None,
    named: Mapping[str, Sequence[str]] | None = None,
) -> Section:
    """Build the section on sensitivity to the prior, with a caution where there is some; to the likelihood if known.

    The sensitivity of a quantity is the rate, per doubling of the exponent, at which the cumulative Jensen-Shannon
    distance between its posterior under ``prior^a`` and under the prior grows at a = 1. Posteriors for a = 0.99 and
    1.01 come from the same draws by Pareto-smoothed importance sampling; nothing is fitted again (Kallioinen et al.
    2024, Statistics and Computing 34, 57).
    """
    scaled = dict(log_prior) if log_likelihood is None else {**log_prior, LIKELIHOOD: log_likelihood}
    called = {name: name for name in variables} | dict(called or {})
    try:
        found = sensitivities(trace, scaled, variables, named or {}, parts=len(log_prior))
    except ValueError as error:
        if "tail values" not in str(error):  # ArviZ's words where draws repeat one value
            raise
        return Section(_TITLE, [Paragraph("Not known: the chains stood still too often to be reweighted.")])
    asked = np.isin(found.variables, list(answers))
    listed = np.lexsort((-found.largest, ~found.to_prior, ~asked))[:MOST_ROWS].tolist()
    columns = [Column("quantity"), *(Column(part, ".3f") for part in scaled)]
    rows = [(found.labels[i], *found.values[i].tolist()) for i in listed]
    words = {name: called[name].partition(",")[0].replace("_", " ") for name in variables}
    chance = [(f"{words[name]} {NOISE}", *values.tolist()) for name, values in found.noise.items()]
    known = log_likelihood is not None
    caption = f"Power-scaling sensitivity to each part of the prior{', and to the likelihood' if known else ''}"
    seen = (
        "Sensitivity of the quantities of the table. Filled: sensitive. Open: not told from chance, or below "
        f"{NOTICEABLE} (dotted)."
    )
    alt = f"Power-scaling sensitivities to {', '.join(scaled)}, a row per quantity."
    blocks: list[Block] = [
        Paragraph(f"Each part of the prior is raised to a power near 1 and the posterior reweighted. {what}"),
        Paragraph(_verdict(found, asked, len(listed))),
        Figure(_plot(found, listed, list(scaled)), seen, alt),
        Table("prior_sensitivity", caption, columns, [*rows, *chance]),
        Paragraph(_likelihood_text(found) if known else _UNKNOWN),
    ]
    return Section(_TITLE, blocks, caution=_caution(found, asked, called))


def _caution(found: Sensitivities, asked: Flags, called: Mapping[str, str]) -> str:
    """Say in a sentence what depends on the prior; empty if nothing does."""
    if not found.to_prior.any():
        return ""
    others = {name: found.variables == name for name in dict.fromkeys(found.variables[~asked].tolist())}
    counts = [f"{found.to_prior[of].sum()} of the {of.sum()} {called[name]}" for name, of in others.items()]
    if found.to_prior[asked].any():
        return f"The answer itself is sensitive to the prior{''.join(f', as are {count}' for count in counts)}."
    return f"Sensitive to the prior: {' and '.join(counts)}."


def _verdict(found: Sensitivities, asked: Flags, listed: int) -> str:
    """Say how many quantities are sensitive to the prior, and how it is with the answer."""
    count, sensitive = len(found.labels), int(found.to_prior.sum())
    text = f"None of {count} quantities is sensitive to the prior: the data decide."
    if sensitive:
        text = (
            f"{sensitive} of {count} quantities {'is' if sensitive == 1 else 'are'} sensitive to the prior: there it "
            "is part of the answer, and says what the release leaves open."
        )
    text += (
        f" Sensitive means a sensitivity above {NOTICEABLE}, and above what such a quantity shows by chance in one "
        "case of twenty, from as many draws, when it has nothing to do with the part (last rows)."
    )
    answers = [
        f"{found.labels[i]} is {'' if found.to_prior[i] else 'not '}sensitive ({found.largest[i]:.3f})"
        for i in np.flatnonzero(asked)
    ]
    text += f" The answer itself: {', '.join(answers)}." if answers else ""
    rest = f" Listed are the {listed} that move most" + (", after the answer." if answers else ".")
    return text + (rest if count > listed else "")


def _likelihood_text(found: Sensitivities) -> str:
    """Read prior and likelihood together, after the diagnosis of the paper's Table 1."""
    count, prior, likelihood = len(found.labels), found.to_prior, found.sensitive[:, -1]
    both, alone, neither = (int(kind.sum()) for kind in (prior & likelihood, prior & ~likelihood, ~prior & ~likelihood))
    parts = [
        (both, "to both: prior and release pull on them, and may disagree"),
        (alone, "to the prior alone: the release says little of them"),
        (neither, "to neither: a small change of either moves them little"),
        (count - both - alone - neither, "to the release alone"),
    ]
    (first, words), *rest = [part for part in parts if part[0]]
    told = [f"{first} {'is' if first == 1 else 'are'} sensitive {words}", *(f"{number} {how}" for number, how in rest)]
    number = "1 quantity" if count == 1 else f"{count} quantities"
    return f"The column “{LIKELIHOOD}” scales the likelihood of the whole release. Of {number}, {'; '.join(told)}."


def _plot(found: Sensitivities, listed: Sequence[int], parts: Sequence[str]) -> MatplotlibFigure:
    """Draw the sensitivities of a few quantities, parts side by side: several often have no influence at all."""
    import matplotlib.pyplot as plt

    from dpbayes.report.plots import COLOURS

    figure, axis = plt.subplots(figsize=(7.5, 1.0 + 0.36 * len(listed)), layout="constrained")
    values, sensitive = found.values[listed], found.sensitive[listed]
    place, largest = np.arange(len(listed)), max(2 * NOTICEABLE, values.max())
    axis.hlines(place, 0, 1, transform=axis.get_yaxis_transform(), color="0.9", linewidth=1, zorder=0)
    for i, part in enumerate(parts):
        y = place + 0.16 * (i - (len(parts) - 1) / 2)
        colour, marker = COLOURS[i % 4], "osD^"[i % 4]
        style: dict[str, Any] = {"s": 26, "marker": marker, "edgecolors": colour, "zorder": 2}
        axis.scatter(values[:, i], y, facecolors=np.where(sensitive[:, i], colour, "white"), **style)
        axis.scatter([], [], facecolors=colour, label=part, **style)
    axis.axvline(NOTICEABLE, color="0.4", linestyle=":", linewidth=1)
    axis.set_xlim(-0.03 * largest, 1.05 * largest)
    axis.set_ylim(len(listed) - 0.5, -0.5)
    axis.set_yticks(place, [found.labels[i] for i in listed], fontsize=8)
    figure.supxlabel("sensitivity to a change of the prior's or the likelihood's weight", fontsize=9)
    axis.tick_params(axis="x", labelsize=8)
    figure.legend(loc="outside upper center", ncols=len(parts), frameon=False, fontsize=8)
    return figure


@dataclass(frozen=True, eq=False)
class Sensitivities:
    """Sensitivities of quantities to parts of a posterior's density, array ``(quantities, parts)``."""

    labels: list[str]
    variables: npt.NDArray[np.str_]
    values: Floats
    noise: Mapping[str, Floats]
    parts: int  # of the prior; one more is the likelihood

    @property
    def sensitive(self) -> Flags:
        """Whether each quantity is sensitive to each part: above `NOTICEABLE`, and above the noise."""
        noise = np.array([self.noise[variable] for variable in self.variables])
        return np.asarray(self.values > np.maximum(NOTICEABLE, noise))

    @property
    def to_prior(self) -> Flags:
        """Whether each quantity is sensitive to a part of the prior."""
        return self.sensitive[:, : self.parts].any(axis=1)

    @property
    def largest(self) -> Floats:
        """Each quantity's largest sensitivity to a part of the prior."""
        return self.values[:, : self.parts].max(axis=1)


def sensitivities(
    trace: xr.DataTree,
    densities: Mapping[str, xr.DataArray],
    variables: Sequence[str],
    named: Mapping[str, Sequence[str]],
    *,
    parts: int,
) -> Sensitivities:
    """Estimate the sensitivity of every quantity to every part, and its noise."""
    from dpbayes.inference.convergence import is_constant, quantity_draws, quantity_words

    quantities, draws = quantity_draws(trace, var_names=variables)
    step = -(-draws[0].size // MOST_DRAWS)
    thin = {"draw": slice(None, None, step)}
    draws, thinned = draws[..., ::step], {name: part.isel(thin) for name, part in densities.items()}
    of = np.array([quantity.name for quantity in quantities])
    # A structural zero never moves, and the distance between two laws of one point is 0 / 0.
    moving = ~is_constant(draws)
    values, noise = np.zeros((len(draws), len(densities))), {}
    for name in variables:
        noise[name] = np.zeros(len(densities))
        if (here := moving & (of == name)).any():
            of_name = np.moveaxis(draws[here], 0, 2)
            values[here] = _estimates(of_name, thinned)
            noise[name] = np.quantile(_estimates(_shifted(of_name), thinned), 0.95, axis=0)
    labels = list(quantity_words(trace["posterior"].to_dataset(), variables, named).values())
    return Sensitivities(labels, of, values, noise, parts)


def _estimates(draws: Floats, densities: Mapping[str, xr.DataArray]) -> Floats:
    """Return sensitivities of quantities with draws of shape ``(chain, draw, quantities)`` to each density."""
    from arviz_stats import psense

    quantities = xr.Dataset({"quantity": (("chain", "draw", "place"), draws)})
    data = xr.DataTree.from_dict({"posterior": quantities, "log_prior": xr.Dataset(dict(densities))})
    how: dict[str, Any] = {"group": "prior", "sample_dims": ["chain", "draw"]}
    found = [psense(data, group_var_names=[name], **how)["quantity"].to_numpy() for name in densities]
    return np.column_stack(found)


def _shifted(draws: Floats) -> Floats:
    """Return quantities, some more than once where they are few, each shifted in time and to other chains."""
    rng = np.random.default_rng(1)
    chains, length, count = draws.shape
    taken = np.resize(rng.permutation(count), _SHIFTS)
    later = rng.integers(length // 5, length - length // 5, size=_SHIFTS)
    other = rng.integers(chains, size=_SHIFTS)
    moves = zip(taken, other, later, strict=True)
    return np.stack([np.roll(draws[:, :, i], (chain, draw), axis=(0, 1)) for i, chain, draw in moves], axis=2)


def shares_section(
    splits: Sequence[tuple[str, float, float]],
    *,
    subject: str,
    rest: str,
    meaning: str,
    unit: str,
    format: str,
    beside: Sequence[tuple[Column, Sequence[float]]] = (),
) -> Section:
    """Build the section that splits posterior variances, rows of (name, of the noise, the rest), by their source."""
    shares: list[float] = []
    rows: list[tuple[Any, ...]] = []
    for i, (name, noise, other) in enumerate(splits):
        shares.append(noise / (noise + other) if noise + other > 0 else 0.0)
        deviations = (math.sqrt(variance) for variance in (noise + other, noise, other))
        rows.append((name, *deviations, shares[-1], *(float(values[i]) for _, values in beside)))
    range_text = show_range([100 * share for share in shares], ".0f") + "\N{NO-BREAK SPACE}%"
    text = f"The privacy noise accounts for {range_text} of the posterior variance, {rest} for the rest. {meaning}"
    columns = [Column(subject, key="quantity"), Column("standard deviation", format, "sd")]
    columns += [Column(f"{PRIVACY} alone", format, "privacy_sd"), Column(f"{rest} alone", format, "rest_sd")]
    columns += [Column("variance due to noise", ".0%", "privacy_share"), *(column for column, _ in beside)]
    seen = f"Shares of the privacy noise and of {rest} in each posterior variance"
    seen += ", in their order; some are named." if len(rows) > MOST_BARS else "."
    alt = f"Stacked bars: privacy noise has {range_text} of the variance."
    figure = Figure(_bars([row[0] for row in rows], shares, rest), seen, alt)
    caption = f"Posterior standard deviations by source, {unit}; their squares add up"
    return Section(WIDTH_TITLE, [Paragraph(text), figure, Table("sources", caption, columns, rows)])


def _bars(labels: Sequence[str], shares: Sequence[float], rest: str) -> MatplotlibFigure:
    """Draw a bar for each label; many of them in order of their shares, with names for some."""
    import matplotlib.pyplot as plt

    count, named = len(labels), min(len(labels), MOST_BARS)
    order = np.argsort(shares)[::-1] if count > named else np.arange(count)
    place, width = np.arange(count), 100 * np.asarray(shares)[order]
    figure, axis = plt.subplots(figsize=(7.5, 1.0 + 0.32 * named), layout="constrained")
    thick = 0.6 if count == named else 1.0
    axis.barh(place, width, thick, color="#0072b2", label=PRIVACY)
    axis.barh(place, 100 - width, thick, left=width, color="#e69f00", label=rest)
    axis.set_xlim(0, 100)
    ticks = np.linspace(0, count - 1, named).round().astype(int)
    axis.set_yticks(ticks, [labels[i] for i in order[ticks]], fontsize=9)
    axis.set_ylim(count - 0.5, -0.5)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("share of the posterior variance (%)", fontsize=9)
    axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2, frameon=False, fontsize=8)
    return figure


def split_variance(shares: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Split posterior variances of population counts by the law of total variance over each one's confidential count.

    All confidential counts together would explain draws by chance: there may be more of them than draws.
    """
    x, y = counts - counts.mean(axis=0), shares - shares.mean(axis=0)
    together, squares, total = (np.einsum("dc,dc->c", one, other) for one, other in ((x, y), (x, x), (y, y)))
    explained = np.divide(together**2, squares, out=np.zeros_like(total), where=squares > 0)
    left = np.maximum(total - explained, 0.0) / np.maximum(len(counts) - 1 - (squares > 0), 1)
    return np.maximum(total / max(len(counts) - 1, 1) - left, 0.0), left
