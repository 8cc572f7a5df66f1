"""One file envelope for everything that is released, and the one reader that trusts nothing.

A released noun derives from `Enveloped`. Its file is a JSON object: ``format`` and ``schema_version``, the body, and
``digest``, the SHA-256 of everything else. Nothing is corrected on the way in: the digest of what was built is
compared.
"""

import hashlib
import json
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from dpbayes._arguments import shown
from dpbayes._files import input_file, write_text
from dpbayes.errors import DamagedFileError, DPBayesError

MOST_BYTES = 1 << 30  # fifty filters of ten million bits, or moments of ten thousand columns
_AGAIN = "ask the custodian for it again"
_UNREADABLE = (DPBayesError, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class FileKind:
    """A kind of release file: its ``format``, what it is in words ("a release of tables"), and its schema version."""

    format: str
    words: str
    version: int = 1


class Enveloped:
    """A released noun that has a file: `FILE` names its kind, `_body` writes it and `_from_body` reads it."""

    FILE: ClassVar[FileKind]

    @abstractmethod
    def _body(self) -> dict[str, Any]:
        """Return what the file holds besides the envelope, as JSON-ready values."""

    @classmethod
    @abstractmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        """Build the noun from a body; any error of a constructor or a missing key makes the file a damaged one."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {"format": self.FILE.format, "schema_version": self.FILE.version, **self._body()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: names this release in ledgers, traces and reports."""
        return record_digest(self.to_dict())

    def write(self, path: str | Path) -> Path:
        """Write as JSON with its digest; an existing file is replaced only once the new one is complete."""
        return write_text(path, json.dumps(self.to_dict() | {"digest": self.digest}, indent=1, allow_nan=False) + "\n")

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read what `to_dict` returned, or raise `DamagedFileError`."""
        kind = cls.FILE
        if not isinstance(data, dict) or "format" not in data:
            raise DamagedFileError(f"{kind.words} must be an object with a format, got {shown(type(data).__name__)}")
        if data["format"] != kind.format:
            raise DamagedFileError(f"{kind.words} has format {kind.format!r}, got {shown(data['format'])}")
        if type(data.get("schema_version")) is not int or data["schema_version"] != kind.version:
            raise DamagedFileError(
                f"schema version {shown(data.get('schema_version'))} of {kind.words} is not {kind.version}, the one "
                "read here; update dpbayes"
            )
        body = {key: value for key, value in data.items() if key not in ("format", "schema_version")}
        try:
            built = cls._from_body(body)
            # 1, 1.0 and true are three records, and so are two adjacencies: what was built must say what was read.
            same = built.digest == record_digest(data)
        except DamagedFileError:
            raise
        except KeyError as error:
            raise DamagedFileError(f"{kind.words} lacks the key {error}; {_AGAIN}") from error
        except _UNREADABLE as error:
            raise DamagedFileError(f"{kind.words} does not read: {_brief(error)}; {_AGAIN}") from error
        if not same:
            unknown = sorted(set(body) - set(built._body()))
            raise DamagedFileError(
                f"{kind.words} holds what it cannot mean"
                + (f" (unknown keys {shown(unknown)})" if unknown else "")
                + f": read and written again it differs; {_AGAIN}"
            )
        return built

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file that `write` wrote."""
        built: Self = read_one_of(path, cls)
        return built


def canonical_json(record: dict[str, Any]) -> str:
    """Return the one JSON text of a record that digests are taken of: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def record_digest(record: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of a record."""
    return hashlib.sha256(canonical_json(record).encode()).hexdigest()


def expect(data: Any, keys: str, what: str) -> dict[str, Any]:
    """Return a mapping that has exactly these keys (names with spaces between them)."""
    if not isinstance(data, dict):
        raise DamagedFileError(f"{what} must be an object, got {type(data).__name__}")
    if odd := sorted(map(str, set(data) ^ set(keys.split()))):
        raise DamagedFileError(f"{what} must have the keys {sorted(keys.split())}; missing or unknown: {shown(odd)}")
    return data


def read_one_of(path: str | Path, *kinds: type[Enveloped]) -> Any:
    """Read a file of the kind that it names, of some kinds; of the last where it names none of them."""
    data = _parsed(input_file(path))
    named = data.get("format") if isinstance(data, dict) else None
    kind = next((kind for kind in kinds if kind.FILE.format == named), kinds[-1])
    if not isinstance(data, dict) or "digest" not in data:
        raise DamagedFileError(f"{path} is not {kind.FILE.words} of dpbayes: it has no digest; {_AGAIN}")
    stated = data.pop("digest")
    try:
        built = kind.from_dict(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path}: {error}") from error
    if built.digest != stated:
        raise DamagedFileError(f"{path} was changed after it was written: its digest does not match its contents")
    return built


def _parsed(path: Path) -> Any:
    """Return the JSON of a file, refusing what no release holds."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise DamagedFileError(f"{path} has {size:,} bytes, and no release file has more than {MOST_BYTES:,}")
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeats)
    except RecursionError:
        raise DamagedFileError(f"{path} is nested deeper than any release; {_AGAIN}") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise DamagedFileError(f"{path} is not readable JSON ({_brief(error)}); {_AGAIN}") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that gives a key twice: readers differ in which one they take."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("an object gives a key twice")
    return record


def _brief(error: BaseException) -> str:
    text = str(error)
    return text if len(text) <= 300 else f"{text[:300]}..."
