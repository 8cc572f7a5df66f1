"""Sensitivity to the prior: against conjugate normal fits, and by chance alone; sources of an interval's width."""

import numpy as np
import pytest
import xarray as xr

from dpbayes.report.sensitivity import prior_section, shares_section, split_variance

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
    assert f"The answer itself: free is not sensitive ({listed.blocks[3].rows[0][1]:.3f})." in listed.blocks[1].text


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


def test_prior_and_release_are_read_together():
    trace, parts = normal_fit(1.0, 1.0)
    draws = trace["posterior"].to_dataset()["mu"]
    both = prior_section(trace, parts, variables=["mu"], what="", log_likelihood=-0.5 * (2.0 - draws) ** 2)
    assert "1 is sensitive to both" in both.blocks[4].text
    trace, parts = normal_fit(0.5, 50.0)
    draws = trace["posterior"].to_dataset()["mu"]
    weak = prior_section(trace, parts, variables=["mu"], what="", log_likelihood=-0.5 * ((2.0 - draws) / 50.0) ** 2)
    assert "1 is sensitive to the prior alone" in weak.blocks[4].text


def test_the_caution_says_what_is_sensitive_and_is_empty_where_nothing_is():
    trace, parts = normal_fit(100.0, 1.0)
    assert prior_section(trace, parts, variables=["mu"], what="").caution == ""
    trace, parts = normal_fit(0.5, 5.0)
    section = prior_section(trace, parts, variables=["mu"], what="", answers=["mu"], called={"mu": "means"})
    assert section.caution == "The answer itself is sensitive to the prior."
    section = prior_section(trace, parts, variables=["mu"], what="", called={"mu": "means"})
    assert section.caution == "Sensitive to the prior: 1 of the 1 means."


WORDS = {"subject": "term", "rest": "sampling", "meaning": "Said.", "unit": "in units", "format": ".3g"}


def test_parts_add_up_to_the_whole():
    section = shares_section([("a", 9.0, 16.0), ("b", 0.0, 4.0)], **WORDS)
    first, second = section.blocks[2].facts()
    assert (first["sd"], first["privacy_sd"], first["rest_sd"]) == (5.0, 3.0, 4.0)
    assert first["privacy_share"] == pytest.approx(0.36)
    assert second["privacy_share"] == 0.0
    assert section.blocks[0].text.startswith("The privacy noise accounts for 0 to 36\N{NO-BREAK SPACE}% of")


def test_equal_shares_are_said_once_and_nothing_is_divided_by_zero():
    section = shares_section([("a", 1.0, 1.0), ("b", 2.0, 2.0)], **WORDS)
    assert "accounts for 50\N{NO-BREAK SPACE}% of" in section.blocks[0].text
    assert shares_section([("still", 0.0, 0.0)], **WORDS).blocks[2].facts()[0]["privacy_share"] == 0.0


def test_the_split_adds_up_and_finds_the_noise():
    rng = np.random.default_rng(3)
    counts = rng.normal(1000.0, 30.0, size=(4000, 2))
    shares = counts + rng.normal(0.0, 10.0, size=counts.shape)
    privacy, sampling = split_variance(shares, counts)
    np.testing.assert_allclose(privacy + sampling, shares.var(axis=0, ddof=1), rtol=1e-9)
    # Standard errors: 900 sqrt(2 / 4000) = 20 and 100 sqrt(2 / 4000) = 2.2; five of them, false alarm below 1e-5.
    np.testing.assert_allclose(privacy, 900, atol=100)
    np.testing.assert_allclose(sampling, 100, atol=12)


def test_bars_of_many_tables_are_in_order_in_a_picture_of_a_page():
    splits = [(f"table {i}", float(i), 100.0 - i) for i in range(91)]
    picture = shares_section(splits, **WORDS).blocks[1]
    axis = picture.figure.axes[0]
    assert picture.figure.get_figheight() < 9.0 and picture.caption.endswith("in their order; some are named.")
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert len(names) == 24 and (names[0], names[-1]) == ("table 90", "table 0")
    assert [bar.get_width() for bar in axis.patches[:91]] == pytest.approx(range(90, -1, -1))


def test_more_counts_than_draws_explain_no_more():
    rng = np.random.default_rng(4)
    counts = rng.normal(1000.0, 30.0, size=(300, 500))
    privacy, sampling = split_variance(counts + rng.normal(0.0, 10.0, size=counts.shape), counts)
    # Standard errors sqrt((2 900^2 + 4 900 100) / 150,000) = 3.6 and 100 sqrt(2 / 150,000) = .37; five of them.
    assert privacy.mean() == pytest.approx(900, abs=18) and sampling.mean() == pytest.approx(100, abs=1.8)
