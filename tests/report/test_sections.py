"""Sections that compute: sensitivity to the prior, and the sources of an interval's width."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from dpbayes.data import Domain, datasets
from dpbayes.inference import check_convergence
from dpbayes.inference.verdict import Verdict
from dpbayes.privacy import NoisyTable, NoisyTotal, Release, release_tables
from dpbayes.privacy.noise import Laplace, TwoSidedGeometric
from dpbayes.report.convergence import convergence_section
from dpbayes.report.latent_class import _answer
from dpbayes.report.margins import cells_section, fit_section, margins_section
from dpbayes.report.plots import interval_panels
from dpbayes.report.released import privacy_fact, released_section
from dpbayes.report.sensitivity import prior_section
from dpbayes.report.sources import sources_section, split_variance

DIMS = ("chain", "draw")


def normal_fit(prior_sd, noise_sd, y=2.0, seed=1):
    """Draw the posterior of mu ~ N(0, prior_sd), y ~ N(mu, noise_sd), with the log-prior of every draw."""
    precision = prior_sd**-2 + noise_sd**-2
    draws = np.random.default_rng(seed).normal(y * noise_sd**-2 / precision, precision**-0.5, size=(4, 1000))
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (DIMS, draws)})})
    return trace, {"normal": xr.DataArray(-0.5 * (draws / prior_sd) ** 2, dims=DIMS)}


@pytest.mark.parametrize(("prior_sd", "noise_sd", "felt"), [(100.0, 1.0, False), (1.0, 1.0, True), (0.5, 5.0, True)])
def test_a_prior_is_felt_where_it_competes_with_the_data(prior_sd, noise_sd, felt):
    trace, parts = normal_fit(prior_sd, noise_sd)
    section = prior_section(trace, parts, variables=["mu"], what="One part.")
    row, chance = section.blocks[3].rows
    assert (row[1] > max(0.05, chance[1])) == felt
    assert ("the data decide" in section.blocks[1].text) != felt


def test_a_structural_zero_is_not_sensitive():
    trace, parts = normal_fit(1.0, 1.0)
    trace["posterior"] = trace["posterior"].to_dataset().assign(zero=(DIMS, np.zeros((4, 1000))))
    rows = dict(prior_section(trace, parts, variables=["mu", "zero"], what="").blocks[3].rows)
    assert rows["zero (by chance alone)"] == 0.0
    assert rows["zero"] == 0.0
    assert rows["mu"] > 0.05


def test_the_answer_is_listed_first_however_little_it_moves():
    trace, parts = normal_fit(1.0, 1.0)
    rng = np.random.default_rng(2)
    posterior = trace["posterior"].to_dataset()
    free = rng.normal(size=(4, 1000))
    felt = posterior["mu"].to_numpy()[..., None] + 0.1 * rng.normal(size=(4, 1000, 14))
    trace["posterior"] = posterior.assign(free=(DIMS, free), many=((*DIMS, "place"), felt))
    alone = prior_section(trace, parts, variables=["mu", "free", "many"], what="")
    listed = prior_section(trace, parts, variables=["mu", "free", "many"], what="", answers=["free"])
    assert "free" not in dict(alone.blocks[3].rows)
    assert listed.blocks[3].rows[0][0] == "free"
    assert f"The answer itself: free does not feel it ({listed.blocks[3].rows[0][1]:.3f})." in listed.blocks[1].text


def test_a_part_that_varies_much_moves_what_it_has_nothing_to_do_with_by_chance_alone():
    # A sum over many parameters: its weights are far from even, and a threshold for smooth weights would be crossed.
    rng = np.random.default_rng(3)
    free = {"free": ((*DIMS, "place"), rng.normal(size=(4, 1000, 30)))}
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset(free)})
    part = {"many": xr.DataArray(17.0 * rng.normal(size=(4, 1000)), dims=DIMS)}
    section = prior_section(trace, part, variables=["free"], what="")
    *listed, (name, chance) = section.blocks[3].rows
    assert name == "free (by chance alone)"
    assert min(value for _, value in listed) > 0.05
    # Three of thirty exceed a 95 % point that is itself estimated: seven or more in one case of 500.
    assert sum(value > chance for _, value in listed) < 7
    found = section.blocks[1].text
    assert found.startswith("None of 30") or int(found.split()[0]) < 7


def test_worst_quantities_of_one_label_have_a_panel_each():
    draws = xr.DataArray(np.random.default_rng(1).normal(size=(2, 100, 3)), dims=(*DIMS, "count"))
    posterior = xr.Dataset({"margin": draws.assign_coords(count=["a=0", "a=1", "a=0"])})
    trace = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": xr.Dataset()})
    section = convergence_section(trace, check_convergence(trace), judged="All.")
    titles = [axis.get_title() for axis in section.blocks[2].figure.axes]
    assert sorted(titles) == ["margin a=0", "margin a=0 (2)", "margin a=1"]


def test_one_chain_has_no_rank_plots():
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (DIMS, np.zeros((1, 100)))})})
    trace["sample_stats"] = xr.Dataset()
    *_, ranks, energy = convergence_section(trace, check_convergence(trace), judged="All.").blocks
    assert "no rank plots" in ranks.text and "no energy plot" in energy.text


def test_prior_and_release_are_read_together():
    trace, parts = normal_fit(1.0, 1.0)
    draws = trace["posterior"].to_dataset()["mu"]
    both = prior_section(trace, parts, variables=["mu"], what="", log_likelihood=-0.5 * (2.0 - draws) ** 2)
    assert "1 of 1 feel both sides" in both.blocks[4].text
    trace, parts = normal_fit(0.5, 50.0)
    draws = trace["posterior"].to_dataset()["mu"]
    weak = prior_section(trace, parts, variables=["mu"], what="", log_likelihood=-0.5 * ((2.0 - draws) / 50.0) ** 2)
    assert "1 of 1 feel the prior alone" in weak.blocks[4].text


def test_the_split_adds_up_and_finds_the_noise():
    rng = np.random.default_rng(3)
    counts = rng.normal(1000.0, 30.0, size=(4000, 2))
    shares = counts + rng.normal(0.0, 10.0, size=counts.shape)
    privacy, sampling = split_variance(shares, counts)
    np.testing.assert_allclose(privacy + sampling, shares.var(axis=0, ddof=1), rtol=1e-9)
    # Standard errors: 900 sqrt(2 / 4000) = 20 and 100 sqrt(2 / 4000) = 2.2; five of them, false alarm below 1e-5.
    np.testing.assert_allclose(privacy, 900, atol=100)
    np.testing.assert_allclose(sampling, 100, atol=12)


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
    assert "0% is left by the privacy noise and 100%" in section.blocks[0].text
    for row in section.blocks[2].facts():
        assert row["privacy_sd"] < 0.2 * row["sampling_sd"]
        assert row["sampling_sd"] == pytest.approx(row["binomial_sd"], rel=0.1)


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
    assert row["sampling_sd"] == pytest.approx(share * n.std(ddof=1))
    assert row["binomial_sd"] == pytest.approx(np.sqrt(400 * share * (1 - share)))
    said = _answer(trace, release, Verdict((), ()))
    assert "of these records (about 400, the posterior mean)" in said
    assert f"draw by draw, to {share * (ends[1] - ends[0]):.0f}." in said


def test_residuals_are_numbers_where_no_predicted_count_differs():
    """An impossible cell under noise far below one count: every predicted count is zero, as is the released one."""
    domain = Domain.from_levels({"age": ("child", "adult"), "married": (0, 1)})
    law = TwoSidedGeometric(0.1)
    table = NoisyTable(domain, np.array([[30, 0], [50, 20]]), law, 2.0, 20.0)
    release = Release(domain, (table,), "replace-one", 100, "simulation")
    off = np.random.default_rng(1).integers(-9, 10, size=(1, 50, 1))
    predicted = table.counts.ravel() + off * np.array([1.0, 0.0, -1.0, 0.0])
    predicted[..., 3] += 1.0  # a count that every draw misses by one
    trace = xr.DataTree.from_dict({"posterior_predictive": xr.Dataset({"released": ((*DIMS, "count"), predicted)})})
    values = dict(fit_section(trace, release).blocks[1].rows)
    assert values["largest absolute standardized residual"] == pytest.approx(law.variance**-0.5)
    assert np.isfinite(values["root mean square of the standardized residuals"])


def test_a_gaussian_release_states_its_rho_and_points_of_its_curve():
    tables = datasets.acs_tables()[:3]
    release = release_tables(tables, rho=0.02, noise="discrete-gaussian", rng=np.random.default_rng(5))
    assert release.rho == pytest.approx(0.02) and release.privacy_record["rho"] == release.rho
    section = released_section(release)
    words = section.blocks[0].text
    assert "add to rho = 0.02" in words and "at most 0.9 at delta 1e-06 and 1.164 at delta 1e-09" in words
    rows = section.blocks[-1].facts()
    assert math.fsum(row["rho"] for row in rows) == pytest.approx(0.02) and "epsilon" not in rows[0]
    fact = privacy_fact(release)
    assert (fact.name, fact.label, fact.shown) == ("rho", "rho (zero-concentrated) in total, replace-one", "0.02")


def test_a_noisy_number_of_records_is_a_row_of_what_left_the_custodian():
    tables = datasets.acs_tables()[:3]
    release = release_tables(tables, epsilon=1.0, adjacency="add-remove", total_share=0.1, rng=np.random.default_rng(5))
    rows = released_section(release).blocks[-1].facts()
    assert [row["table"] for row in rows] == [*(table.label for table in release.tables), "number of records"]
    assert math.fsum(row["epsilon"] for row in rows) == pytest.approx(release.epsilon)
    assert rows[-1]["counts"] == 1 and rows[-1]["epsilon"] == pytest.approx(0.1)


@pytest.mark.parametrize("n_tables", [1, 2, 6, 7])
def test_panels_of_margins_are_whole_and_each_column_has_its_axis(n_tables):
    ends, counts = np.array([[10.0, 0.0, 20.0]] * 3), np.array([9.0, 10.0, 12.0])
    each = [[part] * n_tables for part in (["a", "b", "c"], ends, ends, counts, counts)]
    figure = interval_panels([f"table {i}" for i in range(n_tables)], *each)
    figure.draw_without_rendering()
    page = figure.bbox
    words = [figure.legends[0], figure._supxlabel, *(axis.title for axis in figure.axes if axis.get_visible())]
    for box in (part.get_window_extent() for part in words):
        assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1
    lowest = {axis.get_position().x0: axis for axis in figure.axes if axis.get_visible()}  # row by row, downwards
    assert all(any(tick.label1.get_visible() for tick in axis.xaxis.get_major_ticks()) for axis in lowest.values())
    plt.close(figure)
