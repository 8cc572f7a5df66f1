"""What commands print and draw: tables that fit the terminal, privacy costs and noise, a ledger's entries."""

from __future__ import annotations

import datetime
import itertools
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpbayes.errors import InputError
from dpbayes.report.document import show_range

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger, Reservation
    from dpbayes.privacy.losses import PrivacyLoss

_DELTAS = (1e-3, 1e-5, 1e-7, 1e-9)
_MEANING = {
    "replace-one": "neighbours differ in one record; the number of records is public",
    "add-remove": "one neighbour holds one record more; the number of records is protected",
}
_SUFFIXES = (".png", ".svg", ".pdf")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?|–|infinite|")
_NARROWEST = 10


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table: numbers stand right, long texts fold at words, nothing is cut."""
    columns = [[cell.split("\n") for cell in column] for column in zip(head, *rows, strict=True)]
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    terminal = shutil.get_terminal_size((100, 24)).columns
    right = [all(_NUMBER.fullmatch(row[place]) for row in rows) for place in range(len(head))]
    texts = [place for place, number in enumerate(right) if not number]
    while sum(widths) + 2 * (len(widths) - 1) > terminal and texts:
        widest = max(texts, key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    lines = textwrap.wrap(title, terminal)
    for number, row in enumerate([head, *rows]):
        folded = [
            [part for line in cell.split("\n") for part in textwrap.wrap(line, width) or [""]]
            for cell, width in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*folded, fillvalue=""):
            cells = [p.rjust(w) if r else p.ljust(w) for p, w, r in zip(parts, widths, right, strict=True)]
            lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("─" * (sum(widths) + 2 * (len(widths) - 1)))
    typer.echo("\n".join(lines))


def check_figure(path: Path | None) -> None:
    """Refuse a ``--plot`` that cannot be written: before the work, not after it."""
    if path is None:
        return
    if path.suffix not in _SUFFIXES:
        raise InputError(f"--plot needs a file ending in {', '.join(_SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}; create it first")


@dataclass(frozen=True)
class Query:
    """What was asked on the command line about one mechanism."""

    law: str
    parameter: str
    value: float | None
    sensitivity: float | None
    compositions: int
    epsilon: float | None
    deltas: list[float] | None
    adjacency: str
    plot: Path | None
    pure: bool = False

    def __post_init__(self) -> None:
        option = "--" + self.parameter.replace(" ", "-")
        if (self.value is None) == (self.epsilon is None):
            given = "neither" if self.value is None else "both"
            raise InputError(f"give either {option} (to learn epsilon) or --epsilon (to learn the noise), got {given}")
        if self.compositions < 1:
            raise InputError(f"--compositions must be at least 1, got {self.compositions}")
        for delta in self.deltas or ():
            if not 0 <= delta < 1:
                raise InputError(f"--delta must be at least 0 and below 1, got {delta}; a usual choice is below 1 / n")
        check_figure(self.plot)
        for name, value in (("--epsilon", self.epsilon), (option, self.value), ("--sensitivity", self.sensitivity)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be positive and finite, got {value}")

    def pure_value(self, divisor: float) -> Fraction:
        """Return what pure privacy gives exactly: epsilon of a scale, or the scale of an epsilon."""
        from dpbayes.privacy.rounding import decimal_reading

        return self.compositions * decimal_reading(self.sensitivity or 0.0) / decimal_reading(divisor)

    @property
    def title(self) -> str:
        """One line that names the mechanism and how often it runs."""
        parts = [self.law]
        if self.value is not None:
            parts.append(f"{self.parameter} {self.value:g}")
        if self.sensitivity is not None:
            parts.append(f"sensitivity {self.sensitivity:g}")
        return ", ".join([*parts, f"{self.compositions:,} composition{'s' if self.compositions > 1 else ''}"])


def answer(
    query: Query, build: Callable[[float], PrivacyLoss], *, parameter_of: Callable[[float], float] = lambda noise: noise
) -> None:
    """Print the table of `query`, and write its plot; `build` gives the composed loss of a parameter's value."""
    # `parameter_of` maps an amount of noise, with which epsilon falls, to that parameter.
    deltas = query.deltas or list(_DELTAS)
    if query.value is not None:
        loss, rows = build(query.value), []
        for delta in deltas:
            least, most = _bounds(query, loss, delta)
            rows.append((f"{delta:g}", _round(most, ROUND_CEILING), _round(least, ROUND_FLOOR)))
        show_table(("delta", "epsilon", "not below"), rows, title=query.title)
        curves = {query.title: loss}
    else:
        shown = {delta: _least(query, build, parameter_of, delta) for delta in deltas}
        title = f"{query.title}: least noise for epsilon {query.epsilon:g}"
        show_table(("delta", query.parameter), [(f"{delta:g}", value) for delta, value in shown.items()], title=title)
        curves = {f"{query.parameter} {value}, for delta {d:g}": build(float(value)) for d, value in shown.items()}
    typer.echo(f"adjacency {query.adjacency}: {_MEANING[query.adjacency]}")
    if query.plot is not None:
        _draw(query, curves, query.plot)
        typer.echo(f"plot: {query.plot}")


