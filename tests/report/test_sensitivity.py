"""Sensitivity to the prior: against conjugate normal fits, and by chance alone."""

import numpy as np
import pytest
import xarray as xr

from dpbayes.report.sensitivity import prior_section

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
    assert "1 are sensitive to both" in both.blocks[4].text
    trace, parts = normal_fit(0.5, 50.0)
    draws = trace["posterior"].to_dataset()["mu"]
    weak = prior_section(trace, parts, variables=["mu"], what="", log_likelihood=-0.5 * ((2.0 - draws) / 50.0) ** 2)
    assert "1 to the prior alone" in weak.blocks[4].text


def test_the_caution_says_what_is_sensitive_and_is_empty_where_nothing_is():
    trace, parts = normal_fit(100.0, 1.0)
    assert prior_section(trace, parts, variables=["mu"], what="").caution == ""
    trace, parts = normal_fit(0.5, 5.0)
    section = prior_section(trace, parts, variables=["mu"], what="", answers=["mu"], called={"mu": "means"})
    assert section.caution == "The answer itself is sensitive to the prior."
    section = prior_section(trace, parts, variables=["mu"], what="", called={"mu": "means"})
    assert section.caution == "Sensitive to the prior: 1 of the 1 means."
