"""`dpbayes init`: a commented run spec from the header of a CSV file and a codebook, never from its rows."""

import csv
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from dpbayes.errors import DamagedFileError, InputError, MissingColumnError

_CODEBOOK = (
    "a codebook is a CSV file with the columns attribute and level (one row per level, in order), label where a level "
    "has one, and lower and upper for a numeric column"
)


@dataclass
class Entry:
    """What a codebook says of a column: levels with labels, or the bounds of numbers."""

    levels: list[str | int] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Source:
    """What is publicly known of the columns of records."""

    columns: Sequence[str]
    codebook: dict[str, Entry]

    @property
    def categorical(self) -> dict[str, Entry]:
        """Columns with levels; those of the header with levels to fill in where there is no codebook."""
        if self.codebook:
            return {name: entry for name, entry in self.codebook.items() if entry.levels}
        return {name: Entry() for name in self.columns or ("attribute_1", "attribute_2")}

    @property
    def counted(self) -> dict[str, Entry]:
        """Columns of a system that counts levels."""
        if not self.categorical:
            raise InputError(f"tables count levels, and by the codebook no column has any; {_CODEBOOK}")
        return self.categorical

    @property
    def numeric(self) -> dict[str, tuple[float, float]]:
        """Columns with bounds."""
        return {name: entry.bounds for name, entry in self.codebook.items() if entry.bounds is not None}


