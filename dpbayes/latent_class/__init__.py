"""The latent class system: noisy marginal tables in, a posterior over the full table and synthetic data out.

Names load on first use, so that importing the package does not import PyMC.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "build_model": "model",
        "combine": "synthesis",
        "cost_of": "planning",
        "functional": "analysis",
        "margin_draws": "analysis",
        "Plan": "planning",
        "plan": "planning",
        "release_plan": "planning",
        "regress": "analysis",
        "sampler_defaults": "design",
        "summarize": "analysis",
        "synthesize": "synthesis",
    },
)
