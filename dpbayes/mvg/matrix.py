r"""Gaussian noise for matrices: its covariances, its exact privacy cost, and records released with it.

With :math:`\operatorname{vec} Z \sim N(0, \Psi \otimes \Sigma)` two neighbouring values that differ by Delta give two
Gaussians whose distance is :math:`\|\Sigma^{-1/2} \Delta \Psi^{-1/2}\|_F`. So this is the Gaussian mechanism with
:math:`\mu = \sup_\Delta \|\Sigma^{-1/2} \Delta \Psi^{-1/2}\|_F`, and its privacy curve the analytic Gaussian one
(Balle and Wang 2018; Dong, Roth and Su 2022). Nothing else about the covariances or the query's value enters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import (
    Floats,
    instance,
    one_of,
    positive_finite,
    probability_below_one,
    real_numbers,
    whole_number,
)
from dpbayes.errors import InputError
from dpbayes.mvg.sensitivity import (
    FeatureRanges,
    FrobeniusBall,
    Maximum,
    Sensitivity,
    box_maximum,
    check_sensitivity,
    clip_records,
)
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.curves import gaussian_delta, gaussian_epsilon, gaussian_stddev
from dpbayes.privacy.laws import Gaussian
from dpbayes.privacy.mechanism import Digested, Part, reserve_draw_confirm
from dpbayes.privacy.sampling import SamplerName, release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger


COVARIANCE_PARTS = ("variances", "directions")
# Rounding in a QR or an eigendecomposition leaves about m * 2^-52 in W'W; anything above this is no orthonormal basis.
_ORTHONORMAL = 1e-9


@dataclass(frozen=True, eq=False)
class Covariance:
    r"""A symmetric positive definite matrix :math:`W \operatorname{diag}(v) W^T`.

    Parameters
    ----------
    size
        Number of rows.
    variances
        The eigenvalues v, shape (size,), all positive and finite. None means all ones.
    directions
        Orthonormal W, shape (size, size); column i is the direction with variance ``variances[i]``.
        None means the coordinate axes, and then the matrix is diagonal.

    Examples
    --------
    >>> Covariance.diagonal([1.0, 4.0]).matrix()
    array([[1., 0.],
           [0., 4.]])
    >>> Covariance.identity(350_000).is_identity
    True
    """

    size: int
    variances: Floats | None = None
    directions: Floats | None = None

    def __post_init__(self) -> None:
        whole_number(self.size, "size", high=2**53, remedy="it is the number of rows")
        if self.variances is not None:
            values = np.array(real_numbers(self.variances, "variances"))
            if values.shape != (self.size,):
                raise InputError(f"variances must have shape ({self.size},), got {values.shape}")
            if not np.all(good := np.isfinite(values) & (values > 0)):
                raise InputError(f"variances must be positive and finite, got {values[~good][0]:g}; all need noise")
            values.flags.writeable = False
            object.__setattr__(self, "variances", values)
        if self.directions is not None:
            object.__setattr__(self, "directions", check_directions(self.directions, int(self.size)))

    @classmethod
    def identity(cls, size: int) -> Covariance:
        """Return the identity of `size` rows, without storing it."""
        return cls(size)

    @classmethod
    def diagonal(cls, variances: npt.ArrayLike) -> Covariance:
        """Return the diagonal covariance with these `variances`."""
        values = np.atleast_1d(real_numbers(variances, "variances"))
        return cls(values.shape[0], values)

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike, name: str = "covariance") -> Covariance:
        """Return the covariance equal to `matrix`: positive definite, and symmetric to 1e-10 of its largest entry."""
        values = np.atleast_2d(real_numbers(matrix, name))
        if values.ndim != 2 or values.shape[0] != values.shape[1]:
            raise InputError(f"{name} must be a square matrix, got shape {values.shape}")
        if not np.all(np.isfinite(values)):
            raise InputError(f"{name} must be finite, got a NaN or an infinity; check the inputs it was built from")
        gap = float(np.max(np.abs(values - values.T)))
        if gap > 1e-10 * float(np.max(np.abs(values))):
            raise InputError(f"{name} must be symmetric, but differs from its transpose by {gap:g}")
        if np.count_nonzero(values - np.diag(np.diagonal(values))) == 0:
            return cls.diagonal(np.diagonal(values))  # exact, however far apart
        eigenvalues, vectors = np.linalg.eigh((values + values.T) / 2.0)
        # Below this the inverse is rounding error, and the privacy cost with it.
        if not eigenvalues[0] > 1e-13 * np.max(np.abs(eigenvalues)):
            raise InputError(
                f"{name} must be positive definite, its eigenvalues within a factor of 1e13, but they go from "
                f"{eigenvalues[0]:g} to {eigenvalues[-1]:g}; a direction without noise gives no privacy"
            )
        return cls(values.shape[0], eigenvalues, vectors)

    @property
    def is_identity(self) -> bool:
        """Whether this is the identity by construction."""
        return self.variances is None

    @property
    def is_diagonal(self) -> bool:
        """Whether the directions are the coordinate axes."""
        return self.variances is None or self.directions is None

    @property
    def eigenvalues(self) -> Floats:
        """The variances along the directions, shape (size,)."""
        return np.ones(self.size) if self.variances is None else self.variances

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue."""
        return float(np.min(self.eigenvalues))

    @property
    def precision_diagonal(self) -> Floats:
        """The diagonal of the inverse, shape (size,)."""
        return self._diagonal(1.0 / self.eigenvalues)

    @property
    def marginal_variances(self) -> Floats:
        """The diagonal, shape (size,): the noise variance of each coordinate."""
        return self._diagonal(self.eigenvalues)

    def matrix(self) -> Floats:
        """Return the dense matrix, shape (size, size)."""
        return self._spectral(self.eigenvalues)

    def precision(self) -> Floats:
        """Return the dense inverse, shape (size, size)."""
        return self._spectral(1.0 / self.eigenvalues)

    def scaled(self, factor: float) -> Covariance:
        """Return this covariance times a positive `factor`."""
        return Covariance(self.size, self.eigenvalues * factor, self.directions)

    def colour(self, array: Floats) -> Floats:
        """Return ``W diag(sqrt(v)) array``: rows of independent unit noise become rows with this covariance.

        A diagonal covariance scales `array` in place and returns it; an identity returns it untouched.
        """
        if self.variances is None:
            return array
        scales = np.sqrt(self.variances)
        if self.directions is None:
            array *= scales.reshape(-1, *[1] * (array.ndim - 1))
            return array
        return np.asarray((self.directions * scales) @ array)

    def whiten(self, array: Floats) -> Floats:
        """Return ``diag(1 / sqrt(v)) W' array``, the inverse of `colour`; `array` is left alone."""
        if self.variances is None:
            return np.array(array, dtype=float)
        scales = np.sqrt(self.variances).reshape(-1, *[1] * (array.ndim - 1))
        rotated = array if self.directions is None else self.directions.T @ array
        return np.asarray(rotated / scales)

    def white_reach(self, reach: Floats) -> Floats:
        """Return bounds of the absolute entries of `whiten` on columns whose entries are at most `reach` in size."""
        rotated = reach if self.directions is None else np.abs(self.directions).T @ reach
        return rotated / np.sqrt(self.eigenvalues)

    def _diagonal(self, values: Floats) -> Floats:
        return values.copy() if self.directions is None else np.asarray((self.directions**2) @ values)

    def _spectral(self, values: Floats) -> Floats:
        if self.directions is None:
            return np.diag(values)
        product = (self.directions * values) @ self.directions.T
        return np.asarray((product + product.T) / 2.0)


