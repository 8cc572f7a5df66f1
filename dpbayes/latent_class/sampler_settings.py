"""Settings of the sampler that suit the latent class models, each form its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["form_defaults", "sampler_defaults", "sampler_options", "sums_out_pairs"]

# Trajectories end after this time, turned back or not. The posterior is a thin, curved sheet: a trajectory that misses
# the turn goes on for several rounds, but slow arrangements of the classes need a long one. nutpie doubles the steps
# until the time is reached: with steps from .04 to .08 trajectories have 255.
INTEGRATION_TIME = 10.0

# Where pairs are summed out, most unknowns are nearly independent and standard normal: they come back together, after a
# time of 2 pi. A trajectory that has not turned by half of that may go on for several rounds, at six times the steps
# and for no better a draw; so it ends there.
PAIRS_INTEGRATION_TIME = 3.5

# Draws of the first window after nutpie's early ones (30 % of warm-up) from which a metric is estimated; its own choice
# is 80. In a short window a class may have held few records all the time: when it grows, its coordinates are too wide
# for the step, and trajectories diverge (printed tables, five classes, epsilon 4, target acceptance .9, 400 draws of
# warm-up: 176 of 4,000 draws, all in one chain and one coordinate; 67 with a window of 110; none with 135 and 500).
_WINDOW = 140


def sampler_defaults(model: pm.Model | None = None) -> dict[str, Any]:
    """Return the sampler settings for the models of `build_model`.

    With eight classes they passed the gate on all releases of ten two-way census tables that were tried; with five, a
    few quantities move slowly, and a fit may need twice the draws. Where pairs are summed out, they passed on all
    eight releases of sixteen attributes that were tried at epsilon .25, 1 and 4; at 10 one of two needed a target
    acceptance of .92. With eight to thirteen attributes the cells of the whole table mix more slowly
    than the released margins, and with twelve they missed the gate (docs/latent_class.md, Limits).

    Parameters
    ----------
    model
        What `build_model` returned. Where it sums out the counts of pairs, trajectories are short and draws depend on
        each other more, and twice as many are taken; without a model the settings are those for few tables.

    Returns
    -------
    dict
        Keyword arguments of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_defaults()["adaptation"]
    'diag'
    """
    return form_defaults(model is not None and sums_out_pairs(model))


def sums_out_pairs(model: pm.Model) -> bool:
    """Return whether a model of `build_model` sums out the counts of pairs of attributes.

    Parameters
    ----------
    model
        Any model; of a user's own, whether it has the variables of that form.
    """
    return "pair_levels" in model.named_vars


def form_defaults(summed_out: bool) -> dict[str, Any]:
    """Return `sampler_defaults` of a form of the model.

    Parameters
    ----------
    summed_out
        Whether the counts of pairs of attributes are summed out.

    Examples
    --------
    >>> [form_defaults(summed_out)["draws"] for summed_out in (False, True)]
    [1500, 3000]
    """
    shared = {"chains": 4, "max_treedepth": 12, "adaptation": "diag"}
    if summed_out:
        options = sampler_options(PAIRS_INTEGRATION_TIME, summed_out)
        return shared | {"draws": 3000, "tune": 1000, "target_accept": 0.85, "options": options}
    options = sampler_options(INTEGRATION_TIME, summed_out)
    return shared | {"draws": 1500, "tune": 500, "target_accept": 0.93, "options": options}


def sampler_options(integration_time: float, summed_out: bool = False) -> dict[str, Any]:
    """Return nutpie's further options.

    Parameters
    ----------
    integration_time
        Time at which a trajectory ends, in units of the mass matrix's standard deviations.
    summed_out
        Whether the counts of pairs of attributes are summed out. Where the effects' counts are sampled, the mass matrix
        is estimated from longer windows.

    Returns
    -------
    dict
        ``options`` of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_options(10.0)
    {'target_integration_time': 10.0, 'mass_matrix_switch_freq': 140}
    """
    return {"target_integration_time": integration_time} | ({} if summed_out else {"mass_matrix_switch_freq": _WINDOW})
