"""Runs of the Bloom system: a simulated audience, flipped filters, a privacy certificate, and the reach they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dpbayes.runs.execution import Context, Outcome
from dpbayes.runs.folder import read_json, write_text
from dpbayes.runs.simulated import sampler_note
from dpbayes.runs.spec import RunSpec, Section

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.bloom.filters import Filters
    from dpbayes.bloom.release import BloomRelease
    from dpbayes.report import Document

__all__ = ["Spec", "document", "run"]

CERTIFICATE, RELEASE, TRUTH, TRACE = "certificate.json", "release.json", "truth.json", "trace.nc"


class Audience(Section):
    """A simulated audience: people differ in how much they see, so that publishers overlap."""

    n_people: int = Field(ge=1, le=50_000_000)
    """People who might be reached."""
    shares: list[float] = Field(min_length=1, max_length=8)
    """Share of the people that each publisher reaches, at most one half."""
    seed: int = Field(default=1, ge=0)
    """Seed of the audience."""

    @model_validator(mode="after")
    def _shares_in_range(self) -> Audience:
        for share in self.shares:
            if not 0.0 < share <= 0.5:
                raise ValueError(f"a publisher's share must lie in (0, 0.5], got {share}")
        return self


class FilterSettings(Section):
    """The filters."""

    n_bits: int = Field(ge=2, le=10_000_000)
    """Bits of a filter."""
    decay: float = Field(default=0.0, ge=0)
    """0 for uniform hashing; otherwise how much likelier the first bit is than the last, on the log scale."""
    hash_seed: int = Field(default=0, ge=0)
    """Hash seed that the publishers share."""


class Privacy(Section):
    """The target, and which pairs of neighbouring inputs it is for."""

    epsilon: float = Field(gt=0)
    """Epsilon of the guarantee; neighbouring inputs differ in one position: a person more or less, not exchanged."""
    delta: float = Field(gt=0, lt=1)
    """Delta of the guarantee."""
    definition: Literal["tight", "quantile"] = "tight"
    """tight for (epsilon, delta)-differential privacy, quantile for the paper's definition."""
    pairs: Literal["paper", "all"] = "paper"
    """Calibrate for the paper's pair of inputs, or so that the bound for all pairs holds (minutes, more noise)."""
    simulation_seed: int | None = Field(default=None, ge=0)
    """Draw reproducible noise from a seeded generator: a simulation, with no privacy guarantee."""


class Sampling(Section):
    """NUTS settings."""

    draws: int = Field(default=1000, ge=10)
    """Draws kept a chain."""
    tune: int = Field(default=1000, ge=10)
    """Draws spent on adaptation, a chain."""
    chains: int = Field(default=4, ge=1)
    """Chains; convergence is judged across them."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampler (not of the noise)."""


class Spec(RunSpec):
    """A run of the Bloom system."""

    system: Literal["bloom"]
    """The system's name."""
    audience: Audience
    filters: FilterSettings
    privacy: Privacy
    sampling: Sampling = Sampling()


def run(spec: Spec, context: Context) -> Outcome:
    """Run the stages that the folder still lacks: certificate, release, trace.

    Parameters
    ----------
    spec
        The validated spec.
    context
        Where to work and how to talk.

    Returns
    -------
    Outcome
        The convergence gate's verdict.
    """
    certificate = _certificate(spec, context)
    context.echo(f"flip probability: {certificate['flip_prob']:.6f}")
    release = _release(spec, certificate["flip_prob"], context)
    pairs = "the paper's pair" if spec.privacy.pairs == "paper" else "all pairs"
    cost = f"{spec.privacy.definition} epsilon {spec.privacy.epsilon:g} and delta {spec.privacy.delta:g} of {pairs}"
    filters = f"{release.n_filters} filters of {release.n_bits:,} bits"
    context.echo(f"release: {filters} at {cost}, {certificate['adjacency']}{sampler_note(release.sampler)}")
    trace = _trace(spec, release, certificate, context)

    from dpbayes.inference.verdict import Verdict

    verdict = Verdict.from_json(trace.attrs["convergence"])
    context.echo(verdict.summary())
    return Outcome(verdict.passed, verdict.summary())


