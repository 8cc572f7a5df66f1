"""Readers of published numbers whose layout is known: each states law and scale, so that nothing is left to say."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from dpbayes._arguments import one_of, shown
from dpbayes._files import input_file
from dpbayes.data.domain import Attribute, Domain
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.privacy.laws import DiscreteGaussian, NoiseLaw, TwoSidedGeometric
from dpbayes.privacy.published import PublishedTable, polars_frame, read_published
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Publication, Release

# --- 2020 Census noisy measurement files -----------------------------------------------------------------------------

_QUARTERS = (
    *("household", "correctional facility", "juvenile facility", "nursing facility", "other institution"),
    *("student housing", "military quarters", "other group quarters"),
)
_RACES = ("white", "black", "aian", "asian", "nhpi", "other")
CENSUS_DOMAIN = Domain(
    (
        Attribute("hhgq", tuple(range(8)), _QUARTERS),
        Attribute("votingage", (0, 1), ("under 18", "18 or over")),
        Attribute("hispanic", (0, 1), ("not Hispanic", "Hispanic")),
        Attribute(
            "cenrace", tuple(range(63)), tuple("+".join(c) for k in range(1, 7) for c in combinations(_RACES, k))
        ),
    )
)
"""The P.L. 94-171 histogram of persons, 8 x 2 x 2 x 63: group quarters, voting age, ethnicity, and sets of races."""

_INSTITUTIONS = Attribute("hhinstlevels", (0, 1, 2), ("household", "institution", "other group quarters"))
_LEVELS = (0, 1, 1, 1, 1, 2, 2, 2)  # of hhinstlevels, by hhgq
_NURSING = 3
_CENSUS = Publication(
    "US Census Bureau",
    "2020 Census Redistricting Data (P.L. 94-171) Noisy Measurement File, "
    "https://registry.opendata.aws/census-2020-pl94-nmf",
    "2023-06-15",
    "TopDown algorithm, noisy measurements: independent discrete Gaussian noise of the variance stated in each row, "
    "zero-concentrated differential privacy under replace-one",
)


@dataclass(frozen=True, eq=False)
class CensusMeasurements:
    """The noisy measurements of one geography.

    `release` has the queries as tables over `CENSUS_DOMAIN` (and ``hhinstlevels``, a coarser ``hhgq``, where that query
    is read). `impossible` are structural zeros, as `dpbayes.latent_class.build_model` takes them: no minors in nursing
    facilities, and of ``hhinstlevels`` the level that each ``hhgq`` has. `bounds` are the lower and upper ones on the
    eight ``hhgq`` totals, shape ``(2, 8)``; None where the file states none.
    """

    geocode: str
    release: Release
    impossible: tuple[Mapping[str, int], ...]
    bounds: np.ndarray | None


def read_census_measurements(
    measurements: Any,
    constraints: Any = None,
    *,
    geocodes: str | Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    total: int | None = None,
) -> dict[str, CensusMeasurements]:
    """Read 2020 Census P.L. 94-171 noisy measurement files of persons.

    Parameters
    ----------
    measurements, constraints
        A Parquet file, a folder of them, or a frame with the columns ``geocode``, ``query_name``, ``query_shape``,
        ``value`` and ``variance``, from ``DPQuery`` and ``Constraint``. The parts of a geography in the AIAN and the
        non-AIAN tree are geographies of their own.
    geocodes
        One geography or several; all that the files hold if left out.
    queries
        Names such as ``"votingage * hispanic * cenrace_dpq"``; all if left out.
    total
        The exact number of persons, where it is known otherwise. The files state it for the nation; below it
        ``total_dpq`` is a noisy one.

    Returns
    -------
    dict of CensusMeasurements
        By geocode.

    Raises
    ------
    InputError
        If a geography or query is not there, or a row's shape, values or variance do not fit.

    Notes
    -----
    Tests run on files that a generator writes in this layout: the real ones have many gigabytes.
    """
    frame = _census_frame(measurements, "measurements")
    exact = None if constraints is None else _census_frame(constraints, "constraints")
    held = frame["geocode"].unique(maintain_order=True).to_list()
    wanted = held if geocodes is None else [geocodes] if isinstance(geocodes, str) else list(geocodes)
    if missing := [code for code in wanted if code not in held]:
        raise InputError(f"the measurements lack the geographies {shown(missing)}; they hold {shown(held[:10])}")
    return {code: _geography(code, frame, exact, queries, total) for code in wanted}


def _census_frame(source: Any, what: str) -> pl.DataFrame:
    if isinstance(source, str | Path):
        path = Path(source)
        frame = pl.read_parquet(path / "**/*.parquet" if path.is_dir() else path)
    else:
        frame = polars_frame(source)
    if missing := [name for name in ("geocode", "query_name", "value") if name not in frame.columns]:
        raise MissingColumnError(f"{what} lack the columns {', '.join(missing)} of a noisy measurement file")
    return frame


def _geography(
    code: str, frame: pl.DataFrame, exact: pl.DataFrame | None, queries: Sequence[str] | None, total: int | None
) -> CensusMeasurements:
    def of_code(rows: pl.DataFrame) -> dict[str, dict[str, Any]]:
        return {row["query_name"]: row for row in rows.filter(pl.col("geocode") == code).iter_rows(named=True)}

    rows, stated = of_code(frame), {} if exact is None else {k: row["value"] for k, row in of_code(exact).items()}
    chosen = list(rows) if queries is None else list(queries)
    if missing := [name for name in chosen if name not in rows]:
        raise InputError(f"geography {code} has no query {shown(missing)}; it has {shown(sorted(rows))}")
    tables = [_query_table(code, rows[name]) for name in chosen if name != "total_dpq"]
    if not tables:
        raise InputError(f"geography {code}: name a query besides total_dpq, such as detailed_dpq")
    if total is None and "total_con" in stated:
        total = int(stated["total_con"][0])
    if total is None and "total_dpq" not in rows:
        raise InputError(f"geography {code} has neither total_con nor total_dpq; give total, the number of persons")
    n = total or NoisyTotal(int(rows["total_dpq"]["value"][0]), _census_law(code, rows["total_dpq"]), None, None)
    used = {name for table in tables for name in table.attributes}
    zeros: list[dict[str, int]] = []
    if "hhinstlevels" in used:
        used |= {"hhgq"}
        zeros += [{"hhgq": q, "hhinstlevels": k} for q in range(8) for k in range(3) if _LEVELS[q] != k]
    domain = Domain(tuple(a for a in (*CENSUS_DOMAIN, _INSTITUTIONS) if a.name in used))
    if {"hhgq", "votingage"} <= used and "nurse_nva_0_con" in stated:
        zeros.append({"hhgq": _NURSING, "votingage": 0})
    bounds = [stated[name] for name in ("hhgq_total_lb_con", "hhgq_total_ub_con") if name in stated]
    release = Release(domain, tuple(tables), "replace-one", n, "published", publication=_CENSUS)
    return CensusMeasurements(code, release, tuple(zeros), np.array(bounds) if len(bounds) == 2 else None)


def _query_table(code: str, row: Mapping[str, Any]) -> NoisyTable:
    """Return a row of the file as a table over the attributes that its name lists."""
    query, where = row["query_name"], f"geography {code}, query {row['query_name']}"
    names = [name.strip() for name in query.removesuffix("_dpq").split("*")]
    names = list(CENSUS_DOMAIN.names) if names == ["detailed"] else names
    known = {attribute.name: attribute for attribute in (*CENSUS_DOMAIN, _INSTITUTIONS)}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{where} is over {shown(unknown)}, which no P.L. 94-171 query of persons is; leave it out")
    domain, value = Domain(tuple(known[name] for name in names)), np.asarray(row["value"])
    shape = [size for size in row.get("query_shape") or domain.shape if size != 1]
    if value.size != domain.size or shape != list(domain.shape):
        raise InputError(f"{where} has {value.size} values of shape {shape}, not {domain.size}: {domain.shape}")
    return NoisyTable(domain, value.reshape(domain.shape), _census_law(code, row), None, None)


def _census_law(code: str, row: Mapping[str, Any]) -> DiscreteGaussian:
    variance = float(row["variance"])
    if not (math.isfinite(variance) and variance > 0):
        where = f"geography {code}, query {row['query_name']}"
        raise InputError(f"{where}: variance must be positive, got {variance:g}; the file is damaged")
    return DiscreteGaussian(math.sqrt(variance))


# --- Wikimedia page views by country ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Era:
    """How Wikimedia released page views by country between two days (both included), for countries of one tier."""

    first: datetime.date
    last: datetime.date | None
    tier: str
    law: NoiseLaw
    threshold: int


_day = datetime.date.fromisoformat
_GEOMETRIC = TwoSidedGeometric(30.0)
_AGAIN = ("2023-06-19", "2023-10-25", *(f"2023-11-{d}" for d in (13, 17, 19, 23, 27)))
WIKIMEDIA_ERAS = (
    Era(_day("2015-07-01"), _day("2017-02-08"), "lower", TwoSidedGeometric(300.0), 3500),
    Era(_day("2017-02-09"), _day("2023-02-05"), "lower", _GEOMETRIC, 450),
    *(Era(_day(day), _day(day), "lower", _GEOMETRIC, 450) for day in _AGAIN),
    Era(_day("2023-02-06"), None, "lower", DiscreteGaussian(math.sqrt(10.0 / 0.03)), 90),
    Era(_day("2024-02-15"), None, "medium", DiscreteGaussian(90.05), 550),
    Era(_day("2024-02-15"), None, "higher", DiscreteGaussian(179.84), 1000),
)
"""Laws and thresholds by date, the first that fits; from READMEs and arXiv:2308.16298.

