"""Report of a Bloom run, built from the files of its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes import __version__
from dpbayes.report.document import Callout, Column, Document, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.privacy_terms import PrivacyTerms

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.bloom.hashing import BitDistribution
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
    from dpbayes.bloom.model import draw_reach
    from dpbayes.inference.verdict import Verdict
    from dpbayes.report.convergence import convergence_section, verdict_callout

    true, law = _true_draws(spec, release, trace)
    posterior = draw_reach(true, law, random_seed=spec.sampling.seed + 1)
    low, high = np.quantile(posterior, [0.025, 0.975])
    rows = _estimates(release, truth)
    verdict = Verdict.from_json(trace.attrs["convergence"])
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
            *_epsilon_facts(certificate["claims"]),
            Fact("reach", "people reached, posterior mean", float(posterior.mean()), f"{posterior.mean():,.0f}"),
        ],
        sections=[
            _privacy(certificate, release),
            _reach(rows, posterior),
            _sources(true, law, release.n_filters, seed=spec.sampling.seed + 2),
            _signal(release),
            _prior(trace, release, posterior),
            convergence_section(trace, verdict, judged="All logo probabilities are judged."),
        ],
        provenance={
            "dpbayes": __version__,
            "release": release.digest,
            "sampler of the noise": release.sampler,
            "random_seed": str(trace.attrs.get("random_seed", "")),
        },
        privacy=PrivacyTerms("one-position", "position", spec.privacy.delta),
    )


def _epsilon_facts(claims: list[dict[str, Any]]) -> list[Fact]:
    """Put what the release costs first: for the pair that it was calibrated for, and for every pair."""
    every = _every_pair(claims)
    shown = {"epsilon": claims[0]} if every == claims[0] else {"epsilon": claims[0], "epsilon_every": every}
    return [
        Fact(key, f"epsilon at delta {claim['delta']:g}, {claim['scope']}", claim["epsilon"]["upper"], _shown(claim))
        for key, claim in shown.items()
    ]


def _every_pair(claims: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the claim that covers all pairs, tight definition."""
    return next(one for one in claims if one["scope"].startswith("all pairs") and one["definition"] == "tight")


def _shown(claim: dict[str, Any]) -> str:
    return f"{claim['epsilon']['upper']:.4f}"


def _true_draws(spec: Spec, release: BloomRelease, trace: xr.DataTree) -> tuple[Any, BitDistribution]:
    """Draw true logo counts, and return the law of the positions with them."""
    from dpbayes.bloom.hashing import BitDistribution
    from dpbayes.bloom.model import draw_true_counts

    theta = np.asarray(trace["posterior"]["logo_probability"].to_numpy()).reshape(-1, release.counts.size)
    # A thousand draws fix the interval's ends to a few hundredths of its width.
    theta = theta[:: _step(trace)]
    true = draw_true_counts(theta, release, random_seed=spec.sampling.seed)
    return true, BitDistribution(release.n_bits, release.decay)


def _sources(true: Any, law: BitDistribution, n_publishers: int, *, seed: int) -> Section:
    from dpbayes.report.variance_shares import shares_section
    from dpbayes.runs.width_sources import reach_variances

    asked: list[tuple[str, tuple[int, ...] | None]] = [("at least one publisher", None)]
    asked += [(f"publisher {place + 1}", (place,)) for place in range(n_publishers)]
    meaning = (
        "The first would be gone had the filters been released unflipped. The second would stay: people who share a "
        "position leave one bit, and a filter with more positions has fewer of them."
    )
    return shares_section(
        [(name, *reach_variances(true, law, publishers=which, random_seed=seed)) for name, which in asked],
        subject="people reached by",
        rest="hashing",
        meaning=meaning,
        unit="in people",
        format=",.1f",
    )


def _step(trace: xr.DataTree) -> int:
    sizes = trace["posterior"].sizes
    return max(1, sizes["chain"] * sizes["draw"] // 1000)


def _prior(trace: xr.DataTree, release: BloomRelease, reach: Any) -> Section:
    """Judge the prior of the logo shares, by those shares and by the reach drawn from them."""
    import xarray as xr

    from dpbayes.report.sensitivity import prior_section
    from dpbayes.runs.log_densities import logo_densities

    # One row of draws: the reach is there for one draw in so many, counted over all chains.
    prior, likelihood = logo_densities(trace, release.counts)
    parts = {name: _thinned(part, trace) for name, part in prior.items()}
    shares = _thinned(trace["posterior"].to_dataset()["logo_probability"], trace)
    reached = xr.DataArray(np.asarray(reach)[None], dims=("chain", "draw"))
    draws = xr.DataTree.from_dict({"posterior": xr.Dataset({"people_reached": reached, "logo_probability": shares})})
    what = "Its one part is Jeffreys' prior of the shares of the logos, a share for each set of publishers."
    names = ["people_reached", "logo_probability"]
    side = _thinned(likelihood, trace)
    return prior_section(draws, parts, variables=names, what=what, log_likelihood=side, answers=["people_reached"])


def _thinned(values: xr.DataArray, trace: xr.DataTree) -> xr.DataArray:
    """Return one draw in so many, all chains in one row, as the reach was drawn."""
    flat = values.transpose("chain", "draw", ...).stack(all=("chain", "draw")).transpose("all", ...)
    kept = (
        flat.isel(all=slice(None, None, _step(trace)))
        .reset_index("all", drop=True)
        .drop_vars(("chain", "draw"), errors="ignore")
    )
    return kept.rename(all="draw").expand_dims("chain")


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
            "Neighbouring inputs differ in one position of the filters (one-position): a person more or less, or other "
            "publishers for one person. Only a number that covers all pairs protects every input: its upper end is "
            "proven, its lower end is the epsilon of the worst pair found, and the truth lies between. The paper's "
            "pair, all filters empty but for one position, says what the release costs at least."
        ),
        Table("privacy", f"Certified epsilon at flip probability {certificate['flip_prob']:.6f}.", columns, rows),
        *_exchange(_every_pair(certificate["claims"])),
    ]
    if release.sampler == "simulation":
        blocks.insert(
            0, Callout("warning", "A simulation", ["A seeded generator drew the noise: this release protects nobody."])
        )
    return Section("Privacy", blocks)


