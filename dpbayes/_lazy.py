"""What loads on first use, so that importing a package imports none of what it may need: names and data engines."""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


def lazy_exports(package: str, **modules: Sequence[str]) -> tuple[Any, Any, list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package: modules below it, and their public names."""
    home = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    names = sorted(home)
    return load, lambda: names, names


class _Module(ModuleType):
    """A module that is imported when something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)

    def __reduce__(self) -> Any:
        return import_module, (self.__name__,)


if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd
    import polars as pl
    import xarray as xr
else:
    nw, pd, pl, xr = map(_Module, ("narwhals", "pandas", "polars", "xarray"))
