"""The posterior shortcut: functionals and regressions of cell probabilities, evaluated draw by draw.

A regression is a functional of the joint distribution of its attributes: the coefficients that maximize the expected
log-likelihood under the cell probabilities. Evaluated at every posterior draw it has a posterior of its own, with
privacy noise, sampling and what the released margins leave open all in it; no synthetic data stand between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, number, shown
from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import margin_operator
from dpbayes.latent_class.cell_draws import Target, margin_draws
from dpbayes.latent_class.synthesis import fitted_domain, fitted_zeros
from dpbayes.latent_class.weighted_fits import weighted_linear, weighted_logistic

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data.domain import Domain
    from dpbayes.latent_class.zeros import ZeroSet
    from dpbayes.privacy.release import Release

__all__ = ["functional", "regress", "summarize"]

type Array = npt.NDArray[np.float64]


def functional(draws: xr.DataArray, function: Callable[[Array], npt.ArrayLike], *, name: str = "value") -> xr.DataArray:
    """Evaluate a function of the cell probabilities at every draw.

    Parameters
    ----------
    draws
        What `dpbayes.latent_class.margin_draws` returned.
    function
        From one draw's probabilities, an array with one axis an attribute, to a number or an array of numbers.
    name
        Name of the result.

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, and one for each axis of what the function returns.

    Raises
    ------
    InputError
        If the function returns other shapes for other draws.

    Examples
    --------
    >>> import xarray as xr
    >>> p = xr.DataArray([[[0.2, 0.8], [0.5, 0.5]]], dims=("chain", "draw", "vote"))
    >>> functional(p, lambda cells: cells[1] / cells[0], name="odds").values
    array([[4., 1.]])
    """
    import xarray as xr

    values = draws.transpose("chain", "draw", ...).to_numpy()
    rows = [np.asarray(function(cells)) for cells in values.reshape(-1, *values.shape[2:])]
    if len({row.shape for row in rows}) > 1:
        raise InputError(f"the function returned different shapes: {sorted({row.shape for row in rows})}")
    result = np.array(rows).reshape(*values.shape[:2], *rows[0].shape)
    dims = ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(rows[0].ndim)))
    coords = {dim: draws.coords[dim] for dim in ("chain", "draw") if dim in draws.coords}
    return xr.DataArray(result, dims=dims, coords=coords, name=name)


def regress(
    trace: xr.DataTree,
    formula: str,
    *,
    family: Literal["logistic", "linear"] = "logistic",
    target: Target = "population",
    release: Release | None = None,
    random_seed: int | None = None,
    thin: int = 1,
) -> xr.DataArray:
    r"""Return the posterior of a regression of one attribute on others.

    .. math:: \beta(P) = \arg\max_\beta \sum_x P(x)\, \ell(y_x, z_x^\top \beta),

    solved for all draws at once (Newton's method for the logistic family).

    Parameters
    ----------
    trace
        The fit of a latent class model.
    formula
        ``outcome ~ terms`` in Wilkinson's notation. Levels that are numbers enter as numbers, unless written as
        C(name); text levels enter as indicators against the first level. For a text outcome write
        ``{sex == "f"} ~ age``. Terms see one row a cell of the attributes in the formula; the fit has those rows that
        structural zeros leave possible.
    family
        ``"logistic"``: the outcome lies between 0 and 1. ``"linear"``: least squares.
    target, release, random_seed
        Whose coefficients: those of the population, or those that the n confidential records would give; see
        `dpbayes.latent_class.margin_draws`. The second interval is the narrower one.
    thin
        Take every so many-th draw of each chain.

    Returns
    -------
    xarray.DataArray
        Dims ``chain``, ``draw``, ``term``. `summarize` gives intervals.

    Raises
    ------
    InputError
        If the formula does not parse, names unknown attributes, its terms are collinear over the possible cells, or a
        draw has no finite solution; or as `dpbayes.latent_class.margin_draws`.

    Notes
    -----
    The interval is one for :math:`\beta(P)`, which the attributes' joint distribution defines whether or not the
    regression holds exactly, as is a sandwich interval from confidential records.

    Examples
    --------
    With `trace` a fit of tables of race, sex and income:

    >>> coefficients = regress(trace, "income ~ race + sex")
    >>> coefficients.sizes
    Frozen({'chain': 2, 'draw': 100, 'term': 3})
    >>> list(summarize(coefficients))  # a number for each term
    ['mean', 'stddev', 'lower', 'upper']
    """
    import xarray as xr

    if family not in ("logistic", "linear"):
        raise InputError(f"family must be 'logistic' or 'linear', got {family!r}")
    domain = fitted_domain(trace)
    names, outcome, matrix, terms = _cells_design(domain, formula)
    possible = _possible(domain, names, fitted_zeros(trace, domain))
    outcome, matrix = outcome[possible], matrix[possible]
    _check_rank(matrix, terms, formula)
    if family == "logistic" and not np.all((outcome >= 0) & (outcome <= 1)):
        raise InputError(
            f"a logistic outcome lies between 0 and 1, and that of {formula!r} takes {sorted(set(outcome.tolist()))}; "
            "write a comparison, as in {age == 2} ~ sex, or use family='linear'"
        )
    # Real counts: an empty cell would put a coefficient at infinity.
    draws = margin_draws(trace, names, target=target, release=release, random_seed=random_seed, whole=False, thin=thin)
    values = draws.to_numpy()
    solve = weighted_logistic if family == "logistic" else weighted_linear
    weights = values.reshape(-1, len(possible))[:, possible]
    coefficients = solve(weights / weights.sum(axis=1, keepdims=True), matrix, outcome)
    return xr.DataArray(
        coefficients.reshape(*values.shape[:2], -1),
        dims=("chain", "draw", "term"),
        coords={"chain": draws.chain, "draw": draws.draw, "term": list(terms)},
        name="coefficient",
    )


def summarize(draws: xr.DataArray, *, prob: float = 0.95) -> xr.Dataset:
    """Summarize posterior draws.

    Parameters
    ----------
    draws
        Dims ``chain``, ``draw`` and any others.
    prob
        Probability of the equal-tailed interval.

    Returns
    -------
    xarray.Dataset
        ``mean``, ``stddev``, ``lower``, ``upper`` over the other dims.

    Raises
    ------
    InputError
        If `prob` is out of range.

    Examples
    --------
    >>> import xarray as xr
    >>> draws = xr.DataArray(np.arange(101.0)[None], dims=("chain", "draw"))
    >>> summary = summarize(draws, prob=0.9)
    >>> [round(summary[name].item(), 9) for name in ("mean", "lower", "upper")]
    [50.0, 5.0, 95.0]
    """
    import xarray as xr

    instance(draws, xr.DataArray, "draws", remedy="margin_draws and regress return them")
    if not 0.0 < number(prob, "prob") < 1.0:
        raise InputError(f"prob must lie between 0 and 1, got {shown(prob)}; 0.95 is usual")
    over = ("chain", "draw")
    ends = draws.quantile([(1 - prob) / 2, (1 + prob) / 2], over)
    return xr.Dataset(
        {
            "mean": draws.mean(over),
            "stddev": draws.std(over, ddof=1),
            "lower": ends.isel(quantile=0, drop=True),
            "upper": ends.isel(quantile=1, drop=True),
        }
    )


def _cells_design(domain: Domain, formula: str) -> tuple[tuple[str, ...], Array, Array, tuple[str, ...]]:
    """Return the attributes in a formula, and outcome and design with one row a cell of theirs."""
    import pandas as pd
    from formulaic import Formula, model_matrix
    from formulaic.errors import FormulaicError

    try:
        parsed: Any = Formula(formula)
        used = set(parsed.required_variables)
        two_sided = hasattr(parsed, "lhs") and hasattr(parsed, "rhs")
    except (FormulaicError, SyntaxError, AttributeError, TypeError) as error:
        raise InputError(f"formula {formula!r} does not parse as 'outcome ~ terms': {error}") from error
    if not two_sided:
        raise InputError(f"formula {formula!r} has no outcome; write 'outcome ~ terms'")
    unknown = sorted(map(str, used - set(domain.names)))
    if unknown:
        raise InputError(f"formula {formula!r} names {unknown}; the attributes are {list(domain.names)}")
    names = tuple(name for name in domain.names if name in used)
    levels = [domain[name].levels for name in names]
    grid = np.indices([len(of) for of in levels]).reshape(len(names), -1)
    frame = pd.DataFrame({name: _column(of, index) for name, of, index in zip(names, levels, grid, strict=True)})
    try:
        matrices = model_matrix(parsed, frame, context={}, output="pandas")
    except (FormulaicError, NameError, TypeError, ValueError) as error:
        raise InputError(f"formula {formula!r} cannot be evaluated on the cells: {error}") from error
    left, right = matrices.lhs, matrices.rhs
    if left.shape[1] != 1:
        raise InputError(
            f"the outcome of {formula!r} has the columns {list(left.columns)}; write a comparison with one level, as "
            'in {sex == "f"} ~ age'
        )
    matrix = np.ascontiguousarray(right.to_numpy(dtype=np.float64))
    return names, left.to_numpy(dtype=np.float64)[:, 0], matrix, tuple(map(str, right.columns))


def _possible(domain: Domain, names: Sequence[str], zeros: ZeroSet | None) -> npt.NDArray[np.bool_]:
    """Say of which cells of a margin structural zeros leave something."""
    cells = margin_operator(domain, [names]).cells
    if zeros is None:
        return np.ones(len(cells), dtype=bool)
    plan = zeros.plan(cells)
    return plan.own < len(plan.cells)


def _check_rank(matrix: Array, terms: Sequence[str], formula: str) -> None:
    """Refuse terms whose coefficients the cells do not determine, by the names of those that take part."""
    if not terms:
        raise InputError(f"the terms of {formula!r} are empty; name one, or an intercept: 'outcome ~ 1'")
    # Each column in its own unit: beside the square of a year, a constant would look like nothing.
    scaled = matrix / np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    null = np.eye(len(terms))[np.linalg.matrix_rank(scaled) :] @ np.linalg.svd(scaled)[2]
    if len(null):
        collinear = [term for term, part in zip(terms, np.abs(null).max(axis=0), strict=True) if part > 1e-9]
        raise InputError(
            f"the terms {collinear} of {formula!r} are collinear over the cells that can occur: no record tells their "
            "coefficients apart; leave one out"
        )


def _column(levels: tuple[Any, ...], index: npt.NDArray[np.intp]) -> Any:
    import pandas as pd

    if all(isinstance(level, int) for level in levels):
        return np.array(levels, dtype=np.float64)[index]
    return pd.Categorical.from_codes(index, categories=[str(level) for level in levels])
