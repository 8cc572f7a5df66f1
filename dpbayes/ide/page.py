"""The pages of prior-aware estimation: one release, or a hierarchy of groups."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import LogLocator

from dpbayes.ide.groups import GroupRelease
from dpbayes.privacy.release import Release
from dpbayes.report.document import Block, Callout, Column, Fact, Figure, Paragraph, PrivacyTerms, Section, Table
from dpbayes.report.frame import Findings
from dpbayes.report.plots import ESTIMATE, RELEASED, TRUTH, estimate_plot, panel_grid, spread_rows
from dpbayes.report.tables import released_columns, released_rows, released_section, simulation_warning

type Tables = Sequence[Mapping[str, Any]]

_MOST_CELLS = 200
_MOST_DRAWN = 10
_COLORS = {"prior": TRUTH, "pooled prior": "#8a8a8a", "algorithm-1": RELEASED, "bootstrap of the truth": "#8a8a8a"}
_MARKERS = {"prior": "s", "pooled prior": "D", "algorithm-1": "^", "bootstrap of the truth": "|"}


def table_findings(release: Release, result: Mapping[str, Any]) -> Findings:
    """Return what the page of an estimate from one release says; `result` is `dpbayes.ide.study.table_results`'."""
    moved = result["moved"]
    sections = [estimate_section(moved, release), released_section(release), _prior_section(result)]
    sections.append(moved_section(moved, release))
    headline = [
        Fact("n_counts", "noisy counts released", release.n_counts, f"{release.n_counts}"),
        Fact("n", "records", release.size, f"{release.size:,.0f}"),
        Fact("kl", "change from the prior (KL divergence)", result["kl"], f"{result['kl']:.3g}"),
    ]
    if result["trace"] is not None:
        sections.append(_trace_section(result["trace"]))
    return _findings(result, sections, headline)


def group_findings(released: GroupRelease, result: Mapping[str, Any]) -> Findings:
    """Return what the page of Algorithm 2 says; `result` is `dpbayes.ide.study.group_results`'."""
    records = sum(entry["size"] for entry in result["groups"])
    sections = [_group_section(result), _group_release_section(released), _workload_section(released, result)]
    headline = [
        Fact("n_groups", "groups", len(released.groups), f"{len(released.groups)}"),
        Fact("n", "synthetic records", records, f"{records:,}"),
    ]
    epsilon = f"epsilon in total, {released.adjacency}, protects {released.protects}"
    terms = PrivacyTerms(released.adjacency, released.protects.removeprefix("one "), 0.0)
    cost = [Fact("epsilon", epsilon, released.epsilon, f"{released.epsilon:g}")]
    return _findings(result, sections, headline, terms=terms, cost=cost)


def _answer(result: Mapping[str, Any]) -> str:
    """Say how close the estimate is where the truth is public, and else which cell the release moved most."""
    scores = result.get("scores")
    if scores is None and "moved" in result and result["method"] != "prior":
        table, cell, before, released, after, low, high = _cells(result["moved"])[0]
        interval = "" if low is None else f" (95 % interval {100 * low:.1f} % to {100 * high:.1f} %)"
        given = "held back" if released is None else f"{100 * released:.1f} % as released"
        return (
            f"The release moves {cell} (table {table}) most: {100 * after:.1f} % of the records by the "
            f"estimate{interval}, {100 * before:.1f} % by the prior, {given}."
        )
    if scores is None:
        return result["summary"] + "."
    name = _scored(result)
    # 1000 times one less half the L1 distance is the probability that two distributions share.
    of = "The synthetic records'" if name == "synthetic" else "The estimate's"
    text = (
        f"{of} two-way tables within {scores['by']} overlap with the confidential ones to "
        f"{scores['score'][name] / 10:.1f}\N{NO-BREAK SPACE}% on average (a score of {scores['score'][name]:.1f} of "
        f"1000), the public prior's to {scores['score']['prior'] / 10:.1f}\N{NO-BREAK SPACE}%"
    )
    closer = np.asarray(scores["errors"][name]) < np.asarray(scores["errors"]["prior"])
    text += f"; closer than the prior in {closer.sum()} of {closer.size} groups."
    return f"{text} {sizes_off(scores)}" if any(scores.get("sizes", {}).get("off", ())) else text


def _scored(result: Mapping[str, Any]) -> str:
    """Return the name among the scores of what the page is about; where nothing was estimated that is the prior."""
    return next(name for name in ("synthetic", result["method"], "prior") if name in result["scores"]["score"])


