"""Sampling, convergence and calibration of Bayesian models that know about privacy noise.

Names load on first use, so that `import dpbayes.inference` costs nothing before a model is built.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "CompiledModel": "sampling",
        "compile_model": "sampling",
        "Finding": "convergence",
        "PosteriorSummary": "summary",
        "Verdict": "convergence",
        "check_convergence": "convergence",
        "read_trace": "schema",
        "write_trace": "schema",
        "sample": "sampling",
        "sample_whole_counts": "whole_counts",
        "summarize": "summary",
        "plot_ranks": "sbc",
        "simulate_and_rank": "sbc",
        "uniformity": "sbc",
    },
)
