"""The section on where the width of a few intervals comes from."""

import numpy as np
import pytest

from dpbayes.report.widths import shares_section, split_variance

WORDS = {"subject": "term", "rest": "sampling", "meaning": "Said.", "unit": "in units", "format": ".3g"}


def test_parts_add_up_to_the_whole():
    section = shares_section([("a", 9.0, 16.0), ("b", 0.0, 4.0)], **WORDS)
    first, second = section.blocks[2].facts()
    assert (first["sd"], first["privacy_sd"], first["rest_sd"]) == (5.0, 3.0, 4.0)
    assert first["privacy_share"] == pytest.approx(0.36)
    assert second["privacy_share"] == 0.0
    assert section.blocks[0].text.startswith("The privacy noise accounts for 0 to 36\N{NO-BREAK SPACE}% of")


def test_equal_shares_are_said_once_and_nothing_is_divided_by_zero():
    section = shares_section([("a", 1.0, 1.0), ("b", 2.0, 2.0)], **WORDS)
    assert "accounts for 50\N{NO-BREAK SPACE}% of" in section.blocks[0].text
    assert shares_section([("still", 0.0, 0.0)], **WORDS).blocks[2].facts()[0]["privacy_share"] == 0.0


def test_the_split_adds_up_and_finds_the_noise():
    rng = np.random.default_rng(3)
    counts = rng.normal(1000.0, 30.0, size=(4000, 2))
    shares = counts + rng.normal(0.0, 10.0, size=counts.shape)
    privacy, sampling = split_variance(shares, counts)
    np.testing.assert_allclose(privacy + sampling, shares.var(axis=0, ddof=1), rtol=1e-9)
    # Standard errors: 900 sqrt(2 / 4000) = 20 and 100 sqrt(2 / 4000) = 2.2; five of them, false alarm below 1e-5.
    np.testing.assert_allclose(privacy, 900, atol=100)
    np.testing.assert_allclose(sampling, 100, atol=12)
