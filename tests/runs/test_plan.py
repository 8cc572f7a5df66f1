"""`dpbayes check` says what a run would do, and refuses what the run would refuse; the ledger's head is watched."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from typer.testing import CliRunner

from dpbayes.cli.main import app
from dpbayes.errors import BudgetExceededError, DamagedFileError, DPBayesError, InputError, SpecError
from dpbayes.latent_class import study
from dpbayes.privacy import Laplace
from dpbayes.privacy.ledger import create_ledger, open_ledger
from dpbayes.runs import execute, load_spec, progress
from dpbayes.runs.execution import plan_lines
from dpbayes.runs.progress import Progress
from dpbayes.runs.protocol import Context

SPEC = """system = "latent-class"
title = "t"
[data]
microdata = "records.csv"
levels = { age = [0, 1, 2], sex = ["f", "m"] }
[privacy]
epsilon = 1.0
ledger = "budget.db"
[model]
n_classes = 2
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(SPEC)
    pl.DataFrame({"age": [0, 1, 2] * 40, "sex": ["f", "m"] * 60}).write_csv(tmp_path / "records.csv")
    create_ledger(tmp_path / "budget.db", epsilon=3.0, delta=0.0, adjacency="replace-one")
    return path


def test_the_plan_says_tables_noise_budget_and_size(spec):
    release, table, ledger, model, fit = plan_lines(load_spec(spec))
    assert release == "release: 6 counts in 1 tables at epsilon 1 in total, replace-one, protects one row"
    # Scale 2 / epsilon: the variance of two-sided geometric noise of scale s is 1 / (cosh(1 / s) - 1), 2.8 squared.
    assert table == "  age x sex: 6 cells, noise of standard deviation 2.8 in each"
    assert ledger == "ledger: budget.db has epsilon 3 and delta 0 left"
    assert model == "model: 17 unknowns"
    assert re.fullmatch(r"fit: about (a minute|[0-9]+ minutes) and [0-9.]+ GB of memory", fit)


def test_the_plan_says_whose_time_it_is(spec):
    spec.write_text(SPEC + '[sampling]\nbackend = "interpreted"\n')
    assert plan_lines(load_spec(spec))[-1].endswith("GB of memory with backend = 'numba' (yours is 'interpreted')")


def test_data_sets_need_as_many_draws_as_this_release_keeps(spec, monkeypatch):
    spec.write_text(SPEC + "[synthesis]\nn_datasets = 4_500\n")
    loaded = load_spec(spec)  # 576 chains of 12 draws
    context = Context(spec.parent, spec.parent)
    design = study.design(loaded.spec, spec.parent)
    for name, value in {"SEVERAL": 0, "LARGE": 0, "_ratio": lambda release: 0.3}.items():  # 512 chains of 8 draws
        monkeypatch.setattr(f"dpbayes.latent_class.design.{name}", value)
    monkeypatch.setattr("dpbayes.inference.sample", lambda *_, **__: pytest.fail("it was sampled"))
    remedy = (
        r"4500 synthetic data sets need as many draws, and .* keeps 4096 of all chains; lower synthesis\.n_datasets"
    )
    with pytest.raises(SpecError, match=remedy):
        study.fit(loaded.spec, design, context)


def test_the_plan_of_public_records_sets_noise_beside_typical_counts():
    lines = plan_lines(load_spec("models/persons_latent_class.toml"))
    assert (
        lines[1]
        == "  age x marital: 9 cells, noise of standard deviation 17 in each, beside 556 records per cell on average"
    )
    assert len([line for line in lines if line.startswith("  ")]) == 6


@pytest.mark.parametrize("gone", ["records.csv", "budget.db"])
def test_a_file_that_is_not_there_is_refused(spec, gone):
    (spec.parent / gone).unlink()
    result = CliRunner().invoke(app, ["check", str(spec)])
    assert isinstance(result.exception, OSError | ValueError | RuntimeError) and gone in str(result.exception)


def test_where_a_file_can_be_had_is_said_where_it_is_not_there(spec):
    (spec.parent / "records.csv").unlink()
    with pytest.raises(FileNotFoundError, match="resolved beside the spec; ask the office of records"):
        execute(load_spec(spec, ["data.source=ask the office of records"]), out=spec.parent / "run")
    assert not list(spec.parent.glob("run*"))


def test_what_check_prints_is_a_spec(spec, tmp_path):
    result = CliRunner().invoke(app, ["check", str(spec)])
    assert result.exit_code == 0, result.output
    (tmp_path / "again.toml").write_text(result.output)
    assert load_spec(tmp_path / "again.toml").resolved == load_spec(spec).resolved


class _StoppedError(Exception):
    pass


def test_an_older_copy_of_the_ledger_is_refused_by_the_next_run(spec, tmp_path, monkeypatch):
    def stop(*arguments, **settings):
        raise _StoppedError

    monkeypatch.setattr("dpbayes.inference.sample", stop, raising=False)
    shutil.copy(tmp_path / "budget.db", tmp_path / "before.db")
    with pytest.raises(_StoppedError):
        execute(load_spec(spec), out=tmp_path / "one", progressbar=False, echo=lambda line: None)
    assert len((tmp_path / "budget.db.head").read_text().strip()) == 64
    shutil.copy(tmp_path / "before.db", tmp_path / "budget.db")
    with pytest.raises(DamagedFileError, match="older copy"):
        execute(load_spec(spec), out=tmp_path / "two", progressbar=False, echo=lambda line: None)
    assert not list(tmp_path.glob("two*"))


