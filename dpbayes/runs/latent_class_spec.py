"""The run spec of the latent class system."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from dpbayes.latent_class.sampler_settings import sampler_options
from dpbayes.runs.simulated import refuse_seed
from dpbayes.runs.spec import RunSpec, Section

__all__ = ["Data", "Model", "Privacy", "Sampling", "Spec", "Synthesis"]


class Data(Section):
    """Where the tables come from: exactly one of the three."""

    embedded: Literal["acs_tables", "persons"] | None = None
    """Tables that come with dpbayes: ten of the American Community Survey, or six of 5,000 invented persons."""
    microdata: str | None = None
    """A CSV or Parquet file of confidential records, beside the spec."""
    release: str | None = None
    """A release that was written before, beside the spec: nothing is released then."""
    levels: dict[str, list[str | int]] | None = None
    """For microdata: the levels of each attribute, from the codebook."""
    attribute_sets: list[list[str]] | Literal["all-pairs"] = "all-pairs"
    """For microdata: the tables to release."""
    truth_public: bool = False
    """Whether the exact tables are public: the report may then show them beside the estimates, and a seed may simulate
    the noise."""

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        given = [name for name in ("embedded", "microdata", "release") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of embedded, microdata and release; got {' and '.join(given) or 'none'}"
            )
        if self.microdata is not None and not self.levels:
            raise ValueError("microdata need [data.levels], the levels of each attribute from the codebook")
        if self.release is not None and self.truth_public:
            raise ValueError("truth_public needs exact tables, and a release holds none; leave it out")
        return self


class Privacy(Section):
    """What the release costs. Not used when a finished release is read."""

    epsilon: float | None = Field(default=None, gt=0)
    """Total privacy-loss parameter over all tables, for two-sided geometric and Laplace noise."""
    rho: float | None = Field(default=None, gt=0)
    """Total zero-concentrated DP parameter over all tables, for discrete Gaussian and Gaussian noise."""
    noise: Literal["two-sided-geometric", "laplace", "discrete-gaussian", "gaussian"] = "two-sided-geometric"
    """The noise law."""
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    """The relation between neighbouring data sets."""
    total_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of the budget spent on the number of records, under add-remove."""
    ledger: str | None = None
    """Budget book, beside the spec, in which the release is reserved before noise is drawn."""
    simulation_seed: int | None = Field(default=None, ge=0)
    """Draw reproducible noise from a seeded generator instead of OpenDP: a simulation, with no privacy guarantee. It
    gives the noise away, so that with microdata it needs data.truth_public."""

    @model_validator(mode="after")
    def _one_budget(self) -> Privacy:
        unit = "rho" if "gaussian" in self.noise else "epsilon"
        given = [name for name in ("epsilon", "rho") if getattr(self, name) is not None]
        if given != [unit]:
            raise ValueError(
                f"{self.noise} noise takes {unit} and nothing else; got {' and '.join(given) or 'neither'}"
            )
        return self


class Model(Section):
    """The latent class model."""

    n_classes: int = Field(default=8, ge=1, le=200)
    """Number of classes at which the stick-breaking mixture is truncated."""
    likelihood: Literal["joint", "composite"] = "joint"
    """All released tables as margins of one table; or, as the paper, each with a multinomial of its own, to compare:
    intervals are then too narrow where tables share attributes, and nothing is said of these records' own counts."""
    file: str | None = None
    """Your own model: a Python file beside the spec that defines ``build_model(release, *, n_classes)``. It is run only
    with --allow-python. ``model = "file:variant.py"`` is short for this."""
    impossible: list[dict[str, str | int | list[str | int]]] = Field(default_factory=list)
    """Structural zeros: combinations of levels that cannot occur, each a level or several for some attributes."""

    @model_validator(mode="after")
    def _own_choices(self) -> Model:
        if self.file is not None and self.impossible:
            raise ValueError("your own model states its own structural zeros; leave impossible out")
        if self.file is not None and self.likelihood != "joint":
            raise ValueError("your own model states its own likelihood; leave likelihood out")
        return self


class Sampling(Section):
    """NUTS settings."""

    draws: int = Field(default=1500, ge=10)
    """Draws kept a chain."""
    tune: int = Field(default=500, ge=10)
    """Draws spent on adaptation, a chain."""
    chains: int = Field(default=4, ge=1)
    """Chains; convergence is judged across them."""
    target_accept: float = Field(default=0.93, gt=0, lt=1)
    """Acceptance rate that the step size aims at."""
    max_treedepth: int = Field(default=12, ge=1, le=20)
    """Doublings at which a trajectory is cut; a few early ones need more than the usual 10."""
    integration_time: float = Field(default=10.0, ge=3.5)
    """Time at which a trajectory ends, turned back or not, in units of the mass matrix's standard deviations."""
    adaptation: Literal["diag", "low_rank"] = "diag"
    """Mass matrix: a diagonal, or a diagonal and the few directions that it misses."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampler, of the synthetic data and of the predictive check (not of the noise)."""

    def metric(self) -> dict[str, Any]:
        """Return what `dpbayes.inference.sample` is told of step size, trajectories and mass matrix."""
        return {
            "target_accept": self.target_accept,
            "max_treedepth": self.max_treedepth,
            "adaptation": self.adaptation,
            "options": sampler_options(self.integration_time),
        }


class Synthesis(Section):
    """Synthetic data."""

    n_datasets: int = Field(default=5, ge=0)
    """Number of data sets."""
    n_rows: int | None = Field(default=None, ge=1)
    """Records in each; by default as many as the confidential data have."""
    format: Literal["parquet", "csv"] = "parquet"
    """File format."""


class Spec(RunSpec):
    """A run of the latent class system."""

    system: Literal["latent-class"]
    """The system's name."""
    data: Data
    privacy: Privacy | None = None
    model: Model = Model()
    sampling: Sampling = Sampling()
    synthesis: Synthesis = Synthesis()

    @model_validator(mode="after")
    def _sections_agree(self) -> Spec:
        if self.privacy is not None:
            file = None if self.data.microdata is None else "microdata"
            refuse_seed(self.privacy.simulation_seed, file=file, public=self.data.truth_public)
        if (self.privacy is None) == (self.data.release is None):
            raise ValueError(
                "a finished release carries its own cost; leave [privacy] out"
                if self.privacy
                else "add the section [privacy] with epsilon = 1.0, say: what the release may cost"
            )
        noisy_n = self.privacy is not None and self.privacy.adjacency == "add-remove"
        if noisy_n and self.model.likelihood == "composite":
            raise ValueError(
                "the composite likelihood needs a public number of records, and under add-remove it is released with "
                'noise; set model.likelihood = "joint", or privacy.adjacency = "replace-one"'
            )
        return self
