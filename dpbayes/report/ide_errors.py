"""How far each group is from the true records: the section of prior-aware reports where the truth is public."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpbayes.report.document import Block, Column, Figure, Paragraph, Section, Table
from dpbayes.report.ide_plots import error_by_group_plot

__all__ = ["error_section", "sizes_off"]


def error_section(scores: Mapping[str, Any], name: str) -> Section:
    """Build the section on the distances of every group from the true records.

    Parameters
    ----------
    scores
        What `dpbayes.runs.ide_results` found, with ``sizes`` where numbers of records were released for groups.
    name
        The distribution that the run is about.
    """
    labels = [f"{group}{mark and f' ({mark})'}" for group, mark in zip(scores["groups"], _marks(scores), strict=True)]
    figure = error_by_group_plot(labels, scores["errors"])
    untouched = scores["score"]["prior"]
    alt = f"{name}: score {scores['score'].get(name, untouched):.1f}, prior {untouched:.1f}."
    caption = "Error of each group, one draw of the noise; the further left, the better."
    text = (
        "The score is 500 times (2 less the mean L1 distance over groups and pairs of attributes): 1000 is a perfect "
        "copy, 0 shares nothing. It is that of one draw of the noise. The bootstrap is what another sample of the same "
        "people would score: sampling alone."
    )
    blocks: list[Block] = [Paragraph(text)]
    if "sizes" in scores:
        blocks.append(Paragraph(_size_text(scores)))
    blocks += [_score_table(scores), Figure(figure, caption, alt), _group_table(scores)]
    return Section("Error by group", blocks)


def sizes_off(scores: Mapping[str, Any]) -> str:
    """Say in a sentence how many groups have a number of records that is off."""
    off, groups, limit = sum(scores["sizes"]["off"]), len(scores["groups"]), scores["sizes"]["limit"]
    return f"Groups whose number of records misses the true one by more than {limit:g}: {off} of {groups}."


def _marks(scores: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with each group's number of synthetic records, in a few words."""
    if "sizes" not in scores:
        return [""] * len(scores["groups"])
    off, empty = (f"size off by more than {scores['sizes']['limit']:g}", "no synthetic records")
    flags = zip(scores["sizes"]["off"], scores["sizes"]["empty"], strict=True)
    return [", ".join([off] * missed + [empty] * none) for missed, none in flags]


def _group_table(scores: Mapping[str, Any]) -> Table:
    """Set out the distances of every group and, where sizes were released, how far they are off."""
    columns = [Column(scores["by"], key="group"), *[Column(key, ".4f") for key in scores["errors"]]]
    values = [scores["groups"], *scores["errors"].values()]
    if "sizes" in scores:
        columns += [Column("records too many or too few", "+,d", "size_missed"), Column("mark")]
        values += [scores["sizes"]["missed"], _marks(scores)]
    caption = "Mean L1 distance of all two-way marginals, by group"
    return Table("error_by_group", caption, columns, list(zip(*values, strict=True)))


def _score_table(scores: Mapping[str, Any]) -> Table:
    columns = [Column("distribution"), Column("score", ".1f")]
    rows: list[tuple[Any, ...]] = list(scores["score"].items())
    if "sizes" in scores:
        columns.append(Column("with the penalty for sizes", ".1f", "penalized"))
        rows = [(*row, scores["sizes"]["penalized_score"].get(row[0])) for row in rows]
    return Table("scores", "Score by distribution", columns, rows)


def _size_text(scores: Mapping[str, Any]) -> str:
    """State the rule of sizes: distances and scores are without it; and what it would make of the scores."""
    empty, groups = sum(scores["sizes"]["empty"]), len(scores["groups"])
    text = (
        f"Distances and scores do not look at numbers of records. {sizes_off(scores)} The challenge counts such a "
        "group as sharing nothing, a distance of 2: so does the score with the penalty, of the synthetic records, and "
        "of the prior in the same groups."
    )
    none = f" Groups without synthetic records, where the distance is 2 for want of any: {empty} of {groups}."
    return text + (none if empty else "")
