"""Costs by arithmetic: they follow the model's own sizes, grow where the work does, and refuse what cannot fit."""

from itertools import combinations

import numpy as np
import pytest

from dpbayes.data import Domain
from dpbayes.errors import InputError
from dpbayes.inference.sampling import settings_of
from dpbayes.latent_class import build_model, cost, cost_of, sampler_defaults
from dpbayes.privacy import NoisyTable, Release, TwoSidedGeometric


def many(attributes, levels):
    domain = Domain.from_levels({f"x{i}": tuple(range(levels)) for i in range(attributes)})
    return domain, list(combinations(domain.names, 2))


@pytest.mark.parametrize("likelihood", ["cells", "tables"])
def test_unknowns_and_cells_are_the_models(likelihood):
    domain, pairs = many(3, 3)
    tables = tuple(NoisyTable(domain.project(p), np.full((3, 3), 40), TwoSidedGeometric(4.0), 2.0, None) for p in pairs)
    model = build_model(Release(domain, tables, "replace-one", 360, "simulation"), likelihood=likelihood)
    found = cost_of(domain, pairs, likelihood=likelihood)
    point = model.initial_point()
    assert found.cells == 27
    assert found.unknowns == sum(np.size(value) for value in point.values())


def test_costs_grow_with_tables_levels_and_classes():
    small, larger = cost_of(*many(6, 3)), cost_of(*many(12, 6))
    assert small.minutes < larger.minutes and small.gigabytes < larger.gigabytes
    assert cost_of(*many(6, 3), n_classes=5).microseconds < cost_of(*many(6, 3), n_classes=15).microseconds


def test_minutes_follow_chains_moves_and_steps():
    least = cost_of(*many(6, 3), moves=1, max_steps=1).minutes
    for longer in ({"chains": 512}, {"moves": 120}, {"max_steps": 800}, {"cores": 1}):
        assert cost_of(*many(6, 3), **longer).minutes > 1.3 * cost_of(*many(6, 3)).minutes > least


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 1)
    with pytest.raises(InputError, match=r"GB, and this machine has 0\.0; release or fit fewer tables"):
        cost.check_memory(cost_of(*many(3, 2)))


@pytest.mark.parametrize(
    ("attributes", "levels", "scale", "kept", "steps"),
    [
        (6, 2, 4.0, (256, 12), 400),
        (14, 8, 400.0, (256, 12), 200),
        (14, 8, 4.0, (768, 12), 120),
        (40, 10, 400.0, (32, 96), 400),
        (40, 10, 4.0, (512, 12), 120),
    ],
)
def test_the_number_of_chains_follows_classes_times_levels_and_noise(attributes, levels, scale, kept, steps):
    domain, pairs = many(attributes, levels)
    law = TwoSidedGeometric(scale)
    tables = tuple(NoisyTable(domain.project(p), np.full((levels, levels), 40), law, 2.0, None) for p in pairs)
    settings = sampler_defaults(Release(domain, tables, "replace-one", 40 * levels**2, "simulation"))
    assert settings.pop("method") == "many-chains"
    found = settings_of("many-chains", settings)
    assert (found.chains, found.draws, found.max_steps) == (*kept, steps)
