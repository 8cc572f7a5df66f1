"""What a latent class model is built on before there are counts: its arguments, checked, and the margins they imply.

Nothing here imports PyMC, so that a mistake is found when a spec is read, and not after a release was paid for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from dpbayes._arguments import ordered, shown
from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import Cell, MarginOperator, margin_operator, only_pairs
from dpbayes.latent_class.possible_margins import possible_margins
from dpbayes.latent_class.zeros import Impossible, ZeroSet

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain

__all__ = [
    "CONCENTRATION",
    "PROFILE_PRIOR",
    "PROFILE_PRIOR_OF_MANY",
    "Design",
    "check_names",
    "checked_concentration",
    "checked_profile_prior",
    "margin_name",
]

CONCENTRATION = (40.0, 10.0)
"""Shape and rate of the default gamma prior of the stick-breaking concentration."""

PROFILE_PRIOR = 0.25
"""The default Dirichlet parameter of the class profiles."""

PROFILE_PRIOR_OF_MANY = 0.5
"""The same for more than eight attributes. With smaller values every class tends to one side of every attribute; so
many choices are separate explanations, each of which holds a chain for thousands of draws. This is Jeffreys' prior."""

_MANY_ATTRIBUTES = 8

# Beyond so many effects factoring their covariance is most of what a gradient costs, and summing pairs out takes a
# third of the time.
_MANY_EFFECTS = 100

# Names of dimensions and variables of the model, which no attribute may have: its own dimension would be theirs. The
# summaries of a trace have dimensions too: all draws as one, and the ends of an interval.
_DIMENSIONS = {"attribute", "break", "chain", "class", "count", "draw", "effect", "pair", "rank", "sample", "zero_part"}
_SUMMARIES = {"draws", "quantile"}
_SAMPLED = {"alpha", "deviates_of_profiles", "deviates_of_sizes", "effects", "n", "pair_levels", "stick"}
_RECORDED = {"cell", "exact_counts", "margin", "weights", "weights_sorted"}
_DATA = {"released", "released_counts", "released_n", "released_n_data", "structural_zeros"}
_RESERVED = _DIMENSIONS | _SUMMARIES | _SAMPLED | _RECORDED | _DATA
_RESERVED_STARTS = ("attribute_of_", "level_of_", "profiles_of_")


@dataclass(frozen=True, eq=False)
class Design:
    """The attributes, margins and structural zeros of a latent class model, and which of its forms they call for.

    Parameters
    ----------
    domain
        All attributes.
    operator
        The map from independent counts to the released ones, without those that cannot occur.
    margins
        The cells of each attribute set whose probabilities are recorded besides the released ones.
    zeros
        The impossible cells, if any.
    profile_prior
        The Dirichlet parameter of every class profile.
    sum_out_pairs
        Whether the counts of pairs of attributes are summed out.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"age": ("child", "adult"), "married": (0, 1)})
    >>> Design.of(domain, [("age", "married")]).operator.n_effects
    3
    >>> Design.of(domain, [("age", "married")], impossible=[{"age": "child", "married": 1}]).operator.n_effects
    2
    """

    domain: Domain
    operator: MarginOperator
    margins: dict[tuple[str, ...], tuple[Cell, ...]]
    zeros: ZeroSet | None
    profile_prior: float
    sum_out_pairs: bool

    @classmethod
    def of(
        cls,
        domain: Domain,
        tables: Sequence[Sequence[str]],
        *,
        n_classes: int = 8,
        likelihood: Literal["joint", "composite"] = "joint",
        concentration: float | Sequence[float] = CONCENTRATION,
        profile_prior: float | None = None,
        margins: Sequence[Sequence[str]] | None = None,
        impossible: Sequence[Impossible] = (),
        sum_out_pairs: bool | None = None,
    ) -> Design:
        """Check the arguments of `dpbayes.latent_class.build_model`, which says what they mean, and derive the rest.

        Parameters
        ----------
        domain
            All attributes.
        tables
            The attributes of each released table.
        n_classes, likelihood, concentration, profile_prior, margins, impossible, sum_out_pairs
            As for `dpbayes.latent_class.build_model`.

        Returns
        -------
        Design
            What the model is built on.

        Raises
        ------
        InputError
            If an argument is out of range, a name is that of a part of the model, or an attribute set does not fit the
            domain.
        """
        if isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 1:
            raise InputError(f"n_classes must be a whole number of at least 1, got {n_classes!r}")
        if likelihood not in ("joint", "composite"):
            raise InputError(f"likelihood must be 'joint' or 'composite', got {likelihood!r}")
        checked_concentration(concentration)
        requested = _requested(domain, margins or ())
        check_names(domain.names, tuple(requested))
        operator = margin_operator(domain, tables)
        prior = checked_profile_prior(profile_prior, domain)
        zeros = ZeroSet.of(domain, impossible) if impossible else None
        summed = _sums_out_pairs(sum_out_pairs, operator, likelihood, zeros)
        if zeros is not None:
            operator = possible_margins(operator, zeros)
        return cls(domain, operator, requested, zeros, prior, summed)


