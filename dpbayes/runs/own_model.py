"""A user's own model in a run: ``model = "file:mine.py"``, a Python file beside the spec, run only on request."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbayes._files import write_text
from dpbayes.errors import ExistingRunError, SpecError

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.runs.spec import LoadedSpec

SAVED = "model.py"
"""The model's copy in the run folder: what the trace was sampled from."""


def check_allowed(loaded: LoadedSpec, *, allow_python: bool) -> None:
    """Refuse a spec whose model is a Python file, unless told to run it, and a file that is none or is not there."""
    name = getattr(getattr(loaded.spec, "model", None), "file", None)
    if name is None:
        return
    path = loaded.path.parent / name
    if not allow_python:
        raise SpecError(
            f"{loaded.path.name} runs the Python code in {path.name}, which can do whatever you can; read that file, "
            "and pass --allow-python if you trust it"
        )
    if path.suffix != ".py":
        raise SpecError(f"model.file must be a Python file (.py), got {path.name!r}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}; model.file is resolved beside the spec")


def keep_model(path: Path, folder: Path) -> str:
    """Copy a model's file into the run folder, and return the SHA-256 of its text."""
    text, saved = path.read_text(encoding="utf-8"), folder / SAVED
    sampled = (folder / "trace.nc").exists()
    if sampled and saved.exists() and saved.read_text(encoding="utf-8") != text:
        raise ExistingRunError(
            f"{path.name} has changed since {folder} was begun; restore it to finish that run, or choose another --out"
        )
    write_text(saved, text)
    return hashlib.sha256(text.encode()).hexdigest()


def load_model(path: Path) -> Callable[..., pm.Model]:
    r"""Run a Python file and return its ``build_model``; what it raises is not caught, it is the user's own code."""
    name = f"dpbayes_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    build = getattr(module, "build_model", None)
    if not callable(build):
        raise SpecError(f"{path.name} defines no build_model; define build_model(release, *, n_classes) -> pymc.Model")
    return build


def check_recorded(model: Any, names: Sequence[str], *, file: str) -> pm.Model:
    """Return what ``build_model`` of a file returned: a PyMC model that records what the run goes on to use."""
    import pymc as pm

    if not isinstance(model, pm.Model):
        raise SpecError(f"build_model of {file} must return a pymc.Model, got {type(model).__name__}")
    later = getattr(getattr(model, "complete_posterior", None), "names", ())
    missing = [name for name in names if name not in model.named_vars and name not in later]
    if missing:
        raise SpecError(
            f"the model of {file} lacks {', '.join(missing)}; name each by pm.Deterministic, with the dims that "
            "dpbayes.latent_class.build_model gives it"
        )
    return model
