"""Runs of the MVG system: release second moments, fit a noise-aware regression, report, calibrate.

The paper's own experiments are a study outside of the package, ``models/studies/mvg_paper.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dpbayes._lazy import nw, pl, xr
from dpbayes.data.records import readable, require_columns, scan_records
from dpbayes.errors import InputError, SpecError
from dpbayes.mvg.moments import MomentQuery, MomentRelease, calibrate_moments, release_moments
from dpbayes.mvg.regression import NaiveFit, WhitenedMoments, naive_regression, whiten_moments
from dpbayes.mvg.sensitivity import FeatureRanges, clip_records
from dpbayes.report.document import Column, Fact, Figure, Paragraph, PrivacyTerms, Table, show_number, show_probability
from dpbayes.report.document import Section as PageSection
from dpbayes.report.sensitivity import prior_section, shares_section
from dpbayes.report.tables import mean_and_interval, simulation_warning
from dpbayes.runs.protocol import Calibration, Context, Findings
from dpbayes.runs.spec import Positive, PrivacySection, Real, RunSpec, Section, Seed, Share, UnitSection

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

_PLACEHOLDER = 1000  # records of a placeholder where their number is not known
_DELTA = 1e-6  # at which a page states epsilon where the release was made elsewhere
_MOST_FEATURES = 100
_MOST_ANSWERED = 6  # predictors of the first sentence

type Ranges = dict[str, tuple[float, float]]


class Data(UnitSection):
    """Where the records come from: generated patients, a file of records, or a release that was made before."""

    sources: ClassVar[tuple[str, ...]] = ("embedded", "file", "release")
    confidential: ClassVar[str] = "file"
    files: ClassVar[tuple[str, ...]] = ("file",)

    embedded: Literal["patients"] | None = None
    """Patients that dpbayes generates: simulated persons, so the data are public."""
    n: int | None = Field(default=None, ge=40, le=10_000_000)
    """How many patients to generate."""
    seed: Seed = 1
    """Seed of the generated patients."""
    file: str | None = None
    """A CSV or Parquet file of records, beside the spec."""
    ranges: dict[str, list[Real]] | None = None
    """Public bounds [lower, upper] of each column of a file; those of the patients by default."""

    @model_validator(mode="after")
    def _keys_fit_the_source(self) -> Data:
        if self.embedded is not None and self.n is None:
            raise ValueError("embedded patients need n, how many to generate")
        if self.embedded is None and self.n is not None:
            raise ValueError(f"n = {self.n} says how many patients to generate, and there are none; leave it out")
        if self.embedded is not None and (self.ranges is not None or self.truth_public):
            raise ValueError("embedded patients are public and have known ranges; leave truth_public and ranges out")
        for name, bounds in (self.ranges or {}).items():
            if len(bounds) != 2 or not bounds[0] < bounds[1]:
                raise ValueError(f"ranges.{name} must be [lower, upper] with lower < upper, got {bounds}")
        return self

    @property
    def known_ranges(self) -> Ranges:
        """The public bounds of every column."""
        from dpbayes.data.datasets import PATIENT_RANGES

        return {name: (low, high) for name, (low, high) in (self.ranges or {}).items()} or dict(PATIENT_RANGES)


class Privacy(PrivacySection):
    """The guarantee of the release."""

    epsilon: Positive
    """Privacy-loss parameter."""
    delta: Share
    """Failure probability, well below one over the number of records."""
    adjacency: Literal["replace-one"] = "replace-one"
    """The relation between neighbouring data sets; the number of records is public."""


class Regression(Section):
    """Noise-aware linear regression from a released moment matrix."""

    predictors: list[str] = Field(min_length=1, max_length=_MOST_FEATURES)
    """Columns to regress on; with data.release, any of those that were released."""
    response: str
    """Column to explain."""
    intercept: float | None = Field(default=None, ge=1e-6, le=1e6)
    """The intercept's constant, in half-widths of the ranges; the square root of the number of columns by default."""
    draws: int = Field(default=1000, ge=10, le=10_000)
    """Draws kept in each of four chains: those of 10,000 fix an interval's end to a hundredth of its width."""
    seed: Seed = 1
    """Seed of the sampler (not of the noise)."""

    @property
    def columns(self) -> list[str]:
        """The predictors, then the response."""
        return [*self.predictors, self.response]


