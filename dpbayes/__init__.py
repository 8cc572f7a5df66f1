"""Bayesian inference that knows about privacy noise.

Its packages load on first use: ``import dpbayes`` imports neither PyMC nor a plotting library.

>>> import dpbayes
>>> dpbayes.data.datasets.acs_tables()[0].total
10000
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "bloom", "data", "distributions", "errors", "ide", "inference", "latent_class", "mvg"]
__all__ += ["privacy", "report", "runs", "verifier"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"dpbayes.{name}")
    raise AttributeError(f"module 'dpbayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
