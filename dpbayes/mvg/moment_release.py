"""Releasing a moment matrix: `MomentRelease`, how it is made, and its file."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, real_numbers, shown
from dpbayes._files import write_text
from dpbayes.errors import DamagedFileError, DPBayesError, InputError
from dpbayes.mvg.booking import reserve_gaussian
from dpbayes.mvg.clipping import ClippedRecords
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.moments import MomentQuery
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.mvg.symmetric import SymmetricGaussian
from dpbayes.privacy.noise import Gaussian
from dpbayes.privacy.sampling import SamplerName, release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

__all__ = ["MomentRelease", "read_moments", "release_moments"]

type FloatArray = npt.NDArray[np.float64]

_SHAPE_KEYS = ("variances", "directions")


@dataclass(frozen=True, eq=False)
class MomentRelease:
    """A released moment matrix with its known noise: all that a regression needs.

    Parameters
    ----------
    value
        Released matrix, symmetric, shape (size, size). It need not be positive definite.
    noise
        The law of the noise and its price; holds the query (ranges, n, centre, intercept) and the adjacency.
    sampler
        ``"opendp"`` or ``"simulation"``.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments
    >>> noise = calibrate_moments(MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 3), epsilon=1.0, delta=1e-5)
    >>> release = release_moments([[0.0, 1.0, 0.5]], noise, rng=np.random.default_rng(1))
    >>> release.value.shape, release.sampler
    ((1, 1), 'simulation')
    """

    value: FloatArray
    noise: SymmetricGaussian
    sampler: SamplerName

    def __post_init__(self) -> None:
        instance(self.noise, SymmetricGaussian, "noise", remedy="it is the noise that was drawn")
        array, shape = real_numbers(self.value, "value"), (self.noise.row_cov.size,) * 2
        if array.shape != shape or not np.all(np.isfinite(array)):
            raise InputError(f"value must be finite numbers of shape {shape}, as the noise has, got {array.shape}")
        if not isinstance(self.sampler, str) or self.sampler not in ("opendp", "simulation"):
            raise InputError(f"sampler must be 'opendp' or 'simulation', got {shown(self.sampler)}")
        object.__setattr__(self, "value", array)

    @property
    def query(self) -> MomentQuery:
        """The question that was answered."""
        return self.noise.query

    def to_dict(self) -> dict[str, Any]:
        """Return the release as plain lists and numbers."""
        ranges, query, shape = self.query.ranges, self.query, self.noise.shape
        assert isinstance(shape, Covariance) and query.centre is not None
        return {
            "kind": "moments",
            "value": self.value.tolist(),
            "stddev": self.noise.stddev,
            "shape": {
                "variances": None if shape.variances is None else shape.variances.tolist(),
                "directions": None if shape.directions is None else shape.directions.tolist(),
            },
            "n": int(query.n),
            "centre": query.centre.tolist(),
            "intercept": query.intercept,
            "lower": ranges.lower.tolist(),
            "upper": ranges.upper.tolist(),
            "adjacency": ranges.adjacency,
            "sampler": self.sampler,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return _digest(self.to_dict())

    def write(self, path: str | Path) -> Path:
        """Write as JSON with its digest; the file is replaced only once the new one is complete."""
        return write_text(path, json.dumps(self.to_dict() | {"digest": self.digest}, indent=1) + "\n")


def read_moments(path: str | Path) -> MomentRelease:
    """Read a release that `MomentRelease.write` wrote.

    Raises
    ------
    DamagedFileError
        If the file is not such a release or its digest does not fit.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments
    >>> noise = calibrate_moments(MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 3), epsilon=1.0, delta=1e-5)
    >>> release = release_moments([[0.0, 1.0, 0.5]], noise, rng=np.random.default_rng(1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_moments(release.write(Path(folder) / "m.json")).digest == release.digest
    True
    """
    try:
        record = json.loads(Path(path).read_text())
        stated = record.pop("digest")
        ranges = FeatureRanges(record["lower"], record["upper"], record["adjacency"])
        query = MomentQuery(ranges, record["n"], np.array(record["centre"]), record["intercept"])
        parts = (None if record["shape"][key] is None else np.array(record["shape"][key]) for key in _SHAPE_KEYS)
        noise = SymmetricGaussian(query, record["stddev"], Covariance(ranges.size, *parts))
        release = MomentRelease(np.array(record["value"], dtype=float), noise, record["sampler"])
    except (AttributeError, KeyError, TypeError, ValueError, DPBayesError) as error:
        raise DamagedFileError(f"{path} is no moment release: {error}; ask the custodian for it again") from error
    if release.value.shape != (query.size, query.size) or stated != _digest(record):
        raise DamagedFileError(f"{path} does not match its digest; ask the custodian for it again")
    return release


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def release_moments(
    records: npt.ArrayLike | ClippedRecords,
    noise: SymmetricGaussian,
    *,
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    ledger_delta: float = 0.0,
    purpose: str = "second moments with symmetric Gaussian noise",
) -> MomentRelease:
    r"""Release the moment matrix of clipped records.

    A real release (`rng` None) passes the whitened upper triangle, off-diagonal entries times :math:`\sqrt 2`, through
    OpenDP's Gaussian sampler. Sums over n records round differently for neighbours; the noise is larger by a proven
    bound on that, some n 2^-52 of the sensitivity times n, so that the stated mu holds.

    Parameters
    ----------
    records
        Matrix of shape (m, n), columns are records; or the result of `clip_records` with the ranges of the query.
    noise
        From `calibrate_moments`.
    rng
        None draws from OpenDP; a NumPy generator simulates, and the result says so.
    ledger, ledger_delta, purpose
        As in `release_records`.

    Returns
    -------
    MomentRelease
        Released matrix with its law.

    Raises
    ------
    InputError
        If the shape does not fit, the records were clipped to other ranges or, under replace-one, the number of records
        is not the stated n.
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
    query, row = noise.query, noise.row_cov
    z = row.whiten(query.vectors(records))
    white = z @ z.T / query.n
    upper = np.triu_indices(query.size)
    weight = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    values = white[upper] * weight
    entry = reserve_gaussian(
        ledger,
        mechanism="symmetric-gaussian",
        mu=noise.mu.value,
        adjacency=noise.adjacency,
        purpose=purpose,
        delta=ledger_delta,
        rng=rng,
    )
    stddev = noise.stddev
    if rng is None:
        stddev *= 1.0 + _rounding_slack(noise) / (noise.mu.value * noise.stddev)
    noisy = release_values(values, Gaussian(stddev), rng=rng) / weight
    symmetric = np.zeros_like(white)
    symmetric[upper] = noisy
    symmetric = symmetric + np.triu(symmetric, 1).T
    result = row.colour(row.colour(symmetric).T)
    result = (result + result.T) / 2.0
    if query.intercept is not None and query.ranges.adjacency == "replace-one":
        result[0, 0] = query.intercept**2  # a public constant
    release = MomentRelease(result, noise, source)
    if ledger is not None and entry is not None:
        ledger.confirm(entry, release.digest)
    return release


def _rounding_slack(noise: SymmetricGaussian) -> float:
    """Bound the Frobenius norm of the rounding error in the whitened moments of two neighbours together.

    An inner product of length n errs by at most (n + 2) 2^-53 of the sum of absolute products (whitening adds size + 2
    to n), and the absolute products of row i and k sum to at most n times their largest values. Under add-remove the
    number of records is confidential and must not set the noise: twice the stated divisor is allowed for.
    """
    row = noise.row_cov
    n = noise.query.n * (2 if noise.adjacency == "add-remove" else 1)
    centre, half = noise.query.box
    largest = np.abs(centre) + half
    if noise.query.intercept is not None:
        largest = np.concatenate([[noise.query.intercept], largest])
    basis = np.eye(row.size) if row.directions is None else np.abs(row.directions)
    scales = np.ones(row.size) if row.variances is None else np.sqrt(row.variances)
    white = basis.T @ largest / scales
    terms = n + 2 * row.size + 16
    return 2.0 * terms * 2.0**-53 * float(white @ white) * n / noise.query.n
