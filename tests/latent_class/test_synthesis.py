from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import xarray as xr
from scipy import stats

from dpbayes.data import Domain, marginals
from dpbayes.errors import InputError
from dpbayes.latent_class.analysis import check_fitted, population_given_records
from dpbayes.latent_class.synthesis import of_varied_population, predict_release, synthesize, write_synthetic
from dpbayes.privacy import NoisyTotal, Publication, release_tables
from dpbayes.privacy.laws import TwoSidedGeometric

DOMAIN = Domain.from_levels({"age": ("<18", "18+"), "sex": (0, 1, 2)})
WEIGHTS = np.array([0.3, 0.7])
AGE = np.array([[0.9, 0.1], [0.2, 0.8]])
SEX = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])


@pytest.fixture
def trace() -> xr.DataTree:
    """Twelve equal draws of one known mixture."""

    def repeat(values: np.ndarray, *dims: str) -> tuple:
        return ("chain", "draw", *dims), np.broadcast_to(values, (3, 4, *values.shape))

    posterior = xr.Dataset(
        {
            "weights": repeat(WEIGHTS, "class"),
            "profile_age": repeat(AGE, "class", "age"),
            "profile_sex": repeat(SEX, "class", "sex"),
        },
        coords={"age": ["<18", "18+"], "sex": [0, 1, 2]},
    )
    return xr.DataTree.from_dict({"posterior": posterior})


def test_records_follow_the_mixture(trace):
    frames = synthesize(trace, n_datasets=4, n_rows=50_000, random_seed=3)
    assert [frame.columns for frame in frames] == [["age", "sex"]] * 4
    expected = np.einsum("h,ha,hs->as", WEIGHTS, AGE, SEX)
    (table,) = marginals(pl.concat(frames), [["age", "sex"]], domain=DOMAIN)
    # 200,000 records: a standard error of at most .0011; 5 of them: false alarm below 1e-5 over 6 cells.
    np.testing.assert_allclose(table.counts / table.total, expected, atol=5 * 0.0011)


def test_records_of_a_varied_population_have_its_covariance():
    """5 standard errors of 4,000 variances, some 2.5 % each (a beta-binomial's tails add a tenth): 1 in 200,000."""
    rng, p, n = np.random.default_rng(4), np.array([0.1, 0.2, 0.3, 0.4]), 300
    records = np.array([of_varied_population(rng.choice(4, n, p=p)[:, None], 2.0, rng)[:, 0] for _ in range(4000)])
    counts = (records[:, :, None] == np.arange(4)).sum(axis=1)
    found = np.cov(counts.T) / (3.0 * n * (np.diag(p) - np.outer(p, p)))
    np.testing.assert_allclose(np.diag(found), 1.0, atol=5 * 0.025)
    np.testing.assert_allclose(counts.mean(axis=0), n * p, atol=5 * np.sqrt(3.0 * n * 0.25 / 4000))


def test_the_population_given_its_records_has_the_law_that_it_had():
    """Q ~ Dirichlet(kappa p), X from Q, Q' given X: Q' is distributed as Q, and as near to X.

    Kolmogorov and Smirnov's test of three cells and a covariance at 5 standard errors: one false alarm in 30,000.
    """
    rng, p, n, varied = np.random.default_rng(5), np.array([0.05, 0.35, 0.6]), 500, 4.0
    kappa = (n - 1) / varied - 1
    population = rng.dirichlet(kappa * p, size=40_000)
    counts = rng.multinomial(n, population).astype(float)
    size = np.full(len(counts), float(n)), np.full(len(counts), varied)
    found = population_given_records(np.broadcast_to(p, counts.shape), counts, *size, rng)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    for place in range(3):
        assert stats.ks_2samp(found[:20_000, place], population[20_000:, place]).pvalue > 1e-5
        ours, theirs = (np.corrcoef(one[:, place], counts[:, place])[0, 1] for one in (found, population))
        assert ours == pytest.approx(theirs, abs=5 * np.sqrt(2) * (1 - theirs**2) / np.sqrt(40_000))


