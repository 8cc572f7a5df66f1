"""What a calibration study says of the spec that a run comes from: a section for the run's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpbayes.errors import InputError
from dpbayes.report.document import Block, Callout, Column, Paragraph, Section, Table
from dpbayes.report.run_facts import differing_settings, read_run, show

__all__ = ["calibration_section"]


def calibration_section(run: str | Path, study: str | Path) -> Section:
    """Build the section on calibration of a run's page.

    Parameters
    ----------
    run
        A run folder, or a partial one that holds ``spec.toml`` already.
    study
        The folder of a calibration study (`dpbayes sbc`).

    Returns
    -------
    Section
        The study's verdict, and how its spec differs from the run's: calibration of another design says less.

    Raises
    ------
    FileNotFoundError
        If the folder is no finished study.
    InputError
        If the study is of another system.

    Examples
    --------
    `dpbayes report RUN --sbc STUDY` puts it on a run's page; `dpbayes.runs.calibration.calibrate` makes a study.
    """
    ours, theirs = _settings(run), read_run(study)
    if not (Path(study) / "ranks.nc").is_file():
        raise FileNotFoundError(f"{study} is no calibration study: it has no ranks.nc; make one with `dpbayes sbc`")
    system, calibrated = ours.settings.get("system"), theirs.settings.get("system")
    if system != calibrated:
        raise InputError(
            f"the study calibrates {calibrated!r} and the run is of {system!r}; calibrate the run's own spec"
        )
    verdict = theirs.facts["verdict"]
    blocks: list[Block] = [
        Callout(verdict["tone"], verdict["title"], verdict["lines"]),
        Paragraph(
            f"{theirs.facts['answer']} The study draws truth and data from the spec's prior, fits each data set, and "
            "ranks every truth among its posterior draws; it reads no confidential record. Its own page has the plots."
        ),
    ]
    # Sampler settings, synthesis and seeds are the study's own; what was calibrated is the design and the model.
    differing = {
        name: values
        for name, values in differing_settings([ours, theirs]).items()
        if name.partition(".")[0] not in ("sampling", "synthesis") and not name.endswith("seed")
    }
    if differing:
        columns = [Column("setting"), Column("this run"), Column("the study")]
        rows = [(name, *map(show, values)) for name, values in differing.items()]
        blocks.append(Table("calibration_differs", "The study's design is not this run's", columns, rows))
    return Section("Are the intervals calibrated?", blocks)


def _settings(run: str | Path) -> Any:
    """Read a run's settings; its facts need not be written yet."""
    import tomllib

    from dpbayes.report.run_facts import RunFacts, flatten

    path = Path(run) / "spec.toml"
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run folder: it has no spec.toml")
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    return RunFacts(Path(run), Path(run).name, flatten(settings), {})
