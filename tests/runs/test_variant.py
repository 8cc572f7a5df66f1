"""A user's own model beside a spec: refused unless allowed, checked before it costs anything, kept with the run."""

from unittest import mock

import pytest

from dpbayes.errors import SpecError
from dpbayes.runs import execute, execution, load_spec
from dpbayes.runs.folder import workspace
from dpbayes.runs.registry import SAVED, keep_model, load_model

SPEC = """
system = "latent-class"
title = "t"
model = "file:mine.py"

[data]
embedded = "acs_tables"

[privacy]
epsilon = 1.0
simulation_seed = 1
"""
# The package's model with another prior in one line, as a user would write it.
MINE = """
from dpbayes import latent_class

def build_model(release, *, n_classes):
    return latent_class.build_model(release, n_classes=n_classes, spread=0.4)
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "study.toml").write_text(SPEC)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "study.toml"


def test_the_short_form_stands_for_the_section(spec):
    loaded = load_spec(spec)
    assert (loaded.spec.model.file, loaded.spec.model.n_classes) == ("mine.py", None)
    assert 'file = "mine.py"' in loaded.resolved
    assert load_spec(spec, ["model=file:other.py"]).spec.model.file == "other.py"


@pytest.mark.parametrize("value", ["mine.py", "file:", "file: ", "http://mine.py"])
def test_another_text_is_refused(spec, value):
    with pytest.raises(SpecError, match="give a section"):
        load_spec(spec, [f"model={value}"])


def test_a_system_without_variants_refuses_the_key():
    with pytest.raises(SpecError, match=r"model\.file is not a key of \[model\]"):
        load_spec("models/verifier_threshold.toml", ["model=file:mine.py"])


def test_without_permission_nothing_runs_and_nothing_is_written(spec, tmp_path):
    (tmp_path / "mine.py").write_text("raise RuntimeError('the file was run')")
    with pytest.raises(SpecError, match="pass --allow-python if you trust it"):
        execute(load_spec(spec), out=tmp_path / "run", echo=lambda line: None)
    assert {path.name for path in tmp_path.iterdir()} == {"study.toml", "mine.py"}


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [("none.py", FileNotFoundError, "resolved beside the spec"), ("study.toml", SpecError, "must be a Python file")],
)
def test_a_file_that_cannot_be_a_model_is_refused_first(spec, tmp_path, name, error, message):
    with pytest.raises(error, match=message):
        execute(load_spec(spec, [f"model=file:{name}"]), out=tmp_path / "run", allow_python=True)
    assert not list(tmp_path.glob("run*"))


@pytest.mark.parametrize(
    ("code", "error"), [("x = 1", SpecError), ("import no_such_module_here", ModuleNotFoundError), ("f(", SyntaxError)]
)
def test_a_mistake_in_the_file_costs_no_release(spec, tmp_path, code, error):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(error):
        execute(load_spec(spec), out=tmp_path / "run", allow_python=True, echo=lambda line: None)
    assert not list(tmp_path.glob("run*"))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def build_model(release, *, n_classes):\n    return 1", "must return a pymc.Model, got int"),
        (
            "import pymc as pm\ndef build_model(release, *, n_classes):\n    return pm.Model()",
            "lacks margin, exact_counts",
        ),
        (
            "import pymc as pm\ndef build_model(release, *, n_classes):\n    with pm.Model() as model:\n"
            "        pm.Normal('margin')\n        pm.Normal('exact_counts')\n    return model",
            "lacks weights, profile_citizenship",
        ),
    ],
)
def test_a_model_that_the_run_cannot_use_is_refused_before_sampling(spec, tmp_path, code, message):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(SpecError, match=message):  # without synthetic data too: the predictive check reads them all
        execute(
            load_spec(spec, ["synthesis.n_datasets=0"]), out=tmp_path / "run", allow_python=True, echo=lambda _: None
        )
    assert not (tmp_path / "run.partial" / "release.json").exists()


def test_a_changed_file_is_fitted_to_the_release_that_was_drawn(spec, tmp_path, monkeypatch):
    loaded, fitted = load_spec(spec, ["synthesis.n_datasets=0"]), []
    monkeypatch.setattr(loaded.module, "fit", lambda *arguments: {"fit": fitted.append(1)})
    monkeypatch.setattr(execution, "_document", mock.Mock(side_effect=InterruptedError))
    released = set()
    for code, fits in ((MINE, 1), (MINE.replace("\n", "\r\n"), 1), (MINE.replace("0.4", "0.5"), 2)):
        (tmp_path / "mine.py").write_text(code)
        with pytest.raises(InterruptedError):
            execute(loaded, out=tmp_path / "run", allow_python=True, progressbar=False, echo=lambda line: None)
        assert len(fitted) == fits and (tmp_path / "run.partial" / SAVED).read_text() == code.replace("\r", "")
        released.add((tmp_path / "run.partial" / "release.json").stat().st_mtime_ns)
    assert len(released) == 1


def test_a_corrected_file_goes_on_with_the_release_that_was_drawn(tmp_path):
    (tmp_path / "mine.py").write_text("a = 1")
    with workspace(tmp_path / "run", "spec") as partial:
        keep_model(tmp_path / "mine.py", partial)
        (partial / "release.json").touch()
        (tmp_path / "mine.py").write_text("a = 2")
        keep_model(tmp_path / "mine.py", partial)
        assert (partial / SAVED).read_text() == "a = 2"


def test_the_users_prior_is_the_one_that_is_built(spec, tmp_path):
    import numpy as np

    from dpbayes import latent_class
    from dpbayes.data import datasets
    from dpbayes.privacy import release_tables

    release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    model = load_model(tmp_path / "mine.py")(release, n_classes=2)
    ours = latent_class.build_model(release, n_classes=2)
    start = model.initial_point()  # a shift common to all levels would cancel
    point = {key: value + np.linspace(0.1, 0.9, value.size).reshape(value.shape) for key, value in start.items()}
    assert {key: value.shape for key, value in ours.initial_point().items()} == {k: v.shape for k, v in point.items()}
    one, two = (m.compile_logp(jacobian=False)(point) for m in (model, ours))
    assert not np.isclose(one, two)
