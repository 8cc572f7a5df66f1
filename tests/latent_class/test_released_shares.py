"""Where chains start: at the released shares, whatever data a compiled model is given."""

import numpy as np

from dpbayes.data import Domain
from dpbayes.latent_class import build_model
from dpbayes.latent_class.released_shares import released_shares
from dpbayes.privacy import Release
from dpbayes.privacy.noise import TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable

DOMAIN = Domain.from_levels({"sex": (0, 1), "age": (0, 1, 2), "work": (0, 1), "car": (0, 1)})
# No table holds "car"; "work" is second in one table and alone in another.
COUNTS = {
    ("sex", "work"): [[400, 100], [200, 300]],
    ("age", "sex"): [[300, 200], [100, 100], [180, 120]],
    ("work",): [600, 400],
}


def released() -> Release:
    law = TwoSidedGeometric(4.0)
    tables = (NoisyTable(DOMAIN.project(names), np.array(counts), law, 2.0, 0.5) for names, counts in COUNTS.items())
    return Release(DOMAIN, tuple(tables), "replace-one", 1000, "simulation")


def flat(release: Release) -> np.ndarray:
    return np.concatenate([table.counts.ravel() for table in release.tables]).astype(float)


def test_shares_are_means_over_the_tables_that_hold_the_attribute():
    release = released()
    shares = {size: found.eval() for size, found in released_shares(release, flat(release)).items()}
    np.testing.assert_allclose(shares[2][:, 1], [(0.5 + 0.42) / 2, 0.4, 0.5])
    np.testing.assert_allclose(shares[3], [[0.5, 0.2, 0.3]])


def test_shares_stay_off_their_ends():
    release = released()
    counts = flat(release)
    counts[:4] = counts[4:10] = 0.0  # neither sex nor age has anything but its first level, and that beyond n
    counts[:2], counts[4] = 1e5, 1e5
    shares = {size: found.eval() for size, found in released_shares(release, counts).items()}
    np.testing.assert_allclose(shares[2][0], [1.0 / 1.02, 0.02 / 1.02])
    np.testing.assert_allclose(shares[3][0], [1.0 / 1.04, 0.02 / 1.04, 0.02 / 1.04])


def test_chains_start_at_the_shares_of_the_data_that_are_fitted():
    release = released()
    model = build_model(release, n_classes=3)
    start = model.initial_point()
    np.testing.assert_allclose(start["profiles_of_2_scaled__"], np.zeros((3, 3)), atol=1e-12)
    np.testing.assert_allclose(start["profiles_of_3_scaled__"], np.zeros((3, 1, 2)), atol=1e-12)
    (profiles,) = model.replace_rvs_by_values([model["profiles_of_2"]])
    names = ("profiles_of_2", "stick")
    evaluate = model.compile_fn(profiles, inputs=[model.rvs_to_values[model[name]] for name in names], point_fn=False)
    given = [start[model.rvs_to_values[model[name]].name] for name in names]
    np.testing.assert_allclose(evaluate(*given), np.tile([0.46, 0.4, 0.5], (3, 1)), rtol=1e-9)
    swapped = flat(release)
    swapped[:4] = [100, 400, 300, 200]
    swapped[-2:] = [400, 600]
    model.set_data("released_counts", swapped)
    np.testing.assert_allclose(evaluate(*given), np.tile([0.46, 0.6, 0.5], (3, 1)), rtol=1e-9)
