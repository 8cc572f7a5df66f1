"""Run specs: TOML in, a validated and frozen spec out, every mistake with its line."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dpbayes._arguments import shown
from dpbayes._files import file_path
from dpbayes.errors import InputError, SpecError
from dpbayes.privacy.laws import PublishedName
from dpbayes.runs.registry import system_module, system_name

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain
    from dpbayes.privacy import PublishedTable, Release

# Bounds far beyond any use: a number outside of them is a slip, and is refused before anything is spent.
Draws = Annotated[int, Field(ge=10, le=1_000_000)]
Tune = Annotated[int, Field(ge=10, le=1_000_000)]
Chains = Annotated[int, Field(ge=1, le=10_000)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Real = Annotated[float, Field(ge=-1e50, le=1e50)]
Level = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]  # of an attribute whose levels are numbers

_MOST_TABLES = 10_000  # of a release
_MOST_DRAWS = 10_000_000  # of all chains together
_MOST_MISTAKES = 20  # that are shown
_BEYOND_USE = 2**62  # bounds that nobody needs to be told
_LONGEST_KEY = 200  # that a message shows
_LONGEST_MESSAGE = 1_000  # of one mistake
_LONGEST_TEXT = 10_000
_MODEL_FILE = "file:"
_LISTS = re.compile(r"\[\n(?:[ ]+[^\[\]{}\n]+,\n)+[ ]*\]")  # of single values, one a line
_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


class Section(BaseModel):
    """A table of a run spec: strict types, finite numbers, no unknown keys, frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _draws_are_bounded(self) -> Any:
        draws, chains = getattr(self, "draws", None), getattr(self, "chains", None)
        if draws and chains and draws * chains > _MOST_DRAWS:
            raise ValueError(
                f"draws = {draws:,} with chains = {chains} are {draws * chains:,} draws, and a run keeps at most "
                f"{_MOST_DRAWS:,}; lower one of them"
            )
        return self


class DataSection(Section):
    """Where the records come from; a system adds its own sources, and names them in `sources`."""

    sources: ClassVar[tuple[str, ...]] = ()  # keys of which exactly one is given; empty where the system checks it
    confidential: ClassVar[str] = "microdata"  # the key that names the file of confidential records
    files: ClassVar[tuple[str, ...]] = ("microdata",)  # all keys that name files beside the spec, but for `release`

    release: str | None = None
    """A release that was written before, beside the spec: nothing is released then."""
    truth_public: bool = False
    """Whether the exact records are public: the report may then show the truth beside the estimates, and a seed may
    simulate the noise."""

    source: str | None = None
    """Where the files can be had, for whoever runs the spec without them."""

    @model_validator(mode="after")
    def _one_source(self) -> Any:
        given = [name for name in self.sources if getattr(self, name) is not None]
        if self.sources and len(given) != 1:
            asked = f"{', '.join(self.sources[:-1])} and {self.sources[-1]}"
            raise ValueError(f"give exactly one of {asked}; got {' and '.join(given) or 'none'}")
        if self.release is not None and self.truth_public:
            raise ValueError("truth_public needs exact tables, and a release holds none; leave it out")
        return self

    def path_of(self, key: str) -> str | None:
        """Return the file that a key names, None if it names none."""
        value = getattr(self, key, None)
        return value if isinstance(value, str) else None


