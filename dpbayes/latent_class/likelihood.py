r"""The likelihood of released tables given the classes, at a cost that is linear in released cells.

Within class h the level indicators :math:`x_j` (one-hot) have mean :math:`\psi_{hj}` and covariance
:math:`S_{hj} = \operatorname{diag}\psi_{hj} - \psi_{hj}\psi_{hj}^\top`, and are independent over attributes. The
Hoeffding parts of a product of indicators are uncorrelated, so that summed over the records of all classes, with
shared normal

.. math:: N_h = n\pi_h + \text{multinomial deviation}, \qquad W_{hj} \sim N(0,\; n\pi_h S_{hj}),

the exact tables are, in the normal approximation with the multinomial's mean and covariance,

.. math:: M_j = \sum_h (N_h\psi_{hj} + W_{hj}), \qquad
          M_{ij} = \sum_h (N_h\psi_{hi}\psi_{hj}^\top + W_{hi}\psi_{hj}^\top + \psi_{hi}W_{hj}^\top) + R_{ij}, \qquad
          R_{ij} \sim N\bigl(0,\; n\textstyle\sum_h\pi_h S_{hi}\otimes S_{hj}\bigr),

and likewise for tables of more attributes, whose R holds all parts of second order and higher. R is integrated
against its table's noise, cell by cell: Gaussian noise adds variances, Laplace noise gives the normal-Laplace law in
closed form. Tables with Gaussian noise are first rotated by the eigenvectors of the released shares' covariances: one
direction per attribute is the constant, in which R vanishes, and the others are nearly uncorrelated.

Where the population varies about the mixture as Dirichlet(:math:`\kappa P`) does, all these covariances are
:math:`(n + \kappa)/(1 + \kappa)` times as large, the dispersion: variances then have n times that in place of n.

A count that a threshold held back enters by the chance of that, in closed form too (`dpbayes.latent_class.kernel`).

A cell is the product of a last factor, from the attribute of its table with the most levels, with the others: these
products are few, and means and variances of all cells are products of matrices of theirs with all levels. All arrays
that depend on the release are inputs of the graph, not constants in it: compiled code is shared by releases of any
shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from scipy.special import log_ndtr, ndtri_exp

from dpbayes._arguments import Floats, Ints
from dpbayes.errors import InputError
from dpbayes.inference.noisy_counts import released_vector
from dpbayes.latent_class.design import Cell, Likelihood, default_spread, prior_of_n, released_cells
from dpbayes.latent_class.kernel import Rectangles, SumsOf, SumsWithin
from dpbayes.latent_class.zeros import Support

if TYPE_CHECKING:
    from dpbayes.privacy.release import NoisyTable, Release


type Kind = Literal["gaussian", "laplace", "uneven"]

# Added to the variance of every R, as a share of the noise's variance: a cell whose probability falls to zero would
# else tie its count to its mean ever more tightly.
NUGGET = 1e-4
HARDLY = 1e-12  # the share that the likelihood leaves to what a case excludes, which has a square root


def as_input(name: str, value: Any) -> Any:
    """Return what does not change with the released numbers as an input of the graph, not a constant in its code."""
    return pytensor.shared(value, name=name, shape=(None,) * value.ndim)


@dataclass(frozen=True, eq=False)
class Products:
    """Cells as products of columns: the distinct products of all factors but the last, and every cell's two parts."""

    left: Ints
    parts: Ints

    @classmethod
    def of(cls, factors: Ints, sizes: Ints) -> Products:
        """Arrange cells (cell, factor); `sizes` are the levels of every column's attribute, 0 of the last, a one."""
        ordered = np.take_along_axis(factors, np.argsort(sizes[factors], axis=1, kind="stable"), axis=1)
        left, which = np.unique(ordered[:, :-1], axis=0, return_inverse=True)
        return cls(left, np.column_stack([which.ravel(), ordered[:, -1]]))

    @property
    def factors(self) -> Ints:
        """The columns of every cell."""
        return np.column_stack([self.left[self.parts[:, 0]], self.parts[:, 1]])


