"""What a latent class spec may say: what is refused when it is read, what suits its form, and what costs nothing."""

import inspect
import tomllib

import numpy as np
import polars as pl
import pytest

from dpbayes.errors import ExistingRunError, InputError, SpecError
from dpbayes.latent_class import build_model, sampler_defaults
from dpbayes.latent_class.study import Sampling
from dpbayes.privacy import read_release
from dpbayes.privacy.ledger import create_ledger, open_ledger
from dpbayes.runs import execute, load_spec
from dpbayes.runs.calibration import calibration_of

SPEC = """\
system = "latent-class"
title = "Two tables that share an attribute"
[data]
microdata = "records.csv"
attribute_sets = [["age", "work"], ["work", "own"]]
[data.levels]
age = ["child", "adult"]
work = ["no", "yes"]
"own" = [0, 1]
[privacy]
epsilon = 1.0
ledger = "book.db"
[model]
n_classes = 2
impossible = [{ age = "child", work = "yes" }]
[synthesis]
n_datasets = 0
"""
BINARY = (
    SPEC.replace('impossible = [{ age = "child", work = "yes" }]\n', "")
    .replace('ledger = "book.db"', "simulation_seed = 1")
    .replace("[data.levels]", "truth_public = true\n[data.levels]")
)
MANY = (
    'system = "latent-class"\ntitle = "t"\n[data]\nmicrodata = "records.csv"\n[privacy]\nepsilon = 1.0\n[data.levels]\n'
) + "".join(f"x{i} = [0, 1]\n" for i in range(16))


@pytest.fixture
def study(tmp_path):
    """A spec beside 300 records and an empty budget book."""
    rng = np.random.default_rng(1)
    age = rng.choice(["child", "adult"], 300)
    work = np.where((age == "adult") & (rng.random(300) < 0.6), "yes", "no")
    pl.DataFrame({"age": age, "work": work, "own": rng.integers(0, 2, 300)}).write_csv(tmp_path / "records.csv")
    create_ledger(tmp_path / "book.db", epsilon=3.0, delta=0.0, adjacency="replace-one")
    return tmp_path / "study.toml"


class _SampledError(Exception):
    """Carries what a run was about to sample, and how."""


@pytest.fixture
def stopped(monkeypatch):
    """Run a spec as far as the sampler; return the model and the settings."""

    def take(model, **settings):
        raise _SampledError(model, settings)

    def run(loaded, out, **options):
        monkeypatch.setattr("dpbayes.inference.sample", take, raising=False)
        with pytest.raises(_SampledError) as stop:
            execute(loaded, out=out, progressbar=False, echo=lambda line: None, **options)
        return stop.value.args

    return run


def _spent(folder):
    return 3.0 - open_ledger(folder / "book.db").remaining().epsilon


