r"""The public prior, a weighted support and never a dense table over the product domain, and the challenge's score.

Credibility lets thin public records borrow strength, as far as they themselves justify (docs/ide.md). A group's prior
mixes four public distributions, :math:`q = \sum_k \beta_k q_k`, by its squared error over chosen marginals,
:math:`\beta^T G \beta - 2 \beta^T c` up to a constant, :math:`G_{kl} = \langle q_k, q_l\rangle`; averaging
:math:`q_k` over the group's own records, each left out in turn, estimates :math:`c_k = \langle q_k, p_g\rangle`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats, as_array, instance, positive_finite, real_numbers, shown, whole_number
from dpbayes._lazy import pl
from dpbayes.data.domain import Domain, Level
from dpbayes.data.records import UNREADABLE, as_frame, hide_values
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.privacy.release import Release

type Sets = Sequence[Sequence[str]]
type Codes = npt.NDArray[np.int32]

_LARGEST_FULL = 10_000_000
# Largest error of a group's number of records that is not penalized (Tao, Bater and Machanavajjhala, section 4).
BIAS_LIMIT = 250.0
# The four distributions that a group's prior mixes.
COMPONENTS = ("own records", "other groups' records", "own recombined", "other groups recombined")
# Rows of all groups together beyond which other groups' records are sampled instead of copied to every group.
_MOST_ROWS = 1_000_000
_SEED = 20220114
_FACES = [list(face) for size in range(1, 5) for face in combinations(range(4), size)]


@dataclass(frozen=True, eq=False)
class Prior:
    """A probability distribution on a list of records: what public data say before anything is released.

    Parameters
    ----------
    domain, codes
        The attributes, and positions of their levels, shape ``(rows, attributes)``: a row for each record of the
        support.
    weights
        Non-negative numbers, one a row, not all zero; they are scaled to sum to 1. A row may have
        weight 0: it belongs to the support, and Definition 3.1 can give it mass.
    n_records
        How many records the weights were estimated from, or None where they are no sample (a full domain, a model).

    Examples
    --------
    >>> import polars as pl
    >>> domain = Domain.from_levels({"age": ("<18", "18+"), "sex": ("f", "m")})
    >>> public = pl.DataFrame({"age": ["18+", "18+", "<18", "18+"], "sex": ["f", "m", "f", "f"]})
    >>> prior = Prior.from_frame(public, domain)
    >>> prior.size, prior.marginal(["sex"]).tolist()
    (3, [0.75, 0.25])
    """

    domain: Domain
    codes: Codes
    weights: Floats
    n_records: float | None = None

    def __post_init__(self) -> None:
        instance(self.domain, Domain, "domain", remedy="Domain.from_levels makes one")
        codes, weights = as_array(self.codes, "codes"), real_numbers(self.weights, "weights")
        if codes.ndim != 2 or codes.shape[1] != len(self.domain) or codes.dtype.kind not in "iu":
            said = f"codes must be integers of shape (rows, {len(self.domain)}), got {codes.dtype} of {codes.shape}"
            raise InputError(f"{said}; Prior.from_frame codes a data frame")
        if weights.shape != codes.shape[:1]:
            raise InputError(f"a prior of {len(codes)} rows needs as many weights, got an array of {weights.shape}")
        if codes.size and (codes.min() < 0 or np.any(codes.max(axis=0) >= self.domain.shape)):
            raise InputError("a code lies outside its attribute's levels; codes are positions in the domain's levels")
        if not np.isfinite(weights).all() or np.any(weights < 0):
            raise InputError("weights of a prior must be finite and at least 0; one is not: drop or repair that row")
        total = math.fsum(weights)
        if total <= 0:
            raise InputError("all weights of the prior are zero; give at least one record a positive weight")
        if self.n_records is not None:
            positive_finite(self.n_records, "n_records", remedy="None says that the prior is no sample")
        for name, values in (("codes", codes.astype(np.int32)), ("weights", weights / total)):
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    @classmethod
    def from_frame(cls, frame: Any, domain: Domain) -> Prior:
        """Count the distinct records of a public data set: any frame that narwhals reads, one row a public record.

        Raises
        ------
        MissingColumnError, InputError, UnreadableDataError
            If a column is missing, there are no rows, a value is not a level of its attribute, or a lazy frame cannot
            be read.
        """
        table = as_frame(frame).lazy()
        with hide_values(UNREADABLE):
            columns = table.collect_schema().names()
            if missing := [name for name in domain.names if name not in columns]:
                raise MissingColumnError(f"column {missing[0]!r} is not in the public data; it has {columns}")
            data = table.select(*domain.names).collect()
        if not len(data):
            raise InputError("the public data have no rows; use Prior.full(domain) for a prior without data")
        codes = np.empty((len(data), len(domain)), dtype=np.int32)
        for place, (name, levels) in enumerate((one.name, one.levels) for one in domain):
            position = {level: code for code, level in enumerate(levels)}
            try:
                codes[:, place] = [position[value] for value in data[name].to_list()]
            except (KeyError, TypeError) as error:  # the data are public, so that a value may be shown
                said = f"public column {name!r} holds {error}, which is no level; levels: {shown(list(levels))}"
                raise InputError(said) from None
        distinct, counts = np.unique(codes, axis=0, return_counts=True)
        return cls(domain, distinct, counts.astype(np.float64), float(len(data)))

    @classmethod
    def full(cls, domain: Domain, weights: npt.ArrayLike | None = None) -> Prior:
        """Return a prior on every cell of a small domain (ten million at most), uniform or of ``domain.shape`` weights.

        Examples
        --------
        >>> Prior.full(Domain.from_levels({"age": (0, 1), "sex": (0, 1)})).weights.tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        if domain.size > _LARGEST_FULL:
            raise InputError(f"the full domain has {domain.size:,} cells; build the prior from public records instead")
        values = np.ones(domain.shape) if weights is None else np.asarray(weights, dtype=np.float64)
        if values.shape != domain.shape:
            raise InputError(f"weights must have the domain's shape {domain.shape}, got {values.shape}")
        codes = np.stack([axis.ravel() for axis in np.indices(domain.shape, dtype=np.int32)], axis=1)
        return cls(domain, codes, values.ravel())

    @property
    def size(self) -> int:
        """Number of rows of the support."""
        return len(self.weights)

    def index(self, names: Sequence[str]) -> npt.NDArray[np.intp]:
        """Return each row's cell in the table over some attributes, in C order; shape ``(rows,)``."""
        axes = self.domain.axes(names)
        return np.ravel_multi_index([self.codes[:, axis] for axis in axes], [self.domain.shape[axis] for axis in axes])

    def marginal(self, names: Sequence[str], weights: npt.ArrayLike | None = None) -> Floats:
        """Return the probabilities of the table over some attributes, under other `weights` where given."""
        domain = self.domain.project(names)
        values = self.weights if weights is None else np.asarray(weights, dtype=np.float64)
        return np.bincount(self.index(names), values, domain.size).reshape(domain.shape)

    def reweighted(self, weights: npt.ArrayLike) -> Prior:
        """Return the same support with other weights, worth the same number of records."""
        other = Prior(self.domain, self.codes, np.asarray(weights, dtype=np.float64), self.n_records)
        # One array for both: whatever was built for the support serves the other as well.
        object.__setattr__(other, "codes", self.codes)
        return other

    def _repr_html_(self) -> str:
        records = "no sample" if self.n_records is None else f"worth {self.n_records:,.0f} records"
        return f"<p>Prior on {self.size:,} rows of {len(self.domain)} attributes, {records}</p>"


