"""The latent class model's graph against enumeration of the full table."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

from dpbayes.data import datasets
from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.inference.composite_counts import tables_likelihood
from dpbayes.inference.joint_counts import NUGGET, anchor_covariance
from dpbayes.inference.margin_operator import margin_operator
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.latent_class import build_model
from dpbayes.latent_class.design import Design
from dpbayes.privacy.noise import Gaussian, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release
from dpbayes.verifier import PartitionCounts, release_counts

DOMAIN = Domain.from_levels({"a": (0, 1), "b": ("x", "y", "z"), "c": (0, 1), "d": (0, 1)})
SETS = [("a", "b"), ("b", "c"), ("d", "c")]


def _release(sets=SETS, *, n=500, laws=None, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.multinomial(n, rng.dirichlet(np.ones(DOMAIN.size))).reshape(DOMAIN.shape)
    tables = []
    for index, names in enumerate(sets):
        domain = DOMAIN.project(names)
        law = laws[index] if laws else TwoSidedGeometric(4.0)
        axes = DOMAIN.axes(names)
        rest = tuple(a for a in range(len(DOMAIN)) if a not in axes)
        exact = table.sum(axis=rest).transpose(np.argsort(np.argsort(axes)))
        noise = np.round(law.variance**0.5 * rng.normal(size=domain.shape))
        tables.append(NoisyTable(domain, exact + noise, law, 2.0, None))
    return Release(DOMAIN, tuple(tables), "replace-one", n, "simulation")


def _point(model, seed=0):
    """A random point of the sampler's space."""
    rng = np.random.default_rng(seed)
    return {name: value + 0.7 * rng.normal(size=np.shape(value)) for name, value in model.initial_point().items()}


def _evaluate(model, names):
    """A function from points of the sampler's space to the named variables."""
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    return model.compile_fn(graphs, inputs=model.value_vars, on_unused_input="ignore")


@pytest.fixture(scope="module")
def evaluated():
    """A model, and its recorded quantities at one random point."""
    release = _release()
    model = build_model(release, n_classes=3, margins=[("d", "a"), ("a", "b", "c")])
    names = [*(v.name for v in model.deterministics), *(v.name for v in model.free_RVs)]
    values = _evaluate(model, names)(_point(model))
    return release, model, dict(zip(names, values, strict=True))


def _full_table(values):
    profiles = [values[f"profile_{name}"] for name in DOMAIN.names]
    return np.einsum("h,ha,hb,hc,hd->abcd", values["weights"], *profiles)


def test_margins_and_cells_are_those_of_the_enumerated_mixture(evaluated):
    _, _, values = evaluated
    table = _full_table(values)
    assert table.sum() == pytest.approx(1.0, abs=1e-14)
    np.testing.assert_allclose(values["cell"], table, atol=1e-15)
    expected = [np.einsum("abcd->ab", table), np.einsum("abcd->bc", table), np.einsum("abcd->dc", table)]
    np.testing.assert_allclose(values["margin"], np.concatenate([e.ravel() for e in expected]), atol=1e-15)
    np.testing.assert_allclose(values["margin_d_a"], np.einsum("abcd->da", table), atol=1e-15)
    np.testing.assert_allclose(values["margin_a_b_c"], table.sum(axis=3), atol=1e-15)


def test_weights_are_broken_sticks(evaluated):
    _, _, values = evaluated
    first, second = values["stick"]
    expected = [first, (1 - first) * second, (1 - first) * (1 - second)]
    np.testing.assert_allclose(values["weights"], expected, rtol=1e-14)
    np.testing.assert_allclose(values["weights_sorted"], sorted(expected, reverse=True), rtol=1e-14)


