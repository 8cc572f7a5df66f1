"""A value of the wrong kind is refused in one clear error, whatever the function."""

import numpy as np
import pytest

from dpbayes.bloom.calibration import bloom_epsilon, flip_prob_for, one_filter_loss
from dpbayes.bloom.claims import exchange_bound
from dpbayes.bloom.filters import BitDistribution, BloomRelease, Filters, build_filters, hash_items, shuffle_flip
from dpbayes.bloom.many_filters import filters_loss
from dpbayes.bloom.reach import estimate_reach
from dpbayes.errors import InputError
from dpbayes.runs.registry import system_module

PAPER = system_module("study:bloom_signal")
RELEASE = BloomRelease(np.array([700, 120, 110, 70]), 0.1, "simulation")
REACH = estimate_reach(RELEASE)
SIGNAL = PAPER.signal_to_noise([1.0, 1, 1, 1], flip_prob=0.1)
LOSS = filters_loss(n_filters=2, n_bits=100, flip_prob=0.2)
LAW = BitDistribution(8)
SETTING = {"flip_prob": 0.2, "delta": 0.1, "n_filters": 2, "n_bits": 4}

# No argument below may be any of these.
NEVER = ["x", 10**5000, object(), {}, [[1], [1, 2]], [None], np.array(["a"])]
FUNCTIONS = {
    "union": REACH.union,
    "intersection": REACH.intersection,
    "frequency": REACH.frequency,
    "combine": REACH.combine,
    "interval": REACH.union().interval,
    "flip_prob": lambda value: BloomRelease([1, 2], value, "simulation"),
    "estimate_reach": estimate_reach,
    "signal_to_noise": lambda value: PAPER.signal_to_noise(value, flip_prob=0.1),
    "ratio": lambda value: SIGNAL.ratio(value, 1),
    "skewness": lambda value: PAPER.skewed_counts(2, skewness=value),
    "seed": lambda value: hash_items([1], seed=value),
    "items": lambda value: build_filters([[1.5, value]], distribution=LAW, seed=1),
    "n_bits": BitDistribution,
    "decay": lambda value: BitDistribution(3, value),
    "shuffle_flip": lambda value: shuffle_flip(value, flip_prob=0.1),
    "from_bits": Filters.from_bits,
    "logos": lambda value: Filters(value, 2),
    "n_filters": lambda value: Filters(np.zeros(3, dtype=np.uint32), value),
    "counts": lambda value: BloomRelease(value, 0.1, "secure"),
    "sampler": lambda value: BloomRelease([1, 2], 0.1, value),
    "pairs": lambda value: bloom_epsilon(**SETTING, pairs=value),
    "delta_bounds": LOSS.delta_bounds,
    "epsilon": LOSS.epsilon_bounds,
    "definition": lambda value: LOSS.claim(0.1, definition=value),
    "claim": exchange_bound,
    "flip_prob_for": lambda value: flip_prob_for(epsilon=value, delta=0.1, n_filters=1, n_bits=4),
    "count_ones": lambda value: one_filter_loss(n_bits=10, flip_prob=0.1, count_ones=value),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("place", range(len(NEVER)))
def test_wrong_kinds_are_refused(name, place):
    with pytest.raises(InputError) as refusal:
        FUNCTIONS[name](NEVER[place])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("path", [None, 1, [], object()])
def test_a_path_is_a_path(path):
    with pytest.raises(InputError, match="path must be a str or a Path"):
        BloomRelease.read(path)
