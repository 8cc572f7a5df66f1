"""Runs of the Bloom system: flipped filters or published reach numbers, their privacy, and the reach that they show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dpbayes._lazy import xr
from dpbayes.bloom.claims import MAX_WEEKS, EpsilonClaim, exchange_bound, outward
from dpbayes.bloom.filters import BitDistribution, BloomRelease, Filters, WeeklyFilters, build_filters, shuffle_flip
from dpbayes.bloom.reach import ReachLattice, ReachNumbers, estimate_reach, read_reach_numbers, shown_sets
from dpbayes.errors import SpecError
from dpbayes.privacy.envelope import read_one_of
from dpbayes.privacy.loss_law import Bounds
from dpbayes.report.document import Column, Fact, Figure, Paragraph, PrivacyTerms, Table, show_range
from dpbayes.report.document import Section as PageSection
from dpbayes.report.sensitivity import prior_section, shares_section
from dpbayes.report.tables import NO_COST, interval_columns, mean_and_interval, show_interval, simulation_warning
from dpbayes.runs.protocol import Calibration, Context, Findings
from dpbayes.runs.spec import Chains, DataSection, Draws, Positive, PrivacySection, RunSpec, Section, Seed, Tune

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.privacy.ledger import Ledger


_CERTIFICATE, _TRUTH = "certificate", "truth"
_TRUE_COLUMN = Column("simulated truth", ",d", "truth")
_ROUNDING = 2.0**-50

_Delta = Annotated[float, Field(gt=0, le=0.5)]

type _Release = BloomRelease | WeeklyFilters | ReachNumbers


class Data(DataSection):
    """A finished release of filters, or published reach numbers (CSV); without either, the audience is simulated."""

    files: ClassVar[tuple[str, ...]] = ()

    delta: _Delta = 1e-3
    """Delta at which the page states what a finished release of filters costs."""


class Audience(Section):
    """A simulated audience: people differ in how much they see, so that publishers overlap."""

    n_people: int = Field(ge=1, le=50_000_000)
    """People who might be reached."""
    shares: list[Annotated[float, Field(gt=0, le=0.5)]] = Field(min_length=1, max_length=10)
    """Share of the people that each publisher reaches, at most one half; more than 8 of them need [lattice]."""
    weeks: int = Field(default=1, ge=1, le=MAX_WEEKS)
    """Weeks, each with filters of its own of all people reached by then; more than one needs [lattice]."""
    seed: Seed = 1
    """Seed of the audience."""


class FilterSettings(Section):
    """The filters."""

    n_bits: int = Field(ge=2, le=10_000_000)
    """Bits of a filter."""
    decay: float = Field(default=0.0, ge=0, le=700)
    """0 for uniform hashing; otherwise how much likelier the first bit is than the last, on the log scale."""
    hash_seed: Seed = 0
    """Hash seed that the publishers share, one more each week."""


class Privacy(PrivacySection):
    """The target, and which pairs of neighbouring inputs it is for."""

    epsilon: Positive
    """Epsilon of all weeks; neighbouring inputs differ in one position: a person more or less, not exchanged."""
    delta: _Delta
    """Delta of all weeks."""
    definition: Literal["tight", "quantile"] = "tight"
    """tight for (epsilon, delta)-differential privacy, quantile for the paper's definition."""
    pairs: Literal["paper", "all"] = "paper"
    """Calibrate for the paper's pair of inputs, or so that the bound for all pairs holds (minutes, more noise)."""


class Lattice(Section):
    """Reach of every set of publishers by every week, as that of one audience."""

    population: Positive
    """People who might be reached: a public number, such as a census count."""
    classes: int = Field(default=12, ge=2, le=200)
    """Classes of equal size that the audience is a mixture of."""


class Sampling(Section):
    """NUTS settings."""

    draws: Draws = 1000
    """Draws kept per chain."""
    tune: Tune = 1000
    """Draws spent on adaptation, per chain."""
    chains: Chains = 4
    """Chains; convergence is judged across them."""
    seed: Seed = 1
    """Seed of the sampler (not of the noise)."""


