"""Structural zeros against enumeration of the full table."""

from itertools import product

import numpy as np
import pytest
import xarray as xr
from scipy.stats import norm

from dpbayes.data import Domain
from dpbayes.errors import InputError
from dpbayes.latent_class import build_model, margin_draws, synthesize, zeros
from dpbayes.latent_class.design import cells_of
from dpbayes.latent_class.likelihood import release_data
from dpbayes.latent_class.zeros import Support
from dpbayes.privacy import DiscreteGaussian, NoisyTable, Release, TwoSidedGeometric

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


GEOMETRIC = TwoSidedGeometric(4.0)


def _release(noise=GEOMETRIC):
    tables = tuple(
        NoisyTable(DOMAIN.project(names), np.full(DOMAIN.project(names).shape, 30), noise, 2.0, None) for names in SETS
    )
    return Release(DOMAIN, tables, "replace-one", 180, "simulation")


def test_what_is_impossible_is_written_and_read_back():
    found = Support.of(DOMAIN, IMPOSSIBLE)
    mask = _enumerated()
    assert found.n_impossible == mask.sum()
    np.testing.assert_array_equal(found.possible(DOMAIN.names), ~mask.ravel())
    assert Support.from_array(DOMAIN, found.to_array()).cells == found.cells
    assert Support.of(DOMAIN).possible(["d", "a"]).all() and not Support.of(DOMAIN).n_impossible


@pytest.mark.parametrize("limits", [zeros._LIMITS, (1,), (4,)])
@pytest.mark.parametrize("seed", range(12))
def test_random_unions_agree_with_enumeration(seed, limits, monkeypatch):
    """However many combinations a unit may have: with at most one or four, possible records are cut into many cases."""
    monkeypatch.setattr(zeros, "_LIMITS", limits)
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
            Support.of(DOMAIN, impossible)
        return
    found = Support.of(DOMAIN, impossible)
    assert found.n_impossible == mask.sum()
    weights = rng.dirichlet(np.ones(3), size=2)
    profiles = [rng.dirichlet(np.ones(size), size=(2, 3)) for size in DOMAIN.shape]
    kept = np.where(mask, 0.0, np.einsum("rh,rha,rhb,rhc,rhd->rabcd", weights, *profiles))
    kept /= kept.sum(axis=(1, 2, 3, 4), keepdims=True)
    for names in (("b", "d"), ("c", "a"), ("b",), DOMAIN.names):
        axes = DOMAIN.axes(names)
        result = found.margin(*found.conditioned(weights, profiles, axes), axes)
        np.testing.assert_allclose(result, _sums(kept, cells_of(DOMAIN, names)), atol=1e-14)
        # Exactly zero, so that a cell that cannot move is seen as such: full cells, and margin cells that lie in Z.
        possible = _sums(np.where(mask, 0.0, 1.0)[None], cells_of(DOMAIN, names))[0] > 0
        np.testing.assert_array_equal(found.possible(names), possible)
        assert np.all(result[:, ~possible] == 0.0)


def test_one_attribute_that_determines_others_is_one_unit_and_children_are_a_case():
    sizes = {"age": 8, "job": 20, "wage": 20, "hours": 20, "school": 16, "years": 16}
    domain = Domain.from_levels({name: range(size) for name, size in sizes.items()})
    recoded = [{"school": level, "years": [other for other in range(16) if other != level]} for level in range(16)]
    children = [{"age": 0, name: range(1, 20)} for name in ("job", "wage", "hours")]
    found = Support.of(domain, recoded + children)
    assert (found.axes[-1], len(found.levels[-1])) == ((4, 5), 16)
    assert (len(found.axes), found.n_cases, found.n_parts) == (5, 2, 2 * (8 + 3 * 20 + 16))
    assert domain.size - found.n_impossible == (7 * 20**3 + 1) * 16


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
    names = ["margin", "cell", "margin_d_a", "weights", "profiles"]
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    values = model.compile_fn(graphs, inputs=model.value_vars, on_unused_input="ignore")(point)
    values = dict(zip(names, values, strict=True))
    parts = np.split(values["profiles"], np.cumsum(DOMAIN.shape)[:-1], axis=1)
    return model, point, values | {f"profile_{name}": part for name, part in zip(DOMAIN.names, parts, strict=True)}


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


def test_covariances_are_those_of_possible_records(evaluated):
    from dpbayes.latent_class.likelihood import cell_covariance

    _, _, values = evaluated
    cells = [cell for names in SETS for cell in cells_of(DOMAIN, names)]
    records = np.array(list(np.ndindex(*DOMAIN.shape)))
    inside = np.array([np.all([records[:, a] == v for a, v in cell], axis=0) for cell in cells], dtype=float)
    p = _conditional(values).ravel()
    found = cell_covariance(Support.of(DOMAIN, IMPOSSIBLE), cells, values["weights"], values["profiles"])
    np.testing.assert_allclose(found, inside @ (np.diag(p) - np.outer(p, p)) @ inside.T, atol=1e-12)


