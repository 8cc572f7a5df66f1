"""Reading files of confidential records, for every system: what goes wrong is said without showing a value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from dpbayes.errors import InputError, MissingColumnError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["code_levels", "readable", "require_columns", "require_file", "scan_records"]

_HIDDEN = "(what the reader says of it is not shown: it may quote records)"


def scan_records(path: Path, *, setting: str, text: Collection[str] | None = None) -> pl.LazyFrame:
    """Return the records of a CSV or Parquet file, not yet read.

    Parameters
    ----------
    path
        The file; one that does not end in ``.parquet`` is CSV with a header.
    setting
        The key of the spec that names the file, for the message.
    text
        Columns of a CSV file to read as text; by default all. The types of the others are inferred from all rows, so
        that a word in row 2,500 makes a column of text.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    UnreadableDataError
        If the file does not read. It may also come later: read on in `readable`.
    """
    import polars as pl

    require_file(path, setting=setting)
    with readable(path):
        if _is_parquet(path):
            return pl.scan_parquet(path)
        if text is None:
            frame = pl.scan_csv(path, infer_schema=False)
        else:
            frame = pl.scan_csv(path, infer_schema_length=None, schema_overrides=dict.fromkeys(text, pl.String))
        # Asked for some columns, Polars skips the others, and with them an open quote or a line of too many fields.
        return frame.map_batches(_unchanged, projection_pushdown=False, predicate_pushdown=False, streamable=True)


def require_file(path: Path, *, setting: str) -> Path:
    """Return the path of a file that a spec names under `setting`, which must be there.

    Examples
    --------
    >>> require_file(Path("study/none.csv"), setting="data.file")
    Traceback (most recent call last):
    FileNotFoundError: there is no file study/none.csv; data.file is resolved beside the spec
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; {setting} is resolved beside the spec")
    return path


def readable(path: Path) -> AbstractContextManager[None]:
    """Return a context in which a file that does not read is named, and nothing in it shown.

    Examples
    --------
    >>> with readable(Path("study/records.parquet")):
    ...     raise RuntimeError("SECRET")
    Traceback (most recent call last):
    dpbayes.errors.UnreadableDataError: records.parquet does not read as Parquet: the file is cut off, damaged or of
    another format; write it again (what the reader says of it is not shown: it may quote records)
    """
    from dpbayes.data._guards import hide_values

    if _is_parquet(path):
        wrong = "Parquet: the file is cut off, damaged or of another format; write it again"
    else:
        wrong = (
            "CSV: a quote is left open, a line has more fields than the header, a number is out of range, the text is "
            "not UTF-8, or there is none; mend the file"
        )
    return hide_values(f"{path.name} does not read as {wrong} {_HIDDEN}")


def require_columns(frame: pl.LazyFrame, names: Iterable[str], path: Path, *, source: str) -> None:
    """Check that a file has the columns that a spec names.

    Raises
    ------
    MissingColumnError
        Naming those that it lacks. Those that it has are not named: without a header they are a person's record.
    InputError
        If the first line of a CSV file names one of them twice.
    """
    with readable(path):
        columns = frame.collect_schema().names()
    wanted = list(names)
    # So Polars calls the second column of a name.
    twice = [name for name in wanted if f"{name}_duplicated_0" in columns]
    if twice:
        raise InputError(f"{path.name} names the columns {', '.join(twice)} twice; give each column a name of its own")
    missing = [name for name in wanted if name not in columns]
    if missing and len(columns) == 1 and any(mark in columns[0] for mark in ";\t"):
        raise MissingColumnError(
            f"{path.name} lacks the columns {', '.join(missing)}: its first line is one column with a semicolon or a "
            "tab in it; separate its fields by commas"
        )
    if missing:
        raise MissingColumnError(
            f"{path.name} lacks the columns {', '.join(missing)}; {source} names what is read, and the "
            "first line of a CSV file must name its columns"
        )


def code_levels(frame: pl.LazyFrame, levels: Mapping[str, Sequence[str | int]]) -> pl.LazyFrame:
    """Turn columns of text into whole numbers where all declared levels are whole numbers.

    Text that is none becomes a number that is no level, so that it is refused as one; what is missing stays missing.
    ``true`` is 1 and ``false`` is 0.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.LazyFrame({"age": ["0", " 2.0", "true", "2.5", None], "sex": ["1", "2", "1", "1", "2"]})
    >>> coded = code_levels(frame, {"age": [0, 1, 2], "sex": ["1", "2"]}).collect()
    >>> coded["age"].to_list(), coded["sex"].to_list()
    ([0, 2, 1, 3, None], ['1', '2', '1', '1', '2'])
    """
    import polars as pl

    kinds = frame.collect_schema()
    coded = [
        name
        for name, declared in levels.items()
        if kinds.get(name) == pl.String and all(isinstance(level, int) for level in declared)
    ]
    return frame.with_columns(
        _whole_number(pl.col(name), other=1 + max(map(int, levels[name]), default=0)) for name in coded
    )


def _whole_number(text: pl.Expr, *, other: int) -> pl.Expr:
    import polars as pl

    plain = text.str.strip_chars().str.to_lowercase().str.replace(r"\.0*$", "")
    number = plain.replace({"true": "1", "false": "0"}).cast(pl.Int64, strict=False)
    return pl.when(plain != "").then(number.fill_null(other))


def _unchanged(batch: pl.DataFrame) -> pl.DataFrame:
    return batch


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"
