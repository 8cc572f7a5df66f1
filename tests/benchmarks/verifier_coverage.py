"""Coverage of 95 % intervals of r at fixed truths: `python tests/benchmarks/verifier_coverage.py [M ...]`.

Over the prior the coverage is .95 by construction (tests/verifier/test_design.py); at one truth it need not be.
Up to M = 50 exact sums over true counts and noise, beyond it 2,000 simulated releases each (standard error .005).
"""

import sys

import numpy as np

from dpbayes.privacy.laws import TwoSidedGeometric
from dpbayes.privacy.sampling import release_values
from dpbayes.verifier.design import expected
from dpbayes.verifier.exact import posterior_of_counts

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


if __name__ == "__main__":
    print(f"| M | epsilon | {' | '.join(f'r = {r:g}' for r in SHARES)} |")
    print("|---" * (2 + len(SHARES)) + "|")
    for size in map(int, sys.argv[1:] or (10, 50, 200)):
        for cost in (0.25, 1.0, 4.0):
            cells = (f"{coverage(size, cost, r):.3f}" for r in SHARES)
            print(f"| {size} | {cost:g} | {' | '.join(cells)} |", flush=True)
