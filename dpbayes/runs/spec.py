"""Run specs: TOML in, a validated and frozen spec out, every mistake with its line."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from dpbayes._arguments import shown
from dpbayes.errors import SpecError
from dpbayes.runs.lines import line_of
from dpbayes.runs.registry import system_module
from dpbayes.runs.variant import spell_out

__all__ = ["LoadedSpec", "RunSpec", "Section", "load_spec"]


class Section(BaseModel):
    """A table of a run spec: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    @field_validator("*", mode="after")
    @classmethod
    def _finite(cls, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be finite")
        return value


class RunSpec(Section):
    """What every run spec has. Each system derives its own from this."""

    system: str
    """The system to run; ``dpbayes models`` lists them."""
    title: str
    """One line that names the study."""
    question: str = ""
    """What the study asks, in a sentence."""


@dataclass(frozen=True)
class LoadedSpec:
    """A validated spec with where it came from.

    Parameters
    ----------
    spec
        The validated spec of the system.
    module
        The system's module in ``dpbayes.runs``.
    path
        The TOML file; relative paths in the spec are resolved beside it.
    """

    spec: RunSpec
    module: ModuleType
    path: Path

    @property
    def name(self) -> str:
        """The file's stem: the default name of the run folder."""
        return self.path.stem

    @property
    def resolved(self) -> str:
        """The spec as TOML with every default written out."""
        return tomli_w.dumps(self.spec.model_dump(mode="json", exclude_none=True))

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved spec."""
        return hashlib.sha256(self.resolved.encode()).hexdigest()


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> LoadedSpec:
    r"""Read and validate a run spec.

    Parameters
    ----------
    path
        A TOML file.
    overrides
        Changes as ``section.key=value``, the value in TOML notation; text needs no quotes.

    Returns
    -------
    LoadedSpec
        The validated spec.

    Raises
    ------
    SpecError
        If the file does not parse, names an unknown system or key, or a value is of the wrong type or out of range. The
        message gives the line, the value and the remedy, one mistake a line.
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
    path = Path(path)
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
    if "system" not in data:
        raise SpecError(f'{path.name} names no system; add a first line such as system = "latent-class"')
    module = system_module(data["system"])
    spell_out(data)
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


def _apply(data: dict[str, Any], override: str) -> None:
    """Write one ``section.key=value`` into the parsed spec."""
    dotted, equals, raw = override.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not equals or not all(keys):
        raise SpecError(f"--set takes section.key=value, got {override!r}")
    try:
        value = _parse(f"value = {raw}", f"--set {dotted}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise SpecError(f"--set {override}: {key!r} is not a section")
    data[keys[-1]] = value


def _explain(error: ValidationError, name: str, text: str, spec: type[BaseModel]) -> str:
    """Return pydantic's findings as one sentence a mistake, each with its line."""
    findings = sorted(error.errors(), key=lambda finding: line_of(text, finding["loc"]) or math.inf)
    lines = [_sentence(finding, text, spec) for finding in findings]
    if len(lines) == 1:
        return f"{name}, {lines[0]}"
    return "\n  ".join([f"{name} has {len(lines)} mistakes", *lines])


def _sentence(finding: Any, text: str, spec: type[BaseModel]) -> str:
    location = tuple(finding["loc"])
    dotted = ".".join(map(str, location)) or "the spec"
    number = line_of(text, location)
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
    message = finding["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    got = "" if isinstance(finding["input"], dict) else f", got {shown(finding['input'])}"
    return f"{where}{dotted}: {message[:1].lower()}{message[1:]}{got}"


def _fields(spec: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the keys that a section of the spec may have."""
    model: Any = spec
    for key in location:
        field = getattr(model, "model_fields", {}).get(key)
        candidates = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return list(getattr(model, "model_fields", {}))
