r"""PyMC models of verification releases, with the true counts summed out: what the exact posterior cannot do.

.. math:: p(y \mid p) = \sum_{S:\, \sum S_j = M} \binom{M}{S} \prod_j p_j^{S_j} f(y_j - S_j).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from dpbayes._arguments import Floats, finite, one_of, ordered, positive_finite, real_numbers, shown
from dpbayes.errors import InputError
from dpbayes.inference.noisy_counts import ReleasedNoise
from dpbayes.privacy.laws import NoiseLaw
from dpbayes.privacy.release import Release, check_release
from dpbayes.verifier.exact import CoefficientTable, coefficient_table
from dpbayes.verifier.partition import OUTCOMES, question_table

# Up to this M the whole table is kept, so that one compiled model serves any release of the same M and noise law.
WHOLE_TABLE = 200
# Beyond it, triples whose noise is less likely than the likeliest by exp(-60) are left out. For every p they add at
# most exp(-60) times the largest noise density; with a uniform prior the rest adds at least 1 / (number of triples),
# 5e-7, of it: 2e-20 of the evidence.
CUTOFF = 60.0
_PARTS = {"centre": "mu", "spread": "tau"}  # parts of the pooled prior, by how their variables' names begin


@dataclass(frozen=True, eq=False)
class Questions:
    """The released counts of one or several questions, shape (questions, outcomes), and their likelihood."""

    names: tuple[str, ...]
    noisy: Floats
    noise: tuple[NoiseLaw, ...]
    n_partitions: tuple[int, ...]

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes that were counted."""
        return OUTCOMES[: self.noisy.shape[1]]

    @cached_property
    def tables(self) -> tuple[CoefficientTable, ...]:
        """The coefficient table of each question, near its released counts where M is large."""
        found = []
        for m, law, noisy in zip(self.n_partitions, self.noise, self.noisy, strict=True):
            table = coefficient_table(m, noisy.size)
            log_noise = law.log_prob(noisy - table.counts).sum(axis=1)
            near = (log_noise >= log_noise.max() - CUTOFF) | (m <= WHOLE_TABLE)
            found.append(CoefficientTable(table.counts[near], table.log_coefficients[near]))
        return tuple(found)

    def logp(self, value: Any, p: Any) -> Any:
        """Return the log-density of each question's released counts, shape (questions,)."""
        value, p = pt.as_tensor(value), pt.as_tensor(p)
        # A share that underflowed to zero keeps a finite logarithm.
        log_p = pt.log(pt.maximum(p, 1e-300))
        parts = []
        for index, (table, law, m) in enumerate(zip(self.tables, self.noise, self.n_partitions, strict=True)):
            counts, grid = table.counts, np.arange(m + 1, dtype=np.float64)
            # The noise is evaluated on 0, ..., M and looked up: it does not depend on p.
            log_noise = law.logp(value[index][:, None] - grid[None, :])
            base = pt.as_tensor(table.log_coefficients)
            for j in range(counts.shape[1]):
                base = base + log_noise[j][counts[:, j]]
            parts.append(pt.logsumexp(base + counts.astype(np.float64) @ log_p[index]))
        return pt.stack(parts)

    def dist(self, p: Any, size: Any) -> Any:
        """Return forward draws: multinomial counts plus the release's own noise."""
        exact = pm.Multinomial.dist(n=np.array(self.n_partitions), p=p, size=size)
        noise = ReleasedNoise(tuple(law for law in self.noise for _ in self.outcomes))
        flat = pt.reshape(exact, [*[exact.shape[i] for i in range(exact.ndim - 2)], self.noisy.size])
        return pt.reshape(noise.around(flat.astype("float64")), exact.shape)

    def observe(self, name: str, p: Any) -> Any:
        """Add the released counts to the model on the context stack."""
        dims = ("question", "outcome")
        law = {"dist": self.dist, "logp": self.logp, "class_name": "NoisyPartitions", "signature": "(o)->(o)"}
        observed = pm.Data(f"{name}_counts", self.noisy, dims=dims)
        return pm.CustomDist(name, p, **law, observed=observed, dims=dims)