type CovarianceLike = Covariance | npt.ArrayLike


def as_covariance(value: Any, name: str, *, size: int | None = None) -> Covariance:
    """Return `value` as a `Covariance`, of `size` rows if that is known, or raise `InputError`."""
    cov = value if isinstance(value, Covariance) else Covariance.from_matrix(value, name)
    if size is not None and cov.size != size:
        raise InputError(f"{name} must have {size} rows to fit the other shapes, got {cov.size}")
    return cov


def check_directions(directions: npt.ArrayLike, size: int) -> Floats:
    """Return `directions` as an orthonormal (size, size) array, one direction per column, or raise `InputError`."""
    basis = real_numbers(directions, "directions")
    if basis.shape != (size, size):
        raise InputError(f"directions must have shape ({size}, {size}), one column per direction, got {basis.shape}")
    gap = float(np.max(np.abs(basis.T @ basis - np.eye(size)))) if np.all(np.isfinite(basis)) else math.inf
    if not gap <= _ORTHONORMAL:
        raise InputError(
            f"directions must be orthonormal, but W'W differs from the identity by {gap:g}; take the eigenvectors of a "
            "symmetric matrix or the Q of a QR decomposition"
        )
    return basis


def mu_for(epsilon: float, delta: float) -> float:
    """Return the mu (sensitivity over stddev) of the Gaussian mechanism that just satisfies (epsilon, delta)."""
    budget = positive_finite(epsilon, "epsilon", remedy="it is the privacy parameter of the release")
    tail = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / n")
    return 1.0 / gaussian_stddev(1.0, budget, tail)


