"""Attributes, their levels with labels, and the product domain that they span."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpbayes._arguments import LONGEST_NAME, check_memory, instance, ordered, shown
from dpbayes._html import html_table
from dpbayes.errors import InputError

type Level = str | int
"""A level as it stands in the microdata: text or a whole number, as all levels of its attribute are."""

type Labels = Mapping[Any, str] | Sequence[str]
"""What levels are called: a label per level in their order, or a mapping of levels (as such or as text) to labels."""

_NAMES = "give a list of attributes' names"
# Labels that say nothing without their attribute's name.
_BARE = {"", "yes", "no", "true", "false", "none", "any", "other", "unknown", "missing", "refused", "n/a",
         "not given", "not stated", "not answered", "not known", "not available", "not applicable"}  # fmt: skip


@dataclass(frozen=True)
class Attribute:
    """A categorical attribute with its levels, in order.

    Parameters
    ----------
    name
        The attribute's name, which is also its column in microdata.
    levels
        Two or more distinct levels, all text or all integers, as microdata hold them. They are public: they come from
        a codebook, never from the confidential data.
    labels
        What the levels are called on pages and in pictures: a text per level in their order, or a mapping of levels to
        texts, in which a level that is left out keeps its own. Two attributes of the same levels are equal whatever
        their labels.

    Raises
    ------
    InputError
        If the name is empty, there are fewer than two levels, a level is repeated, of another type, or text beside
        integers, or a label is repeated, empty, or of no level.

    Examples
    --------
    >>> sex = Attribute("sex", (1, 2), labels={1: "male", 2: "female"})
    >>> sex.size, sex.labels
    (2, ('male', 'female'))
    """

    name: str
    levels: tuple[Level, ...]
    labels: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= LONGEST_NAME:
            raise InputError(
                f"an attribute's name must be text of 1 to {LONGEST_NAME:,} characters, got {shown(self.name)}; name "
                "it as its column"
            )
        levels = ordered(self.levels, f"levels of {self.name!r}", remedy="give them in order, such as (0, 1)")
        object.__setattr__(self, "levels", tuple(_as_level(level, self.name) for level in levels))
        if len({isinstance(level, str) for level in self.levels}) > 1:
            raise InputError(
                f"levels of {self.name!r} mix text and integers, got {shown(list(self.levels))}; "
                f"make all of them text: {shown([str(level) for level in self.levels])}"
            )
        if not self.levels:
            raise InputError(f"attribute {self.name!r} has no levels; list them in order, from its codebook")
        if len(self.levels) < 2:
            raise InputError(
                f"attribute {self.name!r} needs at least two levels, got {list(self.levels)!r}; leave it out"
            )
        if len(set(self.levels)) < len(self.levels):
            raise InputError(f"attribute {self.name!r} repeats level {_repeated(levels)!r}; list each level once")
        object.__setattr__(self, "labels", _labels(self.labels, self))

    @property
    def size(self) -> int:
        """Number of levels."""
        return len(self.levels)

    @property
    def words(self) -> tuple[str, ...]:
        """What each level is called: its label, or else itself; an empty text is "(blank)"."""
        return self.labels or tuple(str(level) if str(level).strip() else "(blank)" for level in self.levels)

    @property
    def phrases(self) -> tuple[str, ...]:
        """What each level is called where the attribute's name does not stand beside it.

        Examples
        --------
        >>> Attribute("age", (0, 1)).phrases, Attribute("age", (0, 1), ("under 18", "18 or over")).phrases
        (('age: 0', 'age: 1'), ('under 18', '18 or over'))
        """
        given = zip(self.levels, self.words, strict=True)
        # A level as it is, a yes or no, and what was not given tell nothing by themselves.
        return tuple(
            own if self.labels and own != str(level) and own.casefold() not in _BARE else f"{self.name}: {own}"
            for level, own in given
        )


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
        object.__setattr__(self, "attributes", ordered(self.attributes, "attributes", remedy=remedy, kind=Attribute))
        if not self.attributes:
            raise InputError("a domain needs at least one attribute, got none")
        if len(set(self.names)) < len(self.names):
            repeated = _repeated(self.names)
            raise InputError(f"attribute {repeated!r} stands twice in the domain; name each attribute once")

    @classmethod
    def from_levels(cls, levels: Mapping[str, Iterable[Level]], labels: Mapping[str, Labels] | None = None) -> Domain:
        """Build a domain from a mapping of names to levels, and of names to labels for those that have some.

        Examples
        --------
        >>> Domain.from_levels({"vote": (0, 1)}, {"vote": ("did not vote", "voted")}).cell_labels()
        ['did not vote', 'voted']
        """
        named = instance(levels, Mapping, "levels", remedy="give {name: [level, ...], ...}")
        called = instance(labels or {}, Mapping, "labels", remedy="give {name: {level: label, ...}, ...}")
        if unknown := [name for name in called if name not in named]:
            raise InputError(f"labels name {shown(unknown)}, which has no levels; there are {shown(list(named))}")
        return cls(tuple(Attribute(name, given, called.get(name, ())) for name, given in named.items()))

    @classmethod
    def from_dict(cls, data: Any) -> Domain:
        """Read what `to_dict` wrote: a list of ``{"name": ..., "levels": [...]}``, with ``"labels"`` or without."""
        if not isinstance(data, list):
            raise InputError(f"a domain is a list of attributes, got {type(data).__name__}")
        attributes = []
        for item in data:
            keys = set(item) - {"labels"} if isinstance(item, dict) else set()
            if keys != {"name", "levels"} or not isinstance(item["levels"], list):
                raise InputError(f"an attribute is {{name, levels}} with a list of levels, got {item!r}")
            attributes.append(Attribute(item["name"], tuple(item["levels"]), item.get("labels", ())))
        return cls(tuple(attributes))

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a JSON-ready form."""
        return [
            {"name": a.name, "levels": list(a.levels)} | ({"labels": list(a.labels)} if a.labels else {}) for a in self
        ]

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
        """Return the axis of an attribute."""
        try:
            return self.names.index(instance(name, str, "each of names", remedy=_NAMES))
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

    def cell_labels(self, separator: str = ", ", *, names: bool = True) -> list[str]:
        """Return a label for every cell, in C order; without names where the attributes stand beside it.

        Examples
        --------
        >>> Domain.from_levels({"age": (0, 1), "sex": ("f", "m")}).cell_labels()
        ['age: 0, sex: f', 'age: 0, sex: m', 'age: 1, sex: f', 'age: 1, sex: m']
        """
        labels = [""]
        for attribute in self:
            parts = attribute.phrases if names else attribute.words
            labels = [(label + separator if label else "") + part for label in labels for part in parts]
        return labels

    def _repr_html_(self) -> str:
        rows = [(attribute.name, ", ".join(attribute.words)) for attribute in self]
        caption = f"Domain of {len(self)} attributes, {self.size:,} cells"
        return html_table(caption, ("attribute", "levels"), rows)


