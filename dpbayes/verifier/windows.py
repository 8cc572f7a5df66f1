r"""Where the posterior of the true counts lives, with a certificate for what is left out.

With :math:`p \sim` Dirichlet(:math:`\alpha`), counts :math:`S \mid p \sim` Multinomial(M, p) and released values
:math:`y_j = S_j + x_j` with independent noise of density f, the posterior of the counts factorizes on the lattice
:math:`\sum_j S_j = M`:

.. math:: P(S \mid y) \propto \prod_j h_j(S_j), \qquad
          h_j(k) = \frac{\Gamma(\alpha_j + k)}{\Gamma(\alpha_j)\, k!}\, f(y_j - k)\, e^{\lambda k}.

:math:`\lambda` is free, since the sum is fixed; a value that flattens the prior keeps each factor summable on its own.
A window :math:`[L_j, U_j]` for each axis keeps all but

.. math:: \sum_j \Big(\sum_{k \notin [L_j, U_j]} h_j(k)\Big) \max_m\, (h_a * h_b)(m)

of the unnormalized mass, where a and b are the other two axes. Every noise law here is log-concave, so the ratio
:math:`f(k + 1 - y) / f(k - y)` does not increase in k, and the outer sums are bounded by geometric series. The bound
divided by the mass kept is the certificate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpbayes.errors import InputError
from dpbayes.privacy.noise import NoiseLaw

__all__ = ["Axis", "lattice_axes", "omitted_mass_bound"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Axis:
    """The factor h of one outcome on its window.

    Parameters
    ----------
    low, high
        First and last count of the window.
    log_factor
        log h at low, low + 1, ..., high.
    log_tail
        Logarithm of an upper bound on the sum of h outside the window; -inf when the window is the whole range, +inf
        when no bound holds yet.
    """

    low: int
    high: int
    log_factor: FloatArray
    log_tail: float


@lru_cache(maxsize=512)
def log_rising(alpha: float, low: int, high: int) -> FloatArray:
    r"""Return :math:`\log \Gamma(\alpha + k) / (\Gamma(\alpha)\, k!)` for k from `low` to `high`.

    The recurrence in k keeps neighbouring values accurate to a few units in the last place even where the log-gamma
    functions themselves are of order 1e6 and would cancel.

    Examples
    --------
    >>> log_rising(2.0, 3, 5).round(12).tolist() == np.log([4, 5, 6]).round(12).tolist()
    True
    """
    if alpha == 1.0:
        values = np.zeros(high - low + 1)
    else:
        start = float(gammaln(alpha + low) - gammaln(alpha) - gammaln(low + 1.0))
        steps = np.log1p((alpha - 1.0) / np.arange(low + 1.0, high + 1.0))
        values = start + np.concatenate([[0.0], np.cumsum(steps)])
    values.setflags(write=False)
    return values


def lattice_axes(
    noisy: FloatArray, noise: NoiseLaw, n_partitions: int, alpha: tuple[float, ...], *, tolerance: float, max_terms: int
) -> tuple[tuple[Axis, ...], float]:
    """Return a window for each outcome such that what they leave out is certified below `tolerance`.

    Parameters
    ----------
    noisy
        Released values, one an outcome (2 or 3); any finite numbers.
    noise
        Their noise law.
    n_partitions
        M, public.
    alpha
        Dirichlet parameters, one an outcome.
    tolerance
        Largest share of the posterior mass of the counts that may be left out.
    max_terms
        Largest number of terms of the sum.

    Returns
    -------
    tuple of Axis
        One window an outcome.
    float
        The tilt lambda in the factors: the product of three factors on the lattice carries exp(lambda M).

    Raises
    ------
    InputError
        If the windows would need more than `max_terms` terms.
    """
    whole = (n_partitions + 1) ** (len(alpha) - 1)
    if whole <= 4096:
        full = (_axis(y, noise, n_partitions, a, 0.0, 0, n_partitions) for y, a in zip(noisy, alpha, strict=True))
        return tuple(full), 0.0
    tilt = -math.log((sum(alpha) + n_partitions) / (len(alpha) + n_partitions))
    centres = np.clip(noisy, 0, n_partitions)
    spread = abs(float(centres.sum()) - n_partitions) + noise.tail_radius(min(tolerance, 0.1) * 1e-3)
    for _ in range(60):
        ends = [
            _grown(y, noise, n_partitions, a, tilt, float(centre), spread)
            for y, a, centre in zip(noisy, alpha, centres, strict=True)
        ]
        # Before any array is made: a strong prior far from the data can ask for windows without end.
        if math.prod(high - low + 1 for low, high in ends[::2]) > max_terms or ends[1][1] - ends[1][0] >= max_terms:
            break
        axes = tuple(
            _axis(y, noise, n_partitions, a, tilt, low, high)
            for y, a, (low, high) in zip(noisy, alpha, ends, strict=True)
        )
        if omitted_mass_bound(axes, n_partitions) <= tolerance:
            return axes, tilt
        spread *= 1.3
    raise InputError(
        f"the posterior of the counts spreads over more than max_terms = {max_terms:,} terms (M = {n_partitions:,}, "
        f"noise {noise}, alpha {alpha}); raise max_terms or tolerance, or sample with verifier.build_model"
    )


def omitted_mass_bound(axes: tuple[Axis, ...], n_partitions: int) -> float:
    """Return a certified upper bound on the share of posterior mass outside the windows.

    The total variation distance between the windowed and the whole posterior of the counts is at most this number;
    so is the error of every posterior probability, of every distribution function and of the mean of r.
    """
    if all(axis.log_tail == -math.inf for axis in axes):
        return 0.0
    if any(axis.log_tail == math.inf for axis in axes):
        return math.inf
    log_kept = log_lattice_sum(axes, n_partitions)
    if log_kept == -math.inf:
        return math.inf
    log_max = [max(float(axis.log_factor.max()), axis.log_tail) for axis in axes]
    log_sum = [float(np.logaddexp(_logsumexp(axis.log_factor), axis.log_tail)) for axis in axes]
    parts = []
    for j, axis in enumerate(axes):
        rest = [i for i in range(len(axes)) if i != j]
        # (h_a * h_b)(m) <= max h_a sum h_b, either way round; with two outcomes there is no convolution.
        cross = log_max[rest[0]]
        if len(rest) == 2:
            a, b = rest
            cross = min(log_max[a] + log_sum[b], log_max[b] + log_sum[a])
        parts.append(axis.log_tail + cross)
    return math.exp(min(_logsumexp(np.array(parts)) - log_kept, 700.0))


def log_lattice_sum(axes: tuple[Axis, ...], n_partitions: int) -> float:
    """Return the logarithm of the sum of the product of factors over the lattice inside the windows."""
    return _logsumexp(lattice_log_weights(axes, n_partitions))


def lattice_log_weights(axes: tuple[Axis, ...], n_partitions: int) -> FloatArray:
    """Return the unnormalized log-weights, rows by the failed count and columns by the beyond count.

    With two outcomes there is one row. A cell whose third count falls outside its window holds -inf.
    """
    beyond, other = axes[0], axes[1]
    failed_low, failed = (axes[2].low, axes[2].log_factor) if len(axes) == 3 else (0, np.zeros(1))
    # The third count is M - Se - S1: reversed, one padded copy of its factor slides over the columns row by row.
    n_rows, n_columns = failed.size, beyond.log_factor.size
    top = n_partitions - failed_low - beyond.low - other.low
    index = top - np.arange(n_rows)[:, None] - np.arange(n_columns)[None, :]
    padded = np.concatenate([other.log_factor, [-np.inf]])
    # Anything outside the window points at the last entry, -inf.
    outside = (index < 0) | (index >= other.log_factor.size)
    third = padded[np.where(outside, other.log_factor.size, index)]
    third += beyond.log_factor[None, :]
    third += failed[:, None]
    return np.asarray(third)


def _grown(
    noisy: float, noise: NoiseLaw, n_partitions: int, alpha: float, tilt: float, centre: float, spread: float
) -> tuple[int, int]:
    """Return the ends of a window about the centre, at least `spread` to each side and with tails that have a bound."""
    low, high = math.floor(centre - spread), math.ceil(centre + spread)
    step = math.ceil(spread)
    while high < n_partitions and _log_upper_tail(noisy, noise, alpha, tilt, high) == math.inf:
        high += step
        step *= 2
    step = math.ceil(spread)
    while low > 0 and _log_lower_tail(noisy, noise, alpha, tilt, low) == math.inf:
        low -= step
        step *= 2
    return max(low, 0), min(high, n_partitions)


def _axis(noisy: float, noise: NoiseLaw, n_partitions: int, alpha: float, tilt: float, low: int, high: int) -> Axis:
    """Return the factor on the window and the bound on its tails."""
    inside = noise.log_prob(noisy - np.arange(low, high + 1, dtype=np.float64)) + log_rising(alpha, low, high)
    if tilt:
        inside = inside + tilt * np.arange(low, high + 1)
    upper = _log_upper_tail(noisy, noise, alpha, tilt, high) if high < n_partitions else -math.inf
    lower = _log_lower_tail(noisy, noise, alpha, tilt, low) if low > 0 else -math.inf
    return Axis(low, high, inside, float(np.logaddexp(upper, lower)))


def _log_upper_tail(noisy: float, noise: NoiseLaw, alpha: float, tilt: float, high: int) -> float:
    """Return the logarithm of a bound on the sum of h above `high`, by a geometric series from high + 1 on."""
    first, second = _log_f(noise, noisy, high + 1), _log_f(noise, noisy, high + 2)
    if first == -math.inf:
        return -math.inf
    # g(k + 1) / g(k) = (alpha + k) / (k + 1) falls to 1 when alpha >= 1 and rises to 1 otherwise.
    prior_ratio = max(0.0, math.log((alpha + high + 1) / (high + 2)))
    log_ratio = second - first + prior_ratio + tilt
    return first + _log_g(alpha, high + 1) + tilt * (high + 1) - _log1mexp(log_ratio)


def _log_lower_tail(noisy: float, noise: NoiseLaw, alpha: float, tilt: float, low: int) -> float:
    """Return the logarithm of a bound on the sum of h below `low`."""
    first = _log_f(noise, noisy, low - 1)
    if first == -math.inf:
        return -math.inf
    log_ratio = _log_f(noise, noisy, low - 2) - first - tilt
    if alpha >= 1.0:
        # g does not decrease, so going down its ratio is at most 1.
        return first + _log_g(alpha, low - 1) + tilt * (low - 1) - _log1mexp(log_ratio)
    # g falls from g(0) = 1 to g(1) = alpha and on: count 0 by itself, the rest with g(1) as its bound.
    rest = first + math.log(alpha) + tilt * (low - 1) - _log1mexp(log_ratio)
    return float(np.logaddexp(_log_f(noise, noisy, 0), rest))


def _log_f(noise: NoiseLaw, noisy: float, count: int) -> float:
    return float(noise.log_prob(noisy - count))


def _log_g(alpha: float, count: int) -> float:
    if alpha == 1.0:
        return 0.0
    # A bound, so the cancellation of log-gammas is paid for with a millionth.
    return float(gammaln(alpha + count) - gammaln(alpha) - gammaln(count + 1.0)) + 1e-6


def _log1mexp(log_ratio: float) -> float:
    """Return log(1 - exp(log_ratio)), or -inf where the series does not converge (its bound is then +inf)."""
    return math.log(-math.expm1(log_ratio)) if log_ratio < -1e-12 else -math.inf


def _logsumexp(values: FloatArray) -> float:
    top = float(values.max())
    if top in (-math.inf, math.inf):
        return top
    return top + math.log(float(np.exp(values - top).sum()))
