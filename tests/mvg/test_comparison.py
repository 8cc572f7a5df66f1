"""The noise table: order, gap and who may gain from direction."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.mvg import FeatureRanges
from dpbayes.mvg.allocation import compare_noise, noise_ellipses, supremum_norm


def _table(ranges, **changes):
    settings = {"n": 1000, "epsilon": 1.0, "delta": 1e-5} | changes
    return {cost.mechanism: cost for cost in compare_noise(ranges, **settings)}


def test_anchor_gap_of_eight_digits():
    unit = FeatureRanges(np.zeros(10), np.ones(10), "replace-one")
    table = _table(unit, n=70_000, delta=1 / 70_000)
    assert table["paper's bound, equal noise"].stddev == pytest.approx(5.5e9, rel=7e-3)
    assert table["i.i.d. analytic Gaussian"].stddev == pytest.approx(11.542, rel=1e-5)
    assert 4e8 < table["paper's bound, equal noise"].ratio < 5e8
    one = _table(FeatureRanges([0.0], [1.0], "replace-one"), n=1)
    assert 8 < one["paper's bound, equal noise"].ratio < 9


def test_equal_ranges_and_weights_leave_nothing_to_direction():
    table = _table(FeatureRanges(np.zeros(4), np.ones(4), "replace-one"))
    assert table["i.i.d. analytic Gaussian"].ratio == pytest.approx(1.0, rel=1e-9)


def test_unequal_ranges_pay_by_cauchy_and_schwarz():
    widths = np.array([1.0, 10.0, 100.0])
    table = _table(FeatureRanges(np.zeros(3), widths, "replace-one"), weights=1 / widths**2)
    # Weighted variances: sum(c) sum(w^2) against (sum w sqrt(c))^2 = 9.
    expected = np.sqrt(np.sum(1 / widths**2) * np.sum(widths**2) / 9)
    assert table["i.i.d. analytic Gaussian"].ratio == pytest.approx(expected, rel=1e-9)
    assert all(cost.ratio >= 1 - 1e-12 for cost in table.values())


def test_every_mechanism_keeps_the_guarantee_and_the_exact_ones_use_it_up():
    ranges = FeatureRanges([0.0, -2.0, 5.0], [1.0, 3.0, 5.5], "add-remove")
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    table = _table(ranges, theta=[0.6, 0.3, 0.1], directions=rotation, weights=[3.0, 1.0, 2.0])
    assert len(table) == 5
    for name, cost in table.items():
        assert cost.epsilon <= 1.0 + 1e-9
        if not name.startswith("paper"):
            assert cost.epsilon == pytest.approx(1.0, rel=1e-8)


def test_gamma_of_the_identity_query():
    assert supremum_norm(FeatureRanges(np.zeros(10), np.ones(10), "replace-one"), 70_000) == pytest.approx(
        836.66, abs=5e-3
    )
    assert supremum_norm(FeatureRanges([-3.0], [1.0], "replace-one"), 4) == 6.0


def test_bad_weights():
    with pytest.raises(InputError, match="weights must be 2 positive finite numbers"):
        _table(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), weights=[1.0, 0.0])


BOX = FeatureRanges([0.0, 0.0, 1.0], [1.0, 3.0, 2.0], "replace-one")


def test_every_drawn_ellipse_holds_the_box():
    costs = compare_noise(BOX, n=100, epsilon=1.0, delta=1e-5, theta=[0.6, 0.3, 0.1])
    figure = noise_ellipses(costs, BOX, names=("age", "pressure", "x"))
    axis = figure.axes[0]
    curves = {line.get_label(): np.array(line.get_data()) for line in axis.lines if line.get_label()[0] != "_"}
    assert set(curves) == {"i.i.d. analytic Gaussian", "exact directional", "optimal directional"}
    for curve in curves.values():
        points = curve[:, :-1]
        shape = points @ points.T / points.shape[1] * 2  # the ellipse's matrix from its uniform parametrization
        corner = np.array([1.0, 3.0])
        assert corner @ np.linalg.solve(shape, corner) <= 1 + 1e-9
    assert "paper's bound, equal noise" in axis.get_title(loc="left")
    with pytest.raises(InputError, match="of two features"):
        noise_ellipses(costs, FeatureRanges([0.0], [1.0], "replace-one"))
    plt.close("all")
