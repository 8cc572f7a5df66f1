r"""A generator of yearly wages with several rows a person.

The records are invented: no person's data entered, so everything made here is public. The wage equation is Mincer's
(log hourly wage linear in education, quadratic in experience) with a person effect, a gap between the sexes, sector
premia and a common trend; its coefficients are set by hand to what labour economics reports for the United States.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from dpbayes.errors import InputError

__all__ = ["WAGE_EQUATION", "WAGE_SECTORS", "wages"]

WAGE_SECTORS = ("agriculture", "industry", "services", "public")
"""Levels of the sector: a specification, not a summary of data."""

WAGE_EQUATION: dict[str, float] = {
    "constant": 1.10,
    "education": 0.085,
    "experience": 0.030,
    "experience squared": -0.0005,
    "female": -0.14,
    "industry": 0.12,
    "services": 0.06,
    "public": 0.10,
    "union": 0.11,
    "year": 0.012,
}
"""Coefficients of log hourly wage that `wages` uses; agriculture and 2010 are the base."""

_FIRST_YEAR = 2010
_PERSON_SD = 0.30
_YEAR_SD = 0.20


def wages(n_persons: int = 2000, *, n_years: int = 6, seed: int = 1) -> pl.DataFrame:
    """Generate wages of persons over years.

    Parameters
    ----------
    n_persons
        Number of persons, at least 1.
    n_years
        Calendar years from 2010 on, at least 1. A person is seen in each with probability .85, and at least once.
    seed
        Seed of the generator. The records are invented, so the seed protects nothing.

    Returns
    -------
    polars.DataFrame
        One row a person and year: ``person``, ``year``, ``education`` (years), ``experience`` (years), ``sex``
        (Enum), ``sector`` (Enum, may change), ``union`` (Boolean), ``hours`` (a week), ``wage`` (dollars an hour).

    Raises
    ------
    InputError
        If a number is below 1.

    Examples
    --------
    >>> frame = wages(100, seed=3)
    >>> frame.columns[:4], frame["person"].n_unique()
    (['person', 'year', 'education', 'experience'], 100)
    """
    for name, value in (("n_persons", n_persons), ("n_years", n_years)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    rng = np.random.default_rng(seed)
    education = np.clip(np.round(rng.normal(13.2, 2.6, n_persons)), 6, 21)
    female = rng.random(n_persons) < 0.48
    start = rng.integers(0, 35, n_persons)
    effect = rng.normal(0, _PERSON_SD, n_persons)
    home = rng.choice(4, n_persons, p=(0.08, 0.27, 0.47, 0.18))

    seen = rng.random((n_persons, n_years)) < 0.85
    seen[np.arange(n_persons), rng.integers(0, n_years, n_persons)] = True
    person, year = np.nonzero(seen)
    n = person.size
    sector = np.where(rng.random(n) < 0.12, rng.choice(4, n, p=(0.08, 0.27, 0.47, 0.18)), home[person])
    union = rng.random(n) < np.array([0.04, 0.22, 0.10, 0.45])[sector]
    experience = start[person] + year
    hours = np.clip(np.round(rng.normal(np.where(female[person], 35, 40), 7)), 4, 80)
    equation = WAGE_EQUATION
    premium = np.array([0.0, equation["industry"], equation["services"], equation["public"]])
    log_wage = (
        equation["constant"]
        + equation["education"] * education[person]
        + equation["experience"] * experience
        + equation["experience squared"] * experience**2
        + equation["female"] * female[person]
        + premium[sector]
        + equation["union"] * union
        + equation["year"] * year
        + effect[person]
        + rng.normal(0, _YEAR_SD, n)
    )
    return pl.DataFrame(
        {
            "person": person,
            "year": year + _FIRST_YEAR,
            "education": education[person],
            "experience": experience,
            "sex": pl.Series(np.where(female[person], "female", "male"), dtype=pl.Enum(["male", "female"])),
            "sector": pl.Series(np.array(WAGE_SECTORS)[sector], dtype=pl.Enum(list(WAGE_SECTORS))),
            "union": union,
            "hours": hours,
            "wage": np.exp(log_wage).round(2),
        }
    )
