import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.ide import Prior, k_marginal_score

DOMAIN = Domain.from_levels({"place": ("a", "b", "c"), "x": (0, 1), "y": (0, 1, 2)})


def sample(n, seed, domain=DOMAIN):
    rng = np.random.default_rng(seed)
    return pl.DataFrame({a.name: rng.choice(a.levels, n) for a in domain})


def test_importing_the_package_imports_no_model_library():
    code = (
        "import sys, dpbayes.ide as i; [getattr(i, n) for n in i.__all__]; "
        "print([m for m in ('pymc', 'pytensor') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_frame_becomes_distinct_rows_with_their_shares():
    frame = sample(500, 1)
    prior = Prior.from_frame(frame, DOMAIN)
    assert prior.size <= DOMAIN.size
    assert prior.n_records == 500
    counts = frame.group_by("place").len().sort("place")["len"].to_numpy()
    np.testing.assert_allclose(prior.marginal(["place"]), counts / 500)
    assert prior.marginal(["y", "place"]).shape == (3, 3)


@pytest.mark.parametrize("weights", [[0, 0], [-1, 2], [np.nan, 1], [np.inf, 1]])
def test_negative_or_all_zero_weights_are_refused(weights):
    with pytest.raises(InputError, match=r"zero|at least 0"):
        Prior.full(Domain.from_levels({"x": (0, 1)}), weights)


def test_public_values_outside_the_levels_and_missing_columns_are_named():
    with pytest.raises(InputError, match="'x' holds 7"):
        Prior.from_frame(pl.DataFrame({"place": ["a"], "x": [7], "y": [0]}), DOMAIN)
    with pytest.raises(MissingColumnError, match="'y'"):
        Prior.from_frame(pl.DataFrame({"place": ["a"], "x": [1]}), DOMAIN)
    with pytest.raises(InputError, match="no rows"):
        Prior.from_frame(sample(5, 1).head(0), DOMAIN)


def test_score_is_1000_for_a_copy_and_penalizes_sizes():
    truth = Prior.from_frame(sample(300, 4), DOMAIN)
    copy = k_marginal_score(truth, truth, by="place")
    assert copy.value == pytest.approx(1000)
    assert copy.penalized([0, 250, -251]).errors.tolist() == [0, 0, 2]
    assert copy.penalized([0, 250, -251]).value == pytest.approx(1000 - 1000 / 3)


def test_score_by_hand_and_on_a_fixed_list():
    truth = Prior.full(DOMAIN)
    skewed = Prior.full(DOMAIN, np.array([2.0, 1.0])[None, :, None] * np.ones(DOMAIN.shape))
    assert k_marginal_score(skewed, truth, by="place", k=1).errors == pytest.approx([1 / 6] * 3)  # x: 1/3; y: 0
    listed = k_marginal_score(skewed, truth, by="place", sets=[["x"]])
    assert listed.value == pytest.approx(1000 - 500 / 3)
    nothing = Prior(DOMAIN, [[0, 0, 0]], [1.0])
    assert k_marginal_score(nothing, truth, by="place", k=1).errors[1:].tolist() == [2.0, 2.0]


def test_score_refuses_what_it_cannot_compare():
    truth = Prior.full(DOMAIN)
    with pytest.raises(InputError, match="grouping attribute"):
        k_marginal_score(truth, truth, by="place", sets=[["place", "x"]])
    with pytest.raises(InputError, match="k must be a whole number from 1 to 2"):
        k_marginal_score(truth, truth, by="place", k=3)
    with pytest.raises(InputError, match="different domains"):
        k_marginal_score(Prior.full(DOMAIN.project(["place", "x"])), truth, by="place")
