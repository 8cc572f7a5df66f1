"""A correct Gibbs sampler for the verifier: the third witness beside the exact posterior and NUTS.

It alternates the two conditionals of section 4 of the paper, S given p (a draw from the table of all triples) and p
given S (a Dirichlet draw). The printed script differs in one line that matters: inside `sapply` its `p <- ...` binds a
local variable, so that every iteration starts again from the first p, and what it returns is no Gibbs chain.
`printed_chain` reproduces that, to show what it costs.

Nothing here is shared with dpbayes: coefficients by log-gamma, noise densities written out.
"""

import numpy as np
from scipy.special import gammaln
from scipy.stats import multinomial


def triples(m):
    """All (S1, S0, Se) that sum to M."""
    return np.array([(i, j, m - i - j) for i in range(m + 1) for j in range(m + 1 - i)])


def noise_log_weights(noisy, counts, scale):
    """Log-density of two-sided geometric (or Laplace) noise at every triple, up to a constant."""
    return -np.abs(np.asarray(noisy) - counts).sum(axis=1) / scale


def gibbs(noisy, m, scale, *, alpha=(1.0, 1.0, 1.0), draws=5000, burn=1000, rng):
    """Draws of p, shape (draws, 3), by the coefficient table."""
    counts = triples(m)
    base = gammaln(m + 1) - gammaln(counts + 1).sum(axis=1) + noise_log_weights(noisy, counts, scale)
    counts_float = counts.astype(float)
    alpha = np.asarray(alpha)
    # Any start will do; it does not use the true counts.
    p = rng.dirichlet(np.ones(3))
    kept = np.empty((draws, 3))
    for iteration in range(burn + draws):
        logs = base + counts_float @ np.log(p)
        weights = np.cumsum(np.exp(logs - logs.max()))
        s = counts[np.searchsorted(weights, rng.random() * weights[-1])]
        p = np.maximum(rng.dirichlet(alpha + s), 1e-300)
        if iteration >= burn:
            kept[iteration - burn] = p
    return kept


def naive_sweeps(noisy, m, scale, *, sweeps, rng):
    """The same sampler with the multinomial density of every triple recomputed in every sweep, as first printed.

    One vectorized call a sweep, where the printed R calls `dmultinom` triple by triple.
    """
    counts = triples(m)
    noise = noise_log_weights(noisy, counts, scale)
    p = rng.dirichlet(np.ones(3))
    for _ in range(sweeps):
        logs = multinomial.logpmf(counts, m, p) + noise
        weights = np.cumsum(np.exp(logs - logs.max()))
        s = counts[np.searchsorted(weights, rng.random() * weights[-1])]
        p = np.maximum(rng.dirichlet(1.0 + s), 1e-12)
        p /= p.sum()
    return p


def printed_chain(noisy, m, scale, *, draws, rng):
    """What the printed script returns: p is never updated, so S is drawn given the first p for ever."""
    counts = triples(m)
    base = gammaln(m + 1) - gammaln(counts + 1).sum(axis=1) + noise_log_weights(noisy, counts, scale)
    first = rng.dirichlet(np.ones(3))
    logs = base + counts @ np.log(first)
    weights = np.exp(logs - logs.max())
    picks = rng.choice(len(counts), size=draws, p=weights / weights.sum())
    return np.array([rng.dirichlet(1.0 + counts[i]) for i in picks])
