"""What a calibration study of a verifier spec needs: the model on a design with invented counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpbayes.errors import SpecError
from dpbayes.runs.calibration import Calibration

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.privacy import Release
    from dpbayes.runs.verifier_spec import Spec

__all__ = ["calibration"]


@dataclass(frozen=True)
class _Build:
    """`build_model` of one release and its options, as an object that pickles."""

    release: Release
    alpha: tuple[float, ...]
    pooling: Literal["none", "partial"]

    def __call__(self) -> pm.Model:
        from dpbayes.verifier import build_model

        return build_model(self.release, alpha=self.alpha, pooling=self.pooling)


def calibration(spec: Spec, beside: Path, n_records: int | None) -> Calibration:
    """Return the model of a verifier spec; its likelihood is exact, so that it simulates for itself.

    Raises
    ------
    SpecError
        If the spec studies designs, or `n_records` is given: what is counted are partitions.
    """
    import numpy as np

    from dpbayes.privacy import read_release
    from dpbayes.verifier import PartitionCounts, release_counts

    if spec.surface is not None:
        raise SpecError("a study of designs sums operating characteristics; it has no posterior to calibrate")
    if n_records is not None:
        raise SpecError("a verifier's data are partitions, not records; set privacy.n_partitions in the spec instead")
    assert spec.data is not None
    if spec.data.release is not None:
        release = read_release(beside / spec.data.release)
    else:
        assert spec.privacy is not None
        m = spec.privacy.n_partitions
        release = release_counts(
            {question.name: PartitionCounts(m - m // 2, m // 2, 0) for question in spec.questions},
            epsilon=spec.privacy.epsilon,
            adjacency=spec.privacy.adjacency,
            noise=spec.privacy.noise,
            with_failures=getattr(spec.privacy, "with_failures", True),
            shares=[question.share for question in spec.questions],
            rng=np.random.default_rng(0),
        )
    questions, pooling = len(release.tables), spec.model.pooling
    outcomes = release.tables[0].counts.size
    alpha = tuple((spec.model.alpha or [1.0] * outcomes)[:outcomes])
    return Calibration(
        build_model=_Build(release, alpha, pooling),
        simulate=None,
        var_names=("r", "p"),
        sampling={"target_accept": 0.95 if pooling == "partial" else 0.9},
        design=f"{release.n} partitions, {questions} question{'s' if questions > 1 else ''}, pooling {pooling}, "
        f"{release.adjacency}, noise {release.tables[0].noise}",
    )
