"""Exact, independent draws from the posterior, in the shape that every trace of dpbayes has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dpbayes._arguments import shown
from dpbayes.errors import InputError
from dpbayes.verifier.exact import Posterior
from dpbayes.verifier.exact import posterior as exact_posterior

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.privacy.release import Release

__all__ = ["draw_posterior", "draw_release", "sample_posterior"]

_MOST = 10**9


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
        If draws, chains or the seed is no whole number or out of range.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, posterior, release_counts
    >>> release = release_counts(PartitionCounts(45, 5, 0), epsilon=1.0, rng=np.random.default_rng(3))
    >>> draw_posterior(posterior(release), draws=100, random_seed=1)["posterior"]["p"].shape
    (4, 100, 1, 3)
    """
    import xarray as xr

    for name, value in (("draws", draws), ("chains", chains)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise InputError(f"{name} must be a whole number from 1 to {_MOST:,}, got {shown(value)}")
    seed = _seed(random_seed)
    rng = np.random.default_rng(seed)
    p, counts = sample_posterior(posterior, (chains, draws), rng=rng)
    dims = ("chain", "draw", "question")
    data = xr.Dataset(
        {
            "p": ((*dims, "outcome"), p[:, :, None, :]),
            "r": (dims, _share(p, posterior.alpha, rng)[:, :, None]),
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


def sample_posterior(
    posterior: Posterior, size: tuple[int, ...], *, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Draw p and the true counts as arrays, each of shape (*size, outcomes); `draw_posterior` labels them.

    Examples
    --------
    >>> from dpbayes.privacy.noise import TwoSidedGeometric
    >>> from dpbayes.verifier.exact import posterior_of_counts
    >>> exact = posterior_of_counts((45, 5, 0), TwoSidedGeometric(2.0), 50)
    >>> p, counts = sample_posterior(exact, (100,), rng=np.random.default_rng(1))
    >>> p.shape, bool(np.all(counts.sum(axis=-1) == 50))
    ((100, 3), True)
    """
    rows, columns = posterior.weights.shape
    below = np.cumsum(posterior.weights.ravel())
    cells = np.searchsorted(below, rng.random(size) * below[-1], side="right")
    failed, beyond = np.divmod(np.minimum(cells, rows * columns - 1), columns)
    beyond, failed = beyond + posterior.low[0], failed + posterior.low[1]
    counts = np.stack([beyond, posterior.n_partitions - beyond - failed, failed], axis=-1)
    counts = counts[..., : len(posterior.alpha)]
    gammas = rng.standard_gamma(np.asarray(posterior.alpha) + counts)
    return gammas / gammas.sum(axis=-1, keepdims=True), counts


def _seed(random_seed: int | None) -> int:
    """Return a seed that can be recorded; a fresh one for None."""
    if random_seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_seed, bool) or not isinstance(random_seed, int | np.integer) or random_seed < 0:
        raise InputError(f"random_seed must be a whole number of at least 0, or None, got {shown(random_seed)}")
    return int(random_seed)


def _share(p: npt.NDArray[np.float64], alpha: tuple[float, ...], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return p0 / (p0 + p1), also where both lie below all doubles, as they may for an alpha near 0 and counts of 0.

    A gamma variate of shape a that is below a tiny e is e U^(1/a) with U uniform, so that logs tell the two apart.
    """
    both = p[..., 0] + p[..., 1]
    lost = both == 0
    r = p[..., 0] / np.where(lost, 1.0, both)
    logs = [np.log1p(-rng.random(np.count_nonzero(lost))) / shape for shape in alpha[:2]]
    r[lost] = expit(logs[0] - logs[1])
    return r


def draw_release(
    release: Release,
    *,
    alpha: Sequence[float] | None = None,
    draws: int = 1000,
    chains: int = 4,
    random_seed: int | None = None,
) -> xr.DataTree:
    """Draw from the exact posterior of every question of a release, in one trace that keeps the output contract.

    Parameters
    ----------
    release
        A verification release.
    alpha
        Dirichlet prior of every question; all 1 by default.
    draws, chains, random_seed
        As in `draw_posterior`.

    Returns
    -------
    xarray.DataTree
        As from `draw_posterior`, over all questions, with the released counts as ``observed_data`` and M and the noise
        standard deviations as ``constant_data``.

    Raises
    ------
    InputError
        As in `draw_posterior` and `dpbayes.verifier.posterior`.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, release_counts
    >>> questions = {"a": PartitionCounts(15, 4, 1), "b": PartitionCounts(9, 9, 2)}
    >>> release = release_counts(questions, epsilon=1.0, rng=np.random.default_rng(3))
    >>> draw_release(release, draws=10, random_seed=1)["posterior"]["r"].dims
    ('chain', 'draw', 'question')
    """
    import xarray as xr

    seed = _seed(random_seed)
    names = [table.label for table in release.tables]
    streams = np.random.SeedSequence(seed).spawn(len(names))
    trees = [
        draw_posterior(
            exact_posterior(release, alpha=alpha, question=name),
            draws=draws,
            chains=chains,
            question=name,
            random_seed=int(stream.generate_state(1)[0]),
        )
        for name, stream in zip(names, streams, strict=True)
    ]
    noisy = np.array([table.counts for table in release.tables], dtype=np.float64)
    spread = np.array([table.noise.variance for table in release.tables]) ** 0.5
    coords = {"question": names, "outcome": trees[0]["posterior"]["outcome"].values}
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.concat([one["posterior"].to_dataset() for one in trees], dim="question"),
            "sample_stats": xr.Dataset(),
            "observed_data": xr.Dataset({"released": (("question", "outcome"), noisy)}, coords),
            "constant_data": xr.Dataset(
                {"n_partitions": release.n, "noise_stddev": ("question", spread)}, {"question": names}
            ),
        }
    )
    tree.attrs.update(trees[0].attrs | {"random_seed": str(seed), "release_digest": release.digest})
    return tree
