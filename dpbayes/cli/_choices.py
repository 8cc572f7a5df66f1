"""Choices that several commands offer."""

from enum import StrEnum

__all__ = ["AdjacencyChoice"]


class AdjacencyChoice(StrEnum):
    """Neighbouring relations, as `dpbayes.privacy.adjacency.Adjacency`."""

    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"
