"""What public facts say of a verification before anything is spent: declared sizes, and public or simulated pilots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from dpbayes._arguments import generator, ordered
from dpbayes.errors import InputError
from dpbayes.verifier.claim import Direction, coefficient_verdict
from dpbayes.verifier.design import decisions
from dpbayes.verifier.every_release import most_partitions
from dpbayes.verifier.fits import Estimate, Regression, fitter, model_of
from dpbayes.verifier.formulas import collect, column_values, model_columns
from dpbayes.verifier.partition import check_n_partitions, unit_codes

if TYPE_CHECKING:
    import xarray as xr

_FAILED = 0.1  # share of partitions that may fail in a design called safe
_ROWS_PER_PARAMETER = 10


def pilot_shares(
    frame: Any,
    *,
    n_units: int,
    n_partitions: Sequence[int],
    threshold: float | None = None,
    direction: Direction | None = None,
    significant_at: float | None = None,
    unit: str | None = None,
    epsilon: float = 1.0,
    partitions: int = 400,
    random_state: int | np.random.Generator = 1,
    **regression: Unpack[Regression],
) -> xr.Dataset:
    """Try a claim on public records: the share r of partitions beyond the threshold, against M."""
    import xarray as xr

    tried = sorted({check_n_partitions(m) for m in ordered(n_partitions, "n_partitions", remedy="give a list")})
    if not tried or tried[-1] > n_units:
        raise InputError(f"n_partitions must name numbers up to n_units = {n_units:,}, got {tried!r}")
    verdict = coefficient_verdict(threshold, direction, significant_at)
    whole, draw = _resampled(frame, unit, regression, generator(random_state, "random_state"))
    if whole is None:
        raise InputError("the claim cannot be computed on the whole pilot; check its rows, formula and levels")
    beyond, rows, safe = verdict(whole), [], True
    for m in tried:
        row = _share_at(m, [draw(n_units // m) for _ in range(partitions)], verdict, epsilon, beyond=beyond)
        safe = safe and row.pop("clear") and row["failed"] <= _FAILED
        rows.append(row | {"units": n_units // m, "safe": safe})
    columns = {name: ("n_partitions", np.array([row[name] for row in rows])) for name in rows[0]}
    largest = max((m for m, row in zip(tried, rows, strict=True) if row["safe"]), default=0)
    attrs = {"whole": whole.coefficient, "beyond": int(beyond), "largest_safe": largest}
    return xr.Dataset(columns, {"n_partitions": tried}, attrs)


def _resampled(
    frame: Any, unit: str | None, regression: Regression, rng: np.random.Generator
) -> tuple[Estimate | None, Callable[[int], Estimate | None]]:
    """Return the estimate of the whole pilot, and a function to that of so many units drawn with replacement."""
    table = collect(frame)
    model, column, groups = model_of(table, **regression)
    codes, n_pilot = (np.arange(len(table)), len(table)) if unit is None else unit_codes(column_values(table, unit))
    codes = codes[model.rows]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(n_pilot + 1))
    fit = fitter(regression.get("family", "gaussian"), column)

    def draw(size: int) -> Estimate | None:
        drawn = rng.integers(0, n_pilot, size=size)
        taken = np.concatenate([order[starts[u] : starts[u + 1]] for u in drawn])
        return fit(model.matrix[taken], model.response[taken], [group[taken] for group in groups])

    return fit(model.matrix, model.response, groups), draw


def _share_at(
    m: int, found: list[Estimate | None], verdict: Callable[[Estimate], bool], epsilon: float, *, beyond: bool
) -> dict[str, Any]:
    """Say what the partitions of one size tell; "clear" where r lies on the whole pilot's side of one half."""
    computed = [one for one in found if one is not None and math.isfinite(one.coefficient)]
    values = np.array([one.coefficient for one in computed]) if computed else np.full(1, np.nan)
    share = float(np.mean([verdict(one) for one in computed])) if computed else math.nan
    error = math.sqrt(max(share * (1 - share), 0.25 / len(found)) / max(len(computed), 1))
    failed = 1 - len(computed) / len(found)
    margin = (share - 0.5) if beyond else (0.5 - share)
    right = math.nan
    if m <= most_partitions("two-sided-geometric", 3) and share != 0.5 and computed:
        right = decisions(m, epsilon, share, failed=failed)[0 if margin > 0 else 1]
    low, high = np.quantile(values, [0.01, 0.99])
    return {
        "r": share,
        "r_se": error,
        "failed": failed,
        "estimate": values.mean(),
        "estimate_sd": values.std(),
        "low": low,
        "high": high,
        "right": right,
        "clear": margin > 2 * error,
    }


