import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain
from dpbayes.data.datasets import two_level_population
from dpbayes.errors import DamagedFileError, InputError, MissingColumnError, SpecError
from dpbayes.ide import GroupRelease, Prior, estimate, k_marginal_score
from dpbayes.ide.study import public_prior
from dpbayes.privacy import read_release
from dpbayes.privacy.ledger import create_ledger, open_ledger
from dpbayes.report import compare_runs
from dpbayes.report.document import Callout
from dpbayes.runs import execute, load_spec, rebuild_report
from dpbayes.runs.calibration import calibration_of

MODELS = Path(__file__).resolve().parents[2] / "models"

SMALL = """
system = "ide"
title = "small"
[data]
public = "public.csv"
private = "private.csv"
by = "place"
tables = "by-feature"
truth_public = true
[data.recode.age]
width = 10
top = 3
[data.levels]
place = ["a", "b"]
age = ["0", "1", "2", "3"]
own = ["n", "y"]
[privacy]
epsilon = 2.0
simulation_seed = 3
[estimation]
pool = true
"""
# As for confidential records: nothing says that they are public, and OpenDP draws.
CONFIDENTIAL = SMALL.replace("truth_public = true\n", "").replace("simulation_seed = 3\n", "")


@pytest.fixture
def small(tmp_path):
    rng = np.random.default_rng(1)
    for name, shift in (("public", 0), ("private", 4)):
        place, own = rng.choice(["a", "b"], 400), rng.choice(["n", "y"], 400, p=[0.4, 0.6])
        pl.DataFrame({"place": place, "age": rng.integers(shift, 60, 400), "own": own}).write_csv(
            tmp_path / f"{name}.csv"
        )
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def run(path, out, *overrides):
    return execute(load_spec(path, overrides), out=out, progressbar=False, echo=lambda line: None)


def test_groups_run_leaves_a_whole_folder_and_beats_the_prior(tmp_path):
    result = run(MODELS / "ide_groups.toml", tmp_path / "run", "privacy.simulation_seed=5", "data.size=600")
    assert result.passed, result.summary
    folder = result.folder
    names = {path.name for path in folder.iterdir()}
    assert names == {"spec.toml", "release.json", "result.json", "synthetic", "facts.json", "report.html"}
    released = GroupRelease.read(folder / "release.json")
    assert released.epsilon == pytest.approx(4.0)
    facts = json.loads((folder / "facts.json").read_text())
    synthetic = pl.read_parquet(folder / "synthetic" / "synthetic-1.parquet")
    assert len(synthetic) == facts["headline"]["n"] == sum(row["size"] for row in facts["tables"]["groups"])
    assert facts["privacy"] == {"adjacency": "add-remove", "unit": "row", "delta": 0.0}
    assert facts["about"]["headline"]["epsilon"] == "epsilon in total, add-remove, protects one row"
    score = facts["scores"]["score"]
    assert score["synthetic"] > score["prior"] + 20
    page = (folder / "report.html").read_text()
    for title in ("What was released", "Which marginals were asked for", "Error by group"):
        assert title in page, title
    assert "http://" not in page


def test_tables_run_reports_without_the_truth_unless_it_is_public(small, tmp_path):
    small.write_text(CONFIDENTIAL)
    lines = []
    folder = execute(load_spec(small), out=tmp_path / "run", progressbar=False, echo=lines.append).folder
    assert any(line.startswith("release: ") and line.endswith(", replace-one, protects one row") for line in lines)
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["scores"] is None
    assert facts["privacy"] == {"adjacency": "replace-one", "unit": "row", "delta": 0.0}
    assert "Error by group" not in (folder / "report.html").read_text()
    assert len(pl.read_parquet(folder / "synthetic" / "synthetic-1.parquet")) == 400
    assert [row["group"] for row in facts["tables"]["borrowed"]] == ["a", "b"]
    release = read_release(folder / "release.json")
    assert [table.attributes for table in release.tables] == [("place", "age"), ("place", "own")]
    estimated = facts["tables"]["estimated"]
    assert len(estimated) == 8 + 4
    for name in ("prior", "estimate"):
        assert sum(row[name] for row in estimated if row["table"] == "place x own") == pytest.approx(1.0)
    counts = {
        label: count
        for table in release.tables
        for label, count in zip(table.domain.cell_labels(), table.counts.ravel(), strict=True)
    }
    assert {row["cell"]: row["released"] for row in estimated} == {k: pytest.approx(v / 400) for k, v in counts.items()}
    assert facts["answer"].startswith(
        f"The release moves {estimated[0]['cell']} (table {estimated[0]['table']}) most: "
    )
    shown = run(small, tmp_path / "shown", "data.truth_public=true").folder
    assert json.loads((shown / "facts.json").read_text())["scores"]["score"]["prior"] > 800