def questions_of(releases: Release | Sequence[Release], names: Sequence[str] | None = None) -> Questions:
    """Gather every verification table of one or several releases."""
    several = (releases,) if isinstance(releases, Release) else releases
    given = ordered(several, "releases", remedy="give a Release or a list of them")
    if not given:
        raise InputError("no release was given; give at least one")
    for release in given:
        check_release(release, "a model")
    found = [question_table(release, table.label) for release in given for table in release.tables]
    tables, sizes = zip(*found, strict=True)
    if len({table.counts.shape for table in tables}) > 1:
        raise InputError("some releases have a failure category and some have none; model them apart")
    labels = [table.label for table in tables]
    if len(set(labels)) < len(labels):
        labels = [f"{label} {number}" for number, label in enumerate(labels, start=1)]
    chosen = tuple(labels) if names is None else ordered(names, "names", remedy="give one per question")
    if len(chosen) != len(tables) or len(set(chosen)) < len(chosen):
        raise InputError(f"names must be {len(tables)} different names, one per question, got {list(chosen)!r}")
    noisy = np.array([table.counts for table in tables], dtype=np.float64)
    return Questions(chosen, noisy, tuple(table.noise for table in tables), sizes)


def build_model(
    releases: Release | Sequence[Release],
    *,
    alpha: Sequence[float] | npt.ArrayLike = 1.0,
    pooling: Literal["none", "partial"] = "none",
    covariates: Mapping[str, Sequence[float]] | None = None,
    questions: Sequence[str] | None = None,
    between_sd: float = 1.0,
    centre: tuple[float, float] = (0.0, 1.5),
    failed_centre: tuple[float, float] = (-2.0, 1.5),
    effect_sd: float = 1.0,
) -> pm.Model:
    r"""State a Bayesian model of one or several verification questions, with the true counts summed out.

    Without pooling each question has its own :math:`p \sim` Dirichlet(:math:`\alpha`), as in section 3 of Balmat,
    Barrientos and Reiter (2018). With partial pooling related questions inform one another,

    .. math:: \operatorname{logit} r_q = \mu + x_q^\top\beta + \tau z_q, \quad
              \operatorname{logit} e_q = \mu_e + \tau_e z^e_q, \quad
              p_q = \big((1 - e_q) r_q,\ (1 - e_q)(1 - r_q),\ e_q\big),

    with standard normal z. What is known from elsewhere, an earlier study say, goes into `centre`.

    Parameters
    ----------
    releases
        One or several verification releases; each of their tables is a question.
    alpha
        Without pooling: Dirichlet parameters, one number, one per outcome, or shape (questions, outcomes).
    pooling
        ``"none"`` or ``"partial"``; what follows but `questions` is for the latter.
    covariates
        Named numbers that say how the questions differ, one per question. Centre and scale them.
    questions
        Names of the questions.
    between_sd, effect_sd
        Scale of the half-normal priors of tau and tau_failed, and standard deviation of the normal prior of beta.
    centre, failed_centre
        Mean and standard deviation of the normal priors of mu and of mu_failed, in log-odds. By default r is anything
        between 5 % and 95 %, and failures are rare.

    Returns
    -------
    pymc.Model
        Recorded: ``p`` (question, outcome), ``r`` (question), and when pooling ``mu``, ``tau``, ``mu_failed``,
        ``tau_failed``, ``beta`` (covariate). Observed: ``released`` (question, outcome), from ``released_counts``.

    Raises
    ------
    InputError
        If an argument is out of range, a release is none of a verification, or M exceeds 2,000.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, release_counts
    >>> release = release_counts(PartitionCounts(15, 4, 1), epsilon=1.0, rng=np.random.default_rng(3))
    >>> model = build_model(release)
    >>> [variable.name for variable in model.free_RVs], [variable.name for variable in model.observed_RVs]
    (['p'], ['released'])
    """
    asked = questions_of(releases, questions)
    if one_of(pooling, ("none", "partial"), "pooling") == "none" and covariates:
        raise InputError("covariates speak of how questions differ; pass pooling='partial' with them")
    _check_priors(between_sd=between_sd, effect_sd=effect_sd, centre=centre, failed_centre=failed_centre)
    prior = _alpha(alpha, asked)
    design = _design(covariates, len(asked.names))
    # Built before the model: a table that is too large should fail first.
    _ = asked.tables
    coords: dict[str, Any] = {"question": asked.names, "outcome": asked.outcomes}
    if design is not None:
        coords["covariate"] = tuple(covariates or ())
    with pm.Model(coords=coords) as model:
        if pooling == "none":
            p = pm.Dirichlet("p", a=prior, dims=("question", "outcome"))
            pm.Deterministic("r", p[:, 0] / (p[:, 0] + p[:, 1]), dims="question")
        else:
            r = pm.Deterministic("r", _pooled_shares("", between_sd, centre, design, effect_sd), dims="question")
            shares = [r, 1 - r]
            if len(asked.outcomes) == 3:
                failed = _pooled_shares("_failed", between_sd, failed_centre)
                shares = [*((1 - failed) * share for share in shares), failed]
            p = pm.Deterministic("p", pt.stack(shares, axis=-1), dims=("question", "outcome"))
        asked.observe("released", p)
        pm.Data("n_partitions", np.array(asked.n_partitions), dims="question")
        pm.Data("noise_stddev", [math.sqrt(law.variance) for law in asked.noise], dims="question")
    return model


