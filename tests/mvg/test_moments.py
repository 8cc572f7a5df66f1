"""Sensitivity of second moments against search, the noise's law, the release and its file."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

from dpbayes.errors import DamagedFileError, InputError
from dpbayes.mvg import (
    Covariance,
    FeatureRanges,
    MomentQuery,
    MomentRelease,
    calibrate_moments,
    release_moments,
    whiten_moments,
)
from dpbayes.mvg.moments import SymmetricGaussian
from dpbayes.privacy.envelope import record_digest


def _shape(size, seed):
    factor = np.random.default_rng(seed).standard_normal((size, size))
    return factor @ factor.T + 0.3 * np.eye(size)


def _supremum(query, shape, rng, starts=60):
    """Search for the largest whitened change over pairs of points in the box (corners and local ascent)."""
    root = np.linalg.inv(np.linalg.cholesky(shape))
    half = query.ranges.widths / 2.0
    size, k = len(half), query.intercept or 0.0
    add = query.ranges.adjacency == "add-remove"

    def change(point):
        u, w = half * np.tanh(point[:size]), half * np.tanh(point[size:])
        z, other = np.append(k, root @ u), np.append(k, root @ w)
        delta = np.outer(z, z) - (0.0 if add else np.outer(other, other))
        return -np.sum(delta**2)

    best = 0.0
    for _ in range(starts):
        best = min(best, minimize(change, rng.standard_normal(2 * size) * 2.0, method="BFGS").fun)
    if size <= 4:
        for signs in itertools.product([-30.0, 0.0, 30.0], repeat=2 * size):
            best = min(best, change(np.array(signs)))
    return math.sqrt(-best) / query.n


CASES = [
    ("replace-one", 1, None),
    ("replace-one", 2, None),
    ("replace-one", 3, None),
    ("replace-one", 2, 0.5),
    ("replace-one", 2, 40.0),
    ("replace-one", 3, 2.0),
    ("add-remove", 2, None),
    ("add-remove", 3, 1.5),
]


@pytest.mark.parametrize(("adjacency", "size", "intercept"), CASES)
@pytest.mark.parametrize("full", [False, True])
def test_sensitivity_brackets_the_supremum(adjacency, size, intercept, full):
    rng = np.random.default_rng(size)
    lower, width = rng.standard_normal(size), rng.uniform(0.5, 3.0, size)
    ranges = FeatureRanges(lower, lower + width, adjacency)
    query = MomentQuery(ranges, n=7, intercept=intercept)
    shape = _shape(size, 3) if full else np.diag(rng.uniform(0.5, 2.0, size))
    found = query.sensitivity(shape)
    searched = _supremum(query, shape, rng, starts=8)
    assert searched <= found.value * (1 + 1e-9)
    if found.method != "upper bound":
        assert searched == pytest.approx(found.value, rel=1e-6)
    else:
        assert found.value <= math.sqrt(2.0) * searched * (1 + 1e-9)


def test_equal_ranges_attain_the_closed_form():
    # Two corners of {-1, 1}^4 with inner product 0 exist, so sqrt(2) r^2 = 4 sqrt(2) is attained.
    query = MomentQuery(FeatureRanges(-np.ones(4), np.ones(4), "replace-one"), n=1)
    found = query.sensitivity(np.eye(4))
    assert found.value == pytest.approx(4 * math.sqrt(2.0))


def test_sensitivity_holds_for_real_neighbours():
    rng = np.random.default_rng(5)
    ranges = FeatureRanges([0.0, -1.0, 3.0], [1.0, 2.0, 4.0], "replace-one")
    query = MomentQuery(ranges, n=5, intercept=1.2)
    shape = _shape(3, 8)
    full = np.eye(4)
    full[1:, 1:] = shape
    root = np.linalg.inv(np.linalg.cholesky(full))
    bound, reached = query.sensitivity(shape).value, 0.0
    for _ in range(2000):
        data = rng.uniform(ranges.lower[:, None], ranges.upper[:, None], (3, 5))
        other = data.copy()
        other[:, 2] = np.where(rng.random(3) < 0.5, ranges.lower, ranges.upper)
        data[:, 2] = np.where(rng.random(3) < 0.5, ranges.lower, ranges.upper)
        change = root @ (query.value(data) - query.value(other)) @ root.T
        reached = max(reached, np.linalg.norm(change))
    assert 0.6 * bound < reached <= bound


@pytest.mark.parametrize("intercept", [None, 1.5])
def test_noise_has_the_stated_variances_and_covariances(intercept):
    ranges = FeatureRanges([0.0, 0.0], [1.0, 2.0], "replace-one")
    query = MomentQuery(ranges, n=4, intercept=intercept)
    noise = SymmetricGaussian(query, 2.0, _shape(2, 4))
    records, draws = np.array([[0.1, 0.9, 0.5, 0.2], [0.3, 1.7, 2.0, 0.0]]), 6_000
    rng = np.random.default_rng(31)
    exact = query.value(records)
    sample = np.stack([release_moments(records, noise, rng=rng).value - exact for _ in range(draws)])
    variances = np.mean(sample**2, axis=0)
    expected = noise.variances
    free = expected > 0
    # A mean square has relative standard error sqrt(2 / draws); 6 distinct entries, false alarm at 4.5 below 5e-5.
    assert np.all(np.abs(variances[free] / expected[free] - 1.0) < 4.5 * math.sqrt(2 / draws))
    assert np.all(variances[~free] < 1e-28)
    assert np.all(np.abs(sample.mean(axis=0)) < 4.5 * np.sqrt(expected / draws) + 1e-14)
    full = noise.row_cov.matrix()
    i, j = query.size - 2, query.size - 1
    # cov(E_ij, E_jj) = sigma^2 Sigma_ij Sigma_jj for E = F G F'.
    covariance = np.mean(sample[:, i, j] * sample[:, j, j])
    error = math.sqrt((expected[i, j] * expected[j, j] + (4 * full[i, j] * full[j, j]) ** 2) / draws)
    assert covariance == pytest.approx(4.0 * full[i, j] * full[j, j], abs=4.5 * error)


def test_calibration_inverts():
    query = MomentQuery(FeatureRanges([0.0, 0.0, 0.0], [1.0, 2.0, 9.0], "replace-one"), n=1000)
    noise = calibrate_moments(query, epsilon=0.7, delta=1e-6, shape=_shape(3, 1))
    assert noise.delta(0.7) == pytest.approx(1e-6, rel=1e-8)
    assert noise.epsilon(1e-6) == pytest.approx(0.7, rel=1e-8)
    assert calibrate_moments(query, mu=0.25).mu.value == pytest.approx(0.25)


def test_noise_falls_with_n():
    ranges = FeatureRanges([0.0], [1.0], "replace-one")
    few, many = (calibrate_moments(MomentQuery(ranges, n), epsilon=1.0, delta=1e-5) for n in (100, 10_000))
    assert few.stddev == pytest.approx(100 * many.stddev, rel=1e-12)


def test_real_release_has_the_stated_law():
    query = MomentQuery(FeatureRanges(-np.ones(30), np.ones(30), "replace-one"), n=2, intercept=1.0)
    noise = SymmetricGaussian(query, 3.0, Covariance.identity(30))
    records = np.random.default_rng(1).uniform(-1, 1, (30, 2))
    release = release_moments(records, noise)
    assert release.sampler == "opendp"
    upper = np.triu_indices(31)
    z = ((release.value - query.value(records))[upper] / np.sqrt(np.maximum(noise.variances[upper], 1e-300)))[1:]
    assert stats.kstest(z, "norm").pvalue > 1e-6  # false alarm 1e-6: the entropy is the operating system's


def test_moments_are_those_of_records_inside_the_stated_ranges():
    query = MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 2)
    filled = np.array([[900.0, np.nan]])
    for rng in (None, np.random.default_rng(1)):
        released = release_moments(filled, SymmetricGaussian(query, 1e-9, Covariance.identity(1)), rng=rng).value
        # The middle is the centre: moments of 1 - 0.5 and 0.5 - 0.5 over two records.
        np.testing.assert_allclose(released, [[0.125]], atol=1e-7)


def test_release_file(tmp_path):
    query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 2.0], "replace-one"), n=3, intercept=0.7)
    noise = calibrate_moments(query, epsilon=1.0, delta=1e-5, shape=_shape(2, 2))
    release = release_moments(np.ones((2, 3)), noise, rng=np.random.default_rng(2))
    again = MomentRelease.read(release.write(tmp_path / "release.json"))
    np.testing.assert_array_equal(again.value, release.value)
    assert again.digest == release.digest and again.sampler == "simulation"
    np.testing.assert_allclose(again.noise.variances, noise.variances, rtol=1e-12)
    stated = json.loads((tmp_path / "release.json").read_text())
    stated["value"][1][1] += 1e-9
    (tmp_path / "release.json").write_text(json.dumps(stated))
    with pytest.raises(DamagedFileError, match="its digest does not match"):
        MomentRelease.read(tmp_path / "release.json")
    for change, message in (
        ({"format": "dpbayes-release"}, "format 'dpbayes-moments'"),
        ({"value": np.triu(release.value).tolist()}, "must be symmetric"),
        ({"n": 10**19}, "must be a whole number from 1 to 2"),
        ({"n": 10**400}, "must be a whole number from 1 to 2"),
        ({"adjacency": "neighbours"}, "adjacency"),
        ({"features": ["one"]}, "2 different names"),
        ({"stddev": -1.0}, "stddev must be positive"),
        ({"centre": [0.0, 0.0]}, "holds what it cannot mean"),
    ):
        changed = {key: value for key, value in (stated | release.to_dict() | change).items() if key != "digest"}
        changed["digest"] = record_digest(changed)
        (tmp_path / "release.json").write_text(json.dumps(changed))
        with pytest.raises(DamagedFileError, match=message):
            MomentRelease.read(tmp_path / "release.json")


def test_a_unit_of_three_records_moves_the_sum_three_times_as_far_and_no_further():
    ranges = FeatureRanges([0.0, -1.0], [2.0, 5.0], "replace-one")
    shape = np.diag((ranges.widths / 2) ** 2)
    one, unit = (MomentQuery(ranges, 50, intercept=1.4, unit="person", rows_per_unit=k) for k in (1, 3))
    noise = calibrate_moments(unit, epsilon=1.0, delta=1e-5, shape=shape)
    assert noise.stddev == pytest.approx(3.0 * calibrate_moments(one, epsilon=1.0, delta=1e-5, shape=shape).stddev)
    values = np.random.default_rng(1).uniform(ranges.lower[:, None], ranges.upper[:, None], (2, 50))
    other = values.copy()
    values[:, :3], other[:, :3] = ranges.lower[:, None], ranges.upper[:, None]
    change = noise.row_cov.whiten(unit.value(values) - unit.value(other))
    moved = np.linalg.norm(noise.row_cov.whiten(change.T))
    found = unit.sensitivity(shape)
    assert found.value / math.sqrt(2.0) <= moved <= found.value
    with pytest.raises(InputError, match="from 1 to 2"):
        MomentQuery(ranges, 2, unit="person", rows_per_unit=3)


def test_an_analyst_regresses_any_named_feature_on_any_others():
    rng = np.random.default_rng(4)
    ranges = FeatureRanges([0.0, 0.0, -1.0, 5.0], [1.0, 2.0, 1.0, 9.0], "replace-one")
    names, n = ("age", "dose/day", "score", "effect"), 50
    query = MomentQuery(ranges, n, intercept=1.5, features=names)
    noise = calibrate_moments(query, epsilon=2.0, delta=1e-5, shape=np.diag((ranges.widths / 2) ** 2))
    release = release_moments(rng.random((4, n)), noise, rng=rng)
    white = whiten_moments(release, features=["effect", "dose/day", "age"])
    assert white.coordinates.features == ("effect", "dose/day", "age")
    rows, half = [3, 1, 0], ranges.widths / 2
    expected = release.value[np.ix_([0, 4, 2, 1], [0, 4, 2, 1])] / np.outer(np.r_[1, half[rows]], np.r_[1, half[rows]])
    np.testing.assert_allclose(white.moments, expected, rtol=1e-12)
    with pytest.raises(InputError, match=r"holds no weight; choose among .*age"):
        whiten_moments(release, features=["weight", "age"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: MomentQuery(r, n=0), "n must be a whole number"),
        (lambda r: MomentQuery(r, n=5, intercept=-1.0), "intercept must be positive"),
        (lambda r: MomentQuery(r, n=5).value(np.zeros((2, 4))), "states n = 5 records, but 4"),
        (lambda r: SymmetricGaussian(MomentQuery(r, n=5), 0.0, np.eye(2)), "stddev must be positive"),
        (
            lambda r: SymmetricGaussian(MomentQuery(r, n=5), 1e-320, np.eye(2)),
            "is no noise beside a sensitivity this large",
        ),
        (
            lambda r: SymmetricGaussian(MomentQuery(r, n=5), 1e-300, np.eye(2)),
            "is no noise beside a sensitivity this large",
        ),
        (lambda r: SymmetricGaussian(MomentQuery(r, n=5), 1.0, np.eye(3)), "must have 2 rows"),
        (lambda r: MomentQuery(r, n=5, features=("x" * 2000, "y")), "name has at most 1,000 characters"),
        (lambda r: calibrate_moments(MomentQuery(r, n=5, intercept=1e200), mu=1.0), "ranges overflow; rescale"),
        (lambda r: calibrate_moments(MomentQuery(r, n=5)), "give epsilon and delta, or mu"),
        (lambda r: calibrate_moments(MomentQuery(r, n=5), mu=1.0, epsilon=1.0), "not both"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"))


def test_add_remove_protects_the_number_of_records():
    ranges = FeatureRanges([0.0], [1.0], "add-remove")
    query = MomentQuery(ranges, n=5, intercept=1.0)
    noise = SymmetricGaussian(query, 1e-9, Covariance.identity(1))
    assert noise.variances[0, 0] > 0
    for count in (4, 5, 6):
        value = release_moments(np.full((1, count), 0.5), noise, rng=np.random.default_rng(1)).value
        assert value[0, 0] == pytest.approx(count / 5, abs=1e-7)
