"""The two experiments on small data: order and shape of the results, and the guarantee of every mechanism."""

import numpy as np
import pytest

from dpbayes.data.patients import PATIENT_RANGES, patients
from dpbayes.errors import InputError
from dpbayes.mvg import ClippedRecords, FeatureRanges, mu_for
from dpbayes.mvg.experiments import PAPER_RSS, component_rss, covariance_study, noise_alone_limits, unit_records
from dpbayes.mvg.svr import SvrConfig, SvrScore, SvrStudy, public_weights, svr_study
from dpbayes.mvg.svr_mechanisms import MECHANISMS, StudySetting, release_by


def _patient_ranges():
    return FeatureRanges(*np.array(list(PATIENT_RANGES.values())).T, "replace-one")


def test_covariance_query_wins_and_falls_with_n_while_the_identity_query_stays():
    records = patients(40_000, 5).to_numpy().T
    study = covariance_study(
        records,
        _patient_ranges(),
        sizes=[4_000, 40_000],
        epsilon=1.0,
        delta=1e-5,
        draws=40,
        rng=np.random.default_rng(8),
    )
    means = {(row.n, row.query): row.summary()["mean"] for row in study}
    # Eigenvalue errors of the covariance query are the noise, of stddev ~ 1/n: the RSS falls 100-fold. The mean of 40
    # draws, each with 9 effective terms, has a relative error near 10 %: a factor of 2 is 5 standard errors or more.
    ratio = means[4_000, "covariance"] / means[40_000, "covariance"]
    assert 50 < ratio < 200
    assert means[4_000, "identity"] == pytest.approx(means[40_000, "identity"], rel=0.1)
    assert means[4_000, "covariance"] < 0.01 * means[4_000, "identity"]
    # The paper's own table has that shape: 26-fold for five times n, 9-fold for 3.5 times.
    paper = {(n, query): rss for n, query, rss in PAPER_RSS}
    assert paper[20_000, "covariance"] / paper[100_000, "covariance"] == pytest.approx(25, rel=0.1)
    assert all(row.runtime > 0 and len(row.rss) == 40 for row in study)


def test_noise_alone_agrees_with_noise_that_is_formed():
    exact, rng = np.diag([3.0, 1.0, 0.5]), np.random.default_rng(2)
    for n in (2, 3, 60):
        limits = noise_alone_limits(exact, n, rng=rng, draws=4_000)
        found = []
        for z in rng.standard_normal((4_000, 3, n)) * 7.0:  # the scale plays no part
            found.append(component_rss(exact, z @ z.T / n, shares=True))
        low, high = (np.mean(np.array(found) <= limit) for limit in limits)
        # Both sides draw 4,000: an estimated level has a standard error of 0.0035; 5 of them.
        assert abs(low - 0.025) < 0.0175 and abs(high - 0.975) < 0.0175


def test_the_identity_query_gives_noise_alone_only_where_noise_drowns_the_records():
    records = patients(2_000, 5).to_numpy().T
    for epsilon, drowned in ((1.0, True), (50.0, False)):
        settings = {"sizes": [2_000], "epsilon": epsilon, "delta": 1e-5, "draws": 20}
        study = covariance_study(records, _patient_ranges(), **settings, rng=np.random.default_rng(8))
        low, high = study[1].noise_alone
        assert (low <= study[1].summary()["mean"] <= high) == drowned
        assert study[0].noise_alone is None and 0.1 < low < high < 0.4


def test_component_rss_by_hand():
    exact, noisy = np.diag([3.0, 1.0]), np.diag([2.0, -2.0])
    assert component_rss(exact, noisy, shares=False) == pytest.approx(1.0 + 9.0)
    assert component_rss(exact, noisy, shares=True) == pytest.approx((0.75 - 0.5) ** 2 + (0.25 + 0.5) ** 2)


def test_unit_records_read_only_the_public_ranges():
    ranges = FeatureRanges([10.0, 0.0], [20.0, 4.0], "replace-one")
    scaled, unit = unit_records([[15.0, 30.0], [1.0, 2.0]], ranges)
    assert scaled.values.tolist() == [[0.5, 1.0], [0.25, 0.5]]
    assert scaled.n_clipped.tolist() == [1, 0] and unit.widths.tolist() == [1.0, 1.0]


