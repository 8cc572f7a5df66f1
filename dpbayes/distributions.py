r"""Noise laws of released numbers as PyMC distributions, for any model.

`DiscreteLaplace` (two-sided geometric) and `DiscreteGaussian` are laws on the integers around a real centre. `Released`
is a number released under any noise law of `dpbayes.privacy`: truncated where the publisher truncates, and with the
exact count behind it summed out. They work as PyMC's own distributions do. Laplace and Gaussian noise without
truncation are `pm.Laplace` and `pm.Normal`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Distribution, SymbolicRandomVariable
from pymc.distributions.shape_utils import implicit_size_from_params, maybe_resize, rv_size_is_none
from pymc.logprob.abstract import _logcdf, _logprob
from pymc.pytensorf import normalize_rng_param
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.random.basic import binomial, exponential, gumbel, negative_binomial, poisson, uniform
from pytensor.tensor.random.utils import normalize_size_param

from dpbayes._arguments import one_of, shown
from dpbayes._machine_code import loop, source_key
from dpbayes.errors import InputError
from dpbayes.privacy.laws import NoiseLaw, check_law

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "Released", "TwoSidedGeometric"]

type Latent = Literal["poisson", "negative-binomial", "binomial"]

_FAR, _NEARLY_ZERO = np.float64(1e300), np.float64(-1e-300)
_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)
# Around its centre a discrete Gaussian's normalizer has the terms k = -4, ..., 4 below sigma = 1 / sqrt(2 pi), and by
# Poisson summation cosines of k = 1, 2, 3 above it: what is left out is below exp(-36) of the sum.
_CROSSING = 1.0 / math.sqrt(2.0 * math.pi)
# Up to this sigma a discrete Gaussian's tail is summed over 9 sigma. Above it Euler and Maclaurin's midpoint series, of
# weights (1 - 2^(1 - 2k)) B_2k / (2k)!, has 11 digits out to 38 sigma.
_LONGEST_SUM = 16.0
_MIDPOINT = (0.041666666666666664, -0.0012152777777777778, 3.2035383597883595e-05, -8.202608300264551e-07,
             2.0835982071876168e-08, -5.281609967721337e-10, 1.3380902920268336e-11, -3.389576851489321e-13,
             8.585996549822947e-15)  # fmt: skip
_ALL_TERMS = math.ceil(9.0 * _LONGEST_SUM) + 2
# Counts proposed for a draw that is both summed out and truncated.
_CANDIDATES = 256


# --- discrete Laplace ------------------------------------------------------------------------------------------------


def _laplace_parts(mu: Any, scale: Any) -> tuple[Any, Any]:
    """Distance g from the centre to the nearest integer, and log(1 + exp(-(1 - 2g)/s)).

    The sum of exp(-|k - mu|/s) over the integers is exp(-g/s) (1 + exp(-(1 - 2g)/s)) / (1 - exp(-1/s)).
    """
    away = pt.abs(mu - pt.round(mu))
    return away, pt.log1p(pt.exp(-(1.0 - 2.0 * away) / scale))


def _laplace_logp(value: Any, mu: Any, scale: Any) -> Any:
    """Log-pmf at integers."""
    away, base = _laplace_parts(mu, scale)
    return (away - pt.abs(value - mu)) / scale - base + pt.log1mexp(-1.0 / scale)


def _laplace_upper(m: Any, mu: Any, scale: Any, terms: int = 0) -> Any:
    """Log P(X >= m) at integers m."""
    away, base = _laplace_parts(mu, scale)
    right = pt.minimum((away + mu - m) / scale - base, 0.0)
    left = pt.minimum((away + m - 1.0 - mu) / scale - base, _NEARLY_ZERO)
    return pt.switch(m > mu, right, pt.log1mexp(left))


def _laplace_above(log_v: Any, mu: Any, scale: Any) -> Any:
    """Return the largest integer m with log P(X >= m) >= log_v: a draw, for the logarithm of a uniform variable."""
    away, base = _laplace_parts(mu, scale)
    below = pt.floor(mu)
    right = pt.floor(mu + away - scale * (log_v + base))
    left = pt.floor(1.0 + mu - away + scale * (pt.log1mexp(pt.minimum(log_v, _NEARLY_ZERO)) + base))
    in_right = log_v <= _laplace_upper(below + 1.0, mu, scale)
    return pt.switch(in_right, pt.maximum(right, below + 1.0), pt.minimum(left, below))


# --- normal tails ----------------------------------------------------------------------------------------------------


def log_normal_tail(z: Any) -> Any:
    """Log of the standard normal law's upper tail (pymc.distributions.dist_math has it with sqrt(2) in float32)."""
    root = math.sqrt(2.0)
    far = pt.log(0.5 * pt.erfcx(pt.maximum(z, 1.0) / root)) - 0.5 * pt.maximum(z, 1.0) ** 2
    return pt.switch(z > 1.0, far, pt.log1p(-0.5 * pt.erfc(-pt.minimum(z, 1.0) / root)))


def _normal_upper(t: Any, centre: Any, spread: Any, terms: int = 0) -> Any:
    """Log P(X >= t) of Gaussian noise."""
    return log_normal_tail((t - centre) / spread)


def _normal_above(log_v: Any, centre: Any, spread: Any) -> Any:
    """Return where log P(X >= t) is log_v: Newton from the right, monotone because the curve is concave."""
    in_right = log_v <= -math.log(2.0)
    goal = pt.switch(in_right, log_v, pt.log1mexp(pt.minimum(log_v, _NEARLY_ZERO)))
    z = pt.sqrt(pt.maximum(-2.0 * (goal + math.log(2.0)), 0.0))
    for _ in range(8):
        log_tail = log_normal_tail(z)
        z = z + (log_tail - goal) * pt.exp(log_tail + 0.5 * z * z + _LOG_SQRT_TAU)
    return centre + spread * pt.switch(in_right, z, -z)


