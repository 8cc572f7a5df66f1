"""The convergence check: against ArviZ, against known effective sizes, and on traces that must not pass."""

import json

import numpy as np
import pytest
import xarray as xr
from arviz_stats.base import array_stats

from dpbayes.errors import DamagedFileError, InputError
from dpbayes.inference import convergence
from dpbayes.inference.convergence import (
    Finding,
    Quantity,
    Verdict,
    bfmi,
    check_convergence,
    is_constant,
    judged_variables,
    mixing,
    quantity_draws,
)
from dpbayes.inference.schema import annotate
from dpbayes.inference.summary import summarize
from dpbayes.report.frame import verdict_callout

DRAWS = ("chain", "draw")


def autoregressive(rng, phi, chains, length):
    """Chains of an AR(1) process started in its stationary law, one row a coefficient."""
    steps = rng.normal(size=(len(phi), chains, length))
    draws = np.empty_like(steps)
    draws[:, :, 0] = steps[:, :, 0] / np.sqrt(1 - phi[:, None] ** 2)
    for t in range(1, length):
        draws[:, :, t] = phi[:, None] * draws[:, :, t - 1] + steps[:, :, t]
    return draws


def trace_of(posterior, *, coords=None, judged=None, **stats):
    chains, length = next(iter(posterior.values()))[1].shape[:2]
    rng = np.random.default_rng(9)
    every = {
        "diverging": np.zeros((chains, length), bool),
        "reached_max_treedepth": np.zeros((chains, length), bool),
        "energy": rng.normal(size=(chains, length)),
    } | stats
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(posterior, coords=coords),
            "sample_stats": xr.Dataset({name: (DRAWS, value) for name, value in every.items() if value is not None}),
        }
    )
    if judged is not None:
        tree.attrs["convergence_variables"] = json.dumps(judged)
    return tree


def failed(verdict):
    return {finding.check for finding in verdict.failures}


@pytest.fixture(scope="module")
def normal():
    return np.random.default_rng(4).normal(size=(4, 1000, 3))


@pytest.mark.parametrize(("chains", "length"), [(4, 400), (4, 101), (2, 9), (3, 6), (4, 4)])
def test_mixing_equals_arviz(chains, length):
    draws = autoregressive(np.random.default_rng(1), np.linspace(-0.9, 0.98, 20), chains, length)
    draws[3] = np.round(draws[3])  # ties
    got = mixing(draws)
    axes = {"chain_axis": 1, "draw_axis": 2}
    np.testing.assert_allclose(got.rhat, array_stats.rhat(draws, **axes), rtol=1e-12)
    np.testing.assert_allclose(got.ess_bulk, array_stats.ess(draws, method="bulk", **axes), rtol=1e-12)
    np.testing.assert_allclose(
        got.ess_tail, array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **axes), rtol=1e-12
    )


@pytest.mark.parametrize("length", [7, 8, 12, 96])
def test_short_chains_that_hardly_move_count_once_at_most(length):
    """With fewer than seven draws of a chain the sequence of autocorrelations would end too early."""
    rng = np.random.default_rng(length)
    draws = rng.normal(size=(1, 256, 1)) + 1e-3 * rng.normal(size=(1, 256, length))
    assert mixing(draws.reshape(1, 4, 64 * length), members=64).ess_bulk[0] <= 256.5


def test_bulk_size_of_an_autoregression_is_its_theory():
    # An AR(1) chain of N draws knows its mean as N (1 - phi) / (1 + phi) independent draws do. The estimator's relative
    # standard error here is about 4 %; 15 % is beyond 3.5 of them for each of three cases (false alarm below 1e-3).
    phi = np.array([0.0, 0.5, 0.8])
    draws = autoregressive(np.random.default_rng(2), phi, 4, 5000)
    np.testing.assert_allclose(mixing(draws).ess_bulk, 20_000 * (1 - phi) / (1 + phi), rtol=0.15)


def test_mixing_ignores_monotone_transforms_and_the_order_of_chains(normal):
    draws = np.moveaxis(normal, -1, 0)
    plain, moved = mixing(draws), mixing(np.exp(draws)[:, ::-1])
    np.testing.assert_allclose(moved.ess_bulk, plain.ess_bulk, rtol=1e-12)
    # Folding about the median is not invariant, so only the bulk's sizes are compared.
    assert (np.abs(moved.rhat - 1) < 0.01).all()


