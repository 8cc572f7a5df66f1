"""Whole, nonnegative counts behind published noisy tables: ``system = "study:whole_counts"``.

For tables over a domain of at most 4,096 cells, such as one geography of the 2020 Census noisy measurements:
`dpbayes.inference.sample_whole_counts` on a page. Any margins and laws, a variance per row, thresholds; the total exact
or noisy. Post-processing of a published release: nothing confidential is read, and nothing is charged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dpbayes.errors import InputError
from dpbayes.runs.protocol import Context, Findings
from dpbayes.runs.spec import Level, PublishedData, PublishedSpec, Section, Seed

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy import NoisyTable, Release

_MOST_ROWS = 1000  # cells of the page's table


class Data(PublishedData):
    """Published tables."""

    sources: ClassVar[tuple[str, ...]] = ("published", "release")
    files: ClassVar[tuple[str, ...]] = ("published", "constraints")

    levels: dict[str, list[str | Level]] | None = None
    """The levels of attributes in order, if given."""


class Sampling(Section):
    """Settings of the sampler."""

    draws: int = Field(default=2000, ge=100, le=10**6)
    """Draws kept per chain."""
    tune: int = Field(default=300, ge=0, le=10**6)
    """Draws before them."""
    chains: int = Field(default=4, ge=2, le=1000)
    """Chains."""
    seed: Seed = 1
    """Seed of the sampler."""


class Spec(PublishedSpec):
    """A run of this study."""

    system: Literal["study:whole_counts"]
    """The study's name."""
    data: Data
    """What was published."""
    sampling: Sampling = Sampling()
    """Settings of the sampler."""


def design(spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Any = None) -> None:
    """Return no release: the publisher has drawn the noise."""


def release(spec: Spec, context: Context, *, rng: Any, ledger: Any) -> None:
    """Return no release: nothing confidential is read."""


def try_fit(spec: Spec, design: Release, context: Context) -> None:
    """Refuse what the sampler would refuse, and an attribute that another one implies."""
    from dpbayes.inference.whole_counts import MAX_CELLS

    if "hhinstlevels" in design.domain:
        raise InputError("hhinstlevels follows from hhgq, and cells count it once; leave its query out of data.queries")
    if design.domain.size > MAX_CELLS:
        raise InputError(
            f"the tables span {design.domain.size:,} cells, at most {MAX_CELLS:,} are sampled; leave some out"
        )


def fit(spec: Spec, release: Release, context: Context) -> xr.DataTree:
    """Sample the counts."""
    from dpbayes.inference import sample_whole_counts

    settings = spec.sampling.model_dump(exclude={"seed"})
    context.at("moving records between cells")
    return sample_whole_counts(release, random_seed=spec.sampling.seed, **settings)


def sections(spec: Spec, release: Release, result: xr.DataTree, kept: Mapping[str, Any]) -> Findings:
    """Return what the page says: all cells, and each attribute alone, beside the numbers as published."""
    from dpbayes.report.document import Fact, Figure, Paragraph
    from dpbayes.report.document import Section as PageSection
    from dpbayes.report.plots import spread_rows
    from dpbayes.report.tables import released_section

    names = release.domain.names
    draws = result["posterior"]["counts"].transpose("chain", "draw", *names).to_numpy()
    draws = draws.reshape(-1, *release.domain.shape)
    cells = _rows(release, draws, names)
    low, high, noise = (np.array([row[place] for row in cells], dtype=float) for place in (-2, -1, -4))
    total = draws.reshape(len(draws), -1).sum(axis=1)
    size = f"{total[0]:,}" if isinstance(release.n, int) else _interval(total)
    width, own = float((high - low).mean()), float(np.nanmean(noise)) if np.isfinite(noise).any() else math.nan
    beside = f", where the noise of the finest table alone gives {2 * own:.0f}" if math.isfinite(own) else ""
    largest = sorted(cells, key=lambda row: -row[-3])[:3]
    said = "; ".join(
        f"{', '.join(row[: len(names)])}: {row[-3]:,.0f} ({row[-2]:,d} to {row[-1]:,d})" for row in largest
    )
    which = f"{len(spread_rows(len(cells)))} of the {len(cells):,} cells, from the largest estimate (beside the name) "
    which += "to the smallest in even steps of rank"
    drawn = (
        f"{which}: how far the 95 % interval from all tables together (whole, never negative) and that of the "
        "cell's own published number reach from the estimate."
    )
    caption = (
        "Mean and 95 % interval of each count (whole, never negative), beside the number as published with its noise"
    )
    shown = [PageSection("Every cell", [Paragraph(caption + "."), _table("cells", names, cells[:_MOST_ROWS])])]
    margins = [_table(name, (name,), _rows(release, draws, (name,))) for name in names] if len(names) > 1 else []
    return Findings(
        answer=(
            f"The largest of the {len(cells):,} cells of {size} records are {said}. The 95 % intervals are {width:.1f} "
            f"records wide on average{beside}; they hold no negative number and respect every table at once."
        ),
        picture=Figure(_figure(cells, len(names)), drawn, "Cells of all sizes with two intervals each"),
        sections=[*shown, PageSection("Each attribute", margins), released_section(release)],
        headline=[
            Fact("cells", "cells", len(cells), f"{len(cells):,}"),
            Fact("width", "mean width of a cell's 95 % interval", width, f"{width:.1f}"),
            Fact("empty", "cells whose interval is 0 to 0", int((high == 0).sum()), f"{(high == 0).sum():,}"),
        ],
        judged="Every cell, and the shape of the cells' spread about independence.",
        named={"counts": release.domain.cell_labels()},
    )