def test_bad_sizes():
    with pytest.raises(InputError, match="between 2 and the 3 records"):
        covariance_study(
            np.ones((1, 3)), FeatureRanges([0.0], [1.0], "replace-one"), sizes=[4], epsilon=1.0, delta=1e-5, draws=1,
            rng=np.random.default_rng(1),
        )  # fmt: skip


@pytest.mark.parametrize("name", list(MECHANISMS))
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_every_mechanism_keeps_the_guarantee(name, epsilon):
    size, n = 4, 300
    ranges = FeatureRanges(np.zeros(size), np.ones(size), "replace-one")
    theta = np.array([0.4, 0.4, 0.1, 0.1])
    setting = StudySetting(ranges, n, epsilon, 1e-5, theta, np.array([4.0, 3.0, 1.0, 1.0]))
    zeros = np.zeros(size, int)
    records = ClippedRecords(np.random.default_rng(3).random((size, n)), zeros, zeros, ranges)
    released = release_by(name, records, setting, rng=np.random.default_rng(4))
    price = mu_for(epsilon, 1e-5)
    if "MVG" in name:
        assert released.total_mu < price
    else:
        assert released.total_mu == pytest.approx(price, rel=1e-9)
    white = released.noise.row_cov.whiten(released.values - records.values)
    # 1,200 standard normals: the sum of squares has standard deviation sqrt(2,400); 4.9 of them, false alarm 1e-6.
    assert abs(np.sum(white**2) - size * n) < 4.9 * np.sqrt(2 * size * n)


def test_weights_come_from_public_records():
    table = patients(4_000, 17).to_numpy().T
    weights = public_weights(table, _patient_ranges())
    names = list(PATIENT_RANGES)
    assert weights.shape == (10,) and np.min(weights) == pytest.approx(np.max(weights) / 20)
    assert names[int(np.argmax(weights[:-1]))] in ("age", "systolic_mmhg")


def test_svr_study_recovers_the_signal_only_at_a_large_epsilon():
    pytest.importorskip("sklearn", reason="the regression study needs scikit-learn, an optional dependency")
    config = SvrConfig(epsilons=(1.0, 1e5), draws=2, costs=(1.0,), gammas=(1.0,))
    ranges = _patient_ranges()
    lines = []
    study = svr_study(
        patients(300, 3).to_numpy().T,
        ranges,
        weights=np.ones(10),
        config=config,
        rng=np.random.default_rng(6),
        progress=lines.append,
    )
    scores = {(score.mechanism, score.epsilon): score for score in study.scores}
    assert (study.n_train, study.n_tuning, study.n_holdout) == (210, 45, 45)
    assert len(lines) == len(study.scores) - 1 == 12
    clean = scores["no privacy", None]
    assert clean.mean < 0.5 * study.constant and not study.drowned(clean)
    for name in MECHANISMS:
        assert study.drowned(scores[name, 1.0])
    # At epsilon 1e5 noise is below 1 % of the ranges; the exact mechanisms find the signal, the theorem's never do.
    for name in ("i.i.d. Gaussian", "exact binary", "optimal"):
        assert scores[name, 1e5].mean < 0.6 * study.constant
    for name in ("binary MVG", "derived MVG"):
        assert study.drowned(scores[name, 1e5])


def test_drowned_is_judged_against_the_constant():
    score = SvrScore("x", 1.0, (0.2, 0.4), (1.0,), 0.0, 1.0, 1.0)
    assert score.mean == pytest.approx(0.3)
    assert SvrStudy((score,), 0.3, 1, 1, 1).drowned(score)
    assert not SvrStudy((score,), 0.31, 1, 1, 1).drowned(score)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"draws": 0}, "draws must be at least 1"), ({"tuning": 0.6, "holdout": 0.5}, "positive parts")],
)
def test_bad_config(changes, message):
    with pytest.raises(InputError, match=message):
        SvrConfig(**changes)
