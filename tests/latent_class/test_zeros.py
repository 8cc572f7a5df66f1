"""Structural zeros against enumeration of the full table."""

from itertools import product

import numpy as np
import pytest
import xarray as xr

from dpbayes.data import Domain
from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import margin_operator
from dpbayes.latent_class import build_model, margin_draws, synthesize, zeros
from dpbayes.latent_class.possible_margins import possible_margins
from dpbayes.latent_class.zeros import ZeroSet, conditioned_draws
from dpbayes.privacy import NoisyTable, Release, TwoSidedGeometric

DOMAIN = Domain.from_levels({"a": (0, 1), "b": ("x", "y", "z"), "c": (0, 1), "d": (0, 1)})
IMPOSSIBLE = [{"a": 0, "b": ("y", "z")}, {"b": "z", "c": 1, "d": 0}, {"a": 0, "c": 1}]
SETS = [("a", "b"), ("b", "c"), ("d", "c")]


def _enumerated(impossible=IMPOSSIBLE, domain=DOMAIN):
    """The impossible cells, one by one."""
    mask = np.zeros(domain.shape, dtype=bool)
    for index in np.ndindex(*domain.shape):
        record = {attribute.name: attribute.levels[i] for attribute, i in zip(domain, index, strict=True)}
        mask[index] = any(
            all(record[name] in ([given] if isinstance(given, (str, int)) else given) for name, given in one.items())
            for one in impossible
        )
    return mask


def _release():
    tables = tuple(
        NoisyTable(DOMAIN.project(names), np.full(DOMAIN.project(names).shape, 30), TwoSidedGeometric(4.0), 2.0, 0.5)
        for names in SETS
    )
    return Release(DOMAIN, tables, "replace-one", 180, "simulation")


def test_disjoint_parts_are_the_same_set():
    found = ZeroSet.of(DOMAIN, IMPOSSIBLE)
    mask = _enumerated()
    records = np.array(list(np.ndindex(*DOMAIN.shape)))
    assert found.size == mask.sum()
    np.testing.assert_array_equal(found.holds(records), mask.ravel())
    covered = sum(np.all([records[:, a] == v for a, v in cell], axis=0).astype(int) for cell in found.cells)
    assert covered.max() == 1  # disjoint
    assert ZeroSet.from_array(DOMAIN, found.to_array()).cells == found.cells


@pytest.mark.parametrize("seed", range(12))
def test_random_unions_agree_with_enumeration(seed):
    rng = np.random.default_rng(seed)
    impossible = []
    for _ in range(rng.integers(1, 5)):
        names = rng.choice(DOMAIN.names, size=rng.integers(1, 4), replace=False)
        impossible.append({
            str(name): [DOMAIN[str(name)].levels[i] for i in
                        rng.choice(DOMAIN[str(name)].size, size=rng.integers(1, 3), replace=False)]
            for name in names
        })  # fmt: skip
    mask = _enumerated(impossible)
    if mask.all():
        with pytest.raises(InputError, match="leave no cell"):
            ZeroSet.of(DOMAIN, impossible)
        return
    found = ZeroSet.of(DOMAIN, impossible)
    assert found.size == mask.sum()
    cells = margin_operator(DOMAIN, [("b", "d"), ("a", "c"), DOMAIN.names]).cells
    p = rng.dirichlet(np.ones(DOMAIN.size), size=2).reshape(2, *DOMAIN.shape)
    kept = np.where(mask, 0.0, p)
    kept /= kept.sum(axis=(1, 2, 3, 4), keepdims=True)
    plan = found.plan(cells)
    result = conditioned_draws(_sums(p, plan.cells), plan)
    np.testing.assert_allclose(result, _sums(kept, cells), atol=1e-14)
    # Exactly zero, so that a cell that cannot move is seen as such: full cells, and margin cells that lie in Z.
    assert np.all(result[:, _sums(np.where(mask, 0.0, np.ones_like(p)), cells)[0] == 0] == 0.0)


def _sums(tables, cells):
    """Probabilities of margin cells of full tables, by summing."""
    columns = []
    for cell in cells:
        index = [slice(None)] * len(DOMAIN)
        for axis, level in cell:
            index[axis] = level
        columns.append(tables[(slice(None), *index)].reshape(len(tables), -1).sum(axis=1))
    return np.array(columns).T


