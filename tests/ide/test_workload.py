import numpy as np
import pytest

from dpbayes.data.datasets import two_level_population
from dpbayes.errors import InputError
from dpbayes.ide import Prior
from dpbayes.ide.groups import choose_cliques, choose_roots, dependence_graph, expected_l1_error


@pytest.fixture(scope="module")
def graph():
    population = two_level_population(group_size=2000, seed=3)
    return dependence_graph(Prior.from_frame(population.public, population.domain))


def test_information_of_independent_columns_is_near_zero_after_the_correction():
    rng = np.random.default_rng(1)
    population = two_level_population(n_units=1, groups_per_unit=1, group_size=1000)
    frame = population.public.with_columns(age=rng.permutation(population.public["age"].to_numpy()))
    graph = dependence_graph(Prior.from_frame(frame, population.domain))
    with_age = graph.information[0, 1:]
    assert with_age.max() < 0.02
    assert graph.information[1:, 1:].max() > 0.1


def test_cliques_meet_the_error_and_cover_every_attribute(graph):
    settings = {"n_records": 20_000.0, "epsilon": 0.5}
    tables = choose_cliques(graph, **settings, max_error=0.1)
    size = dict(zip(graph.names, graph.sizes, strict=True))
    for table in tables:
        cells = int(np.prod([size[name] for name in table]))
        assert expected_l1_error(cells, len(tables), **settings) <= 0.1
        assert not any(set(table) < set(other) for other in tables)
    assert {name for table in tables for name in table} == set(graph.names)
    strongest = graph.edges()[0][:2]
    assert any(set(strongest) <= set(table) for table in tables)


def test_more_budget_buys_larger_tables(graph):
    def cells(epsilon):
        size = dict(zip(graph.names, graph.sizes, strict=True))
        return sum(int(np.prod([size[n] for n in t])) for t in choose_cliques(graph, n_records=2e4, epsilon=epsilon))

    assert cells(0.1) <= cells(1.0) <= cells(10.0)
    assert cells(0.1) < cells(10.0)


def test_roots_are_nearly_independent_and_one_way(graph):
    roots = choose_roots(graph, n_records=2000, epsilon=5.0, max_information=0.05)
    places = [graph.names.index(name) for (name,) in roots]
    assert len(places) >= 1
    assert all(graph.information[i, j] <= 0.05 for i in places for j in places if i != j)


def test_too_small_a_budget_says_so(graph):
    with pytest.raises(InputError, match="expected L1 error"):
        choose_cliques(graph, n_records=100, epsilon=0.01)
    assert len(choose_roots(graph, n_records=100, epsilon=0.01)) == 1


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
