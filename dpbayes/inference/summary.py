"""A posterior in one table: what a notebook shows of a trace, and what a terminal prints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd

from dpbayes._arguments import strictly_between
from dpbayes._lazy import xr
from dpbayes.inference.convergence import Verdict, check_convergence, members_of, mixing, quantity_draws

_MOST_ROWS = 30


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorSummary:
    """Mean, sd, interval and mixing of every quantity, with the convergence check's verdict; `summarize` makes it.

    Printed, it is a table of text; at the end of a notebook's cell, a table of HTML. Both show the first 30 quantities.

    Parameters
    ----------
    table
        One row per quantity, such as ``"margin[count=age=0]"``, with the columns ``mean``, ``sd``, ``lower``,
        ``upper``, ``rhat``, ``ess_bulk`` and ``ess_tail``; the last three are NaN for a quantity that never moves, or
        has draws that are not finite.
    prob, chains, draws
        Probability of the equal-tailed intervals, number of chains, and of draws per chain.
    verdict
        Whether the trace may be trusted. It need not be about the quantities shown: labels of a mixture's classes
        switch, and what the model declares to be judged does not depend on them.
    """

    table: pd.DataFrame
    prob: float
    chains: int
    draws: int
    verdict: Verdict

    def __len__(self) -> int:
        return len(self.table)

    def __str__(self) -> str:
        table = self._shown.to_string(max_colwidth=None)
        failures = (f"  {finding}" for finding in self.verdict.failures)
        return "\n".join([self._title, table, *([self._left_out] if self._left_out else []), self._said, *failures])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self._shown.to_html(border=0).replace("<thead>", f"<caption>{escape(self._title)}</caption><thead>", 1)
        notes = [self._left_out, f"{'✓' if self.verdict.passed else '✗'} {self._said}"]
        remedies = "".join(f"<li>{escape(str(finding))}</li>" for finding in self.verdict.failures)
        below = "".join(f"<p>{escape(note)}</p>" for note in notes if note)
        return table + below + (f"<ul>{remedies}</ul>" if remedies else "")

    @property
    def _shown(self) -> pd.DataFrame:
        """The first rows as text: numbers to the third digit of the standard deviation, more would be noise."""
        ends = (100 * q for q in ((1 - self.prob) / 2, (1 + self.prob) / 2))
        headings = ["mean", "sd", *(f"{end:.4g} %" for end in ends), "R-hat", "bulk ESS", "tail ESS"]
        rows = [
            [*_text((mean, sd, low, high), _digits(sd)), *_text((rhat,), ".3f"), *_text((bulk, tail), ",.0f")]
            for mean, sd, low, high, rhat, bulk, tail in self.table.head(_MOST_ROWS).to_numpy()
        ]
        return pd.DataFrame(rows, index=self.table.index[:_MOST_ROWS], columns=headings)

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


def summarize(
    trace: "xr.DataTree", *, var_names: Sequence[str] | str | None = None, prob: float = 0.95
) -> PosteriorSummary:
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
         mean     sd   2.5 % 97.5 %  R-hat bulk ESS tail ESS
    p  -0.007  1.000  -1.938  1.916  1.000    2,045    1,997
    Converged: all 6 checks passed on p.
    """
    strictly_between(prob, "prob", 0, 1, remedy="0.95 is a 95 % interval")
    quantities, draws = quantity_draws(trace, var_names=var_names)
    members = members_of(trace["sample_stats"].to_dataset() if "sample_stats" in trace.children else None)
    with np.errstate(invalid="ignore"):  # draws that are not finite: the numbers say so, and the verdict does
        lower, upper = np.quantile(draws, [(1 - prob) / 2, (1 + prob) / 2], axis=(1, 2))
        columns = {"mean": draws.mean(axis=(1, 2)), "sd": draws.std(axis=(1, 2), ddof=1)}
    columns |= {"lower": lower, "upper": upper}
    table = pd.DataFrame(columns | mixing(draws, members=members)._asdict(), index=list(map(str, quantities)))
    verdict = Verdict.from_trace(trace) if "convergence" in trace.attrs else check_convergence(trace)
    return PosteriorSummary(table, prob, draws.shape[1], draws.shape[2], verdict)


def _digits(sd: float) -> str:
    if not (math.isfinite(sd) and sd > 0):
        return ".4g"
    decimals = 2 - math.floor(math.log10(sd))
    return f",.{max(decimals, 0)}f" if decimals <= 6 else ".4g"


def _text(values: Sequence[float], format_spec: str) -> list[str]:
    return ["–" if math.isnan(value) else format(float(value), format_spec) for value in values]
