"""Prior-aware distribution estimation: a public prior, noisy marginals, and a distribution that weighs the two.

Names load on first use, so that importing the package imports neither SciPy's solvers nor PyMC.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Estimate": "estimation",
        "GroupRelease": "groups",
        "Hierarchy": "groups",
        "Prior": "prior",
        "bootstrap_score": "prior",
        "choose_workloads": "groups",
        "credibility": "pooling",
        "estimate": "estimation",
        "k_marginal_score": "prior",
        "pool": "pooling",
        "release_groups": "groups",
        "synthesize_groups": "groups",
    },
)
