"""Privacy of one filter: its output laws by enumeration, and its epsilon at the worst of all counts of ones.

Neighbouring inputs D and D' differ in one bit, 0 in D and 1 in D', and share the other m - 1 bits, `count_ones` of
which are 1. C counts the output ones among the shared bits; with f its pmf and G(t) = P(C >= t),

    quantile: ln R at the largest output t with P(D' gives >= t) = G(t) + q f(t - 1) > delta
    tight:    delta(epsilon) = max_t [(q - e^epsilon p) f(t - 1) - (e^epsilon - 1) G(t)].

`CountTails` reads f and G of all counts at once off a tilted characteristic function; those within 1e-8 of the maximum
are enumerated exactly. Neither definition is unimodal in the count, so no shortcut is taken (docs/bloom.md).
"""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from dpbayes._arguments import Floats, Ints, probability_below_one, whole_number
from dpbayes.bloom.claims import PEOPLE, Definition, EpsilonClaim, check_definition, check_flip_prob
from dpbayes.privacy.loss_law import Bounds
from dpbayes.privacy.losses import PrivacyLoss

# Log of the mass, relative to the mode, below which a binomial is cut; what is cut stays below 1e-59.
_FLOOR = 140.0
# Outputs rarer than this (relative to the mode) are left out: there the cut terms would show in the ratio.
_TRIM = 95.0


def output_laws(*, n_bits: int, flip_prob: float, count_ones: int) -> tuple[Ints, Floats, Floats]:
    """Return what one filter can give out under two inputs that differ in one bit: counts of ones, their two laws."""
    m, p = whole_number(n_bits, "n_bits"), check_flip_prob(flip_prob)
    ones = whole_number(count_ones, "count_ones", low=0, high=m - 1)
    q = 1.0 - p
    (first_one, law_one), (first_zero, law_zero) = _binomial(ones, q), _binomial(m - 1 - ones, p)
    shared = np.convolve(law_one, law_zero)
    without = q * np.append(shared, 0.0) + p * np.append(0.0, shared)
    with_one = p * np.append(shared, 0.0) + q * np.append(0.0, shared)
    keep = np.flatnonzero(np.minimum(without, with_one) > np.exp(-_TRIM) * without.max())
    return first_one + first_zero + keep, without[keep], with_one[keep]


def _binomial(n: int, p: float) -> tuple[int, np.ndarray]:
    """Return a binomial law cut where it is below e^-140 of its mode."""
    if n == 0:
        return 0, np.ones(1)
    mode = min(n, int((n + 1) * p))
    half = int(np.sqrt(2.0 * _FLOOR * n * p * (1.0 - p)) + _FLOOR) + 2
    above, below = np.arange(mode, min(n, mode + half)), np.arange(max(0, mode - half), mode)
    odds = p / (1.0 - p)
    rise = np.cumsum(np.log((n - above) / (above + 1.0) * odds))
    fall = np.cumsum(np.log((n - below) / (below + 1.0) * odds)[::-1])[::-1]
    logs = np.concatenate([-fall, [0.0], rise])
    keep = np.flatnonzero(logs > -_FLOOR)
    mass = np.exp(logs[keep[0] : keep[-1] + 1])
    return max(0, mode - half) + int(keep[0]), mass / mass.sum()


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


