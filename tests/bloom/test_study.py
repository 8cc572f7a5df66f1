import inspect
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from dpbayes.bloom import study
from dpbayes.bloom.filters import BloomRelease
from dpbayes.bloom.model import build_model
from dpbayes.errors import SpecError
from dpbayes.runs import execute, load_spec
from dpbayes.runs.protocol import Context

SMALL = """
system = "bloom"
title = "small"
[audience]
n_people = 2000
shares = [0.4, 0.2]
[filters]
n_bits = 4000
[privacy]
epsilon = 1.5
delta = 1e-3
simulation_seed = 4
[sampling]
draws = 1500
tune = 500
chains = 4
"""


def _load(tmp_path, text=SMALL, **changes):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return load_spec(path, [f"{key}={value}" for key, value in changes.items()])


def test_the_release_is_that_of_the_design(tmp_path):
    loaded, lines = _load(tmp_path), []
    spec, context = loaded.spec, Context(tmp_path, tmp_path, echo=lines.append)
    design = study.design(spec, tmp_path)
    claims = study._certificate(design, 1e-3)
    scopes = [claim.scope for claim in claims]
    assert scopes == ["paper's pair, certified", "paper's pair, certified", "all pairs, upper bound"]
    assert claims[0].upper <= 1.5
    release = study.release(spec, context, rng=np.random.default_rng(4), ledger=None)
    assert (release.n_bits, release.n_filters, release.flip_prob) == (4000, 2, design.flip_prob)
    assert release.sampler == "simulation" and release.adjacency == "one-position"
    assert study.release(spec, context, rng=np.random.default_rng(4), ledger=None).digest == release.digest
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert sum(truth["frequency"]) == truth["union"] <= 2000


def test_the_study_that_comes_along_is_valid():
    spec = load_spec(Path(__file__).parents[2] / "models" / "bloom_audience.toml").spec
    assert len(spec.audience.shares) == 6 and spec.filters.n_bits == 100_000


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("audience.shares", "[0.7]", "0.7"),
        ("privacy.delta", "1.0", "delta"),
        ("privacy.delta", "0.9999999999999999", "less than or equal to 0.5"),
        ("filters.n_bits", "1", "n_bits"),
        ("privacy.pairs", "'some'", "pairs"),
    ],
)
def test_bad_spec(tmp_path, key, value, text):
    with pytest.raises(SpecError, match=text):
        _load(tmp_path, **{key: value})


def test_the_page_states_the_exchange_of_a_person_by_the_bound_for_all_pairs(tmp_path):
    design = study.design(_load(tmp_path).spec, tmp_path)
    claims = study._certificate(design, 1e-3)
    (table,) = [
        block for block in study._privacy_section(claims, design).blocks if getattr(block, "name", "") == "persons"
    ]
    (_, one, epsilon, delta), (_, two, twice, larger) = table.rows
    bound = claims[2].upper
    assert (one, two, delta) == (1, 2, 1e-3)
    assert bound <= epsilon <= bound * (1 + 1e-5) and 2 * bound <= twice <= 2 * bound * (1 + 1e-5)
    group = (1 + np.exp(bound)) * 1e-3
    assert group <= larger <= group * (1 + 1e-5)


def test_the_page_names_the_prior_in_use():
    section = study._reach_section([("a", 10, 9.0, 1.0)], np.arange(9.0))
    words = " ".join(getattr(block, "text", "") for block in section.blocks)
    assert "Jeffreys', of the shares of sets" in words and "equally likely" not in words
    assert inspect.signature(build_model).parameters["concentration"].default == 0.5


@pytest.mark.slow
def test_a_finished_release_needs_no_audience(tmp_path):
    """An analyst's run: the same page but for the truth, which only a simulation knows."""
    BloomRelease(np.array([3000, 400, 400, 200]), 0.2, "secure").write(tmp_path / "release.json")
    text = 'system = "bloom"\ntitle = "given"\n[data]\nrelease = "release.json"\n[sampling]\ndraws = 300\ntune = 300'
    result = execute(_load(tmp_path, text), out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    facts = json.loads((result.folder / "facts.json").read_text())
    (posterior,) = facts["tables"]["posterior"]
    assert posterior["low"] < posterior["mean"] < posterior["high"] and "truth" not in facts["tables"]["reach"][0]
    assert not (result.folder / "truth.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL.replace("[filters]\nn_bits = 4000\n", ""), "add the section .filters."),
        (SMALL + '[data]\nrelease = "release.json"', "finished release"),
        (SMALL.replace("simulation_seed = 4", 'ledger = "ledger.db"'), "leave privacy.ledger out"),
        (SMALL.replace("draws = 1500", "draws = 1000000000000000000"), "draws"),
    ],
)
def test_sections_that_do_not_fit_together(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        _load(tmp_path, text)


def test_another_delta_is_certified_anew(tmp_path, monkeypatch):
    loaded = _load(tmp_path)
    study.design(loaded.spec, tmp_path).write(tmp_path / "given.json")
    text = 'system = "bloom"\ntitle = "t"\n[data]\nrelease = "given.json"\ndelta = {}\n'
    monkeypatch.setattr("dpbayes.inference.sample", mock.Mock(side_effect=InterruptedError))
    for delta in (1e-3, 1e-4):
        with pytest.raises(InterruptedError):
            execute(
                _load(tmp_path, text.format(delta)), out=tmp_path / "run", progressbar=False, echo=lambda line: None
            )
        claims = json.loads((tmp_path / "run.partial" / "certificate.json").read_text())
        assert {claim["delta"] for claim in claims} == {delta}


@pytest.mark.slow
def test_whole_run(tmp_path):
    result = execute(_load(tmp_path), out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    assert result.passed, result.summary
    facts = json.loads((result.folder / "facts.json").read_text())
    (posterior,), truth = facts["tables"]["posterior"], json.loads((result.folder / "truth.json").read_text())
    assert facts["privacy"] == {"adjacency": "one-position", "unit": "position", "delta": 1e-3}
    assert facts["about"]["headline"]["epsilon"] == "epsilon at delta 0.001, paper's pair, certified"
    assert posterior["low"] < posterior["mean"] < posterior["high"]
    # Five standard errors of the debiased estimate: false alarm below 1e-6.
    row = facts["tables"]["reach"][0]
    assert abs(row["estimate"] - truth["union"]) < 5 * row["stderr"]
