"""The reproductions of the paper's experiments (models/studies): results, guarantees, pages and figures."""

import itertools
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpbayes.data.datasets import PATIENT_RANGES, framingham_risk, patients
from dpbayes.errors import InputError, MissingColumnError, SpecError
from dpbayes.mvg import FeatureRanges, compare_noise
from dpbayes.mvg.matrix import mu_for
from dpbayes.report.compare import RunFacts, shared_tables
from dpbayes.runs import load_spec
from dpbayes.runs.registry import system_module

paper = system_module("study:mvg_paper")


def _patient_ranges():
    return FeatureRanges(*np.array(list(PATIENT_RANGES.values())).T, "replace-one")


def test_covariance_query_wins_and_falls_with_n_while_the_identity_query_stays():
    records = patients(40_000, 5).to_numpy().T
    study = paper.covariance_study(
        records,
        _patient_ranges(),
        sizes=[4_000, 40_000],
        epsilon=1.0,
        delta=1e-5,
        draws=40,
        rng=np.random.default_rng(8),
    )
    means = {(row.n, row.query): row.summary()["mean"] for row in study}
    # Eigenvalue errors of the covariance query are the noise, of stddev ~ 1/n: their square falls 100-fold. The mean of
    # 40 draws, each with 9 effective terms, has a relative error near 10 %: a factor of 2 is 5 standard errors or more.
    ratio = means[4_000, "covariance"] / means[40_000, "covariance"]
    assert 50 < ratio**2 < 200
    assert means[4_000, "identity"] == pytest.approx(means[40_000, "identity"], rel=0.05)
    assert means[4_000, "covariance"] < 0.1 * means[4_000, "identity"]
    # The paper's own table has that shape: 26-fold for five times n, 9-fold for 3.5 times.
    published = {(n, query): rss for n, query, rss in paper.PAPER_RSS}
    assert published[20_000, "covariance"] / published[100_000, "covariance"] == pytest.approx(25, rel=0.1)
    assert all(row.runtime > 0 and len(row.rss) == 40 for row in study)


def test_noise_alone_agrees_with_noise_that_is_formed():
    exact, rng = np.diag([3.0, 1.0, 0.5]), np.random.default_rng(2)
    for n in (2, 3, 60):
        limits = paper.noise_alone_limits(exact, n, rng=rng, draws=4_000)
        found = []
        for z in rng.standard_normal((4_000, 3, n)) * 7.0:  # the scale plays no part
            found.append(paper.component_rss(exact, z @ z.T / n, shares=True))
        low, high = (np.mean(np.array(found) <= limit) for limit in limits)
        # Both sides draw 4,000: an estimated level has a standard error of 0.0035; 5 of them.
        assert abs(low - 0.025) < 0.0175 and abs(high - 0.975) < 0.0175


def test_the_identity_query_gives_noise_alone_only_where_noise_drowns_the_records():
    records = patients(2_000, 5).to_numpy().T
    for epsilon, drowned in ((1.0, True), (50.0, False)):
        settings = {"sizes": [2_000], "epsilon": epsilon, "delta": 1e-5, "draws": 20}
        study = paper.covariance_study(records, _patient_ranges(), **settings, rng=np.random.default_rng(8))
        low, high = paper.points(study[1].noise_alone)
        assert (low <= study[1].summary()["mean"] <= high) == drowned
        assert study[0].noise_alone is None and 100 * 0.1**0.5 < low < high < 100 * 0.4**0.5


def test_component_rss_by_hand():
    exact, noisy = np.diag([3.0, 1.0]), np.diag([2.0, -2.0])
    assert paper.component_rss(exact, noisy, shares=False) == pytest.approx(1.0 + 9.0)
    assert paper.component_rss(exact, noisy, shares=True) == pytest.approx((0.75 - 0.5) ** 2 + (0.25 + 0.5) ** 2)


def test_unit_records_read_only_the_public_ranges():
    ranges = FeatureRanges([10.0, 0.0], [20.0, 4.0], "replace-one")
    scaled, unit = paper.unit_records([[15.0, 30.0], [1.0, 2.0]], ranges)
    assert scaled.tolist() == [[0.5, 1.0], [0.25, 0.5]]
    assert unit.widths.tolist() == [1.0, 1.0]


