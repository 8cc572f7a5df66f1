"""The verifier tells whether a claim about a regression is true on the confidential data.

Names load on first use, so that `import dpbayes.verifier` costs nothing.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    claim=["count_partitions", "count_statistic"],
    design=["count_surface", "design_surface", "pilot_shares", "smallest_epsilon"],
    exact=["draw_posterior", "posterior"],
    means=["coefficient_posterior", "sum_estimates"],
    model=["build_model"],
    partition=["PartitionCounts", "release_counts"],
)
