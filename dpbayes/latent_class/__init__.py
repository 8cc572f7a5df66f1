"""The latent class system: noisy marginal tables in, a posterior over the full table and synthetic data out.

Names load on first use, so that importing the package does not import PyMC.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_EXPORTS = {
    "build_model": "dpbayes.latent_class.model",
    "combine": "dpbayes.latent_class.combining",
    "combine_estimates": "dpbayes.latent_class.combining",
    "functional": "dpbayes.latent_class.regression",
    "margin_draws": "dpbayes.latent_class.cell_draws",
    "mean_of": "dpbayes.latent_class.quantities",
    "predict_release": "dpbayes.latent_class.synthesis",
    "predictive_records": "dpbayes.latent_class.synthesis",
    "regress": "dpbayes.latent_class.regression",
    "sampler_defaults": "dpbayes.latent_class.sampler_settings",
    "share_of": "dpbayes.latent_class.quantities",
    "summarize": "dpbayes.latent_class.regression",
    "synthesize": "dpbayes.latent_class.synthesis",
    "write_synthetic": "dpbayes.latent_class.synthesis",
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
