"""Prior-aware distribution estimation: a public prior, noisy marginals, and a distribution that weighs the two.

Names load on first use, so that importing the package imports neither SciPy's solvers nor PyMC.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Estimate": "estimation",
        "GroupRelease": "release",
        "GroupSynthesis": "synthesis",
        "Hierarchy": "release",
        "Prior": "prior",
        "Score": "score",
        "bootstrap_score": "score",
        "choose_cliques": "workload",
        "choose_roots": "workload",
        "credibility": "pooling",
        "dependence_graph": "workload",
        "estimate": "estimation",
        "k_marginal_score": "score",
        "pool": "pooling",
        "release_groups": "release",
        "synthesize_groups": "synthesis",
    },
)
