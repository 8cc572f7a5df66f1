"""The density of released pairs given the classes, its gradient, and pairs' counts: compiled loops.

The formulas are those of `dpbayes.inference.pair_counts`, in whose terms the arrays are named: ``share`` is psi, by
attribute and class, ``spread`` s, ``records`` N, ``off`` W and ``having`` A; ``in_x`` is the derivative in x.
"""

import math
from typing import Any

import numba
import numpy as np

from dpbayes.inference.summed_count import count_quantile, summed_count, workspace

__all__ = ["pair_counts", "pair_effects"]

_LEAST = 1e-300  # weight of a class, so that its square root has a slope


@numba.njit(cache=False)
def _classes(weights: Any, profiles: Any, deviates: Any, sizes: Any, n: Any) -> Any:
    """Return, for each class, the root of its weight and its records; for each attribute and class s, W and A."""
    root = np.sqrt(np.maximum(weights, _LEAST))
    pull = 0.0
    for h in range(root.size):
        pull += root[h] * sizes[h]
    records = n * weights + math.sqrt(n) * root * (sizes - root * pull)
    share = np.ascontiguousarray(profiles.T)
    spread = np.sqrt(share * (1.0 - share))
    off = math.sqrt(n) * root * spread * deviates.T
    return root, pull, records, share, spread, off, records * share + off


@numba.njit(cache=False)
def _pair(share: Any, i: Any, j: Any, having: Any, off: Any, spread: Any, weights: Any, n: Any) -> Any:
    """Return mean and variance of a pair's count given the classes."""
    mean = variance = 0.0
    for h in range(weights.size):
        mean += having[i, h] * share[j, h] + off[j, h] * share[i, h]
        both = spread[i, h] * spread[j, h]
        variance += weights[h] * both * both
    return mean, n * variance


@numba.njit(cache=False)
def _place(cell: Any, number: Any, released: Any, totals: Any, n: Any) -> Any:
    """Return what a released count leaves for its pair's own count, or for nothing."""
    known = n * number[0] + number[1] * totals[cell[1]] + number[2] * totals[cell[2]]
    return released[cell[0]] - known


@numba.njit(cache=False)
def _through_tables(classes: Any, weights: Any, n: Any, released: Any, tables: Any) -> Any:
    """Return the log-density, its derivative in n, and those in weights, totals, A, W, psi and s."""
    pairs, ends, cells, numbers, nugget = tables
    _, _, _, share, spread, off, having = classes
    attributes, size = share.shape
    totals = having.sum(axis=1)
    logp = in_n = 0.0
    in_totals = np.zeros(attributes)
    in_having, in_off = np.zeros((attributes, size)), np.zeros((attributes, size))
    in_share, in_spread = np.zeros((attributes, size)), np.zeros((attributes, size))
    in_weights = np.zeros(size)
    most = 1
    for p in range(len(pairs)):
        most = max(most, ends[p + 1] - ends[p])
    places, in_places = np.zeros(most), np.zeros(most)
    kinks, squares = np.zeros(most), np.zeros(most)
    work = workspace(ends[1] - ends[0] if len(pairs) else 1)
    for p in range(len(pairs)):
        first, count = ends[p], ends[p + 1] - ends[p]
        if len(work[0]) != count:
            work = workspace(count)
        i, j = pairs[p, 0], pairs[p, 1]
        mean, variance = _pair(share, i, j, having, off, spread, weights, n)
        for c in range(count):
            number = numbers[first + c]
            places[c] = number[3] * _place(cells[first + c], number, released, totals, n)
            kinks[c], squares[c] = number[4], number[5]
        value, in_mean, in_variance = summed_count(
            mean, variance + nugget[p], places[:count], kinks[:count], squares[:count], in_places, work
        )
        logp += value
        for c in range(count):
            number = numbers[first + c]
            slope = number[3] * in_places[c]
            in_n -= slope * number[0]
            in_totals[i] -= slope * number[1]
            in_totals[j] -= slope * number[2]
        in_n += in_variance * variance / n
        for h in range(size):
            si, sj = spread[i, h], spread[j, h]
            in_having[i, h] += in_mean * share[j, h]
            in_share[j, h] += in_mean * having[i, h]
            in_off[j, h] += in_mean * share[i, h]
            in_share[i, h] += in_mean * off[j, h]
            slope = in_variance * n
            in_weights[h] += slope * si * si * sj * sj
            in_spread[i, h] += 2.0 * slope * weights[h] * si * sj * sj
            in_spread[j, h] += 2.0 * slope * weights[h] * si * si * sj
    for c in range(ends[-1], len(cells)):  # tables of one attribute
        number = numbers[c]
        rest = _place(cells[c], number, released, totals, n)
        logp -= number[4] * abs(rest) + number[5] * rest * rest
        slope = number[4] * np.sign(rest) + 2.0 * number[5] * rest
        in_n += slope * number[0]
        in_totals[cells[c, 1]] += slope * number[1]
    return logp, in_n, (in_weights, in_totals, in_having, in_off, in_share, in_spread)


