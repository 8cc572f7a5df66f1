"""Scripted inference runs: a TOML spec in, a run folder with a report out.

A system joins with one module here that offers

- ``Spec``, a subclass of `RunSpec` whose sections are `Section` models (pydantic, strict, no unknown keys);
- ``run(spec, context) -> Outcome``, which writes its files into ``context.folder``, each one whole (`write_text`, or a
  temporary name and a rename), and skips a stage whose file is there;
- ``document(spec, folder) -> dpbayes.report.Document``, which builds the report from the folder's files alone;

and one line in `dpbayes.runs.registry.SYSTEMS`. The module imports PyMC and plotting inside its functions.
"""

from dpbayes.runs.execution import Context, Outcome, RunResult, execute, rebuild_report
from dpbayes.runs.folder import write_text
from dpbayes.runs.keys import SpecKey, SpecSection, key_lines, spec_sections
from dpbayes.runs.spec import LoadedSpec, RunSpec, Section, load_spec

__all__ = [
    "Context",
    "LoadedSpec",
    "Outcome",
    "RunResult",
    "RunSpec",
    "Section",
    "SpecKey",
    "SpecSection",
    "execute",
    "key_lines",
    "load_spec",
    "rebuild_report",
    "spec_sections",
    "write_text",
]
