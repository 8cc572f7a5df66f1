"""A posterior in one table: what a notebook shows of a trace, and what a terminal prints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import number, shown
from dpbayes.errors import InputError
from dpbayes.inference.convergence import Verdict, check_convergence, judged_variables, mixing_table

if TYPE_CHECKING:
    import xarray as xr


_MOST_ROWS = 30


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorSummary:
    """Mean, sd, interval and mixing of every quantity, with the convergence check's verdict; `summarize` makes it.

    Printed, it is a table of text; at the end of a notebook's cell, a table of HTML. Both show the first 30 quantities.

    Parameters
    ----------
    quantities
        Names, such as ``"margin[count=age=0]"``.
    mean, sd
        Posterior means and standard deviations, shape ``(quantities,)``.
    interval
        Ends of the equal-tailed intervals, shape ``(quantities, 2)``.
    rhat, ess_bulk, ess_tail
        Mixing of the chains, shape ``(quantities,)``; NaN for a quantity that never moves, or has draws that are not
        finite.
    prob
        Probability of the intervals.
    chains, draws
        Numbers of chains, and of draws a chain.
    verdict
        Whether the trace may be trusted. It need not be about the quantities shown: labels of a mixture's classes
        switch, and what the model declares to be judged does not depend on them.
    """

    quantities: tuple[str, ...]
    mean: npt.NDArray[np.float64]
    sd: npt.NDArray[np.float64]
    interval: npt.NDArray[np.float64]
    rhat: npt.NDArray[np.float64]
    ess_bulk: npt.NDArray[np.float64]
    ess_tail: npt.NDArray[np.float64]
    prob: float
    chains: int
    draws: int
    verdict: Verdict

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of the numbers."""
        ends = (100 * q for q in ((1 - self.prob) / 2, (1 + self.prob) / 2))
        return ("mean", "sd", *(f"{end:.4g} %" for end in ends), "R-hat", "bulk ESS", "tail ESS")

    def rows(self) -> list[tuple[str, ...]]:
        """Return what is shown of each quantity: its name and its numbers as text."""
        places = zip(self.quantities, self.mean, self.sd, self.interval, self.rhat, self.ess_bulk, self.ess_tail,
                     strict=True)  # fmt: skip
        return [
            (name, *_to_the_sd((mean, sd, *ends), sd), *_text((rhat,), ".3f"), *_text((bulk, tail), ",.0f"))
            for name, mean, sd, ends, rhat, bulk, tail in places
        ]

    def __len__(self) -> int:
        return len(self.quantities)

    def __str__(self) -> str:
        rows = [("", *self.columns), *self.rows()[:_MOST_ROWS]]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        failures = (f"  {finding}" for finding in self.verdict.failures)
        return "\n".join([self._title, *lines, *([self._left_out] if self._left_out else []), self._said, *failures])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *self.columns))
        body = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>" + "".join(f"<td>{x}</td>" for x in numbers) + "</tr>"
            for name, *numbers in self.rows()[:_MOST_ROWS]
        )
        remedies = "".join(f"<li>{escape(str(finding))}</li>" for finding in self.verdict.failures)
        notes = [self._left_out, f"{'✓' if self.verdict.passed else '✗'} {self._said}"]
        below = "".join(f"<p>{escape(note)}</p>" for note in notes if note)
        return (
            f"<table><caption>{escape(self._title)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody style='text-align:right'>{body}</tbody></table>"
            + below
            + (f"<ul>{remedies}</ul>" if remedies else "")
        )

    @property
    def _title(self) -> str:
        number = f"{len(self):,} {'quantity' if len(self) == 1 else 'quantities'}"
        return f"Posterior of {number}, {self.chains} chains of {self.draws:,} draws, {100 * self.prob:g} % intervals"

    @property
    def _left_out(self) -> str:
        more = len(self) - _MOST_ROWS
        return f"... and {more:,} more; name variables with var_names" if more > 0 else ""

    @property
    def _said(self) -> str:
        return self.verdict.summary().partition("\n")[0]


def summarize(trace: "xr.DataTree", *, var_names: Sequence[str] | None = None, prob: float = 0.95) -> PosteriorSummary:
    """Summarize a posterior in one table, with the verdict of the convergence check.

    Parameters
    ----------
    trace
        Groups `posterior` and `sample_stats` as the output contract names them (`dpbayes.inference.schema`).
    var_names
        Posterior variables to show. By default those that convergence is judged on.
    prob
        Probability of the equal-tailed intervals.

    Returns
    -------
    PosteriorSummary
        With the verdict that the trace carries, or a fresh one of `check_convergence`.

    Raises
    ------
    InputError
        If a variable is not in the posterior, or the probability is not strictly between 0 and 1.

    References
    ----------
    Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-normalization, folding, and
    localization: an improved R-hat. Bayesian Analysis 16(2).

    Examples
    --------
    >>> import xarray as xr
    >>> rng = np.random.default_rng(1)
    >>> dims = ("chain", "draw")
    >>> stats = {"diverging": (dims, np.zeros((4, 500), bool)), "energy": (dims, rng.normal(size=(4, 500))),
    ...          "reached_max_treedepth": (dims, np.zeros((4, 500), bool))}
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"p": (dims, rng.normal(size=(4, 500)))}),
    ...                               "sample_stats": xr.Dataset(stats)})
    >>> print(summarize(tree))
    Posterior of 1 quantity, 4 chains of 500 draws, 95 % intervals
         mean     sd   2.5 %  97.5 %  R-hat  bulk ESS  tail ESS
    p  -0.007  1.000  -1.938   1.916  1.000     2,045     1,997
    Converged: all 6 checks passed on p.
    """
    if not 0 < number(prob, "prob") < 1:
        raise InputError(f"prob must lie strictly between 0 and 1, got {shown(prob)}; 0.95 is a 95 % interval")
    names = judged_variables(trace, var_names)
    table = mixing_table(trace, var_names=names)
    posterior = trace["posterior"].to_dataset()
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    # In the order of `mixing_table`: variable after variable, the last coordinate fastest.
    flat = [
        np.asarray(posterior[name].transpose("chain", "draw", ...), dtype=float).reshape(shape[0] * shape[1], -1)
        for name in names
    ]
    draws = np.concatenate(flat, axis=1)
    rhat, bulk, tail = (np.array([entry[key] for entry in table.values()]) for key in ("rhat", "ess_bulk", "ess_tail"))
    with np.errstate(invalid="ignore"):  # draws that are not finite: the numbers say so, and the verdict does
        mean, sd = draws.mean(axis=0), draws.std(axis=0, ddof=1)
        interval = np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2], axis=0).T
    return PosteriorSummary(
        tuple(table),
        mean,
        sd,
        interval,
        rhat,
        bulk,
        tail,
        prob=prob,
        chains=shape[0],
        draws=shape[1],
        verdict=Verdict.from_trace(trace) if "convergence" in trace.attrs else check_convergence(trace),
    )


def _to_the_sd(values: Sequence[float], sd: float) -> list[str]:
    """Print numbers to the third digit of a standard deviation: more would be noise, fewer would hide it."""
    if not (math.isfinite(sd) and sd > 0):
        return _text(values, ".4g")
    decimals = 2 - math.floor(math.log10(sd))
    return _text(values, f",.{max(decimals, 0)}f" if decimals <= 6 else ".4g")


def _text(values: Sequence[float], format_spec: str) -> list[str]:
    return ["–" if math.isnan(value) else format(float(value), format_spec) for value in values]
