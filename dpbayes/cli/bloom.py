"""`dpbayes privacy bloom`: what shuffled and flipped Bloom filters cost, and how much flipping a target asks for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dpbayes.bloom.claims import EpsilonClaim

__all__ = ["bloom"]


def bloom(
    n_filters: Annotated[list[int], typer.Option("-k", "--filters", help="Number of filters; may be given again.")],
    n_bits: Annotated[list[int], typer.Option("-m", "--bits", help="Bits of a filter; may be given again.")],
    flip_prob: Annotated[
        list[float] | None, typer.Option("-p", "--flip-prob", help="Flip probability; may be given again.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-3,
    epsilon: Annotated[
        float | None, typer.Option(help="Find the flip probability for this epsilon, for every -k and -m.")
    ] = None,
    definition: Annotated[
        str, typer.Option(help="tight: (epsilon, delta)-DP; quantile: the paper's, with epsilon exceeded rarely.")
    ] = "tight",
    pairs: Annotated[
        str, typer.Option(help="paper: the pair the paper calls worst; all: proven for every pair (slower).")
    ] = "paper",
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a plot here: epsilon against flipping, or with --epsilon flipping against filters."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Price Bloom filters that are shuffled together and then flipped bit by bit.

    Neighbouring inputs differ in one position (one-position): a person more or less, or one person's other publishers;
    one person exchanged for another changes two. Every number says which pairs of inputs it covers: one filter is
    covered exhaustively; for several, "paper's pair, certified" protects that pair and no other, and --pairs all
    gives a bound that holds for all.

    Example: `dpbayes privacy bloom -k 6 -m 100000 -p 0.1 --delta 1e-3`
    """
    from dpbayes.bloom.calibration import bloom_epsilon, flip_prob_for
    from dpbayes.cli._figures import check_figure
    from dpbayes.errors import InputError

    if (flip_prob is None) == (epsilon is None):
        raise InputError("give either --flip-prob, to be told epsilon, or --epsilon, to be told the flip probability")
    check_figure(plot)
    common: dict[str, Any] = {"delta": delta, "definition": definition, "pairs": pairs}
    rows = []
    for k in n_filters:
        for m in n_bits:
            if epsilon is None:
                needed = flip_prob or []
            else:
                needed = [flip_prob_for(epsilon=epsilon, n_filters=k, n_bits=m, **common)]
            rows += [(k, m, p, bloom_epsilon(flip_prob=p, n_filters=k, n_bits=m, **common)) for p in needed]
    if as_json:
        typer.echo(json.dumps([_facts(*row) for row in rows], indent=2))
    else:
        _print(rows)
    if plot is not None:
        known = None if epsilon is None else {(k, m): p for k, m, p, _ in rows}
        _plot(plot, n_filters, n_bits, epsilon, known, common)
        typer.echo(f"plot: {plot}", err=as_json)


def _facts(k: int, m: int, p: float, claim: EpsilonClaim) -> dict[str, Any]:
    return {"n_filters": k, "n_bits": m, "flip_prob": p, "adjacency": "one-position", **asdict(claim)}


def _print(rows: list[tuple[int, int, float, EpsilonClaim]]) -> None:
    from rich.console import Console
    from rich.table import Table

    first = rows[0][3]
    title = f"epsilon at delta {first.delta:g}, {first.definition}, one-position"
    table = Table("filters", "bits", "flip probability", "epsilon", "covers", title=title, title_justify="left")
    for k, m, p, claim in rows:
        table.add_row(str(k), f"{m:,}", _probability(p), _interval(claim), claim.scope)
    Console().print(table)
    if any(claim.scope == "paper's pair, certified" for *_, claim in rows):
        typer.echo("The paper's pair is not always the worst; --pairs all gives an epsilon that holds for every pair.")
    typer.echo(
        "one-position: a person more or less, or one person's other publishers, costs epsilon once; one person "
        "exchanged for another changes two positions: at most (2 epsilon, (1 + e^epsilon) delta), and only where "
        "epsilon covers all pairs."
    )


def _interval(claim: EpsilonClaim) -> str:
    from dpbayes.bloom.claims import outward

    if claim.scope == "all pairs, upper bound":
        return f"{outward(claim.upper, digits=4)} (worst pair found: {outward(claim.lower, digits=4, up=False)})"
    if claim.upper - claim.lower < 1e-8 * max(claim.upper, 1e-3):
        return outward(claim.upper, digits=8)
    return f"{outward(claim.lower, up=False)} to {outward(claim.upper)}"


def _probability(p: float) -> str:
    """Round up: more flipping costs less, so that what is printed keeps the epsilon beside it."""
    from dpbayes.bloom.claims import outward

    shown = outward(p, digits=8)
    return shown if float(shown) < 0.5 else repr(p)


def _plot(
    path: Path,
    n_filters: list[int],
    n_bits: list[int],
    epsilon: float | None,
    known: dict[tuple[int, int], float] | None,
    common: dict[str, Any],
) -> None:
    """Draw the question of the table: its delta, its definition and its pairs."""
    from dpbayes.bloom.figures import epsilon_figure, flip_prob_figure

    if epsilon is None:
        figure = epsilon_figure(n_filters=n_filters, n_bits=n_bits, **common)
    else:
        figure = flip_prob_figure(n_filters=n_filters, n_bits=n_bits, epsilon=epsilon, flip_probs=known, **common)
    figure.savefig(path, dpi=150)
