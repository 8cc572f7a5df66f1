"""Coverage of the counts that a threshold held back, beside two naive treatments of them.

Run as ``python tests/benchmarks/thresholds.py ide RELEASES`` or ``... latent-class RELEASES [tables|cells]``; the table
of docs/published.md. Records come from a log-linear model of five attributes with random effects of single levels and
of pairs, which neither system has; public records of `ide` from the same model with moved effects. Five two-way tables
are released, and the threshold hides 30 % of their exact counts. *missing*: what was held back is taken as missing for
another reason (noise without bound). *zero*: as a noisy zero. *published*: the same release without a threshold.
"""

import os
import sys
import time
from itertools import combinations

os.environ.setdefault("PYTENSOR_FLAGS", "cxx=")

import numpy as np

from dpbayes.data import Domain, Marginal
from dpbayes.ide import Prior, estimate
from dpbayes.privacy import DiscreteGaussian, NoisyTable, Publication, Release, TwoSidedGeometric

DOMAIN = Domain.from_levels({"a": (0, 1, 2), "b": (0, 1), "c": (0, 1, 2, 3), "d": (0, 1), "e": (0, 1, 2)})
RECORDS, PUBLIC = 5000, 3000
STATED = Publication("A simulated office", "tests/benchmarks/thresholds.py", "2026-11", "noise, then a threshold")
LAWS = [TwoSidedGeometric(30.0), DiscreteGaussian(40.0)]
TREATMENTS = ("held back", "missing", "zero", "published")


def log_linear(effects):
    """Return the probabilities of all cells by effects of single levels and of pairs of levels."""
    logs = np.zeros(DOMAIN.shape)
    for axes, effect in effects.items():
        logs += effect.reshape([DOMAIN.shape[axis] if axis in axes else 1 for axis in range(len(DOMAIN))])
    return np.exp(logs) / np.exp(logs).sum()


def population(rng):
    """Return all two-way tables of the confidential records, and public records of a population that is near."""
    kinds = [axes for order in (1, 2) for axes in combinations(range(len(DOMAIN)), order)]
    shapes = {axes: [DOMAIN.shape[axis] for axis in axes] for axes in kinds}
    effects = {axes: rng.normal(0.0, 0.8 / len(axes), shape) for axes, shape in shapes.items()}
    moved = {axes: effect + rng.normal(0.0, 0.15, effect.shape) for axes, effect in effects.items()}
    whole = Marginal(DOMAIN, rng.multinomial(RECORDS, log_linear(effects).ravel()).reshape(DOMAIN.shape))
    public = Prior.full(DOMAIN, rng.multinomial(PUBLIC, log_linear(moved).ravel()).reshape(DOMAIN.shape))
    seen = public.weights > 0
    prior = Prior(DOMAIN, public.codes[seen], public.weights[seen], n_records=PUBLIC)
    return [whole.project(names) for names in combinations(DOMAIN.names, 2)], prior


def releases(tables, law, rng):
    """Return one release as its readers take it, and which counts were held back."""
    threshold = float(np.quantile(np.concatenate([table.counts.ravel() for table in tables]), 0.3).round())
    found = {name: [] for name in TREATMENTS}
    for table in tables:
        noisy = table.counts + law.simulate(table.counts.shape, rng).astype(float)
        held = noisy < threshold
        zeros, spreads = np.where(held, 0.0, noisy), np.where(held, 1e5, law.spread)
        shown = np.where(held, np.nan, noisy)
        found["held back"].append(NoisyTable(table.domain, shown, law, None, None, None, threshold))
        found["missing"].append(NoisyTable(table.domain, zeros, law.of(spreads.max()), None, None, spreads))
        found["zero"].append(NoisyTable(table.domain, zeros, law, None, None))
        found["published"].append(NoisyTable(table.domain, noisy, law, None, None))
    held = np.concatenate([table.withheld.ravel() for table in found["held back"]])
    made = {
        name: Release(DOMAIN, tuple(own), "as published", RECORDS, "published", publication=STATED)
        for name, own in found.items()
    }
    return made, held


def ide_interval(release, prior, seed):
    """Return the ends of 95 % intervals of the exact counts, by `ide`."""
    found = estimate(prior, release, pool=False)
    ends = [found.interval(table.attributes) for table in release.tables]
    return [RECORDS * np.concatenate([one[side].ravel() for one in ends]) for side in (0, 1)]


def latent_class_interval(form):
    """Return a function that gives the ends of 95 % intervals of the exact counts, by the latent class model."""
    from dpbayes.inference import sample
    from dpbayes.latent_class import build_model, sampler_defaults

    def interval(release, prior, seed):
        model = build_model(release, likelihood=form, record_cells=False)
        settings = sampler_defaults(release) | {"chains": 128, "rounds": 1}
        trace = sample(model, random_seed=seed, progressbar=False, cores=1, **settings)
        return np.quantile(trace["posterior"]["exact_counts"], [0.025, 0.975], axis=(0, 1))

    return interval


def main(system, count, form="tables"):
    """Print coverage of the counts held back and of the released ones, and the mean width, after each release."""
    interval = ide_interval if system == "ide" else latent_class_interval(form)
    rows = []
    for seed in range(int(count)):
        tables, prior = population(np.random.default_rng([1, seed]))
        exact = np.concatenate([table.counts.ravel() for table in tables[::2]])
        for law in LAWS:
            made, held = releases(tables[::2], law, np.random.default_rng([2, seed]))
            for name, release in made.items():
                started = time.process_time()
                low, high = interval(release, prior, seed)
                inside, taken = (np.rint(low) <= exact) & (exact <= np.rint(high)), time.process_time() - started
                rows.append((law.name, name, held.sum(), inside[held].sum(), inside.sum(), len(exact),
                             (high - low)[held].sum(), taken))  # fmt: skip
        print(f"{seed + 1} releases of each law")
        for law in LAWS:
            for name in TREATMENTS:
                n, hits, all_hits, cells, width, seconds = np.sum(
                    [row[2:] for row in rows if row[:2] == (law.name, name)], axis=0
                )
                print(
                    f"  {law.name}, {name}: held {hits / n:.3f} of {n:.0f} ({n / cells:.2f} of all), released "
                    f"{(all_hits - hits) / (cells - n):.3f}, width of held {width / n:.1f}; "
                    f"{seconds / (seed + 1):.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
