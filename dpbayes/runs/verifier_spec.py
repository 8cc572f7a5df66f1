"""What a run spec of the verifier may say."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from dpbayes.runs.simulated import refuse_seed
from dpbayes.runs.spec import RunSpec, Section

__all__ = ["Data", "Model", "Privacy", "Question", "Spec", "Surface"]

# Below, draws of shares of counts that are all 0 can underflow together; above, the prior outweighs any count.
_ALPHA = (0.01, 1_000_000)
_MOST_DRAWS = 5_000_000  # a gigabyte


class Data(Section):
    """Where the records come from: exactly one of the three."""

    embedded: Literal["wages"] | None = None
    """Generated records that come with dpbayes."""
    n_persons: int = Field(default=2000, ge=1)
    """For embedded records: how many persons."""
    seed: int = Field(default=1, ge=0)
    """For embedded records: seed of the generator."""
    microdata: str | None = None
    """A CSV or Parquet file of confidential records, beside the spec."""
    release: str | None = None
    """A release that was written before, beside the spec: nothing is released then."""
    levels: dict[str, list[str | int]] = Field(default_factory=dict)
    """Levels of categorical columns whose type does not declare them."""
    unit: str | None = None
    """Column of the unit whose privacy is protected; all of its rows stay together. In a CSV file 1 and 01 are two
    units: names are compared as text."""
    truth_public: bool = False
    """Whether the microdata are public (a trial): a seed may then simulate partitions and noise."""

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        given = [name for name in ("embedded", "microdata", "release") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of embedded, microdata and release; got {' and '.join(given) or 'none'}"
            )
        return self


class Question(Section):
    """A claim about a coefficient."""

    name: str = Field(min_length=1)
    """What to call it; public text."""
    formula: str
    """``response ~ terms``."""
    coefficient: str
    """The coefficient's name."""
    threshold: float | None = None
    """What the claim compares the coefficient with."""
    direction: Literal["<=", ">", "<", ">="] = ">"
    """The side of the threshold that the claim names."""
    significant_at: float | None = Field(default=None, gt=0, lt=1)
    """Instead of a threshold: the level of a two-sided test against 0."""
    family: Literal["gaussian", "logistic", "poisson"] = "gaussian"
    """The model."""
    absorb: list[str] = Field(default_factory=list)
    """Columns whose fixed effects are absorbed. In a CSV file they are compared as text, unless a formula calculates
    with them."""
    share: float = Field(default=1.0, gt=0)
    """Relative share of epsilon."""

    @field_validator("formula")
    @classmethod
    def _readable(cls, formula: str) -> str:
        from dpbayes.verifier.formulas import check_formula

        return check_formula(formula)

    @model_validator(mode="after")
    def _one_claim(self) -> Question:
        if (self.threshold is None) == (self.significant_at is None):
            raise ValueError("give either threshold or significant_at")
        return self


class Privacy(Section):
    """What the release costs."""

    epsilon: float = Field(gt=0)
    """Total privacy-loss parameter over all questions."""
    n_partitions: int = Field(default=50, ge=1)
    """M, public: chosen without looking at the data; under replace-one at most the number of units."""
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    """The relation between neighbouring sets of units."""
    noise: Literal["two-sided-geometric", "laplace"] = "two-sided-geometric"
    """The noise law."""
    with_failures: bool = True
    """False releases two counts; a partition that cannot be computed then counts as not beyond."""
    ledger: str | None = None
    """Budget book, beside the spec, in which the release is reserved before noise is drawn."""
    simulation_seed: int | None = Field(default=None, ge=0)
    """Draw partitions and noise reproducibly: a simulation, with no privacy guarantee. It gives both away, so that with
    microdata it needs data.truth_public."""

    @property
    def assignment(self) -> Literal["balanced", "independent"]:
        """How units come to their partitions; see `dpbayes.verifier.release_counts` for why."""
        return "balanced" if self.adjacency == "replace-one" else "independent"