def document(spec: Spec, folder: Path) -> Document:
    """Build the report from the files of a run folder.

    Parameters
    ----------
    spec
        The run's spec.
    folder
        A run folder with ``certificate.json``, ``release.json``, ``truth.json`` and ``trace.nc``.

    Returns
    -------
    Document
        The report.
    """
    from dpbayes.bloom.release import read_bloom_release
    from dpbayes.inference.schema import read_trace
    from dpbayes.runs.bloom_document import bloom_document

    return bloom_document(
        spec,
        read_json(folder / CERTIFICATE),
        read_bloom_release(folder / RELEASE),
        read_json(folder / TRUTH),
        read_trace(folder / TRACE),
    )


def _certificate(spec: Spec, context: Context) -> dict[str, Any]:
    """Calibrate, and state what the flip probability gives for other definitions and pairs."""
    from dataclasses import asdict

    from dpbayes.bloom.calibration import bloom_epsilon, flip_prob_for

    path = context.folder / CERTIFICATE
    if path.exists():
        # A certificate of an earlier version calls the same relation replace-one.
        return read_json(path) | {"adjacency": "one-position"}
    size: dict[str, Any] = {"n_filters": len(spec.audience.shares), "n_bits": spec.filters.n_bits}
    target: dict[str, Any] = {"delta": spec.privacy.delta, "definition": spec.privacy.definition}
    p = flip_prob_for(epsilon=spec.privacy.epsilon, pairs=spec.privacy.pairs, **target, **size)
    context.echo("privacy: certifying other definitions and all pairs (up to a minute)")
    common: dict[str, Any] = {"flip_prob": p, "delta": spec.privacy.delta, **size}
    claims = [bloom_epsilon(**common), bloom_epsilon(**common, definition="quantile")]
    if size["n_filters"] > 1:
        claims.append(bloom_epsilon(**common, pairs="all"))
    certificate = {"flip_prob": p, "adjacency": "one-position", "claims": [asdict(claim) for claim in claims]}
    write_text(path, json.dumps(certificate, indent=2))
    return certificate


def _release(spec: Spec, flip_prob: float, context: Context) -> BloomRelease:
    """Simulate the audience, flip its filters, and note the simulated truth."""
    import numpy as np

    from dpbayes.bloom.filters import shuffle_flip
    from dpbayes.bloom.release import read_bloom_release, release_counts

    path = context.folder / RELEASE
    if path.exists():
        context.echo("release: already drawn, used again")
        return read_bloom_release(path)
    filters, truth = _simulate(spec)
    # The audience is simulated, so its truth may stand beside the estimates.
    write_text(context.folder / TRUTH, json.dumps(truth))
    seed = spec.privacy.simulation_seed
    flipped = shuffle_flip(filters, flip_prob=flip_prob, rng=None if seed is None else np.random.default_rng(seed))
    release = release_counts(flipped, decay=spec.filters.decay)
    release.write(path)
    return release


def _simulate(spec: Spec) -> tuple[Filters, dict[str, Any]]:
    """Draw who is reached by whom: a person of activity u sees a publisher of share s with probability 2 s u."""
    import numpy as np

    from dpbayes.bloom.hashing import BitDistribution, build_filters

    rng = np.random.default_rng(spec.audience.seed)
    activity = rng.random(spec.audience.n_people)
    reached = [rng.random(spec.audience.n_people) < 2.0 * share * activity for share in spec.audience.shares]
    times = np.sum(reached, axis=0)
    truth = {
        "union": int((times > 0).sum()),
        "intersection": int((times == len(reached)).sum()),
        "frequency": [int((times == f).sum()) for f in range(1, len(reached) + 1)],
        "publishers": [int(one.sum()) for one in reached],
    }
    law = BitDistribution(spec.filters.n_bits, spec.filters.decay)
    audiences = [np.flatnonzero(one) for one in reached]
    return build_filters(audiences, distribution=law, seed=spec.filters.hash_seed), truth


def _trace(spec: Spec, release: BloomRelease, certificate: dict[str, Any], context: Context) -> xr.DataTree:
    """Sample the logo probabilities, or read them."""
    from dpbayes.bloom.model import build_model
    from dpbayes.inference import annotate, read_trace, sample, write_trace

    path = context.folder / TRACE
    if path.exists():
        context.echo("posterior: already drawn, used again")
        return read_trace(path)
    context.echo("model: compiling (half a minute the first time)")
    settings = spec.sampling
    trace = sample(
        build_model(release),
        draws=settings.draws,
        tune=settings.tune,
        chains=settings.chains,
        random_seed=settings.seed,
        progressbar=context.progressbar,
    )
    record = {"sampler": release.sampler, **certificate}
    trace = annotate(trace, spec_digest=context.spec_digest, release_digest=release.digest, privacy_record=record)
    write_trace(trace, path)
    return trace
