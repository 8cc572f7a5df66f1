"""Report of a Bloom run, built from the files of its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes import __version__
from dpbayes.report.document import Callout, Column, Document, Fact, Figure, Paragraph, Section, Table

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.bloom.release import BloomRelease
    from dpbayes.runs.bloom import Spec

__all__ = ["bloom_document"]


def bloom_document(
    spec: Spec, certificate: dict[str, Any], release: BloomRelease, truth: dict[str, Any], trace: xr.DataTree
) -> Document:
    """Build the report of a Bloom run.

    Parameters
    ----------
    spec
        The run's spec.
    certificate
        Flip probability and privacy claims.
    release
        Released logo counts.
    truth
        What the simulated audience was.
    trace
        Posterior draws of the logo probabilities.

    Returns
    -------
    Document
        Privacy, reach with intervals, the signal that is left, and convergence.
    """
    from dpbayes.inference.verdict import Verdict
    from dpbayes.report.convergence import convergence_section, verdict_callout

    posterior = _reach_draws(spec, release, trace)
    low, high = np.quantile(posterior, [0.025, 0.975])
    rows = _estimates(release, truth)
    verdict = Verdict.from_json(trace.attrs["convergence"])
    epsilon = certificate["claims"][0]
    return Document(
        title=spec.title,
        question=spec.question,
        answer=(
            f"{release.n_filters} publishers have reached {posterior.mean():,.0f} people together, between {low:,.0f} "
            f"and {high:,.0f} with probability 95 %. The simulated truth is {truth['union']:,}."
        ),
        verdict=verdict_callout(verdict),
        headline=[
            Fact("flip_prob", "flip probability", certificate["flip_prob"], f"{certificate['flip_prob']:.4f}"),
            Fact("epsilon", f"epsilon, {epsilon['scope']}", epsilon["epsilon"]["upper"], _epsilon(epsilon)),
            Fact("reach", "people reached, posterior mean", float(posterior.mean()), f"{posterior.mean():,.0f}"),
        ],
        sections=[
            _privacy(certificate, release),
            _reach(rows, posterior),
            _signal(release),
            convergence_section(trace, verdict, judged="All logo probabilities are judged."),
        ],
        provenance={
            "dpbayes": __version__,
            "release": release.digest,
            "sampler of the noise": release.sampler,
            "random_seed": str(trace.attrs.get("random_seed", "")),
        },
    )


def _epsilon(claim: dict[str, Any]) -> str:
    return f"{claim['epsilon']['upper']:.4f}"


def _reach_draws(spec: Spec, release: BloomRelease, trace: xr.DataTree) -> Any:
    from dpbayes.bloom.hashing import BitDistribution
    from dpbayes.bloom.model import draw_reach, draw_true_counts

    theta = np.asarray(trace["posterior"]["logo_probability"].to_numpy()).reshape(-1, release.counts.size)
    # A thousand draws fix the interval's ends to a few hundredths of its width.
    theta = theta[:: max(1, theta.shape[0] // 1000)]
    true = draw_true_counts(theta, release, random_seed=spec.sampling.seed)
    law = BitDistribution(release.n_bits, release.decay)
    return draw_reach(true, law, random_seed=spec.sampling.seed + 1)


def _estimates(release: BloomRelease, truth: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    """Rows of what was asked, the truth, the debiased estimate and its standard error."""
    from dpbayes.bloom.reach import estimate_reach

    reach = estimate_reach(release)
    asked = [("at least one publisher", truth["union"], reach.union())]
    for f, count in enumerate(truth["frequency"], start=1):
        asked.append((f"exactly {f} publisher{'s' if f > 1 else ''}", count, reach.frequency(f)))
    for place, count in enumerate(truth["publishers"]):
        asked.append((f"publisher {place + 1}", count, reach.union((place,))))
    return [(name, count, estimate.value, estimate.stderr) for name, count, estimate in asked]


def _privacy(certificate: dict[str, Any], release: BloomRelease) -> Section:
    rows = [
        (claim["definition"], claim["scope"], claim["delta"], claim["epsilon"]["lower"], claim["epsilon"]["upper"])
        for claim in certificate["claims"]
    ]
    columns = [
        Column("definition"),
        Column("covers"),
        Column("delta", "g"),
        Column("lower end", ".5f", "lower"),
        Column("epsilon", ".5f", "upper"),
    ]
    blocks: list[Any] = [
        Paragraph(
            "Neighbouring inputs differ in one position of the filters (replace-one): a person more or less, or other "
            "publishers for one person. Only a number that covers all pairs protects every input; its lower end is "
            "the epsilon of the worst pair found."
        ),
        Table("privacy", f"Certified epsilon at flip probability {certificate['flip_prob']:.6f}.", columns, rows),
    ]
    if release.sampler == "simulation":
        blocks.insert(
            0, Callout("warning", "A simulation", ["A seeded generator drew the noise: this release protects nobody."])
        )
    return Section("Privacy", blocks)


def _reach(rows: list[tuple[str, int, float, float]], posterior: Any) -> Section:
    low, high = (float(end) for end in np.quantile(posterior, [0.025, 0.975]))
    columns = [
        Column("people reached by", key="asked"),
        Column("simulated truth", ",d", "truth"),
        Column("estimate", ",.0f", "estimate"),
        Column("standard error", ",.0f", "stderr"),
    ]
    summary = Table(
        "posterior",
        "Posterior of the people reached by at least one publisher.",
        [Column("mean", ",.0f"), Column("2.5 %", ",.0f", "low"), Column("97.5 %", ",.0f", "high")],
        [(float(np.mean(posterior)), low, high)],
    )
    return Section(
        "Reach",
        [
            summary,
            Table("reach", "Debiased estimates; the standard error counts flipping and hashing.", columns, rows),
            Figure(
                _interval_figure(rows),
                "Estimates with 95 % intervals (bars) and the simulated truth (circles).",
                "People reached, by publisher and by number of publishers: estimates with intervals beside the truth.",
            ),
        ],
    )


def _interval_figure(rows: list[tuple[str, int, float, float]]) -> Any:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 0.32 * len(rows) + 1.0), layout="constrained")
    place = np.arange(len(rows))[::-1]
    value, error = np.array([row[2] for row in rows]), np.array([row[3] for row in rows])
    axis.errorbar(value, place, xerr=1.96 * error, fmt="|", capsize=3, label="estimate")
    axis.plot([row[1] for row in rows], place, "o", markerfacecolor="none", color="black", label="truth")
    axis.set_yticks(place, [row[0] for row in rows])
    axis.set_xlabel("people")
    axis.legend()
    return figure


def _signal(release: BloomRelease) -> Section:
    from dpbayes.bloom.reach import debias
    from dpbayes.bloom.signal import signal_to_noise

    counts = np.maximum(debias(release.counts, flip_prob=release.flip_prob).counts, 0.0)
    signal = signal_to_noise(counts, flip_prob=release.flip_prob)
    value, (source, target) = signal.largest
    ends = signal.ratio(0, counts.size - 1)
    columns = [Column("change of one position", key="change"), Column("signal-to-noise ratio", ".3e", "ratio")]
    rows = [
        (f"logo {source} to {target}, the most visible", value),
        (f"logo 0 to {counts.size - 1}, the paper's", ends),
    ]
    text = (
        "How well the best linear combination of released counts shows the change of one position, at the debiased "
        "counts (negative ones set to zero). The paper holds the second to be the largest; it need not be."
    )
    return Section("Signal", [Paragraph(text), Table("signal", "Squared shift over variance.", columns, rows)])
