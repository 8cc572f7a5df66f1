"""Exact privacy curves: what a pair of output distributions costs, and what repeating the mechanism costs.

`PrivacyLoss` holds both directions of a pair (P under D, Q under a neighbour D'), because an asymmetric mechanism is as
private as its worse direction. Numbers come with certified bounds; a plain `.epsilon()` or `.delta()` is the upper one.
The losses of the noise laws are at the end: of one number that moves by its sensitivity, since log-concave noise makes
the largest change the worst.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpbayes._arguments import number, positive_finite, real_numbers, strictly_between, whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, Relation, check_adjacency, check_relation
from dpbayes.privacy.composition import ComposedLoss
from dpbayes.privacy.laws import DiscreteGaussian
from dpbayes.privacy.loss_law import Bounds, LossLaw

_LARGEST_STDDEV = 1e6
_LARGEST_MOVE = 1 << 20
_MOST_CELLS = 1 << 24
# Relative error of masses computed with exp and expm1 of exactly scaled arguments.
_ROUNDING = 1e-14
# Masses below this are kept only as a sum and a largest loss: their products and logarithms would underflow.
_UNDERFLOW = 1e-300


@dataclass(frozen=True)
class PrivacyLoss:
    """Privacy loss of a pair of output distributions, P under D and Q under D', in both directions.

    Parameters
    ----------
    forward, backward
        Law of ln(P/Q) under P, and of ln(Q/P) under Q. Build them with `from_pmfs`.
    adjacency
        The relation between D and D', when the pair stands for a mechanism: "replace-one", "add-remove", or
        "one-position" (Bloom filters). Losses of different relations do not compose.
    below
        A loss whose curve lies below the true one, where `forward` and `backward` are known only to lie above it.

    Examples
    --------
    Randomized response that tells the truth with probability 3/4 costs epsilon = ln 3 once:

    >>> import numpy as np
    >>> once = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75]), adjacency="replace-one")
    >>> round(once.epsilon(0.0), 6), round(once.delta(0.5), 6)
    (1.098612, 0.33782)
    >>> round(once.compose(100).epsilon(1e-6), 4)
    94.2899
    """

    forward: ComposedLoss
    backward: ComposedLoss
    adjacency: Relation | None = None
    below: "PrivacyLoss | None" = None

    @classmethod
    def from_pmfs(
        cls, log_p: Any, log_q: Any, *, log_error: float = 1e-12, adjacency: Relation | None = None
    ) -> "PrivacyLoss":
        """Build the loss of two log-pmf arrays on the same outcomes.

        `log_p` and `log_q` are natural logarithms under D and D', minus infinity where an outcome is impossible. Each
        may be off by `log_error`, which the certified bounds allow for; probability that is missing beyond it is
        counted as infinite loss in the upper bounds. `adjacency` is the relation between D and D'. `InputError` if the
        shapes differ, an entry is NaN or plus infinity, or a total exceeds 1 by more than `log_error` explains.
        """
        log_p, log_q = _log_masses(log_p, "log_p"), _log_masses(log_q, "log_q")
        if log_p.shape != log_q.shape:
            raise InputError(
                f"log_p and log_q must list the same outcomes, got shapes {log_p.shape} and {log_q.shape}; give minus "
                "infinity for an outcome that one side cannot produce"
            )
        error = number(log_error, "log_error")
        if not 0.0 <= error <= 0.01:
            raise InputError(f"log_error must be between 0 and 0.01, got {error}; it bounds rounding, not a guess")
        check = None if adjacency is None else check_relation(adjacency)
        possible = (log_p > -np.inf) | (log_q > -np.inf)
        log_p, log_q = log_p[possible], log_q[possible]
        forward = _direction_law(log_p - log_q, log_p, error, "P")
        backward = _direction_law(log_q - log_p, log_q, error, "Q")
        return cls(ComposedLoss(((forward, 1),)), ComposedLoss(((backward, 1),)), check)

    def _worse(self, read: Callable[[ComposedLoss], Bounds]) -> Bounds:
        """Read both directions and return the bounds of the larger number."""
        laws = [self.forward] if self.forward is self.backward else [self.forward, self.backward]
        upper = worse([read(law) for law in laws])
        return upper if self.below is None else Bounds(self.below._worse(read).lower, upper.upper)

    def delta_bounds(self, epsilon: float) -> Bounds:
        """Return certified bounds of the hockey-stick divergence at any real `epsilon`, the larger of both directions.

        Examples
        --------
        >>> import numpy as np
        >>> pair = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75]))
        >>> (0.75 - np.exp(0.5) * 0.25) in pair.delta_bounds(0.5)
        True
        """
        value = number(epsilon, "epsilon")
        return self._worse(lambda law: law.bounds(value))

    def delta(self, epsilon: Any) -> Any:
        """Upper end of `delta_bounds` at each `epsilon`; float for a scalar, else an array of the same shape."""
        if np.ndim(epsilon) == 0:
            return self.delta_bounds(epsilon).upper
        values = real_numbers(epsilon, "epsilon")
        flat = [self.delta_bounds(e).upper for e in values.ravel()]
        return np.array(flat).reshape(values.shape)

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Return certified bounds of the smallest epsilon >= 0 with hockey-stick divergence at most `delta`.

        Delta 0 asks for pure differential privacy. Both bounds are infinite when outcomes that one side cannot produce
        have more mass than `delta`.
        """
        value = _probability(delta)
        return self._worse(lambda law: law.crossing(value))

    def epsilon(self, delta: float) -> float:
        """Upper, conservative end of `epsilon_bounds`."""
        return self.epsilon_bounds(delta).upper

    def quantile_bounds(self, delta: float) -> Bounds:
        """Return certified bounds of `quantile_epsilon`."""
        value = _probability(delta)
        if self.below is not None:
            raise InputError("the quantile of a loss needs values that can be listed; ask for epsilon instead")
        return self._worse(lambda law: law.quantile(value))

    def quantile_epsilon(self, delta: float) -> float:
        """Upper bound of the smallest epsilon >= 0 that the loss exceeds with probability at most `delta`.

        This is probabilistic differential privacy, and the definition of Chen (2020, section II, "Buffling"): the
        larger of the (1 - delta)-quantile of -ln R under D and of ln R under D', where R = P(A(D'))/P(A(D)). It is
        never below `epsilon(delta)`, because the hockey stick weighs the same tail with factors below 1. `InputError`
        where the values of the loss cannot be listed: of Laplace noise, and of long compositions.
        """
        return self.quantile_bounds(delta).upper

    def compose(self, other: "PrivacyLoss | int") -> "PrivacyLoss":
        """Loss of running the mechanism `other` times, or of running it together with another mechanism.

        The directions are composed separately. Nothing is computed until a number is asked for, and nothing is rounded
        in between: composing in steps or at once gives the same curve.

        Raises
        ------
        InputError
            If the count is no integer from 1 to 10**12, more runs than doubles can certify, or the adjacencies differ.

        Examples
        --------
        >>> import numpy as np
        >>> pair = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75]))
        >>> round(pair.compose(2).compose(pair).epsilon(0.0), 6)
        3.295837
        """
        if isinstance(other, PrivacyLoss):
            if other.adjacency != self.adjacency:
                raise InputError(
                    f"losses under adjacency {self.adjacency} and {other.adjacency} do not compose; use one relation"
                )
            return self._map(other, ComposedLoss.join)
        runs = whole_number(other, "the number of runs", remedy="a loss also composes with another loss")
        return self._map(self, lambda law, _: law.repeat(runs))

    def _map(
        self, other: "PrivacyLoss", combine: Callable[[ComposedLoss, ComposedLoss], ComposedLoss]
    ) -> "PrivacyLoss":
        """Combine direction by direction; a pair with one law for both stays one."""
        forward = combine(self.forward, other.forward)
        same = self.forward is self.backward and other.forward is other.backward
        backward = forward if same else combine(self.backward, other.backward)
        is_exact = self.below is None and other.below is None
        below = None if is_exact else (self.below or self)._map(other.below or other, combine)
        return PrivacyLoss(forward, backward, self.adjacency, below)


