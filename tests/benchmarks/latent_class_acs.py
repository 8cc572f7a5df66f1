"""Ten noisy two-way tables of 10,000 census records: how far are the estimates off, and do the intervals cover?

acs2016_5binary.csv (five binary attributes), two-sided geometric noise at epsilon / 10 a table, replace-one; each noise
draw is fitted with one compiled model. Errors are sums of absolute differences in proportions against the records' own
tables: the mean over the ten released ones, and the full table of 32 cells. Run it again to go on; each fit is a line
of FOLDER/acs.jsonl.

    python tests/benchmarks/latent_class_acs.py FOLDER CSV --repeats 20 [--minutes 4] [--epsilon 1 0.5 0.25]

"""

import argparse
import json
import time
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from dpbayes.data import Domain, marginals
from dpbayes.inference.convergence import check_convergence
from dpbayes.inference.sampling import compile_model, settings_of
from dpbayes.latent_class import build_model, margin_draws, sampler_defaults
from dpbayes.latent_class.likelihood import release_data
from dpbayes.privacy import release_tables

# max-entropy graphical model (mbi 2.0.0), mean of 100 noise draws
PEER_CELLS = {0.25: 0.0935, 0.5: 0.0620, 1.0: 0.0498}


def exact_tables(path: Path):
    """The ten two-way tables and the full one."""
    frame = pl.read_csv(path)
    domain = Domain.from_levels({name: (0, 1) for name in frame.columns})
    pairs = list(combinations(frame.columns, 2))
    return marginals(frame, pairs, domain=domain), marginals(frame, [frame.columns], domain=domain)[0]


def summarize(draws: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """L1 error of the posterior mean and coverage of the 95 % intervals; draws have shape (draws, cells)."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    inside = (low <= truth) & (truth <= high)
    return float(np.abs(draws.mean(axis=0) - truth).sum()), float(inside.mean())


def fit(compiled, tables, full, epsilon: float, repeat: int, settings, spread: float | None) -> dict:
    """Draw a release, fit it, and compare with the records' own tables."""
    release = release_tables(tables, epsilon=epsilon, rng=np.random.default_rng([20_231, repeat]))
    data = release_data(release, "cells" if "rotation" in compiled.model.named_vars else "tables", spread=spread)
    started, cpu = time.perf_counter(), time.process_time()
    trace = compiled.fit(settings, data=data, random_seed=repeat, progressbar=False)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    verdict = check_convergence(trace)
    n = full.total
    truth = np.concatenate([table.counts.ravel() for table in tables]) / n
    exact = trace["posterior"]["exact_counts"].to_numpy().reshape(-1, truth.size) / n
    records = margin_draws(trace, full.domain.names, target="records", release=release, random_seed=repeat)
    cells = full.counts.ravel() / n
    row = {"seconds": seconds, "cpu": cpu, "passed": verdict.passed, "rhat": verdict.value("rhat")}
    row |= {"ess": verdict.value("ess_bulk"), "divergent": verdict.value("divergences")}
    l1, row["tables_cover"] = summarize(exact, truth)
    row["tables_l1"] = l1 / len(tables)
    row["raw_l1"] = float(np.abs(data["released_counts"] / n - truth).sum()) / len(tables)
    row["records_l1"], row["records_cover"] = summarize(records.to_numpy().reshape(-1, 32), cells)
    population = trace["posterior"]["cell"].to_numpy().reshape(-1, 32)
    row["cells_l1"], row["cells_cover"] = summarize(population, cells)
    return row


def run(folder: Path, csv: Path, epsilons, repeats: int, minutes: float, model_options: dict) -> None:
    """Fit what is missing until the time is up."""
    deadline = time.monotonic() + 60 * minutes
    tables, full = exact_tables(csv)
    done = {(row["epsilon"], row["repeat"]) for row in read(folder)}
    settings = settings_of("many-chains", {k: v for k, v in sampler_defaults().items() if k != "method"})
    for epsilon in epsilons:
        todo = [repeat for repeat in range(repeats) if (epsilon, repeat) not in done]
        if not todo or time.monotonic() > deadline:
            continue
        release = release_tables(tables, epsilon=epsilon, rng=np.random.default_rng(0))
        compiled = compile_model(build_model(release, **model_options), method="many-chains")
        for repeat in todo:
            if time.monotonic() > deadline:
                break
            found = fit(compiled, tables, full, epsilon, repeat, settings, model_options["spread"])
            with (folder / "acs.jsonl").open("a") as lines:
                lines.write(json.dumps({"epsilon": epsilon, "repeat": repeat, **found}) + "\n")


def read(folder: Path) -> list[dict]:
    """Read the fits that are there."""
    path = folder / "acs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict]) -> str:
    """One line an epsilon: means over the noise draws."""
    names = ("tables_l1", "raw_l1", "tables_cover", "cells_l1", "records_l1", "cells_cover", "records_cover")
    lines = ["epsilon fits " + " ".join(f"{name:>13}" for name in names) + "   passed  seconds  peer_cells"]
    for epsilon in sorted({row["epsilon"] for row in rows}):
        fits = [row for row in rows if row["epsilon"] == epsilon]
        means = " ".join(f"{np.mean([row[name] for row in fits]):13.4f}" for name in names)
        passed = sum(row["passed"] for row in fits)
        seconds, peer = np.median([row["seconds"] for row in fits]), PEER_CELLS.get(epsilon, np.nan)
        lines.append(f"{epsilon:7g} {len(fits):4d} {means} {passed:3d}/{len(fits)} {seconds:8.1f} {peer:9.4f}")
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--epsilon", type=float, nargs="*", default=(1.0, 0.5, 0.25))
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--spread", type=float, help="Sd of the profiles' scores, if not the default.")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = {"n_classes": arguments.classes, "spread": arguments.spread}
    run(arguments.folder, arguments.csv, arguments.epsilon, arguments.repeats, arguments.minutes, options)
    print(table(read(arguments.folder)))


if __name__ == "__main__":
    main()
