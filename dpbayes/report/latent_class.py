"""The report of a latent class run: what was released, whether to trust the fit, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes.inference.verdict import Verdict
from dpbayes.latent_class.design import CONCENTRATION, checked_concentration, checked_profile_prior
from dpbayes.latent_class.record_numbers import record_numbers
from dpbayes.report.convergence import convergence_facts, convergence_section, verdict_callout
from dpbayes.report.document import Document, Fact, Paragraph, Section
from dpbayes.report.latent_class_densities import latent_class_densities
from dpbayes.report.margins import cells_section, fit_section, margins_section, summarize
from dpbayes.report.released import privacy_fact, privacy_terms, released_section
from dpbayes.report.sensitivity import prior_section
from dpbayes.report.sources import sources_section

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data import Marginal
    from dpbayes.privacy import Release

__all__ = ["latent_class_document"]

_JUDGED = (
    "Class labels switch between chains, which is harmless: convergence is judged on quantities that do not depend on "
    "them, the probabilities of margins and cells."
)


def latent_class_document(
    trace: xr.DataTree,
    release: Release,
    *,
    truth: Sequence[Marginal] | None,
    title: str,
    question: str,
    model_digest: str | None = None,
    concentration: float | Sequence[float] = CONCENTRATION,
    profile_prior: float | None = None,
) -> Document:
    """Build the report of a latent class fit.

    Parameters
    ----------
    trace
        The fit, with its verdict in the attrs and a ``posterior_predictive`` group holding ``released``.
    release
        What was fitted.
    truth
        The exact tables, only if they are public.
    title, question
        What the study is called and asks.
    model_digest
        SHA-256 of the file that states the model, where it is the user's own.
    concentration, profile_prior
        The priors that the package's own model was built with.

    Returns
    -------
    Document
        What was released, convergence, margins, the full table, and the fit to the released counts.
    """
    verdict = Verdict.from_json(trace.attrs["convergence"])
    sections = [
        released_section(release),
        convergence_section(trace, verdict, judged=_JUDGED),
        margins_section(trace, release, truth),
    ]
    if "cell" in trace["posterior"]:
        sections.append(cells_section(trace, release))
    sections.insert(3, sources_section(trace, release))
    priors = None if model_digest is not None else {"concentration": concentration, "profile_prior": profile_prior}
    sections += [fit_section(trace, release), _prior(trace, release, priors)]
    size = float(record_numbers(trace["posterior"].to_dataset(), release).mean())
    return Document(
        title=title,
        question=question,
        answer=_answer(trace, release, verdict),
        verdict=verdict_callout(verdict),
        headline=[
            privacy_fact(release),
            Fact("n_counts", "noisy counts released", release.n_counts, f"{release.n_counts}"),
            Fact("n", "records" if release.n_public else "records (posterior mean)", size, f"{size:,.0f}"),
            *convergence_facts(trace, verdict),
        ],
        sections=sections,
        provenance=_provenance(trace, release) | ({} if model_digest is None else {"model.py digest": model_digest}),
        privacy=privacy_terms(release),
    )


def _prior(trace: xr.DataTree, release: Release, priors: dict[str, Any] | None) -> Section:
    """Build the section on sensitivity to the prior, from the parameters that the trace records."""
    if priors is None:
        text = "Left out: the model is a variant, and the page does not know its prior's density."
        return Section("How much does the prior decide?", [Paragraph(text)])
    variables = [name for name in ("margin", "cell") if name in trace["posterior"]]
    parts, likelihood = latent_class_densities(trace, release, **priors)
    sticks, profiles = _stated(release, **priors)
    weights = f"the prior of the class weights (the number of classes that matter; {sticks}) and "
    what = (
        f"The parts are {weights if 'class weights' in parts else ''}the prior of the class profiles (how sharply a "
        f"class pins its attributes; {profiles})"
    )
    what += ", and that of the number of records." if "number of records" in parts else "."
    if "effects" in trace["posterior"]:
        what += (
            " The confidential counts that the fit carries along are on the likelihood's side, with the noise: their "
            "law is the drawing of the records from the population, which is no choice of ours."
        )
    return prior_section(trace, parts, variables=variables, what=what, log_likelihood=likelihood)


def _stated(release: Release, concentration: float | Sequence[float], profile_prior: float | None) -> tuple[str, str]:
    """Return the priors of the class weights and profiles in formulas, with the numbers that hold for a release."""
    given = checked_concentration(concentration)
    alpha = "gamma({:g}, {:g})".format(*given) if isinstance(given, tuple) else f"{given:g}"
    a = checked_profile_prior(profile_prior, release.domain)
    sign = "~" if isinstance(given, tuple) else "="
    return f"sticks ~ beta(1, α), α {sign} {alpha}", f"Dirichlet({a:g}, ..., {a:g})"


def _answer(trace: xr.DataTree, release: Release, verdict: Verdict) -> str:
    """Say what was learned in a sentence or two."""
    posterior = trace["posterior"].to_dataset()
    numbers = record_numbers(posterior, release)
    n, shares = float(numbers.mean()), summarize(posterior["margin"] * numbers)
    share = f"{np.median(shares[:, 2] - shares[:, 1]):,.0f}"
    noise = np.median([np.sqrt(table.noise.variance) for table in release.tables])
    caution = "" if verdict.passed else " The sampler did not converge: do not use these numbers yet."
    if "exact_counts" not in posterior:
        return (
            f"A margin's share of the population behind these {n:,.0f} records is known, per {n:,.0f} persons, to a "
            f"95 % interval {share} wide in the median, from released counts whose noise has a standard deviation of "
            f"{noise:,.0f}. The composite likelihood says nothing of these records' own counts.{caution}"
        )
    _, low, high = summarize(posterior["exact_counts"]).T
    known = f"these {n:,.0f} records" if release.n_public else f"these records (about {n:,.0f}, the posterior mean)"
    scale = f"per {n:,.0f} persons" if release.n_public else "times the number of records, draw by draw"
    return (
        f"A margin count of {known} is known to a 95 % interval {np.median(high - low):,.0f} wide in "
        f"the median, from released counts whose noise has a standard deviation of {noise:,.0f}; as a share of the "
        f"population behind them, {scale}, to {share}.{caution}"
    )


def _provenance(trace: xr.DataTree, release: Release) -> dict[str, str]:
    attrs = trace.attrs
    return {
        "dpbayes": attrs["dpbayes_version"],
        "sampler": attrs["sampler"],
        "sampled": attrs["created_at"],
        "sampler seed": attrs["random_seed"],
        "compiling": f"{float(attrs['compile_seconds']):.0f} s",
        "sampling": f"{float(attrs['sampling_seconds']):.0f} s",
        "noise drawn by": "OpenDP" if release.sampler == "opendp" else "a seeded generator (simulation)",
        "spec digest": attrs["spec_digest"],
        "release digest": release.digest,
    }
