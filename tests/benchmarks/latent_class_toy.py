"""The toy study of the NAPSU-MQ paper: do 95 % intervals of coefficients hold their level, and how wide?

Three binary attributes, 2,000 records: x1, x2 fair coins, y logistic in them with coefficients 1 and 0. Their full
table is released by the Gaussian mechanism at (epsilon, 2000^-2), replace-one, and the coefficients are read off the
posterior of the population's cell probabilities. Model and sampler are those of `dpbayes run`: eight classes, many
chains (`--classes 4 --method nuts` is one class for each pair x1, x2, enough for every such distribution). Run it
again to go on; each fit is a line of FOLDER/toy.jsonl.
`--plug-in` shows instead how often intervals cover that know no prior: maximum likelihood from the noisy counts, with
the delta method's variance of sampling and noise. What they miss their level by is chance, or the normal approximation.

    python tests/benchmarks/latent_class_toy.py FOLDER --repeats 500 [--minutes 4] [--epsilon 0.1 1] [--plug-in]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from dpbayes.data import Domain
from dpbayes.inference.convergence import check_convergence
from dpbayes.inference.sampling import NutsSettings, compile_model, settings_of
from dpbayes.latent_class import build_model, regress, sampler_defaults
from dpbayes.latent_class.likelihood import release_data
from dpbayes.privacy import Gaussian, NoisyTable, Release

N = 2000
EPSILONS = (0.1, 0.25, 0.5, 1.0, 10.0)
NAPSU_WIDTH = {0.1: 1.77, 0.25: 0.77, 0.5: 0.50, 1.0: 0.43, 10.0: 0.36}  # read off the figure of the paper
TRUTH = {"x1": 1.0, "x2": 0.0}
DOMAIN = Domain.from_levels({"x1": (0, 1), "x2": (0, 1), "y": (0, 1)})


def noise_of(epsilon: float) -> Gaussian:
    """One record more here and one less there: an L2 sensitivity of sqrt(2)."""
    return Gaussian.from_epsilon(epsilon, delta=N**-2.0, sensitivity=2**0.5)


def draw_release(epsilon: float, repeat: int) -> Release:
    """Draw a confidential data set and its released table; both depend on the repeat alone."""
    rng = np.random.default_rng([20_230, repeat])
    x = rng.integers(0, 2, size=(N, 2))
    y = rng.random(N) < 1 / (1 + np.exp(-x[:, 0]))
    counts = np.bincount(4 * x[:, 0] + 2 * x[:, 1] + y, minlength=8).reshape(2, 2, 2)
    noise = noise_of(epsilon)
    table = NoisyTable(DOMAIN, counts + rng.normal(size=counts.shape) * noise.stddev, noise, 2**0.5, None)
    return Release(DOMAIN, (table,), "replace-one", N, "simulation")


def fit(compiled, release: Release, seed: int, settings) -> dict:
    """Fit one release and summarize both coefficients."""
    started, cpu = time.perf_counter(), time.process_time()
    trace = compiled.fit(settings, data=release_data(release, "tables"), random_seed=seed, progressbar=False)
    verdict = check_convergence(trace)
    coefficients = regress(trace, "y ~ x1 + x2")
    found = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    found |= {"passed": verdict.passed, "rhat": verdict.value("rhat"), "ess": verdict.value("ess_bulk")}
    for name in TRUTH:
        draws = coefficients.sel(term=name).to_numpy().ravel()
        found[name] = [float(draws.mean()), *map(float, np.quantile(draws, [0.025, 0.975]))]
    return found


def plug_in(release: Release) -> tuple[np.ndarray, np.ndarray]:
    """Return both coefficients by maximum likelihood from the noisy counts as they stand, and standard errors."""
    rows = np.array([[1, a, b] for a in (0, 1) for b in (0, 1)], dtype=float)
    counts = np.maximum(release.tables[0].counts.reshape(4, 2), 0.0)
    variance, beta = release.tables[0].noise.variance, np.zeros(3)
    for _ in range(50):
        p = 1 / (1 + np.exp(-rows @ beta))
        information = (rows.T * counts.sum(axis=1) * p * (1 - p)) @ rows
        beta += np.clip(np.linalg.solve(information, rows.T @ (counts[:, 1] - counts.sum(axis=1) * p)), -2, 2)
    inverse = np.linalg.inv(information)
    score = information + (rows.T * variance * (p**2 + (1 - p) ** 2)) @ rows
    return beta[1:], np.sqrt(np.diag(inverse @ score @ inverse))[1:]


def plug_in_table(epsilons, repeats: int) -> str:
    """One line an epsilon: how often 95 % intervals of `plug_in` cover, in the first hundred data sets and in all."""
    lines = [f"epsilon  cover x1  cover x2, 100 data sets; cover x1  cover x2, {repeats}"]
    for epsilon in epsilons:
        found = [plug_in(draw_release(epsilon, repeat)) for repeat in range(repeats)]
        z = np.array([(beta - list(TRUTH.values())) / error for beta, error in found])
        shares = [np.mean(np.abs(part) < 1.96, axis=0) for part in (z[:100], z)]
        lines.append(f"{epsilon:7g} " + " ".join(f"{share:9.3f}" for share in np.concatenate(shares)))
    return "\n".join(lines)


def run(folder: Path, epsilons, repeats: int, minutes: float, n_classes: int | None, method: str) -> None:
    """Fit what is missing until the time is up."""
    deadline = time.monotonic() + 60 * minutes
    path = folder / "toy.jsonl"
    done = {(row["epsilon"], row["repeat"]) for row in read(folder)}
    settings = NutsSettings(draws=1000, tune=400, chains=2, target_accept=0.94)
    if method == "many-chains":
        settings = settings_of(method, {k: v for k, v in sampler_defaults().items() if k != "method"})
    for epsilon in epsilons:
        todo = [repeat for repeat in range(repeats) if (epsilon, repeat) not in done]
        if not todo or time.monotonic() > deadline:
            continue
        compiled = compile_model(build_model(draw_release(epsilon, 0), n_classes=n_classes), method=method)
        for repeat in todo:
            if time.monotonic() > deadline:
                break
            row = {
                "epsilon": epsilon,
                "repeat": repeat,
                **fit(compiled, draw_release(epsilon, repeat), repeat, settings),
            }
            with path.open("a") as lines:
                lines.write(json.dumps(row) + "\n")


def read(folder: Path) -> list[dict]:
    """Read the fits that are there."""
    path = folder / "toy.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict]) -> str:
    """One line an epsilon: coverage, mean width of both coefficients against NAPSU-MQ's, mean error, gate."""
    lines = ["epsilon  fits  cover x1  cover x2  width x1  width x2  / NAPSU-MQ  bias x1  bias x2  gate  seconds"]
    for epsilon in sorted({row["epsilon"] for row in rows}):
        fits = [row for row in rows if row["epsilon"] == epsilon]
        ends = {name: np.array([row[name] for row in fits]) for name in TRUTH}
        cover = [np.mean((e[:, 1] <= TRUTH[name]) & (TRUTH[name] <= e[:, 2])) for name, e in ends.items()]
        width = [np.mean(e[:, 2] - e[:, 1]) for e in ends.values()]
        bias = [np.mean(e[:, 0]) - TRUTH[name] for name, e in ends.items()]
        lines.append(
            f"{epsilon:7g} {len(fits):5d} {cover[0]:9.3f} {cover[1]:9.3f} {width[0]:9.3f} {width[1]:9.3f} "
            f"{np.mean(width) / NAPSU_WIDTH[epsilon]:11.3f} {bias[0]:8.3f} {bias[1]:8.3f} "
            f"{np.mean([row['passed'] for row in fits]):5.2f} {np.median([row['seconds'] for row in fits]):8.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--epsilon", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--plug-in", action="store_true")
    parser.add_argument("--classes", type=int, default=None)
    parser.add_argument("--method", choices=("many-chains", "nuts"), default="many-chains")
    arguments = parser.parse_args()
    if arguments.plug_in:
        print(plug_in_table(arguments.epsilon, arguments.repeats))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder, epsilons, repeats, minutes = arguments.folder, arguments.epsilon, arguments.repeats, arguments.minutes
    run(folder, epsilons, repeats, minutes, arguments.classes, arguments.method)
    print(table(read(arguments.folder)))


if __name__ == "__main__":
    main()