def _is_left(centre: Any, lower: Any, upper: Any) -> Any:
    """Whether the middle of the bounds lies to the left of the centre, a missing bound being far away."""
    return pt.clip(lower, -_FAR, _FAR) / 2 + pt.clip(upper, -_FAR, _FAR) / 2 < centre


def _log_difference(large: Any, small: Any) -> Any:
    """Log of exp(large) - exp(small)."""
    return large + pt.log1mexp(pt.minimum(small - large, _NEARLY_ZERO))


# --- discrete Gaussian -----------------------------------------------------------------------------------------------


def _gaussian_log_normalizer(mu: Any, sigma: Any) -> tuple[Any, Any]:
    """Offset f from the nearest integer, and the log of the sum of exp(-((k - mu)^2 - f^2) / 2 sigma^2).

    Directly, exp(-f^2 / 2 sigma^2) sum_k exp(-(k^2 - 2kf) / 2 sigma^2); by Poisson summation
    sigma sqrt(2 pi) (1 + 2 sum_k exp(-2 pi^2 sigma^2 k^2) cos(2 pi k f)).
    """
    off = mu - pt.round(mu)
    small, large = pt.clip(sigma, 1e-9, _CROSSING), pt.clip(sigma, _CROSSING, 1e3)
    rest = sum(pt.exp(-0.5 * k * (k - 2.0 * off) / small**2) for k in (-4, -3, -2, -1, 1, 2, 3, 4))
    waves = sum(pt.exp(-2.0 * (math.pi * k * large) ** 2) * pt.cos(2.0 * math.pi * k * off) for k in (1, 2, 3))
    dual = pt.log(sigma) + _LOG_SQRT_TAU + pt.log1p(2.0 * waves) + 0.5 * (off / sigma) ** 2
    return off, pt.switch(sigma < _CROSSING, pt.log1p(rest), dual)


def _gaussian_logp(value: Any, mu: Any, sigma: Any) -> Any:
    """Log-pmf at integers; the squares of distance and offset are subtracted as a product."""
    off, log_sum = _gaussian_log_normalizer(mu, sigma)
    gap = pt.abs(value - mu)
    return -0.5 * ((gap - pt.abs(off)) / sigma) * ((gap + pt.abs(off)) / sigma) - log_sum


def _gaussian_upper(m: Any, mu: Any, sigma: Any, terms: int) -> Any:
    """Log P(X >= m) at integers m; `terms` is how many the sum has, 0 where every sigma is beyond it."""
    off, log_sum = _gaussian_log_normalizer(mu, sigma)

    def log_sum_from(away: Any) -> Any:
        """Log of the sum of exp(-(away + k)^2 / 2 sigma^2) over k >= 0, for away > 0."""
        parts = []
        if terms:
            k = np.arange(terms, dtype=np.float64)
            exponent = -0.5 * k * (2.0 * away[..., None] + k) / sigma[..., None] ** 2
            parts.append(-0.5 * (away / sigma) ** 2 + pt.log(pt.exp(exponent).sum(axis=-1)))
        u = (away - 0.5) / sigma
        mills = sigma * math.sqrt(math.pi / 2.0) * pt.erfcx(u / math.sqrt(2.0))
        # The midpoint formula corrects the integral by odd derivatives, which are Hermite polynomials of u.
        hermite, former, odd = u, 1.0, 0.0
        for j, weight in enumerate(_MIDPOINT):
            odd = odd - weight * hermite / sigma ** (2 * j + 1)
            former = u * hermite - (2 * j + 1) * former
            hermite, former = u * former - (2 * j + 2) * hermite, former
        parts.append(pt.log(mills) - 0.5 * u**2 + pt.log1p(odd / mills))
        return parts[0] if len(parts) == 1 else pt.switch(sigma <= _LONGEST_SUM, *parts)

    beyond = m > mu
    log_tail = log_sum_from(pt.switch(beyond, m - mu, mu - m + 1.0)) - (log_sum - 0.5 * (off / sigma) ** 2)
    return pt.switch(beyond, log_tail, pt.log1mexp(pt.minimum(log_tail, _NEARLY_ZERO)))


def _gaussian_above(log_v: Any, mu: Any, sigma: Any) -> Any:
    """Return the largest integer m with log P(X >= m) >= log_v: within 2 of where a normal tail is there.

    From the farthest candidate's tail, to which the masses of the others are added.
    """
    near = pt.floor(_normal_above(log_v, mu, sigma) + 0.5)
    log_tail = _gaussian_upper(near + 2.0, mu, sigma, _ALL_TERMS)
    found = near - 2.0 + (log_tail >= log_v)
    for m in (near + 1.0, near, near - 1.0):
        log_tail = pt.logaddexp(log_tail, _gaussian_logp(m, mu, sigma))
        found = found + (log_tail >= log_v)
    return found


# --- the noise laws that `Released` knows: one entry per law --------------------------------------------------------


@dataclass(frozen=True)
class _Noise:
    """A law around a real centre: `code` in compiled loops, log-probability, log P(X >= t), and that one's inverse."""

    code: int
    logp: Callable[[Any, Any, Any], Any]
    upper: Callable[[Any, Any, Any, int], Any]  # the last one counts the terms of a discrete Gaussian's sum
    above: Callable[[Any, Any, Any], Any]


def _laplace_density_upper(t: Any, centre: Any, scale: Any, terms: int = 0) -> Any:
    """Log P(X >= t) of Laplace noise."""
    gap = (t - centre) / scale
    right = -pt.maximum(gap, 0.0) - math.log(2.0)
    return pt.switch(gap >= 0, right, pt.log1p(-0.5 * pt.exp(pt.minimum(gap, 0.0))))


