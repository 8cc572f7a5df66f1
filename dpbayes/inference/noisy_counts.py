"""Noise laws of a whole release around a real-valued centre, each read on the real line so that moments are kept."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.shape_utils import rv_size_is_none

from dpbayes._arguments import Floats
from dpbayes.distributions import Released, log_normal_tail
from dpbayes.errors import InputError
from dpbayes.privacy.laws import NoiseLaw
from dpbayes.privacy.release import Release

_LEAST_VARIANCE = 1e-100  # of a law's noise; its inverse and the squares of that are finite


@dataclass(frozen=True, eq=False)
class ReleasedNoise:
    r"""The noise laws of a vector of released counts.

    The density that stands for a discrete law has its mean and its variance. For two-sided geometric noise of scale s
    that is the Laplace density of scale :math:`s' = 1/(2\sinh\frac{1}{2s})`: the characteristic functions are

    .. math:: \Bigl(1 + \frac{\sin^2(\omega/2)}{\sinh^2(1/2s)}\Bigr)^{-1}
              \quad\text{and}\quad
              \Bigl(1 + \frac{\omega^2}{4\sinh^2(1/2s)}\Bigr)^{-1},

    which agree to order :math:`\omega^4`, so that after a convolution with a count of standard deviation
    :math:`\tau` they differ by terms of order :math:`\tau^{-4}`. (:math:`s' = s\,(1 - 1/24s^2 + \dots)`: at a scale of
    20 the two scales differ by one part in 10,000.)
    """

    laws: tuple[NoiseLaw, ...]
    limits: Floats | None = None
    """Below what each count was held back, -inf where at nothing; None of a vector without thresholds. A count that was
    held back is -inf."""

    def __post_init__(self) -> None:
        if not self.laws:
            raise InputError("a vector of noisy counts needs one count or more, got none")
        for law in dict.fromkeys(self.laws):
            if law.variance < _LEAST_VARIANCE:
                raise InputError(
                    f"the noise {law} has a variance of {law.variance:g}, which is zero in all but name; these "
                    "likelihoods are for noisy counts, so check the law's parameter, or lower epsilon"
                )

    @cached_property
    def stddev(self) -> Floats:
        """Standard deviation of each count's noise."""
        return np.sqrt([law.variance for law in self.laws])

    @cached_property
    def coefficients(self) -> tuple[Floats, ...]:
        """Constant, linear and quadratic rate of each law's relaxed log-density ``c - a |x| - b x^2``."""
        constant, linear, quadratic = np.array([law.relaxed for law in self.laws]).T
        return constant, linear, quadratic

    def logp(self, x: Any) -> Any:
        """Return the relaxed log-density of each count's noise as a graph."""
        constant, linear, quadratic = self.coefficients
        value = pt.as_tensor(constant)
        if np.any(linear):
            value = value - linear * pt.abs(x)
        if np.any(quadratic):
            value = value - quadratic * pt.sqr(x)
        return value

    def log_below(self, x: Any) -> Any:
        """Return the logarithm of the chance that each count's noise is below x, by the relaxed law."""
        linear, quadratic = self.coefficients[1:]
        gap = -x * np.where(linear > 0, linear, 1.0)
        laplace = pt.switch(gap > 0, -gap - np.log(2.0), pt.log1p(-0.5 * pt.exp(pt.minimum(gap, 0.0))))
        return pt.switch(linear > 0, laplace, log_normal_tail(-x * np.sqrt(2.0 * quadratic)))

    def logp_of(self, value: Any, centre: Any) -> Any:
        """Return the log-density of each released count, and of those that were held back their log-probability."""
        if self.limits is None:
            return self.logp(value - centre)
        held = pt.isinf(value)
        shown = self.logp(pt.switch(held, 0.0, value) - centre)
        return pt.switch(held, self.log_below(np.where(np.isinf(self.limits), 0.0, self.limits) - centre), shown)

    def around(self, centre: Any, size: Any = None) -> Any:
        """Return random released counts: the centre plus noise, rounded first where the law is on the integers."""
        names = [law.name for law in self.laws]
        kinds = {name: [i for i, other in enumerate(names) if other == name] for name in dict.fromkeys(names)}
        shape = centre.shape if rv_size_is_none(size) else pt.concatenate([size, centre.shape[-1:]])
        centre = pt.broadcast_to(centre, shape)
        parts = []
        for members in kinds.values():
            laws, part = [self.laws[i] for i in members], centre[..., np.array(members)]
            base = pt.round(part) if laws[0].is_discrete else part
            parts.append(Released.dist(base, laws).astype("float64"))
        order = np.argsort(np.concatenate(list(kinds.values())))
        drawn = pt.concatenate(parts, axis=-1)[..., order]
        return drawn if self.limits is None else pt.switch(drawn < self.limits, -np.inf, drawn)


def release_noise(release: Release) -> ReleasedNoise:
    """Return the laws of all counts of a release, table after table in C order."""
    limits = released_limits(release)
    laws = tuple(law for table in release.tables for law in table.laws)
    return ReleasedNoise(laws, limits if np.isfinite(limits).any() else None)


def released_limits(release: Release) -> Floats:
    """Return below what each count of a release would have been held back, -inf where at nothing."""
    return np.concatenate([np.full(table.counts.size, table.limit) for table in release.tables])


def released_vector(release: Release) -> Floats:
    """Return all counts of a release, table after table in C order; -inf are those that a threshold held back."""
    values = np.concatenate([table.counts.ravel() for table in release.tables]).astype(np.float64)
    return np.where(np.isnan(values), -np.inf, values)


def noisy_counts(name: str, centre: Any, noise: ReleasedNoise, **kwargs: Any) -> Any:
    """Add released counts to the model on the context stack."""
    return pm.CustomDist(
        name,
        centre,
        dist=lambda mean, size: noise.around(mean, size),
        logp=lambda value, mean: pt.sum(noise.logp_of(value, mean), axis=-1),
        class_name="NoisyCounts",
        signature="(c)->(c)",
        **kwargs,
    )