@numba.njit(cache=False)
def _through_classes(classes: Any, slopes: Any, deviates: Any, sizes: Any, weights: Any, n: Any, in_n: Any) -> Any:
    """Return the derivatives in weights, profiles, deviates, sizes and n, from those in what is made of them."""
    root, pull, records, share, spread, off, _ = classes
    in_weights, in_totals, in_having, in_off, in_share, in_spread = slopes
    attributes, size = share.shape
    scale = math.sqrt(n)
    in_records, in_root, in_sizes = np.zeros(size), np.zeros(size), np.zeros(size)
    in_deviates, in_profiles = np.zeros((size, attributes)), np.zeros((size, attributes))
    for j in range(attributes):
        for h in range(size):
            to_having = in_having[j, h] + in_totals[j]
            to_off = in_off[j, h] + to_having
            in_records[h] += to_having * share[j, h]
            in_deviates[h, j] = to_off * scale * root[h] * spread[j, h]
            in_root[h] += to_off * scale * spread[j, h] * deviates[h, j]
            in_n += 0.5 * to_off * off[j, h] / n
            to_spread = in_spread[j, h] + to_off * scale * root[h] * deviates[h, j]
            bend = 0.5 * (1.0 - 2.0 * share[j, h]) / max(spread[j, h], _LEAST)
            in_profiles[h, j] = in_share[j, h] + to_having * records[h] + to_spread * bend
    drawn = 0.0
    for h in range(size):
        drawn += scale * in_records[h] * weights[h]
    for h in range(size):
        to_change = scale * in_records[h]
        in_n += in_records[h] * (weights[h] + 0.5 * root[h] * (sizes[h] - root[h] * pull) / scale)
        in_sizes[h] = to_change * root[h] - drawn * root[h]
        in_root[h] += to_change * sizes[h] - drawn * sizes[h]
        in_weights[h] += n * in_records[h] - to_change * pull + 0.5 * in_root[h] / root[h]
    return in_weights, in_profiles, in_deviates, in_sizes, in_n


@numba.njit(cache=False)
def pair_counts(weights: Any, profiles: Any, deviates: Any, sizes: Any, n: Any, released: Any, tables: Any) -> Any:
    """Return the log-density of the released counts, without its constants, and its gradients.

    Parameters
    ----------
    weights
        Probabilities of the classes, shape ``(classes,)``.
    profiles
        Probabilities of the upper levels, shape ``(classes, attributes)``.
    deviates
        The standard normal u, shape ``(classes, attributes)``.
    sizes
        The standard normal v, shape ``(classes,)``.
    n
        Number of records.
    released
        The released counts.
    tables
        The fields of a `PairTables`.

    Returns
    -------
    logp : float
    in_weights, in_profiles, in_deviates, in_sizes, in_n : array, array, array, array, float
        Gradients.
    """
    classes = _classes(weights, profiles, deviates, sizes, n)
    logp, in_n, slopes = _through_tables(classes, weights, n, released, tables)
    in_weights, in_profiles, in_deviates, in_sizes, in_n = _through_classes(
        classes, slopes, deviates, sizes, weights, n, in_n
    )
    return logp, in_weights, in_profiles, in_deviates, in_sizes, in_n


@numba.njit(cache=False)
def pair_effects(
    weights: Any, profiles: Any, deviates: Any, sizes: Any, n: Any, released: Any, levels: Any, tables: Any
) -> Any:
    """Return the counts of each attribute's upper level, then of each pair's: these at quantiles of their law.

    Parameters
    ----------
    weights, profiles, deviates, sizes, n, released, tables
        As for `pair_counts`.
    levels
        Standard normal; their distribution function says which quantile is taken, given the released counts.

    Returns
    -------
    array of shape ``(attributes + pairs,)``
    """
    pairs, ends, cells, numbers, nugget = tables
    _, _, _, share, spread, off, having = _classes(weights, profiles, deviates, sizes, n)
    totals = having.sum(axis=1)
    effects = np.empty(len(totals) + len(pairs))
    effects[: len(totals)] = totals
    for p in range(len(pairs)):
        part = slice(ends[p], ends[p + 1])
        count = ends[p + 1] - ends[p]
        mean, variance = _pair(share, pairs[p, 0], pairs[p, 1], having, off, spread, weights, n)
        places = np.empty(count)
        for c in range(count):
            number = numbers[ends[p] + c]
            places[c] = number[3] * _place(cells[ends[p] + c], number, released, totals, n)
        kinks, squares = numbers[part, 4].copy(), numbers[part, 5].copy()
        level = 0.5 * math.erfc(-levels[p] / math.sqrt(2.0))
        effects[len(totals) + p] = count_quantile(
            mean, variance + nugget[p], places, kinks, squares, level, workspace(count)
        )
    return effects
