"""Names of attributes as names of variables and dimensions, which PyMC, xarray and netCDF restrict."""

import re
from urllib.parse import unquote

__all__ = ["given_name", "variable_name"]

# A slash parts groups, a last double underscore marks PyMC's transforms, and a full stop alone is HDF5's own group.
_UNFIT = re.compile(r"[/\x00-\x1f\x7f]|(?<=_)_\Z|\A\.\Z|%(?=[0-9A-Fa-f]{2})")


def variable_name(name: str) -> str:
    """Return a name that variables and dimensions may have, with what they may not have as in a URL."""
    return _UNFIT.sub(lambda found: f"%{ord(found.group()):02X}", name)


def given_name(variable: str) -> str:
    """Return the name behind a `variable_name`."""
    return unquote(variable)