def test_blocks_do_not_mix_quantities(monkeypatch):
    monkeypatch.setattr(convergence, "_BLOCK", 7 * 80 + 3)  # seven quantities of 2 x 40 draws a block, the last partial
    draws = autoregressive(np.random.default_rng(3), np.linspace(0, 0.9, 300), 2, 40)
    draws[17] = 0.25
    whole = mixing(draws)
    one_by_one = np.array([mixing(draws[[i]]).ess_tail[0] for i in range(300)])
    np.testing.assert_allclose(whole.ess_tail, one_by_one, rtol=1e-12)
    assert np.isnan(whole.rhat[17])
    assert np.isnan(whole.ess_bulk[17])


def test_chains_stuck_at_different_places_have_infinite_rhat():
    draws = np.repeat(np.array([1.0, 2.0, 3.0, 4.0])[None, :, None], 50, axis=2)
    assert mixing(draws).rhat[0] > 1e6


def test_bfmi_of_a_random_walk_is_low_and_of_nothing_is_nan():
    rng = np.random.default_rng(5)
    energy = np.stack([np.cumsum(rng.normal(size=2000)), rng.normal(size=2000), np.zeros(2000)])
    walk, independent, still = bfmi(energy)
    assert walk < 0.05
    assert independent == pytest.approx(2.0, abs=0.2)
    assert np.isnan(still)


def test_rounding_is_not_movement():
    total = 1.0 + np.random.default_rng(6).integers(-2, 3, size=(1, 4, 20)) * np.finfo(float).eps
    assert is_constant(total).all()
    assert not is_constant(1e-300 * np.arange(80.0).reshape(1, 4, 20)).any()
    assert not is_constant(np.full((1, 4, 20), np.nan)).any()


def test_too_few_draws_have_no_mixing():
    assert np.isnan(mixing(np.random.default_rng(1).normal(size=(2, 4, 3)))).all()


def test_good_draws_pass_with_one_finding_a_check(normal):
    verdict = check_convergence(trace_of({"p": ((*DRAWS, "cell"), normal)}, coords={"cell": ["a", "b", "c"]}))
    assert verdict.passed
    assert [finding.check for finding in verdict.findings] == [
        "rhat", "ess_bulk", "ess_tail", "divergences", "tree_depth", "bfmi",
    ]  # fmt: skip
    assert sorted(map(str, verdict.worst)) == ["p[cell=a]", "p[cell=b]", "p[cell=c]"]


def test_a_shifted_chain_fails_and_is_named(normal):
    bad = normal.copy()
    bad[2, :, 1] += 1.0
    verdict = check_convergence(trace_of({"p": ((*DRAWS, "cell"), bad)}, coords={"cell": ["a", "b", "c"]}))
    assert not verdict.passed
    assert {"rhat", "ess_bulk"} <= failed(verdict)
    assert verdict.failures[0].quantity == "p[cell=b]"
    assert verdict.worst[0] == Quantity("p", (("cell", "b"),))
    assert "1 of 3 fail" in verdict.summary()


def test_only_declared_quantities_are_judged(normal):
    labels = normal.copy()
    labels[1] += 5.0  # a class whose label switched
    posterior = {"p": ((*DRAWS, "cell"), normal), "label": ((*DRAWS, "cell"), labels)}
    assert check_convergence(trace_of(posterior, judged=["p"])).passed
    assert not check_convergence(trace_of(posterior)).passed
    assert not check_convergence(trace_of(posterior, judged=["p"]), var_names=["label"]).passed
    assert judged_variables(trace_of(posterior), None) == ("p", "label")


def test_too_few_effective_draws_fail():
    slow = autoregressive(np.random.default_rng(7), np.array([0.9]), 4, 1000)[0]
    verdict = check_convergence(trace_of({"p": (DRAWS, slow)}))
    assert "ess_bulk" in failed(verdict)
    assert check_convergence(trace_of({"p": (DRAWS, slow)}), ess_min=20, rhat_max=1.1).passed


def test_structural_zeros_are_set_aside_and_counted(normal):
    zeros = normal.copy()
    zeros[..., 2] = 0.0
    verdict = check_convergence(trace_of({"p": ((*DRAWS, "cell"), zeros)}))
    assert verdict.passed
    assert verdict.value("constant") == 1
    assert not check_convergence(trace_of({"p": ((*DRAWS, "cell"), np.zeros_like(zeros))})).passed


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_never_passes(normal, bad):
    draws = normal.copy()
    draws[3, 999, 0] = bad
    verdict = check_convergence(trace_of({"p": ((*DRAWS, "cell"), draws)}))
    assert failed(verdict) == {"finite"}
    assert verdict.value("rhat") < 1.01  # the others are judged all the same


