"""`dpbayes init`: from a header and a codebook to a spec that is read as it stands."""

import re

import polars as pl
import pytest
from typer.testing import CliRunner

from dpbayes.cli.main import app
from dpbayes.errors import DPBayesError
from dpbayes.runs import load_spec
from dpbayes.runs.execution import plan_lines

CODEBOOK = """attribute;level;label;lower;upper
age;0;under 18;;
age;1;18 or over;;
income band;< $25k;;;
income band;$25k-$50k;;;
region;01;Île-de-France;;
region;02;"Nord; ""Picardie\""";;
smoker;;smoking not stated;;
smoker;1;smoker;;
wage;;;0;200
years in job;;;0;60
"""
HEAD = "age,income band,region,smoker,wage,years in job"
SECRET = "SECRET-4711"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "codebook.csv").write_text(CODEBOOK, encoding="utf-8-sig")
    (tmp_path / "records.csv").write_text(f"{HEAD}\n1,$25k-$50k,01,{SECRET},12,3\n")
    return tmp_path


def invoke(folder, system, *options, files=("data", "codebook")):
    named = [
        part for name in files for part in (f"--{name}", str(folder / {"data": "records.csv"}.get(name, f"{name}.csv")))
    ]
    return CliRunner().invoke(app, ["init", system, *named, *options])


@pytest.mark.parametrize("system", ["bloom", "ide", "latent-class", "latent_class", "mvg", "verifier"])
def test_the_spec_of_every_system_is_read_as_it_stands(folder, system):
    result = invoke(folder, system)
    assert result.exit_code == 0, (result.output, result.exception)
    path = folder / f"{system.replace('_', '-')}.toml"
    assert f"spec: {path}" in result.output
    assert load_spec(path).spec.system == system.replace("_", "-")
    text = path.read_text(encoding="utf-8")
    assert SECRET not in text and "no row of records was read" in text


def test_levels_and_labels_are_the_codebooks(folder):
    invoke(folder, "latent-class")
    spec = load_spec(folder / "latent-class.toml").spec
    assert spec.data.levels == {
        "age": [0, 1],
        "income band": ["< $25k", "$25k-$50k"],
        "region": ["01", "02"],
        "smoker": ["", "1"],
    }
    assert spec.data.labels["region"] == {"01": "Île-de-France", "02": 'Nord; "Picardie"'}
    assert spec.data.labels["smoker"] == {"": "smoking not stated", "1": "smoker"}
    assert "income band" not in spec.data.labels
    assert "All 6 pairs of attributes share epsilon" in (folder / "latent-class.toml").read_text(encoding="utf-8")


def test_bounds_and_names_of_several_words_reach_their_specs(folder):
    invoke(folder, "mvg")
    spec = load_spec(folder / "mvg.toml").spec
    assert spec.data.ranges == {"wage": [0.0, 200.0], "years in job": [0.0, 60.0]}
    assert (spec.regression.response, spec.regression.predictors) == ("wage", ["years in job"])
    invoke(folder, "verifier")
    (question,) = load_spec(folder / "verifier.toml").spec.questions
    assert question.formula == "wage ~ `years in job` + age + `income band` + region + smoker"
    assert question.coefficient == "years in job"
    plan_lines(load_spec(folder / "verifier.toml"))  # refuses a coefficient that the model would not have


@pytest.mark.parametrize(
    ("codebook", "formula", "coefficient", "family"),
    [
        ("x y,a\nx y,b\n", "wage ~ `x y`", "x y[T.b]", "gaussian"),
        ("x y,a\nx y,b\nwage,0\nwage,1\n", "wage ~ `x y`", "x y[T.b]", "logistic"),
    ],
)
def test_a_verifier_of_categories_names_the_coefficient_as_the_model_does(
    tmp_path, codebook, formula, coefficient, family
):
    (tmp_path / "codebook.csv").write_text(f"attribute,level\n{codebook}")
    (tmp_path / "records.csv").write_text("x y,wage\na,1\n")
    assert invoke(tmp_path, "verifier").exit_code == 0
    loaded = load_spec(tmp_path / "verifier.toml")
    (question,) = loaded.spec.questions
    assert (question.formula, question.coefficient, question.family) == (formula, coefficient, family)
    plan_lines(loaded)


