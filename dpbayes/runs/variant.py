"""A user's own model in a run: ``model = "file:variant.py"``, a Python file beside the spec, run only on request."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbayes.errors import ExistingRunError, SpecError
from dpbayes.runs.folder import write_text

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.runs.spec import LoadedSpec

__all__ = ["SAVED", "check_allowed", "check_recorded", "keep_variant", "load_variant", "spell_out", "variant_path"]

SAVED = "model.py"
"""The variant's copy in the run folder: what the trace was sampled from."""

PREFIX = "file:"


def spell_out(data: dict[str, Any]) -> None:
    """Rewrite ``model = "file:variant.py"`` of a parsed spec as the section that it stands for.

    Raises
    ------
    SpecError
        If the text is of another form.

    Examples
    --------
    >>> data = {"model": "file:variant.py"}
    >>> spell_out(data)
    >>> data
    {'model': {'file': 'variant.py'}}
    """
    model = data.get("model")
    if not isinstance(model, str):
        return
    name = model.removeprefix(PREFIX).strip()
    if not model.startswith(PREFIX) or not name:
        raise SpecError(f'model: give a section [model], or model = "file:variant.py"; got {model!r}')
    data["model"] = {"file": name}


def variant_path(loaded: LoadedSpec) -> Path | None:
    """Return the Python file that a spec names, beside the spec; None if it names none."""
    name = getattr(getattr(loaded.spec, "model", None), "file", None)
    return None if name is None else loaded.path.parent / name


def check_allowed(loaded: LoadedSpec, *, allow_python: bool) -> None:
    """Refuse a spec that would run Python code, unless told to.

    Raises
    ------
    SpecError
        If the spec names a file and `allow_python` is not set, or the file does not end in ``.py``.
    FileNotFoundError
        If there is no such file.
    """
    path = variant_path(loaded)
    if path is None:
        return
    if not allow_python:
        raise SpecError(
            f"{loaded.path.name} runs the Python code in {path.name}, which can do whatever you can; read that file, "
            "and pass --allow-python if you trust it"
        )
    if path.suffix != ".py":
        raise SpecError(f"model.file must be a Python file (.py), got {path.name!r}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}; model.file is resolved beside the spec")


def keep_variant(path: Path, folder: Path) -> str:
    """Copy a variant into the run folder, and return the SHA-256 of its text.

    Raises
    ------
    ExistingRunError
        If the folder holds a trace of another text: it is not this model's. A release alone is nobody's, and kept.
    """
    text, saved = path.read_text(encoding="utf-8"), folder / SAVED
    sampled = (folder / "trace.nc").exists()
    if sampled and saved.exists() and saved.read_text(encoding="utf-8") != text:
        raise ExistingRunError(
            f"{path.name} has changed since {folder} was begun; restore it to finish that run, or choose another --out"
        )
    write_text(saved, text)
    return hashlib.sha256(text.encode()).hexdigest()


def load_variant(path: Path) -> Callable[..., pm.Model]:
    r"""Run a Python file and return its ``build_model``.

    Parameters
    ----------
    path
        The file. What it raises is not caught: it is the user's own code.

    Returns
    -------
    callable
        Its ``build_model``.

    Raises
    ------
    SpecError
        If the file defines no function of that name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.py")
    ...     _ = path.write_text("def build_model(release, *, n_classes):\n    return n_classes")
    ...     load_variant(path)(None, n_classes=3)
    3
    """
    name = f"dpbayes_variant_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    build = getattr(module, "build_model", None)
    if not callable(build):
        raise SpecError(f"{path.name} defines no build_model; define build_model(release, *, n_classes) -> pymc.Model")
    return build


def check_recorded(model: Any, names: Sequence[str], *, file: str) -> pm.Model:
    """Check that a variant returned a model which records what the run goes on to use.

    Parameters
    ----------
    model
        What ``build_model`` returned.
    names
        Variables that the predictive check, synthesis and report need.
    file
        The variant's name, for the message.

    Raises
    ------
    SpecError
        If it is no PyMC model, or lacks one of the names.
    """
    import pymc as pm

    if not isinstance(model, pm.Model):
        raise SpecError(f"build_model of {file} must return a pymc.Model, got {type(model).__name__}")
    missing = [name for name in names if name not in model.named_vars]
    if missing:
        raise SpecError(
            f"the model of {file} lacks {', '.join(missing)}; name each by pm.Deterministic, with the dims that "
            "dpbayes.latent_class.build_model gives it"
        )
    return model
