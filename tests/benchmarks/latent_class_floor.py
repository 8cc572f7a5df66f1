"""Ten noisy two-way tables of 10,000 census records: how small can the error of the tables be?

Given the tables' linear relations, the released counts are a location family: fifteen unknown coordinates plus noise
of a known law. No estimator that moves with the data has a smaller squared error than the posterior mean under a flat
prior (Pitman 1939), which is minimax. Its error on the noise draws of `latent_class_acs.py` is what can be asked of a
fit that learns nothing from its prior; beside it least squares, the same for Gaussian noise of the same variance.

    python tests/benchmarks/latent_class_floor.py CSV [--epsilon 1] [--repeats 200]
"""

import argparse
from pathlib import Path

import numpy as np
from latent_class_acs import exact_tables

from dpbayes.inference.margin_operator import margin_operator
from dpbayes.privacy import release_tables

STEPS, BURN_IN, WANTED_ACCEPTANCE = 120_000, 20_000, 0.25


def pitman(released: np.ndarray, fitted: np.ndarray, basis: np.ndarray, scale: float) -> np.ndarray:
    """Return posterior means under a flat prior by random-walk Metropolis, all releases side by side.

    ``released`` and the least-squares fits have shape (releases, counts), the orthonormal ``basis`` (counts, unknowns).
    """
    rng = np.random.default_rng(1)
    moved, residual = np.zeros((len(released), basis.shape[1])), released - fitted
    density, total, step = (
        -np.abs(residual).sum(axis=1) / scale,
        np.zeros_like(moved),
        np.full(len(released), scale / 2),
    )
    for i in range(STEPS):
        jump = rng.standard_normal(moved.shape) * step[:, None]
        proposed = residual - jump @ basis.T
        new = -np.abs(proposed).sum(axis=1) / scale
        taken = np.log(rng.random(len(released))) < new - density
        moved[taken] += jump[taken]
        residual[taken], density[taken] = proposed[taken], new[taken]
        if i < BURN_IN:
            step *= np.exp(0.02 * (taken - WANTED_ACCEPTANCE))
        else:
            total += moved
    return fitted + total / (STEPS - BURN_IN) @ basis.T


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    tables, full = exact_tables(arguments.csv)
    releases = [
        release_tables(tables, epsilon=arguments.epsilon, rng=np.random.default_rng([20_231, repeat]))
        for repeat in range(arguments.repeats)
    ]
    truth = np.concatenate([table.counts.ravel() for table in tables])
    released = np.stack([np.concatenate([t.counts.ravel() for t in release.tables]) for release in releases])
    operator = margin_operator(full.domain, [table.domain.names for table in tables])
    basis = np.linalg.qr(operator.matrix)[0]
    centre = full.total * operator.constant
    fitted = centre + (released - centre) @ basis @ basis.T
    scale = releases[0].tables[0].noise.scale
    estimates = {"as released": released, "least squares": fitted, "flat prior": pitman(released, fitted, basis, scale)}
    for name, estimate in estimates.items():
        error = np.abs(estimate - truth).sum(axis=1) / full.total / len(tables)
        parts = (error[:20], error)
        print(
            f"{name:14s}", *(f"{len(x):4d} draws {x.mean():.5f} +- {x.std(ddof=1) / len(x) ** 0.5:.5f}" for x in parts)
        )


if __name__ == "__main__":
    main()
