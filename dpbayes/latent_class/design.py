"""What a latent class model is built on before there are counts: its arguments, checked, and the cells they imply.

Nothing here imports PyMC, so that a mistake is found when a spec is read, and not after a release was paid for.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from numbers import Real
from typing import Any, Literal, Self, get_args

import numpy as np

from dpbayes._arguments import Floats, one_of, ordered, positive_finite, shown, whole_number
from dpbayes._lazy import xr
from dpbayes._names import variable_name
from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.latent_class.zeros import Impossible, Support
from dpbayes.privacy.release import Release

type Cell = tuple[tuple[int, int], ...]  # a cell of some margin: (axis, level) pairs, by ascending axis
type Profiles = Literal["common", "dirichlet"]
type Likelihood = Literal["cells", "tables"]

# Shape and rate of the gamma prior of the stick-breaking concentration: where noise hides nearly everything, or less.
CONCENTRATIONS = ((40.0, 40.0), (40.0, 10.0))
# Standard deviations of profiles about the released shares, in logs: of smaller models, of larger ones, of those whose
# population varies. The wider, the likelier is strong dependence, and the worse chains of larger models mix.
SPREADS = (6.0, 4.0, 2.5)
PROFILE_PRIOR = 0.5  # the default Dirichlet parameter of class profiles, where they are asked for
OVERDISPERSION = 2.0  # standard deviation of the logarithm of the overdispersion, whose median is 1, a priori
MOST_CLASSES = 20
FEW_CELLS = 100  # released, up to which all tables are taken jointly whatever the noise: that is faster there
MAX_JOINT_CELLS = 1500  # that are taken jointly: a gradient costs the square of their number
MAX_RECORDED_CELLS = 4096  # of the full table that are recorded by default
MAX_EXACT_CELLS = 20_000  # released, whose exact counts are drawn with every draw of the posterior
LOW_RATIO = 0.5  # of sampling to noise (`sampling_ratio`), above which all tables are taken jointly
SEVERAL_CELLS = 600  # taken jointly, up to which noise that sampling does not hide keeps its law
HIDDEN_RATIO = 0.02  # up to which the prior decides how strong dependence may be
FEW_RATIO = 0.2  # up to which noise leaves no more classes than the prior has
ROUNDING = 1e-3  # of a count, in standard deviations of its noise, that chains may be moved by
START_RATIO = 0.05  # above which chains start near the released shares, and are not annealed
# Classes times levels beyond which chains are more and rounds fewer, and beyond which chains are fewer, for time.
SEVERAL, LARGE = 1_500, 4_000

# Names of dimensions and variables of the model, which no attribute's own dimension may have; those of draws, and of
# summaries of draws, stand beside the attributes in every result, so that no attribute may have them.
_OF_DRAWS = {"chain", "draw", "draws", "quantile", "sample"}
_DIMENSIONS = {"attribute", "break", "case", "class", "combination", "count", "level", "rank", "zero_part"}
_SAMPLED = {"alpha", "stick", "level_scores", "level_weights", "n", "overdispersion"}
_SAMPLED |= {"count_deviations", "size_deviations", "level_deviations"}
_RECORDED = {"cell", "exact_counts", "given_mean", "given_variance", "margin", "margin_sample", "profiles", "weights"}
_RECORDED |= {"weights_sorted"}
_DATA = {"released", "released_counts", "released_n", "released_n_data", "released_shares", "structural_zeros"}
_DERIVED = {"count_gain", "count_root", "n_prior", "n_records", "rotated_counts", "rotation", "sampling_root"}
_DERIVED |= {"concentration", "spread"}
_RESERVED = _OF_DRAWS | _DIMENSIONS | _SAMPLED | _RECORDED | _DATA | _DERIVED


@dataclass(frozen=True, eq=False)
class Design:
    """The attributes, margins and possible records of a latent class model, and its number of classes."""

    domain: Domain
    tables: tuple[tuple[str, ...], ...]
    n_classes: int
    margins: tuple[tuple[str, ...], ...]
    support: Support

    @classmethod
    def of(
        cls,
        domain: Domain,
        tables: Sequence[Sequence[str]],
        *,
        n_classes: int | None = None,
        concentration: float | Sequence[float] | None = None,
        profiles: Profiles = "common",
        spread: float | None = None,
        profile_prior: float = PROFILE_PRIOR,
        likelihood: Likelihood | None = None,
        overdispersion: bool | None = None,
        margins: Sequence[Sequence[str]] | None = None,
        impossible: Sequence[Impossible] = (),
    ) -> Self:
        """Check the arguments of `dpbayes.latent_class.build_model`, and derive the rest."""
        sets = tuple(tuple(names) for names in tables)
        if not sets or not all(sets):
            raise InputError(f"a margin needs one attribute or more, got the attribute sets {list(sets)!r}")
        classes = classes_for(domain, sets) if n_classes is None else whole_number(n_classes, "n_classes")
        one_of(profiles, get_args(Profiles.__value__), "profiles")
        if likelihood is not None:
            one_of(likelihood, get_args(Likelihood.__value__), "likelihood", remedy="None chooses")
        if overdispersion not in (None, True, False):
            raise InputError(f"overdispersion must be True, False or None (which chooses), got {shown(overdispersion)}")
        if overdispersion and likelihood == "tables":
            raise InputError("overdispersion=True needs likelihood='cells'; leave one of them out")
        counts = sum(domain.project(names).size for names in sets)
        if overdispersion and counts > MAX_EXACT_CELLS:
            raise InputError(
                f"overdispersion=True needs draws of the exact counts, of at most {MAX_EXACT_CELLS:,} cells, and there "
                f"are {counts:,}; leave it out"
            )
        if concentration is not None:
            checked_concentration(concentration)
        for name, value in (("spread", spread), ("profile_prior", profile_prior)):
            if value is not None:
                positive_finite(value, name, remedy="such as 0.5")
        if taken := _OF_DRAWS.intersection(domain.names):
            raise InputError(f"attribute {min(taken)!r} has the name of a dimension of posterior draws; rename it")
        requested = _requested(domain, margins or ())
        for names in sets:
            domain.axes(names)
        return cls(domain, sets, classes, requested, Support.of(domain, impossible))

    @property
    def recorded(self) -> dict[str, tuple[str, ...]]:
        """The attributes of what may be recorded besides the released margins, by the variable's name."""
        return {margin_name(names): names for names in self.margins} | {"cell": self.domain.names}