def test_a_groups_run_beside_a_tables_run_is_warned_of(small, tmp_path):
    tables = run(small, tmp_path / "tables").folder
    text = SMALL.replace('tables = "by-feature"\n', "").replace("pool = true", "")
    small.write_text(text + '[groups]\nattribute = "place"\n[groups.parent]\na = "north"\nb = "north"\n')
    groups = run(small, tmp_path / "groups").folder
    blocks = [block for section in compare_runs([tables, groups]).sections for block in section.blocks]
    warnings = {block.title: list(block.lines) for block in blocks if isinstance(block, Callout)}
    assert warnings["Different adjacency"][1:] == ["adjacency replace-one: tables", "adjacency add-remove: groups"]


def test_same_spec_and_seed_give_the_same_estimate_and_the_report_can_be_built_again(small, tmp_path):
    one, two = (run(small, tmp_path / name).folder for name in ("one", "two"))
    first, second = (json.loads((f / "result.json").read_text())["result"] for f in (one, two))
    assert first == second
    before = (one / "facts.json").read_text()
    rebuild_report(one)
    assert (one / "facts.json").read_text() == before
    (two / "result.json").write_text((two / "result.json").read_text()[:-20])
    with pytest.raises(DamagedFileError, match=r"result\.json is not readable JSON .* run the spec again"):
        rebuild_report(two)


def test_algorithm_1_can_be_the_estimate(small, tmp_path):
    folder = run(small, tmp_path / "run", "estimation.method=algorithm-1", "estimation.iterations=50").folder
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["verdict"]["title"] == "Algorithm 1"
    assert facts["provenance"]["method"] == "algorithm-1"


ALL_OFF = [
    "data.size=100",
    "privacy.epsilon=0.02",
    "groups.max_error=100000.0",
    "privacy.simulation_seed=3",
]


@pytest.mark.slow
def test_distances_of_groups_hold_no_penalty_and_sizes_that_are_off_are_counted_and_marked(tmp_path):
    """Noise of scale 200 on sizes near 100: one group gains 603 records, two are left without any."""
    folder = run(MODELS / "ide_groups.toml", tmp_path / "run", *ALL_OFF).folder
    facts = json.loads((folder / "facts.json").read_text())
    rows = {row["group"]: row for row in facts["tables"]["error_by_group"]}
    population = two_level_population(group_size=100, seed=1)
    released = GroupRelease.read(folder / "release.json")
    domain = Domain((released.hierarchy.as_attribute, *population.domain.attributes))
    truth = Prior.from_frame(population.private, domain)
    synthetic = pl.read_parquet(folder / "synthetic" / "synthetic-1.parquet")
    plain = k_marginal_score(Prior.from_frame(synthetic, domain), truth, by="group")
    assert [row["synthetic"] for row in rows.values()] == pytest.approx(plain.errors.tolist())
    true_sizes = dict(population.private.group_by("group").len().rows())
    sizes = dict.fromkeys(rows, 0) | dict(synthetic.group_by("group").len().rows())
    assert {group: row["size_missed"] for group, row in rows.items()} == {g: sizes[g] - true_sizes[g] for g in rows}
    marks = {group: row["mark"] for group, row in rows.items() if row["mark"]}
    off = {group: "size off by more than 250" for group in rows if abs(sizes[group] - true_sizes[group]) > 250}
    assert marks == off | {group: "no synthetic records" for group in rows if not sizes[group]}
    assert len(off) == 1 and all(rows[group]["synthetic"] < 1 for group in off)
    # One rule for both: the penalty takes what the marked groups lack of 2, on average over groups, times 500.
    for row in facts["tables"]["scores"][:2]:
        lost = sum(2 - rows[group][row["distribution"]] for group in off) * 500 / len(rows)
        assert row["score"] - row["penalized"] == pytest.approx(lost)
    assert facts["scores"]["score"]["synthetic"] == pytest.approx(plain.value)
    page = " ".join((folder / "report.html").read_text().split())
    assert "misses the true one by more than 250: 1 of 12." in page and "misses the true one" in facts["answer"]
    assert "Groups without synthetic records, where the distance is 2 for want of any: 2 of 12." in page


