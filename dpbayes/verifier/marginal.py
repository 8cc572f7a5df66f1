r"""Noisy counts of partitions as one PyMC distribution, with the true counts summed out.

.. math:: p(y \mid p) = \sum_{S:\, \sum S_j = M} \binom{M}{S} \prod_j p_j^{S_j} f(y_j - S_j)

is a logarithm of a sum of exponentials over the coefficient table. It is smooth in p, so gradient samplers apply, and
both its density and its forward draws are given, so prior and posterior predictive checks, pointwise log-likelihoods
and simulation-based calibration work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pymc as pm
import pytensor.tensor as pt

from dpbayes._arguments import ordered
from dpbayes.errors import InputError
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.privacy.noise import NoiseLaw
from dpbayes.privacy.release import Release
from dpbayes.verifier.checks import OUTCOMES, verification_table
from dpbayes.verifier.coefficients import CoefficientTable, coefficient_table

__all__ = ["NoisyPartitions", "Questions", "questions_of"]

# Up to this M the whole table is kept, so that one compiled model serves any release of the same M and noise law.
WHOLE_TABLE = 200
# Beyond it, triples whose noise is less likely than the likeliest by exp(-60) are left out. For every p they add at
# most exp(-60) times the largest noise density; with a uniform prior the rest adds at least 1 / (number of triples),
# 5e-7, of it: 2e-20 of the evidence.
CUTOFF = 60.0


@dataclass(frozen=True, eq=False)
class Questions:
    """The released counts of one or several verification questions.

    Parameters
    ----------
    names
        One a question.
    noisy
        Shape (questions, outcomes).
    noise
        One law a question.
    n_partitions
        One M a question.
    """

    names: tuple[str, ...]
    noisy: npt.NDArray[np.float64]
    noise: tuple[NoiseLaw, ...]
    n_partitions: tuple[int, ...]

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes that were counted."""
        return OUTCOMES[: self.noisy.shape[1]]

    @cached_property
    def tables(self) -> tuple[CoefficientTable, ...]:
        """The coefficient table of each question, near its released counts where M is large."""
        return tuple(self._table(index) for index in range(len(self.names)))

    def _table(self, index: int) -> CoefficientTable:
        table = coefficient_table(self.n_partitions[index], self.noisy.shape[1])
        if self.n_partitions[index] <= WHOLE_TABLE:
            return table
        log_noise = sum(
            self.noise[index].log_prob(value - table.counts[:, j]) for j, value in enumerate(self.noisy[index])
        )
        return table.select(np.asarray(log_noise >= np.max(log_noise) - CUTOFF))


class NoisyPartitions:
    """Factory of the distribution; see the module."""

    def __init__(self, questions: Questions) -> None:
        self.questions = questions
        laws = [law for law in questions.noise for _ in questions.outcomes]
        self._noise = ReleasedNoise(tuple(laws))

    def logp(self, value: Any, p: Any) -> Any:
        """Return the log-density of each question's released counts, shape (questions,)."""
        value, p = pt.as_tensor(value), pt.as_tensor(p)
        # A share that underflowed to zero keeps a finite logarithm.
        log_p = pt.log(pt.maximum(p, 1e-300))
        parts = []
        for index, table in enumerate(self.questions.tables):
            law, counts = self.questions.noise[index], table.counts
            grid = np.arange(self.questions.n_partitions[index] + 1, dtype=np.float64)
            # The noise is evaluated on 0, ..., M and looked up: it does not depend on p.
            log_noise = law.logp(value[index][:, None] - grid[None, :])
            base = pt.as_tensor(table.log_coefficients)
            for j in range(counts.shape[1]):
                base = base + log_noise[j][counts[:, j]]
            parts.append(pt.logsumexp(base + counts.astype(np.float64) @ log_p[index]))
        return pt.stack(parts)

    def dist(self, p: Any, size: Any) -> Any:
        """Return forward draws: multinomial counts plus the release's own noise."""
        exact = pm.Multinomial.dist(n=np.array(self.questions.n_partitions), p=p, size=size)
        rows, columns = self.questions.noisy.shape
        flat = pt.reshape(exact, [*[exact.shape[i] for i in range(exact.ndim - 2)], rows * columns])
        return pt.reshape(self._noise.around(flat.astype("float64")), exact.shape)

    def observe(self, name: str, p: Any) -> Any:
        """Add the released counts to the model on the context stack.

        Parameters
        ----------
        name
            Name of the variable; its data become ``name + "_counts"``.
        p
            Shares of the outcomes, shape (questions, outcomes), positive and summing to 1 over the outcomes.

        Returns
        -------
        pytensor.tensor.TensorVariable
            The observed variable, dims (question, outcome).
        """
        data = pm.Data(f"{name}_counts", self.questions.noisy, dims=("question", "outcome"))
        return pm.CustomDist(
            name,
            p,
            dist=self.dist,
            logp=self.logp,
            class_name="NoisyPartitions",
            signature="(o)->(o)",
            observed=data,
            dims=("question", "outcome"),
        )


def questions_of(releases: Release | Sequence[Release], names: Sequence[str] | None = None) -> Questions:
    """Gather every verification table of one or several releases.

    Parameters
    ----------
    releases
        Verification releases; every table of each is a question.
    names
        Names of the questions, in order; by default the tables' attributes, numbered where they repeat.

    Returns
    -------
    Questions
        In the order given.

    Raises
    ------
    InputError
        If a release is none of a verification, the numbers of outcomes differ, or names do not fit.
    """
    several = (releases,) if isinstance(releases, Release) else releases
    given = ordered(several, "releases", remedy="give a Release or a list of them")
    if not given:
        raise InputError("no release was given; give at least one")
    tables, sizes = [], []
    for release in given:
        if not isinstance(release, Release):
            raise InputError(f"a model starts from a Release, got {type(release).__name__}; use release_counts")
        for table in release.tables:
            tables.append(verification_table(release, table.label))
            sizes.append(int(release.n))  # type: ignore[arg-type]
    if len({table.counts.shape for table in tables}) > 1:
        raise InputError("some releases have a failure category and some have none; model them apart")
    labels = [table.label for table in tables]
    if len(set(labels)) < len(labels):
        labels = [f"{label} {number}" for number, label in enumerate(labels, start=1)]
    chosen = tuple(labels) if names is None else ordered(names, "names", remedy="give one a question")
    if len(chosen) != len(tables) or len(set(chosen)) < len(chosen):
        raise InputError(f"names must be {len(tables)} different names, one a question, got {list(chosen)!r}")
    noisy = np.array([table.counts for table in tables], dtype=np.float64)
    return Questions(chosen, noisy, tuple(table.noise for table in tables), tuple(sizes))