class Spec(RunSpec):
    """A regression on released second moments."""

    system: Literal["mvg"]
    """The system's name."""
    data: Data
    privacy: Privacy | None = None
    regression: Regression

    @property
    def release_settings(self) -> dict[str, Any]:
        """The columns of the moments, whichever of them is explained by the others."""
        moments = {"columns": sorted(self.regression.columns), "intercept": self.regression.intercept}
        return super().release_settings | (moments if self.given_release is None else {})

    @model_validator(mode="after")
    def _columns_are_known(self) -> Spec:
        known = None if self.data.release is not None else list(self.data.known_ranges)
        check_columns(self.regression.columns, known, where="regression")
        return self


def check_columns(names: Sequence[str], known: Sequence[str] | None, *, where: str) -> None:
    """Refuse columns that are named twice, or for which no range is known (None: a release will say)."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{where} names a column twice: {', '.join(repeated)}; name each once")
    unknown = [] if known is None else [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"no range is known for {', '.join(unknown)} of {where}; add it to data.ranges or choose of {known}"
        )


def load_records(data: Data, beside: Path, *, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the columns of the records, all with a range by default. The records may be confidential."""
    from dpbayes.data.datasets import patients

    names = list(data.known_ranges) if columns is None else list(columns)
    if data.embedded is not None:
        assert data.n is not None
        return patients(data.n, data.seed).select(names).cast(pl.Float64)
    assert data.file is not None
    path = beside / data.file
    lazy = scan_records(path, setting="data.file", text=[] if data.unit is None else [data.unit])
    require_columns(lazy, names, path, source="data.ranges")
    if data.unit is not None:
        require_columns(lazy, [data.unit], path, source="data.unit")
        if data.unit in names:
            raise InputError(f"the unit {data.unit!r} is also a column to release; change it, or leave data.unit out")
    with readable(path):
        schema = lazy.select(names).collect_schema()
        if text := [name for name, kind in schema.items() if not (kind.is_numeric() or kind == pl.Boolean)]:
            _require_rows(lazy.limit(1).collect(), path)
            raise InputError(
                f"{path.name} has columns that are no numbers: {', '.join(text)}; code them inside data.ranges"
            )
        numbers = lazy.with_columns(pl.col(names).cast(pl.Float64))
        if data.unit is not None:
            numbers = _bounded(numbers, data, names)
        return _require_rows(numbers.select(names).collect(), path)


