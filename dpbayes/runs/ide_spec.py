"""The run spec of prior-aware estimation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dpbayes.runs.simulated import refuse_seed
from dpbayes.runs.spec import RunSpec, Section

__all__ = ["Data", "Estimation", "Groups", "Privacy", "Recode", "Spec", "Synthesis"]


class Recode(Section):
    """How a number becomes a level: whole bands of `width` from 0, everything from `top` on in the last."""

    width: int = Field(ge=1)
    """Width of a band, in the column's unit."""
    top: int = Field(ge=1)
    """Label of the last band: values of top x width and more."""
    keep: list[str] = Field(default_factory=list)
    """Marks that are no numbers and stay as they are, such as "N" for not applicable."""


class Data(Section):
    """Public and confidential records: files beside the spec, or the generated population."""

    embedded: Literal["two-level"] | None = None
    """Generate a two-level population with a public sister (`dpbayes.data.populations`)."""
    public: str | None = None
    """CSV or Parquet file of public records."""
    private: str | None = None
    """CSV or Parquet file of confidential records."""
    levels: dict[str, list[str]] = Field(default_factory=dict)
    """Levels of each attribute, as text, from the codebook; with files."""
    recode: dict[str, Recode] = Field(default_factory=dict)
    """Numeric columns to cut into bands before they are read as levels."""
    by: str | None = None
    """Attribute that names the group within which marginals are compared and the prior is pooled."""
    tables: list[list[str]] | Literal["by-feature"] | None = None
    """Tables to release; "by-feature" releases `by` x each other attribute. Without [groups]."""
    truth_public: bool = False
    """Whether the private records are public after all (a trial): the report may then show errors, and a seed may
    simulate the noise."""
    size: int = Field(default=600, ge=10)
    """Mean records of a group of the generated population."""
    seed: int = Field(default=1, ge=0)
    """Seed of the generated population."""

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        files = self.public is not None and self.private is not None
        if (self.embedded is not None) == files or (self.public is None) != (self.private is None):
            raise ValueError('give public and private files, or embedded = "two-level", and not both')
        if files and not self.levels:
            raise ValueError("files need [data.levels], the levels of each attribute from the codebook")
        unknown = sorted({*self.recode, *([self.by] if self.by else [])} - set(self.levels)) if files else []
        if unknown:
            raise ValueError(f"recode or by names {unknown}, which [data.levels] lacks")
        return self

    @model_validator(mode="after")
    def _tables_fit(self) -> Data:
        if not self.levels or self.tables is None:
            return self
        from dpbayes.data import Domain

        domain = Domain.from_levels(self.levels)  # its errors name the attribute and the level
        if self.tables == "by-feature":
            return self
        if not self.tables or [] in self.tables:
            raise ValueError(f"tables must name one attribute or more each, got {self.tables}; leave an empty one out")
        for names in self.tables:
            unknown = sorted(set(names) - set(domain.names))
            if unknown:
                raise ValueError(f"tables name {unknown}, which [data.levels] lacks; it has {list(domain.names)}")
            if len(set(names)) < len(names):
                raise ValueError(f"the table {names} names an attribute twice; name each once")
        return self


class Privacy(Section):
    """What the release costs."""

    epsilon: float = Field(gt=0)
    """Total privacy-loss parameter."""
    noise: Literal["two-sided-geometric", "laplace"] = "two-sided-geometric"
    """The noise law."""
    ledger: str | None = None
    """Budget book, beside the spec, in which the release is reserved before noise is drawn."""
    simulation_seed: int | None = Field(default=None, ge=0)
    """Draw reproducible noise from a seeded generator: a simulation, with no privacy guarantee. It gives the noise
    away, so that with a private file it needs data.truth_public."""


class Groups(Section):
    """Algorithm 2: upper units first, then their groups. Needs the generated population or a parent map."""

    attribute: str = "group"
    """Column that names the group of a record."""
    parent: dict[str, str] = Field(default_factory=dict)
    """Group to unit; the generated population brings its own."""
    stability: int = Field(default=1, ge=1)
    """Most records of one individual."""
    max_error: float = Field(default=0.2, gt=0)
    """Largest expected L1 error of a table that the workloads may choose."""
    max_information: float = Field(default=0.05, gt=0)
    """Largest mutual information, in nats, between attributes of the groups' workload."""
    n_jobs: int = Field(default=1, ge=1)
    """Processes that share the groups."""


class Estimation(Section):
    """How the prior and the release are weighed."""

    method: Literal["noise-aware", "algorithm-1"] = "noise-aware"
    """Noise-aware, or the paper's iteration, which starts from the public prior as given."""
    pool: bool = True
    """Let thin public records borrow, between the groups of `by` and from independence, as the public data justify;
    Algorithm 1, and both methods with [groups], take the prior as given."""
    strength: float | None = Field(default=None, gt=0)
    """Prior strength in records; by default it is chosen from the release alone."""
    iterations: int | None = Field(default=None, ge=1)
    """Updates of Algorithm 1, which is always run for comparison."""
    seed: int = Field(default=1, ge=0)
    """Seed of the updates' order and of the synthetic records (not of the noise)."""


class Synthesis(Section):
    """Synthetic records."""

    n_rows: int | None = Field(default=None, ge=1)
    """Records; by default as many as the release speaks of. Groups always take their released sizes."""
    format: Literal["parquet", "csv"] = "parquet"
    """File format."""


class Spec(RunSpec):
    """A run of prior-aware estimation."""

    system: Literal["ide"]
    """The system's name."""
    data: Data
    privacy: Privacy
    groups: Groups | None = None
    estimation: Estimation = Estimation()
    synthesis: Synthesis = Synthesis()

    @model_validator(mode="after")
    def _fits(self) -> Spec:
        file = None if self.data.private is None else "private"
        refuse_seed(self.privacy.simulation_seed, file=file, public=self.data.truth_public, ledger=self.privacy.ledger)
        if self.data.embedded is not None and self.groups is None:
            raise ValueError("the two-level population is for groups; add the section [groups]")
        if self.groups is not None:
            if self.data.embedded is None and not self.groups.parent:
                raise ValueError("groups of files need [groups.parent], the unit of each group")
            if self.data.tables is not None:
                raise ValueError("with [groups] the workloads are chosen from the public data; leave data.tables out")
        elif self.data.tables is None:
            raise ValueError('name the tables to release: data.tables = "by-feature", or a list of attribute sets')
        if self.data.tables == "by-feature" and self.data.by is None:
            raise ValueError("by-feature tables need data.by, the attribute that names the group")
        return self