@dataclass(frozen=True, eq=False)
class Block:
    """Released cells that are evaluated together: `gaussian` in rotated directions, else one by one as `kind` says."""

    kind: Kind
    places: Ints
    products: Products
    variances: Floats
    rectangles: Rectangles


@dataclass(frozen=True, eq=False)
class Columns:
    """What the cells of some margins are products of: columns of classes' profiles, side by side in groups.

    Without structural zeros a group holds an attribute's levels. With them it holds what a margin takes of a unit, and
    `sums` are pairs of a combination and a column that it is part of. Of every margin the `places` of its cells in C
    order, with an axis for each of the groups that it is a product of (`groups`).
    """

    support: Support
    sizes: Ints
    sums: tuple[Ints, Ints] | None
    places: tuple[Ints, ...]
    groups: tuple[Ints, ...]

    @classmethod
    def of(cls, support: Support, sets: Sequence[Sequence[str]]) -> Columns:
        """Arrange the columns of some margins."""
        domain, all_places, all_groups = support.domain, list[Ints](), list[Ints]()
        found: dict[tuple[int, ...], tuple[int, Ints, Ints]] = {}  # of a group's attributes: unit, levels, which
        if not support.cells:
            found = {axes: (unit, support.levels[unit], np.zeros(0, int)) for unit, axes in enumerate(support.axes)}
        for names in sets:
            axes, shape = domain.axes(names), domain.project(names).shape
            strides = dict(zip(axes, [math.prod(shape[place + 1 :]) for place in range(len(shape))], strict=True))
            places, own = np.zeros((), dtype=np.int64), list[int]()
            for unit, (tied, levels) in enumerate(zip(support.axes, support.levels, strict=True)):
                if not (taken := tuple(axis for axis in tied if axis in strides)):
                    continue
                if taken not in found:
                    part = levels[:, [tied.index(axis) for axis in taken]]
                    rows, which = np.unique(part, axis=0, return_inverse=True)
                    found[taken] = unit, rows, which.ravel()
                places = np.add.outer(places, found[taken][1] @ [strides[axis] for axis in taken])
                own.append(list(found).index(taken))
            all_places.append(places)
            all_groups.append(np.array(own))
        sizes = np.array([len(rows) for _, rows, _ in found.values()])
        sums = _members(support, list(found.values())) if support.cells else None
        return cls(support, sizes, sums, tuple(all_places), tuple(all_groups))

    @property
    def ends(self) -> Ints:
        """Where the columns of each group end."""
        return np.cumsum(self.sizes)

    @property
    def of_columns(self) -> Ints:
        """The size of every column's group; 0 of the last column, a one."""
        return np.append(np.repeat(self.sizes, self.sizes), 0)

    def factors(self, margin: int) -> tuple[Ints, Ints]:
        """Return the places of a margin's cells, in ascending order, and the columns of each (cell, factor)."""
        places, own = self.places[margin], self.groups[margin]
        columns = np.indices(places.shape).reshape(places.ndim, -1).T + (self.ends - self.sizes)[own]
        order = np.argsort(places, axis=None)
        return places.ravel()[order], columns[order]

    def padded(self, factors: Sequence[Ints]) -> Ints:
        """Join the columns of cells of several margins, with ones where they are fewer."""
        width = max(2, *(one.shape[1] for one in factors))
        ones = self.sizes.sum()
        return np.concatenate([
            np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=ones) for one in factors
        ])  # fmt: skip

    def summed(self, values: Any, name: str) -> Any:
        """Sum values of units' combinations to those of columns; `name` tells the inputs of a graph apart."""
        if self.sums is None:
            return values
        return sums_of(values, *self.sums, (sum(map(len, self.support.levels)), int(self.sizes.sum())), name)

    def shares(self, shares: Floats) -> Floats:
        """Return the shares of all columns where attributes are independent, but for what is impossible."""
        if self.sums is None:
            return shares
        apart = [own[None, None] for own in np.split(shares, np.cumsum(self.support.domain.shape)[:-1])]
        weights, units = self.support.conditioned(np.ones((1, 1)), apart)
        own = np.concatenate([weights[0] @ unit[0] for unit in units if unit is not None])
        return np.bincount(self.sums[1], own[self.sums[0]], minlength=self.sizes.sum())


