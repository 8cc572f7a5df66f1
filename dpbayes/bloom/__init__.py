"""Shuffled and flipped Bloom filters: the mechanism, its privacy cost, and the reach that is left to estimate.

Names load on first use; importing this package brings in neither PyMC nor a plotting library.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    calibration=["bloom_epsilon", "flip_prob_for"],
    claims=["exchange_bound"],
    filters=["BitDistribution", "BloomRelease", "WeeklyFilters", "build_filters", "shuffle_flip"],
    model=["build_lattice_model"],
    reach=["ReachLattice", "ReachNumbers", "estimate_reach", "read_reach_numbers"],
)
