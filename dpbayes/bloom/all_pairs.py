"""An epsilon that holds for every pair of neighbouring inputs of k filters, of any size.

*Theorem.* Let a position hold logo a in D and b in D', and let c_1, ..., c_(m-1) be the logos of the others. Fix a
logo c and put kappa = p/q. Every other logo releases c's law with some probability: T(c_j, .) >= kappa^H(c_j, c) T(c,
.), with H the Hamming distance. Tell the adversary which positions did so ("clones" of c) and what all the others
released. What is left is the differing position among N clones, N a sum of independent indicators with mean mu_c =
sum_j kappa^H(c_j, c); more clones only help privacy, since further ones can be simulated. With delta_M(epsilon; a, b,
c) the curve of the pair in which M - 1 others all hold c (`crowd_delta`), Chernoff's lower tail gives, for every
beta,

    delta(epsilon) <= delta_M(epsilon; a, b, c) + beta   whenever   mu_c - sqrt(2 mu_c ln(1/beta)) >= M - 1.

So (epsilon, delta) can fail only if mu_c < mu*_c for every c at once, mu*_c the mean that c would need. For weights
y_c >= 0 with sum_c y_c kappa^H(c_j, c) >= 1 for every c_j, failing implies

    m - 1 <= sum_j sum_c y_c kappa^H(c_j, c) = sum_c y_c mu_c < sum_c y_c mu*_c,

so (epsilon, delta) holds for a and b once m - 1 >= sum_c y_c mu*_c. The best y solves a linear program, and any
feasible y is a proof. By symmetry c matters through its `CrowdShape`, and a, b through their distance.

Crowds are monotone: dropping a filter is post-processing, so a shape that exceeds another in each of its three counts
of filters is at least as exposed; many filters are handled on a coarse grid of shapes.
"""

from dataclasses import dataclass, field
from math import comb

import numpy as np

from dpbayes.bloom.claims import EpsilonClaim
from dpbayes.bloom.crowd_search import worst_crowd
from dpbayes.bloom.homogeneous import CrowdShape, crowd_delta, crowd_shapes
from dpbayes.bloom.transition import largest_loss
from dpbayes.privacy.loss_law import Bounds

__all__ = ["all_pairs_epsilon"]

# Share of delta given to the event that there are few clones.
_FEW = 0.02
# Crowd sizes are tried on a geometric grid with this ratio.
_RATIO = 2.0**0.25
_GRID = {True: tuple(range(7)), False: (0, 1, 2, 4, 7, 12, 20)}
_SIZE = 2**12


def all_pairs_epsilon(
    *, n_filters: int, n_bits: int, flip_prob: float, delta: float, tolerance: float = 0.01
) -> EpsilonClaim:
    """Return an epsilon (tight definition) that holds for every pair of neighbouring inputs of k filters.

    Parameters
    ----------
    n_filters
        Filters k, at most 20; seconds up to 6, minutes beyond.
    n_bits
        Positions m.
    flip_prob
        Flip probability p.
    delta
        Delta, between 0 and 1.
    tolerance
        Relative distance of the search for the smallest epsilon that the theorem gives.

    Returns
    -------
    EpsilonClaim
        The upper end is proven for all pairs; the lower end is that of the worst pair found (`worst_crowd`), so the
        truth lies between.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> claim = all_pairs_epsilon(n_filters=2, n_bits=10_000, flip_prob=0.2, delta=1e-3)
    >>> claim.scope, 0.04 < claim.lower < claim.upper < 0.09
    ('all pairs, upper bound', True)
    """
    worst = worst_crowd(n_filters=n_filters, n_bits=n_bits, flip_prob=flip_prob, delta=delta)
    proof = _Proof(n_filters, n_bits, flip_prob, delta)
    low, high = max(worst.lower, 1e-12), largest_loss(n_filters, flip_prob)
    step = 1.02
    while low * step < high and not proof.holds(low * step):
        low, step = low * step, step**1.5
    high = min(high, low * step)
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if proof.holds(middle) else (middle, high)
    return EpsilonClaim(
        Bounds(worst.lower, max(high, worst.upper)),
        worst.delta,
        "tight",
        "all pairs, upper bound",
        f"any; {worst.pair}",
    )