def test_effect_counts_have_the_multinomials_moments(evaluated):
    """The log-density of the effects is the normal one whose mean and covariance are taken by enumeration."""
    release, model, values = evaluated
    operator = margin_operator(DOMAIN, SETS)
    table = _full_table(values)
    records = np.array(list(np.ndindex(*DOMAIN.shape)))
    indicator = np.array([np.all([records[:, a] == v for a, v in effect], axis=0) for effect in operator.effects])
    p = table.ravel()
    mean = release.n * indicator @ p
    covariance = release.n * indicator @ (np.diag(p) - np.outer(p, p)) @ indicator.T
    noise = ReleasedNoise.of_tables([t.noise for t in release.tables], [t.counts.size for t in release.tables])
    covariance += NUGGET * anchor_covariance(operator, noise)
    expected = stats.multivariate_normal(mean, covariance).logpdf(values["effects"])
    logp = model.compile_logp(vars=[model["effects"]], jacobian=False)
    assert logp(_point(model)) == pytest.approx(expected, rel=1e-9)


def test_released_counts_follow_their_own_laws(evaluated):
    release, model, values = evaluated
    exact = margin_operator(DOMAIN, SETS).counts(values["effects"], release.n)
    np.testing.assert_allclose(values["exact_counts"], exact, rtol=1e-12)
    residual = np.concatenate([t.counts.ravel() for t in release.tables]) - exact
    scale = np.sqrt(TwoSidedGeometric(4.0).variance / 2)
    expected = stats.laplace(scale=scale).logpdf(residual).sum()
    assert model.compile_logp(vars=[model["released"]])(_point(model)) == pytest.approx(expected, rel=1e-12)


def test_unequal_and_mixed_noise():
    laws = [TwoSidedGeometric(2.0), Gaussian(5.0), TwoSidedGeometric(30.0)]
    release = _release(laws=laws)
    model = build_model(release, n_classes=2)
    point = _point(model)
    effects = _evaluate(model, ["effects"])
    exact = margin_operator(DOMAIN, SETS).counts(effects(point)[0], release.n)
    parts = np.split(exact, [6, 12])
    residuals = [t.counts.ravel() - part for t, part in zip(release.tables, parts, strict=True)]
    expected = (
        stats.laplace(scale=np.sqrt(laws[0].variance / 2)).logpdf(residuals[0]).sum()
        + stats.norm(scale=5.0).logpdf(residuals[1]).sum()
        + stats.laplace(scale=np.sqrt(laws[2].variance / 2)).logpdf(residuals[2]).sum()
    )
    assert model.compile_logp(vars=[model["released"]])(point) == pytest.approx(expected, rel=1e-12)


def test_prior_draws_are_consistent_tables_with_noise():
    """Forward draws: the recorded margins and effects agree, and the noise has the law's standard deviation.

    2,000 x 16 residuals: the standard error of their standard deviation is below 1 %, so 5 % is no false alarm.
    """
    release = _release()
    with build_model(release, n_classes=2):
        drawn = pm.sample_prior_predictive(2000, random_seed=1)
    effects = drawn["prior"]["effects"].to_numpy()[0]
    released = drawn["prior_predictive"]["released"].to_numpy()[0]
    assert np.all(released == np.round(released))
    residuals = released - margin_operator(DOMAIN, SETS).counts(effects, release.n)
    assert residuals.std() == pytest.approx(TwoSidedGeometric(4.0).variance ** 0.5, rel=0.05)
    margin = drawn["prior"]["margin"].to_numpy()[0]
    sampled = margin_operator(DOMAIN, SETS).counts(effects, release.n) / release.n
    assert np.abs(sampled - margin).max() < 6 * np.sqrt(0.25 / release.n)


def test_new_data_move_the_sampler_along():
    """Setting the data moves the centre of the effects' coordinates: a compiled model serves another release."""
    release = _release()
    model = build_model(release, n_classes=2)
    effects = _evaluate(model, ["effects"])
    point = model.initial_point()
    before = effects(point)[0]
    shift = margin_operator(DOMAIN, SETS).matrix @ np.arange(1.0, len(before) + 1)
    model.set_data("released_counts", model["released_counts"].get_value() + shift)
    np.testing.assert_allclose(effects(point)[0] - before, np.arange(1.0, len(before) + 1), atol=1e-8)


