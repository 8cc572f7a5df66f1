"""Warnings about a model before it is fitted: noise too low for the joint likelihood, effects too many for it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from dpbayes.errors import AccuracyWarning, CostWarning

if TYPE_CHECKING:
    from dpbayes.privacy.release import Release

__all__ = ["caution"]

LOW_NOISE = 2.0
"""Standard deviation of a count's noise below which the normal law of the sampling is seen through it."""

SLOW_EFFECTS = 200
"""Sampled effects from which a fit at the defaults may take hours."""

_CALLER = 3  # the frame that called build_model


def caution(release: Release, likelihood: str, n_effects: int, *, pairs_summed_out: bool) -> None:
    """Warn of a model that is stated for a release but will be poor or slow.

    Parameters
    ----------
    release
        What is fitted.
    likelihood
        ``"joint"`` or ``"composite"``; the second is never warned of.
    n_effects
        Number of effects of the joint likelihood.
    pairs_summed_out
        Whether the counts of pairs are integrated out, at a cost linear in tables.
    """
    if likelihood != "joint":
        return
    low = [table for table in release.tables if table.noise.variance < LOW_NOISE**2]
    if low:
        names = ", ".join(" x ".join(table.attributes) for table in low[:3]) + (", ..." if len(low) > 3 else "")
        stddev = min(table.noise.variance for table in low) ** 0.5
        single = release.n_public and len(release.tables) == 1
        remedy = (
            "pass likelihood='composite', which is exact for a single table with a public n"
            if single
            else "check the intervals by simulation (dpbayes sbc), or release with more noise"
        )
        warnings.warn(
            f"the noise of {names} has a standard deviation of {stddev:.3g} counts, below {LOW_NOISE:g}: the joint "
            "likelihood takes the sampling of records for normal, and intervals of cells that hold few of them can be "
            f"far too narrow; {remedy}",
            AccuracyWarning,
            stacklevel=_CALLER,
        )
    if n_effects > SLOW_EFFECTS and not pairs_summed_out:
        warnings.warn(
            f"the release has {n_effects} effects, and a gradient costs the cube of their number: from about "
            f"{SLOW_EFFECTS} on a fit at the defaults may take hours of processor time (docs/latent_class.md, Limits); "
            "fit fewer tables, or join levels",
            CostWarning,
            stacklevel=_CALLER,
        )
