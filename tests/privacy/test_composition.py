"""Composition against enumeration in forty digits, against itself, against closed forms; its certificates."""

import mpmath
import numpy as np
import pytest
from scipy.stats import binom, norm

from dpbayes.errors import InputError
from dpbayes.privacy.composition import ComposedLoss, GridLaw, convolve, find_lattice, on_grid
from dpbayes.privacy.curves import gaussian_epsilon
from dpbayes.privacy.loss_law import LossLaw
from dpbayes.privacy.losses import PrivacyLoss


class ByTransform(ComposedLoss):
    """A composition that is never enumerated, so that small cases exercise the transform."""

    _law = None


def random_pmfs(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two laws on up to four outcomes, nearly equal or wildly different, some outcomes impossible on one side."""
    size = generator.integers(2, 5)
    p, q = generator.dirichlet(np.full(size, 10.0 ** generator.uniform(-1, 1)), size=2)
    if generator.random() < 0.3:
        q = p * np.exp(generator.normal(0.0, 0.1, size))
    p, q = np.maximum(p, 1e-40), np.maximum(q, 1e-40)
    if generator.random() < 0.3:
        p[0] = 0.0
    if generator.random() < 0.3:
        q[-1] = 0.0
    return p / p.sum(), q / q.sum()


def product(laws):
    total = [mpmath.mpf(1)]
    for law in laws:
        total = [a * mpmath.mpf(float(b)) for a in total for b in law]
    return total


def hockey(p, q, epsilon):
    factor = mpmath.exp(mpmath.mpf(float(epsilon)))
    return min(mpmath.mpf(1), mpmath.fsum(a - factor * b for a, b in zip(p, q, strict=True) if a > factor * b))


def tail(p, q, epsilon):
    factor = mpmath.exp(mpmath.mpf(float(epsilon)))
    return min(mpmath.mpf(1), mpmath.fsum(a for a, b in zip(p, q, strict=True) if a > factor * b))


def check_against(law, p, q, generator):
    """Every certified end must be on its side of the value in forty digits."""
    for epsilon in generator.uniform(-1, 1, 2) * 10.0 ** generator.uniform(-1, 1.5, 2):
        assert law.bounds(epsilon).lower <= hockey(p, q, epsilon) <= law.bounds(epsilon).upper
    for delta in 10.0 ** generator.uniform(-15, 0, 2):
        ends = law.crossing(delta)
        if np.isfinite(ends.upper):
            assert hockey(p, q, ends.upper) <= delta
        if 0 < ends.lower < np.inf:
            assert hockey(p, q, ends.lower) >= delta
        if law._law is None:
            continue
        quantile = law.quantile(delta)
        if np.isfinite(quantile.upper):
            assert tail(p, q, quantile.upper) <= delta
        if 0 < quantile.lower < np.inf:
            assert tail(p, q, quantile.lower * (1 - 1e-15)) > delta


@pytest.mark.parametrize("seed", range(8))
def test_bounds_enclose_the_enumerated_composition_in_forty_digits(seed):
    generator = np.random.default_rng(seed)
    with mpmath.workdps(40):
        loss, ps, qs = None, [], []
        for _ in range(generator.integers(1, 3)):
            p, q = random_pmfs(generator)
            runs = int(generator.integers(1, 4))
            with np.errstate(divide="ignore"):
                part = PrivacyLoss.from_pmfs(np.log(p), np.log(q)).compose(runs)
            loss = part if loss is None else loss.compose(part)
            ps, qs = ps + [p] * runs, qs + [q] * runs
        p, q = product(ps), product(qs)
        for law, one, other in ((loss.forward, p, q), (loss.backward, q, p)):
            check_against(law, one, other, generator)
            check_against(ByTransform(law.parts), one, other, generator)


@pytest.mark.parametrize(("seed", "runs"), [(1, 40), (2, 80), (3, 12)])
def test_transform_and_enumeration_agree_down_to_delta_1e_18(seed, runs):
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(3, 3.0))
    q = p * np.exp(generator.normal(0.0, 0.5, 3))
    loss = PrivacyLoss.from_pmfs(np.log(p), np.log(q / q.sum())).compose(runs)
    for law in (loss.forward, loss.backward):
        assert law._law is not None
        other = ByTransform(law.parts)
        for delta in (0.3, 1e-3, 1e-9, 1e-18):
            listed, transformed = law.crossing(delta), other.crossing(delta)
            assert listed.width < 1e-9 * (1 + listed.upper)
            assert transformed.lower <= listed.upper and listed.lower <= transformed.upper
            # Three outcomes are the worst case for a grid: the lower end costs up to a step per outcome, see the notes
            # of `_discretize`; the upper end is quadratic in the step.
            assert transformed.upper - listed.lower < 1e-7 * (1 + listed.upper)
            assert listed.upper - transformed.lower < 1e-4 * (1 + listed.upper)


def binned_gaussian(stddev: float, cells: int) -> PrivacyLoss:
    """N(0, stddev**2) and N(1, stddev**2) on equal cells: a post-processing, so it costs no more than they do."""
    edges = np.linspace(-9 * stddev, 9 * stddev + 1, cells + 1)

    def log_masses(shift):
        low, high = (edges[:-1] - shift) / stddev, (edges[1:] - shift) / stddev
        low, high = np.where(low + high < 0, -high, low), np.where(low + high < 0, -low, high)
        return norm.logsf(low) + np.log1p(-np.exp(norm.logsf(high) - norm.logsf(low)))

    return PrivacyLoss.from_pmfs(log_masses(0.0), log_masses(1.0), log_error=1e-11)


def test_binned_gaussian_composed_a_thousand_times_meets_the_closed_form():
    loss = binned_gaussian(10.0, 100_000).compose(1000)
    exact = gaussian_epsilon(np.sqrt(1000) / 10, 1e-6)
    assert exact == pytest.approx(19.42366, abs=5e-4)
    bounds = loss.epsilon_bounds(1e-6)
    # Cells of 0.0018 move the loss by 1e-5; merging costs its square, about 1e-10 a run.
    assert bounds.lower <= exact <= bounds.upper + 1e-6
    assert bounds.width < 1e-4
    tiny = loss.epsilon_bounds(1e-15)
    assert tiny.lower <= gaussian_epsilon(np.sqrt(1000) / 10, 1e-15) <= tiny.upper + 1e-5
    assert tiny.width < 1e-4


def test_composing_in_steps_or_at_once_or_in_any_order_is_the_same():
    a = PrivacyLoss.from_pmfs(np.log([0.3, 0.3, 0.4]), np.log([0.2, 0.45, 0.35]))
    b = PrivacyLoss.from_pmfs(np.log([0.5, 0.5]), np.log([0.55, 0.45]))
    at_once = a.compose(6).compose(b.compose(2)).epsilon(1e-4)
    assert a.compose(2).compose(3).compose(b).compose(b).epsilon(1e-4) == pytest.approx(at_once, abs=1e-10)
    assert b.compose(a.compose(6)).compose(b).epsilon(1e-4) == pytest.approx(at_once, abs=1e-10)


def test_composition_is_at_least_one_part_and_at_most_the_sum():
    a = PrivacyLoss.from_pmfs(np.log([0.3, 0.3, 0.4]), np.log([0.2, 0.45, 0.35]))
    b = PrivacyLoss.from_pmfs(np.log([0.9, 0.1]), np.log([0.7, 0.3]))
    both = a.compose(b)
    assert a.epsilon_bounds(0.01).lower <= both.epsilon(0.01)
    assert both.epsilon_bounds(0.0).lower <= a.epsilon(0.0) + b.epsilon(0.0)


def test_equal_outputs_cost_nothing_however_often():
    loss = PrivacyLoss.from_pmfs(np.log([0.2, 0.8]), np.log([0.2, 0.8])).compose(10**6)
    assert loss.epsilon(1e-9) < 1e-5
    assert loss.delta_bounds(0.1).upper < 1e-9


def test_a_million_runs_of_a_tiny_loss_meet_the_gaussian_limit():
    # By the central limit theorem (Dong, Roth and Su 2022, Theorem 5) the composition of n copies of randomized
    # response with epsilon mu / sqrt(n) is Gaussian with that mu up to O(1 / sqrt(n)).
    step = 1e-3
    coin = PrivacyLoss.from_pmfs(*(-np.logaddexp(0.0, sign * np.array([-step, step])) for sign in (1, -1)))
    epsilon = coin.compose(10**6).epsilon_bounds(1e-6)
    assert epsilon.width < 1e-4
    assert epsilon.upper == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-3)


def test_infinite_losses_add_up():
    with np.errstate(divide="ignore"):
        pair = PrivacyLoss.from_pmfs(np.log([1e-3, 0.5, 0.499]), np.log([0.0, 0.5, 0.5])).compose(500)
    total = 1 - (1 - 1e-3) ** 500
    assert pair.epsilon(total - 1e-9) == np.inf
    assert pair.epsilon(total + 1e-3) < 1.0
    assert pair.delta_bounds(200.0).lower == pytest.approx(total, rel=2e-9)


@pytest.mark.parametrize("kind", ["above", "below"])
def test_grid_laws_bracket_the_curve_and_converge_with_the_square_of_the_step(kind):
    generator = np.random.default_rng(3)
    loss = np.sort(generator.normal(0.05, 0.3, 20_000))
    law = LossLaw(loss, np.full(loss.size, 1 / loss.size))
    points = np.linspace(-0.5, 1.0, 31)
    gaps = []
    for step in (0.04, 0.02, 0.01):
        grid = on_grid(law, offset=0.003, step=step, kind=kind)
        order = np.argsort(grid.index)
        gridded = LossLaw(grid.offset + step * grid.index[order], grid.mass[order])
        gap = np.array([gridded.value(e) - law.value(e) for e in points])
        assert np.all(gap >= -1e-15) if kind == "above" else np.all(gap <= 1e-15)
        gaps.append(np.max(np.abs(gap)))
    assert gaps[1] < 0.4 * gaps[0] and gaps[2] < 0.4 * gaps[1]


def test_the_round_off_certificate_covers_the_actual_error():
    # Losses on a grid with masses that a rational convolution gives exactly: compare bin by bin.
    generator = np.random.default_rng(11)
    weights = generator.integers(1, 1000, 12).astype(object)
    total = sum(weights)
    exact = [1]
    for _ in range(20):
        exact = [
            sum(exact[i - j] * weights[j] for j in range(12) if 0 <= i - j < len(exact)) for i in range(len(exact) + 11)
        ]
    index = np.arange(12)
    grid = GridLaw(index, (weights / total).astype(float), 0.0, 0.1, 0.0, 0.0)
    result = convolve([(grid, 20)], tilt=0.0, centre=11.0, size=512)
    with mpmath.workdps(60):
        for epsilon in (0.05, 5.05, 11.05, 15.05, 21.85):
            value, error = result.value(epsilon)
            first = int(np.floor(epsilon / 0.1)) + 1
            weighed = [m * (1 - mpmath.exp(epsilon - 0.1 * k)) for k, m in enumerate(exact[first:], first)]
            truth = mpmath.fsum(weighed) / mpmath.mpf(total) ** 20
            assert abs(mpmath.mpf(value) - truth) <= error + result.log_error * truth
            assert error < 1e-10


@pytest.mark.parametrize(
    ("losses", "step"),
    [([-1.0, 1.0], 2.0), ([0.0, 0.3, 0.75], 0.15), ([-0.2, 0.1, 0.1 + 1e-14, 0.4], 0.3), ([0.0, 1.0, np.pi], None)],
)
def test_lattices_are_found(losses, step):
    found = find_lattice(LossLaw(np.array(losses), np.full(len(losses), 1 / len(losses))))
    assert (found is None) if step is None else found == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("runs", [10**6, 10**9])
def test_a_billion_runs_are_still_certified(runs):
    # Randomized response: the total loss is ln 3 times (2 Binomial(n, 3/4) - n), in exact terms to 1e-9 by SciPy.
    loss = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75])).compose(runs)
    for delta in (1e-3, 1e-9):
        ends = loss.epsilon_bounds(delta)
        # The hockey stick weighs the tail by less than 1, at most ln(1 / delta) from the quantile here.
        quantile = np.log(3) * (2 * binom.isf(delta, runs, 0.75) - runs)
        assert 0 < ends.lower < quantile < ends.upper + 40 and ends.width < 1e-7 * ends.upper
    with pytest.raises(InputError, match="listed"):
        loss.quantile_bounds(1e-3)
    assert loss.delta_bounds(1.0).lower > 0.5
    assert loss.epsilon(0.0) == pytest.approx(runs * np.log(3), rel=1e-11)


def test_more_runs_than_doubles_can_certify_are_refused():
    loss = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75]))
    for runs in (10**12 + 1, 10**18, 10**400):
        with pytest.raises(InputError, match="at most 1,000,000,000,000 times"):
            loss.compose(runs)
    with pytest.raises(InputError, match="at most"):
        loss.compose(10**7).compose(10**6)


@pytest.mark.slow
def test_as_many_runs_as_doubles_can_certify_are_bounded_though_it_says_little():
    far = PrivacyLoss.from_pmfs(np.log([0.75, 0.25]), np.log([0.25, 0.75])).compose(10**12)
    assert far.epsilon(1e-6) >= 5.49e11 and far.epsilon_bounds(1e-6).lower <= 5.494e11


def test_a_listed_total_with_underflow_keeps_the_largest_loss_between_its_ends():
    law = LossLaw(np.array([1 / 1e-9]), np.ones(1), underflow=1e-300, ceiling=-1e9, shift=2e-6)
    bounds = ComposedLoss(((law, 1000),)).crossing(0.0)
    assert 1000 * float(law.loss[0]) in bounds and bounds.width < 0.1


@pytest.mark.parametrize("loss", [800.0, 1250.0, 1e9])
def test_a_loss_beyond_the_reach_of_exp_is_not_lost(loss):
    # delta(epsilon) = 1 - exp(epsilon - loss).
    bounds = LossLaw(np.array([loss]), np.ones(1)).crossing(0.3)
    assert loss + np.log(0.7) in bounds and bounds.width <= 1e-13 * loss
