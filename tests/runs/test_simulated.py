"""Simulated noise in every system: refused beside confidential files, and said on the terminal where it was drawn."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dpbayes.cli import app
from dpbayes.data import datasets
from dpbayes.errors import SpecError
from dpbayes.latent_class import study
from dpbayes.privacy import release_tables
from dpbayes.runs import execute, load_spec
from dpbayes.runs.execution import _release, _run
from dpbayes.runs.protocol import Context
from dpbayes.runs.registry import SYSTEMS

MODELS = Path(__file__).resolve().parents[2] / "models"

# Specs of records in a file that does not exist: what is refused is refused before anything is read.
FILES = {
    "latent-class": """
[data]
microdata = "absent.csv"
[data.levels]
a = [0, 1]
b = [0, 1]
[privacy]
epsilon = 1.0
""",
    "verifier": """
[data]
microdata = "absent.csv"
[privacy]
epsilon = 1.0
[[questions]]
name = "q"
formula = "y ~ x"
coefficient = "x"
threshold = 0.0
""",
    "ide": """
[data]
public = "here.csv"
private = "absent.csv"
by = "place"
tables = "by-feature"
[data.levels]
place = ["a", "b"]
own = ["n", "y"]
[privacy]
epsilon = 1.0
""",
    "mvg": """
