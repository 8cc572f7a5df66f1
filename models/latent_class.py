"""The latent class model for noisy marginal tables, as the paper states it.

Barrientos, A. F. (2021), "A latent class modeling approach for differentially private synthetic data for contingency
tables". Plain PyMC, with the confidential integer counts left in: read it first, vary it, run it on a small release.
The package sums the counts out (`dpbayes.latent_class.build_model`) and is held to this statement by the tests.

    from dpbayes.data import datasets
    from dpbayes.privacy import release_tables
    release = release_tables(datasets.acs_tables(), epsilon=1.0)
    model = latent_class(release, n_classes=5)          # the paper: a multinomial for each table, as if independent
    model = one_table(release, n_classes=5)             # the ideal: all tables are margins of one table
    model = one_table(release, n_classes=5, shares=...)  # profiles about common shares, the package's default
    model = one_table(release, n_classes=5, shares=..., varied=True)  # where noise is small: no mixture is quite right
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def mixture(domain, n_classes, shares=None):
    """Theta: class weights by stick breaking, and a distribution of each attribute in each class.

    Profiles are Dirichlet, as the paper's; or, given shares of each attribute's levels, vary about these.
    """
    alpha = pm.Gamma("alpha", 40, 10)
    V = pm.Beta("V", 1, alpha, shape=n_classes - 1)
    left = pt.concatenate([[1.0], pt.cumprod(1 - V)])
    pi = pm.Deterministic("pi", left * pt.concatenate([V, [1.0]]))
    psi = []
    for j, a in enumerate(domain):
        if shares is None:
            psi.append(pm.Dirichlet(f"psi_{a.name}", np.full(a.size, 0.5), shape=(n_classes, a.size)))
        else:
            z = pm.Normal(f"z_{a.name}", shape=(n_classes, a.size))
            psi.append(pm.math.softmax(np.log(shares[j]) + 4.0 * z, axis=1))

    # P(x) = sum_h pi_h prod_j psi[j][h, x_j], one axis an attribute.
    P = pi
    for profile in psi:
        P = P[..., None] * profile.reshape((n_classes, *(1,) * (P.ndim - 1), profile.shape[1]))
    return pm.Deterministic("P", P.sum(axis=0))


def margin(domain, table, names):
    """Sum a full table over the attributes that are not named; axes in the order named."""
    kept = domain.axes(names)
    summed = table.sum(axis=tuple(axis for axis in range(len(domain)) if axis not in kept))
    return summed.transpose(*(sorted(kept).index(axis) for axis in kept))


def release_with_noise(name, counts, law, observed):
    """Released counts: exact counts plus two-sided geometric noise, P(x) = tanh(1 / 2s) exp(-|x| / s)."""
    success = -np.expm1(-1 / law.scale)

    def noisy(counts, size):
        return counts + pm.Geometric.dist(success, size=counts.shape) - pm.Geometric.dist(success, size=counts.shape)

    def logp(value, counts):
        return np.log(np.tanh(0.5 / law.scale)) - pt.abs(value - counts) / law.scale

    pm.CustomDist(name, counts, dist=noisy, logp=logp, observed=observed, class_name="TwoSidedGeometricNoise")


def latent_class(release, n_classes):
    """State the paper's model: every table has its own multinomial (a composite likelihood)."""
    with pm.Model() as model:
        P = mixture(release.domain, n_classes)
        for t, table in enumerate(release.tables):
            P_t = margin(release.domain, P, table.attributes)
            M_t = pm.Multinomial(f"M_{t}", n=release.n, p=P_t.ravel(), shape=table.counts.size)
            release_with_noise(f"released_{t}", M_t, table.noise, table.counts.ravel())
    return model


def one_table(release, n_classes, shares=None, varied=False):
    """State the ideal model: one confidential table X, and every released table is a margin of it.

    The population is the mixture P, or varies about it as Dirichlet(kappa P) does, which is summed out here: counts
    then have 1 + overdispersion times the covariance of a multinomial.
    """
    domain = release.domain
    with pm.Model() as model:
        P = mixture(domain, n_classes, shares)
        if varied:
            overdispersion = pm.LogNormal("overdispersion", 0, 2)
            kappa = pt.maximum((release.n - 1) / overdispersion - 1, 1)
            X = pm.DirichletMultinomial("X", n=release.n, a=kappa * P.ravel(), shape=domain.size)
        else:
            X = pm.Multinomial("X", n=release.n, p=P.ravel(), shape=domain.size)
        for t, table in enumerate(release.tables):
            M_t = margin(domain, X.reshape(domain.shape), table.attributes)
            release_with_noise(f"released_{t}", M_t.ravel(), table.noise, table.counts.ravel())
    return model