def test_one_class_and_fixed_concentration():
    model = build_model(_release(), n_classes=1, concentration=0.5)
    assert "alpha" not in model.named_vars and "stick" not in model.named_vars
    assert np.isfinite(model.compile_logp()(model.initial_point()))


def test_large_domain_is_never_enumerated():
    domain = Domain.from_levels({f"x{i}": (0, 1) for i in range(30)})
    tables = tuple(
        NoisyTable(domain.project((f"x{i}", f"x{i + 1}")), np.full((2, 2), 25), TwoSidedGeometric(4.0), 2.0, 0.5)
        for i in range(29)
    )
    model = build_model(Release(domain, tables, "replace-one", 100, "simulation"), n_classes=2)
    assert "cell" not in model.named_vars
    assert model["margin"].type.ndim == 1


def test_composite_likelihood_takes_each_table_on_its_own():
    release = _release()
    model = build_model(release, n_classes=2, likelihood="composite")
    assert "effects" not in model.named_vars
    point = _point(model)
    (margin,) = _evaluate(model, ["margin"])(point)
    noise = ReleasedNoise((TwoSidedGeometric(4.0),) * 16)
    released = np.concatenate([t.counts.ravel() for t in release.tables]).astype(float)
    p = pt.dvector("p")
    expected = tables_likelihood(p, released, release.n, noise, [6, 6, 4])[0].eval({p: margin}).sum()
    assert model.compile_logp(vars=[model["released"]])(point) == pytest.approx(expected, rel=1e-10)


def _noisy_total_release():
    public = _release()
    total = NoisyTotal(503.0, TwoSidedGeometric(6.0), 1.0, 0.2)
    return Release(DOMAIN, public.tables, "add-remove", total, "simulation")


def test_noisy_number_of_records_is_inferred():
    release = _noisy_total_release()
    model = build_model(release, n_classes=2)
    point = _point(model) | {"n_log__": np.array(np.log(490.0))}
    n, effects = _evaluate(model, ["n", "effects"])(point)
    assert n == pytest.approx(490.0)
    scale = np.sqrt(TwoSidedGeometric(6.0).variance / 2)
    observed = model.compile_logp(vars=[model["released_n"]])(point)
    assert observed == pytest.approx(stats.laplace(scale=scale).logpdf(503.0 - 490.0), rel=1e-9)
    residual = np.concatenate([t.counts.ravel() for t in release.tables]) - margin_operator(DOMAIN, SETS).counts(
        effects, n
    )
    expected = stats.laplace(scale=np.sqrt(TwoSidedGeometric(4.0).variance / 2)).logpdf(residual).sum()
    assert model.compile_logp(vars=[model["released"]])(point) == pytest.approx(expected, rel=1e-9)
    with model:
        drawn = pm.sample_prior_predictive(50, random_seed=1)
    assert drawn["prior_predictive"]["released_n"].shape == (1, 50, 1)


def test_composite_likelihood_refuses_a_noisy_number_of_records():
    with pytest.raises(InputError, match="public n"):
        build_model(_noisy_total_release(), likelihood="composite")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_classes": 0}, "n_classes"),
        ({"n_classes": 2.5}, "n_classes"),
        ({"concentration": -1.0}, "concentration"),
        ({"concentration": (1.0, float("nan"))}, "concentration"),
        ({"concentration": (3.0,)}, r"such as \(40, 10\); got \(3\.0,\)"),
        ({"concentration": ()}, "concentration"),
        ({"concentration": (1.0, 2.0, 3.0)}, "concentration"),
        ({"concentration": "4"}, "concentration .* got '4'"),
        ({"concentration": ("4", "1")}, "concentration"),
        ({"concentration": None}, "concentration"),
        ({"concentration": True}, "concentration"),
        ({"profile_prior": 0.0}, "profile_prior"),
        ({"profile_prior": "4"}, "profile_prior .* got '4'"),
        ({"likelihood": "guess"}, "'guess'"),
        ({"margins": [("a", "zz")]}, "'zz'"),
        ({"margins": [("a", "b"), ["a", "b"]]}, r"\['a', 'b'\] twice, recorded as 'margin_a_b'"),
        ({"margins": ["ab"]}, "lists of attributes"),
        ({"margins": "ab"}, "lists of attributes"),
    ],
)
def test_refuses_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        build_model(_release(), **arguments)


