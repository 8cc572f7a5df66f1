"""The number of records behind a release: public, or a posterior's draws of it where it was released with noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release

__all__ = ["record_numbers"]


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
