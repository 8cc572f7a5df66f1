r"""Which marginals to ask for (section 4.2), chosen on the public data alone.

Pairwise mutual information makes a graph of attributes. Cliques of its strongest edges are the upper level's workload:
there are records enough for tables of several attributes. A group has few, so its workload is one-way marginals of
attributes that are nearly independent of each other; the dependence between the others is taken from the prior.

The paper tuned both by hand. Here a size budget decides. The noise of a released cell has scale :math:`\Delta
|W|/\epsilon_0`, which is the mean absolute value of Laplace noise, so that a table of K cells of n records has an
expected L1 error of :math:`K \Delta |W|/(\epsilon_0 n)`. Tables are added while that error stays below `max_error`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, number, positive_finite
from dpbayes.errors import InputError
from dpbayes.ide.prior import Prior

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DependenceGraph:
    """Attributes with the mutual information of every pair."""

    names: tuple[str, ...]
    information: Floats
    sizes: tuple[int, ...]

    def edges(self) -> list[tuple[str, str, float]]:
        """Return pairs with positive information, the strongest first."""
        pairs = [(self.information[i, j], i, j) for i, j in combinations(range(len(self.names)), 2)]
        return [
            (self.names[i], self.names[j], float(value)) for value, i, j in sorted(pairs, reverse=True) if value > 0
        ]


def dependence_graph(prior: Prior, names: Sequence[str] | None = None) -> DependenceGraph:
    r"""Measure the pairwise dependence of attributes on public data.

    Parameters
    ----------
    prior
        Public data.
    names
        The attributes to look at, all by default.

    Returns
    -------
    DependenceGraph
        Mutual information :math:`\sum_{ab} p_{ab} \log\frac{p_{ab}}{p_a p_b}` less its bias under independence,
        :math:`(K_a - 1)(K_b - 1)/2m` with K the levels that occur, where the prior is a sample of m records.

    References
    ----------
    Miller, G. (1955). Note on the bias of information estimates. Information theory in psychology II-B, 95-100.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"x": (0, 1), "copy": (0, 1)})
    >>> graph = dependence_graph(Prior.full(domain, [[1, 0], [0, 1]]))
    >>> [(a, b, round(value, 4)) for a, b, value in graph.edges()]
    [('x', 'copy', 0.6931)]
    """
    instance(prior, Prior, "prior", remedy="Prior.from_frame makes one")
    chosen = prior.domain.names if names is None else tuple(names)
    if len(chosen) < 2:
        raise InputError(f"a graph needs two attributes or more, got {list(chosen)!r}")
    information = np.zeros((len(chosen), len(chosen)))
    for i, j in combinations(range(len(chosen)), 2):
        joint = prior.marginal([chosen[i], chosen[j]])
        rows, columns = joint.sum(axis=1), joint.sum(axis=0)
        held = joint > 0
        value = float(np.sum(joint[held] * np.log(joint[held] / np.outer(rows, columns)[held])))
        if prior.n_records is not None:
            value -= (np.count_nonzero(rows) - 1) * (np.count_nonzero(columns) - 1) / (2.0 * prior.n_records)
        information[i, j] = information[j, i] = max(value, 0.0)
    return DependenceGraph(chosen, information, tuple(prior.domain[name].size for name in chosen))


def expected_l1_error(n_cells: int, n_tables: int, *, n_records: float, epsilon: float, stability: int = 1) -> float:
    """Return the expected L1 error of one noisy table as a share of the records."""
    for name, value in (("n_records", n_records), ("epsilon", epsilon), ("stability", stability)):
        positive_finite(value, name, remedy="the expected error of a table follows from it")
    return n_cells * stability * n_tables / (epsilon * n_records)


def choose_cliques(
    graph: DependenceGraph,
    *,
    n_records: float,
    epsilon: float,
    stability: int = 1,
    max_error: float = 0.2,
    max_size: int = 3,
) -> tuple[tuple[str, ...], ...]:
    """Choose the upper level's tables: cliques of the strongest dependences.

    Parameters
    ----------
    graph
        What `dependence_graph` measured.
    n_records, epsilon, stability
        As in `expected_l1_error`, for this level.
    max_error
        Largest expected L1 error of any chosen table.
    max_size
        Most attributes a table.

    Returns
    -------
    tuple of tuple of str
        Maximal cliques, so that no table is a margin of another, and a one-way table of each attribute that is in none.
        Edges are tried from the strongest; an edge is kept if every table still meets `max_error`.

    Raises
    ------
    InputError
        If not even the one-way tables meet the error.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"x": (0, 1), "copy": (0, 1), "coin": (0, 1)})
    >>> graph = dependence_graph(Prior.full(domain, [[[1, 1], [0, 0]], [[0, 0], [1, 1]]]))
    >>> choose_cliques(graph, n_records=1000, epsilon=1.0)
    (('x', 'copy'), ('coin',))
    """
    instance(graph, DependenceGraph, "graph", remedy="dependence_graph makes one")
    _check(max_error, max_size)

    def worst(tables: Sequence[tuple[str, ...]]) -> float:
        size = dict(zip(graph.names, graph.sizes, strict=True))
        cells = max(math.prod(size[name] for name in table) for table in tables)
        return expected_l1_error(cells, len(tables), n_records=n_records, epsilon=epsilon, stability=stability)

    chosen: list[tuple[str, ...]] = [(name,) for name in graph.names]
    if worst(chosen) > max_error:
        raise InputError(
            f"one-way tables of {len(chosen)} attributes have an expected L1 error of {worst(chosen):.3g}, above "
            f"max_error = {max_error:g}; name fewer attributes, raise epsilon, or accept a larger error"
        )
    edges: set[frozenset[str]] = set()
    for first, second, _ in graph.edges():
        trial = edges | {frozenset((first, second))}
        tables = _maximal_cliques(graph.names, trial, max_size)
        if worst(tables) <= max_error:
            edges, chosen = trial, tables
    return tuple(chosen)


def choose_roots(
    graph: DependenceGraph,
    *,
    n_records: float,
    epsilon: float,
    stability: int = 1,
    max_error: float = 0.2,
    max_information: float = 0.05,
) -> tuple[tuple[str, ...], ...]:
    """Choose the groups' tables: one-way marginals of nearly independent attributes.

    Parameters
    ----------
    graph
        What `dependence_graph` measured.
    n_records, epsilon, stability, max_error
        As in `choose_cliques`, for one group.
    max_information
        Largest mutual information, in nats, between two chosen attributes.

    Returns
    -------
    tuple of tuple of str
        Attributes are taken by how much information they carry about all others, each if it is nearly independent of
        those taken before and the error allows one table more; at least one is taken.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"x": (0, 1), "copy": (0, 1), "coin": (0, 1)})
    >>> graph = dependence_graph(Prior.full(domain, [[[1, 1], [0, 0]], [[0, 0], [1, 1]]]))
    >>> choose_roots(graph, n_records=1000, epsilon=1.0)
    (('x',), ('coin',))
    """
    instance(graph, DependenceGraph, "graph", remedy="dependence_graph makes one")
    _check(max_error, 1)
    carried = graph.information.sum(axis=1)
    chosen: list[int] = []
    for place in np.argsort(-carried, kind="stable"):
        trial = [*chosen, int(place)]
        cells = max(graph.sizes[i] for i in trial)
        error = expected_l1_error(cells, len(trial), n_records=n_records, epsilon=epsilon, stability=stability)
        near = all(graph.information[place, i] <= max_information for i in chosen)
        if not chosen or (near and error <= max_error):
            chosen = trial
    return tuple((graph.names[i],) for i in chosen)


def _check(max_error: float, max_size: int) -> None:
    if not number(max_error, "max_error") > 0 or number(max_size, "max_size") < 1:
        raise InputError(f"max_error must be positive and max_size at least 1, got {max_error!r} and {max_size!r}")


def _maximal_cliques(names: Sequence[str], edges: set[frozenset[str]], max_size: int) -> list[tuple[str, ...]]:
    """Return the cliques of at most `max_size` that no other such clique contains, in the order of the attributes."""
    place = {name: position for position, name in enumerate(names)}
    levels: list[list[tuple[str, ...]]] = [[(name,) for name in names]]
    while levels[-1] and len(levels) < max_size:
        # Every clique of one attribute more, each grown once: by attributes that come later.
        grown: list[tuple[str, ...]] = []
        for table in levels[-1]:
            for name in names[place[table[-1]] + 1 :]:
                if all(frozenset((name, member)) in edges for member in table):
                    grown.append((*table, name))
        levels.append(grown)
    found: list[tuple[str, ...]] = []
    for tables in reversed(levels):
        larger = [set(table) for table in found]
        found += [table for table in tables if not any(set(table) <= other for other in larger)]
    return found
