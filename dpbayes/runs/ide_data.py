"""Reading and coding the records that a prior-aware run works on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbayes.errors import InputError
from dpbayes.runs.ide_spec import Data, Groups, Recode
from dpbayes.runs.records import readable, require_columns, scan_records

if TYPE_CHECKING:
    import polars as pl

    from dpbayes.data import Domain
    from dpbayes.ide import Hierarchy

__all__ = ["band", "group_data", "table_data"]


def table_data(data: Data, beside: Path) -> tuple[Domain, pl.DataFrame, pl.DataFrame]:
    """Return the domain, the public and the private records of a run without groups.

    Raises
    ------
    FileNotFoundError
        If a file is absent.
    MissingColumnError
        If a file lacks an attribute.
    UnreadableDataError
        If a file does not read; no value is shown.
    """
    from dpbayes.data import Domain

    domain = Domain.from_levels(data.levels)
    assert data.public is not None and data.private is not None
    public = _read(beside / data.public, domain.names, data.recode, setting="data.public")
    private = _read(beside / data.private, domain.names, data.recode, setting="data.private")
    return domain, public, private


def group_data(data: Data, groups: Groups, beside: Path) -> tuple[Domain, Hierarchy, pl.DataFrame, pl.DataFrame]:
    """Return the domain, the hierarchy, the public and the private records of a run with groups."""
    from dpbayes.data import Domain
    from dpbayes.data.populations import two_level_population
    from dpbayes.ide import Hierarchy

    if data.embedded is not None:
        population = two_level_population(group_size=data.size, seed=data.seed)
        return population.domain, Hierarchy("group", population.parent), population.public, population.private
    hierarchy = Hierarchy(groups.attribute, dict(groups.parent))
    domain = Domain.from_levels({name: levels for name, levels in data.levels.items() if name != groups.attribute})
    assert data.public is not None and data.private is not None
    public = _read(beside / data.public, domain.names, data.recode, setting="data.public")
    names = (groups.attribute, *domain.names)
    private = _read(beside / data.private, names, data.recode, setting="data.private")
    return domain, hierarchy, public, private


def band(column: Any, recode: Recode) -> Any:
    """Return a Polars expression that cuts a text column of numbers into bands.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"age": ["7", "83", "N"]})
    >>> frame.select(band(pl.col("age"), Recode(width=10, top=8, keep=["N"])))["age"].to_list()
    ['0', '8', 'N']
    """
    import polars as pl

    number = (column.cast(pl.Int64, strict=False) // recode.width).clip(upper_bound=recode.top).cast(pl.String)
    return pl.when(column.is_in(recode.keep)).then(column).otherwise(number)


def _read(path: Path, names: tuple[str, ...], recode: dict[str, Recode], *, setting: str) -> pl.DataFrame:
    import polars as pl

    lazy = scan_records(path, setting=setting)
    require_columns(lazy, names, path, source="[data.levels]")
    with readable(path):
        frame = lazy.select(pl.col(name).cast(pl.String) for name in names).collect()
    if not len(frame):
        raise InputError(f"{path.name} has no rows")
    return frame.with_columns(band(pl.col(name), how).alias(name) for name, how in recode.items() if name in names)
