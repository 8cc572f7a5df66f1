"""The list of a spec's keys holds every key, and says something of each."""

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from dpbayes.cli.main import app
from dpbayes.errors import SpecError
from dpbayes.runs.registry import SYSTEMS, system_module
from dpbayes.runs.spec import spec_sections


def sections_of(spec):
    """Return the section models that a spec's annotations name, whatever they are wrapped in."""
    found, waiting = {}, {name: [field.annotation] for name, field in spec.model_fields.items()}
    for name, annotations in waiting.items():
        while annotations:
            one = annotations.pop()
            if isinstance(one, type) and issubclass(one, BaseModel):
                found[name] = one
            annotations += getattr(one, "__args__", ())
    return found


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_key_of_every_section_is_listed_with_a_meaning(system):
    spec = system_module(system).Spec
    top, *tables = spec_sections(system)
    expected = sections_of(spec)
    assert {table.heading.strip("[]") for table in tables} == set(expected)
    assert {key.name for key in top.keys} == set(spec.model_fields) - set(expected)
    for table in tables:
        assert [key.name for key in table.keys] == list(expected[table.heading.strip("[]")].model_fields)
        assert table.meaning
        assert all(key.meaning and key.takes for key in table.keys)


def test_the_command_prints_them():
    done = CliRunner().invoke(app, ["keys", "latent-class"])
    assert done.exit_code == 0
    assert "  epsilon: number > 0 and ≤ 1,000,000,000,000; optional" in done.output.splitlines()
    assert "  n_classes: whole number ≥ 1 and ≤ 200; optional" in done.output.splitlines()
    assert max(map(len, done.output.splitlines())) <= 100


def test_an_unknown_system_is_named():
    with pytest.raises(SpecError, match="'latent_clas' is not known; did you mean 'latent-class'"):
        spec_sections("latent_clas")
