"""The convergence check: R-hat, effective sample sizes and the sampler's own complaints, judged once for every trace.

The formulas are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2). A block of quantities
shares each sort and each Fourier transform, which keeps the check cheap on models that record thousands of cells. What
is judged does not depend on labels: a mixture's class parameters swap places between chains while every cell
probability agrees; the model or the trace names such quantities in `convergence_variables`.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import fft
from scipy.special import ndtri
from scipy.stats import rankdata

from dpbayes._arguments import instance, ordered
from dpbayes._names import given_name
from dpbayes.errors import DamagedFileError, InputError

if TYPE_CHECKING:
    import xarray as xr


_TITLES = {
    "chains": "chains",
    "finite": "quantities with draws that are not finite",
    "constant": "quantities that never move, set aside",
    "rhat": "largest R-hat",
    "ess_bulk": "smallest bulk effective sample size",
    "ess_tail": "smallest tail effective sample size",
    "divergences": "share of divergent transitions",
    "tree_depth": "share of transitions at the maximal tree depth",
    "bfmi": "lowest BFMI of a chain",
    "drift": "drift of the log-likelihood in its standard deviations",
}
_BOUNDS = {"chains": "≥", "constant": "of", "rhat": "≤", "ess_bulk": "≥", "ess_tail": "≥", "bfmi": "≥"}


@dataclass(frozen=True)
class Quantity:
    """One number of the posterior."""

    name: str
    where: tuple[tuple[str, str | int | float], ...] = ()

    def __str__(self) -> str:
        place = ", ".join(f"{given_name(dim)}={label}" for dim, label in self.where)
        return f"{given_name(self.name)}[{place}]" if place else given_name(self.name)


@dataclass(frozen=True)
class Finding:
    """One part of the convergence check.

    Parameters
    ----------
    check
        Which check: ``rhat``, ``ess_bulk``, ``ess_tail``, ``divergences``, ``tree_depth``, ``bfmi``, ``constant``,
        ``finite`` or ``chains``.
    quantity
        What was worst: a posterior quantity, a chain, or a count of transitions.
    value
        Its value; NaN where the check could not be made.
    threshold
        What the value was held to.
    passed
        Whether it holds.
    remedy
        What to change; empty when passed.

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
    def failed(cls, check: str, quantity: str, value: float, threshold: float, remedy: str) -> Self:
        """Make the finding of a check that did not pass or could not be made."""
        return cls(check, quantity, value, threshold, passed=False, remedy=remedy)

    @property
    def title(self) -> str:
        """The check in words."""
        return _TITLES.get(self.check, self.check)

    @property
    def threshold_text(self) -> str:
        """The threshold with its direction, such as ``≤ 1.01``."""
        return f"{_BOUNDS.get(self.check, '≤')} {self.threshold:.4g}"

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
    findings
        One a check.
    variables
        Names of the posterior variables that were judged.
    worst
        The quantities with the fewest effective draws, the fewest first.

    Examples
    --------
    >>> verdict = Verdict((Finding("rhat", "p", 1.002, 1.01, passed=True),), variables=("p",))
    >>> print(verdict.summary())
    Converged: all 1 checks passed on p.
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

    def worst_quantities(self, n: int) -> list[tuple[str, dict[str, Any]]]:
        """Give the `n` quantities with the fewest effective draws, as variable and coordinates for ``.sel``.

        A label that its coordinate holds again is numbered, ``"a (2)"``, and ``.sel`` finds none of that name: take the
        draws from `dpbayes.inference.convergence.quantity_draws`.
        """
        return [(quantity.name, dict(quantity.where)) for quantity in self.worst[:n]]

    def summary(self) -> str:
        """Give the verdict as text, one line a check, with the remedies."""
        names = ", ".join(self.variables[:6]) + (", ..." if len(self.variables) > 6 else "")
        if self.passed:
            head = f"Converged: all {len(self.findings)} checks passed on {names}."
        else:
            head = f"NOT converged: {len(self.failures)} of {len(self.findings)} checks failed on {names}."
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])

    def to_dict(self) -> dict[str, Any]:
        """Give the verdict as plain data; a value that is not finite becomes None or the text ``inf``."""
        findings = [asdict(finding) | {"value": _plain(finding.value)} for finding in self.findings]
        worst = [[quantity.name, [list(pair) for pair in quantity.where]] for quantity in self.worst]
        return {"passed": self.passed, "variables": list(self.variables), "findings": findings, "worst": worst}

    def to_json(self) -> str:
        """Give `to_dict` as JSON, as a trace stores it in its attribute `convergence`."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; `DamagedFileError` if it is anything else."""
        try:
            data = json.loads(text)
            findings = tuple(Finding(**entry | {"value": _number(entry["value"])}) for entry in data["findings"])
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
        rows = "".join(
            f"<tr><td>{'✓' if f.passed else '✗'}</td><td>{escape(f.title)}</td><td>{f.value_text}</td>"
            f"<td>{escape(f.threshold_text)}</td><td>{escape(f.quantity)}</td><td>{escape(f.remedy)}</td></tr>"
            for f in self.findings
        )
        columns = "<tr><th></th><th>check</th><th>value</th><th>bound</th><th>at</th><th>remedy</th></tr>"
        return f"<table><caption>{head}</caption><thead>{columns}</thead><tbody>{rows}</tbody></table>"


