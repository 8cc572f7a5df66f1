r"""Upper bounds on the composed epsilon of groups of equal queries; `dpbayes.privacy.ledger_cost` says which hold when.

Slow imports (SciPy, dp-accounting) stay inside the functions: a book of plain addition never needs them.
"""

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes.privacy._rounding import float_up
from dpbayes.privacy.ledger_rounding import float_up_or_decimal
from dpbayes.privacy.noise import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric

if TYPE_CHECKING:
    from dpbayes.privacy.ledger_cost import Cost

__all__ = ["epsilon_upper"]

Groups = tuple[tuple["Cost", int], ...]

# Relative allowance for double rounding in the closed forms below, whose own error is near 1e-12.
_ROUNDING = 1e-10
# dp-accounting convolves by FFT in doubles. Up to 2^18 grid points with an error near 1e-17 each stay below this mass,
# which comes off delta; below ten times it the numerics say nothing and only the other bounds are used.
_FFT_MASS = 1e-11
_GRID_POINTS = 2**17
# Beyond these a distribution would overflow doubles or memory.
_LARGEST_LOSS = 500.0
_LARGEST_MOVE = 10_000
_MOST_QUERIES = 10**7
# Losses on no common lattice are composed one by one on a fine grid: seconds for a dozen.
_MOST_EXACT_GROUPS = 4


def epsilon_upper(groups: Groups, delta: float, *, enough: float = -math.inf) -> float:
    """Return an upper bound on the epsilon at `delta` of all groups together.

    Parameters
    ----------
    groups
        Pairs of a cost (one query) and how often it was asked. The delta of a `Guarantee` is not counted here.
    delta
        Probability in (0, 1).
    enough
        Stop at the first bound that is not above this.

    Returns
    -------
    float
        The smallest of the bounds that apply.

    Examples
    --------
    >>> from dpbayes.privacy.ledger_cost import Cost
    >>> round(epsilon_upper(((Cost(Gaussian(10.0), 1.0), 1000),), 1e-6), 4)
    19.4237
    """
    bounds = [_renyi_epsilon(groups, delta)]
    if bounds[0] <= enough:
        return bounds[0]
    if (apart := _epsilon_apart(groups, delta)) <= enough:
        return apart
    bounds.append(apart)
    laws = [cost.law for cost, _ in groups]
    if all(isinstance(law, Gaussian) for law in laws):
        bounds.append(_gaussian_epsilon(groups, delta))
    elif len(groups) <= _MOST_EXACT_GROUPS and all(_is_finite(cost, n) for cost, n in groups):
        bounds.append(_finite_epsilon(groups, delta))
    elif not any(isinstance(law, DiscreteGaussian) for law in laws) and delta >= 10 * _FFT_MASS:
        bounds.append(_distribution_epsilon(groups, delta, bounds[0]))
    return min(bounds)


def _epsilon_apart(groups: Groups, delta: float) -> float:
    r"""Epsilon of the Gaussian laws at `delta` plus those of the pure mechanisms; infinite unless there are both.

    Basic composition of :math:`(\epsilon_1, \delta)` and :math:`(\epsilon_2, 0)` (Dwork and Roth 2014, Theorem 3.16):
    for independent outputs (X, Y) on D, (X', Y') on D', and an event S with sections :math:`S_y`,

    .. math:: P((X, Y) \in S) = E\, P(X \in S_Y)
        \le E \min(1, e^{\epsilon_1} P(X' \in S_Y)) + \delta
        \le e^{\epsilon_2} E \min(1, e^{\epsilon_1} P(X' \in S_{Y'})) + \delta
        \le e^{\epsilon_1 + \epsilon_2} P((X', Y') \in S) + \delta.

    The other bounds join all losses, and where delta is tiny only Renyi orders are left of them, far above this.
    """
    gaussians = tuple((c, n) for c, n in groups if isinstance(c.law, Gaussian | DiscreteGaussian))
    if not gaussians or len(gaussians) == len(groups):
        return math.inf
    first = epsilon_upper(gaussians, delta)
    if not math.isfinite(first):
        return math.inf
    pure = sum((c.plain[0] * n for c, n in groups if c.plain[0] is not None), Fraction(0))
    return float_up_or_decimal(Fraction(first) + pure)


