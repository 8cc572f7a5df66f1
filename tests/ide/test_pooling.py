"""Borrowing between thin groups, and from independence, on public data alone."""

from itertools import product

import numpy as np
import pytest

from dpbayes.data import Domain, Marginal
from dpbayes.errors import InputError
from dpbayes.ide import Prior, credibility, estimate, pool
from dpbayes.ide.prior import Credibility, _minimize, _products, grouping_attribute
from dpbayes.privacy import release_tables

DOMAIN = Domain.from_levels({"place": ("a", "b", "c"), "x": (0, 1, 2), "y": (0, 1, 2, 3)})


def sample(n, seed, shift=0.0):
    """A sample of records whose x and y depend on each other, and on the place by `shift`."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 3, n)
    x = np.clip(np.rint(rng.normal(1 + shift * (place - 1), 0.8)), 0, 2).astype(int)
    y = np.clip(x + rng.integers(0, 2, n), 0, 3)
    codes, counts = np.unique(np.stack([place, x, y], axis=1), axis=0, return_counts=True)
    return Prior(DOMAIN, codes, counts, float(n))


def released(prior, n=1000, epsilon=5.0):
    whole = Marginal(DOMAIN, np.rint(n * prior.marginal(DOMAIN.names)).astype(int))
    tables = [whole.project(["place", name]) for name in ("x", "y")]
    return release_tables(tables, epsilon=epsilon, rng=np.random.default_rng(1))


def test_pooling_keeps_group_shares_and_borrows_most_where_groups_are_alike():
    prior = sample(400, 3)
    found = credibility(prior, by="place")
    pooled = pool(prior, found)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(pooled.marginal(["place"]), prior.marginal(["place"]))
    assert pooled.n_records >= prior.n_records
    # Of three equal groups the other two hold two thirds of what is known; single samples scatter between 0 and 1.
    borrowed = [credibility(sample(400, seed), by="place").borrowed for seed in range(30)]
    assert np.mean(borrowed) > 0.5


def test_groups_that_differ_borrow_little():
    assert np.all(credibility(sample(3000, 3, shift=1.0), by="place").borrowed < 0.05)


def test_with_own_and_other_records_it_is_the_credibility_in_closed_form():
    prior = sample(60, 5)
    share = prior.marginal(["place"])
    m = share * prior.n_records
    table = prior.marginal(["place", "x"])
    own, rest = table / share[:, None], (table.sum(axis=0) - table) / (1 - share)[:, None]
    sampling = (1 - (own**2).sum(axis=1)) / (m - 1)
    expected = np.minimum(sampling / ((own - rest) ** 2).sum(axis=1), 1.0)
    np.testing.assert_allclose(credibility(prior, by="place", sets=[["x"]]).borrowed, expected, atol=1e-9)


def test_credibility_is_the_weight_that_minimizes_the_true_error():
    """Many public samples from known groups: the estimated weights do nearly as well as the best fixed ones."""
    rng = np.random.default_rng(5)
    domain = Domain.from_levels({"place": ("a", "b"), "x": tuple(range(10))})
    truth = np.stack([rng.dirichlet(np.full(10, 2.0)) for _ in range(2)])
    codes = np.stack([axis.ravel() for axis in np.indices((2, 10))], axis=1)
    fixed = np.linspace(0, 1, 21)
    errors, found, size = np.zeros(21), 0.0, (15, 60)
    for _ in range(400):
        counts = np.stack([rng.multinomial(m, p) for m, p in zip(size, truth, strict=True)])
        prior = Prior(domain, codes, counts.ravel(), float(counts.sum()))
        own, rest = counts[0] / size[0], counts[1] / size[1]
        errors += [np.sum(((1 - b) * own + b * rest - truth[0]) ** 2) for b in fixed]
        beta = credibility(prior, by="place", sets=[["x"]]).borrowed[0]
        found += np.sum(((1 - beta) * own + beta * rest - truth[0]) ** 2)
    # The best fixed weight knows the truth. Estimated from 15 and 60 records, more than half of its gain is kept.
    assert found - errors.min() < 0.5 * (errors[0] - errors.min())


TWO = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1, 2)})


def dense(counts):
    """The four components of both groups as full tables."""
    own = counts / counts.sum(axis=(1, 2), keepdims=True)
    rest = own[::-1]
    recombined = own.sum(axis=2, keepdims=True) * own.sum(axis=1, keepdims=True)
    return np.stack([own, rest, recombined, recombined[::-1]], axis=1).reshape(2, 4, -1)


def test_leaving_records_out_estimates_how_each_component_agrees_with_the_truth():
    rng = np.random.default_rng(8)
    truth = rng.dirichlet(np.full(6, 1.0), 2).reshape(2, 2, 3)
    sizes, repeats, gaps = np.array([12, 30]), 4000, []
    codes = np.stack([axis.ravel() for axis in np.indices((2, 2, 3))], axis=1)
    for _ in range(repeats):
        counts = np.stack([rng.multinomial(m, p.ravel()).reshape(2, 3) for m, p in zip(sizes, truth, strict=True)])
        prior = Prior(TWO, codes, counts.ravel(), float(counts.sum()))
        _, judged = _products(prior, ("x", "y"), prior.index(["place"]), 2)
        gaps.append(judged - np.einsum("gkx,gx->gk", dense(counts), truth.reshape(2, -1)))
    mean, error = np.mean(gaps, axis=0), np.std(gaps, axis=0) / np.sqrt(repeats)
    # Six unbiased means: 4.5 standard errors, a false alarm once in 25,000 (Bonferroni).
    assert np.all(np.abs(mean[:, [0, 1, 3]]) < 4.5 * error[:, [0, 1, 3]])
    # A group recombined is judged as of one record less: a bias below 1/m of the product it estimates.
    assert np.all(np.abs(mean[:, 2]) < 4.5 * error[:, 2] + 0.25 / sizes)


def test_inner_products_are_those_of_the_full_tables():
    rng = np.random.default_rng(9)
    counts = rng.integers(0, 4, (2, 2, 3))
    codes = np.argwhere(counts > 0)  # the empty cells are no rows of the support
    prior = Prior(TWO, codes, counts[counts > 0], float(counts.sum()))
    assert len(codes) < counts.size
    gram, _ = _products(prior, ("x", "y"), prior.index(["place"]), 2)
    full = dense(counts)
    np.testing.assert_allclose(gram, full @ full.transpose(0, 2, 1), atol=1e-12)


def test_attributes_of_many_levels_take_no_table_of_all_pairs():
    many = tuple(range(30_000))  # a table of the pair would have 9e8 cells
    domain = Domain.from_levels({"place": ("a", "b"), "x": many, "y": many})
    rng = np.random.default_rng(1)
    codes = np.column_stack([rng.integers(0, 2, 50), rng.integers(0, 30_000, (50, 2))])
    prior = Prior(domain, codes, np.ones(50), 50.0)
    assert pool(prior, credibility(prior, by="place"), n_rows=100).marginal(["place"]).sum() == pytest.approx(1)


def test_weights_are_the_minimum_over_the_simplex():
    rng = np.random.default_rng(2)
    grid = np.array([b for b in product(np.linspace(0, 1, 21), repeat=4) if abs(sum(b) - 1) < 1e-9])
    for _ in range(50):
        found, target = rng.dirichlet(np.ones(12), 4), rng.dirichlet(np.ones(12))
        gram, cross = found @ found.T, found @ target
        best = _minimize(gram, cross, alone=False)
        values = np.einsum("bi,ij,bj->b", grid, gram, grid) - 2 * grid @ cross
        assert best @ gram @ best - 2 * best @ cross <= values.min() + 1e-12
        assert best.sum() == pytest.approx(1)
        assert best.min() >= 0


def test_recombined_rows_hold_every_pair_and_the_margins_to_a_row():
    prior = sample(30, 7)
    pooled = pool(prior, Credibility("place", np.tile([0.0, 0.0, 1.0, 0.0], (3, 1))), n_rows=500)
    assert pooled.size == 1500
    assert pooled.n_records == prior.n_records
    for name in ("x", "y"):
        np.testing.assert_allclose(pooled.marginal(["place", name]), prior.marginal(["place", name]), atol=1 / 500)
    margins = [prior.marginal(["place", name]) for name in ("x", "y")]
    expected = margins[0][:, :, None] * margins[1][:, None, :] / prior.marginal(["place"])[:, None, None]
    # 500 shuffled rows a group: a cell's share has a standard deviation of at most .5/sqrt(500), times a third here.
    np.testing.assert_allclose(pooled.marginal(DOMAIN.names), expected, atol=5 * 0.5 / np.sqrt(500) / 3)


def test_many_rows_of_other_groups_are_sampled_and_few_are_copied(monkeypatch):
    prior = sample(300, 9)
    borrowing = Credibility("place", np.tile([0.0, 1.0, 0.0, 0.0], (3, 1)))
    whole = pool(prior, borrowing, n_rows=5)
    monkeypatch.setattr("dpbayes.ide.prior._MOST_ROWS", 30)
    few = pool(prior, borrowing, n_rows=5)
    assert few.size == 3 * 10 < whole.size
    np.testing.assert_allclose(few.marginal(["place"]), prior.marginal(["place"]))


def test_a_group_without_records_borrows_and_keeps_no_share():
    prior = Prior(DOMAIN, [[0, 0, 0], [0, 1, 1], [1, 2, 3], [1, 2, 2]], [3, 1, 1, 4], 9.0)
    found = credibility(prior, by="place")
    assert found.weights[2].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert pool(prior, found).marginal(["place"])[2] == 0.0


def test_estimate_pools_over_the_attribute_that_all_tables_share():
    prior = sample(60, 3)
    release = released(sample(1000, 4))
    assert grouping_attribute(release) == "place"
    shipped, plain = estimate(prior, release), estimate(prior, release, pool=False)
    assert plain.prior is prior
    assert shipped.prior.size > prior.size
    assert shipped.solution.gap <= 1e-2
    np.testing.assert_allclose(shipped.prior.marginal(["place"]), prior.marginal(["place"]))


def test_what_is_no_sample_or_has_no_pairs_stays_as_it_is():
    release = released(sample(1000, 4))
    flat = Prior.full(DOMAIN)
    assert estimate(flat, release).prior is flat
    one = Domain.from_levels({"x": (0, 1)})
    prior = Prior(one, [[0], [1]], [3, 1], 4.0)
    table = release_tables([Marginal(one, [5, 6])], epsilon=1.0, rng=np.random.default_rng(1))
    assert estimate(prior, table).prior is prior


def test_bad_input_is_told_what_to_do():
    with pytest.raises(InputError, match="no sample"):
        credibility(Prior.full(DOMAIN), by="place")
    with pytest.raises(InputError, match="two groups"):
        credibility(Prior(DOMAIN, [[0, 0, 0]], [1.0], 1.0), by="place")
    with pytest.raises(InputError, match="n_rows"):
        pool(sample(60, 1), credibility(sample(60, 1), by="place"), n_rows=0)
