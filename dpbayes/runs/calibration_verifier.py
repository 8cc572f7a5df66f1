"""What a calibration study of a verifier spec needs: the model on a design with invented counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpbayes.errors import SpecError
from dpbayes.runs.calibration import Calibration
from dpbayes.runs.records import require_file

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
    from dpbayes.privacy import read_release
    from dpbayes.runs.verifier_rehearsal import invented_release

    if spec.surface is not None:
        raise SpecError("a study of designs sums operating characteristics; it has no posterior to calibrate")
    if n_records is not None:
        raise SpecError("a verifier's data are partitions, not records; set privacy.n_partitions in the spec instead")
    assert spec.data is not None
    given = spec.data.release
    release = (
        invented_release(spec) if given is None else read_release(require_file(beside / given, setting="data.release"))
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