def _laplace_density_above(log_v: Any, centre: Any, scale: Any) -> Any:
    half = math.log(2.0)
    left = pt.log1mexp(pt.minimum(log_v, _NEARLY_ZERO)) + half
    return centre + scale * pt.switch(log_v <= -half, -(log_v + half), left)


_NOISES: dict[str, _Noise] = {
    "two-sided-geometric": _Noise(0, _laplace_logp, _laplace_upper, _laplace_above),
    "laplace": _Noise(
        1,
        lambda value, centre, spread: -pt.log(2.0 * spread) - pt.abs(value - centre) / spread,
        _laplace_density_upper,
        _laplace_density_above,
    ),
    "discrete-gaussian": _Noise(2, _gaussian_logp, _gaussian_upper, _gaussian_above),
    "gaussian": _Noise(
        3,
        lambda value, centre, spread: -0.5 * ((value - centre) / spread) ** 2 - pt.log(spread) - _LOG_SQRT_TAU,
        _normal_upper,
        _normal_above,
    ),
}
_LATENTS: dict[str, int] = {"poisson": 0, "negative-binomial": 1, "binomial": 2}


# --- released numbers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """What is fixed about a released number: law, count behind it, which bounds there are, terms of a tail sum."""

    law: str
    is_discrete: bool
    latent: str | None = None
    has_lower: bool = False
    has_upper: bool = False
    terms: int = 0

    @property
    def bounded(self) -> bool:
        return self.has_lower or self.has_upper

    @property
    def noise(self) -> _Noise:
        return _NOISES[self.law]


class _ReleasedRV(SymbolicRandomVariable):
    """Random released numbers; inputs are centre, second parameter of the count, spread, lower, upper."""

    name = "released"
    extended_signature = "[rng],[size],(),(),(),(),()->[rng],()"
    _print_name = ("Released", "\\operatorname{Released}")

    def __init__(self, *args: Any, form: _Form, **kwargs: Any) -> None:
        self.form = form
        super().__init__(*args, **kwargs)

    def rv_op(self, *params: Any, size: Any = None, rng: Any = None) -> Any:
        return _released(*params, form=self.form, size=size, rng=rng)


def _released(
    centre: Any, extra: Any, spread: Any, lower: Any, upper: Any, *, form: _Form, size: Any = None, rng: Any = None
) -> Any:
    """Return the random variable of released numbers."""
    params = [_floats(each) for each in (centre, extra, spread, lower, upper)]
    rng, size = normalize_rng_param(rng), normalize_size_param(size)
    if rv_size_is_none(size):
        size = implicit_size_from_params(*params, ndims_params=[0] * 5)
    centre, extra, spread, lower, upper = params
    step, exact = rng, centre
    if form.latent is not None:
        step, exact = _exact_counts(form, params, size, step)
    step, draws = _tail_draws(form, exact, spread, lower, upper, size, step)
    draws = draws.astype("int64" if form.is_discrete else "float64")
    return _ReleasedRV(inputs=[rng, size, *params], outputs=[step, draws], form=form)(rng, size, *params)


def _tail_draws(form: _Form, centre: Any, spread: Any, lower: Any, upper: Any, size: Any, rng: Any) -> tuple[Any, Any]:
    """Draw within bounds by inverting log P(X >= t), on the side where that is small."""
    above, tail = form.noise.above, form.noise.upper
    rng, side = uniform(size=size, rng=rng, return_next_rng=True)
    rng, excess = exponential(size=size, rng=rng, return_next_rng=True)
    if not form.bounded:
        mirror = pt.switch(side < 0.5, -1.0, 1.0)
        return rng, mirror * above(-excess, mirror * centre, spread)
    mirror = pt.switch(_is_left(centre, lower, upper), -1.0, 1.0)
    low = pt.switch(mirror > 0, lower, -upper)
    high = pt.switch(mirror > 0, upper, -lower)
    end = pt.switch(pt.isinf(high), low, high)
    rest = pt.switch(pt.isinf(high), -np.inf, tail(end + int(form.is_discrete), mirror * centre, spread, _ALL_TERMS))
    mass = _log_difference(tail(low, mirror * centre, spread, _ALL_TERMS), rest)
    drawn = pt.clip(above(pt.logaddexp(rest, mass - excess), mirror * centre, spread), low, high)
    return rng, mirror * drawn


def _exact_counts(form: _Form, params: Sequence[Any], size: Any, rng: Any) -> tuple[Any, Any]:
    """Draw the count behind a number; where the number is truncated, from candidates by how likely each is released."""
    centre, extra, spread, lower, upper = params
    sizes = pt.concatenate([pt.as_tensor([_CANDIDATES]), size]) if form.bounded else size
    if form.latent == "poisson":
        rng, counts = poisson(centre, size=sizes, rng=rng, return_next_rng=True)
    elif form.latent == "negative-binomial":
        rng, counts = negative_binomial(extra, extra / (extra + centre), size=sizes, rng=rng, return_next_rng=True)
    else:
        trials = pt.round(extra).astype("int64")
        rng, counts = binomial(trials, pt.clip(centre / extra, 0.0, 1.0), size=sizes, rng=rng, return_next_rng=True)
    counts = counts.astype("float64")
    if not form.bounded:
        return rng, counts
    rng, luck = gumbel(0.0, 1.0, size=sizes, rng=rng, return_next_rng=True)
    chosen = pt.argmax(_log_mass(form, counts, spread, lower, upper) + luck, axis=0)
    return rng, pt.take_along_axis(counts, chosen[None], axis=0)[0]


