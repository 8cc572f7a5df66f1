"""What a spec says of tables that others published: keys of [data], and a [[tables]] for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dpbayes.runs.spec import RunSpec, Section, UnitSection

if TYPE_CHECKING:
    from dpbayes.privacy import Release


CENSUS_QUERIES = (
    *("votingage_dpq", "hispanic_dpq", "cenrace_dpq", "votingage * hispanic_dpq", "votingage * cenrace_dpq"),
    *("hispanic * cenrace_dpq", "votingage * hispanic * cenrace_dpq"),
)


class PublishedData(UnitSection):
    """Sources of a system that fits releases of tables, those of other publishers among them."""

    published: str | None = None
    """A CSV, TSV or Parquet file of noisy counts that somebody else published, beside the spec; [[tables]] say what
    stands in it. No record is read, and nothing is charged."""
    publisher: str | None = None
    """With published: who drew the noise. `source` says where the file can be had."""
    date: str | None = None
    """With published: when it was published, such as "2021-08-12" or "2021"."""
    mechanism: str | None = None
    """With published: the mechanism in the publisher's words."""
    adjacency: Literal["replace-one", "add-remove"] | None = None
    """With published: the neighbouring relation, where it is stated."""
    total: int | None = Field(default=None, ge=1, le=10**15)
    """With published: the exact number of records, where no table holds the noisy one."""
    geocode: str | None = None
    """With published: the geography to read from a 2020 Census P.L. 94-171 noisy measurement file (Parquet), in place
    of [[tables]] and of who published it."""
    queries: list[str] | None = None
    """With geocode: the queries to fit, such as "votingage * hispanic * cenrace_dpq"; by default all of voting age,
    ethnicity and race."""
    constraints: str | None = None
    """With geocode: the file of constraints, beside the spec, whose exact total is then the number of persons."""

    @model_validator(mode="after")
    def _publication_is_whole(self) -> Any:
        stated = ("publisher", "date", "mechanism")
        if self.geocode is not None:
            if self.published is None or any(getattr(self, name) is not None for name in stated):
                raise ValueError("geocode reads data.published, a Census file, which says who published it and how")
            return self
        if self.constraints is not None:
            raise ValueError("constraints are those of a census geography; give geocode, or leave them out")
        lacking = [name for name in ("source", *stated) if getattr(self, name) is None]
        if self.published is not None and lacking:
            raise ValueError(f"published tables need {', '.join(lacking)}: a page says who drew the noise, and how")
        extra = [name for name in (*stated, "total", "adjacency", "queries") if getattr(self, name) is not None]
        if self.published is None and extra:
            raise ValueError(f"{' and '.join(extra)} are said of data.published, and there is none; leave them out")
        return self


class TableSection(Section):
    """A published table of noisy counts (`dpbayes.privacy.PublishedTable`)."""

    value: str | dict[str, str | int]
    """Column of the counts; of a wide file each column of counts with its level of `across`."""
    levels: list[str] | dict[str, str] = Field(default_factory=list)
    """Columns of the levels, by the attributes' names if these differ; none for the number of records."""
    law: Literal["two-sided-geometric", "laplace", "discrete-gaussian", "gaussian", "exact"]
    """The law of the noise; "exact" for a number of records without noise."""
    scale: float | str | None = None
    """Scale (of two-sided geometric and Laplace noise) or standard deviation of the noise: a number, or a column."""
    variance: float | str | None = None
    """Variance of the noise in place of its scale: a number, or a column."""
    across: str | None = None
    """Of a wide file: the attribute whose levels stand side by side."""
    where: dict[str, str | int | bool] = Field(default_factory=dict)
    """Columns and the value that a row of this table has there, for files of several tables."""
    threshold: float | None = None
    """Counts below it were left out: empty fields, or no rows."""
    file: str | None = None
    """Another file than data.published, beside it."""


class PublishedSpec(RunSpec):
    """A run of a system that fits releases of tables."""

    tables: list[TableSection] | None = None
    """With data.published: what stands where, and under which noise."""

    @model_validator(mode="after")
    def _tables_are_said(self) -> Any:
        from dpbayes.privacy.published import PublishedTable

        data: Any = self.data  # type: ignore[attr-defined]
        published = data.published is not None and data.geocode is None
        if published != bool(self.tables):
            raise ValueError(
                "data.published needs a [[tables]] for each of its tables"
                if published
                else "[[tables]] say what stands in data.published, and there is none; leave them out"
            )
        for table in self.tables or ():
            PublishedTable(**table.model_dump())  # its errors say what does not fit together
        return self

    def published_release(self, beside: Path) -> Release:
        """Read the published tables that the spec names."""
        from dpbayes.privacy.published import PublishedTable, read_published
        from dpbayes.privacy.readers import read_census_measurements
        from dpbayes.privacy.release import AS_PUBLISHED, Publication

        data: Any = self.data  # type: ignore[attr-defined]
        if data.geocode is not None:
            exact = None if data.constraints is None else beside / data.constraints
            options = {
                "geocodes": data.geocode,
                "queries": ["total_dpq", *(data.queries or CENSUS_QUERIES)],
                "total": data.total,
            }
            return read_census_measurements(beside / data.published, exact, **options)[data.geocode].release
        return read_published(
            beside / data.published,
            [PublishedTable(**table.model_dump()) for table in self.tables or ()],
            publication=Publication(data.publisher, data.source, data.date, data.mechanism),
            levels=data.levels,
            total=data.total,
            adjacency=data.adjacency or AS_PUBLISHED,
        )