def test_groups_that_are_all_released_as_empty_leave_a_whole_folder(small, tmp_path):
    text = SMALL.replace('tables = "by-feature"\n', "").replace("pool = true", "")
    text = text.replace("epsilon = 2.0", "epsilon = 0.001").replace("simulation_seed = 3", "simulation_seed = 4")
    groups = '[groups]\nattribute = "place"\nmax_error = 1e9\n[groups.parent]\na = "north"\nb = "north"\n'
    small.write_text(text + groups)
    folder = run(small, tmp_path / "run").folder
    released = GroupRelease.read(folder / "release.json")
    assert all(release.n.value < 0 for release in released.groups.values())
    synthetic = pl.read_parquet(folder / "synthetic" / "synthetic-1.parquet")
    assert (len(synthetic), synthetic.columns) == (0, ["place", "age", "own"])
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["headline"]["n"] == 0
    assert [row["mark"] for row in facts["tables"]["error_by_group"]] == ["no synthetic records"] * 2
    score = facts["scores"]["score"]
    assert score["synthetic"] == 0.0 < score["prior"]


@pytest.fixture
def thin(small, tmp_path):
    """The small spec with a third attribute, and only twelve public records: pooling then adds rows."""
    small.write_text(SMALL.replace('own = ["n", "y"]', 'own = ["n", "y"]\nhue = ["r", "g", "b"]'))
    rng = np.random.default_rng(3)
    for name, rows in (("public", 12), ("private", 400)):
        frame = pl.read_csv(tmp_path / f"{name}.csv").head(rows)
        frame.with_columns(hue=pl.Series(rng.choice(["r", "g", "b"], rows))).write_csv(tmp_path / f"{name}.csv")
    return small


