"""The gate: one verdict on whether a fit may be trusted, in words a reader can act on.

Samplers do not stop a bad fit: nutpie through `pm.sample` returned draws with an R-hat of 1.48 without a word. The gate
looks at quantities that do not depend on how a model labels its parts (a mixture's class parameters swap places between
chains while every cell probability agrees); the model or the trace names them in `gate_variables`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpbayes.inference.convergence import Mixing, bfmi, is_constant, mixing
from dpbayes.inference.quantities import gate_variables, judged_variables, quantity_draws
from dpbayes.inference.verdict import Finding, Quantity, Verdict

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Finding", "Verdict", "check_convergence", "gate_variables", "mixing_table"]

# Quantities kept for rank plots.
_KEPT = 12
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
        Posterior variables to judge. By default those the trace declares in its attribute `gate_variables`, else all.
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
    mixing_findings, worst = _mixing_findings(
        np.stack(list(draws.values())), list(draws), rhat_max=rhat_max, ess_min=ess_min
    )
    findings = [
        *mixing_findings,
        *_sampler_findings(
            trace["sample_stats"].to_dataset() if "sample_stats" in trace.children else None,
            divergent_share_max=divergent_share_max,
            bfmi_min=bfmi_min,
            saturated_share_max=saturated_share_max,
        ),
    ]
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


def _mixing_findings(
    draws: np.ndarray, quantities: list[Quantity], *, rhat_max: float, ess_min: float
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
    result = mixing(draws[judged])
    moving = [quantities[place] for place in judged]
    findings.extend(_worst(result, moving, rhat_max=rhat_max, ess_min=ess_min))
    fewest = np.argsort(np.fmin(result.ess_bulk, result.ess_tail), kind="stable")[:_KEPT]
    return findings, tuple(moving[place] for place in fewest)


def _constant_finding(quantities: list[Quantity], constant: np.ndarray, *, n_judged: int) -> Finding:
    # Structural zeros are the model's right; a posterior in which nothing moves is not one.
    remedy = "" if n_judged else "nothing moved: check that the model has free parameters and that the chains started"
    first = str(quantities[int(np.argmax(constant))])
    value, size = float(constant.sum()), float(len(quantities))
    return Finding("constant", first, value, size, passed=n_judged > 0, remedy=remedy)


def _worst(result: Mixing, quantities: list[Quantity], *, rhat_max: float, ess_min: float) -> list[Finding]:
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


def _sampler_findings(
    stats: "xr.Dataset | None", *, divergent_share_max: float, bfmi_min: float, saturated_share_max: float
) -> list[Finding]:
    def values(name: str) -> np.ndarray | None:
        return None if stats is None or name not in stats else np.asarray(stats[name].transpose("chain", "draw"), float)

    deeper = "raise max_treedepth, or rescale the model: trees this deep mean a posterior that is long and thin"
    energies = "heavy tails: reparameterize (centre or uncentre a scale), or tighten a prior"
    per_chain = values("energy")
    return [
        _share("divergences", "diverging", values("diverging"), divergent_share_max, _SMALLER_STEPS),
        _share("tree_depth", "reached_max_treedepth", values("reached_max_treedepth"), saturated_share_max, deeper),
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
