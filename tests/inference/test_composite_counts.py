"""The composite likelihood: confidential tables summed out exactly, against brute force."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.signal import fftconvolve
from scipy.special import gammaln, logsumexp

from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.inference.composite_counts import TablesLogLikelihood, noisy_tables, tables_likelihood
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.privacy.noise import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, Release


def evaluate(p, x, n, laws, sizes=None):
    """The Op's two outputs, outside any graph."""
    noise, ends = ReleasedNoise(tuple(laws)), np.cumsum(sizes or [len(p)])
    outputs = [[None], [None]]
    inputs = [np.asarray(p, float), np.asarray(x, float), np.asarray(n), *noise.rates, ends]
    TablesLogLikelihood().perform(None, inputs, outputs)
    return outputs[0][0], outputs[1][0]


def convolved(p, x, n, laws):
    """Convolve the cells' series in the log domain, all n + 1 terms of each: no window, no tilt, no Fourier."""
    m = np.arange(n + 1)
    total = np.where(m == 0, 0.0, -np.inf)
    for probability, released, law in zip(p, x, laws, strict=True):
        series = m * np.log(probability) - gammaln(m + 1) + law.log_prob(released - m)
        total = np.array([logsumexp(total[: k + 1] + series[k::-1]) for k in range(n + 1)])
    return gammaln(n + 1) + total[n]


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("cells", [2, 3, 4, 6])
def test_agrees_with_brute_force(cells, epsilon):
    rng = np.random.default_rng(cells)
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)
    success = -np.expm1(-1 / law.scale)
    for n in (20, 150, 600):
        p = np.maximum(rng.dirichlet(np.full(cells, 0.4)), 1e-6)
        p /= p.sum()
        noise = rng.geometric(success, cells) - rng.geometric(success, cells)
        x = rng.multinomial(n, p) + noise
        value, means = evaluate(p, x, n, [law] * cells)
        assert value[0] == pytest.approx(convolved(p, x, n, [law] * cells), abs=1e-6)
        assert means.sum() == pytest.approx(n, rel=1e-6)


def test_agrees_with_brute_force_far_from_the_data():
    """A sampler starts where the probabilities have nothing to do with the released counts."""
    law = TwoSidedGeometric(4.0)
    for p, x in [
        ((0.98, 0.01, 0.01), (0, 250, 250)),
        ((1e-6, 0.5, 0.499999), (450, 30, 20)),
        ((0.2, 0.3, 0.5), (-40, 900, -30)),
    ]:
        value, _ = evaluate(p, x, 500, [law] * 3)
        assert value[0] == pytest.approx(convolved(p, x, 500, [law] * 3), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("law", [Laplace(3.0), DiscreteGaussian(2.5), Gaussian(4.0), Gaussian(0.3)], ids=str)
def test_every_noise_law(law):
    rng = np.random.default_rng(0)
    p = np.array([0.05, 0.15, 0.3, 0.5])
    for n in (20, 300):
        x = rng.multinomial(n, p) + rng.normal(size=4) * law.variance**0.5
        x = np.round(x) if law.is_discrete else x
        assert evaluate(p, x, n, [law] * 4)[0][0] == pytest.approx(convolved(p, x, n, [law] * 4), abs=1e-6)


@pytest.mark.parametrize(("n", "epsilon"), [(100_000, 0.01), (100_000, 1.0), (1_000_000, 0.1), (1_000_000, 10.0)])
def test_agrees_with_a_transform_of_the_whole_table_at_large_n(n, epsilon):
    """Another engine: the three series on one long grid, convolved by FFT (relative error 1e-9 near the bell's top)."""
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)
    p = np.array([1e-6, 0.4, 0.599999])
    rng = np.random.default_rng(1)
    success = -np.expm1(-1 / law.scale)
    x = rng.multinomial(n, p) + rng.geometric(success, 3) - rng.geometric(success, 3)
    total, origin = np.ones(1), 0
    log_scale = gammaln(n + 1) - n * np.log(n)
    for probability, released in zip(p, x, strict=True):
        centre, half = n * probability, 12 * np.sqrt(n * probability) + 60
        m = np.arange(max(0, int(centre - half)), min(n, int(centre + half)) + 1)
        series = m * np.log(n * probability) - gammaln(m + 1) + law.log_prob(released - m)
        log_scale += series.max()
        total = fftconvolve(total, np.exp(series - series.max()))
        origin += m[0]
    expected = log_scale + np.log(total[n - origin])
    assert evaluate(p, x, n, [law] * 3)[0][0] == pytest.approx(expected, abs=1e-6)


def test_gradient_is_the_score():
    """Against central differences of the brute force in softmax coordinates (its own error is about 1e-8)."""
    rng = np.random.default_rng(5)
    laws = [TwoSidedGeometric(3.0)] * 4
    x, n, z = np.array([3, 8, 11, 20]), 40, rng.normal(size=4)
    logits = pt.dvector("logits")
    value = tables_likelihood(pt.special.softmax(logits), x, n, ReleasedNoise(tuple(laws)), [4])[0].sum()
    gradient = pytensor.function([logits], pt.grad(value, logits))(z)

    def brute(logits):
        return convolved(np.exp(logits - logsumexp(logits)), x, n, laws)

    step = 1e-5 * np.eye(4)
    expected = [(brute(z + h) - brute(z - h)) / 2e-5 for h in step]
    np.testing.assert_allclose(gradient, expected, atol=2e-6)


