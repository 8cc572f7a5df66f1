"""Sentences of the MVG reports follow from the numbers beside them."""

import numpy as np

from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
from dpbayes.report.document import Callout
from dpbayes.report.released import simulation_warning
from dpbayes.runs.mvg_regression_document import _released


def test_a_page_on_simulated_noise_warns_and_one_on_a_release_does_not():
    noise = calibrate_moments(MomentQuery(FeatureRanges([0.0], [1.0], "replace-one"), 3), epsilon=1.0, delta=1e-5)
    for rng, drawn in ((np.random.default_rng(1), "a seeded generator"), (None, "OpenDP")):
        release = release_moments([[0.0, 1.0, 0.5]], noise, rng=rng)
        text, *rest = _released(release, 1.0, 1e-5).blocks
        assert f"drawn by {drawn}." in text.text
        assert rest == simulation_warning(release.sampler)
        warnings = [block for block in rest if isinstance(block, Callout) and block.tone == "warning"]
        assert [block.title for block in warnings] == ([] if rng is None else ["A simulation, not a release"])
