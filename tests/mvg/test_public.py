"""The public names of dpbayes.mvg: all there, all documented, and cheap to import."""

import importlib
import inspect
import subprocess
import sys

import pytest

import dpbayes.mvg as mvg
from dpbayes.mvg import _EXPORTS


@pytest.mark.parametrize("name", sorted(_EXPORTS))
def test_every_name_is_defined_in_its_module_and_documented(name):
    module = importlib.import_module(f"dpbayes.mvg.{_EXPORTS[name]}")
    assert getattr(mvg, name) is getattr(module, name)
    assert name in module.__all__
    thing = getattr(mvg, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mvg.nothing


def test_pricing_imports_no_model_library():
    code = (
        "import sys, dpbayes.mvg as mvg\n"
        "mvg.exact_mu([[1.0]], [[1.0]], mvg.FrobeniusBall(1.0, 'replace-one'))\n"
        "mvg.draw, mvg.release_records, mvg.svr_study, mvg.covariance_study, mvg.naive_regression\n"
        "print([m for m in ('pymc', 'pytensor', 'sklearn', 'arviz', 'nutpie') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