class Model(Section):
    """The posterior."""

    alpha: list[float] | None = Field(default=None, min_length=2, max_length=3)
    """Dirichlet prior of the shares beyond, not beyond and, where failures are released, not computed; from 0.01 to
    1,000,000 each, all 1 by default."""
    pooling: Literal["none", "partial"] = "none"
    """``"none"`` is exact; ``"partial"`` lets several questions inform one another, by NUTS."""
    draws: int = Field(default=1000, ge=10)
    """Draws kept a chain."""
    chains: int = Field(default=4, ge=1)
    """Chains."""
    seed: int = Field(default=1, ge=0)
    """Seed of the draws (not of the partitions or the noise)."""

    @model_validator(mode="after")
    def _prior_fits(self) -> Model:
        low, high = _ALPHA
        if self.alpha is not None and not all(low <= a <= high for a in self.alpha):
            raise ValueError(
                f"model.alpha must give numbers from {low:g} to {high:,}, got {self.alpha}; 1 for each is uniform"
            )
        if self.alpha is not None and self.pooling == "partial":
            raise ValueError(
                f"model.alpha = {self.alpha} is the prior of questions that are answered alone, and model.pooling = "
                '"partial" has its own; leave model.alpha out, or set model.pooling = "none"'
            )
        return self

    def drawing(self) -> dict[str, Any]:
        """Return what `dpbayes.verifier.draw_release` is told besides the release."""
        return {"alpha": self.alpha, "draws": self.draws, "chains": self.chains, "random_seed": self.seed}


class Surface(Section):
    """Operating characteristics over a grid of designs."""

    n_partitions: list[int] = Field(min_length=1)
    """Numbers of partitions, at most 201 each (100 with Laplace noise)."""
    epsilon: list[float] = Field(min_length=1)
    """Epsilons."""
    r: list[float] = Field(min_length=1)
    """Supposed shares of partitions in which the claim holds."""
    failed: float = Field(default=0.0, ge=0, lt=1)
    """Supposed share of partitions that cannot be computed."""
    alpha: list[float] = Field(default_factory=lambda: [1.0, 1.0, 1.0], min_length=2, max_length=3)
    """The analyst's prior, of three outcomes or, without a failure category, of two."""
    noise: Literal["two-sided-geometric", "laplace"] = "two-sided-geometric"
    """The noise law."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Posterior probability from which the analyst decides."""
    wanted: float = Field(default=0.9, gt=0, lt=1)
    """Chance of the right decision for which the least epsilon is sought."""


class Spec(RunSpec):
    """A run of the verifier: a verification, or a study of designs."""

    system: Literal["verifier"]
    """The system's name."""
    data: Data | None = None
    privacy: Privacy | None = None
    questions: list[Question] = Field(default_factory=list)
    model: Model = Model()
    surface: Surface | None = None

    @model_validator(mode="after")
    def _one_study(self) -> Spec:
        if self.data is not None and self.privacy is not None:
            file = None if self.data.microdata is None else "microdata"
            refuse_seed(
                self.privacy.simulation_seed, file=file, public=self.data.truth_public, ledger=self.privacy.ledger
            )
        if (self.data is None) == (self.surface is None):
            raise ValueError("add the section [data] for a verification, or [surface] for a study of designs, not both")
        if self.surface is not None and (self.privacy or self.questions):
            raise ValueError("a study of designs takes no [privacy] and no [[questions]]")
        if self.data is not None and self.data.release is None and not (self.privacy and self.questions):
            raise ValueError("a verification needs [privacy] and at least one [[questions]]")
        if self.data is not None and self.data.release is not None and (self.privacy or self.questions):
            raise ValueError("a finished release carries its own cost and questions; leave them out")
        if self.privacy is not None and self.model.alpha is not None:
            outcomes = 3 if self.privacy.with_failures else 2
            if len(self.model.alpha) != outcomes:
                raise ValueError(f"model.alpha must give {outcomes} numbers, one an outcome, got {self.model.alpha}")
        if self.privacy is not None and self.model.pooling == "partial":
            from dpbayes.verifier.coefficients import MOST_PARTITIONS

            if self.privacy.n_partitions > MOST_PARTITIONS:
                raise ValueError(
                    f'model.pooling = "partial" takes at most {MOST_PARTITIONS:,} partitions, got n_partitions = '
                    f'{self.privacy.n_partitions}; lower privacy.n_partitions, or set model.pooling = "none"'
                )
        draws = self.model.draws * self.model.chains * max(len(self.questions), 1)
        if draws > _MOST_DRAWS:
            raise ValueError(
                f"model.draws = {self.model.draws} with model.chains = {self.model.chains} are {draws:,} draws over "
                f"all questions, and a run keeps at most {_MOST_DRAWS:,}; lower model.draws or model.chains"
            )
        names = [question.name for question in self.questions]
        if len(set(names)) < len(names):
            raise ValueError(f"questions must have different names, got {names!r}")
        return self