def _log_masses(values: Any, name: str) -> np.ndarray:
    """Return `values` as a flat float array, or say why they are no logarithms of probabilities."""
    array = np.ravel(real_numbers(values, name))
    if not array.size or np.isnan(array).any() or (array == np.inf).any():
        raise InputError(
            f"{name} must hold logarithms of probabilities, got "
            f"{'no entry' if not array.size else 'NaN or plus infinity'}; use minus infinity for an impossible outcome"
        )
    return array


def _direction_law(loss: np.ndarray, log_mass: np.ndarray, log_error: float, side: str) -> LossLaw:
    """One direction: sorted finite losses, mass at infinity, and what is missing from a total of 1."""
    mass = np.exp(log_mass)
    at_infinity = float(np.sum(mass[loss == np.inf]))
    possible = np.isfinite(loss) & (log_mass > -np.inf)
    order = np.argsort(loss[possible], kind="stable")
    law = _listed(loss[possible][order], mass[possible][order], log_error=log_error + 2.0**-50, shift=2 * log_error)
    excess = float(np.sum(law.mass)) + at_infinity - 1.0
    allowed = np.expm1(log_error) + 2.0**-44
    if excess > allowed:
        raise InputError(
            f"the {side}-masses add up to 1 + {excess:.3g}, more than log_error {log_error:g} explains; "
            "normalize them, or state how exact they are with log_error="
        )
    missing = -excess if excess < -allowed else 0.0
    magnitude = float(np.max(np.abs(law.loss), initial=max(0.0, law.highest)))
    return replace(law, infinite=at_infinity, missing=missing, shift=law.shift + 2.0**-52 * magnitude)


