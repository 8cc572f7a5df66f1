"""What code a run spec may name: a system of the closed registry, or, with --allow-python, a Python file beside it.

``system = "study:name"`` is the file ``studies/name.py``; this repository's own, ``models/studies``, need no leave.
``model = "file:mine.py"`` is a file that builds the model.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dpbayes
from dpbayes._arguments import shown
from dpbayes._files import write_text
from dpbayes.errors import SpecError

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.runs.spec import LoadedSpec

# System name to the module that is its `dpbayes.runs.protocol.Study`.
SYSTEMS = {
    name: f"dpbayes.{name.replace('-', '_')}.study" for name in ("bloom", "ide", "latent-class", "mvg", "verifier")
}
STUDY = "study:"
SAVED = "model.py"  # the copy of a user's model in the run folder: what the trace was sampled from
_TRUST = "which can do whatever you can; read that file, and pass --allow-python if you trust it"


def system_module(name: object, *, beside: Path | None = None, allow_python: bool = False) -> Any:
    """Return the study of a system; ``latent_class`` and ``latent-class`` are one name."""
    if isinstance(name, str) and name.startswith(STUDY):
        return _study_file(name.removeprefix(STUDY), beside or Path(), allow_python=allow_python)
    known = system_name(name)
    if not isinstance(known, str) or known not in SYSTEMS:
        close = get_close_matches(str(name), SYSTEMS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(map(repr, SYSTEMS))}"
        raise SpecError(f"system {shown(name)} is not known; {hint}")
    return import_module(SYSTEMS[known])


def system_name(name: object) -> object:
    """Return a system's name as the registry writes it."""
    return name.replace("_", "-") if isinstance(name, str) and not name.startswith(STUDY) else name


def _study_file(name: str, beside: Path, *, allow_python: bool) -> Any:
    """Import ``studies/<name>.py`` beside the spec."""
    if not name.isidentifier():
        raise SpecError(f"system = {STUDY + name!r} must name a file in the folder studies, as {STUDY}my_study does")
    ours = Path(dpbayes.__file__).resolve().parents[1] / "models" / "studies"
    theirs = (beside / "studies" / f"{name}.py").resolve()
    path = theirs if theirs.is_file() else ours / f"{name}.py"  # a run folder holds its spec, and no studies
    if not path.is_file():
        raise FileNotFoundError(f"there is no study {theirs}; system = {STUDY + name!r} is resolved beside the spec")
    if path.parent != ours and not allow_python:
        raise SpecError(f"system = {STUDY + name!r} runs the Python code in {path}, {_TRUST}")
    return _imported(path, f"dpbayes_study_{name}")


def _imported(path: Path, name: str) -> Any:
    """Run a Python file as a module; what it raises is not caught, it is the user's own code."""
    spec = util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # so that what it defines pickles
    spec.loader.exec_module(module)
    return module


def check_allowed(loaded: LoadedSpec, *, allow_python: bool) -> None:
    """Refuse a spec whose model is a Python file, unless told to run it, and a file that is none or is not there."""
    name = loaded.spec.setting("model.file")
    if name is None:
        return
    path = loaded.path.parent / name
    if not allow_python:
        raise SpecError(f"{loaded.path.name} runs the Python code in {path.name}, {_TRUST}")
    if path.suffix != ".py":
        raise SpecError(f"model.file must be a Python file (.py), got {path.name!r}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}; model.file is resolved beside the spec")


def keep_model(path: Path, folder: Path) -> str:
    """Copy a model's file into the run folder, and return the SHA-256 of its text."""
    text = path.read_text(encoding="utf-8")
    write_text(folder / SAVED, text)
    return hashlib.sha256(text.encode()).hexdigest()


def load_model(path: Path) -> Callable[..., pm.Model]:
    """Run a Python file and return its ``build_model``."""
    module = _imported(path, f"dpbayes_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}")
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