def sampler_defaults(
    release: Release | None = None, *, method: Literal["many-chains", "nuts"] = "many-chains"
) -> dict[str, Any]:
    """Return the sampler settings for the models of `build_model`.

    Parameters
    ----------
    release
        576 chains of 12 draws: the worst of hundreds of margins needs so many independent draws for an R-hat below
        1.01. With a release, 48 steps of adaptation where chains climb to a mode first, since noise is not large, and
        the likelihood is cell by cell, and smaller steps where more than a hundred counts are taken jointly. Where
        classes times levels are more than 1,500, chains are of 8 draws, after 12 steps of adaptation where they climb;
        up to 4,000 they are 896, and beyond 512.
    method
        Many short chains find the modes that arrangements of the classes are; NUTS is for comparison, and for
        few tables.

    Returns
    -------
    dict
        Keyword arguments of `dpbayes.inference.sample`.

    Examples
    --------
    >>> sampler_defaults()["method"]
    'many-chains'
    """
    if method == "nuts":
        return {"method": "nuts", "chains": 4, "draws": 1500, "tune": 800, "target_accept": 0.9}
    settings = {"method": "many-chains", "target_accept": 0.9, "max_steps": 60, "own_scales": True}
    settings |= {"chains": 576, "tune": 24, "draws": 12, "trajectories": 12}
    if release is None:
        return settings
    size = _size(release)
    if size <= SEVERAL:
        if default_likelihood(release) == "tables":  # of many counts, a thousandth of longer steps diverges
            return settings | ({"target_accept": 0.95} if release.n_counts > FEW_CELLS else {})
        return settings | ({"tune": 48} if starts_near_shares(release) else {})
    settings |= {"draws": 8, "trajectories": 8, "rounds": 3}  # each takes memory for as many draws again
    if starts_near_shares(release):  # there chains climb and settle, and adapt meanwhile
        settings |= {"tune": 12}
    return settings | {"chains": 512 if size > LARGE else 896}