def pilot_warnings(tried: xr.Dataset, name: str, *, by_mean: bool = False) -> list[str]:
    """Say what a pilot tells against the designs tried."""
    found = []
    for m in tried["n_partitions"].values.tolist():
        one = tried.sel(n_partitions=m)
        r, failed = float(one["r"]), float(one["failed"])
        size = f"with M = {m} ({int(one['units']):,} units each)"
        if failed > _FAILED:
            found.append(
                f"\u201c{name}\u201d: on the pilot {100 * failed:.0f} % of partitions {size} cannot be computed; take "
                "fewer partitions, pool rare levels, or spread a public column evenly (strata)"
            )
        if not by_mean and not math.isnan(r) and (r > 0.5) != bool(tried.attrs["beyond"]):
            found.append(
                f"\u201c{name}\u201d: on the pilot the claim {'holds' if tried.attrs['beyond'] else 'does not hold'} "
                f"in all records and in {100 * r:.0f} % of partitions {size}; small samples are skewed here. Take "
                'fewer partitions, or ask about the coefficient itself (answer_by = "mean")'
            )
    return found


def partition_warnings(
    *,
    n_units: int,
    n_partitions: int,
    formula: str,
    family: str = "gaussian",
    levels: Mapping[str, Any] | None = None,
    level_shares: Mapping[str, Mapping[str, float]] | None = None,
    skew: float | None = None,
    strata: str | None = None,
) -> list[str]:
    """Say what public facts alone tell against partitions of n_units / M units."""
    size = n_units / n_partitions
    said, about = [], f"partitions of about {size:.0f} units (n = {n_units:,}, M = {n_partitions})"
    columns = model_columns(formula, levels or {})
    if columns is not None and size < _ROWS_PER_PARAMETER * len(columns):
        most = n_units // (_ROWS_PER_PARAMETER * len(columns))
        what = "vary much and some fail" if family == "gaussian" else "vary much, some fail, and the rest are biased"
        said.append(
            f"{about} hold fewer than ten for each of the {len(columns)} parameters of {formula}: estimates {what}; "
            + (f"take M up to {most}" if most else "this formula needs more records")
        )
    if skew is not None and size < 28 + 25 * skew**2:
        most = int(n_units / (28 + 25 * skew**2))
        said.append(
            f"{about} are too small for a response of skewness {skew:g}, which asks for {28 + 25 * skew**2:,.0f}: the "
            "share of partitions beyond a threshold may lie on the other side of one half than the coefficient of all "
            f'records; take M up to {most}, or ask about the coefficient itself (answer_by = "mean")'
        )
    for name, shares in (level_shares or {}).items():
        missing = _without_a_level([float(s) for s in shares.values()], size, n_units, n_partitions, strata == name)
        if missing > 0.05:
            said.append(
                f"{100 * missing:.0f} % of {about} are expected to lack a level of {name!r} by its declared shares, "
                "and cannot be computed; take fewer partitions, pool rare levels "
                f"(levels.{name} = {{common = [...], other = [...]}}), or set strata = {name!r} if the column is public"
            )
    return said


def _without_a_level(shares: Sequence[float], size: float, n_units: int, n_partitions: int, spread: bool) -> float:
    """Return the expected share of partitions that lack one level or more."""
    if spread:
        present = [min(1.0, share * n_units / n_partitions) for share in shares]
    else:
        present = [1 - (1 - share) ** size for share in shares]
    return 1 - math.prod(present)
