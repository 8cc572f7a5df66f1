"""Assignments of units to partitions: names of any length, public strata."""

import tracemalloc

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpbayes.errors import InputError
from dpbayes.verifier import count_statistic
from dpbayes.verifier.formulas import column_values
from dpbayes.verifier.partition import assign_partitions, unit_codes

RNG = np.random.default_rng


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame])
def test_one_long_name_does_not_widen_every_row(frame):
    # As an array of text, 20,000 rows of up to 20,000 characters would take 1.6 GB.
    names = [f"person {i % 5000}" for i in range(20_000)]
    names[7] = "x" * 20_000
    table = nw.from_native(frame({"name": names}))
    tracemalloc.start()
    codes, n_units = unit_codes(column_values(table, "name"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_units == 5001
    assert peak < 50e6
    assert codes[5000] == codes[0] and len(set(codes.tolist())) == 5001


def test_names_are_compared_as_text():
    codes, n_units = unit_codes(np.array([1, "1", "01", 1.0, "1.0"], dtype=object))
    assert n_units == 3
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize("seed", range(5))
def test_strata_are_dealt_out_evenly(seed):
    rng = RNG(seed)
    strata = rng.choice(4, size=203, p=(0.7, 0.2, 0.08, 0.02))
    partition = assign_partitions(203, 10, strata=strata, random_state=seed)
    sizes = np.bincount(partition, minlength=10)
    assert sizes.max() - sizes.min() <= 1
    for stratum in range(4):
        held = np.bincount(partition[strata == stratum], minlength=10)
        assert held.max() - held.min() <= 1


def test_who_shares_a_stratum_is_exchangeable():
    # Each unit of the rare stratum is alone in its partition, and which one is uniform: chi-square over 2,000 draws.
    strata = np.repeat([0, 1], [20, 5])
    first = [assign_partitions(25, 5, strata=strata, random_state=seed)[24] for seed in range(2000)]
    expected = 400
    statistic = ((np.bincount(first, minlength=5) - expected) ** 2 / expected).sum()
    assert statistic < 33.4  # the 1 - 1e-6 quantile of chi-square with 4 degrees of freedom


def test_a_stratum_that_differs_within_a_unit_and_add_remove_are_refused():
    from dpbayes.verifier import count_partitions

    frame = pl.DataFrame({"who": [1, 1, 2, 2], "place": ["a", "b", "a", "a"], "x": [1.0, 2, 3, 5], "y": [1.0, 3, 2, 1]})
    asked = {"formula": "y ~ x", "coefficient": "x", "threshold": 0, "direction": ">", "n_partitions": 2}
    with pytest.raises(InputError, match="differs between the rows of one unit"):
        count_partitions(frame, unit="who", strata="place", **asked)
    with pytest.raises(InputError, match="leave it out under add-remove"):
        count_partitions(frame, strata="place", assignment="independent", **asked)
    assert count_statistic(frame, len, threshold=1, direction=">", n_partitions=2).n_partitions == 2