A row is published where the noisy count reaches the threshold. The days of 2023 that stand alone were published later,
by the mechanism of the years before; so were those of the United States up to 19 September 2023.
"""


def wikimedia_era(day: datetime.date, *, tier: str = "lower", country: str | None = None) -> Era:
    """Return the law and the threshold of a day's counts.

    Parameters
    ----------
    day
        Day of the page views.
    tier
        Risk tier of the country in Wikimedia's Country and Territory Protection List: ``"lower"`` (such as Australia),
        ``"medium"`` or ``"higher"``.
    country
        Two-letter code; only that of the United States matters.

    Raises
    ------
    InputError
        If nothing was released for such a country on that day.

    Examples
    --------
    >>> import datetime
    >>> wikimedia_era(datetime.date(2020, 1, 4)).law, wikimedia_era(datetime.date(2024, 1, 4)).threshold
    (TwoSidedGeometric(scale=30.0), 90)
    """
    if country == "US" and _day("2023-02-06") <= day <= _day("2023-09-19"):
        return WIKIMEDIA_ERAS[1]
    for era in WIKIMEDIA_ERAS:
        if tier == era.tier and era.first <= day and (era.last is None or day <= era.last):
            return era
    raise InputError(
        f"Wikimedia released nothing for countries of tier {tier!r} on {day}; tiers are lower (2015-07-01), "
        "medium and higher (from 2024-02-15)"
    )


_VIEWS = ("private_count", "gbc", "views")
_PAGES = ("page_title", "page_name", "page_id")


def read_wikimedia_views(source: Any, *, tier: str = "lower", columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Read Wikimedia's daily page views by country, and put its noise beside every count.

    Parameters
    ----------
    source
        A CSV or TSV file, a list of them, or a frame. Counts are in ``private_count``, ``gbc`` or ``views``; days in
        ``date``, or else in the file's name (``2023-2-6.csv``).
    tier
        Risk tier of the countries: ``"lower"``, ``"medium"`` or ``"higher"``.
    columns
        Names of the columns of files that do not name them.

    Returns
    -------
    polars.DataFrame
        The rows with ``date``, ``page`` and ``views``, and ``law``, ``spread`` (the law's parameter), ``stddev`` and
        ``threshold``. A day without a row of a page is one whose noisy count was below the threshold of that day, or
        on which the page had fewer than 150 views worldwide.

    Raises
    ------
    InputError
        If a count is below the threshold of its day: the tier is then another one. With file and row.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"page_name": ["Bushfire"], "date": ["2020-01-04"], "views": [592]})
    >>> read_wikimedia_views(frame).select("views", "law", "spread", "threshold").row(0)
    (592, 'two-sided-geometric', 30.0, 450)
    """
    if isinstance(source, list | tuple):
        return pl.concat([read_wikimedia_views(one, tier=tier, columns=columns) for one in source])
    frame, name = _views_frame(source, columns)
    us = "country_code" in frame.columns
    days = frame.select("date", *(["country_code"] if us else [])).unique(maintain_order=True)
    eras = [wikimedia_era(row[0], tier=tier, country=row[1] if us else None) for row in days.iter_rows()]
    stated = days.with_columns(
        law=pl.Series([era.law.name for era in eras], dtype=pl.String),
        spread=pl.Series([era.law.spread for era in eras], dtype=pl.Float64),
        stddev=pl.Series([math.sqrt(era.law.variance) for era in eras], dtype=pl.Float64),
        threshold=pl.Series([era.threshold for era in eras], dtype=pl.Int64),
    )
    read = frame.join(stated, on=days.columns, how="left", maintain_order="left")
    below = (read["views"] < read["threshold"]).arg_true()
    if len(below):
        row = read.row(int(below[0]), named=True)
        raise InputError(
            f"{name}, row {int(below[0]) + 1}: {row['views']} views on {row['date']} are below the threshold "
            f"{row['threshold']} of tier {tier!r}; give the country's tier, or correct the day"
        )
    return read