def exact_mu(row_cov: CovarianceLike, col_cov: CovarianceLike, sensitivity: Sensitivity) -> Maximum:
    r"""Return mu of the noise N(0, col_cov kron row_cov) under a sensitivity set, and how it is known.

    For a Frobenius ball, :math:`\mu = s / \sqrt{\lambda_{\min}(\Sigma) \lambda_{\min}(\Psi)}`,
    attained at the two bottom eigenvectors. When one column changes by d,
    :math:`\|\Sigma^{-1/2} d e_j^T \Psi^{-1/2}\|_F^2 = d^T \Sigma^{-1} d \, (\Psi^{-1})_{jj}`, so
    :math:`\mu^2 = \max_j (\Psi^{-1})_{jj} \max_d d^T \Sigma^{-1} d`: over feature ranges a sum when Sigma is diagonal
    and otherwise a maximum over vertices.
    """
    row, col = as_covariance(row_cov, "row_cov"), as_covariance(col_cov, "col_cov")
    check_sensitivity(sensitivity)
    if isinstance(sensitivity, FrobeniusBall):
        return Maximum(sensitivity.radius / math.sqrt(row.smallest * col.smallest), "closed form")
    if sensitivity.size != row.size:
        raise InputError(f"the sensitivity has {sensitivity.size} features but row_cov has {row.size} rows")
    column = math.sqrt(float(np.max(col.precision_diagonal)))
    if row.is_diagonal:
        record = Maximum(float(row.precision_diagonal @ sensitivity.reach**2), "closed form")
    else:
        record = box_maximum(row.precision(), sensitivity.reach)
    return Maximum(column * math.sqrt(record.value), record.method)


class GaussianCost:
    """What a Gaussian mechanism costs, as a function of its mu: a number, or an upper bound where that is known."""

    mu: Any  # a Maximum, that each kind of noise finds its own way
    adjacency: Any  # the neighbouring relation of the guarantee

    @property
    def rho(self) -> float:
        """The zero-concentrated privacy parameter, mu squared over two."""
        return self.mu.value * self.mu.value / 2.0  # infinite, not an error, where it is beyond the largest number

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at this `delta`."""
        return gaussian_epsilon(self.mu.value, delta)

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta at this `epsilon`."""
        return gaussian_delta(self.mu.value, epsilon)