def column_type(levels: Sequence[Level]) -> Any:
    """Return the Polars type of a column of levels: an Enum of texts, or integers."""
    return pl.Enum([str(level) for level in levels]) if isinstance(levels[0], str) else pl.Int64


def records_of(domain: Domain, codes: Codes) -> pl.DataFrame:
    """Return records, given by positions of levels, as a data frame; without records its columns stand all the same."""
    columns = ((one, np.asarray(one.levels, dtype=object)[at]) for one, at in zip(domain, codes.T, strict=True))
    return pl.DataFrame({a.name: pl.Series(found.tolist(), dtype=column_type(a.levels)) for a, found in columns})


@dataclass(frozen=True, eq=False)
class Credibility:
    """How every group's prior is mixed: the weight of each of the four `COMPONENTS`, shape ``(levels of by, 4)``."""

    by: str | None
    weights: Floats

    @property
    def borrowed(self) -> Floats:
        """Weight that each group gives to the records of all other groups."""
        return self.weights[:, 1] + self.weights[:, 3]


def credibility(prior: Prior, *, by: str | None = None, sets: Sets | None = None) -> Credibility:
    """Estimate from public data how every group's prior should be mixed.

    Parameters
    ----------
    prior
        A sample (`n_records` set).
    by
        The attribute that names the group; without it all records are one group.
    sets
        The marginals that matter; all pairs of the other attributes by default.

    Returns
    -------
    Credibility
        A group without records takes the others' records as they are, a group of one record too.

    Raises
    ------
    InputError
        If the prior is no sample, has records in fewer than two levels of `by`, or there is nothing to compare.

    Examples
    --------
    Ten records at one place, 990 at another. The few borrow; the many need nobody.

    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1)})
    >>> prior = Prior(domain, [[0, 0], [0, 1], [1, 0], [1, 1]], [6, 4, 500, 490], n_records=1000)
    >>> credibility(prior, by="place", sets=[["x"]]).borrowed.round(2).tolist()
    [1.0, 0.03]
    """
    instance(prior, Prior, "prior", remedy="Prior.from_frame makes one")
    if prior.n_records is None:
        raise InputError("credibility weighs sampling error, and this prior is no sample: n_records is None")
    others = [name for name in prior.domain.names if name != by]
    chosen = list(combinations(others, 2)) if sets is None else [tuple(names) for names in sets]
    share, group = _groups(prior, by)
    if not chosen or (by is not None and np.count_nonzero(share) < 2):
        said = f"pooling over {by!r} needs records in two groups and two other attributes or more"
        raise InputError(f"{said}; leave the prior as it is (pool=False)")
    seen = share * prior.n_records > 1.0
    gram, cross = np.zeros((len(share), 4, 4)), np.zeros((len(share), 4))
    for names in chosen:
        products, judged = _products(prior, names, group, len(share))
        gram[seen] += products[seen]
        cross[seen] += judged[seen]
    weights = np.tile([0.0, 1.0, 0.0, 0.0], (len(share), 1))
    for place in np.flatnonzero(seen):
        weights[place] = _minimize(gram[place], cross[place], alone=share[place] >= 1.0)
    return Credibility(by, weights)


