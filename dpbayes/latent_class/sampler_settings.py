"""Settings of the sampler that suit the latent class models, each form its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["sampler_defaults"]

# The low-rank metric follows directions whose variance is off by this factor. With nutpie's 2, the noise of the first,
# short windows is taken for directions: on the ACS tables the first third of the warm-up then takes 2,500 steps a draw
# where 1,100 do, and the draws after it are no better for it.
LOW_RANK_OPTIONS = {"mass_matrix_eigval_cutoff": 30.0}

# Where pairs are summed out, most unknowns are nearly independent and standard normal: they come back together, after a
# time of 2 pi. A trajectory that has not turned by half of that may go on for several rounds, at six times the steps
# and for no better a draw; so it ends there. (nutpie's steps are at most 1.1 pi long. A time below that would let steps
# grow past it, and chains stand still.)
PAIRS_OPTIONS = {"target_integration_time": 3.5}


def sampler_defaults(model: pm.Model | None = None) -> dict[str, Any]:
    """Return the sampler settings for the models of `build_model`.

    With eight classes they passed the gate on 40 of 40 releases of ten two-way census tables, with five or ten on 13 of
    16; 1,500 draws after 1,000 at a target acceptance of .96 passed on all 16. Where pairs are summed out, they passed
    on three of four fits of sixteen attributes (docs/latent_class.md).

    Parameters
    ----------
    model
        What `build_model` returned. Where it sums out the counts of pairs, draws are cheap and depend on each other
        more, and fifteen times as many are taken; without a model the settings are those for few tables.

    Returns
    -------
    dict
        Keyword arguments of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_defaults()["adaptation"]
    'low_rank'
    """
    shared = {"chains": 4, "max_treedepth": 12}
    if model is not None and "pair_levels" in model.named_vars:
        return shared | {
            "draws": 12000,
            "tune": 1000,
            "target_accept": 0.85,
            "adaptation": "diag",
            "options": dict(PAIRS_OPTIONS),
        }
    return shared | {
        "draws": 800,
        "tune": 300,
        "target_accept": 0.94,
        "adaptation": "low_rank",
        "options": dict(LOW_RANK_OPTIONS),
    }
