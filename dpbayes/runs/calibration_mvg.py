"""What a calibration study of a noise-aware regression needs: the model on a design with invented moments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpbayes.errors import SpecError
from dpbayes.runs.calibration import Calibration

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.mvg.moment_release import MomentRelease
    from dpbayes.runs.mvg import Spec

__all__ = ["calibration"]


@dataclass(frozen=True)
class _Build:
    """`build_moment_model` of one release, as an object that pickles."""

    release: MomentRelease
    columns: tuple[str, ...]

    def __call__(self) -> pm.Model:
        from dpbayes.mvg import build_moment_model, whiten_moments

        return build_moment_model(whiten_moments(self.release, features=self.columns))


def calibration(spec: Spec, beside: Path, n_records: int | None) -> Calibration:
    """Return the model of a regression on released moments; it simulates for itself.

    Raises
    ------
    SpecError
        If the spec has no regression, or reads records from a file and `n_records` is None.
    """
    import numpy as np

    from dpbayes.data.patients import PATIENT_RANGES
    from dpbayes.mvg import MomentQuery, calibrate_moments, release_moments
    from dpbayes.mvg.model import sampler_defaults
    from dpbayes.runs.mvg_records import feature_ranges
    from dpbayes.runs.mvg_regression import regression_columns

    if spec.regression is None:
        raise SpecError("this study measures errors and has no posterior; a spec with [regression] does")
    n = n_records or spec.data.n
    if n is None:
        raise SpecError("a calibration study reads no confidential record; say how many to simulate (--n-records)")
    given = spec.data.ranges or {}
    known = {name: (bounds[0], bounds[1]) for name, bounds in given.items()} or PATIENT_RANGES
    names = regression_columns(spec)
    ranges = feature_ranges(known, names)
    query = MomentQuery(ranges, n, intercept=spec.regression.intercept or math.sqrt(len(names)))
    shape = np.diag((ranges.widths / 2.0) ** 2)
    noise = calibrate_moments(query, epsilon=spec.privacy.epsilon, delta=spec.privacy.delta, shape=shape)
    rng = np.random.default_rng(0)
    invented = ranges.lower[:, None] + ranges.widths[:, None] * rng.random((len(names), n))
    defaults = sampler_defaults()
    return Calibration(
        build_model=_Build(release_moments(invented, noise, rng=rng), tuple(names)),
        simulate=None,
        var_names=(),
        sampling={"target_accept": spec.regression.target_accept, "adaptation": defaults["adaptation"]},
        design=f"moments of {n:,} records, {len(names) - 1} predictors, epsilon {spec.privacy.epsilon:g}, replace-one",
    )