def _size(release: Release) -> int:
    """Return the number of the default's classes times that of all levels."""
    return classes_for(release.domain, [table.attributes for table in release.tables]) * sum(release.domain.shape)


def starts_near_shares(release: Release) -> bool:
    """Return whether noise is so small that chains which are annealed from the prior would stay behind."""
    return _ratio(release) > START_RATIO


def few_classes_hold_most(release: Release) -> bool:
    """Return whether noise leaves no more classes in use than the prior has, while a mode has all."""
    return _ratio(release) <= FEW_RATIO


def default_concentration(release: Release) -> tuple[float, float]:
    """Return the gamma prior that suits a release: with fewer classes in use strong dependence is more likely."""
    return CONCENTRATIONS[_ratio(release) > HIDDEN_RATIO]


def default_overdispersion(release: Release) -> bool:
    """Return whether so many counts with so little noise show that the population is no mixture of a few classes."""
    return MAX_JOINT_CELLS < release.n_counts <= MAX_EXACT_CELLS and _ratio(release) > LOW_RATIO


def default_spread(release: Release) -> float:
    """Return the profiles' spread that suits a release."""
    smaller, larger, varying = SPREADS
    if default_overdispersion(release):
        return varying
    return smaller if _size(release) <= SEVERAL else larger


def default_likelihood(release: Release, *, overdispersion: bool | None = None) -> Likelihood:
    """Return the form of the likelihood that suits a release."""
    if overdispersion:
        return "cells"
    if release.n_counts <= FEW_CELLS:
        return "tables"
    return "tables" if _ratio(release) > LOW_RATIO and release.n_counts <= MAX_JOINT_CELLS else "cells"


def noise_keeps_its_law(release: Release) -> bool:
    """Return whether tables that are taken jointly see the noise's own law, or, to save time, its variances alone.

    With its own law the deviations of the exact counts are unknowns, and the corners of Laplace laws make steps small.
    Where sampling is more than noise there is nothing to gain: their sum is nearly normal.
    """
    if release.n_counts <= FEW_CELLS:
        return True
    return release.n_counts <= SEVERAL_CELLS and _ratio(release) <= 1.0


def single_precision_suffices(release: Release) -> bool:
    """Return whether an expected count of 24 bits is off by at most a thousandth of its noise's standard deviation."""
    least = min(table.variances.min() for table in release.tables) ** 0.5
    return bool(release.size * 2.0**-24 <= ROUNDING * least)


def _ratio(release: Release) -> float:
    from dpbayes.latent_class.likelihood import released_shares, sampling_ratio  # loads PyTensor

    return sampling_ratio(release, released_shares(release))


def classes_for(domain: Domain, tables: Sequence[Sequence[str]]) -> int:
    """Return the default number of classes: 1.4 times the root of the tables' independent counts, from 8 to 20."""
    return min(MOST_CLASSES, max(8, math.ceil(1.4 * math.sqrt(n_effects(domain, tables)))))


def n_effects(domain: Domain, tables: Sequence[Sequence[str]]) -> int:
    """Return how many independent counts lie behind the cells of some margins, besides n."""
    sizes = dict(zip(domain.names, domain.shape, strict=True))
    effects = {part for names in tables for size in range(len(names)) for part in combinations(sorted(names), size + 1)}
    return sum(math.prod(sizes[name] - 1 for name in part) for part in effects)


