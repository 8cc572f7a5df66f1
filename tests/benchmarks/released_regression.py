"""Coverage of the slope in a regression whose counts were all released with noise, beside plugging the counts in.

Run as ``python tests/benchmarks/released_regression.py AREAS DATA_SETS [TUNE DRAWS]``: parameters and data from the
priors of ``models/released_regression.py``, noise of standard deviation 12; the model is compiled once, and each data
set has four chains. Two of 500 draws are too few: the share's level and spread mix at a quarter of a draw per draw.
"""

import runpy
import sys
import time
from pathlib import Path

import numpy as np
import pymc as pm

from dpbayes.inference import check_convergence
from dpbayes.inference.sampling import NutsSettings, compile_model
from dpbayes.privacy import DiscreteGaussian

NAMES = ("population", "smokers", "cases")
STATED = runpy.run_path(str(Path(__file__).parents[2] / "models" / "released_regression.py"))["released_regression"]


def predictors(population, smokers, cases):
    """Return offset, standardized covariate and outcome; counts that allow no logarithm are moved to 1."""
    population, smokers = np.maximum(population, 2.0), np.maximum(smokers, 1.0)
    logit = np.log(smokers / np.maximum(population - smokers, 1.0))
    return {
        "offset": np.log(population),
        "x": (logit - logit.mean()) / logit.std(),
        "y": np.maximum(cases, 0).astype(int),
    }


def plugged_in(data) -> pm.Model:
    """State the regression that takes noisy counts for exact ones."""
    with pm.Model() as model:
        given = {name: pm.Data(name, values) for name, values in data.items()}
        a, b = pm.Normal("intercept", -3.7, 0.2), pm.Normal("slope", 0.2, 0.2)
        mean = pm.math.exp(given["offset"] + a + b * given["x"])
        pm.NegativeBinomial("cases", mean, alpha=pm.LogNormal("alpha", np.log(6), 0.3), observed=given["y"])
    return model


def inside(trace, slope: float) -> bool:
    """Return whether the slope's 95 % interval holds the truth."""
    low, high = np.quantile(trace["posterior"]["slope"], [0.025, 0.975])
    return bool(low < slope < high)


def main(areas: int, sets: int, tune: int = 500, draws: int = 750) -> None:
    """Print a line per data set: hits so far, ours and plugged in, and seconds of processor time of ours."""
    model = STATED(*np.full((3, areas), 20.0), DiscreteGaussian(12.0))
    values = pm.draw([model["slope"], *(model[name] for name in NAMES)], draws=sets, random_seed=1)
    drawn = [np.atleast_1d(one) if sets > 1 else np.asarray(one)[None] for one in values]
    started = time.process_time()
    ours, naive = compile_model(model), None
    print(f"compiling: {time.process_time() - started:.0f} s")
    hits, failed = np.zeros(2, int), 0
    for place, (slope, *counts) in enumerate(zip(*drawn, strict=True)):
        plain = predictors(*counts)
        naive = naive or compile_model(plugged_in(plain))
        started = time.process_time()
        data = {f"{name}_data": one for name, one in zip(NAMES, counts, strict=True)}
        settings = NutsSettings(draws=draws, tune=tune, chains=4, target_accept=0.8)
        trace = ours.fit(settings, data=data, random_seed=place, progressbar=False)
        seconds = time.process_time() - started
        verdict = check_convergence(trace)
        failed += not verdict.passed
        worst = ", ".join(
            f"{one.check} {one.value_text}" for one in verdict.findings if one.check in ("rhat", "ess_bulk")
        )
        settings = NutsSettings(draws=500, tune=500, chains=2, cores=1)
        beside = naive.fit(settings, data=plain, random_seed=place, progressbar=False)
        hits += [inside(trace, slope), inside(beside, slope)]
        n = place + 1
        so_far = f"ours {hits[0]}, plugged in {hits[1]}; fits that fail the check {failed}"
        print(f"{n}: {so_far}; {worst}; {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
