"""Linear regression from records, or from their second moments, that were released with known Gaussian noise.

Plain PyMC with the confidential records left in: read it first, vary it, run it on a small release. For moments the
package integrates the records out (`dpbayes.mvg.build_moment_model`); released records, whose noise does not fall with
their number, are stated here alone. The tests hold both to their laws. Everything is in range units: a feature's
distance from the middle of its public range, in half-widths.

    from dpbayes.mvg import Covariance, FeatureRanges, calibrate, release_records
    ranges = FeatureRanges([30, 80], [75, 220], "replace-one")      # age, systolic pressure
    noise = calibrate(shape, Covariance.identity(n), ranges, epsilon=1.0, delta=1e-6)
    model = noisy_records(release_records(records, noise, ranges=ranges), ranges)
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def confidential_records(count, n):
    """State the records: predictors from a normal population, the response linear in them."""
    a = pm.Normal("intercept_range", 0, 1)
    b = pm.Normal("coefficient_range", 0, 1, shape=count)
    tau = pm.HalfNormal("residual_range", 0.3)
    m = pm.Normal("mean_range", 0, 0.5, shape=count)

    # V is Wishart with count + 3 degrees of freedom and mean 0.4^2 I, by its Bartlett factor.
    degrees = count + 3
    diagonal = pm.Gamma("scatter_diagonal", (degrees - np.arange(count)) / 2, 0.5, shape=count)
    factor = pt.diag(pt.sqrt(diagonal))
    if count > 1:
        below = pm.Normal("scatter_lower", 0, 1, shape=count * (count - 1) // 2)
        factor = pt.set_subtensor(factor[np.tril_indices(count, -1)], below)
    L = factor * 0.4 / np.sqrt(degrees)

    X = pm.MvNormal("X", m, chol=L, shape=(n, count))
    y = pm.Normal("y", a + X @ b, tau, shape=n)
    return pt.concatenate([X, y[:, None]], axis=1)


def noisy_records(release, ranges):
    """Released records: every record plus N(0, Sigma), the response in the last row."""
    middle, half = (ranges.lower + ranges.upper) / 2, ranges.widths / 2
    released = ((release.values - middle[:, None]) / half[:, None]).T
    Sigma = release.noise.row_cov.matrix() / np.outer(half, half)
    with pm.Model() as model:
        Z = confidential_records(ranges.size - 1, released.shape[0])
        pm.MvNormal("released", Z, cov=Sigma, observed=released)
    return model


def noisy_moments(release):
    """Released moments: the upper triangle of (1/n) sum zz', z = (constant, record), plus Gaussian noise."""
    query = release.query
    scale = np.append(query.intercept, query.ranges.widths / 2)  # the constant becomes 1
    rows, columns = (index[1:] for index in np.triu_indices(query.size))  # all but the known corner
    units = scale[rows] * scale[columns]
    with pm.Model() as model:
        Z = confidential_records(query.ranges.size - 1, query.n)
        Z = pt.concatenate([pt.ones((query.n, 1)), Z], axis=1)
        S = Z.T @ Z / query.n
        # Entries are independent when the noise shape is diagonal.
        sd = np.sqrt(release.noise.variances[rows, columns]) / units
        pm.Normal("released", S[rows, columns], sd, observed=release.value[rows, columns] / units)
    return model