def _plain(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)


# Draws handled together, of as many quantities as they come from: the largest temporary stays below 40 MB.
_BLOCK = 2**20
_MIN_DRAWS = 4
# Draws of a quantity that a model fixes (a structural zero, a total of one) differ by rounding at most.
_ROUNDING = 8 * np.finfo(float).eps


@dataclass(frozen=True)
class Mixing:
    """How well the chains of each quantity mix; every array has shape (quantities,)."""

    rhat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray


def mixing(draws: np.ndarray, *, tail: float = 0.05, members: int = 1) -> Mixing:
    """R-hat and both effective sample sizes of every quantity, draws of shape (quantities, chains, draws)."""
    draws = _checked(draws)
    if not 0.0 < tail < 0.5:
        raise InputError(f"tail must lie between 0 and 0.5, got {tail}")
    result = Mixing(*(np.full(len(draws), np.nan) for _ in range(3)))
    (moving,) = np.nonzero(~is_constant(draws))
    together = max(1, _BLOCK // (draws.shape[1] * draws.shape[2]))
    for start in range(0, len(moving), together):
        chosen = moving[start : start + together]
        block = draws[chosen]
        halves = _split(_in_time(block, members))
        scores = _normal_scores(halves)
        if draws.shape[1] > 1:
            folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
            result.rhat[chosen] = np.fmax(_plain_rhat(scores), _plain_rhat(_normal_scores(folded)))
        apart = block.reshape(len(block), draws.shape[1] * members, -1)
        result.ess_bulk[chosen] = _ess(scores if members == 1 else _normal_scores(apart))
        low, high = np.quantile(block, [tail, 1.0 - tail], axis=(1, 2), keepdims=True)
        tails = [(apart <= low) * 1.0, (apart <= high) * 1.0]
        ess_tails = [_ess(_split(one) if members == 1 else one) for one in tails]
        result.ess_tail[chosen] = np.minimum(*ess_tails)
    return result


def bfmi(energy: np.ndarray) -> np.ndarray:
    """Bayesian fraction of missing information of each chain."""
    energy = np.asarray(energy, dtype=float)
    if energy.ndim != 2 or energy.shape[1] < 2:
        raise InputError(f"energy must have shape (chains, draws) with two draws or more, got shape {energy.shape}")
    spread = energy.var(axis=1)
    moved = np.square(np.diff(energy, axis=1)).mean(axis=1)
    return np.divide(moved, spread, out=np.full(len(energy), np.nan), where=spread > 0)


def is_constant(draws: np.ndarray) -> np.ndarray:
    """Say which quantities never move: their draws differ by no more than the rounding of a sum."""
    high, low = draws.max(axis=(1, 2)), draws.min(axis=(1, 2))
    finite = np.isfinite(high) & np.isfinite(low)
    return finite & (np.where(finite, high - low, 1.0) <= _ROUNDING * np.maximum(np.abs(high), np.abs(low)))


def _checked(draws: np.ndarray) -> np.ndarray:
    draws = np.asarray(draws, dtype=float)
    if draws.ndim != 3:
        raise InputError(f"draws must have shape (quantities, chains, draws), got shape {draws.shape}")
    if draws.shape[1] < 1 or draws.shape[2] < _MIN_DRAWS:
        raise InputError(f"needs {_MIN_DRAWS} draws in each chain, got shape {draws.shape}; sample more")
    if not np.isfinite(draws).all():
        raise InputError("draws must be finite; set aside the quantities that are not before judging their mixing")
    return draws


def _split(draws: np.ndarray) -> np.ndarray:
    """Cut each chain into its first and last half; an odd chain loses its middle draw."""
    half = draws.shape[2] // 2
    return np.concatenate([draws[:, :, :half], draws[:, :, -half:]], axis=1)


def _in_time(draws: np.ndarray, members: int) -> np.ndarray:
    """Reorder superchains from member after member to time after time."""
    quantities, chains, length = draws.shape
    by_member = draws.reshape(quantities, chains, members, length // members)
    return by_member.swapaxes(2, 3).reshape(quantities, chains, length)


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


def convergence_variables(trace: "xr.DataTree") -> tuple[str, ...]:
    """Names of the variables that the convergence check judges."""
    declared = trace.attrs.get("convergence_variables")
    if declared is not None:
        return tuple(json.loads(declared))
    return tuple(str(name) for name in trace["posterior"].data_vars) if "posterior" in trace.children else ()


def judged_variables(trace: "xr.DataTree", var_names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Names of the posterior variables asked for, by default those that are judged; one may stand alone."""
    import xarray as xr

    instance(trace, xr.DataTree, "trace", remedy="dpbayes.inference.sample and read_trace return one, with all groups")
    if var_names is None:
        return convergence_variables(trace)
    names = [var_names] if isinstance(var_names, str) else var_names
    return tuple(dict.fromkeys(ordered(names, "var_names", remedy="give a list of variables", kind=str)))


def quantity_draws(trace: "xr.DataTree", *, var_names: Sequence[str] | None = None) -> dict[Quantity, np.ndarray]:
    """Draws of every quantity, found by position: a coordinate may hold a label twice."""
    names = judged_variables(trace, var_names)
    if "posterior" not in trace.children:
        raise InputError("the trace has no posterior group; sample the model first")
    return _stacked(trace["posterior"].to_dataset(), names)


def _stacked(posterior: "xr.Dataset", names: Sequence[str]) -> dict[Quantity, np.ndarray]:
    missing = [name for name in names if name not in posterior]
    if missing or not names:
        raise InputError(f"posterior variables to judge not found: {missing}; it has {sorted(map(str, posterior))}")
    blocks, quantities = [], []
    for name in names:
        variable = posterior[name].transpose("chain", "draw", ...)
        chains, length, *shape = variable.shape
        blocks.append(np.moveaxis(np.asarray(variable, dtype=float).reshape(chains, length, -1), -1, 0))
        dims = [str(dim) for dim in variable.dims[2:]]
        labels = [_labels(posterior, dim) for dim in dims]
        for index in np.ndindex(*shape):
            where = ((dim, axis[place]) for dim, axis, place in zip(dims, labels, index, strict=True))
            quantities.append(Quantity(name, tuple(where)))
    return dict(zip(quantities, np.concatenate(blocks), strict=True))


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


# Quantities kept for rank plots.
_KEPT = 12
# Posterior standard deviations that the log-likelihood may move between the middle and the last third of a run.
_DRIFT = 0.1
_MORE_DRAWS = "raise draws (or tune), or choose a parameterization that mixes faster"
_SMALLER_STEPS = "raise target_accept towards 0.99; if some remain, the model's geometry needs another parameterization"


def check_convergence(
    trace: "xr.DataTree",
    *,
    var_names: Sequence[str] | None = None,
    rhat_max: float = 1.01,
    ess_min: float = 400.0,
    divergent_share_max: float = 0.001,
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
        One finding a check. A check that cannot be made (one chain, a statistic that is missing, a NaN) does not pass.

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
    names = judged_variables(trace, var_names)
    draws = quantity_draws(trace, var_names=names)
    stats = trace["sample_stats"].to_dataset() if "sample_stats" in trace.children else None
    members = members_of(stats)
    mixing_findings, worst = mixing_findings_of(
        np.stack(list(draws.values())), list(draws), rhat_max=rhat_max, ess_min=ess_min, members=members
    )
    if members > 1:
        sampler = [
            _share("divergences", "diverging", _stat(stats, "diverging"), divergent_share_max, _SMALLER_STEPS),
            drift_finding(_stat(stats, "log_likelihood"), members),
        ]
    else:
        sampler = _sampler_findings(
            stats, divergent_share_max=divergent_share_max, bfmi_min=bfmi_min, saturated_share_max=saturated_share_max
        )
    findings = [*mixing_findings, *sampler]
    return Verdict(findings=tuple(findings), variables=names, worst=worst)


def mixing_table(trace: "xr.DataTree", *, var_names: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """R-hat and effective sample sizes of every quantity, by its printed name.

    Parameters
    ----------
    trace
        Needs a group `posterior`.
    var_names
        As in `check_convergence`.

    Returns
    -------
    dict
        Quantity name, such as ``"cells[cell=3]"``, to ``{"rhat": ..., "ess_bulk": ..., "ess_tail": ...}``; the values
        of a constant quantity are NaN, and those of one with draws that are not finite. A label that a coordinate holds
        again is numbered: ``"cells[cell=3 (2)]"``.

    Examples
    --------
    >>> import xarray as xr
    >>> values = np.random.default_rng(1).normal(size=(2, 100))
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"p": (("chain", "draw"), values)})})
    >>> sorted(mixing_table(tree)["p"])
    ['ess_bulk', 'ess_tail', 'rhat']
    """
    draws = quantity_draws(trace, var_names=var_names)
    stacked = np.stack(list(draws.values()))
    finite = np.isfinite(stacked).all(axis=(1, 2))
    values = np.full((len(stacked), 3), np.nan)
    if finite.any():
        result = mixing(stacked[finite])
        values[finite] = np.column_stack([result.rhat, result.ess_bulk, result.ess_tail])
    return {
        str(quantity): {"rhat": rhat, "ess_bulk": bulk, "ess_tail": tail}
        for quantity, (rhat, bulk, tail) in zip(draws, values.tolist(), strict=True)
    }


def mixing_findings_of(
    draws: np.ndarray, quantities: Sequence[Quantity], *, rhat_max: float, ess_min: float, members: int = 1
) -> tuple[list[Finding], tuple[Quantity, ...]]:
    """Judge the draws; return findings and the quantities with the fewest effective ones."""
    _, chains, length = draws.shape
    if chains < 2 or length < 4:
        remedy = f"got {chains} chains of {length} draws: sample two chains or more, of four draws or more"
        return [Finding.failed("chains", "posterior", float(chains), 2.0, remedy)], ()
    finite = np.isfinite(draws).all(axis=(1, 2))
    constant = is_constant(draws)
    judged = np.flatnonzero(finite & ~constant)
    findings = []
    if not finite.all():
        worst = str(quantities[int(np.argmin(finite))])
        remedy = "the sampler was interrupted or the model yields values that are not finite; sample again"
        findings.append(Finding.failed("finite", worst, float((~finite).sum()), 0.0, remedy))
    if constant.any():
        findings.append(_constant_finding(quantities, constant, n_judged=len(judged)))
    if not len(judged):
        return findings, ()
    result = mixing(draws[judged], members=members)
    moving = [quantities[int(place)] for place in judged]
    findings.extend(_worst(result, moving, rhat_max=rhat_max, ess_min=ess_min))
    fewest = np.argsort(np.fmin(result.ess_bulk, result.ess_tail), kind="stable")[:_KEPT]
    return findings, tuple(moving[place] for place in fewest)


def _constant_finding(quantities: Sequence[Quantity], constant: np.ndarray, *, n_judged: int) -> Finding:
    # Structural zeros are the model's right; a posterior in which nothing moves is not one.
    remedy = "" if n_judged else "nothing moved: check that the model has free parameters and that the chains started"
    first = str(quantities[int(np.argmax(constant))])
    value, size = float(constant.sum()), float(len(quantities))
    return Finding("constant", first, value, size, passed=n_judged > 0, remedy=remedy)


def _worst(result: Mixing, quantities: Sequence[Quantity], *, rhat_max: float, ess_min: float) -> list[Finding]:
    findings = []
    for check, values, threshold in (
        ("rhat", result.rhat, rhat_max),
        ("ess_bulk", result.ess_bulk, ess_min),
        ("ess_tail", result.ess_tail, ess_min),
    ):
        # A diagnostic that is not a number counts as the worst of all.
        badness = np.where(np.isnan(values), np.inf, values if check == "rhat" else -values)
        place = int(np.argmax(badness))
        failing = int((~(values <= threshold if check == "rhat" else values >= threshold)).sum())
        remedy = f"{failing} of {len(quantities)} fail: {_MORE_DRAWS}" if failing else ""
        worst, value = str(quantities[place]), float(values[place])
        findings.append(Finding(check, worst, value, threshold, passed=not failing, remedy=remedy))
    return findings


def _stat(stats: "xr.Dataset | None", name: str) -> np.ndarray | None:
    return None if stats is None or name not in stats else np.asarray(stats[name].transpose("chain", "draw"), float)


def members_of(stats: "xr.Dataset | None") -> int:
    """Return how many short chains a chain of the trace consists of; one unless many chains were run."""
    member = _stat(stats, "member")
    return 1 if member is None else int(member.max()) + 1


def drift_finding(likelihood: np.ndarray | None, members: int) -> Finding:
    """Judge whether the log-likelihood (chains, draws) still moves; a change that may be chance counts as none."""
    remedy = "chains still drift from their starts: allow more rounds or trajectories, or more powers in annealing"
    if likelihood is None or not np.isfinite(likelihood).all():
        return Finding.failed("drift", "log-likelihood", math.nan, _DRIFT, "no usable log_likelihood: sample again")
    values = likelihood.reshape(likelihood.shape[0] * members, -1)
    third = values.shape[1] // 3
    change = values[:, -third:].mean(axis=1) - values[:, third:-third].mean(axis=1)
    sure = abs(change.mean()) > 4.0 * change.std(ddof=1) / math.sqrt(len(change))
    size = float(abs(change.mean()) / values.std()) if sure else 0.0
    passed = size <= _DRIFT
    return Finding("drift", "log-likelihood", size, _DRIFT, passed=passed, remedy="" if passed else remedy)


def _sampler_findings(
    stats: "xr.Dataset | None", *, divergent_share_max: float, bfmi_min: float, saturated_share_max: float
) -> list[Finding]:
    depth = _stat(stats, "reached_max_treedepth")
    deeper = "raise max_treedepth, or rescale the model: trees this deep mean a posterior that is long and thin"
    energies = "heavy tails: reparameterize (centre or uncentre a scale), or tighten a prior"
    per_chain = _stat(stats, "energy")
    return [
        _share("divergences", "diverging", _stat(stats, "diverging"), divergent_share_max, _SMALLER_STEPS),
        _share("tree_depth", "reached_max_treedepth", depth, saturated_share_max, deeper),
        _lowest_bfmi(None if per_chain is None else bfmi(per_chain), bfmi_min, energies),
    ]


def _share(check: str, name: str, values: np.ndarray | None, threshold: float, remedy: str) -> Finding:
    if values is None or not np.isfinite(values).all() or not values.size:
        return Finding.failed(check, name, float("nan"), threshold, f"sample_stats has no usable {name}: sample again")
    share = float(values.mean())
    quantity = f"{int(values.sum())} of {values.size} transitions"
    return Finding(
        check, quantity, share, threshold, passed=share <= threshold, remedy="" if share <= threshold else remedy
    )


def _lowest_bfmi(values: np.ndarray | None, threshold: float, remedy: str) -> Finding:
    if values is None or not np.isfinite(values).all():
        return Finding.failed(
            "bfmi", "energy", float("nan"), threshold, "sample_stats has no usable energy: sample again"
        )
    chain = int(np.argmin(values))
    passed = bool(values[chain] >= threshold)
    return Finding(
        "bfmi", f"chain {chain}", float(values[chain]), threshold, passed=passed, remedy="" if passed else remedy
    )