class UnitSection(DataSection):
    """Records of which several may belong to one unit, for systems that count tables."""

    unit: str | None = None
    """Column whose equal values make rows one unit of privacy, such as a person; without it every row is one, and a
    person with 20 rows has 20 times the loss. In a CSV file values are compared as text."""
    max_rows_per_unit: int = Field(default=1, ge=1, le=1_000_000)
    """Rows of a unit that are counted. Which ones hangs on that unit's rows alone; noise grows with this number."""

    @model_validator(mode="after")
    def _bound_has_a_unit(self) -> Any:
        if self.max_rows_per_unit > 1 and self.unit is None:
            raise ValueError("max_rows_per_unit bounds the rows of a unit; name its column by unit")
        if self.unit is not None and self.path_of(self.confidential) is None:
            raise ValueError("unit names a column of confidential records, and there is no file of them; leave it out")
        return self

    @property
    def counted_by(self) -> dict[str, Any]:
        """What `dpbayes.data.marginals` is told of the unit."""
        return {"unit": self.unit, "max_rows_per_unit": self.max_rows_per_unit}

    @property
    def released_by(self) -> dict[str, Any]:
        """What `dpbayes.privacy.release_tables` is told of the unit."""
        return {"protected_unit": self.unit, "max_rows_per_unit": self.max_rows_per_unit}


class PrivacySection(Section):
    """What a release costs; a system adds its parameters."""

    ledger: str | None = None
    """Privacy-budget ledger, beside the spec, in which the release is reserved before noise is drawn."""
    ledger_head: str | None = None
    """Digest of an entry that the ledger must hold (`dpbayes ledger show` prints the last one). Without it the head in
    the file NAME.head beside the spec, which every run renews: an older copy of the ledger is then refused."""
    simulation_seed: Seed | None = None
    """Draw reproducible noise from a seeded generator instead of OpenDP: a simulation, with no privacy guarantee. It
    gives the noise away, so that with confidential records it needs data.truth_public."""


class RunSpec(Section):
    """What every run spec has. Each system derives its own from this."""

    decisive: ClassVar[set[str]] = {"data", "privacy"}  # sections that decide the release
    # But for where files can be had, and what a ledger must hold.
    idle: ClassVar[dict[str, Any]] = {"data": {"source"}, "privacy": {"ledger_head"}}

    system: str
    """The system to run; ``dpbayes models`` lists them."""
    title: str
    """One line that names the study."""
    question: str = ""
    """What the study asks, in a sentence."""

    @field_validator("title")
    @classmethod
    def _one_line(cls, value: str) -> str:
        from dpbayes.privacy.ledger import public_text

        return public_text(value, "title")

    def setting(self, dotted: str) -> Any:
        """Return a setting such as ``privacy.ledger``; None where the system, or the spec, has no such section."""
        found: Any = self
        for name in dotted.split("."):
            found = getattr(found, name, None)
        return found

    @property
    def given_release(self) -> str | None:
        """The finished release or published tables that the spec names, None if it draws its own release."""
        return self.setting("data.release") or self.setting("data.published")

    @property
    def release_settings(self) -> dict[str, Any]:
        """What decides the release: a run whose other settings changed goes on with the release it has."""
        if self.given_release is not None:
            return {"given": self.given_release}
        return self.model_dump(include=self.decisive, exclude=self.idle)

    @property
    def confidential_file(self) -> str | None:
        """The file of confidential records that the spec names, None if it names none."""
        data = self.setting("data")
        return data.path_of(data.confidential) if isinstance(data, DataSection) else None

    @model_validator(mode="after")
    def _source_and_cost_agree(self) -> Any:
        data, privacy = self.setting("data"), self.setting("privacy")
        if not isinstance(data, DataSection) or "privacy" not in type(self).model_fields:
            return self
        if isinstance(privacy, PrivacySection):
            _refuse_seed(privacy, data)
        several = isinstance(data, UnitSection) and data.max_rows_per_unit > 1
        if several and getattr(privacy, "adjacency", "replace-one") == "replace-one":
            raise ValueError(
                "under replace-one the number of rows is public, and a unit with more than one row changes it; set "
                'privacy.adjacency = "add-remove" where the system has it, or data.max_rows_per_unit = 1'
            )
        if privacy is not None and self.given_release is not None:
            raise ValueError("a finished release carries its own cost; leave [privacy] out")
        if privacy is None and self.given_release is None:
            raise ValueError("add the section [privacy] with epsilon = 1.0, say: what the release may cost")
        return self


