"""The page in a browser and on paper: nothing fails in the console, tables sort, and print keeps every section."""

import re
import shutil
import subprocess

import matplotlib.pyplot as plt
import numpy as np
import pytest

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
from dpbayes.report.plots import estimate_plot, spread_rows

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PDFTOPPM = shutil.which("pdftoppm")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium to open the page with")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"]  # fmt: skip
TITLES = ["Numbers", "A figure", "Words"]


def browse(page, profile, *flags):
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    figure, axis = plt.subplots(figsize=(9, 3))
    axis.plot([1, 2])
    rows = [("b", 10.0, 1), ("a", 9.0, None), ("c", 100.0, 3), *((f"row {i}", 200.0 + i, i) for i in range(40))]
    wide = [Column("cell"), Column("value", ".1f"), Column("n", "d")]
    document = Document(
        title="A page in a browser",
        question="Does it open?",
        answer="It does.",
        verdict=Callout("bad", "Not yet", ["a remedy"]),
        headline=[Fact(f"f{i}", "a fact with a long label", i, str(i)) for i in range(6)],
        sections=[
            Section("Numbers", [Table("numbers", "Some numbers", wide, rows)]),
            Section("A figure", [Figure(figure, "A line.", "A rising line.")]),
            Section("Words", [Paragraph("word " * 200)]),
        ],
        provenance={"digest": "0" * 64},
    )
    return write_report(document, tmp_path_factory.mktemp("page"))


def first_column(dom):
    return re.findall(r"<tr><td>([^<]*)</td>", dom)


def test_the_page_opens_without_a_console_message_and_shows_all_sections(page, tmp_path):
    dom, messages = browse(page, tmp_path, "--dump-dom")
    assert messages == []
    assert re.findall(r"<h2>([^<]*)</h2>", dom) == [*TITLES, "Provenance"]
    assert dom.count('<button title="Sort by this column">') == 3
    assert all(alt for alt in re.findall(r'<img[^>]*alt="([^"]*)"', dom))
    assert first_column(dom)[:3] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("column", "clicks", "expected"),
    [(0, 1, ["a", "b", "c", "row 0"]), (1, 1, ["a", "b", "c", "row 0"]), (1, 2, ["row 39", "row 38"]),
     (1, 3, ["b", "a", "c", "row 0"]), (2, 1, ["row 0", "b", "row 1"])],
)  # fmt: skip
def test_a_click_sorts_by_unrounded_values(page, tmp_path, column, clicks, expected):
    clicked = page.with_name(f"clicked-{column}-{clicks}.html")
    click = f"for (let i = 0; i < {clicks}; i++) document.querySelectorAll('th button')[{column}].click();"
    clicked.write_text(page.read_text().replace("</body>", f"<script>{click}</script></body>"))
    dom, messages = browse(clicked, tmp_path, "--dump-dom")
    assert messages == []
    assert first_column(dom)[: len(expected)] == expected
    if column == 2:
        assert first_column(dom)[-1] == "a"  # the missing value stays last


def test_the_console_check_can_fail(page, tmp_path):
    broken = page.with_name("broken.html")
    broken.write_text(page.read_text().replace("</body>", "<script>nothing.here()</script></body>"))
    _, messages = browse(broken, tmp_path, "--dump-dom")
    assert any("nothing is not defined" in message for message in messages)


def test_a_phone_scrolls_tables_and_figures_not_the_page(page, tmp_path):
    # A frame of 390 px: headless windows have a minimal width of their own.
    probe = page.with_name("phone.html")
    measured = page.with_name("measured.html")
    script = "<script>document.title = 'w ' + document.documentElement.scrollWidth;</script>"
    measured.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    probe.write_text(
        '<body style="margin:0"><iframe id="f" src="measured.html" width="390" height="800" style="border:0"></iframe>'
        "<script>onload = () => { const d = document.getElementById('f').contentDocument;"
        " document.body.dataset.width = d.title; }</script></body>"
    )
    dom, _ = browse(probe, tmp_path, "--dump-dom", "--allow-file-access-from-files", "--virtual-time-budget=5000")
    assert 'data-width="w 390"' in dom


@pytest.mark.skipif(PDFTOPPM is None, reason="needs pdftoppm (poppler)")
def test_print_holds_every_section_and_no_empty_page(page, tmp_path):
    pdf = tmp_path / "page.pdf"
    browse(page, tmp_path / "profile", "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    subprocess.run([PDFTOPPM, "-r", "50", "-png", str(pdf), str(tmp_path / "sheet")], check=True)
    sheets = sorted(tmp_path.glob("sheet*.png"))
    assert 2 <= len(sheets) <= 5
    for sheet in sheets:
        pixels = plt.imread(sheet)[..., :3]
        dark = (pixels.min(axis=2) < 0.6).mean()
        assert 0.002 < dark < 0.5, f"{sheet.name}: {dark:.4f} of the paper is dark"
        edge = np.concatenate([pixels[:, :6].ravel(), pixels[:, -6:].ravel()])
        assert edge.min() > 0.9, f"{sheet.name} is cut at the margin"
    if shutil.which("pdftotext"):
        text = subprocess.run(["pdftotext", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
        assert all(title in text for title in [*TITLES, "Provenance", "row 39"])


def test_the_first_screen_holds_finding_picture_verdict_cost_and_caution(tmp_path):
    rows = 60
    estimates = np.column_stack([np.linspace(10, 60, rows), np.linspace(5, 55, rows), np.linspace(15, 65, rows)])
    drawn = spread_rows(rows)
    names = [f"a level of some length {row}" for row in drawn]
    document = Document(
        title="A title that is long enough to need a second line on a screen of twelve hundred pixels, or nearly",
        question="A question of a line and a half, as they are asked of tables with many attributes of many levels?",
        answer="A share of 25.3 % (20.7 to 29.9) among these; " * 12,
        verdict=Callout("good", "Convergence: all 6 checks passed."),
        headline=[Fact("epsilon", "epsilon in total, replace-one", 1.0, "1"), Fact("n", "records", 9, "9")],
        sections=[Section("Words", [Paragraph("word " * 200)])],
        provenance={},
        privacy=PrivacyTerms("replace-one", "row"),
        picture=Figure(estimate_plot(names, estimates[drawn], xlabel="share (%)"), "Shares. " * 20, "Shares."),
        caution="Sensitive to the prior: 4 of the 45 cells of the released tables and 17 of the 54 cells.",
    )
    path = write_report(document, tmp_path)
    asked = ".answer, .first figure, .terms > *"
    script = (
        f"<script>onload = () => {{ document.body.dataset.ends = [...document.querySelectorAll('{asked}')]"
        ".map((one) => Math.round(one.getBoundingClientRect().bottom)).join(' '); };</script></body>"
    )
    path.write_text(path.read_text().replace("</body>", script))
    dom, _ = browse(path, tmp_path / "profile", "--dump-dom", "--window-size=1200,900")
    ends = [int(end) for end in re.search(r'data-ends="([\d ]+)"', dom).group(1).split()]
    assert len(ends) == 5 and max(ends) <= 900
    assert re.findall(r"<li><b>([^<]*)</b>", dom) == ["9"]  # the cost has its line, and no tile beside
