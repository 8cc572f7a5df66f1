"""The output contract: names locked, files whole, damage told."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from dpbayes.errors import DamagedFileError, InputError
from dpbayes.inference import schema
from dpbayes.inference.convergence import Finding, Verdict
from dpbayes.inference.schema import annotate, check, read_trace, write_trace


@pytest.fixture
def trace():
    rng = np.random.default_rng(1)
    dims = ("chain", "draw")
    posterior = xr.Dataset(
        {"cell": ((*dims, "cell_name"), rng.normal(size=(2, 5, 2)))}, coords={"cell_name": ["race=white", "größer"]}
    )
    stats = {name: (dims, rng.random((2, 5))) for name in schema.SAMPLE_STATS}
    stats["diverging"] = (dims, rng.random((2, 5)) < 0.5)
    tree = xr.DataTree.from_dict(
        {
            "posterior": posterior,
            "sample_stats": xr.Dataset(stats),
            "observed_data": xr.Dataset({"released": ("cell_name", np.array([3, -4]))}),
            "constant_data": xr.Dataset(),
        }
    )
    tree.attrs = {"dpbayes_version": "0", "random_seed": str(2**62), "convergence_variables": '["cell"]', "tune": 5}
    return tree


def test_the_names_are_locked():
    # A change here breaks traces on disk and every reader of them: note it in the CHANGELOG.
    assert list(schema.GROUPS) == [
        "posterior", "sample_stats", "observed_data", "constant_data",
        "prior", "prior_predictive", "posterior_predictive", "log_likelihood",
    ]  # fmt: skip
    assert schema.REQUIRED_GROUPS == ("posterior", "sample_stats", "observed_data", "constant_data")
    assert list(schema.SAMPLE_STATS) == [
        "diverging", "reached_max_treedepth", "tree_depth", "n_steps", "step_size", "acceptance_rate", "energy", "lp",
        "log_likelihood", "member",
    ]  # fmt: skip
    assert list(schema.ATTRIBUTES) == [
        "dpbayes_version", "created_at", "sampler", "sampler_settings", "random_seed", "tune", "compile_seconds",
        "sampling_seconds", "convergence_variables", "convergence", "spec_digest", "release_digest", "privacy_record",
    ]  # fmt: skip


def test_the_public_names_are_locked_and_load():
    import dpbayes.inference as package

    assert package.__all__ == [
        "CompiledModel", "Finding", "PosteriorSummary", "Verdict", "check_convergence", "compile_model",
        "plot_ranks", "read_trace", "sample", "sample_whole_counts",
        "simulate_and_rank", "summarize", "uniformity", "write_trace",
    ]  # fmt: skip
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no_such"):
        package.no_such  # noqa: B018


def test_importing_the_package_imports_no_sampler():
    program = (
        "import sys, dpbayes.inference; print([m for m in ('pymc', 'nutpie', 'arviz', 'xarray') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_file_gives_back_the_trace(tmp_path, trace):
    annotated = annotate(
        trace,
        verdict=Verdict((Finding("rhat", "cell", float("inf"), 1.01, passed=False, remedy="more"),), ("cell",)),
        spec_digest="ab",
        release_digest="cd",
        privacy_record={"epsilon": 1.0, "adjacency": "replace-one"},
    )
    again = read_trace(write_trace(annotated, tmp_path / "trace.nc"))
    assert again.identical(annotated)
    assert Verdict.from_trace(again) == Verdict.from_trace(annotated)
    assert json.loads(again.attrs["privacy_record"])["adjacency"] == "replace-one"
    assert again["sample_stats"]["diverging"].dtype == bool
    assert [path.name for path in tmp_path.iterdir()] == ["trace.nc"]


def test_annotate_leaves_the_original_and_what_is_none(trace):
    before = dict(trace.attrs)
    once = annotate(trace, spec_digest="ab")
    assert trace.attrs == before
    assert annotate(once, release_digest="cd").attrs["spec_digest"] == "ab"


def test_an_interrupted_write_leaves_the_former_file(tmp_path, trace, monkeypatch):
    path = write_trace(trace, tmp_path / "trace.nc")
    before = path.read_bytes()

    def killed(self, content):
        with self.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        write_trace(trace, path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["trace.nc"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.attrs.update(noise_seed=1), r"attributes outside the contract \['noise_seed'\]"),
        (lambda t: t.update({"exact_counts": xr.DataTree()}), r"groups outside the contract \['exact_counts'\]"),
        (lambda t: t["sample_stats"].__setitem__("divergence_message", xr.DataArray(1)), "divergence_message"),
        (lambda t: t.__delitem__("posterior"), r"missing groups \['posterior'\]"),
    ],
)
def test_what_is_outside_the_contract_is_refused(tmp_path, trace, spoil, message):
    check(trace)
    spoil(trace)
    with pytest.raises(InputError, match=message):
        write_trace(trace, tmp_path / "trace.nc")
    assert not list(tmp_path.iterdir())


def test_damage_is_told(tmp_path, trace):
    path = write_trace(trace, tmp_path / "trace.nc")
    whole = path.read_bytes()
    for damaged in (b"", b"not netCDF", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"trace\.nc"):
            read_trace(path)
    with pytest.raises(FileNotFoundError, match=r"other\.nc"):
        read_trace(tmp_path / "other.nc")
    xr.DataTree.from_dict({"posterior": xr.Dataset()}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(DamagedFileError, match="missing groups"):
        read_trace(path)
