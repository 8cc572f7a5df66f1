"""Every key that a run spec of a system may hold, with what it takes, its default and its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from dpbayes.runs.registry import system_module

_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class SpecKey:
    """A key of a section."""

    name: str
    takes: str
    default: str
    required: bool
    meaning: str

    @property
    def rule(self) -> str:
        """Whether it must be given, and what holds if not."""
        return "required" if self.required else f"default {self.default}" if self.default else "optional"


@dataclass(frozen=True)
class SpecSection:
    """A table of a spec."""

    heading: str
    meaning: str
    required: bool
    keys: tuple[SpecKey, ...]


def spec_sections(system: str) -> list[SpecSection]:
    """Return the sections that a system's run spec may have, with their keys; those at the top of the file first.

    `SpecError` if there is no system of that name.

    Examples
    --------
    >>> top, data, privacy, *_ = spec_sections("latent-class")
    >>> privacy.heading, privacy.keys[0].name, privacy.keys[0].takes
    ('[privacy]', 'ledger', 'text')
    """
    schema = system_module(system).Spec.model_json_schema()
    tables = {name: found for name, field in schema["properties"].items() if (found := _table(field, schema["$defs"]))}
    plain = {name: field for name, field in schema["properties"].items() if name not in tables}
    top = SpecSection("", schema.get("description", ""), True, _keys(plain, schema))
    sections = [top]
    for name, (heading, table) in tables.items():
        meaning = _one_line(table.get("description", ""))
        required = name in schema.get("required", ())
        sections.append(SpecSection(heading.format(name), meaning, required, _keys(table["properties"], table)))
    return sorted(sections, key=lambda section: section.heading.startswith("[["))  # arrays of tables come last


def _table(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Return the heading and the schema of a field that is a table, or an array of tables."""
    arrays = [option["items"] for option in (field, *field.get("anyOf", ())) if "items" in option]
    for heading, form in (("[{}]", field), *(("[[{}]]", items) for items in arrays)):
        for option in (form, *form.get("anyOf", ())):
            if "$ref" in option:
                return heading, definitions[option["$ref"].rpartition("/")[2]]
    return None


def _keys(fields: Mapping[str, Any], owner: Mapping[str, Any]) -> tuple[SpecKey, ...]:
    required = owner.get("required", ())
    return tuple(
        SpecKey(name, _takes(field), _default(field), name in required, _one_line(field.get("description", "")))
        for name, field in fields.items()
    )


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
    bounds = [f"{sign} {field[bound]:,}" for bound, sign in _BOUNDS.items() if bound in field]
    return " ".join([_WORDS[field["type"]], " and ".join(bounds)]).strip()


def _within(field: Mapping[str, Any]) -> str:
    """Say what an entry takes, in brackets where that is a choice."""
    takes = _takes(field)
    return f"({takes})" if " or " in takes else takes


def _default(field: Mapping[str, Any]) -> str:
    # JSON's numbers, texts, lists and truth values are TOML's.
    value = field.get("default")
    return "" if value is None else json.dumps(value)


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def key_lines(system: str) -> Iterator[str]:
    """Yield the keys of a system as lines for a terminal, long ones wrapped at 100 characters.

    Examples
    --------
    >>> next(key_lines("verifier"))
    'system = "verifier"'
    """
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
