r"""A generator of patients with realistic correlated measurements, and the Framingham risk score.

The records are invented: no person's data entered, so everything made here is public. Ranges, prevalences and
correlations are set by hand to what adult cohorts in the United States report (blood pressure rises with age and
weight, HDL is lower in men, smokers and the heavy, diabetes follows age and weight).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dpbayes.data._guards import hide_values
from dpbayes.errors import InputError, MissingColumnError

__all__ = ["PATIENT_RANGES", "framingham_risk", "patients", "read_synthea"]

type FloatArray = npt.NDArray[np.float64]

#: Public bounds of every column of `patients`: lower, upper. A specification, not a summary of data.
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
) -> FloatArray:
    r"""Return the ten-year risk of a first cardiovascular event, :math:`1 - S_0^{\exp(\beta^T x - \bar L)}`.

    Parameters
    ----------
    age
        Years, positive; the score was fitted on ages 30 to 74.
    male, smoker, diabetes, treated
        0 or 1; `treated` means drugs against high blood pressure.
    systolic_mmhg
        Systolic blood pressure, mmHg, positive.
    total_cholesterol_mgdl, hdl_cholesterol_mgdl
        Cholesterol, mg/dL, positive.

    Returns
    -------
    numpy.ndarray
        Risk in (0, 1), of the broadcast shape.

    Raises
    ------
    InputError
        If a measurement is not positive and finite.

    References
    ----------
    D'Agostino, R. B. et al. (2008). General cardiovascular risk profile for use in primary care: the Framingham Heart
    Study. Circulation 117, 743-753, Table 2 (the model with laboratory measurements).

    Examples
    --------
    The paper's woman of 61: smoker, cholesterol 180, HDL 47, untreated pressure 124; it reports 10.48 %.

    >>> risk = framingham_risk(age=61, male=0, smoker=1, diabetes=0, treated=0, systolic_mmhg=124,
    ...                        total_cholesterol_mgdl=180, hdl_cholesterol_mgdl=47)
    >>> round(float(risk), 4)
    0.1048
    """
    measured = (age, total_cholesterol_mgdl, hdl_cholesterol_mgdl, systolic_mmhg)
    logs = []
    for name, values in zip(("age", "total cholesterol", "HDL cholesterol", "blood pressure"), measured, strict=True):
        array = np.asarray(values, dtype=float)
        if not np.all(np.isfinite(array) & (array > 0)):
            raise InputError(f"{name} must be positive and finite: its logarithm enters the score; drop such records")
        logs.append(np.log(array))
    flags = [np.asarray(flag, dtype=float) for flag in (male, smoker, diabetes, treated)]
    risks = [_risk(logs, flags[1:], row) for row in (_WOMEN, _MEN)]
    return np.asarray(np.where(flags[0] > 0.5, risks[1], risks[0]))


def _risk(logs: list[FloatArray], flags: list[FloatArray], row: tuple[float, ...]) -> FloatArray:
    log_age, log_total, log_hdl, log_pressure = logs
    smoker, diabetes, treated = flags
    pressure = np.where(treated > 0.5, row[4], row[3])
    predictor = row[0] * log_age + row[1] * log_total + row[2] * log_hdl + pressure * log_pressure
    predictor = predictor + row[5] * smoker + row[6] * diabetes
    return np.asarray(-np.expm1(np.log(row[8]) * np.exp(predictor - row[7])))


def patients(n: int, random_state: int | np.random.Generator) -> pl.DataFrame:
    """Generate patients.

    Parameters
    ----------
    n
        Number of patients.
    random_state
        Seed or generator; the same seed gives the same patients.

    Returns
    -------
    polars.DataFrame
        One row a patient, float columns in the order of `PATIENT_RANGES` and inside them: age (years), male, smoker,
        diabetes, treated (0 or 1), systolic_mmhg, total_cholesterol_mgdl, hdl_cholesterol_mgdl, bmi (kg per square
        metre), and framingham, the ten-year risk of `framingham_risk`.

    Raises
    ------
    InputError
        If `n` is not a positive integer or `random_state` is neither.

    Examples
    --------
    >>> table = patients(1000, 7)
    >>> table.shape, bool(table["framingham"].is_between(0, 1).all())
    ((1000, 10), True)
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"n must be a positive integer, got {n!r}; it is the number of patients")
    if isinstance(random_state, bool) or not isinstance(random_state, (int, np.integer, np.random.Generator)):
        raise InputError(f"random_state must be an integer or a numpy.random.Generator, got {random_state!r}")
    rng = np.random.default_rng(random_state)
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


