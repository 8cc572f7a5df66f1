"""The verifier tells whether a claim about a regression is true on the confidential data.

Names load on first use, so that `import dpbayes.verifier` costs nothing.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "OUTCOMES": "dpbayes.verifier.checks",
    "PartitionCounts": "dpbayes.verifier.mechanism",
    "release_counts": "dpbayes.verifier.mechanism",
    "count_partitions": "dpbayes.verifier.measure",
    "count_significant": "dpbayes.verifier.measure",
    "count_statistic": "dpbayes.verifier.measure",
    "count_trends": "dpbayes.verifier.claims",
    "count_within": "dpbayes.verifier.claims",
    "build_model": "dpbayes.verifier.model",
    "recover_counts": "dpbayes.verifier.model",
    "draw_posterior": "dpbayes.verifier.draws",
    "posterior_batch": "dpbayes.verifier.batch",
    "count_surface": "dpbayes.verifier.surfaces",
    "count_surfaces": "dpbayes.verifier.surfaces",
    "design_surface": "dpbayes.verifier.expectations",
    "expected": "dpbayes.verifier.expectations",
    "smallest_epsilon": "dpbayes.verifier.designer",
    "smallest_partitions": "dpbayes.verifier.designer",
    "draw_release": "dpbayes.verifier.draws",
    "Posterior": "dpbayes.verifier.exact",
    "posterior": "dpbayes.verifier.exact",
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
