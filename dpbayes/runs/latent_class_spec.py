"""The run spec of the latent class system."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SkipValidation, model_validator

from dpbayes.errors import SpecError
from dpbayes.latent_class.design import CONCENTRATION, Design, checked_concentration
from dpbayes.latent_class.sampler_settings import form_defaults, sampler_options
from dpbayes.runs.latent_class_privacy import Privacy
from dpbayes.runs.simulated import refuse_seed
from dpbayes.runs.spec import RunSpec, Section

if TYPE_CHECKING:
    from dpbayes.data import Domain

__all__ = ["Data", "Model", "Privacy", "Sampling", "Spec", "Synthesis", "released_tables"]


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

    @model_validator(mode="after")
    def _tables_fit(self) -> Data:
        released_tables(self)  # its errors name the attribute at fault
        return self


def released_tables(data: Data) -> tuple[Domain, list[tuple[str, ...]]] | None:
    """Return the attributes that a run is to release, and the sets of them that its tables count; no file is read.

    Parameters
    ----------
    data
        Where the tables come from. Of microdata, only the levels and the names of the tables are used.

    Returns
    -------
    tuple of Domain and list, or None
        None where a release was written before: its tables are in its file.

    Raises
    ------
    InputError
        If levels are not two or more distinct ones, or a table names no attribute, one twice, or one without levels.
    """
    from dpbayes.data import Domain, datasets
    from dpbayes.data.persons import PERSON_LEVELS
    from dpbayes.errors import InputError

    if data.release is not None:
        return None
    if data.embedded == "acs_tables":
        counted = datasets.acs_tables()
        domain = Domain(tuple({attribute.name: attribute for table in counted for attribute in table.domain}.values()))
        return domain, [table.attributes for table in counted]
    everything = Domain.from_levels(PERSON_LEVELS if data.embedded else data.levels or {})
    all_pairs = data.embedded or data.attribute_sets == "all-pairs"
    named = combinations(everything.names, 2) if all_pairs else data.attribute_sets
    sets = [tuple(names) for names in named]
    if not sets or not all(sets):
        raise InputError(f"attribute_sets must name one attribute or more a table, got {sets}; name at least one table")
    for names in sets:
        everything.project(names)  # refuses one that is named twice or has no levels
    return everything.project(list(dict.fromkeys(name for names in sets for name in names))), sets


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
    concentration: Annotated[float | list[float] | None, SkipValidation] = None
    """Of the stick-breaking weights: a positive number, or shape and rate of its gamma prior; [40, 10] by default."""
    profile_prior: float | None = Field(default=None, gt=0)
    """Dirichlet parameter of every class profile; by default 0.25, and 0.5 for more than eight attributes."""
    margins: list[list[str]] = Field(default_factory=list)
    """Attribute sets whose probabilities the trace records besides the released ones, each as ``margin_A_B``."""
    sum_out_pairs: bool | None = None
    """Whether the counts of pairs of attributes are integrated out; by default where all attributes are binary, tables
    are of one or two of them, nothing is impossible, and there are more than 100 effects."""

    @model_validator(mode="after")
    def _own_choices(self) -> Model:
        if self.concentration is not None:
            checked_concentration(self.concentration)
        if self.file is None:
            return self
        if self.impossible:
            raise ValueError("your own model states its own structural zeros; leave impossible out")
        if self.likelihood != "joint":
            raise ValueError("your own model states its own likelihood; leave likelihood out")
        own = {name: getattr(self, name) for name in ("concentration", "profile_prior", "margins", "sum_out_pairs")}
        given = [name for name, value in own.items() if value not in (None, [])]
        if given:
            raise ValueError(f"your own model states its own prior, margins and form; leave {' and '.join(given)} out")
        return self

    def options(self) -> dict[str, Any]:
        """Return what `dpbayes.latent_class.build_model` is told besides the release."""
        priors = {"concentration": self.concentration, "profile_prior": self.profile_prior}
        return {name: value for name, value in priors.items() if value is not None} | {
            "n_classes": self.n_classes,
            "likelihood": self.likelihood,
            "margins": self.margins,
            "impossible": self.impossible,
            "sum_out_pairs": self.sum_out_pairs,
        }

    def filled(self, design: Design | None) -> Model:
        """Return the same model of the package with every default written out.

        Parameters
        ----------
        design
            What it is built on; None where that is not known before a file is read.
        """
        given = checked_concentration(CONCENTRATION if self.concentration is None else self.concentration)
        update = {
            "concentration": list(given) if isinstance(given, tuple) else given,
            "profile_prior": self.profile_prior if design is None else design.profile_prior,
            "sum_out_pairs": self.sum_out_pairs if design is None else design.sum_out_pairs,
        }
        return self.model_copy(update=update)


class Sampling(Section):
    """NUTS settings. What is left out is as suits the form of the model (`dpbayes.latent_class.sampler_defaults`)."""

    draws: int | None = Field(default=None, ge=10)
    """Draws kept a chain; 1,500 by default, 3,000 where pairs are summed out."""
    tune: int | None = Field(default=None, ge=10)
    """Draws spent on adaptation, a chain; 500 by default, 1,000 where pairs are summed out."""
    chains: int = Field(default=4, ge=1)
    """Chains; convergence is judged across them."""
    target_accept: float | None = Field(default=None, gt=0, lt=1)
    """Acceptance rate that the step size aims at; .93 by default, .85 where pairs are summed out."""
    max_treedepth: int = Field(default=12, ge=1, le=20)
    """Doublings at which a trajectory is cut; a few early ones need more than the usual 10."""
    integration_time: float | None = Field(default=None, ge=3.5)
    """Time at which a trajectory ends, turned back or not, in units of the mass matrix's standard deviations; 10 by
    default, 3.5 where pairs are summed out."""
    adaptation: Literal["diag", "low_rank"] = "diag"
    """Mass matrix: a diagonal, or a diagonal and the few directions that it misses."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampler, of the synthetic data and of the predictive check (not of the noise)."""

    def filled(self, summed_out: bool) -> Sampling:
        """Return the same settings with every default written out.

        Parameters
        ----------
        summed_out
            Whether the model sums out the counts of pairs of attributes.
        """
        suits = form_defaults(summed_out)
        suits["integration_time"] = suits["options"]["target_integration_time"]
        left_out = [
            name for name in ("draws", "tune", "target_accept", "integration_time") if getattr(self, name) is None
        ]
        return self.model_copy(update={name: suits[name] for name in left_out})

    def settings(self, summed_out: bool) -> dict[str, Any]:
        """Return what `dpbayes.inference.sample` is told, for a model of either form."""
        length = self.filled(summed_out)
        own = {"draws": length.draws, "tune": length.tune, "chains": length.chains}
        return own | self.metric(summed_out)

    def metric(self, summed_out: bool = False) -> dict[str, Any]:
        """Return the part of the settings that says how far and how finely trajectories go, not how many."""
        settings = self.filled(summed_out)
        assert settings.integration_time is not None
        return {
            "target_accept": settings.target_accept,
            "max_treedepth": settings.max_treedepth,
            "adaptation": settings.adaptation,
            "options": sampler_options(settings.integration_time, summed_out),
        }


