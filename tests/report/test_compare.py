"""Runs side by side: what is shared, what differs, and what cannot be compared."""

import json

import numpy as np
import pytest

from dpbayes.errors import DamagedFileError, InputError
from dpbayes.report import compare_runs
from dpbayes.report.compare import Interval, ladder_panels, read_runs, shared_tables
from dpbayes.report.document import Callout, Column, Document, Fact, Figure, PrivacyTerms, Section, Table, write_report

CELLS = ("a", "b", "c")


def make_run(folder, *, epsilon=1.0, tables=None, tone="good", digest="d1", settings="", name="epsilon", **more):
    """Write a run folder whose intervals are 4 / epsilon wide."""
    folder.mkdir()
    (folder / "spec.toml").write_text(f'system = "latent-class"\ntitle = "{folder.name}"\n{settings}\n'
                                      f"[privacy]\nepsilon = {epsilon}\n")  # fmt: skip
    columns = [Column("cell"), Column("estimate", ",.1f"), Column("2.5 %", key="lower"), Column("97.5 %", key="upper")]
    rows = [(cell, 10.0 * i, 10.0 * i - 2 / epsilon, 10.0 * i + 2 / epsilon) for i, cell in enumerate(CELLS, 1)]
    document = Document(
        title="t",
        question="q?",
        answer="a.",
        verdict=Callout(tone, "The verdict"),
        headline=[Fact(name, more.get("label", name), epsilon, f"{epsilon:g}")],
        sections=[Section("s", [Table("cells", "Cells, in records.", columns, rows)] if tables is None else tables)],
        provenance={"release digest": digest},
        privacy=more.get("privacy", PrivacyTerms("replace-one")),
    )
    write_report(document, folder)
    return folder


def titles(document):
    return [section.title for section in document.sections]


def tables(document):
    return {b.name: b for section in document.sections for b in section.blocks if isinstance(b, Table)}


def warnings(document):
    blocks = [block for section in document.sections for block in section.blocks]
    return [block.title for block in blocks if isinstance(block, Callout) and block.tone == "warning"]


def text(document):
    parts = []
    for section in document.sections:
        for block in section.blocks:
            parts += [getattr(block, "text", ""), getattr(block, "title", ""), *getattr(block, "lines", ())]
    return " ".join(parts)


def test_one_number_that_differs_becomes_the_ladder_and_the_widths_are_compared(tmp_path):
    folders = [make_run(tmp_path / f"r{e}", epsilon=e) for e in (4.0, 1.0, 2.0)]
    document = compare_runs(folders)
    assert document.question == "What changes with privacy.epsilon?"
    assert list(document.provenance)[1:] == ["epsilon 1", "epsilon 2", "epsilon 4"]
    assert "the intervals are in the median 0.25 times as wide in epsilon 4 as in epsilon 1" in document.answer
    wide = tables(document)["cells"]
    records = wide.facts()
    assert records[1]["estimate, all runs"] == 20.0
    assert [records[0][f"width of estimate, epsilon {e}"] for e in (1, 2, 4)] == [4.0, 2.0, 1.0]
    assert sum(isinstance(b, Figure) for section in document.sections for b in section.blocks) == 2
    page = write_report(document, tmp_path).read_text()
    assert page.count("data:image/png") == 3  # the first screen shows the intervals, too
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["runs"]["epsilon 2"]["headline"] == {"epsilon": 2.0}


def drawn(quantities, labels=("one", "two"), ladder=None):
    """Return each panel's axis and the lower and upper ends of its bars."""
    figure = ladder_panels(quantities, labels, ladder=ladder)
    figure.draw_without_rendering()
    panels = []
    for axis in figure.axes[: len(quantities)]:
        bars = axis.collections[0].get_segments() if axis.collections else []
        panels.append((axis, [bar[0][1] for bar in bars], [bar[1][1] for bar in bars]))
    return panels


