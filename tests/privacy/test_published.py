"""Noisy tables of other publishers, read into a release: what is understood, and what is refused with file and row."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.privacy import (
    DiscreteGaussian,
    Laplace,
    NoisyTable,
    NoisyTotal,
    Publication,
    PublishedTable,
    Release,
    TwoSidedGeometric,
    read_published,
    read_release,
)

STATED = Publication("An office", "https://example.org", "2026-11", "geometric mechanism, scale 2")
LONG = "table,sex,age,noisy,var\nA,f,0,9,8\nA,m,0,12,8\nA,f,1,41,8\nA,m,1,36,18\nB,f,,52,8\nB,m,,47,8\nN,,,99,8\n"
PAIR = {"value": "noisy", "levels": ["age", "sex"], "where": {"table": "A"}}
SEX = {"value": "noisy", "levels": {"sex": "sex"}, "where": {"table": "B"}, "law": "laplace", "variance": "var"}
TOTAL = {"value": "noisy", "where": {"table": "N"}, "law": "discrete-gaussian", "scale": 3.0}


def read(path: Path, text: str, *tables: dict, **options) -> Release:
    path.write_text(text)
    options.setdefault("publication", STATED)
    return read_published(path, [PublishedTable(**table) for table in tables], **options)


def test_long_file_of_several_tables_and_laws(tmp_path: Path) -> None:
    release = read(tmp_path / "t.csv", LONG, PAIR | {"scale": 2.0}, SEX, TOTAL)
    pair, sex = release.tables
    assert pair.counts.tolist() == [[9, 12], [41, 36]] and pair.noise == TwoSidedGeometric(2.0)
    assert sex.counts.tolist() == [52.0, 47.0] and sex.noise == Laplace(2.0)
    assert release.n == NoisyTotal(99, DiscreteGaussian(3.0), None, None)
    assert (release.sampler, release.publication, release.adjacency) == ("published", STATED, "as published")
    assert (release.epsilon, release.rho) == (None, None)
    assert read_release(release.write(tmp_path / "release.json")).digest == release.digest


def test_variance_per_row_and_wide_file_say_the_same(tmp_path: Path) -> None:
    long = read(tmp_path / "t.csv", LONG, PAIR | {"variance": "var"}, total=100).tables[0]
    # s of variance v solves 2 q / (1 - q)^2 = v with q = exp(-1 / s).
    np.testing.assert_allclose(long.variances, [[8.0, 8.0], [8.0, 18.0]], rtol=1e-12)
    assert long.noise.variance == pytest.approx(18.0)
    text = "age,f,m\n0,9,12\n1,41,36\n"
    wide = {"levels": ["age"], "across": "sex", "value": {"f": "f", "m": "m"}, "scale": 2.0}
    release = read(tmp_path / "w.csv", text, wide, total=100)
    assert release.tables[0].counts.tolist() == long.counts.tolist() and release.tables[0].attributes == ("age", "sex")


def test_levels_across_a_wide_file_are_declared_ones_and_each_stands_once(tmp_path: Path) -> None:
    wide = {"levels": ["age"], "across": "sex", "scale": 2.0}
    text = "age,f,m\n0,9,12\n1,41,36\n"
    declared = {"total": 100, "levels": {"sex": ["f", "x"]}}
    with pytest.raises(InputError, match=r"w\.csv, row 1: across is 'm', which is no level of 'sex'"):
        read(tmp_path / "w.csv", text, wide | {"value": {"f": "f", "m": "m"}}, **declared)
    with pytest.raises(InputError, match=r"w\.csv, row 1 repeats the cell of row 1"):
        read(tmp_path / "w.csv", text, wide | {"value": {"f": "f", "m": "f"}}, total=100, levels={"sex": ["f", "m"]})


def test_frames_parquet_and_declared_order_of_levels(tmp_path: Path) -> None:
    frame = pl.DataFrame({"sex": ["f", "m"], "n": [52, 47]})
    frame.write_parquet(tmp_path / "t.parquet")
    table = PublishedTable("n", ["sex"], scale=2.0)
    options = {"publication": STATED, "total": 100, "levels": {"sex": ["m", "f"]}}
    for source in (frame, frame.to_pandas(), tmp_path / "t.parquet"):
        assert read_published(source, [table], **options).tables[0].counts.tolist() == [47, 52]


def test_threshold_holds_back_absent_and_empty_counts(tmp_path: Path) -> None:
    text = "sex,age,noisy\nf,0,\nf,1,41\nm,1,36\n"
    table = {"value": "noisy", "levels": ["sex", "age"], "scale": 2.0, "threshold": 20}
    release = read(tmp_path / "t.csv", text, table, total=100)
    assert release.tables[0].withheld.tolist() == [[True, False], [True, False]]
    assert release.to_dict()["tables"][0]["counts"] == [[None, 41], [None, 36]]
    again = read_release(release.write(tmp_path / "release.json"))
    assert again.digest == release.digest and again.tables[0].threshold == 20


@pytest.mark.parametrize(
    ("change", "table", "options", "message"),
    [
        (("9,8", "9,-8"), {"variance": "var"}, {}, r"t.csv, row 1: variance must be positive, got -8"),
        (("9,8", "9,"), {"variance": "var"}, {}, r"row 1: var must be a number"),
        (
            ("A,f,0,9,8\n", ""),
            {"scale": 2.0},
            {},
            r"lacks 1 of the 4 cells of age x sex: age: 0, sex: f; give a threshold",
        ),
        (("A,f,0", "A,m,0"), {"scale": 2.0}, {}, r"row 2 repeats the cell of row 1"),
        (("A,f,0,9", "A,f,0,x"), {"scale": 2.0}, {}, r"row 1: noisy must be a number, got 'x'"),
        (("A,f,0,9", "A,f,0,9.5"), {"scale": 2.0}, {}, r"row 1: noisy is 9.5, and the law two-sided-geometric is on"),
        (("", ""), {"scale": 2.0, "threshold": 10}, {}, r"row 1: noisy is 9, below the threshold 10"),
        (("", ""), {"scale": 2.0}, {"total": 1000}, r"sum to 98, and the number of records is 1,000: \d+ standard"),
        (("", ""), {"scale": 2.0}, {"total": None}, r"number of records is not stated; give total"),
        (("", ""), {"scale": 2.0}, {"levels": {"sex": ["f", "x"]}}, r"row 2: sex is 'm', which is no level"),
        (("", ""), {"scale": 2.0, "where": {"table": "Z"}}, {}, r"no row with table = 'Z'"),
    ],
)
def test_bad_input_names_file_row_and_remedy(tmp_path: Path, change, table, options, message) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path / "t.csv", LONG.replace(*change, 1), PAIR | table, **({"total": 100} | options))


def test_statements_that_do_not_fit_together() -> None:
    with pytest.raises(InputError, match=r"takes one of scale and variance, got neither"):
        PublishedTable("n", ["sex"])
    with pytest.raises(ValueError, match="geometrik"):
        PublishedTable("n", ["sex"], law="geometrik", scale=1.0)
    with pytest.raises(InputError, match="only the number of records may be exact"):
        PublishedTable("n", ["sex"], law="exact")
    with pytest.raises(InputError, match="date of a published release"):
        Publication("a", "b", "yesterday", "c")
    with pytest.raises(MissingColumnError, match="lacks the columns noisy"):
        read_published(pl.DataFrame({"sex": ["f"]}), [PublishedTable("noisy", ["sex"], scale=1.0)], publication=STATED)


def test_only_published_releases_leave_things_open() -> None:
    domain = Domain.from_levels({"sex": ("f", "m")})
    table = NoisyTable(domain, [5, 6], TwoSidedGeometric(2.0), None, None)
    with pytest.raises(InputError, match="states no sensitivity"):
        Release(domain, (table,), "replace-one", 10, "simulation")
    with pytest.raises(InputError, match="a Publication belongs to sampler 'published'"):
        Release(domain, (table,), "as published", 10, "published")
    uneven = NoisyTable(domain, [5, 6], TwoSidedGeometric(2.0), 2.0, None, np.array([1.0, 2.0]))
    with pytest.raises(InputError, match="cell by cell"):
        Release(domain, (uneven,), "replace-one", 10, "simulation")