def _log_mass(form: _Form, centre: Any, spread: Any, lower: Any, upper: Any) -> Any:
    """Log P(lower <= X <= upper) of the noise around a centre, from the tail that is small."""
    centre, spread, lower, upper = pt.broadcast_arrays(centre, spread, lower, upper)
    # Of a row without a bound: so far out that nothing is left, and finite, so that slopes are too.
    lower = pt.switch(pt.isinf(lower), pt.floor(centre - 60.0 * spread) - 60.0, lower)
    upper = pt.switch(pt.isinf(upper), pt.ceil(centre + 60.0 * spread) + 60.0, upper)
    tail, step = form.noise.upper, int(form.is_discrete)
    if not form.has_upper:
        return tail(lower, centre, spread, form.terms)
    if not form.has_lower:
        return tail(-upper, -centre, spread, form.terms)
    left = _is_left(centre, lower, upper)
    low, high = pt.switch(left, -upper, lower), pt.switch(left, -lower, upper)
    centre = pt.switch(left, -centre, centre)
    return _log_difference(tail(low, centre, spread, form.terms), tail(high + step, centre, spread, form.terms))


class Released(Distribution):
    r"""A number released under a noise law, truncated where its publisher truncates, its exact count summed out.

    Without `latent` the number is the centre plus noise; the noise of a discrete law lives on the integers around the
    centre, as in `DiscreteLaplace` and `DiscreteGaussian`, so that any real centre gives a normalized law. With
    `latent` the exact count n is an integer with a law of mean `centre`, and it is summed out:

    .. math:: p(y) = \sum_{n \ge 0} f(n)\, g(y - n), \qquad
        p(y \mid \text{lower} \le Y \le \text{upper}) = \frac{p(y)}{\sum_n f(n)\, P(\text{lower} \le n + X \le
        \text{upper})}.

    Parameters
    ----------
    centre : tensor_like of float
        The exact number, or the mean of the exact count where it is summed out.
    law : NoiseLaw, or a sequence of one per number
        Law of the noise (`dpbayes.privacy`); several must be of one kind and differ in their parameter only.
    lower, upper : tensor_like of float, optional
        Bounds within which the publisher releases a number, where it is not known how many lie outside. Integers for a
        discrete law. Where it is known which ones were withheld, use `pm.Censored` around an unbounded `Released.dist`.
    latent : {"poisson", "negative-binomial", "binomial"}, optional
        Law of the exact count.
    alpha : tensor_like of float
        Only for a negative binomial count: its shape, as in `pm.NegativeBinomial`; variance mean + mean^2 / alpha.
    n : tensor_like of int
        Only for a binomial count: the number of trials; the success probability is centre / n.

    Raises
    ------
    InputError
        If the law is no noise law, laws are of several kinds, or a parameter of the count is missing or too many.

    Notes
    -----
    The sums are exact: they run from their largest term outwards until a term is below 1e-18 of it, which takes as many
    terms as the noise or the count's own spread allows, whichever is narrower; the gradients come with them. A negative
    binomial count of alpha below 1 takes the full range of a truncated number. Predictive draws are exact without
    `latent` or without bounds; with both, the exact count is one of 256 candidates, chosen by how likely each is
    released, which is close unless fewer than one in a hundred is.

    Examples
    --------
    Page views are released with discrete Laplace noise, and rows below 90 are withheld (`lower` alone if the pages
    without a row are not known; here a third page is known to have none):

    >>> import numpy as np, pymc as pm
    >>> from dpbayes.privacy import TwoSidedGeometric
    >>> views = np.array([112, 95, 89])
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate", 5.0, 1.0, shape=3)
    ...     noisy = Released.dist(rate, TwoSidedGeometric(10.0), latent="poisson")
    ...     released = pm.Censored("released", noisy, lower=89, upper=None, observed=views)
    >>> released.type.dtype
    'int64'
    """

    rv_type, rv_op = _ReleasedRV, staticmethod(_released)

    @classmethod
    def dist(
        cls,
        centre: Any,
        law: NoiseLaw | Sequence[NoiseLaw],
        *,
        lower: Any = None,
        upper: Any = None,
        latent: Latent | None = None,
        alpha: Any = None,
        n: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return a variable of this distribution that belongs to no model."""
        kind, spread = _law_of(law)
        if latent == "multinomial":
            raise InputError(
                "a multinomial count is not summed out: its cells share a total, so that the sum has as many terms as "
                "tables of that total; write the cells as Poisson counts of mean total * p (latent='poisson'), which "
                "is the same model with a total that varies"
            )
        if latent is not None:
            one_of(latent, _LATENTS, "latent", remedy="None sums no count out")
        for name, value, owner in (("alpha", alpha, "negative-binomial"), ("n", n, "binomial")):
            if (value is not None) != (latent == owner):
                raise InputError(f"{name} belongs to a {owner} count and only to it; got latent={shown(latent)}")
        extra = alpha if alpha is not None else n if n is not None else 1.0
        form = _Form(kind.name, kind.is_discrete, latent, lower is not None, upper is not None, _tail_terms(spread))
        lower, upper = (-np.inf if lower is None else lower), (np.inf if upper is None else upper)
        return cls._of(form, centre, extra, spread, lower, upper, **kwargs)

    @classmethod
    def _of(cls, form: _Form, *params: Any, **kwargs: Any) -> Any:
        return super().dist([_floats(each) for each in params], form=form, **kwargs)

    def support_point(rv: Any, size: Any, centre: Any, extra: Any, spread: Any, lower: Any, upper: Any) -> Any:
        """Return the centre, rounded for a discrete law and moved within the bounds."""
        point = pt.clip(centre + pt.zeros_like(spread), lower, upper)
        point = pt.round(point) if rv.owner.op.form.is_discrete else point
        return point if rv_size_is_none(size) else pt.full(size, point)


class DiscreteLaplace(Released):
    r"""Discrete Laplace (two-sided geometric) distribution around a centre.

    .. math:: P(X = x) = \frac{e^{-|x - \mu|/s}}{\sum_{k \in \mathbb Z} e^{-|k - \mu|/s}}, \qquad x \in \mathbb Z.

    At an integer :math:`\mu` this is :math:`\mu` plus two-sided geometric noise, the law of
    `dpbayes.privacy.TwoSidedGeometric`. The centre may be any real number, such as a latent count in a model that is
    sampled by gradients: the law stays normalized, and its log-probability is continuous in :math:`\mu`.

    Parameters
    ----------
    mu : tensor_like of float
        Centre, in counts.
    scale : tensor_like of float
        Scale s of the noise, positive; sensitivity / epsilon.

    Notes
    -----
    Support: the integers. Mean :math:`\mu` and variance :math:`2q/(1-q)^2`, :math:`q = e^{-1/s}`, at integer
    :math:`\mu`. `logp` and `logcdf` have closed forms; the relative error is some 1e-14 for scales from 1e-6 to 1e6.

    References
    ----------
    Ghosh, A., Roughgarden, T. and Sundararajan, M. (2012). Universally utility-maximizing privacy mechanisms. SIAM J.
    Comput. 41(6), 1673-1693.

    Examples
    --------
    >>> import pymc as pm
    >>> round(float(pm.logp(DiscreteLaplace.dist(10.0, 2.0), 13).eval(mode="FAST_COMPILE")), 6)
    -2.906829
    """

    rv_type, rv_op = _ReleasedRV, staticmethod(_released)

    @classmethod
    def dist(cls, mu: Any, scale: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return a variable of this distribution that belongs to no model."""
        return cls._of(_Form("two-sided-geometric", True), mu, 1.0, scale, -np.inf, np.inf, **kwargs)


TwoSidedGeometric = DiscreteLaplace
"""`DiscreteLaplace` by the name that the literature on privacy uses."""


class DiscreteGaussian(Released):
    r"""Discrete Gaussian distribution around a centre.

    .. math:: P(X = x) = \frac{e^{-(x - \mu)^2/2\sigma^2}}{\sum_{k \in \mathbb Z} e^{-(k - \mu)^2/2\sigma^2}},
        \qquad x \in \mathbb Z.

    At an integer :math:`\mu` this is :math:`\mu` plus the noise of `dpbayes.privacy.DiscreteGaussian`. The centre may
    be any real number; the log-probability is smooth in it.

    Parameters
    ----------
    mu : tensor_like of float
        Centre, in counts.
    sigma : tensor_like of float
        Parameter sigma, positive: sensitivity / sqrt(2 rho). The standard deviation equals it to sixteen digits from
        1.5 on, and is smaller below.

    Notes
    -----
    Support: the integers. `logcdf` sums the tail up to sigma = 16 and has 11 digits by a series above.

    References
    ----------
    Canonne, C., Kamath, G. and Steinke, T. (2020). The discrete Gaussian for differential privacy. NeurIPS 33.

    Examples
    --------
    >>> import pymc as pm
    >>> round(float(pm.logp(DiscreteGaussian.dist(10.0, 2.0), 13).eval(mode="FAST_COMPILE")), 6)
    -2.737086
    """

    rv_type, rv_op = _ReleasedRV, staticmethod(_released)

    @classmethod
    def dist(cls, mu: Any, sigma: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return a variable of this distribution that belongs to no model."""
        form = _Form("discrete-gaussian", True, terms=_ALL_TERMS)
        return cls._of(form, mu, 1.0, sigma, -np.inf, np.inf, **kwargs)


@_logcdf.register(_ReleasedRV)
def _released_logcdf(op: _ReleasedRV, value: Any, *inputs: Any, **kwargs: Any) -> Any:
    """Return log P(X <= value) of released numbers."""
    form, (_, _, centre, extra, spread, lower, upper) = op.form, inputs
    value = pt.floor(_floats(value)) if form.is_discrete else _floats(value)
    last = pt.maximum(pt.minimum(value, upper), lower)
    logcdf = _log_released(replace(form, has_upper=True), centre, extra, spread, lower, last)
    logcdf = logcdf - _log_released(form, centre, extra, spread, lower, upper)
    return _checked(op, pt.switch(pt.ge(value, lower), logcdf, -np.inf), inputs)


@_logprob.register(_ReleasedRV)
def _released_logprob(op: _ReleasedRV, values: Sequence[Any], *inputs: Any, **kwargs: Any) -> Any:
    """Return the log-probability of released numbers."""
    form, [value] = op.form, values
    _, _, centre, extra, spread, lower, upper = inputs
    value = _floats(value)
    if form.latent is None:
        logp = form.noise.logp(value, centre, spread)
    else:
        logp = _summed(form, False, value, centre, extra, spread, lower, upper)
        logp = logp + form.noise.logp(_floats(0.0), _floats(0.0), spread)
    logp = logp - _log_released(form, centre, extra, spread, lower, upper)
    allowed = pt.ge(value, lower) & pt.le(value, upper)
    if form.is_discrete:
        allowed = allowed & pt.eq(value, pt.floor(value))
    return _checked(op, pt.switch(allowed, logp, -np.inf), inputs)


def _tail_terms(spread: Any) -> int:
    """Return how many terms a discrete Gaussian's tail sum has, 0 where every sigma is beyond it."""
    return 0 if np.min(spread) > _LONGEST_SUM else math.ceil(9.0 * min(np.max(spread), _LONGEST_SUM)) + 2


def _log_released(form: _Form, centre: Any, extra: Any, spread: Any, lower: Any, upper: Any) -> Any:
    """Log of the chance that a number lies within its bounds: 0 where there is none."""
    if not form.bounded:
        return 0.0
    if form.latent is None:
        return _log_mass(form, centre, spread, lower, upper)
    return _summed(form, True, pt.as_tensor(0.0), centre, extra, spread, lower, upper)


def _summed(form: _Form, bounds: bool, *values: Any) -> Any:
    """Return what `SummedCounts` gives, of any shape: of numbers, or of their bounds."""
    assert form.latent is not None
    values = pt.broadcast_arrays(*values)
    summed = SummedCounts(_LATENTS[form.latent], form.noise.code, bounds)
    return summed(*[each.ravel() for each in values])[0].reshape(values[0].shape)


def _checked(op: _ReleasedRV, logp: Any, inputs: Sequence[Any]) -> Any:
    """Refuse parameters out of range."""
    _, size, centre, extra, spread, _, _ = inputs
    checks = [spread > 0]
    if op.form.latent is not None:
        checks += [centre > 0, extra > 0] + ([centre <= extra] if op.form.latent == "binomial" else [])
    return maybe_resize(check_parameters(logp, *checks, msg="spread > 0, centre > 0, alpha > 0, centre <= n"), size)


def _law_of(law: Any) -> tuple[NoiseLaw, Any]:
    """Return one of the laws, for its kind, and the parameter of each."""
    several = isinstance(law, Sequence) and not isinstance(law, str) and len(law)
    laws = [check_law(one) for one in (law if several else [law])]
    kinds = {type(one) for one in laws}
    if len(kinds) > 1 or laws[0].name not in _NOISES:
        names = ", ".join(sorted(one.name for one in kinds))
        raise InputError(f"law must be of one kind out of {', '.join(_NOISES)}, got {names}; use one variable per kind")
    spread = np.array([one.spread for one in laws])
    return laws[0], spread if several else spread[0]


def _floats(value: Any) -> Any:
    """Return a tensor of doubles."""
    # PyTensor would store a Python float as float32 and carry its seven digits through the whole graph.
    if isinstance(value, int | float | list | tuple):
        value = np.asarray(value, dtype=np.float64)
    return pt.cast(pt.as_tensor_variable(value), "float64")


# --- a count summed out ----------------------------------------------------------------------------------------------

_CUT = 1e-18


@loop
def _stirling(x: Any) -> Any:
    """Log x! less Stirling's formula (Loader 2000, Fast and accurate computation of binomial probabilities)."""
    if x <= 15.0:
        return math.lgamma(x + 1.0) - (x + 0.5) * math.log(x) + x - 0.9189385332046728
    r = 1.0 / (x * x)
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 * r) * r) * r) * r) / x