def test_tables_add_up_and_may_differ_in_size_and_law():
    laws = [TwoSidedGeometric(2.0)] * 2 + [Gaussian(3.0)] * 3 + [Laplace(1.0)]
    p, x = np.array([0.3, 0.7, 0.2, 0.2, 0.6, 1.0]), np.array([8.0, 25.0, 4.2, 9.0, 15.5, 29.0])
    values, means = evaluate(p, x, 30, laws, [2, 3, 1])
    parts = [(slice(0, 2)), (slice(2, 5)), (slice(5, 6))]
    expected = [convolved(p[s], x[s], 30, laws[s]) for s in parts]
    np.testing.assert_allclose(values, expected, atol=1e-6)
    assert means[5] == 30


def test_compiled_graph_agrees_with_the_interpreted_one():
    p, x = pt.dvector("p"), np.array([8.0, 25.0, 4.0, 9.0, 15.0])
    value = tables_likelihood(p, x, 30, ReleasedNoise((TwoSidedGeometric(2.0),) * 5), [2, 3])[0].sum()
    graph = [value, pt.grad(value, p)]
    at = np.array([0.3, 0.7, 0.2, 0.2, 0.6])
    slow = pytensor.function([p], graph, mode="FAST_COMPILE")(at)
    fast = pytensor.function([p], graph, mode="NUMBA")(at)
    np.testing.assert_allclose(fast[0], slow[0], rtol=1e-12)
    np.testing.assert_allclose(fast[1], slow[1], rtol=1e-12)


def test_the_papers_plain_statement_sums_to_the_composite_likelihood():
    """Every multinomial of models/latent_class.py summed over its tables, at one theta."""
    path = Path(__file__).parents[2] / "models" / "latent_class.py"
    spec = importlib.util.spec_from_file_location("plain_latent_class", path)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1), "c": (0, 1)})
    law, n = TwoSidedGeometric(1.5), 5
    counts = [[[1, 3], [0, 2]], [[-1, 2], [4, 1]]]
    tables = [
        NoisyTable(domain.project(names), np.array(table), law, 2.0, None)
        for names, table in zip([("a", "b"), ("c", "b")], counts, strict=True)
    ]
    release = Release(domain, tuple(tables), "replace-one", n, "simulation")
    model = plain.latent_class(release, n_classes=2)
    rng = np.random.default_rng(2)
    point = {k: rng.normal(size=np.shape(v)) for k, v in model.initial_point().items()}
    point |= {"M_0": np.array([5, 0, 0, 0]), "M_1": np.array([5, 0, 0, 0])}
    graph = model.replace_rvs_by_values([model["P"]])
    (table,) = model.compile_fn(graph, inputs=model.value_vars, on_unused_input="ignore")(point)
    bars = np.array(list(itertools.combinations(range(n + 3), 3)))
    every = np.diff(np.column_stack([np.full(len(bars), -1), bars, np.full(len(bars), n + 3)]), axis=1) - 1
    for t, p in enumerate([table.sum(axis=2), table.sum(axis=0).T]):
        logp = model.compile_logp(vars=[model[f"M_{t}"], model[f"released_{t}"]])
        summed = logsumexp([logp(point | {f"M_{t}": m}) for m in every])
        value, _ = evaluate(p.ravel(), np.ravel(counts[t]), n, [law] * 4)
        # PyMC takes log n! of a small integer in single precision.
        assert value[0] == pytest.approx(summed, abs=5e-7)


def test_forward_draws_have_the_likelihoods_probabilities():
    """20,000 draws of a two-cell table: frequencies of 8 outcomes within 5 standard errors of the likelihood."""
    laws = (TwoSidedGeometric(0.7),) * 2
    p, n = np.array([0.4, 0.6]), 4
    with pm.Model():
        noisy_tables("x", p, n, ReleasedNoise(laws), [2])
        drawn = pm.sample_prior_predictive(20_000, random_seed=1)["prior"]["x"].to_numpy()[0]
    for outcome in [(1, 3), (2, 2), (0, 4), (2, 3), (1, 2), (3, 1), (0, 3), (3, 3)]:
        probability = np.exp(evaluate(p, outcome, n, laws)[0][0])
        seen = np.mean(np.all(drawn == outcome, axis=1))
        assert abs(seen - probability) < 5 * np.sqrt(probability * (1 - probability) / 20_000)


def test_refuses_sizes_that_do_not_fit():
    with pytest.raises(InputError, match="do not hold"):
        noisy_tables("x", np.ones(3) / 3, 5, ReleasedNoise((Laplace(1.0),) * 3), [2])
    with pytest.raises(InputError, match="do not hold"):
        tables_likelihood([0.5, 0.5], [3.0, 4.0], 7, ReleasedNoise((TwoSidedGeometric(2.0),) * 2), [3])
