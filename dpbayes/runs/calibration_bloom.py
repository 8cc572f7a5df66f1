"""What a calibration study of a Bloom spec needs: the model of true logos on a design with invented counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpbayes.errors import SpecError
from dpbayes.runs.calibration import Calibration

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.bloom.release import BloomRelease
    from dpbayes.runs.bloom import Spec

__all__ = ["calibration"]


@dataclass(frozen=True)
class _Build:
    """`build_model` of one release, as an object that pickles."""

    release: BloomRelease

    def __call__(self) -> pm.Model:
        from dpbayes.bloom.model import build_model

        return build_model(self.release)


def calibration(spec: Spec, beside: Path, n_records: int | None) -> Calibration:
    """Return the model of a Bloom spec; its likelihood is exact, so that it simulates for itself.

    Raises
    ------
    SpecError
        If `n_records` is given: the model is about positions, set by filters.n_bits.
    """
    import numpy as np

    from dpbayes.bloom.calibration import flip_prob_for
    from dpbayes.bloom.release import BloomRelease

    if n_records is not None:
        raise SpecError("a Bloom model is about positions, not records; set filters.n_bits in the spec instead")
    k, m = len(spec.audience.shares), spec.filters.n_bits
    privacy = spec.privacy
    p = flip_prob_for(
        epsilon=privacy.epsilon,
        n_filters=k,
        n_bits=m,
        delta=privacy.delta,
        definition=privacy.definition,
        pairs=privacy.pairs,
    )
    counts = np.full(2**k, m // 2**k)
    counts[0] += m - counts.sum()
    return Calibration(
        build_model=_Build(BloomRelease(counts, p, "simulation")),
        simulate=None,
        var_names=("logo_probability",),
        sampling={},
        design=f"{k} filters of {m:,} positions, flip probability {p:.4f}",
    )
