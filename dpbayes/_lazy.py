"""Public names of a package that load on first use, so that importing it imports none of what they need."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, **modules: Sequence[str]) -> tuple[Any, Any, list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package: modules below it, and their public names."""
    home = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    names = sorted(home)
    return load, lambda: names, names
