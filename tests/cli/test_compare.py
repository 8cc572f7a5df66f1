import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpbayes.cli.main import app, main
from dpbayes.report import Callout, Column, Document, Fact, PrivacyTerms, Section, Table, write_report

runner = CliRunner()


@pytest.fixture
def two_runs(tmp_path):
    folders = []
    for epsilon, adjacency in ((1.0, "replace-one"), (2.0, "add-remove")):
        folder = tmp_path / f"run{epsilon:g}"
        folder.mkdir()
        (folder / "spec.toml").write_text(f'system = "mvg"\ntitle = "t"\n[privacy]\nepsilon = {epsilon}\n')
        table = Table("error", "Error", [Column("what"), Column("value")], [("a", 1 / epsilon)])
        headline = [Fact("epsilon", f"epsilon in total, {adjacency}", epsilon, f"{epsilon:g}")]
        terms = PrivacyTerms(adjacency)
        sections = [Section("s", [table])]
        write_report(Document("t", "", "", Callout("good", "p"), headline, sections, {}, privacy=terms), folder)
        folders.append(str(folder))
    return folders


def test_compare_prints_the_settings_and_writes_the_page(two_runs, tmp_path):
    result = runner.invoke(app, ["compare", *two_runs, "--out", str(tmp_path / "c")], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "privacy.epsilon" in result.stdout
    assert "Different adjacency: Epsilons under different adjacencies promise different things" in result.stdout
    assert "\n  adjacency add-remove: epsilon 2\n" in result.stdout
    assert "epsilon in total, add-remove" in result.stdout
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"report.html", "facts.json"}


def test_a_page_is_replaced_only_on_request_and_a_run_never(two_runs, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "c")
    runner.invoke(app, ["compare", *two_runs, "--out", out])
    for arguments, message in (
        (["--out", out], "pass --force"),
        (["--out", two_runs[0], "--force"], "is no comparison"),
    ):
        monkeypatch.setattr(sys, "argv", ["dpbayes", "compare", *two_runs, *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert runner.invoke(app, ["compare", *two_runs, "--out", out, "--force"]).exit_code == 0


def test_square_brackets_in_settings_are_shown_as_they_are(two_runs, tmp_path):
    for folder in two_runs:
        spec = Path(folder, "spec.toml")
        spec.write_text(spec.read_text() + f'[data]\nfile = "[/b] [data] {spec.parent.name}"\n')
    result = runner.invoke(app, ["compare", *two_runs, "--out", str(tmp_path / "c")], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "[/b] [data] run1" in result.stdout
