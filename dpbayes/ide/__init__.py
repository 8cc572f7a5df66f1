"""Prior-aware distribution estimation: a public prior, noisy marginals, and a distribution that weighs the two.

Names load on first use, so that importing the package imports neither SciPy's solvers nor PyMC.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "COMPONENTS": "dpbayes.ide.pooling",
    "Credibility": "dpbayes.ide.pooling",
    "Estimate": "dpbayes.ide.estimation",
    "GroupRelease": "dpbayes.ide.groups",
    "GroupSynthesis": "dpbayes.ide.group_results",
    "Hierarchy": "dpbayes.ide.groups",
    "Measurements": "dpbayes.ide.measurements",
    "PartialWorkload": "dpbayes.ide.updates",
    "Prior": "dpbayes.ide.prior",
    "Score": "dpbayes.ide.score",
    "Strength": "dpbayes.ide.strength",
    "DependenceGraph": "dpbayes.ide.workload",
    "bootstrap_score": "dpbayes.ide.score",
    "choose_cliques": "dpbayes.ide.workload",
    "choose_roots": "dpbayes.ide.workload",
    "choose_strength": "dpbayes.ide.strength",
    "credibility": "dpbayes.ide.pooling",
    "dependence_graph": "dpbayes.ide.workload",
    "estimate": "dpbayes.ide.estimation",
    "iterate": "dpbayes.ide.algorithm1",
    "k_marginal_score": "dpbayes.ide.score",
    "kl_divergence": "dpbayes.ide.updates",
    "measure": "dpbayes.ide.measurements",
    "pool": "dpbayes.ide.widening",
    "project_simplex": "dpbayes.ide.projection",
    "project_subsimplex": "dpbayes.ide.projection",
    "read_group_release": "dpbayes.ide.groups",
    "release_groups": "dpbayes.ide.group_release",
    "subsample_score": "dpbayes.ide.score",
    "synthesize_groups": "dpbayes.ide.synthesis",
    "two_stage": "dpbayes.ide.reference",
    "update": "dpbayes.ide.updates",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
