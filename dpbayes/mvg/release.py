"""Records released through matrix Gaussian noise, and their second moments through symmetric noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, one_of, real_numbers
from dpbayes.errors import InputError
from dpbayes.mvg.cost import MatrixGaussian, exact_mu
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.mvg.moments import MomentQuery, SymmetricGaussian
from dpbayes.mvg.sensitivity import FeatureRanges, clip_records
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.envelope import Enveloped, FileKind, expect, matrix
from dpbayes.privacy.laws import Gaussian
from dpbayes.privacy.mechanism import Digested, Part, reserve_draw_confirm
from dpbayes.privacy.sampling import SamplerName, release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

type FloatArray = npt.NDArray[np.float64]


_PARTS = ("variances", "directions")


def draw(row_cov: CovarianceLike, col_cov: CovarianceLike, *, rng: np.random.Generator) -> FloatArray:
    r"""Draw one m x n matrix Z with :math:`\operatorname{vec} Z \sim N(0, \Psi \otimes \Sigma)`."""
    row, col = as_covariance(row_cov, "row_cov"), as_covariance(col_cov, "col_cov")
    noise = row.colour(rng.standard_normal((row.size, col.size)))
    return noise if col.is_identity else col.colour(noise.T).T


@dataclass(frozen=True, eq=False)
class MatrixRelease:
    """A matrix released with directional Gaussian noise: what leaves the custodian."""

    values: FloatArray
    noise: MatrixGaussian
    sampler: SamplerName

    def __post_init__(self) -> None:
        instance(self.noise, MatrixGaussian, "noise", remedy="it is the noise that was drawn")
        array, shape = real_numbers(self.values, "values"), (self.noise.row_cov.size, self.noise.col_cov.size)
        if array.shape != shape or not np.all(np.isfinite(array)):
            raise InputError(f"values must be finite numbers of shape {shape}, as the noise has, got {array.shape}")
        one_of(self.sampler, get_args(SamplerName), "sampler")
        object.__setattr__(self, "values", array)

    @property
    def adjacency(self) -> str:
        """The neighbouring relation of the guarantee."""
        return self.noise.adjacency

    @property
    def digest(self) -> str:
        """SHA-256 of the released values and of their noise covariances."""
        seal = hashlib.sha256(repr((self.values.shape, self.adjacency, self.sampler)).encode())
        covariances = [getattr(c, key) for c in (self.noise.row_cov, self.noise.col_cov) for key in _PARTS]
        for array in (self.values, *covariances):
            seal.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return seal.hexdigest()


def release_records(
    records: npt.ArrayLike,
    noise: MatrixGaussian,
    *,
    ranges: FeatureRanges,
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    ledger_delta: float = 0.0,
    purpose: str = "records with matrix Gaussian noise",
) -> MatrixRelease:
    r"""Release records (the identity query) with matrix Gaussian noise.

    Records are clipped to `ranges` first. For a real release (`rng` None) the clipped matrix is moved to the
    coordinates in which the noise is standard, passed through OpenDP's Gaussian sampler there, which draws the noisy
    value on the lattice of spacing 2^-1074, and moved back. Rounding while moving can change the distance of two
    neighbours by some 2^-50 of the ranges; the noise is larger by that much, so that the stated mu holds.

    Parameters
    ----------
    records
        Matrix of shape (m, n), columns are records.
    noise
        Law and privacy cost, for example from `calibrate`. Its sensitivity set must cover `ranges`.
    ranges
        Bounds of the features from the specification, with the adjacency.
    rng
        None draws from OpenDP (about 0.1 ms a value); a NumPy generator simulates, and the result says so.
    ledger
        Privacy-budget ledger in which the release is reserved before noise is drawn and confirmed with its digest.
    ledger_delta
        Share of the ledger's delta that a ledger of plain addition charges.
    purpose
        What the ledger's entry says this was for. Public text.

    Raises
    ------
    InputError
        If a shape does not fit, the adjacencies differ, or the ranges reach outside the noise's sensitivity set. No
        message shows a value of the records.
    BudgetExceededError
        If the ledger has too little left. Nothing is drawn then.

    Examples
    --------
    >>> from dpbayes.mvg import calibrate
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 9.0], "replace-one")
    >>> noise = calibrate([[1.0, 0.0], [0.0, 4.0]], Covariance.identity(1), ranges, epsilon=1.0, delta=1e-5)
    >>> release_records([[0.2], [3.0]], noise, ranges=ranges).sampler
    'opendp'
    """
    source = sampler_name(rng)
    instance(noise, MatrixGaussian, "noise", remedy="calibrate returns one")
    instance(ranges, FeatureRanges, "ranges", remedy="it states the bounds of the features")
    _check_covers(noise, ranges)
    values = clip_records(records, ranges)
    if values.shape != noise.shape:
        raise InputError(f"records have shape {values.shape} but the noise is {noise.shape}")

    def drawn() -> MatrixRelease:
        if rng is not None:
            released = draw(noise.row_cov, noise.col_cov, rng=rng)
            released += values
            return MatrixRelease(released, noise, source)
        middle = ((ranges.lower + ranges.upper) / 2.0)[:, None]
        white = _whiten(values - middle, noise.row_cov, noise.col_cov)
        # Neighbours are mu apart before rounding, at most mu + slack after it; unit noise times this ratio covers both.
        stddev = 1.0 + _rounding_slack(noise, ranges) / noise.mu.value
        noisy = release_values(white, Gaussian(stddev))
        return MatrixRelease(_colour(noisy, noise.row_cov, noise.col_cov) + middle, noise, source)

    return _released(drawn, noise, "matrix-gaussian", purpose=purpose, rng=rng, ledger=ledger, delta=ledger_delta)


def _released[R: Digested](
    drawn: Callable[[], R], noise: MatrixGaussian | SymmetricGaussian, mechanism: str, **how: Any
) -> R:
    """Charge the ledger, draw and confirm; in the coordinates in which the noise is standard its sensitivity is mu."""
    parts = [Part(Gaussian(1.0), noise.mu.value)]
    return reserve_draw_confirm(drawn, parts, mechanism=mechanism, adjacency=noise.adjacency, **how)


def _check_covers(noise: MatrixGaussian, ranges: FeatureRanges) -> None:
    """Refuse noise whose stated sensitivity set does not hold every change the ranges allow."""
    if noise.adjacency != ranges.adjacency:
        raise InputError(f"the noise is made for {noise.adjacency}, the ranges for {ranges.adjacency}; use one")
    if noise.row_cov.size != ranges.size:
        raise InputError(f"the noise has {noise.row_cov.size} features, the ranges have {ranges.size}")
    needed = exact_mu(noise.row_cov, noise.col_cov, ranges).value
    if needed > noise.mu.value * (1.0 + 1e-9):
        raise InputError(
            f"under these ranges the noise costs mu = {needed:.6g}, above the {noise.mu.value:.6g} of its sensitivity "
            f"set; recalibrate with the ranges or with a Frobenius radius of at least {ranges.frobenius:.6g}"
        )


def _whiten(values: FloatArray, row: Covariance, col: Covariance) -> FloatArray:
    half = row.whiten(values)
    return half if col.is_identity else col.whiten(half.T).T


def _colour(values: FloatArray, row: Covariance, col: Covariance) -> FloatArray:
    half = row.colour(values)
    return half if col.is_identity else col.colour(np.ascontiguousarray(half.T)).T


def _rounding_slack(noise: MatrixGaussian, ranges: FeatureRanges) -> float:
    r"""Bound how far rounding in `_whiten` moves the difference of two neighbours, in the Euclidean norm."""
    m, n = noise.shape
    row, col = noise.row_cov, noise.col_cov
    largest = row.white_reach(ranges.widths / 2.0)
    terms, entries = float(m), 1.0
    if not col.is_identity:
        spread = 1.0 if col.is_diagonal else math.sqrt(n)
        largest = largest * spread / math.sqrt(col.smallest)
        terms, entries = (m + 1.0, 1.0) if col.is_diagonal else (float(m + n), math.sqrt(n))
    return 2.0 * (terms + 4.0) * 2.0**-52 * entries * float(np.linalg.norm(largest))


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

    value: FloatArray
    noise: SymmetricGaussian
    sampler: SamplerName

    def __post_init__(self) -> None:
        instance(self.noise, SymmetricGaussian, "noise", remedy="it is the noise that was drawn")
        array = matrix(self.value, (self.noise.query.size,) * 2, "value", symmetric=True)
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
    def privacy_record(self) -> dict[str, Any]:
        """What the release cost, as a trace records it."""
        return {
            "mechanism": "symmetric-gaussian",
            "mu": self.noise.mu.value,
            "mu_known_by": self.noise.mu.method,
            "adjacency": self.adjacency,
            "protects": self.query.protects,
            "sampler": self.sampler,
        }

    def _body(self) -> dict[str, Any]:
        ranges, query, shape = self.query.ranges, self.query, self.noise.shape
        assert isinstance(shape, Covariance) and query.centre is not None
        parts = {key: getattr(shape, key) for key in _PARTS}
        return {
            "value": self.value.tolist(),
            "stddev": self.noise.stddev,
            "shape": {key: None if part is None else part.tolist() for key, part in parts.items()},
            "n": int(query.n),
            "features": None if query.features is None else list(query.features),
            "unit": query.unit,
            "rows_per_unit": query.rows_per_unit,
            "centre": query.centre.tolist(),
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
        query = MomentQuery(ranges, body["n"], body["centre"], body["intercept"], *names)
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
            result[0, 0] = query.intercept**2  # a public constant
        return MomentRelease(result, noise, source)

    return _released(drawn, noise, "symmetric-gaussian", purpose=purpose, rng=rng, ledger=ledger, delta=ledger_delta)


def _moment_slack(noise: SymmetricGaussian) -> float:
    """Bound the Frobenius norm of the rounding error in the whitened moments of two neighbours together."""
    row = noise.row_cov
    n = noise.query.n * (2 if noise.adjacency == "add-remove" else 1)
    centre, half = noise.query.box
    largest = np.abs(centre) + half
    if noise.query.intercept is not None:
        largest = np.concatenate([[noise.query.intercept], largest])
    white = row.white_reach(largest)
    terms = n + 2 * row.size + 16
    return 2.0 * terms * 2.0**-53 * float(white @ white) * n / noise.query.n
