"""Every possible release at once: each summary is that of the exact posterior, up to the stated interpolation error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import InputError
from dpbayes.privacy.laws import TwoSidedGeometric
from dpbayes.verifier.every_release import releases_of
from dpbayes.verifier.exact import posterior_of_counts


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 7, 30]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([(1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (4.0, 1.5, 0.1), (2.0, 0.7), (0.1, 0.3, 1.0), (0.02, 2.0)]),
)
def test_each_release_has_the_exact_posterior(m, seed, epsilon, alpha):
    rng = np.random.default_rng(seed)
    every, law = releases_of(m, epsilon=epsilon, alpha=alpha), TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)
    for counts in rng.multinomial(m, rng.dirichlet(alpha), size=3):
        failed = int(counts[2]) if len(alpha) == 3 else 0
        mode, low, high = every.summaries_at(failed)[:, counts[0], counts[1]]
        exact = posterior_of_counts(counts, law, m, alpha=alpha)
        # The interpolation error that the module states: 1.5e-5 in probability.
        assert float(exact.r.cdf(low)) == pytest.approx(0.025, abs=1.5e-5)
        assert float(exact.r.cdf(high)) == pytest.approx(0.975, abs=1.5e-5)
        assert every.prob_greater(0.5)[failed, counts[0], counts[1]] == pytest.approx(
            exact.prob_greater(0.5), abs=1e-10
        )
        if min(alpha) >= 1:
            assert mode == pytest.approx(exact.modes["r-hat"], abs=1e-3)


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ({"n_partitions": 0}, "at least 1"),
        ({"n_partitions": 202}, "up to M = 201"),
        ({"alpha": (0, 1, 1)}, "positive"),
        ({"alpha": (0.01, 1, 1)}, "at least 0.02"),
        ({"prob": 1.0}, "prob"),
    ],
)
def test_bad_input(given_values, message):
    with pytest.raises(InputError, match=message):
        releases_of(**({"n_partitions": 6, "epsilon": 1.0} | given_values))
