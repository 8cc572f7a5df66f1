import json

import numpy as np
import pytest
import xarray as xr
from scipy.stats import multinomial

from dpbayes.bloom.filters import BitDistribution, BloomRelease, build_filters, shuffle_flip, transition_matrix
from dpbayes.bloom.model import build_model, draw_reach, draw_true_counts, logo_densities, reach_variances
from dpbayes.bloom.reach import estimate_reach
from dpbayes.errors import DamagedFileError, InputError
from dpbayes.privacy.envelope import record_digest

ONE = BloomRelease(np.array([1, 1]), 0.1, "secure")


def _compositions(total, cells):
    if cells == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, cells - 1):
            yield (first, *rest)


def test_likelihood_sums_the_true_counts_out():
    """P(x | theta) by summing over every assignment of true counts to released ones."""
    release = BloomRelease(np.array([2, 1, 0, 2]), 0.2, "simulation")
    theta = np.array([0.5, 0.2, 0.1, 0.2])
    kernel = transition_matrix(2, 0.2)
    total = 0.0
    for true in _compositions(5, 4):
        prior = multinomial.pmf(true, 5, theta)
        law = {(0, 0, 0, 0): 1.0}
        for logo, count in enumerate(true):
            for _ in range(count):
                grown = {}
                for seen, mass in law.items():
                    for out in range(4):
                        key = tuple(s + (out == place) for place, s in enumerate(seen))
                        grown[key] = grown.get(key, 0.0) + mass * kernel[logo, out]
                law = grown
        total += prior * law.get(tuple(release.counts), 0.0)
    assert multinomial.pmf(release.counts, 5, kernel @ theta) == pytest.approx(total, rel=1e-10)
    model = build_model(release)
    logp = model.compile_fn(model.observedlogp, point_fn=True)
    name, transform = next(iter(model.initial_point())), model.rvs_to_transforms[model["logo_probability"]]
    values = [float(logp({name: transform.forward(at).eval()})) for at in (theta, theta[::-1].copy())]
    other = multinomial.logpmf(release.counts, 5, kernel @ theta[::-1])
    # The multinomial coefficient, which PyMC has to 1e-7 only, cancels.
    assert values[0] - values[1] == pytest.approx(np.log(total) - other, rel=1e-10)


def test_true_counts_have_the_exact_conditional_law():
    """One filter: the true ones behind x are two independent binomials; mean within 4.5 standard errors (1e-5)."""
    release, theta, p = BloomRelease(np.array([700, 300]), 0.2, "simulation"), 0.15, 0.2
    draws = draw_true_counts(np.tile([1 - theta, theta], (4000, 1)), release, random_seed=4)
    assert (draws.sum(axis=1) == 1000).all()
    behind_zero = theta * p / (theta * p + (1 - theta) * (1 - p))
    behind_one = theta * (1 - p) / (theta * (1 - p) + (1 - theta) * p)
    mean = 700 * behind_zero + 300 * behind_one
    variance = 700 * behind_zero * (1 - behind_zero) + 300 * behind_one * (1 - behind_one)
    assert abs(draws[:, 1].mean() - mean) < 4.5 * np.sqrt(variance / 4000)
    assert draws[:, 1].var() == pytest.approx(variance, rel=0.12)


def _exact_posterior(release, rng, n):
    """Draws of theta for one filter under the Jeffreys prior, from a fine grid."""
    grid = (np.arange(20_000) + 0.5) / 20_000
    shown = release.flip_prob + (1 - 2 * release.flip_prob) * grid
    zeros, ones = release.counts
    log_mass = ones * np.log(shown) + zeros * np.log1p(-shown) - 0.5 * np.log(grid * (1 - grid))
    mass = np.exp(log_mass - log_mass.max())
    return rng.choice(grid, size=n, p=mass / mass.sum())


def test_posterior_of_reach_covers():
    """200 audiences of one publisher, 80 % intervals: count within 4.4 binomial standard errors (false alarm 1e-5)."""
    rng, repeats, people, law = np.random.default_rng(6), 200, 1500, BitDistribution(3000)
    hits = 0
    for repeat in range(repeats):
        filters = build_filters([np.arange(people)], distribution=law, seed=int(rng.integers(2**60)))
        release = shuffle_flip(filters, flip_prob=0.15, rng=rng)
        theta = _exact_posterior(release, rng, 400)
        true = draw_true_counts(np.column_stack([1 - theta, theta]), release, random_seed=repeat)
        reach = draw_reach(true, law, random_seed=repeat + 1)
        low, high = np.quantile(reach, [0.1, 0.9])
        hits += low <= people <= high
    assert abs(hits - 0.8 * repeats) < 4.4 * np.sqrt(repeats * 0.16)


@pytest.mark.slow
def test_sampled_posterior_agrees_with_debiasing():
    from dpbayes.inference import sample

    rng, law = np.random.default_rng(9), BitDistribution(20_000)
    sets = [rng.choice(10**6, size=3000, replace=False) for _ in range(3)]
    people = np.unique(np.concatenate(sets)).size
    release = shuffle_flip(build_filters(sets, distribution=law, seed=5), flip_prob=0.1, rng=rng)
    trace = sample(build_model(release), draws=500, tune=500, chains=2, random_seed=3, progressbar=False)
    theta = trace["posterior"]["logo_probability"].values.reshape(-1, 8)
    reach = draw_reach(draw_true_counts(theta, release, random_seed=1), law, random_seed=2)
    estimate = estimate_reach(release).union()
    assert abs(reach.mean() - people) < 4.5 * estimate.stderr
    assert reach.std() == pytest.approx(estimate.stderr, rel=0.25)


