"""Exact privacy curves: what a pair of output distributions costs, and what repeating the mechanism costs.

`PrivacyLoss` holds both directions of a pair (P under D, Q under a neighbour D'), because an asymmetric mechanism is
as private as its worse direction. Numbers come with Certified bounds; a plain `.epsilon()` or `.delta()` is the upper
end, so a claim made from it holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from dpbayes._arguments import number, one_of, real_numbers, whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Relation, check_relation
from dpbayes.privacy.composition import BracketedLoss, ComposedLoss, join
from dpbayes.privacy.loss_law import Bounds, LossLaw

Direction = Literal["both", "forward", "backward"]


@dataclass(frozen=True)
class PrivacyLoss:
    """Privacy loss of a pair of output distributions, P under D and Q under D', in both directions.

    Parameters
    ----------
    forward, backward
        Law of ln(P/Q) under P, and of ln(Q/P) under Q. Build them with `from_pmfs` or `from_losses`.
    adjacency
        The relation between D and D', when the pair stands for a mechanism: "replace-one", "add-remove", or
        "one-position" (Bloom filters). Losses of different relations do not compose.

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

    forward: ComposedLoss | BracketedLoss
    backward: ComposedLoss | BracketedLoss
    adjacency: Relation | None = None

    @classmethod
    def from_pmfs(
        cls, log_p: Any, log_q: Any, *, log_error: float = 1e-12, adjacency: Relation | None = None
    ) -> "PrivacyLoss":
        """Build the loss of two log-pmf arrays on the same outcomes.

        Parameters
        ----------
        log_p, log_q
            Natural logarithms of the probabilities under D and D', same shape; minus infinity where an outcome is
            impossible.
        log_error
            How far each logarithm may be from the truth; the certified bounds allow for it. Probability that is missing
            from either side beyond it is counted as infinite loss in the upper bounds.
        adjacency
            The relation between D and D'.

        Raises
        ------
        InputError
            If the shapes differ, an entry is NaN or plus infinity, or a total exceeds 1 by more than `log_error`
            and rounding explain.
        """
        log_p, log_q = log_masses(log_p, "log_p"), log_masses(log_q, "log_q")
        if log_p.shape != log_q.shape:
            raise InputError(
                f"log_p and log_q must list the same outcomes, got shapes {log_p.shape} and {log_q.shape}; give minus "
                "infinity for an outcome that one side cannot produce"
            )
        possible = (log_p > -np.inf) | (log_q > -np.inf)
        log_p, log_q = log_p[possible], log_q[possible]
        return cls.from_losses(log_p - log_q, log_p, log_q, log_error=log_error, adjacency=adjacency)

    @classmethod
    def from_losses(
        cls,
        loss: Any,
        log_mass_p: Any,
        log_mass_q: Any = None,
        *,
        infinite_p: float = 0.0,
        infinite_q: float = 0.0,
        log_error: float = 1e-12,
        adjacency: Relation | None = None,
    ) -> "PrivacyLoss":
        """Build the loss from values of ln(P/Q) and their masses, for outcome spaces too large to list.

        Parameters
        ----------
        loss
            Values of ln(P/Q), in any order, repeats allowed; ±infinity allowed where the other side's mass is 0.
        log_mass_p, log_mass_q
            Logarithms of the P-mass and of the Q-mass of each value; that of Q is ``log_mass_p - loss`` by default.
        infinite_p, infinite_q
            Further P-mass of outcomes impossible under Q, and Q-mass of outcomes impossible under P.
        log_error, adjacency
            As in `from_pmfs`; `log_error` bounds the error of each log-mass, half of it that of each loss.

        Raises
        ------
        InputError
            As in `from_pmfs`, and if the masses contradict the losses.
        """
        loss, log_mass_p = np.ravel(real_numbers(loss, "loss")), log_masses(log_mass_p, "log_mass_p")
        log_error = number(log_error, "log_error")
        finite = np.isfinite(loss)
        if log_mass_q is None:
            with np.errstate(invalid="ignore"):
                log_mass_q = np.where(finite, log_mass_p - np.where(finite, loss, 0.0), -np.inf)
        log_mass_q = log_masses(log_mass_q, "log_mass_q")
        check_pair(loss, log_mass_p, log_mass_q, finite, log_error)
        check = None if adjacency is None else check_relation(adjacency)
        forward = direction_law(loss, log_mass_p, infinite_p, log_error, "P")
        backward = direction_law(-loss, log_mass_q, infinite_q, log_error, "Q")
        return cls(ComposedLoss(((forward, 1),)), ComposedLoss(((backward, 1),)), check)

    @classmethod
    def from_bracket(cls, above: "PrivacyLoss", below: "PrivacyLoss") -> "PrivacyLoss":
        """Enclose a loss that is known only between two others, for example of a continuous noise.

        The hockey-stick curves of `above` and `below`, of one adjacency, lie above and below the true one in both
        directions. Upper bounds come from `above` and lower bounds from `below`, after composition too.
        """
        if above.adjacency != below.adjacency:
            raise InputError(f"the ends of a bracket need one adjacency, got {above.adjacency} and {below.adjacency}")
        ends = (above.forward, below.forward, above.backward, below.backward)
        if not all(isinstance(end, ComposedLoss) for end in ends):
            raise InputError("the ends of a bracket must be plain losses, got one that is bracketed already")
        return cls(BracketedLoss(*ends[:2]), BracketedLoss(*ends[2:]), above.adjacency)  # type: ignore[arg-type]

    def _directions(self, direction: Direction) -> list[ComposedLoss | BracketedLoss]:
        if one_of(direction, get_args(Direction), "direction") == "both" and self.forward is not self.backward:
            return [self.forward, self.backward]
        return [self.backward if direction == "backward" else self.forward]

    def delta_bounds(self, epsilon: float, *, direction: Direction = "both") -> Bounds:
        """Return certified bounds of the hockey-stick divergence at any real `epsilon`, the larger of both directions.

        `direction` "forward" is P against Q alone, "backward" Q against P alone.

        Examples
        --------
        >>> import numpy as np
        >>> pair = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75]))
        >>> (0.75 - np.exp(0.5) * 0.25) in pair.delta_bounds(0.5)
        True
        """
        value = number(epsilon, "epsilon")
        return worse([law.bounds(value) for law in self._directions(direction)])

    def delta(self, epsilon: Any, *, direction: Direction = "both") -> Any:
        """Upper end of `delta_bounds` at each `epsilon`; float for a scalar, else an array of the same shape."""
        if np.ndim(epsilon) == 0:
            return self.delta_bounds(epsilon, direction=direction).upper
        values = real_numbers(epsilon, "epsilon")
        flat = [self.delta_bounds(e, direction=direction).upper for e in values.ravel()]
        return np.array(flat).reshape(values.shape)

    def epsilon_bounds(self, delta: float, *, direction: Direction = "both") -> Bounds:
        """Return certified bounds of the smallest epsilon >= 0 with hockey-stick divergence at most `delta`.

        Delta 0 asks for pure differential privacy. Both bounds are infinite when outcomes that one side cannot produce
        have more mass than `delta`; `direction` as in `delta_bounds`.
        """
        value = probability(delta)
        return worse([law.crossing(value) for law in self._directions(direction)])

    def epsilon(self, delta: float, *, direction: Direction = "both") -> float:
        """Upper, conservative end of `epsilon_bounds`."""
        return self.epsilon_bounds(delta, direction=direction).upper

    def quantile_bounds(self, delta: float, *, direction: Direction = "both") -> Bounds:
        """Return certified bounds of `quantile_epsilon`; wider after composition of losses on no common lattice."""
        value = probability(delta)
        return worse([law.crossing(value, tail=True) for law in self._directions(direction)])

    def quantile_epsilon(self, delta: float, *, direction: Direction = "both") -> float:
        """Upper bound of the smallest epsilon >= 0 that the loss exceeds with probability at most `delta`.

        This is probabilistic differential privacy, and the definition of Chen (2020, section II, "Buffling"): the
        larger of the (1 - delta)-quantile of -ln R under D and of ln R under D', where R = P(A(D'))/P(A(D)). It is
        never below `epsilon(delta)`, because the hockey stick weighs the same tail with factors below 1.
        """
        return self.quantile_bounds(delta, direction=direction).upper

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
                    f"losses under adjacency {self.adjacency} and {other.adjacency} do not compose; derive both under "
                    "the same relation"
                )
            return self._map(other, join)
        runs = whole_number(other, "the number of runs", remedy="a loss also composes with another loss")
        return self._map(self, lambda law, _: law.repeat(runs))

    def _map(self, other: "PrivacyLoss", combine: Callable[[Any, Any], Any]) -> "PrivacyLoss":
        """Combine direction by direction; a pair with one law for both stays one."""
        forward = combine(self.forward, other.forward)
        same = self.forward is self.backward and other.forward is other.backward
        return PrivacyLoss(forward, forward if same else combine(self.backward, other.backward), self.adjacency)