def _views_frame(source: Any, columns: Sequence[str] | None) -> tuple[pl.DataFrame, str]:
    """Return rows with ``date``, ``page`` and ``views``, and the name of their file."""
    name, day = "the data frame", None
    if isinstance(source, str | Path):
        path = input_file(source)
        name, day = path.name, re.search(r"(\d{4})-(\d{1,2})-(\d{1,2})", path.stem)
        with path.open(encoding="utf-8") as file:
            separator = "\t" if "\t" in file.readline() else ","
        layout = {"separator": separator, "has_header": columns is None, "new_columns": columns, "infer_schema": False}
        frame = pl.read_csv(path, quote_char=None if separator == "\t" else '"', **layout)  # type: ignore[arg-type]
    else:
        frame = polars_frame(source)
    views = next((column for column in _VIEWS if column in frame.columns), None)
    page = next((column for column in _PAGES if column in frame.columns), None)
    if views is None or page is None or ("date" not in frame.columns and day is None):
        raise MissingColumnError(
            f"{name} needs a column of {', '.join(_VIEWS)}, one of {', '.join(_PAGES)}, and date or a day in its name; "
            f"it has {shown(frame.columns)}, and columns= names those of a file without a header"
        )
    date = pl.lit(datetime.date(*map(int, day.groups()))) if "date" not in frame.columns and day else pl.col("date")
    if frame.schema.get("date") == pl.String:
        date = date.str.to_date()
    try:
        read = frame.with_columns(date=date.cast(pl.Date), views=pl.col(views).cast(pl.Int64), page=pl.col(page))
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{name}: {views} or date does not read: {shown(str(error))}") from None
    if (gaps := read["views"].is_null() | read["date"].is_null()).any():
        raise InputError(f"{name}, row {int(gaps.arg_max() or 0) + 1} has no count or no date; correct the row")
    return read, name