def cells_of(domain: Domain, names: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells of a margin in C order."""
    axes = domain.axes(names)
    shape = [domain.shape[axis] for axis in axes]
    return tuple(tuple(sorted(zip(axes, levels, strict=True))) for levels in np.ndindex(*shape))


def released_cells(release: Release) -> list[Cell]:
    """Return the cells of all released tables, table after table in C order."""
    return [cell for table in release.tables for cell in cells_of(release.domain, table.attributes)]


def cell_labels(domain: Domain, names: Sequence[str]) -> list[str]:
    """Return the labels of a margin's cells in C order, such as ``age=child, married=0``."""
    attributes = domain.attributes
    return [
        ", ".join(f"{attributes[axis].name}={attributes[axis].levels[level]}" for axis, level in cell)
        for cell in cells_of(domain, names)
    ]


def checked_concentration(concentration: Any) -> float | tuple[float, float]:
    """Return a stick-breaking concentration, or shape and rate of its gamma prior, as plain numbers."""
    if _is_from(1e-6, concentration):
        return float(concentration)
    pair = tuple(concentration) if isinstance(concentration, Iterable) else ()
    if len(pair) != 2 or not (_is_from(0.1, pair[0]) and _is_from(1e-6, pair[1])):
        raise InputError(
            "concentration must be a number from 1e-6 to 1e6, or the shape and rate of its gamma prior, such as "
            "(40, 10), the shape from 0.1 (below, its draws underflow) to 1e6 and the rate from 1e-6 to 1e6; got "
            f"{shown(concentration)}"
        )
    return float(pair[0]), float(pair[1])


def profile_name(name: str) -> str:
    """Return the name under which a trace has the class profiles of an attribute, such as ``profile_age``."""
    return variable_name(f"profile_{name}")


def dimension_name(name: str) -> str:
    """Return the dimension of an attribute in a trace: its name, escaped where the model has that name itself."""
    own = variable_name(name)
    taken = own in _RESERVED or own.startswith(("profile_", "margin_"))
    return f"%{ord(own[0]):02X}{own[1:]}" if taken else own


def margin_name(names: Sequence[str]) -> str:
    """Return the name under which the probabilities of a margin are recorded, such as ``margin_age_sex``."""
    return variable_name("_".join(["margin", *names]))


def _is_from(low: float, value: Any) -> bool:
    """Return whether a value is a real number from `low` to a million."""
    real: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    return bool(low <= real <= 1e6)


def _requested(domain: Domain, margins: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the margins to record, whose names must differ."""
    remedy = "give lists of attributes, such as [['age', 'sex'], ['age']]"
    margins = [ordered(names, "a margin", remedy=remedy) for names in ordered(margins, "margins", remedy=remedy)]
    owner: dict[str, tuple[str, ...]] = {}
    for names in map(tuple, margins):
        if not names:
            raise InputError("a margin needs one attribute or more, got the attribute sets [()]")
        if len(set(names)) < len(names):
            raise InputError(f"the margin {' x '.join(names)} repeats an attribute; name each once")
        domain.axes(names)
        name = margin_name(names)
        if name in owner:
            what = f"{list(names)} twice" if owner[name] == names else f"{list(owner[name])} and {list(names)}"
            raise InputError(f"margins name {what}, recorded as {name!r} alike; leave one out")
        owner[name] = names
    return tuple(owner.values())


def prior_of_n(release: Release) -> tuple[float, float]:
    r"""Return centre and scale of the log-normal prior of a number of records that was released with noise.

    Its median is the release's own estimate of n, or that estimate's standard deviation where that is more: else a
    released number near or below zero would hold n at a record or so whatever the tables say. A scale of one puts 95 %
    within a factor of seven: where the release tells n to half of itself or better, the likelihood decides.
    """
    return math.log(max(*release.estimated_size, 1.0)), 1.0


def record_numbers(posterior: "xr.Dataset", release: Release) -> "xr.DataArray":
    """Return the number of records of every draw."""
    if not isinstance(release.n, int) and "n" in posterior:
        return posterior["n"].transpose("chain", "draw")
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    return xr.DataArray(np.full(shape, float(release.size)), dims=("chain", "draw"))


def flat_draws(posterior: "xr.Dataset", name: str) -> Floats:
    """Return draws of a variable, chain after chain, shape ``(draws, ...)``."""
    values = posterior[name].transpose("chain", "draw", ...).to_numpy()
    return values.reshape(-1, *values.shape[2:])


def by_table(values: np.ndarray, release: Release) -> list[np.ndarray]:
    """Return the parts of an array's last axis that belong to the released tables, in their order."""
    return np.split(values, np.cumsum([table.counts.size for table in release.tables])[:-1], axis=-1)