class _Nodes:
    """Characteristic function of the tilted law at the nodes of one period."""

    def __init__(self, n: int, p: float, theta: float) -> None:
        grow, q = np.exp(np.longdouble(theta)), 1 - np.longdouble(p)
        zero, one = p * grow / (q + p * grow), q * grow / (p + q * grow)
        self.theta = theta
        self.mean = float(zero), float(one)  # of a shared bit 0 and 1, tilted
        # Log moment-generating functions, less theta times the mean.
        self.log_scale = float(np.log(q + p * grow) - theta * zero), float(np.log(p + q * grow) - theta * one)
        variance = n * float(max(zero * (1 - zero), one * (1 - one)))
        half = _EXPONENT / 3 + np.sqrt((_EXPONENT / 3) ** 2 + 2 * _EXPONENT * variance)
        self.period = period = 2 * int(np.ceil(half)) + 2 * _REACH.size
        # Extended precision: frequencies and logs of characteristic factors are multiplied by counts up to m.
        omega = 2 * _PI * np.arange(period // 2 + 1, dtype=np.longdouble) / period
        log_zero, log_one = (np.log(1 - mean + mean * np.exp(1j * omega)) for mean in (zero, one))
        weight = np.full(omega.size, 2.0 / period)  # a node stands for its conjugate too
        weight[[0, -1]] = 1.0 / period  # the period is even: the nodes 0 and pi are their own conjugates
        keep = n * np.maximum(log_zero.real, log_one.real) > -_EXPONENT - 4
        keep[0] = True
        self.weight, self.omega, self.log_zero, self.log_one = (x[keep] for x in (weight, omega, log_zero, log_one))


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
    """Upper tails of the output count for every count of shared ones."""

    def __init__(self, n_bits: int, flip_prob: float, z: float) -> None:
        self.n = n_bits - 1
        self.p, self.q = flip_prob, 1.0 - flip_prob
        self.stddev = float(np.sqrt(self.n * self.p * self.q))
        self.z = z
        # The tilt that moves a Gaussian's mean z standard deviations up, kept moderate for nearly empty laws.
        nodes = self._nodes = _Nodes(self.n, self.p, float(np.clip(z / max(self.stddev, 1e-9), 0.0, 2.0)))
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


# Relative error allowed to the scan; whatever comes this close to the maximum is enumerated again.
_SCAN_ERROR = 1e-8
# Filters this short are enumerated count by count.
_ALL_BELOW = 128


def one_filter_loss(*, n_bits: int, flip_prob: float, count_ones: int) -> PrivacyLoss:
    """Return the exact privacy loss of one filter: D has `count_ones` ones, D' 1 more; "backward" is ln R under D'."""
    _, without, with_one = output_laws(n_bits=n_bits, flip_prob=flip_prob, count_ones=count_ones)
    # A convolution of that many positive terms and the running sums before it: two roundings a term.
    log_error = max(1e-13, 2.0**-51 * without.size)
    return PrivacyLoss.from_pmfs(np.log(without), np.log(with_one), log_error=log_error, adjacency="one-position")


def one_filter_epsilon(
    *, n_bits: int, flip_prob: float, delta: float, definition: Definition = "tight"
) -> EpsilonClaim:
    """Return epsilon of one filter over every pair of neighbouring inputs, by an exhaustive scan of the counts."""
    m, p = whole_number(n_bits, "n_bits"), check_flip_prob(flip_prob)
    delta = probability_below_one(delta, "delta", remedy=PEOPLE)
    quantile = check_definition(definition) == "quantile"
    search = _Search(m, p, delta, quantile)
    if m <= _ALL_BELOW:
        for count in range(m):
            search.enumerate(count)
    elif quantile:
        search.settle(CountTails(m, p, -float(ndtri(delta))).quantile_log_ratios(delta * (1 - _SCAN_ERROR)))
    else:
        search.climb()
    pair = f"{search.count} ones against {search.count + 1}"
    return EpsilonClaim(search.best, delta, definition, "all pairs, exhaustive", pair)


class _Search:
    """The largest epsilon over counts, each candidate enumerated at most once."""

    def __init__(self, m: int, p: float, delta: float, quantile: bool) -> None:
        self.m, self.p, self.delta, self.quantile = m, p, delta, quantile
        self.best, self.count = Bounds(0.0, 0.0), 0
        self._seen: set[int] = set()

    def enumerate(self, count: int) -> None:
        """Enumerate one count, in the direction that the scan covers (ln R under D')."""
        self._seen.add(count)
        law = one_filter_loss(n_bits=self.m, flip_prob=self.p, count_ones=count).backward.parts[0][0]
        if law.bounds(self.best.lower, tail=self.quantile).upper <= self.delta:
            return  # no worse than the best
        found = law.crossing(self.delta, tail=self.quantile)
        if found.upper > self.best.upper:
            self.count = count
        self.best = Bounds(max(found.lower, self.best.lower), max(found.upper, self.best.upper))

    def settle(self, scanned: np.ndarray) -> None:
        """Enumerate counts from the largest scanned value down until none can exceed the best."""
        for count in np.argsort(-scanned, kind="stable"):
            if scanned[count] < self.best.upper - _SCAN_ERROR * (1 + self.best.upper):
                break
            self.enumerate(int(count))

    def climb(self) -> None:
        """Raise epsilon to that of the worst count left, until no count exceeds delta at it."""
        # A good start spares passes: maxima lie near either end.
        ends = np.unique(np.geomspace(1, self.m, 12).astype(int)) - 1
        for count in np.unique(np.concatenate([ends, self.m - 1 - ends])):
            self.enumerate(int(count))
        left = np.arange(self.m)
        largest = float(np.log1p(-self.p) - np.log(self.p))
        while left.size and self.best.lower < largest * (1 - 1e-12):
            epsilon = self.best.lower
            deltas = CountTails.for_epsilon(self.m, self.p, epsilon).deltas(epsilon, left)
            exceeds = deltas > self.delta * (1 - _SCAN_ERROR)
            left, deltas = left[exceeds], deltas[exceeds]
            fresh = ~np.isin(left, list(self._seen))
            left, deltas = left[fresh], deltas[fresh]
            if left.size:
                self.enumerate(int(left[np.argmax(deltas)]))