# --- OpenDP and PipelineDP -------------------------------------------------------------------------------------------

_OPENDP = {
    "Integer Laplace": "two-sided-geometric",
    "Float Laplace": "laplace",
    "Integer Gaussian": "discrete-gaussian",
    "Float Gaussian": "gaussian",
}


def read_opendp(
    released: Any,
    summary: Any,
    *,
    publication: Publication,
    column: str = "len",
    levels: Mapping[str, Sequence[Any]] | None = None,
    total: int | None = None,
) -> Release:
    """Read counts that OpenDP released, with the law and scale of its summary.

    Parameters
    ----------
    released
        What ``query.release().collect()`` gave: a count per row beside its levels.
    summary
        What ``query.summarize()`` gave: a row for each released column, with ``distribution`` and ``scale``, and
        ``threshold`` where OpenDP applied one.
    publication
        Who released it.
    column
        The column of counts.
    levels, total
        As `read_published` takes them.

    Raises
    ------
    InputError
        If the summary has no such column, or states a distribution that is no noise law of a count.

    Examples
    --------
    >>> import polars as pl
    >>> counts = pl.DataFrame({"sex": ["f", "m"], "len": [51, 47]})
    >>> summary = pl.DataFrame({"column": ["len"], "distribution": ["Integer Laplace"], "scale": [2.0]})
    >>> stated = Publication("A colleague", "counts.csv", "2026-11", "OpenDP 0.14, Laplace")
    >>> read_opendp(counts, summary, publication=stated, total=100).tables[0].noise
    TwoSidedGeometric(scale=2.0)
    """
    frame, rows = polars_frame(released), polars_frame(summary).to_dicts()
    row = next((row for row in rows if row.get("column") == column), None)
    if row is None or row.get("scale") is None or row.get("distribution") not in _OPENDP:
        raise InputError(
            f"the summary must state the distribution ({', '.join(_OPENDP)}) and the scale of column {column!r}, got "
            f"{shown(row)}"
        )
    names = [name for name in frame.columns if name not in {other.get("column") for other in rows}]
    law, scale, levels_of = _OPENDP[row["distribution"]], float(row["scale"]), {name: name for name in names}
    table = PublishedTable(column, levels_of, law=law, scale=scale, threshold=row.get("threshold"))
    return read_published(frame, [table], publication=publication, levels=levels, total=total)