class Spec(RunSpec):
    """A run of the Bloom system."""

    decisive: ClassVar[set[str]] = {"audience", "filters", "privacy"}

    system: Literal["bloom"]
    """The system's name."""
    data: Data = Data()
    audience: Audience | None = None
    filters: FilterSettings | None = None
    privacy: Privacy | None = None
    lattice: Lattice | None = None
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _audience_or_release(self) -> Spec:
        simulated = self.data.release is None
        for name in ("audience", "filters"):
            if (getattr(self, name) is not None) != simulated:
                raise ValueError(
                    f"add the section [{name}]: without data.release the audience is simulated"
                    if simulated
                    else f"a finished release has its own filters; leave [{name}] out"
                )
        many = self.audience is not None and (len(self.audience.shares) > 8 or self.audience.weeks > 1)
        if many and self.lattice is None:
            raise ValueError("more than 8 publishers or 1 week need the section [lattice], with the population")
        if self.privacy is not None and self.privacy.ledger is not None:
            raise ValueError("the audience is simulated, and a ledger records real releases; leave privacy.ledger out")
        return self


@lru_cache(maxsize=16)
def _flip_prob(**asked: Any) -> float:
    """Calibrate once per process: `design` and `release` ask for the same number, which may take minutes."""
    from dpbayes.bloom.calibration import flip_prob_for

    return flip_prob_for(**asked)


def _calibrated(spec: Spec) -> float:
    assert spec.privacy is not None and spec.audience is not None and spec.filters is not None
    privacy, weeks = spec.privacy, spec.audience.weeks
    week = {"epsilon": privacy.epsilon / weeks, "delta": _weekly_delta(privacy.delta, weeks)}
    week |= {"n_filters": len(spec.audience.shares), "n_bits": spec.filters.n_bits}
    return _flip_prob(**week, definition=privacy.definition, pairs=privacy.pairs)


def _weekly_delta(delta: float, n_weeks: int) -> float:
    """Return what each week may use of delta, rounded down: the weeks add up."""
    return delta if n_weeks == 1 else delta / n_weeks * (1.0 - _ROUNDING)


def _together(weeks: list[BloomRelease]) -> BloomRelease | WeeklyFilters:
    return weeks[0] if len(weeks) == 1 else WeeklyFilters(tuple(weeks))