def _groups(prior: Prior, by: str | None) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return every group's share, and the group of each row; without an attribute all rows are one group."""
    if by is None:
        return np.ones(1), np.zeros(prior.size, dtype=np.intp)
    return prior.marginal([by]), prior.index([by])


def _products(prior: Prior, names: Sequence[str], group: npt.NDArray[np.intp], n_groups: int) -> tuple[Floats, Floats]:
    """Return G and the estimate of c for one table, shapes ``(groups, 4, 4)`` and ``(groups, 4)``."""
    cells, place = np.unique(prior.index(names), return_inverse=True)
    levels = np.unravel_index(cells, prior.domain.project(names).shape)
    own, rest, records = _shares(place, len(cells), group, n_groups, prior)
    less = records[:, None] - 1.0

    def without_one(share: Floats) -> Floats:
        return np.divide(less * share + share - 1.0, less, out=np.zeros_like(share), where=less > 0)

    # Recombined: the group's own, first, and all other groups'.
    apart, products, left_out = np.ones((n_groups, 2, len(cells))), np.ones((n_groups, 2, 2)), np.ones_like(own)
    for name, level in zip(names, levels, strict=True):
        here, there, _ = _shares(prior.index([name]), prior.domain[name].size, group, n_groups, prior)
        both = np.stack([here, there], axis=1)
        apart *= both[:, :, level]
        products *= (both[:, :, None] * both[:, None]).sum(axis=-1)
        left_out *= without_one(here[:, level])
    found = np.stack([own, rest, apart[:, 0], apart[:, 1]], axis=1)
    gram = found @ found.transpose(0, 2, 1)
    gram[:, 2:, 2:] = products
    judged = np.stack([without_one(own), rest, left_out, apart[:, 1]], axis=1)
    return gram, np.einsum("gkx,gx->gk", judged, own)


def _shares(
    cell: npt.NDArray[np.intp], n_cells: int, group: npt.NDArray[np.intp], n_groups: int, prior: Prior
) -> tuple[Floats, Floats, Floats]:
    """Return each group's distribution over cells, that of all others, and each group's number of records."""
    mass = np.bincount(group * n_cells + cell, prior.weights, n_groups * n_cells).reshape(n_groups, n_cells)
    outside = np.clip(mass.sum(axis=0) - mass, 0.0, None)
    inside, beyond = mass.sum(axis=1, keepdims=True), outside.sum(axis=1, keepdims=True)
    own = np.divide(mass, inside, out=np.zeros_like(mass), where=inside > 0)
    # What rounding leaves outside a group that holds everything is nothing.
    rest = np.divide(outside, beyond, out=np.zeros_like(mass), where=beyond > 1e-12)
    return own, rest, inside[:, 0] * (prior.n_records or 0.0)