def test_bad_sizes():
    with pytest.raises(InputError, match="between 2 and the 3 records"):
        paper.covariance_study(
            np.ones((1, 3)), FeatureRanges([0.0], [1.0], "replace-one"), sizes=[4], epsilon=1.0, delta=1e-5, draws=1,
            rng=np.random.default_rng(1),
        )  # fmt: skip


@pytest.mark.parametrize("name", list(paper.MECHANISMS))
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_every_mechanism_keeps_the_guarantee(name, epsilon):
    size, n = 4, 300
    ranges = FeatureRanges(np.zeros(size), np.ones(size), "replace-one")
    theta = np.array([0.4, 0.4, 0.1, 0.1])
    setting = paper.StudySetting(ranges, n, epsilon, 1e-5, theta, np.array([4.0, 3.0, 1.0, 1.0]))
    records = np.random.default_rng(3).random((size, n))
    released = paper.release_by(name, records, setting, rng=np.random.default_rng(4))
    price = mu_for(epsilon, 1e-5)
    if "MVG" in name:
        assert released.total_mu < price
    else:
        assert released.total_mu == pytest.approx(price, rel=1e-9)
    white = released.noise.row_cov.whiten(released.values - records)
    # 1,200 standard normals: the sum of squares has standard deviation sqrt(2,400); 4.9 of them, false alarm 1e-6.
    assert abs(np.sum(white**2) - size * n) < 4.9 * np.sqrt(2 * size * n)


def test_weights_come_from_public_records():
    table = patients(4_000, 17).to_numpy().T
    weights = paper.public_weights(table, _patient_ranges())
    names = list(PATIENT_RANGES)
    assert weights.shape == (10,) and np.min(weights) == pytest.approx(np.max(weights) / 20)
    assert names[int(np.argmax(weights[:-1]))] in ("age", "systolic_mmhg")


def test_svr_study_recovers_the_signal_only_at_a_large_epsilon():
    pytest.importorskip("sklearn", reason="the regression study needs scikit-learn, an optional dependency")
    favoured = ["age", "male", "systolic_mmhg", "framingham"]
    settings = paper.SvrSection(epsilons=[1.0, 1e5], draws=2, costs=[1.0], gammas=[1.0], favoured=favoured)
    ranges = _patient_ranges()
    lines = []
    study = paper.svr_study(
        patients(300, 3).to_numpy().T,
        ranges,
        settings,
        delta=1e-5,
        theta=settings.theta(list(PATIENT_RANGES)),
        weights=np.ones(10),
        rng=np.random.default_rng(6),
        progress=lines.append,
    )
    scores = {(score.mechanism, score.epsilon): score for score in study.scores}
    assert (study.n_train, study.n_tuning, study.n_holdout) == (210, 45, 45)
    assert len(lines) == len(study.scores) - 1 == 12
    clean = scores["no privacy", None]
    assert clean.mean < 0.5 * study.constant and not study.drowned(clean)
    for name in paper.MECHANISMS:
        assert study.drowned(scores[name, 1.0])
    # At epsilon 1e5 noise is below 1 % of the ranges; the exact mechanisms find the signal, the theorem's never do.
    for name in ("i.i.d. Gaussian", "exact binary", "optimal"):
        assert scores[name, 1e5].mean < 0.6 * study.constant
    for name in ("binary MVG", "derived MVG"):
        assert study.drowned(scores[name, 1e5])


