"""`dpbayes privacy mvg`: what directional noise costs, by the paper's bound and exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dpbayes.mvg.comparison import NoiseCost
    from dpbayes.mvg.sensitivity import FeatureRanges

__all__ = ["mvg"]


def mvg(
    ranges: Annotated[
        list[str],
        typer.Option("--range", metavar="[Kx]LOWER:UPPER", help="Public bounds of a feature, or of K equal ones."),
    ],
    n: Annotated[int, typer.Option("-n", "--records", help="Number of records.")],
    epsilon: Annotated[float, typer.Option(help="Privacy parameter of the release.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Failure probability of the guarantee, well below 1 / n.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="replace-one or add-remove.")] = "replace-one",
    theta: Annotated[
        str | None, typer.Option(metavar="T1,T2,...", help="Precision allocation; equal shares by default.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="C1,C2,...",
            help="Weights of the features' noise variances in the root mean square that is shown and least; ones by "
            "default.",
        ),
    ] = None,
    zeta: Annotated[str, typer.Option(help="Reading of the paper's zeta: printed or laurent-massart.")] = "printed",
    stddev: Annotated[
        float | None, typer.Option(help="Also give the exact epsilon of i.i.d. noise of this standard deviation.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the noise ellipses of the first two features here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Price matrix Gaussian noise on records with bounded features.

    Shows the terms of the paper's Theorem 2, and the noise that the same guarantee takes by the paper's bound, as
    i.i.d. analytic Gaussian, directionally at the exact price, and optimally.

    Example: `dpbayes privacy mvg --range 10x0:1 -n 70000 --epsilon 1 --delta 1e-5`
    """
    from dpbayes.cli._figures import check_figure
    from dpbayes.errors import InputError
    from dpbayes.mvg.bound import check_reading
    from dpbayes.mvg.comparison import compare_noise

    check_reading(zeta)
    check_figure(plot)
    features = _ranges(ranges, adjacency)
    if plot is not None and features.size < 2:
        raise InputError("--plot draws two features; give at least two with --range")
    shares, costs_weights = _numbers(theta, "--theta"), _numbers(weights, "--weights")
    costs = compare_noise(
        features,
        n=n,
        epsilon=epsilon,
        delta=delta,
        theta=shares,
        weights=costs_weights,
        zeta=zeta,  # type: ignore[arg-type]
    )
    record = _bound_record(features, n, epsilon, delta, zeta) | {"mechanisms": [_record(cost) for cost in costs]}
    if stddev is not None:
        record["iid"] = _iid(features, n, stddev, delta)
    if plot is not None:
        record["plot"] = str(_plot(costs, features, plot))
    typer.echo(json.dumps(record, indent=1) if as_json else _text(record))


def _bound_record(features: FeatureRanges, n: int, epsilon: float, delta: float, zeta: str) -> dict[str, Any]:
    from dpbayes.mvg.bound import bound_terms
    from dpbayes.mvg.comparison import supremum_norm

    gamma = supremum_norm(features, n)
    terms = bound_terms(
        m=features.size,
        n=n,
        gamma=gamma,
        sensitivity=features.frobenius,
        epsilon=epsilon,
        delta=delta,
        zeta=zeta,  # type: ignore[arg-type]
    )
    return {
        "m": features.size,
        "n": n,
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": features.adjacency,
        "sensitivity": features.frobenius,
        "gamma": gamma,
        "zeta_reading": zeta,
        "zeta": terms.zeta,
        "alpha": terms.alpha,
        "beta": terms.beta,
        "bound": terms.bound,
    }


def _record(cost: NoiseCost) -> dict[str, Any]:
    return {
        "mechanism": cost.mechanism,
        "stddev": cost.stddev,
        "ratio_to_optimal": cost.ratio,
        "exact_epsilon": cost.epsilon,
        "mu": cost.noise.mu.value,
        "mu_known_by": cost.noise.mu.method,
    }


def _iid(features: FeatureRanges, n: int, stddev: float, delta: float) -> dict[str, float]:
    from dpbayes._arguments import positive_finite
    from dpbayes.mvg.accounting import MatrixGaussian
    from dpbayes.mvg.covariance import Covariance

    scale = positive_finite(stddev, "--stddev", remedy="it is the noise's standard deviation")
    noise = MatrixGaussian(Covariance.identity(features.size).scaled(scale**2), Covariance.identity(n), features)
    return {"stddev": scale, "mu": noise.mu.value, "epsilon": noise.epsilon(delta)}


def _plot(costs: tuple[NoiseCost, ...], features: FeatureRanges, path: Path) -> Path:
    from dpbayes.mvg.plots import noise_ellipses

    figure = noise_ellipses(costs, features)
    figure.savefig(path, dpi=150)
    return path


def _ranges(texts: list[str], adjacency: str) -> FeatureRanges:
    from dpbayes.errors import InputError
    from dpbayes.mvg.sensitivity import FeatureRanges
    from dpbayes.privacy.adjacency import check_adjacency

    lower, upper = [], []
    for text in texts:
        try:
            times, separator, rest = text.partition("x")
            count = int(times) if separator else 1
            low, high = (float(part) for part in (rest if separator else text).split(":"))
        except ValueError:
            raise InputError(f"--range takes LOWER:UPPER or KxLOWER:UPPER such as 10x0:1, got {text!r}") from None
        if not 1 <= count <= 10_000:
            raise InputError(f"--range repeats a feature 1 to 10,000 times, got {text!r}")
        lower += [low] * count
        upper += [high] * count
    return FeatureRanges(lower, upper, check_adjacency(adjacency))  # type: ignore[arg-type]


def _numbers(text: str | None, option: str) -> list[float] | None:
    from dpbayes.errors import InputError

    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers with commas between them, got {text!r}") from None


def _text(record: dict[str, Any]) -> str:
    lines = [
        f"{record['m']} features x {record['n']:,} records, epsilon {record['epsilon']:g}, delta {record['delta']:g}, "
        f"{record['adjacency']}",
        f"Theorem 2 ({record['zeta_reading']} zeta): sensitivity {record['sensitivity']:.6g}, "
        f"gamma {record['gamma']:.6g}, zeta {record['zeta']:.6g}, alpha {record['alpha']:.6g}, "
        f"beta {record['beta']:.6g}",
        f"precision bound {record['bound']:.12g}",
        "",
        f"{'mechanism':<28}{'noise stddev':>14}{'x optimal':>12}{'exact epsilon':>15}  mu",
    ]
    for row in record["mechanisms"]:
        lines.append(
            f"{row['mechanism']:<28}{row['stddev']:>14.5g}{row['ratio_to_optimal']:>12.4g}{row['exact_epsilon']:>15.5g}"
            f"  {row['mu']:.5g} ({row['mu_known_by']})"
        )
    if "iid" in record:
        lines += ["", f"i.i.d. noise of stddev {record['iid']['stddev']:g}: epsilon {record['iid']['epsilon']:.6g}"]
    if "plot" in record:
        lines += ["", f"plot: {record['plot']}"]
    return "\n".join(lines)