def init(
    system: Annotated[str, typer.Argument(help="bloom, ide, latent-class, mvg or verifier.")],
    data: Annotated[Path | None, typer.Option(help="CSV file of the records; only its first line is read.")] = None,
    codebook: Annotated[
        Path | None, typer.Option(help="CSV file: attribute, level, label; lower and upper for numbers.")
    ] = None,
    public: Annotated[Path | None, typer.Option(help="For ide: public records of a similar population.")] = None,
    out: Annotated[Path | None, typer.Option(help="Spec to write. Default: SYSTEM.toml beside the records.")] = None,
) -> None:
    """Write a commented run spec from the header of a CSV file and a codebook; no row of records is read.

    Without a codebook the levels are left to fill in. Read the spec, change what is not as you want it, then
    `dpbayes check SPEC` and `dpbayes run SPEC`.

    Example: `dpbayes init latent-class --data records.csv --codebook codebook.csv`
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    name = system.replace("_", "-")
    if name not in _SPECS:
        raise InputError(f"system {system!r} is not known; it is one of {', '.join(_SPECS)}")
    target = out or (data.parent if data else Path()) / f"{name}.toml"
    if target.exists():
        raise InputError(f"{target} is already there; remove it, or choose another --out")
    entries = {} if codebook is None else read_codebook(codebook)
    columns = [] if data is None else read_header(data, entries)
    file, other = ("" if p is None else Path(os.path.relpath(p, target.parent)).as_posix() for p in (data, public))
    source = Source(columns, entries)
    layout: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(
        loader=PackageLoader("dpbayes.cli"), undefined=StrictUndefined, autoescape=False, **layout
    )
    environment.filters |= {"toml": _toml, "key": _key}
    template = environment.get_template(f"{name}.toml.j2")
    target.write_text(template.render(file=file, public=other, **_SPECS[name](source)), encoding="utf-8")
    fill = "" if source.codebook else ", fill in the levels (or give a --codebook)"
    typer.echo(f"spec: {target}\nnext: read it{fill}, then `dpbayes check {target}` and `dpbayes run {target}`")


def read_codebook(path: Path) -> dict[str, Entry]:
    """Return what a codebook says of every column, in its order."""
    rows = _rows(path, all_of_it=True)
    head = [cell.strip().lower() for cell in rows[0]]
    if "attribute" not in head:
        raise MissingColumnError(f"{path.name} has no column 'attribute'; {_CODEBOOK}")
    entries: dict[str, Entry] = {}
    for number, row in enumerate(rows[1:], start=2):
        cells = {key: cell.strip() for key, cell in zip(head, row, strict=False)}
        if not any(cells.values()):
            continue
        name, level, label = (cells.get(key, "") for key in ("attribute", "level", "label"))
        entry = entries.setdefault(name, Entry())
        if cells.get("lower") or cells.get("upper"):
            lower, upper = cells.get("lower", ""), cells.get("upper", "")
            if not (_is_number(lower) and _is_number(upper) and float(lower) < float(upper)):
                where = f"{path.name}, line {number}"
                raise InputError(f"{where} needs numbers lower < upper, got {lower!r} and {upper!r}")
            entry.bounds = float(lower), float(upper)
            continue
        if not name or level in map(str, entry.levels):
            fault = f"repeats level {level!r} of {name!r}" if name else "names no attribute"
            raise InputError(f"{path.name}, line {number} {fault}; {_CODEBOOK}")
        entry.levels.append(level)
        if label and label != level:
            entry.labels[level] = label
    for entry in entries.values():
        # 7 is a whole number and 07 a text, which a data file may tell apart.
        if all(str(level).lstrip("-").isdecimal() and str(int(level)) == level for level in entry.levels):
            entry.levels = [int(level) for level in entry.levels]
    return entries


def read_header(path: Path, codebook: dict[str, Entry]) -> list[str]:
    """Return the names in the first line of a file, and refuse one that may be a record."""
    (head,) = _rows(path, all_of_it=False)
    names = [cell.strip() for cell in head]
    levels = {str(level) for entry in codebook.values() for level in entry.levels}
    if not all(names) or len(set(names)) < len(names) or any(_is_number(name) or name in levels for name in names):
        raise DamagedFileError(
            f"the first line of {path.name} does not name its columns: a name is missing, given twice, a number, or a "
            "level of the codebook; write the columns' names there"
        )
    if missing := [name for name in codebook if name not in names]:
        raise MissingColumnError(f"{path.name} has no column {missing[0]!r}, which the codebook describes")
    return names


def _rows(path: Path, *, all_of_it: bool) -> list[list[str]]:
    """Return the cells of a file's lines, or of its first alone, separated by comma, semicolon or tab."""
    with path.open("rb") as file:
        raw = file.read() if all_of_it else file.readline()
    try:
        lines = raw.decode("utf-8-sig").splitlines(keepends=True)
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path.name} is not UTF-8 text (at byte {error.start}); save it as UTF-8") from None
    first = lines[0] if lines else ""
    if not first.strip():
        raise DamagedFileError(f"{path.name} begins with an empty line; its first line names the columns")
    return list(csv.reader(lines, delimiter=max(",;\t", key=first.count)))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _toml(value: object) -> str:
    """Return a value in TOML's notation, which for these is JSON's with bare keys where they are plain."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _latent_class(source: Source) -> dict[str, Any]:
    entries = source.counted
    tables = math.comb(len(entries), 2)
    labels = {name: entry.labels for name, entry in entries.items() if entry.labels}
    return {"entries": entries, "tables": tables, "spread": math.sqrt(2.0) * 2.0 * tables, "labels": labels}


def _verifier(source: Source) -> dict[str, Any]:
    levels = dict(source.categorical) if source.codebook else {}
    free = [name for name in source.columns if name not in levels]
    # Without a number to explain, a yes or no.
    asked = next((name for name, entry in levels.items() if set(entry.levels) == {0, 1}), None) if not free else None
    if levels and not free and asked is None:
        raise InputError(
            "a regression explains a number, and by the codebook every column has levels; leave the column to explain "
            "out of the codebook, or give its lower and upper bound there"
        )
    if asked is not None:
        del levels[asked]
    names = [*free, *([asked] if asked else []), *levels]
    response, *terms = names if len(names) > 1 else ["response", "predictor"]
    coefficient = f"{terms[0]}[T.{levels[terms[0]].levels[-1]}]" if terms[0] in levels else terms[0]
    left, *right = (name if name.isidentifier() else f"`{name}`" for name in (response, *terms))
    said = {"response": response, "coefficient": coefficient, "formula": f"{left} ~ {' + '.join(right)}"}
    return said | {"entries": levels, "logistic": asked is not None}


def _mvg(source: Source) -> dict[str, Any]:
    categorical = source.categorical if source.codebook else {}
    names = [name for name in source.columns if name not in categorical] or ["response", "predictor"]
    ranges = source.numeric or {name: (0.0, 1.0) for name in names}
    response, *predictors = ranges  # as in a formula, the first is explained
    return {"ranges": ranges, "bounded": source.numeric, "predictors": predictors, "response": response}


def _ide(source: Source) -> dict[str, Any]:
    first, *others = source.counted
    return {"entries": source.counted, "pairs": [[first, other] for other in others] or [[first]]}


# What the template of each system's spec, in the folder templates, is filled with.
_SPECS: dict[str, Callable[[Source], dict[str, Any]]] = {
    "bloom": lambda source: {}, "ide": _ide, "latent-class": _latent_class, "mvg": _mvg, "verifier": _verifier,
}  # fmt: skip
