"""Which likelihood is right? Calibration of the joint and the composite one on the same simulated releases.

Three attributes (3, 2, 2 levels), three two-way tables, two-sided geometric noise, replace-one. Mixtures come from
the prior; records, counts and noise are drawn exactly. Run it again to go on.

    python tests/benchmarks/latent_class_likelihoods.py FOLDER composite --records 500 --epsilon 1 --simulations 100
"""

import argparse
from pathlib import Path

import numpy as np

from dpbayes.data import Domain, Marginal
from dpbayes.inference.nuts import NutsSettings
from dpbayes.inference.sbc import simulate_and_rank
from dpbayes.latent_class import build_model
from dpbayes.privacy import release_tables
from dpbayes.report.calibration import judge
from dpbayes.runs.calibration_latent_class import LatentClassSimulator

DOMAIN = Domain.from_levels({"age": ("young", "middle", "old"), "sex": ("f", "m"), "income": ("low", "high")})
PAIRS = [("age", "sex"), ("age", "income"), ("sex", "income")]


def design(n: int, epsilon: float):
    """A release of the design; its records are invented."""
    rng = np.random.default_rng(0)
    records = np.column_stack([rng.integers(0, size, n) for size in DOMAIN.shape])
    tables = []
    for names in PAIRS:
        part = DOMAIN.project(names)
        counts = np.zeros(part.shape, dtype=np.int64)
        np.add.at(counts, tuple(records[:, list(DOMAIN.axes(names))].T), 1)
        tables.append(Marginal(part, counts))
    return release_tables(tables, epsilon=epsilon, rng=rng)


class Build:
    """Builds the model of one likelihood; pickles."""

    def __init__(self, release, likelihood: str) -> None:
        self.release, self.likelihood = release, likelihood

    def __call__(self):
        """Return the model."""
        return build_model(self.release, n_classes=4, likelihood=self.likelihood)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("likelihood", choices=["joint", "composite"])
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--simulations", type=int, default=100)
    arguments = parser.parse_args()
    release = design(arguments.records, arguments.epsilon)
    build = Build(release, arguments.likelihood)
    study = simulate_and_rank(
        build,
        simulate=LatentClassSimulator(release, Build(release, "joint"), arguments.records),
        n_simulations=arguments.simulations,
        random_seed=1,
        var_names=("margin", "cell"),
        settings=NutsSettings(draws=150, tune=250, chains=2, target_accept=0.9, adaptation="diag"),
        folder=arguments.folder,
        label=f"{arguments.likelihood} {arguments.records} {arguments.epsilon}",
        progressbar=False,
    )
    print(judge(study).summary)


if __name__ == "__main__":
    main()