def _require_rows(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    if frame.is_empty():
        raise InputError(f"{path.name} has no rows; there is nothing to release")
    return frame


def _bounded(frame: pl.LazyFrame, data: Data, names: Sequence[str]) -> pl.LazyFrame:
    """Keep a unit's rows as tables do; values that agree to a millionth of their range are one level."""
    from dpbayes.data.tables import PRIME, bounded_rows

    weights = np.random.default_rng(0).integers(1, PRIME, len(names)).tolist()
    place = nw.lit(0, nw.Int64)
    for name, weight in zip(names, weights, strict=True):
        low, high = data.known_ranges[name]
        share = (nw.col(name).fill_nan(None).fill_null((low + high) / 2.0).clip(low, high) - low) / (high - low)
        step = (share * (PRIME - 1)).cast(nw.Int64)
        square = step * step % PRIME
        # The fifth power visits every remainder once, and breaks up what evenly spaced values have in common.
        step = square * square % PRIME * step % PRIME
        place = place + step * weight
    assert data.unit is not None
    return bounded_rows(nw.from_native(frame), data.unit, data.max_rows_per_unit, place).to_native()


def feature_ranges(ranges: Ranges, names: Sequence[str]) -> FeatureRanges:
    """Return the public ranges of some columns, under replace-one."""
    ends = np.array([ranges[name] for name in names], dtype=float)
    return FeatureRanges(ends[:, 0], ends[:, 1], "replace-one")


def record_matrix(frame: pl.DataFrame) -> np.ndarray:
    """Return the records as a matrix with one row per column of the table."""
    return np.ascontiguousarray(frame.to_numpy().T, dtype=float)


def _released(
    spec: Spec, records: np.ndarray, *, rng: np.random.Generator | None, ledger: Ledger | None
) -> MomentRelease:
    """Release the moments of records under the spec's design."""
    assert spec.privacy is not None
    names, data = spec.regression.columns, spec.data
    ranges = feature_ranges(data.known_ranges, names)
    # One half-width of every column is one unit of the noise; the constant then matches the half-diagonal.
    half = ranges.widths / 2.0
    constant = spec.regression.intercept or math.sqrt(len(names))
    query = MomentQuery(
        ranges,
        records.shape[1],
        intercept=constant,
        features=tuple(names),
        unit=data.unit,
        rows_per_unit=data.max_rows_per_unit,
    )
    noise = calibrate_moments(query, epsilon=spec.privacy.epsilon, delta=spec.privacy.delta, shape=np.diag(half**2))
    charged = 0.0 if ledger is None else spec.privacy.delta
    return release_moments(records, noise, rng=rng, ledger=ledger, ledger_delta=charged, purpose=spec.title)


def design(spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Ledger | None = None) -> MomentRelease:
    """Return a release of the spec's design whose records are placeholders, spread evenly over the public ranges."""
    n = n_records or spec.data.n or _PLACEHOLDER
    ranges, rng = feature_ranges(spec.data.known_ranges, spec.regression.columns), np.random.default_rng(0)
    records = ranges.lower[:, None] + ranges.widths[:, None] * rng.random((ranges.size, n))
    return _released(spec, records, rng=rng, ledger=ledger)


def release(spec: Spec, context: Context, *, rng: np.random.Generator | None, ledger: Ledger | None) -> MomentRelease:
    """Release the moments of the confidential records; least squares on them are kept only where they are public."""
    frame = load_records(spec.data, context.beside, columns=spec.regression.columns)
    records = record_matrix(frame)
    if spec.data.embedded is not None or spec.data.truth_public:
        context.keep("truth", _least_squares(records, feature_ranges(spec.data.known_ranges, frame.columns)))
    return _released(spec, records, rng=rng, ledger=ledger)


def _least_squares(records: np.ndarray, ranges: FeatureRanges) -> dict[str, Any]:
    """Return least squares on the clipped records: shown beside the estimates where the records are public."""
    values = clip_records(records, ranges)
    columns = np.vstack([np.ones(values.shape[1]), values[:-1]]).T
    # Each column in units of its own: beside one of 1e9 the intercept would look like rounding.
    units = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(float).tiny)
    inverse = np.linalg.pinv(columns / units)
    estimate = inverse @ values[-1] / units
    residual = float(np.sum((values[-1] - columns @ estimate) ** 2)) / (values.shape[1] - columns.shape[1])
    stderr = np.linalg.norm(inverse, axis=1) * math.sqrt(residual) / units
    return {"estimate": estimate.tolist(), "stderr": stderr.tolist(), "residual_stddev": math.sqrt(residual)}


def read_release(path: Path) -> MomentRelease:
    """Read the release of a run, or the one that a spec names."""
    return MomentRelease.read(path)


def describe(spec: Spec, release: MomentRelease) -> str:
    """Return the release in a line."""
    delta = _delta(spec)
    cost = f"epsilon {release.noise.epsilon(delta):.4g} at delta {delta:g} (mu {release.noise.mu.value:.4g})"
    return f"second moments of {release.query.ranges.size} columns at {cost}, replace-one"


def _delta(spec: Spec) -> float:
    return _DELTA if spec.privacy is None else spec.privacy.delta