def _refuse_seed(privacy: PrivacySection, data: DataSection) -> None:
    """Refuse a noise seed beside records that may be confidential, and beside a ledger."""
    seed, file = privacy.simulation_seed, data.path_of(data.confidential)
    if seed is not None and file is not None and not data.truth_public:
        raise ValueError(
            f"privacy.simulation_seed = {seed} with data.{data.confidential} would give the exact counts back: whoever "
            "holds the seed can take the noise off again; leave the seed out, so that OpenDP draws the noise, or, if "
            "the records are public, set data.truth_public = true"
        )
    if seed is not None and privacy.ledger is not None:
        said = f"privacy.ledger = {privacy.ledger!r} records real releases, and a seed simulates one"
        raise ValueError(f"{said}; leave out privacy.simulation_seed, or the ledger")


CENSUS_QUERIES = (
    *("votingage_dpq", "hispanic_dpq", "cenrace_dpq", "votingage * hispanic_dpq", "votingage * cenrace_dpq"),
    *("hispanic * cenrace_dpq", "votingage * hispanic * cenrace_dpq"),
)


def check_tables(tables: Sequence[Sequence[str]], domain: Domain, *, key: str) -> None:
    """Refuse tables without attributes, of unknown ones or of one twice, and more tables than a release holds."""
    if not tables or not all(tables):
        raise InputError(f"{key} must name one attribute or more per table, got {shown(tables)}; name at least one")
    if len(tables) > _MOST_TABLES:
        raise InputError(f"{key} name {len(tables):,} tables, and a release holds at most {_MOST_TABLES:,}")
    for names in tables:
        domain.project(names)


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

    value: str | dict[str, str | Level]
    """Column of the counts; of a wide file each column of counts with its level of `across`."""
    levels: list[str] | dict[str, str] = Field(default_factory=list)
    """Columns of the levels, by the attributes' names if these differ; none for the number of records."""
    law: PublishedName
    """The law of the noise; "exact" for a number of records without noise."""
    scale: Positive | str | None = None
    """Scale (of two-sided geometric and Laplace noise) or standard deviation of the noise: a number, or a column."""
    variance: Positive | str | None = None
    """Variance of the noise in place of its scale: a number, or a column."""
    across: str | None = None
    """Of a wide file: the attribute whose levels stand side by side."""
    where: dict[str, str | Level | bool] = Field(default_factory=dict)
    """Columns and the value that a row of this table has there, for files of several tables."""
    threshold: Real | None = None
    """Counts below it were left out: empty fields, or no rows."""
    file: str | None = None
    """Another file than data.published, beside it."""


class PublishedSpec(RunSpec):
    """A run of a system that fits releases of tables."""

    tables: list[TableSection] | None = None
    """With data.published: what stands where, and under which noise."""

    @model_validator(mode="after")
    def _tables_are_said(self) -> Any:
        published = self.setting("data.published") is not None and self.setting("data.geocode") is None
        if published and not self.tables:
            raise ValueError("data.published needs a [[tables]] for each of its tables")
        if self.tables and not published:
            raise ValueError("[[tables]] say what stands in data.published, and there is none; leave them out")
        self._published_tables()  # its errors say what does not fit together
        return self

    def _published_tables(self) -> list[PublishedTable]:
        from dpbayes.privacy.published import PublishedTable

        return [PublishedTable(**table.model_dump()) for table in self.tables or ()]

    def published_release(self, beside: Path) -> Release:
        """Read the published tables that the spec names."""
        from dpbayes.privacy.published import read_published
        from dpbayes.privacy.readers import read_census_measurements
        from dpbayes.privacy.release import AS_PUBLISHED, Publication

        data = self.setting("data")
        if data.geocode is not None:
            exact = None if data.constraints is None else beside / data.constraints
            options = {"geocodes": data.geocode, "queries": ["total_dpq", *(data.queries or CENSUS_QUERIES)]}
            read = read_census_measurements(beside / data.published, exact, total=data.total, **options)
            return read[data.geocode].release
        publication = Publication(data.publisher, data.source, data.date, data.mechanism)
        options = {"levels": data.levels, "total": data.total, "adjacency": data.adjacency or AS_PUBLISHED}
        return read_published(beside / data.published, self._published_tables(), publication=publication, **options)