def pooled_densities(trace: xr.DataTree, release: Release) -> tuple[dict[str, xr.DataArray], xr.DataArray]:
    """Return the log-priors of the common log-odds and of the spread between questions, and the log-likelihood."""
    with build_model(release, pooling="partial"):
        prior = pm.stats.compute_log_prior(trace, extend_inferencedata=False, progressbar=False)
        likelihood = pm.compute_log_likelihood(trace, extend_inferencedata=False, progressbar=False)
    priors = {part: sum(prior[n] for n in prior if str(n).startswith(stem)) for part, stem in _PARTS.items()}
    return priors, likelihood["released"].sum("question")


def _pooled_shares(
    suffix: str, between_sd: float, prior: tuple[float, float], design: Floats | None = None, effect_sd: float = 1.0
) -> Any:
    """Add the hierarchy of one share over the questions to the model."""
    centre = pm.Normal(f"mu{suffix}", *prior)
    if design is not None:
        beta = pm.Normal("beta", 0.0, effect_sd, dims="covariate")
        centre = centre + pt.dot(pm.Data("covariates", design, dims=("question", "covariate")), beta)
    tau = pm.HalfNormal(f"tau{suffix}", between_sd)
    # Non-centred: with few partitions and much noise the data say little about one question alone.
    offset = pm.Normal(f"offset{suffix}", 0.0, 1.0, dims="question")
    return pm.math.sigmoid(centre + tau * offset)


def _check_priors(*, between_sd: float, effect_sd: float, **centres: tuple[float, float]) -> None:
    positive_finite(between_sd, "between_sd", remedy="1 in log-odds is weak")
    positive_finite(effect_sd, "effect_sd", remedy="1 in log-odds is weak")
    for name, pair in centres.items():
        remedy = "give (mean, standard deviation) in log-odds; (0, 1.5) is weak"
        given = ordered(pair, name, remedy=remedy)
        if len(given) != 2:
            raise InputError(f"{name} must be a mean and a standard deviation, got {shown(pair)}; {remedy}")
        finite(given[0], f"the mean of {name}", remedy=remedy)
        positive_finite(given[1], f"the standard deviation of {name}", remedy=remedy)


def _alpha(alpha: Any, asked: Questions) -> Floats:
    try:
        prior = np.broadcast_to(np.asarray(alpha, dtype=np.float64), asked.noisy.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"alpha must be numbers that broadcast to shape {asked.noisy.shape}: {error}") from error
    if not np.all(np.isfinite(prior) & (prior > 0)):
        raise InputError(f"alpha must be positive and finite, got {np.asarray(alpha).tolist()!r}")
    return np.array(prior)


def _design(covariates: Mapping[str, Sequence[float]] | None, n_questions: int) -> Floats | None:
    if not covariates:
        return None
    columns = [real_numbers(values, f"covariate {name!r}") for name, values in covariates.items()]
    if any(column.shape != (n_questions,) or not np.all(np.isfinite(column)) for column in columns):
        raise InputError(f"each covariate must give one finite number for each of the {n_questions} questions")
    return np.column_stack(columns)