def _findings(result: Mapping[str, Any], sections: list[Section], headline: list[Fact], **rest: Any) -> Findings:
    """Return findings with the scores, if there are some, and the verdict on how well the problem was solved."""
    scores, title = result.get("scores"), "Algorithm 1"
    if result["method"] == "noise-aware":
        words = (
            "solved to its tolerance" if result["passed"] else "not solved to its tolerance: do not use these numbers"
        )
        title = f"Optimality: {words}."
    verdict = Callout("good" if result["passed"] else "bad", title, [result["summary"]])
    facts = {name: result[name] for name in ("kl",) if name in result} | {"scores": scores}
    picture = _cell_picture(result.get("moved", ())) if scores is None else _score_picture(scores)
    if scores is not None:
        sections.append(error_section(scores))
        prior, value = scores["score"]["prior"], scores["score"][_scored(result)]
        headline.append(Fact("score", f"score (prior untouched {prior:.1f})", value, f"{value:.1f}"))
    rest |= {"verdict": verdict, "picture": picture, "provenance": {"method": result["method"]}}
    return Findings(_answer(result), sections, headline, facts, **rest)


def _score_picture(scores: Mapping[str, Any]) -> Figure:
    marks, order = _marks(scores), np.argsort(scores["errors"]["prior"], kind="stable")
    drawn = [int(order[place]) for place in spread_rows(len(order))]
    labels = [f"{scores['groups'][one]}{marks[one] and f' ({marks[one]})'}" for one in drawn]
    errors = {name: [values[one] for one in drawn] for name, values in scores["errors"].items()}
    told = "; ".join(f"{name} {score / 10:.1f} % overlap" for name, score in scores["score"].items())
    caption = "Distance of each group's two-way tables from the confidential ones: the further left, the better."
    if len(drawn) < len(order):
        caption += f" {len(drawn)} of {len(order)} groups are drawn, at even steps of the prior's distance."
    return Figure(error_by_group_plot(labels, errors), caption, told)


def _cell_picture(tables: Tables) -> Figure | None:
    """Show the cells that the release moved most, where the estimate has intervals."""
    cells = _cells(tables)[:_MOST_DRAWN]
    if not cells or cells[0][-1] is None:
        return None
    shares = 100 * np.array([[after, low, high] for _, _, _, _, after, low, high in cells], dtype=float)
    told = "; ".join(f"{cell} {100 * after:.1f} %" for _, cell, _, _, after, _, _ in cells)
    marks = {"public prior": 100 * np.array([cell[2] for cell in cells], dtype=float)}
    figure = estimate_plot([cell[1] for cell in cells], shares, xlabel="share of the records (%)", marks=marks)
    return Figure(figure, "The cells that the release moved most, with 95 % intervals, and the public prior.", told)


def _prior_section(result: Mapping[str, Any]) -> Section:
    prior, certificate = result["prior"], result["certificate"]
    lies = "pooled prior lies" if result["borrowed"] is not None else "prior lies"
    worth = "no sample" if prior["records"] is None else f"worth {prior['records']:,.0f} records"
    blocks: list[Block] = [Paragraph(f"The {lies} on {prior['rows']:,} weighted rows, {worth}.")]
    if result["borrowed"] is not None:
        rows = [(entry["group"], entry["records"], *entry["weights"].values()) for entry in result["borrowed"]]
        shares = [Column(name, ".3f") for name in result["borrowed"][0]["weights"]]
        caption = (
            "What each group's prior is mixed of, chosen on the public data alone. Recombined: every attribute drawn "
            "by itself, so that no pair of values is missing."
        )
        blocks.append(Table("borrowed", caption, [Column("group"), Column("public records", ",.0f"), *shares], rows))
    if certificate is not None:
        blocks += _strength_blocks(certificate)
    return Section("The prior and what it is worth", blocks)


