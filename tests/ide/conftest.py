"""The Massachusetts trial: prior 2018, private 2019, five PUMAs, eighteen features."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain, marginals
from dpbayes.ide import Prior
from dpbayes.privacy import Release, release_tables

FEATURES = (
    *("AGEP", "SEX", "MSP", "HISP", "RAC1P", "NOC", "NPF", "HOUSING_TYPE", "OWN_RENT"),
    *("INDP_CAT", "EDU", "PINCP_DECILE", "POVPIP", "DVET", "DREM", "DPHY", "DEYE", "DEAR"),
)


@dataclass(frozen=True, eq=False)
class Massachusetts:
    domain: Domain
    public: pl.DataFrame
    private: pl.DataFrame
    prior: Prior
    truth: Prior

    def release(self, epsilon: float, seed: int) -> Release:
        tables = marginals(self.private, [("PUMA", name) for name in FEATURES], domain=self.domain)
        return release_tables(tables, epsilon=epsilon, rng=np.random.default_rng(seed))

    def weak(self, seed: int) -> Prior:
        """A 5 % subsample of the public rows with two columns shuffled."""
        rng = np.random.default_rng(seed)
        rows = self.public[rng.choice(len(self.public), len(self.public) // 20, replace=False)]
        for name in rng.choice(FEATURES, 2, replace=False):
            rows = rows.with_columns(pl.Series(name, rng.permutation(rows[name].to_numpy())))
        return Prior.from_frame(rows, self.domain)


def _coded(path) -> pl.DataFrame:
    frame = pl.read_csv(path, infer_schema_length=0).select("PUMA", *FEATURES)
    hundreds = (pl.col("POVPIP").cast(pl.Int64, strict=False) // 100).clip(upper_bound=5).cast(pl.String)
    return frame.with_columns(
        AGEP=(pl.col("AGEP").cast(pl.Int64) // 10).clip(upper_bound=8).cast(pl.String),
        POVPIP=pl.when(pl.col("POVPIP") == "N").then(pl.lit("N")).otherwise(hundreds),
    )


@pytest.fixture(scope="session")
def massachusetts(shared_data) -> Massachusetts:
    public, private = _coded(shared_data / "ma2018.csv"), _coded(shared_data / "ma2019.csv")
    levels = {name: sorted({*public[name], *private[name]}) for name in public.columns}
    domain = Domain.from_levels(levels)
    return Massachusetts(domain, public, private, Prior.from_frame(public, domain), Prior.from_frame(private, domain))
