"""Machine code on disk: found again for the same source, compiled anew for another one."""

import runpy

import numpy as np
import pytest

from dpbayes._machine_code import kept, loop, source_key, writable


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return the function of a source that is written anew, with a folder of machine code that begins empty."""
    monkeypatch.setattr("pytensor.link.numba.cache.NUMBA_CACHE_PATH", tmp_path)
    path = tmp_path / "loops.py"

    def _load(factor):
        path.write_text(f"def scaled(x):\n    return {factor} * x.sum()\n")
        source_key.cache_clear()  # as in another process
        return kept(runpy.run_path(str(path))["scaled"])

    return _load


def test_code_is_found_on_disk_by_its_source(load):
    values = np.arange(4.0)
    outcomes = []
    for factor in (2.0, 2.0, 3.0):
        function = load(factor)
        assert function(values) == factor * 6.0
        outcomes.append((len(function.stats.cache_hits), len(function.stats.cache_misses)))
    assert outcomes == [(0, 1), (1, 0), (0, 1)]


def test_a_key_follows_what_the_file_holds(tmp_path):
    one, other = tmp_path / "a.py", tmp_path / "b.py"
    for path, text in ((one, "x = 1"), (other, "x = 2")):
        path.write_text(text)
    assert source_key(str(one)) != source_key(str(other))


def test_constants_and_other_orders_need_no_further_code():
    total = loop(lambda x: x.sum())
    constant = np.ones((3, 2))
    constant.setflags(write=False)
    for array in (constant, np.ones((2, 3)).T, np.ones((3, 2))):
        assert total(writable(array)) == 6.0
    assert len(total.signatures) == 1
