"""The closed registry of systems that a run spec can name.

A spec names a system from this table, so reading a spec runs no code but dpbayes's. The exception is marked as such:
``system = "study:name"`` names the file ``studies/name.py`` beside the spec, which is run only with --allow-python
unless it is one of this repository's own (``models/studies``).
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module, util
from pathlib import Path
from typing import Any

import dpbayes
from dpbayes._arguments import shown
from dpbayes.errors import SpecError

SYSTEMS = {
    "bloom": "dpbayes.bloom.study",
    "ide": "dpbayes.ide.study",
    "latent-class": "dpbayes.latent_class.study",
    "mvg": "dpbayes.mvg.study",
    "verifier": "dpbayes.verifier.study",
}
"""System name to the module that is its `dpbayes.runs.protocol.Study`."""

STUDY = "study:"


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
        raise SpecError(
            f"system = {STUDY + name!r} runs the Python code in {path}, which can do whatever you can; read that file, "
            "and pass --allow-python if you trust it"
        )
    module_name = f"dpbayes_study_{name}"
    spec = util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that what it defines pickles
    spec.loader.exec_module(module)
    return module
