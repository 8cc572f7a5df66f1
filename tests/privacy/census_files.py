"""Files in the layout of the 2020 Census P.L. 94-171 noisy measurements, of simulated persons: truth is known here."""

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from dpbayes.privacy import CENSUS_DOMAIN, DiscreteGaussian

SHAPE = CENSUS_DOMAIN.shape
QUERIES = {  # axes that a query keeps; hhinstlevels and the total apart
    "hhgq_dpq": (0,),
    "votingage_dpq": (1,),
    "hispanic_dpq": (2,),
    "cenrace_dpq": (3,),
    "votingage * hispanic_dpq": (1, 2),
    "votingage * cenrace_dpq": (1, 3),
    "hispanic * cenrace_dpq": (2, 3),
    "votingage * hispanic * cenrace_dpq": (1, 2, 3),
    "detailed_dpq": (0, 1, 2, 3),
}


def simulated_tracts(n_tracts: int, rng: np.random.Generator, mean: float = 4000.0) -> np.ndarray:
    """Return counts of persons, shape ``(tracts, 8, 2, 2, 63)``: most cells are small or empty."""
    quarters = rng.dirichlet([900, 3, 1, 3, 1, 8, 1, 3], n_tracts)
    adults = np.array([0.77, 1.0, 0.1, 1.0, 0.6, 0.98, 1.0, 0.9])[None].repeat(n_tracts, axis=0)
    hispanic = rng.beta(2.0, 9.0, n_tracts)
    single = rng.dirichlet([60, 12, 1, 6, 0.3, 8], n_tracts)
    pairs = rng.dirichlet(np.r_[np.full(15, 0.5), np.full(42, 0.02)], n_tracts)
    race = np.concatenate([0.93 * single, 0.07 * pairs], axis=1)
    by_age = np.stack([1 - adults, adults], axis=2)
    share = np.einsum("tq,tqa,th,tr->tqahr", quarters, by_age, np.stack([1 - hispanic, hispanic], 1), race)
    size = rng.poisson(rng.gamma(8.0, mean / 8.0, n_tracts))
    return np.array([rng.multinomial(n, p.ravel() / p.sum()).reshape(SHAPE) for n, p in zip(size, share, strict=True)])


def write_measurements(
    folder: Path, counts: dict[str, np.ndarray], variance: float, rng: np.random.Generator, *, nation: str = "US"
) -> tuple[Path, Path]:
    """Write ``DPQuery`` and ``Constraint`` files of geographies; variances differ by query as the Bureau's do."""
    queries, constraints = [], []
    for geocode, exact in counts.items():
        asked = {"total_dpq": exact.sum().reshape(1), "hhinstlevels_dpq": _levels(exact.sum(axis=(1, 2, 3)))}
        asked |= {name: exact.sum(axis=tuple(set(range(4)) - set(axes))) for name, axes in QUERIES.items()}
        for k, (name, table) in enumerate(asked.items()):
            own = variance * (1.0 + 0.1 * k)
            noisy = table + DiscreteGaussian(own**0.5).simulate(table.shape, rng)
            row = {"geocode": geocode, "query_name": name, "query_shape": list(table.shape)}
            queries.append(row | {"value": noisy.ravel().tolist(), "variance": own})
        constraints.append({"geocode": geocode, "query_name": "nurse_nva_0_con", "value": [0]})
        gq = exact.sum(axis=(1, 2, 3))
        for name, bound in (("hhgq_total_lb_con", (gq > 0).astype(int)), ("hhgq_total_ub_con", gq + 99_999)):
            constraints.append({"geocode": geocode, "query_name": name, "value": bound.tolist()})
        if geocode == nation:
            constraints.append({"geocode": geocode, "query_name": "total_con", "value": [int(exact.sum())]})
    paths = []
    for kind, rows in (("DPQuery", queries), ("Constraint", constraints)):
        path = folder / "County.parquet" / kind / "State=01"
        path.mkdir(parents=True)
        pl.DataFrame(rows).write_parquet(path / "part-0.parquet")
        paths.append(folder / "County.parquet" / kind)
    return paths[0], paths[1]


def _levels(gq: np.ndarray) -> np.ndarray:
    return np.array([gq[0], gq[1:5].sum(), gq[5:].sum()])


def no_minors_in_nursing(counts: np.ndarray) -> np.ndarray:
    """Move the minors of nursing facilities, which cannot be, to households."""
    fixed = counts.copy()
    for t, h, r in product(range(len(counts)), range(2), range(SHAPE[3])):
        fixed[t, 0, 0, h, r] += fixed[t, 3, 0, h, r]
        fixed[t, 3, 0, h, r] = 0
    return fixed


COUNTY, GEOCODE = Path(__file__).resolve().parents[2] / "models" / "census_county.parquet", "0500000US00001"


def simulated_county() -> tuple[np.ndarray, pl.DataFrame]:
    """Return the exact counts and the measurements of the county of models/census_county.toml."""
    rng = np.random.default_rng(20)
    county = no_minors_in_nursing(simulated_tracts(12, rng)).sum(axis=0)
    with TemporaryDirectory() as folder:
        queries, _ = write_measurements(Path(folder), {GEOCODE: county}, 25.0, rng)
        return county, pl.read_parquet(queries / "**/*.parquet")


if __name__ == "__main__":
    simulated_county()[1].write_parquet(COUNTY)
