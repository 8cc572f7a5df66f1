"""Log-densities of the noise laws as PyTensor graphs.

Each function builds a graph that broadcasts, and that is differentiable in `x` and in the scale. PyTensor is imported
inside, so that the calculators of `dpbayes.privacy` start without it. A discrete law's graph is its formula read on
the real line: at the integers it is the log-pmf; between them it is the smooth relaxation that a model needs when a
latent count is a real number. Values and gradients hold, after PyTensor's rewrites too, for scales from 1e-30 to 1e30.
"""

import math
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["discrete_gaussian_logp", "gaussian_logp", "laplace_logp", "two_sided_geometric_logp"]

# On its own side of the crossing at sigma = 1 / sqrt(2 pi) either theta series has terms of at most exp(-pi k^2), and
# the k = 4 term is below 1e-20 of the k = 1 term: three terms are exact in double precision.
THETA_TERMS = (1, 2, 3)
THETA_CROSSING = 1.0 / math.sqrt(2.0 * math.pi)


def _tensor(value: Any) -> Any:
    """Return `value` as a PyTensor variable in double precision."""
    import pytensor.tensor as pt

    # PyTensor would store a Python float as float32 and carry its seven digits through the whole graph.
    if isinstance(value, Real):
        value = np.float64(value)
    return pt.as_tensor_variable(value)


def two_sided_geometric_logp(x: Any, scale: Any) -> Any:
    r"""Log-pmf of the two-sided geometric law, :math:`\log\tanh\frac{1}{2s} - |x|/s`.

    Parameters
    ----------
    x, scale
        Numbers, arrays or PyTensor variables that broadcast; unit of `x`. The scale must be positive.

    Returns
    -------
    pytensor.tensor.TensorVariable

    Notes
    -----
    :math:`\log\tanh(u/2) = \log(1 - e^{-u}) - \log(1 + e^{-u})` keeps full precision for u from 1e-300 to 1e300.

    Examples
    --------
    >>> two_sided_geometric_logp(3.0, 2.0).type.ndim
    0
    """
    import pytensor.tensor as pt

    x, scale = _tensor(x), _tensor(scale)
    rate = 1.0 / scale
    return pt.log1mexp(-rate) - pt.log1p(pt.exp(-rate)) - pt.abs(x) * rate


def laplace_logp(x: Any, scale: Any) -> Any:
    r"""Log-density of the Laplace law, :math:`-\log 2s - |x|/s`.

    Parameters
    ----------
    x, scale
        As in `two_sided_geometric_logp`.

    Returns
    -------
    pytensor.tensor.TensorVariable

    Examples
    --------
    >>> laplace_logp([0.0, 1.0], 2.0).type.ndim
    1
    """
    import pytensor.tensor as pt

    x, scale = _tensor(x), _tensor(scale)
    return -pt.log(2.0 * scale) - pt.abs(x) / scale


def gaussian_logp(x: Any, stddev: Any) -> Any:
    r"""Log-density of the Gaussian law, :math:`-\tfrac12 (x/\sigma)^2 - \log \sigma\sqrt{2\pi}`.

    Parameters
    ----------
    x, stddev
        Numbers, arrays or PyTensor variables that broadcast; unit of `x`. The stddev must be positive.

    Returns
    -------
    pytensor.tensor.TensorVariable

    Examples
    --------
    >>> gaussian_logp([[0.0], [1.0]], [1.0, 2.0]).type.ndim
    2
    """
    import pytensor.tensor as pt

    x, stddev = _tensor(x), _tensor(stddev)
    return -0.5 * (x / stddev) ** 2 - pt.log(stddev) - 0.5 * math.log(2.0 * math.pi)


def discrete_gaussian_logp(x: Any, stddev: Any) -> Any:
    r"""Log-pmf of the discrete Gaussian law, :math:`-\tfrac12 (x/\sigma)^2 - \log \sum_k e^{-k^2/2\sigma^2}`.

    Parameters
    ----------
    x, stddev
        Numbers, arrays or PyTensor variables that broadcast; `stddev` is the parameter sigma.

    Returns
    -------
    pytensor.tensor.TensorVariable

    Notes
    -----
    The normalizer is a theta function. Its direct series serves sigma below 1 / sqrt(2 pi), its Poisson dual
    :math:`\sigma\sqrt{2\pi}\,(1 + 2\sum_{k\ge1} e^{-2\pi^2\sigma^2k^2})` the rest; three terms of either are enough.

    Examples
    --------
    >>> discrete_gaussian_logp([0, 1, 2], 1.5).type.ndim
    1
    """
    import pytensor.tensor as pt

    x, stddev = _tensor(x), _tensor(stddev)
    # Each series is clamped to where its terms are neither 0 nor on the other's side: no overflow, no NaN gradient.
    small = pt.clip(stddev, 1e-3, THETA_CROSSING)
    large = pt.clip(stddev, THETA_CROSSING, 1e3)
    direct = pt.log1p(2.0 * sum(pt.exp(-0.5 * (k / small) ** 2) for k in THETA_TERMS))
    dual = pt.log(stddev * math.sqrt(2.0 * math.pi)) + pt.log1p(
        2.0 * sum(pt.exp(-2.0 * (math.pi * k * large) ** 2) for k in THETA_TERMS)
    )
    return -0.5 * (x / stddev) ** 2 - pt.switch(stddev < THETA_CROSSING, direct, dual)