class Synthesis(Section):
    """Synthetic data."""

    n_datasets: int = Field(default=5, ge=0)
    """Number of data sets."""
    n_rows: int | None = Field(default=None, ge=1)
    """Records in each; by default as many as the confidential data have, or the posterior mean of a noisy number."""
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
            refuse_seed(
                self.privacy.simulation_seed, file=file, public=self.data.truth_public, ledger=self.privacy.ledger
            )
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

    @model_validator(mode="after")
    def _model_fits(self) -> Spec:
        """Hold the package's model to the tables, and write out the defaults that depend on its form."""
        if self.model.file is None:
            tables = released_tables(self.data)
            design = None if tables is None else Design.of(*tables, **self.model.options())
            object.__setattr__(self, "model", self.model.filled(design))
            if design is not None:
                object.__setattr__(self, "sampling", self.sampling.filled(design.sum_out_pairs))
        return self

    @model_validator(mode="after")
    def _draws_suffice(self) -> Spec:
        self.check_draws(summed_out=True)  # where the form is known the defaults stand already; else the longer ones
        return self

    def check_draws(self, *, summed_out: bool) -> None:
        """Refuse more synthetic data sets than the sampler is to keep draws, for a model of either form."""
        sampling = self.sampling.filled(summed_out)
        assert sampling.draws is not None
        draws = sampling.draws * sampling.chains
        if self.synthesis.n_datasets > draws:
            raise SpecError(
                f"{self.synthesis.n_datasets} synthetic data sets need as many draws, and [sampling] keeps {draws} of "
                "all chains; lower synthesis.n_datasets, or raise sampling.draws"
            )