@loop
def _deviance(x: Any, m: Any) -> Any:
    """X log(x / m) + m - x without cancellation (Loader 2000)."""
    if abs(x - m) < 0.1 * (x + m):
        v = (x - m) / (x + m)
        s = (x - m) * v
        term = 2.0 * x * v
        for j in range(1, 1000):
            term *= v * v
            more = s + term / (2 * j + 1)
            if more == s:
                return s
            s = more
    return x * math.log(x / m) + m - x


@loop
def _log_binomial(x: Any, n: Any, p: Any, q: Any) -> Any:
    """Log of the binomial probability, for real x and n."""
    if x == 0.0:
        return n * math.log1p(-p) if p < 0.5 else n * math.log(q)
    if x == n:
        return n * math.log(p) if p < 0.5 else n * math.log1p(-q)
    lead = _stirling(n) - _stirling(x) - _stirling(n - x) - _deviance(x, n * p) - _deviance(n - x, n * q)
    return lead - 0.5 * math.log(2.0 * math.pi * x * (n - x) / n)


@loop
def _log_count(family: Any, k: Any, mean: Any, extra: Any) -> Any:
    """Log f(k)."""
    if family == 0:
        if k == 0.0:
            return -mean
        return -_stirling(k) - _deviance(k, mean) - 0.5 * math.log(2.0 * math.pi * k)
    if family == 1:
        if k == 0.0:
            return -extra * math.log1p(mean / extra)
        size = k + extra
        return math.log(extra / size) + _log_binomial(extra, size, extra / (extra + mean), mean / (extra + mean))
    return _log_binomial(k, extra, mean / extra, (extra - mean) / extra)


