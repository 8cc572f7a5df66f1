"""Coverage and seconds of reach lattices, on simulated audiences that are not drawn from the model.

Run as ``python tests/benchmarks/reach_lattices.py SOURCE PUBLISHERS WEEKS AUDIENCES [DRAWS]``. SOURCE is the standard
deviation of published numbers as a share of the people (each publisher and all are published, no pair), or ``filters``
for one release of filters per week. In every second audience people have interests in three kinds of publishers. The
model is compiled once; the first audience has four chains of 800 draws and the convergence check, the others two of
DRAWS after 250 of tuning. A line per audience: the shares of publishers, of pairs and of all together, in every week,
whose 95 % interval holds the truth.
"""

import runpy
import sys
import time
from pathlib import Path

import numpy as np

from dpbayes.bloom.filters import BitDistribution, WeeklyFilters, build_filters, shuffle_flip
from dpbayes.bloom.model import build_lattice_model
from dpbayes.bloom.reach import ReachNumbers, shown_sets
from dpbayes.inference import check_convergence
from dpbayes.inference.sampling import NutsSettings, compile_model

PEOPLE = 20_000
SHARED = runpy.run_path(str(Path(__file__).parents[1] / "bloom" / "test_lattice.py"))


def released(source: str, publishers: int, weeks: int, seed: int):
    """Return what is released of an audience, and the true reach by set and week."""
    rng = np.random.default_rng(1000 + seed)
    first = SHARED["simulated_audience"](seed, PEOPLE, publishers, weeks, kinds=3 * (seed % 2))
    true = {which: np.array(SHARED["reach_by_week"](first, which, weeks)) for which in shown_sets(publishers)}
    if source != "filters":
        noise, names = PEOPLE * float(source), "abcdefghij"
        told = {which: n for which, n in true.items() if len(which) in (1, publishers)}
        noisy = {tuple(names[i] for i in which): n + rng.normal(0.0, noise, n.size) for which, n in told.items()}
        return ReachNumbers.of(noisy, stddev=noise), true
    filters = []
    for week in range(1, weeks + 1):
        people = [np.flatnonzero(one <= week) for one in first]
        built = build_filters(people, distribution=BitDistribution(50_000), seed=100 * seed + week)
        filters.append(shuffle_flip(built, flip_prob=0.2, rng=rng))
    return WeeklyFilters(filters), true


def main(source: str, publishers: int, weeks: int, audiences: int, draws: int = 250) -> None:
    """Print seconds of processor time, the convergence check of the first audience, and coverage so far."""
    compiled, shares = None, []
    for seed in range(audiences):
        data, true = released(source, publishers, weeks, seed)
        started = time.process_time()
        model = build_lattice_model(data, population=PEOPLE)
        if compiled is None:
            compiled = compile_model(model)
            print(f"compiling: {time.process_time() - started:.0f} s", flush=True)
        new = {name: model[name].get_value() for name in model.named_vars if name in SHARED["CHANGING"]}
        started, size = time.process_time(), (800, 300, 4) if seed == 0 else (draws, 250, 2)
        settings = NutsSettings(draws=size[0], tune=size[1], chains=size[2], target_accept=0.85)
        trace = compiled.fit(settings, data=new, random_seed=seed, progressbar=False)
        seconds, steps = time.process_time() - started, float(trace["sample_stats"]["n_steps"].mean())
        found = trace["posterior"]["reach"].to_numpy().reshape(-1, len(true), weeks)
        low, high = np.quantile(found, [0.025, 0.975], axis=0)
        n = np.array(list(true.values()))
        held, sizes = (low <= n) & (n <= high), np.minimum([len(which) for which in true], 3)
        shares.append([held[sizes == size].mean() if size in sizes else np.nan for size in (1, 2, 3)] + [held.mean()])
        error = np.std(shares, axis=0) / np.sqrt(max(len(shares) - 1, 1))
        verdict = check_convergence(trace) if seed == 0 else None
        said = ", ".join(f"{one.check} {one.value_text}" for one in verdict.findings) if verdict else ""
        words = (f"{one:.3f} ({e:.3f})" for one, e in zip(np.mean(shares, axis=0), error, strict=True))
        print(
            f"{seed + 1}: {shares[-1][-1]:.3f}; so far, of publishers, pairs, all and everything {', '.join(words)}; "
            f"least end {low.min():.1f}; {seconds:.0f} s, {steps:.0f} steps per draw {said}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
