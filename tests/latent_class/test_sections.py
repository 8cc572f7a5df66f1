"""The page of a latent class run: shares, tables, the sources of widths, the fit to the released counts."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from dpbayes.data import Domain, Marginal, datasets
from dpbayes.latent_class import page
from dpbayes.latent_class.page import cells_section, fit_section, margins_section, sources_section
from dpbayes.privacy import NoisyTable, NoisyTotal, Publication, Release, release_tables
from dpbayes.privacy.laws import Laplace, TwoSidedGeometric

DIMS = ("chain", "draw")


def test_without_privacy_noise_all_width_is_sampling():
    rng = np.random.default_rng(4)
    tables = datasets.acs_tables()
    release = release_tables(tables, epsilon=1e6, rng=rng)
    exact = np.concatenate([table.counts.ravel() for table in tables]).astype(float)
    centre = exact / 10_000
    margin = centre + rng.normal(size=(2, 1500, len(exact))) * np.sqrt(centre * (1 - centre) / 10_000)
    posterior = xr.Dataset({
        "margin": (("chain", "draw", "count"), margin),
        "exact_counts": (("chain", "draw", "count"), np.broadcast_to(exact, margin.shape)),
    })  # fmt: skip
    section = sources_section(xr.DataTree.from_dict({"posterior": posterior}), release)
    assert "accounts for 0\N{NO-BREAK SPACE}% of" in section.blocks[0].text
    for row in section.blocks[2].facts():
        assert row["privacy_sd"] < 0.2 * row["rest_sd"]
        assert row["rest_sd"] == pytest.approx(row["binomial_sd"], rel=0.1)


def test_the_answer_begins_with_what_the_question_names():
    domain = Domain.from_levels(
        {"age": (0, 1), "income": (0, 1), "smoker?": (0, 1)}, {"smoker?": {0: "no", 1: "smoker"}}
    )
    shares = [[0.3, 0.1, 0.2, 0.4], [0.3, 0.2, 0.1, 0.4]]  # age by income; smoker by age
    pairs = zip(shares, (("age", "income"), ("smoker?", "age")), strict=True)
    tables = [Marginal(domain.project(names), np.rint(1000 * np.reshape(of, (2, 2)))) for of, names in pairs]
    release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(5))
    posterior = xr.Dataset({"margin": ((*DIMS, "count"), np.broadcast_to(np.ravel(shares), (2, 10, 8)))})
    trace = xr.DataTree.from_dict({"posterior": posterior})
    found = page.population_shares(trace, release)
    mentions = {a.name: page._mention(a.name, "Who smokes, by income?") for a in found}
    assert mentions == {"smoker?": 1, "income": 3, "age": np.inf}
    assert page._mention("age", "On average?") == np.inf
    smoker = next(a for a in found if a.name == "smoker?")
    # P(smoker | age): 0.1 / 0.4 and 0.4 / 0.6.
    assert page._association(trace, release, smoker) == [
        "The strongest association: smoker has a share of 25.0\N{NO-BREAK SPACE}% (25.0 to 25.0) among age: 0 and "
        "66.7\N{NO-BREAK SPACE}% (66.7 to 66.7) among age: 1."
    ]
    # Draws that put no age apart: the difference is as often the other way round.
    turned = np.where(np.arange(10)[:, None] % 2, np.ravel(shares), np.ravel([shares[0], [0.2, 0.3, 0.4, 0.1]]))
    doubtful = xr.Dataset({"margin": ((*DIMS, "count"), np.broadcast_to(turned, (2, 10, 8)))})
    assert page._association(xr.DataTree.from_dict({"posterior": doubtful}), release, smoker) == []


def test_a_fit_without_confidential_counts_says_why_nothing_is_split():
    release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(5))
    posterior = xr.Dataset({"margin": (("chain", "draw", "count"), np.full((2, 10, release.n_counts), 0.25))})
    section = sources_section(xr.DataTree.from_dict({"posterior": posterior}), release)
    assert [type(block).__name__ for block in section.blocks] == ["Paragraph"]
    assert section.blocks[0].text.startswith("Not split")


def test_a_page_on_a_noisy_number_of_records_is_scaled_by_the_posterior_of_that_number():
    """Draws of n from 300 to 500, a released n of -60: counts are shares times the draws."""
    tables = datasets.acs_tables()[:2]
    release = release_tables(tables, epsilon=1.0, adjacency="add-remove", total_share=0.1, rng=np.random.default_rng(5))
    release = replace(release, n=NoisyTotal(-60.0, Laplace(150.0), 1.0, None))
    n = np.linspace(300.0, 500.0, 42).reshape(2, 21)
    ends = np.quantile(n, [0.025, 0.975])
    share = 1 / 4
    posterior = xr.Dataset({
        "n": (DIMS, n),
        "margin": ((*DIMS, "count"), np.full((2, 21, 8), share)),
        "cell": ((*DIMS, *release.domain.names), np.full((2, 21, *release.domain.shape), 1 / release.domain.size)),
        "exact_counts": ((*DIMS, "count"), np.full((2, 21, 8), 100.0)),
    })  # fmt: skip
    trace = xr.DataTree.from_dict({"posterior": posterior})
    margins = margins_section(trace, release, tables)
    assert "times the number of records, draw by draw" in margins.blocks[0].text
    assert "posterior mean of 400" in margins.blocks[0].text
    row = margins.blocks[-1].facts()[0]
    found = [row[name] for name in ("population", "population_lower", "population_upper")]
    np.testing.assert_allclose(found, [100.0, *(share * ends)])
    row = cells_section(trace, release).blocks[-1].facts()[0]
    np.testing.assert_allclose([row["estimate"], row["lower"]], np.array([400.0, ends[0]]) / release.domain.size)
    row = sources_section(trace, release).blocks[2].facts()[0]
    assert row["rest_sd"] == pytest.approx(share * n.std(ddof=1))
    assert row["binomial_sd"] == pytest.approx(np.sqrt(400 * share * (1 - share)))


def test_residuals_are_numbers_where_no_predicted_count_differs():
    """An impossible cell under noise far below one count: every predicted count is zero, as is the released one."""
    domain = Domain.from_levels({"age": ("child", "adult"), "married": (0, 1)})
    law = TwoSidedGeometric(0.1)
    table = NoisyTable(domain, np.array([[30, 0], [50, 20]]), law, 2.0, 20.0)
    release = Release(domain, (table,), "replace-one", 100, "simulation")
    off = np.random.default_rng(1).integers(-9, 10, size=(1, 50, 1))
    predicted = table.counts.ravel() + off * np.array([1.0, 0.0, -1.0, 0.0])
    predicted[..., 3] += 1.0  # a count that every draw misses by one
    seen = xr.Dataset({"released": ((*DIMS, "count"), predicted)})
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset(), "posterior_predictive": seen})
    values = dict(fit_section(trace, release).blocks[1].rows)
    assert values["largest absolute standardized residual"] == pytest.approx(law.variance**-0.5)
    assert np.isfinite(values["root mean square of the standardized residuals"])


def test_the_counts_farthest_from_their_prediction_are_named():
    """Residuals of 0, -1, 3 and 0 standard deviations; what a threshold held back has no released count."""
    domain = Domain.from_levels({"age": ("child", "adult"), "married": (0, 1)})
    counts = np.array([[30.0, 20.0], [50.0, np.nan]])
    table = NoisyTable(domain, counts, TwoSidedGeometric(2.0), 2.0, 1.0, threshold=10.0)
    stated = Publication("An office", "https://example.org", "2026", "as in this test")
    release = Release(domain, (table,), "replace-one", 100, "published", publication=stated)
    off = np.random.default_rng(1).normal(size=(1, 200, 1))
    off = (off - off.mean()) / off.std(ddof=1)
    predicted = np.array([30.0, 21.0, 47.0, 0.0]) + off * np.array([1.0, 1.0, 1.0, 0.0])
    seen = xr.Dataset({"released": ((*DIMS, "count"), predicted)})
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset(), "posterior_predictive": seen})
    rows = fit_section(trace, release).blocks[-1].rows
    assert [row[0] for row in rows[:2]] == ["age: adult, married: 0", "age: child, married: 1"]
    np.testing.assert_allclose([row[1:] for row in rows[:2]], [[50.0, 47.0, 3.0], [20.0, 21.0, -1.0]], rtol=1e-9)
    assert {row[0]: row[1] for row in rows}["age: adult, married: 1"] is None


def test_a_table_that_the_mixture_does_not_explain_is_named_on_the_first_screen():
    tables = datasets.acs_tables()
    release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(5))
    counts, scale = np.concatenate([table.counts.ravel() for table in release.tables]), release.tables[0].noise.scale
    exact = counts - np.random.default_rng(6).laplace(0.0, scale, size=(4, 100, counts.size))  # as the law has it

    def section(exact):
        drawn = {"posterior": ("exact_counts", exact), "posterior_predictive": ("released", exact)}
        groups = {group: xr.Dataset({name: ((*DIMS, "count"), x)}) for group, (name, x) in drawn.items()}
        return fit_section(xr.DataTree.from_dict(groups), release)

    assert section(exact).caution == ""
    wrong = exact.copy()
    wrong[..., 8:12] += 8 * scale * np.array([1, -1, -1, 1])  # of the third table: a is 8, the bound exp(-4 x 4.9)
    found = section(wrong)
    assert found.caution.startswith(f"The mixture does not explain the released counts of {release.tables[2].label}: ")
    assert "Leave one of the two out" in found.blocks[0].text
    everywhere = exact + 8 * scale * np.resize([1, -1, -1, 1], counts.size)
    assert " and 7 more: they are" in section(everywhere).caution


def test_noise_of_its_law_is_explained_in_all_but_one_fit_in_a_thousand():
    """A hundred releases whose exact counts are known, where a posterior varies most; false alarm 2 x 1.5e-4."""
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1, 2)})
    marginal, rng = Marginal(domain, np.full((2, 3), 500)), np.random.default_rng(7)
    for law in ("two-sided-geometric", "discrete-gaussian"):
        budget = {"epsilon": 0.5} if law == "two-sided-geometric" else {"rho": 0.01}
        named = []
        for _ in range(100):
            release = release_tables([marginal], noise=law, rng=rng, **budget)
            posterior = xr.Dataset({"exact_counts": ((*DIMS, "count"), np.full((1, 2, 6), 500.0))})
            named += page.unexplained(xr.DataTree.from_dict({"posterior": posterior}), release)
        assert len(named) <= 2  # of 100 with a chance of a thousandth each: three or more in 1.5e-4


def test_the_answer_says_shares_in_words_and_the_strongest_association():
    tables = datasets.acs_tables()
    release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(5))
    exact = np.concatenate([table.counts.ravel() for table in tables]) / 10_000
    draws = np.broadcast_to(exact, (2, 50, exact.size))
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset({"margin": ((*DIMS, "count"), draws)})})
    shares = page.population_shares(trace, release)
    assert {attribute.name: round(float(found[1, 0]), 4) for attribute, found in shares.items()} == {
        "citizenship": 0.9393, "age": 0.9546, "race": 0.797, "sex": 0.5222, "income": 0.679,
    }  # fmt: skip
    answer = page._answer(trace, release, shares)
    assert "citizen 93.9\N{NO-BREAK SPACE}% (93.9 to 93.9); 18 or over 95.5" in answer
    # Of those under 18, 9 of 454 have such an income; of the others 6,781 of 9,546.
    assert "income above 11,880 has a share of 2.0\N{NO-BREAK SPACE}% (2.0 to 2.0) among under 18 and 71.0" in answer
    place = sum(t.counts.size for t in tables[: [t.attributes for t in tables].index(("age", "income"))]) + 1
    trace["posterior"]["margin"] = trace["posterior"]["margin"].where(np.arange(exact.size) != place, 0.0)
    assert "among under 18" not in page._answer(trace, release, shares)  # an assumption, and no finding
    picture = page._picture(shares)
    assert [label.get_text() for label in picture.figure.axes[0].get_yticklabels()][:2] == ["citizen", "18 or over"]


def test_large_tables_are_not_drawn_and_every_level_of_every_attribute_stands_in_a_table():
    domain = Domain.from_levels({"month": range(12), "hour": range(24), "sex": ("f", "m")})
    sets = [("month", "hour"), ("month", "sex"), ("hour", "sex")]
    sizes = [domain.project(names).shape for names in sets]
    tables = [Marginal(domain.project(names), np.full(shape, 8)) for names, shape in zip(sets, sizes, strict=True)]
    release = release_tables(tables[:1], epsilon=1.0, rng=np.random.default_rng(5))
    release = replace(
        release,
        domain=domain,
        tables=tuple(replace(release.tables[0], domain=t.domain, counts=t.counts) for t in tables),
    )
    margin = np.concatenate([np.full(np.prod(shape), 1 / np.prod(shape)) for shape in sizes])
    posterior = xr.Dataset({"margin": ((*DIMS, "count"), np.broadcast_to(margin, (2, 50, margin.size)))})
    trace = xr.DataTree.from_dict({"posterior": posterior})
    figure = margins_section(trace, release, None).blocks[1]
    assert figure.caption.startswith("1 of 3 tables are drawn.")
    assert [axis.get_title() for axis in figure.figure.axes] == ["month x sex"]
    table = page._shares_section(page.population_shares(trace, release)).blocks[-1]
    assert len(table.rows) == 12 + 24 + 2 and table.rows[-1][2] == pytest.approx(50.0)


def drawn_levels(picture):
    return [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]


def test_the_first_picture_holds_a_screen_of_levels_one_of_each_attribute_those_asked_for_and_the_largest():
    """Nine attributes of 2 to 12 levels; a level's share grows with its number."""
    sizes = dict(zip("abcdefghi", (12, 2, 5, 4, 3, 8, 6, 7, 10), strict=True))
    domain = Domain.from_levels({name: range(size) for name, size in sizes.items()})
    shares = {a: np.repeat(np.arange(1.0, a.size + 1)[:, None] / (a.size * (a.size + 1) / 2), 3, 1) for a in domain}
    largest = {f"{name}: {size - 1}" for name, size in sizes.items()}
    picture = page._picture(shares)
    assert len(drawn_levels(picture)) == 16 and largest < {*drawn_levels(picture)}
    assert drawn_levels(picture) == sorted(drawn_levels(picture), key=lambda label: label[0])  # attributes together
    # Of the levels that are left, the largest are 1 / 3 (e), 3 / 10 (d), 4 / 15 (c), 5 / 21 (g) and so on.
    assert {"e: 1", "d: 2", "c: 3", "g: 4"} < {*drawn_levels(picture)} and "a: 10" not in drawn_levels(picture)
    assert picture.caption.endswith("Drawn are 16 of 56 levels: one of each attribute first, then the largest.")
    asked = page._picture(shares, [next(iter(shares))])
    assert {*drawn_levels(asked)} == largest | {f"a: {level}" for level in range(4, 11)}
    assert "then those that the question asks for" in asked.caption
    every = page._shares_section(shares).blocks[0]
    assert len(drawn_levels(every)) == 56  # below the first screen, all of them
