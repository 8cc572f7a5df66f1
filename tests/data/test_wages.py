import numpy as np
import pytest

from dpbayes.data.wages import WAGE_EQUATION, wages
from dpbayes.errors import InputError
from dpbayes.verifier.estimates import estimate_partitions


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
