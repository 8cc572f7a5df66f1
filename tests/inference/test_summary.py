"""A posterior in one table: its numbers are those of the draws, and both of its forms say what the check found."""

import re

import numpy as np
import pytest
import xarray as xr

from dpbayes.errors import InputError
from dpbayes.inference import check_convergence, summarize
from dpbayes.inference.convergence import mixing
from dpbayes.inference.schema import annotate
from dpbayes.report.document import Figure
from dpbayes.report.frame import convergence_section

DIMS = ("chain", "draw")
EVIL = "<script>alert('x')</script>&"


def trace_of(**variables):
    rng = np.random.default_rng(1)
    stats = {
        "diverging": (DIMS, np.zeros((4, 500), bool)),
        "reached_max_treedepth": (DIMS, np.zeros((4, 500), bool)),
        "energy": (DIMS, rng.normal(size=(4, 500))),
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(variables), "sample_stats": xr.Dataset(stats)})


@pytest.fixture
def draws():
    return np.random.default_rng(2).normal(size=(4, 500, 2, 3)) * 0.01 + np.arange(6.0).reshape(2, 3)


def test_numbers_are_those_of_the_draws_in_the_order_of_their_names(draws):
    # The draw axis first and the coordinates in between: the order of axes must not matter.
    table = xr.DataArray(draws, dims=(*DIMS, "a", "b"), coords={"a": ["x", "y"], "b": [0, 1, 2]})
    trace = trace_of(table=table.transpose("a", "draw", "b", "chain"), p=(DIMS, draws[..., 0, 0]))
    found = summarize(trace, var_names=["table", "p"], prob=0.8)
    flat = draws.reshape(2000, 6)
    table = found.table
    assert table.index[3] == "table[a=y, b=0]"
    assert table.index[6] == "p"
    np.testing.assert_allclose(table["mean"][:6], flat.mean(axis=0))
    np.testing.assert_allclose(table["sd"][:6], flat.std(axis=0, ddof=1))
    np.testing.assert_allclose(table[["lower", "upper"]][:6], np.quantile(flat, [0.1, 0.9], axis=0).T)
    (by_hand,) = np.transpose(mixing(draws[None, ..., 1, 0]))
    np.testing.assert_allclose(table.loc["table[a=y, b=0]", ["rhat", "ess_bulk", "ess_tail"]].to_numpy(float), by_hand)
    assert "10 %  " in str(found) and "90 %  " in str(found)
    assert (found.chains, found.draws, len(found)) == (4, 500, 7)
    assert repr(found) == str(found)


def test_numbers_are_printed_to_the_third_digit_of_their_sd(draws):
    wide = 1e5 + 250 * draws[..., 0, 0] / 0.01
    found = summarize(trace_of(p=(DIMS, draws[..., 0, 1]), wide=(DIMS, wide), still=(DIMS, np.ones((4, 500)))))
    p, large, still = (re.split(" +", line) for line in str(found).splitlines()[2:5])
    assert re.fullmatch(r"(1\.00|0\.99)\d{3}", p[1])  # an sd of 0.00973
    assert re.fullmatch(r"(99|100),\d\d\d", large[1])
    assert still[1:3] == ["1", "0"]
    assert still[5:] == ["–", "–", "–"]


def test_many_short_chains_are_counted_as_such():
    """Chains that stand still are a draw each, however many draws they are laid end to end for."""
    still = np.repeat(np.random.default_rng(3).normal(size=(4, 10, 1)), 50, axis=2)
    values = (still + 1e-3 * np.random.default_rng(4).normal(size=still.shape)).reshape(4, 500)
    trace = trace_of(p=(DIMS, values))
    member = xr.DataArray(np.tile(np.repeat(np.arange(10), 50), (4, 1)), dims=DIMS)
    trace["sample_stats"] = trace["sample_stats"].to_dataset().assign(member=member, log_likelihood=(DIMS, values))
    assert 20 < summarize(trace).table.loc["p", "ess_bulk"] < 80  # 40 chains


def test_the_verdict_is_the_traces_own_or_a_fresh_one(draws):
    trace = trace_of(p=(DIMS, draws[..., 0, 0]), q=(DIMS, np.arange(2000.0).reshape(4, 500)))
    fresh = summarize(trace, var_names=["p"])
    assert not fresh.verdict.passed
    assert "NOT converged" in str(fresh)
    assert "largest R-hat" in str(fresh)
    carried = annotate(trace, verdict=check_convergence(trace, var_names=["p"]))
    assert summarize(carried, var_names=["q"]).verdict.passed
    assert str(summarize(carried)).endswith("Converged: all 6 checks passed on p.")


def test_a_long_posterior_shows_its_beginning_and_says_how_much_is_left_out(draws):
    trace = trace_of(many=((*DIMS, "place"), np.repeat(draws[..., 0], 20, axis=2)))
    found = summarize(trace)
    assert len(found) == 40
    for text in (str(found), found._repr_html_()):
        assert "10 more" in text
        assert "many[place=29]" in text
        assert "many[place=30]" not in text


def test_html_escapes_labels_and_closes_its_tags(draws):
    level = xr.DataArray(draws[..., 0], dims=(*DIMS, "a"), coords={"a": [EVIL, "b"]})
    html = summarize(trace_of(p=level, q=(DIMS, np.arange(2000.0).reshape(4, 500))))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    for tag in ("table", "caption", "thead", "tbody", "tr", "th", "td", "p", "ul", "li"):
        assert len(re.findall(rf"<{tag}[ >]", html)) == html.count(f"</{tag}>") > 0, tag


@pytest.mark.parametrize(("settings", "message"), [({"prob": 1.0}, "prob"), ({"var_names": ["no"]}, "not found")])
def test_wrong_arguments_are_named(draws, settings, message):
    with pytest.raises(InputError, match=message):
        summarize(trace_of(p=(DIMS, draws[..., 0, 0])), **settings)


def test_draws_that_are_not_finite_are_shown_with_the_verdict_on_them():
    """Log-odds of zero, or of nothing: the check names them, and neither table nor page stops at them."""
    values = np.random.default_rng(1).normal(size=(4, 500, 3))
    values[1, 7, 1], values[2, 9, 2] = np.inf, np.nan
    tree = trace_of(odds=((*DIMS, "k"), values))
    summary = summarize(tree)
    assert np.isfinite(summary.table["rhat"]).tolist() == [True, False, False]
    assert [re.split(" +", line)[1] for line in str(summary).splitlines()[3:5]] == ["inf", "–"]
    assert "not finite: 2 (≤ 0) at odds[k=1]" in str(summary)
    section = convergence_section(tree, check_convergence(tree), judged="")
    assert any("Rank plots" in block.caption for block in section.blocks if isinstance(block, Figure))
