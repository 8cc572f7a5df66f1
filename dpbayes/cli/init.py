"""`dpbayes init`: a commented run spec from the header of a CSV file and a codebook, never from its rows."""

import csv
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

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
    """Where the records are, as the spec names it, and what is publicly known of their columns."""

    file: str
    public: str
    columns: Sequence[str]
    codebook: dict[str, Entry]

    @property
    def categorical(self) -> dict[str, Entry]:
        """Columns with levels; those of the header with levels to fill in where there is no codebook."""
        if self.codebook:
            return {name: entry for name, entry in self.codebook.items() if entry.levels}
        return {name: Entry() for name in self.columns or ("attribute_1", "attribute_2")}

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
    public: Annotated[
        Path | None, typer.Option(help="For ide: file of public records of a similar population.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Spec to write. Default: SYSTEM.toml beside the records.")] = None,
) -> None:
    """Write a commented run spec from the header of a CSV file and a codebook; no row of records is read.

    Without a codebook the levels are left to fill in. Read the spec, change what is not as you want it, then
    `dpbayes check SPEC` and `dpbayes run SPEC`.

    Example: `dpbayes init latent-class --data records.csv --codebook codebook.csv`
    """
    name = system.replace("_", "-")
    if name not in _SPECS:
        raise InputError(f"system {system!r} is not known; it is one of {', '.join(_SPECS)}")
    target = out or (data.parent if data else Path()) / f"{name}.toml"
    if target.exists():
        raise InputError(f"{target} is already there; remove it, or choose another --out")
    entries = {} if codebook is None else read_codebook(codebook)
    columns = [] if data is None else read_header(data, entries)
    file, other = ("" if p is None else Path(os.path.relpath(p, target.parent)).as_posix() for p in (data, public))
    source = Source(file, other, columns, entries)
    target.write_text(_SPECS[name](source), encoding="utf-8")
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
            entry.bounds = _bounds(cells.get("lower", ""), cells.get("upper", ""), f"{path.name}, line {number}")
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


def _bounds(lower: str, upper: str, where: str) -> tuple[float, float]:
    if not (_is_number(lower) and _is_number(upper) and float(lower) < float(upper)):
        raise InputError(f"{where} needs numbers lower < upper, got {lower!r} and {upper!r}")
    return float(lower), float(upper)


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


def _head(system: str, source: Source, question: str) -> str:
    title = f"{system}: a first answer{f' from {Path(source.file).name}' if source.file else ''}"
    origin = f" from the header of {source.file} and the codebook" if source.file else ""
    return (
        f"# Written by `dpbayes init`{origin}; no row of records was read.\n"
        f"# `dpbayes keys {system}` lists every key that may stand here.\n"
        f'system = "{system}"\ntitle = {_toml(title)}\nquestion = "{question}"\n'
    )


def _levels(entries: dict[str, Entry], *, labels: bool = True, text: bool = False) -> str:
    """Return the sections of levels and labels."""
    lines = ["[data.levels] # from the codebook: a level that nobody has is still a level"]
    for name, entry in entries.items():
        hint = "" if entry.levels else " # fill in its levels, in order"
        lines.append(f"{_key(name)} = {_toml([str(level) if text else level for level in entry.levels])}{hint}")
    labelled = {name: entry.labels for name, entry in entries.items() if entry.labels}
    if labels and labelled:
        lines += ["", "[data.labels] # what pages and pictures call the levels"]
        lines += [f"{_key(name)} = {_toml(called)}" for name, called in labelled.items()]
    return "\n".join(lines) + "\n"


_PRIVACY = """[privacy]
epsilon = 1.0                 # the whole privacy cost of this study; lower is more private and noisier
adjacency = "replace-one"     # the number of records is public; "add-remove" releases it with noise
# ledger = "budget.db"        # keep a budget: `dpbayes ledger open budget.db --epsilon 2 --adjacency replace-one`
"""


