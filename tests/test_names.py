"""Attributes may be named as the user's file names them: with slashes, signs and underscores, in every system."""

import numpy as np
import polars as pl
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from dpbayes._names import given_name, variable_name
from dpbayes.data import Domain, marginals
from dpbayes.errors import InputError
from dpbayes.inference import read_trace, write_trace
from dpbayes.latent_class import build_model, margin_draws, regress, synthesize
from dpbayes.latent_class.design import profile_name
from dpbayes.privacy import release_tables
from dpbayes.runs import execute, load_spec

PAY, HOME, SHARE = "pay/hour (€)", "home. owner?", "100%25 ünion__"
DOMAIN = Domain.from_levels({PAY: ("lo", "hi"), HOME: ("n", "y"), SHARE: ("0", "1")})


def records(n=300):
    rng = np.random.default_rng(1)
    return pl.DataFrame({a.name: np.array(a.levels)[rng.integers(0, a.size, n)] for a in DOMAIN})


@pytest.fixture(scope="module")
def release():
    tables = marginals(records(), [[PAY, HOME], [HOME, SHARE]], domain=DOMAIN)
    return release_tables(tables, epsilon=2.0, rng=np.random.default_rng(1))


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_name_has_its_own_variable_and_comes_back(name):
    variable = variable_name(name)
    assert given_name(variable) == name
    assert "/" not in variable
    assert not variable.endswith("__")
    assert variable_name("age_group") == "age_group"


def test_a_latent_class_trace_keeps_such_attributes(release, tmp_path):
    model = build_model(release, n_classes=2, margins=[[PAY, SHARE]])
    assert not [name for name in [*model.named_vars, *model.coords] if "/" in name]
    dims, rng = ("chain", "draw"), np.random.default_rng(2)
    levels = model.coords["level"]
    profiles = xr.DataArray(
        rng.dirichlet([1, 1], (2, 3, 2, 3)).reshape(2, 3, 2, 6),
        dims=(*dims, "class", "level"),
        coords={"level": list(levels)},
    )
    weights = xr.DataArray(rng.dirichlet([1, 1], (2, 3)), dims=(*dims, "class"))
    posterior = model.complete_posterior(xr.Dataset({"weights": weights, "profiles": profiles}), {}, rng)
    others = dict.fromkeys(("sample_stats", "observed_data", "constant_data"), xr.Dataset())
    write_trace(xr.DataTree.from_dict({"posterior": posterior, **others}), tmp_path / "trace.nc")
    trace = read_trace(tmp_path / "trace.nc")
    assert profile_name(PAY) in trace["posterior"]
    (frame,) = synthesize(trace, n_datasets=1, n_rows=5, random_seed=1)
    assert frame.columns == [PAY, HOME, SHARE]
    assert margin_draws(trace, [PAY, SHARE]).dims == ("chain", "draw", PAY, SHARE)
    found = regress(trace, f'{{`{HOME}` == "y"}} ~ `{PAY}`', family="linear")
    assert found["term"].values.tolist() == ["Intercept", f"{PAY}[T.hi]"]
    shares = margin_draws(trace, [PAY, HOME])
    shares = (shares.sel({HOME: "y"}) / shares.sum(HOME)).transpose("chain", "draw", PAY).to_numpy()
    np.testing.assert_allclose(found.sel(term=f"{PAY}[T.hi]"), shares[..., 1] - shares[..., 0], atol=1e-9)
    with pytest.raises(InputError, match="in `backticks` where a name is more than letters"):
        regress(trace, f"{{`{HOME}` == 1}} ~ pay")


TABLE = f"""
[data.levels]
"{PAY}" = ["lo", "hi"]
"{HOME}" = ["n", "y"]
"{SHARE}" = ["0", "1"]
"""
SPECS = {
    "ide": f"""
[data]
public = "records.csv"
private = "records.csv"
truth_public = true
by = "{PAY}"
tables = "by-feature"
{TABLE}
[privacy]
epsilon = 2.0
simulation_seed = 1
""",
    "verifier": f"""
[data]
microdata = "numbers.csv"
truth_public = true
unit = "id/of"
[privacy]
epsilon = 2.0
n_partitions = 20
adjacency = "replace-one"
simulation_seed = 1
[[questions]]
name = "a/b: effect"
formula = "`{PAY}` ~ `{HOME}`"
coefficient = "{HOME}"
threshold = 0.0
direction = ">"
""",
}


@pytest.mark.parametrize("system", SPECS)
def test_a_run_takes_such_columns(system, tmp_path):
    rng, n = np.random.default_rng(1), 300
    records(n).write_csv(tmp_path / "records.csv")
    numbers = {PAY: rng.uniform(0, 9, n), HOME: rng.random(n), SHARE: rng.uniform(0, 2, n), "id/of": np.arange(n)}
    pl.DataFrame(numbers).write_csv(tmp_path / "numbers.csv")
    spec = tmp_path / "spec.toml"
    spec.write_text(f'system = "{system}"\ntitle = "t"\nquestion = "q"\n{SPECS[system]}', encoding="utf-8")
    run = execute(load_spec(spec), out=tmp_path / "out", progressbar=False, echo=lambda line: None)
    page = (run.folder / "facts.json").read_text()
    assert "%2F" not in page
    assert "a/b: effect" in page if system == "verifier" else "pay/hour" in page
    if system == "ide":
        assert pl.read_parquet(run.folder / "synthetic" / "synthetic-1.parquet").columns == [PAY, HOME, SHARE]


@pytest.mark.slow
def test_a_reach_lattice_takes_such_publishers(tmp_path):
    numbers = "publishers,week,reach,stddev\nA/B (x),1,410,25\nC%2F__,1,350,25\nA/B (x)+C%2F__,1,600,25\n"
    (tmp_path / "reach.csv").write_text(numbers)
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'system = "bloom"\ntitle = "t"\nquestion = "q"\n[data]\nrelease = "reach.csv"\n'
        "[lattice]\npopulation = 2000\nclasses = 4\n[sampling]\ndraws = 200\ntune = 300\n"
    )
    run = execute(load_spec(spec), out=tmp_path / "out", progressbar=False, echo=lambda line: None)
    assert "A/B (x) + C%2F__" in (run.folder / "facts.json").read_text()
