"""True logo counts given released ones, in PyMC, and the reach that they stand for.

Positions are exchangeable after the shuffle: with logo probabilities theta, a released logo is j with probability (T
theta)_j, so the released counts are multinomial and the true counts are summed out exactly. Given theta and the
released counts x, the true logos behind the x_j positions released as j are multinomial with probabilities
proportional to theta_i T_ij: `draw_true_counts` puts them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from dpbayes.bloom.hashing import BitDistribution
from dpbayes.bloom.release import BloomRelease
from dpbayes.bloom.transition import transition_matrix
from dpbayes.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["build_model", "draw_reach", "draw_true_counts"]

MAX_FILTERS = 8


def build_model(release: BloomRelease, *, concentration: float = 0.5) -> pm.Model:
    r"""State the model of the true logos behind a release.

    .. math:: \theta \sim \text{Dirichlet}(a, \dots, a), \qquad x \sim \text{Multinomial}(m, T \theta).

    Parameters
    ----------
    release
        Released logo counts, of at most 8 filters.
    concentration
        The Dirichlet parameter a.

    Returns
    -------
    pymc.Model
        Free: ``logo_probability`` (logo). Recorded: ``released_probability`` (released_logo). Observed: ``released``
        (released_logo), its data in ``released_counts``.

    Raises
    ------
    InputError
        If there are more than 8 filters, or the concentration is not positive.

    Examples
    --------
    >>> release = BloomRelease(np.array([700, 120, 110, 70]), 0.1, "simulation")
    >>> [variable.name for variable in build_model(release).free_RVs]
    ['logo_probability']
    """
    if release.n_filters > MAX_FILTERS:
        raise InputError(f"the model takes at most {MAX_FILTERS} filters, got {release.n_filters}; use estimate_reach")
    if not 0.0 < concentration < np.inf:
        raise InputError(f"concentration must be positive and finite, got {concentration!r}; 0.5 is Jeffreys' prior")
    logos = [format(logo, f"0{release.n_filters}b")[::-1] for logo in range(release.counts.size)]
    kernel = transition_matrix(release.n_filters, release.flip_prob)
    with pm.Model(coords={"logo": logos, "released_logo": logos}) as model:
        counts = pm.Data("released_counts", release.counts, dims="released_logo")
        theta = pm.Dirichlet("logo_probability", np.full(release.counts.size, float(concentration)), dims="logo")
        shown = pm.Deterministic("released_probability", pt.dot(kernel, theta), dims="released_logo")
        pm.Multinomial("released", n=release.n_bits, p=shown, observed=counts, dims="released_logo")
    return model


def draw_true_counts(probabilities: npt.ArrayLike, release: BloomRelease, *, random_seed: int) -> npt.NDArray[np.int64]:
    """Draw true logo counts given the release, one for each posterior draw of the logo probabilities.

    Parameters
    ----------
    probabilities
        Posterior draws of ``logo_probability``, shape (draws, 2^k).
    release
        The release that the model was built from.
    random_seed
        Seed of the draws; it touches nothing confidential.

    Returns
    -------
    numpy.ndarray
        int64, shape (draws, 2^k); every row adds up to m.

    Raises
    ------
    InputError
        If the probabilities do not fit the release.

    Examples
    --------
    >>> release = BloomRelease(np.array([90, 10]), 0.1, "simulation")
    >>> draw_true_counts([[1.0, 0.0], [0.9, 0.1]], release, random_seed=1)[0].tolist()
    [100, 0]
    """
    theta = np.asarray(probabilities, dtype=float)
    if theta.ndim != 2 or theta.shape[1] != release.counts.size:
        raise InputError(f"probabilities must have shape (draws, {release.counts.size}), got {theta.shape}")
    rng = np.random.default_rng(random_seed)
    kernel = transition_matrix(release.n_filters, release.flip_prob)
    counts = np.empty(theta.shape, dtype=np.int64)
    for row, theta_row in enumerate(theta):
        origin = kernel * theta_row[None, :]
        origin /= origin.sum(axis=1, keepdims=True)
        counts[row] = rng.multinomial(release.counts, origin).sum(axis=0)
    return counts


def draw_reach(
    true_counts: npt.NDArray[np.int64],
    distribution: BitDistribution,
    *,
    publishers: tuple[int, ...] | None = None,
    random_seed: int,
) -> npt.NDArray[np.float64]:
    """Draw the number of people that a set of publishers has reached together, given draws of the true counts.

    Parameters
    ----------
    true_counts
        From `draw_true_counts`.
    distribution
        Law of the positions that the filters were built with.
    publishers
        Publishers by number; all by default.
    random_seed
        Seed of the draws.

    Returns
    -------
    numpy.ndarray
        People, shape (draws,). Given the empty positions, the number of people is normal about linear counting's
        estimate with its variance, ``m (exp(n/m) - 1 - n/m)`` for uniform hashing: a flat prior on people and an
        occupancy law that is normal to within 1/m.

    Raises
    ------
    InputError
        If no position is empty in some draw, or a publisher is unknown.

    Examples
    --------
    >>> draws = draw_reach(np.array([[900, 100]] * 4), BitDistribution(1000), random_seed=1)
    >>> bool(np.all(np.abs(draws - 105.4) < 12))
    True
    """
    size = true_counts.shape[1]
    k = size.bit_length() - 1
    chosen = range(k) if publishers is None else publishers
    if not len(chosen) or any(not 0 <= place < k for place in chosen):
        raise InputError(f"publishers must be numbers from 0 to {k - 1}, at least one, got {publishers!r}")
    code = sum({1 << place for place in chosen})
    m = distribution.n_bits
    empty = true_counts[:, (np.arange(size) & code) == 0].sum(axis=1) / m
    people = np.maximum(distribution.people(empty), 0.0)
    slope = distribution.slope(np.maximum(people, 1e-9))
    # Positions are independent for a Poisson number of people; fixing the number takes its variance away.
    variance = np.maximum((empty - distribution.zero_fraction(2.0 * people)) / (m * slope**2) - people, 0.0)
    return people + np.sqrt(variance) * np.random.default_rng(random_seed).normal(size=people.size)
