"""Coverage of 95 % intervals of r at fixed truths: `python tests/benchmarks/verifier_coverage.py [M ...]`.

With `coefficients`, coverage of the coefficient itself on heavy tails, 200 data sets for each row.
Over the prior the coverage is .95 by construction (tests/verifier/test_design.py); at one truth it need not be.
Up to M = 50 exact sums over true counts and noise, beyond it 2,000 simulated releases each (standard error .005).
"""

import sys

import numpy as np
import polars as pl

from dpbayes.privacy.laws import TwoSidedGeometric
from dpbayes.privacy.sampling import release_values
from dpbayes.verifier import (
    coefficient_posterior,
    count_partitions,
    pilot_shares,
    posterior,
    release_counts,
    sum_estimates,
)
from dpbayes.verifier.design import expected
from dpbayes.verifier.exact import posterior_of_counts

CLAIM = {"formula": "y ~ x", "coefficient": "x"}
SHARES = (0.6, 0.8, 0.95)
FAILED = 0.04
SIMULATIONS = 2_000


def coverage(m, epsilon, r):
    """Chance that the interval holds r."""
    if m <= 50:
        return expected(m, epsilon, r, failed=FAILED)["coverage"]
    rng = np.random.default_rng([m, int(100 * epsilon), int(100 * r)])
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)
    shares = ((1 - FAILED) * r, (1 - FAILED) * (1 - r), FAILED)
    noisy = release_values(rng.multinomial(m, shares, size=SIMULATIONS), law, rng=rng)
    intervals = np.array([posterior_of_counts(row, law, m).interval() for row in noisy])
    return float(((intervals[:, 0] <= r) & (r <= intervals[:, 1])).mean())


def gains(n, rng):
    """Zero in all but 5 % (x = 0) or 10 % (x = 1) of the rows, there lognormal of sd 1.5; x = 1 in half of them."""
    x = (rng.random(n) < 0.5).astype(float)
    return x, np.where(rng.random(n) < 0.05 + 0.05 * x, np.exp(rng.normal(1.0, 1.5, n)), 0.0)


def rare(n, rng):
    """The same of a group of 5 % of the rows: 9 % of it and 3 % of the others gain, lognormal of sd 1.2."""
    x = (rng.random(n) < 0.05).astype(float)
    return x, np.where(rng.random(n) < 0.03 + 0.06 * x, np.exp(rng.normal(1.0, 1.2, n)), 0.0)


def lognormal(n, rng):
    """A normal x with slope 1/2, and a lognormal error of sd 1.5, larger with x, in a tenth of the rows."""
    x = rng.normal(size=n)
    return x, 0.5 * x + np.where(rng.random(n) < 0.1, np.exp(rng.normal(0, 1.5, n)), 0) * (1 + 0.3 * x)


def pareto(n, rng):
    """A normal x with slope 1/2 and a Pareto error of index 2.5: a variance, and no skewness."""
    x = rng.normal(size=n)
    return x, 0.5 * x + rng.pareto(2.5, n)


def heavy_tails(make, truth, n, m, repeats=200):
    """Print coverage and width, and how often either answer to "above half the truth" is sure: rightly, wrongly."""
    x, y = make(10_000, np.random.default_rng(99))
    claim = CLAIM | {"threshold": 0.5 * truth, "direction": ">"}
    tried = pilot_shares(pl.DataFrame({"x": x, "y": y}), n_units=n, n_partitions=[m], **claim)
    low, high = (round(float(tried[end][0]), 2) for end in ("range_from", "range_to"))
    inside, widths, above, share = [], [], [], []
    for k in range(repeats):
        rng = np.random.default_rng([k, m])
        x, y = make(n, rng)
        asked = {"frame": pl.DataFrame({"x": x, "y": y}), "n_partitions": m, "random_state": rng}
        sums = sum_estimates(**asked, **CLAIM, lower=low, upper=high)
        found = coefficient_posterior(release_counts(sums, epsilon=1.0, rng=rng))
        lower, upper = found.interval()
        inside.append(lower <= truth <= upper)
        widths.append(upper - lower)
        above.append(found.prob_greater(claim["threshold"]))
        counts = count_partitions(**asked, **claim)
        share.append(posterior(release_counts(counts, epsilon=1.0, rng=rng)).prob_greater(0.5))
    sure = (f"{np.mean(np.array(one) > 0.95):.2f}, {np.mean(np.array(one) < 0.05):.2f}" for one in (above, share))
    size = f"{make.__name__} | {truth:.3f} | {n:,} | {m} | {low:g} to {high:g}"
    print(f"| {size} | {np.mean(inside):.3f} | {np.mean(widths):.2f} | {' | '.join(sure)} |", flush=True)


STUDIES = [
    (gains, 0.05 * np.exp(1 + 1.5**2 / 2), 20_000, 50),
    (gains, 0.05 * np.exp(1 + 1.5**2 / 2), 20_000, 200),
    (lognormal, 0.5 + 0.03 * np.exp(1.5**2 / 2), 20_000, 200),
    (pareto, 0.5, 20_000, 200),
    (rare, 0.06 * np.exp(1 + 1.2**2 / 2), 100_000, 1000),
]


if __name__ == "__main__" and sys.argv[1:] == ["coefficients"]:
    for study in STUDIES:
        heavy_tails(*study)
elif __name__ == "__main__":
    print(f"| M | epsilon | {' | '.join(f'r = {r:g}' for r in SHARES)} |")
    print("|---" * (2 + len(SHARES)) + "|")
    for size in map(int, sys.argv[1:] or (10, 50, 200)):
        for cost in (0.25, 1.0, 4.0):
            cells = (f"{coverage(size, cost, r):.3f}" for r in SHARES)
            print(f"| {size} | {cost:g} | {' | '.join(cells)} |", flush=True)
