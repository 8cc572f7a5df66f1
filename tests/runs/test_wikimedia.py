"""The study of Wikimedia's page views: what it reads, what it refuses, and the real release where it is at hand."""

import datetime as dt
from pathlib import Path

import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.runs import load_spec

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "wikimedia_australia_disasters.csv"
LOADED = load_spec(ROOT / "models" / "wikimedia_disasters.toml")
study, PAGE = LOADED.module, "Ash Wednesday bushfires"


def written(folder, rows):
    lines = ["page_name,date,views,topic", *(f"{PAGE},{date},{views},bushfires" for date, views in rows)]
    (folder / "views.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "views.csv"


def test_rows_fall_into_their_summer_and_day_and_the_rest_is_absent(tmp_path):
    rows = [("2019-12-01", 512), ("2020-02-28", 450), ("2020-02-29", 999), ("2020-07-01", 800), ("2023-02-06", 90)]
    panel = study.read_panel(written(tmp_path, rows), [PAGE], [2019, 2022], {})
    assert panel.views.shape == (2, 90)
    assert panel.views[0, [0, 89]].tolist() == [512, 450] and panel.views[1, 67] == 90
    assert panel.has_row.sum() == 3
    first = dt.date(2022, 12, 1)
    assert panel.late[1].tolist() == [first + dt.timedelta(days) >= dt.date(2023, 2, 6) for days in range(90)]
    assert set(panel.data["seen"][~panel.has_row]) == {449, 89}


def test_a_row_below_its_threshold_and_a_page_without_rows_are_refused(tmp_path):
    with pytest.raises(InputError, match="row 1: 120 views on 2023-02-05 are below the threshold 450 of tier 'lower'"):
        study.read_panel(written(tmp_path, [("2023-02-05", 120)]), [PAGE], [2022], {})
    with pytest.raises(InputError, match="no row of the pages"):
        study.read_panel(written(tmp_path, [("2023-02-07", 120)]), ["Black Friday bushfires"], [2022], {})


def test_a_page_has_no_summer_before_it_was_created():
    panel = study.empty_panel([PAGE, "new"], [2018, 2019], {"new": 2019})
    assert list(zip(panel.page, panel.summer, strict=True)) == [(0, 0), (0, 1), (1, 1)]
    assert study.by_summer(panel, [1, 2, 4]).tolist() == [1, 6]


def test_a_twin_releases_what_the_publisher_would():
    panel = study.empty_panel([PAGE], list(range(2014, 2026)), {})
    exact, twin = study.simulate(panel, np.random.default_rng(2))
    old, new = twin.views[~twin.late], twin.views[twin.late]
    assert old[old >= 0].min() >= 450 and new[new >= 0].min() >= 90
    error = (twin.views - exact)[twin.has_row & (exact > 700)]
    assert np.abs(error).max() < 600 and 25 < error.std() < 60


@pytest.mark.skipif(not REAL.is_file(), reason="the real release is not at hand (../shared/data)")
def test_the_real_release_reads():
    data = LOADED.spec.data
    panel = study.read_panel(REAL, data.pages, data.summers, data.created)
    assert panel.views.shape == (25, 90) and panel.has_row.sum() == 1023