def test_records_of_the_mean_take_every_draw_alike(trace):
    posterior = trace["posterior"].to_dataset()
    turned = posterior.assign(weights=posterior["weights"].isel({"class": slice(None, None, -1)}))
    both = xr.DataTree.from_dict({"posterior": xr.concat([posterior, turned], "draw")})
    (frame,) = synthesize(both, n_datasets=1, n_rows=200_000, random_seed=3, law="mean")
    expected = 0.5 * sum(np.einsum("h,ha,hs->as", weights, AGE, SEX) for weights in (WEIGHTS, WEIGHTS[::-1]))
    (table,) = marginals(frame, [["age", "sex"]], domain=DOMAIN)
    # As above: 5 standard errors.
    np.testing.assert_allclose(table.counts / table.total, expected, atol=5 * 0.0011)
    assert not np.allclose(expected, np.einsum("h,ha,hs->as", WEIGHTS, AGE, SEX), atol=10 * 0.0011)


def test_a_seed_gives_the_same_records_and_another_seed_others(trace):
    first, again, other = (synthesize(trace, n_datasets=1, n_rows=500, random_seed=seed)[0] for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_files_hold_the_records(trace, tmp_path, format):
    frames = synthesize(trace, n_datasets=2, n_rows=100, random_seed=1)
    paths = write_synthetic(frames, tmp_path / "synthetic", format=format)
    assert [path.name for path in paths] == [f"synthetic_01.{format}", f"synthetic_02.{format}"]
    read = pl.read_parquet if format == "parquet" else pl.read_csv
    for path, frame in zip(paths, frames, strict=True):
        assert read(path).equals(frame)
    assert len(list((tmp_path / "synthetic").iterdir())) == 2


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"n_datasets": 0}, "n_datasets must be a whole number from 1 to .*, got 0"),
        ({"n_datasets": 2.5}, "n_datasets must be a whole number from 1 to .*, got 2.5"),
        ({"n_rows": 0}, "n_rows must be a whole number from 1 to .*, got 0"),
        ({"n_datasets": 13}, "13 data sets need as many draws, and the trace has 12"),
    ],
)
def test_impossible_numbers_are_refused(trace, numbers, message):
    with pytest.raises(InputError, match=message):
        synthesize(trace, **({"n_datasets": 1, "n_rows": 10, "random_seed": 1} | numbers))


def test_another_models_trace_is_refused():
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"p": (("chain", "draw"), np.zeros((2, 3)))})})
    with pytest.raises(InputError, match="not of a latent class model"):
        synthesize(tree, n_datasets=1, n_rows=10, random_seed=1)


def test_predicted_releases_add_the_noise_to_the_tables_of_predicted_records(trace):
    frame = synthesize(trace, n_datasets=1, n_rows=2_000, random_seed=5)[0]
    tables = marginals(frame, [["sex", "age"], ["sex"]], domain=DOMAIN)
    release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(1))
    posterior = trace["posterior"].to_dataset().assign_coords(count=np.arange(9))
    tree = xr.DataTree.from_dict({"posterior": posterior})
    predicted = predict_release(tree, release, n_datasets=12, random_seed=1)["released"].to_numpy()[0]
    expected = np.einsum("h,ha,hs->sa", WEIGHTS, AGE, SEX).ravel() * 2_000
    sd = np.sqrt(expected + release.tables[0].noise.variance)
    # Mean of 12 releases, 5 standard errors: false alarm below 1e-5 over 6 cells.
    assert np.all(np.abs(predicted[:, :6].mean(0) - expected) < 5 * sd / np.sqrt(12))


