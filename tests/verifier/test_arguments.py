"""Bad arguments of the verifier: one clear error each."""

import numpy as np
import polars as pl
import pytest

from dpbayes.errors import InputError
from dpbayes.verifier import (
    PartitionCounts,
    build_model,
    count_partitions,
    count_statistic,
    count_surface,
    design_surface,
    draw_posterior,
    posterior,
    release_counts,
    smallest_epsilon,
)

HUGE = 10**5000
COUNTS = PartitionCounts(20, 4, 1)
RELEASE = release_counts(COUNTS, epsilon=1.0, rng=np.random.default_rng(1))
FRAME = pl.DataFrame({"y": [1.0, 2.0, 3.0, 4.0], "x": [0.0, 1.0, 0.0, 1.0]})
CLAIM = {"threshold": 0.0, "direction": ">", "n_partitions": 2}


FITTED = {"frame": FRAME, "formula": "y ~ x", "coefficient": "x"} | CLAIM
SUPPOSED = {"n_partitions": [5], "epsilon": [1.0], "r": 0.9}


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (release_counts, {"counts": COUNTS, "epsilon": HUGE}, "epsilon must be positive and finite"),
        (release_counts, {"counts": COUNTS, "epsilon": 1.0, "noise": ["laplace"]}, "noise must be"),
        (release_counts, {"counts": COUNTS, "epsilon": 1.0, "shares": 3}, "shares must be a sequence"),
        (posterior, {"release": RELEASE, "alpha": 1.0}, "alpha must be a sequence"),
        (posterior, {"release": RELEASE, "alpha": ("a", 1.0, 1.0)}, "alpha must be a real number, got 'a'"),
        (posterior, {"release": RELEASE, "alpha": (True, True, True)}, "alpha must be a real number, got True"),
        (posterior, {"release": RELEASE, "tolerance": "small"}, "tolerance must be real"),
        (posterior(RELEASE).prob_greater, {"threshold": "half"}, "threshold must be real"),
        (posterior(RELEASE).interval, {"prob": HUGE}, "prob must be real"),
        (draw_posterior, {"release": RELEASE, "draws": HUGE}, "draws must be a whole number from 1 to"),
        (
            draw_posterior,
            {"release": RELEASE, "random_seed": -1},
            "random_seed must be a whole number from 0 to 9,223,372,036,854,775,807, got -1",
        ),
        (draw_posterior, {"release": RELEASE, "random_seed": "one"}, "random_seed must be a whole number"),
        (build_model, {"releases": 3}, "releases must be a sequence"),
        (build_model, {"releases": RELEASE, "questions": 3}, "names must be a sequence"),
        (build_model, {"releases": RELEASE, "between_sd": "wide", "pooling": "partial"}, "between_sd must be a real"),
        (build_model, {"releases": RELEASE, "centre": 0.0, "pooling": "partial"}, "centre must be a sequence"),
        (build_model, {"releases": RELEASE, "alpha": HUGE}, "alpha must be numbers"),
        (design_surface, SUPPOSED | {"r": "0.9"}, "r must be real"),
        (design_surface, SUPPOSED | {"alpha": 1.0}, "alpha must be a sequence"),
        (design_surface, SUPPOSED | {"threshold": None}, "threshold must be a number"),
        (design_surface, SUPPOSED | {"confidence": "high"}, "confidence must be real"),
        (count_surface, {"n_partitions": 5, "epsilon": 1.0, "alpha": "abc"}, "alpha must be a sequence"),
        (count_surface, {"n_partitions": 5, "epsilon": 1.0, "confidence": [0.9]}, "confidence must be a number"),
        (design_surface, {"n_partitions": 5, "epsilon": [1.0], "r": 0.9}, "n_partitions must be a sequence"),
        (design_surface, {"n_partitions": [5], "epsilon": [], "r": 0.9}, "the grid is empty"),
        (design_surface, {"n_partitions": [5], "epsilon": [1.0], "r": "0.9"}, "r must be real"),
        (smallest_epsilon, {"n_partitions": 5, "r": 0.9, "wanted": "most"}, "wanted must be real"),
        (count_partitions, FITTED | {"threshold": HUGE}, "threshold must be a finite number"),
        (count_partitions, FITTED | {"direction": [">"]}, "direction must be '<='"),
        (count_partitions, FITTED | {"random_state": "one"}, "random_state must be a whole number"),
        (count_partitions, FITTED | {"random_state": -1}, "random_state must be a whole number"),
        (count_partitions, FITTED | {"frame": [[1]]}, "frame"),
        (count_statistic, {"frame": FRAME, "statistic": "mean"} | CLAIM, "statistic must be a function"),
    ],
)
def test_a_bad_argument_is_one_clear_error(call, arguments, message):
    with pytest.raises(InputError, match=message):
        call(**arguments)


def test_a_frame_that_names_a_column_twice_is_refused():
    pd = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="name a column twice"):
        count_partitions(pd.DataFrame([[1, 2, 3]], columns=["y", "x", "x"]), formula="y ~ x", coefficient="x", **CLAIM)


def test_draws_of_r_are_numbers_where_both_shares_lie_below_the_doubles():
    release = release_counts(PartitionCounts(0, 0, 30), epsilon=8.0, rng=np.random.default_rng(0))
    r = draw_posterior(release, alpha=(1e-4, 3e-4, 1.0), draws=2000, random_seed=1)["posterior"]["r"].to_numpy()
    p = draw_posterior(release, alpha=(1e-4, 3e-4, 1.0), draws=2000, random_seed=1)["posterior"]["p"].to_numpy()
    assert np.count_nonzero(p[..., 0] + p[..., 1] == 0) > r.size / 2
    # Given counts of 0, r is Beta(1e-4, 3e-4), as good as Bernoulli(1/4); five standard errors of its mean.
    assert abs(r.mean() - 0.25) < 5 * (0.25 * 0.75 / r.size) ** 0.5
