"""What Algorithm 2 leaves for every group: sizes, sampled records, and how well they answer to the release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes.data.domain import Level
from dpbayes.ide.estimation import Estimate
from dpbayes.ide.prior import Prior

if TYPE_CHECKING:
    import polars as pl

__all__ = ["GroupResult", "GroupSynthesis"]


@dataclass(frozen=True, eq=False)
class GroupResult:
    """What was estimated for one group.

    Parameters
    ----------
    size
        The noisy number of records, rounded, at least 0 (lines 4 and 5 of Algorithm 2).
    records
        How often each row of the support was drawn; sums to `size`.
    l1_loss
        L1 distance between the released answers and the distribution's, over the group's tables; NaN at size 0, where
        answers cannot be divided by the size and the unit's distribution stands.
    kl
        KL divergence from the unit's distribution, in nats.
    gap
        Noise-aware: the duality gap that the group's problem was solved to, in nats; NaN where nothing was solved.

    Examples
    --------
    >>> GroupResult(2, np.array([1, 1], np.int32), 0.1, 0.02, 1e-4).size
    2
    """

    size: int
    records: npt.NDArray[np.int32]
    l1_loss: float
    kl: float
    gap: float


@dataclass(frozen=True, eq=False)
class GroupSynthesis:
    """Synthetic records of all groups.

    Parameters
    ----------
    priors
        The support of each unit.
    units
        The estimate of each unit, from which its groups started.
    groups
        The result of each group.
    parent
        Group to unit.
    attribute
        Name of the group's column.

    Examples
    --------
    >>> import polars as pl
    >>> from dpbayes.data import Domain
    >>> from dpbayes.ide import Hierarchy, Prior, release_groups, synthesize_groups
    >>> domain = Domain.from_levels({"x": ("n", "y"), "y": ("n", "y")})
    >>> frame = pl.DataFrame({"place": ["a", "b"] * 50, "x": ["n"] * 60 + ["y"] * 40, "y": ["n", "y", "y", "y"] * 25})
    >>> places = Hierarchy("place", {"a": "north", "b": "north"})
    >>> released = release_groups(
    ...     frame, places, domain, unit_sets=[["x", "y"]], group_sets=[["x"]], epsilon=8.0, rng=np.random.default_rng(1)
    ... )
    >>> result = synthesize_groups(Prior.full(domain), released, method="algorithm-1")
    >>> result.units["north"].method, len(result.frame()) == int(result.sizes.sum())
    ('algorithm-1', True)
    """

    priors: Mapping[Level, Prior]
    units: Mapping[Level, Estimate]
    groups: Mapping[Level, GroupResult]
    parent: Mapping[Level, Level]
    attribute: str

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of synthetic records of each group."""
        return np.array([result.size for result in self.groups.values()], dtype=np.int64)

    def frame(self) -> pl.DataFrame:
        """Return all synthetic records, the group's column first. Without any record the columns stand all the same."""
        import polars as pl

        parts = []
        for group, result in self.groups.items():
            prior = self.priors[self.parent[group]]
            codes = np.repeat(prior.codes, result.records, axis=0)
            columns = {self.attribute: _column(np.full(len(codes), group, dtype=object), list(self.groups))}
            for axis, attribute in enumerate(prior.domain):
                labels = np.asarray(attribute.levels, dtype=object)[codes[:, axis]]
                columns[attribute.name] = _column(labels, attribute.levels)
            parts.append(pl.DataFrame(columns))
        return pl.concat(parts)


def _column(labels: npt.NDArray[np.object_], levels: Sequence[Level]) -> pl.Series:
    """Return labels as a column whose type is that of the levels, also where there are no labels."""
    import polars as pl

    kind = pl.String if all(isinstance(level, str) for level in levels) else pl.Int64
    return pl.Series(labels.tolist(), dtype=kind)