def check_rows(rows: float, domain: Domain) -> None:
    """Refuse more synthetic records than this machine's memory holds: some 32 bytes of each value of each record."""
    what = f"{rows:,.0f} synthetic records of {len(domain)} attributes"
    check_memory(32 * rows * len(domain), what, remedy="ask for fewer by n_rows")


def _labels(labels: Labels, attribute: Attribute) -> tuple[str, ...]:
    """Return a label per level; empty where none is given."""
    name, levels = attribute.name, attribute.levels
    if isinstance(labels, Mapping):
        given = {str(level): label for level, label in labels.items()}
        if unknown := sorted(given.keys() - set(map(str, levels))):
            raise InputError(
                f"labels of {name!r} are for {shown(unknown)}, no levels of it; those are {shown(list(levels))}"
            )
        called = tuple(given.get(str(level), str(level)) for level in levels) if given else ()
    else:
        called = ordered(labels, f"labels of {name!r}", remedy='give {level: label, ...}, such as {0: "no", 1: "yes"}')
        if called and len(called) != len(levels):
            raise InputError(f"attribute {name!r} has {len(levels)} levels and {len(called)} labels; label each level")
    for label in called:
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"labels of {name!r} must be text, got {shown(label)}; put it in quotes")
    if len(set(called)) < len(called):
        raise InputError(f"two levels of {name!r} are labelled {shown(_repeated(called))}; give each its own label")
    return called


def _repeated(values: Iterable[Level]) -> Level:
    """Return the first value that stands more than once, where one does."""
    return next(value for value, number in Counter(values).items() if number > 1)


def _as_level(level: Any, name: str) -> Level:
    """Return a level as text or an int of Python: NumPy's count as such, as `unique` gives them."""
    if isinstance(level, str) and len(level) > LONGEST_NAME:
        raise InputError(f"a level of {name!r} has {len(level):,} characters, above {LONGEST_NAME:,}; recode it")
    if isinstance(level, str):
        return str(level)
    if isinstance(level, bool) or not isinstance(level, int | np.integer):
        raise InputError(f"levels of {name!r} must be text or integers, got {shown(level)}; convert the column first")
    return int(level)