def test_drowned_is_judged_against_the_constant():
    score = paper.SvrScore("x", 1.0, (0.2, 0.4), (1.0,), 0.0, 1.0, 1.0)
    assert score.mean == pytest.approx(0.3)
    assert paper.SvrStudy((score,), 0.3, 1, 1, 1).drowned(score)
    assert not paper.SvrStudy((score,), 0.31, 1, 1, 1).drowned(score)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("svr.draws=1", "svr.draws: must be greater than or equal to 2"),
        ("svr.tuning=0.6", "svr.tuning: must be less than or equal to 0.45"),
        ("svr.costs=[0.0]", "svr.costs.0: must be greater than 0"),
        ("svr.gammas=[]", "svr.gammas: list should have at least 1 item"),
        ("svr.epsilons=[nan]", r"svr\.epsilons\.0: "),
        (f"svr.favoured={list(PATIENT_RANGES)}", "favoured must name some but not all of the 10"),
        ("svr.favoured=['height']", "no range is known for height of svr.favoured"),
    ],
)
def test_bad_settings_of_the_regression_are_refused_with_the_spec(changes, message):
    with pytest.raises(SpecError, match=message):
        load_spec("models/mvg_svr.toml", [changes], allow_python=True)


SPEC = """
system = "study:mvg_paper"
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
    return paper.Spec.model_validate(tomllib.loads(SPEC.replace("epsilon = 1.0", f"epsilon = {epsilon}")))


def _rows(n, covariance, identity, limits=None):
    rows = []
    for query, error in (("covariance", covariance), ("identity", identity)):
        shares = [0.9 * error, 1.1 * error]
        rows.append({"n": n, "query": query, "rss_shares": shares, "rss": [1.0, 2.0], "runtime": 0.1})
    if limits is not None:
        rows[1]["noise_alone"] = limits
    return rows


def _document(*rows):
    results = [row for part in rows for row in part]
    return paper.sections(_spec(), None, {"features": ["a", "b", "c"], "results": results}, {})


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([0.19, 0.2], "by 44.2, inside the 43.6 to 44.7 that noise alone gives."),
        ([0.2, 0.21], "by 44.2, outside the 44.7 to 45.8 that noise alone gives."),
        ([0.1, 0.19], "by 44.2, outside the 31.6 to 43.6 that noise alone gives."),
        (None, "by 44.2."),
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
    assert "inside the 43.6 to 44.7" in _document(last, _rows(1000, 4e-3, 0.195, outside)).answer


def test_a_slope_is_fitted_to_two_sizes_or_more():
    def caption(document):
        return document.picture.caption

    one = _document(_rows(1000, 1e-3, 0.2))
    assert "power" not in one.answer and "slopes" not in caption(one)
    assert "power" not in _document(_rows(1000, 1e-3, 0.2), _rows(1000, 2e-3, 0.2)).answer
    square = _document(_rows(1000, 1e-3, 0.2), _rows(10_000, 1e-5, 0.2))
    assert "From 1,000 to 10,000 records" in square.answer and "to the power -1.00 (fitted)" in square.answer
    assert "slopes are what to compare" in caption(square)
    assert "power 0.25 (fitted)" in _document(_rows(100, 1e-3, 0.2), _rows(10_000, 1e-2, 0.2)).answer
    assert "power" not in _document(_rows(100, 0.0, 0.2), _rows(10_000, 1e-2, 0.2)).answer


def test_a_comparison_takes_no_spread_of_draws_for_an_interval():
    table = _document(_rows(1000, 1e-3, 0.2)).sections[0].blocks[0]
    row = table.facts()[1]
    assert row["draws_q025"] < row["error_shares"] < row["draws_q975"]
    facts = {"tables": {"covariance": table.facts()}, "about": {"covariance": table.about()}}
    shared = shared_tables([RunFacts(Path(name), name, {}, facts) for name in "ab"])
    assert [table.intervals for table in shared] == [()]


def _words(spec_epsilon=1.0, weights=None):
    costs = compare_noise(UNIT, n=1000, epsilon=spec_epsilon, delta=1e-5, weights=weights)
    return _section_words(costs, spec_epsilon, weighted=weights is not None)


def _section_words(costs, epsilon, *, weighted):
    return paper.noise_section(_spec(epsilon), costs, UNIT, ["a", "b", "c"], weighted=weighted).blocks[1].text


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
        return paper.SvrScore("optimal", epsilon, (error,), (1.0,), 1e-3, 0.1, 1.0)

    def answer(*scores):
        clean = paper.SvrScore("no privacy", None, (0.1,), (0.0,), 0.0, 0.1, 1.0)
        return paper._svr_answer(paper.SvrStudy((clean, *scores), 0.5, 10, 5, 5))

    assert "at epsilon 1 every mechanism drowns the signal" in answer(score(1.0, 0.6))
    survived = answer(score(9.0, 0.2))
    assert "at epsilon 9 some signal survives under optimal (best 0.200)" in survived
    assert "drowns" not in survived and "buries" not in survived


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_bars_reach_from_the_range_to_the_given_values():
    figure = paper.noise_bars({"a": [0.5, 2.0], "b": [3.0, 4.0]}, ["age", "sex"])
    assert figure.axes[0].get_ylim()[0] < 0.5  # noise below the range shows
    bars = figure.axes[0].patches
    assert [bar.get_y() for bar in bars] == [1.0] * 4
    assert [bar.get_y() + bar.get_height() for bar in bars] == [0.5, 2.0, 3.0, 4.0]


def test_error_lines_show_roots_of_means():
    rows = [
        paper.CovarianceResult(n, q, (1.0 / n, 3.0 / n), (0.0, 0.0), 0.1)
        for n in (10, 100)
        for q in ("covariance", "identity")
    ]
    axis = paper.error_lines(rows, paper=False).axes[0]
    np.testing.assert_allclose(axis.lines[0].get_ydata(), 100.0 * np.sqrt([0.2, 0.02]))
    assert len(paper.error_lines(rows).axes[0].lines) > len(axis.lines)


def test_strips_show_every_draw():
    scores = [paper.SvrScore("no privacy", None, (0.01,), (0.0,), 0.0, 1.0, 1.0)]
    for e, name in itertools.product((1.0, 9.0), ("a", "b")):
        scores.append(paper.SvrScore(name, e, (0.1, 0.2, 0.3), (1.0,), 0.1, 1.0, 1.0))
    figure = paper.error_strips(paper.SvrStudy(tuple(scores), 0.07, 10, 2, 2))
    assert len(figure.axes) == 2
    assert [len(line.get_xdata()) for line in figure.axes[0].lines].count(3) == 2
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b"]


OBSERVATIONS = """patient,day,age,sex,smoker,systolic_mmhg,total_cholesterol_mgdl,hdl_cholesterol_mgdl,bmi,\
glucose_mgdl,hba1c_pct
a,2001-01-01,40,F,1,120,180,50,25.5,,
a,2003-01-01,42,F,1,130,190,55,26.5,130,5.0
a,2004-01-01,43,F,1,,190,55,26.5,80,5.0
b,2001-01-01,29,M,0,120,180,50,25.5,90,5.0
c,2001-01-01,60,M,0,150,210,45,31,,
"""


def test_synthea_keeps_the_last_complete_day_of_every_adult(tmp_path):
    path = tmp_path / "vitals.csv"
    path.write_text(OBSERVATIONS)
    table = paper.read_synthea(path)
    assert table.columns == list(PATIENT_RANGES)
    assert table["age"].to_list() == [42.0, 60.0] and table["diabetes"].to_list() == [1.0, 0.0]
    assert table["male"].to_list() == [0.0, 1.0] and table["systolic_mmhg"].to_list() == [130.0, 150.0]
    score = framingham_risk(
        age=60, male=1, smoker=0, diabetes=0, treated=0, systolic_mmhg=150, total_cholesterol_mgdl=210,
        hdl_cholesterol_mgdl=45,
    )  # fmt: skip
    assert table["framingham"][1] == pytest.approx(float(score))
    path.write_text(OBSERVATIONS.replace("bmi", "weight"))
    with pytest.raises(MissingColumnError, match="lacks the columns bmi"):
        paper.read_synthea(path)


def test_synthea_trial_data(shared_data):
    path = shared_data / "synthea_vitals.csv"
    if not path.is_file():
        pytest.skip("needs synthea_vitals.csv, which is not here")
    table = paper.read_synthea(path)
    assert len(table) == 57
    for name, (low, high) in PATIENT_RANGES.items():
        assert table[name].is_between(low, high).all(), name