def _strength_blocks(certificate: Mapping[str, Any]) -> list[Block]:
    """Say how much the prior counts, where it was moved first, and how well the problem was solved."""
    moved = certificate["moved"]
    text = (
        f"The prior counts as {certificate['strength']:,.0f} records against the release (sampling error allows "
        f"{certificate['bound']:,.0f} at most). "
        + (f"In {moved} directions the release departs by more than that, and the prior was moved. " if moved else "")
        + f"The convex problem was solved in {certificate['iterations']} Newton steps: every "
        f"marginal is within {certificate['l1_bound']:.2g} in L1 distance of the optimum."
    )
    if not certificate["grid"]:
        return [Paragraph(text)]
    caption = (
        "Strength read off the release: the joint likelihood of all released cells, heavy-tailed departures included. "
        "Taken is the posterior's geometric mean; beforehand the populations agree up to sampling with probability 0.8."
    )
    alt = (
        f"Log-likelihood over strengths: largest at {certificate['most_likely']:,.0f} records, "
        f"{certificate['strength']:,.0f} taken, {certificate['bound']:,.0f} at most."
    )
    figure = strength_plot(certificate["grid"], certificate["log_likelihood"], certificate["strength"])
    return [Paragraph(text), Figure(figure, caption, alt)]


def _trace_section(trace: Mapping[str, Any]) -> Section:
    text = (
        f"Algorithm 1 takes the prior as given and trusts the released answers fully. It ended at an L1 loss of "
        f"{trace['l1_loss'][-1]:.4g} and a KL divergence of {trace['kl'][-1]:.3g} from the prior."
    )
    alt = f"L1 loss from {trace['l1_loss'][0]:.3g} to {trace['l1_loss'][-1]:.3g} over {trace['step'][-1]} iterations."
    caption = (
        f"L1 loss over all tables, and KL divergence, before the first of {trace['step'][-1]} iterations and after "
        f"{len(trace['step']) - 1} of them. Each update fits one table and disturbs the others."
    )
    figure, axes = panel_grid(2, columns=2, size=(4.75, 3.2))
    labels = {"l1_loss": "L1 distance to the released answers", "kl": "KL divergence from the prior"}
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        axis.plot(trace["step"], trace[key], color=ESTIMATE, linewidth=1.5)
        axis.set_ylim(bottom=0)
        axis.set_ylabel(label, fontsize=9)
        axis.set_xlabel("iteration", fontsize=9)
    return Section("Algorithm 1 by iteration", [Paragraph(text), Figure(figure, caption, alt)])


def _group_release_section(released: GroupRelease) -> Section:
    first = {level: next(iter(getattr(released, level).values())) for level in ("units", "groups")}
    rows = [(level, *row) for level, release in first.items() for row in released_rows(release)]
    text = (
        f"{len(released.units)} units and {len(released.groups)} groups. The guarantee protects {released.protects}: "
        f"neighbouring data sets differ in that. Units are disjoint, and so are groups: each level costs what one of "
        f"its releases costs, and both levels epsilon {released.epsilon:g}, a quarter per part."
    )
    columns = [Column("level"), *released_columns(first["units"])]
    table = Table("released", "What left the custodian, for each unit and each group", columns, rows)
    return Section("What was released", [Paragraph(text), *simulation_warning(released.sampler), table])


def _workload_section(released: GroupRelease, result: Mapping[str, Any]) -> Section:
    chosen = result["workloads"]
    unit_sets, group_sets = (
        [table.attributes for table in next(iter(level.values())).tables] for level in (released.units, released.groups)
    )
    roots = [name for names in group_sets for name in names]
    largest = max(value for row in chosen["information"] for value in row)
    figure = dependence_plot(chosen, roots, unit_sets)
    cliques = "; ".join(" x ".join(names) for names in unit_sets)
    places = [chosen["names"].index(name) for name in roots]
    shared = max((chosen["information"][i][j] for i in places for j in places if i != j), default=0.0)
    text = (
        f"Chosen on the public data. Units: {cliques}. Groups, whose records are few, one-way: {', '.join(roots)}"
        + (f"; no two of these have a mutual information above {shared:.2g}." if len(roots) > 1 else ".")
    )
    caption = (
        "Mutual information on the public data. Framed pairs are in a unit's table; starred attributes in a group's."
    )
    alt = f"Heat map of {len(chosen['names'])} attributes with what is said above; the largest value is {largest:.2g}."
    return Section("Which marginals were asked for", [Paragraph(text), Figure(figure, caption, alt)])