@pytest.fixture(scope="module")
def evaluated():
    model = build_model(_release(), n_classes=3, impossible=IMPOSSIBLE, margins=[("d", "a")])
    rng = np.random.default_rng(1)
    point = {name: value + 0.5 * rng.normal(size=np.shape(value)) for name, value in model.initial_point().items()}
    names = ["margin", "cell", "margin_d_a", "weights", "effects", *(f"profile_{name}" for name in DOMAIN.names)]
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    values = model.compile_fn(graphs, inputs=model.value_vars, on_unused_input="ignore")(point)
    return model, point, dict(zip(names, values, strict=True))


def _conditional(values):
    profiles = [values[f"profile_{name}"] for name in DOMAIN.names]
    table = np.einsum("h,ha,hb,hc,hd->abcd", values["weights"], *profiles)
    kept = np.where(_enumerated(), 0.0, table)
    return kept / kept.sum()


def test_the_model_records_conditional_probabilities(evaluated):
    _, _, values = evaluated
    table = _conditional(values)
    np.testing.assert_allclose(values["cell"], table, atol=1e-14)
    np.testing.assert_allclose(values["margin_d_a"], table.sum(axis=(1, 2)).T, atol=1e-14)
    expected = [table.sum(axis=(2, 3)), table.sum(axis=(0, 3)), table.sum(axis=(0, 1)).T]
    np.testing.assert_allclose(values["margin"], np.concatenate([e.ravel() for e in expected]), atol=1e-14)


def test_the_effects_have_the_conditioned_multinomials_moments(evaluated):
    from scipy import stats

    from dpbayes.inference.joint_counts import NUGGET, anchor_covariance
    from dpbayes.inference.noisy_counts import ReleasedNoise

    model, point, values = evaluated
    operator = possible_margins(margin_operator(DOMAIN, SETS), ZeroSet.of(DOMAIN, IMPOSSIBLE))
    records = np.array(list(np.ndindex(*DOMAIN.shape)))
    indicator = np.array([np.all([records[:, a] == v for a, v in effect], axis=0) for effect in operator.effects])
    p = _conditional(values).ravel()
    noise = ReleasedNoise.of_tables([TwoSidedGeometric(4.0)] * 3, [6, 6, 4])
    covariance = 180 * indicator @ (np.diag(p) - np.outer(p, p)) @ indicator.T
    covariance += NUGGET * anchor_covariance(operator, noise)
    expected = stats.multivariate_normal(180 * indicator @ p, covariance).logpdf(values["effects"])
    assert model.compile_logp(vars=[model["effects"]], jacobian=False)(point) == pytest.approx(expected, rel=1e-8)
    gradient = model.compile_dlogp()(point)
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("seed", range(6))
def test_impossible_margins_leave_the_degrees_of_freedom_of_possible_tables(seed):
    """Every table without an impossible record is reached, impossible margins count nothing, none is left to infer."""
    rng = np.random.default_rng(seed)
    names = list(DOMAIN.names)
    impossible = []
    for _ in range(3):
        chosen = [names[i] for i in rng.choice(len(names), 2, replace=False)]
        impossible.append({name: DOMAIN[name].levels[rng.integers(DOMAIN[name].size)] for name in chosen})
    sets = [("a", "b"), ("b", "c"), ("d", "c"), ("a", "d"), ("a", "c"), ("b", "d")]
    full = margin_operator(DOMAIN, sets)
    left = possible_margins(full, ZeroSet.of(DOMAIN, impossible))
    mask = _enumerated(impossible).ravel()
    records = np.array(list(np.ndindex(*DOMAIN.shape)))
    inside = np.array([[all(r[a] == v for a, v in cell) for r in records] for cell in full.cells], dtype=float)
    effects = np.array([[all(r[a] == v for a, v in cell) for r in records] for cell in left.effects], dtype=float)
    never = inside[:, ~mask].sum(axis=1) == 0
    assert never.any() and left.n_effects < full.n_effects
    for _ in range(5):
        table = rng.integers(0, 20, len(records)) * ~mask
        np.testing.assert_allclose(left.counts(effects @ table, table.sum()), inside @ table, atol=1e-9)
    assert not left.matrix[never].any() and not left.constant[never].any()
    assert np.linalg.matrix_rank(left.matrix) == left.n_effects
    # Impossible pairs of attributes whose tables are all released: no degree of freedom too many.
    assert np.linalg.matrix_rank(np.vstack([inside, np.ones(len(records))])[:, ~mask]) == left.n_effects + 1


def test_margins_known_from_n_alone_are_refused():
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1)})
    with pytest.raises(InputError, match="known from n"):
        possible_margins(margin_operator(domain, [("a",)]), ZeroSet.of(domain, [{"a": 1}]))