def _bounds(query: Query, loss: PrivacyLoss, delta: float) -> tuple[float | Fraction, float | Fraction]:
    """Return the bounds of epsilon at `delta`: one exact number where the law has a pure guarantee."""
    if query.pure and delta == 0:
        assert query.value is not None
        return (query.pure_value(query.value),) * 2
    found = loss.epsilon_bounds(delta)
    return found.lower, found.upper


def _least(
    query: Query, build: Callable[[float], PrivacyLoss], parameter_of: Callable[[float], float], delta: float
) -> str:
    """Return the parameter of the least noise for the query's epsilon at `delta`, rounded to the safe side."""
    assert query.epsilon is not None
    exact = query.pure_value(query.epsilon) if query.pure else math.inf
    value: float | Fraction = exact
    if not query.pure or delta > 0:
        found = parameter_of(_least_noise(lambda noise: build(parameter_of(noise)), query.epsilon, delta))
        value = min(found, exact)  # what is enough at delta 0 is enough at any
    increasing = parameter_of(2.0) > parameter_of(1.0)
    return _round(value, ROUND_CEILING if increasing else ROUND_FLOOR)


def _least_noise(build: Callable[[float], PrivacyLoss], epsilon: float, delta: float) -> float:
    """Return the least noise with epsilon(delta) at most `epsilon`, to eight digits, from the safe side."""
    from dpbayes.privacy.rounding import least_where_kept

    # Epsilon is close to a power of the noise: few steps on their logarithms are enough.
    @cache
    def excess(log_noise: float) -> float:
        upper = build(math.exp(log_noise)).epsilon_bounds(delta).upper
        return math.log(min(max(upper / epsilon, 1e-9), 1e9))

    high, at_high = 0.0, excess(0.0)
    while at_high > 0:
        high += max(1.0, min(at_high, 8.0))
        if high > 40:
            raise InputError(f"no amount of noise gives epsilon {epsilon:g} at delta {delta:g}; ask for delta above 0")
        at_high = excess(high)
    low = high - 1.0
    while excess(low) <= 0:
        low, high = low - 1.0, low
    return math.exp(least_where_kept(excess, low, high, step=1e-8))


def _round(value: float | Fraction, rounding: str) -> str:
    """Return six significant digits, rounded in the given direction; all of them when there are fewer."""
    if not math.isfinite(value):
        return "infinite"
    exact = Fraction(value)
    digits = Context(prec=6, rounding=rounding).divide(Decimal(exact.numerator), Decimal(exact.denominator))
    return f"{digits.normalize():f}"