def test_a_verifier_without_a_number_to_explain_is_refused(tmp_path):
    (tmp_path / "codebook.csv").write_text("attribute,level\nx,a\nx,b\n")
    (tmp_path / "records.csv").write_text("x\na\n")
    assert "a regression explains a number" in str(invoke(tmp_path, "verifier").exception)


@pytest.mark.parametrize("system", ["ide", "latent-class"])
def test_tables_of_columns_without_levels_are_refused(tmp_path, system):
    (tmp_path / "codebook.csv").write_text("attribute,lower,upper\nwage,0,1\n")
    assert "no column has any; a codebook is" in str(invoke(tmp_path, system, files=("codebook",)).exception)


def test_without_a_codebook_the_levels_are_left_to_fill_in(folder):
    invoke(folder, "latent-class", files=("data",))
    text = (folder / "latent-class.toml").read_text()
    assert "age = [] # fill in its levels, in order" in text
    with pytest.raises(DPBayesError, match="attribute 'age' has no levels; list them in order, from its codebook"):
        load_spec(folder / "latent-class.toml")


def test_only_the_first_line_of_the_records_is_read(folder):
    (folder / "records.csv").write_bytes(f"{HEAD}\n".encode() + b"\xff\xfe not text")
    assert invoke(folder, "latent-class").exit_code == 0


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("1,$25k-$50k,01,smoker,12,3", "does not name its columns"),
        (f"{HEAD},$25k-$50k", "does not name its columns"),
        (f"{HEAD},age", "does not name its columns"),
        (f"{HEAD},", "does not name its columns"),
        ("age,income band,region,smoker,wage", "no column 'years in job', which the codebook describes"),
        ("", "begins with an empty line"),
    ],
)
def test_a_first_line_that_may_be_a_record_is_refused_and_not_shown(folder, head, message):
    (folder / "records.csv").write_text(f"{head}\n")
    result = invoke(folder, "latent-class")
    assert isinstance(result.exception, DPBayesError) and re.search(message, str(result.exception))
    assert not list(folder.glob("*.toml")) and "$25k" not in str(result.exception)


@pytest.mark.parametrize(
    ("codebook", "message"),
    [
        ("name,level\nage,0\n", "has no column 'attribute'; a codebook is a CSV file"),
        ("attribute,level\nage,0\nage,0\n", "line 3 repeats level '0' of 'age'"),
        ("attribute,level\n,0\n", "line 2 names no attribute"),
        ("attribute,lower,upper\nwage,9,1\n", "line 2 needs numbers lower < upper, got '9' and '1'"),
        ("attribute,lower,upper\nwage,low,1\n", "line 2 needs numbers lower < upper, got 'low' and '1'"),
    ],
)
def test_a_codebook_that_cannot_be_read_is_refused(folder, codebook, message):
    (folder / "codebook.csv").write_text(codebook)
    result = invoke(folder, "latent-class")
    assert isinstance(result.exception, DPBayesError) and message in str(result.exception)


def test_a_spec_is_never_overwritten_and_an_unknown_system_is_named(folder):
    invoke(folder, "mvg")
    assert "already there; remove it, or choose another --out" in str(invoke(folder, "mvg").exception)
    assert "'latent' is not known; it is one of bloom, ide" in str(invoke(folder, "latent").exception)


def test_synthetic_records_hold_labels_where_asked():
    from dpbayes.data import Domain
    from dpbayes.data.records import with_labels

    domain = Domain.from_levels({"age": (0, 1), "sex": ("f", "m")}, {"age": {0: "under 18"}})
    frame = with_labels(pl.DataFrame({"age": [1, 0], "sex": ["f", "m"]}), domain)
    assert frame.rows() == [("1", "f"), ("under 18", "m")]
