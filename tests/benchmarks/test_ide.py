"""Speed of prior-aware estimation; run with `pytest tests/benchmarks/test_ide.py`.

The group updates run in a process of their own: the tests' settings interpret PyTensor graphs, and what is timed here
is the compiled one.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from dpbayes.data import marginals
from dpbayes.data.populations import two_level_population
from dpbayes.ide import Prior, estimate, measure, two_stage
from dpbayes.privacy import release_tables

# The limit: an update reads every weight once to sum it and once to scale it, and writes it once, 24 bytes in all. The
# bandwidth is what `np.multiply(a, c, out=b)` moves over arrays far larger than any cache, 16 bytes a number. Both are
# timed in turn and the best of each is taken.
_UPDATES = """
import json, time
import numpy as np
from dpbayes.ide.group_updates import GroupTables, advance
rng = np.random.default_rng(1)
rows, groups, tables = 100_000, 20, 20
weights = np.full(rows, 1 / rows)
made = [GroupTables(rng.integers(0, k, rows), rng.dirichlet(np.ones(k), groups).T) for k in rng.integers(2, 13, tables)]
large, target = np.ones(2 * 10**7), np.empty(2 * 10**7)
advance(weights, made, order=[0])
best = {"update": 1e9, "bandwidth": 0.0}
for _ in range(5):
    start = time.perf_counter()
    np.multiply(large, 1.0001, out=target)
    best["bandwidth"] = max(best["bandwidth"], 16 * large.size / (time.perf_counter() - start))
    seconds = []
    for steps in (5, 45):
        start = time.perf_counter()
        advance(weights, made, order=np.arange(steps) % tables)
        seconds.append(time.perf_counter() - start)
    best["update"] = min(best["update"], (seconds[1] - seconds[0]) / (40 * rows * groups))
print(json.dumps(best))
"""


@pytest.fixture(scope="module")
def timings():
    environment = {**os.environ, "PYTENSOR_FLAGS": "", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", _UPDATES], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_updates_stay_within_three_times_the_memory_limit(timings):
    limit = 24 / timings["bandwidth"]
    print(
        f"\nupdate {1e9 * timings['update']:.2f} ns a weight; limit {1e9 * limit:.2f} ns at "
        f"{timings['bandwidth'] / 1e9:.1f} GB/s; ratio {timings['update'] / limit:.2f}"
    )
    assert timings["update"] <= 3 * limit


def test_the_challenge_fits_ten_minutes(timings):
    # 1,267 groups x 100,000 rows x 20 tables, two updates a table, on one core; sampling and loss add a third.
    seconds = 1267 * 100_000 * 40 * timings["update"] * 1.34
    print(f"\nabout {seconds:.0f} s on one core")
    assert seconds < 600


@pytest.fixture(scope="module")
def release():
    population = two_level_population(n_units=1, groups_per_unit=1, group_size=50_000, seed=1)
    prior = Prior.from_frame(population.public, population.domain)
    sets = [("age", "household"), ("tenure", "income"), ("work", "schooling"), ("sex", "car", "disability")]
    tables = marginals(population.private, sets, domain=population.domain)
    return prior, release_tables(tables, epsilon=1.0, rng=np.random.default_rng(1))


@pytest.mark.parametrize("method", ["noise-aware", "algorithm-1"])
def test_one_estimate(benchmark, release, method):
    prior, data = release
    benchmark.group = f"one estimate, {prior.size:,} rows"
    benchmark.pedantic(lambda: estimate(prior, data, noise_aware=method == "noise-aware", random_state=1), rounds=3)


def test_reference_on_a_hundred_thousand_rows():
    """The two-stage reference at the largest support it is meant for."""
    rng = np.random.default_rng(2)
    population = two_level_population(n_units=1, groups_per_unit=1, group_size=2000, seed=1)
    domain = population.domain
    codes = np.stack([rng.integers(0, a.size, 100_000) for a in domain], axis=1)
    prior = Prior(domain, codes, rng.gamma(1.0, size=100_000), 100_000.0)
    tables = marginals(population.private, [(name,) for name in domain.names], domain=domain)
    data = release_tables(tables, epsilon=1.0, rng=rng)
    start = time.perf_counter()
    found = two_stage(measure(prior, data))
    print(f"\ntwo-stage reference: {time.perf_counter() - start:.1f} s, excess loss {found.excess:.1e}")
    assert found.excess <= 1e-5 * max(1.0, found.l1_minimum)