def _draw(query: Query, curves: dict[str, PrivacyLoss], path: Path) -> None:
    """Draw epsilon as a function of delta, one line per curve."""
    import numpy as np
    from matplotlib.figure import Figure

    deltas = np.logspace(-12, -1, 89)
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for label, loss in curves.items():
        epsilons = [loss.epsilon_bounds(float(delta)).upper for delta in deltas]
        axes.plot(deltas, np.where(np.isfinite(epsilons), epsilons, np.nan), label=label, linewidth=1.8)
    axes.set_ylim(bottom=0.0)
    axes.set(xscale="log", xlim=(deltas[0], deltas[-1]), xlabel="delta", ylabel="epsilon (rounded up)")
    axes.set_title(f"{query.title}\nadjacency: {query.adjacency}", fontsize=10, loc="left")
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if query.epsilon is not None:
        axes.axhline(query.epsilon, color="0.4", linewidth=0.8, linestyle="--")
        axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def show_budget(ledger: Ledger) -> None:
    """Print a ledger's total, what is spent and what is left."""
    terms, spent, left = ledger.terms, ledger.spent(), ledger.remaining()
    decides = {"basic": "plain addition", "tight": "tight composition"}[terms.composition]
    rows = [
        ("total", repr(terms.epsilon), repr(terms.delta)),
        ("spent, plain addition", f"{spent.basic_epsilon:.6g}", f"{spent.basic_delta:.6g}"),
        ("spent, tight", f"{spent.tight_epsilon:.6g}", f"{terms.delta:.6g}"),
        ("remaining", f"{left.epsilon:.6g}", f"{left.delta:.6g}"),
        ("entries", str(spent.releases), ""),
        ("unconfirmed", str(spent.unconfirmed), ""),
    ]
    title = f"{terms.dataset}: {terms.adjacency}, {decides} decides, opened {_when(terms.created)} UTC"
    show_table(("", "epsilon", "delta"), rows, title=title)


def show_releases(ledger: Ledger) -> None:
    """Print one row per release: the entries that were confirmed together for one purpose, and their sum."""
    groups = [list(group) for _, group in itertools.groupby(ledger.entries(), key=_release)]
    with_delta = any(entry.cost.plain[1] for group in groups for entry in group)
    head = ["entries", "UTC", "queries", "epsilon", *(["delta"] if with_delta else []), "purpose, noise"]
    typer.echo("")
    show_table(head, [_cells(group, with_delta=with_delta) for group in groups])


def _release(entry: Reservation) -> tuple[str | None, str, str]:
    """Return what neighbouring entries of one release have in common."""
    return entry.digest, entry.mechanism, entry.purpose


def _cells(group: Sequence[Reservation], *, with_delta: bool) -> list[str]:
    first, last = group[0], group[-1]
    parts = [entry.cost.plain[0] for entry in group]
    known = [part for part in parts if part is not None]  # a law without an epsilon has none
    return [
        str(first.entry) if first is last else f"{first.entry}–{last.entry}",
        _when(first.time).replace(" ", "\n"),
        str(sum(entry.cost.count for entry in group)),
        f"{float(sum(known, Fraction(0))):.4g}" if len(known) == len(parts) else "–",
        *([f"{float(sum(entry.cost.plain[1] for entry in group)):.4g}"] if with_delta else []),
        "\n".join([first.purpose, _law(group), *([] if first.digest else ["unconfirmed, counts as spent"])]),
    ]


def _when(time: str) -> str:
    return datetime.datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M:%S")


def _law(group: Sequence[Reservation]) -> str:
    """Return law, parameters and sensitivities of a group; the mechanism too where the law does not say it."""
    lines = []
    for name, same in itertools.groupby(group, key=lambda entry: entry.cost.law.name):
        entries = list(same)
        words = [name] if name == entries[0].mechanism else [f"{entries[0].mechanism} ({name})"]
        for key in ("scale", "stddev"):
            if values := [value for entry in entries if (value := entry.cost.law.to_dict().get(key)) is not None]:
                words.append(f"{key} {show_range(values, '.4g')}")
        if values := [entry.cost.sensitivity for entry in entries if entry.cost.sensitivity is not None]:
            words.append(f"sensitivity {show_range(values, '.4g')}")
        lines.append(", ".join(words))
    return "\n".join(lines)
