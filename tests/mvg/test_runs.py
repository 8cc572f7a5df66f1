"""Run specs of the MVG system: validation, folders and reports."""

import json
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from dpbayes.data.patients import patients
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.report import write_report
from dpbayes.runs import mvg
from dpbayes.runs.execution import Context

MODELS = Path(__file__).resolve().parents[2] / "models"

BASE = """
system = "mvg"
title = "t"
question = "q"
[data]
embedded = "patients"
n = 3000
[privacy]
epsilon = 1.0
delta = 1e-5
simulation_seed = 3
"""
COVARIANCE = BASE + "[covariance]\nsizes = [1000, 3000]\ndraws = 3\n"
SVR = (
    BASE.replace("3000", "200")
    + '[svr]\nepsilons = [1.0]\ndraws = 2\nfavoured = ["age", "framingham"]\ncosts = [0.1]\ngammas = [1.0]\n'
)
REGRESSION = BASE + '[regression]\npredictors = ["age", "bmi"]\nresponse = "systolic_mmhg"\ndraws = 300\ntune = 300\n'
TERMS = {"adjacency": "replace-one", "unit": "record", "delta": 1e-5}


def _spec(text):
    return mvg.Spec.model_validate(tomllib.loads(text))


def _context(folder, lines=None):
    return Context(folder, folder, "0" * 64, False, (lines if lines is not None else []).append)


@pytest.mark.parametrize("name", ["mvg_covariance", "mvg_svr", "mvg_svr_synthea", "mvg_regression"])
def test_the_models_of_the_project_are_valid(name):
    assert _spec((MODELS / f"{name}.toml").read_text()).system == "mvg"


def test_covariance_run_leaves_a_report_that_is_rebuilt_from_its_files(tmp_path):
    spec, lines = _spec(COVARIANCE), []
    assert mvg.run(spec, _context(tmp_path, lines)).passed
    study = (tmp_path / "study.json").read_text()
    assert len(json.loads(study)["results"]) == 4
    write_report(mvg.document(spec, tmp_path), tmp_path)
    page, facts = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "facts.json").read_text())
    assert "Eigenvalues of the covariance" in page and "simulation" in page
    assert "1.0" in json.dumps(facts)
    assert facts["privacy"] == TERMS
    assert facts["about"]["headline"]["epsilon"] == "epsilon at delta 1e-05, replace-one"
    mvg.run(spec, _context(tmp_path, lines))
    assert lines[-1] == "study: already done, used again" and (tmp_path / "study.json").read_text() == study


def test_svr_run_leaves_a_report(tmp_path):
    pytest.importorskip("sklearn", reason="the regression study needs scikit-learn, an optional dependency")
    spec, lines = _spec(SVR), []
    assert mvg.run(spec, _context(tmp_path, lines)).passed
    assert len(lines) == 6
    document = mvg.document(spec, tmp_path)
    assert "every mechanism drowns the signal" in document.answer
    write_report(document, tmp_path)
    assert "binary MVG" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "facts.json").read_text())["privacy"] == TERMS


@pytest.mark.slow
def test_regression_run_releases_fits_and_reports(tmp_path):
    spec = _spec(REGRESSION)
    outcome = mvg.run(spec, _context(tmp_path))
    assert outcome.passed, outcome.summary
    write_report(mvg.document(spec, tmp_path), tmp_path)
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert "coefficients" in json.dumps(facts)
    assert facts["privacy"] == TERMS
    assert "a missing one set to the range's middle" in facts["clipping"]


def test_regression_release_stage(tmp_path):
    from dpbayes.mvg import naive_regression, whiten_moments
    from dpbayes.runs.mvg_regression import _release

    release = _release(_spec(REGRESSION.replace("epsilon = 1.0", "epsilon = 1e6")), _context(tmp_path))
    fit = naive_regression(whiten_moments(release, features=("age", "bmi", "systolic_mmhg")))
    truth = json.loads((tmp_path / "truth.json").read_text())
    # Next to no noise: what is released leads back to least squares on the records.
    np.testing.assert_allclose(fit.estimate, truth["estimate"], rtol=0.02)
    np.testing.assert_allclose(fit.stderr, truth["stderr"], rtol=0.02)


def test_confidential_truth_is_not_written(tmp_path):
    from dpbayes.runs.mvg_regression import _release

    patients(100, 1).write_csv(tmp_path / "records.csv")
    text = REGRESSION.replace('embedded = "patients"\nn = 3000', 'file = "records.csv"').replace(
        "simulation_seed = 3", ""
    )
    release = _release(_spec(text), _context(tmp_path))
    assert release.query.n == 100 and not (tmp_path / "truth.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE, "exactly one of"),
        (COVARIANCE + '[regression]\npredictors = ["age"]\nresponse = "bmi"\n', "exactly one of"),
        (COVARIANCE.replace("simulation_seed = 3", ""), "set privacy.simulation_seed"),
        (COVARIANCE.replace('embedded = "patients"\nn = 3000', 'file = "x.csv"'), r"data\.truth_public = true"),
        (COVARIANCE.replace("n = 3000", ""), "how many to generate"),
        (COVARIANCE.replace("delta = 1e-5", "delta = 1.0"), "less than 1"),
        (COVARIANCE.replace("epsilon = 1.0", "epsilon = -1.0"), "greater than 0"),
        (COVARIANCE.replace("draws = 3", "draw = 3"), "Extra inputs"),
        (
            COVARIANCE.replace("n = 3000", "n = 3000\n[data.ranges]\nage = [0.0, 1.0]"),
            "leave truth_public and ranges out",
        ),
        (
            REGRESSION.replace('embedded = "patients"\nn = 3000', 'file = "x.csv"\nlayout = "synthea"').replace(
                "simulation_seed = 3\n", ""
            ),
            "so their number is no public one",
        ),
        (REGRESSION.replace('"bmi"', '"age"'), "regression names a column twice: age"),
        (REGRESSION.replace('"bmi"', '"systolic_mmhg"'), "regression names a column twice: systolic_mmhg"),
        (REGRESSION.replace('"bmi"', '"weight"'), "no range is known for weight of regression"),
        (
            REGRESSION.replace(
                'embedded = "patients"\nn = 3000', 'file = "x.csv"\nranges = { age = [0.0, 1.0] }'
            ).replace("simulation_seed = 3\n", ""),
            "no range is known for bmi, systolic_mmhg",
        ),
        (SVR.replace('"age", "framingham"', '"height"'), r"no range is known for height of svr\.favoured"),
    ],
)
def test_bad_specs(text, message):
    with pytest.raises(ValidationError, match=message):
        _spec(text)


def test_bad_columns(tmp_path):
    patients(50, 1).drop("bmi").write_csv(tmp_path / "records.csv")
    text = COVARIANCE.replace('embedded = "patients"\nn = 3000', 'file = "records.csv"\ntruth_public = true')
    with pytest.raises(MissingColumnError, match="lacks the columns bmi"):
        mvg.run(_spec(text), _context(tmp_path))
    secret = patients(50, 1).with_columns(bmi=pl.lit("secret"))
    secret.write_csv(tmp_path / "records.csv")
    with pytest.raises(InputError, match="columns that are not numbers: bmi") as caught:
        mvg.run(_spec(text), _context(tmp_path))
    assert "secret" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.csv"):
        mvg.run(_spec(text.replace("records.csv", "absent.csv")), _context(tmp_path))
