"""Tables, calibration and plots behind `dpbayes privacy`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from dpbayes.cli._figures import check_figure
from dpbayes.errors import InputError
from dpbayes.privacy.gaussian import gaussian_epsilon
from dpbayes.privacy.ledger_rounding import decimal_reading
from dpbayes.privacy.loss_law import Bounds

__all__ = ["GaussianTotal", "Query", "answer"]

_DELTAS = (1e-3, 1e-5, 1e-7, 1e-9)
_MEANING = {
    "replace-one": "neighbours differ in the record of one person; the number of records is public",
    "add-remove": "one neighbour holds one record more; the number of records is protected",
}


class Total(Protocol):
    """Anything with a certified epsilon at delta."""

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Return the ends of the smallest epsilon at `delta`."""
        ...


@dataclass(frozen=True)
class GaussianTotal:
    """Composed Gaussian mechanisms: sensitivity times the root of the number of runs, over the stddev."""

    mu: float

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Return the ends of the smallest epsilon at `delta`; the closed form is right to 1e-12."""
        if delta <= 0:
            return Bounds(math.inf, math.inf)
        value = float(gaussian_epsilon(self.mu, delta))
        return Bounds(value * (1 - 1e-12), value * (1 + 1e-12))


@dataclass(frozen=True)
class Query:
    """What was asked on the command line."""

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
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise InputError(f"--epsilon must be positive and finite, got {self.epsilon}")
        if self.compositions < 1:
            raise InputError(f"--compositions must be at least 1, got {self.compositions}")
        for delta in self.deltas or ():
            if not 0 <= delta < 1:
                raise InputError(f"--delta must be at least 0 and below 1, got {delta}; a usual choice is below 1 / n")
        check_figure(self.plot)
        if self.value is not None and not 0 < self.value < math.inf:
            raise InputError(f"{option} must be positive and finite, got {self.value}")
        if self.sensitivity is not None and not 0 < self.sensitivity < math.inf:
            raise InputError(f"--sensitivity must be positive and finite, got {self.sensitivity}")

    @property
    def whole_change(self) -> Fraction:
        """Sum of the sensitivities of all runs: epsilon at delta 0 times the scale, for a law with a pure guarantee."""
        return self.compositions * decimal_reading(self.sensitivity or 0.0)

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
    query: Query, build: Callable[[float], Total], *, largest_below: Callable[[float], float] = lambda noise: noise
) -> None:
    """Print the table of `query`, and write its plot.

    Parameters
    ----------
    query
        What to answer.
    build
        The composed loss of a parameter value.
    largest_below
        Maps an amount of noise to the parameter; epsilon falls with the noise.
    """
    from rich.console import Console
    from rich.table import Table

    deltas = query.deltas or list(_DELTAS)
    if query.value is not None:
        loss = build(query.value)
        title = query.title
        table = Table("delta", "epsilon", "not below")
        for delta in deltas:
            least, most = _ends(query, loss, delta)
            table.add_row(f"{delta:g}", _round(most, ROUND_CEILING), _round(least, ROUND_FLOOR))
        curves = {title: loss}
    else:
        assert query.epsilon is not None
        title = f"{query.title}: least noise for epsilon {query.epsilon:g}"
        table = Table("delta", query.parameter)
        curves = {}
        for delta in deltas:
            exact = query.whole_change / decimal_reading(query.epsilon) if query.pure else math.inf
            value: float | Fraction = exact
            if not query.pure or delta > 0:
                found = largest_below(_calibrate(lambda noise: build(largest_below(noise)), query.epsilon, delta))
                value = min(found, exact)  # what is enough at delta 0 is enough at any
            increasing = largest_below(2.0) > largest_below(1.0)
            shown = _round(value, ROUND_CEILING if increasing else ROUND_FLOOR)
            table.add_row(f"{delta:g}", shown)
            curves[f"{query.parameter} {shown}, for delta {delta:g}"] = build(float(shown))
    console = Console(highlight=False, soft_wrap=True)
    console.print(title, markup=False)
    console.print(table)
    console.print(f"adjacency {query.adjacency}: {_MEANING[query.adjacency]}")
    if query.plot is not None:
        _draw(query, curves, query.plot)
        console.print(f"plot: {query.plot}", markup=False)


def _ends(query: Query, loss: Total, delta: float) -> tuple[float | Fraction, float | Fraction]:
    """Return the ends of epsilon at `delta`: one exact number where the law has a pure guarantee."""
    if query.pure and delta == 0:
        assert query.value is not None
        exact = query.whole_change / decimal_reading(query.value)
        return exact, exact
    ends = loss.epsilon_bounds(delta)
    return ends.lower, ends.upper


def _calibrate(build: Callable[[float], Total], epsilon: float, delta: float) -> float:
    """Least noise with epsilon(delta) at most `epsilon`, to seven digits, found from the safe side."""
    from scipy.optimize import brentq

    def excess(log_noise: float) -> float:
        upper = build(math.exp(log_noise)).epsilon_bounds(delta).upper
        return min(upper, 1e9) / epsilon - 1

    high = 0.0
    while excess(high) > 0:
        high += 1.0
        if high > 40:
            raise InputError(
                f"no amount of noise gives epsilon {epsilon:g} at delta {delta:g}; ask for a delta above 0"
            )
    low = high - 1.0
    while excess(low) <= 0:
        low, high = low - 1.0, low
    root = brentq(excess, low, high, xtol=1e-8, rtol=1e-8)
    while excess(root) > 0:
        root += 1e-8
    return math.exp(root)


def _round(value: float | Fraction, rounding: str) -> str:
    """Six significant digits, rounded in the given direction; all of them when there are fewer."""
    if not math.isfinite(value):
        return "infinite"
    exact = Fraction(value)
    digits = Context(prec=6, rounding=rounding).divide(Decimal(exact.numerator), Decimal(exact.denominator))
    return f"{digits.normalize():f}"


def _draw(query: Query, curves: dict[str, Total], path: Path) -> None:
    """Epsilon as a function of delta, one line a curve."""
    import numpy as np
    from matplotlib.figure import Figure

    deltas = np.logspace(-12, -1, 89)
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for label, loss in curves.items():
        epsilons = [loss.epsilon_bounds(float(delta)).upper for delta in deltas]
        axes.plot(deltas, np.where(np.isfinite(epsilons), epsilons, np.nan), label=label, linewidth=1.8)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(deltas[0], deltas[-1])
    axes.set_xlabel("delta")
    axes.set_ylabel("epsilon (rounded up)")
    axes.set_title(f"{query.title}\nadjacency: {query.adjacency}", fontsize=10, loc="left")
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if query.epsilon is not None:
        axes.axhline(query.epsilon, color="0.4", linewidth=0.8, linestyle="--")
        axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
