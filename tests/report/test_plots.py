"""Figures: nothing is cut off."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dpbayes.report.plots import interval_panels, rank_plot, residual_plot


@pytest.mark.parametrize("n_tables", [1, 2, 6, 7])
def test_panels_of_margins_are_whole_and_each_column_has_its_axis(n_tables):
    ends, counts = np.array([[10.0, 0.0, 20.0]] * 3), np.array([9.0, 10.0, 12.0])
    each = [[part] * n_tables for part in (["a", "b", "c"], ends, ends, counts, counts)]
    figure = interval_panels([f"table {i}" for i in range(n_tables)], *each)
    figure.draw_without_rendering()
    page = figure.bbox
    words = [figure.legends[0], figure._supxlabel, *(axis.title for axis in figure.axes if axis.get_visible())]
    for box in (part.get_window_extent() for part in words):
        assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1
    lowest = {axis.get_position().x0: axis for axis in figure.axes if axis.get_visible()}  # row by row, downwards
    assert all(any(tick.label1.get_visible() for tick in axis.xaxis.get_major_ticks()) for axis in lowest.values())
    plt.close(figure)


def test_a_row_of_panels_is_as_high_as_its_largest_table_asks():
    sizes = [2, 2, 2, 40, 2]
    labels = [[f"a long label of cell {i}" * 2 for i in range(size)] for size in sizes]
    ends = [np.tile([10.0, 0.0, 20.0], (size, 1)) for size in sizes]
    counts = [np.full(size, 9.0) for size in sizes]
    figure = interval_panels([f"table {i}" for i in range(5)], labels, ends, None, counts, None)
    figure.draw_without_rendering()
    boxes = [axis.get_position().height for axis in figure.axes if axis.get_visible()]
    assert boxes[3] > 4 * boxes[0]
    plt.close(figure)


def test_names_of_many_tables_do_not_lie_upon_one_another():
    groups = np.repeat([f"attribute {i} x attribute {i + 1}" for i in range(36)], [4, 96] * 18).tolist()
    figure = residual_plot(groups, np.zeros(len(groups)), limit=2.0)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) == 36 and all(a.x1 <= b.x0 for a, b in pairwise(boxes))
    plt.close(figure)


def test_chains_of_a_count_that_agree_stay_in_the_band_of_their_ranks():
    """Whole draws with many ties: 24 chains leave a 95 % band (of Dvoretzky, Kiefer and Wolfowitz) six times at most.

    So many or more have a probability below 0.001.
    """
    draws = np.random.default_rng(3).poisson(0.7, (6, 4, 1000))
    figure = rank_plot([f"count {k}" for k in range(6)], draws, np.full(6, 4000.0))
    left = 0
    for axis in figure.axes:
        band = axis.patches[0].get_height() / 2
        assert band == pytest.approx(np.sqrt(np.log(2 / 0.05) / 2000))
        chains = [line.get_ydata() for line in axis.lines if len(line.get_ydata()) == 1000]
        assert len(chains) == 4
        left += sum(np.abs(chain).max() > band for chain in chains)
    assert left <= 6
