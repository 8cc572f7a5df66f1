"""Embedded data: the printed tables, the risk score against its paper, generators against common knowledge."""

import itertools

import numpy as np
import pytest

from dpbayes.data import check_consistent, datasets
from dpbayes.data.datasets import PATIENT_RANGES, WAGE_EQUATION, framingham_risk, patients, wages
from dpbayes.errors import InputError
from dpbayes.verifier.claim import estimate_partitions


def test_acs_tables_agree_on_every_margin_and_sum_to_ten_thousand():
    tables = datasets.acs_tables()
    assert check_consistent(tables) == 10_000
    assert {frozenset(table.attributes) for table in tables} == {
        frozenset(pair) for pair in itertools.combinations(["citizenship", "age", "race", "sex", "income"], 2)
    }


def test_the_misprinted_cell_is_what_the_other_tables_force():
    tables = {table.attributes: table for table in datasets.acs_tables()}
    income = tables["citizenship", "income"].project(["income"]).counts
    race = tables["citizenship", "race"].project(["race"]).counts
    np.testing.assert_array_equal(income, [3210, 6790])
    corrected = tables["race", "income"].counts[1, 0]
    assert corrected == income[0] - tables["race", "income"].counts[0, 0] == 2383
    assert corrected + tables["race", "income"].counts[1, 1] == race[1]


WOMAN = {"age": 61, "male": 0, "smoker": 1, "diabetes": 0, "treated": 0}
MAN = {"age": 53, "male": 1, "smoker": 0, "diabetes": 1, "treated": 1}


def test_published_examples():
    # D'Agostino et al. (2008), the two case examples: 10.48 % and 15.62 %.
    woman = framingham_risk(**WOMAN, systolic_mmhg=124, total_cholesterol_mgdl=180, hdl_cholesterol_mgdl=47)
    man = framingham_risk(**MAN, systolic_mmhg=125, total_cholesterol_mgdl=161, hdl_cholesterol_mgdl=55)
    assert float(woman) == pytest.approx(0.1048, abs=5e-5)
    assert float(man) == pytest.approx(0.1562, abs=5e-5)


def test_reproducible_and_inside_the_ranges():
    table = patients(20_000, 3)
    assert table.columns == list(PATIENT_RANGES)
    assert table.equals(patients(20_000, np.random.default_rng(3)))
    assert not table.equals(patients(20_000, 4))
    for name, (low, high) in PATIENT_RANGES.items():
        values = table[name].to_numpy()
        assert np.all((values >= low) & (values <= high))
    score = framingham_risk(**table.drop("bmi", "framingham").to_dict(as_series=False))
    np.testing.assert_array_equal(table["framingham"].to_numpy(), score)


def test_realistic_margins_and_correlations():
    table = patients(50_000, 11)
    means = {name: table[name].mean() for name in table.columns}
    assert 46 < means["age"] < 54 and 0.1 < means["smoker"] < 0.3 and 0.06 < means["diabetes"] < 0.2
    assert 115 < means["systolic_mmhg"] < 130 and 185 < means["total_cholesterol_mgdl"] < 210
    assert 45 < means["hdl_cholesterol_mgdl"] < 60 and 26 < means["bmi"] < 31 and 0.05 < means["framingham"] < 0.2
    correlation = np.corrcoef(table.to_numpy().T)
    place = {name: i for i, name in enumerate(table.columns)}

    def between(first, second):
        return correlation[place[first], place[second]]

    assert 0.2 < between("age", "systolic_mmhg") < 0.6
    assert between("bmi", "hdl_cholesterol_mgdl") < -0.1
    assert between("male", "hdl_cholesterol_mgdl") < -0.2
    assert between("age", "framingham") > 0.4
    assert between("age", "diabetes") > 0.1


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_bad_size(n):
    with pytest.raises(InputError, match="n must be a whole number"):
        patients(n, 1)


def test_bad_seed_and_measurement():
    with pytest.raises(InputError, match="random_state must be"):
        patients(3, "one")
    with pytest.raises(InputError, match="HDL cholesterol must be positive"):
        framingham_risk(**MAN, systolic_mmhg=125, total_cholesterol_mgdl=161, hdl_cholesterol_mgdl=[55, 0])


def test_rows_are_by_person_and_year():
    frame = wages(500, n_years=5, seed=2)
    assert frame["person"].n_unique() == 500
    assert frame.select("person", "year").is_duplicated().sum() == 0
    # Each of 2,500 cells is filled with probability .85 at least: 5 standard deviations below it is 2,035.
    assert 2035 < frame.height <= 2500
    assert frame.null_count().sum_horizontal().item() == 0
    assert frame["wage"].min() > 0


def test_the_equation_can_be_found_again():
    frame = wages(6000, seed=4)
    formula = "np.log(wage) ~ education + experience + I(experience**2) + sex + sector + union + year"
    names = {"education": "education", "female": "sex[T.female]", "public": "sector[T.public]", "union": "union"}
    for truth, coefficient in names.items():
        (estimate,) = estimate_partitions(frame, formula=formula, coefficient=coefficient, n_partitions=1)
        # Person effects inflate the plain standard error by less than the root of the six rows a person has.
        assert abs(estimate.coefficient - WAGE_EQUATION[truth]) < 5 * np.sqrt(6) * estimate.standard_error


def test_same_seed_same_records():
    assert wages(50, seed=9).equals(wages(50, seed=9))
    assert not wages(50, seed=9).equals(wages(50, seed=10))
    with pytest.raises(InputError, match="n_persons"):
        wages(0)
