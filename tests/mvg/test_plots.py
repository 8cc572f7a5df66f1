"""Figures show the numbers they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.mvg import FeatureRanges, compare_noise
from dpbayes.mvg.experiments import CovarianceResult
from dpbayes.mvg.plots import error_strips, noise_bars, noise_ellipses, rss_lines
from dpbayes.mvg.svr import SvrScore, SvrStudy

RANGES = FeatureRanges([0.0, 0.0, 1.0], [1.0, 3.0, 2.0], "replace-one")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_every_drawn_ellipse_holds_the_box():
    costs = compare_noise(RANGES, n=100, epsilon=1.0, delta=1e-5, theta=[0.6, 0.3, 0.1])
    figure = noise_ellipses(costs, RANGES, features=(0, 1), names=("age", "pressure", "x"))
    axis = figure.axes[0]
    curves = {line.get_label(): np.array(line.get_data()) for line in axis.lines if line.get_label()[0] != "_"}
    assert set(curves) == {"i.i.d. analytic Gaussian", "exact directional", "optimal directional"}
    for curve in curves.values():
        points = curve[:, :-1]
        shape = points @ points.T / points.shape[1] * 2  # the ellipse's matrix from its uniform parametrization
        corner = np.array([1.0, 3.0])
        assert corner @ np.linalg.solve(shape, corner) <= 1 + 1e-9
    assert "paper's bound, equal noise" in axis.get_title(loc="left")
    with pytest.raises(InputError, match="two different ones"):
        noise_ellipses(costs, RANGES, features=(1, 1))


def test_bars_reach_from_the_range_to_the_given_values():
    figure = noise_bars({"a": [0.5, 2.0], "b": [3.0, 4.0]}, ["age", "sex"])
    assert figure.axes[0].get_ylim()[0] < 0.5  # noise below the range shows
    bars = figure.axes[0].patches
    assert [bar.get_y() for bar in bars] == [1.0] * 4
    assert [bar.get_y() + bar.get_height() for bar in bars] == [0.5, 2.0, 3.0, 4.0]


def test_rss_lines_show_means():
    rows = [
        CovarianceResult(n, q, (1.0 / n, 3.0 / n), (0.0, 0.0), 0.1)
        for n in (10, 100)
        for q in ("covariance", "identity")
    ]
    axis = rss_lines(rows, paper=False).axes[0]
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [0.2, 0.02])
    assert len(rss_lines(rows).axes[0].lines) > len(axis.lines)


def test_strips_show_every_draw():
    scores = [SvrScore("no privacy", None, (0.01,), (0.0,), 0.0, 1.0, 1.0)]
    scores += [SvrScore(name, e, (0.1, 0.2, 0.3), (1.0,), 0.1, 1.0, 1.0) for e in (1.0, 9.0) for name in ("a", "b")]
    figure = error_strips(SvrStudy(tuple(scores), 0.07, 10, 2, 2))
    assert len(figure.axes) == 2
    assert [len(line.get_xdata()) for line in figure.axes[0].lines].count(3) == 2
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b"]