# Masses below this are kept only as a sum and a largest loss: their products and logarithms would underflow.
_UNDERFLOW = 1e-300


def log_masses(values: Any, name: str) -> np.ndarray:
    """Return `values` as a flat float array, or say why they are no logarithms of probabilities."""
    array = np.ravel(real_numbers(values, name))
    if not array.size or np.isnan(array).any() or (array == np.inf).any():
        raise InputError(
            f"{name} must hold logarithms of probabilities, got "
            f"{'no entry' if not array.size else 'NaN or plus infinity'}; use minus infinity for an impossible outcome"
        )
    return array


def check_pair(loss: np.ndarray, log_p: np.ndarray, log_q: np.ndarray, finite: np.ndarray, log_error: float) -> None:
    """Refuse shapes that differ, and masses that contradict the losses."""
    if not loss.shape == log_p.shape == log_q.shape or np.isnan(loss).any():
        raise InputError(
            f"losses and log-masses must match and hold no NaN, got shapes {loss.shape}, {log_p.shape}, {log_q.shape}"
        )
    if not 0.0 <= log_error <= 0.01:
        raise InputError(f"log_error must be between 0 and 0.01, got {log_error}; it bounds rounding, not a guess")
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.where(finite, log_p - log_q - loss, 0.0))
    magnitude = 1.0 + np.where(finite & (log_p > -np.inf), np.abs(log_p), 0.0)
    wrong_side = ((loss == np.inf) & (log_q > -np.inf)) | ((loss == -np.inf) & (log_p > -np.inf))
    one_sided = finite & ((log_p == -np.inf) != (log_q == -np.inf))
    if wrong_side.any() or one_sided.any() or (gap > 4 * log_error + 1e-14 * magnitude).any():
        raise InputError(
            "the masses contradict the losses: a loss is ln(P-mass / Q-mass), infinite where one of them is 0; "
            f"the largest gap is {np.nanmax(gap):.3g} and log_error is {log_error:g}"
        )