def _exchange(claim: dict[str, Any]) -> list[Any]:
    """State what the bound for all pairs gives for persons: once, and when one is exchanged for another."""
    from dpbayes.bloom.claims import EpsilonClaim, exchange_bound, outward
    from dpbayes.privacy.loss_law import Bounds

    every = EpsilonClaim(**(claim | {"epsilon": Bounds(**claim["epsilon"])}))
    epsilon, delta = exchange_bound(every)
    costs = [
        ("a person more or less, or other publishers for one", 1, every.upper, every.delta),
        ("one person exchanged for another", 2, epsilon, delta),
    ]
    rows = [(change, positions, float(outward(e)), float(outward(d))) for change, positions, e, d in costs]
    columns = [Column("change"), Column("positions", "d"), Column("epsilon", ".6g"), Column("delta", ".6g")]
    text = (
        "One person exchanged for another changes two positions, which costs more than one: at most 2 epsilon at delta "
        "(1 + e^epsilon) times as large, by group privacy, from the number that covers all pairs."
    )
    if delta >= 1.0:
        text += " Here that delta is 1: the release promises nothing for such an exchange."
    return [Paragraph(text), Table("persons", "What holds for persons whatever the input, rounded up.", columns, rows)]


def _reach(rows: list[tuple[str, int, float, float]], posterior: Any) -> Section:
    low, high = (float(end) for end in np.quantile(posterior, [0.025, 0.975]))
    columns = [
        Column("people reached by", key="asked"),
        Column("simulated truth", ",d", "truth"),
        Column("estimate", ",.0f", "estimate"),
        Column("standard error", ",.0f", "stderr"),
        Column("error / standard error", "+.1f", "z"),
    ]
    scored = [(*row, (row[2] - row[1]) / row[3]) for row in rows]
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
            Paragraph(
                "The posterior and the standard errors count both flipping and hashing. The estimates below are "
                "unbiased, so that one of a group that hardly anybody is in may be negative; the posterior, "
                "under whose prior (Jeffreys', of the logo shares) no share is below zero, is not."
            ),
            Table("reach", "Debiased estimates beside the simulated truth.", columns, scored),
            Figure(
                _interval_figure(rows),
                "Estimate minus simulated truth, with 95 % intervals: one in twenty should miss the line.",
                "Errors of the reach by publisher and by number of publishers, with intervals around a line at zero.",
            ),
        ],
    )


def _interval_figure(rows: list[tuple[str, int, float, float]]) -> Any:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 0.32 * len(rows) + 1.0), layout="constrained")
    place = np.arange(len(rows))[::-1]
    value, error = np.array([row[2] for row in rows]), np.array([row[3] for row in rows])
    axis.axvline(0.0, color="0.5", linewidth=1.0)
    axis.errorbar(
        value - np.array([row[1] for row in rows]), place, xerr=1.96 * error, fmt="o", markersize=4, capsize=3
    )
    axis.set_yticks(place, [row[0] for row in rows])
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:+,.0f}" if x else "0")
    axis.set_xlabel("estimate minus truth, people")
    return figure


def _signal(release: BloomRelease) -> Section:
    from dpbayes.bloom.reach import debias
    from dpbayes.bloom.signal import signal_to_noise

    counts = np.maximum(debias(release.counts, flip_prob=release.flip_prob).counts, 0.0)
    signal = signal_to_noise(counts, flip_prob=release.flip_prob)
    value, (source, target) = signal.largest
    ends = signal.ratio(0, counts.size - 1)
    columns = [Column("change of one position", key="change"), Column("signal-to-noise ratio", ".3e", "ratio")]
    source_bits, target_bits = (format(logo, f"0{release.n_filters}b")[::-1] for logo in (source, target))
    none, all_ones = "0" * release.n_filters, "1" * release.n_filters
    rows = [
        (f"logo {source_bits} to {target_bits}, the most visible", value),
        (f"logo {none} to {all_ones}, the paper's", ends),
    ]
    text = (
        "How well the best linear combination of released counts shows the change of one position, at the debiased "
        "counts (negative ones set to zero). A logo is one bit a publisher, the first on the left. The paper holds the "
        "second change to be the most visible; it need not be."
    )
    return Section("Signal", [Paragraph(text), Table("signal", "Squared shift over variance.", columns, rows)])
