from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain, marginals
from dpbayes.errors import BudgetExceededError, DamagedFileError, InputError, MissingColumnError, UnreadableDataError
from dpbayes.ide import GroupRelease, Hierarchy, Prior, release_groups, synthesize_groups
from dpbayes.privacy import Laplace, TwoSidedGeometric
from dpbayes.privacy.ledger import create_ledger, open_ledger

DOMAIN = Domain.from_levels({"x": (0, 1, 2), "y": (0, 1), "z": ("n", "y")})
PLACES = Hierarchy("place", {"a1": "A", "a2": "A", "b1": "B", "b2": "B", "b3": "B"})
UNIT_SETS, GROUP_SETS = [("x", "y"), ("y", "z")], [("x",), ("z",), ("y",)]


def records(n=1500, seed=1):
    rng = np.random.default_rng(seed)
    columns = {a.name: rng.choice(a.levels, n) for a in DOMAIN}
    return pl.DataFrame({"place": rng.choice(PLACES.groups, n), "id": rng.integers(0, 10**9, n), **columns})


def released(epsilon=4.0, rng=1, frame=None, **settings):
    generator = None if rng is None else np.random.default_rng(rng)
    return release_groups(
        records() if frame is None else frame,
        settings.pop("hierarchy", PLACES),
        DOMAIN,
        **{"unit_sets": UNIT_SETS, "group_sets": GROUP_SETS, "epsilon": epsilon, "rng": generator, **settings},
    )


@pytest.fixture(scope="module")
def public():
    return Prior.from_frame(records(2000, 2), DOMAIN)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("noise", ["two-sided-geometric", "laplace"])
def test_theorem_4_1_four_parts_of_a_quarter(rows, noise):
    """White box: read every law off the release and add up what it costs one unit of privacy."""
    unit = {} if rows == 1 else {"unit": "id", "max_rows_per_unit": rows}
    result = released(epsilon=2.0, noise=noise, **unit)
    law = {"two-sided-geometric": TwoSidedGeometric, "laplace": Laplace}[noise]
    for level, sets in ((result.units, UNIT_SETS), (result.groups, GROUP_SETS)):
        for release in level.values():
            # The paper's scales: Delta/eps_0 for sizes, |W|_1 Delta/eps_0 for the workload.
            assert release.n.noise.scale == pytest.approx(rows / 0.5)
            assert {type(table.noise) for table in release.tables} == {law}
            assert [t.noise.scale for t in release.tables] == pytest.approx([len(sets) * rows / 0.5] * len(sets))
            spent = [t.noise.epsilon(sensitivity=rows) for t in release.tables]
            assert sum(spent) == pytest.approx(0.5)
            assert release.n.noise.epsilon(sensitivity=rows) == pytest.approx(0.5)
            assert release.adjacency == "add-remove"
    assert result.epsilon == pytest.approx(2.0)


def test_a_column_of_the_unit_that_is_not_there_is_named():
    with pytest.raises(MissingColumnError, match="column 'nope' is not in the data"):
        released(unit="nope")


def test_units_that_do_not_read_are_not_shown():
    words = records().with_columns(id=pl.lit("SECRET")).lazy().with_columns(pl.col("id").cast(pl.Int64))
    with pytest.raises(UnreadableDataError) as error:
        released(frame=words, unit="id")
    assert "SECRET" not in str(error.value) and error.value.__suppress_context__


def test_the_rows_of_a_unit_move_a_table_by_at_most_their_number_wherever_they_lie():
    frame, lost = records(), 3
    gone = frame[lost:]  # three rows of one unit, in different groups
    before, after = (marginals(f, [("place", "x")], domain=_whole())[0].counts for f in (frame, gone))
    assert np.abs(before - after).sum() == lost


def _whole():
    return Domain((PLACES.as_attribute, *DOMAIN.attributes))


def test_the_ledger_holds_exactly_what_was_spent(tmp_path):
    create_ledger(tmp_path / "ledger.db", epsilon=5.0, delta=0.0, adjacency="add-remove")
    ledger = open_ledger(tmp_path / "ledger.db")
    result = released(epsilon=4.0, rng=None, unit="id", max_rows_per_unit=2, ledger=ledger)
    assert result.sampler == "opendp"
    assert ledger.remaining().epsilon == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError):
        released(epsilon=1.1, rng=None, unit="id", max_rows_per_unit=2, ledger=ledger)
    assert ledger.remaining().epsilon == pytest.approx(1.0)
    with pytest.raises(InputError, match="simulation"):
        released(epsilon=0.5, ledger=ledger)


