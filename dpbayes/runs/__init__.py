"""Scripted inference runs: a TOML spec in, a run folder with a report out.

A system joins with one module `dpbayes.runs.protocol.Study` in its folder, and its name in
`dpbayes.runs.registry.SYSTEMS`.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    calibration=["calibrate"],
    execution=["RunResult", "execute", "rebuild_report"],
    spec=["LoadedSpec", "load_spec"],
)