def _mu_squared(cost: "Cost") -> Fraction:
    """(sensitivity / stddev)^2 of a Gaussian law: twice its rho."""
    assert isinstance(cost.law, Gaussian | DiscreteGaussian)
    return (Fraction(cost.sensitivity or 0) / Fraction(cost.law.stddev)) ** 2


def _pure_epsilon(cost: "Cost") -> float:
    """Upper end of the epsilon of one query of a law with a pure guarantee."""
    epsilon = cost.plain[0]
    assert epsilon is not None
    return float_up(epsilon)


def _gaussian_epsilon(groups: Groups, delta: float) -> float:
    """Exact epsilon of Gaussians: mu adds in squares (Dong, Roth and Su 2022).

    No wider than calibration rounds, so that noise for all of a book's epsilon and delta fits into it.
    """
    from dpbayes.privacy.gaussian import gaussian_epsilon_upper

    total = sum((_mu_squared(cost) * n for cost, n in groups), Fraction(0))
    mu = _root_up(total)
    return gaussian_epsilon_upper(mu, delta) if math.isfinite(mu) else math.inf


def _root_up(square: Fraction) -> float:
    """Return the smallest double whose square is not below `square`, or its neighbour."""
    root = math.sqrt(float_up(square))
    return root if math.isinf(root) or Fraction(root) ** 2 >= square else math.nextafter(root, math.inf)


def _renyi_epsilon(groups: Groups, delta: float) -> float:
    r"""Smallest epsilon over a grid of Renyi orders a.

    A pure epsilon costs at most what randomized response costs, :math:`\log((e^{a \epsilon} + e^{(1 - a)
    \epsilon}) / (1 + e^\epsilon)) / (a - 1)`; either Gaussian :math:`a \mu^2 / 2` (the discrete one on vectors too,
    Canonne, Kamath and Steinke 2020, Theorem 14). The sum R converts to :math:`\epsilon = R + \log((a - 1) / a) -
    \log(\delta a) / (a - 1)` (Proposition 12 there). Every order gives a valid bound, so the grid costs tightness only.
    """
    orders: npt.NDArray[np.float64] = 1.0 + np.logspace(-3.0, 7.0, 2001)
    total = np.zeros_like(orders)
    with np.errstate(over="ignore", invalid="ignore"):
        for cost, n in groups:
            if isinstance(cost.law, Gaussian | DiscreteGaussian):
                total += n * orders * (float_up(_mu_squared(cost)) / 2)
            else:
                e = _pure_epsilon(cost)
                total += n * (np.logaddexp(orders * e, (1 - orders) * e) - np.logaddexp(0.0, e)) / (orders - 1)
        epsilon = total + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    epsilon = np.where(np.isfinite(epsilon), epsilon, np.inf)
    return max(0.0, float(epsilon.min())) * (1 + _ROUNDING) + 1e-12


def _is_finite(cost: "Cost", n: int) -> bool:
    """Whether the privacy loss of one query takes finitely many values, few enough to list and to compose n times."""
    if isinstance(cost.law, Laplace | Gaussian | DiscreteGaussian):
        return False
    if _pure_epsilon(cost) > _LARGEST_LOSS or n > _MOST_QUERIES:
        return False
    return not isinstance(cost.law, TwoSidedGeometric) or (cost.sensitivity or 0) <= _LARGEST_MOVE


