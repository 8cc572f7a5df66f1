"""The public names of every package: all there, all documented, and cheap to import."""

import importlib
import inspect
import subprocess
import sys

import pytest

PACKAGES = ("bloom", "data", "ide", "inference", "latent_class", "mvg", "privacy", "report", "runs", "verifier")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there_and_documented(package):
    module = importlib.import_module(f"dpbayes.{package}")
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_names_are_attribute_errors(package):
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = importlib.import_module(f"dpbayes.{package}").nothing


def test_importing_every_package_imports_no_model_library():
    imports = "".join(f"import dpbayes.{name}\n" for name in PACKAGES)
    code = (
        f"{imports}import sys\n"
        "print([m for m in ('pymc', 'pytensor', 'sklearn', 'arviz', 'nutpie') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pricing_of_the_matrix_mechanism_imports_no_model_library():
    code = (
        "import sys, dpbayes.mvg as mvg\n"
        "mvg.calibrate([[1.0]], [[1.0]], mvg.FrobeniusBall(1.0, 'replace-one'), epsilon=1.0, delta=1e-5)\n"
        "print([m for m in ('pymc', 'pytensor', 'sklearn', 'arviz', 'nutpie') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_data_engine_loads_on_first_use_and_is_itself_then():
    code = (
        "import pickle, sys, dpbayes.data, dpbayes.ide.study\n"
        "from dpbayes._lazy import pl\n"
        "print(any(name in sys.modules for name in ('polars', 'narwhals', 'pandas', 'xarray')))\n"
        "import polars\n"
        "print(pl.DataFrame is polars.DataFrame, pickle.loads(pickle.dumps(pl)) is polars)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