def direction_law(loss: np.ndarray, log_mass: np.ndarray, infinite: float, log_error: float, side: str) -> LossLaw:
    """One direction: sorted finite losses, mass at infinity, and what is missing from a total of 1."""
    if not 0.0 <= infinite <= 1.0:
        raise InputError(f"the mass of an infinite loss must be between 0 and 1, got {infinite!r}")
    mass = np.exp(log_mass)
    at_infinity = float(np.sum(mass[loss == np.inf])) + float(infinite)
    possible = np.isfinite(loss) & (log_mass > -np.inf)
    ceiling = float(np.max(loss, where=possible, initial=-np.inf))
    listed = possible & (mass > _UNDERFLOW)
    underflow = 2 * _UNDERFLOW * int(np.count_nonzero(possible & ~listed))
    loss, mass = loss[listed], mass[listed]
    order = np.argsort(loss, kind="stable")
    loss, mass = loss[order], mass[order]
    excess = float(np.sum(mass)) + at_infinity - 1.0
    allowed = np.expm1(log_error) + 2.0**-44
    if excess > allowed:
        raise InputError(
            f"the {side}-masses add up to 1 + {excess:.3g}, more than log_error {log_error:g} explains; "
            "normalize them, or state how exact they are with log_error="
        )
    missing = -excess if excess < -allowed else 0.0
    shift = 2 * log_error + 2.0**-52 * float(np.max(np.abs(loss), initial=max(0.0, ceiling)))
    log_error += 2.0**-50
    return LossLaw(
        loss, mass, at_infinity, missing, underflow=underflow, ceiling=ceiling, log_error=log_error, shift=shift
    )


def worse(bounds: list[Bounds]) -> Bounds:
    """Return the ends of the larger of several bounded numbers."""
    return Bounds(max(b.lower for b in bounds), max(b.upper for b in bounds))


def probability(delta: Any) -> float:
    """Return `delta` as a float in [0, 1]."""
    result = number(delta, "delta")
    if not 0.0 <= result <= 1.0:
        raise InputError(f"delta must be between 0 and 1, got {delta!r}; it is a probability")
    return result