def read_pipelinedp(
    results: Iterable[tuple[Any, Any]],
    attributes: Sequence[str],
    *,
    noise_kind: Literal["laplace", "gaussian"],
    publication: Publication,
    metric: str = "count",
    levels: Mapping[str, Sequence[Any]] | None = None,
    total: int | None = None,
) -> Release:
    """Read counts that PipelineDP released with ``output_noise_stddev=True``.

    Parameters
    ----------
    results
        Pairs of a partition key (a value, or a tuple of them) and its metrics: a named tuple or a mapping with the
        metric and ``<metric>_noise_stddev``.
    attributes
        What the parts of a key are.
    noise_kind
        The ``noise_kind`` of the parameters.
    publication
        Who released it.
    metric
        ``"count"`` or ``"privacy_id_count"``.
    levels, total
        As `read_published` takes them. Partitions must be public ones: those that PipelineDP chose privately are
        missing for a reason that no likelihood here states, and a missing level is an error.

    Examples
    --------
    >>> results = [("f", {"count": 51.2, "count_noise_stddev": 3.0}), ("m", {"count": 46.9, "count_noise_stddev": 3.0})]
    >>> stated = Publication("A colleague", "counts.csv", "2026-11", "PipelineDP, Gaussian noise")
    >>> release = read_pipelinedp(results, ["sex"], noise_kind="gaussian", publication=stated, total=100)
    >>> release.tables[0].noise
    Gaussian(stddev=3.0)
    """
    one_of(noise_kind, ("laplace", "gaussian"), "noise_kind")
    rows = []
    for key, metrics in results:
        given = metrics if isinstance(metrics, Mapping) else metrics._asdict()
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(attributes) or metric not in given or f"{metric}_noise_stddev" not in given:
            raise InputError(
                f"partition {shown(key)} must have {len(attributes)} parts, and {metric} and {metric}_noise_stddev, "
                f"got {shown(dict(given))}; set output_noise_stddev=True"
            )
        rows.append([*map(str, parts), float(given[metric]), float(given[f"{metric}_noise_stddev"]) ** 2])
    frame = pl.DataFrame(rows, schema=[*attributes, "__count__", "__variance__"], orient="row")
    table = PublishedTable("__count__", {name: name for name in attributes}, law=noise_kind, variance="__variance__")
    return read_published(frame, [table], publication=publication, levels=levels, total=total)