def worse(bounds: list[Bounds]) -> Bounds:
    """Return the ends of the larger of several bounded numbers."""
    return Bounds(max(b.lower for b in bounds), max(b.upper for b in bounds))


def _probability(delta: Any) -> float:
    """Return `delta` as a float in [0, 1]."""
    result = number(delta, "delta")
    if not 0.0 <= result <= 1.0:
        raise InputError(f"delta must be between 0 and 1, got {delta!r}; it is a probability")
    return result


# --- losses of the noise laws ----------------------------------------------------------------------------------------


def geometric_loss(scale: float, *, sensitivity: int = 1, adjacency: Adjacency | None = None) -> PrivacyLoss:
    """Return the loss of two-sided geometric noise: sensitivity + 1 values on a lattice, exact to rounding."""
    move, most = _ratio(scale, "scale", sensitivity, adjacency, whole=True)
    if move > _LARGEST_MOVE:
        raise InputError(f"a sensitivity of {move:g} needs a list of as many losses; use the Laplace curve above 2**20")
    return symmetric(lattice_law(1 / scale, int(move), most), adjacency)


def lattice_law(rate: float, move: int, most: float) -> LossLaw:
    """Return the law of the loss of geometric noise of scale 1 / rate: the values (move - 2 t) rate."""
    t = np.arange(move, -1, -1)
    inside = np.where((t > 0) & (t < move), -np.expm1(-rate), 1.0)
    mass = inside * np.exp(-t * rate) / (1 + np.exp(-rate))
    return _listed((move - 2 * t) * rate, mass, log_error=_error_up_to(most), shift=2e-15 * most)


def discrete_gaussian_loss(stddev: float, *, sensitivity: int = 1, adjacency: Adjacency | None = None) -> PrivacyLoss:
    """Return the loss of discrete Gaussian noise of a stddev up to 1e6: exact to rounding for delta above 1e-280."""
    move, _ = _ratio(stddev, "stddev", sensitivity, adjacency, whole=True)
    if stddev > _LARGEST_STDDEV:
        raise InputError(f"stddev must be at most 1e6, got {stddev:g}; beyond it the Gaussian curve is the same")
    # exp(-37**2 / 2) = 1e-297: what is left out is below 1e-295 and counted as infinite loss.
    radius = int(np.ceil(37 * stddev)) + 1
    x = np.arange(radius, -radius - 1, -1, dtype=float)
    mass = np.exp(DiscreteGaussian(stddev).log_prob(x))
    keep = mass > _UNDERFLOW
    loss = (0.5 * move - x) * (move / (stddev * stddev))
    law = LossLaw(loss[keep], mass[keep], missing=1e-290, log_error=3e-13, shift=2e-15 * float(loss[-1]))
    return symmetric(law, adjacency)


def laplace_loss(
    scale: float, *, sensitivity: float = 1.0, cells: int = 1 << 15, adjacency: Adjacency | None = None
) -> PrivacyLoss:
    """Return the loss of Laplace noise between two discrete ones, which come together with the square of `cells`."""
    # Between the two centres the loss takes every value in (-a, a), a = sensitivity / scale. Outcomes merged around a
    # point of a lattice have it as their loss (data processing, from below), and outcomes split between neighbouring
    # points keep both masses (from above).
    whole_number(cells, "cells", low=2, high=_MOST_CELLS)
    _, a = _ratio(scale, "scale", sensitivity, adjacency)
    step = 2 * (a / cells)
    # Losses by how far below the largest one they are, which is what their mass depends on.
    gap = step * np.arange(cells, -1, -1)
    half, ends = 0.5 * step, np.array([0.5 * np.exp(-a), 0.5])
    # From above: split a cell between its ends; the upper one gets the share 1 / (1 + exp(-step / 2)).
    share = 1 / (1 + np.exp(-half))
    cell = _interval(gap[1:], step)
    split = np.append(cell * (1 - share), 0.0) + np.insert(cell * share, 0, 0.0)
    split[[0, -1]] += ends
    # From below: merge around each inner point; the half cells at the ends move down to the next point.
    merged = np.concatenate([ends[:1], _interval(gap[1:-1] - half, step), ends[1:]])
    merged[0] += _interval(gap[0] - half, half)
    merged[-2] += _interval(0.0, half)
    error = {"log_error": _error_up_to(a), "shift": 4e-15 * a}
    above, below = (symmetric(_listed(a - gap, mass, **error), adjacency) for mass in (split, merged))
    return replace(above, below=below)


