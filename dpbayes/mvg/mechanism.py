"""Drawing matrix Gaussian noise and releasing a matrix through it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, real_numbers, shown
from dpbayes.errors import InputError
from dpbayes.mvg.accounting import MatrixGaussian, exact_mu
from dpbayes.mvg.booking import reserve_gaussian
from dpbayes.mvg.clipping import ClippedRecords, inside_ranges
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.privacy.noise import Gaussian
from dpbayes.privacy.sampling import SamplerName, release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

__all__ = ["MatrixRelease", "draw", "release_records"]

type FloatArray = npt.NDArray[np.float64]


def draw(row_cov: CovarianceLike, col_cov: CovarianceLike, *, rng: np.random.Generator) -> FloatArray:
    r"""Draw one m x n matrix Z with :math:`\operatorname{vec} Z \sim N(0, \Psi \otimes \Sigma)`.

    One table of standard normals and one m x m product; an identity (`Covariance.identity`) is never formed, let alone
    factored, and a diagonal covariance scales in place. **For simulation**: a generator is predictable. A release
    goes through `release_records`.

    Parameters
    ----------
    row_cov, col_cov
        Sigma (m x m) and Psi (n x n): `Covariance` objects or matrices.
    rng
        Generator to draw from.

    Returns
    -------
    numpy.ndarray
        The noise, shape (m, n), in the unit of the covariances' square roots.

    Raises
    ------
    InputError
        If a covariance is not symmetric positive definite.

    Examples
    --------
    >>> draw([[4.0, 1.0], [1.0, 9.0]], Covariance.identity(5), rng=np.random.default_rng(3)).shape
    (2, 5)
    """
    row, col = as_covariance(row_cov, "row_cov"), as_covariance(col_cov, "col_cov")
    noise = row.colour(rng.standard_normal((row.size, col.size)))
    return noise if col.is_identity else col.colour(noise.T).T


@dataclass(frozen=True, eq=False)
class MatrixRelease:
    """A matrix released with directional Gaussian noise: what leaves the custodian.

    Parameters
    ----------
    values
        Released matrix, shape (m, n). Noise is unbounded, so values leave the ranges; nothing rescales them back.
    noise
        The law of the noise and its price: `epsilon(delta)` and `delta(epsilon)`, with the adjacency.
    sampler
        ``"opendp"`` for a release, ``"simulation"`` for a draw from a NumPy generator, which carries no guarantee.

    Examples
    --------
    >>> from dpbayes.mvg import calibrate
    >>> ranges = FeatureRanges([0.0], [1.0], "replace-one")
    >>> noise = calibrate([[1.0]], Covariance.identity(3), ranges, epsilon=1.0, delta=1e-5)
    >>> release = release_records([[0.1, 0.5, 0.9]], noise, ranges=ranges, rng=np.random.default_rng(1))
    >>> release.sampler, release.values.shape, round(release.epsilon(1e-5), 6), release.adjacency
    ('simulation', (1, 3), 1.0, 'replace-one')
    """

    values: FloatArray
    noise: MatrixGaussian
    sampler: SamplerName

    def __post_init__(self) -> None:
        instance(self.noise, MatrixGaussian, "noise", remedy="it is the noise that was drawn")
        array, shape = real_numbers(self.values, "values"), (self.noise.row_cov.size, self.noise.col_cov.size)
        if array.shape != shape or not np.all(np.isfinite(array)):
            raise InputError(f"values must be finite numbers of shape {shape}, as the noise has, got {array.shape}")
        if not isinstance(self.sampler, str) or self.sampler not in ("opendp", "simulation"):
            raise InputError(f"sampler must be 'opendp' or 'simulation', got {shown(self.sampler)}")
        object.__setattr__(self, "values", array)

    @property
    def adjacency(self) -> str:
        """The neighbouring relation of the guarantee."""
        return self.noise.adjacency

    @property
    def digest(self) -> str:
        """SHA-256 of the released values and of their noise covariances."""
        seal = hashlib.sha256(repr((self.values.shape, self.adjacency, self.sampler)).encode())
        for array in (self.values, *(_parts(self.noise.row_cov)), *(_parts(self.noise.col_cov))):
            seal.update(np.ascontiguousarray(array).tobytes())
        return seal.hexdigest()

    def epsilon(self, delta: float) -> float:
        """Return the exact epsilon at this `delta`."""
        return self.noise.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Return the exact delta at this `epsilon`."""
        return self.noise.delta(epsilon)


