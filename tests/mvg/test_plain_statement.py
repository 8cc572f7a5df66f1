"""The plain statement in models/, with the confidential records left in, against the laws of the releases."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from mvg_simulate import CENTRE, HALF, RANGES, draw_parameters, records, sampled
from scipy import stats

from dpbayes.mvg import Covariance, MomentQuery, calibrate_moments, release_moments
from dpbayes.mvg.matrix import MatrixGaussian, MatrixRelease
from dpbayes.mvg.model import RegressionPriors

PLAIN = runpy.run_path(str(Path(__file__).parents[2] / "models" / "noisy_regression.py"))
SHAPE = np.array([[1.0, 0.6, 0.0], [0.6, 30.0, 0.0], [0.0, 0.0, 300.0]])
N = 5


def _release():
    rng = np.random.default_rng(8)
    values = records(rng, draw_parameters(rng, RegressionPriors()), N, exact_moments=False)
    noise = MatrixGaussian(Covariance.from_matrix(SHAPE), Covariance.identity(N), RANGES)
    noisy = values + np.linalg.cholesky(SHAPE) @ rng.standard_normal(values.shape)
    return MatrixRelease(noisy, noise, "simulation")


def _point(seed):
    rng = np.random.default_rng(seed)
    return {
        "intercept_range": np.array(0.3 * rng.standard_normal()),
        "coefficient_range": 0.5 * rng.standard_normal(2),
        "residual_range": np.array(rng.uniform(0.1, 0.5)),
        "mean_range": 0.3 * rng.standard_normal(2),
        "scatter_diagonal": rng.uniform(1.0, 6.0, 2),
        "scatter_lower": rng.standard_normal(1),
    }


def _integrated(model, point):
    """Log of the joint density with the records integrated out.

    It is quadratic in them, so its value and gradient at zero and its Hessian (differences of gradients at unit steps,
    exact for a quadratic) give the Gaussian integral.
    """
    point = sampled(model, point)
    value = model.compile_logp(jacobian=False)
    gradient = model.compile_dlogp(vars=[model["X"], model["y"]])
    size = 3 * N

    def at(latent):
        return point | {"X": latent[: 2 * N].reshape(N, 2), "y": latent[2 * N :]}

    base = np.asarray(gradient(at(np.zeros(size))))
    hessian = np.column_stack([np.asarray(gradient(at(unit))) - base for unit in np.eye(size)])
    assert np.max(np.abs(hessian - hessian.T)) < 1e-8 * np.max(np.abs(hessian))
    mode = -np.linalg.solve(hessian, base)
    return float(value(at(mode))) + size / 2 * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(-hessian)[1]


def test_released_records_are_normal_with_the_noise_added_to_the_population():
    """With the records integrated out a released record is N(mean, population covariance + Sigma), in range units."""
    release = _release()
    plain = PLAIN["noisy_records"](release, RANGES)
    released = ((release.values - CENTRE[:, None]) / HALF[:, None]).T
    parameters = [variable for variable in plain.free_RVs if variable.name not in ("X", "y")]
    prior = plain.compile_logp(vars=parameters, jacobian=False)
    for seed in (1, 2, 3):
        point = _point(seed)
        factor = np.diag(np.sqrt(point["scatter_diagonal"]))
        factor[1, 0] = point["scatter_lower"][0]
        spread, slope = factor @ factor.T * 0.4**2 / 5.0, point["coefficient_range"]
        cross, residual = spread @ slope, slope @ spread @ slope + point["residual_range"] ** 2
        law = np.block([[spread, cross[:, None]], [cross[None, :], np.array([[residual]])]])
        mean = np.append(point["mean_range"], point["intercept_range"] + slope @ point["mean_range"])
        noisy = stats.multivariate_normal(mean, law + SHAPE / np.outer(HALF, HALF)).logpdf(released).sum()
        start = sampled(plain, point | {"X": np.zeros((N, 2)), "y": np.zeros(N)})
        assert _integrated(plain, point) == pytest.approx(float(prior(start)) + noisy, abs=1e-6)


def test_plain_moments_at_the_records_themselves():
    rng = np.random.default_rng(5)
    values = records(rng, draw_parameters(rng, RegressionPriors()), N, exact_moments=False)
    query = MomentQuery(RANGES, N, intercept=1.5)
    noise = calibrate_moments(query, epsilon=1.0, delta=1e-5, shape=np.diag(HALF**2))
    release = release_moments(values, noise, rng=rng)
    model = PLAIN["noisy_moments"](release)
    # The released values scatter about the records' own moments with the stated noise.
    inside = np.clip(values, RANGES.lower[:, None], RANGES.upper[:, None])
    scaled = (inside - CENTRE[:, None]) / HALF[:, None]
    point = _point(1) | {"X": scaled[:2].T, "y": scaled[2]}
    found = float(model.compile_logp(vars=[model["released"]])(sampled(model, point)))
    rows, columns = (index[1:] for index in np.triu_indices(4))
    z = (release.value - query.value(values))[rows, columns] / np.sqrt(noise.variances[rows, columns])
    scale = np.append(1.5, HALF)
    sd = np.sqrt(noise.variances[rows, columns]) / (scale[rows] * scale[columns])
    expected = -0.5 * np.sum(z**2) - np.sum(np.log(sd)) - len(z) / 2 * math.log(2 * math.pi)
    assert found == pytest.approx(expected, rel=1e-9)
