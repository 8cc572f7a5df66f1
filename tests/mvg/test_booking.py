"""Releases enter the budget book before their noise is drawn, and simulations never do."""

import numpy as np
import pytest

from dpbayes.errors import BudgetExceededError, InputError
from dpbayes.mvg import (
    Covariance,
    FeatureRanges,
    MomentQuery,
    calibrate,
    calibrate_moments,
    release_moments,
    release_records,
)
from dpbayes.privacy.ledger import create_ledger

RANGES = FeatureRanges([0.0, 0.0], [1.0, 4.0], "replace-one")
RECORDS = np.array([[0.1, 0.5, 0.9], [1.0, 2.0, 3.0]])


def _releases(**changes):
    matrix = calibrate(np.eye(2), Covariance.identity(3), RANGES, epsilon=0.5, delta=1e-6)
    moments = calibrate_moments(MomentQuery(RANGES, 3), epsilon=0.5, delta=1e-6)
    yield lambda: release_records(RECORDS, matrix, ranges=RANGES, **changes)
    yield lambda: release_moments(RECORDS, moments, **changes)


def test_releases_are_booked_until_the_budget_is_spent(tmp_path):
    ledger = create_ledger(tmp_path / "a.db", epsilon=1.0, delta=2e-6, adjacency="replace-one", composition="basic")
    for release in _releases(ledger=ledger, ledger_delta=1e-6):
        assert len(release().digest) == 64
    for release in _releases(ledger=ledger, ledger_delta=1e-6):
        with pytest.raises(BudgetExceededError):
            release()


@pytest.mark.parametrize("composition", ["basic", "tight"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (3.3, 1e-5)])
def test_one_release_may_spend_the_whole_book(tmp_path, epsilon, delta, composition):
    for adjacency in ("replace-one", "add-remove"):
        book = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "composition": composition}
        ledger = create_ledger(tmp_path / f"{adjacency}.db", **book)
        query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 4.0], adjacency), 3, intercept=1.5)
        noise = calibrate_moments(query, epsilon=epsilon, delta=delta)
        release_moments(RECORDS, noise, ledger=ledger, ledger_delta=delta)
        assert epsilon * (1 - 1e-12) <= ledger.spent().epsilon <= epsilon
        with pytest.raises(BudgetExceededError):
            release_moments(RECORDS, noise, ledger=ledger, ledger_delta=delta)


def test_simulations_are_not_booked(tmp_path):
    ledger = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=2e-6, adjacency="replace-one", composition="basic")
    for release in _releases(ledger=ledger, ledger_delta=1e-6, rng=np.random.default_rng(1)):
        with pytest.raises(InputError, match="records real releases"):
            release()
