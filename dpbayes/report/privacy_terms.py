"""What the epsilons of a page are relative to: the neighbouring relation, what it protects, and delta."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpbayes.errors import InputError

if TYPE_CHECKING:
    from dpbayes.privacy.adjacency import Relation

__all__ = ["PrivacyTerms"]

_CHANGES = {
    "replace-one": "one {unit} replaced by another (replace-one)",
    "add-remove": "one {unit} more or less (add-remove)",
    "one-position": "one {unit} of the filters (one-position): a person more or less, or one person's other publishers",
    "either": "one {unit} replaced, or one {unit} more or less: the cost is the same under replace-one and add-remove",
}


@dataclass(frozen=True)
class PrivacyTerms:
    """What every epsilon of a page is relative to; without it, two epsilons do not compare.

    Parameters
    ----------
    adjacency
        The neighbouring relation: ``"replace-one"``, ``"add-remove"``, ``"one-position"`` (of Bloom filters), or
        ``"either"`` where the cost is the same under the first two.
    unit
        What neighbouring data sets differ in one of: ``"record"``, ``"individual"`` (all records of one),
        ``"person (all its rows)"`` for the verifier's column of the unit, ``"position"`` (of a Bloom filter).
    delta
        The delta at which the page's epsilons hold: 0 for pure epsilon, None where the cost is a curve.

    Raises
    ------
    InputError
        If the adjacency is none of the four, one-position has another unit than a position, or delta is not in [0, 1).

    Examples
    --------
    >>> print(PrivacyTerms("replace-one", delta=1e-5).sentence)
    Neighbouring data sets differ in one record replaced by another (replace-one). Delta is 1e-05.
    """

    adjacency: Relation | Literal["either"]
    unit: str = "record"
    delta: float | None = 0.0

    def __post_init__(self) -> None:
        if self.adjacency not in _CHANGES:
            raise InputError(f"adjacency must be one of {', '.join(_CHANGES)}, got {self.adjacency!r}")
        if self.adjacency == "one-position" and self.unit != "position":
            raise InputError(f"under one-position the unit is 'position', got {self.unit!r}")
        if self.delta is not None and not 0.0 <= self.delta < 1.0:
            raise InputError(f"delta must lie in [0, 1), got {self.delta}; None where the cost is a curve")

    @property
    def sentence(self) -> str:
        """The terms in words."""
        change = f"Neighbouring data sets differ in {_CHANGES[self.adjacency].format(unit=self.unit)}."
        if self.delta is None:
            return change
        return f"{change} " + (f"Delta is {self.delta:g}." if self.delta else "Epsilon is pure: delta is 0.")

    def facts(self) -> dict[str, Any]:
        """Return the terms as ``facts.json`` holds them."""
        return asdict(self)
