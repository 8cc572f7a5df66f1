"""One coefficient of a product of series: partial sums and inversion against plain convolution."""

import numpy as np
import pytest

from dpbayes.inference.count_products import _by_inversion, _by_sums, _correlate, coefficient


def bells(rng, widths, *, kink=False):
    """Normalized windows, their ends, first indices and modes; some touch zero."""
    windows, starts = [], rng.integers(0, 30, len(widths))
    for width in widths:
        place = (np.arange(width) - rng.uniform(0.3, 0.7) * width) / (0.09 * width + 0.2)
        window = np.exp(-1.3 * np.abs(place) if kink else -0.5 * place**2)
        windows.append(window / window.sum())
    ends = np.concatenate([[0], np.cumsum(widths)])
    modes = np.array([s + int(np.argmax(w)) for s, w in zip(starts, windows, strict=True)])
    return windows, ends, starts, modes


def plain(windows, starts, n):
    """The coefficient and the means, by full convolutions."""
    total, others = np.ones(1), []
    for window in windows:
        total = np.convolve(total, window)
    for c, window in enumerate(windows):
        product = window * (starts[c] + np.arange(len(window)))
        for other in windows[:c] + windows[c + 1 :]:
            product = np.convolve(product, other)
        others.append(product[n - starts.sum()])
    value = total[n - starts.sum()]
    return value, np.array(others) / value


def moments(windows, starts):
    """Mean and variance of the sum."""
    mean = variance = 0.0
    for window, start in zip(windows, starts, strict=True):
        index = start + np.arange(len(window))
        mean, variance = mean + window @ index, variance + window @ index**2 - (window @ index) ** 2
    return mean, variance


@pytest.mark.parametrize("kink", [False, True], ids=["smooth", "kinked"])
@pytest.mark.parametrize("widths", [(7, 60), (1, 1, 90), (40, 3, 80, 55), (30, 1, 1, 64, 2, 50, 41)], ids=str)
def test_sums_and_inversion_agree_with_plain_convolution(widths, kink):
    rng = np.random.default_rng(len(widths))
    windows, ends, starts, modes = bells(rng, widths, kink=kink)
    mean, variance = moments(windows, starts)
    for n in (round(mean), round(mean + 0.9 * variance**0.5), round(mean - 0.9 * variance**0.5)):
        value, expected = plain(windows, starts, n)
        weights, means = np.concatenate(windows), np.empty(len(widths))
        # All terms are positive: rounding alone, and 1e-13 of each partial sum's largest value that is dropped.
        assert _by_sums(weights, ends, starts, np.argsort(modes), n, means) == pytest.approx(value, rel=1e-10)
        np.testing.assert_allclose(means, expected, rtol=1e-9)
        assert _by_inversion(weights, ends, starts, modes, n, variance, means) == pytest.approx(value, rel=3e-7)
        np.testing.assert_allclose(means, expected, rtol=1e-6, atol=1e-5)
        assert coefficient(weights, ends, starts, modes, n, variance, not kink, means) == pytest.approx(value, rel=3e-7)


def test_wide_smooth_windows_are_inverted_and_agree_with_sums():
    """Windows so wide that `coefficient` leaves the sums: what it returns is the inversion's, and both agree."""
    windows, ends, starts, modes = bells(np.random.default_rng(1), (2000, 2500, 3000, 2800))
    mean, variance = moments(windows, starts)
    weights, n = np.concatenate(windows), round(mean + 0.5 * variance**0.5)
    sums, inverted, chosen = np.empty(4), np.empty(4), np.empty(4)
    value = _by_sums(weights, ends, starts, np.argsort(modes), n, sums)
    assert _by_inversion(weights, ends, starts, modes, n, variance, inverted) == pytest.approx(value, rel=1e-7)
    coefficient(weights, ends, starts, modes, n, variance, True, chosen)
    assert np.array_equal(chosen, inverted)
    np.testing.assert_allclose(inverted, sums, rtol=1e-8)


def test_a_sum_out_of_reach_has_no_probability():
    windows, ends, starts, modes = bells(np.random.default_rng(2), (5, 6, 7))
    weights, means = np.concatenate(windows), np.empty(3)
    assert _by_sums(weights, ends, starts, np.argsort(modes), int(starts.sum()) + 16, means) == 0.0
    assert _by_sums(weights, ends, starts, np.argsort(modes), int(starts.sum()) - 1, means) == 0.0


def test_correlations_at_every_shift():
    rng = np.random.default_rng(3)
    for taps, values in [(1, 1), (3, 10), (4, 4), (9, 5), (6, 20)]:
        weights, series = rng.random(taps), rng.random(values)
        padded = np.concatenate([np.zeros(40), series, np.zeros(60)])
        for shift in range(-15, values + 3):
            expected = [weights @ padded[40 + k + shift : 40 + k + shift + taps] for k in range(12)]
            np.testing.assert_allclose(_correlate(weights, series, shift, 12), expected, rtol=1e-13, atol=1e-15)
