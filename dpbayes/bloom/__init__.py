"""Shuffled and flipped Bloom filters: the mechanism, what it costs in privacy, and the signal that is left.

Names load on first use; importing this package brings in neither PyMC nor a plotting library.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "BitDistribution": "hashing",
    "BloomRelease": "release",
    "EpsilonClaim": "claims",
    "Estimate": "reach",
    "Filters": "filters",
    "FlippedFilters": "filters",
    "LogoEstimate": "reach",
    "ReachEstimate": "reach",
    "Signal": "signal",
    "FiltersLoss": "many_filters",
    "OutputLaws": "one_filter",
    "all_pairs_epsilon": "all_pairs",
    "apply_transition": "transition",
    "bloom_epsilon": "calibration",
    "build_filters": "hashing",
    "debias": "reach",
    "dominating_loss": "dominating",
    "estimate_reach": "reach",
    "exchange_bound": "claims",
    "filters_loss": "many_filters",
    "flip_prob_for": "calibration",
    "general_shuffle_epsilon": "peers",
    "hash_items": "hashing",
    "logo_counts": "filters",
    "shuffle_flip": "filters",
    "read_bloom_release": "release",
    "release_counts": "release",
    "signal_to_noise": "signal",
    "one_filter_epsilon": "worst_count",
    "one_filter_loss": "worst_count",
    "output_laws": "one_filter",
    "solve_transition": "transition",
    "transition_matrix": "transition",
    "worst_crowd": "crowd_search",
    "worst_pair": "exhaustive",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