def test_algorithm_1_starts_from_the_public_prior_as_given(thin, tmp_path):
    loaded = load_spec(thin, ["estimation.method=algorithm-1"])
    folder = run(thin, tmp_path / "run", "estimation.method=algorithm-1").folder
    result = json.loads((folder / "result.json").read_text())["result"]
    prior, release = public_prior(loaded.spec, tmp_path), read_release(folder / "release.json")
    records = pl.read_csv(tmp_path / "public.csv", infer_schema_length=0)
    records = records.with_columns(age=(pl.col("age").cast(pl.Int64) // 10).clip(upper_bound=3).cast(pl.String))
    plain = estimate(prior, release, noise_aware=False, random_state=loaded.spec.estimation.seed)
    assert result["prior"] == {"rows": prior.size, "records": 12} and result["borrowed"] is None
    assert result["kl"] == pytest.approx(plain.kl)
    assert result["trace"]["l1_loss"][-1] == pytest.approx(plain.iterations.l1_loss[-1])
    page = " ".join((folder / "report.html").read_text().split())
    assert f"The prior lies on {prior.size} weighted rows, worth 12 records" in page
    assert "Algorithm 1 by iteration" in page
    chance = {table["table"]: table["moved"] for table in result["moved"]}
    after, before = (prior.marginal(["place", "age"], weights) for weights in (plain.weights, None))
    assert chance["place x age"] == pytest.approx(np.abs(after - before).sum())
    synthetic = pl.read_parquet(folder / "synthetic" / "synthetic-1.parquet").cast(pl.String)
    assert synthetic.join(records, on=list(prior.domain.names), how="anti").is_empty()


def test_noise_aware_starts_from_the_pooled_prior_and_is_scored_beside_algorithm_1(thin, tmp_path):
    folder = run(thin, tmp_path / "run").folder
    result = json.loads((folder / "result.json").read_text())["result"]
    assert result["prior"]["rows"] > result["public"]["rows"] and result["trace"] is None
    assert list(result["scores"]["score"])[:4] == ["prior", "pooled prior", "noise-aware", "algorithm-1"]


def test_a_public_file_that_does_not_fit_costs_no_release(small, tmp_path):
    create_ledger(tmp_path / "ledger.db", epsilon=3.0, delta=0.0, adjacency="replace-one")
    small.write_text(CONFIDENTIAL.replace("epsilon = 2.0", 'epsilon = 2.0\nledger = "ledger.db"'))
    public = pl.read_csv(tmp_path / "public.csv")
    public.with_columns(own=pl.lit("q")).write_csv(tmp_path / "public.csv")
    with pytest.raises(InputError, match="public column 'own' holds 'q'"):
        run(small, tmp_path / "out")
    assert open_ledger(tmp_path / "ledger.db").remaining().epsilon == 3.0


def test_a_ledger_is_charged_for_a_real_release(small, tmp_path):
    create_ledger(tmp_path / "ledger.db", epsilon=3.0, delta=0.0, adjacency="replace-one")
    small.write_text(CONFIDENTIAL.replace("epsilon = 2.0", 'epsilon = 2.0\nledger = "ledger.db"'))
    run(small, tmp_path / "run")
    assert open_ledger(tmp_path / "ledger.db").remaining().epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epsilon = 2.0", "epsilon = 0.0"), "greater than 0"),
        (('by = "place"\n', ""), "data.by"),
        (('tables = "by-feature"\n', ""), "name the tables"),
        (('public = "public.csv"\n', ""), "public and private files"),
        (("[estimation]", "[groups]\n[estimation]"), "groups.parent"),
        (("pool = true", "pooled = true"), "did you mean 'pool'"),
        (
            ('"by-feature"', '[["place", "agee"]]'),
            r"line 4: data: attribute 'agee' is not in the domain; it has 'place', 'age', 'own'",
        ),
        (('"by-feature"', '[["own", "own"]]'), "attribute 'own' stands twice in the domain"),
        (('"by-feature"', '[["own"], []]'), "one attribute or more each"),
        (('"by-feature"', "[]"), "one attribute or more each"),
        (('"by-feature"', f"[{'["own"],' * 10_001}]"), "at most 10000 items"),
        (('["n", "y"]', '["n", "n"]'), "repeats level 'n'"),
    ],
)
def test_mistakes_in_a_spec_say_what_to_change(small, change, message):
    small.write_text(SMALL.replace(*change))
    with pytest.raises(SpecError, match=message):
        load_spec(small)


def test_absent_files_and_columns_are_named(small, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):
        run(small, tmp_path / "one", "data.private=no.csv")
    (tmp_path / "private.csv").write_text("place,own\na,n\n")
    with pytest.raises(MissingColumnError, match="age"):
        run(small, tmp_path / "two")


def test_groups_of_files_take_their_parents_from_the_spec(small, tmp_path):
    text = CONFIDENTIAL.replace('tables = "by-feature"\n', "").replace("pool = true", "")
    text = text.replace("epsilon = 2.0", "epsilon = 40.0")
    small.write_text(text + '[groups]\nattribute = "place"\n[groups.parent]\na = "north"\nb = "north"\n')
    folder = run(small, tmp_path / "run").folder
    assert set(GroupRelease.read(folder / "release.json").groups) == {"a", "b"}
    assert json.loads((folder / "facts.json").read_text())["scores"] is None


