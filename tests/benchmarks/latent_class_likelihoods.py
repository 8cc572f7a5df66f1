"""Which likelihood is right? Both fitted to the same simulated releases, whose tables are margins of one table.

Three binary attributes, their three two-way tables, two-sided geometric noise, replace-one. A mixture comes from the
prior, n records from the mixture, their tables are counted, and noise is added: nothing is approximated. Each data set
is fitted with the joint and with the composite likelihood; each fit is a line of FOLDER/fits.jsonl. A new call goes on.

    python tests/benchmarks/latent_class_likelihoods.py FOLDER --records 2000 --epsilon 1 --simulations 100 --minutes 4
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from dpbayes.data import Domain, Marginal
from dpbayes.inference.compiled import compile_model
from dpbayes.inference.diagnostics import check_convergence
from dpbayes.inference.nuts import NutsSettings
from dpbayes.inference.sbc_fit import ranks_among
from dpbayes.inference.sbc_ranks import coverage, uniformity
from dpbayes.latent_class import build_model
from dpbayes.privacy import release_tables
from dpbayes.runs.calibration_latent_class import LatentClassSimulator

DOMAIN = Domain.from_levels({"a": (0, 1), "b": (0, 1), "c": (0, 1)})
PAIRS = [("a", "b"), ("a", "c"), ("b", "c")]
LIKELIHOODS = ("joint", "composite")
VARIABLES = ("margin", "cell")
N_RANKS = 99
SETTINGS = NutsSettings(draws=300, tune=300, chains=2, target_accept=0.9, max_treedepth=8)


def design(n: int, epsilon: float):
    """A release of the design; its records are invented."""
    tables = [Marginal(DOMAIN.project(names), np.full((2, 2), n // 4)) for names in PAIRS]
    return release_tables(tables, epsilon=epsilon, rng=np.random.default_rng(0))


def fit(compiled, truth, data, index: int) -> dict:
    """Fit one data set: ranks and widths of every quantity, and how the fit went."""
    started = time.perf_counter()
    trace = compiled.fit(SETTINGS, data=data, random_seed=index, progressbar=False)
    row = {"seconds": time.perf_counter() - started}
    rng = np.random.default_rng([index, 7])
    for name in VARIABLES:
        draws = trace["posterior"][name].transpose("chain", "draw", ...).to_numpy()
        row[f"rank:{name}"] = ranks_among(np.asarray(truth[name]), draws, n_ranks=N_RANKS, rng=rng).ravel().tolist()
        low, high = np.quantile(draws, [0.025, 0.975], axis=(0, 1))
        row[f"width:{name}"] = (high - low).ravel().tolist()
    verdict = check_convergence(trace, var_names=VARIABLES, rhat_max=1.05, ess_min=N_RANKS)
    return row | {key: verdict.value(key) for key in ("rhat", "ess_bulk", "divergences")}


def run(folder: Path, n: int, epsilon: float, simulations: int, minutes: float) -> None:
    """Fit what is missing until the time is up."""
    deadline = time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    release = design(n, epsilon)
    build = partial(build_model, release, n_classes=3)
    simulate = LatentClassSimulator(release, build, n)
    seen = {(row["likelihood"], row["simulation"]) for row in read(folder)}
    compiled = {name: compile_model(build(likelihood=name)) for name in LIKELIHOODS}
    with folder.joinpath("fits.jsonl").open("a") as lines:
        for index in range(simulations):
            for name in LIKELIHOODS:
                if (name, index) in seen:
                    continue
                if time.monotonic() > deadline:
                    return
                truth, data = simulate(index)
                row = {"likelihood": name, "simulation": index, "n": n, "epsilon": epsilon}
                lines.write(json.dumps(row | fit(compiled[name], truth, data, index)) + "\n")
                lines.flush()


def read(folder: Path) -> list[dict]:
    """Return the fits of a folder."""
    path = folder / "fits.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(folder: Path) -> None:
    """Print coverage, uniformity and widths by likelihood, over simulations that both have fitted."""
    rows = read(folder)
    both = set.intersection(*({row["simulation"] for row in rows if row["likelihood"] == name} for name in LIKELIHOODS))
    widths = {}
    for name in LIKELIHOODS:
        ours = sorted(
            (row for row in rows if row["likelihood"] == name and row["simulation"] in both),
            key=lambda row: row["simulation"],
        )
        converged = sum(row["rhat"] <= 1.05 for row in ours)
        share = np.mean([row["divergences"] for row in ours])
        print(f"{name}: {len(ours)} fits, {np.median([row['seconds'] for row in ours]):.2f} s in the median, "
              f"R-hat <= 1.05 in {converged}, mean divergent share {share:.2%}")  # fmt: skip
        for variable in VARIABLES:
            ranks = np.array([row[f"rank:{variable}"] for row in ours])
            pit = xr.Dataset({variable: (("simulation", "part"), (ranks + 0.5) / (N_RANKS + 1))})
            study = xr.DataTree.from_dict({"prior_sbc": pit})
            study.attrs["n_ranks"] = N_RANKS
            covered = [np.mean(list(coverage(study, prob=prob).values())) for prob in (0.5, 0.8, 0.95)]
            worst = min(coverage(study).values())
            p_values = np.array(list(uniformity(study).values()))
            widths[name, variable] = np.mean([row[f"width:{variable}"] for row in ours])
            print(
                f"  {variable}: covered "
                + " ".join(f"{share:.1%}" for share in covered)
                + f" (worst at 95 %: {worst:.1%}); p of uniform ranks: mean {p_values.mean():.2g}, "
                f"smallest x {p_values.size} {min(1.0, p_values.min() * p_values.size):.2g}; "
                f"mean width {widths[name, variable]:.4f}"
            )
    for variable in VARIABLES:
        print(f"{variable}: composite / joint width {widths['composite', variable] / widths['joint', variable]:.3f}")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    run(arguments.folder, arguments.records, arguments.epsilon, arguments.simulations, arguments.minutes)
    report(arguments.folder)


if __name__ == "__main__":
    main()
