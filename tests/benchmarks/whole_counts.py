"""Coverage and width of whole counts behind the queries of simulated counties, by the size of the cell.

Run as ``python tests/benchmarks/whole_counts.py COUNTIES``; the table of docs/published.md. A count on the bound of an
interval is counted as inside with the share that makes the interval's probability .95 (randomized at ties).
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dpbayes.inference import Verdict, sample_whole_counts
from dpbayes.privacy import read_census_measurements
from dpbayes.runs.spec import CENSUS_QUERIES

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("privacy", "inference")]
from census_files import simulated_tracts, write_measurements  # noqa: E402
from test_whole_counts import least_squares_stddev  # noqa: E402

CLASSES = {"none": (0, 0), "1 to 5": (1, 5), "6 to 50": (6, 50), "more": (51, 10**9)}


def main(counties: int) -> None:
    """Print the table after each county: cells, covered, randomized, widths, and squared error."""
    rows = []
    for seed in range(counties):
        rng = np.random.default_rng(seed)
        county = simulated_tracts(12, rng).sum(axis=0)
        with tempfile.TemporaryDirectory() as folder:
            files = write_measurements(Path(folder), {"US": county}, 25.0, rng)
            release = read_census_measurements(*files, geocodes="US", queries=CENSUS_QUERIES)["US"].release
        started = time.process_time()
        trace = sample_whole_counts(release, random_seed=seed)
        seconds = time.process_time() - started
        check = Verdict.from_json(trace.attrs["convergence"])
        drawn = trace["posterior"]["counts"].transpose("chain", "draw", "votingage", "hispanic", "cenrace")
        drawn, true = drawn.to_numpy().reshape(-1, 252), county.sum(axis=0).ravel()
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0, method="nearest")
        pit = (drawn < true).mean(axis=0) + rng.random(252) * (drawn == true).mean(axis=0)
        inside, mid = (low <= true) & (true <= high), (pit > 0.025) & (pit < 0.975)
        squares = (drawn.mean(axis=0) - true) ** 2
        rows += zip(true, inside, mid, high - low, 3.92 * least_squares_stddev(release), squares, strict=True)
        found = np.array(rows, dtype=float)
        print(
            f"{seed + 1} counties; R-hat {check.value('rhat'):.3f}, ESS {check.value('ess_bulk'):.0f}; {seconds:.1f} s"
        )
        for name, (least, most) in CLASSES.items():
            chosen = found[(found[:, 0] >= least) & (found[:, 0] <= most)]
            print(
                f"  {name}: {len(chosen)} cells;", " ".join(f"{x:.3f}" for x in chosen[:, 1:].mean(axis=0)), flush=True
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