@dataclass(frozen=True)
class LoadedSpec:
    """A validated spec, its system's `dpbayes.runs.protocol.Study`, and the file beside which paths are resolved."""

    spec: RunSpec
    module: Any
    path: Path

    @property
    def name(self) -> str:
        """The file's stem: the default name of the run folder."""
        return self.path.stem

    @property
    def resolved(self) -> str:
        """The spec as TOML with every default written out."""

        def in_one_line(found: re.Match[str]) -> str:
            line = "[" + ", ".join(item.strip().removesuffix(",") for item in found.group().splitlines()[1:-1]) + "]"
            return line if len(line) <= 90 else found.group()

        return _LISTS.sub(in_one_line, tomli_w.dumps(self.spec.model_dump(mode="json", exclude_none=True)))

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved spec."""
        return hashlib.sha256(self.resolved.encode()).hexdigest()


def load_spec(path: str | Path, overrides: Sequence[str] = (), *, allow_python: bool = False) -> LoadedSpec:
    r"""Read and validate a run spec.

    Parameters
    ----------
    path
        A TOML file.
    overrides
        Changes as ``section.key=value``, the value in TOML notation; text needs no quotes.
    allow_python
        Whether the system may be a Python file that does not come with dpbayes.

    Raises
    ------
    SpecError
        If the file does not parse, names an unknown system or key, or a value is of the wrong type or out of range. The
        message gives the line, the value and the remedy, one line per mistake.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "study.toml")
    ...     _ = path.write_text('system = "latent-class"\ntitle = "t"\n[privacy]\nepsilom = 1.0\n')
    ...     load_spec(path)
    Traceback (most recent call last):
    dpbayes.errors.SpecError: study.toml has 2 mistakes
      line 4: privacy.epsilom is not a key of [privacy]; did you mean 'epsilon'?
      data: is missing; add the section [data]
    """
    path = file_path(path)
    if not path.is_file():
        what = f"{path} is a folder, no spec" if path.is_dir() else f"there is no spec {path}"
        raise FileNotFoundError(f"{what}; `dpbayes models FOLDER` lists the specs in a folder")
    try:
        # Editors on Windows put a mark of the encoding before the first line.
        text = path.read_text(encoding="utf-8-sig")
        data = _parse(text, path.name)
    except UnicodeDecodeError as error:
        raise SpecError(f"{path.name} is not UTF-8 text (at byte {error.start}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path.name} is not valid TOML: {error}") from None
    for override in overrides:
        _apply(data, override)
    _refuse_long_texts(data, path.name)
    if "system" not in data:
        raise SpecError(f'{path.name} names no system; add a first line such as system = "latent-class"')
    module = system_module(data["system"], beside=path.parent, allow_python=allow_python)
    data["system"] = system_name(data["system"])
    if isinstance(data.get("model"), str):
        name = data["model"].removeprefix(_MODEL_FILE).strip()
        if not data["model"].startswith(_MODEL_FILE) or not name:
            said = 'model: give a section [model], or model = "file:mine.py"'
            raise SpecError(f"{said}; got {data['model']!r}")
        data["model"] = {"file": name}
    try:
        spec = module.Spec.model_validate(data)
    except ValidationError as error:
        raise SpecError(_explain(error, path.name, text, module.Spec)) from None
    return LoadedSpec(spec, module, path)


def _parse(text: str, name: str) -> dict[str, Any]:
    """Return parsed TOML; what Python itself refuses to read in it is a mistake of the spec."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except (ValueError, RecursionError):
        raise SpecError(f"{name} holds a number of too many digits, or brackets nested too deeply") from None


