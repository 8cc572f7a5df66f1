"""What a release holds is checked when it is made, also by hand: no noise law, sampler or shape that cannot be."""

import numpy as np
import pytest

from dpbayes.bloom import (
    BitDistribution,
    BloomRelease,
    build_filters,
    shuffle_flip,
)
from dpbayes.bloom.filters import Filters, transition_matrix
from dpbayes.errors import InputError
from dpbayes.mvg import (
    Covariance,
    FeatureRanges,
    MomentQuery,
    calibrate,
    calibrate_moments,
    compare_noise,
    naive_regression,
    optimal_covariance,
    release_moments,
)
from dpbayes.mvg.allocation import directional_shape
from dpbayes.mvg.matrix import MatrixRelease
from dpbayes.mvg.model import RegressionPriors
from dpbayes.mvg.moments import MomentRelease

HUGE = 10**5000
LOGOS = np.array([0, 1, 2, 3], dtype=np.uint32)
RANGES = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
MATRIX = calibrate(Covariance.identity(2), Covariance.identity(3), RANGES, epsilon=1.0, delta=1e-5)
MOMENTS = calibrate_moments(MomentQuery(RANGES, 10), epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: BloomRelease([1, 2, 3, 4], 0.7, "secure"),
        lambda: BloomRelease([1, 2, 3, 4], "0.1", "secure"),
        lambda: BloomRelease([1, 2, 3, 4], 0.1, "exact"),
        lambda: Filters([0, 1], 2),
        lambda: BloomRelease([1, 2, 3, 4], 0.1, "secure", decay=-1),
        lambda: BloomRelease([1, 2, 3, 4], 0.1, "secure", decay="none"),
        lambda: BloomRelease([[1], [2, 3]], 0.1, "secure"),
        lambda: BitDistribution(8, decay="none"),
        lambda: build_filters("ab", distribution=BitDistribution(8), seed=1),
        lambda: build_filters([["a"]], distribution=8, seed=1),
        lambda: shuffle_flip([[1, 0]], flip_prob=0.1, rng=1),
        lambda: transition_matrix(2, HUGE),
        lambda: transition_matrix(HUGE, 0.1),
        lambda: MatrixRelease(np.zeros((3, 2)), MATRIX, "opendp"),
        lambda: MatrixRelease(np.full((2, 3), np.nan), MATRIX, "opendp"),
        lambda: MatrixRelease(np.zeros((2, 3)), "gaussian", "opendp"),
        lambda: MatrixRelease(np.zeros((2, 3)), MATRIX, "secure"),
        lambda: MomentRelease(np.zeros((3, 3)), MOMENTS, "opendp"),
        lambda: MomentRelease("zero", MOMENTS, "opendp"),
        lambda: MomentRelease(np.zeros((2, 2)), MATRIX, "opendp"),
        lambda: FeatureRanges("low", "high", "replace-one"),
        lambda: FeatureRanges([0.0], [HUGE], "replace-one"),
        lambda: Covariance(2, [[1.0], [2.0, 3.0]]),
        lambda: directional_shape([0.5, 0.5], "eye"),
        lambda: directional_shape("half"),
        lambda: calibrate([[HUGE]], [[1.0]], RANGES, epsilon=1.0, delta=1e-5),
        lambda: RegressionPriors(coefficient="wide"),
        lambda: naive_regression("moments"),
        lambda: optimal_covariance("ball", mu=1.0),
        lambda: calibrate_moments("query", epsilon=1.0, delta=1e-5),
        lambda: compare_noise("ranges", n=3, epsilon=1.0, delta=1e-5),
        lambda: release_moments([[1.0]], "noise"),
        lambda: RegressionPriors(residual=HUGE),
    ],
)
def test_a_bad_argument_is_one_clear_error(call):
    with pytest.raises(InputError):
        call()


def test_lists_are_arrays():
    assert BloomRelease([1, 2, 3, 4], 0.1, "secure").n_filters == 2
    assert MatrixRelease(np.zeros((2, 3)).tolist(), MATRIX, "opendp").values.shape == (2, 3)
    assert MomentRelease([[0.0, 0.0], [0.0, 0.0]], MOMENTS, "opendp").value.shape == (2, 2)