def _interval(values: Any) -> str:
    low, high = np.quantile(values, [0.025, 0.975], method="nearest")
    return f"{low:,} to {high:,}"


def _rows(release: Release, draws: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return levels, the published number, half of its noise's 95 % interval, mean, lower and upper bound by cell."""
    rest = tuple(1 + axis for axis, name in enumerate(release.domain.names) if name not in names)
    summed = draws.sum(axis=rest).reshape(len(draws), -1)
    low, high = np.quantile(summed, [0.025, 0.975], axis=0, method="nearest")
    part = release.domain.project(list(names))
    table = next((table for table in release.tables if set(table.attributes) == set(names)), None)
    seen, half = (np.full(part.size, np.nan),) * 2 if table is None else _published(table, names)
    labels = [
        [attribute.words[level] for attribute, level in zip(part, place, strict=True)]
        for place in np.ndindex(part.shape)
    ]
    numbers = ((None if math.isnan(x) else float(x)) for x in seen)
    halves = ((None if math.isnan(x) else float(x)) for x in half)
    means = summed.mean(axis=0).tolist()
    return [
        (*label, *rest)
        for label, *rest in zip(labels, numbers, halves, means, low.tolist(), high.tolist(), strict=True)
    ]


def _published(table: NoisyTable, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Return a table's counts and 1.96 standard deviations of its noise, axes in the order of the names."""
    order = [table.attributes.index(name) for name in names]
    counts = np.transpose(np.asarray(table.counts, dtype=float), order).ravel()
    return counts, 1.96 * np.sqrt(np.transpose(table.variances, order)).ravel()


def _table(name: str, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    from dpbayes.report.document import Column, Table

    columns = [
        *(Column(one) for one in names),
        Column("published", ",.0f"),
        Column("95 % of the noise: ±", ".1f", "noise"),
    ]
    columns += [Column("mean", ",.1f"), Column("2.5 %", ",d", "low"), Column("97.5 %", ",d", "high")]
    return Table(f"counts_{name}", f"Counts by {', '.join(names)}", columns, rows)


def _figure(cells: list[tuple[Any, ...]], attributes: int) -> Any:
    """Draw cells of all sizes, the largest first: how far both intervals reach from the estimate."""
    from matplotlib.figure import Figure as Picture

    from dpbayes.report.plots import ESTIMATE, RELEASED, spread_rows

    ordered = sorted(cells, key=lambda row: row[-3])
    places = spread_rows(len(ordered))
    figure = Picture(figsize=(7.2, 0.8 + 0.24 * len(places)), layout="constrained")
    axes, handles = figure.subplots(), {}
    for place, (seen, half, mean, low, high) in enumerate(ordered[k][attributes:] for k in places):
        if seen is not None:
            own = axes.hlines(place - 0.18, seen - half - mean, seen + half - mean, color=RELEASED, lw=2)
            handles["the cell alone"] = own
        handles["all tables together"] = axes.hlines(place + 0.12, low - mean, high - mean, color=ESTIMATE, lw=4)
    figure.legend(handles.values(), handles, loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    axes.axvline(0.0, color="black", lw=0.6)
    axes.set_xlabel("records from the estimate, 95 % intervals", fontsize=9)
    # Beside many records a tenth of one says nothing.
    told = [f"{mean:,.0f}" if mean >= 10 else f"{mean:.1f}" for mean in (ordered[k][-3] for k in places)]
    names = [f"{', '.join(ordered[k][:attributes])}: {mean}" for k, mean in zip(places, told, strict=True)]
    axes.set_yticks(range(len(places)), names, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
