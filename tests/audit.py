"""White-box audit: does a mechanism keep the promise that it makes?

The outputs of a mechanism are enumerated exactly for every pair of neighbouring inputs of a small instance, and the
hockey-stick divergence of each pair, in both orders, is held against the claimed delta(epsilon). Enumeration knows
nothing of the derivation of the claim, so an error of sensitivity, of adjacency, of scale or of a bound shows.

    worst = assert_claimed_delta(pairs, claim, epsilons=[0.0, 0.5, 1.0])

`pairs` yields `(label, log_p, log_q)`: the complete output log-pmfs under a dataset and its neighbour, over the same
outcomes. `claim(epsilon)` is the delta that is promised. An output space that is infinite is first mapped to a finite
one, by clamping for example (`clamped_log_pmf`): a promise survives every such map.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["Worst", "assert_claimed_delta", "clamped_log_pmf", "hockey_stick", "product_log_pmf"]

_EPS = np.finfo(float).eps


@dataclass(frozen=True)
class Worst:
    """The pair and the order that come closest to the claim, or pass it."""

    label: str
    epsilon: float
    delta: float
    claimed: float
    rounding: float


def hockey_stick(log_p, log_q, epsilon):
    """Sum over outcomes of max(0, p - exp(epsilon) q), and a bound on its rounding error."""
    possible = log_p > -np.inf
    log_p, log_q = log_p[possible], log_q[possible]
    mass = np.exp(log_p)
    with np.errstate(over="ignore"):
        # p (1 - exp(epsilon + log q - log p)): no difference of two large numbers.
        terms = np.where(log_p > epsilon + log_q, -mass * np.expm1(np.minimum(0.0, epsilon + log_q - log_p)), 0.0)
    # A log-pmf is a sum of a few logarithms, each right to some units in the last place of its size.
    sizes = np.abs(log_p) + np.where(np.isfinite(log_q), np.abs(log_q), 0.0) + epsilon + 8.0
    return math.fsum(terms), 8 * _EPS * math.fsum(mass * sizes)


def assert_claimed_delta(
    pairs: Iterable[tuple[str, np.ndarray, np.ndarray]],
    claim: Callable[[float], float],
    *,
    epsilons: Iterable[float],
) -> Worst:
    """Assert that no pair exceeds the claim, in either order, at any epsilon.

    Parameters
    ----------
    pairs
        `(label, log_p, log_q)` for every pair of neighbours; each log-pmf must sum to 1.
    claim
        The promised delta at an epsilon.
    epsilons
        Where to look.

    Returns
    -------
    Worst
        Where delta - claimed is largest: a test can then assert that the claim is not vacuous.

    Raises
    ------
    AssertionError
        If a pair exceeds the claim by more than the rounding of its own sum, an enumeration is incomplete, or there
        is nothing to check.
    """
    grid = [(float(epsilon), float(claim(float(epsilon)))) for epsilon in epsilons]
    worst = None
    for label, log_p, log_q in pairs:
        log_p, log_q = np.ravel(log_p), np.ravel(log_q)
        _check_complete(label, log_p, log_q)
        for epsilon, claimed in grid:
            for order, first, second in (("D, D'", log_p, log_q), ("D', D", log_q, log_p)):
                delta, rounding = hockey_stick(first, second, epsilon)
                found = Worst(f"{label} ({order})", epsilon, delta, claimed, rounding)
                if not delta <= claimed + rounding:
                    raise AssertionError(
                        f"{found.label}: hockey-stick divergence {delta!r} at epsilon {epsilon!r} exceeds the claimed "
                        f"delta {claimed!r} (rounding of the sum: {rounding:.1e})"
                    )
                if worst is None or delta - claimed > worst.delta - worst.claimed:
                    worst = found
    if worst is None:
        raise AssertionError("the audit had no pair or no epsilon to check")
    return worst


def _check_complete(label: str, log_p: np.ndarray, log_q: np.ndarray) -> None:
    if log_p.shape != log_q.shape:
        raise AssertionError(f"{label}: the two log-pmfs list {log_p.size} and {log_q.size} outcomes")
    for log_pmf in (log_p, log_q):
        total = math.fsum(np.exp(log_pmf))
        if not abs(total - 1.0) <= 1e-10:
            raise AssertionError(f"{label}: the enumerated outcomes have probability {total!r}, not 1")


def clamped_log_pmf(law, value: int, low: int, high: int) -> np.ndarray:
    """Log-pmf of clip(value + noise, low, high) for a discrete law: the tails gather at the ends, none is dropped."""
    radius = law.tail_radius(1e-25) + abs(value) + abs(low) + abs(high)
    log_pmf = law.log_prob(np.arange(-radius, radius + 1))
    outputs = np.clip(np.arange(-radius, radius + 1) + value, low, high) - low
    return np.array([np.logaddexp.reduce(log_pmf[outputs == k]) for k in range(high - low + 1)])


def product_log_pmf(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Joint log-pmf of independent parts, flattened."""
    joint = np.zeros(1)
    for part in parts:
        joint = np.add.outer(joint, part).ravel()
    return joint


def compositions(total: int, cells: int) -> Iterator[tuple[int, ...]]:
    """Every contingency table of `total` records over `cells` cells."""
    if cells == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, cells - 1):
            yield (first, *rest)


def neighbouring_tables(adjacency: str, cells: int, largest: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every unordered pair of neighbouring contingency tables with at most `largest` records."""
    units = np.eye(cells, dtype=np.int64)
    for n in range(1, largest + 1):
        for table in map(np.array, compositions(n, cells)):
            for source in np.flatnonzero(table):
                without = table - units[source]
                if adjacency == "add-remove":
                    yield without, table
                else:
                    for target in range(source + 1, cells):
                        yield table, without + units[target]
