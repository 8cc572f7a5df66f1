"""Prior-aware distribution estimation: a public prior, noisy marginals, and a distribution that weighs the two.

Names load on first use, so that importing the package imports neither SciPy's solvers nor PyMC.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    estimation=["Estimate", "estimate"],
    groups=["GroupRelease", "Hierarchy", "choose_workloads", "release_groups", "synthesize_groups"],
    prior=["Prior", "bootstrap_score", "credibility", "k_marginal_score", "pool"],
)
