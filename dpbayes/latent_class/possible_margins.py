"""What structural zeros leave of the degrees of freedom of released margins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dpbayes.errors import InputError

if TYPE_CHECKING:
    from dpbayes.inference.margin_operator import MarginOperator
    from dpbayes.latent_class.zeros import ZeroSet

__all__ = ["possible_margins"]

_ZERO = 1e-9  # entries of small integer systems, eliminated in floating point


def possible_margins(operator: MarginOperator, zeros: ZeroSet) -> MarginOperator:
    r"""Take the released cells that cannot occur out of the degrees of freedom of a release.

    With :math:`n b_i + B_i m = 0` for every released cell i all of which is impossible, some effects are affine in the
    others. They are eliminated (the larger sets' first), so that impossible cells have no count to infer, and none of
    the likelihood's nugget.

    Parameters
    ----------
    operator
        The map from effects to released counts.
    zeros
        The impossible cells.

    Returns
    -------
    MarginOperator
        The same margins as functions of the effects that are left; rows of impossible cells are zero.

    Raises
    ------
    InputError
        If nothing is left: every released count is then known from n alone.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> from dpbayes.inference.margin_operator import margin_operator
    >>> from dpbayes.latent_class.zeros import ZeroSet
    >>> domain = Domain.from_levels({"age": ("child", "adult"), "married": (0, 1)})
    >>> operator = margin_operator(domain, [("age", "married")])
    >>> left = possible_margins(operator, ZeroSet.of(domain, [{"age": "child", "married": 1}]))
    >>> left.effects, left.counts([70, 30], n=100)  # adults, married ones
    ((((0, 1),), ((1, 1),)), array([30.,  0., 40., 30.]))
    """
    wanted = zeros.plan(operator.cells)
    rows = np.flatnonzero(wanted.own == len(wanted.cells))
    system = np.column_stack([operator.matrix[rows], operator.constant[rows]])
    pivots: dict[int, int] = {}  # eliminated effect -> row of the system
    row = 0
    for column in range(operator.n_effects - 1, -1, -1):
        best = row + int(np.argmax(np.abs(system[row:, column]))) if row < len(system) else row
        if row == len(system) or abs(system[best, column]) < _ZERO:
            continue
        system[[row, best]] = system[[best, row]]
        system[row] /= system[row, column]
        others = np.arange(len(system)) != row
        system[others] -= np.outer(system[others, column], system[row])
        pivots[column] = row
        row += 1
    kept = [effect for effect in range(operator.n_effects) if effect not in pivots]
    if not kept:
        raise InputError("the impossible combinations leave every released count known from n; take some back")
    gone, places = list(pivots), list(pivots.values())
    matrix = operator.matrix[:, kept] - operator.matrix[:, gone] @ system[np.ix_(places, kept)]
    constant = operator.constant - operator.matrix[:, gone] @ system[places, -1]
    clean = [np.where(np.abs(part) < _ZERO, 0.0, part) for part in (matrix, constant)]
    return replace(operator, effects=tuple(operator.effects[i] for i in kept), matrix=clean[0], constant=clean[1])
