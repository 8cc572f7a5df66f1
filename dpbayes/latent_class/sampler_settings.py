"""Settings of the sampler that suit the latent class models, each form its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["sampler_defaults"]

# Trajectories end after this time, turned back or not. The posterior is a thin, curved sheet: a trajectory that misses
# the turn goes on for several rounds, but slow arrangements of the classes need a long one. On the ACS tables with
# eight and five classes, effective draws a second of the slowest quantity are 53 and 48 with an end at 12, 40 and 23 at
# 8, 38 and 6 at 5, 40 and 32 without an end. With it a diagonal metric does no worse than a low-rank one, which takes
# the noise of its first, short windows for directions: its warm-up took two thirds more steps.
INTEGRATION_TIME = 12.0

# Where pairs are summed out, most unknowns are nearly independent and standard normal: they come back together, after a
# time of 2 pi. A trajectory that has not turned by half of that may go on for several rounds, at six times the steps
# and for no better a draw; so it ends there.
PAIRS_INTEGRATION_TIME = 3.5


def sampler_defaults(model: pm.Model | None = None) -> dict[str, Any]:
    """Return the sampler settings for the models of `build_model`.

    With eight classes they passed the gate on 40 of 40 releases of ten two-way census tables; with five, a few
    quantities move slowly, and a fit may need twice the draws. Where pairs are summed out, they passed on
    three of four fits of sixteen attributes (docs/latent_class.md).

    Parameters
    ----------
    model
        What `build_model` returned. Where it sums out the counts of pairs, draws are cheap and depend on each other
        more, and twelve times as many are taken; without a model the settings are those for few tables.

    Returns
    -------
    dict
        Keyword arguments of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_defaults()["adaptation"]
    'diag'
    """
    shared = {"chains": 4, "max_treedepth": 12, "adaptation": "diag"}
    if model is not None and "pair_levels" in model.named_vars:
        length, target_accept, time = {"draws": 12000, "tune": 1000}, 0.85, PAIRS_INTEGRATION_TIME
    else:
        length, target_accept, time = {"draws": 1000, "tune": 400}, 0.96, INTEGRATION_TIME
    return shared | length | {"target_accept": target_accept, "options": {"target_integration_time": time}}
