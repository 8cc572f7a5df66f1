"""A text file is the former one or the whole new one, and every release is written that way."""

import errno
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from dpbayes import bloom, ide, inference, privacy, runs
from dpbayes._files import write_text
from dpbayes.bloom.filters import BloomRelease
from dpbayes.data import datasets
from dpbayes.errors import DPBayesError, InputError
from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
from dpbayes.mvg.moments import MomentRelease
from dpbayes.privacy import release_tables


@pytest.fixture
def full_disk(monkeypatch):
    """Let half of every text through, then report a full disk."""

    def half(path, text, **_):
        with path.open("w") as file:
            file.write(text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda: monkeypatch.setattr(Path, "write_text", half)


def test_a_full_disk_leaves_the_former_file_and_no_half_of_the_new_one(tmp_path, full_disk):
    path = write_text(tmp_path / "note", "före")
    assert path == tmp_path / "note" and path.read_bytes() == "före".encode()
    write_text(str(path), "second")
    full_disk()
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_text(path, "the third, which does not fit")
    assert path.read_text() == "second" and list(tmp_path.iterdir()) == [path]


def _moments():
    noise = calibrate_moments(MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 3), epsilon=1.0, delta=1e-5)
    return release_moments([[0.0, 1.0, 0.5]], noise, rng=np.random.default_rng(1))


@pytest.mark.parametrize(
    "make",
    [
        _moments,
        lambda: release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1)),
        lambda: BloomRelease(np.array([30, 5, 4, 25]), 0.2, "simulation"),
    ],
)
def test_a_release_that_cannot_be_written_leaves_no_damaged_file(make, tmp_path, full_disk):
    release = make()
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        release.write(tmp_path / "release.json")
    assert not list(tmp_path.iterdir())


READERS = [bloom.BloomRelease.read, bloom.read_reach_numbers, ide.GroupRelease.read, MomentRelease.read]
READERS += [privacy.read_release, privacy.open_ledger, inference.read_trace, runs.load_spec]
STUDIES = [import_module(f"dpbayes.{name}.study").read_release for name in ("bloom", "ide", "mvg")]


@pytest.mark.parametrize("path", [3, None, b"x", "a\0b", [], 10**5000], ids=lambda path: type(path).__name__)
def test_every_reader_refuses_what_is_no_path(path):
    for read in READERS:
        with pytest.raises(InputError, match="path must be a str or a Path"):
            read(path)


@pytest.mark.parametrize("name", ["folder.csv", "pipe.csv", "pipe.json"])
def test_every_reader_refuses_what_is_no_file_and_waits_for_no_pipe(name, tmp_path):
    path = tmp_path / name
    if name.startswith("pipe"):
        os.mkfifo(path)
    else:
        path.mkdir()
    for read in [*READERS, *STUDIES]:
        with pytest.raises((DPBayesError, FileNotFoundError), match=r"no file|not a file|no spec"):
            read(path)
