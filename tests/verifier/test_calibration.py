"""Simulation-based calibration: the true values rank uniformly among posterior draws, exact ones and those of NUTS."""

import numpy as np
import pytest
import xarray as xr

from dpbayes.inference.sampling import NutsSettings
from dpbayes.inference.sbc import coverage, simulate_and_rank, uniformity
from dpbayes.privacy.laws import DiscreteGaussian, Laplace, TwoSidedGeometric
from dpbayes.privacy.sampling import release_values
from dpbayes.verifier import PartitionCounts, build_model, release_counts
from dpbayes.verifier.exact import posterior_of_counts, sample_posterior

RNG = np.random.default_rng


def exact_study(m, law, alpha, n_simulations, seed):
    """Ranks of the true r, p and S among 99 exact draws, ties broken at random."""
    rng = RNG(seed)
    shares = rng.dirichlet(alpha, size=n_simulations)
    counts = rng.multinomial(m, shares)
    noisy = release_values(counts, law, rng=rng)
    pit = {"r": np.empty((n_simulations, 1)), "p": np.empty((n_simulations, 3)), "S": np.empty((n_simulations, 3))}
    for i, (p, s, y) in enumerate(zip(shares, counts, noisy, strict=True)):
        drawn_p, _, drawn_s = sample_posterior(posterior_of_counts(y, law, m, alpha=alpha), (99,), rng=rng)
        pit["r"][i] = _pit(p[:1] / p[:2].sum(), drawn_p[:, :1] / drawn_p[:, :2].sum(axis=1, keepdims=True), rng)
        pit["p"][i], pit["S"][i] = _pit(p, drawn_p, rng), _pit(s, drawn_s, rng)
    tree = xr.DataTree.from_dict(
        {"prior_sbc": xr.Dataset({name: (("simulation", f"{name}_of"), values) for name, values in pit.items()})}
    )
    tree.attrs["n_ranks"] = 99
    return tree


def _pit(true, draws, rng):
    ties = (draws == true).sum(axis=0)
    return ((draws < true).sum(axis=0) + rng.integers(0, ties + 1) + 0.5) / 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "law", "alpha"),
    [
        (50, TwoSidedGeometric(2.0), (1.0, 1.0, 1.0)),
        (200, TwoSidedGeometric(8.0), (1.0, 1.0, 1.0)),
        (30, Laplace(2.0), (2.0, 0.5, 0.3)),
        (12, DiscreteGaussian(1.5), (0.7, 3.0, 1.0)),
    ],
)
def test_exact_draws_are_calibrated(m, law, alpha):
    # 2,500 simulations. A quantity fails when its statistic is more extreme than all 4,000 null studies: chance 2.5e-4
    # for each of the seven.
    study = exact_study(m, law, alpha, 2500, seed=m)
    p_values = uniformity(study)
    assert len(p_values) == 7
    assert min(p_values.values()) > 3e-4
    # Standard error .0044: five of them.
    assert all(abs(share - 0.95) < 0.022 for share in coverage(study, prob=0.95).values())


def test_a_posterior_that_ignores_the_noise_is_not():
    # What a naive analyst does: Dirichlet(alpha + noisy counts), as if they were exact. The check must see it.
    rng, m, law = RNG(1), 50, TwoSidedGeometric(2.0)
    shares = rng.dirichlet((1, 1, 1), size=600)
    noisy = np.clip(release_values(rng.multinomial(m, shares), law, rng=rng), 0, m)
    drawn = np.stack([rng.dirichlet(1.0 + y, size=99) for y in noisy])
    pit = ((drawn < shares[:, None, :]).sum(axis=1) + 0.5) / 100
    study = xr.DataTree.from_dict({"prior_sbc": xr.Dataset({"p": (("simulation", "outcome"), pit)})})
    study.attrs["n_ranks"] = 99
    assert max(uniformity(study).values()) < 1e-3


def build_alone():
    return build_model(release_counts(PartitionCounts(7, 2, 1), epsilon=1.0, rng=RNG(1)), alpha=(2.0, 1.0, 0.5))


def build_pooled():
    questions = {name: PartitionCounts(9, 2, 1) for name in "abc"}
    released = release_counts(questions, epsilon=6.0, rng=RNG(1))
    return build_model(released, pooling="partial", covariates={"size": (-1.0, 0.0, 1.0)})


@pytest.mark.slow
@pytest.mark.parametrize(("build", "n_simulations"), [(build_alone, 200), (build_pooled, 100)])
def test_nuts_is_calibrated(build, n_simulations):
    # The compiled model refitted to data from its own prior predictive. At 1 in 100 over all quantities.
    settings = NutsSettings(draws=400, tune=400, chains=2, target_accept=0.9)
    study = simulate_and_rank(
        build, n_simulations=n_simulations, random_seed=11, settings=settings, rhat_max=1.1, progressbar=False
    )
    p_values = uniformity(study)
    assert min(p_values.values()) > 0.01 / len(p_values)
    # A fit that fails the gate keeps its ranks; few may.
    assert float(study["fit"]["passed"].mean()) > 0.8
