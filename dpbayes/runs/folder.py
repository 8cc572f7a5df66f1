"""Run folders: written aside, moved into place whole, resumed after a kill."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

from dpbayes._files import write_text
from dpbayes.errors import DamagedFileError, ExistingRunError, InputError

_LOCK, _SPEC = ".lock", "spec.toml"
# What a run writes before it releases anything. All of it is made again; whatever else there is may have cost budget.
_UNPAID = {_SPEC, "model.py", "truth.json", "certificate.json", "warnings.json"}
# What follows from the release by the settings after it.
_RESULTS = {"trace.nc", "result.json", "synthetic", "facts.json", "report.html"} | _UNPAID - {_SPEC, "truth.json"}


def choose_folder(name: str, root: Path = Path("runs")) -> Path:
    """Return the first of ``runs/name``, ``runs/name-2``, ... that is free."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(root / free for free in names if not (root / free).exists())


def check_free(folder: Path, *, force: bool, cost: str = "") -> None:
    """Refuse to overwrite a folder unless told to."""
    try:
        if not folder.exists():
            return
    except OSError as error:  # a name that is too long
        raise _unusable(folder, error) from error
    if not force:
        raise ExistingRunError(f"{folder} is already there; choose another --out, or pass --force to replace it{cost}")
    if not (folder / "spec.toml").is_file():
        raise ExistingRunError(f"{folder} is not a run folder (no spec.toml inside); --force replaces only run folders")


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> InputError:
    return InputError(f"the folder {folder} cannot be made ({error.strerror}); choose another --out")


@contextmanager
def workspace(folder: Path, spec_toml: str, same_release: Callable[[str], bool] = lambda _: False) -> Iterator[Path]:
    """Give ``<folder>.partial`` to work in, and move it into place when the block ends well."""
    partial = folder.with_name(folder.name + ".partial")
    former = folder.with_name(folder.name + ".former")
    if former.exists() and not (former / _SPEC).is_file():
        raise ExistingRunError(f"{former} is not what a replaced run left; move it away, or choose another --out")
    make_folder(partial)
    with _lock(partial):
        spec = partial / _SPEC
        if spec.exists() and (begun := spec.read_text(encoding="utf-8")) != spec_toml:
            # What a run of another spec left is used where that drew the same release.
            if same_release(begun):
                remove_results(partial)
            else:
                _clear(partial)
        write_text(spec, spec_toml)
        try:
            yield partial
        except BaseException:
            if {path.name for path in partial.iterdir()} <= {_LOCK, *_UNPAID}:
                shutil.rmtree(partial)
            raise
        if former.exists():
            shutil.rmtree(former)
        if folder.exists():
            folder.replace(former)
        partial.replace(folder)
        (folder / _LOCK).unlink()
        if former.exists():
            shutil.rmtree(former)


def remove_results(partial: Path) -> None:
    """Remove what follows from a release and costs time alone."""
    for name in _RESULTS:
        path = partial / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read a JSON file that a run left in its folder."""
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
            # Its folder may have been moved away before it was locked.
            ours = os.path.samestat(os.fstat(handle), (partial / _LOCK).stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise busy
        yield
    finally:
        os.close(handle)


def _clear(partial: Path) -> None:
    """Remove what another spec's run left in a folder that this process has locked."""
    left = [path for path in partial.iterdir() if path.name != _LOCK]
    paid = sorted(path.name for path in left if path.name.removesuffix(".tmp") not in _UNPAID)
    if paid:
        raise ExistingRunError(
            f"{partial} holds an unfinished run of another spec with {', '.join(paid)}, which may have cost privacy "
            f"budget; finish it with that spec ({_SPEC} in it), or move it away"
        )
    for path in left:
        path.unlink()