@pytest.mark.parametrize("label", ["replace-one", "add-remove", ["one-position"]])
def test_another_adjacency_is_refused_and_not_changed(tmp_path, label):
    path = tmp_path / "release.json"
    record = BloomRelease(np.array([70, 10, 15, 5]), 0.1, "secure").to_dict() | {"adjacency": label}
    path.write_text(json.dumps(record | {"digest": record_digest(record)}))
    with pytest.raises(DamagedFileError, match="its adjacency is"):
        BloomRelease.read(path)


def test_release_round_trip(tmp_path):
    release = shuffle_flip([[1, 0, 1], [1, 0, 0]], flip_prob=0.1, decay=2.0)
    path = tmp_path / "release.json"
    release.write(path)
    again = BloomRelease.read(path)
    np.testing.assert_array_equal(again.counts, release.counts)
    assert again.digest == release.digest and again.decay == 2.0 and again.sampler == "secure"
    written = path.read_text()
    for old, new in (("[", "[1, "), ("0.1", "0.2"), ("secure", "simulation"), ("2.0", "2"), ("bloom", "broom")):
        assert old in written
        path.write_text(written.replace(old, new, 1))
        with pytest.raises(DamagedFileError):
            BloomRelease.read(path)
    # Signed anew, counts that are no counts and a flip probability that is none are still refused.
    for change in (
        {"counts": [1, 2, 3]},
        {"counts": [1, -2]},
        {"flip_prob": 0.7},
        {"decay": None},
        {"sampler": "lucky"},
    ):
        record = release.to_dict() | change
        path.write_text(json.dumps(record | {"digest": record_digest(record)}))
        with pytest.raises(DamagedFileError):
            BloomRelease.read(path)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: build_model(BloomRelease(np.ones(512, dtype=int), 0.1, "secure")), "at most 8 filters, got 9"),
        (lambda: build_model(BloomRelease(np.array([1, 1]), 0.1, "secure"), concentration=0.0), "got 0.0"),
        (lambda: BloomRelease(np.array([1, 1, 1]), 0.1, "secure"), "2\\^k"),
        (lambda: BloomRelease(np.array([1, 1]), 0.1, "lucky"), "got 'lucky'"),
        (
            lambda: draw_true_counts([[0.5, 0.5, 0.0]], BloomRelease(np.array([1, 1]), 0.1, "secure"), random_seed=1),
            "shape",
        ),
        (lambda: draw_reach(np.array([[1, 1]]), BitDistribution(2), publishers=(1,), random_seed=1), "from 0 to 0"),
    ],
)
def test_bad_input(call, text):
    with pytest.raises(InputError, match=text):
        call()


def test_the_split_of_reach_is_that_of_linear_counting():
    rng, m, people = np.random.default_rng(8), 4000, 1500.0
    empty = np.round(m * np.exp(-people / m) + 40.0 * rng.normal(size=2000)).astype(int)
    true = np.stack([empty, m - empty], axis=1)
    privacy, hashing = reach_variances(true, BitDistribution(m), random_seed=9)
    n = -m * np.log(empty / m)
    # Relative standard errors: hashing sqrt(2 / 40,000) = 0.7 %; both at five.
    assert hashing == pytest.approx((m * (np.exp(n / m) - 1 - n / m)).mean(), rel=0.036)
    # A mean of twenty draws adds a twentieth of hashing's variance, which is known to sqrt(2 / 2,000) of itself, and is
    # uncorrelated with n to one in sqrt(2,000).
    twentieth = hashing / 20
    margin = 5 * (np.sqrt(2 / 2000) * twentieth + 2 * np.sqrt(n.var() * twentieth / 2000))
    assert privacy == pytest.approx(n.var(ddof=1), abs=margin)


def test_filters_that_were_not_flipped_leave_hashing_alone():
    true = np.tile([2500, 1500], (1000, 1))
    privacy, hashing = reach_variances(true, BitDistribution(4000), random_seed=10)
    assert privacy < 0.02 * hashing


def test_the_parts_of_the_density_are_the_models_own_up_to_constants():
    release = BloomRelease(np.array([700, 120, 110, 70]), 0.1, "simulation")
    model, rng = build_model(release), np.random.default_rng(3)
    theta = rng.dirichlet(np.full(4, 2.0), size=6)
    trace = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {
                    "logo_probability": (("chain", "draw", "logo"), theta[None]),
                    "released_probability": (
                        ("chain", "draw", "released_logo"),
                        (theta @ transition_matrix(2, 0.1))[None],
                    ),
                }
            )
        }
    )
    prior, likelihood = logo_densities(trace, release.counts)
    (variable,) = model.free_RVs
    value = model.rvs_to_values[variable].name
    points = [{value: model.rvs_to_transforms[variable].forward(row, *variable.owner.inputs).eval()} for row in theta]
    for ours, part in ((prior, model.free_RVs), (likelihood, model.observed_RVs)):
        logp = model.compile_logp(vars=part, jacobian=False)
        exact = np.array([logp(point) for point in points])
        np.testing.assert_allclose(ours.values[0] - ours.values[0, 0], exact - exact[0], atol=1e-8)