@dataclass
class _Proof:
    """Applies the theorem at one epsilon after another, keeping what carries over."""

    n_filters: int
    n_bits: int
    flip_prob: float
    delta: float
    # Crowd size on the grid that is enough for a shape, by the smallest epsilon at which that was found.
    enough: dict[CrowdShape, list[tuple[float, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.few = _FEW * self.delta
        steps = int(np.ceil(np.log(self.n_bits) / np.log(_RATIO)))
        self.sizes = np.unique(np.rint(np.minimum(_RATIO ** np.arange(steps + 1), self.n_bits)).astype(int))

    def holds(self, epsilon: float) -> bool:
        """Whether the theorem proves (epsilon, delta) for logos at every distance."""
        return all(
            self._budget(h, epsilon) <= self.n_bits - 1
            for h in range(1, self.n_filters + 1)
            if epsilon < largest_loss(h, self.flip_prob)
        )

    def _budget(self, differ: int, epsilon: float) -> float:
        """Return sum_c y_c mu*_c at the best feasible y for logos that differ in `differ` filters."""
        from scipy.optimize import linprog

        shapes = crowd_shapes(self.n_filters, differ=differ)
        needed = np.array([self._mean_needed(shape, epsilon) for shape in shapes])
        if (needed == 0.0).any():
            return 0.0
        usable = np.flatnonzero(np.isfinite(needed))
        if not usable.size:
            return np.inf
        kernel = np.array([[self._kernel(row, shapes[column]) for column in usable] for row in shapes])
        cost = np.array([self._multiplicity(shapes[column]) for column in usable]) * needed[usable]
        # Scaled to ones, the variables are the shares of the budget.
        solution = linprog(np.ones(usable.size), A_ub=-kernel / cost, b_ub=-np.ones(len(shapes)), bounds=(0, None))
        if solution.status != 0:
            return np.inf
        # Whatever the solver's tolerance, the scaled point is feasible: that is the proof.
        reach = float((kernel / cost @ solution.x).min())
        return float(solution.x.sum()) / reach * (1 + 1e-9) if reach > 0 else np.inf

    def _multiplicity(self, shape: CrowdShape) -> int:
        return comb(shape.differ, shape.like_b) * comb(self.n_filters - shape.differ, shape.apart)

    def _kernel(self, here: CrowdShape, other: CrowdShape) -> float:
        """Sum of kappa^H(c, c*) over the logos c* of shape `other`, for one c of shape `here`."""
        kappa = self.flip_prob / (1.0 - self.flip_prob)
        common = self.n_filters - here.differ
        return _ways(here.differ, here.like_b, other.like_b, kappa) * _ways(common, here.apart, other.apart, kappa)

    def _mean_needed(self, shape: CrowdShape, epsilon: float) -> float:
        """Return mu* of a shape: infinite if even n_bits positions are too few, 0 if one is enough."""
        size = self._enough(self._coarse(shape), epsilon)
        if size is None:
            return np.inf
        clones, log_few = size - 1, float(np.log(1.0 / self.few))
        return 0.0 if clones == 0 else clones + log_few + float(np.sqrt(log_few**2 + 2 * log_few * clones))

    def _coarse(self, shape: CrowdShape) -> CrowdShape:
        """Return a shape of the grid that is at least as exposed."""
        grid = _GRID[self.n_filters <= 6]
        like_a, like_b, apart = (
            next(size for size in grid if size >= count)
            for count in (shape.differ - shape.like_b, shape.like_b, shape.apart)
        )
        return CrowdShape(like_a + like_b, like_b, apart)

    def _enough(self, shape: CrowdShape, epsilon: float) -> int | None:
        """Return a crowd size of the grid at which the shape is safe; smaller epsilons need larger crowds."""
        known = self.enough.setdefault(shape, [])
        low = max((place for at, place in known if at >= epsilon), default=0)
        high = min((place for at, place in known if at <= epsilon), default=self.sizes.size)
        while low < high:
            middle = (low + high) // 2
            bounds = crowd_delta(
                shape, n_bits=int(self.sizes[middle]), flip_prob=self.flip_prob, epsilon=epsilon, size=_SIZE
            )
            low, high = (low, middle) if bounds.upper <= self.delta - self.few else (middle + 1, high)
        known.append((epsilon, low))
        return int(self.sizes[low]) if low < self.sizes.size else None


def _ways(n: int, ones: int, other: int, kappa: float) -> float:
    """Sum of kappa^(Hamming distance) from a word of n bits, `ones` of them 1, to all words with `other` ones."""
    return sum(
        comb(ones, kept) * comb(n - ones, other - kept) * kappa ** (ones - kept + other - kept)
        for kept in range(max(0, other - (n - ones)), min(ones, other) + 1)
    )