def _whitened(spec: Spec, release: MomentRelease) -> WhitenedMoments:
    if release.query.features is None:
        raise SpecError("the release names no features; make it with MomentQuery(..., features=...)")
    return whiten_moments(release, features=spec.regression.columns)


def try_fit(spec: Spec, design: MomentRelease, context: Context) -> None:
    """Refuse columns that the release lacks, and a release that a regression cannot use."""
    _whitened(spec, design)


def fit(spec: Spec, release: MomentRelease, context: Context) -> xr.DataTree:
    """Draw from the posterior of the regression."""
    from dpbayes.mvg.posterior import moment_posterior

    context.at("drawing from the posterior")
    settings = spec.regression
    return moment_posterior(_whitened(spec, release), draws=settings.draws, random_seed=settings.seed)


def sections(spec: Spec, release: MomentRelease, result: xr.DataTree, kept: Mapping[str, Any]) -> Findings:
    """Return what the page says: coefficients with the naive ones beside, sources of width, release, prior."""
    white = _whitened(spec, release)
    naive, truth, delta = naive_regression(white), kept.get("truth"), _delta(spec)
    rows = _rows(result, naive, truth)
    epsilon, data = release.noise.epsilon(delta), spec.data
    source = f"{data.n:,} generated patients, seed {data.seed}" if data.n else str(data.file or data.release)
    caption = f"Coefficients in units of {spec.regression.response} for one unit of the term, with 95 % intervals"
    residual = result["posterior"].to_dataset()["residual_stddev"].to_numpy().ravel()
    exact = None if truth is None else truth["residual_stddev"]
    last = ("residual standard deviation", *mean_and_interval(residual).tolist(), None, None, None, exact)
    columns = [Column("term"), *(Column(name, "#.4g", key) for name, key in _COLUMNS.items())]
    table = Table("coefficients", caption, columns, [*rows, last])
    return Findings(
        answer=_found(rows, result, spec.regression.response),
        picture=_picture(spec, release, rows),
        caution=_caution(rows),
        sections=[
            PageSection("Coefficients", [table, _coefficient_figure(rows)]),
            _sources(result, white, naive),
            _release_section(release, epsilon, delta),
            _prior(result, white),
        ],
        headline=[Fact("n", "records", release.query.n, f"{release.query.n:,}")],
        cost=[Fact("epsilon", f"epsilon at delta {delta:g}, replace-one", epsilon, f"{epsilon:.4g}")],
        terms=PrivacyTerms(release.adjacency, release.protects.removeprefix("one "), delta),
        judged="The quantities of interest: intercept, coefficients, residual.",
        named=_NAMED,
        facts={"clipping": _CLIPPING},
        provenance={"records": source},
    )


def _rows(trace: xr.DataTree, naive: NaiveFit, truth: dict[str, Any] | None) -> list[tuple[Any, ...]]:
    posterior = trace["posterior"].to_dataset()
    draws = [posterior[name].stack(all=("chain", "draw")).to_numpy() for name in ("intercept", "coefficient")]
    ours = mean_and_interval(np.vstack(draws).T).tolist()
    plain = naive.estimate[:, None] + naive.stderr[:, None] * np.array([0.0, -1.96, 1.96])
    theirs = [row if np.isfinite(row).all() else [None] * 3 for row in plain.tolist()]
    exact = [None] * len(ours) if truth is None else truth["estimate"]
    return [(term, *row, *other, e) for term, row, other, e in zip(naive.terms, ours, theirs, exact, strict=True)]


