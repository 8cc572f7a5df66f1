"""`dpbayes sbc`: whether the posteriors of a run spec are right, by simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpbayes.cli._failures import interruptible

__all__ = ["sbc"]

EXIT_NOT_CALIBRATED = 3


def sbc(
    spec: Annotated[Path, typer.Argument(help="A run spec (TOML) whose run has a posterior.")],
    simulations: Annotated[int, typer.Option("-n", "--simulations", help="Simulated data sets, each fitted.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Study folder. Default: runs/NAME-sbc.")] = None,
    n_records: Annotated[
        int | None, typer.Option(help="Records of a simulated data set, if not as many as the spec says.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the study.")] = 1,
    draws: Annotated[int, typer.Option(help="Draws kept a chain.")] = 500,
    tune: Annotated[int, typer.Option(help="Warm-up draws a chain.")] = 500,
    chains: Annotated[int, typer.Option(help="Chains a fit.")] = 2,
    jobs: Annotated[int, typer.Option(help="Processes; each compiles for itself.")] = 1,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of the spec; may be given again."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Calibrate a spec by simulation: draw truth and data from its prior, fit, rank the truth among the draws.

    No confidential record is read: the design (attributes, tables, noise, number of records) is simulated. A stopped
    study goes on by the same command; more simulations extend it. The folder holds `ranks.nc`, `facts.json` and
    `report.html` with the ECDF plots. Exit code 3: the ranks are not uniform.

    Example: `dpbayes sbc models/acs_latent_class.toml -n 200 --n-records 500 --set privacy.epsilon=0.5`
    """
    from dpbayes.inference.nuts import NutsSettings
    from dpbayes.runs import load_spec
    from dpbayes.runs.calibration import calibrate, calibration_of

    loaded = load_spec(spec, overrides or ())
    sampling = calibration_of(loaded, n_records=n_records).sampling
    with interruptible():
        result = calibrate(
            loaded,
            out=out,
            n_simulations=simulations,
            n_records=n_records,
            random_seed=seed,
            settings=NutsSettings(draws=draws, tune=tune, chains=chains, **sampling),
            n_jobs=jobs,
            progressbar=not quiet,
            echo=typer.echo,
        )
    typer.echo(f"report: {result.folder / 'report.html'}")
    if not result.passed:
        raise typer.Exit(EXIT_NOT_CALIBRATED)
