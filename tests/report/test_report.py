import json

import matplotlib.pyplot as plt
import pytest

from dpbayes.errors import InputError
from dpbayes.report.document import (
    Callout,
    Column,
    Document,
    Fact,
    Figure,
    Paragraph,
    PrivacyTerms,
    Section,
    Table,
    write_report,
)


def document(**changes) -> Document:
    figure, axis = plt.subplots()
    axis.plot([1, 2])
    parts = {
        "title": "A <study>",
        "question": "Why?",
        "answer": "Because.",
        "verdict": Callout("good", "Passed", ["all of it"]),
        "headline": [Fact("epsilon", "epsilon in total", 1.0, "1")],
        "sections": [
            Section(
                "Numbers",
                [
                    Paragraph("Some."),
                    Table("counts", "Counts", [Column("cell"), Column("n", ",d")], [("a", 1234), ("b", None)]),
                    Figure(figure, "A line.", "A rising line."),
                ],
            )
        ],
        "provenance": {"version": "0"},
        "privacy": PrivacyTerms("replace-one"),
    }
    return Document(**(parts | changes))


def test_the_page_is_self_contained_and_escaped(tmp_path):
    others = plt.get_fignums()
    page = write_report(document(), tmp_path).read_text()
    assert "A &lt;study&gt;" in page
    assert "data:image/png;base64," in page
    assert 'alt="A rising line."' in page
    assert "http:" not in page
    assert "https:" not in page
    assert page.count("<script>") == page.count("<script") == 1  # the table sorter, in the page itself
    assert "default-src 'none'" in page
    assert "1,234" in page
    assert "–" in page
    assert plt.get_fignums() == others


def test_facts_hold_the_unrounded_values(tmp_path):
    write_report(document(facts={"extra": float("nan")}), tmp_path)
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["tables"]["counts"] == [{"cell": "a", "n": 1234}, {"cell": "b", "n": None}]
    assert facts["about"]["counts"] == {
        "caption": "Counts",
        "heads": {"cell": "cell", "n": "n"},
        "formats": {"cell": "", "n": ",d"},
    }
    assert facts["headline"] == {"epsilon": 1.0}
    assert facts["about"]["headline"] == {"epsilon": "epsilon in total"}
    assert facts["privacy"] == {"adjacency": "replace-one", "unit": "record", "delta": 0.0}
    assert facts["extra"] is None


def test_two_tables_of_one_name_are_refused_and_nothing_is_written(tmp_path):
    table = Table("same", "", [Column("a")], [])
    with pytest.raises(InputError, match="two tables of the report are named 'same'"):
        write_report(document(sections=[Section("s", [table, table])]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_table_may_not_take_the_place_of_the_headline():
    with pytest.raises(InputError, match="a table is named 'headline'"):
        document(sections=[Section("s", [Table("headline", "", [Column("a")], [])])]).all_facts()


def test_a_page_that_states_an_epsilon_states_its_adjacency(tmp_path):
    for name in ("epsilon", "epsilon_every"):
        with pytest.raises(InputError, match=f"states '{name}' and no adjacency"):
            document(privacy=None, headline=[Fact("n", "records", 3, "3"), Fact(name, "epsilon", 1.0, "1")])
    write_report(document(privacy=None, headline=[Fact("n", "records", 3, "3")]), tmp_path)
    assert json.loads((tmp_path / "facts.json").read_text())["privacy"] is None


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (
            PrivacyTerms("replace-one", "position", 1e-3),
            "The guarantee protects one position: neighbouring data sets have one replaced by another (replace-one). "
            "Delta is 0.001.",
        ),
        (
            PrivacyTerms("add-remove"),
            "The guarantee protects one record: neighbouring data sets have one more or less (add-remove). "
            "Epsilon is pure: delta is 0.",
        ),
        (
            PrivacyTerms("add-remove", delta=None),
            "The guarantee protects one record: neighbouring data sets have one more or less (add-remove).",
        ),
        (
            PrivacyTerms("either", "unit", None),
            "The guarantee protects one unit: neighbouring data sets have one replaced, or one more or less: the cost "
            "is the same under replace-one and add-remove.",
        ),
    ],
)
def test_the_page_says_what_its_epsilons_are_relative_to(tmp_path, terms, words):
    page = write_report(document(privacy=terms), tmp_path).read_text()
    assert f" {words}</p>" in page


def test_terms_out_of_range_are_refused():
    with pytest.raises(InputError, match="'one-position' or 'either', got 'swap'"):
        PrivacyTerms("swap")
    for delta in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match=r"delta must lie in \[0, 1\)"):
            PrivacyTerms("replace-one", delta=delta)


def test_a_figure_that_fails_fails_the_report_and_keeps_the_former_one(tmp_path):
    write_report(document(title="former"), tmp_path)
    figure, _ = plt.subplots()
    figure.set_size_inches(1e5, 1e5)
    with pytest.raises(ValueError, match="too large"):
        write_report(document(sections=[Section("s", [Figure(figure, "", "")])]), tmp_path)
    plt.close(figure)
    assert "former" in (tmp_path / "report.html").read_text()
    assert not list(tmp_path.glob("*.tmp"))


def test_dollar_signs_in_names_and_levels_are_no_formula(tmp_path):
    figure, axis = plt.subplots()
    axis.set_title("pay in $10_$")
    axis.set_yticks([0, 1], labels=["$25k-$50k", r"$\frac$"])
    axis.set_xscale("log")
    axis.set_xlim(1, 100)
    axis.legend([axis.plot([1, 10], [0, 1])[0]], ["<$_1$"])
    write_report(document(sections=[Section("s", [Figure(figure, "", "")])]), tmp_path)
    texts = [axis.title, *axis.get_yticklabels(), *axis.get_legend().get_texts()]
    assert not any(text.get_parse_math() for text in texts)
    assert all(label.get_parse_math() for label in axis.get_xticklabels())


def test_a_letter_that_the_font_lacks_is_said_in_the_caption_and_warns_nobody(tmp_path):
    names = ["Zürich", chr(0x10FFFD)]  # no font has a private letter
    for name, boxed in zip(names, (False, True), strict=True):
        figure, axis = plt.subplots()
        axis.set_title(name)
        page = write_report(document(sections=[Section("s", [Figure(figure, "", "")])]), tmp_path)
        assert ("is drawn as a box" in page.read_text()) == boxed


def test_a_row_of_the_wrong_width_is_refused():
    with pytest.raises(InputError, match="2 columns and a row of 1 values"):
        Table("t", "", [Column("a"), Column("b")], [("x",)])


@pytest.mark.parametrize("value", [-0.0, -0.04, -1e-300])
@pytest.mark.parametrize(("format", "shown"), [(".1f", "0.0"), ("+.1f", "0.0"), (",.0f", "0"), (".1%", "0.0\u00a0%")])
def test_a_number_that_is_rounded_to_zero_has_no_sign(value, format, shown):
    value = value / 100 if "%" in format else value
    assert Column("x", format).show(value) == shown
    assert Column("x", ".2g").show(-0.04) == "-0.04"
    assert Column("x", "+,d").show(-3) == "-3"
    assert Column("x", ".1f").show(float("-inf")) == "-inf"
