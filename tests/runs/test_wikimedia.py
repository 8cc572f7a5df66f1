"""The study of Wikimedia's page views: what it reads, what it refuses, and the real release where it is at hand."""

import dataclasses
import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpbayes.errors import InputError, MissingColumnError
from dpbayes.privacy import DiscreteGaussian, TwoSidedGeometric
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
    with pytest.raises(InputError, match="120 views on 2023-02-05 are below the threshold 450"):
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


def test_wikimedia_eras_are_disjoint_and_dated() -> None:
    facts = {
        (2016, 5, 1): (TwoSidedGeometric(300.0), 3500),
        (2017, 2, 9): (TwoSidedGeometric(30.0), 450),
        (2023, 2, 5): (TwoSidedGeometric(30.0), 450),
        (2023, 2, 6): (DiscreteGaussian((10 / 0.03) ** 0.5), 90),
        (2023, 11, 19): (TwoSidedGeometric(30.0), 450),
        (2026, 1, 1): (DiscreteGaussian((10 / 0.03) ** 0.5), 90),
    }
    for day, (law, threshold) in facts.items():
        era = study.era_of(dt.date(*day))
        assert (era.law, era.threshold) == (law, threshold)
    assert study.era_of(dt.date(2024, 3, 1), tier="higher").threshold == 1000
    assert study.era_of(dt.date(2023, 5, 1), country="US").threshold == 450
    with pytest.raises(InputError, match="released nothing for countries of tier 'medium' on 2020-01-01"):
        study.era_of(dt.date(2020, 1, 1), tier="medium")
    # The anchor of the current era: a 95 % interval of 35.7 views either side.
    assert 1.96 * study.ALL_ERAS[-3].law.variance ** 0.5 == pytest.approx(35.7, abs=0.15)


def test_wikimedia_files_of_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = dt.date(2024, 2, 6)
    path = tmp_path / "2024-2-6.tsv"
    path.write_text('Australia\tAU\ten.wikipedia\t12\tA "page"\tQ1\t90\n')
    columns = ["country", "country_code", "project", "page_id", "page_title", "item_id", "private_count"]
    (row,) = study.read_views([path], columns=columns).to_dicts()
    assert (row["page"], row["views"], row["date"]) == ('A "page"', 90, day)
    assert (row["law"], row["threshold"]) == ("discrete-gaussian", 90)
    with pytest.raises(InputError, match=r"2024-2-6.tsv, row 1: 90 views on 2024-02-06 are below the threshold 91"):
        monkeypatch.setattr(study, "ALL_ERAS", (dataclasses.replace(study.era_of(day), threshold=91),))
        study.read_views(path, columns=columns)
    with pytest.raises(MissingColumnError, match="needs a column of private_count"):
        study.read_views(path)


def test_the_real_wikimedia_file(shared_data: Path) -> None:
    """Every count of the real file reaches the threshold that its day has; the least of each era are at it."""
    read = study.read_views(shared_data / "wikimedia_australia_disasters.csv")
    least = dict(read.group_by("threshold").agg(pl.col("views").min()).iter_rows())
    assert len(read) == 6221 and set(least) == {450, 90}
    assert least[450] < 470 and least[90] < 100
