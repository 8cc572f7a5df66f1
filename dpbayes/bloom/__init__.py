"""Shuffled and flipped Bloom filters: the mechanism, its privacy cost, and the reach that is left to estimate.

Names load on first use; importing this package brings in neither PyMC nor a plotting library.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "BitDistribution": "hashing",
        "BloomRelease": "filters",
        "Filters": "filters",
        "ReachLattice": "lattice",
        "ReachNumbers": "lattice",
        "WeeklyFilters": "filters",
        "bloom_epsilon": "calibration",
        "build_filters": "hashing",
        "build_lattice_model": "model",
        "estimate_reach": "reach",
        "exchange_bound": "claims",
        "filters_loss": "many_filters",
        "flip_prob_for": "calibration",
        "one_filter_loss": "one_filter",
        "read_reach_numbers": "lattice",
        "shuffle_flip": "filters",
        "signal_to_noise": "signal",
        "worst_known_pair": "all_pairs",
    },
)