@loop
def _count_ratio(family: Any, k: Any, mean: Any, extra: Any) -> Any:
    """Numerator and denominator of f(k + 1) / f(k)."""
    if family == 0:
        return mean, k + 1.0
    if family == 1:
        return (k + extra) * mean, (k + 1.0) * (mean + extra)
    return (extra - k) * mean, (k + 1.0) * (extra - mean)


@loop
def _log_right(noise: Any, t: Any, spread: Any) -> Any:
    """Log P(X >= t) of noise around zero; t whole for a discrete law."""
    if noise == 0:
        base = math.log1p(math.exp(-1.0 / spread))
        if t >= 1.0:
            return -t / spread - base
        return math.log1p(-math.exp(-(1.0 - t) / spread - base))
    if noise == 1:
        if t >= 0.0:
            return -t / spread - math.log(2.0)
        return math.log1p(-0.5 * math.exp(t / spread))
    if noise == 3:
        return _log_normal_right(t / spread)
    if t >= 1.0:
        return _log_lattice_right(t, spread)
    return math.log1p(-math.exp(_log_lattice_right(1.0 - t, spread)))


@loop
def _log_normal_right(z: Any) -> Any:
    """Log of the normal law's upper tail."""
    if z < 5.0:
        return math.log(0.5 * math.erfc(z * math.sqrt(0.5)))
    # The Laplace continued fraction of the Mills ratio: 40 terms give 16 digits from 5 on.
    c = 0.0
    for i in range(40, 0, -1):
        c = i / (z + c)
    return -0.5 * z * z - 0.9189385332046728 - math.log(z + c)