def read_synthea(path: str | Path) -> pl.DataFrame:
    """Read patients from a table of Synthea observations: the last complete day of every patient between 30 and 74.

    Synthea records no drug against high blood pressure in this table, so `treated` is 0. Diabetes is a glucose of 126
    mg/dL or a haemoglobin A1c of 6.5 % on that day; where neither was measured it is 0.

    Parameters
    ----------
    path
        CSV with columns patient, day, age, sex (F or M), smoker, systolic_mmhg, total_cholesterol_mgdl,
        hdl_cholesterol_mgdl, bmi, glucose_mgdl and hba1c_pct.

    Returns
    -------
    polars.DataFrame
        Columns of `patients`, one row a patient.

    Raises
    ------
    MissingColumnError
        If a column is missing.
    UnreadableDataError
        If the file is no CSV, or a column of numbers holds text. No value is shown.
    """
    unreadable = (
        f"{Path(path).name} does not read as a table of observations: it is not CSV, or a column of numbers holds "
        "text; mend the file (what the reader says of it is not shown: it may quote records)"
    )
    with hide_values(unreadable):
        frame = pl.read_csv(path, infer_schema_length=None)
    needed = ["systolic_mmhg", "total_cholesterol_mgdl", "hdl_cholesterol_mgdl", "bmi"]
    missing = {"patient", "day", "age", "sex", "smoker", "glucose_mgdl", "hba1c_pct", *needed} - set(frame.columns)
    if missing:
        raise MissingColumnError(f"{Path(path).name} lacks the columns {', '.join(sorted(missing))}")
    with hide_values(unreadable):
        columns = _latest_day(frame, needed)
        scored = {name: columns[name].to_numpy() for name in columns.columns if name != "bmi"}
        return columns.with_columns(framingham=pl.Series(framingham_risk(**scored)))


def _latest_day(frame: pl.DataFrame, needed: list[str]) -> pl.DataFrame:
    """Return the measurements of each adult's last complete day, coded as in `patients`."""
    adults = frame.filter(pl.col("age").is_between(30, 74)).drop_nulls(needed)
    latest = adults.sort("patient", "day").group_by("patient", maintain_order=True).last()
    sick = (pl.col("glucose_mgdl") >= 126) | (pl.col("hba1c_pct") >= 6.5)
    return latest.select(
        pl.col("age").cast(pl.Float64),
        male=(pl.col("sex") == "M").cast(pl.Float64),
        smoker=pl.col("smoker").cast(pl.Float64),
        diabetes=sick.fill_null(False).cast(pl.Float64),
        treated=pl.lit(0.0),
        systolic_mmhg=pl.col("systolic_mmhg").cast(pl.Float64),
        total_cholesterol_mgdl=pl.col("total_cholesterol_mgdl").cast(pl.Float64),
        hdl_cholesterol_mgdl=pl.col("hdl_cholesterol_mgdl").cast(pl.Float64),
        bmi=pl.col("bmi").cast(pl.Float64),
    )


def _bernoulli(logit: FloatArray, rng: np.random.Generator) -> FloatArray:
    return (rng.random(logit.shape) < 1.0 / (1.0 + np.exp(-logit))).astype(float)


def _clipped(name: str, values: FloatArray, digits: int) -> FloatArray:
    return np.asarray(np.round(np.clip(values, *PATIENT_RANGES[name]), digits))
