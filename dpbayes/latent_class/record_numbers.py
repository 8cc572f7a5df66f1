"""The number of records behind a release: public, or, where it was released with noise, its prior and its draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release


def prior_of_n(release: Release) -> tuple[float, float]:
    r"""Return centre and scale of the log-normal prior of a number of records that was released with noise.

    The prior looks at the data: its median is the release's own estimate of n, or that estimate's standard deviation
    where that is more. Without this bound a released number near or below zero would hold n at a record or so whatever
    the tables say. A scale of one puts 95 % within a factor of seven: where the release tells n to half of itself or
    better the likelihood decides, and where it does not, this prior does.
    """
    return math.log(max(*release.estimated_size, 1.0)), 1.0


def record_numbers(posterior: xr.Dataset, release: Release) -> xr.DataArray:
    """Return the number of records of every draw."""
    import numpy as np
    import xarray as xr

    if not isinstance(release.n, int) and "n" in posterior:
        return posterior["n"].transpose("chain", "draw")
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    return xr.DataArray(np.full(shape, float(release.size)), dims=("chain", "draw"))
