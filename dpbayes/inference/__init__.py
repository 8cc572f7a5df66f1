"""Sampling, convergence and calibration of Bayesian models that know about privacy noise.

Names load on first use, so that `import dpbayes.inference` costs nothing before a model is built.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "CompiledModel": "dpbayes.inference.compiled",
    "compile_model": "dpbayes.inference.compiled",
    "Finding": "dpbayes.inference.verdict",
    "PosteriorSummary": "dpbayes.inference.summary",
    "Verdict": "dpbayes.inference.verdict",
    "check_convergence": "dpbayes.inference.diagnostics",
    "mixing_table": "dpbayes.inference.diagnostics",
    "annotate": "dpbayes.inference.schema",
    "read_trace": "dpbayes.inference.schema",
    "write_trace": "dpbayes.inference.schema",
    "sample": "dpbayes.inference.sampling",
    "summarize": "dpbayes.inference.summary",
    "plot_ranks": "dpbayes.inference.sbc_ranks",
    "simulate_and_rank": "dpbayes.inference.sbc",
    "uniformity": "dpbayes.inference.sbc_ranks",
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