@loop
def _log_lattice_right(t: Any, sigma: Any) -> Any:
    """Log P(X >= t) of a discrete Gaussian at whole t of at least 1."""
    if sigma > 64.0:
        u = (t - 0.5) / sigma
        log_right = _log_normal_right(u)
        ratio = math.exp(-0.5 * u * u - 0.9189385332046728 - log_right) / sigma
        odd = -u / 24.0 / sigma - 7.0 / 5760.0 * (3.0 * u - u**3) / sigma**3
        return log_right + math.log1p(ratio * (odd - 31.0 / 967680.0 * (15.0 * u - 10.0 * u**3 + u**5) / sigma**5))
    total, k = 0.0, 0.0
    while True:
        term = math.exp(-0.5 * k * (2.0 * t + k) / sigma**2)
        total += term
        if term < 1e-18:
            break
        k += 1.0
    return math.log(total) - 0.5 * (t / sigma) ** 2 + _log_lattice_peak(sigma)


@loop
def _log_lattice_peak(sigma: Any) -> Any:
    """Log of a discrete Gaussian's probability at zero."""
    rest = 0.0
    if sigma < 0.3989422804014327:
        for j in range(1, 5):
            rest += 2.0 * math.exp(-0.5 * (j / sigma) ** 2)
        return -math.log1p(rest)
    for j in range(1, 4):
        rest += 2.0 * math.exp(-2.0 * (math.pi * j * sigma) ** 2)
    return -math.log(sigma) - 0.9189385332046728 - math.log1p(rest)


@loop
def _log_within(noise: Any, low: Any, high: Any, spread: Any) -> Any:
    """Log P(low <= X <= high) of noise around zero, from the tail that is small."""
    step = 1.0 if noise == 0 or noise == 2 else 0.0
    if high == math.inf:
        return _log_right(noise, low, spread)
    if low == -math.inf:
        return _log_right(noise, -high, spread)
    if low + high < 0.0:
        low, high = -high, -low
    large, small = _log_right(noise, low, spread), _log_right(noise, high + step, spread)
    return large + math.log(-math.expm1(small - large))


@loop
def _log_weight(noise: Any, k: Any, y: Any, spread: Any, low: Any, high: Any, bounds: Any) -> Any:
    """Log of what multiplies f(k): the noise at y - k without its constant, or the chance to be released."""
    if bounds:
        return _log_within(noise, low - k, high - k, spread)
    gap = abs(y - k) / spread
    return -gap if noise < 2 else -0.5 * gap * gap


@loop
def _digamma(x: Any) -> Any:
    """Digamma function of a positive number."""
    value = 0.0
    while x < 10.0:
        value -= 1.0 / x
        x += 1.0
    r = 1.0 / (x * x)
    series = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132)))))
    return value + math.log(x) - 0.5 / x - series


@loop
def _start(law: Any) -> Any:
    """Return where the terms are largest, by bisection of their falling ratios."""
    family, noise, y, mean, extra, spread, low, high, bounds = law
    first, last = 0.0, math.ceil(max(mean, 0.0)) + 2.0
    if bounds:
        if low > -math.inf:
            last = max(last, low + 45.0 * spread + 2.0)
    else:
        last = max(last, math.ceil(y) + 2.0)
    if family == 2:
        last = min(last, extra)
    if family == 1 and extra < 1.0 and not bounds:
        # f itself is log-convex: with exponential tails so are the terms up to y, with Gaussian ones up to here.
        first = math.floor(y) if noise < 2 else math.ceil(spread * math.sqrt(1.0 - extra)) + 1.0
        first = min(max(first, 0.0), last)
        if noise < 2:
            return first
    while first < last:
        k = math.floor(0.5 * (first + last))
        up, down = _count_ratio(family, k, mean, extra)
        rise = math.log(up / down) + _log_weight(noise, k + 1.0, y, spread, low, high, bounds)
        rise -= _log_weight(noise, k, y, spread, low, high, bounds)
        if rise > 0.0:
            first = k + 1.0
        else:
            last = k
    return first


@loop
def _noise_step(noise: Any, gap: Any, spread: Any) -> Any:
    """Return the ratio of the weights of two counts in turn, the second one gap + 1 beyond the number."""
    if noise < 2:
        return math.exp((abs(gap) - abs(gap + 1.0)) / spread)
    return math.exp(-0.5 * (2.0 * gap + 1.0) / spread**2)


