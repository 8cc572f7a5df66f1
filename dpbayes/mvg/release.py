"""Matrix Gaussian noise drawn, and records released through it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, one_of, real_numbers
from dpbayes.errors import InputError
from dpbayes.mvg.cost import MatrixGaussian, exact_mu
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.mvg.sensitivity import FeatureRanges, clip_records
from dpbayes.privacy.laws import Gaussian
from dpbayes.privacy.mechanism import Part, reserve_draw_confirm
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

    return reserve_draw_confirm(
        drawn,
        [Part(Gaussian(1.0), noise.mu.value)],  # in the coordinates in which the noise is standard
        mechanism="matrix-gaussian",
        adjacency=noise.adjacency,
        purpose=purpose,
        rng=rng,
        ledger=ledger,
        delta=ledger_delta,
    )


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
