import itertools

import numpy as np

from dpbayes.data import check_consistent, datasets


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
