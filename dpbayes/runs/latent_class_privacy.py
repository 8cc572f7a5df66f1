"""The section [privacy] of a latent class spec."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dpbayes.runs.spec import Section

__all__ = ["Privacy"]


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
    delta: float | None = Field(default=None, gt=0, lt=1)
    """Share of the book's delta that plain addition charges for discrete Gaussian and Gaussian noise; left out where
    the book composes tightly."""
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

    @model_validator(mode="after")
    def _delta_is_charged(self) -> Privacy:
        if self.delta is not None and (self.ledger is None or self.rho is None):
            raise ValueError(
                f"delta = {self.delta:g} is what a budget book charges for Gaussian noise; leave it out, or give "
                "ledger and rho too"
            )
        return self

    @model_validator(mode="after")
    def _records_are_counted(self) -> Privacy:
        """Ask for the cost of the number of records where it is confidential, and only there."""
        noisy = self.adjacency == "add-remove"
        if noisy and self.total_share is None:
            raise ValueError(
                "under add-remove the number of records is confidential; give total_share = 0.05, say, to release it "
                'with 5 % of the budget, or set adjacency = "replace-one" if it is public'
            )
        if not noisy and self.total_share is not None:
            raise ValueError(
                f"total_share = {self.total_share:g} buys the number of records, which is public under replace-one; "
                'leave it out, or set adjacency = "add-remove"'
            )
        return self
