"""What a model is warned of before it is fitted: noise too low, effects too many."""

import warnings
from itertools import combinations

import numpy as np
import pytest

from dpbayes.data import Domain
from dpbayes.errors import AccuracyWarning, CostWarning, DPBayesWarning, InputError
from dpbayes.latent_class import build_model
from dpbayes.latent_class.cautions import caution
from dpbayes.privacy.noise import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release

DOMAIN = Domain.from_levels({"a": (0, 1), "b": (0, 1)})


def _release(*tables, total=None):
    """A release of one-way or two-way tables, each a pair of attributes and law."""
    noisy = []
    for names, law in tables:
        domain = DOMAIN.project(names)
        noisy.append(NoisyTable(domain, np.full(domain.shape, 100 // domain.size), law, 2.0, None))
    return Release(DOMAIN.project(tables[0][0]), tuple(noisy), "add-remove" if total else "replace-one",
                   total or 100, "simulation")  # fmt: skip


LOW, ENOUGH = TwoSidedGeometric(1.0), TwoSidedGeometric(1.5)  # standard deviations 1.36 and 2.08


def test_low_noise_is_warned_of_with_the_exact_likelihood_as_the_remedy():
    with pytest.warns(
        AccuracyWarning, match=r"noise of a has .* 1\.36 counts, below 2: .*likelihood='composite'"
    ) as got:
        build_model(_release((["a"], LOW)), n_classes=2)
    assert got[0].filename == __file__  # the line that called build_model
    build_model(_release((["a"], LOW)), n_classes=2, likelihood="composite")
    build_model(_release((["a"], ENOUGH)), n_classes=2)


def test_the_composite_likelihood_is_no_remedy_for_several_tables_or_a_noisy_n():
    several = _release((["a", "b"], ENOUGH), (["b"], LOW), (["a"], ENOUGH))
    unknown = _release((["a"], Gaussian(1.9)), total=NoisyTotal(100.0, ENOUGH, 1.0, None))
    for release, table in ((several, "noise of b has"), (unknown, "noise of a has")):
        with pytest.warns(AccuracyWarning, match=f"{table}.*dpbayes sbc") as got:
            caution(release, "joint", 3, pairs_summed_out=False)
        assert "composite" not in str(got[0].message)


def test_many_sampled_effects_are_warned_of():
    """Five attributes of five and of six levels, all pairs: 20 + 160 = 180 effects, and 25 + 250 = 275."""
    releases = []
    for levels in (5, 6):
        domain = Domain.from_levels({name: tuple(range(levels)) for name in "abcde"})
        tables = [
            NoisyTable(domain.project(names), np.ones((levels, levels)), Laplace(10.0), 2.0, None)
            for names in combinations(domain.names, 2)
        ]
        releases.append(Release(domain, tuple(tables), "replace-one", 1000, "simulation"))
    build_model(releases[0], n_classes=2)
    with pytest.warns(CostWarning, match="275 effects.*may take hours"):
        build_model(releases[1], n_classes=2)


def test_pairs_that_are_summed_out_cost_little():
    release = _release((["a"], ENOUGH))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DPBayesWarning)
        caution(release, "joint", 201, pairs_summed_out=True)
        caution(release, "joint", 200, pairs_summed_out=False)
        caution(release, "composite", 201, pairs_summed_out=False)
        with pytest.raises(CostWarning):
            caution(release, "joint", 201, pairs_summed_out=False)


@pytest.mark.parametrize("law", [DiscreteGaussian(0.01), TwoSidedGeometric(0.001), Gaussian(1e-60)])
@pytest.mark.parametrize("likelihood", ["joint", "composite"])
def test_noise_of_no_variance_is_refused(law, likelihood):
    with pytest.raises(InputError, match=r"which is zero in all but name"):
        build_model(_release((["a"], law)), n_classes=2, likelihood=likelihood)