def _refuse_long_texts(data: dict[str, Any], name: str) -> None:
    """Refuse a text that no message and no page could show."""
    nodes: list[Any] = [data]
    for node in nodes:
        if isinstance(node, str) and len(node) > _LONGEST_TEXT:
            start = shown(node[:60])
            raise SpecError(f"{name}: a text has at most {_LONGEST_TEXT:,} characters, got {len(node):,}: {start}...")
        nodes += [*node, *node.values()] if isinstance(node, dict) else node if isinstance(node, list) else []


def _apply(data: dict[str, Any], override: str) -> None:
    """Write one ``section.key=value`` into the parsed spec."""
    dotted, equals, raw = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise SpecError(f"--set takes section.key=value, got {override!r}")
    try:
        read = _parse(f"value = {raw}", f"--set {dotted}")
    except tomllib.TOMLDecodeError:
        read = {"value": raw.strip()}
    if set(read) != {"value"}:
        raise SpecError(f"--set takes one value, got several lines: {shown(override)}; give --set once for each")
    value = read["value"]
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise SpecError(f"--set {override}: {key!r} is not a section")
    data[keys[-1]] = value


def _explain(error: ValidationError, name: str, text: str, spec: type[BaseModel]) -> str:
    """Return pydantic's findings as one sentence a mistake, each with its line."""
    where = _index(text)
    numbered = [(_line(where, finding["loc"]), finding) for finding in error.errors(include_url=False)]
    numbered.sort(key=lambda pair: pair[0] or math.inf)
    lines = [_sentence(finding, number, spec) for number, finding in numbered[:_MOST_MISTAKES]]
    if len(numbered) == 1:
        return f"{name}, {lines[0]}"
    rest = len(numbered) - len(lines)
    more = [f"and {rest:,} more"] if rest else []
    return "\n  ".join([f"{name} has {len(numbered):,} mistakes", *lines, *more])


def _sentence(finding: Any, number: int | None, spec: type[BaseModel]) -> str:
    location = tuple(finding["loc"])
    dotted = ".".join(map(str, location))[:_LONGEST_KEY] or "the spec"
    where = f"line {number}: " if number else ""
    if finding["type"] == "extra_forbidden":
        known = _fields(spec, location[:-1])
        close = get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        table = f"[{'.'.join(map(str, location[:-1]))}]" if location[:-1] else "a spec"
        return f"{where}{dotted} is not a key of {table}; {hint}"
    if finding["type"] == "missing":
        what = f"add the section [{dotted}]" if _fields(spec, location) else f"add {location[-1]} = ..."
        return f"{where or dotted + ': '}{dotted + ' ' if where else ''}is missing; {what}"
    if finding["type"] == "model_type":
        return f"{where}{dotted} is a section, [{dotted}] with keys in it; got {shown(finding['input'])}"
    message = finding["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if finding["type"] in {"int_type", "float_type", "bool_type"} and isinstance(finding["input"], str):
        message += ", without quotes"
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}..."
    got = "" if isinstance(finding["input"], dict) else f", got {shown(finding['input'])}"
    return f"{where}{dotted}: {message[:1].lower()}{message[1:]}{got}"


def _fields(spec: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the keys that a section of the spec may have."""
    model: type[BaseModel] | None = spec
    for key in location:
        if isinstance(key, str):  # not the place in an array of tables
            field = None if model is None else model.model_fields.get(key)
            model = None if field is None else _section_in(field.annotation)
    return [] if model is None else list(model.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section, single or in an array of tables, that a key takes; None if it takes none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    many = get_args(annotation) if get_origin(annotation) in (list, Union, UnionType) else ()
    return next(filter(None, map(_section_in, many)), None)


def _line(lines: Mapping[tuple[str, ...], int], location: Sequence[str | int]) -> int | None:
    keys = tuple(key for key in location if isinstance(key, str))
    for end in range(len(keys), 0, -1):
        if keys[:end] in lines:
            return lines[keys[:end]]
    return None


def _index(text: str) -> dict[tuple[str, ...], int]:
    """Return the first line of every table and key."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _split(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault(table + _split(key[1]), number)
    return found


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.\s]+", dotted))