@dataclass(frozen=True, eq=False)
class MatrixGaussian(GaussianCost):
    """Gaussian matrix noise of row covariance Sigma and column covariance Psi, with its exact privacy cost `mu`."""

    row_cov: Covariance
    col_cov: Covariance
    sensitivity: Sensitivity
    mu: Maximum = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_cov", as_covariance(self.row_cov, "row_cov"))
        object.__setattr__(self, "col_cov", as_covariance(self.col_cov, "col_cov"))
        object.__setattr__(self, "mu", exact_mu(self.row_cov, self.col_cov, self.sensitivity))

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.sensitivity.adjacency

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the noise."""
        return self.row_cov.size, self.col_cov.size


def calibrate(
    row_shape: CovarianceLike, col_shape: CovarianceLike, sensitivity: Sensitivity, *, epsilon: float, delta: float
) -> MatrixGaussian:
    """Scale a covariance of any shape until the noise satisfies (epsilon, delta) exactly.

    Parameters
    ----------
    row_shape, col_shape
        Sigma and Psi up to a factor. The factor goes to the rows.
    sensitivity
        As in `exact_mu`.
    epsilon, delta
        The guarantee.

    Returns
    -------
    MatrixGaussian
        Its ``mu`` is the largest that (epsilon, delta) allows; where mu is only bounded above, the bound is.

    Examples
    --------
    >>> noise = calibrate([[1.0]], Covariance.identity(10), FrobeniusBall(1.0, "replace-one"), epsilon=1.0, delta=1e-5)
    >>> round(noise.row_cov.marginal_variances.item() ** 0.5, 6)
    3.730632
    """
    row = as_covariance(row_shape, "row_shape")
    unit = exact_mu(row, col_shape, sensitivity).value
    target = mu_for(epsilon, delta)
    return MatrixGaussian(row.scaled((unit / target) ** 2), as_covariance(col_shape, "col_shape"), sensitivity)


def draw(row_cov: CovarianceLike, col_cov: CovarianceLike, *, rng: np.random.Generator) -> Floats:
    r"""Draw one m x n matrix Z with :math:`\operatorname{vec} Z \sim N(0, \Psi \otimes \Sigma)`."""
    row, col = as_covariance(row_cov, "row_cov"), as_covariance(col_cov, "col_cov")
    return _colour(rng.standard_normal((row.size, col.size)), row, col)


@dataclass(frozen=True, eq=False)
class MatrixRelease:
    """A matrix released with directional Gaussian noise: what leaves the custodian."""

    values: Floats
    noise: MatrixGaussian
    sampler: SamplerName

    def __post_init__(self) -> None:
        instance(self.noise, MatrixGaussian, "noise", remedy="it is the noise that was drawn")
        array, shape = real_numbers(self.values, "values"), self.noise.shape
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
        covariances = [getattr(c, key) for c in (self.noise.row_cov, self.noise.col_cov) for key in COVARIANCE_PARTS]
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
    coordinates in which the noise is standard, passed through OpenDP's Gaussian sampler there, and moved back. Rounding
    on the way can change the distance of two neighbours by some 2^-50 of the ranges; the noise is larger by that much,
    so that the stated mu holds.

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
            return MatrixRelease(values + draw(noise.row_cov, noise.col_cov, rng=rng), noise, source)
        middle = ranges.middle[:, None]
        white = _whiten(values - middle, noise.row_cov, noise.col_cov)
        # Neighbours are mu apart before rounding, at most mu + slack after it; unit noise times this ratio covers both.
        stddev = 1.0 + _rounding_slack(noise, ranges) / noise.mu.value
        noisy = _colour(release_values(white, Gaussian(stddev)), noise.row_cov, noise.col_cov)
        return MatrixRelease(noisy + middle, noise, source)

    return released(drawn, noise, "matrix-gaussian", purpose=purpose, rng=rng, ledger=ledger, delta=ledger_delta)


def released[R: Digested](drawn: Callable[[], R], noise: GaussianCost, mechanism: str, **how: Any) -> R:
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


def _whiten(values: Floats, row: Covariance, col: Covariance) -> Floats:
    half = row.whiten(values)
    return half if col.is_identity else col.whiten(half.T).T


def _colour(values: Floats, row: Covariance, col: Covariance) -> Floats:
    half = row.colour(values)
    return half if col.is_identity else col.colour(np.ascontiguousarray(half.T)).T


def _rounding_slack(noise: MatrixGaussian, ranges: FeatureRanges) -> float:
    r"""Bound how far rounding in `_whiten` moves the difference of two neighbours, in the Euclidean norm."""
    (m, n), row, col = noise.shape, noise.row_cov, noise.col_cov
    largest = row.white_reach(ranges.widths / 2.0)
    terms, entries = float(m), 1.0
    if not col.is_identity:
        spread = 1.0 if col.is_diagonal else math.sqrt(n)
        largest = largest * spread / math.sqrt(col.smallest)
        terms, entries = (m + 1.0, 1.0) if col.is_diagonal else (float(m + n), math.sqrt(n))
    return 2.0 * (terms + 4.0) * 2.0**-52 * entries * float(np.linalg.norm(largest))