def _minimize(gram: Floats, cross: Floats, *, alone: bool) -> Floats:
    """Minimize b'Gb - 2b'c over the simplex; the best face has its minimum in its inside."""
    best, least = np.array([1.0, 0.0, 0.0, 0.0]), gram[0, 0] - 2.0 * cross[0]
    for face in _FACES:
        if alone and not {0, 2}.issuperset(face):
            continue
        size = len(face)
        system = np.ones((size + 1, size + 1))
        system[:size, :size], system[size, size] = gram[np.ix_(face, face)], 0.0
        # Two components that agree on every table make a singular face; the smaller face holds its minimum.
        found = np.linalg.lstsq(system, np.append(cross[face], 1.0), rcond=1e-10)[0][:size]
        if found.min() < 0.0:
            continue
        trial = np.zeros(4)
        trial[face] = found / found.sum()
        value = trial @ gram @ trial - 2.0 * trial @ cross
        if value < least - 1e-12 * abs(least):
            best, least = trial, value
    return best


def pool(prior: Prior, credible: Credibility, *, n_rows: int = 2000) -> Prior:
    r"""Return the prior in which every group borrows, from the others and from independence.

    Parameters
    ----------
    prior, credible
        The prior to strengthen, and what `credibility` found.
    n_rows
        Rows that stand for each recombined component of a group. Every attribute is sampled
        systematically, so that one-way margins are exact to one row, and shuffled by itself.

    Returns
    -------
    Prior
        The groups keep their shares. It is worth more records: a group's error falls from :math:`S_g` to about
        :math:`S_g (1 - \beta_g)` with :math:`\beta_g` borrowed from other groups, and the total is taken as
        :math:`m / (1 - \bar\beta)`, at most the records that there are times the groups. Recombination adds support but
        no record: it leaves one-way margins as they are. The draw is of public data, from a fixed seed.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1)})
    >>> prior = Prior(domain, [[0, 0], [0, 1], [1, 0], [1, 1]], [6, 4, 5, 5], n_records=20)
    >>> half = Credibility("place", np.array([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    >>> pool(prior, half).marginal(["place", "x"]).tolist()
    [[0.275, 0.225], [0.25, 0.25]]
    """
    instance(credible, Credibility, "credible", remedy="credibility makes one")
    instance(prior, Prior, "prior", remedy="Prior.from_frame makes one")
    whole_number(n_rows, "n_rows")
    rng = np.random.default_rng(_SEED)
    share, group = _groups(prior, credible.by)
    most = max(n_rows, _MOST_ROWS // len(share))
    codes, weights = [], []
    for place, component in np.ndindex(credible.weights.shape):
        inside = (group == place) if component in (0, 2) else (group != place)
        weight = share[place] * credible.weights[place, component]
        if weight <= 0 or not inside.any():
            continue
        drawn, shares = _rows(prior, inside, n_rows if component >= 2 else most, recombined=component >= 2, rng=rng)
        if credible.by is not None:
            drawn[:, prior.domain.axis(credible.by)] = place
        codes.append(drawn)
        weights.append(weight * shares)
    mean = min(float(share @ credible.borrowed), 1.0 - 1.0 / len(share))
    records = None if prior.n_records is None else prior.n_records / (1.0 - mean)
    return Prior(prior.domain, np.concatenate(codes), np.concatenate(weights), records)


def grouping_attribute(release: Release) -> str | None:
    """Return the one attribute that stands in every table of a release, or None where there is none or several."""
    common = set.intersection(*(set(table.attributes) for table in release.tables)) if release.tables else set()
    return common.pop() if len(common) == 1 else None


def strengthened(prior: Prior, by: str | None) -> tuple[Prior, Credibility | None]:
    """Return the prior pooled as its own records justify, and how; as it is, and None, where nothing is borrowed."""
    if by is not None and np.count_nonzero(prior.marginal([by])) < 2:
        by = None
    if prior.n_records is None or len(prior.domain) - (by is not None) < 2:
        return prior, None
    credible = credibility(prior, by=by)
    return (prior, None) if np.all(credible.weights[:, 0] == 1.0) else (pool(prior, credible), credible)


def _rows(
    prior: Prior, inside: npt.NDArray[np.bool_], n_rows: int, *, recombined: bool, rng: np.random.Generator
) -> tuple[Codes, Floats]:
    """Return rows of one component and their shares, which sum to 1."""
    codes, weights = prior.codes[inside], prior.weights[inside]
    held = weights > 0
    codes, weights = codes[held], weights[held] / weights.sum()
    if recombined:
        columns = [rng.permutation(_systematic(np.bincount(column, weights), n_rows, rng)) for column in codes.T]
        return np.stack(columns, axis=1).astype(np.int32), np.full(n_rows, 1.0 / n_rows)
    if len(codes) > n_rows:
        return codes[_systematic(weights, n_rows, rng)], np.full(n_rows, 1.0 / n_rows)
    return codes.copy(), weights


def _systematic(weights: Floats, n_rows: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Draw positions at evenly spaced points of the cumulative weight: each its share of times, to one."""
    points = (np.arange(n_rows) + rng.random()) / n_rows
    return np.minimum(np.searchsorted(np.cumsum(weights), points, side="right"), len(weights) - 1)


@dataclass(frozen=True, eq=False)
class Score:
    """Mean L1 distances, from 0 to 2, of the groups that hold true records."""

    groups: tuple[str | int, ...]
    errors: Floats

    @property
    def value(self) -> float:
        """The score, from 0 to 1000."""
        return float(500.0 * (2.0 - self.errors.mean()))

    def penalized(self, missed: npt.ArrayLike) -> Score:
        """Return the score where a group whose number of records is `missed` by more than 250 shares nothing."""
        return Score(self.groups, np.where(np.abs(missed) > BIAS_LIMIT, 2.0, self.errors))


def k_marginal_score(estimate: Prior, truth: Prior, *, by: str, k: int = 2, sets: Sets | None = None) -> Score:
    """Compare the k-way marginals of each group with the truth's.

    Parameters
    ----------
    estimate
        The distribution to judge, or synthetic records read by `Prior.from_frame`. Each group is normalized before it
        is compared; a group without mass scores the worst.
    truth
        The true records. Whoever computes a score sees confidential data: it belongs to trials, not to a release.
    by
        The attribute that names the group.
    k, sets
        Attributes of a marginal, of which all sets are compared; or the attribute sets to compare.

    Raises
    ------
    InputError
        If the domains differ, or a set names an unknown attribute or `by` itself.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> truth, flat = Prior.full(domain, [[[4, 0], [0, 4]], [[1, 1], [1, 1]]]), Prior.full(domain)
    >>> k_marginal_score(flat, truth, by="place").errors.tolist()
    [1.0, 0.0]
    """
    instance(estimate, Prior, "estimate", remedy="Prior.from_frame makes one")
    instance(truth, Prior, "truth", remedy="Prior.from_frame makes one")
    chosen = _sets(truth, by, k, sets)
    if estimate.domain != truth.domain:
        raise InputError("the estimate and the truth have different domains; code both over one domain")
    present = truth.marginal([by]) > 0
    distances = []
    for names in chosen:
        ours, theirs = (one.marginal([by, *names]).reshape(len(present), -1)[present] for one in (estimate, truth))
        mass = ours.sum(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.abs(ours / mass - theirs / theirs.sum(axis=1, keepdims=True)).sum(axis=1)
        distances.append(np.where(mass[:, 0] > 0, gap, 2.0))
    groups = tuple(level for level, there in zip(truth.domain[by].levels, present, strict=True) if there)
    return Score(groups, np.mean(distances, axis=0))


def bootstrap_score(truth: Prior, *, by: str, rng: np.random.Generator, k: int = 2) -> Score:
    """Score a bootstrap sample of the true records: what another sample of the same population would score.

    `truth` needs its number of records (as `Prior.from_frame` sets it); `by` and `k` are those of `k_marginal_score`.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"place": ("a", "b"), "x": (0, 1), "y": (0, 1)})
    >>> truth = Prior.full(domain, np.arange(1, 9).reshape(2, 2, 2))
    >>> truth = Prior(domain, truth.codes, truth.weights, n_records=3600)
    >>> round(bootstrap_score(truth, by="place", rng=np.random.default_rng(1)).value)
    986
    """
    if truth.n_records is None:
        raise InputError("the truth must be a sample with n_records; read it by Prior.from_frame")
    n = int(np.rint(truth.weights * truth.n_records).sum())
    return k_marginal_score(truth.reweighted(rng.multinomial(n, truth.weights)), truth, by=by, k=k)


def _sets(truth: Prior, by: str, k: int, sets: Sets | None) -> tuple[tuple[str, ...], ...]:
    others = [name for name in truth.domain.names if name != by]
    truth.domain.axis(by)
    if sets is None:
        return tuple(combinations(others, whole_number(k, "k", high=len(others), remedy=f"{by!r} names the groups")))
    chosen = tuple(tuple(names) for names in sets)
    if not chosen:
        raise InputError("sets is empty; name at least one attribute set, or leave it out for all sets of k")
    for names in chosen:
        if by in names:
            raise InputError(f"set {names!r} names the grouping attribute {by!r}; marginals are compared within groups")
        truth.domain.axes(names)
    return chosen
