"""Settings that must be in place before PyTensor is first imported, and fixtures that every room shares."""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

# Log-densities of small graphs: interpreting them answers in a second, compiling them in forty.
os.environ.setdefault("PYTENSOR_FLAGS", "cxx=,mode=FAST_COMPILE")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)  # the same examples in every run
settings.load_profile("fixed")

BENCHMARKS = Path(__file__).resolve().parent / "tests" / "benchmarks"
DATA = Path(__file__).resolve().parents[1] / "shared" / "data"

# Docstrings that say "with `trace` a fit of `release`".
FITTED = [f"dpbayes.latent_class.{name}" for name in ("analysis", "synthesis")]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run benchmarks in one process: several would disturb each other, and time nothing."""
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if any(path.is_relative_to(BENCHMARKS) for path in named):
        config.option.numprocesses = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the file that compiles the latent class kernel, which the next would else compile at the same time."""
    items.sort(key=lambda item: not item.path.match("tests/latent_class/test_likelihood.py"))


@contextmanager
def _no_file_longer_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def no_file_longer_than() -> Callable[[int], AbstractContextManager[None]]:
    """Return a context in which the kernel refuses writes beyond so many bytes of any file, as a full disk would."""
    return _no_file_longer_than


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data for trials; a test that needs it is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"needs the trial data, which are not here ({DATA.name}/ beside the project)")
    return DATA


@pytest.fixture(scope="session")
def census_fit() -> tuple[Any, Any]:
    """Release three two-way tables of the census records, and fit them shortly."""
    from dpbayes.data import datasets
    from dpbayes.inference import sample
    from dpbayes.latent_class import build_model
    from dpbayes.privacy import release_tables

    pairs = list(combinations(("race", "sex", "income"), 2))
    tables = [table for table in datasets.acs_tables() if table.domain.names in pairs]
    release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(1))
    model = build_model(release, n_classes=2)
    short = {"method": "many-chains", "backend": "interpreted", "chains": 32, "batches": 2}
    short |= {"tune": 12, "draws": 8, "rounds": 1}
    return release, sample(model, **short, trajectories=8, max_steps=20, random_seed=1, progressbar=False)


@pytest.fixture(autouse=True)
def _fit_of_docstrings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the examples that speak of a fit one to speak of."""
    name = request.node.name if isinstance(request.node, pytest.DoctestItem) else ""
    if not any(name.startswith(module) for module in FITTED):
        yield
        return
    namespace = request.getfixturevalue("doctest_namespace")
    namespace["release"], namespace["trace"] = request.getfixturevalue("census_fit")
    yield
    del namespace["release"], namespace["trace"]


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    """Close what a test or an example has drawn: pyplot keeps every figure, and warns of the twenty-first."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
