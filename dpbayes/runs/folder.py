"""Run folders: written aside, moved into place whole, resumed after a kill."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbayes._files import write_text
from dpbayes.errors import DamagedFileError, ExistingRunError, InputError

if TYPE_CHECKING:
    from dpbayes.privacy import Release

__all__ = ["check_free", "choose_folder", "kept_release", "make_folder", "read_json", "workspace", "write_text"]

_LOCK = ".lock"
_SPEC = "spec.toml"

# What a run writes before it releases anything. All of it is made again; whatever else there is may have cost budget.
_UNPAID = {_SPEC, "model.py", "truth.json", "certificate.json"}


def choose_folder(name: str, root: Path = Path("runs")) -> Path:
    """Return the first of ``runs/name``, ``runs/name-2``, ... that is free.

    Examples
    --------
    >>> choose_folder("study", Path("no-such-folder")).as_posix()
    'no-such-folder/study'
    """
    number = 1
    while True:
        folder = root / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder
        number += 1


def check_free(folder: Path, *, force: bool, cost: str = "") -> None:
    """Refuse to overwrite a folder unless told to.

    Parameters
    ----------
    folder
        Where a run is to go.
    force
        Whether a run folder may be replaced.
    cost
        What the message adds on the price of running again.

    Raises
    ------
    ExistingRunError
        If the folder exists and `force` is not set, or it exists and is not a run folder.
    """
    if not folder.exists():
        return
    if not force:
        raise ExistingRunError(f"{folder} is already there; choose another --out, or pass --force to replace it{cost}")
    if not (folder / "spec.toml").is_file():
        raise ExistingRunError(f"{folder} is not a run folder (no spec.toml inside); --force replaces only run folders")


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it, unless it is there.

    Raises
    ------
    InputError
        If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror}); choose another --out") from error


@contextmanager
def workspace(folder: Path, spec_toml: str) -> Iterator[Path]:
    """Give a folder to work in, and move it into place when the block ends well.

    The work goes to ``<folder>.partial``. If the block raises or the process is killed, that folder stays, with what
    was finished in it; the next run of the same spec to the same place goes on from there. This matters for privacy as
    much as for time: a release that was drawn has been paid for, and is used again instead of being drawn twice. A
    folder without a release is taken over by the run of any spec.

    Parameters
    ----------
    folder
        Where the finished run goes. If it exists it is replaced (see `check_free`), by two renames.
    spec_toml
        The resolved spec, kept as ``spec.toml``: only a run of the same spec resumes.

    Yields
    ------
    Path
        The partial folder.

    Raises
    ------
    ExistingRunError
        If the partial folder holds a release, or more, of another spec, another process is writing it, or the name
        under which a replaced run is kept for a moment is taken.
    InputError
        If the partial folder cannot be made.
    """
    partial = folder.with_name(folder.name + ".partial")
    former = folder.with_name(folder.name + ".former")
    if former.exists() and not (former / _SPEC).is_file():
        raise ExistingRunError(f"{former} is not what a replaced run left; move it away, or choose another --out")
    make_folder(partial)
    with _lock(partial):
        spec = partial / _SPEC
        if spec.exists() and spec.read_text(encoding="utf-8") != spec_toml:
            _clear(partial)
        write_text(spec, spec_toml)
        yield partial
        if former.exists():
            shutil.rmtree(former)
        if folder.exists():
            folder.replace(former)
        partial.replace(folder)
        (folder / _LOCK).unlink()
        if former.exists():
            shutil.rmtree(former)


def read_json(path: Path) -> Any:
    """Read a JSON file that a run left in its folder.

    Raises
    ------
    DamagedFileError
        If it no longer reads.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "study.json")
    ...     _ = write_text(path, '{"draws": 4}')
    ...     read_json(path)
    {'draws': 4}
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is not readable JSON ({error}); put back a copy of it, or run the spec again"
        ) from error
    if not isinstance(found, dict | list):
        raise DamagedFileError(f"{path} holds no results; put back a copy of it, or run the spec again")
    return found


@contextmanager
def _lock(partial: Path) -> Iterator[None]:
    """Hold the partial folder for this process; the kernel lets go of it on any death."""
    busy = ExistingRunError(f"another process is writing {partial}; wait for it, or choose another --out")
    try:
        handle = os.open(partial / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except FileNotFoundError:  # it finished, and moved the folder into place
        raise busy from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        if not _is_open_at(handle, partial / _LOCK):
            raise busy
        yield
    finally:
        os.close(handle)


def _is_open_at(handle: int, path: Path) -> bool:
    """Return whether an open file is the one at a path: not where its folder was moved away before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _clear(partial: Path) -> None:
    """Remove what another spec's run left in a folder that this process has locked, unless it may have been paid for.

    The lock's own file stays: another process that waits at the door must find it locked.
    """
    left = [path for path in partial.iterdir() if path.name != _LOCK]
    paid = sorted(path.name for path in left if path.name.removesuffix(".tmp") not in _UNPAID)
    if paid:
        raise ExistingRunError(
            f"{partial} holds an unfinished run of another spec with {', '.join(paid)}, which may have cost privacy "
            "budget; finish it with that spec, or move it away"
        )
    for path in left:
        path.unlink()


def kept_release(folder: Path, given: Path | None) -> Release | None:
    """Return the release that a run folder holds, or None where it has still to be drawn, or to be copied.

    Parameters
    ----------
    folder
        The run folder.
    given
        The finished release that the spec names, if it names one. A copy of another one is not used; where the file
        is gone, the copy stands for it.

    Raises
    ------
    ExistingRunError
        If the folder holds a trace of another release than `given`: it is not this run's.
    """
    from dpbayes.privacy import read_release

    path = folder / "release.json"
    if not path.exists():
        return None
    kept = read_release(path)
    if given is None or not given.exists() or read_release(given).digest == kept.digest:
        return kept
    if (folder / "trace.nc").exists():
        raise ExistingRunError(
            f"{given.name} has changed since {folder} was begun; restore it to finish that run, or choose another --out"
        )
    return None
