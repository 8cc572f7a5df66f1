"""The gate: one verdict on whether a fit may be trusted, in words a reader can act on.

Samplers do not stop a bad fit: nutpie through `pm.sample` returned draws with an R-hat of 1.48 without a word. The gate
looks at quantities that do not depend on how a model labels its parts (a mixture's class parameters swap places between
chains while every cell probability agrees); the model or the trace names them in `gate_variables`.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpbayes.errors import InputError
from dpbayes.inference.convergence import Mixing, bfmi, is_constant, mixing
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
    posterior = _group(trace, "posterior")
    if posterior is None:
        raise InputError("the trace has no posterior group; sample the model first")
    names = gate_variables(trace) if var_names is None else tuple(var_names)
    draws, quantities = _stack(posterior, names)
    mixing_findings, worst = _mixing_findings(draws, quantities, rhat_max=rhat_max, ess_min=ess_min)
    findings = [
        *mixing_findings,
        *_sampler_findings(
            _group(trace, "sample_stats"),
            divergent_share_max=divergent_share_max,
            bfmi_min=bfmi_min,
            saturated_share_max=saturated_share_max,
        ),
    ]
    return Verdict(findings=tuple(findings), variables=names, worst=worst)


def gate_variables(trace: "xr.DataTree") -> tuple[str, ...]:
    """Names of the variables that the gate judges: those the trace declares, else all of its posterior.

    Parameters
    ----------
    trace
        Its attribute `gate_variables`, where there is one, is a JSON list of posterior variables.

    Returns
    -------
    tuple of str
        Names in the order declared.

    Examples
    --------
    >>> import xarray as xr
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"a": 0.0, "b": 1.0})})
    >>> tree.attrs["gate_variables"] = '["b"]'
    >>> gate_variables(tree)
    ('b',)
    """
    declared = trace.attrs.get("gate_variables")
    if declared is not None:
        return tuple(json.loads(declared))
    posterior = _group(trace, "posterior")
    return () if posterior is None else tuple(str(name) for name in posterior.data_vars)


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
        of a constant quantity are NaN.

    Examples
    --------
    >>> import xarray as xr
    >>> values = np.random.default_rng(1).normal(size=(2, 100))
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"p": (("chain", "draw"), values)})})
    >>> sorted(mixing_table(tree)["p"])
    ['ess_bulk', 'ess_tail', 'rhat']
    """
    posterior = _group(trace, "posterior")
    if posterior is None:
        raise InputError("the trace has no posterior group; sample the model first")
    draws, quantities = _stack(posterior, gate_variables(trace) if var_names is None else tuple(var_names))
    result = mixing(draws)
    return {
        str(quantity): {"rhat": float(rhat), "ess_bulk": float(bulk), "ess_tail": float(tail)}
        for quantity, rhat, bulk, tail in zip(quantities, result.rhat, result.ess_bulk, result.ess_tail, strict=True)
    }


def _group(trace: "xr.DataTree", name: str) -> "xr.Dataset | None":
    return trace[name].to_dataset() if name in trace.children else None


def _stack(posterior: "xr.Dataset", names: Sequence[str]) -> tuple[np.ndarray, list[Quantity]]:
    """Stack variables as (quantities, chains, draws), with the name of each quantity."""
    missing = [name for name in names if name not in posterior]
    if missing or not names:
        raise InputError(f"posterior variables to judge not found: {missing}; it has {sorted(map(str, posterior))}")
    blocks, quantities = [], []
    for name in names:
        variable = posterior[name].transpose("chain", "draw", ...)
        chains, length, *shape = variable.shape
        blocks.append(np.moveaxis(np.asarray(variable, dtype=float).reshape(chains, length, -1), -1, 0))
        dims = [str(dim) for dim in variable.dims[2:]]
        labels = [
            posterior[dim].values.tolist() if dim in posterior.coords else range(posterior.sizes[dim]) for dim in dims
        ]
        for index in np.ndindex(*shape):
            where = ((dim, _plain(axis[place])) for dim, axis, place in zip(dims, labels, index, strict=True))
            quantities.append(Quantity(name, tuple(where)))
    return np.concatenate(blocks), quantities


def _plain(label: object) -> str | int | float:
    return label if isinstance(label, str | int | float) else str(label)


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
