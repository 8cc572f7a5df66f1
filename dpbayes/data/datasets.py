"""Embedded data: tables printed in a paper, and generated records, in which no person's data entered.

Everything here is public: ranges, shares and coefficients of the generators are set by hand to what surveys report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats, generator, whole_number
from dpbayes._lazy import pl
from dpbayes.data.domain import Domain, Level
from dpbayes.data.tables import Marginal
from dpbayes.errors import InputError

_ACS_LABELS = {
    "citizenship": ("not a citizen", "citizen"),
    "age": ("under 18", "18 or over"),
    "race": ("not white", "white"),
    "sex": ("male", "female"),
    "income": ("income up to 11,880", "income above 11,880"),
}

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
    """Return the ten two-way tables of the 2016 ACS sample printed in the latent-class paper."""
    domain = Domain.from_levels(dict.fromkeys(_ACS_LABELS, (0, 1)), _ACS_LABELS)
    return tuple(Marginal(domain.project(names), np.array(counts)) for names, counts in _ACS_COUNTS.items())


PATIENT_RANGES: dict[str, tuple[float, float]] = {
    "age": (30.0, 75.0),
    "male": (0.0, 1.0),
    "smoker": (0.0, 1.0),
    "diabetes": (0.0, 1.0),
    "treated": (0.0, 1.0),
    "systolic_mmhg": (80.0, 220.0),
    "total_cholesterol_mgdl": (100.0, 350.0),
    "hdl_cholesterol_mgdl": (20.0, 120.0),
    "bmi": (15.0, 55.0),
    "framingham": (0.0, 1.0),
}
"""Public bounds of every column of `patients`: lower, upper. A specification, not a summary of data."""

# D'Agostino et al. (2008), Table 2: log age, log total cholesterol, log HDL, log systolic pressure untreated and
# treated, smoking, diabetes; then the mean of the linear predictor and the ten-year baseline survival.
_WOMEN = (2.32888, 1.20904, -0.70833, 2.76157, 2.82263, 0.52873, 0.69154, 26.1931, 0.95012)
_MEN = (3.06117, 1.12370, -0.93263, 1.93303, 1.99881, 0.65451, 0.57367, 23.9802, 0.88936)


def framingham_risk(
    *,
    age: npt.ArrayLike,
    male: npt.ArrayLike,
    smoker: npt.ArrayLike,
    diabetes: npt.ArrayLike,
    treated: npt.ArrayLike,
    systolic_mmhg: npt.ArrayLike,
    total_cholesterol_mgdl: npt.ArrayLike,
    hdl_cholesterol_mgdl: npt.ArrayLike,
) -> Floats:
    r"""Return the ten-year risk of a first cardiovascular event, :math:`1 - S_0^{\exp(\beta^T x - \bar L)}`."""
    measured = (age, total_cholesterol_mgdl, hdl_cholesterol_mgdl, systolic_mmhg)
    logs = []
    for name, values in zip(("age", "total cholesterol", "HDL cholesterol", "blood pressure"), measured, strict=True):
        array = np.asarray(values, dtype=float)
        if not np.all(np.isfinite(array) & (array > 0)):
            raise InputError(f"{name} must be positive and finite: its logarithm enters the score; drop such records")
        logs.append(np.log(array))
    log_age, log_total, log_hdl, log_pressure = logs
    male, smoker, diabetes, treated = (np.asarray(flag, dtype=float) for flag in (male, smoker, diabetes, treated))
    row = np.moveaxis(np.where(male[..., None] > 0.5, _MEN, _WOMEN), -1, 0)
    pressure = np.where(treated > 0.5, row[4], row[3])
    predictor = row[0] * log_age + row[1] * log_total + row[2] * log_hdl + pressure * log_pressure
    predictor = predictor + row[5] * smoker + row[6] * diabetes
    return np.asarray(-np.expm1(np.log(row[8]) * np.exp(predictor - row[7])))


def patients(n: int, random_state: int | np.random.Generator) -> pl.DataFrame:
    """Generate patients."""
    whole_number(n, "n", remedy="it is the number of patients")
    rng = generator(random_state, "random_state")
    age = np.floor(30.0 + 45.0 * rng.beta(1.2, 1.5, n))
    male = (rng.random(n) < 0.49).astype(float)
    years = age - 50.0
    bmi = _clipped("bmi", np.exp(np.log(27.5) + 0.002 * years + 0.02 * male + 0.18 * rng.standard_normal(n)), 1)
    smoker = _bernoulli(-1.35 - 0.02 * years + 0.35 * male, rng)
    diabetes = _bernoulli(-2.3 + 0.055 * years + 0.11 * (bmi - 28.0) + 0.15 * male, rng)
    pressure = 121.0 + 0.55 * years + 0.7 * (bmi - 28.0) + 2.5 * male + 4.0 * diabetes + 14.0 * rng.standard_normal(n)
    treated = _bernoulli(-1.6 + 0.05 * years + 0.04 * (pressure - 121.0) + 0.5 * diabetes, rng)
    # Treatment brings pressure down, though rarely all the way.
    systolic = _clipped("systolic_mmhg", pressure - 9.0 * treated, 0)
    total = 203.0 + 0.45 * years - 0.018 * years**2 + 0.5 * (bmi - 28.0) - 5.0 * male - 14.0 * diabetes
    total = total + 36.0 * rng.standard_normal(n)
    log_hdl = np.log(56.0) - 0.20 * male - 0.016 * (bmi - 28.0) - 0.07 * smoker - 0.06 * diabetes + 0.002 * years
    hdl = np.exp(log_hdl + 0.0012 * (total - 200.0) + 0.21 * rng.standard_normal(n))
    columns: dict[str, Any] = {
        "age": age,
        "male": male,
        "smoker": smoker,
        "diabetes": diabetes,
        "treated": treated,
        "systolic_mmhg": systolic,
        "total_cholesterol_mgdl": _clipped("total_cholesterol_mgdl", total, 0),
        "hdl_cholesterol_mgdl": _clipped("hdl_cholesterol_mgdl", hdl, 0),
    }
    risk = framingham_risk(**columns)
    return pl.DataFrame(columns | {"bmi": bmi, "framingham": risk})


def _bernoulli(logit: Floats, rng: np.random.Generator) -> Floats:
    return (rng.random(logit.shape) < 1.0 / (1.0 + np.exp(-logit))).astype(float)


def _clipped(name: str, values: Floats, digits: int) -> Floats:
    return np.asarray(np.round(np.clip(values, *PATIENT_RANGES[name]), digits))


PERSON_LEVELS: dict[str, tuple[str, ...]] = {
    "age": ("child", "adult", "senior"),
    "marital": ("never", "married", "formerly"),
    "work": ("no", "yes"),
    "income": ("none", "low", "high"),
}
"""Attributes and levels of `persons`, as a codebook gives them."""

PERSON_LABELS: dict[str, dict[str | int, str]] = {
    "marital": {"never": "never married", "formerly": "formerly married"},
    "work": {"no": "not working", "yes": "working"},
    "income": {"none": "no income", "low": "low income", "high": "high income"},
}
"""What pages call the levels of `persons`."""

PERSON_ZEROS: tuple[dict[str, str | tuple[str, ...]], ...] = (
    {"age": "child", "marital": ("married", "formerly")},
    {"age": "child", "work": "yes"},
    {"age": "child", "income": ("low", "high")},
)
"""Combinations that cannot occur: no child is married, works or earns."""

_PERSON_AGE = (0.2, 0.6, 0.2)
_PERSON_MARITAL = ((1.0, 0.0, 0.0), (0.36, 0.5, 0.14), (0.08, 0.56, 0.36))
# Share at work, by age and marital status.
_PERSON_WORK = ((0.0, 0.0, 0.0), (0.7, 0.79, 0.68), (0.12, 0.17, 0.11))
# Income by age and work.
_PERSON_INCOME = (
    ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
    ((0.45, 0.45, 0.1), (0.02, 0.43, 0.55)),
    ((0.05, 0.68, 0.27), (0.01, 0.34, 0.65)),
)


def persons(n: int, *, rng: np.random.Generator) -> pl.DataFrame:
    """Draw persons among whom some combinations cannot occur."""
    whole_number(n, "n", remedy="it is the number of persons")
    share = np.zeros(tuple(map(len, PERSON_LEVELS.values())))
    for age, marital, work in np.ndindex(*share.shape[:3]):
        at_work = _PERSON_WORK[age][marital]
        before = _PERSON_AGE[age] * _PERSON_MARITAL[age][marital] * (at_work if work else 1.0 - at_work)
        share[age, marital, work] = before * np.array(_PERSON_INCOME[age][work])
    cells = np.unravel_index(rng.choice(share.size, size=n, p=share.ravel() / share.sum()), share.shape)
    columns = zip(PERSON_LEVELS.items(), cells, strict=True)
    return pl.DataFrame({name: np.array(levels)[cell] for (name, levels), cell in columns})


_HOUSEHOLD_LEVELS: dict[str, tuple[str, ...]] = {
    "age": ("0-14", "15-24", "25-44", "45-64", "65-79", "80+"),
    "sex": ("female", "male"),
    "household": ("alone", "couple", "family", "shared", "institution"),
    "tenure": ("owned", "mortgaged", "rented"),
    "schooling": ("none", "primary", "secondary", "degree"),
    "work": ("outside", "seeking", "employed", "retired"),
    "income": ("none", "low", "middle", "high"),
    "car": ("no", "yes"),
    "disability": ("no", "yes"),
}
_HOUSEHOLD_TYPES = 7


@dataclass(frozen=True, eq=False)
class Population:
    """Public and private records of one hierarchy."""

    domain: Domain
    parent: dict[Level, Level]
    public: pl.DataFrame
    private: pl.DataFrame


def two_level_population(
    *, n_units: int = 2, groups_per_unit: int = 6, group_size: int = 600, drift: float = 0.3, seed: int = 1
) -> Population:
    """Generate a two-level population with a public sister, for trials of prior-aware estimation."""
    for name, value in (("n_units", n_units), ("groups_per_unit", groups_per_unit), ("group_size", group_size)):
        whole_number(value, name)
    if n_units > 26 or not (np.isfinite(drift) and drift >= 0):
        raise InputError(f"n_units must be at most 26 and drift at least 0, got {n_units!r} and {drift!r}")
    rng = np.random.default_rng(seed)
    domain = Domain.from_levels(_HOUSEHOLD_LEVELS)
    profiles = {a.name: rng.dirichlet(np.full(a.size, 0.6), size=_HOUSEHOLD_TYPES) for a in domain}
    parent: dict[Level, Level] = {}
    public, private = [], []
    for u in range(n_units):
        unit = chr(ord("A") + u)
        shares = rng.normal(0.0, 0.5, _HOUSEHOLD_TYPES)
        moved = shares + rng.normal(0.0, drift, _HOUSEHOLD_TYPES)
        for g in range(groups_per_unit):
            group = f"{unit}-{g + 1}"
            parent[group] = unit
            local = rng.normal(0.0, drift, _HOUSEHOLD_TYPES)
            n = max(1, round(group_size * 2.0 ** rng.uniform(-1, 1)))
            public.append(_records(group, shares + local, n, profiles, rng))
            private.append(_records(group, moved + local, n, profiles, rng))
    return Population(domain, parent, pl.concat(public), pl.concat(private))


def _records(group: str, log_shares: Any, n: int, profiles: dict[str, Any], rng: np.random.Generator) -> pl.DataFrame:
    """Draw a type for each record, then its attributes independently given the type."""
    shares = np.exp(log_shares)
    types = rng.choice(_HOUSEHOLD_TYPES, n, p=shares / shares.sum())
    columns: dict[str, Any] = {"group": [group] * n}
    for name, profile in profiles.items():
        steps = profile.cumsum(axis=1)[types]
        codes = np.minimum((rng.random((n, 1)) > steps).sum(axis=1), profile.shape[1] - 1)
        columns[name] = np.asarray(_HOUSEHOLD_LEVELS[name])[codes]
    return pl.DataFrame(columns)


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


def wages(n_persons: int = 2000, *, n_years: int = 6, seed: int = 1) -> pl.DataFrame:
    """Generate wages of persons over years, several rows per person."""
    for name, value in (("n_persons", n_persons), ("n_years", n_years)):
        whole_number(value, name)
    rng = np.random.default_rng(seed)
    education = np.clip(np.round(rng.normal(13.2, 2.6, n_persons)), 6, 21)
    female = rng.random(n_persons) < 0.48
    start = rng.integers(0, 35, n_persons)
    effect = rng.normal(0, 0.30, n_persons)
    home = rng.choice(4, n_persons, p=(0.08, 0.27, 0.47, 0.18))

    seen = rng.random((n_persons, n_years)) < 0.85
    seen[np.arange(n_persons), rng.integers(0, n_years, n_persons)] = True
    person, year = np.nonzero(seen)
    n = person.size
    sector = np.where(rng.random(n) < 0.12, rng.choice(4, n, p=(0.08, 0.27, 0.47, 0.18)), home[person])
    union = rng.random(n) < np.array([0.04, 0.22, 0.10, 0.45])[sector]
    experience = start[person] + year
    hours = np.clip(np.round(rng.normal(np.where(female[person], 35, 40), 7)), 4, 80)
    values: dict[str, Any] = {name: sector == place for place, name in enumerate(WAGE_SECTORS)}
    values |= {"constant": 1.0, "education": education[person], "female": female[person], "union": union, "year": year}
    values |= {"experience": experience, "experience squared": experience**2}
    mean = sum(coefficient * values[name] for name, coefficient in WAGE_EQUATION.items())
    log_wage = mean + effect[person] + rng.normal(0, 0.20, n)
    return pl.DataFrame(
        {
            "person": person,
            "year": year + 2010,
            "education": education[person],
            "experience": experience,
            "sex": pl.Series(np.where(female[person], "female", "male"), dtype=pl.Enum(["male", "female"])),
            "sector": pl.Series(np.array(WAGE_SECTORS)[sector], dtype=pl.Enum(list(WAGE_SECTORS))),
            "union": union,
            "hours": hours,
            "wage": np.exp(log_wage).round(2),
        }
    )
