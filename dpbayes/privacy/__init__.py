"""Privacy ground floor: noise laws, samplers, exact curves, releases and the budget ledger.

Names load on first use, so that `import dpbayes.privacy` costs nothing and a privacy calculator never waits for a
sampler or a model library.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "Adjacency": "dpbayes.privacy.adjacency",
    "Relation": "dpbayes.privacy.adjacency",
    "check_adjacency": "dpbayes.privacy.adjacency",
    "check_relation": "dpbayes.privacy.adjacency",
    "convert_epsilon": "dpbayes.privacy.adjacency",
    "l1_sensitivity_of_counts": "dpbayes.privacy.adjacency",
    "l2_sensitivity_of_counts": "dpbayes.privacy.adjacency",
    "DiscreteGaussian": "dpbayes.privacy.noise",
    "Gaussian": "dpbayes.privacy.noise",
    "Laplace": "dpbayes.privacy.noise",
    "NoiseLaw": "dpbayes.privacy.noise",
    "TwoSidedGeometric": "dpbayes.privacy.noise",
    "noise_from_dict": "dpbayes.privacy.noise",
    "release_tables": "dpbayes.privacy.mechanisms",
    "NoisyTable": "dpbayes.privacy.release",
    "NoisyTotal": "dpbayes.privacy.release",
    "Release": "dpbayes.privacy.release",
    "read_release": "dpbayes.privacy.release_json",
    "Guarantee": "dpbayes.privacy.ledger",
    "Ledger": "dpbayes.privacy.ledger",
    "create_ledger": "dpbayes.privacy.ledger",
    "open_ledger": "dpbayes.privacy.ledger",
    "PrivacyLoss": "dpbayes.privacy.curves",
    "Bounds": "dpbayes.privacy.loss_law",
    "gaussian_delta": "dpbayes.privacy.gaussian",
    "gaussian_epsilon": "dpbayes.privacy.gaussian",
    "gaussian_stddev": "dpbayes.privacy.gaussian",
    "discrete_gaussian_delta": "dpbayes.privacy.closed_forms",
    "discrete_gaussian_epsilon": "dpbayes.privacy.closed_forms",
    "discrete_gaussian_loss": "dpbayes.privacy.closed_forms",
    "geometric_delta": "dpbayes.privacy.closed_forms",
    "geometric_epsilon": "dpbayes.privacy.closed_forms",
    "geometric_loss": "dpbayes.privacy.closed_forms",
    "laplace_delta": "dpbayes.privacy.closed_forms",
    "laplace_epsilon": "dpbayes.privacy.closed_forms",
    "laplace_loss": "dpbayes.privacy.closed_forms",
    "randomized_response_delta": "dpbayes.privacy.closed_forms",
    "randomized_response_epsilon": "dpbayes.privacy.closed_forms",
    "randomized_response_loss": "dpbayes.privacy.closed_forms",
    "draw_noise": "dpbayes.privacy.sampling",
    "release_values": "dpbayes.privacy.sampling",
    "sampler_name": "dpbayes.privacy.sampling",
    "zcdp_delta": "dpbayes.privacy.zcdp",
    "zcdp_epsilon": "dpbayes.privacy.zcdp",
    "zcdp_rho": "dpbayes.privacy.zcdp",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
