"""What a fit will take, by arithmetic, before anything is built or paid for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from dpbayes._arguments import check_memory as check_bytes
from dpbayes._arguments import instance, one_of, ordered, whole_number
from dpbayes.data.domain import Domain
from dpbayes.latent_class.design import (
    FEW_CELLS,
    MAX_EXACT_CELLS,
    MAX_RECORDED_CELLS,
    Likelihood,
    classes_for,
    n_effects,
)

# Measured on one core of a shared machine: matrix products; what an unknown takes in value and gradient, a released
# cell per class, and its noise; and an element of an array that passes through memory.
_FLOPS = 4e10
_SECONDS_PER_UNKNOWN = 2e-8
_SECONDS_PER_ENTRY = 1e-9
_SECONDS_PER_CELL = 5e-9
_SECONDS_PER_ELEMENT = 3e-10
_CACHED = 2**20  # elements of a matrix that the processor's cache holds
# Gradients of one chain before it adapts, and the share of the most steps that its trajectories have from then on.
_FIRST_GRADIENTS, _STEPS_USED = 2_000, 0.75
_COMPILING = 0.5  # minutes


@dataclass(frozen=True)
class Cost:
    """What a fit will take, with geometric or Laplace noise; normal noise takes less."""

    unknowns: int
    cells: int
    microseconds: float
    minutes: float
    gigabytes: float

    @property
    def words(self) -> str:
        """The cost in a line."""
        minutes = "a minute" if self.minutes < 1.5 else f"{self.minutes:,.0f} minutes"
        return (
            f"{self.cells:,} counts, {self.unknowns:,} unknowns, about {minutes} and {self.gigabytes:.1f} GB of memory"
        )


def cost_of(
    domain: Domain,
    tables: Sequence[Sequence[str]],
    *,
    n_classes: int | None = None,
    likelihood: Likelihood = "cells",
    chains: int = 256,
    draws: int = 3072,
    moves: int = 60,
    max_steps: int = 400,
    cores: int = 2,
) -> Cost:
    """Estimate what a fit of some tables will take, to a factor of two or so.

    Parameters
    ----------
    domain
        All attributes.
    tables
        The attributes of each table.
    n_classes
        Number of classes; by default that of `build_model`.
    likelihood
        Form of the likelihood.
    chains, draws
        Chains, and draws of all of them.
    moves, max_steps
        Trajectories of a chain in adapting and drawing, and the most steps of one.
    cores
        Processors that share the work.

    Examples
    --------
    >>> from itertools import combinations
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({f"x{i}": tuple(range(7)) for i in range(14)})
    >>> cost_of(domain, list(combinations(domain.names, 2))).cells
    4459
    """
    instance(domain, Domain, "domain", remedy="Domain.from_levels makes one")
    one_of(likelihood, get_args(Likelihood.__value__), "likelihood")
    tables = ordered(tables, "tables", remedy="give the attributes of each table, as in [['age', 'sex']]")
    numbers = {"chains": chains, "draws": draws, "moves": moves, "max_steps": max_steps, "cores": cores}
    for name, value in {"n_classes": n_classes, **numbers}.items():
        if value is not None:
            whole_number(value, name, high=2**53)
    sizes = dict(zip(domain.names, domain.shape, strict=True))
    k, columns = n_classes or classes_for(domain, tables), sum(domain.shape)
    cells = [domain.project(names).size for names in tables]
    higher = sum(math.prod(sorted(sizes[name] for name in names)[:-1]) for names in tables if len(names) > 2)
    total = sum(cells)
    effects = n_effects(domain, tables) if likelihood == "tables" else 0
    few = total <= FEW_CELLS
    if likelihood == "tables":
        elements = 40 * k * columns + 8 * columns**2 + 14 * k * higher
        elements += 2 * total * effects if total * effects > _CACHED else 0
        products = 18 * k * columns**2 + 24 * k * columns * len(domain) + 5 * total * effects
        seconds = products / _FLOPS + elements * _SECONDS_PER_ELEMENT
    else:
        seconds = 2 * k * columns * _SECONDS_PER_UNKNOWN + total * (k * _SECONDS_PER_ENTRY + _SECONDS_PER_CELL)
    unknowns = k + k * columns + (effects * few if likelihood == "tables" else k * columns + k)
    kept = (4 * total if total <= MAX_EXACT_CELLS else MAX_EXACT_CELLS) + 2 * unknowns
    kept += domain.size if domain.size <= MAX_RECORDED_CELLS else 0
    moving = 64 * (4 * columns**2 + 6 * k * higher + 6 * total + 12 * unknowns)
    held = 8 * (2 * kept * draws + moving + (6 * total**2 if likelihood == "tables" else 0))
    gradients = _FIRST_GRADIENTS + _STEPS_USED * max_steps * moves
    minutes = _COMPILING + gradients * chains * seconds / cores / 60
    return Cost(unknowns, total, 1e6 * seconds, minutes, 0.6 + held / 2**30)


def check_memory(cost: Cost) -> None:
    """Refuse a fit that this machine's memory does not hold."""
    what = f"a fit of {cost.cells:,} counts with {cost.unknowns:,} unknowns"
    remedy = "release or fit fewer tables (dpbayes.latent_class.plan proposes them), or merge levels"
    check_bytes(cost.gigabytes * 2**30, what, remedy=remedy)
