"""Every run spec that comes with dpbayes parses, and every system has one."""

from pathlib import Path

import pytest

from dpbayes.runs import load_spec
from dpbayes.runs.registry import SYSTEMS, system_module

SPECS = sorted(Path(__file__).resolve().parents[2].joinpath("models").glob("*.toml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_parses_and_asks_a_question(path):
    loaded = load_spec(path)
    assert loaded.spec.question.endswith("?")
    assert load_spec(path).digest == loaded.digest


def test_every_system_has_a_spec_and_offers_the_interface():
    assert {load_spec(path).spec.system for path in SPECS} == set(SYSTEMS)
    for name in SYSTEMS:
        module = system_module(name)
        assert callable(module.run)
        assert callable(module.document)