def checked_concentration(concentration: Any) -> float | tuple[float, float]:
    """Return a stick-breaking concentration, or shape and rate of its gamma prior, as plain numbers.

    Parameters
    ----------
    concentration
        A positive number, or a pair of them.

    Raises
    ------
    InputError
        If it is anything else.

    Examples
    --------
    >>> checked_concentration([40, 10])
    (40.0, 10.0)
    """
    if _is_positive(concentration):
        return float(concentration)
    pair = tuple(concentration) if isinstance(concentration, Iterable) else ()
    if len(pair) != 2 or not all(map(_is_positive, pair)):
        raise InputError(
            "concentration must be a positive number, or the shape and rate of its gamma prior, such as (40, 10); "
            f"got {shown(concentration)}"
        )
    return float(pair[0]), float(pair[1])


def checked_profile_prior(profile_prior: Any, domain: Domain) -> float:
    """Return the Dirichlet parameter of the class profiles as a plain number.

    Parameters
    ----------
    profile_prior
        A positive number, or None for the default.
    domain
        All attributes: where there are more than eight the default is `PROFILE_PRIOR_OF_MANY`.

    Raises
    ------
    InputError
        If it is anything else.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> checked_profile_prior(None, Domain.from_levels({"age": ("child", "adult"), "married": (0, 1)}))
    0.25
    """
    if profile_prior is None:
        return PROFILE_PRIOR_OF_MANY if len(domain) > _MANY_ATTRIBUTES else PROFILE_PRIOR
    if not _is_positive(profile_prior):
        raise InputError(
            f"profile_prior must be a positive and finite number, such as 0.25; got {shown(profile_prior)}"
        )
    return float(profile_prior)


def check_names(names: Sequence[str], margins: Sequence[Sequence[str]] = ()) -> None:
    """Refuse attributes whose names the model's own variables and dimensions have.

    Parameters
    ----------
    names
        All attributes.
    margins
        Attribute sets whose probabilities the model records, each as ``margin_A_B``.

    Raises
    ------
    InputError
        If a name is taken, or cannot be part of a variable's name.

    Examples
    --------
    >>> check_names(["age", "class"])
    Traceback (most recent call last):
    ...
    dpbayes.errors.InputError: attribute 'class' has the name of a part of the model; rename it
    """
    taken = _RESERVED | {f"profile_{name}" for name in names} | {margin_name(margin) for margin in margins}
    for name in names:
        if name in taken or name.startswith(_RESERVED_STARTS):
            raise InputError(f"attribute {name!r} has the name of a part of the model; rename it")
        if "/" in name or name.endswith("__"):
            raise InputError(
                f"attribute {name!r} cannot name a variable of the model: such names have no '/' and do not end in "
                "'__'; rename it"
            )


def margin_name(names: Sequence[str]) -> str:
    """Return the name under which the probabilities of a margin are recorded.

    Examples
    --------
    >>> margin_name(["age", "sex"])
    'margin_age_sex'
    """
    return "_".join(["margin", *names])


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return 0.0 < float(value) < math.inf
    except OverflowError:  # an int beyond the doubles
        return False


def _requested(domain: Domain, margins: Sequence[Sequence[str]]) -> dict[tuple[str, ...], tuple[Cell, ...]]:
    """Return the cells of the margins to record, whose names must differ."""
    remedy = "give lists of attributes, such as [['age', 'sex'], ['age']]"
    margins = [ordered(names, "a margin", remedy=remedy) for names in ordered(margins, "margins", remedy=remedy)]
    cells: dict[tuple[str, ...], tuple[Cell, ...]] = {}
    owner: dict[str, tuple[str, ...]] = {}
    for names in map(tuple, margins):
        found = margin_operator(domain, [names]).cells
        name = margin_name(names)
        if name in owner:
            what = f"{list(names)} twice" if owner[name] == names else f"{list(owner[name])} and {list(names)}"
            raise InputError(f"margins name {what}, recorded as {name!r} alike; leave one out")
        owner[name], cells[names] = names, found
    return cells


def _sums_out_pairs(wanted: bool | None, operator: MarginOperator, likelihood: str, zeros: ZeroSet | None) -> bool:
    """Return whether the joint likelihood has the counts of pairs summed out."""
    possible = likelihood == "joint" and zeros is None and only_pairs(operator)
    if wanted and not possible:
        raise InputError(
            f"sum_out_pairs=True does not go with {_in_the_way(operator, likelihood, zeros)}: it needs the joint "
            "likelihood, binary attributes, tables of one or two of them, and no structural zeros; leave it out"
        )
    return possible and operator.n_effects > _MANY_EFFECTS if wanted is None else wanted


def _in_the_way(operator: MarginOperator, likelihood: str, zeros: ZeroSet | None) -> str:
    """Return in words the first thing for which pairs cannot be summed out."""
    if likelihood != "joint":
        return f"likelihood={likelihood!r}"
    if zeros is not None:
        return "structural zeros (impossible=)"
    for attribute in operator.domain:
        if attribute.size != 2:
            return f"attribute {attribute.name!r} of {attribute.size} levels"
    largest = max(operator.axes, key=len)
    return f"the table of {', '.join(operator.domain.names[axis] for axis in largest)}"
