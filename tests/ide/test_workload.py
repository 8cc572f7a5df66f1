import numpy as np
import pytest

from dpbayes.data.datasets import two_level_population
from dpbayes.errors import InputError
from dpbayes.ide import Hierarchy, Prior, choose_workloads
from dpbayes.ide.groups import mutual_information

PLACES = Hierarchy("place", {"a": "north", "b": "north", "c": "south"})


@pytest.fixture(scope="module")
def prior():
    population = two_level_population(group_size=2000, seed=3)
    return Prior.from_frame(population.public, population.domain)


def test_information_of_independent_columns_is_near_zero_after_the_correction():
    rng = np.random.default_rng(1)
    population = two_level_population(n_units=1, groups_per_unit=1, group_size=1000)
    frame = population.public.with_columns(age=rng.permutation(population.public["age"].to_numpy()))
    information = mutual_information(Prior.from_frame(frame, population.domain))
    assert information[0, 1:].max() < 0.02
    assert information[1:, 1:].max() > 0.1


def test_unit_tables_meet_the_error_and_cover_every_attribute(prior):
    tables, _ = choose_workloads(prior, PLACES, epsilon=2.0, max_error=0.1, max_rows_per_unit=2)
    for table in tables:
        cells = prior.domain.project(table).size
        # K cells of W tables, each at a scale of Delta W / epsilon_0, of half the records.
        assert cells * 2 * len(tables) / (0.5 * prior.n_records / 2) <= 0.1
        assert not any(set(table) < set(other) for other in tables)
    assert {name for table in tables for name in table} == set(prior.domain.names)
    information = mutual_information(prior)
    i, j = np.unravel_index(information.argmax(), information.shape)
    assert any({prior.domain.names[i], prior.domain.names[j]} <= set(table) for table in tables)


def test_more_budget_buys_larger_tables(prior):
    def cells(epsilon):
        units, _ = choose_workloads(prior, PLACES, epsilon=epsilon)
        return sum(prior.domain.project(table).size for table in units)

    assert cells(0.2) <= cells(2.0) <= cells(20.0)
    assert cells(0.2) < cells(20.0)


def test_group_tables_are_nearly_independent_and_one_way(prior):
    _, roots = choose_workloads(prior, PLACES, epsilon=20.0, max_information=0.05)
    information = mutual_information(prior)
    places = [prior.domain.names.index(name) for (name,) in roots]
    assert len(places) >= 1
    assert all(information[i, j] <= 0.05 for i in places for j in places if i != j)


def test_too_small_a_budget_says_so(prior):
    with pytest.raises(InputError, match="expected L1 error"):
        choose_workloads(prior, PLACES, epsilon=1e-4)


def test_the_generated_population_repeats_and_drifts():
    one, same = (two_level_population(seed=5) for _ in range(2))
    assert one.private.equals(same.private)
    assert set(one.private["group"]) == set(one.parent)
    still = two_level_population(drift=0.0, group_size=5000, seed=5)
    moved = two_level_population(drift=0.5, group_size=5000, seed=5)

    def gap(population):
        public, private = (Prior.from_frame(f, population.domain) for f in (population.public, population.private))
        return np.abs(public.marginal(["age", "work"]) - private.marginal(["age", "work"])).sum()

    assert gap(still) < 0.05 < gap(moved)
    with pytest.raises(InputError, match="group_size"):
        two_level_population(group_size=0)
