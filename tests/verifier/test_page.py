"""Plots show what they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpbayes.verifier import PartitionCounts, design_surface, posterior, release_counts
from dpbayes.verifier.page import density_plot, design_surface_plot, share_panel


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_posteriors_have_a_panel_a_question():
    questions = {"a": PartitionCounts(15, 4, 1), "b": PartitionCounts(4, 15, 1)}
    release = release_counts(questions, epsilon=1.0, rng=np.random.default_rng(1))
    figure = density_plot({name: share_panel(posterior(release, question=name)) for name in questions}, "share")
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["a", "b"]
    # The curve is the density: its area over the grid is 1.
    for axis in figure.axes:
        x, y = axis.lines[0].get_data()
        assert np.trapezoid(y, x) == pytest.approx(1, abs=0.01)
    figure.canvas.draw()


def test_surfaces_over_designs():
    surface = design_surface([4, 6], [1.0, 2.0], r=[0.8])
    figure = design_surface_plot(surface, "right")
    for line, m in zip(figure.axes[0].lines, (4, 6), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), surface["right"].sel(n_partitions=m, r=0.8))
    figure.canvas.draw()