def _members(support: Support, groups: Sequence[tuple[int, Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return combinations, numbered over all units, and the columns of some groups that each of them is part of."""
    starts = np.cumsum([0, *map(len, support.levels)])
    columns = np.cumsum([0, *(len(rows) for _, rows, _ in groups)])
    combinations = [starts[unit] + np.arange(len(which)) for unit, _, which in groups]
    parts = [column + which for column, (_, _, which) in zip(columns[:-1], groups, strict=True)]
    return np.concatenate(combinations), np.concatenate(parts)


def sums_of(values: Any, source: Ints, target: Ints, sizes: tuple[int, int], name: str) -> Any:
    """Add columns of values to sums, entry by entry; `name` tells the inputs of a graph apart."""
    arrays = SumsOf.arrays(source, target, sizes)
    return SumsOf()(values, *(as_input(f"{name}_{i}", array) for i, array in enumerate(arrays)))


@dataclass(frozen=True, eq=False)
class Tables:
    """Where the cells of a release stand among columns; impossible ones stand nowhere."""

    columns: Columns
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, release: Release, support: Support | None = None) -> Tables:
        """Arrange the cells of a release; all records are possible unless `support` says otherwise."""
        support = support or Support.of(release.domain)
        columns, blocks = Columns.of(support, [table.attributes for table in release.tables]), []
        owner = np.append(np.repeat(np.arange(len(columns.sizes)), columns.sizes), -1)
        starts = np.cumsum([0, *(table.counts.size for table in release.tables)])
        groups: dict[Kind, list[int]] = {}
        for number, table in enumerate(release.tables):
            groups.setdefault(_kind(table), []).append(number)
        for kind, members in sorted(groups.items()):
            cells = [columns.factors(i) for i in members]
            places = np.concatenate([starts[i] + own for i, (own, _) in zip(members, cells, strict=True)])
            variances = [release.tables[i].variances.ravel()[own] for i, (own, _) in zip(members, cells, strict=True)]
            products = Products.of(columns.padded([own for _, own in cells]), columns.of_columns)
            rectangles = Rectangles.of(products.left, products.parts, owner)
            order = rectangles.order
            products = Products(products.left, products.parts[order])
            blocks.append(Block(kind, places[order], products, np.concatenate(variances)[order], rectangles))
        return cls(columns, tuple(blocks))

    def order(self, n_counts: int) -> Ints:
        """Return where each released cell stands among the blocks' cells, one block after another; impossible: last."""
        places = np.concatenate([block.places for block in self.blocks])
        found = np.full(n_counts, len(places))
        found[places] = np.arange(len(places))
        return found


def _kind(table: NoisyTable) -> Kind:
    """Say how a table is evaluated: Gaussian noise is turned with its table only where all cells are alike."""
    if table.noise.is_pure:
        return "laplace"
    return "gaussian" if table.spreads is None and table.threshold is None else "uneven"


def filled_counts(release: Release) -> list[tuple[Floats, Floats]]:
    """Return every table's counts and the variances of their noise; for priors and starts alone.

    What a threshold held back is taken as an even share of the records that the table leaves, and varied as below it.
    """
    n, found = release.size, []
    for table in release.tables:
        held, most = table.withheld, max(table.limit, 1.0)
        share = np.clip((n - table.counts[~held].sum()) / max(held.sum(), 1), 0.5, most)
        found.append((np.where(held, share, table.counts), table.variances + held * most**2 / 12.0))
    return found


def released_shares(release: Release) -> Floats:
    r"""Return the shares of all attributes' levels by the release, side by side, none of them zero."""
    n = release.size
    found, filled = [], filled_counts(release)
    for attribute in release.domain:
        places = [place for place, table in enumerate(release.tables) if attribute.name in table.attributes]
        holders = [(release.tables[place].attributes.index(attribute.name), *filled[place]) for place in places]
        sums = [counts.sum(axis=tuple({*range(counts.ndim)} - {own})) / n for own, counts, _ in holders]
        weights = np.array([attribute.size / variances.sum() for _, _, variances in holders])
        if not holders:
            found.append(np.full(attribute.size, 1.0 / attribute.size))
            continue
        mean = np.average(sums, axis=0, weights=weights)
        level = 0.5 * (mean + np.sqrt(mean**2 + 1.0 / (n**2 * weights.sum()) + n**-2.0))
        found.append(level / level.sum())
    return np.concatenate(found)


def rotation(columns: Columns, shares: Floats) -> Floats:
    """Return the eigenvectors of every group's covariance under released shares, block by block: (column, column)."""
    own_shares = columns.shares(shares)
    turned = np.zeros((len(own_shares), len(own_shares)))
    for start, end in zip(columns.ends - columns.sizes, columns.ends, strict=True):
        own = own_shares[start:end]
        turned[start:end, start:end] = np.linalg.eigh(np.diag(own) - np.outer(own, own))[1]
    return turned


def turned(release: Release, columns: Columns, turn: Floats, counts: Floats) -> Floats:
    """Return counts ``(..., cells)``, those of tables with Gaussian noise in the directions that `turn` leads to.

    Blocks of `turn` hold a direction per column; its transpose leads back.
    """
    found, start = np.array(counts), 0
    for number, table in enumerate(release.tables):
        places, start = start + columns.places[number], start + table.counts.size
        if _kind(table) != "gaussian":
            continue
        own = found[..., places]
        for place, group in enumerate(columns.groups[number]):
            block = slice(columns.ends[group] - columns.sizes[group], columns.ends[group])
            at = counts.ndim - 1 + place
            own = np.moveaxis(np.tensordot(own, turn[block, block], (at, 0)), -1, at)
        found[..., places] = own
    return found


def conditioned(support: Support, weights: Any, profiles: Any) -> tuple[Any, Any]:
    """Return weights (case and class) and profiles of units' combinations, given that records are possible.

    As `Support.conditioned`, for one point; combinations that a case has not keep a share of `HARDLY`.
    """
    if not support.cells:
        return weights, profiles
    first, parts = np.cumsum([0, *support.domain.shape]), list(map(len, support.levels))
    starts = np.cumsum([0, *parts])
    each = list(zip(support.axes, support.levels, starts[:-1], strict=True))
    levels = np.concatenate([(first[list(axes)] + own).ravel() for axes, own, _ in each])
    holders = np.concatenate([np.repeat(start + np.arange(len(own)), len(axes)) for axes, own, start in each])
    joint = pt.exp(sums_of(pt.log(profiles), levels, holders, (first[-1], starts[-1]), "levels"))
    allowed = np.where(np.concatenate(support.allowed, axis=1), 1.0, HARDLY)
    cased = (joint[None] * as_input("allowed", allowed)[:, None]).reshape((-1, joint.shape[1]))
    every, unit, sizes = np.arange(starts[-1]), np.repeat(np.arange(len(parts)), parts), (starts[-1], len(parts))
    total = sums_of(cased, every, unit, sizes, "unit")
    chance = weights[None] * pt.exp(pt.sum(pt.log(total), axis=1)).reshape((support.n_cases, -1))
    chance = chance.reshape((-1,))
    return chance / pt.sum(chance), cased / sums_of(total, unit, every, sizes[::-1], "units")


def of_columns(columns: Columns, classes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return classes' profiles and standard normal deviations in the columns of the tables, from those of units."""
    if columns.sums is None:
        return classes
    weights, profiles, n, dispersion, sizes, deviations = classes
    psi = columns.summed(profiles, "profiles")
    moved = columns.summed(pt.sqrt(profiles) * deviations, "deviations")
    return weights, psi, n, dispersion, sizes, moved / pt.sqrt(psi)


def classes_of(
    weights: Any, profiles: Any, n: Any, dispersion: Any, sizes: Any, deviations: Any, ends: Any
) -> tuple[Any, ...]:
    """Return weights, profiles, what multiplies variances, the classes' records and deviations of their levels' counts.

    `sizes` and `deviations` are standard normal variables.
    """
    root, spread, varied = pt.sqrt(weights), pt.sqrt(profiles), n * dispersion
    records = n * weights + pt.sqrt(varied) * root * (sizes - root * pt.sum(root * sizes))
    moved = spread * deviations
    common = SumsWithin()(moved, ends)
    return weights, profiles, varied, records, pt.sqrt(varied) * root[:, None] * (moved - profiles * common)


def released_law(
    classes: Sequence[Any], products: tuple[Any, Any], order: int, turn: Any | None = None
) -> tuple[Any, Any]:
    """Return mean and variance of the exact counts of a block's cells given the classes' counts, before noise.

    `products` are the arrays of `Products` for cells of at most `order` factors.
    """
    weights, profiles, varied, records, moved = classes
    mean, variance = profiles, profiles * (1.0 - profiles)
    if turn is not None:
        mean, moved = pt.dot(profiles, turn), pt.dot(moved, turn)
        variance = pt.dot(profiles, pt.sqr(turn)) - pt.sqr(mean)
    one = pt.ones_like(mean[:, :1])  # a last column leaves a product as it is
    lasts = (mean, one), (variance, 0.0 * one), (moved, 0.0 * one)
    mean, variance, moved = (pt.concatenate(both, axis=1) for both in lasts)
    left, parts = products
    m, d, first, rest = _product(mean, variance, moved, [left[:, place] for place in range(order - 1)])
    total = pt.dot((records[:, None] * m + d).T, mean) + pt.dot(m.T, moved)
    spread = pt.dot((weights[:, None] * first).T, variance)
    if rest is not None:
        spread += pt.dot((weights[:, None] * rest).T, pt.sqr(mean) + variance)
    return total[parts[:, 0], parts[:, 1]], varied * spread[parts[:, 0], parts[:, 1]]


def _product(means: Any, variances: Any, deviations: Any, columns: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return products of columns: mean, deviation, and the parts of the variance of first and of higher order."""
    mean, moved, first, rest = means[:, columns[0]], deviations[:, columns[0]], variances[:, columns[0]], None
    square = pt.sqr(mean)
    for column in columns[1:]:
        m, s, w = means[:, column], variances[:, column], deviations[:, column]
        rest = first * s if rest is None else rest * (pt.sqr(m) + s) + first * s
        first, square = first * pt.sqr(m) + square * s, square * pt.sqr(m)
        moved, mean = moved * m + mean * w, mean * m
    return mean, moved, first, rest


def rest_of(
    block: Block, mean: Floats, variance: Floats, data: Mapping[str, Any], limits: Floats, rng: np.random.Generator
) -> Floats:
    """Draw what exact counts (draw, cell of the block) have beyond their means, given the released ones."""
    spread, noise = np.maximum(variance[:, block.places], 1e-12), block.variances
    released = data["rotated_counts" if block.kind == "gaussian" else "released_counts"][block.places]
    held, laplace, mean = np.isinf(released), block.kind == "laplace", mean[:, block.places]
    off = np.where(held, 0.0, released) - mean
    if laplace:
        found = normal_given_laplace(off, spread, np.sqrt(0.5 * noise), rng)
    else:
        share = spread / (spread + noise)
        found = share * off + np.sqrt(share * noise) * rng.standard_normal(off.shape)
    if held.any():
        room = (limits[block.places] - mean)[:, held]
        unseen = np.broadcast_to(noise[held], room.shape)
        found[:, held] = normal_given_below(laplace, room, spread[:, held], unseen, rng)
    return found


def normal_given_laplace(off: Floats, variance: Floats, scale: Floats, rng: np.random.Generator) -> Floats:
    """Draw normal variables of mean zero, given their sums with Laplace variables."""
    root, shift = np.sqrt(variance), variance / scale
    below, above = log_ndtr((off - shift) / root) - off / scale, log_ndtr(-(off + shift) / root) + off / scale
    lower = np.log(rng.random(off.shape)) < below - np.logaddexp(below, above)
    u = np.log(rng.random(off.shape))
    left = shift + root * ndtri_exp(log_ndtr((off - shift) / root) + u)
    right = -shift - root * ndtri_exp(log_ndtr(-(off + shift) / root) + u)
    return np.where(lower, left, right)


def normal_given_below(laplace: bool, x: Floats, variance: Floats, noise: Floats, rng: np.random.Generator) -> Floats:
    """Draw normal variables of mean zero, given that their sums with noise are below x.

    With Laplace noise of scale b by rejection: the envelope is their density, times exp((x - c)/b)/2 beyond x.
    """
    if not laplace:
        total = np.sqrt(variance + noise)
        off = total * ndtri_exp(log_ndtr(x / total) + np.log(rng.random(x.shape)))
        return variance / total**2 * off + np.sqrt(variance * noise) / total * rng.standard_normal(x.shape)
    scale, root = np.sqrt(0.5 * noise), np.sqrt(variance)
    drawn, open_ = np.empty(x.shape), np.ones(x.shape, dtype=bool)
    while open_.any():
        r, b, sd = x[open_], scale[open_], root[open_]
        shift = sd**2 / b
        inside, outside = log_ndtr(r / sd), log_ndtr(-(r + shift) / sd)
        first, where, kept = np.log(rng.random((3, len(r))))
        is_inside = first < -np.logaddexp(0.0, outside + (r + 0.5 * shift) / b - np.log(2.0) - inside)
        low, high = sd * ndtri_exp(inside + where), -shift - sd * ndtri_exp(outside + where)
        taken = ~is_inside | (kept < np.log1p(-0.5 * np.exp(np.minimum((low - r) / b, 0.0))))
        places = np.flatnonzero(open_)[taken]
        drawn.flat[places], open_.flat[places] = np.where(is_inside, low, high)[taken], False
    return drawn


def sampling_ratio(release: Release, shares: Floats) -> float:
    """Return the root mean square, over tables of two attributes or more, of the ratio of R to noise."""
    n = release.size
    ends = np.cumsum(release.domain.shape)
    spread = dict(zip(release.domain.names, np.split(shares * (1.0 - shares), ends[:-1]), strict=True))
    found = [
        n * np.prod([spread[name].mean() for name in table.attributes]) / table.variances.mean()
        for table in release.tables
        if len(table.attributes) > 1
    ]
    return float(np.sqrt(np.mean(found))) if found else 0.0


def cell_covariance(support: Support, cells: Sequence[Cell], weights: Floats, profiles: Floats) -> Floats:
    """Return the covariance of one record's membership in cells of any margins, under a mixture, given no zero."""
    apart = [own[None] for own in np.split(profiles, np.cumsum(support.domain.shape)[:-1], axis=1)]
    classes, units = support.conditioned(weights[None], apart)
    joint = np.repeat(classes[0][:, None, None], len(cells), axis=1).repeat(len(cells), axis=2)
    for axes, levels, unit in zip(support.axes, support.levels, units, strict=True):
        inside = np.ones((len(cells), len(levels)))
        for row, cell in zip(inside, cells, strict=True):
            for axis, level in cell:
                if axis in axes:
                    row *= levels[:, axes.index(axis)] == level
        assert unit is not None
        joint *= np.matmul(inside * unit[0][:, None], inside.T)
    total = joint.sum(axis=0)
    single = np.diag(total)
    return np.asarray(total - np.outer(single, single))


def joint_law(sampling: Floats, noise: Floats) -> dict[str, Floats]:
    r"""Return what states all tables at once: y = nP + B x + noise, x standard normal, B B' the sampling's covariance.

    With :math:`K = I + B^\top D^{-1}B`, the triangular root H of :math:`K^{-1} = HH^\top` and the gain
    :math:`G = H^\top B^\top D^{-1}`, the unknowns are :math:`x = H(G(y - nP) + z)`: were the noise normal with its
    variances D, the z would be standard normal whatever P is, and y normal with
    :math:`(y - nP)^\top D^{-1}(y - nP) - |G(y - nP)|^2` in its exponent.
    """
    values, vectors = np.linalg.eigh(sampling)
    kept = values > 1e-10 * values[-1]
    root = vectors[:, kept] * np.sqrt(values[kept])
    precision = np.eye(root.shape[1]) + (root.T / noise) @ root
    half = np.linalg.cholesky(np.linalg.inv(precision))
    return {"sampling_root": root, "count_gain": half.T @ (root.T / noise), "count_root": half}


def pilot(release: Release, tables: Tables, shares: Floats, spread: float, steps: int = 400) -> tuple[Floats, Floats]:
    """Fit eight classes to the released counts by penalized least squares (Adam); return weights and profiles."""
    n, filled, domain = release.size, filled_counts(release), release.domain
    member = np.repeat(np.eye(len(domain)), domain.shape, axis=0)
    counts = np.concatenate([one.ravel() for one, _ in filled]) / n
    noise = np.concatenate([one.ravel() for _, one in filled]) / n**2
    columns = np.concatenate([block.products.factors for block in tables.blocks])[tables.order(release.n_counts)].T
    held = np.clip(counts, 1.0 / n, 1.0)
    precision = 1.0 / (noise + held * (1.0 - np.minimum(held, 0.5)) / n)
    rng = np.random.default_rng(0)
    point = [0.1 * rng.standard_normal(8), 0.3 * rng.standard_normal((8, len(shares)))]
    first = [np.zeros_like(part) for part in point]
    second = [np.zeros_like(part) for part in point]

    def mixture() -> tuple[Floats, Floats]:
        weights = np.exp(point[0] - np.max(point[0]))
        levels = shares * np.exp(spread * point[1])
        return weights / weights.sum(), levels / (levels @ member @ member.T)

    def slopes() -> tuple[Floats, Floats]:
        """Return the gradient of half the weighted squares and of the scores' normal prior."""
        weights, profiles = mixture()
        padded = np.concatenate([profiles, np.ones((len(weights), 1))], axis=1)
        parts = [padded[:, column] for column in columns]
        product = np.prod(parts, axis=0)
        pull = precision * (weights @ product - counts)
        in_weights = product @ pull
        in_profiles = np.zeros_like(padded)
        for column, part in zip(columns, parts, strict=True):
            share = weights[:, None] * pull * product / np.maximum(part, 1e-300)
            for own, row in zip(in_profiles, share, strict=True):
                own += np.bincount(column, row, minlength=padded.shape[1])
        scores = in_profiles[:, :-1] * profiles
        scores -= profiles * (scores @ member @ member.T)
        return weights * (in_weights - weights @ in_weights) + point[0], spread * scores + point[1]

    for step in range(1, steps + 1):
        for i, slope in enumerate(slopes()):
            first[i] += 0.1 * (slope - first[i])
            second[i] += 0.02 * (slope**2 - second[i])
            rate = 0.1 * (1.0 - step / (steps + 1))
            point[i] = point[i] - rate * first[i] / (np.sqrt(second[i]) + 1e-12)
    return mixture()


def release_data(
    release: Release, form: Likelihood, *, spread: float | None = None, support: Support | None = None
) -> dict[str, Any]:
    """Return everything that a model of a release takes from its numbers, by the names of the model's data."""
    shares, counts = released_shares(release), released_vector(release)
    support = support or Support.of(release.domain)
    spread = spread or default_spread(release)
    data: dict[str, Any] = {"released_counts": counts, "released_shares": shares, "spread": np.asarray(float(spread))}
    if isinstance(release.n, int):
        data["n_records"], n = np.asarray(float(release.n)), float(release.n)
    else:
        data["released_n_data"], data["n_prior"] = np.array([float(release.n.value)]), np.array(prior_of_n(release))
        n = float(np.exp(data["n_prior"][0]))
    if form == "tables":
        noise = np.concatenate([variances.ravel() for _, variances in filled_counts(release)])
        weights, profiles = pilot(release, Tables.of(release), shares, spread)
        sampling = n * cell_covariance(support, released_cells(release), weights, profiles)
        try:
            data |= joint_law(sampling, noise)
        except np.linalg.LinAlgError:
            raise InputError(
                f"a release of {n:.3g} records drowns its noise in rounding; check its number of records, or set "
                'likelihood = "cells"'
            ) from None
    else:
        columns = Columns.of(support, [table.attributes for table in release.tables])
        turn = rotation(columns, shares)
        data["rotation"], data["rotated_counts"] = turn, turned(release, columns, turn, counts)
    return data
