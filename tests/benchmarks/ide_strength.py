"""How much to trust a public prior: the strength chosen from the release against the best in hindsight.

Run as ``python tests/benchmarks/ide_strength.py FOLDER [epsilon ...]`` with the folder that holds ``ma2018.csv`` and
``ma2019.csv``; about ten minutes. Public halves are shifted by a covariate, by dependence, by a missing group, or not
at all; docs/ide.md sets them out. Beside it stands the release fitted in full on the public rows, at a strength of a
tenth of a record: what mbi's reweighting of public records aims at (Liu et al. 2021, PMW-Pub).
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from dpbayes.data import Domain, marginals
from dpbayes.ide import Prior, estimate
from dpbayes.privacy import release_tables

NAMES = ("AGEP", "SEX", "MSP", "HISP", "RAC1P", "NPF", "HOUSING_TYPE", "OWN_RENT")
NAMES += ("INDP_CAT", "EDU", "PINCP_DECILE", "POVPIP", "DVET", "DREM", "DPHY", "DEYE")
STRENGTHS = 2.0 ** np.arange(1, 14)


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


def tilted(frame: pl.DataFrame, log_weight: np.ndarray, seed: int) -> pl.DataFrame:
    """Keep records with probabilities proportional to the exponential of a weight."""
    keep = np.random.default_rng(seed).random(len(frame)) < np.exp(log_weight - log_weight.max())
    return frame.filter(pl.Series(keep))


def problems(folder: Path) -> dict[str, tuple[pl.DataFrame, pl.DataFrame]]:
    """Return public and confidential records by the kind of shift."""
    years = [pl.read_csv(folder / f"ma{year}.csv", infer_schema_length=0) for year in (2018, 2019)]
    both = pl.concat([year.select(NAMES) for year in years])
    records = binary(both, both)
    order = np.random.default_rng(1).permutation(len(records))
    public, private = records[order[: len(order) // 2]], records[order[len(order) // 2 :]]
    x = public.with_columns(pl.all().cast(pl.Int64)).to_numpy()
    s = 2 * x - 1
    pairs = s[:, 0] * s[:, 7] + s[:, 9] * s[:, 10] + s[:, 2] * s[:, 5]
    return {
        "unshifted": (public, private),
        "shifted by a covariate": (tilted(public, 1.2 * x[:, 0] - 0.8 * x[:, 9], 2), private),
        "shifted dependence": (tilted(public, 0.5 * pairs, 3), private),
        "a group missing": (public.filter((pl.col("AGEP") == "0") | (pl.col("OWN_RENT") == "0")), private),
        "2018 for 2019": (binary(years[0], both), binary(years[1], both)),
    }


def main(folder: Path, epsilons: list[float]) -> None:
    """Print one line per pair and epsilon."""
    for name, (public, private) in problems(folder).items():
        domain = Domain.from_levels({column: ("0", "1") for column in NAMES})
        prior, truth = Prior.from_frame(public, domain), Prior.from_frame(private, domain)
        sets = list(combinations(NAMES, 2))
        tables = marginals(private, sets, domain=domain)

        def error(weights, prior=prior, truth=truth, sets=sets) -> float:
            return float(np.mean([0.5 * np.abs(prior.marginal(s, weights) - truth.marginal(s)).sum() for s in sets]))

        for epsilon in epsilons:
            release = release_tables(tables, epsilon=epsilon, rng=np.random.default_rng(100))
            found = estimate(prior, release, pool=False)
            given = [estimate(prior, release, pool=False, strength=s).weights for s in STRENGTHS]
            best = min(map(error, given))
            full = error(estimate(prior, release, pool=False, strength=0.1).weights)
            print(
                f"{name:24s} epsilon {epsilon:<4g} prior {error(prior.weights):.4f}, best strength {best:.4f}, chosen "
                f"{error(found.weights):.4f} ({found.strength.value:,.0f} records); fitted in full {full:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(text) for text in sys.argv[2:]] or [0.1, 1.0, 10.0])
