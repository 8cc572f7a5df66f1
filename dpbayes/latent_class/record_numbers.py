"""The number of records behind a release: public, or, where it was released with noise, its prior and its draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpbayes.privacy.release import NoisyTotal

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release


def prior_of_n(release: Release) -> tuple[float, float]:
    r"""Return centre and scale of the log-normal prior of a number of records that was released with noise.

    The prior looks at the data. Its median is an estimate of n from the release itself: the mean of the released number
    and of every table's sum, weighted by the inverse variances of their noise; and where that is less than its own
    standard deviation, :math:`(\sum_i 1/v_i)^{-1/2}`, the latter. Without that bound a released number near or below
    zero, as large noise makes it, would hold n at a record or so whatever the tables say. A scale of one puts 95 %
    within a factor of seven: where the release tells n to half of itself or better the likelihood decides, and where it
    does not, this prior does.
    """
    assert isinstance(release.n, NoisyTotal)
    values = [release.n.value, *(float(table.counts.sum()) for table in release.tables)]
    variances = [release.n.noise.variance, *(float(t.variances.sum()) for t in release.tables)]
    precision = sum(1.0 / variance for variance in variances)
    estimate = sum(value / variance for value, variance in zip(values, variances, strict=True)) / precision
    return math.log(max(estimate, precision**-0.5, 1.0)), 1.0


def record_numbers(posterior: xr.Dataset, release: Release) -> xr.DataArray:
    """Return the number of records of every draw."""
    import numpy as np
    import xarray as xr

    if not isinstance(release.n, int) and "n" in posterior:
        return posterior["n"].transpose("chain", "draw")
    known = float(release.n) if isinstance(release.n, int) else max(float(release.n.value), 1.0)
    return xr.DataArray(np.full((posterior.sizes["chain"], posterior.sizes["draw"]), known), dims=("chain", "draw"))