def test_without_noise_the_tables_are_the_counts():
    frame = records()
    result = released(epsilon=1e7, frame=frame)
    for group, release in result.groups.items():
        rows = frame.filter(pl.col("place") == group)
        assert release.n.value == len(rows)
        expected = marginals(rows, [("z",)], domain=DOMAIN)[0].counts
        np.testing.assert_array_equal(release.tables[1].counts, expected)
    unit = frame.filter(pl.col("place").is_in(PLACES.children("B")))
    np.testing.assert_array_equal(
        result.units["B"].tables[0].counts, marginals(unit, [("x", "y")], domain=DOMAIN)[0].counts
    )


def test_release_file_round_trip_and_damage(tmp_path):
    result = released(unit="id", max_rows_per_unit=2)
    path = result.write(tmp_path / "groups.json")
    assert GroupRelease.read(path).digest == result.digest
    path.write_text(path.read_text().replace('"max_rows_per_unit": 2', '"max_rows_per_unit": 3'))
    with pytest.raises(DamagedFileError, match="changed after"):
        GroupRelease.read(path)
    path.write_text("{}")
    with pytest.raises(DamagedFileError):
        GroupRelease.read(path)


@pytest.mark.parametrize("method", ["algorithm-1", "noise-aware"])
def test_synthetic_groups_have_the_released_sizes_and_follow_the_tables(public, method):
    frame = records(30_000, 7)
    result = synthesize_groups(public, released(epsilon=1e6, frame=frame), method=method, random_state=3)
    synthetic = result.frame()
    true_sizes = frame.group_by("place").len().sort("place")["len"].to_list()
    assert result.sizes.tolist() == true_sizes
    assert synthetic.columns == ["place", "x", "y", "z"]
    for group in PLACES.groups:
        share = (synthetic.filter(pl.col("place") == group)["z"] == "y").mean()
        true = (frame.filter(pl.col("place") == group)["z"] == "y").mean()
        # 6,000 draws: six standard errors are .039, a false alarm once in 10^8.
        assert share == pytest.approx(true, abs=0.039)
        assert result.groups[group].l1_loss < 0.05
        assert result.groups[group].gap <= 1e-2 if method == "noise-aware" else np.isnan(result.groups[group].gap)


