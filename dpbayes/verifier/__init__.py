"""The verifier tells whether a claim about a regression is true on the confidential data.

Names load on first use, so that `import dpbayes.verifier` costs nothing.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "PartitionCounts": "partition",
        "build_model": "model",
        "coefficient_posterior": "means",
        "count_partitions": "claim",
        "count_statistic": "claim",
        "count_surface": "design",
        "design_surface": "design",
        "draw_posterior": "exact",
        "pilot_shares": "design",
        "posterior": "exact",
        "release_counts": "partition",
        "smallest_epsilon": "design",
        "sum_estimates": "means",
    },
)
