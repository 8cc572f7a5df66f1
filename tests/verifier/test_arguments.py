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
    expected,
    posterior,
    release_counts,
    smallest_partitions,
)

HUGE = 10**5000
COUNTS = PartitionCounts(20, 4, 1)
RELEASE = release_counts(COUNTS, epsilon=1.0, rng=np.random.default_rng(1))
FRAME = pl.DataFrame({"y": [1.0, 2.0, 3.0, 4.0], "x": [0.0, 1.0, 0.0, 1.0]})
CLAIM = {"threshold": 0.0, "direction": ">", "n_partitions": 2}


def fitted(**changed):
    return count_partitions(FRAME, **({"formula": "y ~ x", "coefficient": "x"} | CLAIM | changed))


@pytest.mark.parametrize(
    "call",
    [
        lambda: release_counts(COUNTS, epsilon=HUGE),
        lambda: release_counts(COUNTS, epsilon=1.0, noise=["laplace"]),
        lambda: release_counts(COUNTS, epsilon=1.0, shares=3),
        lambda: posterior(RELEASE, alpha=1.0),
        lambda: posterior(RELEASE, alpha=("a", 1.0, 1.0)),
        lambda: posterior(RELEASE, alpha=(True, True, True)),
        lambda: posterior(RELEASE, tolerance="small"),
        lambda: posterior(RELEASE).prob_greater("half"),
        lambda: posterior(RELEASE).interval(HUGE),
        lambda: draw_posterior(RELEASE, draws=HUGE),
        lambda: draw_posterior(RELEASE, random_seed=-1),
        lambda: draw_posterior(RELEASE, random_seed="one"),
        lambda: build_model(3),
        lambda: build_model(RELEASE, questions=3),
        lambda: build_model(RELEASE, between_sd="wide", pooling="partial"),
        lambda: build_model(RELEASE, centre=0.0, pooling="partial"),
        lambda: build_model(RELEASE, alpha=HUGE),
        lambda: expected(5, epsilon=1.0, r="0.9"),
        lambda: expected(5, epsilon=1.0, r=0.9, alpha=1.0),
        lambda: expected(5, epsilon=1.0, r=0.9, threshold=None),
        lambda: expected(5, epsilon=1.0, r=0.9, confidence="high"),
        lambda: count_surface(5, epsilon=1.0, alpha="abc"),
        lambda: count_surface(5, epsilon=1.0, confidence=[0.9]),
        lambda: design_surface(5, [1.0], r=0.9),
        lambda: design_surface([5], [], r=0.9),
        lambda: design_surface([5], [1.0], r="0.9"),
        lambda: smallest_partitions(epsilon=1.0, r=0.9, wanted="most"),
        lambda: fitted(threshold=HUGE),
        lambda: fitted(direction=[">"]),
        lambda: fitted(random_state="one"),
        lambda: fitted(random_state=-1),
        lambda: count_partitions([[1]], formula="y ~ x", coefficient="x", **CLAIM),
        lambda: count_statistic(FRAME, "mean", **CLAIM),
    ],
)
def test_a_bad_argument_is_one_clear_error(call):
    with pytest.raises(InputError):
        call()


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