def test_the_composite_likelihood_has_a_gradient_where_cells_are_impossible():
    rng = np.random.default_rng(4)
    law, domains = TwoSidedGeometric(4.0), [DOMAIN.project(names) for names in SETS]
    tables = [NoisyTable(domain, rng.integers(-3, 40, domain.shape), law, 2.0, 0.5) for domain in domains]
    release = Release(DOMAIN, tuple(tables), "replace-one", 180, "simulation")
    model = build_model(release, n_classes=2, likelihood="composite", impossible=IMPOSSIBLE)
    point = model.initial_point()
    logp, step = model.compile_logp(), 1e-6
    gradient = model.compile_dlogp()(point)
    assert np.all(np.isfinite(gradient))
    (name, value), *_ = [(k, v) for k, v in point.items() if k.startswith("profiles_of_2")]
    shift = np.zeros_like(value)
    shift.flat[0] = step
    numeric = (logp(point | {name: value + shift}) - logp(point | {name: value - shift})) / (2 * step)
    place = list(point).index(name)
    start = sum(np.size(v) for v in list(point.values())[:place])
    assert gradient[start] == pytest.approx(numeric, rel=1e-5, abs=1e-5)


def _trace(evaluated):
    model, _, values = evaluated
    dims = {"weights": ("class",)} | {f"profile_{name}": ("class", name) for name in DOMAIN.names}
    posterior = {
        name: (("chain", "draw", *of), np.broadcast_to(values[name], (1, 4, *values[name].shape)))
        for name, of in dims.items()
    }
    coords = {attribute.name: list(attribute.levels) for attribute in DOMAIN} | {"chain": [0], "draw": range(4)}
    constant = xr.Dataset(
        {"structural_zeros": (("part", "attribute"), model["structural_zeros"].get_value())},
        coords={"attribute": list(DOMAIN.names)},
    )
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior, coords=coords), "constant_data": constant})


def test_synthesis_and_margins_of_a_trace_know_the_zeros(evaluated):
    """No impossible record; possible ones in proportion: 5 standard errors over 24 cells, false alarm below 1e-4."""
    trace = _trace(evaluated)
    table = _conditional(evaluated[2])
    np.testing.assert_allclose(margin_draws(trace, ["c", "a"])[0, 2], table.sum(axis=(1, 3)).T, atol=1e-14)
    frames = synthesize(trace, n_datasets=4, n_rows=20_000, random_seed=2)
    counts = np.zeros(DOMAIN.shape)
    for frame in frames:
        for (a, b, c, d), n in zip(product((0, 1), "xyz", (0, 1), (0, 1)), _counted(frame), strict=True):
            counts[a, "xyz".index(b), c, d] += n
    assert counts[_enumerated()].sum() == 0
    assert counts.sum() == 80_000
    error = np.sqrt(table * (1 - table) / 80_000)
    assert np.all(np.abs(counts / 80_000 - table) <= 5 * error)


def _counted(frame):
    codes = frame["a"].to_numpy() * 12 + np.array(["xyz".index(b) for b in frame["b"]]) * 4
    return np.bincount(codes + frame["c"].to_numpy() * 2 + frame["d"].to_numpy(), minlength=24)


@pytest.mark.parametrize(
    ("impossible", "message"),
    [
        ([{}], "names no attribute"),
        ([{"e": 1}], "not in the domain"),
        ([{"a": 2}], r"among \[0, 1\], got \[2\]"),
        ([{"a": []}], "impossible levels"),
        ([{"a": 0.5}], r"among \[0, 1\], got \[0.5\]"),
        ({"a": 0}, "list of combinations.* got 'a' for a combination"),
        (["a"], "list of combinations.* got 'a' for a combination"),
        ([{"a": 0}, {"a": 1}], "leave no cell"),
    ],
)
def test_bad_combinations_are_refused(impossible, message):
    with pytest.raises(InputError, match=message):
        build_model(_release(), impossible=impossible)


def test_a_zero_set_too_large_to_sum_is_refused(monkeypatch):
    monkeypatch.setattr(zeros, "MAX_CELLS", 20)
    with pytest.raises(InputError, match="more than 20 places"):
        build_model(_release(), impossible=IMPOSSIBLE)
    with pytest.raises(InputError, match="disjoint parts; name larger"):
        ZeroSet.of(DOMAIN, [{"a": (0, 1), "b": ("x", "y"), "c": (0, 1), "d": (0, 1)}, {"b": "z", "c": 1, "d": (0, 1)},
                            {"a": (0, 1), "b": "z", "c": 0, "d": (0, 1)}])  # fmt: skip
