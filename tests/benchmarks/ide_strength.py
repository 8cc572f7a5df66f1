"""How much to trust a public prior: the estimate as shipped against the best single strength in hindsight.

Run as ``python tests/benchmarks/ide_strength.py FOLDER [epsilon ...]`` with the folder that holds ``ma2018.csv`` and
``ma2019.csv``; six minutes of processor time. Public halves are shifted by a covariate, by dependence, by a missing
group, or not at all, on sixteen binary attributes and on eight of up to five levels; docs/ide.md sets the numbers out.
Beside them stands the share of all two-way cells that 95 % intervals hold, and the evidence: by how much the
likelihood of the released counts prefers the best strength in hindsight to that of agreement, with its standard
deviation over draws.
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from dpbayes.data import Domain, marginals
from dpbayes.ide import Prior, estimate
from dpbayes.ide.noise_aware import measure
from dpbayes.ide.strength import spectrum
from dpbayes.privacy import release_tables

NAMES = ("AGEP", "SEX", "MSP", "HISP", "RAC1P", "NPF", "HOUSING_TYPE", "OWN_RENT")
NAMES += ("INDP_CAT", "EDU", "PINCP_DECILE", "POVPIP", "DVET", "DREM", "DPHY", "DEYE")
DRAWS = {0.1: 16, 1.0: 4}  # of the noise; one where it is small


def binary(frame: pl.DataFrame, like: pl.DataFrame) -> pl.DataFrame:
    """Cut every attribute of `frame` in two, as near the middle of `like` as its levels allow."""

    def numbers(column: pl.Series) -> np.ndarray:
        return np.array([np.inf if value == "N" else float(value) for value in column])

    columns = {}
    for name in NAMES:
        whole = numbers(like[name])
        cut = min(np.unique(whole)[1:], key=lambda level, whole=whole: abs((whole >= level).mean() - 0.5))
        columns[name] = np.where(numbers(frame[name]) >= cut, "1", "0")
    return pl.DataFrame(columns)


def coarse(frame: pl.DataFrame) -> pl.DataFrame:
    """Return eight attributes of two to five levels."""
    schooling, marriage = pl.col("EDU").cast(pl.Int64, strict=False), pl.col("MSP")
    married = pl.when(marriage.is_in(["1", "2"])).then(pl.lit("1")).when(marriage.is_in(["6", "N"])).then(marriage)
    return frame.select(
        *("PUMA", "SEX", "HOUSING_TYPE", "OWN_RENT", "DEYE"),
        AGEP=(pl.col("AGEP").cast(pl.Int64) // 20).clip(upper_bound=4).cast(pl.String),
        MSP=married.otherwise(pl.lit("3")),
        EDU=pl.when(schooling.is_null()).then(pl.lit("N")).otherwise((schooling // 3).cast(pl.String)),
    )


def tilted(frame: pl.DataFrame, log_weight: np.ndarray, seed: int) -> pl.DataFrame:
    """Keep records with probabilities proportional to the exponential of a weight."""
    keep = np.random.default_rng(seed).random(len(frame)) < np.exp(log_weight - log_weight.max())
    return frame.filter(pl.Series(keep))


def problems(folder: Path) -> dict[str, tuple[pl.DataFrame, pl.DataFrame]]:
    """Return public and confidential records by the kind of shift: B are binary, F have up to five levels."""
    years = [pl.read_csv(folder / f"ma{year}.csv", infer_schema_length=0) for year in (2018, 2019)]
    both = pl.concat([year.select(NAMES) for year in years])
    order = np.random.default_rng(1).permutation(len(both))

    def halves(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        return frame[order[: len(order) // 2]], frame[order[len(order) // 2 :]]

    public, private = halves(binary(both, both))
    x = public.with_columns(pl.all().cast(pl.Int64)).to_numpy()
    s = 2 * x - 1
    pairs = s[:, 0] * s[:, 7] + s[:, 9] * s[:, 10] + s[:, 2] * s[:, 5]
    found = {
        "B, unshifted": (public, private),
        "B, shifted by a covariate": (tilted(public, 1.2 * x[:, 0] - 0.8 * x[:, 9], 2), private),
        "B, shifted dependence": (tilted(public, 0.5 * pairs, 3), private),
        "B, strongly shifted dependence": (tilted(public, pairs + 0.5 * s[:, 1] * s[:, 9], 4), private),
        "B, a group missing": (public.filter((pl.col("AGEP") == "0") | (pl.col("OWN_RENT") == "0")), private),
        "B, 2018 for 2019": (binary(years[0], both), binary(years[1], both)),
    }
    few = [coarse(year) for year in years]
    public, private = halves(pl.concat(few))
    age, rents = public["AGEP"].cast(pl.Int64).to_numpy(), (public["OWN_RENT"] == "2").to_numpy()
    return found | {
        "F, unshifted": (public, private),
        "F, shifted by a covariate": (tilted(public, 0.4 * age - 0.8 * rents, 5), private),
        "F, a PUMA missing": (public.filter(pl.col("PUMA") != public["PUMA"].min()), private),
        "F, 2018 for 2019": (few[0], few[1]),
    }


def measured(public: pl.DataFrame, private: pl.DataFrame, epsilon: float) -> dict[str, float]:
    """Return mean errors relative to the best strength in hindsight, and how often intervals hold."""
    domain = Domain.from_levels({name: sorted({*public[name], *private[name]}) for name in public.columns})
    prior, truth = Prior.from_frame(public, domain), Prior.from_frame(private, domain)
    sets = list(combinations(domain.names, 2))
    tables, exact = marginals(private, sets, domain=domain), [truth.marginal(names) for names in sets]

    def error(weights) -> float:
        gaps = [0.5 * np.abs(prior.marginal(s, weights) - t).sum() for s, t in zip(sets, exact, strict=True)]
        return float(np.mean(gaps))

    def evidence(release, strengths) -> float:
        found = spectrum(measure(prior, release))
        scale = found.ratios / np.array(strengths)[:, None]
        curve = -0.5 * (np.log1p(scale) + found.departures**2 / (1.0 + scale)).sum(axis=1)
        return float(curve[0] - curve[1])

    rows = []
    for draw in range(DRAWS.get(epsilon, 1)):
        release = release_tables(tables, epsilon=epsilon, rng=np.random.default_rng(100 + draw))
        found = estimate(prior, release, pool=False)
        grid = np.geomspace(2.0, found.strength.bound, 12)
        errors = [error(estimate(prior, release, pool=False, strength=s).weights) for s in grid]
        best, told = min(errors), evidence(release, (grid[int(np.argmin(errors))], grid[-1]))
        ends = [found.interval(names) for names in sets]
        held = [np.mean((low <= t) & (t <= high)) for (low, high), t in zip(ends, exact, strict=True)]
        alone, now = error(prior.weights), error(found.weights)
        rows.append((alone / best, now / best, now / alone, float(np.mean(held)), told))
    names = ("prior / best", "now / best", "now / prior", "covered", "evidence")
    means = dict(zip(names, np.mean(rows, axis=0), strict=True))
    return means | {"sd of evidence": float(np.std(rows, axis=0)[-1])}


def main(folder: Path, epsilons: list[float]) -> None:
    """Print one line per pair and epsilon."""
    for name, (public, private) in problems(folder).items():
        for epsilon in epsilons:
            found = measured(public, private, epsilon)
            print(
                f"{name:32s} epsilon {epsilon:<4g}",
                {key: round(float(value), 3) for key, value in found.items()},
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(text) for text in sys.argv[2:]] or [0.1, 1.0, 10.0])