def _group_section(result: Mapping[str, Any]) -> Section:
    units = [(e["unit"], e["n"], e["kl"], e["certificate"] and e["certificate"]["strength"]) for e in result["units"]]
    unit_columns = ["unit", ("records", ",.0f"), ("change from the prior (KL divergence)", ".3f", "kl")]
    unit_columns += [("prior worth (records)", ",.0f", "strength")]
    columns = ["group", "unit", ("records", ",d", "size"), ("L1 distance to the released tables", ".4f", "l1_loss")]
    columns += [("change from the unit (KL divergence)", ".3f", "kl")]
    rows = [(e["group"], e["unit"], e["size"], e["l1_loss"], e["kl"]) for e in result["groups"]]
    text = "A group's estimate is one distribution, without intervals: no width is split by source."
    upper = Table("units", "Upper level: the public prior refined for each unit", unit_columns, units)
    lower = Table("groups", "Groups, each from its unit's distribution", columns, rows)
    return Section("Units and groups", [Paragraph(text), upper, lower])


def estimate_section(tables: Tables, release: Release) -> Section:
    """Build the section with the shares of the released tables' cells."""
    cells = _cells(tables)
    noise = {table.label: table.noise_magnitude / table.counts.size / release.size for table in release.tables}
    intervals = cells[0][-1] is not None
    columns = ["table", "cell", ("prior", ".4f"), ("released", ".4f"), ("estimate", ".4f")]
    columns += [("95 % from", ".4f", "low"), ("to", ".4f", "high")] * intervals
    columns += [("mean size of the noise", ".4f", "noise")]
    rows = [(*cell[: 7 if intervals else 5], noise[cell[0]]) for cell in cells[:_MOST_CELLS]]
    shown = "" if len(rows) == len(cells) else f", the {len(rows)} most moved of {len(cells):,}"
    held_back = any(table.withheld.any() for table in release.tables)
    text = (
        "Shares of the records. The estimate is one distribution, so that its tables agree with one another and no "
        "share is negative. "
        + (
            "The intervals are those of the exact shares in these records, given the noise and how far the prior can "
            "be trusted; they hold on the prior's support."
            if intervals
            else "Algorithm 1 and a release without records give a point and no interval."
        )
        + (" The other cells are in result.json." if shown else "")
        + (" A released share that is missing was held back below its threshold." if held_back else "")
    )
    caption = f"Cells of the released tables{shown}"
    return Section("What the estimate says", [Paragraph(text), Table("estimated", caption, columns, rows)])


def moved_section(tables: Tables, release: Release) -> Section:
    """Build the section on how far each table moved from the prior."""
    shown = {table.label: 1.0 - table.withheld.mean() for table in release.tables}
    noise = {table.label: shown[table.label] * table.noise_magnitude / release.size for table in release.tables}
    columns = ["table", ("moved from the prior", ".4f", "moved")]
    columns += [("released from the prior", ".4f", "released_from_prior"), ("left to the released", ".4f", "left")]
    columns += [("expected of noise alone", ".4f", "noise")]
    entries = sorted(tables, key=lambda entry: -entry["moved"])
    rows = [(e["table"], e["moved"], e["released_from_prior"], e["left"], noise[e["table"]]) for e in entries]
    caption = "L1 distances of each table's probabilities, the most moved first"
    text = (
        "A released table differs from the prior by what truly changed and by its noise: what the column 'released "
        "from the prior' has beyond 'expected of noise alone' cannot, on average, be noise. The estimate moves by what "
        "the noise law lets it believe."
        + (" Counts that were held back are in none of these distances." if min(shown.values()) < 1.0 else "")
    )
    return Section("Which marginals moved", [Paragraph(text), Table("moved", caption, columns, rows)])


def _cells(tables: Tables) -> list[tuple[Any, ...]]:
    """Return table, cell, its three shares and its interval, for every cell; furthest from the prior first."""
    cells: list[tuple[Any, ...]] = []
    for entry in tables:
        shares = [entry[key] for key in ("cells", "prior", "released", "estimate")]
        ends = [entry.get(key) or [None] * len(entry["cells"]) for key in ("low", "high")]
        cells += [(entry["table"], *cell) for cell in zip(*shares, *ends, strict=True)]
    return sorted(cells, key=lambda cell: -abs(cell[4] - cell[2]))


