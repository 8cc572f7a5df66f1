"""The number of records behind a release: public, or, where it was released with noise, its prior and its draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpbayes.privacy.release import NoisyTotal

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release

__all__ = ["prior_of_n", "record_numbers"]


def prior_of_n(release: Release) -> tuple[float, float]:
    r"""Return centre and scale of the log-normal prior of a number of records that was released with noise.

    Parameters
    ----------
    release
        Noisy tables and a noisy number of records.

    Returns
    -------
    tuple of float
        Mean and standard deviation of log n.

    Notes
    -----
    The prior looks at the data. Its median is an estimate of n from the release itself: the mean of the released number
    and of every table's sum, weighted by the inverse variances of their noise; and where that is less than its own
    standard deviation, :math:`(\sum_i 1/v_i)^{-1/2}`, the latter. Without that floor a released number near or below
    zero, as large noise makes it, would hold n at a record or so whatever the tables say. A scale of one puts 95 %
    within a factor of seven: where the release tells n to half of itself or better the likelihood decides, and where it
    does not, this prior does.

    Examples
    --------
    One table that sums to 150, and a number released with ten times the noise:

    >>> import numpy as np
    >>> from dpbayes.data import Domain
    >>> from dpbayes.privacy import Laplace, NoisyTable, NoisyTotal, Release
    >>> domain = Domain.from_levels({"a": (0, 1)})
    >>> table = NoisyTable(domain, np.array([90.0, 60.0]), Laplace(5.0), 1.0, 0.2)
    >>> release = Release(domain, (table,), "add-remove", NoisyTotal(-60.0, Laplace(50.0), 1.0, 0.02), "simulation")
    >>> round(math.exp(prior_of_n(release)[0]), 1)
    145.9
    """
    assert isinstance(release.n, NoisyTotal)
    values = [release.n.value, *(float(table.counts.sum()) for table in release.tables)]
    variances = [release.n.noise.variance, *(t.counts.size * t.noise.variance for t in release.tables)]
    precision = sum(1.0 / variance for variance in variances)
    estimate = sum(value / variance for value, variance in zip(values, variances, strict=True)) / precision
    return math.log(max(estimate, precision**-0.5, 1.0)), 1.0


def record_numbers(posterior: xr.Dataset, release: Release) -> xr.DataArray:
    """Return the number of records of every draw.

    Parameters
    ----------
    posterior
        Draws of a fit.
    release
        What was fitted.

    Returns
    -------
    xarray.DataArray
        Dims ``chain`` and ``draw``: the draws of ``n``; the public number, where it is one; and the released number (at
        least 1), where a model of the user's own has no ``n``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> draws = xr.Dataset(coords={"chain": range(1), "draw": range(2)})
    >>> record_numbers(draws, release).values
    array([[10000., 10000.]])
    """
    import numpy as np
    import xarray as xr

    if not isinstance(release.n, int) and "n" in posterior:
        return posterior["n"].transpose("chain", "draw")
    known = float(release.n) if isinstance(release.n, int) else max(float(release.n.value), 1.0)
    return xr.DataArray(np.full((posterior.sizes["chain"], posterior.sizes["draw"]), known), dims=("chain", "draw"))
