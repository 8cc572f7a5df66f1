r"""Privacy curves of Laplace, two-sided geometric, discrete Gaussian noise and of randomized response.

For each law: the smallest delta at an epsilon in closed form, the smallest epsilon at a delta, and the `PrivacyLoss`,
which composes. Noise is added to one number whose largest change between neighbours is `sensitivity`. That belongs to a
neighbouring relation (a table's count changes by 1 when a record is added or removed, and two counts change by 1 each
when one is replaced), which `adjacency` states; the `*_loss` keep it and compose with their own kind only. Every law
here has a log-concave density, so that the largest change is the worst one.
"""

from dpbayes.privacy._integer_curves import (
    discrete_gaussian_delta,
    discrete_gaussian_epsilon,
    discrete_gaussian_loss,
    geometric_delta,
    geometric_epsilon,
    geometric_loss,
)
from dpbayes.privacy._laplace_curve import laplace_delta, laplace_epsilon, laplace_loss
from dpbayes.privacy._response_curve import (
    randomized_response_delta,
    randomized_response_epsilon,
    randomized_response_loss,
)

__all__ = [
    "discrete_gaussian_delta",
    "discrete_gaussian_epsilon",
    "discrete_gaussian_loss",
    "geometric_delta",
    "geometric_epsilon",
    "geometric_loss",
    "laplace_delta",
    "laplace_epsilon",
    "laplace_loss",
    "randomized_response_delta",
    "randomized_response_epsilon",
    "randomized_response_loss",
]