def test_an_entry_that_the_ledger_must_hold_is_given_in_the_spec_or_on_the_command_line(spec, tmp_path):
    other = "0" * 64
    for options in ({"ledger_head": other}, {}):
        loaded = load_spec(spec, [] if options else [f"privacy.ledger_head={other}"])
        with pytest.raises(DamagedFileError, match="0000"):
            execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None, **options)


@pytest.mark.parametrize(("change", "head"), [('ledger = "budget.db"\n', "0" * 64), ("", "")])
def test_a_head_that_is_compared_with_no_ledger_is_refused(spec, tmp_path, change, head):
    spec.write_text(spec.read_text().replace(change, ""))
    said = "the spec names none" if change else "a digest is 64"
    with pytest.raises(InputError, match=said):
        execute(load_spec(spec), out=tmp_path / "run", echo=lambda line: None, ledger_head=head)
    with pytest.raises(InputError, match=said):
        plan_lines(load_spec(spec, [f'privacy.ledger_head="{head}"']))
    assert not list(tmp_path.glob("run*"))


@pytest.fixture
def now(monkeypatch):
    """Return a clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_progress_is_a_line_per_stage_and_tenth_and_a_sign_of_life_every_ten_seconds(now):
    lines = []
    said = Progress(lines.append)
    for seconds, share in ((0, 0.0), (1, 0.04), (2, 0.1), (3, 0.15), (10, 0.5), (20, 1.0)):
        now[0] = float(seconds)
        said("sampling", share)
    said("predicting", 0.0)
    assert lines == [
        "sampling ...",
        "sampling: 10 %, about 18 s left",
        "sampling: 50 %, about 10 s left",
        "sampling: 100 %",
        "predicting ...",
    ]
    for seconds in range(21, 41):
        now[0] = float(seconds)
        said.tick()
    assert lines[5:] == ["predicting: 9 s so far", "predicting: 18 s so far"]
    said.at("writing the page")
    now[0] = 60.0
    said.tick()
    assert lines[-1] == "writing the page: 20 s so far"


def test_a_stage_that_comes_again_is_said_again(now):
    lines = []
    said = Progress(lines.append)
    for stage in ("sampling", "sampling", "compiling", "sampling"):
        said(stage, 0.0 if stage == "compiling" else 1.0)
    once = ["sampling ...", "sampling: 100 %"]
    assert lines == [*once, "compiling ...", *once]


def test_on_a_terminal_one_line_is_rewritten(now, capsys, monkeypatch):
    lines = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    said = Progress(lines.append)
    said("sampling", 0.25)
    now[0] = 10.0
    said.tick()
    assert not lines
    assert capsys.readouterr().err == "\r\x1b[K█████░░░░░░░░░░░░░░░ sampling: 25 %, about 30 s left"


def _other_adjacency(folder):
    (folder / "budget.db").unlink()
    create_ledger(folder / "budget.db", epsilon=3.0, delta=0.0, adjacency="add-remove")


def _too_little_left(folder):
    (folder / "budget.db").unlink()
    create_ledger(folder / "budget.db", epsilon=0.5, delta=0.0, adjacency="replace-one")


def _rolled_back(folder):
    ledger = open_ledger(folder / "budget.db", head_file=folder / "budget.db.head")
    shutil.copy(folder / "budget.db", folder / "before.db")
    ledger.reserve(mechanism="m", law=Laplace(2.0), sensitivity=1, adjacency="replace-one", purpose="p")
    shutil.copy(folder / "before.db", folder / "budget.db")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_other_adjacency, "stated under replace-one and this ledger counts under add-remove"),
        (_too_little_left, "asks for epsilon 1 and delta 0; left .* epsilon 0.5 of 0.5"),
        (_rolled_back, "older copy"),
    ],
)
def test_a_ledger_that_would_refuse_the_release_is_refused_by_check_and_by_run(spec, spoil, message):
    spoil(spec.parent)
    loaded, before = load_spec(spec), (spec.parent / "budget.db").read_bytes()
    with pytest.raises(DPBayesError, match=message):
        plan_lines(loaded)
    with pytest.raises(DPBayesError, match=message):
        execute(loaded, out=spec.parent / "run", progressbar=False, echo=lambda line: None)
    assert (spec.parent / "budget.db").read_bytes() == before
    assert not list(spec.parent.glob("run*"))


def test_check_reserves_nothing(spec):
    before = open_ledger(spec.parent / "budget.db").head
    plan_lines(load_spec(spec))
    assert open_ledger(spec.parent / "budget.db").head == before


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [("verifier_threshold", "replace-one"), ("mvg_regression", "replace-one"), ("ide_groups", "add-remove")],
)
def test_every_system_tries_its_ledger(name, adjacency, tmp_path):
    create_ledger(tmp_path / "small.db", epsilon=1e-3, delta=1e-3, adjacency=adjacency)
    text = Path("models", f"{name}.toml").read_text()
    text = re.sub(r"simulation_seed = .*\n", "", text).replace("[privacy]\n", '[privacy]\nledger = "small.db"\n')
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(BudgetExceededError, match="nothing was recorded"):
        plan_lines(load_spec(tmp_path / "study.toml"))