@pytest.mark.parametrize("low", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("high", [1.0, 10.0, 1000.0])
def test_no_bar_runs_off_the_top_of_its_panel(low, high):
    # Medians are 1, the middle half ends at `high`: scaled by the medians alone the bar would be cut at 1.15.
    rows = np.array([[low, low, 1.0, high, high], [1.0, 1.0, 1.0, 1.0, 1.0]])
    ((axis, bottoms, tops),) = drawn({"width": rows})
    assert tops == [high, 1.0] and bottoms == [low, 1.0]
    bottom, top = axis.get_ylim()
    assert top > high
    assert axis.get_yscale() == ("log" if high > 30 else "linear")
    # Zero has no place on a logarithmic axis: the bar comes from its lower edge.
    assert bottom <= low or (low == 0 and axis.get_yscale() == "log")


def test_values_below_zero_are_all_inside_the_panel():
    ((axis, bottoms, tops),) = drawn({"change": np.array([[-5.0, -4.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0, 1.0]])})
    bottom, top = axis.get_ylim()
    assert bottom < min(bottoms) == -4.0 and top > max(tops)


def captioned(folder, caption, epsilon):
    return make_run(folder, epsilon=epsilon, tables=[Table("t", caption, [Column("cell"), Column("n")], [("a", 1)])])


@pytest.mark.parametrize(
    ("captions", "shown"),
    [
        (("Noise for epsilon 10 at delta 1e-05.", "Noise for epsilon 10 at delta 1e-05."),
         "Noise for epsilon 10 at delta 1e-05."),
        (("Noise for epsilon 10 at delta 1e-05.", "Noise for epsilon 0.5 at delta 1e-05."),
         "Noise for epsilon … at delta 1e-05."),
        (("1,000 records, 95 % intervals", "20 records, 95 % intervals"), "… records, 95 % intervals."),
        (("All rows alike.", "All rows, weighted."), "T."),
        (("The 3 most moved.", "The most moved 3."), "T."),
    ],
)  # fmt: skip
def test_a_caption_says_what_is_true_of_all_runs(tmp_path, captions, shown):
    folders = [captioned(tmp_path / f"r{i}", caption, i + 1.0) for i, caption in enumerate(captions)]
    assert tables(compare_runs(folders))["t"].caption == shown


def test_only_common_rows_are_compared_and_the_rest_is_counted(tmp_path):
    columns = [Column("cell"), Column("n")]
    one = make_run(tmp_path / "one", tables=[Table("t", "", columns, [("a", 1), ("b", 2)])])
    two = make_run(tmp_path / "two", epsilon=2.0, tables=[Table("t", "", columns, [("b", 5), ("c", 3)])])
    (table,) = shared_tables(read_runs([one, two]))
    assert (table.places, table.left_out) == ((("b",),), 2)
    np.testing.assert_array_equal(table.of("n"), [[2], [5]])
    assert "2 rows that only some of the runs have" in text(compare_runs([one, two]))


def test_a_bound_that_does_not_hold_its_neighbour_is_no_interval(tmp_path):
    columns = [Column("claim"), Column("delta"), Column("low", key="lower"), Column("high", key="upper")]
    rows = [("tight", 1e-3, 1.0, 1.1)]
    folders = [
        make_run(tmp_path / n, epsilon=i + 1.0, tables=[Table("p", "", columns, rows)]) for i, n in enumerate("ab")
    ]
    assert shared_tables(read_runs(folders))[0].intervals == ()
    held = [("tight", 1.05, 1.0, 1.1)]
    folders = [
        make_run(tmp_path / n, epsilon=i + 1.0, tables=[Table("p", "", columns, held)]) for i, n in enumerate("cd")
    ]
    assert shared_tables(read_runs(folders))[0].intervals == (Interval("delta", "lower", "upper"),)


def test_different_releases_and_different_adjacency_are_said(tmp_path):
    one = make_run(tmp_path / "one")
    # The specs say nothing of it: what the runs did is in their facts.
    two = make_run(tmp_path / "two", digest="d2", epsilon=3.0, privacy=PrivacyTerms("add-remove"))
    document = compare_runs([one, two])
    said = text(document)
    assert "own draw of the noise" in said
    assert warnings(document) == ["Different adjacency"]
    assert "adjacency replace-one: epsilon 1 adjacency add-remove: epsilon 3" in said
    assert tables(document)["privacy_terms"].rows[0] == ["adjacency", "replace-one", "add-remove"]
    assert document.all_facts()["runs"]["epsilon 3"]["privacy"]["adjacency"] == "add-remove"
    same = make_run(tmp_path / "same", epsilon=2.0, settings='adjacency = "add-remove"')
    agreeing = compare_runs([one, same])
    assert "one and the same release" in text(agreeing)
    assert warnings(agreeing) == []


@pytest.mark.parametrize(
    ("terms", "titles"),
    [
        (PrivacyTerms("replace-one", "individual"), ["Different unit"]),
        (PrivacyTerms("replace-one", delta=1e-5), ["Different delta"]),
        (PrivacyTerms("add-remove", "position", 1e-3), ["Different adjacency", "Different unit", "Different delta"]),
        (PrivacyTerms("either", delta=None), []),
        (PrivacyTerms("one-position", "position"), ["Different adjacency", "Different unit"]),
    ],
)
def test_each_difference_in_the_terms_has_its_warning(tmp_path, terms, titles):
    one = make_run(tmp_path / "one")
    assert warnings(compare_runs([one, make_run(tmp_path / "two", epsilon=2.0, privacy=terms)])) == titles


def test_one_position_agrees_with_no_other_relation_and_its_persons_are_explained(tmp_path):
    one = make_run(tmp_path / "one", privacy=PrivacyTerms("one-position", "position"))
    either = make_run(tmp_path / "two", epsilon=2.0, privacy=PrivacyTerms("either"))
    document = compare_runs([one, either])
    assert "Different adjacency" in warnings(document)
    assert "one person exchanged for another changes two" in text(document)
    same = make_run(tmp_path / "three", epsilon=3.0, privacy=PrivacyTerms("one-position", "position"))
    assert warnings(compare_runs([one, same])) == []
    with pytest.raises(InputError, match="unit is 'position', got 'record'"):
        PrivacyTerms("one-position")


def test_a_page_that_does_not_say_its_terms_is_to_be_written_again(tmp_path):
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two", epsilon=2.0)
    facts = json.loads((two / "facts.json").read_text())
    del facts["privacy"]
    (two / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(DamagedFileError, match="write it again with `dpbayes report"):
        compare_runs([one, two])
    neither = [make_run(tmp_path / n, name="mu", epsilon=e, privacy=None) for n, e in (("a", 1.0), ("b", 2.0))]
    document = compare_runs(neither)
    assert warnings(document) == [] and "privacy_terms" not in tables(document)


def test_the_numbers_at_the_top_carry_their_labels(tmp_path):
    one = make_run(tmp_path / "one", label="epsilon in total, replace-one")
    same = make_run(tmp_path / "same", epsilon=2.0, label="epsilon in total, replace-one")
    found = tables(compare_runs([one, same]))
    assert found["headline_shared"].rows == [["epsilon in total, replace-one", "1", "2"]]
    assert "headline_labels" not in found
    other = make_run(tmp_path / "other", epsilon=3.0, label="epsilon for one individual, add-remove")
    found = tables(compare_runs([one, other]))
    assert found["headline_shared"].rows == [["epsilon", "1", "3"]]
    labels = ["epsilon in total, replace-one", "epsilon for one individual, add-remove"]
    assert found["headline_labels"].rows == [["epsilon", *labels]]


def test_a_run_that_failed_its_gate_is_named(tmp_path):
    one = make_run(tmp_path / "one")
    bad = make_run(tmp_path / "bad", epsilon=0.5, tone="bad")
    verdict = compare_runs([one, bad]).verdict
    assert verdict.tone == "bad"
    assert verdict.lines == ["epsilon 0.5: The verdict"]


def test_runs_that_share_nothing_are_refused_with_what_they_have(tmp_path):
    one = make_run(tmp_path / "one", tables=[Table("t", "", [Column("a"), Column("n")], [("x", 1)])])
    two = make_run(tmp_path / "two", name="mu", tables=[Table("u", "", [Column("a"), Column("n")], [("x", 1)])])
    with pytest.raises(InputError, match=r"share no quantity \(one: epsilon, t; two: mu, u\)"):
        compare_runs([one, two])


def test_what_is_not_a_run_is_refused(tmp_path):
    one = make_run(tmp_path / "one")
    with pytest.raises(InputError, match="at least two runs, got 1"):
        compare_runs([one])
    with pytest.raises(InputError, match="one is given twice"):
        compare_runs([one, tmp_path / "." / "one"])
    with pytest.raises(FileNotFoundError, match=r"is not a finished run: it has no spec\.toml"):
        compare_runs([one, tmp_path])
    two = make_run(tmp_path / "two")
    (two / "facts.json").write_text('{"tables": ')
    with pytest.raises(DamagedFileError, match="write it again with `dpbayes report`"):
        compare_runs([one, two])
    (two / "facts.json").write_text("[1]")
    with pytest.raises(DamagedFileError, match="holds no facts"):
        compare_runs([one, two])


def test_many_columns_become_a_table_per_quantity_and_rows_in_units_of_their_own_are_scaled(tmp_path):
    columns = [Column("term"), Column("noise-aware", ".3f", "estimate"), Column("2.5 %", ".3f", "low")]
    columns += [Column("97.5 %", ".3f", "high"), Column("naive", ".3f")]
    folders = []
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        rows = [("intercept", 70.0, 70 - 10 / epsilon, 70 + 10 / epsilon, 71.0), ("age", 0.5, 0.4, 0.6, 0.5 + epsilon)]
        folder = make_run(tmp_path / f"r{epsilon}", epsilon=epsilon, tables=[Table("terms", "Terms", columns, rows)])
        folders.append(folder)
    section = next(one for one in compare_runs(folders).sections if one.title == "Terms")
    shown = [block for block in section.blocks if isinstance(block, Table)]
    assert [table.caption for table in shown] == ["Noise-aware", "Width of noise-aware", "Naive"]
    assert [column.name for column in shown[1].columns] == ["term", *(f"epsilon {e}" for e in (1, 2, 4, 8))]
    assert shown[1].rows[0][1:] == pytest.approx([20.0, 10.0, 5.0, 2.5])
    figure = next(block for block in section.blocks if isinstance(block, Figure))
    assert "in halves of its interval's width" in figure.caption
    # Each row's interval in the first run reaches from -1 to 1.
    ends = np.concatenate([line.get_segments() for line in figure.figure.axes[0].collections[:1]])[:, :, 0]
    assert ends == pytest.approx(np.array([[-1.0, 1.0], [-1.0, 1.0]]))


def test_long_tables_are_a_line_each_until_they_are_opened(tmp_path):
    columns = [Column("cell"), Column("mean", ".3f"), Column("low", ".3f"), Column("high", ".3f")]
    folders = []
    for epsilon in (1.0, 2.0):
        made = [
            Table(name, f"{name} shares", columns, [(f"c{i}", 1.0, 0.0, 1.0 + epsilon) for i in range(rows)])
            for name, rows in (("few", 24), ("many", 25))
        ]
        folders.append(make_run(tmp_path / f"r{epsilon}", epsilon=epsilon, tables=made))
    html = write_report(compare_runs(folders), tmp_path).read_text(encoding="utf-8")
    assert "<summary>many shares (25 rows)</summary>" in html
    assert html.count("<details>") == html.count("</details>") == 1
    assert "few shares.</caption>" in html and "many shares.</caption>" not in html


def test_facts_of_an_earlier_version_are_refused_by_name(tmp_path):
    folders = [make_run(tmp_path / f"r{e}", epsilon=e) for e in (1.0, 2.0)]
    path = folders[0] / "facts.json"
    facts = json.loads(path.read_text())
    del facts["about"]["cells"]["heads"]
    path.write_text(json.dumps(facts))
    with pytest.raises(
        DamagedFileError,
        match=r"r1\.0/facts\.json holds no facts, or is of an earlier version; write it again with `dpbayes",
    ):
        compare_runs(folders)
