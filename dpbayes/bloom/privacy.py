"""Privacy of shuffled and flipped Bloom filters, in one place.

| question | answer |
|---|---|
| one filter, one pair of inputs, exact | `one_filter_loss` |
| one filter, every pair, exhaustive | `one_filter_epsilon` |
| k filters, the paper's pair, certified ends | `filters_loss` |
| k filters, every pair, small sizes, exhaustive | `worst_pair` |
| k filters, every pair, any size, proven upper bound | `all_pairs_epsilon` |
| k filters, the worst pair known at any size | `worst_crowd` |

Neighbouring inputs differ in one position of the filters, whose bits may change in all of them (one-position). A
person sets bits at one position, hashed from the person. So a person more or less, or one person's other publishers,
costs a number once. One person exchanged for another changes up to two positions and costs more: at most
(2 epsilon, (1 + e^epsilon) delta), where (epsilon, delta) covers all pairs (`exchange_bound`).
"""

from dpbayes.bloom.all_pairs import all_pairs_epsilon
from dpbayes.bloom.claims import EpsilonClaim, exchange_bound
from dpbayes.bloom.crowd_search import worst_crowd
from dpbayes.bloom.exhaustive import worst_pair
from dpbayes.bloom.many_filters import FiltersLoss, filters_loss
from dpbayes.bloom.worst_count import one_filter_epsilon, one_filter_loss

__all__ = [
    "EpsilonClaim",
    "FiltersLoss",
    "all_pairs_epsilon",
    "exchange_bound",
    "filters_loss",
    "one_filter_epsilon",
    "one_filter_loss",
    "worst_crowd",
    "worst_pair",
]
