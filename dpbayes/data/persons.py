"""A generator of persons among whom some combinations cannot occur: no child is married, works or earns.

The records are invented, from shares set by hand to what censuses of rich countries report, so everything made here is
public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpbayes.errors import InputError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["PERSON_LEVELS", "PERSON_ZEROS", "persons"]

#: Attributes and levels of `persons`, as a codebook gives them.
PERSON_LEVELS: dict[str, tuple[str, ...]] = {
    "age": ("child", "adult", "senior"),
    "marital": ("never", "married", "formerly"),
    "work": ("no", "yes"),
    "income": ("none", "low", "high"),
}

#: Combinations that cannot occur.
PERSON_ZEROS: tuple[dict[str, str | tuple[str, ...]], ...] = (
    {"age": "child", "marital": ("married", "formerly")},
    {"age": "child", "work": "yes"},
    {"age": "child", "income": ("low", "high")},
)

_AGE = (0.2, 0.6, 0.2)
_MARITAL = ((1.0, 0.0, 0.0), (0.36, 0.5, 0.14), (0.08, 0.56, 0.36))
# Share at work, by age and marital status.
_WORK = ((0.0, 0.0, 0.0), (0.7, 0.79, 0.68), (0.12, 0.17, 0.11))
# Income by age and work.
_INCOME = (
    ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
    ((0.45, 0.45, 0.1), (0.02, 0.43, 0.55)),
    ((0.05, 0.68, 0.27), (0.01, 0.34, 0.65)),
)


def persons(n: int, *, rng: np.random.Generator) -> pl.DataFrame:
    """Draw persons.

    Parameters
    ----------
    n
        Number of persons, at least 1.
    rng
        Generator.

    Returns
    -------
    polars.DataFrame
        Columns and levels of `PERSON_LEVELS`; no record is among `PERSON_ZEROS`.

    Raises
    ------
    InputError
        If `n` is below 1.

    Examples
    --------
    >>> frame = persons(1000, rng=np.random.default_rng(1))
    >>> import polars as pl
    >>> frame.filter(pl.col("age") == "child")["work"].unique().to_list()
    ['no']
    """
    if n < 1:
        raise InputError(f"the number of persons must be at least 1, got {n}")
    share = np.zeros(tuple(map(len, PERSON_LEVELS.values())))
    for age, marital, work in np.ndindex(*share.shape[:3]):
        at_work = _WORK[age][marital]
        before = _AGE[age] * _MARITAL[age][marital] * (at_work if work else 1.0 - at_work)
        share[age, marital, work] = before * np.array(_INCOME[age][work])
    cells = np.unravel_index(rng.choice(share.size, size=n, p=share.ravel() / share.sum()), share.shape)
    columns = zip(PERSON_LEVELS.items(), cells, strict=True)
    import polars as pl

    return pl.DataFrame({name: np.array(levels)[cell] for (name, levels), cell in columns})
