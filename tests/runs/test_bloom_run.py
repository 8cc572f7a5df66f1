import inspect
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpbayes.bloom.model import build_model
from dpbayes.bloom.release import BloomRelease
from dpbayes.errors import SpecError
from dpbayes.runs import execute, load_spec, registry
from dpbayes.runs.bloom import _certificate, _release
from dpbayes.runs.bloom_document import _privacy, _reach
from dpbayes.runs.execution import Context

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


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(registry.SYSTEMS, "bloom", "dpbayes.runs.bloom")


def _load(tmp_path, text=SMALL, **changes):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return load_spec(path, [f"{key}={value}" for key, value in changes.items()])


def test_certificate_and_release_are_drawn_once(tmp_path):
    loaded, lines = _load(tmp_path), []
    context = Context(tmp_path, tmp_path, "digest", False, lines.append)
    certificate = _certificate(loaded.spec, context)
    scopes = [claim["scope"] for claim in certificate["claims"]]
    assert scopes == ["paper's pair, certified", "paper's pair, certified", "all pairs, upper bound"]
    assert certificate["claims"][0]["epsilon"]["upper"] <= 1.5
    assert certificate["adjacency"] == "one-position"
    release = _release(loaded.spec, certificate["flip_prob"], context)
    assert release.n_bits == 4000 and release.n_filters == 2 and release.sampler == "simulation"
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert sum(truth["frequency"]) == truth["union"] <= 2000
    # A release that was drawn has been paid for: it is read, not drawn again.
    again = replace(context, echo=lines.append)
    assert _release(loaded.spec, 0.4, again).digest == release.digest
    assert any("used again" in line for line in lines)


def test_the_study_that_comes_along_is_valid():
    spec = load_spec(Path(__file__).parents[2] / "models" / "bloom_audience.toml").spec
    assert len(spec.audience.shares) == 6 and spec.filters.n_bits == 100_000


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("audience.shares", "[0.7]", "0.7"),
        ("privacy.delta", "1.0", "delta"),
        ("filters.n_bits", "1", "n_bits"),
        ("privacy.pairs", "'some'", "pairs"),
    ],
)
def test_bad_spec(tmp_path, key, value, text):
    with pytest.raises(SpecError, match=text):
        _load(tmp_path, **{key: value})


def test_the_page_prices_the_exchange_of_a_person_by_the_bound_for_all_pairs(tmp_path):
    spec = _load(tmp_path).spec
    certificate = _certificate(spec, Context(tmp_path, tmp_path, "digest", False, lambda line: None))
    release = BloomRelease(np.array([3000, 400, 400, 200]), certificate["flip_prob"], "secure")
    (table,) = [block for block in _privacy(certificate, release).blocks if getattr(block, "name", "") == "persons"]
    (_, one, epsilon, delta), (_, two, twice, larger) = table.rows
    bound = certificate["claims"][2]["epsilon"]["upper"]
    assert (one, two, delta) == (1, 2, 1e-3)
    assert bound <= epsilon <= bound * (1 + 1e-5) and 2 * bound <= twice <= 2 * bound * (1 + 1e-5)
    group = (1 + np.exp(bound)) * 1e-3
    assert group <= larger <= group * (1 + 1e-5)


def test_the_page_names_the_prior_in_use():
    words = " ".join(getattr(block, "text", "") for block in _reach([("a", 10, 9.0, 1.0)], np.arange(9.0)).blocks)
    assert "Jeffreys', of the logo shares" in words and "equally likely" not in words
    assert inspect.signature(build_model).parameters["concentration"].default == 0.5


def test_a_certificate_of_an_earlier_version_is_read_as_one_position(tmp_path):
    spec = _load(tmp_path).spec
    (tmp_path / "certificate.json").write_text('{"flip_prob": 0.2, "adjacency": "replace-one", "claims": []}')
    context = Context(tmp_path, tmp_path, "digest", False, lambda line: None)
    assert _certificate(spec, context)["adjacency"] == "one-position"


@pytest.mark.slow
def test_whole_run(tmp_path):
    result = execute(_load(tmp_path), out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    assert result.outcome.passed, result.outcome.summary
    facts = json.loads((result.folder / "facts.json").read_text())
    (posterior,), truth = facts["tables"]["posterior"], json.loads((result.folder / "truth.json").read_text())
    assert facts["privacy"] == {"adjacency": "one-position", "unit": "position", "delta": 1e-3}
    assert facts["about"]["headline"]["epsilon"] == "epsilon at delta 0.001, paper's pair, certified"
    assert posterior["low"] < posterior["mean"] < posterior["high"]
    # Five standard errors of the debiased estimate: false alarm below 1e-6.
    row = facts["tables"]["reach"][0]
    assert abs(row["estimate"] - truth["union"]) < 5 * row["stderr"]
