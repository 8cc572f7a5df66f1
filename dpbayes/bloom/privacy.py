"""Privacy of shuffled and flipped Bloom filters, in one place.

| question | answer |
|---|---|
| one filter, one pair of inputs, exact | `one_filter_loss` |
| one filter, every pair, exhaustive | `one_filter_epsilon` |
| k filters, the paper's pair, certified ends | `filters_loss` |
| k filters, every pair, small sizes, exhaustive | `worst_pair` |
| k filters, every pair, any size, proven upper bound | `all_pairs_epsilon` |
| k filters, the worst pair known at any size | `worst_crowd` |

Neighbouring inputs differ in one position of the filters, whose bits may change in all of them (replace-one). A
person who sets one bit in each filter, at a position hashed from the person, changes one position by being there or
not.
"""

from dpbayes.bloom.all_pairs import all_pairs_epsilon, worst_crowd
from dpbayes.bloom.claims import EpsilonClaim
from dpbayes.bloom.exhaustive import worst_pair
from dpbayes.bloom.many_filters import FiltersLoss, filters_loss
from dpbayes.bloom.worst_count import one_filter_epsilon, one_filter_loss

__all__ = [
    "EpsilonClaim",
    "FiltersLoss",
    "all_pairs_epsilon",
    "filters_loss",
    "one_filter_epsilon",
    "one_filter_loss",
    "worst_crowd",
    "worst_pair",
]
