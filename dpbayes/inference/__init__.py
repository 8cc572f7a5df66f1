"""Sampling, convergence and calibration of Bayesian models that know about privacy noise.

Names load on first use, so that `import dpbayes.inference` costs nothing before a model is built.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    convergence=["Finding", "Verdict", "check_convergence"],
    sampling=["CompiledModel", "compile_model", "sample"],
    sbc=["plot_ranks", "simulate_and_rank", "uniformity"],
    schema=["read_trace", "write_trace"],
    summary=["PosteriorSummary", "summarize"],
    whole_counts=["sample_whole_counts"],
)
