"""The PyMC model against the plain statement, the exact posterior, a Gibbs sampler and its own prior."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from oracles.verifier_gibbs import gibbs, printed_chain
from scipy.special import gammaln
from scipy.stats import kstest

from dpbayes.errors import InputError
from dpbayes.privacy.laws import DiscreteGaussian, Laplace, TwoSidedGeometric
from dpbayes.verifier import PartitionCounts, build_model, posterior, release_counts
from dpbayes.verifier.exact import coefficient_table, posterior_of_counts
from dpbayes.verifier.model import Questions

PLAIN = runpy.run_path(str(Path(__file__).parents[2] / "models" / "threshold_verifier.py"))
RNG = np.random.default_rng


def release(counts=(15, 4, 1), epsilon=1.0, seed=3, **kwargs):
    return release_counts(PartitionCounts(*counts), epsilon=epsilon, rng=RNG(seed), **kwargs)


@pytest.mark.parametrize(("m", "n_outcomes"), [(1, 3), (2, 3), (3, 3), (50, 3), (200, 3), (2000, 3), (1, 2), (50, 2)])
def test_coefficients_are_log_gammas(m, n_outcomes):
    table = coefficient_table(m, n_outcomes)
    expected = gammaln(m + 1) - gammaln(table.counts + 1).sum(axis=1)
    # Sums of up to 2,000 logarithms near 8, and log-gammas near 13,000: roundings add to a few times 1e-11.
    assert np.abs(table.log_coefficients - expected).max() < 1e-12 * max(m, 10) ** 0.5
    distinct = np.unique(table.counts[:, 0] * (m + 1) + table.counts[:, 1]).size
    assert distinct == ((m + 1) * (m + 2) // 2 if n_outcomes == 3 else m + 1)
    assert np.all(table.counts >= 0)
    assert np.all(table.counts.sum(axis=1) == m)


def test_the_printed_order_of_the_table():
    # Rows 1 to 10 of the comment in section 6.3, for M = 5: S1, S0, Se and M!/(S1! S0! Se!).
    table = coefficient_table(5)
    rows = np.column_stack([table.counts, np.exp(table.log_coefficients).round()]).astype(int)[:10]
    assert rows.tolist() == [
        [5, 0, 0, 1],
        [4, 0, 1, 5],
        [4, 1, 0, 5],
        [3, 0, 2, 10],
        [3, 1, 1, 20],
        [3, 2, 0, 10],
        [2, 0, 3, 10],
        [2, 1, 2, 30],
        [2, 2, 1, 30],
        [2, 3, 0, 10],
    ]


def test_tables_that_are_too_large_are_refused():
    with pytest.raises(InputError, match="no such limit"):
        coefficient_table(2001)
    with pytest.raises(InputError, match="from 1 to"):
        coefficient_table(0)


def test_the_plain_statement_summed_over_the_counts_is_the_model():
    noisy, m, epsilon, alpha = (4, 3, -1), 6, 0.7, (1.5, 1.0, 0.6)
    plain = PLAIN["build_model"](noisy, n_partitions=m, epsilon=epsilon, alpha=alpha)
    joint = plain.compile_logp(jacobian=False)
    released = release_counts(PartitionCounts(3, 3, 0), epsilon=epsilon, rng=RNG(0))
    object.__setattr__(released.tables[0], "counts", np.array(noisy))
    marginal = build_model(released, alpha=alpha).compile_logp(jacobian=False)
    triples = [(i, j, m - i - j) for i in range(m + 1) for j in range(m + 1 - i)]
    for unconstrained in ([0.3, -0.8], [2.0, 0.1], [-3.0, 1.0]):
        point = np.array(unconstrained)
        summed = np.logaddexp.reduce([joint({"p_simplex__": point, "S": np.array(s)}) for s in triples])
        assert marginal({"p_simplex__": point[None, :]}) == pytest.approx(float(summed), abs=1e-10)


@pytest.mark.parametrize("law", [TwoSidedGeometric(2.0), Laplace(2.0), DiscreteGaussian(1.7)])
@pytest.mark.parametrize("noisy", [(14, 5, 2), (20, -3, 1)])
def test_the_density_integrates_to_the_exact_posterior(law, noisy):
    # Two-dimensional quadrature of the model's likelihood over p, uniform prior: evidence and moments of r.
    m = 20
    likelihood = Questions(("q",), np.array([noisy], float), (law,), (m,))
    import pytensor
    import pytensor.tensor as pt

    p = pt.dmatrix("p")
    density = pytensor.function([p], likelihood.logp(np.array([noisy], float), p))
    nodes, weights = np.polynomial.legendre.leggauss(24)
    nodes, weights = 0.5 * (nodes + 1), 0.5 * weights
    total = first = second = 0.0
    # Uniform on the triangle: r uniform, and the failed share has density 2 (1 - e). A polynomial of degree 21 at most.
    for e, e_weight in zip(nodes, weights, strict=True):
        for r, r_weight in zip(nodes, weights, strict=True):
            point = np.array([[(1 - e) * r, (1 - e) * (1 - r), e]])
            mass = 2 * (1 - e) * e_weight * r_weight * np.exp(density(point)[0])
            total, first, second = total + mass, first + mass * r, second + mass * r * r
    exact = posterior_of_counts(noisy, law, m)
    assert np.log(total) == pytest.approx(exact.log_evidence, abs=1e-9)
    assert first / total == pytest.approx(exact.mean, abs=1e-11)
    assert second / total - (first / total) ** 2 == pytest.approx(exact.sd**2, abs=1e-11)


def test_the_table_near_the_counts_is_the_whole_table():
    # Beyond M = 200 only triples near the released counts are summed.
    noisy = np.array([[230.0, 60.0, 12.0]])
    near = Questions(("q",), noisy, (TwoSidedGeometric(2.0),), (300,))
    assert len(near.tables[0].log_coefficients) < 0.5 * len(coefficient_table(300).log_coefficients)
    whole = coefficient_table(300)
    for p in ([0.76, 0.2, 0.04], [0.5, 0.4, 0.1], [0.9, 0.05, 0.05]):
        log_noise = sum(TwoSidedGeometric(2.0).log_prob(noisy[0, j] - whole.counts[:, j]) for j in range(3))
        expected = np.logaddexp.reduce(whole.log_coefficients + log_noise + whole.counts @ np.log(p))
        value = near.logp(noisy, np.array([p])).eval()[0]
        assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_forward_draws_follow_the_density():
    # Chi-square of 20,000 prior predictive draws against the evidence of every clamped outcome at M = 3.
    # 63 degrees of freedom; the bound is the 1 - 1e-6 quantile (false alarm 1e-6).
    import pymc as pm

    law, m = TwoSidedGeometric(1.0), 3
    questions = Questions(("q",), np.zeros((1, 3)), (law,), (m,))
    with pm.Model(coords={"question": ["q"], "outcome": list("abc")}) as model:
        p = pm.Dirichlet("p", a=np.ones((1, 3)), dims=("question", "outcome"))
        questions.observe("released", p)
    drawn = pm.draw(model["released"], draws=20_000, random_seed=5)[:, 0, :]
    seen = np.zeros((m + 1,) * 3)
    np.add.at(seen, tuple(np.clip(drawn, 0, m).astype(int).T), 1)
    expected = np.zeros((m + 1,) * 3)
    grid = np.arange(-30, 34)
    mass = np.exp(law.log_prob(grid[:, None] - np.arange(m + 1)[None, :]))
    clamped = np.array([mass[np.clip(grid, 0, m) == k].sum(axis=0) for k in range(m + 1)])
    for i in range(m + 1):
        for j in range(m + 1 - i):
            s = (i, j, m - i - j)
            expected += np.einsum("a,b,c->abc", *(clamped[:, k] for k in s)) / 10
    assert expected.sum() == pytest.approx(1, abs=1e-10)
    statistic = ((seen - 20_000 * expected) ** 2 / (20_000 * expected)).sum()
    assert statistic < 129


@pytest.mark.parametrize("pooling", ["none", "partial"])
def test_several_questions(pooling):
    releases = [release(), release((9, 9, 2), seed=4), release((30, 8, 2), epsilon=2.0, seed=5)]
    covariates = {"size": (-1.0, 0.0, 1.0)} if pooling == "partial" else None
    model = build_model(releases, pooling=pooling, covariates=covariates, questions=["a", "b", "c"])
    import pymc as pm

    with model:
        prior = pm.sample_prior_predictive(200, random_seed=1)
    released = prior["prior_predictive"]["released"]
    assert released.dims == ("chain", "draw", "question", "outcome")
    sums = released.sum("outcome").mean(("chain", "draw")).values
    # The noise on a sum of three counts has standard deviation below 5; 200 draws; 5 standard errors.
    assert np.abs(sums - [20, 20, 40]).max() < 5 * 5 / np.sqrt(200)
    pointwise = model.compile_fn(model.logp(model.observed_RVs, sum=False), point_fn=True)(model.initial_point())
    assert np.shape(pointwise[0]) == (3,)
    assert np.isfinite(pointwise[0]).all()


def test_predictions_and_pointwise_likelihoods_from_exact_draws():
    # The model takes a trace that no sampler of its own made: exact draws of p for two questions.
    import pymc as pm

    from dpbayes.verifier import draw_posterior

    released = release_counts({"a": PartitionCounts(15, 4, 1), "b": PartitionCounts(9, 9, 2)}, epsilon=2.0, rng=RNG(5))
    trace = draw_posterior(released, draws=500, chains=2, random_seed=1)
    model = build_model(released)
    with model:
        predicted = pm.sample_posterior_predictive(trace, random_seed=2, progressbar=False)
        pointwise = pm.compute_log_likelihood(trace, progressbar=False, extend_inferencedata=False)
    drawn = predicted["posterior_predictive"]["released"]
    assert drawn.dims == ("chain", "draw", "question", "outcome")
    # Mean M p over the draws of p; the noise has standard deviation 2 / epsilon_q x 1.4 = 2.8; 1,000 draws, 5 errors.
    gap = drawn.mean(("chain", "draw")) - 20 * trace["posterior"]["p"].mean(("chain", "draw"))
    assert float(np.abs(gap).max()) < 5 * 3.6 / np.sqrt(1000)
    # The density itself, at every draw of the first question.
    found = np.asarray(pointwise["released"] if "released" in pointwise else pointwise["log_likelihood"]["released"])
    table = coefficient_table(20)
    noise = sum(
        released.tables[0].noise.log_prob(y - table.counts[:, j]) for j, y in enumerate(released.tables[0].counts)
    )
    p = np.asarray(trace["posterior"]["p"])[:, :, 0]
    expected = np.logaddexp.reduce(table.log_coefficients + noise + np.log(p) @ table.counts.T, axis=-1)
    assert np.abs(found[:, :, 0] - expected).max() < 1e-9


def test_two_outcome_models_have_no_failed_share():
    model = build_model(release(with_failures=False))
    assert model["p"].eval().shape == (1, 2)
    partial = build_model([release(with_failures=False)] * 2, pooling="partial", questions=["a", "b"])
    assert "mu_failed" not in partial.named_vars


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "complete"}, "pooling"),
        ({"covariates": {"x": (1,)}}, "pooling='partial'"),
        ({"pooling": "partial", "covariates": {"x": (1, 2)}}, "each of the 1"),
        ({"pooling": "partial", "covariates": {"x": (1,), "y": (1, 2)}}, "each of the 1"),
        ({"pooling": "partial", "covariates": {"x": ("1",)}}, "covariate 'x' must be real"),
        ({"alpha": (1, 1, 0)}, "positive"),
        ({"alpha": (1, 1)}, "broadcast"),
        ({"questions": ("a", "b")}, "different names"),
        ({"between_sd": 0}, "between_sd"),
        ({"effect_sd": float("nan")}, "effect_sd"),
        ({"centre": (0.0, 0.0)}, "centre"),
        ({"failed_centre": (0.0,)}, "failed_centre"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(InputError, match=message):
        build_model(release(), **change)


def test_other_bad_input():
    with pytest.raises(InputError, match="at least one"):
        build_model([])
    with pytest.raises(InputError, match="Release"):
        build_model([PartitionCounts(1, 2, 3)])
    with pytest.raises(InputError, match="model them apart"):
        build_model([release(), release(with_failures=False)])


def test_exact_draws_of_the_counts_have_their_exact_posterior():
    # Draws of S against its exact posterior: chi-square over the values with
    # an expected count of at least 5; the bound is the 1 - 1e-6 quantile of its own degrees of freedom.
    from scipy.stats import chi2

    from dpbayes.verifier import draw_posterior

    exact_release = release((15, 4, 1))
    exact = posterior(exact_release)
    trace = draw_posterior(exact_release, draws=4000, chains=1, random_seed=3)
    drawn = trace["posterior"]["S"].to_numpy()
    for j, outcome in enumerate(exact.outcomes):
        values, probabilities = exact.counts(outcome)
        seen = np.array([(drawn[..., 0, j] == v).sum() for v in values])
        expected = 4000 * probabilities
        big = expected >= 5
        statistic = ((seen - expected)[big] ** 2 / expected[big]).sum()
        assert statistic < chi2.isf(1e-6, big.sum())


@pytest.mark.slow
def test_pit_of_prior_draws_is_uniform():
    # Simulation-based calibration without Monte Carlo: r from the prior, counts from the model's own forward draws, and
    # the exact distribution function at r. Kolmogorov-Smirnov at level 1e-6 with 4,000 simulations, for M = 30.
    import pymc as pm

    law, m = TwoSidedGeometric(2.0), 30
    with pm.Model(coords={"question": ["q"], "outcome": list("abc")}) as model:
        p = pm.Dirichlet("p", a=np.array([[1.0, 2.0, 0.5]]), dims=("question", "outcome"))
        Questions(("q",), np.zeros((1, 3)), (law,), (m,)).observe("released", p)
    shares, drawn = pm.draw([p, model["released"]], draws=4000, random_seed=7)
    r = shares[:, 0, 0] / shares[:, 0, :2].sum(axis=1)
    pit = [
        float(posterior_of_counts(y, law, m, alpha=(1.0, 2.0, 0.5)).r.cdf(x))
        for y, x in zip(drawn[:, 0, :], r, strict=True)
    ]
    assert kstest(pit, "uniform").pvalue > 1e-6


def test_the_gibbs_sampler_agrees_and_the_printed_script_does_not():
    # 20,000 draws; the chain's autocorrelation time is below 10 here, so 5 standard errors of the mean of r are
    # 5 sd sqrt(10 / 20,000) (false alarm 6e-7).
    noisy, m, scale = (41, 8, 2), 50, 2.0
    exact = posterior_of_counts(noisy, TwoSidedGeometric(scale), m)
    draws = gibbs(noisy, m, scale, draws=20_000, rng=RNG(5))
    r = draws[:, 0] / draws[:, :2].sum(axis=1)
    assert abs(r.mean() - exact.mean) < 5 * exact.sd * np.sqrt(10 / 20_000)
    assert r.std() == pytest.approx(exact.sd, rel=0.1)
    failed = exact.share("not computed")
    assert abs(draws[:, 2].mean() - failed.mean) < 5 * failed.sd * np.sqrt(10 / 20_000)
    # The printed script conditions on its first p for ever: over 40 runs its mean is off by .05 and more on average.
    rng = RNG(6)
    errors = []
    for _ in range(40):
        chain = printed_chain(noisy, m, scale, draws=1000, rng=rng)
        errors.append(abs((chain[:, 0] / chain[:, :2].sum(axis=1)).mean() - exact.mean))
    assert np.mean(errors) > 0.05


@pytest.mark.slow
def test_nuts_agrees_with_the_exact_posterior():
    # Two questions, one with an informative prior.
    releases = [release((40, 8, 2)), release((22, 25, 3), seed=9)]
    alpha = [(1.0, 1.0, 1.0), (20.0, 5.0, 1.0)]
    trace = fitted(build_model(releases, questions=["a", "b"], alpha=alpha))
    for index, one in enumerate(releases):
        exact = posterior(one, alpha=alpha[index])
        assert_same(trace["posterior"]["r"][..., index], exact.mean, exact.sd, exact.r.quantile)


def fitted(model):
    from dpbayes.inference import Verdict, sample

    trace = sample(model, draws=2000, chains=4, random_seed=1, progressbar=False, target_accept=0.95)
    assert Verdict.from_json(trace.attrs["convergence"]).passed
    return trace


def assert_same(draws, mean, sd, quantile=None):
    """Compare draws with what they are draws of, within 5 standard errors: false alarm 6e-7 each."""
    import arviz as az

    ess = float(az.ess(draws.to_dataset(name="x"))["x"])
    assert abs(float(draws.mean()) - mean) < 5 * sd / np.sqrt(ess)
    for level in (0.1, 0.5, 0.9) if quantile else ():
        # Draws of an indicator are worth at least half as much here.
        below = float((draws < float(quantile(level))).mean())
        assert abs(below - level) < 5 * np.sqrt(2 * level * (1 - level) / ess)


POOLED = {"centre": (1.5, 0.5), "between_sd": 0.7, "effect_sd": 0.8}


@pytest.mark.slow
@pytest.mark.parametrize("priors", [{}, POOLED])
def test_nuts_agrees_with_quadrature_of_the_hierarchy(priors):
    # Partial pooling with a covariate, weak and informative priors, against sums over a grid: no sampler, no PyMC.
    size = (-1.0, 0.0, 1.0)
    releases = [
        release(counts, seed=seed, epsilon=epsilon, with_failures=False)
        for counts, seed, epsilon in (((12, 8, 0), 3, 1.0), ((16, 4, 0), 4, 0.5), ((28, 2, 0), 5, 2.0))
    ]
    model = build_model(releases, pooling="partial", covariates={"size": size}, questions=["a", "b", "c"], **priors)
    exact = quadrature(releases, size, **priors)
    trace = fitted(model)["posterior"]
    for name in ("mu", "tau"):
        assert_same(trace[name], *exact[name])
    assert_same(trace["beta"][..., 0], *exact["beta"])
    for index in range(3):
        assert_same(trace["r"][..., index], *exact["r"][index])


def quadrature(releases, size, *, centre=(0.0, 1.5), between_sd=1.0, effect_sd=1.0):
    """Mean and sd of mu, beta, tau and each r, by sums over mu, beta and tau and Gauss-Hermite sums over each z."""
    from scipy.special import expit
    from scipy.stats import binom

    mu = np.linspace(centre[0] - 6 * centre[1], centre[0] + 6 * centre[1], 70)
    beta = np.linspace(-6 * effect_sd, 6 * effect_sd, 61)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    top = 5 * between_sd
    tau, tau_weight = 0.5 * top * (nodes + 1), weights
    z, z_weight = np.polynomial.hermite_e.hermegauss(48)
    z_weight = z_weight / z_weight.sum()
    shape = (mu.size, beta.size, tau.size)
    prior = np.exp(-0.5 * ((mu - centre[0]) / centre[1]) ** 2)[:, None, None]
    prior = prior * np.exp(-0.5 * (beta / effect_sd) ** 2)[:, None]
    joint = prior * tau_weight * np.exp(-0.5 * (tau / between_sd) ** 2) * np.ones(shape)
    grid = np.linspace(-40, 40, 16001)
    means, squares = [], []
    for one, x in zip(releases, size, strict=True):
        table, m = one.tables[0], one.n
        s = np.arange(m + 1)
        log_noise = table.noise.log_prob(table.counts[0] - s) + table.noise.log_prob(table.counts[1] - (m - s))
        likelihood = binom.pmf(s[None, :], m, expit(grid)[:, None]) @ np.exp(log_noise - log_noise.max())
        at = (mu[:, None] + x * beta[None, :]).ravel()[:, None, None] + tau[None, :, None] * z
        value, r = np.interp(at, grid, likelihood) * z_weight, expit(at)
        whole = value.sum(axis=2)
        joint = joint * whole.reshape(shape)
        means.append(((value * r).sum(axis=2) / whole).reshape(shape))
        squares.append(((value * r * r).sum(axis=2) / whole).reshape(shape))
    joint = joint / joint.sum()

    def moments(first, second):
        average = (joint * first).sum()
        return average, np.sqrt((joint * second).sum() - average**2)

    axes = {"mu": mu[:, None, None], "beta": beta[:, None], "tau": tau}
    found = {name: moments(values, values**2) for name, values in axes.items()}
    return found | {"r": [moments(*pair) for pair in zip(means, squares, strict=True)]}
