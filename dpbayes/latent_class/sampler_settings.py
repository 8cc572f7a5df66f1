"""Settings of the sampler that suit the latent class models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pymc as pm


def sampler_defaults(
    model: pm.Model | None = None, *, method: Literal["many-chains", "nuts"] = "many-chains"
) -> dict[str, Any]:
    """Return the sampler settings for the models of `build_model`.

    Parameters
    ----------
    model
        What `build_model` returned. Where all tables are taken jointly, steps are shorter: at a target acceptance of
        .8 and .85 1.2 and .5 % of transitions diverged on the ACS tables, and one of 3,072 at .95.
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
    target = 0.95 if model is not None and "precision_root" in model.named_vars else 0.85
    return {"method": "many-chains", "chains": 128, "draws": 24, "tune": 60, "target_accept": target}