def _finite_epsilon(groups: Groups, delta: float) -> float:
    r"""Certified epsilon of laws whose loss takes finitely many values.

    Under a move by s the output of the two-sided geometric law, clipped to t = 0, ..., s, has the loss (s - 2t) / scale
    and the masses 1 / (1 + a), :math:`a^t (1 - a) / (1 + a)`, :math:`a^s / (1 + a)` with :math:`a = e^{-1 / scale}`.
    Any other pure guarantee is at worst randomized response (Kairouz, Oh and Viswanath 2015): the same with s = 1.
    """
    from dpbayes.privacy.curves import PrivacyLoss

    whole = None
    for cost, n in groups:
        move = int(cost.sensitivity or 1) if isinstance(cost.law, TwoSidedGeometric) else 1
        rate = _pure_epsilon(cost) / move
        t = np.arange(move + 1.0)
        inside = np.where((t > 0) & (t < move), math.log(-math.expm1(-rate)), 0.0)
        loss = PrivacyLoss.from_losses((move - 2 * t) * rate, inside - t * rate - math.log1p(math.exp(-rate)))
        loss = loss.compose(n)
        whole = loss if whole is None else whole.compose(loss)
    assert whole is not None
    return whole.epsilon(delta) * (1 + _ROUNDING)


def _distribution_epsilon(groups: Groups, delta: float, bound: float) -> float:
    """Epsilon of the composed privacy loss distributions of dp-accounting, a pessimistic one for every group.

    `bound` is any upper bound on the answer: it sets the width of the grid.
    """
    groups = _one_gaussian(groups)
    losses = [_loss_scale(cost) for cost, _ in groups]
    if max(losses) > _LARGEST_LOSS or max(n for _, n in groups) > _MOST_QUERIES or not math.isfinite(bound):
        return math.inf
    interval = max(min(1e-4, min(losses) / 4), max(2 * bound, *losses) / _GRID_POINTS)
    whole = None
    with np.errstate(all="ignore"):  # the far tails underflow, as they should
        for cost, n in groups:
            part = _distribution(cost, interval)
            part = part.self_compose(n) if n > 1 else part
            whole = part if whole is None else whole.compose(part)
        assert whole is not None
        epsilon = float(whole.get_epsilon_for_delta(delta - _FFT_MASS))
    return epsilon * (1 + _ROUNDING) + 1e-12 if epsilon >= 0 else math.inf


def _one_gaussian(groups: Groups) -> Groups:
    """Put one Gaussian in the place of all: mu adds in squares."""
    gaussians = [(cost, n) for cost, n in groups if isinstance(cost.law, Gaussian)]
    if not gaussians:
        return groups
    total = sum((_mu_squared(cost) * n for cost, n in gaussians), Fraction(0))
    mu = math.sqrt(float_up(total)) * (1 + _ROUNDING)
    rest = tuple((cost, n) for cost, n in groups if not isinstance(cost.law, Gaussian))
    # Sensitivity 1 and stddev 1 / mu, unless that overflows: then the loss is too large or too small to matter.
    one = replace(gaussians[0][0], law=Gaussian(1 / mu), sensitivity=1.0) if 1e-150 < mu < 1e150 else None
    return ((one, 1), *rest) if one else groups


def _loss_scale(cost: "Cost") -> float:
    """Size of the privacy loss of one query, for the choice of a grid."""
    return math.sqrt(float_up(_mu_squared(cost))) if isinstance(cost.law, Gaussian) else _pure_epsilon(cost)


def _distribution(cost: "Cost", interval: float) -> Any:
    """Return the pessimistic privacy loss distribution of one query."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    law, grid = cost.law, {"value_discretization_interval": interval, "use_connect_dots": True}
    if isinstance(law, Gaussian):
        return pld.from_gaussian_mechanism(law.stddev, sensitivity=cost.sensitivity, **grid)
    if isinstance(law, Laplace):
        return pld.from_laplace_mechanism(law.scale, sensitivity=cost.sensitivity, **grid)
    if isinstance(law, TwoSidedGeometric) and (move := int(cost.sensitivity or 1)) <= _LARGEST_MOVE:
        return pld.from_discrete_laplace_mechanism(_pure_epsilon(cost) / move, sensitivity=move, **grid)
    # Any other pure guarantee is at worst randomized response, see _finite_epsilon.
    return pld.from_discrete_laplace_mechanism(_pure_epsilon(cost), sensitivity=1, **grid)