def error_section(scores: Mapping[str, Any]) -> Section:
    """Build the section on the distances of every group from the true records."""
    text = (
        "The score is 500 times (2 less the mean L1 distance over groups and pairs of attributes): 1000 is a perfect "
        "copy, 0 shares nothing. It is that of one draw of the noise. The bootstrap is what another sample of the same "
        "people would score: sampling alone."
    )
    blocks: list[Block] = [Paragraph(text)]
    columns = [Column("distribution"), Column("score", ".1f")]
    rows: list[tuple[Any, ...]] = list(scores["score"].items())
    if sizes := scores.get("sizes"):
        empty = f"{sum(sizes['empty'])} of {len(scores['groups'])}"
        said = (
            f"Distances and scores do not look at numbers of records. {sizes_off(scores)} The challenge counts such a "
            "group as sharing nothing, a distance of 2: so does the score with the penalty, of the synthetic records, "
            "and of the prior in the same groups."
        )
        none = f" Groups without synthetic records, where the distance is 2 for want of any: {empty}."
        blocks.append(Paragraph(said + (none if any(sizes["empty"]) else "")))
        columns.append(Column("with the penalty for sizes", ".1f", "penalized"))
        rows = [(*row, sizes["penalized_score"].get(row[0])) for row in rows]
    blocks += [Table("scores", "Score by distribution", columns, rows), _group_table(scores)]
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
    columns = {Column(scores["by"], key="group"): scores["groups"]}
    columns |= {Column(name, ".4f"): errors for name, errors in scores["errors"].items()}
    if "sizes" in scores:
        columns[Column("records too many or too few", "+,d", "size_missed")] = scores["sizes"]["missed"]
    if any(marks := _marks(scores)):
        columns[Column("mark")] = marks
    rows = list(zip(*columns.values(), strict=True))
    return Table("error_by_group", "Mean L1 distance of all two-way marginals, by group", list(columns), rows)


def error_by_group_plot(groups: Sequence[str], errors: Mapping[str, Sequence[float]]) -> Picture:
    """Plot the mean L1 error of groups in their order, a mark for each distribution (the paper's Figure 1)."""
    place = np.arange(len(groups))
    figure, axis = plt.subplots(figsize=(8.5, 1.2 + 0.26 * len(groups)), layout="constrained")
    for name, values in errors.items():
        mark, color = _MARKERS.get(name, "o"), _COLORS.get(name, ESTIMATE)
        size = 11 if mark == "|" else 6
        axis.plot(values, place, mark, markersize=size, markeredgewidth=1.5, color=color, label=name)
    axis.set_yticks(place, groups, fontsize=8)
    axis.set(xlim=(0, None), ylim=(-0.6, len(groups) - 0.4))
    axis.set_xlabel("mean L1 distance of two-way marginals (0 equal, 2 disjoint)", fontsize=9)
    axis.grid(axis="x", color="0.9")
    figure.legend(loc="outside upper right", ncols=len(errors), frameon=False, fontsize=9)
    return figure


def strength_plot(grid: Sequence[float], log_likelihood: Sequence[float], value: float) -> Picture:
    """Plot the likelihood of the prior strength and the strength that was taken."""
    figure, axis = plt.subplots(figsize=(7.5, 3.3), layout="constrained")
    axis.plot(grid, log_likelihood, color=ESTIMATE, linewidth=1.5)
    axis.axvline(value, color=RELEASED, linewidth=1.2, label=f"taken: {value:,.0f} records")
    axis.axvline(max(grid), color=TRUTH, linewidth=1.2, linestyle=":", label=f"at most {max(grid):,.0f}")
    shown = [strength for strength, value in zip(grid, log_likelihood, strict=True) if value > -12.0]
    axis.set(xscale="log", xlim=(min(shown), max(grid) * 1.1), ylim=(-12.0, 0.7))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    axis.xaxis.set_minor_formatter("{x:,.0f}")
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_xlabel("prior strength (records)", fontsize=9)
    axis.set_ylabel("log-likelihood less its maximum", fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def dependence_plot(chosen: Mapping[str, Any], roots: Sequence[str], cliques: Sequence[Sequence[str]]) -> Picture:
    """Plot pairwise mutual information; the upper level's pairs are framed, the groups' attributes starred."""
    names, matrix = chosen["names"], np.asarray(chosen["information"], dtype=float)
    figure, axis = plt.subplots(figsize=(1.8 + 0.5 * len(names), 1.0 + 0.45 * len(names)), layout="constrained")
    image = axis.imshow(matrix, cmap="Blues", vmin=0)
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            if i != j and any({first, second} <= set(clique) for clique in cliques):
                axis.add_patch(plt.Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, edgecolor=RELEASED, lw=1.6))
    labels = [f"{name} *" if name in roots else name for name in names]
    axis.set_xticks(range(len(names)), labels, rotation=90, fontsize=8)
    axis.set_yticks(range(len(names)), labels, fontsize=8)
    figure.colorbar(image, ax=axis, label="mutual information", shrink=0.8)
    return figure