def _found(rows: Sequence[Sequence[Any]], trace: xr.DataTree, response: str) -> str:
    """Say how the response moves with each predictor, with intervals, and how sure the directions are."""
    positive = (trace["posterior"].to_dataset()["coefficient"] > 0).to_numpy().reshape(-1, len(rows) - 1)
    share = positive.mean(axis=0)
    # So many draws do not tell a probability from 1 more closely.
    sure = np.minimum(np.maximum(share, 1.0 - share), 1.0 - 0.5 / len(positive))[:_MOST_ANSWERED]
    told = rows[1 : 1 + _MOST_ANSWERED]
    parts = [
        "{} per unit of {term} ({} to {})".format(*(show_number(x, form) for x in (mean, low, high)), term=term)
        for term, mean, low, high, *_ in told
        for form in [_format(high - low)]
    ]
    open_ones = [f"{row[0]} ({show_probability(p)})" for row, p in zip(told, sure, strict=True) if p < 0.975]
    least = show_probability(float(sure.min()))
    return (
        f"Expected {response} changes by {', '.join(parts)}: 95 % intervals, which count privacy noise and sampling, "
        "with the other predictors held. "
        + (
            f"The sign is undecided for {', '.join(open_ones)}, with the posterior probability of the one stated."
            if open_ones
            else f"Posterior probability of {'each' if len(told) > 1 else 'this'} sign: {least}"
            f"{' or more' if len(told) > 1 and least[0] != '>' else ''}."
        )
        + (f" {len(rows) - 1 - len(told)} more predictors stand below." if len(told) < len(rows) - 1 else "")
    )


def _format(width: float) -> str:
    """Return the format of numbers that are known to an interval of this width: two digits of it."""
    return f",.{int(np.clip(1 - math.floor(math.log10(width)), 0, 12))}f" if width > 0 else ".4g"


def _picture(spec: Spec, release: MomentRelease, rows: Sequence[Sequence[Any]]) -> Figure:
    """Draw what each predictor's whole range does to the response: one unit for all of them."""
    from dpbayes.report.plots import SCREEN_ROWS, estimate_plot

    query, response = release.query, spec.regression.response
    place = np.array([list(query.features or ()).index(row[0]) for row in rows[1:]])
    every = np.array([row[1:4] for row in rows[1:]]) * query.ranges.widths[place, None]
    drawn = np.sort(np.argsort(-np.abs(every[:, 0]), kind="stable")[:SCREEN_ROWS])
    effects = every[drawn]
    some = "" if len(drawn) == len(every) else f" The {len(drawn)} that move it most are drawn, of {len(every)}."
    figure = estimate_plot(
        [
            f"{rows[1 + one][0]}, {query.ranges.lower[i]:,g} to {query.ranges.upper[i]:,g}"
            for one, i in zip(drawn, place[drawn], strict=True)
        ],
        effects,
        xlabel=f"change of {response} over the predictor's range",
        format=_format(float((effects[:, 2] - effects[:, 1]).min())),
    )
    figure.axes[0].axvline(0, color="0.4", linewidth=0.8, zorder=0)
    return Figure(
        figure,
        f"How far the mean of {response} moves from one end of a predictor's public range to the other, the others "
        f"held: posterior mean and 95 % interval.{some}",
        f"Changes of {response} over the range of each predictor, with 95 % intervals.",
    )


def _caution(rows: Sequence[Sequence[Any]]) -> str:
    """Say how much wider the intervals are than those that ignore the noise."""
    wider = [(row[3] - row[2]) / (row[6] - row[5]) for row in rows if row[5] is not None and row[6] > row[5]]
    if not wider:
        return "The released moments admit no least squares fit; the posterior says what they still tell."
    return (
        f"The intervals are {np.median(wider):.1f} times as wide, in the median, as those of least squares on the "
        "released numbers, which count sampling error alone and are too narrow."
    )


def _coefficient_figure(rows: Sequence[Sequence[Any]]) -> Figure:
    from dpbayes.report.plots import intervals_of_runs

    numbers = np.array([[np.nan if value is None else value for value in row[1:]] for row in rows], dtype=float)
    mean, unit = numbers[:, :1], (numbers[:, 2:3] - numbers[:, 1:2]) / 3.92
    scaled = (numbers - mean) / unit
    shown = {"noise-aware": scaled[:, :3], "naive: the noise ignored": scaled[:, 3:6]}
    if np.isfinite(scaled[:, 6]).all():
        shown["exact records"] = np.repeat(scaled[:, 6:], 3, axis=1)
    figure = intervals_of_runs(
        [row[0] for row in rows],
        np.stack(list(shown.values())),
        list(shown),
        unit="posterior standard deviations from the posterior mean",
    )
    return Figure(
        figure,
        "Each term scaled by its noise-aware posterior: zero is the posterior mean, one its standard deviation. Least "
        "squares on the exact records are shown only where they are public.",
        "Noise-aware and naive 95 % intervals of every coefficient, with exact least squares.",
    )


