"""The latent class system: noisy marginal tables in, a posterior over the full table and synthetic data out.

Names load on first use, so that importing the package does not import PyMC.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    analysis=["functional", "margin_draws", "regress", "summarize"],
    design=["sampler_defaults"],
    model=["build_model"],
    planning=["Plan", "cost_of", "plan", "release_plan"],
    synthesis=["combine", "synthesize"],
)
