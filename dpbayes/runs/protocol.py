"""What a system offers to be run: a module ``dpbayes/<system>/study.py``, named in the registry.

The runner does the rest, once for all: stages and resuming, the ledger, trying the model on placeholder counts before
anything is spent, finished releases, the convergence check, calibration, the frame of the page and its provenance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpbayes._files import write_text
from dpbayes._lazy import xr
from dpbayes.report.frame import Findings as Findings

if TYPE_CHECKING:
    import numpy as np
    import pymc as pm

    from dpbayes.inference.sbc import Simulator
    from dpbayes.privacy.ledger import Ledger
    from dpbayes.runs.spec import RunSpec


@dataclass(frozen=True)
class Context:
    """Where a study works and how it talks."""

    folder: Path
    beside: Path
    echo: Callable[[str], None] = print
    progress: Any | None = None  # a function of stage and share that is done; None where nobody wants to know

    def at(self, stage: str) -> None:
        """Name the stage that begins."""
        if self.progress is not None:
            self.progress.at(stage)

    def keep(self, name: str, value: Any) -> None:
        """Write plain data as ``<name>.json`` beside the release, for `Study.sections`: public truths only."""
        write_text(self.folder / f"{name}.json", json.dumps(value))


class Study(Protocol):
    """A system's ``study`` module. A system of several kinds of study dispatches inside."""

    Spec: type[RunSpec]

    def design(self, spec: Any, beside: Path, *, n_records: int | None = None, ledger: Ledger | None = None) -> Any:
        """Return the release that a spec would make, of placeholder counts: no record read, nothing booked.

        Of a release the runner asks `adjacency`, `digest`, `sampler`, `privacy_record` and `write(path)`.
        """

    def release(self, spec: Any, context: Context, *, rng: np.random.Generator | None, ledger: Ledger | None) -> Any:
        """Read the confidential records, and release. `rng` None means OpenDP."""

    def fit(self, spec: Any, release: Any, context: Context) -> xr.DataTree | dict[str, Any]:
        """Return the posterior of a release, or a result that JSON can hold; arrays become lists, and NaN null."""

    def sections(self, spec: Any, release: Any, result: Any, kept: Mapping[str, Any]) -> Findings:
        """Return what the page says, from the arguments alone; `kept` is what `Context.keep` wrote."""


@dataclass(frozen=True)
class Calibration:
    """What a calibration study of a spec needs from its system."""

    build_model: Callable[[], pm.Model]
    design: str
    simulate: Simulator | None = None
    var_names: tuple[str, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)
    called: Mapping[str, str] = field(default_factory=dict)  # variables in words
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the quantities of a variable, in words
