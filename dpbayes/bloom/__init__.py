"""Shuffled and flipped Bloom filters: the mechanism, its privacy cost, and the reach that is left to estimate.

Names load on first use; importing this package brings in neither PyMC nor a plotting library.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "BitDistribution": "filters",
        "BloomRelease": "filters",
        "ReachLattice": "reach",
        "ReachNumbers": "reach",
        "WeeklyFilters": "filters",
        "bloom_epsilon": "calibration",
        "build_filters": "filters",
        "build_lattice_model": "model",
        "estimate_reach": "reach",
        "exchange_bound": "claims",
        "flip_prob_for": "calibration",
        "read_reach_numbers": "reach",
        "shuffle_flip": "filters",
    },
)
