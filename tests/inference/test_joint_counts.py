"""The joint likelihood against the confidential table summed out exactly.

Two binary attributes, so that all tables of n records can be listed: p(released | theta) is a finite sum over them,
taken from the plain statement in models/latent_class.py. The joint likelihood replaces the sum by an integral over the
three effects' counts, taken on a grid (61 points an axis over +-6 standard deviations: its own error is below 1e-3).
"""

import importlib.util
import itertools
from pathlib import Path

import numba
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multinomial

from dpbayes.data.domain import Domain
from dpbayes.inference.joint_counts import NUGGET, anchor_covariance
from dpbayes.inference.margin_operator import margin_operator
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.inference.normal_counts import normal_counts
from dpbayes.privacy.noise import TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, Release

DOMAIN = Domain.from_levels({"a": (0, 1), "b": (0, 1)})
SETS = [("a", "b"), ("a",), ("b",)]
P = np.array([0.5, 0.3, 0.15, 0.05])


def plain_statement():
    path = Path(__file__).parents[2] / "models" / "latent_class.py"
    spec = importlib.util.spec_from_file_location("plain_latent_class", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def all_tables(n, cells):
    """Every way to put n records into the cells, one a row."""
    bars = np.array(list(itertools.combinations(range(n + cells - 1), cells - 1)))
    ends = np.column_stack([np.full(len(bars), -1), bars, np.full(len(bars), n + cells - 1)])
    return np.diff(ends, axis=1) - 1


def released(n, scale, seed):
    rng = np.random.default_rng(seed)
    operator = margin_operator(DOMAIN, SETS)
    table = rng.multinomial(n, P)
    exact = operator.counts([table[2] + table[3], table[1] + table[3], table[3]], n)
    success = -np.expm1(-1 / scale)
    noisy = exact + rng.geometric(success, exact.shape) - rng.geometric(success, exact.shape)
    tables = []
    for names, counts in zip(SETS, np.split(noisy, [4, 6]), strict=True):
        domain = DOMAIN.project(names)
        tables.append(NoisyTable(domain, counts.reshape(domain.shape), TwoSidedGeometric(scale), 2.0, None))
    return Release(DOMAIN, tuple(tables), "replace-one", n, "simulation")


def exact_log_likelihood(release, p, *, scale):
    """Sum the confidential table out."""
    tables = all_tables(release.n, 4)
    log_p = multinomial(release.n, p).logpmf(tables)
    rows = tables.reshape(-1, 2, 2)
    margins = np.concatenate([tables, rows.sum(axis=2), rows.sum(axis=1)], axis=1)
    y = np.concatenate([table.counts.ravel() for table in release.tables])
    return logsumexp(log_p + TwoSidedGeometric(scale).log_prob(y - margins).sum(axis=1))


@numba.njit(cache=False)
def log_densities(p, values, n, pairs, extra):
    """The shipped density of the effects' counts at every point."""
    result = np.empty(len(values))
    for i in range(len(values)):
        result[i] = normal_counts(p, values[i], n, pairs, extra)[0]
    return result


def joint_log_likelihood(release, *, points=61):
    """Integrate the effects' counts out of the joint likelihood, nugget included, as `effect_counts` states it."""
    n = release.n
    operator = margin_operator(DOMAIN, SETS)
    noise = ReleasedNoise.of_tables([t.noise for t in release.tables], [t.counts.size for t in release.tables])
    nugget = NUGGET * anchor_covariance(operator, noise)
    cells, pairs = operator.intersections
    assert [dict(cell) for cell in cells] == [{0: 1}, {0: 1, 1: 1}, {1: 1}]
    p = np.array([P[2] + P[3], P[3], P[1] + P[3]])
    mean = p[np.diag(pairs)]
    # The grid is laid by hand; a wrong covariance here would only spread its points badly.
    root = np.linalg.cholesky(n * (p[pairs] - np.outer(mean, mean)) + nugget)
    axis = np.linspace(-6, 6, points)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    values = n * mean + grid @ root.T
    log_volume = 3 * np.log(axis[1] - axis[0]) + np.log(np.diag(root)).sum()
    y = np.concatenate([table.counts.ravel() for table in release.tables])
    residual = y - operator.counts(values, n)
    log_noise = noise.logp(residual).eval().sum(axis=1)
    return logsumexp(log_densities(p, values, float(n), pairs, nugget) + log_noise) + log_volume


def test_the_plain_statement_sums_to_the_enumerated_likelihood():
    release = released(5, 3.0, 0)
    model = plain_statement().one_table(release, n_classes=2)
    rng = np.random.default_rng(1)
    point = {name: rng.normal(size=np.shape(value)) for name, value in model.initial_point().items() if name != "X"} | {
        "X": np.array([5, 0, 0, 0])
    }
    graph = model.replace_rvs_by_values([model["P"]])
    (p,) = model.compile_fn(graph, inputs=model.value_vars, on_unused_input="ignore")(point)
    logp = model.compile_logp(vars=[model["X"], *model.observed_RVs])
    total = logsumexp([logp(point | {"X": table}) for table in all_tables(5, 4)])
    # PyMC takes log n! of a small integer in single precision.
    assert total == pytest.approx(exact_log_likelihood(release, p.ravel(), scale=3.0), abs=2e-7)


@pytest.mark.parametrize(
    ("n", "scale", "nats"),
    # Largest differences measured over 8 releases: .047, .042, .057, .035, .24, .30, .74, 1.23.
    [
        (12, 20.0, 0.06),
        (60, 20.0, 0.06),
        (12, 5.0, 0.08),
        (60, 5.0, 0.08),
        (60, 2.0, 0.4),
        (12, 1.0, 1.0),
        (60, 1.0, 1.5),
    ],
)
def test_integrates_to_the_enumerated_likelihood(n, scale, nats):
    """The accuracy that the docstring of joint_counts states: the noise's scale decides."""
    for seed in range(3):
        release = released(n, scale, seed)
        assert joint_log_likelihood(release) == pytest.approx(exact_log_likelihood(release, P, scale=scale), abs=nats)
