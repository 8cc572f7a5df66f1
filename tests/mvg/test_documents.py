"""Sentences of the MVG reports follow from the numbers beside them."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpbayes.mvg import (
    FeatureRanges,
    MomentQuery,
    SvrScore,
    SvrStudy,
    calibrate_moments,
    compare_noise,
    release_moments,
)
from dpbayes.report.document import Callout
from dpbayes.report.released import simulation_warning
from dpbayes.report.run_facts import RunFacts
from dpbayes.report.shared import shared_tables
from dpbayes.runs.mvg import Spec
from dpbayes.runs.mvg_document import _svr_answer, covariance_document
from dpbayes.runs.mvg_parts import noise_section
from dpbayes.runs.mvg_regression_document import _released

SPEC = """
system = "mvg"
title = "t"
question = "q"
[data]
embedded = "patients"
n = 3000
[privacy]
epsilon = 1.0
delta = 1e-5
simulation_seed = 3
[covariance]
sizes = [1000]
"""
UNIT = FeatureRanges(np.zeros(3), np.ones(3), "replace-one")


def _spec(epsilon=1.0):
    return Spec.model_validate(tomllib.loads(SPEC.replace("epsilon = 1.0", f"epsilon = {epsilon}")))


def _rows(n, covariance, identity, limits=None):
    rows = []
    for query, error in (("covariance", covariance), ("identity", identity)):
        shares = [0.9 * error, 1.1 * error]
        rows.append({"n": n, "query": query, "rss_shares": shares, "rss": [1.0, 2.0], "runtime": 0.1})
    if limits is not None:
        rows[1]["noise_alone"] = limits
    return rows


def _document(*rows):
    made = {"seconds": 1.0, "spec_digest": "0"}
    results = [row for part in rows for row in part]
    return covariance_document(_spec(), {"features": ["a", "b", "c"], "results": results, "provenance": made})


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([0.19, 0.2], "by 0.195, inside the 0.19 to 0.2 that noise alone gives."),
        ([0.2, 0.21], "by 0.195, outside the 0.2 to 0.21 that noise alone gives."),
        ([0.1, 0.19], "by 0.195, outside the 0.1 to 0.19 that noise alone gives."),
        (None, "by 0.195."),
    ],
)
def test_noise_alone_is_named_only_beside_its_own_limits(limits, said):
    assert _document(_rows(1000, 1e-3, 0.195, limits)).answer.endswith(said)


def test_every_size_is_said_only_where_every_size_is_inside():
    inside, outside = [0.19, 0.2], [0.3, 0.4]
    last = _rows(2000, 1e-3, 0.195, inside)
    assert "(inside at every size)" in _document(_rows(1000, 4e-3, 0.195, inside), last).answer
    assert "every size" not in _document(_rows(1000, 4e-3, 0.195, outside), last).answer
    assert "every size" not in _document(last).answer
    # Whatever the order of the rows, the limits shown are those of the largest size.
    assert "inside the 0.19 to 0.2" in _document(last, _rows(1000, 4e-3, 0.195, outside)).answer


def test_a_slope_is_fitted_to_two_sizes_or_more():
    def caption(document):
        return document.sections[0].blocks[1].caption

    one = _document(_rows(1000, 1e-3, 0.2))
    assert "power" not in one.answer and "slopes" not in caption(one)
    assert "power" not in _document(_rows(1000, 1e-3, 0.2), _rows(1000, 2e-3, 0.2)).answer
    square = _document(_rows(1000, 1e-3, 0.2), _rows(10_000, 1e-5, 0.2))
    assert "From 1,000 to 10,000 records" in square.answer and "to the power -2.00 (fitted)" in square.answer
    assert "slopes are what to compare" in caption(square)
    assert "power 0.50 (fitted)" in _document(_rows(100, 1e-3, 0.2), _rows(10_000, 1e-2, 0.2)).answer
    assert "power" not in _document(_rows(100, 0.0, 0.2), _rows(10_000, 1e-2, 0.2)).answer


def test_a_comparison_takes_no_spread_of_draws_for_an_interval():
    facts = _document(_rows(1000, 1e-3, 0.2)).all_facts()
    row = facts["tables"]["covariance"][1]
    assert row["draws_q025"] < row["rss_shares"] < row["draws_q975"]
    tables = {table.name: table for table in shared_tables([RunFacts(Path(name), name, {}, facts) for name in "ab"])}
    assert tables["covariance"].intervals == ()


def _words(spec_epsilon=1.0, weights=None):
    costs = compare_noise(UNIT, n=1000, epsilon=spec_epsilon, delta=1e-5, weights=weights)
    return _section_words(costs, spec_epsilon, weighted=weights is not None)


def _section_words(costs, epsilon, *, weighted):
    return noise_section(_spec(epsilon), costs, UNIT, ["a", "b", "c"], weighted=weighted).blocks[1].text


def test_what_weights_save_is_read_from_the_ratio():
    mild, strong = _words(weights=[1.5, 1.0, 1.0]), _words(weights=[400.0, 1.0, 1.0])
    assert "that saves little" in mild and re.search(r"equal noise is [\d.]+ % larger", mild)
    share = float(re.search(r"equal noise is ([\d.]+) % larger", strong)[1])
    # Variances in proportion to 1 / sqrt(weight): sqrt(3 (400 + 1 + 1)) over 20 + 1 + 1.
    assert share == pytest.approx(100 * (np.sqrt(3 * 402) / 22 - 1), rel=0.02) and "little" not in strong
    assert "too mild" in _words(weights=[1.001, 1.0, 1.0]) and "too mild" not in mild
    assert "nothing beats equal noise" in _words() and "nothing beats" not in mild


def test_what_the_papers_bound_costs_is_read_from_its_epsilons():
    assert "0 at the same delta, where 1 is allowed" in _words() and "far from necessary" in _words()
    dear = compare_noise(UNIT, n=1000, epsilon=50.0, delta=1e-5)[0].epsilon
    assert 0 < dear < 0.001
    assert f"costs an epsilon of {dear:.2g} at the same delta, where 50 is allowed" in _words(50.0)
    costs = compare_noise(UNIT, n=1000, epsilon=1.0, delta=1e-5)
    tight = [replace(cost, epsilon=0.5 + 0.1 * place) for place, cost in enumerate(costs)]
    said = _section_words(tight, 1.0, weighted=False)
    assert "an epsilon of 0.5 to 0.6 at" in said and "far from necessary" not in said


def test_the_svr_answer_claims_drowning_only_where_it_happened():
    def score(epsilon, error):
        return SvrScore("optimal", epsilon, (error,), (1.0,), 1e-3, 0.1, 1.0)

    def answer(*scores):
        clean = SvrScore("no privacy", None, (0.1,), (0.0,), 0.0, 0.1, 1.0)
        return _svr_answer(SvrStudy((clean, *scores), 0.5, 10, 5, 5))

    assert "at epsilon 1 every mechanism drowns the signal" in answer(score(1.0, 0.6))
    survived = answer(score(9.0, 0.2))
    assert "at epsilon 9 some signal survives under optimal (best 0.200)" in survived
    assert "drowns" not in survived and "buries" not in survived


def test_a_page_on_simulated_noise_warns_and_one_on_a_release_does_not():
    noise = calibrate_moments(MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 3), epsilon=1.0, delta=1e-5)
    for rng, drawn in ((np.random.default_rng(1), "a seeded generator"), (None, "OpenDP")):
        release = release_moments([[0.0, 1.0, 0.5]], noise, rng=rng)
        text, clipping, *rest = _released(release, 1.0, 1e-5).blocks
        assert "a missing one set to the range's middle" in clipping.text
        assert f"drawn by {drawn}." in text.text
        assert rest == simulation_warning(release.sampler)
        warnings = [block for block in rest if isinstance(block, Callout) and block.tone == "warning"]
        assert [block.title for block in warnings] == ([] if rng is None else ["A simulation, not a release"])