def _latent_class(source: Source) -> str:
    entries = source.categorical
    tables = math.comb(len(entries), 2)
    spread = math.sqrt(2.0) * 2.0 * tables
    return (
        _head("latent-class", source, "What do the noisy tables say about the population?")
        + f"\n[data]\nmicrodata = {_toml(source.file or 'records.csv')}\n"
        + f"# All {tables} pairs of attributes share epsilon: noise of a standard deviation of about {spread:,.0f} "
        "records in every cell\n# at epsilon 1. Fewer tables, less noise: list those that matter, as "
        f'[["{next(iter(entries))}", "{list(entries)[-1]}"], ...].\n'
        + 'attribute_sets = "all-pairs"\n\n'
        + _levels(entries)
        + f"\n{_PRIVACY}"
        + "\n[model]\n# n_classes = 12              # by default 8 to 20, after the tables; more cost time, not truth\n"
        + "\n[synthesis]\nn_datasets = 5                # synthetic data sets of as many records\n"
        + (
            "labels = true                 # labels in them in place of codes\n"
            if any(e.labels for e in entries.values())
            else ""
        )
    )


def _verifier(source: Source) -> str:
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
    written = [name if name.isidentifier() else f"`{name}`" for name in (response, *terms)]
    return (
        _head("verifier", source, "Does the published claim hold in the confidential data?")
        + f"\n[data]\nmicrodata = {_toml(source.file or 'records.csv')}\n"
        + '# unit = "person"             # column of the person, where one has several rows: all are protected\n\n'
        + (_levels(levels, labels=False) + "\n" if levels else "")
        + _PRIVACY.replace("\n# ledger", "\nn_partitions = 50             # chosen before touching the data\n# ledger")
        + "\n[[questions]]\n"
        + f"name = {_toml(f'{response} rises with {coefficient}'[:200])} # the claim in public words\n"
        + "# The published regression; a name that is not one word stands in backticks.\n"
        + f"formula = {_toml(f'{written[0]} ~ ' + ' + '.join(written[1:]))}\n"
        + ("" if asked is None else 'family = "logistic"\n')
        + f"coefficient = {_toml(coefficient)} # without backticks; of a category: name[T.level]\n"
        + 'threshold = 0.0\ndirection = ">"               # the claim: the coefficient is above the threshold\n'
    )


def _mvg(source: Source) -> str:
    categorical = source.categorical if source.codebook else {}
    names = [name for name in source.columns if name not in categorical] or ["response", "predictor"]
    ranges = source.numeric or {name: (0.0, 1.0) for name in names}
    hint = "" if source.numeric else " # fill in the public bounds"
    response, *predictors = ranges  # as in a formula, the first is explained
    return (
        _head("mvg", source, "What does a regression on the noisy moments say?")
        + f"\n[data]\nfile = {_toml(source.file or 'records.csv')}\n\n"
        + "[data.ranges] # public bounds of every column; a value beyond them is moved to the bound\n"
        + "".join(f"{_key(name)} = {_toml(bounds)}{hint}\n" for name, bounds in ranges.items())
        + "\n[privacy]\nepsilon = 1.0                 # the whole privacy cost of this study\n"
        + "delta = 1e-6                  # well below one over the number of records, which is public\n"
        + "\n[regression]\n"
        + f"predictors = {_toml(predictors)}\nresponse = {_toml(response)}\n"
    )


def _ide(source: Source) -> str:
    entries = source.categorical
    first, *others = entries
    return (
        _head("ide", source, "What do the noisy tables add to the public records?")
        + f"\n[data]\npublic = {_toml(source.public or 'public.csv')}    # public records of a similar population\n"
        + f"private = {_toml(source.file or 'records.csv')}   # confidential\n"
        + "# Every table takes its part of epsilon: list those that may differ from the public records.\n"
        + f"tables = {_toml([[first, other] for other in others] or [[first]])}\n\n"
        + _levels(entries, labels=False, text=True)
        + "\n[privacy]\nepsilon = 1.0                 # the whole privacy cost of this study\n"
        + '# ledger = "budget.db"        # keep a budget: `dpbayes ledger open --help`\n'
        + '\n[estimation]\nmethod = "noise-aware"\n'
    )


def _bloom(source: Source) -> str:
    return (
        _head("bloom", source, "How many people do three publishers reach together?")
        + "\n[audience] # simulated: real filters are made where the people are, with bloom.shuffle_flip\n"
        + "n_people = 20000\nshares = [0.3, 0.2, 0.1]      # of the people, by publisher\n"
        + "\n[filters]\nn_bits = 30000                # about as many as people, or more\n"
        + "\n[privacy]\nepsilon = 1.0                 # for a person more or less\ndelta = 1e-3\n"
    )


_SPECS: dict[str, Callable[[Source], str]] = {
    "bloom": _bloom, "ide": _ide, "latent-class": _latent_class, "mvg": _mvg, "verifier": _verifier,
}  # fmt: skip