def test_an_analyst_runs_on_a_finished_release(small, tmp_path):
    first = run(small, tmp_path / "first", "privacy.simulation_seed=3").folder
    text = SMALL[: SMALL.index("[privacy]")].replace('private = "private.csv"\n', 'release = "first/release.json"\n')
    small.write_text(text.replace('by = "place"\ntables = "by-feature"\ntruth_public = true\n', ""))
    (tmp_path / "private.csv").unlink()
    folder = run(small, tmp_path / "run").folder
    facts = [json.loads((place / "facts.json").read_text()) for place in (first, folder)]
    assert facts[1]["provenance"]["release digest"] == facts[0]["provenance"]["release digest"]
    assert facts[1]["scores"] is None
    assert facts[1]["tables"]["estimated"] == facts[0]["tables"]["estimated"]
    small.write_text(small.read_text() + "[groups]\n")
    with pytest.raises(SpecError, match="is a release of tables; leave"):
        run(small, tmp_path / "groups")


def test_intervals_hold_the_estimate_and_most_true_shares(small, tmp_path):
    folder = run(small, tmp_path / "run").folder
    truth = pl.read_csv(tmp_path / "private.csv").group_by("place", "own").len()
    shares = {f"place: {place}, own: {own}": n / 400 for place, own, n in truth.iter_rows()}
    rows = json.loads((folder / "facts.json").read_text())["tables"]["estimated"]
    assert all(row["low"] - 0.5 / 400 <= row["estimate"] <= row["high"] + 0.5 / 400 for row in rows)
    found = [row["low"] <= shares[row["cell"]] <= row["high"] for row in rows if row["cell"] in shares]
    assert len(found) == 4 and sum(found) >= 3


def test_a_study_of_calibration_reads_no_confidential_record(small, tmp_path):
    (tmp_path / "private.csv").unlink()
    loaded = load_spec(small)
    with pytest.raises(SpecError, match="say how many to simulate"):
        calibration_of(loaded)
    found = calibration_of(loaded, n_records=300)
    assert found.design.startswith("300 records of 3 attributes, 2 tables, replace-one, two-sided geometric noise")
    assert [variable.name for variable in found.build_model().free_RVs] == ["share"]


def test_the_page_says_what_is_protected(small, tmp_path):
    records = pl.read_csv(tmp_path / "private.csv").with_columns(person=pl.int_range(pl.len()) // 2)
    records.write_csv(tmp_path / "private.csv")
    text = SMALL.replace('tables = "by-feature"\n', "").replace("pool = true", "")
    groups = '[groups]\nattribute = "place"\nmax_error = 9.0\n[groups.parent]\na = "north"\nb = "north"\n'
    small.write_text(text + groups)
    page = " ".join((run(small, tmp_path / "rows").folder / "report.html").read_text().split())
    assert "protects one row: neighbouring" in page and "individual" not in page
    folder = run(small, tmp_path / "units", "data.unit=person", "data.max_rows_per_unit=2").folder
    page = " ".join((folder / "report.html").read_text().split())
    assert "protects one unit of column &#39;person&#39; (at most 2 of its rows counted)" in page


def test_massachusetts_spec_reaches_its_score(shared_data, tmp_path):
    path = MODELS / "ide_massachusetts.toml"
    files = [
        f"data.{kind}={shared_data / name}" for kind, name in (("public", "ma2018.csv"), ("private", "ma2019.csv"))
    ]
    result = run(path, tmp_path / "run", *files, "privacy.simulation_seed=1")
    score = json.loads((result.folder / "facts.json").read_text())["scores"]["score"]
    assert result.passed
    assert score["prior"] == pytest.approx(936.66, abs=0.01)
    assert score["noise-aware"] > 944 > 936.7 > score["algorithm-1"]
