"""Attributes, their levels, and the product domain that they span."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpbayes._arguments import instance, ordered, shown
from dpbayes.errors import InputError

__all__ = ["Attribute", "Domain", "Level"]

type Level = str | int
"""A level's label, as it stands in the microdata: text or a whole number, as all levels of its attribute are."""

_NAMES = "give a list of attributes' names"


@dataclass(frozen=True)
class Attribute:
    """A categorical attribute with its labelled levels, in order.

    Parameters
    ----------
    name
        The attribute's name, which is also its column in microdata.
    levels
        Two or more distinct labels, all text or all integers. They are public: they come from a codebook, never from
        the confidential data.

    Raises
    ------
    InputError
        If the name is empty, there are fewer than two levels, or a label is repeated, of another type, or text beside
        integers.

    Examples
    --------
    >>> Attribute("sex", ("female", "male")).size
    2
    """

    name: str
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(
                f"an attribute's name must be non-empty text, got {shown(self.name)}; name it as its column"
            )
        levels = ordered(self.levels, f"levels of {self.name!r}", remedy="give its labels in order, such as (0, 1)")
        object.__setattr__(self, "levels", tuple(_as_level(level, self.name) for level in levels))
        if len({isinstance(level, str) for level in self.levels}) > 1:
            raise InputError(
                f"levels of {self.name!r} mix text and integers, got {list(self.levels)!r}; "
                f"make all of them text: {[str(level) for level in self.levels]!r}"
            )
        if len(self.levels) < 2:
            raise InputError(
                f"attribute {self.name!r} needs at least two levels, got {list(self.levels)!r}; "
                "leave out an attribute that is constant"
            )
        if len(set(self.levels)) < len(self.levels):
            repeated = next(level for level in self.levels if self.levels.count(level) > 1)
            raise InputError(f"attribute {self.name!r} repeats level {repeated!r}; list each level once")

    @property
    def size(self) -> int:
        """Number of levels."""
        return len(self.levels)


@dataclass(frozen=True)
class Domain:
    """The product domain of a sequence of attributes.

    Parameters
    ----------
    attributes
        Attributes with distinct names; their order is the order of a table's axes.

    Examples
    --------
    >>> domain = Domain.from_levels({"age": ("<18", "18+"), "sex": ("f", "m"), "race": ("a", "b", "c")})
    >>> domain.shape, domain.size
    ((2, 2, 3), 12)
    >>> domain.project(["race", "age"]).names
    ('race', 'age')
    """

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        remedy = "Domain.from_levels makes a domain from names and levels"
        attributes = ordered(self.attributes, "attributes", remedy=remedy, kind=Attribute)
        object.__setattr__(self, "attributes", attributes)
        if not self.attributes:
            raise InputError("a domain needs at least one attribute, got none")
        names = [attribute.name for attribute in self.attributes]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InputError(f"attribute {repeated!r} stands twice in the domain; name each attribute once")

    @classmethod
    def from_levels(cls, levels: Mapping[str, Iterable[Level]]) -> Domain:
        """Build a domain from a mapping of names to levels.

        Examples
        --------
        >>> Domain.from_levels({"vote": ("no", "yes")}).shape
        (2,)
        """
        named = instance(levels, Mapping, "levels", remedy="give {name: [level, ...], ...}")
        return cls(tuple(Attribute(name, labels) for name, labels in named.items()))

    @classmethod
    def from_dict(cls, data: Any) -> Domain:
        """Read what `to_dict` wrote.

        Raises
        ------
        InputError
            If the structure is not a list of ``{"name": ..., "levels": [...]}``.
        """
        if not isinstance(data, list):
            raise InputError(f"a domain is a list of attributes, got {type(data).__name__}")
        attributes = []
        for item in data:
            if not isinstance(item, dict) or set(item) != {"name", "levels"} or not isinstance(item["levels"], list):
                raise InputError(f"an attribute is {{name, levels}} with a list of levels, got {item!r}")
            attributes.append(Attribute(item["name"], tuple(item["levels"])))
        return cls(tuple(attributes))

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a JSON-ready form."""
        return [{"name": a.name, "levels": list(a.levels)} for a in self.attributes]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Attribute names in the order of the axes."""
        return tuple(attribute.name for attribute in self.attributes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of levels of each attribute."""
        return tuple(attribute.size for attribute in self.attributes)

    @cached_property
    def size(self) -> int:
        """Number of cells of the full table (a Python integer: it never overflows)."""
        return math.prod(self.shape)

    def __getitem__(self, name: str) -> Attribute:
        return self.attributes[self.axis(name)]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Attribute]:
        return iter(self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def axis(self, name: str) -> int:
        """Return the axis of an attribute.

        Raises
        ------
        InputError
            If the domain has no such attribute.

        Examples
        --------
        >>> Domain.from_levels({"age": (0, 1), "sex": (0, 1)}).axis("sex")
        1
        """
        try:
            return self.names.index(name)
        except ValueError:
            raise InputError(
                f"attribute {shown(name)} is not in the domain; it has {', '.join(map(repr, self.names))}"
            ) from None

    def axes(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the axes of several attributes."""
        return tuple(self.axis(name) for name in ordered(names, "names", remedy=_NAMES))

    def project(self, names: Sequence[str]) -> Domain:
        """Return the domain of some of the attributes, in the order given."""
        return Domain(tuple(self[name] for name in ordered(names, "names", remedy=_NAMES)))

    def cell_labels(self, separator: str = ", ") -> list[str]:
        """Return a label for every cell, in C order.

        Examples
        --------
        >>> Domain.from_levels({"age": (0, 1), "sex": ("f", "m")}).cell_labels()
        ['age=0, sex=f', 'age=0, sex=m', 'age=1, sex=f', 'age=1, sex=m']
        """
        labels = [""]
        for attribute in self.attributes:
            labels = [
                (label + separator if label else "") + f"{attribute.name}={level}"
                for label in labels
                for level in attribute.levels
            ]
        return labels

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(a.name)}</td><td>{html.escape(', '.join(map(str, a.levels)))}</td></tr>"
            for a in self.attributes
        )
        return (
            f"<table><caption>Domain of {len(self)} attributes, {self.size:,} cells</caption>"
            f"<tr><th>attribute</th><th>levels</th></tr>{rows}</table>"
        )


def _as_level(level: Any, name: str) -> Level:
    """Return a level as text or an int of Python: NumPy's count as such, as `unique` gives them."""
    if isinstance(level, str):
        return str(level)
    if isinstance(level, bool) or not isinstance(level, int | np.integer):
        raise InputError(f"levels of {name!r} must be text or integers, got {shown(level)}; convert the column first")
    return int(level)
