"""Reading files and frames of confidential records: what goes wrong is said without showing a value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from dpbayes._lazy import nw, pl
from dpbayes.data.domain import Domain
from dpbayes.errors import DPBayesError, InputError, MissingColumnError, UnreadableDataError

UNREADABLE = (
    "the data could not be read by their engine: the source is damaged, or a value does not fit its column's type; "
    "correct the source, or read such columns as text (what the engine says is not shown: it may quote records)"
)
"""What to say of a frame whose file, if it has one, is not known."""
_HIDDEN = "(what the reader says of it is not shown: it may quote records)"


def as_frame(frame: Any) -> Any:
    """Return a data frame as narwhals reads it, or raise `InputError` where it is none."""
    try:
        read = nw.from_native(frame)
        if read.implementation.is_pyarrow():  # whose windows do not bound the rows of a unit; Polars shares its memory
            read = nw.from_native(pl.from_arrow(frame))
        return read
    except nw.exceptions.DuplicateError:
        raise InputError("the records name a column twice; give each column a name of its own") from None
    except TypeError:
        raise InputError(
            f"the records must be a data frame (Polars, pandas, PyArrow, DuckDB, Spark), got {type(frame).__name__}"
        ) from None


@contextmanager
def hide_values(message: str) -> Iterator[None]:
    """Raise `UnreadableDataError` with this message in place of what a data engine raises."""
    try:
        yield
    except UnreadableDataError:
        raise UnreadableDataError(message) from None
    except (DPBayesError, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception:
        raise UnreadableDataError(message) from None


def with_labels(frame: pl.DataFrame, domain: Domain) -> pl.DataFrame:
    """Return a frame with labels in place of levels, in the columns of attributes that have some."""
    columns = [
        pl.col(attribute.name).replace_strict(dict(zip(attribute.levels, attribute.words, strict=True)))
        for attribute in domain
        if attribute.labels and attribute.name in frame.columns
    ]
    return frame.with_columns(columns)


def scan_records(path: Path, *, setting: str, text: Collection[str] | None = None) -> pl.LazyFrame:
    """Return the records of a CSV or Parquet file, not yet read; what fails later fails in `readable`."""
    require_file(path, setting=setting)
    with readable(path):
        if _is_parquet(path):
            return pl.scan_parquet(path)
        with path.open("rb") as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError(f"{path.name} is UTF-16 text, as spreadsheets write it; save it as UTF-8")
        if text is None:
            frame = pl.scan_csv(path, infer_schema=False)
        else:
            written = [*text, *(name.replace('"', '""') for name in text)]
            frame = pl.scan_csv(path, infer_schema_length=None, schema_overrides=dict.fromkeys(written, pl.String))
        # Polars leaves a doubled quote in a header as it is.
        doubled = [name for name in frame.collect_schema().names() if '""' in name]
        frame = frame.rename({name: name.replace('""', '"') for name in doubled})
        # Asked for some columns, Polars skips the others, and with them an open quote or a line of too many fields.
        return frame.map_batches(
            lambda batch: batch, projection_pushdown=False, predicate_pushdown=False, streamable=True
        )


def require_file(path: Path, *, setting: str, source: str | None = None) -> Path:
    """Return the path of a file that a spec names under `setting`, which must be there; `source` says where it is."""
    if not path.is_file():
        said = f"there is no file {path}; {setting} is resolved beside the spec"
        raise FileNotFoundError(f"{said}; {source}" if source else said)
    return path


def readable(path: Path) -> AbstractContextManager[None]:
    """Return a context in which a file that does not read is named, and nothing in it shown."""
    if _is_parquet(path):
        wrong = "Parquet: the file is cut off, damaged or of another format; write it again"
    else:
        wrong = (
            "CSV: a quote is left open, a line has more fields than the header, a number is out of range, the text is "
            "not UTF-8, or there is none; mend the file"
        )
    return hide_values(f"{path.name} does not read as {wrong} {_HIDDEN}")


def require_columns(frame: pl.LazyFrame, names: Iterable[str], path: Path, *, source: str) -> None:
    """Check that a file has the columns that a spec names."""
    with readable(path):
        kinds = frame.collect_schema()
    columns, wanted = kinds.names(), list(names)
    # So Polars calls the second column of a name.
    if twice := [name for name in wanted if f"{name}_duplicated_0" in columns]:
        raise InputError(f"{path.name} names the columns {', '.join(twice)} twice; give each column a name of its own")
    if missing := [name for name in wanted if name not in columns]:
        why = f"; {source} names what is read, and the first line of a CSV file must name its columns"
        if len(columns) == 1 and any(mark in columns[0] for mark in ";\t"):
            why = ": its first line is one column with a semicolon or a tab in it; separate its fields by commas"
        raise MissingColumnError(f"{path.name} lacks the columns {', '.join(missing)}{why}")
    for name in wanted:
        if kinds[name].is_nested() or kinds[name] == pl.Duration:
            raise InputError(
                f"{path.name} has a column {name!r} of type {kinds[name]}, no level or number; write texts or numbers"
            )


def code_levels(frame: pl.LazyFrame, levels: Mapping[str, Sequence[str | int]]) -> pl.LazyFrame:
    """Turn text into whole numbers where all declared levels are, and take off spaces that no level has around it."""
    kinds = frame.collect_schema()
    texts = {name: declared for name, declared in levels.items() if kinds.get(name) == pl.String}
    coded = [name for name, declared in texts.items() if all(isinstance(level, int) for level in declared)]
    plain = [name for name, declared in texts.items() if all(str(level).strip() == str(level) for level in declared)]
    frame = frame.with_columns(pl.col(name).str.strip_chars() for name in plain)
    frame = frame.with_columns(pl.col(name).fill_null("") for name, declared in texts.items() if "" in declared)
    numbers = []
    for name in coded:
        text = pl.col(name).str.strip_chars().str.to_lowercase().str.replace(r"\.0*$", "")
        number = text.replace({"true": "1", "false": "0"}).cast(pl.Int64, strict=False)
        other = 1 + max(map(int, levels[name]), default=0)
        numbers.append(pl.when(text != "").then(number.fill_null(other)).alias(name))
    return frame.with_columns(numbers)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"
