"""Does every fit converge? Two data sets, four epsilons, five and ten classes.

The ten two-way tables printed in the paper, and those of acs2016_5binary.csv: 10,000 census records of five binary
attributes each; two-sided geometric noise at epsilon / 10 a table, replace-one. Each fit is a line of
FOLDER/ladder.jsonl; a new call goes on.

    python tests/benchmarks/latent_class_ladder.py FOLDER CSV --draws 2000 --tune 1000 --target-accept 0.96
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np
from latent_class_acs import exact_tables

from dpbayes.data import datasets
from dpbayes.inference.compiled import compile_model
from dpbayes.inference.diagnostics import check_convergence
from dpbayes.inference.nuts import NutsSettings
from dpbayes.latent_class import build_model, sampler_defaults
from dpbayes.privacy import release_tables

EPSILONS = (0.25, 0.5, 1.0, 4.0)


def fit(tables, epsilon: float, n_classes: int, settings: NutsSettings) -> dict:
    """Draw a release and fit it."""
    release = release_tables(tables, epsilon=epsilon, rng=np.random.default_rng([7, int(100 * epsilon)]))
    compiled = compile_model(build_model(release, n_classes=n_classes))
    started, cpu = time.perf_counter(), time.process_time()
    trace = compiled.fit(settings, random_seed=1, progressbar=False)
    verdict, stats = check_convergence(trace), trace["sample_stats"]
    row = {key: verdict.value(key) for key in ("rhat", "ess_bulk", "ess_tail")} | {"passed": verdict.passed}
    row |= {"divergent": int(stats["diverging"].sum()), "steps": float(stats["n_steps"].mean())}
    return row | {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("csv", type=Path)
    defaults = sampler_defaults()
    for name in ("draws", "tune", "target_accept"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(defaults[name]), default=defaults[name])
    parser.add_argument("--classes", type=int, nargs="*", default=(5, 10))
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    names = ("draws", "tune", "target_accept", "cores")
    settings = NutsSettings(**defaults | {name: getattr(arguments, name) for name in names})
    data = {"acs_tables": datasets.acs_tables(), arguments.csv.stem: exact_tables(arguments.csv)[0]}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "ladder.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for n_classes, name, epsilon in product(arguments.classes, data, EPSILONS):
        key = {"data": name, "classes": n_classes, "epsilon": epsilon}
        if not any(key.items() <= row.items() for row in rows):
            rows.append(key | fit(data[name], epsilon, n_classes, settings))
            with path.open("a") as lines:
                lines.write(json.dumps(rows[-1]) + "\n")
    for row in rows:
        print("  ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    print(f"{sum(row['passed'] for row in rows)} of {len(rows)} passed; columns: {', '.join(rows[0])}")


if __name__ == "__main__":
    main()