def test_the_likelihood_is_the_joint_one_and_impossible_cells_have_noise_alone(evaluated):
    model, point, _ = evaluated
    assert "level_deviations" not in model.named_vars
    assert np.all(np.isfinite(model.compile_dlogp()(point)))
    data = release_data(_release(), "tables", support=Support.of(DOMAIN, IMPOSSIBLE))
    variances = np.square(data["sampling_root"]).sum(axis=1)
    np.testing.assert_allclose(variances[1:3], 0.0, atol=1e-9)  # a = 0 with b = y or z
    assert np.all(variances[3:6] > 1.0)


@pytest.mark.parametrize("limit", [64, 1])
@pytest.mark.parametrize("noise", [GEOMETRIC, DiscreteGaussian(6.0)])
def test_cell_by_cell_only_possible_cells_count(noise, limit, monkeypatch):
    """Means and variances are held to enumeration in test_likelihood; here the model's density of them, and draws."""
    monkeypatch.setattr(zeros, "_LIMITS", (limit,))
    rng, release, names = (
        np.random.default_rng(5),
        _release(noise),
        ["given_mean", "given_variance", "margin", "profiles"],
    )
    model = build_model(release, n_classes=3, likelihood="cells", overdispersion=True, impossible=IMPOSSIBLE)
    assert (len(model.coords["case"]) > 3) == (limit == 1)
    point = {name: value + 0.5 * rng.normal(size=np.shape(value)) for name, value in model.initial_point().items()}
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    values = model.compile_fn(graphs, inputs=model.value_vars, on_unused_input="ignore")(point)
    mean, variance, margin, profiles = values
    possible = np.concatenate([Support.of(DOMAIN, IMPOSSIBLE).possible(names) for names in SETS])
    assert not possible.all() and np.all((margin > 0.0) == possible)
    # Of units in cases the products hold impossible cells too, with next to no share: these have noise alone.
    (block,) = model.complete_posterior.tables.blocks
    assert set(np.flatnonzero(possible)) <= set(block.places)
    at, data = block.places, {one.name: one.get_value() for one in model.data_vars}
    if block.kind == "laplace":
        off, scale = data["released_counts"][at] - mean[at], np.sqrt(noise.variance / 2)
        plain = _normal_laplace(off, variance[at] + 1e-4 * noise.variance, scale)
    else:
        plain = norm.logpdf(data["rotated_counts"][at], mean[at], np.sqrt(variance[at] + noise.variance))
    assert model.compile_logp(vars=[model["released"]])(point) == pytest.approx(plain.sum(), rel=1e-9)
    assert np.all(np.isfinite(model.compile_dlogp()(point)))
    posterior = {name: (("chain", "draw", "count"), np.broadcast_to(one, (1, 200, len(one))))
                 for name, one in zip(names[:3], values[:3], strict=True)}  # fmt: skip
    posterior["profiles"] = (("chain", "draw", "class", "level"), np.broadcast_to(profiles, (1, 200, *profiles.shape)))
    drawn = model.complete_posterior(xr.Dataset(posterior, coords={"level": range(9)}), data, rng)["exact_counts"][0]
    assert np.all(np.abs(drawn[:, ~possible]) < 0.01) and np.all(np.isfinite(drawn))


def _normal_laplace(off, variance, scale):
    """Log-densities of sums of normal and Laplace variables, by SciPy alone."""
    sides = [norm.logcdf((sign * off - variance / scale) / np.sqrt(variance)) - sign * off / scale for sign in (1, -1)]
    return np.logaddexp(*sides) + 0.5 * variance / scale**2 - np.log(2 * scale)


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


def test_what_cannot_be_cut_is_refused(monkeypatch):
    monkeypatch.setattr(zeros, "MAX_PARTS", 8)
    with pytest.raises(InputError, match="tie a, b, c, d together in more than 8 ways; declare fewer"):
        build_model(_release(), impossible=IMPOSSIBLE)
    monkeypatch.setattr(zeros, "MAX_CELLS", 20)
    with pytest.raises(InputError, match="more than 20 cells; name larger"):
        Support.of(DOMAIN, [{"a": (0, 1), "b": ("x", "y"), "c": (0, 1), "d": (0, 1)}, {"b": "z", "c": 1, "d": (0, 1)},
                            {"a": (0, 1), "b": "z", "c": 0, "d": (0, 1)}])  # fmt: skip
