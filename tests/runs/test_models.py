"""Every run spec that comes with dpbayes parses, builds its model, and every system has one."""

from pathlib import Path

import pytest

from dpbayes.runs import execute, load_spec
from dpbayes.runs.registry import STUDY, SYSTEMS, system_module

SPECS = sorted(Path(__file__).resolve().parents[2].joinpath("models").glob("*.toml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_parses_and_asks_a_question(path):
    loaded = load_spec(path)
    assert loaded.spec.question.endswith("?")
    assert load_spec(path).digest == loaded.digest


def test_every_system_has_a_spec_and_offers_the_interface():
    systems = {load_spec(path).spec.system for path in SPECS}
    assert {name for name in systems if not name.startswith(STUDY)} == set(SYSTEMS)
    for name in systems:
        study = system_module(name, beside=SPECS[0].parent)
        assert all(callable(getattr(study, part)) for part in ("design", "release", "fit", "sections"))


# What makes the confidential side of each sampled spec small; the model that is built stays the spec's own.
SMALL = {
    "acs_latent_class": ["model.n_classes=3"],
    "bloom_audience": ["audience.n_people=500", "audience.shares=[0.4, 0.2]", "filters.n_bits=1000"],
    "bloom_reach": ["lattice.classes=4"],
    "persons_latent_class": ["model.n_classes=3"],
    "verifier_threshold": ["data.n_persons=300", "privacy.n_partitions=10", "model.pooling=partial"],
    "wikimedia_disasters": ['data.pages=["Ash Wednesday bushfires"]', "data.summers=[2019, 2022]"],
}
# Studies that sum, simulate, move records, draw from a posterior in closed steps, or optimize: no PyMC model is built.
NO_MODEL = {
    "ide_groups",
    "ide_massachusetts",
    "mvg_covariance",
    "mvg_regression",
    "mvg_svr",
    "mvg_svr_synthea",
    "verifier_pilot",
    "verifier_surface",
    "census_county",
}


def test_every_spec_is_known_to_the_test_below():
    assert {path.stem for path in SPECS} == SMALL.keys() | NO_MODEL


class _BuiltError(Exception):
    """Carries the model that a run was about to sample."""


@pytest.mark.parametrize("name", SMALL)
def test_a_spec_builds_its_model_and_its_log_density_is_finite(name, tmp_path, monkeypatch):
    import numpy as np

    def take(model, **settings):
        raise _BuiltError(model)

    monkeypatch.setattr("dpbayes.inference.sample", take, raising=False)
    seed = (
        [] if name in ("bloom_reach", "wikimedia_disasters") else ["privacy.simulation_seed=1"]
    )  # published numbers have their noise
    loaded = load_spec(next(path for path in SPECS if path.stem == name), [*seed, *SMALL[name]])
    with pytest.raises(_BuiltError) as stop:
        execute(loaded, out=tmp_path / "run", echo=lambda line: None)
    (model,) = stop.value.args
    point = model.initial_point()
    logp = model.compile_logp()
    assert model.observed_RVs, "a model that sees no release"
    assert np.isfinite(logp(point))
    # The density depends on every free variable: a variable that is left out would keep its prior.
    for name_, value in point.items():
        moved = logp(point | {name_: value + 0.1})
        assert np.isfinite(moved)
        assert moved != logp(point), name_


def test_the_plain_statements_parse_and_define_a_model():
    import ast

    for path in sorted(SPECS[0].parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path.name
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        stated = [f.name for f in functions if "pm.Model(" in ast.unparse(f)]
        assert stated, f"{path.name} states no model"
