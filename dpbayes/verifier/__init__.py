"""The verifier tells whether a claim about a regression is true on the confidential data.

Names load on first use, so that `import dpbayes.verifier` costs nothing.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "OUTCOMES": "dpbayes.verifier.checks",
    "Posterior": "dpbayes.verifier.posterior",
    "posterior": "dpbayes.verifier.posterior",
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
