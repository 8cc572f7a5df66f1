"""Shuffled and flipped Bloom filters: the mechanism, what it costs in privacy, and the signal that is left.

Names load on first use; importing this package brings in neither PyMC nor a plotting library.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "EpsilonClaim": "claims",
    "FiltersLoss": "many_filters",
    "OutputLaws": "one_filter",
    "all_pairs_epsilon": "all_pairs",
    "apply_transition": "transition",
    "filters_loss": "many_filters",
    "one_filter_epsilon": "worst_count",
    "one_filter_loss": "worst_count",
    "output_laws": "one_filter",
    "solve_transition": "transition",
    "transition_matrix": "transition",
    "worst_crowd": "all_pairs",
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
