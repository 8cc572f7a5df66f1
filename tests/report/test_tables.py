"""Numbers on what was released."""

import math

import numpy as np
import pytest

from dpbayes.data import datasets
from dpbayes.privacy import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric, release_tables
from dpbayes.report.document import PrivacyTerms
from dpbayes.report.tables import privacy_fact, privacy_terms, released_section


@pytest.mark.parametrize("scale", [0.2, 1.0, 20.0])
def test_mean_magnitude_of_geometric_noise_has_a_closed_form(scale):
    # 2 tanh(1/2s) sum x e^(-x/s) = 1 / sinh(1/s)
    assert TwoSidedGeometric(scale).mean_magnitude == pytest.approx(1 / np.sinh(1 / scale), rel=1e-12)


@pytest.mark.parametrize("law", [DiscreteGaussian(0.3), DiscreteGaussian(0.7), DiscreteGaussian(30.0)])
def test_mean_magnitude_of_discrete_gaussian_noise_is_its_sum(law):
    x = np.arange(-1000, 1001)
    weights = np.exp(-0.5 * (x / law.stddev) ** 2)
    assert law.mean_magnitude == pytest.approx((np.abs(x) * weights).sum() / weights.sum(), rel=1e-10)


def test_a_wide_discrete_gaussian_has_the_magnitude_of_a_continuous_one():
    assert DiscreteGaussian(1000.0).mean_magnitude == pytest.approx(Gaussian(1000.0).mean_magnitude, rel=1e-6)
    assert Gaussian(2.0).mean_magnitude == pytest.approx(2.0 * np.sqrt(2 / np.pi))
    assert Laplace(5.0).mean_magnitude == 5.0


def test_the_terms_of_a_release_have_delta_0_where_its_epsilon_is_pure_and_none_where_the_cost_is_a_curve():
    tables, rng = datasets.acs_tables()[:2], np.random.default_rng(1)
    pure = release_tables(tables, epsilon=1.0, rng=rng)
    assert privacy_terms(pure) == PrivacyTerms(pure.adjacency, "row", 0.0)
    curve = release_tables(tables, rho=0.5, noise="discrete-gaussian", rng=rng)
    assert curve.epsilon is None and privacy_terms(curve) == PrivacyTerms(curve.adjacency, "row", None)


def test_a_gaussian_release_states_its_rho_and_points_of_its_curve():
    tables = datasets.acs_tables()[:3]
    release = release_tables(tables, rho=0.02, noise="discrete-gaussian", rng=np.random.default_rng(5))
    assert release.rho == pytest.approx(0.02) and release.privacy_record["rho"] == release.rho
    section = released_section(release)
    words = section.blocks[0].text
    assert "add to rho = 0.02" in words and "at most 0.9 at delta 1e-06 and 1.164 at delta 1e-09" in words
    rows = section.blocks[-1].facts()
    assert math.fsum(row["rho"] for row in rows) == pytest.approx(0.02) and "epsilon" not in rows[0]
    fact = privacy_fact(release)
    assert (fact.name, fact.label, fact.shown) == ("rho", "rho (zero-concentrated) in total, replace-one", "0.02")


def test_a_noisy_number_of_records_is_a_row_of_what_left_the_custodian():
    tables = datasets.acs_tables()[:3]
    release = release_tables(tables, epsilon=1.0, adjacency="add-remove", total_share=0.1, rng=np.random.default_rng(5))
    rows = released_section(release).blocks[-1].facts()
    assert [row["table"] for row in rows] == [*(table.label for table in release.tables), "number of records"]
    assert math.fsum(row["epsilon"] for row in rows) == pytest.approx(release.epsilon)
    assert rows[-1]["counts"] == 1 and rows[-1]["epsilon"] == pytest.approx(0.1)
