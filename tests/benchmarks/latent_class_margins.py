"""Seconds of CPU for margins and regressions of a fit of fourteen attributes of 2 to 10 levels.

Times depend on sizes alone, so the posterior is drawn at random: 3,072 draws of 20 classes, all 91 pairs released.

    python tests/benchmarks/latent_class_margins.py
"""

import time
from itertools import combinations

import numpy as np
import xarray as xr

from dpbayes.data import Domain, Marginal
from dpbayes.latent_class import margin_draws, regress
from dpbayes.privacy import release_tables

SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 3, 5, 7, 10]
DOMAIN = Domain.from_levels({f"a{place}": range(size) for place, size in enumerate(SIZES)})
CHAINS, DRAWS, CLASSES, RECORDS = 4, 768, 20, 30_000


def fit():
    """Return a trace as a fit leaves it, and its release."""
    rng = np.random.default_rng(1)
    dims = ("chain", "draw", "class")
    posterior = {"weights": (dims, rng.dirichlet(np.ones(CLASSES), (CHAINS, DRAWS)))}
    for attribute in DOMAIN:
        profiles = rng.dirichlet(np.full(attribute.size, 0.7), (CHAINS, DRAWS, CLASSES))
        posterior[f"profile_{attribute.name}"] = ((*dims, attribute.name), profiles)
    columns = [rng.integers(0, size, RECORDS) for size in SIZES]
    tables = []
    for i, j in combinations(range(len(SIZES)), 2):
        counts = np.bincount(columns[i] * SIZES[j] + columns[j], minlength=SIZES[i] * SIZES[j])
        tables.append(Marginal(DOMAIN.project([f"a{i}", f"a{j}"]), counts.reshape(SIZES[i], SIZES[j])))
    release = release_tables(tables, rho=0.1, noise="discrete-gaussian", rng=rng)
    exact = np.concatenate([table.counts.ravel() for table in tables])
    posterior["exact_counts"] = (("chain", "draw", "count"), exact + rng.normal(0, 5, (CHAINS, DRAWS, len(exact))))
    coords = {attribute.name: list(attribute.levels) for attribute in DOMAIN}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior, coords=coords)}), release


def main():
    trace, release = fit()
    of_records = {"target": "records", "release": release, "random_seed": 1}
    for names in (["a1", "a8"], ["a6", "a7", "a8"], ["a5", "a6", "a7", "a8"]):
        for options in ({}, of_records):
            _timed(
                f"margin of {DOMAIN.project(names).size:,} cells",
                options,
                lambda n=names, o=options: margin_draws(trace, n, **o),
            )
    for family, formula in (("logistic", "a0 ~ C(a3) + C(a5) + C(a7)"), ("linear", "a8 ~ C(a3) + C(a5) + C(a7)")):
        for options in ({}, of_records):
            _timed(formula, options, lambda f=formula, o=options, k=family: regress(trace, f, family=k, **o))


def _timed(what, options, call):
    started = time.process_time()
    call()
    print(f"{what}, {options.get('target', 'population')}: {time.process_time() - started:.1f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
