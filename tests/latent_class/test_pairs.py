"""The model with the counts of pairs summed out: which release gets it, and that it says what the other form says."""

from itertools import combinations

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

from dpbayes.data import Domain, Marginal
from dpbayes.errors import InputError
from dpbayes.inference import check_convergence, sample
from dpbayes.inference.margin_operator import margin_operator
from dpbayes.latent_class import build_model, sampler_defaults
from dpbayes.privacy import release_tables
from dpbayes.privacy.noise import DiscreteGaussian, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, Release

N = 2000


def released(attributes=3, *, epsilon=1.0, seed=0, **adjacency):
    """All two-way tables of records from a mixture of three classes."""
    rng = np.random.default_rng(seed)
    domain = Domain.from_levels({f"x{i}": ("no", "yes") for i in range(attributes)})
    profiles = rng.beta(0.7, 0.7, size=(3, attributes))
    records = (rng.random((N, attributes)) < profiles[rng.integers(3, size=N)]).astype(int)
    tables = [
        Marginal(domain.project(pair), np.bincount(2 * records[:, a] + records[:, b], minlength=4).reshape(2, 2))
        for (a, b), pair in zip(combinations(range(attributes), 2), combinations(domain.names, 2), strict=True)
    ]
    return release_tables(tables, epsilon=epsilon, rng=rng, **adjacency)


def names(variables):
    return {variable.name for variable in variables}


def evaluated(model, wanted, seed=0):
    """The named variables at a random point of the sampler's space."""
    rng = np.random.default_rng(seed)
    point = {name: value + 0.5 * rng.normal(size=np.shape(value)) for name, value in model.initial_point().items()}
    graphs = model.replace_rvs_by_values([model[name] for name in wanted])
    compiled = model.compile_fn(graphs, inputs=model.value_vars, on_unused_input="ignore")
    return dict(zip(wanted, compiled(point), strict=True))


def test_many_tables_have_their_pairs_summed_out_by_default():
    assert "effects" in names(build_model(released(13), n_classes=2).free_RVs)  # 91 effects
    model = build_model(released(14), n_classes=2)  # 105
    assert names(model.free_RVs) == {
        "alpha",
        "stick",
        "profiles_of_2",
        "deviates_of_sizes",
        "deviates_of_profiles",
        "pair_levels",
    }
    assert {"effects", "exact_counts"} <= names(model.deterministics)
    assert "effects" in names(build_model(released(14), n_classes=2, sum_out_pairs=False).free_RVs)


@pytest.mark.parametrize(("attributes", "prior"), [(8, 0.25), (9, 0.5)])
def test_the_profiles_prior_is_known_by_the_attributes_and_the_same_in_either_form(attributes, prior):
    release = released(attributes)

    def density(**arguments):
        model = build_model(release, n_classes=2, **arguments)
        point = {name: value + 0.7 for name, value in model.initial_point().items()}
        profiles = model["profiles_of_2"]
        values = model.compile_fn(
            model.replace_rvs_by_values([profiles]), inputs=model.value_vars, on_unused_input="ignore"
        )(point)[0]
        logp = model.compile_logp(vars=[profiles], jacobian=False)
        return float(logp(point)), stats.beta(prior, prior).logpdf(values)

    for form in (True, False):
        found, expected = density(sum_out_pairs=form)
        # PyTensor folds the law's constant, three log-gamma values of at most 1.3, in single precision.
        assert found == pytest.approx(expected.sum(), abs=3 * 2.0**-23 * expected.size)
        assert found == pytest.approx(density(sum_out_pairs=form, profile_prior=prior)[0], rel=1e-12)


def three_levels():
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1, 2)})
    table = NoisyTable(domain, np.full((2, 3), 50), TwoSidedGeometric(4.0), 2.0, 0.5)
    return Release(domain, (table,), "replace-one", 300, "simulation")


def three_way():
    domain = Domain.from_levels({name: (0, 1) for name in "abc"})
    table = NoisyTable(domain, np.full((2, 2, 2), 40), TwoSidedGeometric(4.0), 2.0, 0.5)
    return Release(domain, (table,), "replace-one", 300, "simulation")