def _interval(gap: Any, size: float) -> Any:
    """P-mass of the losses from a - gap - size to a - gap: the integral of exp((loss - a) / 2) / 4."""
    return 0.5 * np.exp(-0.5 * gap) * -np.expm1(-0.5 * size)


def gaussian_law(mu: float, *, left_out: float) -> LossLaw:
    """Return a loss above that of Gaussian noise, for sums with others: cells of outcomes at their largest loss."""
    from scipy.special import ndtr, ndtri

    z = np.linspace(0.0, -float(ndtri(left_out / 2)), (1 << 16) + 1)
    half = -np.diff(ndtr(-z))
    edges = np.concatenate([-z[:0:-1], z])
    loss, mass = mu * (0.5 * mu + edges[1:]), np.concatenate([half[::-1], half])
    return LossLaw(loss, mass, missing=left_out, log_error=1e-9, shift=4e-15 * float(loss[-1]))


def randomized_response_loss(*, truth_probability: float, categories: int = 2) -> PrivacyLoss:
    """Return the privacy loss of randomized response; its adjacency is replace-one, of the respondent's answer.

    Parameters
    ----------
    truth_probability
        Probability of reporting the true category, between 0 and 1.
    categories
        Number of categories; a lie is uniform over the others.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(randomized_response_loss(truth_probability=0.75).compose(100).epsilon(1e-6), 4)
    94.2899
    """
    truth = strictly_between(truth_probability, "truth_probability", 0, 1, remedy="1 hides nothing")
    count = number(categories, "categories")
    if not 2 <= count < np.inf or count != np.floor(count):
        raise InputError(f"categories must be a whole number of at least 2, got {categories!r}")
    low, high = sorted((truth, other := (1.0 - truth) / (count - 1)))
    if low < sys.float_info.min:
        raise InputError(
            f"truth_probability {truth:g} with {count:g} categories gives a probability of {low:g}, "
            "too small for doubles; move it away from 0 and 1, or merge categories"
        )
    step = abs(float(np.log(truth / other)))
    loss, mass = np.array([-step, 0.0, step]), np.array([low, (count - 2) * other, high])
    law = LossLaw(loss[mass > 0], mass[mass > 0], log_error=_ROUNDING, shift=1e-15 * (1 + step))
    return symmetric(law, "replace-one")


def symmetric(law: LossLaw, adjacency: Adjacency | None) -> PrivacyLoss:
    """Pair whose two directions have the same law."""
    total = ComposedLoss(((law, 1),))
    return PrivacyLoss(total, total, adjacency)


def _listed(loss: np.ndarray, mass: np.ndarray, *, log_error: float, shift: float) -> LossLaw:
    """Law of ascending losses without the masses at which doubles end, which are counted as underflow."""
    keep = mass > _UNDERFLOW
    dropped = loss[~keep]
    underflow, ceiling = 2 * _UNDERFLOW * dropped.size, float(dropped.max(initial=-np.inf))
    return LossLaw(loss[keep], mass[keep], underflow=underflow, ceiling=ceiling, log_error=log_error, shift=shift)


def _error_up_to(largest: float) -> float:
    """Error of the logarithm of masses exp(-x), x up to `largest`: beyond 1e3 there is none left."""
    return _ROUNDING * (1 + min(largest, 1e3))


def _ratio(
    spread: Any, name: str, sensitivity: Any, adjacency: Adjacency | None, *, whole: bool = False
) -> tuple[float, float]:
    """Return the sensitivity, and its ratio to the spread; refuse a ratio whose square, a variance, is no double."""
    if adjacency is not None:
        check_adjacency(adjacency)
    of_noise = positive_finite(spread, name, remedy="it is the spread of the noise, in the unit of the number released")
    remedy = "it is the largest change between neighbours under the adjacency in use"
    move = positive_finite(sensitivity, "sensitivity", remedy=remedy)
    if whole and move != math.floor(move):
        raise InputError(f"sensitivity must be a whole number, got {sensitivity!r}; integer noise protects integers")
    ratio = move / of_noise
    if not sys.float_info.min <= ratio * ratio < math.inf:
        raise InputError(
            f"a sensitivity of {move:g} over noise of spread {of_noise:g} is a ratio whose square no double holds; "
            "no release has such a cost, so check the unit of both"
        )
    return move, ratio