def _release_of(*names, n=100):
    """Counts of one table of binary attributes."""
    domain = Domain.from_levels({name: (0, 1) for name in names})
    table = NoisyTable(domain, np.full(domain.shape, 25), TwoSidedGeometric(4.0), 2.0, 0.5)
    return Release(domain, (table,), "replace-one" if isinstance(n, int) else "add-remove", n, "simulation")


def test_a_pair_may_be_a_list_or_an_array():
    point = build_model(_release(), n_classes=2).initial_point()
    pairs = [(3, 2.0), [3, 2], np.array([3, 2])]
    values = {float(build_model(_release(), n_classes=2, concentration=pair).compile_logp()(point)) for pair in pairs}
    assert len(values) == 1
    assert values != {float(build_model(_release(), n_classes=2).compile_logp()(point))}


def test_margins_whose_names_join_alike_are_refused():
    release = _release_of("a_b", "a", "b")
    message = r"\['a_b'\] and \['a', 'b'\], recorded as 'margin_a_b' alike"
    with pytest.raises(InputError, match=message):
        build_model(release, margins=[("a_b",), ("a", "b")])
    model = build_model(release, margins=[("a", "b"), ("b", "a")], n_classes=1)
    assert model.gate_variables == ("margin", "cell", "margin_a_b", "margin_b_a")


@pytest.mark.parametrize(
    ("name", "margins", "message"),
    [
        ("race/eth", [], "no '/'"),
        ("x__", [], "do not end in '__'"),
        ("profile_b", [], "part of the model"),
        ("profiles_of_2", [], "part of the model"),
        ("draws", [], "part of the model"),
        ("quantile", [], "part of the model"),
        ("margin_b", [("b",)], "part of the model"),
    ],
)
def test_attributes_that_cannot_be_variables_are_refused(name, margins, message):
    with pytest.raises(InputError, match=f"{name!r}.*{message}"):
        build_model(_release_of(name, "b"), margins=margins)


def test_no_attribute_may_have_the_name_of_a_variable_or_dimension_of_any_form():
    noisy = NoisyTotal(100.0, TwoSidedGeometric(6.0), 1.0, 0.2)
    models = [
        build_model(_release_of("a", "b", n=noisy), n_classes=2, margins=[("a",)], impossible=[{"a": 1, "b": 1}]),
        build_model(_release_of("a", "b"), n_classes=2, sum_out_pairs=True),
        build_model(_release_of("a", "b"), n_classes=2, likelihood="composite"),
        build_model(_release(), n_classes=2),
    ]
    taken = {name for model in models for name in (*model.named_vars, *model.coords)} - set(DOMAIN.names)
    assert {"class", "released_counts", "structural_zeros", "profile_a", "pair_levels", "n"} <= taken
    for name in sorted(taken):
        with pytest.raises(InputError, match="part of the model"):
            Design.of(
                Domain.from_levels({attribute: (0, 1) for attribute in (name, "a", "b", "c", "d")}),
                [(name, "a")],
                margins=[("a",)],
            )


@pytest.mark.parametrize("given", [datasets.acs_tables(), {"a": 1}])
def test_exact_tables_are_no_release(given):
    partitions = release_counts(PartitionCounts(20, 10, 0), epsilon=1.0, rng=np.random.default_rng(1))
    with pytest.raises(InputError, match="a model needs counts of records, and this release counts partitions"):
        build_model(partitions)
    with pytest.raises(InputError, match=r"starts from a Release, got (tuple|dict); use privacy.release_tables"):
        build_model(given)
