"""The noise laws that dpbayes releases with, and their records.

| law | support | cost of L1 or L2 sensitivity D |
|---|---|---|
| `TwoSidedGeometric(scale)` | integers | epsilon = D1 / scale |
| `Laplace(scale)` | reals | epsilon = D1 / scale |
| `DiscreteGaussian(stddev)` | integers | rho = D2^2 / (2 stddev^2) |
| `Gaussian(stddev)` | reals | the same rho, and the exact curve delta(epsilon) |

Each is a frozen dataclass with `log_prob` (NumPy), `logp` (a PyTensor graph), `mean`, `variance`, `is_discrete`,
`tail_radius`, `to_dict`, and the conversions to and from its privacy cost. The conversions round outwards: the cost of
the double that is stored never exceeds the cost that was asked for. `*_logp` are the same graphs with a symbolic
scale. Importing this module loads neither PyTensor nor SciPy.
"""

from collections.abc import Mapping
from typing import Any

from dpbayes._arguments import shown
from dpbayes.errors import InputError
from dpbayes.privacy._discrete_gaussian import DiscreteGaussian
from dpbayes.privacy._gaussian import Gaussian
from dpbayes.privacy._geometric import TwoSidedGeometric
from dpbayes.privacy._graphs import (
    discrete_gaussian_logp,
    gaussian_logp,
    laplace_logp,
    two_sided_geometric_logp,
)
from dpbayes.privacy._laplace import Laplace

__all__ = [
    "DiscreteGaussian",
    "Gaussian",
    "Laplace",
    "NoiseLaw",
    "TwoSidedGeometric",
    "check_law",
    "discrete_gaussian_logp",
    "gaussian_logp",
    "laplace_logp",
    "noise_from_dict",
    "two_sided_geometric_logp",
]

NoiseLaw = TwoSidedGeometric | Laplace | DiscreteGaussian | Gaussian

_LAWS: dict[str, type[NoiseLaw]] = {law.name: law for law in (TwoSidedGeometric, Laplace, DiscreteGaussian, Gaussian)}


def check_law(law: Any) -> NoiseLaw:
    """Return `law` if it is a noise law, not its name.

    Examples
    --------
    >>> check_law("laplace")
    Traceback (most recent call last):
    dpbayes.errors.InputError: a noise law is an object such as Laplace(scale=2.0), got str
    """
    if not isinstance(law, NoiseLaw):
        raise InputError(f"a noise law is an object such as Laplace(scale=2.0), got {type(law).__name__}")
    return law


def noise_from_dict(record: Mapping[str, Any]) -> NoiseLaw:
    """Return the law that `to_dict` recorded.

    Parameters
    ----------
    record
        Exactly two keys: `law` and the law's parameter (`scale` or `stddev`).

    Returns
    -------
    NoiseLaw
        Equal to the law that was recorded.

    Raises
    ------
    InputError
        If `record` is no mapping, names no known law, lacks a key, has another one, or its parameter is not a
        positive finite number.

    Examples
    --------
    >>> noise_from_dict({"law": "laplace", "scale": 2.0})
    Laplace(scale=2.0)
    """
    if not isinstance(record, Mapping):
        raise InputError(f"a noise law's record must be a mapping, got {shown(record)}; see to_dict")
    name = record.get("law")
    if not isinstance(name, str) or name not in _LAWS:
        raise InputError(f"law must be one of {', '.join(_LAWS)}, got {name!r}; a release names the law of its noise")
    law = _LAWS[name]
    parameter = law.parameter
    expected = {"law", parameter}
    if set(record) != expected:
        missing = sorted(expected - set(record))
        unknown = sorted(str(key) for key in set(record) - expected)
        raise InputError(
            f"the record of a {name} law has missing keys {missing} and unknown keys {unknown}; "
            f"give law and {parameter} and nothing else"
        )
    return law(record[parameter])
