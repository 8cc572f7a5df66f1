"""The convergence gate beside ArviZ on many quantities."""

import time

import numpy as np
from arviz_stats.base import array_stats

from dpbayes.inference.convergence import mixing


def seconds(call):
    started = time.process_time()
    call()
    return time.process_time() - started


def arviz(draws):
    array_stats.rhat(draws, chain_axis=1, draw_axis=2)
    array_stats.ess(draws, method="bulk", chain_axis=1, draw_axis=2)
    array_stats.ess(draws, method="tail", prob=(0.05, 0.95), chain_axis=1, draw_axis=2)


def test_the_gate_is_no_slower_than_arviz():
    draws = np.random.default_rng(10).normal(size=(300, 4, 1000))
    ours, theirs = (min(seconds(lambda call=call: call(draws)) for _ in range(3)) for call in (mixing, arviz))
    print(f"\ngate {1e3 * ours:.0f} ms, ArviZ {1e3 * theirs:.0f} ms, ratio {ours / theirs:.2f}")
    assert ours < theirs
