"""Run specs of the MVG system: validation, releases, folders, pages, and an analyst's run without records."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import xarray as xr
from pydantic import ValidationError

from dpbayes.data.datasets import patients
from dpbayes.errors import InputError, MissingColumnError, SpecError
from dpbayes.mvg import FeatureRanges, MomentQuery, MomentRelease, calibrate_moments, naive_regression, release_moments
from dpbayes.mvg import whiten_moments as whiten
from dpbayes.mvg.study import Spec, _found, _release_section, calibration, design, load_records, release, try_fit
from dpbayes.report.document import Callout
from dpbayes.report.tables import simulation_warning
from dpbayes.runs import execute, load_spec
from dpbayes.runs.protocol import Context

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
[regression]
predictors = ["age", "bmi"]
response = "systolic_mmhg"
draws = 300
"""
FILE = BASE.replace('embedded = "patients"\nn = 3000', 'file = "records.csv"').replace("simulation_seed = 3\n", "")


def _spec(text):
    return Spec.model_validate(tomllib.loads(text))


def _context(folder):
    return Context(folder, folder, echo=lambda line: None)


def _run(tmp_path, text, name="run", overrides=()):
    path = tmp_path / "spec.toml"
    path.write_text(text)
    lines = []
    result = execute(load_spec(path, overrides), out=tmp_path / name, progressbar=False, echo=lines.append)
    return result, lines


@pytest.mark.parametrize("name", ["mvg_covariance", "mvg_svr", "mvg_svr_synthea", "mvg_regression"])
def test_the_models_of_the_project_are_valid(name):
    assert load_spec(MODELS / f"{name}.toml").spec.system in ("mvg", "study:mvg_paper")


def test_a_run_releases_fits_and_reports_and_an_analyst_runs_another_regression_on_its_release(tmp_path):
    result, lines = _run(tmp_path, BASE)
    assert result.passed, result.summary
    said = next(line for line in lines if line.startswith("release:"))
    assert said.startswith("release: second moments of 3 columns at epsilon 1 at delta 1e-05") and "one row" in said
    facts = json.loads((result.folder / "facts.json").read_text())
    assert facts["privacy"] == {"adjacency": "replace-one", "unit": "row", "delta": 1e-5}
    assert "The guarantee protects one row." in (result.folder / "report.html").read_text()
    assert "a missing one set to the range's middle" in facts["clipping"]
    assert re.fullmatch(
        r"Expected systolic_mmhg changes by -?[\d.]+ per unit of age \([-\d.]+ to [-\d.]+\), -?[\d.]+ per unit of bmi "
        r"\([-\d.]+ to [-\d.]+\): 95 % intervals, which count .* (sign: (> 0.999|0\.\d+ or more)|of the one stated)\.",
        facts["answer"],
    )
    page = (result.folder / "report.html").read_text()
    assert "naive" in page and "Where the width comes from" in page and "simulation" in page
    analyst = """
system = "mvg"
title = "another"
[data]
release = "run/release.json"
[regression]
predictors = ["systolic_mmhg"]
response = "bmi"
draws = 300
"""
    other, lines = _run(tmp_path, analyst, name="other")
    assert other.passed, other.summary
    facts = json.loads((other.folder / "facts.json").read_text())
    assert [row["term"] for row in facts["tables"]["coefficients"]] == [
        "intercept",
        "systolic_mmhg",
        "residual standard deviation",
    ]
    assert facts["headline"]["epsilon"] == pytest.approx(
        MomentRelease.read(result.folder / "release.json").noise.epsilon(1e-6), rel=1e-12
    )
    with pytest.raises(InputError, match=r"the release holds no male; choose among \['age', 'bmi', 'systolic_mmhg'\]"):
        _run(tmp_path, analyst.replace('["systolic_mmhg"]', '["male"]'), name="third")


