"""The closed registry of systems that a run spec can name.

A spec names a system from this table; it cannot name a module of its own, so reading a spec runs no code but dpbayes's.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from dpbayes.errors import SpecError

__all__ = ["SYSTEMS", "system_module"]

SYSTEMS = {
    "bloom": "dpbayes.runs.bloom",
    "ide": "dpbayes.runs.ide",
    "latent-class": "dpbayes.runs.latent_class",
    "mvg": "dpbayes.runs.mvg",
    "verifier": "dpbayes.runs.verifier",
}
"""System name to the module that holds its ``Spec``, ``run`` and ``document``."""


def system_module(name: object) -> ModuleType:
    """Return the module of a system.

    A module offers ``Spec`` (a `RunSpec`), ``run(spec, context) -> Outcome`` and
    ``document(spec, folder) -> dpbayes.report.Document``. Importing it is cheap: PyMC is imported inside the functions.

    Raises
    ------
    SpecError
        If there is no such system.

    Examples
    --------
    >>> system_module("latent-class").Spec.__name__
    'Spec'
    """
    if not isinstance(name, str) or name not in SYSTEMS:
        close = get_close_matches(str(name), SYSTEMS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(map(repr, SYSTEMS))}"
        raise SpecError(f"system {name!r} is not known; {hint}")
    return import_module(SYSTEMS[name])
