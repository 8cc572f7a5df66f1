"""`Covariance`: a row or column covariance kept as directions and variances, so that an identity costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import real_numbers, whole_number
from dpbayes.errors import InputError

type FloatArray = npt.NDArray[np.float64]

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
    variances: FloatArray | None = None
    directions: FloatArray | None = None

    def __post_init__(self) -> None:
        whole_number(self.size, "size", high=2**53, remedy="it is the number of rows")
        if self.variances is not None:
            object.__setattr__(self, "variances", _check_variances(self.variances, int(self.size)))
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
        """Return the covariance equal to `matrix`, or raise `InputError` when it is not symmetric positive definite.

        Symmetric means equal to its transpose within 1e-10 of its largest entry.
        """
        try:
            values = np.atleast_2d(np.asarray(matrix, dtype=float))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{name} must be a matrix of numbers, got {type(matrix).__name__}") from error
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
        return cls(values.shape[0], _positive_eigenvalues(eigenvalues, name), vectors)

    @property
    def is_identity(self) -> bool:
        """Whether this is the identity by construction."""
        return self.variances is None

    @property
    def is_diagonal(self) -> bool:
        """Whether the directions are the coordinate axes."""
        return self.variances is None or self.directions is None

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue."""
        return 1.0 if self.variances is None else float(np.min(self.variances))

    @property
    def precision_norm(self) -> float:
        r"""The norm :math:`\|\sigma(\Sigma^{-1})\|_2` of Theorem 2."""
        return math.sqrt(self.size) if self.variances is None else float(np.linalg.norm(1.0 / self.variances))

    @property
    def precision_diagonal(self) -> FloatArray:
        """The diagonal of the inverse, shape (size,)."""
        if self.variances is None:
            return np.ones(self.size)
        if self.directions is None:
            return 1.0 / self.variances
        return np.asarray((self.directions**2) @ (1.0 / self.variances))

    @property
    def marginal_variances(self) -> FloatArray:
        """The diagonal, shape (size,): the noise variance of each coordinate."""
        if self.variances is None:
            return np.ones(self.size)
        if self.directions is None:
            return self.variances.copy()
        return np.asarray((self.directions**2) @ self.variances)

    def matrix(self) -> FloatArray:
        """Return the dense matrix, shape (size, size)."""
        return self._spectral(1.0)

    def precision(self) -> FloatArray:
        """Return the dense inverse, shape (size, size)."""
        return self._spectral(-1.0)

    def scaled(self, factor: float) -> Covariance:
        """Return this covariance times a positive `factor`."""
        values = np.ones(self.size) if self.variances is None else self.variances
        return Covariance(self.size, values * factor, self.directions)

    def colour(self, array: FloatArray) -> FloatArray:
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

    def whiten(self, array: FloatArray) -> FloatArray:
        """Return ``diag(1 / sqrt(v)) W' array``, the inverse of `colour`; `array` is left alone."""
        if self.variances is None:
            return np.array(array, dtype=float)
        scales = np.sqrt(self.variances).reshape(-1, *[1] * (array.ndim - 1))
        rotated = array if self.directions is None else self.directions.T @ array
        return np.asarray(rotated / scales)

    def white_reach(self, reach: FloatArray) -> FloatArray:
        """Return bounds of the absolute entries of `whiten` on columns whose entries are at most `reach` in size."""
        rotated = reach if self.directions is None else np.abs(self.directions).T @ reach
        return rotated if self.variances is None else rotated / np.sqrt(self.variances)

    def _spectral(self, power: float) -> FloatArray:
        if self.variances is None:
            return np.eye(self.size)
        values = self.variances**power
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


def check_directions(directions: npt.ArrayLike, size: int) -> FloatArray:
    """Return `directions` as an orthonormal (size, size) array, or raise `InputError`."""
    basis = real_numbers(directions, "directions")
    if basis.shape != (size, size):
        raise InputError(f"directions must have shape ({size}, {size}), one column a direction, got {basis.shape}")
    gap = float(np.max(np.abs(basis.T @ basis - np.eye(size)))) if np.all(np.isfinite(basis)) else math.inf
    if not gap <= _ORTHONORMAL:
        raise InputError(
            f"directions must be orthonormal, but W'W differs from the identity by {gap:g}; take the eigenvectors of a "
            "symmetric matrix or the Q of a QR decomposition"
        )
    return basis


def _check_variances(variances: npt.ArrayLike, size: int) -> FloatArray:
    values = np.array(real_numbers(variances, "variances"))
    if values.shape != (size,):
        raise InputError(f"variances must have shape ({size},), got {values.shape}")
    if not (np.all(np.isfinite(values)) and np.all(values > 0)):
        worst = values[~(np.isfinite(values) & (values > 0))][0]
        raise InputError(f"variances must be positive and finite, got {worst:g}; no direction may go without noise")
    values.flags.writeable = False
    return values


def _positive_eigenvalues(values: FloatArray, name: str) -> FloatArray:
    # Below this the inverse is rounding error, and the privacy price with it.
    floor = 1e-13 * float(np.max(np.abs(values)))
    if not float(np.min(values)) > floor:
        raise InputError(
            f"{name} must be positive definite, its eigenvalues within a factor of 1e13, but they go from "
            f"{float(np.min(values)):g} to {float(np.max(values)):g}; a direction without noise gives no privacy"
        )
    return values
