"""Exact, independent draws from the posterior, in the shape that every trace of dpbayes has."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from dpbayes.errors import InputError
from dpbayes.verifier.exact import Posterior

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["draw_posterior"]


def draw_posterior(
    posterior: Posterior,
    *,
    draws: int = 1000,
    chains: int = 4,
    question: str = "outcome",
    random_seed: int | None = None,
) -> xr.DataTree:
    """Draw independently from the exact joint posterior of p, r and the true counts.

    Parameters
    ----------
    posterior
        What `dpbayes.verifier.posterior` returned.
    draws, chains
        How many; the chains are independent draws all alike, kept apart for what compares chains.
    question
        Name of the question.
    random_seed
        Seed; by default a fresh one. It is recorded: draws from a posterior touch nothing confidential.

    Returns
    -------
    xarray.DataTree
        ``posterior`` with ``p`` (question, outcome), ``r`` (question) and ``S`` (question, outcome), the true counts;
        empty ``sample_stats``, since nothing was sampled step by step.

    Raises
    ------
    InputError
        If draws or chains is below 1.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, posterior, release_counts
    >>> release = release_counts(PartitionCounts(45, 5, 0), epsilon=1.0, rng=np.random.default_rng(3))
    >>> draw_posterior(posterior(release), draws=100, random_seed=1)["posterior"]["p"].shape
    (4, 100, 1, 3)
    """
    import xarray as xr

    for name, value in (("draws", draws), ("chains", chains)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if random_seed is None else random_seed
    rng = np.random.default_rng(seed)
    rows, columns = posterior.weights.shape
    below = np.cumsum(posterior.weights.ravel())
    cells = np.searchsorted(below, rng.random((chains, draws)) * below[-1], side="right")
    failed, beyond = np.divmod(np.minimum(cells, rows * columns - 1), columns)
    beyond, failed = beyond + posterior.low[0], failed + posterior.low[1]
    counts = np.stack([beyond, posterior.n_partitions - beyond - failed, failed], axis=-1)
    counts = counts[..., : len(posterior.alpha)]
    gammas = rng.standard_gamma(np.asarray(posterior.alpha) + counts)
    p = gammas / gammas.sum(axis=-1, keepdims=True)
    dims = ("chain", "draw", "question")
    data = xr.Dataset(
        {
            "p": ((*dims, "outcome"), p[:, :, None, :]),
            "r": (dims, (p[..., 0] / (p[..., 0] + p[..., 1]))[:, :, None]),
            "S": ((*dims, "outcome"), counts[:, :, None, :]),
        },
        coords={
            "chain": np.arange(chains),
            "draw": np.arange(draws),
            "question": [question],
            "outcome": list(posterior.outcomes),
        },
    )
    tree = xr.DataTree.from_dict({"posterior": data, "sample_stats": xr.Dataset()})
    tree.attrs.update(
        dpbayes_version=version("dpbayes"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sampler="exact i.i.d. draws",
        random_seed=str(seed),
        release_digest=posterior.release_digest,
    )
    return tree
