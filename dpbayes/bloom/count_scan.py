"""Privacy of one filter at its worst count of ones, by exhaustion over all counts.

By complementing bits, count y with directions exchanged is count m - 1 - y, so the larger of both directions over all
counts equals one direction (ln R large under D') over all counts. For that direction only upper tails of the shared law
C are needed, with n = m - 1 shared bits, f = pmf and G(t) = P(C >= t):

    quantile: ln R at the largest output t with P(D' gives >= t) = G(t) + q f(t - 1) > delta
    tight:    delta(epsilon) = max_t [(q - e^epsilon p) f(t - 1) - (e^epsilon - 1) G(t)]

The second is the Neyman-Pearson form of the hockey-stick divergence: R increases with t, so the best test is a tail.
f is read off the characteristic function, exponentially tilted to the tail at hand: by periodicity a sum over a few
dozen nodes is exact up to the mass outside one period (kept below 1e-17), and those few nodes serve all m counts at
once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["CountTails"]

_Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

# Outputs around the guessed one that every pass evaluates.
_REACH = np.arange(-4, 5)
_ROWS = 4096
# How often the window is moved; a count whose answer is still outside is left to enumeration.
_MOVES = 200
_BASE = 256
_PI = np.longdouble("3.14159265358979323846264338327950288")
# Bernstein's inequality with this exponent leaves 1e-17 outside a period.
_EXPONENT = 40.0


@dataclass(frozen=True)
class _Nodes:
    """Characteristic function of the tilted law at the nodes of one period."""

    period: int
    weight: np.ndarray  # 1 / period, doubled for a node that stands for its conjugate too
    theta: float
    omega: np.ndarray  # extended precision, as are the next two: they are multiplied by counts up to m
    log_zero: np.ndarray  # log of the tilted characteristic factor of a shared bit 0
    log_one: np.ndarray
    log_scale: tuple[float, float]  # log moment-generating function of a shared bit 0 and 1, less theta times the mean
    mean: tuple[float, float]  # tilted mean of a shared bit 0 and 1


def _make_nodes(n: int, p: float, theta: float) -> _Nodes:
    grow, q = np.exp(np.longdouble(theta)), 1 - np.longdouble(p)
    zero, one = p * grow / (q + p * grow), q * grow / (p + q * grow)
    variance = n * float(max(zero * (1 - zero), one * (1 - one)))
    half = _EXPONENT / 3 + np.sqrt((_EXPONENT / 3) ** 2 + 2 * _EXPONENT * variance)
    period = 2 * int(np.ceil(half)) + 2 * _REACH.size
    omega = 2 * _PI * np.arange(period // 2 + 1, dtype=np.longdouble) / period
    log_zero, log_one = (np.log(1 - mean + mean * np.exp(1j * omega)) for mean in (zero, one))
    weight = np.full(omega.size, 2.0 / period)
    weight[[0, -1]] = 1.0 / period  # the period is even: the nodes 0 and pi are their own conjugates
    keep = n * np.maximum(log_zero.real, log_one.real) > -_EXPONENT - 4
    keep[0] = True
    return _Nodes(
        period,
        weight[keep],
        theta,
        omega[keep],
        log_zero[keep],
        log_one[keep],
        (float(np.log(q + p * grow) - theta * zero), float(np.log(p + q * grow) - theta * one)),
        (float(zero), float(one)),
    )


class _Powers:
    """exp(count * exponent) for whole counts, as a product of two table entries of _BASE rows each or so."""

    def __init__(self, exponent: np.ndarray, largest: int) -> None:
        def table(counts: np.ndarray) -> np.ndarray:
            return np.exp(counts[:, None] * exponent[None, :]).astype(complex)

        self._low = table(np.arange(_BASE))
        self._high = table(_BASE * np.arange(largest // _BASE + 1))

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        return self._high[counts // _BASE] * self._low[counts % _BASE]


class CountTails:
    """Upper tails of the output count for every count of shared ones.

    Parameters
    ----------
    n_bits
        Length m of the filter.
    flip_prob
        Flip probability p.
    z
        How many standard deviations above the mean to look; sets the tilt and the first guess, not the result.
    """

    def __init__(self, n_bits: int, flip_prob: float, z: float) -> None:
        self.n = n_bits - 1
        self.p, self.q = flip_prob, 1.0 - flip_prob
        self.stddev = float(np.sqrt(self.n * self.p * self.q))
        self.z = z
        # The tilt that moves a Gaussian's mean z standard deviations up, kept moderate for nearly empty laws.
        nodes = self._nodes = _make_nodes(self.n, self.p, float(np.clip(z / max(self.stddev, 1e-9), 0.0, 2.0)))
        self._ones = _Powers(nodes.log_one - nodes.log_zero, self.n)
        self._start = (np.exp(self.n * nodes.log_zero) * nodes.weight).astype(complex)
        # The phase repeats with the period, so outputs are reduced modulo it.
        self._outputs = _Powers(-1j * nodes.omega, nodes.period)

    @classmethod
    def for_epsilon(cls, n_bits: int, flip_prob: float, epsilon: float) -> "CountTails":
        """Look where R = e^epsilon, which must be below q/p: a Gaussian law of the output puts it at this z."""
        p, q, grow = flip_prob, 1.0 - flip_prob, np.exp(epsilon)
        slope = float(np.log((grow * q - p) / (q - grow * p)))
        return cls(n_bits, flip_prob, slope * float(np.sqrt((n_bits - 1) * p * q)))

    def _guess(self, ones: np.ndarray) -> np.ndarray:
        """Cornish-Fisher guess of the output at `z`."""
        p, q, zeros = self.p, self.q, self.n - ones
        skew = p * q * (1 - 2 * p) * (zeros - ones) / max(self.stddev, 1.0) ** 3
        shift = np.clip(self.z, -40, 40) + np.clip(skew * (self.z**2 - 1) / 6, -1, 1)
        return np.rint(ones * q + zeros * p + self.stddev * shift).astype(np.int64)

    def around(self, ones: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f and G at ``centre + _REACH`` for each count, shape (counts, reach)."""
        nodes = self._nodes
        mean = ones * nodes.mean[1] + (self.n - ones) * nodes.mean[0]
        wave = self._ones(ones) * self._outputs(centre % nodes.period) * self._start
        log_scale = ones * nodes.log_scale[1] + (self.n - ones) * nodes.log_scale[0]
        scale = np.exp(log_scale - nodes.theta * (centre - mean))
        step = np.exp(-(nodes.theta + 1j * nodes.omega.astype(float)))
        at = step[:, None] ** _REACH[None, :]
        # Geometric sum over t, t + 1, ...; what lies beyond half a period past t is below 1e-17 of the whole.
        length = nodes.period // 2
        with np.errstate(invalid="ignore", divide="ignore"):
            sums = np.where(np.abs(1 - step) < 1e-15, length, (1 - step**length) / (1 - step))
        both = (wave @ np.hstack([at, at * sums[:, None]])).real * scale[:, None]
        return both[:, : _REACH.size], both[:, _REACH.size :]

    def quantile_log_ratios(self, delta: float) -> np.ndarray:
        """Return, for every count of shared ones, ln R at the quantile of the paper's definition; shape (m,)."""
        return self._each(lambda mass, tail: self._quantile(mass, tail, delta), np.arange(self.n + 1))

    def deltas(self, epsilon: float, ones: np.ndarray) -> np.ndarray:
        """Return delta(epsilon) of ln R under D' for the given counts."""
        return self._each(lambda mass, tail: self._hockey_stick(mass, tail, epsilon), ones)

    def _each(self, evaluate: _Evaluate, ones: np.ndarray) -> np.ndarray:
        """Evaluate in rows, moving the window where the answer lies outside; infinite where it is never found."""
        answer = np.empty(ones.size)
        for start in range(0, ones.size, _ROWS):
            rows = np.arange(start, min(start + _ROWS, ones.size))
            centre = self._guess(ones[rows])
            for _ in range(_MOVES):
                value, move = evaluate(*self.around(ones[rows], centre))
                answer[rows[move == 0]] = value[move == 0]
                rows, centre = rows[move != 0], (centre + move * (_REACH.size - 3))[move != 0]
                if not rows.size:
                    break
            answer[rows] = np.inf
        return answer

    def _quantile(self, mass: np.ndarray, tail: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
        upper = tail[:, 1:] + self.q * mass[:, :-1]  # P(D' gives >= t) at centre + _REACH[1:]
        above = (upper > delta).sum(axis=1)
        move = np.where(above == 0, -1, np.where(above == upper.shape[1], 1, 0))
        place = np.clip(above, 1, upper.shape[1])[:, None]
        here, before = np.take_along_axis(mass, place, 1)[:, 0], np.take_along_axis(mass, place - 1, 1)[:, 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.log((self.p * here + self.q * before) / (self.q * here + self.p * before))
        return ratio, move

    def _hockey_stick(self, mass: np.ndarray, tail: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
        gain = self.q - np.exp(epsilon) * self.p
        value = gain * mass[:, :-1] - np.expm1(epsilon) * tail[:, 1:]
        best = value.argmax(axis=1)
        # R is increasing, so the value rises up to the best threshold and falls after it: a maximum inside is the one.
        move = np.where(best == 0, -1, np.where(best == value.shape[1] - 1, 1, 0))
        return value.max(axis=1), move
