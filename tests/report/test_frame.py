"""The section on convergence."""

import numpy as np
import xarray as xr

from dpbayes.inference import check_convergence
from dpbayes.report.frame import convergence_section

DIMS = ("chain", "draw")


def test_worst_quantities_of_one_label_have_a_panel_each():
    draws = xr.DataArray(np.random.default_rng(1).normal(size=(2, 100, 3)), dims=(*DIMS, "count"))
    posterior = xr.Dataset({"margin": draws.assign_coords(count=["a=0", "a=1", "a=0"])})
    trace = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": xr.Dataset()})
    section = convergence_section(trace, check_convergence(trace), judged="All.")
    titles = [axis.get_title() for axis in section.blocks[2].figure.axes]
    assert sorted(titles) == ["margin a=0", "margin a=0 (2)", "margin a=1"]


def test_one_chain_has_no_rank_plots():
    trace = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (DIMS, np.zeros((1, 100)))})})
    trace["sample_stats"] = xr.Dataset()
    *_, ranks = convergence_section(trace, check_convergence(trace), judged="All.").blocks
    assert "no rank plots" in ranks.text


def test_quantities_have_the_names_that_the_study_gives_them():
    draws = xr.DataArray(np.random.default_rng(1).normal(size=(2, 100, 2)), dims=(*DIMS, "count"))
    posterior = xr.Dataset({"margin": draws.assign_coords(count=["s=0", "s=1"]), "residual_sd": draws[..., 0]})
    trace = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": xr.Dataset()})
    section = convergence_section(trace, check_convergence(trace), judged="", named={"margin": ["male", "female"]})
    assert {row[1] for row in section.blocks[1].rows if "R-hat" in row[0]} < {"male", "female", "residual sd"}
    assert {axis.get_title() for axis in section.blocks[2].figure.axes} == {"male", "female", "residual sd"}