def release_records(
    records: npt.ArrayLike | ClippedRecords,
    noise: MatrixGaussian,
    *,
    ranges: FeatureRanges,
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    ledger_delta: float = 0.0,
    purpose: str = "records with matrix Gaussian noise",
) -> MatrixRelease:
    r"""Release records (the identity query) with matrix Gaussian noise.

    Records are clipped to `ranges` first, clipped ones once more. For a real release (`rng` None) the clipped matrix is
    moved to the coordinates in which the noise is standard, passed through OpenDP's Gaussian sampler there, which draws
    the noisy value on the lattice of spacing 2^-1074, and moved back. Rounding while moving can change the distance of
    two neighbours by some 2^-50 of the ranges; the noise is larger by that much, so that the stated mu holds.

    Parameters
    ----------
    records
        Matrix of shape (m, n), columns are records; or the result of `clip_records` with the same `ranges`.
    noise
        Law and price, for example from `calibrate`. Its sensitivity set must cover `ranges`.
    ranges
        Bounds of the features from the specification, with the adjacency.
    rng
        None draws from OpenDP (about 0.1 ms a value); a NumPy generator simulates, and the result says so.
    ledger
        Budget book in which the release is reserved before noise is drawn and confirmed with its digest.
    ledger_delta
        Share of the book's delta that a book of plain addition charges.
    purpose
        What the ledger's entry says this was for. Public text.

    Returns
    -------
    MatrixRelease
        Released values with their law.

    Raises
    ------
    InputError
        If a shape does not fit, the adjacencies differ, the records were clipped to other ranges, or the ranges reach
        outside the noise's sensitivity set. No message shows a value of the records.
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
    _check_covers(noise, ranges)
    values = inside_ranges(records, ranges)
    if values.shape != noise.shape:
        raise InputError(f"records have shape {values.shape} but the noise is {noise.shape}")
    entry = reserve_gaussian(
        ledger,
        mechanism="matrix-gaussian",
        mu=noise.mu.value,
        adjacency=noise.adjacency,
        purpose=purpose,
        delta=ledger_delta,
        rng=rng,
    )
    if rng is not None:
        released = draw(noise.row_cov, noise.col_cov, rng=rng)
        released += values
        return MatrixRelease(released, noise, source)
    middle = ((ranges.lower + ranges.upper) / 2.0)[:, None]
    white = _whiten(values - middle, noise.row_cov, noise.col_cov)
    # Neighbours are mu apart before rounding and at most mu + slack after it; unit noise times this ratio covers both.
    stddev = 1.0 + _rounding_slack(noise, ranges) / noise.mu.value
    noisy = release_values(white, Gaussian(stddev))
    release = MatrixRelease(_colour(noisy, noise.row_cov, noise.col_cov) + middle, noise, source)
    if ledger is not None and entry is not None:
        ledger.confirm(entry, release.digest)
    return release


def _check_covers(noise: MatrixGaussian, ranges: FeatureRanges) -> None:
    """Refuse noise whose stated sensitivity set does not hold every change the ranges allow."""
    if noise.adjacency != ranges.adjacency:
        raise InputError(f"the noise is priced under {noise.adjacency}, the ranges under {ranges.adjacency}; use one")
    if noise.row_cov.size != ranges.size:
        raise InputError(f"the noise has {noise.row_cov.size} features, the ranges have {ranges.size}")
    needed = exact_mu(noise.row_cov, noise.col_cov, ranges).value
    if needed > noise.mu.value * (1.0 + 1e-9):
        raise InputError(
            f"under these ranges the noise costs mu = {needed:.6g}, above the {noise.mu.value:.6g} of its sensitivity "
            f"set; recalibrate with the ranges or with a Frobenius radius of at least {ranges.frobenius:.6g}"
        )


def _parts(covariance: Covariance) -> list[FloatArray]:
    return [part for part in (covariance.variances, covariance.directions) if part is not None]


def _whiten(values: FloatArray, row: Covariance, col: Covariance) -> FloatArray:
    half = row.whiten(values)
    return half if col.is_identity else col.whiten(half.T).T


def _colour(values: FloatArray, row: Covariance, col: Covariance) -> FloatArray:
    half = row.colour(values)
    return half if col.is_identity else col.colour(np.ascontiguousarray(half.T)).T


def _rounding_slack(noise: MatrixGaussian, ranges: FeatureRanges) -> float:
    r"""Bound how far rounding in `_whiten` moves the difference of two neighbours, in the Euclidean norm.

    A sum of k products carries an error of at most (k + 2) 2^-52 times the sum of absolute products, and the absolute
    products of row i are at most :math:`\sum_k |W_{ki}| (u_k - l_k) / (2\sqrt{v_i})`. Both neighbours err; with
    general columns every entry does.
    """
    m, n = noise.shape
    row, col = noise.row_cov, noise.col_cov
    basis = np.eye(m) if row.directions is None else np.abs(row.directions)
    scales = np.ones(m) if row.variances is None else np.sqrt(row.variances)
    largest = basis.T @ (ranges.widths / 2.0) / scales
    terms, entries = float(m), 1.0
    if not col.is_identity:
        spread = 1.0 if col.is_diagonal else math.sqrt(n)
        largest = largest * spread / math.sqrt(col.smallest)
        terms, entries = (m + 1.0, 1.0) if col.is_diagonal else (float(m + n), math.sqrt(n))
    return 2.0 * (terms + 4.0) * 2.0**-52 * entries * float(np.linalg.norm(largest))
