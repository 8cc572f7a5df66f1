"""The convergence check: R-hat, effective sample sizes and the sampler's own complaints, judged once for every trace.

The formulas are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2), to ArviZ's last digits. A
block of quantities shares each sort and each Fourier transform, a third of ArviZ's time on models that record thousands
of cells. What is judged does not depend on labels: a mixture's class parameters swap places between chains while every
cell probability agrees; the model or the trace names such quantities in `convergence_variables`.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import NamedTuple, Self

import numpy as np
from scipy import fft
from scipy.special import ndtri
from scipy.stats import rankdata

from dpbayes._arguments import given_trace, ordered
from dpbayes._html import html_table
from dpbayes._lazy import xr
from dpbayes._names import given_name
from dpbayes.errors import DamagedFileError, InputError

# Check -> what it is in words, and on which side of its threshold it passes.
_CHECKS = {
    "chains": ("chains", "≥"),
    "finite": ("quantities with draws that are not finite", "≤"),
    "constant": ("quantities that never move, set aside", "of"),
    "rhat": ("largest R-hat", "≤"),
    "ess_bulk": ("smallest bulk effective sample size", "≥"),
    "ess_tail": ("smallest tail effective sample size", "≥"),
    "divergences": ("share of divergent transitions", "≤"),
    "tree_depth": ("share of transitions at the maximal tree depth", "≤"),
    "bfmi": ("lowest Bayesian fraction of missing information of a chain", "≥"),
    "drift": ("drift of the log-likelihood in its standard deviations", "≤"),
}


@dataclass(frozen=True)
class Quantity:
    """One number of the posterior."""

    name: str
    where: tuple[tuple[str, str | int | float], ...] = ()

    def __str__(self) -> str:
        place = ", ".join(f"{given_name(dim)}={label}" for dim, label in self.where)
        return f"{given_name(self.name)}[{place}]" if place else given_name(self.name)

    def words(self, called: str | None = None) -> str:
        """Return the variable, or what it is called, and its labels, without the names of dimensions."""
        variable = given_name(self.name).replace("_", " ") if called is None else f"{called}:"
        return f"{variable} {', '.join(str(label) for _, label in self.where)}".rstrip(" :")


@dataclass(frozen=True)
class Finding:
    """One part of the convergence check.

    Parameters
    ----------
    check
        Which check: ``rhat``, ``ess_bulk``, ``ess_tail``, ``divergences``, ``tree_depth``, ``bfmi``, ``drift``,
        ``constant``, ``finite`` or ``chains``.
    quantity, value
        What was worst (a posterior quantity, a chain, or a count of transitions) and its value; NaN where the check
        could not be made.
    threshold, passed, remedy
        What the value was held to, whether it holds, and what to change if not.

    Examples
    --------
    >>> print(Finding("rhat", "cells[cell=3]", 1.2, 1.01, passed=False, remedy="raise draws"))
    FAIL  largest R-hat: 1.2 (≤ 1.01) at cells[cell=3]; raise draws
    """

    check: str
    quantity: str
    value: float
    threshold: float
    passed: bool
    remedy: str = ""

    @classmethod
    def of(cls, check: str, quantity: str, value: float, threshold: float, remedy: str) -> Self:
        """Hold a value to its threshold; one that is not a number does not pass."""
        passed = value >= threshold if _CHECKS[check][1] == "≥" else value <= threshold
        return cls(check, quantity, float(value), threshold, passed=bool(passed), remedy="" if passed else remedy)

    @property
    def title(self) -> str:
        """The check in words."""
        return _CHECKS[self.check][0]

    @property
    def threshold_text(self) -> str:
        """The threshold with its direction, such as ``≤ 1.01``."""
        return f"{_CHECKS[self.check][1]} {self.threshold:.4g}"

    @property
    def value_text(self) -> str:
        """The value to four digits, or to as many as tell it from a threshold that it misses, such as ``1.0102``."""
        digits = 4
        while not self.passed and f"{self.value:.{digits}g}" == f"{self.threshold:.{digits}g}" and digits < 17:
            digits += 1
        return f"{self.value:.{digits}g}"

    def __str__(self) -> str:
        mark = "ok  " if self.passed else "FAIL"
        advice = f"; {self.remedy}" if self.remedy else ""
        return f"{mark}  {self.title}: {self.value_text} ({self.threshold_text}) at {self.quantity}{advice}"


@dataclass(frozen=True)
class Verdict:
    """All findings of the convergence check on one trace.

    Parameters
    ----------
    findings, variables
        One per check, and the names of the posterior variables that were judged.
    worst
        The quantities with the fewest effective draws, the fewest first. A label that a coordinate holds again is
        numbered, ``"a (2)"``; `dpbayes.inference.convergence.quantity_draws` finds the draws of each.

    Examples
    --------
    >>> verdict = Verdict((Finding("rhat", "p", 1.002, 1.01, passed=True),), variables=("p",))
    >>> print(verdict.summary())
    Converged: the check passed on p.
      ok    largest R-hat: 1.002 (≤ 1.01) at p
    >>> Verdict.from_json(verdict.to_json()) == verdict
    True
    """

    findings: tuple[Finding, ...]
    variables: tuple[str, ...]
    worst: tuple[Quantity, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed; a verdict without findings has shown nothing and does not pass."""
        return bool(self.findings) and all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Findings that did not pass."""
        return tuple(finding for finding in self.findings if not finding.passed)

    def value(self, check: str) -> float:
        """Value that a check found, such as ``verdict.value("rhat")``; NaN where the check could not be made."""
        return next((finding.value for finding in self.findings if finding.check == check), math.nan)

    def summary(self) -> str:
        """Give the verdict as text, one line per check, with the remedies."""
        names, more = ", ".join(self.variables[:6]), len(self.variables) - 6
        names += f" and {more} more" if more > 0 else ""
        if self.passed:
            checks = "the check" if len(self.findings) == 1 else f"all {len(self.findings)} checks"
            head = f"Converged: {checks} passed on {names}."
        else:
            head = f"NOT converged: {len(self.failures)} of {len(self.findings)} checks failed on {names}."
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])

    def to_json(self) -> str:
        """Give the verdict as a trace stores it in its attribute `convergence`; a value that is no number is null."""
        findings = [asdict(finding) | {"value": _plain(finding.value)} for finding in self.findings]
        worst = [[quantity.name, [list(pair) for pair in quantity.where]] for quantity in self.worst]
        data = {"passed": self.passed, "variables": list(self.variables), "findings": findings, "worst": worst}
        return json.dumps(data, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; `DamagedFileError` if it is anything else."""
        try:
            data = json.loads(text)
            values = [math.nan if entry["value"] is None else float(entry["value"]) for entry in data["findings"]]
            found = zip(data["findings"], values, strict=True)
            findings = tuple(Finding(**entry | {"value": value}) for entry, value in found)
            worst = tuple(Quantity(name, tuple((dim, label) for dim, label in where)) for name, where in data["worst"])
            return cls(findings=findings, variables=tuple(data["variables"]), worst=worst)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"not a convergence verdict: {error!r}; sample again to get one") from error

    @classmethod
    def from_trace(cls, trace: "xr.DataTree") -> Self:
        """Read the verdict that a trace carries; `DamagedFileError` if it carries none."""
        text = trace.attrs.get("convergence")
        if text is None:
            raise DamagedFileError("the trace carries no convergence verdict; judge it with check_convergence")
        return cls.from_json(text)

    def _repr_html_(self) -> str:
        head = "Converged" if self.passed else "Not converged"
        rows = [
            ("✓" if f.passed else "✗", f.title, f.value_text, f.threshold_text, f.quantity, f.remedy)
            for f in self.findings
        ]
        return html_table(head, ("", "check", "value", "bound", "at", "remedy"), rows)


