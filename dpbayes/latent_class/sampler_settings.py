"""Settings of the sampler that suit the latent class models."""

from __future__ import annotations

from typing import Any, Literal


def sampler_defaults(*, method: Literal["many-chains", "nuts"] = "many-chains") -> dict[str, Any]:
    """Return the sampler settings for the models of `build_model`.

    Parameters
    ----------
    method
        Many short annealed chains find the modes that arrangements of the classes are; NUTS is for comparison, and for
        few tables.

    Returns
    -------
    dict
        Keyword arguments of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_defaults()["method"]
    'many-chains'
    """
    if method == "nuts":
        return {"method": "nuts", "chains": 4, "draws": 1500, "tune": 800, "target_accept": 0.9}
    return {"method": "many-chains", "chains": 128, "draws": 24, "tune": 48, "target_accept": 0.85}
