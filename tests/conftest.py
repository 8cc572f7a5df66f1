"""Settings that must be in place before PyTensor is first imported, and fixtures that every room shares."""

import os
from pathlib import Path

# Log-densities of small graphs: interpreting them answers in a second, compiling them in forty.
os.environ.setdefault("PYTENSOR_FLAGS", "cxx=,mode=FAST_COMPILE")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data for trials; a test that needs it is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"needs the trial data, which are not here ({DATA.name}/ beside the project)")
    return DATA