def _plain(value: float) -> float | str | None:
    """Return a number that JSON has: None for NaN, and the text ``inf`` or ``-inf``."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


_MIN_DRAWS = 4
_BLOCK = 2**20  # draws handled together, of as many quantities: the largest temporary stays below 40 MB
# Draws of a quantity that a model fixes (a structural zero, a total of one) differ by rounding at most.
_ROUNDING = 8 * np.finfo(float).eps


class Mixing(NamedTuple):
    """How well the chains of each quantity mix; every array has shape (quantities,)."""

    rhat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray


def mixing(draws: np.ndarray, *, members: int = 1) -> Mixing:
    """R-hat and both effective sample sizes of every quantity, draws of shape (quantities, chains, draws).

    NaN for a quantity that never moves, has draws that are not finite, or fewer than four in a chain. With members, a
    chain of the draws is a superchain: that many short chains laid end to end.
    """
    _, chains, length = draws.shape
    result = Mixing(*(np.full(len(draws), np.nan) for _ in range(3)))
    if length < _MIN_DRAWS:
        return result
    (moving,) = np.nonzero(np.isfinite(draws).all(axis=(1, 2)) & ~is_constant(draws))
    together = max(1, _BLOCK // (chains * length))
    for start in range(0, len(moving), together):
        chosen = moving[start : start + together]
        block = draws[chosen]
        apart = block.reshape(len(block), chains * members, -1)
        # The halves of a superchain are those of time: all of its members are in each.
        in_time = block.reshape(len(block), chains, members, -1).swapaxes(2, 3).reshape(block.shape)
        halves = _split(in_time)
        scores = _normal_scores(halves)
        if chains > 1:
            folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
            result.rhat[chosen] = np.fmax(_plain_rhat(scores), _plain_rhat(_normal_scores(folded)))
        result.ess_bulk[chosen] = _ess(scores if members == 1 else _normal_scores(apart))
        low, high = np.quantile(block, [0.05, 0.95], axis=(1, 2), keepdims=True)
        tails = [(apart <= low) * 1.0, (apart <= high) * 1.0]
        ess_tails = [_ess(_split(one) if members == 1 else one) for one in tails]
        result.ess_tail[chosen] = np.minimum(*ess_tails)
    return result


def bfmi(energy: np.ndarray) -> np.ndarray:
    """Bayesian fraction of missing information of each chain, energies of shape (chains, draws)."""
    spread = energy.var(axis=1)
    moved = np.square(np.diff(energy, axis=1)).mean(axis=1)
    return np.divide(moved, spread, out=np.full(len(energy), np.nan), where=spread > 0)


def is_constant(draws: np.ndarray) -> np.ndarray:
    """Say which quantities never move: their draws differ by no more than the rounding of a sum."""
    high, low = draws.max(axis=(1, 2)), draws.min(axis=(1, 2))
    finite = np.isfinite(high) & np.isfinite(low)
    return finite & (np.where(finite, high - low, 1.0) <= _ROUNDING * np.maximum(np.abs(high), np.abs(low)))


def _split(draws: np.ndarray) -> np.ndarray:
    """Cut each chain into its first and last half; an odd chain loses its middle draw."""
    half = draws.shape[2] // 2
    return np.concatenate([draws[:, :, :half], draws[:, :, -half:]], axis=1)


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    """Take normal scores of the pooled ranks (Blom's offset 3/8), ties at their average."""
    pooled = draws.reshape(len(draws), -1)
    size = pooled.shape[1]
    order = np.argsort(pooled, axis=1)
    scores = np.empty_like(pooled)
    np.put_along_axis(scores, order, ndtri((np.arange(1.0, size + 1.0) - 0.375) / (size + 0.25))[None, :], axis=1)
    ordered = np.take_along_axis(pooled, order, axis=1)
    (tied,) = np.nonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(tied):
        scores[tied] = ndtri((rankdata(pooled[tied], method="average", axis=1) - 0.375) / (size + 0.25))
    return scores.reshape(draws.shape)


def _plain_rhat(draws: np.ndarray) -> np.ndarray:
    length = draws.shape[2]
    within = draws.var(axis=2, ddof=1).mean(axis=1)
    between = draws.mean(axis=2).var(axis=1, ddof=1)
    # All half chains still: apart means infinite, together (the folded form of two values) means no information.
    still = within <= _ROUNDING * between
    ratio = np.divide(between, within, out=np.where(between > 0, np.inf, np.nan), where=~still & (within > 0))
    return np.sqrt((length - 1) / length + ratio)


def _ess(draws: np.ndarray) -> np.ndarray:
    """Effective sample size of the mean of `draws` (Vehtari et al. 2021, section 3.2)."""
    _, chains, length = draws.shape
    covariance = _autocovariance(draws)
    within = covariance[:, 0] * length / (length - 1)
    total = covariance[:, 0].copy()
    if chains > 1:
        total += draws.mean(axis=2).var(axis=1, ddof=1)
    flat = total <= 0  # an indicator that never switches: its mean is known exactly
    correlation = 1.0 - (within[:, None] - covariance) / np.where(flat, 1.0, total)[:, None]
    correlation[:, 0] = 1.0
    tau = np.maximum(_integrated_time(correlation), 1.0 / np.log10(chains * length))
    return np.where(flat, chains * length, chains * length / tau)


def _autocovariance(draws: np.ndarray) -> np.ndarray:
    """Autocovariance by lag, averaged over the chains: one inverse transform serves them all."""
    length = draws.shape[2]
    size = fft.next_fast_len(2 * length, real=True)
    spectrum = fft.rfft(draws - draws.mean(axis=2, keepdims=True), n=size, axis=2)
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    return fft.irfft(power, n=size, axis=1)[:, :length] / length


def _integrated_time(correlation: np.ndarray) -> np.ndarray:
    """Sum the autocorrelations by Geyer's initial monotone sequence of pair sums."""
    length = correlation.shape[1]
    last = max(length - 3, 0) // 2  # the last pair that leaves a draw to spare, as in Stan and ArviZ
    even = correlation[:, 0 : 2 * last + 1 : 2]
    pairs = even + correlation[:, 1 : 2 * last + 2 : 2]
    ended = pairs <= 0
    stop = np.where(ended.any(axis=1), ended.argmax(axis=1), last)
    monotone = np.minimum.accumulate(pairs, axis=1)
    kept = np.where(np.arange(last + 1) < stop[:, None], monotone, 0.0).sum(axis=1)
    # The even term after the last positive pair lowers the estimator's variance for antithetic chains.
    return -1.0 + 2.0 * kept + np.maximum(even[np.arange(len(even)), stop], 0.0)


def judged_variables(trace: "xr.DataTree", var_names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Names of the posterior variables asked for, one or several; by default those whose convergence counts."""
    given_trace(trace, "posterior")
    if var_names is None:
        declared = trace.attrs.get("convergence_variables")
        return tuple(map(str, trace["posterior"].data_vars) if declared is None else json.loads(declared))
    names = [var_names] if isinstance(var_names, str) else var_names
    return tuple(dict.fromkeys(ordered(names, "var_names", remedy="give a list of variables", kind=str)))


def quantity_draws(
    trace: "xr.DataTree", *, var_names: Sequence[str] | str | None = None
) -> tuple[list[Quantity], np.ndarray]:
    """All quantities of some variables, the last coordinate fastest, and their draws (quantities, chains, draws)."""
    names = judged_variables(trace, var_names)
    posterior = trace["posterior"].to_dataset()
    missing = [name for name in names if name not in posterior]
    if missing or not names:
        raise InputError(f"posterior variables to judge not found: {missing}; it has {sorted(map(str, posterior))}")
    blocks = []
    for name in names:
        variable = posterior[name].transpose("chain", "draw", ...)
        blocks.append(np.moveaxis(np.asarray(variable, dtype=float).reshape(*variable.shape[:2], -1), -1, 0))
    return [quantity for name in names for quantity in quantities_of(posterior, name)], np.concatenate(blocks)


def quantities_of(posterior: "xr.Dataset", name: str) -> list[Quantity]:
    """All quantities of a variable of draws, or of a calibration study's ranks, the last coordinate fastest."""
    dims = [str(dim) for dim in posterior[name].dims if dim not in ("chain", "draw", "simulation")]
    labels = [_labels(posterior, dim) for dim in dims]
    return [Quantity(name, tuple(zip(dims, place, strict=True))) for place in product(*labels)]


def quantity_words(
    posterior: "xr.Dataset",
    names: Iterable[str],
    named: Mapping[str, Sequence[str]],
    called: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return what quantities are called, by how they are written: as a variable's are named, if all of them are."""
    words: dict[str, str] = {}
    for name in names:
        quantities, known = quantities_of(posterior, name), named.get(name, ())
        if len(known) != len(quantities):  # a model of one's own may record others
            known = [quantity.words((called or {}).get(name)) for quantity in quantities]
        words |= dict(zip(map(str, quantities), known, strict=True))
    return words


def _labels(posterior: "xr.Dataset", dim: str) -> list[str | int | float]:
    """Return a dimension's labels, or its positions; a label that stood before is numbered, so that all differ."""
    values = posterior[dim].values.tolist() if dim in posterior.coords else range(posterior.sizes[dim])
    labels = [value if isinstance(value, str | int | float) else str(value) for value in values]
    stood: Counter[str | int | float] = Counter()
    for place, label in enumerate(labels):
        stood[label] += 1
        if stood[label] > 1:
            labels[place] = f"{label} ({stood[label]})"
    return labels


_KEPT = 12  # quantities, for rank plots
DIVERGENT_SHARE = 0.001  # of all transitions, at most
_DRIFT = 0.1  # posterior sds that the log-likelihood may move between the middle and the last third of a run
_MORE_DRAWS = "raise draws (or tune), or choose a parameterization that mixes faster"
_DEEPER = "raise max_treedepth, or rescale the model: trees this deep mean a posterior that is long and thin"
_HEAVY_TAILS = "heavy tails: reparameterize (centre or uncentre a scale), or tighten a prior"
_DRIFTS = "chains still drift from their starts: allow more rounds or trajectories, or a longer tune"
_NOTHING_MOVED = "nothing moved: check that the model has free parameters and that the chains started"
_NOT_FINITE = "the sampler was interrupted or the model yields values that are not finite; sample again"
_SMALLER_STEPS = "raise target_accept towards 0.99; if some remain, the model's geometry needs another parameterization"


def check_convergence(
    trace: "xr.DataTree",
    *,
    var_names: Sequence[str] | None = None,
    rhat_max: float = 1.01,
    ess_min: float = 400.0,
    divergent_share_max: float = DIVERGENT_SHARE,
    bfmi_min: float = 0.3,
    saturated_share_max: float = 0.01,
) -> Verdict:
    """Judge a trace by R-hat, effective sample sizes, divergences, BFMI and tree depth.

    Parameters
    ----------
    trace
        Groups `posterior` and `sample_stats` as the output contract names them (`dpbayes.inference.schema`).
    var_names
        Posterior variables to judge. By default those of its attribute `convergence_variables`, else all.
    rhat_max
        Largest rank-normalized split R-hat allowed for any quantity.
    ess_min
        Smallest bulk and smallest tail effective sample size allowed for any quantity, in draws.
    divergent_share_max
        Largest share of divergent transitions allowed after tuning; the count is reported in any case.
    bfmi_min
        Smallest Bayesian fraction of missing information allowed in any chain.
    saturated_share_max
        Largest share of transitions allowed to stop at the maximal tree depth: they cost time rather than truth.

    Returns
    -------
    Verdict
        One finding per check. One that cannot be made (one chain, a missing statistic, a NaN) does not pass.

    Raises
    ------
    InputError
        If the trace has no posterior, or lacks a variable of `var_names`.

    Notes
    -----
    Thresholds for R-hat and effective sample size: Vehtari et al. (2021), Bayesian Analysis 16(2), sections 4.1-4.3.
    A quantity whose draws never move in any chain (a structural zero) has no R-hat; it is counted and set aside.

    Examples
    --------
    >>> import xarray as xr
    >>> rng = np.random.default_rng(1)
    >>> draws = ("chain", "draw")
    >>> stats = {"diverging": (draws, np.zeros((4, 500), bool)), "energy": (draws, rng.normal(size=(4, 500))),
    ...          "reached_max_treedepth": (draws, np.zeros((4, 500), bool))}
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"p": (draws, rng.normal(size=(4, 500)))}),
    ...                               "sample_stats": xr.Dataset(stats)})
    >>> check_convergence(tree).passed
    True
    """
    quantities, draws = quantity_draws(trace, var_names=var_names)
    stats = trace["sample_stats"].to_dataset() if "sample_stats" in trace.children else None
    members = members_of(stats)
    findings, worst = mixing_findings_of(draws, quantities, rhat_max=rhat_max, ess_min=ess_min, members=members)
    findings.append(_share("divergences", "diverging", stats, divergent_share_max, _SMALLER_STEPS))
    if members > 1:
        findings.append(drift_finding(_stat(stats, "log_likelihood"), members))
    else:
        findings.append(_share("tree_depth", "reached_max_treedepth", stats, saturated_share_max, _DEEPER))
        findings.append(_lowest_bfmi(_stat(stats, "energy"), bfmi_min))
    return Verdict(tuple(findings), judged_variables(trace, var_names), worst)


def mixing_findings_of(
    draws: np.ndarray, quantities: Sequence[Quantity], *, rhat_max: float, ess_min: float, members: int = 1
) -> tuple[list[Finding], tuple[Quantity, ...]]:
    """Judge the draws; return findings and the quantities with the fewest effective ones."""
    _, chains, length = draws.shape
    if chains < 2 or length < _MIN_DRAWS:
        remedy = f"got {chains} chains of {length} draws: sample two chains or more, of four draws or more"
        return [Finding("chains", "posterior", float(chains), 2.0, passed=False, remedy=remedy)], ()
    finite, constant = np.isfinite(draws).all(axis=(1, 2)), is_constant(draws)
    (judged,) = np.nonzero(finite & ~constant)
    findings = []
    if not finite.all():
        first = str(quantities[int(np.argmin(finite))])
        findings.append(Finding.of("finite", first, float((~finite).sum()), 0.0, _NOT_FINITE))
    if constant.any():  # structural zeros are the model's right; a posterior in which nothing moves is not one
        first, still = str(quantities[int(np.argmax(constant))]), float(constant.sum())
        remedy = "" if len(judged) else _NOTHING_MOVED
        findings.append(Finding("constant", first, still, float(len(draws)), passed=len(judged) > 0, remedy=remedy))
    if not len(judged):
        return findings, ()
    result = Mixing(*(values[judged] for values in mixing(draws, members=members)))
    moving = [quantities[int(place)] for place in judged]
    thresholds = {"rhat": rhat_max, "ess_bulk": ess_min, "ess_tail": ess_min}
    findings.extend(_worst(check, values, moving, thresholds[check]) for check, values in result._asdict().items())
    fewest = np.argsort(np.fmin(result.ess_bulk, result.ess_tail), kind="stable")[:_KEPT]
    return findings, tuple(moving[place] for place in fewest)


def _worst(check: str, values: np.ndarray, quantities: Sequence[Quantity], threshold: float) -> Finding:
    # A diagnostic that is not a number counts as the worst of all.
    badness = np.where(np.isnan(values), np.inf, values if check == "rhat" else -values)
    place = int(np.argmax(badness))
    failing = int((~(values <= threshold if check == "rhat" else values >= threshold)).sum())
    remedy = f"{failing} of {len(quantities)} fail: {_MORE_DRAWS}"
    return Finding.of(check, str(quantities[place]), values[place], threshold, remedy)


def _stat(stats: "xr.Dataset | None", name: str) -> np.ndarray | None:
    """Return a statistic of the sampler by chain and draw; None where it is missing, empty or not finite."""
    if stats is None or name not in stats:
        return None
    values = np.asarray(stats[name].transpose("chain", "draw"), float)
    return values if values.size and np.isfinite(values).all() else None


def members_of(stats: "xr.Dataset | None") -> int:
    """Return how many short chains a chain of the trace consists of; one unless many chains were run."""
    member = _stat(stats, "member")
    return 1 if member is None else int(member.max()) + 1


def drift_finding(likelihood: np.ndarray | None, members: int) -> Finding:
    """Judge whether the log-likelihood (chains, draws) still moves; a change that may be chance counts as none."""
    if likelihood is None or not np.isfinite(likelihood).all():
        return _unusable("drift", "log_likelihood", _DRIFT)
    values = likelihood.reshape(likelihood.shape[0] * members, -1)
    third = values.shape[1] // 3
    change = values[:, -third:].mean(axis=1) - values[:, third:-third].mean(axis=1)
    sure = abs(change.mean()) > 4.0 * change.std(ddof=1) / math.sqrt(len(change))
    size = abs(change.mean()) / values.std() if sure else 0.0
    return Finding.of("drift", "log-likelihood", size, _DRIFT, _DRIFTS)


def _share(check: str, name: str, stats: "xr.Dataset | None", threshold: float, remedy: str) -> Finding:
    values = _stat(stats, name)
    if values is None:
        return _unusable(check, name, threshold)
    return Finding.of(check, f"{int(values.sum())} of {values.size} transitions", values.mean(), threshold, remedy)


def _lowest_bfmi(energy: np.ndarray | None, threshold: float) -> Finding:
    values = None if energy is None else bfmi(energy)
    if values is None or not np.isfinite(values).all():
        return _unusable("bfmi", "energy", threshold)
    chain = int(np.argmin(values))
    return Finding.of("bfmi", f"chain {chain}", values[chain], threshold, _HEAVY_TAILS)


def _unusable(check: str, name: str, threshold: float) -> Finding:
    return Finding.of(check, name, math.nan, threshold, f"sample_stats has no usable {name}: sample again")