_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class SpecKey:
    """A key of a section."""

    name: str
    takes: str
    rule: str  # whether it must be given, and what holds if not
    meaning: str


@dataclass(frozen=True)
class SpecSection:
    """A table of a spec."""

    heading: str
    meaning: str
    required: bool
    keys: tuple[SpecKey, ...]


def spec_sections(system: str) -> list[SpecSection]:
    """Return the sections that a system's run spec may have, with their keys; those at the top of the file first."""
    spec = system_module(system).Spec
    models = {name: found for name, field in spec.model_fields.items() if (found := _section_in(field.annotation))}
    sections = [_section("", spec, required=True, but=models)]
    for name, model in models.items():
        field = spec.model_fields[name]
        heading = f"[[{name}]]" if "list[" in str(field.annotation) else f"[{name}]"
        sections.append(_section(heading, model, required=field.is_required()))
    return sorted(sections, key=lambda section: section.heading.startswith("[["))  # arrays of tables come last


def _section(heading: str, model: type[BaseModel], *, required: bool, but: Collection[str] = ()) -> SpecSection:
    """Return a section with its keys; JSON's numbers, texts, lists and truth values are TOML's."""
    schema, keys = model.model_json_schema(), []
    for name, field in schema["properties"].items():
        if name not in but:
            default = "optional" if field.get("default") is None else f"default {json.dumps(field['default'])}"
            rule = "required" if name in schema.get("required", ()) else default
            keys.append(SpecKey(name, _takes(field), rule, _one_line(field.get("description", ""))))
    return SpecSection(heading, _one_line(schema.get("description", "")), required, tuple(keys))


def _takes(field: Mapping[str, Any]) -> str:
    """Say in words what a field takes."""
    if "anyOf" in field:
        return " or ".join(_takes(option) for option in field["anyOf"] if option.get("type") != "null")
    if "const" in field or "enum" in field:
        return " or ".join(json.dumps(value) for value in field.get("enum", [field.get("const")]))
    if "$ref" in field:
        return "table"
    if field.get("type") == "array":
        return f"list of {_within(field['items'])}" if "items" in field else "list"
    if field.get("type") == "object":
        entries = field.get("additionalProperties")
        return f"table of {_within(entries)}" if isinstance(entries, Mapping) else "table"
    given = {sign: field[bound] for bound, sign in _BOUNDS.items() if bound in field}
    figures = {sign: f"{b:,}" if isinstance(b, int) else f"{b:,.15g}" for sign, b in given.items()}
    bounds = [f"{sign} {figures[sign]}" for sign, bound in given.items() if abs(bound) < _BEYOND_USE]
    return " ".join([_WORDS[field["type"]], " and ".join(bounds)]).strip()


def _within(field: Mapping[str, Any]) -> str:
    """Say what an entry takes, in brackets where that is a choice."""
    takes = _takes(field)
    return f"({takes})" if " or " in takes else takes


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def key_lines(system: str) -> Iterator[str]:
    """Yield the keys of a system as lines for a terminal, long ones wrapped at 100 characters."""
    for section in spec_sections(system):
        title = section.heading or f'system = "{system}"'
        yield title if section.required else f"{title} (optional)"
        yield from _wrapped(section.meaning, "  ")
        for key in section.keys:
            yield from _wrapped(f"{key.name}: {key.takes}; {key.rule}", "  ")
            yield from _wrapped(key.meaning, "      ")
        yield ""


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(text, 100, initial_indent=indent, subsequent_indent=indent.rjust(6), break_on_hyphens=False)
