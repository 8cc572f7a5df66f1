"""Embedded data: tables printed in the papers, and generated populations."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from dpbayes.data.domain import Domain
from dpbayes.data.marginals import Marginal

# name -> module that generates or reads it, loaded on first use: they need Polars, and exact tables do not
_POPULATIONS = {
    "framingham_risk": "dpbayes.data.patients",
    "patients": "dpbayes.data.patients",
    "persons": "dpbayes.data.persons",
    "read_synthea": "dpbayes.data.patients",
    "two_level_population": "dpbayes.data.populations",
    "wages": "dpbayes.data.wages",
}

__all__ = ["acs_tables", *_POPULATIONS]

_ACS_LEVELS = {name: (0, 1) for name in ("citizenship", "age", "race", "sex", "income")}

_ACS_COUNTS = {
    ("citizenship", "age"): [[11, 596], [443, 8950]],
    ("citizenship", "race"): [[299, 308], [1731, 7662]],
    ("citizenship", "sex"): [[273, 334], [4505, 4888]],
    ("citizenship", "income"): [[294, 313], [2916, 6477]],
    ("age", "race"): [[110, 344], [1920, 7626]],
    ("age", "sex"): [[239, 215], [4539, 5007]],
    ("age", "income"): [[445, 9], [2765, 6781]],
    ("race", "sex"): [[945, 1085], [3833, 4137]],
    ("race", "income"): [[827, 1203], [2383, 5587]],
    ("sex", "income"): [[1281, 3497], [1929, 3293]],
}


def acs_tables() -> tuple[Marginal, ...]:
    """Return the ten two-way tables of the 2016 ACS sample printed in the latent-class paper.

    10,000 persons of the 2016 one-year American Community Survey public use microdata sample, five binary attributes:
    citizenship (1 = citizen), age (1 = 18 or over), race (1 = white), sex, and income (1 = over 11,880 dollars). They
    are public data, so a report may set estimates beside them.

    The slide prints 2382 for race = 1, income = 0. The other nine tables force 2383 (income = 0 totals 3,210, of which
    827 have race = 0, and the four cells must sum to 10,000); the tables here hold 2383. The first printing of
    citizenship x income (slide 5) likewise garbles its second row, which slide 8 gives as 2916, 6477.

    Returns
    -------
    tuple of Marginal
        Ten consistent tables with n = 10,000.

    References
    ----------
    Barrientos, A. F. (2021). A latent class modeling approach for differentially private synthetic data for contingency
    tables. FCSM research and policy conference, slides 5 and 8.

    Examples
    --------
    >>> tables = acs_tables()
    >>> len(tables), tables[0].total, tables[0].attributes
    (10, 10000, ('citizenship', 'age'))
    """
    domain = Domain.from_levels(_ACS_LEVELS)
    tables = {names: np.array(counts) for names, counts in _ACS_COUNTS.items()}
    return tuple(Marginal(domain.project(names), counts) for names, counts in tables.items())


def __getattr__(name: str) -> Any:
    if name in _POPULATIONS:
        return getattr(import_module(_POPULATIONS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
