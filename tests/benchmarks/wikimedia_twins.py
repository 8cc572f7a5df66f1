"""Coverage of the views by summer over simulated twins of the Wikimedia study, beside the naive model.

Run as ``python tests/benchmarks/wikimedia_twins.py TWINS [PAGES]``: one page (by default) over nine summers, 95 %
intervals from two chains of 200 draws. The numbers stand in docs/published.md.
"""

import sys
import time
from pathlib import Path

import numpy as np

from dpbayes.inference.sampling import NutsSettings, compile_model
from dpbayes.runs import load_spec


def main(twins: int, pages: int = 1) -> None:
    """Print hits of both models, and the sum of rows, after each twin."""
    loaded = load_spec(Path(__file__).parents[2] / "models" / "wikimedia_disasters.toml")
    study, data = loaded.module, loaded.spec.data
    layout = study.empty_panel(data.pages[:pages], data.summers, data.created)
    settings = NutsSettings(draws=200, tune=250, chains=2, cores=1, target_accept=0.8)
    models = [compile_model(study.build_model(layout, naive=naive)) for naive in (False, True)]
    hits, summed, ratio = np.zeros(2), 0.0, []
    for twin in range(twins):
        exact, panel = study.simulate(layout, np.random.default_rng([7, twin]))
        truth, started = study.by_summer(panel, exact.sum(axis=1)), time.process_time()
        for place, model in enumerate(models):
            trace = model.fit(settings, data=panel.data, random_seed=twin, progressbar=False)
            low, middle, high = np.quantile(trace["posterior"]["views_summer"], [0.025, 0.5, 0.975], axis=(0, 1))
            hits[place] += ((low <= truth) & (truth <= high)).mean()
            ratio.append(middle / truth)
        rows = study.by_summer(panel, np.where(panel.has_row, panel.views, 0).sum(axis=1))
        summed += float((rows / truth).mean())
        n, (ours, theirs) = twin + 1, hits / (twin + 1)
        print(
            f"{n}: coverage ours {ours:.3f}, naive {theirs:.3f}; median over truth {np.mean(ratio[0::2]):.3f}, "
            f"{np.mean(ratio[1::2]):.3f}; sum of rows {summed / n:.3f}; {time.process_time() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