def _sources(trace: xr.DataTree, white: WhitenedMoments, naive: NaiveFit) -> PageSection:
    from dpbayes.mvg.posterior import coefficient_variances

    privacy, sampling = coefficient_variances(trace, white)
    meaning = (
        "The first would be gone had the exact moments been released. The second is what least squares would count on "
        "the exact records, residual variance times the inverse moments, averaged over the posterior."
    )
    splits = list(zip(naive.terms, privacy.tolist(), sampling.tolist(), strict=True))
    unit = "in the coefficient's unit"
    return shares_section(splits, subject="term", rest="sampling", meaning=meaning, unit=unit, format="#.3g")


def _prior(trace: xr.DataTree, white: WhitenedMoments) -> PageSection:
    from dpbayes.mvg.posterior import log_densities

    parts, likelihood = log_densities(trace, white)
    what = (
        "The parts are the prior of intercept and coefficients, that of the residual, and that of the predictors' "
        "means and covariance; all are stated in half-widths of the public ranges."
    )
    quantities = ["intercept", "coefficient", "residual_stddev"]
    return prior_section(
        trace, parts, variables=quantities, what=what, log_likelihood=likelihood, called=_RESIDUAL, named=_NAMED
    )


_COLUMNS = {"noise-aware": "posterior_mean", "2.5 %": "low", "97.5 %": "high", "naive": "naive"}
_COLUMNS |= {"naive 2.5 %": "naive_low", "naive 97.5 %": "naive_high", "exact records": "exact"}
_RESIDUAL = {"residual_stddev": "residual standard deviation"}
_NAMED = {name: [words] for name, words in _RESIDUAL.items()}
_CLIPPING = (
    "Before that, a value outside the declared range of its column was clipped to it, and a missing one set to the "
    "range's middle. How many were is confidential, and neither is modelled: where there were many, the coefficients "
    "describe the records so changed."
)


def _release_section(release: MomentRelease, epsilon: float, delta: float) -> PageSection:
    """Return the section on the released moments, with a warning if the noise was simulated."""
    drawn = "OpenDP" if release.sampler == "opendp" else "a seeded generator"
    query, mu = release.query, release.noise.mu
    text = (
        f"The second moments of {query.n:,} records, {query.size} by {query.size} with an intercept, plus symmetric "
        f"Gaussian noise of standard deviation {release.noise.stddev:.3g} in units of squared half-ranges: Gaussian "
        f"differential privacy with mu = {mu.value:.4g} ({mu.method}), epsilon {epsilon:.4g} at delta {delta:g} under "
        f"replace-one. The guarantee protects {query.protects}. The noise was drawn by {drawn}."
    )
    return PageSection(
        "What was released", [Paragraph(text), Paragraph(_CLIPPING), *simulation_warning(release.sampler)]
    )


def calibration(spec: Spec, design: MomentRelease, beside: Path, n_records: int | None) -> Calibration:
    """Return the PyMC model of a regression on released moments; it simulates for itself."""
    from dpbayes.mvg.model import build_moment_model, sampler_defaults

    if spec.data.file is not None and n_records is None:
        raise SpecError("a calibration study reads no confidential record; say how many to simulate (--n-records)")
    epsilon = design.noise.epsilon(_delta(spec))
    return Calibration(
        build_model=partial(build_moment_model, _whitened(spec, design)),
        design=f"moments of {design.query.n:,} records, {len(spec.regression.predictors)} predictors, epsilon "
        f"{epsilon:.4g}, replace-one",
        sampling=sampler_defaults(),
        called=_RESIDUAL,
    )