[data]
file = "absent.csv"
[privacy]
epsilon = 1.0
delta = 1e-5
[regression]
predictors = ["age"]
response = "bmi"
""",
}
KEYS = {"latent-class": "microdata", "verifier": "microdata", "ide": "private", "mvg": "file"}
SEED, PUBLIC = "privacy.simulation_seed=3", "data.truth_public=true"


@pytest.fixture(params=FILES)
def spec(request, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(f'system = "{request.param}"\ntitle = "t"\n{FILES[request.param]}')
    return request.param, path


def test_every_system_is_tested_here():
    # A Bloom run simulates its audience and reads no records.
    assert {*FILES, "bloom"} == set(SYSTEMS)


def test_a_seed_is_refused_beside_a_file_that_is_not_declared_public(spec):
    system, path = spec
    with pytest.raises(SpecError) as caught:
        load_spec(path, [SEED])
    message = str(caught.value)
    assert f"privacy.simulation_seed = 3 with data.{KEYS[system]} would give the exact counts back" in message
    assert "leave the seed out" in message and "set data.truth_public = true" in message


def test_without_a_seed_or_with_public_records_the_same_spec_is_accepted(spec):
    _, path = spec
    assert load_spec(path).spec.privacy.simulation_seed is None
    assert not load_spec(path).spec.data.truth_public
    assert load_spec(path, [SEED, PUBLIC]).spec.privacy.simulation_seed == 3


def test_a_seed_is_refused_beside_a_book(spec):
    _, path = spec
    with pytest.raises(
        SpecError, match=r"privacy\.ledger = 'book\.db' records real releases, and a seed simulates one"
    ):
        load_spec(path, [SEED, PUBLIC, "privacy.ledger=book.db"])


def test_check_refuses_the_seed_on_the_command_line(spec):
    _, path = spec
    (path.parent / "absent.csv").touch()
    (path.parent / "here.csv").write_text("place,own\na,n\nb,y\n")  # check reads public records
    assert CliRunner().invoke(app, ["check", str(path)]).exit_code == 0
    refused = CliRunner().invoke(app, ["check", str(path), "--set", SEED])
    assert refused.exit_code != 0
    assert "set data.truth_public = true" in f"{refused.output}{refused.exception}"


def test_a_seed_of_zero_is_a_seed(spec):
    _, path = spec
    with pytest.raises(SpecError, match="simulation_seed = 0"):
        load_spec(path, ["privacy.simulation_seed=0"])


@pytest.mark.parametrize(
    "name", ["acs_latent_class", "bloom_audience", "ide_groups", "mvg_regression", "verifier_threshold"]
)
def test_embedded_and_generated_records_are_public(name):
    assert load_spec(MODELS / f"{name}.toml", [SEED]).spec.privacy.simulation_seed == 3


def test_groups_of_a_file_follow_the_rule_too(tmp_path):
    text = FILES["ide"].replace('tables = "by-feature"\n', "") + '[groups]\nattribute = "place"\n'
    path = tmp_path / "study.toml"
    path.write_text(f'system = "ide"\ntitle = "t"\n{text}[groups.parent]\na = "u"\nb = "u"\n')
    assert load_spec(path).spec.groups.attribute == "place"
    with pytest.raises(SpecError, match="would give the exact counts back"):
        load_spec(path, [SEED])


# Each system's stages up to its release line: what makes the run small, and the relation between neighbours.
LINES = {
    "acs_latent_class": ([], "replace-one"),
    "bloom_audience": (["audience.n_people=500", "audience.shares=[0.4]", "filters.n_bits=1000"], "one-position"),
    "ide_groups": (["data.size=50", "privacy.epsilon=40.0"], "add-remove"),
    "mvg_regression": (["data.n=500"], "replace-one"),
    "verifier_threshold": (["data.n_persons=300", "privacy.n_partitions=10", "model.draws=10"], "replace-one"),
}


class _AtModelError(Exception):
    """Stops a run once it has released."""


def _stop(*args, **settings):
    raise _AtModelError


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", LINES)
def test_the_terminal_states_adjacency_and_says_simulation_exactly_where_a_seed_drew(name, seed, tmp_path, monkeypatch):
    monkeypatch.setattr("dpbayes.runs.execution._fit", _stop)
    small, adjacency = LINES[name]
    overrides = small + ([] if seed is None else [f"privacy.simulation_seed={seed}"])
    loaded, lines = load_spec(MODELS / f"{name}.toml", overrides), []
    with suppress(_AtModelError):
        execute(loaded, out=tmp_path / "run", progressbar=False, echo=lines.append)
    (line,) = [line for line in lines if line.startswith("release: ") and "already" not in line]
    said = "SIMULATION: a seeded generator drew the noise, no privacy guarantee"
    stated = line.removesuffix(f"; {said}")
    cost, _, protected = stated.partition(", protects one ")
    assert cost.endswith(adjacency) and protected
    assert ("SIMULATION" in line) == line.endswith(said) == (seed is not None)


def test_a_finished_release_is_announced_by_what_drew_it(tmp_path, monkeypatch):
    release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    release.write(tmp_path / "given.json")
    (tmp_path / "study.toml").write_text('system = "latent-class"\ntitle = "t"\n[data]\nrelease = "given.json"\n')
    loaded, lines = load_spec(tmp_path / "study.toml"), []
    monkeypatch.setattr("dpbayes.inference.sample", _stop, raising=False)
    context = Context(tmp_path, tmp_path, lines.append)
    with pytest.raises(_AtModelError):
        _run(loaded, context)
    assert [("SIMULATION" in line) for line in lines if line.startswith("release: 40")] == [True]
    replace(release, sampler="opendp").write(tmp_path / "given.json")  # another one in its place is copied again
    with pytest.raises(_AtModelError):
        _run(loaded, context)
    assert [("SIMULATION" in line) for line in lines if line.startswith("release: 40")] == [True, False]


def test_a_real_release_of_a_file_cannot_be_drawn_again_from_its_folder(tmp_path, monkeypatch):
    """The spec that a confidential run leaves holds no seed, and two runs of it draw different noise."""
    pl.DataFrame({"a": [0, 1] * 50, "b": [0, 0, 1, 1] * 25}).write_csv(tmp_path / "absent.csv")
    path = tmp_path / "study.toml"
    path.write_text(f'system = "latent-class"\ntitle = "t"\n{FILES["latent-class"]}'.replace("1.0", "0.01"))
    assert "simulation_seed" not in load_spec(path).resolved
    drawn, built = [], []
    monkeypatch.setattr(study, "try_fit", lambda spec, design, context: built.append(design))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        context = Context(tmp_path / name, tmp_path, lambda line: None)
        drawn.append(_release(load_spec(path), context).tables[0].counts)
    assert len(built) == 2  # on placeholder counts, before the real ones
    # Two draws of four counts at scale 200 agree less than once in 10^10.
    assert not np.array_equal(*drawn)