def test_the_answer_says_which_signs_are_undecided():
    draws = np.stack([np.ones((2, 50)), np.where(np.arange(100) < 80, 1.0, -1.0).reshape(2, 50)], axis=-1)
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset({"coefficient": (("chain", "draw", "predictor"), draws)})})
    rows = [("intercept", 1.0, 0.5, 1.5), ("age", 1.25, 1.0, 1.5), ("bmi", 30.4, -10.0, 90.0)]
    assert _found(rows, trace, "y") == (
        "Expected y changes by 1.25 per unit of age (1.00 to 1.50), 30 per unit of bmi (-10 to 90): 95 % intervals, "
        "which count privacy noise and sampling, with the other predictors held. The sign is undecided for bmi "
        "(0.800), with the posterior probability of the one stated."
    )
    assert _found(rows[:2], trace.sel(predictor=[0]), "y").endswith("Posterior probability of this sign: 0.995.")


def test_a_stopped_run_goes_on_with_its_release_after_a_setting_of_the_sampler_changed(tmp_path, monkeypatch):
    import dpbayes.mvg.posterior as posterior

    kept = posterior.moment_posterior
    monkeypatch.setattr(posterior, "moment_posterior", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _run(tmp_path, BASE)
    released = (tmp_path / "run.partial" / "release.json").read_text()
    monkeypatch.setattr(posterior, "moment_posterior", kept)
    result, lines = _run(tmp_path, BASE, overrides=["regression.draws=200", "regression.seed=4"])
    assert "release: already drawn, used again" in lines
    assert (result.folder / "release.json").read_text() == released


def test_absurd_settings_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(SpecError, match="draws"):
        _run(tmp_path, BASE, overrides=[f"regression.draws={10**18}"])
    assert not list(tmp_path.glob("run*"))


def test_release_next_to_no_noise_leads_back_to_least_squares(tmp_path):
    released = release(_spec(BASE.replace("epsilon = 1.0", "epsilon = 1e6")), _context(tmp_path),
                       rng=np.random.default_rng(3), ledger=None)  # fmt: skip
    found = naive_regression(whiten(released, features=("age", "bmi", "systolic_mmhg")))
    truth = json.loads((tmp_path / "truth.json").read_text())
    np.testing.assert_allclose(found.estimate, truth["estimate"], rtol=0.02)
    np.testing.assert_allclose(found.stderr, truth["stderr"], rtol=0.02)


def test_confidential_truth_is_not_written(tmp_path):
    patients(100, 1).write_csv(tmp_path / "records.csv")
    released = release(_spec(FILE), _context(tmp_path), rng=None, ledger=None)
    assert released.query.n == 100 and released.sampler == "opendp" and not (tmp_path / "truth.json").exists()


def test_design_has_the_releases_query_and_noise_and_reads_no_record(tmp_path):
    patients(1000, 1).write_csv(tmp_path / "records.csv")
    spec = _spec(FILE)
    placeholder, real = design(spec, Path("/nowhere")), release(spec, _context(tmp_path), rng=None, ledger=None)
    assert placeholder.noise.stddev == real.noise.stddev and placeholder.query.n == real.query.n == 1000
    assert design(spec, Path("/nowhere"), n_records=50).query.n == 50
    with pytest.raises(SpecError, match="say how many to simulate"):
        calibration(spec, placeholder, Path("."), None)
    assert calibration(spec, placeholder, Path("."), 1000).design.startswith(
        "moments of 1,000 records, 2 predictors, epsilon 1,"
    )


def _of_units(tmp_path, frame):
    frame.write_csv(tmp_path / "records.csv")
    data = _spec(FILE.replace("[privacy]", 'unit = "person"\n[privacy]')).data
    return load_records(data, tmp_path, columns=["age", "bmi", "systolic_mmhg"])


def test_one_row_of_each_unit_is_released_and_the_release_says_so(tmp_path):
    patients(300, 1).with_columns(person=pl.Series([f"p{i % 100}" for i in range(300)])).write_csv(
        tmp_path / "records.csv"
    )
    spec = _spec(FILE.replace("[privacy]", 'unit = "person"\n[privacy]'))
    released = release(spec, _context(tmp_path), rng=None, ledger=None)
    assert released.query.n == 100
    assert released.protects == "one unit of column 'person' (at most 1 of its rows counted)"
    again = MomentRelease.read(released.write(tmp_path / "m.json"))
    assert again.query.unit == "person" and again.privacy_record["protects"] == released.protects


def test_the_kept_row_follows_from_the_units_own_rows_alone(tmp_path):
    """Other units' rows, and the order of all, change nothing; a value that is missing or out of range is a value."""
    frame = patients(300, 1).with_columns(person=pl.Series([f"p{i % 100}" for i in range(300)]))
    odd = pl.Series([[None, 1e300, -5.0, 40.0][(i + i // 100) % 4] for i in range(300)])
    frame = frame.with_columns(bmi=odd)
    everybody = _of_units(tmp_path, frame)
    assert sorted(everybody.rows(), key=str) == sorted(_of_units(tmp_path, frame.reverse()).rows(), key=str)
    for person in ("p0", "p1", "p7"):
        own = frame.filter(pl.col("person") == person)
        (kept,) = _of_units(tmp_path, own).rows()
        assert kept in own.select(everybody.columns).cast(pl.Float64).rows() and kept in everybody.rows()
        other = frame.filter(pl.col("person") != person)
        assert sorted([*_of_units(tmp_path, other).rows(), kept], key=str) == sorted(everybody.rows(), key=str)


def test_no_value_is_kept_more_often_than_others(tmp_path):
    """Of 4,000 units with four evenly spaced rows 1,000 keep each: standard deviation 27.4, here five of them."""
    rows = [(f"p{i}", age, 20.0 + i / 400, 100.0) for i in range(4000) for age in (40.0, 50.0, 60.0, 70.0)]
    frame = pl.DataFrame(rows, schema=["person", "age", "bmi", "systolic_mmhg"], orient="row")
    counts = _of_units(tmp_path, frame)["age"].value_counts()["count"].to_numpy().astype(float)
    assert len(counts) == 4 and np.abs(counts - 1000).max() < 5 * 27.4


def test_a_unit_that_is_missing_or_released_is_refused(tmp_path):
    frame = patients(3, 1).with_columns(person=pl.Series(["p0", None, "p1"]))
    with pytest.raises(InputError, match="'person', the unit, holds a missing value"):
        _of_units(tmp_path, frame)
    with pytest.raises(InputError, match="the unit 'bmi' is also a column to release"):
        load_records(_spec(FILE.replace("[privacy]", 'unit = "bmi"\n[privacy]')).data, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE.replace("n = 3000", ""), "how many to generate"),
        (BASE.replace("delta = 1e-5", "delta = 1.0"), "less than 1"),
        (BASE.replace("epsilon = 1.0", "epsilon = -1.0"), "greater than 0"),
        (BASE.replace("draws = 300", "draw = 3"), "Extra inputs"),
        (BASE.replace("draws = 300", "draws = 50_000"), "less than or equal to 10000"),
        (BASE.replace("n = 3000", "n = 3000\n[data.ranges]\nage = [0.0, 1.0]"), "leave truth_public and ranges out"),
        (FILE.replace("[privacy]", "max_rows_per_unit = 2\n[privacy]"), "name its column by unit"),
        (BASE.replace("[privacy]", 'unit = "person"\nmax_rows_per_unit = 2\n[privacy]'), "there is no file of them"),
        (FILE.replace("delta = 1e-5", "delta = 1e-5\nsimulation_seed = 1"), "would give the exact counts back"),
        (BASE.replace('"bmi"', '"age"'), "regression names a column twice: age"),
        (BASE.replace('"bmi"', '"systolic_mmhg"'), "regression names a column twice: systolic_mmhg"),
        (BASE.replace('"bmi"', '"weight"'), "no range is known for weight of regression"),
        (FILE.replace("[privacy]", "ranges = { age = [0.0, 1.0] }\n[privacy]"), "no range is known for bmi, systolic"),
        (FILE.replace("[privacy]", "ranges = { age = [1.0, 0.0] }\n[privacy]"), "must be .lower, upper. with lower"),
        (BASE.replace("n = 3000", "n = 100_000_000"), "less than or equal to 10000000"),
        (FILE.replace("[privacy]", "n = 3000\n[privacy]"), "there are none; leave it out"),
        (BASE.replace("n = 3000", 'n = 3000\nfile = "x.csv"'), "exactly one of"),
    ],
)
def test_bad_specs(text, message):
    with pytest.raises(ValidationError, match=message):
        _spec(text)


def test_bad_columns(tmp_path):
    spec = _spec(FILE)
    patients(50, 1).drop("bmi").write_csv(tmp_path / "records.csv")
    with pytest.raises(MissingColumnError, match="lacks the columns bmi"):
        load_records(spec.data, tmp_path)
    patients(50, 1).with_columns(bmi=pl.lit("secret")).write_csv(tmp_path / "records.csv")
    with pytest.raises(InputError, match="columns that are no numbers: bmi") as caught:
        load_records(spec.data, tmp_path)
    assert "secret" not in str(caught.value)
    (tmp_path / "records.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no file .*records\.csv"):
        load_records(spec.data, tmp_path)


def test_names_with_a_slash_and_other_characters_are_the_users_own(tmp_path):
    names = {"age": "age [years]", "bmi": "kg/m²", "systolic_mmhg": "pressure: mm/Hg"}
    patients(400, 1).select(*names).rename(names).write_csv(tmp_path / "records.csv")
    ranges = "".join(f'"{name}" = [{low}, {high}]\n' for name, low, high in
                     zip(names.values(), (20, 10, 60), (100, 60, 260), strict=True))  # fmt: skip
    text = FILE.replace("[privacy]", f"truth_public = true\n[data.ranges]\n{ranges}[privacy]")
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    result, _ = _run(tmp_path, text)
    facts = json.loads((result.folder / "facts.json").read_text())
    assert [row["term"] for row in facts["tables"]["coefficients"]][1:3] == ["age [years]", "kg/m²"]


def test_a_release_without_names_is_refused_before_a_fit(tmp_path):
    query = MomentQuery(FeatureRanges([0.0] * 3, [1.0] * 3, "replace-one"), 10, intercept=1.0)
    noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    unnamed = release_moments(np.zeros((3, 10)), noise, rng=np.random.default_rng(1))
    with pytest.raises(SpecError, match="names no features"):
        try_fit(_spec(BASE), unnamed, _context(tmp_path))


def test_a_page_on_simulated_noise_warns_and_one_on_a_release_does_not():
    noise = calibrate_moments(MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 3), epsilon=1.0, delta=1e-5)
    for rng, drawn in ((np.random.default_rng(1), "a seeded generator"), (None, "OpenDP")):
        released = release_moments([[0.0, 1.0, 0.5]], noise, rng=rng)
        text, clipping, *rest = _release_section(released, 1.0, 1e-5).blocks
        assert "a missing one set to the range's middle" in clipping.text
        assert f"drawn by {drawn}." in text.text and "protects one row" in text.text
        assert rest == simulation_warning(released.sampler)
        warnings = [block for block in rest if isinstance(block, Callout) and block.tone == "warning"]
        assert [block.title for block in warnings] == ([] if rng is None else ["A simulation, not a release"])


def test_a_column_in_units_a_billion_times_smaller_changes_its_coefficient_alone(tmp_path):
    frame, found = patients(400, 1).select("age", "bmi", "systolic_mmhg"), []
    for unit in (1.0, 1e9):
        ranges = {"age": (20.0, 100.0), "bmi": (10.0 * unit, 60.0 * unit), "systolic_mmhg": (60.0, 260.0)}
        frame.with_columns(bmi=pl.col("bmi") * unit).write_csv(tmp_path / "records.csv")
        lines = "".join(f"{name} = [{low}, {high}]\n" for name, (low, high) in ranges.items())
        spec = _spec(FILE.replace("[privacy]", f"truth_public = true\n[data.ranges]\n{lines}[privacy]"))
        released = release(spec, _context(tmp_path), rng=np.random.default_rng(1), ledger=None)
        truth = json.loads((tmp_path / "truth.json").read_text())
        whitened = whiten(released, features=spec.regression.columns)
        found.append((whitened.moments, *(np.array(truth[key]) * [1, 1, unit] for key in ("estimate", "stderr"))))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_units_beyond_the_whole_numbers_of_doubles_stay_apart_beside_a_missing_number(tmp_path):
    people, ages = [2**53 + i for i in range(300)], [None, *([50] * 299)]
    columns = {"person": pl.Series(people), "age": pl.Series(ages, dtype=pl.Int64)}
    patients(300, 1).with_columns(**columns).write_parquet(tmp_path / "r.parquet")
    text = FILE.replace("records.csv", "r.parquet").replace("[privacy]", 'unit = "person"\n[privacy]')
    assert release(_spec(text), _context(tmp_path), rng=None, ledger=None).query.n == 300
