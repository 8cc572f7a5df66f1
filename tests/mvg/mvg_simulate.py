"""Simulators of the regression models, written against the data and not against the models' formulas."""

import numpy as np

from dpbayes.mvg import FeatureRanges, MomentQuery
from dpbayes.mvg.model import RegressionPriors
from dpbayes.mvg.moments import MomentRelease, SymmetricGaussian
from dpbayes.mvg.regression import WhitenedMoments, whiten_moments

RANGES = FeatureRanges([0.0, -5.0, 10.0], [2.0, 5.0, 50.0], "replace-one")
HALF = RANGES.widths / 2.0
CENTRE = (RANGES.lower + RANGES.upper) / 2.0


def draw_parameters(rng, priors: RegressionPriors, count=2):
    """One draw from the prior, in range units."""
    degrees = count + 3
    factor = np.diag(np.sqrt(rng.chisquare(degrees - np.arange(count))))
    factor[np.tril_indices(count, -1)] = rng.standard_normal(count * (count - 1) // 2)
    return {
        "intercept_range": priors.coefficient * rng.standard_normal(),
        "coefficient_range": priors.coefficient * rng.standard_normal(count),
        "residual_range": abs(priors.residual * rng.standard_normal()),
        "mean_range": priors.mean * rng.standard_normal(count),
        "covariance": factor @ factor.T * priors.spread**2 / degrees,
    }


def records(rng, parameters, n, *, exact_moments):
    """Records in original units; with `exact_moments` the predictors have exactly the drawn mean and covariance."""
    count = len(parameters["mean_range"])
    x = rng.standard_normal((count, n))
    root = np.linalg.cholesky(parameters["covariance"])
    if exact_moments:
        x = x - x.mean(axis=1, keepdims=True)
        x = np.linalg.solve(np.linalg.cholesky(x @ x.T / n), x)
    x = parameters["mean_range"][:, None] + root @ x
    y = parameters["intercept_range"] + parameters["coefficient_range"] @ x
    y = y + parameters["residual_range"] * rng.standard_normal(n)
    return CENTRE[:, None] + HALF[:, None] * np.vstack([x, y])


def moment_data(rng, values, *, stddev, shape=None, constant=1.0) -> WhitenedMoments:
    """Release the moments of unclipped records: the model speaks of regression, not of clipping."""
    n = values.shape[1]
    noise = SymmetricGaussian(
        MomentQuery(RANGES, n, intercept=constant), stddev, np.diag(HALF**2) if shape is None else shape
    )
    z = np.vstack([np.full((1, n), constant), values - CENTRE[:, None]])
    row = noise.row_cov.matrix()
    root = np.linalg.cholesky(row)
    g = rng.standard_normal(row.shape) * stddev
    symmetric = (g + g.T) / 2.0
    np.fill_diagonal(symmetric, rng.standard_normal(len(row)) * stddev)
    value = z @ z.T / n + root @ symmetric @ root.T
    value[0, 0] = constant**2
    return whiten_moments(MomentRelease((value + value.T) / 2.0, noise, "simulation"))


def sampled(model, point):
    """A point in natural units by the coordinates that a sampler sees; records that are no part of it are left out."""
    coordinates = {}
    for variable in model.free_RVs:
        if variable.name in point:
            natural, transform = np.asarray(point[variable.name], dtype=float), model.rvs_to_transforms[variable]
            moved = natural if transform is None else transform.forward(natural, *variable.owner.inputs).eval()
            coordinates[model.rvs_to_values[variable].name] = moved
    return coordinates