@loop
def _walk(law: Any, k: Any, last: Any, term: Any, base: Any, sums: Any) -> Any:
    """Add the terms from count k on towards `last`, where they end if not before; return where they ended.

    `term` is the first one's relative size. The sums are of the terms, and of the terms times k - mean, digamma(k +
    extra) and the noise's slope in y. Weights of the noise follow from one another, and anew every 64 terms; those of
    bounds, `base` at the first, do not.
    """
    family, noise, y, mean, extra, spread, low, high, bounds = law
    step = 1.0 if last >= k else -1.0
    psi = _digamma(k + extra) if family == 1 else 0.0
    scan = family == 1 and extra < 1.0 and bounds and step > 0.0
    ratio, fall, units = 1.0, math.exp(-1.0 / spread**2) if noise >= 2 else 1.0, spread**2 if noise >= 2 else spread
    count, total, in_mean, in_extra, in_y = 0, sums[0], 0.0, 0.0, 0.0
    while True:
        weight, gap = term, (k - y) * step
        if bounds:
            weight *= math.exp(_log_weight(noise, k, y, spread, low, high, bounds) - base)
        elif count % 64 == 0 or (noise < 2 and -1.0 < gap < 1.0):
            ratio = _noise_step(noise, gap, spread)
        else:
            ratio *= fall
        total += weight
        in_mean += weight * (k - mean)
        in_y += weight * (k - y if noise >= 2 else np.sign(k - y))
        if family == 1:
            in_extra += weight * psi
        small = not weight > _CUT * total
        if k == last or (small and (not scan or term < 1e-300 or k > max(low, mean))):
            break
        below = min(k, k + step)
        up, down = _count_ratio(family, below, mean, extra)
        term *= ratio * up / down if step > 0.0 else ratio * down / up
        if family == 1:
            psi += step / (below + extra)
        k += step
        count += 1
    sums[0] = total
    sums[1] += in_mean
    sums[2] += in_extra
    sums[3] += 0.0 if bounds else in_y / units
    return k


@loop
def _log_sum(law: Any) -> Any:
    """Return the log of the sum over k of f(k) times its weight, and the sum's slopes in mean, extra and y."""
    family, noise, y, mean, extra, spread, low, high, bounds = law
    start = _start(law)
    base = _log_weight(noise, start, y, spread, low, high, bounds)
    top = lead = _log_count(family, start, mean, extra) + base
    log_convex = family == 1 and extra < 1.0
    at_zero = first = 0.0
    if log_convex:
        at_zero = _log_weight(noise, 0.0, y, spread, low, high, bounds)
        first = _log_count(family, 0.0, mean, extra) + at_zero
        top = max(top, first)
    sums = np.zeros(4)
    _walk(law, start, extra if family == 2 else math.inf, math.exp(lead - top), base, sums)
    reached = start
    if start > 0.0:
        up, down = _count_ratio(family, start - 1.0, mean, extra)
        before = math.exp(lead - top) * down / up
        if not bounds:
            before *= _noise_step(noise, y - start, spread)
        reached = _walk(law, start - 1.0, 0.0, before, base, sums)
    if log_convex and reached > 0.0:
        _walk(law, 0.0, reached - 1.0, math.exp(first - top), at_zero, sums)
    away = sums[1] / sums[0]
    in_extra = 0.0
    if family == 0:
        in_mean = away / mean
    elif family == 1:
        in_mean = away * extra / (mean * (mean + extra))
        in_extra = sums[2] / sums[0] - _digamma(extra) - math.log1p(mean / extra) - away / (mean + extra)
    else:
        in_mean = away * extra / (mean * (extra - mean))
    return top + math.log(sums[0]), in_mean, in_extra, sums[3] / sums[0]


@loop
def summed_counts(
    family: Any, noise: Any, bounds: Any, y: Any, mean: Any, extra: Any, spread: Any, lower: Any, upper: Any
) -> Any:
    """Return log-probabilities of numbers, less the noise's at 0, or of their bounds; slopes in mean, extra and y."""
    logp, in_mean, in_extra, in_y = np.empty(y.size), np.empty(y.size), np.empty(y.size), np.empty(y.size)
    for i in range(y.size):
        logp[i], in_mean[i], in_extra[i], in_y[i] = -np.inf, 0.0, 0.0, 0.0
        known = mean[i] > 0.0 and extra[i] > 0.0 and math.isfinite(y[i]) and math.isfinite(mean[i])
        if not known or (family == 2 and mean[i] >= extra[i]):
            continue
        law = (family, noise, y[i], mean[i], extra[i], spread[i], lower[i], upper[i], bounds)
        logp[i], in_mean[i], in_extra[i], in_y[i] = _log_sum(law)
    return logp, in_mean, in_extra, in_y


class SummedCounts(Op):
    """Log-probabilities of numbers, or of their bounds, with the counts summed out; the slopes are further outputs."""

    __props__ = ("family", "noise", "bounds")

    def __init__(self, family: int, noise: int, bounds: bool) -> None:
        self.family, self.noise, self.bounds = family, noise, bounds

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node of six vectors: numbers, means, second parameters, spreads, lower and upper bounds."""
        vectors = [pt.cast(pt.as_tensor(each, ndim=1), "float64") for each in inputs]
        return Apply(self, vectors, [pt.dvector() for _ in range(4)])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        """Evaluate outside a compiled graph."""
        results = summed_counts(self.family, self.noise, self.bounds, *inputs)
        for storage, result in zip(outputs, results, strict=True):
            storage[0] = result

    def infer_shape(self, node: Apply, shapes: Any) -> list[tuple[Any, ...]]:
        """Return the shape of the numbers, four times."""
        return [shapes[0]] * 4

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that numbers, means and second parameters have a gradient."""
        return [[True] * 4] * 3 + [[False] * 4] * 3

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        """Return the gradients, which the node has computed already."""
        _, in_mean, in_extra, in_y = outputs
        along = cotangents[0]
        return [along * in_y, along * in_mean, along * in_extra, *[disconnected_type() for _ in range(3)]]


@register_funcify_default_op_cache_key(SummedCounts)
def _compile(op: SummedCounts, node: Apply, **kwargs: Any) -> Any:
    """Return the compiled loop and a number that follows its source: PyTensor keeps machine code by it."""
    family, noise, bounds = op.family, op.noise, op.bounds

    def counts(y: Any, mean: Any, extra: Any, spread: Any, lower: Any, upper: Any) -> Any:
        return summed_counts(family, noise, bounds, y, mean, extra, spread, lower, upper)

    return numba_njit(counts), int(source_key(__file__)[:15], 16)
