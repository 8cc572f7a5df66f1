r"""How much the prior is worth, from the release alone.

The strength :math:`\lambda` of :math:`\lambda\,KL(q\|p)` counts records. If the private records were n draws from the
prior itself, the probability of their distribution q would be :math:`e^{-n KL(q\|p)}` up to a polynomial factor (the
method of types: Cover and Thomas 2006, Theorem 11.1.4). A public sample of m records errs as well, so two samples of
one population differ with variance :math:`(1/n + 1/m)` times that of one record, and

.. math:: \frac1\lambda = \frac1n + \frac1m + \delta, \qquad \delta \ge 0 \text{ the drift between the populations.}

To second order :math:`\lambda\,KL` is Gaussian: the count of a cell of prior probability p is
:math:`N(np,\, n^2 p(1-p)/\lambda)`, and the released count adds noise of a known law. Their sum has a closed density
for both kinds of noise, so :math:`\lambda` has a marginal likelihood in what was released. Cells are taken as if
independent (a composite likelihood: Varin, Reid and Firth 2011, Statistica Sinica 21), which leaves its maximum
consistent and costs one pass over the cells.

The rule is to trust the prior as long as the release does not speak against it: the largest :math:`\lambda` within the
bound above whose log-likelihood is less than 1.92 below the best, the upper end of a 95 % likelihood interval. Noise
that says nothing leaves the bound; noise that is small against the drift pins the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr

from dpbayes.errors import InputError
from dpbayes.ide.losses import noise_loss
from dpbayes.ide.measurements import Measurements
from dpbayes.privacy.noise import Laplace, TwoSidedGeometric

__all__ = ["Strength", "choose_strength", "composite_log_likelihood", "posterior_variance", "strength_bound"]

type Floats = npt.NDArray[np.float64]

# Half the 95 % point of chi-squared with one degree of freedom.
_DROP = 1.920729
_GRID = 161
_DAMPING = 0.7
_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class Strength:
    """A prior strength and the likelihood it was read from.

    Parameters
    ----------
    value
        The strength, in records.
    most_likely
        Where the likelihood is largest.
    bound
        The largest strength that sampling error allows.
    grid, log_likelihood
        The curve, relative to its maximum; empty where the strength was given.

    Examples
    --------
    >>> Strength.given(250).value
    250.0
    """

    value: float
    most_likely: float
    bound: float
    grid: Floats
    log_likelihood: Floats

    @classmethod
    def given(cls, value: float) -> Strength:
        """Return a strength that the caller chose."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not (np.isfinite(value) and value > 0):
            raise InputError(
                f"strength must be positive and finite, in records, or 'release', got {value!r}; n trusts the prior as "
                "the population that the records were drawn from"
            )
        return cls(float(value), float(value), float(value), np.empty(0), np.empty(0))


def strength_bound(measurements: Measurements) -> float:
    """Return the strength at which prior and private data are samples of one population: 1 / (1/n + 1/m).

    Without a number of public records it is n.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> strength_bound(measurements)
    10000.0
    """
    records = measurements.prior.n_records
    return 1.0 / (1.0 / measurements.n + (0.0 if records is None else 1.0 / records))


def choose_strength(measurements: Measurements) -> Strength:
    """Choose the prior strength from the release alone.

    Parameters
    ----------
    measurements
        The release set against the prior.

    Returns
    -------
    Strength
        The upper end of the 95 % likelihood interval, at most `strength_bound`.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> chosen = choose_strength(measure(Prior.full(release.domain), release))  # a uniform prior is far off
    >>> round(chosen.value), round(chosen.bound)
    (5, 10000)
    """
    bound = strength_bound(measurements)
    grid = np.geomspace(min(1.0, bound), bound, _GRID)
    curve = np.array([composite_log_likelihood(measurements, value) for value in grid])
    curve -= curve.max()
    place = int(np.flatnonzero(curve >= -_DROP)[-1])
    value = float(grid[place])
    if place + 1 < len(grid):
        # The curve falls through the limit between two points of the grid; interpolate in log strength.
        drop = (curve[place] + _DROP) / (curve[place] - curve[place + 1])
        value *= float((grid[place + 1] / grid[place]) ** drop)
    return Strength(value, float(grid[int(np.argmax(curve))]), bound, grid, curve)