def test_no_more_processes_start_than_the_machine_has_processors(monkeypatch):
    import joblib

    started = []

    class Sequential:
        def __init__(self, n_jobs):
            started.append(n_jobs)

        def __call__(self, tasks):
            return [function(*given, **named) for function, given, named in tasks]

    monkeypatch.setattr(joblib, "Parallel", Sequential)
    synthesize_groups(Prior.full(DOMAIN), released(), n_jobs=1000)
    assert started == [joblib.effective_n_jobs(-1)]


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_same_records_whatever_the_number_of_workers(public, backend):
    from joblib import parallel_config

    data = released(epsilon=2.0)
    alone = synthesize_groups(public, data, random_state=5).frame()
    with parallel_config(backend=backend):
        shared = synthesize_groups(public, data, n_jobs=2, random_state=5).frame()
    assert alone.equals(shared)


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_same_records_on_a_dask_cluster(public, processes):
    """Nothing in the code names Dask: a cluster is one `parallel_config` away."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    from joblib import parallel_config

    data, method = released(epsilon=2.0), "algorithm-1" if processes else "noise-aware"
    alone = synthesize_groups(public, data, method=method, random_state=5).frame()
    workers = {"n_workers": 2 if processes else 1, "threads_per_worker": 1, "processes": processes}
    with (
        distributed.LocalCluster(**workers, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
        parallel_config(backend="dask"),
    ):
        spread = synthesize_groups(public, data, method=method, n_jobs=-1, random_state=5).frame()
    assert alone.equals(spread)


def test_a_group_whose_size_drowns_in_noise_has_no_records_and_no_loss(public):
    empty = records().filter(pl.col("place") != "a2")
    for seed in range(20):
        data = released(epsilon=4.0, frame=empty, rng=seed)
        if data.groups["a2"].n.value <= 0:
            break
    for method in ("algorithm-1", "noise-aware"):
        result = synthesize_groups(public, data, method=method).groups["a2"]
        assert result.size == 0
        assert result.records.sum() == 0
        assert np.isnan(result.l1_loss)


@pytest.mark.parametrize("iterations", [0, 3])
def test_both_levels_take_the_number_of_updates_that_was_asked_for(public, iterations):
    result = synthesize_groups(public, released(), method="algorithm-1", iterations=iterations)
    for unit in result.units.values():
        assert unit.iterations.step[-1] == iterations
        assert (unit.kl == 0.0) == (iterations == 0)
    assert all((group.kl == 0.0) == (iterations == 0) for group in result.groups.values())


def test_records_of_no_group_have_the_columns_and_types_of_records(public):
    data = released()
    law = next(iter(data.groups.values())).n
    empty = {group: replace(one, n=replace(law, value=-3.0)) for group, one in data.groups.items()}
    nothing = synthesize_groups(public, replace(data, groups=empty), random_state=1)
    some = synthesize_groups(public, data, random_state=1)
    assert nothing.sizes.tolist() == [0] * 5
    assert nothing.frame().is_empty()
    assert nothing.frame().schema == some.frame().schema
    assert pl.concat([nothing.frame(), some.frame()]).equals(some.frame())


def test_a_unit_or_an_attribute_unknown_to_the_prior_is_named(public):
    with pytest.raises(InputError, match=r"no prior for units \['B'\]"):
        synthesize_groups({"A": public}, released())
    narrow = Prior.full(DOMAIN.project(["x", "y"]))
    with pytest.raises(InputError, match="'z', which the prior lacks"):
        synthesize_groups(narrow, released())
    both = synthesize_groups({"A": public, "B": public}, released(), random_state=1).frame()
    assert both.equals(synthesize_groups(public, released(), random_state=1).frame())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"max_rows_per_unit": 0}, "max_rows_per_unit must be a whole number"),
        ({"max_rows_per_unit": 2}, "needs the column"),
        ({"hierarchy": {"a": "A"}}, "hierarchy must be a Hierarchy"),
        ({"noise": "gaussian"}, "noise must be 'two-sided-geometric' or 'laplace'"),
        ({"unit_sets": []}, "unit_sets"),
        ({"group_sets": [("nope",)]}, "'nope' is not in the domain"),
    ],
)
def test_bad_settings_stop_before_anything_is_drawn(settings, message):
    with pytest.raises(InputError, match=message):
        released(**settings)


def test_rows_of_a_unit_beyond_the_bound_are_not_counted():
    crowded = records(40).with_columns(id=pl.int_range(40) // 10)
    result = released(epsilon=1e7, frame=crowded, unit="id", max_rows_per_unit=2)
    assert sum(one.n.value for one in result.groups.values()) == 4 * 2


def test_records_of_unknown_groups_are_refused_without_showing_them():
    stray = records().with_columns(place=pl.lit("secret-place"))
    with pytest.raises(InputError, match="outside the domain") as caught:
        released(frame=stray)
    assert "secret-place" not in str(caught.value)


def test_a_hierarchy_of_one_group_works(public):
    one = Hierarchy("place", {"a1": "A"})
    rows = records().filter(pl.col("place") == "a1")
    data = release_groups(
        rows, one, DOMAIN, unit_sets=UNIT_SETS, group_sets=GROUP_SETS, epsilon=1e7, rng=np.random.default_rng(1)
    )
    assert data.groups["a1"].n.value == len(rows)
    assert synthesize_groups(public, data).sizes.tolist() == [len(rows)]


def test_groups_of_two_kinds_are_refused():
    for parent in ({"a": "A", 1: "A"}, {True: "A", 2: "A"}):
        with pytest.raises(InputError, match="groups"):
            Hierarchy("place", parent)


def test_noise_that_cannot_be_drawn_is_refused_before_the_ledger_is_charged(tmp_path):
    create_ledger(tmp_path / "ledger.db", epsilon=5.0, delta=0.0, adjacency="add-remove")
    ledger = open_ledger(tmp_path / "ledger.db")
    with pytest.raises(InputError, match=r"exceeds 2\*\*52"):
        released(epsilon=1e-16, rng=None, ledger=ledger)
    assert ledger.remaining().epsilon == 5.0