def test_one_chain_is_a_finding_of_its_own(normal):
    verdict = check_convergence(trace_of({"p": ((*DRAWS, "cell"), normal[:1])}))
    assert failed(verdict) == {"chains"}
    assert "two chains" in verdict.summary()


@pytest.mark.parametrize(
    ("stat", "value", "check"),
    [
        ("diverging", np.arange(4000).reshape(4, 1000) < 5, "divergences"),
        ("reached_max_treedepth", np.arange(4000).reshape(4, 1000) < 41, "tree_depth"),
        ("energy", np.cumsum(np.random.default_rng(8).normal(size=(4, 1000)), axis=1), "bfmi"),
        ("diverging", None, "divergences"),
        ("reached_max_treedepth", None, "tree_depth"),
        ("energy", None, "bfmi"),
        ("energy", np.full((4, 1000), np.nan), "bfmi"),
    ],
)
def test_sampler_statistics_that_are_bad_or_missing_fail(normal, stat, value, check):
    verdict = check_convergence(trace_of({"p": ((*DRAWS, "cell"), normal)}, **{stat: value}))
    assert failed(verdict) == {check}
    assert verdict.failures[0].remedy


def test_few_divergences_are_reported_though_they_pass(normal):
    few = np.arange(4000).reshape(4, 1000) < 4
    trace = trace_of({"p": ((*DRAWS, "cell"), normal)}, diverging=few)
    verdict = check_convergence(trace)
    assert verdict.passed
    assert "4 of 4000 transitions" in verdict.summary()
    assert failed(check_convergence(trace, divergent_share_max=0.0)) == {"divergences"}


def test_no_sample_stats_fails_every_sampler_check(normal):
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset({"p": ((*DRAWS, "cell"), normal)})})
    assert failed(check_convergence(trace)) == {"divergences", "tree_depth", "bfmi"}


def test_refuses_what_is_no_trace(normal):
    with pytest.raises(InputError, match="no posterior"):
        check_convergence(xr.DataTree())
    with pytest.raises(InputError, match=r"\['q'\]"):
        check_convergence(trace_of({"p": ((*DRAWS, "cell"), normal)}), var_names=["q"])


def test_quantities_of_one_label_are_kept_apart(normal):
    normal[:, :, 1] += 5.0
    trace = trace_of({"p": ((*DRAWS, "cell"), normal)}, coords={"cell": ["a", "a", "a"]})
    names = ["p[cell=a]", "p[cell=a (2)]", "p[cell=a (3)]"]
    quantities, draws = quantity_draws(trace)
    assert list(map(str, quantities)) == list(summarize(trace).table.index) == names
    worst = check_convergence(trace).worst
    assert sorted(map(str, worst)) == sorted(names)
    found = {str(quantity): draws[quantities.index(quantity)] for quantity in worst}
    np.testing.assert_array_equal(found["p[cell=a (2)]"], normal[:, :, 1])


def test_verdict_survives_json_html_and_the_trace(normal):
    bad = normal.copy()
    bad[0, 0, 0] = np.nan
    verdict = check_convergence(trace_of({"p": ((*DRAWS, "<cell>"), bad)}))
    odd = Verdict((*verdict.findings, Finding("rhat", "q", np.inf, 1.01, passed=False)), ("p",), (Quantity("p"),))
    again = Verdict.from_trace(annotate(xr.DataTree(), verdict=odd))
    assert again == odd
    assert "&lt;cell&gt;" in odd._repr_html_()
    with pytest.raises(DamagedFileError, match="no convergence verdict"):
        Verdict.from_trace(xr.DataTree())
    with pytest.raises(DamagedFileError, match="not a convergence verdict"):
        Verdict.from_json("[]")


def test_an_empty_verdict_does_not_pass():
    assert not Verdict((), ()).passed


@pytest.mark.parametrize(
    ("check", "value", "threshold", "shown"),
    [
        ("rhat", 1.01024, 1.01, "1.0102 (≤ 1.01)"),
        ("ess_bulk", 399.97, 400.0, "399.97 (≥ 400)"),
        ("divergences", 0.00100001, 0.001, "0.00100001 (≤ 0.001)"),
        ("rhat", 1.2345678, 1.01, "1.235 (≤ 1.01)"),
        ("bfmi", float("nan"), 0.3, "nan (≥ 0.3)"),
    ],
)
def test_a_value_that_just_misses_is_told_from_its_threshold(check, value, threshold, shown):
    finding = Finding.of(check, "p", value, threshold, "sample more")
    assert shown in str(finding)
    assert f"<td>{finding.value_text}</td>" in Verdict((finding,), ("p",))._repr_html_()
    assert finding.value_text in verdict_callout(Verdict((finding,), ("p",))).lines[0]