def composite_log_likelihood(measurements: Measurements, strength: float) -> float:
    """Return the log-density of the released counts given a strength, cells taken one by one.

    Parameters
    ----------
    measurements
        The release set against the prior.
    strength
        Positive, in records.

    Returns
    -------
    float
        In nats. Cells that the prior holds impossible or certain do not depend on the strength and are left out.

    Examples
    --------
    A uniform prior is worth few records here:

    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> values = [composite_log_likelihood(measurements, strength) for strength in (1.0, 3.0, 1000.0)]
    >>> bool(values[0] < values[1] > values[2])
    True
    """
    mean, variance = _prior_moments(measurements, strength)
    free = variance > 0
    residual = np.abs(measurements.values - mean)[free]
    spread = np.sqrt(variance[free])
    laws = [table.noise for table in measurements.tables]
    absolute = measurements.cells.per_cell([isinstance(law, TwoSidedGeometric | Laplace) for law in laws])[free] > 0
    stddev = np.sqrt(measurements.cells.per_cell([law.variance for law in laws]))[free]
    total = np.hypot(spread, stddev)
    normal = -np.log(total) - 0.5 * np.log(2 * np.pi) - 0.5 * (residual / total) ** 2
    # The Laplace law of the same variance stands for the discrete one (dpbayes.inference.noisy_counts says why).
    return float(np.where(absolute, _log_normal_laplace(residual, spread, stddev / np.sqrt(2.0)), normal).sum())


def posterior_variance(measurements: Measurements, strength: float) -> Floats:
    r"""Return how uncertain each exact count remains, taken by itself, in squared counts.

    The best Gaussian approximation to the posterior of one count, by its variational fixed point :math:`1/V = 1/v +
    \ell_V''(r - z)`, :math:`z / v = \ell_V'(r - z)`, v the prior variance (Opper and Archambeau 2009, Neural
    Computation 21).

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> before = measurements.n**2 / 1000.0 * measurements.prior_chance * (1 - measurements.prior_chance)
    >>> bool(np.all(posterior_variance(measurements, 1000.0) <= before * (1 + 1e-9)))
    True
    """
    mean, variance = _prior_moments(measurements, strength)
    noise = measurements.cells.per_cell([table.noise.variance for table in measurements.tables])
    variance = np.maximum(variance, 1e-9)
    residual = measurements.values - mean
    ends = np.minimum(residual, 0.0), np.maximum(residual, 0.0)
    shift, current = np.zeros_like(mean), np.minimum(variance, noise)
    for _ in range(_ROUNDS):
        loss = noise_loss(measurements, current)
        slope, precision = loss.slope(residual - shift), 1.0 / variance + loss.curvature(residual - shift)
        # The mean lies between the prior's count and the released one; a Newton step may jump over either.
        shift = np.clip(shift - _DAMPING * (shift / variance - slope) / precision, *ends)
        current = current ** (1 - _DAMPING) * precision**-_DAMPING
    return current


def _prior_moments(measurements: Measurements, strength: float) -> tuple[Floats, Floats]:
    chance = measurements.prior_chance
    free = np.clip(chance * (1.0 - chance), 0.0, None)
    # Sums of weights reach 1 only up to rounding: what is left then is no freedom.
    return measurements.n * chance, np.where(free > 1e-13, measurements.n**2 / strength * free, 0.0)


def _log_normal_laplace(x: Floats, stddev: Floats, scale: Floats) -> Floats:
    r"""Return the log-density at x >= 0 of a centred normal plus an independent Laplace variable.

    .. math:: \frac{1}{2s} e^{\tau^2/2s^2}\bigl[e^{-x/s}\Phi(x/\tau - \tau/s) + e^{x/s}\Phi(-x/\tau - \tau/s)\bigr]

    (Reed 2006, the normal-Laplace distribution), with the scaled error function where the exponentials cancel.
    """
    # Noise below a millionth of the spread changes nothing; at zero the quotients would be undefined.
    scale = np.maximum(scale, 1e-6 * stddev)
    ratio = stddev / scale
    near, far = (ratio - x / stddev) / np.sqrt(2.0), (ratio + x / stddev) / np.sqrt(2.0)
    gauss = -0.5 * (x / stddev) ** 2
    log_far = gauss + np.log(0.5 * erfcx(far))
    with np.errstate(over="ignore", divide="ignore"):
        log_near = np.where(
            near >= 0.0,
            gauss + np.log(0.5 * erfcx(np.maximum(near, 0.0))),
            0.5 * ratio**2 - x / scale + log_ndtr(-np.sqrt(2.0) * np.minimum(near, 0.0)),
        )
    return np.logaddexp(log_near, log_far) - np.log(2.0 * scale)
