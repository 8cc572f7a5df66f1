"""What the gate found, as data, as text and as HTML."""

import json
import math
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Self

from dpbayes.errors import DamagedFileError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Finding", "Quantity", "Verdict"]

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
}
_BOUNDS = {"chains": "≥", "constant": "of", "rhat": "≤", "ess_bulk": "≥", "ess_tail": "≥", "bfmi": "≥"}


@dataclass(frozen=True)
class Quantity:
    """One number of the posterior.

    Parameters
    ----------
    name
        Its variable.
    where
        Dimension and coordinate of each axis besides chain and draw.

    Examples
    --------
    >>> str(Quantity("margin", (("entry", "SEX=F"),)))
    'margin[entry=SEX=F]'
    """

    name: str
    where: tuple[tuple[str, str | int | float], ...] = ()

    def __str__(self) -> str:
        place = ", ".join(f"{dim}={label}" for dim, label in self.where)
        return f"{self.name}[{place}]" if place else self.name


@dataclass(frozen=True)
class Finding:
    """One check of the gate.

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
    """All findings of the gate on one trace.

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
        draws from `dpbayes.inference.quantities.quantity_draws`.
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
