"""Prior-aware distribution estimation: a public prior, noisy marginals, and a distribution that weighs the two.

Names load on first use, so that importing the package imports neither SciPy's solvers nor PyMC.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "Measurements": "dpbayes.ide.measurements",
    "Strength": "dpbayes.ide.strength",
    "choose_strength": "dpbayes.ide.strength",
    "measure": "dpbayes.ide.measurements",
    "Credibility": "dpbayes.ide.pooling",
    "Prior": "dpbayes.ide.prior",
    "Score": "dpbayes.ide.score",
    "bootstrap_score": "dpbayes.ide.score",
    "credibility": "dpbayes.ide.pooling",
    "k_marginal_score": "dpbayes.ide.score",
    "pool": "dpbayes.ide.pooling",
    "subsample_score": "dpbayes.ide.score",
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
