"""A sixth system, the few lines below, runs end to end: release, fit, page, resuming, an analyst's run, calibration."""

import json
from functools import partial
from typing import Literal

import numpy as np
import pytest
from pydantic import Field

from dpbayes.data import Domain, Marginal
from dpbayes.errors import ExistingRunError, SpecError
from dpbayes.privacy import read_release, release_tables
from dpbayes.report.document import Paragraph, Section
from dpbayes.runs import calibrate, execute, load_spec, rebuild_report
from dpbayes.runs.protocol import Calibration, Findings
from dpbayes.runs.registry import SYSTEMS
from dpbayes.runs.spec import DataSection, Draws, PrivacySection, RunSpec

COIN = Domain.from_levels({"coin": ("heads", "tails")})


# The sixth system, from here -----------------------------------------------------------------------
class Privacy(PrivacySection):
    epsilon: float = Field(gt=0)


class Spec(RunSpec):
    system: Literal["toy"]
    data: DataSection = DataSection()
    privacy: Privacy | None = None
    draws: Draws = 300


def design(spec, beside, *, n_records=None, ledger=None):
    return _counted(spec, [50, 50], rng=np.random.default_rng(0), ledger=ledger)


def release(spec, context, *, rng, ledger):
    return _counted(spec, [130, 70], rng=rng, ledger=ledger)


def fit(spec, release, context):
    from dpbayes.inference import sample

    return sample(model(release), draws=spec.draws, tune=300, chains=4, random_seed=1, progressbar=False)


def sections(spec, release, result, kept):
    share = float(result["posterior"]["share"].mean())
    return Findings(f"The share is {share:.2f}.", [Section("Share", [Paragraph("One number.")])], judged="The share.")


def calibration(spec, design, beside, n_records):
    return Calibration(partial(model, design), design="200 tosses")


def _counted(spec, counts, **how):
    return release_tables([Marginal(COIN, np.array(counts))], epsilon=spec.privacy.epsilon, **how)


def model(release):
    import pymc as pm

    with pm.Model(coords={"side": ["heads", "tails"]}) as found:
        share, counts = pm.Beta("share", 1.0, 1.0), pm.Data("released_counts", release.tables[0].counts.astype(float))
        centre = pm.math.stack([share, 1.0 - share]) * release.tables[0].counts.sum()
        pm.Normal("released", centre, np.sqrt(release.tables[0].noise.variance), observed=counts, dims="side")
    return found


# ------------------------------------------------------------------------------------------ to here


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(SYSTEMS, "toy", __name__)


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(
        'system = "toy"\ntitle = "Coins"\nquestion = "Fair?"\n[privacy]\nepsilon = 1.0\nsimulation_seed = 3\n'
    )
    return path


def quiet(path, out, *overrides, lines=None):
    return execute(
        load_spec(path, overrides),
        out=out,
        progressbar=False,
        echo=lambda line: None if lines is None else lines.append(line),
    )


def test_a_system_of_a_few_lines_has_a_run_folder_and_a_page_with_the_same_frame(spec, tmp_path):
    lines = []
    done = quiet(spec, tmp_path / "run", lines=lines)
    assert done.passed
    names = {path.name for path in done.folder.iterdir()}
    assert names == {"spec.toml", "release.json", "trace.nc", "facts.json", "report.html"}
    facts = json.loads((done.folder / "facts.json").read_text())
    assert facts["answer"].startswith("The share is 0.6")
    assert facts["headline"]["epsilon"] == 1.0 and facts["privacy"]["adjacency"] == "replace-one"
    assert {"dpbayes", "spec digest", "release digest", "noise drawn by", "sampler"} <= set(facts["provenance"])
    assert "convergence" in facts["tables"] and facts["verdict"]["tone"] == "good"
    assert any(line.startswith("release: 2 counts in 1 tables at epsilon 1 in total") for line in lines)
    page = (done.folder / "report.html").read_text()
    (done.folder / "report.html").unlink()
    rebuild_report(done.folder)
    assert (done.folder / "report.html").read_text() == page


def test_what_follows_the_release_may_change_and_what_decides_it_may_not(spec, tmp_path, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setitem(globals(), "fit", fails)
        with pytest.raises(RuntimeError):
            quiet(spec, tmp_path / "run")
    drawn = read_release(tmp_path / "run.partial" / "release.json").digest
    with pytest.raises(ExistingRunError, match=r"release\.json, which may have cost"):
        quiet(spec, tmp_path / "run", "privacy.epsilon=2.0")
    lines = []
    done = quiet(spec, tmp_path / "run", "draws=200", lines=lines)
    assert read_release(done.folder / "release.json").digest == drawn
    assert sum("used again" in line for line in lines) == 1
    assert "draws = 200" in (done.folder / "spec.toml").read_text()


def test_an_analyst_runs_on_the_release_alone(spec, tmp_path):
    folder = quiet(spec, tmp_path / "run").folder
    analyst = tmp_path / "analyst.toml"
    analyst.write_text('system = "toy"\ntitle = "Coins"\n[data]\nrelease = "run/release.json"\n')
    again = quiet(analyst, tmp_path / "again").folder
    assert read_release(again / "release.json").digest == read_release(folder / "release.json").digest
    analyst.write_text(analyst.read_text() + "[privacy]\nepsilon = 1.0\n")
    with pytest.raises(SpecError, match=r"carries its own cost; leave \[privacy\] out"):
        load_spec(analyst)


@pytest.mark.parametrize("setting", ["draws=1000000000000000000", "draws=5"])
def test_settings_are_bounded_before_anything_is_spent(spec, tmp_path, setting):
    with pytest.raises(SpecError, match="draws: must be"):
        quiet(spec, tmp_path / "run", setting)
    assert not list(tmp_path.glob("run*"))


def test_it_is_calibrated(spec, tmp_path):
    from dpbayes.inference.sampling import NutsSettings

    study = calibrate(
        load_spec(spec), out=tmp_path / "study", n_simulations=3, settings=NutsSettings(draws=100, tune=100, chains=1),
        progressbar=False, echo=lambda line: None,
    )  # fmt: skip
    assert {"facts.json", "ranks.nc", "report.html", "spec.toml"} <= {path.name for path in study.folder.iterdir()}


def test_a_study_file_is_run_only_where_it_is_trusted(tmp_path):
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mine.py").write_text(
        "from typing import Literal\nfrom dpbayes.runs.spec import RunSpec\n\n\n"
        'class Spec(RunSpec):\n    system: Literal["study:mine"]\n'
    )
    path = tmp_path / "mine.toml"
    path.write_text('system = "study:mine"\ntitle = "Mine"\n')
    with pytest.raises(SpecError, match=r"runs the Python code in .*--allow-python"):
        load_spec(path)
    assert load_spec(path, allow_python=True).spec.title == "Mine"
    path.write_text('system = "study:../mine"\ntitle = "Mine"\n')
    with pytest.raises(SpecError, match="must name a file in the folder studies"):
        load_spec(path, allow_python=True)
