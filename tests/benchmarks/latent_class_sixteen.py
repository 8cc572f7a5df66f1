"""Sixteen binary attributes, 120 two-way tables, 20,000 generated records: does a fit pass, how fast, in what memory?

Records come from a mixture of ten classes; two-sided geometric noise at epsilon / 120 a table, replace-one. Nothing
over the 65,536 cells of the full table is ever built.

    python tests/benchmarks/latent_class_sixteen.py [--data-seed 0] [--seed 1] [--epsilon 1] [--profile-prior 0.5]

With other numbers of attributes all two-way tables of theirs are released, and up to twelve every cell is judged too.
"""

import argparse
import json
import resource
import time
from itertools import combinations

import numpy as np

from dpbayes.data import Domain, Marginal
from dpbayes.inference import sample
from dpbayes.inference.diagnostics import check_convergence
from dpbayes.latent_class import build_model, sampler_defaults
from dpbayes.privacy import Release, release_tables

ATTRIBUTES, CLASSES, RECORDS = 16, 10, 20_000


def generated_tables(attributes: int, rng: np.random.Generator) -> list[Marginal]:
    """Count all two-way tables of records drawn from a mixture."""
    domain = Domain.from_levels({f"x{i}": (0, 1) for i in range(attributes)})
    weights = rng.dirichlet(np.full(CLASSES, 2.0))
    profiles = rng.beta(0.7, 0.7, size=(CLASSES, attributes))
    members = rng.choice(CLASSES, RECORDS, p=weights)
    records = (rng.random((RECORDS, attributes)) < profiles[members]).astype(int)
    return [
        Marginal(
            domain.project([f"x{a}", f"x{b}"]),
            np.bincount(2 * records[:, a] + records[:, b], minlength=4).reshape(2, 2),
        )
        for a, b in combinations(range(attributes), 2)
    ]


def fit(release: Release, exact: np.ndarray, seed: int, profile_prior: float | None, changes: dict) -> dict:
    """Fit, and say what it took and how far it is from the exact counts."""
    started, cpu = time.perf_counter(), time.process_time()
    model = build_model(release, n_classes=CLASSES, profile_prior=profile_prior)
    trace = sample(model, random_seed=seed, predictive=False, **sampler_defaults(model) | changes)
    verdict, stats = check_convergence(trace), trace["sample_stats"]
    draws = trace["posterior"]["exact_counts"].to_numpy().reshape(-1, exact.size)
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    released = np.concatenate([table.counts.ravel() for table in release.tables])
    scale = len(release.tables) * RECORDS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "minutes": (time.perf_counter() - started) / 60,
        "cpu_minutes": (time.process_time() - cpu) / 60,
        "peak_gigabytes": peak,
        "passed": verdict.passed,
        "rhat": verdict.value("rhat"),
        "ess_bulk": verdict.value("ess_bulk"),
        "ess_tail": verdict.value("ess_tail"),
        "divergent": int(stats["diverging"].sum()),
        "reached_max_treedepth": float(stats["reached_max_treedepth"].mean()),
        "steps_a_draw": float(stats["n_steps"].mean()),
        "l1_a_table_released": float(np.abs(released - exact).sum() / scale),
        "l1_a_table": float(np.abs(draws.mean(axis=0) - exact).sum() / scale),
        "covered": float(np.mean((low <= exact) & (exact <= high))),
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attributes", type=int, default=ATTRIBUTES)
    parser.add_argument("--data-seed", type=int, default=0, help="of the classes, the records and the noise")
    parser.add_argument("--seed", type=int, default=1, help="of the sampler")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--profile-prior", type=float)
    parser.add_argument("--draws", type=int)
    parser.add_argument("--tune", type=int)
    parser.add_argument("--target-accept", type=float)
    arguments = parser.parse_args()
    tables = generated_tables(arguments.attributes, np.random.default_rng(arguments.data_seed))
    release = release_tables(tables, epsilon=arguments.epsilon, rng=np.random.default_rng(arguments.data_seed))
    changes = {name: getattr(arguments, name) for name in ("draws", "tune", "target_accept")}
    given = {name: value for name, value in changes.items() if value is not None}
    exact = np.concatenate([table.counts.ravel() for table in tables])
    print(json.dumps(fit(release, exact, arguments.seed, arguments.profile_prior, given), indent=1))


if __name__ == "__main__":
    main()
