"""The noise laws that dpbayes releases with. Each carries its facts: nothing else knows which laws exist.

The conversions round outwards: the cost of the double that is stored never exceeds the cost that was asked for. A new
law is one class here (and its distribution in `dpbayes.distributions`). Importing this module loads neither PyTensor,
SciPy nor OpenDP.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats, Ints, number, one_of, positive_finite, probability_below_one, shown
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.curves import GaussianLoss, gaussian_epsilon, gaussian_stddev, zcdp_epsilon, zcdp_rho
from dpbayes.privacy.rounding import float_down, float_up, suffix_sums

_SENSITIVITY = "it is the largest change between neighbours, in the unit of the released values"
_COST = "it is the cost of the one release that this noise protects"
_MASS = "it is the probability outside the radius"
_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)
# From this sigma on, sums over the integers are Gaussian integrals: they differ by exp(-2 pi^2 sigma^2) (Poisson).
_SMOOTH = 1.6
# The relative error that the closed-form Gaussian curve allows itself; added on the safe side.
_CURVE_ERROR = 1e-12
# Up to this sigma a discrete Gaussian's tail is summed; above it Euler and Maclaurin's series has 13 digits.
_LONGEST_SUM = 1e3
_BLOCK = 1 << 14


class NoiseLaw(ABC):
    """A symmetric noise law of mean 0 with one parameter.

    It `is_discrete` if it lives on the integers, and `is_pure` if its cost is a pure epsilon, which an L1 sensitivity
    decides, not a rho of zCDP, which an L2 sensitivity does.
    """

    __slots__ = ()

    name: ClassVar[str]  # in specs, releases and ledgers
    words: ClassVar[str]  # in a sentence
    parameter: ClassVar[str]  # scale or stddev
    is_discrete: ClassVar[bool]
    is_pure: ClassVar[bool]
    adds_in_squares: ClassVar[bool] = False  # repeated, costs what one with mu^2 = sum (sensitivity / stddev)^2 does
    _remedy: ClassVar[str]
    _loss: ClassVar[str]  # the function of `dpbayes.privacy.losses`

    def __post_init__(self) -> None:
        value = positive_finite(getattr(self, self.parameter), self.parameter, remedy=self._remedy)
        object.__setattr__(self, self.parameter, value)

    @property
    def spread(self) -> float:
        """The value of the parameter."""
        return float(getattr(self, self.parameter))

    @classmethod
    def of(cls, spread: float) -> Self:
        """Return the law with a parameter."""
        return cls(spread)  # type: ignore[call-arg]

    @staticmethod
    def spread_of(variance: Any) -> Any:
        """Return the parameter of a variance; publishers state the square of a discrete Gaussian's as its variance."""
        return np.sqrt(variance)

    @property
    @abstractmethod
    def variance(self) -> float:
        """The exact variance."""

    @property
    @abstractmethod
    def mean_magnitude(self) -> float:
        """The mean of the noise's absolute value."""

    @property
    @abstractmethod
    def rates(self) -> tuple[float, float]:
        """A and b of the log-probability ``log_prob(0) - a |x| - b x^2``."""

    @property
    def relaxed(self) -> tuple[float, float, float]:
        """c, a and b of the log-density ``c - a |x| - b x^2`` on the real line that has this law's variance."""
        kind = Laplace if self.is_pure else Gaussian
        law = kind.of(float(kind.spread_of(self.variance)))
        return law._log_peak, *law.rates

    @property
    @abstractmethod
    def _log_peak(self) -> float:
        """The log-probability, or log-density, at 0."""

    @abstractmethod
    def _exponent(self, x: Any) -> Any:
        """Return the log-probability beside that at 0, of an array or of a graph."""

    def log_prob(self, x: npt.ArrayLike) -> Floats:
        """Return the log-probability (discrete laws: -inf where `x` is no integer) or log-density at `x`, its shape."""
        values = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            logs = np.asarray(self._exponent(values) + self._log_peak)
            off = (values != np.floor(values)) | np.isinf(values)
        return np.asarray(np.where(off & ~np.isnan(values), -np.inf, logs)) if self.is_discrete else logs

    def logp(self, x: Any) -> Any:
        """Return the log-probability as a PyTensor graph; a discrete law's formula is read on the real line."""
        import pytensor.tensor as pt

        return self._exponent(pt.as_tensor_variable(x)) + np.float64(self._log_peak)

    @abstractmethod
    def _upper(self, t: Floats) -> Floats:
        """Return P(X >= t) at t above 0."""

    def sf(self, x: npt.ArrayLike) -> Floats:
        """Return P(X > x), shape of `x`; relative precision is kept in the upper tail down to 1e-300."""
        values = np.asarray(x, dtype=np.float64)
        above, below = (np.floor(values) + 1.0, -np.floor(values)) if self.is_discrete else (values, -values)
        with np.errstate(over="ignore", under="ignore"):
            tail = self._upper(np.maximum(above, below))
        return np.asarray(np.where(above >= below, tail, 1.0 - tail))

    def cdf(self, x: npt.ArrayLike) -> Floats:
        """Return P(X <= x), shape of `x`; relative precision is kept in the lower tail."""
        values = np.asarray(x, dtype=np.float64)
        return self.sf(-np.floor(values) - 1.0 if self.is_discrete else -values)

    @abstractmethod
    def _radius(self, nats: float) -> float:
        """Return r with P(abs(X) > r) <= 2 exp(-nats)."""

    def tail_radius(self, mass: float) -> float:
        r"""Return a number r (an integer for a discrete law) with P(\|X\| > r) <= `mass`."""
        radius = self._radius(math.log(2.0 / probability_below_one(mass, "mass", remedy=_MASS)))
        return math.ceil(radius) if self.is_discrete else math.nextafter(radius, math.inf)

    def rho(self, *, sensitivity: float) -> float:
        """Return the zCDP cost of one release, rounded up; of a pure law epsilon^2 / 2 (Bun and Steinke, Prop. 1.4)."""
        return float_up(_change(sensitivity) ** 2 / (2 * Fraction(self.spread) ** 2))

    @classmethod
    def from_rho(cls, rho: float, *, sensitivity: float) -> Self:
        """Return the law of the least noise, up to a few units in the last place, whose zCDP cost is at most `rho`."""
        cost, change = positive_finite(rho, "rho", remedy=_COST), float(_change(sensitivity))
        spread = change / (math.sqrt(2.0) * math.sqrt(cost))
        while 0 < spread < math.inf and Fraction(change) ** 2 > 2 * Fraction(cost) * Fraction(spread) ** 2:
            spread = math.nextafter(spread, math.inf)
        # The sampler's own accountant rounds each of its steps upwards; this margin keeps it within `rho` as well.
        return cls.of(math.nextafter(math.nextafter(spread, math.inf), math.inf))

    @classmethod
    @abstractmethod
    def spending(cls, budget: Fraction, *, sensitivity: float) -> Self:
        """Return the law with the least noise that spends at most an exact budget: epsilon if pure, else rho."""

    def loss(self, *, sensitivity: Any = 1, adjacency: Adjacency | None = None) -> Any:
        """Return the privacy loss of this noise on one number that neighbours change by at most `sensitivity`.

        `compose` it, and ask for `epsilon` or `epsilon_bounds` at a delta. `adjacency` is the relation that
        `sensitivity` belongs to. `InputError` if an argument is out of range.

        Examples
        --------
        >>> round(TwoSidedGeometric(10.0).loss().compose(100).epsilon(1e-6), 6)
        4.774568
        """
        from dpbayes.privacy import losses

        return getattr(losses, self._loss)(self.spread, sensitivity=sensitivity, adjacency=adjacency)

    def measurement(self) -> Any:
        """Return OpenDP's exact sampler, which adds this noise to every entry of a list."""
        from opendp.domains import atom_domain, vector_domain
        from opendp.measurements import make_gaussian, make_laplace
        from opendp.metrics import l1_distance, l2_distance
        from opendp.mod import enable_features

        enable_features("contrib")
        vectors = vector_domain(atom_domain(T="i64") if self.is_discrete else atom_domain(T="f64", nan=False))
        if self.is_pure:
            return make_laplace(vectors, l1_distance(T="i64" if self.is_discrete else "f64"), self.spread)
        return make_gaussian(vectors, l2_distance(T="f64"), self.spread)

    @abstractmethod
    def simulate(self, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Return simulated noise: int64 for a discrete law, else float64. Not for a release."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record of this law that a release or a ledger stores."""
        return {"law": self.name, self.parameter: self.spread}


@dataclass(frozen=True, slots=True)
class PureNoise(NoiseLaw):
    """A law whose tails fall like exp(-abs(x) / scale): pure epsilon = sensitivity / scale."""

    parameter: ClassVar[str] = "scale"
    is_pure: ClassVar[bool] = True
    _remedy: ClassVar[str] = "the scale of the noise is sensitivity / epsilon"

    scale: float

    @classmethod
    def from_epsilon(cls, epsilon: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that costs at most `epsilon` at an L1 `sensitivity`."""
        return cls.spending(Fraction(positive_finite(epsilon, "epsilon", remedy=_COST)), sensitivity=sensitivity)

    @classmethod
    def spending(cls, budget: Fraction, *, sensitivity: float) -> Self:
        """Return the law of the smallest double scale with sensitivity / scale <= budget."""
        return cls(float_up(_change(sensitivity) / budget))

    def epsilon(self, *, sensitivity: float) -> float:
        """Return the pure-DP cost of one release, sensitivity / scale rounded upwards."""
        return float_up(_change(sensitivity) / Fraction(self.scale))

    @property
    def rates(self) -> tuple[float, float]:
        """1 / scale and 0."""
        return 1.0 / self.scale, 0.0

    def _exponent(self, x: Any) -> Any:
        return -abs(x) / np.float64(self.scale)

    def _radius(self, nats: float) -> float:
        return self.scale * nats


@dataclass(frozen=True, slots=True)
class ConcentratedNoise(NoiseLaw):
    """A law whose tails fall like exp(-x^2 / (2 stddev^2)): rho = sensitivity^2 / (2 stddev^2) of zCDP."""

    parameter: ClassVar[str] = "stddev"
    is_pure: ClassVar[bool] = False
    _remedy: ClassVar[str] = "under zCDP the stddev of the noise is sensitivity / sqrt(2 rho)"

    stddev: float

    @classmethod
    def spending(cls, budget: Fraction, *, sensitivity: float) -> Self:
        """Return the law with the least noise whose rho is at most `budget`."""
        return cls.from_rho(float_down(budget), sensitivity=sensitivity)

    @property
    def rates(self) -> tuple[float, float]:
        """0 and 1 / (2 stddev^2)."""
        return 0.0, 0.5 / self.stddev**2

    def _exponent(self, x: Any) -> Any:
        return -0.5 * (x / np.float64(self.stddev)) ** 2

    def _radius(self, nats: float) -> float:
        # Chernoff's bound. By Poisson summation the sum of exp(-(k - a)^2 / (2 sigma^2)) over k is largest at integer
        # a, so that the moment generating function of the discrete law is below the Gaussian's.
        return self.stddev * math.sqrt(2.0 * nats)


@dataclass(frozen=True, slots=True)
class TwoSidedGeometric(PureNoise):
    r"""The two-sided geometric (discrete Laplace) law on the integers.

    .. math:: P(X = x) = \tanh\frac{1}{2s}\; e^{-|x|/s}, \qquad x \in \mathbb Z.

    Added to integers whose L1 sensitivity is :math:`\Delta`, it costs exactly :math:`\varepsilon = \Delta / s` (Ghosh,
    Roughgarden and Sundararajan 2012). `scale` is s, in the unit of the counts; `InputError` unless positive and
    finite.

    Examples
    --------
    >>> law = TwoSidedGeometric.from_epsilon(0.1, sensitivity=2)
    >>> law.scale, round(law.variance, 2), law.epsilon(sensitivity=2)
    (20.0, 799.83, 0.1)
    """

    name: ClassVar[str] = "two-sided-geometric"
    words: ClassVar[str] = "two-sided geometric"
    is_discrete: ClassVar[bool] = True
    _loss: ClassVar[str] = "geometric_loss"

    @staticmethod
    def spread_of(variance: Any) -> Any:
        """Return the scale: the variance is 1 / (2 sinh(1 / 2s)^2)."""
        return 0.5 / np.arcsinh(1.0 / np.sqrt(2.0 * variance))

    @property
    def _rate(self) -> float:
        """1 / scale; near the largest double where that overflows, which every formula here survives."""
        return 1.0 / self.scale if self.scale > 1e-300 else 1e300

    @property
    def variance(self) -> float:
        r"""The variance, :math:`2q / (1-q)^2` with :math:`q = e^{-1/s}`."""
        # expm1 keeps the digits that 1 - q loses at large scales.
        root = math.expm1(-self._rate)
        return 2.0 * math.exp(-self._rate) / root / root

    @property
    def mean_magnitude(self) -> float:
        r"""The mean of the absolute value, :math:`2q / (1-q^2)`."""
        return 2.0 * math.exp(-self._rate) / -math.expm1(-2.0 * self._rate)

    @property
    def _log_peak(self) -> float:
        # log tanh(rate / 2), written so that neither a tiny nor a huge rate cancels.
        q = math.exp(-self._rate)
        rest = math.log(-math.expm1(-self._rate)) if self._rate < math.log(2.0) else math.log1p(-q)
        return rest - math.log1p(q)

    def _upper(self, t: Floats) -> Floats:
        return np.asarray(np.exp(-t * self._rate) / (1.0 + math.exp(-self._rate)))

    def simulate(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        """Return simulated noise, int64."""
        drawn = np.empty(math.prod(shape), dtype=np.int64)
        # Blocks that fit the cache: the arithmetic around the generator then costs next to nothing.
        for start in range(0, drawn.size, _BLOCK):
            block = drawn[start : start + _BLOCK]
            # By inversion of one exponential for the magnitude, and one random bit for the sign.
            magnitude = self.scale * rng.standard_exponential(block.size)
            magnitude += self.scale * math.log1p(math.tanh(0.5 * self._rate))
            signs = np.unpackbits(np.frombuffer(rng.bytes(-(-block.size // 8)), dtype=np.uint8), count=block.size)
            np.multiply(magnitude.astype(np.int64), 2 * signs.view(np.int8) - 1, out=block)
        return drawn.reshape(shape)


@dataclass(frozen=True, slots=True)
class Laplace(PureNoise):
    r"""The Laplace law on the real line, of density :math:`e^{-|x|/s} / 2s`.

    Added to reals whose L1 sensitivity is :math:`\Delta`, it costs :math:`\varepsilon = \Delta / s` (Dwork, McSherry,
    Nissim and Smith 2006). `scale` is s, in the unit of the values; `InputError` unless positive and finite. A release
    must draw it on a lattice, see `dpbayes.privacy.release_values`.

    Examples
    --------
    >>> law = Laplace.from_epsilon(0.5, sensitivity=1)
    >>> law.scale, law.variance, float(law.sf(0.0))
    (2.0, 8.0, 0.5)
    """

    name: ClassVar[str] = "laplace"
    words: ClassVar[str] = "Laplace"
    is_discrete: ClassVar[bool] = False
    _loss: ClassVar[str] = "laplace_loss"

    @staticmethod
    def spread_of(variance: Any) -> Any:
        """Return the scale of a variance."""
        return np.sqrt(0.5 * variance)

    @property
    def variance(self) -> float:
        """The variance, 2 scale^2."""
        return 2.0 * self.scale * self.scale

    @property
    def mean_magnitude(self) -> float:
        """The mean of the absolute value, the scale."""
        return self.scale

    @property
    def _log_peak(self) -> float:
        # log 2 + log s, since 2 s overflows for the largest doubles.
        return -(math.log(2.0) + math.log(self.scale))

    def _upper(self, t: Floats) -> Floats:
        return np.asarray(0.5 * np.exp(self._exponent(t)))

    def simulate(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Return simulated noise, float64."""
        return rng.laplace(0.0, self.scale, shape)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(ConcentratedNoise):
    r"""The discrete Gaussian law on the integers.

    .. math:: P(X = x) = \frac{e^{-x^2/2\sigma^2}}{\sum_{k \in \mathbb Z} e^{-k^2/2\sigma^2}}, \qquad x \in \mathbb Z.

    Added to integers whose L2 sensitivity is :math:`\Delta`, it costs :math:`\rho = \Delta^2/2\sigma^2` of zCDP
    (Canonne, Kamath and Steinke 2020, Theorem 4). `stddev` is the parameter sigma, in the unit of the counts: the law's
    standard deviation is below it, and equals it to sixteen digits from sigma = 1.5 on. `InputError` unless positive
    and finite.

    Examples
    --------
    >>> law = DiscreteGaussian.from_rho(0.5, sensitivity=3)
    >>> round(law.stddev, 12), round(law.variance, 12), law.rho(sensitivity=3) <= 0.5
    (3.0, 9.0, True)
    """

    name: ClassVar[str] = "discrete-gaussian"
    words: ClassVar[str] = "discrete Gaussian"
    is_discrete: ClassVar[bool] = True
    _loss: ClassVar[str] = "discrete_gaussian_loss"

    @classmethod
    def from_epsilon(cls, epsilon: float, *, delta: float, sensitivity: float) -> Self:
        """Return a law that is (epsilon, delta)-DP by way of zCDP, which bounds a change in any direction."""
        return cls.from_rho(zcdp_rho(epsilon, delta), sensitivity=sensitivity)

    def epsilon(self, *, delta: float, sensitivity: float) -> float:
        """Return an epsilon of one release at `delta` by way of zCDP; an upper bound in any dimension."""
        return zcdp_epsilon(self.rho(sensitivity=sensitivity), delta)

    @property
    def variance(self) -> float:
        """The exact variance: below stddev^2, and 2 exp(-1 / (2 stddev^2)) as stddev goes to 0."""
        if self.stddev >= _SMOOTH:
            return self.stddev * self.stddev
        weights = self._weights
        return 2.0 * sum(k * k * weight for k, weight in enumerate(weights, 1)) / (1.0 + 2.0 * sum(weights))

    @property
    def mean_magnitude(self) -> float:
        """The mean of the absolute value."""
        # From a thousand on, the lattice moves it by less than one part in ten million.
        if self.stddev > _LONGEST_SUM:
            return self.stddev * math.sqrt(2.0 / math.pi)
        x = np.arange(1, math.ceil(12.0 * self.stddev) + 2)
        return float(2.0 * (x * np.exp(self.log_prob(x))).sum())

    @property
    def _weights(self) -> list[float]:
        """exp(-k^2 / 2 sigma^2) at k = 1, 2, ... of a sigma below `_SMOOTH`; 1e-3 keeps the squares below overflow."""
        return [math.exp(-0.5 * (k / max(self.stddev, 1e-3)) ** 2) for k in range(1, 16)]

    @property
    def _log_peak(self) -> float:
        # log sigma + log sqrt(2 pi), since the product overflows for the largest doubles.
        is_smooth = self.stddev >= _SMOOTH
        return -(math.log(self.stddev) + _LOG_SQRT_TAU) if is_smooth else -math.log1p(2.0 * sum(self._weights))

    def _upper(self, t: Floats) -> Floats:
        # A sum, or from sigma = 1,000 on its series by Euler and Maclaurin's midpoint formula: with a = m - 1/2,
        # sum_(k >= m) f(k) = int_a^inf f + f'(a) / 24 - 7 f'''(a) / 5760 + ...
        sigma = self.stddev
        if sigma <= _LONGEST_SUM:
            masses = np.exp(self.log_prob(np.arange(math.ceil(39.0 * sigma) + 3)))
            return np.asarray(np.append(suffix_sums(masses), 0.0)[np.minimum(t, masses.size).astype(np.int64)])
        from scipy.special import ndtr

        u = np.minimum((t - 0.5) / sigma, 40.0)
        density = np.exp(-0.5 * u * u - _LOG_SQRT_TAU)
        return np.asarray(ndtr(-u) - density * (u / 24.0 + 7.0 * (3.0 - u * u) * u / 5760.0 / sigma**2) / sigma**2)

    def simulate(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        """Return simulated noise, int64, by rejection (Canonne, Kamath and Steinke 2020, Algorithm 3)."""
        wanted = math.prod(shape)
        drawn = np.empty(wanted, dtype=np.int64)
        # P(X != 0) is below exp(-500,000) at 1e-3 already; going lower would only overflow the squares below.
        stddev = max(self.stddev, 1e-3)
        proposal = TwoSidedGeometric(math.floor(stddev) + 1.0)
        have = 0
        while have < wanted:
            # Between 0.46 (tiny stddev) and 0.77 of the proposals survive; the surplus keeps the rounds few.
            tries = proposal.simulate((2 * (wanted - have) + 16,), rng)
            gap = (np.abs(tries) - stddev * (stddev / proposal.scale)) / stddev
            kept = tries[rng.standard_exponential(tries.shape) >= 0.5 * gap * gap][: wanted - have]
            drawn[have : have + kept.size] = kept
            have += kept.size
        return drawn.reshape(shape)


@dataclass(frozen=True, slots=True)
class Gaussian(ConcentratedNoise):
    r"""The Gaussian law on the real line.

    Added to reals whose L2 sensitivity is :math:`\Delta`, it costs :math:`\rho = \Delta^2/2\sigma^2` of zCDP (Bun and
    Steinke 2016, Proposition 1.6) and, exactly, the curve delta(epsilon) of Balle and Wang 2018, Theorem 8. `stddev` is
    sigma, in the unit of the values; `InputError` unless positive and finite. A release must draw it on a lattice, see
    `dpbayes.privacy.release_values`.

    Examples
    --------
    >>> law = Gaussian.from_epsilon(1.0, delta=1e-5, sensitivity=1)
    >>> round(law.stddev, 8), Gaussian(2.0).rho(sensitivity=1)
    (3.73063163, 0.125)
    """

    name: ClassVar[str] = "gaussian"
    words: ClassVar[str] = "Gaussian"
    is_discrete: ClassVar[bool] = False
    adds_in_squares: ClassVar[bool] = True

    def loss(self, *, sensitivity: Any = 1, adjacency: Adjacency | None = None) -> Any:
        """Return the privacy loss, in closed form."""
        if adjacency is not None:
            check_adjacency(adjacency)
        return GaussianLoss(float_up(_change(sensitivity) / Fraction(self.stddev)))

    @classmethod
    def from_epsilon(cls, epsilon: float, *, delta: float, sensitivity: float) -> Self:
        """Return the law with the least noise that is (epsilon, delta)-DP, by the exact curve, plus its 1e-12."""
        given = number(sensitivity, "sensitivity"), number(epsilon, "epsilon"), number(delta, "delta")
        return cls(gaussian_stddev(*given) * (1.0 + _CURVE_ERROR))

    def epsilon(self, *, delta: float, sensitivity: float) -> float:
        """Return the smallest epsilon of one release at `delta`, by the exact curve."""
        mu = float_up(_change(sensitivity) / Fraction(self.stddev))
        return gaussian_epsilon(mu, number(delta, "delta")) * (1.0 + _CURVE_ERROR)

    @property
    def variance(self) -> float:
        """The variance, stddev^2."""
        return self.stddev * self.stddev

    @property
    def mean_magnitude(self) -> float:
        """The mean of the absolute value, stddev sqrt(2 / pi)."""
        return self.stddev * math.sqrt(2.0 / math.pi)

    @property
    def _log_peak(self) -> float:
        return -(math.log(self.stddev) + _LOG_SQRT_TAU)

    def _upper(self, t: Floats) -> Floats:
        from scipy.special import ndtr

        return np.asarray(ndtr(-t / self.stddev))

    def simulate(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Return simulated noise, float64."""
        return rng.normal(0.0, self.stddev, shape)


LAWS: dict[str, type[NoiseLaw]] = {law.name: law for law in (TwoSidedGeometric, Laplace, DiscreteGaussian, Gaussian)}
"""Every law by its name in JSON."""

if TYPE_CHECKING:
    type NoiseName = str
    type PureNoiseName = str
    type PublishedName = str
else:  # what a spec may say
    NoiseName = Literal[tuple(LAWS)]
    PublishedName = Literal[(*LAWS, "exact")]
    PureNoiseName = Literal[tuple(name for name, law in LAWS.items() if law.is_pure)]


def check_law(law: Any) -> NoiseLaw:
    """Return `law` if it is a noise law, not its name."""
    if not isinstance(law, NoiseLaw):
        raise InputError(f"a noise law is an object such as Laplace(scale=2.0), got {type(law).__name__}")
    return law


def law_named(name: Any, *, pure: bool = False) -> type[NoiseLaw]:
    """Return the class of a law by its name; with `pure` only one whose cost is an epsilon."""
    return LAWS[one_of(name, (law.name for law in LAWS.values() if law.is_pure or not pure), "noise")]


def noise_from_dict(record: Mapping[str, Any]) -> NoiseLaw:
    """Return the law that `to_dict` recorded: `law`, and the law's parameter, and nothing else."""
    if not isinstance(record, Mapping):
        raise InputError(f"a noise law's record must be a mapping, got {shown(record)}; see to_dict")
    law = law_named(record.get("law"))
    expected = {"law", law.parameter}
    if set(record) != expected:
        missing, unknown = sorted(expected - set(record)), sorted(map(str, set(record) - expected))
        raise InputError(
            f"the record of a {law.name} law has missing keys {missing} and unknown keys {unknown}; "
            f"give law and {law.parameter} and nothing else"
        )
    return law.of(record[law.parameter])


def _change(sensitivity: float) -> Fraction:
    """Return a sensitivity as an exact number."""
    return Fraction(positive_finite(sensitivity, "sensitivity", remedy=_SENSITIVITY))
