r"""Second moments: the query :math:`S(X) = \frac1n \sum_j z_j z_j^T`, its symmetric noise, and the release of both.

The noise is :math:`E = F G F^T` with :math:`F F^T` the shape and G symmetric:
:math:`G_{ii} \sim N(0, \sigma^2)`, :math:`G_{ij} \sim N(0, \sigma^2/2)`, independent on and above
the diagonal. Its density depends on :math:`\|F^{-1} E F^{-T}\|_F` alone, so the release is a Gaussian mechanism with mu
= (whitened Frobenius sensitivity) / sigma; m(m+1)/2 numbers are drawn and the result stays symmetric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import (
    LONGEST_NAME,
    Floats,
    instance,
    one_of,
    ordered,
    positive_finite,
    real_numbers,
    shown,
    whole_number,
)
from dpbayes.errors import InputError
from dpbayes.mvg.matrix import (
    COVARIANCE_PARTS,
    Covariance,
    CovarianceLike,
    GaussianCost,
    as_covariance,
    mu_for,
    released,
)
from dpbayes.mvg.sensitivity import FeatureRanges, Maximum, box_maximum, clip_records
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.envelope import Enveloped, FileKind, expect
from dpbayes.privacy.laws import Gaussian
from dpbayes.privacy.release import protected_words
from dpbayes.privacy.sampling import SamplerName, release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger


@dataclass(frozen=True, eq=False)
class MomentQuery:
    r"""Second moments of bounded records, (1/n) Z Z' with z = (intercept, x - middle of the ranges).

    The divisor n is public. Under replace-one that is the number of records; under add-remove it is a stated number, an
    absent record adds nothing to the sum, and the number of records itself stays protected.

    Parameters
    ----------
    ranges
        Bounds of the features and the adjacency.
    n
        The public divisor.
    intercept
        A public constant put in front of every record, so that the first row holds the means times this constant; None
        leaves it out. Around the length of a half-diagonal of the ranges is a good choice.
    features
        Names of the features, shape (m,), which a release then carries; None for unnamed ones.
    unit
        Column whose value says whose record it is; None where each record is a unit of its own.
    rows_per_unit
        How many records of one unit are counted at most. A change of k records moves the sum by at most k times
        as far as a change of one, so the sensitivity is k times that of one record.

    Raises
    ------
    InputError
        If n is no whole number above 0, or the intercept is not positive.

    Examples
    --------
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [2.0, 2.0], "replace-one"), n=100)
    >>> round(query.sensitivity(Covariance.identity(2)).value, 6)
    0.028284
    """

    ranges: FeatureRanges
    n: int
    intercept: float | None = None
    features: tuple[str, ...] | None = None
    unit: str | None = None
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        instance(self.ranges, FeatureRanges, "ranges", remedy="it states the bounds of the features")
        whole_number(self.n, "n", high=2**53, remedy="it is the public divisor")
        if self.intercept is not None:
            remedy = "it is a public constant; None leaves the means out"
            object.__setattr__(self, "intercept", positive_finite(self.intercept, "intercept", remedy=remedy))
        remedy = "it is how many records one unit has at most"
        whole_number(self.rows_per_unit, "rows_per_unit", high=self.n, remedy=remedy)
        if (self.unit is not None and not isinstance(self.unit, str)) or (self.unit is None and self.rows_per_unit > 1):
            raise InputError(f"unit must name the column of the units, got {shown(self.unit)}")
        if self.features is not None:
            remedy = "name every feature once"
            names = ordered(self.features, "features", remedy=remedy, kind=str)
            if len(names) != self.ranges.size or len(set(names)) != len(names):
                raise InputError(f"features must be {self.ranges.size} different names, got {shown(names)}; {remedy}")
            if max(map(len, names)) > LONGEST_NAME:
                raise InputError(f"a feature's name has at most {LONGEST_NAME:,} characters, got {shown(names)}")
            object.__setattr__(self, "features", names)

    @property
    def size(self) -> int:
        """Rows of the moment matrix: features, plus one with an intercept."""
        return self.ranges.size + (self.intercept is not None)

    @property
    def protects(self) -> str:
        """What the guarantee protects, in words."""
        return protected_words(self.unit, self.rows_per_unit)

    def vectors(self, records: npt.ArrayLike) -> Floats:
        """Return the vectors z of shape (size, n) after clipping; they are confidential."""
        values = clip_records(records, self.ranges)
        if self.ranges.adjacency == "replace-one" and values.shape[1] != self.n:
            raise InputError(f"the query states n = {self.n} records, but {values.shape[1]} were given")
        centred = values - self.ranges.middle[:, None]
        if self.intercept is None:
            return centred
        return np.vstack([np.full((1, centred.shape[1]), self.intercept), centred])

    def value(self, records: npt.ArrayLike) -> Floats:
        """Return the exact moment matrix, shape (size, size). **Confidential**: release it with `release_moments`."""
        z = self.vectors(records)
        return np.asarray(z @ z.T / self.n)

    def sensitivity(self, shape: CovarianceLike) -> Maximum:
        r"""Return the sensitivity :math:`\sup \|F^{-1} (S(X) - S(X')) F^{-T}\|_F`, with :math:`F F^T` = `shape`.

        Write r for the largest length of :math:`F^{-1} x` over the box and k for the intercept.
        Under add-remove the change is :math:`zz^T/n`, of norm :math:`(k^2 + r^2)/n`, attained.
        Under replace-one :math:`\|uu^T - ww^T\|_F^2 = |u|^4 + |w|^4 - 2(u \cdot w)^2` gives
        :math:`2\sqrt2\,k r/n` from :math:`k = r` on, attained at opposite corners, and below it the
        upper bound :math:`\sqrt2 (k^2 + r^2)/n`. Proofs: docs/mvg.md.
        """
        row = as_covariance(shape, "shape", size=self.ranges.size)
        radius = box_maximum(row.precision(), self.ranges.widths / 2.0)
        k2, r2 = (self.intercept or 0.0) * (self.intercept or 0.0), radius.value
        if not math.isfinite(k2 + r2):
            raise InputError(f"the squares of intercept {self.intercept} or of the ranges overflow; rescale them")
        # k equal records that all become k other equal ones move the sum k times as far, so it is attained alike.
        times = self.rows_per_unit / self.n
        if self.ranges.adjacency == "add-remove":
            return Maximum((k2 + r2) * times, radius.method)
        if k2 < r2 * (1.0 - 1e-12):
            return Maximum(math.sqrt(2.0) * (k2 + r2) * times, "upper bound")
        return Maximum(2.0 * math.sqrt(2.0 * k2 * r2) * times, radius.method)


@dataclass(frozen=True, eq=False)
class SymmetricGaussian(GaussianCost):
    """Symmetric noise for a moment query with its exact privacy cost."""

    query: MomentQuery
    stddev: float
    shape: Covariance  # over the features

    def __post_init__(self) -> None:
        remedy = "calibrate_moments finds it from epsilon and delta"
        object.__setattr__(self, "stddev", positive_finite(self.stddev, "stddev", remedy=remedy))
        object.__setattr__(self, "shape", as_covariance(self.shape, "shape", size=self.query.ranges.size))
        if not math.isfinite(self.rho):
            raise InputError(f"stddev = {self.stddev!r} is no noise beside a sensitivity this large; {remedy}")

    @property
    def row_cov(self) -> Covariance:
        """The shape over all rows of the moment matrix, with a one for the intercept."""
        if self.query.intercept is None:
            return self.shape
        matrix = np.eye(self.query.size)
        matrix[1:, 1:] = self.shape.matrix()
        return Covariance.from_matrix(matrix)

    @cached_property
    def mu(self) -> Maximum:
        """Sensitivity over stddev, and whether the sensitivity is attained or an upper bound."""
        found = self.query.sensitivity(self.shape)
        return Maximum(found.value / self.stddev, found.method)

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.query.ranges.adjacency

    @property
    def variances(self) -> Floats:
        r"""Noise variance of every entry, :math:`\sigma^2 (\Sigma_{ii} \Sigma_{jj} + \Sigma_{ij}^2) / 2`."""
        matrix = self.row_cov.matrix()
        diagonal = np.diagonal(matrix)
        variances = self.stddev**2 * (np.outer(diagonal, diagonal) + matrix**2) / 2.0
        if self.query.intercept is not None and self.adjacency == "replace-one":
            variances[0, 0] = 0.0
        return np.asarray(variances)


def calibrate_moments(
    query: MomentQuery,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    mu: float | None = None,
    shape: CovarianceLike | None = None,
) -> SymmetricGaussian:
    """Return symmetric noise of a given shape that just satisfies a guarantee.

    Parameters
    ----------
    query
        What is asked.
    epsilon, delta
        The guarantee; or
    mu
        its privacy cost, for example one part of `split_mu`.
    shape
        Shape over the features; the identity when None.

    Raises
    ------
    InputError
        If neither or both of mu and (epsilon, delta) are given, or a value is out of range.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [2.0, 2.0], "replace-one"), n=100)
    >>> round(calibrate_moments(query, epsilon=1.0, delta=1e-5).stddev, 6)
    0.105518
    """
    instance(query, MomentQuery, "query", remedy="it says what is asked")
    if mu is None:
        if epsilon is None or delta is None:
            raise InputError(f"give epsilon and delta, or mu; got epsilon {epsilon}, delta {delta}, mu {mu}")
        cost = mu_for(epsilon, delta)
    elif epsilon is not None or delta is not None:
        raise InputError("give either mu or epsilon and delta, not both")
    else:
        cost = positive_finite(mu, "mu", remedy="it is the privacy cost of the release")
    row = Covariance.identity(query.ranges.size) if shape is None else as_covariance(shape, "shape")
    return SymmetricGaussian(query, query.sensitivity(row).value / cost, row)


@dataclass(frozen=True, eq=False)
class MomentRelease(Enveloped):
    """A released moment matrix with its known noise, which holds the query: all that a regression needs.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.mvg import calibrate_moments
    >>> noise = calibrate_moments(MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 3), epsilon=1.0, delta=1e-5)
    >>> release = release_moments([[0.0, 1.0, 0.5]], noise, rng=np.random.default_rng(1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     MomentRelease.read(release.write(f"{folder}/m.json")).digest == release.digest
    True
    """

    FILE: ClassVar[FileKind] = FileKind("dpbayes-moments", "a release of moments")

    value: Floats
    noise: SymmetricGaussian
    sampler: SamplerName

    def __post_init__(self) -> None:
        instance(self.noise, SymmetricGaussian, "noise", remedy="it is the noise that was drawn")
        array, shape = real_numbers(self.value, "value"), (self.query.size,) * 2
        if array.shape != shape or not np.isfinite(array).all():
            raise InputError(f"value must be finite numbers of shape {shape}, got shape {array.shape}")
        if (odd := np.argwhere(array != array.T)).size:
            row, column = map(int, odd[0])
            pair = f"{array[row, column]!r} at {(row, column)} and {array[column, row]!r} at {(column, row)}"
            raise InputError(f"value must be symmetric, got {pair}")
        one_of(self.sampler, get_args(SamplerName), "sampler")
        object.__setattr__(self, "value", array)

    @property
    def query(self) -> MomentQuery:
        """The question that was answered."""
        return self.noise.query

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.noise.adjacency

    @property
    def protects(self) -> str:
        """What the guarantee protects, in words."""
        return self.query.protects

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What the release cost, as a trace records it."""
        return {
            "mechanism": "symmetric-gaussian",
            "mu": self.noise.mu.value,
            "mu_known_by": self.noise.mu.method,
            "adjacency": self.adjacency,
            "protects": self.protects,
            "sampler": self.sampler,
        }

    def _body(self) -> dict[str, Any]:
        ranges, query = self.query.ranges, self.query
        parts = {key: getattr(self.noise.shape, key) for key in COVARIANCE_PARTS}
        return {
            "value": self.value.tolist(),
            "stddev": self.noise.stddev,
            "shape": {key: None if part is None else part.tolist() for key, part in parts.items()},
            "n": int(query.n),
            "features": None if query.features is None else list(query.features),
            "unit": query.unit,
            "rows_per_unit": query.rows_per_unit,
            "centre": ranges.middle.tolist(),
            "intercept": query.intercept,
            "lower": ranges.lower.tolist(),
            "upper": ranges.upper.tolist(),
            "adjacency": ranges.adjacency,
            "sampler": self.sampler,
        }

    @classmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        ranges = FeatureRanges(body["lower"], body["upper"], body["adjacency"])
        features = None if body["features"] is None else tuple(body["features"])
        names = features, body["unit"], body["rows_per_unit"]
        query = MomentQuery(ranges, body["n"], body["intercept"], *names)
        shape = expect(body["shape"], "variances directions", "the shape of the noise")
        covariance = Covariance(ranges.size, shape["variances"], shape["directions"])
        return cls(body["value"], SymmetricGaussian(query, body["stddev"], covariance), body["sampler"])


def release_moments(
    records: npt.ArrayLike,
    noise: SymmetricGaussian,
    *,
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    ledger_delta: float = 0.0,
    purpose: str = "second moments with symmetric Gaussian noise",
) -> MomentRelease:
    r"""Release the moment matrix of clipped records.

    A real release (`rng` None) passes the whitened upper triangle, off-diagonal entries times
    :math:`\sqrt 2`, through OpenDP's Gaussian sampler. Sums over n records round differently for
    neighbours; the noise is larger by a proven bound on that, some n 2^-52 of the sensitivity times
    n, so that the stated mu holds.

    Parameters
    ----------
    records
        Matrix of shape (m, n), columns are records; each value is clipped to its range first.
    noise
        From `calibrate_moments`.
    rng
        None draws from OpenDP; a NumPy generator simulates, and the result says so.
    ledger, ledger_delta, purpose
        As in `release_records`.

    Raises
    ------
    InputError
        If the shape does not fit or, under replace-one, the number of records is not the stated n.
    BudgetExceededError
        If the ledger has too little left. Nothing is drawn then.

    Examples
    --------
    >>> from dpbayes.mvg import calibrate_moments
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [2.0, 2.0], "replace-one"), n=3)
    >>> noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    >>> release = release_moments([[0.0, 1.0, 2.0], [2.0, 1.0, 0.5]], noise)
    >>> release.sampler, bool((release.value == release.value.T).all())
    ('opendp', True)
    """
    source = sampler_name(rng)
    instance(noise, SymmetricGaussian, "noise", remedy="calibrate_moments returns one")
    query, row = noise.query, noise.row_cov
    z = row.whiten(query.vectors(records))
    white = z @ z.T / query.n
    upper = np.triu_indices(query.size)
    weight = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    values = white[upper] * weight
    stddev = noise.stddev
    if rng is None:
        stddev *= 1.0 + _moment_slack(noise) / (noise.mu.value * noise.stddev)

    def drawn() -> MomentRelease:
        noisy = release_values(values, Gaussian(stddev), rng=rng) / weight
        symmetric = np.zeros_like(white)
        symmetric[upper] = noisy
        symmetric = symmetric + np.triu(symmetric, 1).T
        result = row.colour(row.colour(symmetric).T)
        result = (result + result.T) / 2.0
        if query.intercept is not None and query.ranges.adjacency == "replace-one":
            result[0, 0] = query.intercept * query.intercept  # a public constant
        return MomentRelease(result, noise, source)

    return released(drawn, noise, "symmetric-gaussian", purpose=purpose, rng=rng, ledger=ledger, delta=ledger_delta)


def _moment_slack(noise: SymmetricGaussian) -> float:
    """Bound the Frobenius norm of the rounding error in the whitened moments of two neighbours together."""
    row = noise.row_cov
    n = noise.query.n * (2 if noise.adjacency == "add-remove" else 1)
    largest = noise.query.ranges.widths / 2.0
    if noise.query.intercept is not None:
        largest = np.concatenate([[noise.query.intercept], largest])
    white = row.white_reach(largest)
    terms = n + 2 * row.size + 16
    return 2.0 * terms * 2.0**-53 * float(white @ white) * n / noise.query.n
