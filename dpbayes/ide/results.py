"""What a prior-aware run found, as plain data for ``result.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes.ide.algorithm1 import least_l1_loss
from dpbayes.ide.cells import Measurements, measure
from dpbayes.ide.estimation import Estimate, estimate
from dpbayes.ide.pooling import COMPONENTS, Credibility, grouping_attribute, justified, pool
from dpbayes.ide.prior import Prior
from dpbayes.ide.release import GroupRelease
from dpbayes.ide.score import BIAS_LIMIT, Score, bootstrap_score, k_marginal_score
from dpbayes.ide.synthesis import GroupSynthesis, synthesize_groups

if TYPE_CHECKING:
    import polars as pl

    from dpbayes.ide.study import Spec
    from dpbayes.privacy import Release

# The linear program of the reference is for supports of this size and below.
_REFERENCE_ROWS = 100_000
# What `estimate` solves to, unless told otherwise.
_TOLERANCE = 1e-2
_BOOTSTRAP = "bootstrap of the truth"
# Released cells beyond which a page does without intervals.
_MOST_CELLS = 5000


def table_results(spec: Spec, public: Prior, release: Release, truth: Prior | None) -> tuple[dict[str, Any], Estimate]:
    """Estimate by both methods: noise-aware from the pooled prior, Algorithm 1 from the public one."""
    settings, by = spec.estimation, spec.data.by
    borrowed = justified(public, by or grouping_attribute(release)) if settings.pool else None
    prior = public if borrowed is None else pool(public, borrowed)
    aware = estimate(prior, release, strength=settings.strength or "release", pool=False)
    plain = estimate(public, release, noise_aware=False, iterations=settings.iterations, random_state=settings.seed)
    chosen = aware if settings.method == "noise-aware" else plain
    given = measure(public, release)
    reference = public.size <= _REFERENCE_ROWS and given.n > 0
    result: dict[str, Any] = {
        "method": chosen.method,
        "prior": _prior(prior, public),
        "borrowed": None if borrowed is None else _borrowed(public, borrowed),
        "certificate": _certificate(aware),
        "trace": _trace(plain),
        "moved": moved_tables(given if chosen.prior is public else measure(chosen.prior, release), chosen),
        "l1_minimum": least_l1_loss(given) if reference else None,
        "kl": {"noise-aware": aware.kl, "algorithm-1": plain.kl},
    }
    if truth is not None and by is not None:
        pooled = {} if borrowed is None else {"pooled prior": prior}
        found = {"prior": public, **pooled, "noise-aware": aware.distribution, "algorithm-1": plain.distribution}
        scores = {name: k_marginal_score(q, truth, by=by) for name, q in found.items()}
        result["scores"] = _said(scores, truth, by)
    result["passed"], result["summary"] = _verdict(chosen, result["certificate"])
    return result, chosen


def group_results(
    spec: Spec, prior: Prior, released: GroupRelease, workloads: dict[str, Any], truth: pl.DataFrame | None
) -> tuple[dict[str, Any], pl.DataFrame]:
    """Run Algorithm 2 and, where the truth is public, score what came out."""
    settings, jobs = spec.estimation, 1 if spec.groups is None else spec.groups.n_jobs
    how: dict[str, Any] = {"iterations": settings.iterations, "random_state": settings.seed}
    synthetic = synthesize_groups(prior, released, method=settings.method, n_jobs=jobs, **how)
    first = next(iter(released.units))
    plain = estimate(prior, released.units[first], noise_aware=False, **how)
    units = synthetic.units
    result: dict[str, Any] = {
        "method": settings.method,
        "prior": _prior(prior, prior),
        "workloads": workloads,
        "trace": _trace(plain) | {"unit": str(first)},
        "units": [
            {"unit": str(unit), "kl": found.kl, "certificate": _certificate(found), "n": found.n}
            for unit, found in units.items()
        ],
        "groups": [
            {
                "group": str(group),
                "unit": str(synthetic.parent[group]),
                "size": found.size,
                "l1_loss": None if np.isnan(found.l1_loss) else found.l1_loss,
                "kl": found.kl,
            }
            for group, found in synthetic.groups.items()
        ],
    }
    if truth is not None:
        result["scores"] = _group_scores(prior, synthetic, released, truth)
    gaps = [entry["certificate"]["gap"] for entry in result["units"] if entry["certificate"] is not None]
    gaps += [found.gap for found in synthetic.groups.values() if not np.isnan(found.gap)]
    worst = max(gaps, default=None)
    passed = worst is None or worst <= _TOLERANCE
    total = int(synthetic.sizes.sum())
    result["passed"] = passed
    result["summary"] = f"{total:,} synthetic records in {len(synthetic.groups)} groups" + (
        "" if worst is None else f"; {worst:.2g} nats from the optimum at most (duality gap; tolerance {_TOLERANCE:g})"
    )
    return result, synthetic.frame()


def _group_scores(
    prior: Prior, synthetic: GroupSynthesis, released: GroupRelease, truth: pl.DataFrame
) -> dict[str, Any]:
    """Score the synthetic records, and the public prior put in every group, against the true records."""
    from dpbayes.data import Domain

    hierarchy = released.hierarchy
    domain = Domain((hierarchy.as_attribute, *prior.domain.attributes))
    name = hierarchy.attribute
    true = Prior.from_frame(truth, domain)
    sizes = np.rint(true.marginal([name]) * (true.n_records or 0))
    copies = np.repeat(np.arange(len(hierarchy.groups), dtype=np.int32), prior.size)[:, None]
    codes = np.hstack([copies, np.tile(prior.codes, (len(hierarchy.groups), 1))])
    everywhere = Prior(domain, codes, np.tile(prior.weights, len(hierarchy.groups)))
    scores = {"prior": k_marginal_score(everywhere, true, by=name)}
    scores["synthetic"] = _synthetic_score(synthetic.frame(), true, scores["prior"], name)
    present = sizes > 0
    return _said(scores, true, name) | {"sizes": _sizes(scores, synthetic.sizes[present], sizes[present])}


def _synthetic_score(frame: pl.DataFrame, true: Prior, like: Score, by: str) -> Score:
    """Score synthetic records without regard to their number; a group without any is at distance 2."""
    if frame.is_empty():
        return Score(like.groups, np.full_like(like.errors, 2.0))
    return k_marginal_score(Prior.from_frame(frame, true.domain), true, by=by)


def _sizes(scores: dict[str, Score], released: Any, true: Any) -> dict[str, Any]:
    """Say how far each group's number of records is off, and what the bias penalty would make of each score."""
    missed = released - true
    return {
        "limit": BIAS_LIMIT,
        "missed": missed.astype(int).tolist(),
        "off": (np.abs(missed) > BIAS_LIMIT).tolist(),
        "empty": (released == 0).tolist(),
        "penalized_score": {name: score.penalized(missed).value for name, score in scores.items()},
    }


