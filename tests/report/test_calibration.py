"""A calibration study on a run's page: its verdict, and where its design is another."""

import pytest

from dpbayes.errors import InputError
from dpbayes.report.document import Callout, Document, Table, write_report
from dpbayes.runs.calibration import calibration_section

SPEC = 'system = "verifier"\ntitle = "{}"\n[privacy]\nepsilon = {}\n[sampling]\ndraws = {}\n'


def folder_of(path, *, epsilon=1.0, draws=100, tone="good", system="verifier", ranks=True):
    path.mkdir()
    (path / "spec.toml").write_text(SPEC.format(path.name, epsilon, draws).replace("verifier", system))
    verdict = Callout(tone, "Calibrated." if tone == "good" else "Not calibrated.", ["a line"])
    write_report(Document("t", "q?", "The answer.", verdict, [], [], {}), path)
    if ranks:
        (path / "ranks.nc").touch()
    return path


def test_the_verdict_is_cited_and_a_study_of_the_same_design_needs_no_caution(tmp_path):
    run = folder_of(tmp_path / "run", ranks=False)
    section = calibration_section(run, folder_of(tmp_path / "run-sbc", draws=500))
    assert section.blocks[0] == Callout("good", "Calibrated.", ["a line"])
    assert "The answer." in section.blocks[1].text
    assert not [block for block in section.blocks if isinstance(block, Table)]


def test_another_design_is_shown(tmp_path):
    run = folder_of(tmp_path / "run", ranks=False)
    section = calibration_section(run, folder_of(tmp_path / "study", epsilon=4.0, tone="bad"))
    assert section.blocks[0].tone == "bad"
    assert section.blocks[2].rows == [("privacy.epsilon", "1", "4")]


def test_what_is_no_study_of_this_system_is_refused(tmp_path):
    run = folder_of(tmp_path / "run", ranks=False)
    with pytest.raises(FileNotFoundError, match=r"no ranks\.nc"):
        calibration_section(run, folder_of(tmp_path / "other", ranks=False))
    with pytest.raises(InputError, match="calibrates 'mvg' and the run is of 'verifier'"):
        calibration_section(run, folder_of(tmp_path / "mvg", system="mvg"))
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        calibration_section(tmp_path, tmp_path / "mvg")