@pytest.mark.parametrize("overdispersion", [0.1, 50.0])
def test_records_of_a_varied_population_follow_mixture_and_counts(trace, overdispersion):
    """Shares have mean (kappa P + M) / (kappa + n): near the mixture's, or near those of the records' own counts."""
    n, p = 2000, np.einsum("h,ha,hs->as", WEIGHTS, AGE, SEX)
    counts = np.array([[500.0, 100, 100], [300, 600, 400]])
    exact = ("chain", "draw", "count"), np.broadcast_to(counts.ravel(), (3, 4, 6)), {"tables": '[["age", "sex"]]'}
    varied = ("chain", "draw"), np.full((3, 4), overdispersion)
    posterior = trace["posterior"].to_dataset().assign(exact_counts=exact, overdispersion=varied)
    tree = xr.DataTree.from_dict({"posterior": posterior})
    kappa = (n - 1) / overdispersion - 1
    expected = (kappa * p + counts) / (kappa + n)
    for law, n_datasets in (("draws", 12), ("mean", 1)):
        frames = synthesize(tree, n_datasets=n_datasets, n_rows=40_000, random_seed=2, law=law)
        (table,) = marginals(pl.concat(frames), [["age", "sex"]], domain=DOMAIN)
        # Of a data set the Dirichlet's variance, at most .25 / 2,040, and that of 40,000 records: a standard deviation
        # below .0115; 5 of them.
        np.testing.assert_allclose(table.counts / table.total, expected, atol=5 * 0.0115 / np.sqrt(n_datasets))
    sets = [marginals(frame, [["age", "sex"]], domain=DOMAIN)[0].counts / 40_000 for frame in synthesize(
        tree, n_datasets=12, n_rows=40_000, random_seed=2)]  # fmt: skip
    # The population's variance is that of Dirichlet(kappa P + M); its estimate has
    # some 55 degrees of freedom and is within a factor of 3 but once in a million.
    wanted = expected * (1 - expected) * (1 / (kappa + n + 1) + 1 / 40_000)
    assert 1 / 3 < np.var(sets, axis=0, ddof=1).mean() / wanted.mean() < 3


@pytest.mark.parametrize("released", [-150.0, 3000.0])
def test_predicted_releases_have_the_records_of_their_draws(trace, released):
    """With noise of scale 0.001 (two-sided geometric: none), a table sums to the n of its draw, not the released n."""
    tables = marginals(synthesize(trace, n_datasets=1, n_rows=50, random_seed=5)[0], [["sex", "age"]], domain=DOMAIN)
    release = release_tables(tables, epsilon=1e3, adjacency="add-remove", total_share=0.1, rng=np.random.default_rng(1))
    release = replace(release, n=NoisyTotal(released, TwoSidedGeometric(700.0), 1.0, None))
    n = np.array([[0.2, 10.4, 20.0, 30.6], [40.0, 50.0, 60.0, 70.0], [80.0, 90.0, 100.0, 110.0]])
    posterior = trace["posterior"].to_dataset().assign(n=(("chain", "draw"), n)).assign_coords(count=np.arange(6))
    tree = xr.DataTree.from_dict({"posterior": posterior})
    predicted = predict_release(tree, release, n_datasets=12, random_seed=1)["released"].to_numpy()[0]
    assert predicted.sum(axis=1).tolist() == [1, 10, 20, 31, *range(40, 120, 10)]


def test_predicted_releases_hold_back_what_the_threshold_does(trace):
    """With next to no noise, a drawn count below the threshold is held back, and every other one is shown."""
    tables = marginals(synthesize(trace, n_datasets=1, n_rows=50, random_seed=5)[0], [["sex", "age"]], domain=DOMAIN)
    shown = release_tables(tables, epsilon=1e3, rng=np.random.default_rng(1))
    posterior = trace["posterior"].to_dataset().assign_coords(count=np.arange(6))
    tree = xr.DataTree.from_dict({"posterior": posterior})
    exact = predict_release(tree, shown, n_datasets=12, random_seed=1)["released"].to_numpy()[0]
    counts = shown.tables[0].counts
    limit = float(np.median(counts))
    table = replace(shown.tables[0], counts=np.where(counts < limit, np.nan, counts), sensitivity=None, epsilon=None,
                    threshold=limit)  # fmt: skip
    stated = Publication("An office", "https://example.org", "2026", "as in this test")
    held = replace(shown, tables=(table,), adjacency="as published", sampler="published", publication=stated)
    found = predict_release(tree, held, n_datasets=12, random_seed=1)["released"].to_numpy()[0]
    assert 0.1 < np.isinf(found).mean() < 0.9
    np.testing.assert_array_equal(found, np.where(exact < limit, -np.inf, exact))
    tree["observed_data"] = xr.Dataset({"released": ("count", np.where(counts < limit, -np.inf, counts).ravel())})
    check_fitted(tree, held)
    other = np.where(counts < limit, np.nan, counts + 1)
    with pytest.raises(InputError, match="release"):
        check_fitted(tree, replace(held, tables=(replace(table, counts=other),)))