MISTAKES = [
    (("own", "draw"), "attribute 'draw' has the name of a dimension of posterior draws"),
    (('age = "child", work', 'age = "chld", work'), r"impossible levels of 'age' must be among .*\['chld'\]"),
    (('age = "child", work', 'agee = "child", work'), "attribute 'agee' is not in the domain"),
    (('{ age = "child", work = "yes" }', "{}"), "names no attribute"),
    (('"work", "own"]]', '"work", "onw"]]'), "attribute 'onw' is not in the domain"),
    (('"work", "own"]]', '"work", "work"]]'), "attribute 'work' stands twice"),
    (('"work", "own"]]', '"work", "own"], []]'), "one attribute or more per table"),
    (("[0, 1]", "[0]"), "needs at least two levels"),
    (("[0, 1]", '[0, 1, "unknown"]'), "levels of 'own' mix text and integers"),
    (("n_classes = 2", "n_classes = 2\nmargins = [['age', 'income']]"), "attribute 'income' is not in the domain"),
    (("n_classes = 2", "n_classes = 2\nmargins = [['own'], ['own']]"), r"\['own'\] twice"),
    (
        ("n_classes = 2", "n_classes = 2\nconcentration = '4'"),
        "concentration must be a number from 1e-6 to 1e6.* got '4'$",
    ),
    (("n_classes = 2", "n_classes = 2\nconcentration = [1, 2, 3]"), r"concentration must be.* got \[1, 2, 3\]$"),
    (("n_classes = 2", "n_classes = 2\nconcentration = 0"), "concentration must be a number from 1e-6"),
    (("n_classes = 2", "n_classes = 2\nprofile_prior = 0.7"), r"profile_prior = 0.7 .* set profiles = .dirichlet"),
    (
        ("n_classes = 2", "n_classes = 2\nprofile_prior = -1"),
        r"line 15: model\.profile_prior: must be greater than or equal to 0\.01",
    ),
    (
        ("epsilon = 1.0", 'epsilon = 1.0\nadjacency = "add-remove"'),
        r"privacy: under add-remove .* give total_share = 0\.05",
    ),
    (
        ("epsilon = 1.0", "epsilon = 1.0\ntotal_share = 0.05"),
        r"privacy: total_share = 0\.05 .* public under replace-one",
    ),
    (("epsilon = 1.0", "epsilon = 1.0\ndelta = 1e-6"), r"privacy: delta = 1e-06 is what a ledger charges"),
    (
        ("n_datasets = 0", "n_datasets = 5761\n[sampling]\ndraws = 10"),
        r"need as many draws, and \[sampling\] keeps 5760",
    ),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_mistake_is_refused_when_the_spec_is_read_and_costs_nothing(study, tmp_path, change, message):
    assert change[0] in SPEC
    study.write_text(SPEC.replace(*change))
    with pytest.raises(SpecError, match=message):
        execute(load_spec(study), out=tmp_path / "run", echo=lambda line: None)
    assert _spent(tmp_path) == 0.0
    assert not list(tmp_path.glob("run*"))


def test_a_model_that_cannot_be_built_costs_no_release(study, tmp_path, monkeypatch):
    """What only building finds is found on an invented release."""
    tried = []

    def fails(release, **options):
        tried.append(release)
        raise InputError("no such model")

    monkeypatch.setattr("dpbayes.latent_class.model.build_model", fails)
    study.write_text(SPEC)
    with pytest.raises(InputError, match="no such model"):
        execute(load_spec(study), out=tmp_path / "run", echo=lambda line: None)
    assert _spent(tmp_path) == 0.0
    assert not list(tmp_path.glob("run*"))
    (invented,) = tried  # invented records: no confidential one is counted for it
    assert invented.sampler == "simulation" and invented.n == 1000
    assert [table.attributes for table in invented.tables] == [("age", "work"), ("work", "own")]


def test_a_users_model_that_cannot_be_built_costs_no_release_and_its_correction_goes_on(study, tmp_path, stopped):
    own = SPEC.replace('impossible = [{ age = "child", work = "yes" }]', 'file = "mine.py"')
    study.write_text(own)
    (tmp_path / "mine.py").write_text("def build_model(release, *, n_classes):\n    return n_clases\n")
    with pytest.raises(NameError):
        execute(load_spec(study), out=tmp_path / "run", allow_python=True, echo=lambda line: None)
    assert _spent(tmp_path) == 0.0
    assert not (tmp_path / "run.partial" / "release.json").exists()
    right = "from dpbayes.latent_class import build_model as ours\n\n\ndef build_model(release, *, n_classes):\n"
    (tmp_path / "mine.py").write_text(right + "    return ours(release, n_classes=n_classes, spread=2.0)\n")
    loaded = load_spec(study)
    assert loaded.spec.sampling.draws is None and loaded.spec.model.spread is None
    _, settings = stopped(loaded, tmp_path / "run", allow_python=True)
    assert _spent(tmp_path) == pytest.approx(1.0)
    assert read_release(tmp_path / "run.partial" / "release.json").sampler == "opendp"
    given = {
        name: value
        for name, value in settings.items()
        if name not in ("random_seed", "progressbar", "progress", "predictive")
    }
    assert given == sampler_defaults()


def test_a_corrected_file_name_runs_in_the_same_place(study, tmp_path, stopped):
    study.write_text(SPEC.replace("records.csv", "recods.csv"))
    with pytest.raises(FileNotFoundError, match=r"recods\.csv"):
        execute(load_spec(study), out=tmp_path / "run", echo=lambda line: None)
    assert _spent(tmp_path) == 0.0
    study.write_text(SPEC)
    stopped(load_spec(study), tmp_path / "run")
    assert _spent(tmp_path) == pytest.approx(1.0)
    assert (tmp_path / "run.partial" / "spec.toml").read_text() == load_spec(study).resolved
    # Now something was paid for: a spec of another release must not take the place.
    with pytest.raises(ExistingRunError, match=r"with release\.json, which may have cost"):
        execute(load_spec(study, ["privacy.epsilon=0.5"]), out=tmp_path / "run", echo=lambda line: None)
    stopped(load_spec(study), tmp_path / "run")
    # What follows from the release may change: the one that was paid for is used.
    model, _ = stopped(load_spec(study, ["model.n_classes=3"]), tmp_path / "run")
    assert model.coords["class"] == (0, 1, 2)
    assert _spent(tmp_path) == pytest.approx(1.0)


def test_specs_and_scripts_have_the_same_defaults():
    assert Sampling().settings() == sampler_defaults()
    assert Sampling(method="nuts", draws=700).settings() == sampler_defaults(method="nuts") | {"draws": 700}
    for given in ({"rounds": 2}, {"backend": "jax"}):
        with pytest.raises(ValueError, match=f"{next(iter(given))} is a setting of method = 'many-chains'"):
            Sampling(method="nuts", **given)
    assert Sampling(backend="jax").settings()["backend"] == "jax"
    assert [Sampling(draws=draws).settings()["trajectories"] for draws in (10, 30, 1000)] == [12, 30, 48]


def test_tables_beyond_what_a_page_holds_cost_no_release(study, tmp_path):
    """One table of 150 x 150 levels: draws of at most 20,000 counts are kept, and the page is made of them."""
    levels = f"{list(range(150))}"
    pl.DataFrame({"a": [0], "b": [0]}).write_csv(tmp_path / "records.csv")
    study.write_text(
        'system = "latent-class"\ntitle = "t"\n[data]\nmicrodata = "records.csv"\n'
        f'levels = {{ a = {levels}, b = {levels} }}\n[privacy]\nepsilon = 1.0\nledger = "book.db"\n'
    )
    with pytest.raises(SpecError, match=r"22,500 released counts are more than the 20,000 .* fewer or smaller tables"):
        execute(load_spec(study), out=tmp_path / "run", echo=lambda line: None)
    assert _spent(tmp_path) == 0.0
    with pytest.raises(SpecError, match="22,500 released counts are more than the 20,000"):
        calibration_of(load_spec(study), n_records=10)


def test_a_spec_that_needs_jax_is_refused_without_it(study, monkeypatch):
    monkeypatch.setattr("dpbayes.inference.many_chains.find_spec", lambda name: None)
    study.write_text(SPEC)
    with pytest.raises(SpecError, match=r"needs JAX, which is not installed: pip install 'dpbayes\[jax\]'"):
        load_spec(study, ["sampling.backend='jax'"])


def test_the_model_of_a_spec_has_the_defaults_of_build_model(study):
    study.write_text(SPEC)
    model = load_spec(study).spec.model
    parameters = inspect.signature(build_model).parameters
    for name in ("concentration", "profiles", "spread"):
        assert getattr(model, name) == parameters[name].default
    asked = load_spec(study, ["model.profiles='common'"])
    assert asked.digest == load_spec(study).digest


def test_the_number_of_classes_is_written_out_where_the_tables_are_known(tmp_path):
    """All 120 two-way tables of 16 binary attributes."""
    path = tmp_path / "study.toml"
    path.write_text(MANY)
    loaded = load_spec(path)
    resolved = tomllib.loads(loaded.resolved)
    again = tmp_path / "again.toml"
    again.write_text(loaded.resolved)
    assert load_spec(again).digest == loaded.digest
    assert resolved["model"]["n_classes"] == 17 or "n_classes" in MANY


def test_a_run_samples_with_the_settings_of_its_spec(study, tmp_path, stopped):
    study.write_text(BINARY)
    _, settings = stopped(load_spec(study, ["sampling.rounds=2", "sampling.seed=7"]), tmp_path / "run")
    settings.pop("progress", None)
    assert settings == sampler_defaults() | {"rounds": 2, "random_seed": 7, "progressbar": False, "predictive": False}


def test_data_sets_of_a_finished_release_are_held_to_the_draws(tmp_path):
    lines = ['system = "latent-class"', 'title = "t"', "[data]", 'release = "release.json"', "[synthesis]"]
    (tmp_path / "finished.toml").write_text("\n".join([*lines, "n_datasets = 7000"]))
    with pytest.raises(SpecError, match=r"7000 synthetic data sets .* keeps 6912"):
        load_spec(tmp_path / "finished.toml")


def test_the_models_options_reach_the_model_and_a_study_of_it(study, tmp_path, stopped):
    study.write_text(BINARY)
    overrides = ["model.concentration=2.0", "model.spread=1.5", "model.margins=[['age', 'own']]"]
    loaded = load_spec(study, overrides)
    model, _ = stopped(loaded, tmp_path / "run")
    assert "alpha" not in model.named_vars
    assert model.convergence_variables == ("margin", "cell", "margin_age_own")
    release = read_release(tmp_path / "run.partial" / "release.json")
    same = build_model(release, n_classes=2, concentration=2.0, spread=1.5)
    point = model.initial_point()
    assert float(model.compile_logp()(point)) == pytest.approx(float(same.compile_logp()(point)), rel=1e-12)
    found = calibration_of(loaded, n_records=200)
    assert found.var_names == ("margin", "cell", "margin_age_own", "exact_counts")
    truth, _ = found.simulate(1)
    np.testing.assert_allclose(truth["margin_age_own"], truth["cell"].sum(axis=1), atol=1e-12)


@pytest.mark.parametrize(
    "given", ["concentration = 2.0", "profile_prior = 0.5", "margins = [['age']]", "likelihood = 'cells'"]
)
def test_an_own_model_states_its_own_prior_margins_and_form(study, given):
    study.write_text(BINARY.replace("n_classes = 2", f'n_classes = 2\nfile = "mine.py"\n{given}'))
    with pytest.raises(SpecError, match=f"states its own .* leave {given.split()[0]} out"):
        load_spec(study)