@pytest.mark.parametrize(
    ("release", "arguments", "cause"),
    [
        (three_levels(), {}, "attribute 'b' of 3 levels"),
        (three_way(), {}, "the table of a, b, c"),
        (released(), {"likelihood": "composite"}, "likelihood='composite'"),
        (released(), {"impossible": [{"x0": "yes", "x1": "no"}]}, "structural zeros"),
    ],
)
def test_refuses_what_has_no_such_form_and_says_why(release, arguments, cause):
    with pytest.raises(InputError, match=f"sum_out_pairs=True does not go with {cause}"):
        build_model(release, n_classes=2, sum_out_pairs=True, **arguments)


def test_recorded_counts_are_margins_of_one_table():
    release = released(4)
    model = build_model(release, n_classes=3, sum_out_pairs=True)
    values = evaluated(model, ["effects", "exact_counts"])
    operator = margin_operator(release.domain, [table.attributes for table in release.tables])
    np.testing.assert_allclose(values["exact_counts"], operator.counts(values["effects"], N), rtol=1e-12)
    np.testing.assert_allclose(values["exact_counts"].reshape(-1, 4).sum(axis=1), N, rtol=1e-12)


def test_prior_draws_have_the_multinomials_spread_and_the_noise():
    """4,000 draws of 12 counts: means and variances of standardized counts have errors below .02 and .05 (kurtosis 6).

    Six of these are no false alarm.
    """
    release = released(3, epsilon=0.5)
    with build_model(release, n_classes=2, sum_out_pairs=True):
        drawn = pm.sample_prior_predictive(4000, random_seed=1)
    margin = drawn["prior"]["margin"].to_numpy()[0]
    counts = drawn["prior_predictive"]["released"].to_numpy()[0]
    assert np.all(counts == np.round(counts))
    variance = N * margin * (1 - margin) + release.tables[0].noise.variance
    standard = (counts - N * margin) / np.sqrt(variance)
    np.testing.assert_allclose(standard.mean(axis=0), 0.0, atol=0.12)
    np.testing.assert_allclose(standard.var(axis=0), 1.0, atol=0.3)


def test_the_gradient_reaches_a_noisy_number_of_records():
    model = build_model(released(3, adjacency="add-remove", total_share=0.1), n_classes=2, sum_out_pairs=True)
    logp, dlogp = model.compile_logp(), model.compile_dlogp(vars=[model["n"]])
    point = model.initial_point()
    step = 1e-6
    ends = [logp(point | {"n_log__": point["n_log__"] + sign * step}) for sign in (1, -1)]
    assert dlogp(point)[0] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("law", [TwoSidedGeometric(30.0), DiscreteGaussian(40.0)])
def test_both_forms_have_one_posterior(law):
    """Means and standard deviations of margins and exact counts, within five Monte Carlo errors in 30 comparisons.

    False alarm below 1e-4 for normal errors, seeds fixed. The nugget, which only the sampled form gives to the totals
    of attributes, is worth half a percent of a width.
    """
    exact = released(3, epsilon=1e6)
    rng = np.random.default_rng(5)
    tables = tuple(
        NoisyTable(t.domain, t.counts + np.rint(law.variance**0.5 * rng.normal(size=(2, 2))), law, 2.0, None)
        for t in exact.tables
    )
    release = Release(exact.domain, tables, "replace-one", N, "simulation")
    settings = sampler_defaults() | {"draws": 2500, "tune": 600}
    found = []
    for sum_out in (True, False):
        trace = sample(
            build_model(release, n_classes=5, sum_out_pairs=sum_out),
            **settings,
            random_seed=2,
            progressbar=False,
            predictive=False,
        )
        assert check_convergence(trace).passed
        found.append(trace["posterior"].to_dataset()[["margin", "exact_counts"]])
    for name in ("margin", "exact_counts"):
        means = [trace[name].mean(("chain", "draw")).to_numpy() for trace in found]
        spreads = [trace[name].std(("chain", "draw")).to_numpy() for trace in found]
        errors = [az.mcse(trace, method="mean")[name].to_numpy() for trace in found]
        spread_errors = [az.mcse(trace, method="sd")[name].to_numpy() for trace in found]
        assert np.max(np.abs(means[0] - means[1]) / np.hypot(*errors)) < 5
        slack = 0.005 * spreads[0]
        assert np.max((np.abs(spreads[0] - spreads[1]) - slack) / np.hypot(*spread_errors)) < 5