def design(
    spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Ledger | None = None
) -> BloomRelease | WeeklyFilters:
    """Return the release that a spec would make, with all positions spread over the logos."""
    if n_records is not None:
        raise SpecError("a Bloom model is about positions, not records; set filters.n_bits in the spec instead")
    if spec.audience is None or spec.filters is None:
        raise SpecError("a finished release has no design of its own; describe [audience], [filters] and [privacy]")
    k, m = len(spec.audience.shares), spec.filters.n_bits
    counts = np.full(2**k, m // 2**k)
    counts[0] += m - counts.sum()
    week = BloomRelease(counts, _calibrated(spec), "simulation", spec.filters.decay)
    return _together([week] * spec.audience.weeks)


def release(
    spec: Spec, context: Context, *, rng: np.random.Generator | None, ledger: Ledger | None
) -> BloomRelease | WeeklyFilters:
    """Simulate the audience, flip its filters, and note the simulated truth."""
    assert spec.filters is not None
    p = _calibrated(spec)
    context.echo(f"flip probability: {p:.6f}")
    filters, truth = _simulate(spec)
    # The audience is simulated, so its truth may stand beside the estimates.
    context.keep(_TRUTH, truth)
    return _together([shuffle_flip(week, flip_prob=p, decay=spec.filters.decay, rng=rng) for week in filters])


def read_release(path: Path) -> _Release:
    """Read a finished release of filters, or published reach numbers."""
    if path.suffix.lower() == ".csv":
        return read_reach_numbers(path)
    return read_one_of(path, ReachNumbers, WeeklyFilters, BloomRelease)


def _flips(release: BloomRelease | WeeklyFilters, format: str) -> str:
    """Return the flip probability in words, or its range over weeks."""
    return f"flip probability {show_range([week.flip_prob for week in release.weeks], format)}"


def describe(spec: Spec, release: _Release) -> str:
    """Return the release in a line for the terminal."""
    if isinstance(release, ReachNumbers):
        size = f"{release.values.size} published numbers of {len(release.publishers)} publishers"
        return f"{size}, {release.n_weeks} week{'s' * (release.n_weeks > 1)}, {release.noise} noise"
    size = show_range([week.n_bits for week in release.weeks], ",")
    filters = f"{release.n_filters} filters of {size} bits at {_flips(release, '.4f')}"
    if isinstance(release, WeeklyFilters):
        filters += f", {release.n_weeks} weeks"
    if (cost := spec.privacy) is not None:
        pairs = "the paper's pair" if cost.pairs == "paper" else "all pairs"
        filters += f", {cost.definition} epsilon {cost.epsilon:g} and delta {cost.delta:g} of {pairs}"
    return f"{filters}, {release.adjacency}, protects one position of the filters"


def try_fit(spec: Spec, design: _Release, context: Context) -> pm.Model:
    """Build the model."""
    return calibration(spec, design, Path(), None).build_model()


def calibration(spec: Spec, design: _Release, beside: Path, n_records: int | None) -> Calibration:
    """Return the model of a Bloom spec; its likelihood is exact, so that it simulates for itself."""
    from dpbayes.bloom.model import build_lattice_model, build_model

    if spec.lattice is not None:
        build: Callable[[], pm.Model] = partial(build_lattice_model, design, **spec.lattice.model_dump())
        judged, sampling = "reach", {"target_accept": 0.85}
    elif isinstance(design, BloomRelease):
        build, judged, sampling = partial(build_model, design), "logo_probability", {}
    else:
        raise SpecError("numbers or weeks of reach need the section [lattice], with population = the people there are")
    named = {} if isinstance(design, ReachNumbers) else {"logo_probability": _set_names(design.n_filters)}
    called = {"reach": "people reached", "logo_probability": "shares of sets of publishers"}
    about = describe(spec, design)
    return Calibration(build, about, var_names=(judged,), sampling=sampling, called=called, named=named)


def fit(spec: Spec, release: _Release, context: Context) -> xr.DataTree:
    """State what the flips give for other definitions and pairs."""
    from dpbayes.inference import sample

    if not isinstance(release, ReachNumbers) and not (context.folder / f"{_CERTIFICATE}.json").exists():
        context.echo("privacy: certifying other definitions and all pairs (up to a minute)")
        context.keep(_CERTIFICATE, [asdict(claim) for claim in _certificate(release, _delta(spec))])
    model = calibration(spec, release, context.beside, None)
    sampling = model.sampling | spec.sampling.model_dump(exclude={"seed"})
    seed = spec.sampling.seed
    return sample(model.build_model(), random_seed=seed, progressbar=False, progress=context.progress, **sampling)


def _delta(spec: Spec) -> float:
    return spec.data.delta if spec.privacy is None else spec.privacy.delta


def _certificate(release: BloomRelease | WeeklyFilters, delta: float) -> list[EpsilonClaim]:
    """State epsilon of a release for the paper's pair by both definitions, and for all pairs; weeks add up."""
    weeks = release.weeks
    share = _weekly_delta(delta, len(weeks))
    every = [
        _week_claims(flip_prob=week.flip_prob, n_filters=week.n_filters, n_bits=week.n_bits, delta=share)
        for week in weeks
    ]
    if len(weeks) == 1:
        return list(every[0])
    # Privacy losses of independent weeks add up, so upper bounds do, under both definitions; lower bounds do not.
    sums = [math.fsum(claim.upper for claim in alike) * (1.0 + _ROUNDING) for alike in zip(*every, strict=True)]
    added = zip(every[0], sums, strict=True)
    return [replace(claim, epsilon=Bounds(0.0, upper), delta=delta) for claim, upper in added]


@lru_cache(maxsize=64)
def _week_claims(**filters: Any) -> tuple[EpsilonClaim, ...]:
    """Return the claims of a week's filters, computed once for all weeks that are alike."""
    from dpbayes.bloom.calibration import bloom_epsilon

    claims = (bloom_epsilon(**filters), bloom_epsilon(**filters, definition="quantile"))
    return claims if filters["n_filters"] == 1 else (*claims, bloom_epsilon(**filters, pairs="all"))


def _simulate(spec: Spec) -> tuple[list[Filters], dict[str, Any]]:
    """Draw who is reached by whom: a person of activity u sees a publisher of share s with probability 2 s u.

    The week of the first contact is any week with equal probability.
    """
    assert spec.audience is not None and spec.filters is not None
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
    first = [(who, rng.integers(spec.audience.weeks, size=who.size)) for who in map(np.flatnonzero, reached)]
    filters = []
    for week in range(spec.audience.weeks):
        people = [who[when <= week] for who, when in first]
        filters.append(build_filters(people, distribution=law, seed=spec.filters.hash_seed + week))
    return filters, truth


def sections(spec: Spec, release: Any, result: xr.DataTree, kept: Mapping[str, Any]) -> Findings:
    """Return the page: reach with intervals, what the width comes from, and privacy."""
    truth = kept.get(_TRUTH)
    found = (_logo_findings if spec.lattice is None else _lattice_findings)(spec, release, result, truth)
    if truth is not None:
        found = replace(found, answer=f"{found.answer} The simulated truth of all together is {truth['union']:,}.")
    if isinstance(release, ReachNumbers):
        return replace(found, cost=[NO_COST])
    claims = [EpsilonClaim(**one | {"epsilon": Bounds(**one["epsilon"])}) for one in kept[_CERTIFICATE]]
    return replace(
        found,
        sections=[*found.sections, _privacy_section(claims, release)],
        terms=PrivacyTerms("one-position", "position", _delta(spec)),
        cost=_epsilon_facts(claims),
    )


def _logo_findings(spec: Spec, release: BloomRelease, result: xr.DataTree, truth: dict[str, Any] | None) -> Findings:
    """Return the page of one release of filters, but for its privacy."""
    from dpbayes.bloom.model import draw_reach, draw_true_counts

    draws, names = _thinned(result), _set_names(release.n_filters)
    true = draw_true_counts(draws["logo_probability"][0], release, random_seed=spec.sampling.seed)
    law = BitDistribution(release.n_bits, release.decay)
    posterior = draw_reach(true, law, random_seed=spec.sampling.seed + 1)
    reached, rows = mean_and_interval(posterior), _estimates(release, truth)
    flips = Fact("flip_prob", "flip probability", release.flip_prob, f"{release.flip_prob:.4f}")
    return Findings(
        answer=_found(rows, reached, release.n_filters),
        picture=_reach_picture(rows, posterior),
        sections=[
            _reach_section(rows, posterior),
            _prior_section(draws.assign(people_reached=(("chain", "draw"), posterior[None])), release, names),
            _sources_section(true, law, release.n_filters, seed=spec.sampling.seed + 2),
        ],
        headline=[flips, _reach_fact(reached)],
        judged="The shares of all sets of publishers are judged.",
        named={"logo_probability": names, "released_probability": [f"{name}, as released" for name in names]},
    )


def _thinned(trace: xr.DataTree) -> xr.Dataset:
    """Return draws of the shares as of one chain; a thousand fix an interval's ends to hundredths of its width."""
    names = ["logo_probability", "released_probability"]
    flat = trace["posterior"].to_dataset()[names].stack(all=("chain", "draw"), create_index=False)
    thin = flat.isel(all=slice(None, None, max(1, flat.sizes["all"] // 1000)))
    thin = thin.drop_vars(["chain", "draw"], errors="ignore").rename(all="draw")
    return thin.expand_dims("chain").transpose("chain", "draw", ...)


def _found(rows: list[_Row], reached: Any, n_publishers: int) -> str:
    """Say how many people were reached, and how often."""
    mean, low, high = show_interval(*reached)
    often = [
        f"{show_interval(value, value - 1.96 * stderr, value + 1.96 * stderr)[0]} by {name.removeprefix('exactly ')}"
        for name, _, value, stderr in rows
        if "exactly" in name
    ]
    return (
        f"{n_publishers} publishers have reached {mean} people together (95 % interval "
        f"{low} to {high}): about {'; '.join(often[:3])}{'; the rest by more' if len(often) > 3 else ''}."
    )


def _reach_fact(reached: Any) -> Fact:
    return Fact("reach", "people reached, posterior mean", float(reached[0]), show_interval(*reached)[0])


def _epsilon_facts(claims: list[EpsilonClaim]) -> list[Fact]:
    """Put what the release costs first: for every pair, and for the paper's."""
    every = _every_pair(claims)
    shown = {"epsilon": claims[0]} if every == claims[0] else {"epsilon_every": every, "epsilon": claims[0]}
    return [
        Fact(key, f"epsilon at delta {claim.delta:g}, {claim.scope}", claim.upper, f"{claim.upper:.4f}")
        for key, claim in shown.items()
    ]


def _every_pair(claims: list[EpsilonClaim]) -> EpsilonClaim:
    """Return the claim that covers all pairs, tight definition."""
    return next(one for one in claims if one.scope.startswith("all pairs") and one.definition == "tight")


def _privacy_section(claims: list[EpsilonClaim], release: BloomRelease | WeeklyFilters) -> PageSection:
    text = (
        "Neighbouring inputs differ in one position of the filters (one-position): a person more or less, or other "
        "publishers for one person. Only a number that covers all pairs protects every input: its upper bound is "
        "proven, its lower bound is the epsilon of the worst pair found, and the truth lies between. The paper's "
        "pair, all filters empty but for one position, says what the release costs at least."
    )
    several = ""
    if isinstance(release, WeeklyFilters):
        several = f" of {release.n_weeks} weeks"
        text += (
            " A person is in the filters of every week that follows: epsilon and delta are those of all weeks, added. "
            "The sums are upper bounds; no lower bound but 0 is computed for them."
        )
    columns = ["definition", "covers", ("delta", "g"), ("lower bound", ".5f", "lower"), ("epsilon", ".5f", "upper")]
    rows = [(c.definition, c.scope, c.delta, c.lower, c.upper) for c in claims]
    table = Table("privacy", f"Certified epsilon{several} at {_flips(release, '.6f')}.", columns, rows)
    persons = _exchange_blocks(_every_pair(claims))
    return PageSection("Privacy", [*simulation_warning(release.sampler), Paragraph(text), table, *persons])


def _exchange_blocks(every: EpsilonClaim) -> list[Any]:
    """State what the bound for all pairs gives for persons: once, and when one is exchanged for another."""
    epsilon, delta = exchange_bound(every)
    costs = [
        ("a person more or less, or other publishers for one", 1, every.upper, every.delta),
        ("one person exchanged for another", 2, epsilon, delta),
    ]
    rows = [(change, positions, float(outward(e)), float(outward(d))) for change, positions, e, d in costs]
    columns = ["change", ("positions", "d"), ("epsilon", ".6g"), ("delta", ".6g")]
    text = (
        "One person exchanged for another changes two positions, which costs more than one: at most 2 epsilon at delta "
        "(1 + e^epsilon) times as large, by group privacy, from the number that covers all pairs."
    )
    if delta >= 1.0:
        text += " Here that delta is 1: the release promises nothing for such an exchange."
    return [Paragraph(text), Table("persons", "What holds for persons whatever the input, rounded up.", columns, rows)]


type _Row = tuple[str, int | None, float, float]


def _estimates(release: BloomRelease, truth: dict[str, Any] | None) -> list[_Row]:
    """Rows of what was asked, the simulated truth if there is one, the debiased estimate and its standard error."""
    reach, k = estimate_reach(release), release.n_filters
    known = truth or {"union": None, "frequency": [None] * k, "publishers": [None] * k}
    asked = [("at least one publisher", known["union"], reach.union())]
    for f, count in enumerate(known["frequency"], start=1):
        asked.append((f"exactly {f} publisher{'s' if f > 1 else ''}", count, reach.frequency(f)))
    for place, count in enumerate(known["publishers"]):
        asked.append((f"publisher {place + 1}", count, reach.union((place,))))
    return [(name, count, estimate.value, estimate.stderr) for name, count, estimate in asked]


def _reach_section(rows: list[_Row], posterior: Any) -> PageSection:
    """Show the posterior, and the debiased estimates beside the simulated truth where there is one."""
    known = rows[0][1] is not None
    columns: list[Any] = [("people reached by", "", "asked"), *[_TRUE_COLUMN] * known, ("estimate", ",.0f")]
    columns += [("standard error", ",.0f", "stderr"), *[("error / standard error", "+.1f", "z")] * known]
    shown = [
        (name, value, stderr) if truth is None else (name, truth, value, stderr, (value - truth) / stderr)
        for name, truth, value, stderr in rows
    ]
    caption = f"Debiased estimates{' beside the simulated truth' * known}."
    words = (
        "The posterior and the standard errors count both flipping and hashing. The estimates below are "
        "unbiased, so that one of a group that hardly anybody is in may be negative; the posterior, "
        "under whose prior (Jeffreys', of the shares of sets) no share is below zero, is not."
    )
    which = "Posterior of the people reached by at least one publisher."
    table = Table("posterior", which, interval_columns(",.0f"), [mean_and_interval(posterior).tolist()])
    return PageSection("Reach", [table, Paragraph(words), Table("reach", caption, columns, shown)])


def _reach_picture(rows: list[_Row], posterior: Any) -> Any:
    from dpbayes.report.plots import SCREEN_ROWS, estimate_plot

    bounds = np.array([[max(value + z * stderr, 0.0) for z in (0.0, -1.96, 1.96)] for _, _, value, stderr in rows])
    bounds[0] = mean_and_interval(posterior)
    some = "" if len(rows) <= SCREEN_ROWS else f" The first {SCREEN_ROWS} of the {len(rows)} rows below are drawn."
    rows, bounds = rows[:SCREEN_ROWS], bounds[:SCREEN_ROWS]
    figure = estimate_plot([row[0] for row in rows], bounds, xlabel="people reached", format=",.0f")
    told = "; ".join(f"{name} {value:,.0f}" for (name, *_), value in zip(rows, bounds[:, 0], strict=True))
    caption = (
        "People reached, with 95 % intervals: posterior of all publishers together, debiased estimates of the rest. "
        f"Flipping and hashing are in them.{some}"
    )
    return Figure(figure, caption, told)


def _sources_section(true: Any, law: BitDistribution, n_publishers: int, *, seed: int) -> PageSection:
    from dpbayes.bloom.model import reach_variances

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


def _prior_section(posterior: xr.Dataset, release: BloomRelease, names: list[str]) -> PageSection:
    """Judge the prior of the logo shares, by those shares and by the reach drawn from them."""
    from dpbayes.bloom.model import logo_densities

    draws = xr.DataTree.from_dict({"posterior": posterior})
    prior, likelihood = logo_densities(draws, release.counts)
    return prior_section(
        draws,
        {"prior of the shares": prior},
        variables=["people_reached", "logo_probability"],
        what="Its one part is Jeffreys' prior of the shares of sets of publishers: of all positions of the filters, "
        "the share that exactly these publishers set.",
        log_likelihood=likelihood,
        answers=["people_reached"],
        called={"people_reached": "people reached", "logo_probability": "shares of sets of publishers"},
        named={"logo_probability": names},
    )


def _set_names(k: int) -> list[str]:
    """Return what the sets of k publishers are called, in the order of the logos.

    >>> _set_names(3)[:4], _set_names(3)[7]
    (['no publisher', 'publisher 1 alone', 'publisher 2 alone', 'publishers 1 and 2 alone'], 'all publishers')
    """
    names = []
    for logo in range(2**k):
        members = [str(place + 1) for place in range(k) if logo >> place & 1]
        several = f"publishers {', '.join(members[:-1])} and {members[-1]} alone" if members[1:] else ""
        names.append(several or (f"publisher {members[0]} alone" if members else "no publisher"))
    return names[:-1] + (["all publishers"] if k > 1 else names[-1:])


def _lattice_findings(spec: Spec, release: Any, result: xr.DataTree, truth: dict[str, Any] | None) -> Findings:
    """Return the page of a reach lattice, but for its privacy."""
    lattice = ReachLattice.from_trace(result)
    reached = mean_and_interval(lattice.union())
    mean, low, high = show_interval(*reached)
    when = "" if lattice.n_weeks == 1 else f"By week {lattice.n_weeks}, "
    people = f"{mean} people together ({low} to {high})"
    alone = {name: mean_and_interval(lattice.union([name])).tolist() for name in lattice.publishers}
    smallest = min(alone, key=lambda name: alone[name][0])
    mean_alone, low_alone, high_alone = show_interval(*alone[smallest])
    by_week = [f" by week {week}" for week in range(1, lattice.n_weeks + 1)] if when else [""]
    sets = result["posterior"].to_dataset()["set"].values
    return Findings(
        answer=f"{when}{len(alone)} publishers have reached {people}, and the smallest, {smallest}, "
        f"{mean_alone} ({low_alone} to {high_alone}); posterior means with 95 % intervals.",
        sections=[_lattice_section(lattice, release, truth), _frequency_section(lattice, truth)],
        headline=[_reach_fact(reached)],
        picture=_lattice_picture(lattice, release if isinstance(release, ReachNumbers) else None),
        judged="The reach of each publisher, each pair and all, by each week, is judged.",
        named={"reach": [f"reach of {name}{week}" for name in sets for week in by_week]},
    )


def _lattice_section(lattice: ReachLattice, release: Any, truth: dict[str, Any] | None) -> PageSection:
    """List the reach of each publisher, each pair and all by the last week, beside what was published."""
    k, published = len(lattice.publishers), isinstance(release, ReachNumbers)
    rows = []
    for which in shown_sets(k):
        names = [lattice.publishers[place] for place in which]
        row: list[Any] = [" + ".join(names)]
        if published:
            same = (release.sets == np.isin(np.arange(k), which)).all(axis=1) & (release.weeks == lattice.n_weeks)
            row.append(float(release.values[same][0]) if same.any() else None)
        row += mean_and_interval(lattice.union(names)).tolist()
        if truth is not None:
            alone = truth["publishers"][which[0]] if len(which) == 1 else None
            row.append(truth["union"] if len(which) == k else alone)
        rows.append(row)
    columns = [Column("people reached by at least one of", key="set"), *[Column("published", ",.0f")] * published]
    columns += [*interval_columns(",.0f"), *[_TRUE_COLUMN] * (truth is not None)]
    text = (
        "All numbers are those of one audience at every draw: no set reaches fewer people than a part of it, no week "
        "fewer than the one before, and no group of people that inclusion and exclusion gives is negative. So the "
        "numbers share what each of them says about the others, and none is 0 where noise hides it: its interval is "
        "wide. What no number speaks of, such as overlaps where only single publishers were published, is the prior's."
    )
    week = "" if lattice.n_weeks == 1 else f" by week {lattice.n_weeks}"
    return PageSection("Reach", [Paragraph(text), Table("reach", f"Posterior of the reach{week}.", columns, rows)])


def _frequency_section(lattice: ReachLattice, truth: dict[str, Any] | None) -> PageSection:
    rows = [[k, *row] for k, row in enumerate(mean_and_interval(lattice.frequency()).tolist()) if k]
    columns = [Column("publishers", "d", "times"), *interval_columns(",.0f")]
    if truth is not None:
        rows = [[*row, count] for row, count in zip(rows, truth["frequency"], strict=True)]
        columns.append(_TRUE_COLUMN)
    caption = "People reached by exactly so many publishers."
    return PageSection("Frequency", [Table("frequency", caption, columns, rows)])


def _lattice_picture(lattice: ReachLattice, numbers: ReachNumbers | None) -> Figure:
    """Draw the reach of each publisher and of all: over weeks, or as bars with intervals."""
    import matplotlib.pyplot as plt

    from dpbayes.report.plots import COLOURS, SCREEN_ROWS, estimate_plot

    sets: list[tuple[str, list[str]]] = [(name, [name]) for name in lattice.publishers[: SCREEN_ROWS - 1]]
    if len(sets) > 1:
        sets.append(("all", list(lattice.publishers)))
    many = len(lattice.publishers) >= SCREEN_ROWS
    some = f" The first {SCREEN_ROWS - 1} publishers and all are drawn." if many else ""
    alternative = "Reach of each publisher and of all, with 95 % intervals."
    if lattice.n_weeks == 1:
        estimates = mean_and_interval(np.array([lattice.union(names) for _, names in sets]).T)
        labels = [label for label, _ in sets]
        bars = estimate_plot(labels, estimates, xlabel="people reached", format=",.0f")
        return Figure(bars, f"People reached: posterior means with 95 % intervals.{some}", alternative)
    figure, axis = plt.subplots(figsize=(7.0, 3.8), layout="constrained")
    weeks = range(1, lattice.n_weeks + 1)
    drawn: list[int] | None = None if numbers is None else []  # the marks are the published numbers'
    for place, (label, names) in enumerate(sets):
        draws = np.array([lattice.union(names, week=week) for week in weeks])
        low, middle, high = np.quantile(draws, [0.025, 0.5, 0.975], axis=1)
        colour, style, mark = COLOURS[place % len(COLOURS)], ("-", "--")[place // len(COLOURS)], "os^Dv*PX"[place % 8]
        axis.fill_between(weeks, low, high, color=colour, alpha=0.25, linewidth=0)
        axis.plot(weeks, middle, style, color=colour, label=label, marker=mark, markersize=5, markevery=drawn)
        if numbers is not None:
            same = (numbers.sets == np.isin(lattice.publishers, names)).all(axis=1)
            axis.plot(numbers.weeks[same], numbers.values[same], mark, color=colour, markersize=5)
    axis.set(xlabel="week", ylabel="people reached")
    axis.yaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.legend(fontsize=8, ncols=2)
    beside = "" if numbers is None else ", and the published numbers as marks"
    caption = f"Reach by week: posterior median with 95 % bands{beside}.{some}"
    return Figure(figure, caption, alternative)