def _said(scores: dict[str, Score], truth: Prior, by: str) -> dict[str, Any]:
    """Return scores as plain data, that of another sample of the same people beside them."""
    scores = scores | {_BOOTSTRAP: bootstrap_score(truth, by=by, rng=np.random.default_rng(1))}
    return {
        "by": by,
        "groups": [str(group) for group in scores["prior"].groups],
        "errors": {name: score.errors.tolist() for name, score in scores.items()},
        "score": {name: score.value for name, score in scores.items()},
    }


def _prior(prior: Prior, public: Prior) -> dict[str, Any]:
    return {
        "rows": prior.size,
        "records": prior.n_records,
        "public_rows": public.size,
        "public_records": public.n_records,
    }


def _certificate(found: Estimate) -> dict[str, Any] | None:
    if found.solution is None or found.strength is None:
        return None
    solution, strength = found.solution, found.strength
    return {
        "gap": solution.gap,
        "tolerance": _TOLERANCE,
        "l1_bound": solution.l1_bound,
        "iterations": solution.iterations,
        "gaps": list(solution.gaps),
        "strength": strength.value,
        "most_likely": strength.most_likely,
        "bound": strength.bound,
        "grid": strength.grid.tolist(),
        "log_likelihood": strength.log_likelihood.tolist(),
    }


def _trace(found: Estimate) -> dict[str, Any]:
    if found.iterations is None:
        return {"step": [], "l1_loss": [], "kl": []}
    trace = found.iterations
    finite = np.where(np.isfinite(trace.kl), trace.kl, 0.0)
    return {"step": trace.step.tolist(), "l1_loss": trace.l1_loss.tolist(), "kl": finite.tolist()}


def _verdict(found: Estimate, certificate: dict[str, Any] | None) -> tuple[bool, str]:
    if found.method == "prior":
        return True, "The released number of records is not positive: the prior stands as it is."
    if found.method == "algorithm-1" or certificate is None:
        return True, f"Algorithm 1 ended {found.kl:.3g} nats from the prior; it carries no certificate."
    passed = certificate["gap"] <= certificate["tolerance"]
    return passed, (
        f"{'Solved' if passed else 'NOT solved'}, {certificate['gap']:.2g} nats off the optimum (duality gap, limit "
        f"{certificate['tolerance']:g}), any marginal within {certificate['l1_bound']:.2g} in L1 of it; prior "
        f"worth {certificate['strength']:,.0f} records"
    )


def _borrowed(prior: Prior, credible: Credibility) -> list[dict[str, Any]]:
    """How each group's prior was mixed, and from how many public records of its own."""
    by = credible.by
    names = ["all records"] if by is None else [str(level) for level in prior.domain[by].levels]
    share = np.ones(1) if by is None else prior.marginal([by])
    return [
        {
            "group": name,
            "records": float(part * (prior.n_records or 0.0)),
            "weights": dict(zip(COMPONENTS, mixed.tolist(), strict=True)),
        }
        for name, part, mixed in zip(names, share, credible.weights, strict=True)
    ]


def moved_tables(measurements: Measurements, found: Estimate) -> list[dict[str, Any]]:
    """Set out every released table: the L1 distances between prior, release and estimate, and its cells' shares."""
    before, after = measurements.prior_chance, measurements.cells.predict(found.weights)
    released = measurements.values / max(measurements.n, 1.0)
    starts = measurements.cells.starts
    intervals = found.posterior is not None and int(starts[-1]) <= _MOST_CELLS
    entries = []
    for table, first, last in zip(measurements.tables, starts, starts[1:], strict=False):
        shares = {"prior": before[first:last], "released": released[first:last], "estimate": after[first:last]}
        entries.append(
            {
                "table": table.label,
                "moved": _distance(shares["estimate"], shares["prior"]),
                "released_from_prior": _distance(shares["released"], shares["prior"]),
                "left": _distance(shares["released"], shares["estimate"]),
                "cells": table.domain.cell_labels(),
                **(_interval(found, table.attributes) if intervals else {}),
                **{name: values.tolist() for name, values in shares.items()},
            }
        )
    return entries


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).sum())


def _interval(found: Estimate, names: tuple[str, ...]) -> dict[str, list[float]]:
    low, high = found.interval(names)
    return {"low": low.ravel().tolist(), "high": high.ravel().tolist()}
