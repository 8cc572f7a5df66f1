"""`Release`: the only thing that leaves the custodian. Noisy tables, the laws of their noise, and what they cost."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date as calendar_date
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import (
    Floats,
    as_array,
    finite,
    instance,
    one_of,
    ordered,
    positive_finite,
    real_numbers,
    shown,
    whole_number,
)
from dpbayes._html import html_table
from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency, sensitivity_of_counts
from dpbayes.privacy.envelope import Enveloped, FileKind
from dpbayes.privacy.laws import NoiseLaw, PureNoise, check_law, noise_from_dict
from dpbayes.privacy.sampling import Selection

type Sampler = Literal["opendp", "simulation", "published"]
type Unit = Literal["record", "partition"]

_LARGEST = 2.0**62
# A stated number may fall short of the exact one by this share of it: a few roundings of doubles.
_ROUNDING = 1e-12
AS_PUBLISHED: Literal["as published"] = "as published"  # the adjacency of a publisher who states none


@dataclass(frozen=True)
class Publication:
    """Who published a release, where and when, and the mechanism that the publisher states: nothing checks it.

    `publisher` drew the noise and published the numbers; `source` is an address or a citation; `date` is such as
    ``2021-08-12``, ``2021-08`` or ``2021``; `mechanism` is in the publisher's words.

    Raises
    ------
    InputError
        If one of them is empty, or the date is none.

    Examples
    --------
    >>> Publication("A statistics office", "https://example.org/tables", "2021-08", "geometric, scale 20").date
    '2021-08'
    """

    publisher: str
    source: str
    date: str
    mechanism: str

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"{name} of a published release must be text, got {shown(value)}; say what is stated")
        try:
            calendar_date.fromisoformat(self.date + "2000-01-01"[len(self.date) :])
        except ValueError:
            raise InputError(
                f"date of a published release must be such as 2021-08-12, 2021-08 or 2021, got {shown(self.date)}"
            ) from None


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A released table: exact counts plus independent noise, and what it cost.

    Parameters
    ----------
    domain
        The table's attributes, in the order of its axes.
    counts
        Released values of shape ``domain.shape``: whole numbers under a discrete noise law. They may be negative. A
        read-only copy is kept (int64 for a discrete law, float64 otherwise).
    noise
        The law of the noise added to every count.
    sensitivity
        Sensitivity of the table under the release's adjacency, in counts: L1 for two-sided geometric and Laplace
        noise, L2 for Gaussian noise.
    epsilon
        Privacy-loss parameter of this table alone, at least sensitivity / scale up to 1e-12 of it: a weaker claim still
        holds. None where it is not stated, and always under Gaussian noise, whose cost is a curve, not a number.
    spreads
        The parameter of the law cell by cell, of shape ``domain.shape``, where cells differ; `noise` is then the law of
        the largest.
    threshold
        Where the publisher left out counts that came out below a threshold: that threshold. The counts of these cells
        are NaN (in JSON null).

    Raises
    ------
    InputError
        If shape, values, sensitivity or epsilon contradict the domain or the law, or a count lies below the threshold.
    """

    domain: Domain
    counts: npt.NDArray[Any]
    noise: NoiseLaw
    sensitivity: float | None
    epsilon: float | None
    spreads: Floats | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_law(self.noise)
        domain = instance(self.domain, Domain, "domain", remedy="Domain.from_levels makes one")
        if self.threshold is not None:
            limit = finite(self.threshold, f"threshold of table {self.label}", remedy="leave it out if there is none")
            object.__setattr__(self, "threshold", limit)
        values = _checked_values(self.counts, domain.shape, self.noise, self.label, self.threshold)
        object.__setattr__(self, "counts", values)
        if self.spreads is not None:
            object.__setattr__(self, "spreads", _checked_spreads(self.spreads, domain.shape, self.noise, self.label))
        _set_cost(self, f"table {self.label}")

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes, in the order of the axes."""
        return self.domain.names

    @property
    def label(self) -> str:
        """The attributes as one line of text."""
        return " x ".join(self.domain.names)

    def _by_law(self) -> Iterator[tuple[NoiseLaw, npt.NDArray[np.bool_]]]:
        """Yield each law of the table's noise and the cells that have it, flat in C order."""
        if self.spreads is None:
            yield self.noise, np.ones(self.counts.size, dtype=bool)
            return
        flat = self.spreads.ravel()
        for spread in np.unique(flat).tolist():
            yield self.noise.of(spread), flat == spread

    @property
    def laws(self) -> tuple[NoiseLaw, ...]:
        """The law of each count's noise, in C order."""
        found = np.empty(self.counts.size, dtype=object)
        for law, own in self._by_law():
            found[own] = law
        return tuple(found)

    @cached_property
    def variances(self) -> Floats:
        """Variance of each count's noise, of the table's shape."""
        found = np.empty(self.counts.size)
        for law, own in self._by_law():
            found[own] = law.variance
        return found.reshape(self.domain.shape)

    @property
    def cell_spreads(self) -> Floats:
        """The parameter of each count's law, of the table's shape."""
        return np.full(self.domain.shape, self.noise.spread) if self.spreads is None else self.spreads

    @property
    def noise_magnitude(self) -> float:
        """Expected sum of the sizes of all counts' noise."""
        return math.fsum(law.mean_magnitude * int(own.sum()) for law, own in self._by_law())

    def simulated_noise(self, rng: np.random.Generator, draws: int | None = None) -> npt.NDArray[Any]:
        """Return noise of the table's laws, of its shape, behind an axis of draws where there are some; no release."""
        many = () if draws is None else (draws,)
        drawn = np.empty((*many, self.counts.size), dtype=np.int64 if self.noise.is_discrete else np.float64)
        for law, own in self._by_law():
            drawn[..., own] = law.simulate((*many, int(own.sum())), rng)
        return drawn.reshape(*many, *self.domain.shape)

    @property
    def withheld(self) -> npt.NDArray[np.bool_]:
        """Which counts were left out because they came out below the threshold."""
        return np.isnan(self.counts)

    @property
    def limit(self) -> float:
        """What counts that were left out lie below on the real line, midway between whole numbers; -inf without one."""
        if self.threshold is None:
            return -math.inf
        return math.ceil(self.threshold) - 0.5 if self.noise.is_discrete else self.threshold

    def held_back(self, counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return other noisy counts of the table as its publisher would show them: NaN below the threshold."""
        return counts if self.threshold is None else np.where(counts < self.threshold, np.nan, counts)


@dataclass(frozen=True)
class NoisyTotal:
    """A released number of records, for when the size of the data is itself confidential.

    `value` may be negative; its sensitivity is 1 under add-remove; `epsilon` and the errors are as in `NoisyTable`.

    Examples
    --------
    >>> from dpbayes.privacy import TwoSidedGeometric
    >>> NoisyTotal(998, TwoSidedGeometric(2.0), 1.0, 0.5).value
    998
    """

    value: float
    noise: NoiseLaw
    sensitivity: float | None
    epsilon: float | None

    def __post_init__(self) -> None:
        check_law(self.noise)
        _set_cost(self, "the number of records")
        value = _checked_values(self.value, (), self.noise, "of the number of records")
        object.__setattr__(self, "value", value.item())


@dataclass(frozen=True, eq=False)
class Release(Enveloped):
    """Noisy tables and everything an analyst needs to know about how they came about.

    A release holds nothing confidential: no exact count, and no noise seed.

    Parameters
    ----------
    domain
        All attributes.
    tables
        One or more released tables over attributes of the domain.
    adjacency
        The relation between neighbouring data sets that the privacy guarantee speaks of.
    n
        The number of records: an integer if it is public, a `NoisyTotal` if it was released with noise.
    sampler
        Who drew the noise: ``"opendp"``, exactly; ``"simulation"``, a seeded generator, so that there is no privacy
        guarantee; ``"published"``, somebody else, as `publication` says.
    unit
        What n counts. A number of ``"record"`` is confidential under add-remove; a number of ``"partition"`` was chosen
        by the custodian without looking at the data, so it is public under either relation.
    protected_unit, max_rows_per_unit
        The column whose equal values make rows one record of the adjacency, such as a person, and the most rows of a
        unit that were counted: sensitivities are that many times those of a row. None where every row is one record.
    selection
        What choosing the tables from the confidential records cost; None where they were chosen without looking.
    publication
        Who published the numbers, and what mechanism they state. Sensitivities and the adjacency may then be left open
        (None, ``"as published"``), and an exact n is public whatever the adjacency: nothing is claimed of the cost.

    Raises
    ------
    InputError
        If a part contradicts the domain, the adjacency or the unit, such as a sensitivity below that of every table.

    Examples
    --------
    >>> import numpy as np
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> release.epsilon, release.n, release.sampler, len(release.tables)
    (1.0, 10000, 'simulation', 10)
    """

    FILE: ClassVar[FileKind] = FileKind("dpbayes-release", "a release of tables")

    domain: Domain
    tables: tuple[NoisyTable, ...]
    adjacency: Adjacency | Literal["as published"]
    n: int | NoisyTotal
    sampler: Sampler
    unit: Unit = "record"
    protected_unit: str | None = None
    selection: Selection | None = None
    max_rows_per_unit: int = 1
    publication: Publication | None = None

    def __post_init__(self) -> None:
        remedy = "release_tables makes them"
        object.__setattr__(self, "tables", ordered(self.tables, "tables", remedy=remedy, kind=NoisyTable))
        published = self.sampler == "published"
        if not (published and self.adjacency == AS_PUBLISHED):
            check_adjacency(self.adjacency)
        one_of(self.sampler, get_args(Sampler.__value__), "sampler")
        if published != isinstance(self.publication, Publication):
            raise InputError(
                f"a Publication belongs to sampler 'published' and to no other; sampler is {self.sampler!r} and "
                f"publication {shown(self.publication)}"
            )
        one_of(self.unit, get_args(Unit.__value__), "unit")
        check_unit(self.protected_unit, self.max_rows_per_unit)
        if self.unit == "partition" and self.max_rows_per_unit != 1:
            raise InputError("max_rows_per_unit is for counts of records; all rows of a unit share a partition")
        if not self.tables:
            raise InputError("a release needs at least one table, got none")
        domain = instance(self.domain, Domain, "domain", remedy="Domain.from_levels makes one")
        for table in self.tables:
            for attribute in table.domain:
                if domain[attribute.name] != attribute:
                    raise InputError(f"table {table.label} gives {attribute.name!r} levels that are not the domain's")
        for part in self.parts:
            self._check_part(part, f"table {part.label}" if isinstance(part, NoisyTable) else "the number of records")
        if not isinstance(self.n, NoisyTotal):
            remedy = f"it counts {self.unit}s; give a NoisyTotal where their number is not public"
            object.__setattr__(self, "n", whole_number(self.n, "n", high=2**53, remedy=remedy))
            if self.max_rows_per_unit > 1:
                raise InputError(
                    f"n = {self.n} cannot be public where a unit has up to {self.max_rows_per_unit} rows: one unit "
                    "replaced by another changes it; release n with noise, under add-remove"
                )
            if self.adjacency == "add-remove" and self.unit == "record" and not published:
                raise InputError(
                    f"n = {self.n} cannot be public under add-remove adjacency: one record more or less changes it; "
                    "release n with noise or use replace-one"
                )

    def _check_part(self, part: NoisyTable | NoisyTotal, what: str) -> None:
        """Refuse what only a publisher leaves out, and a sensitivity below what one record changes."""
        if self.sampler != "published" and part.sensitivity is None:
            raise InputError(f"{what} states no sensitivity; only a release with sampler 'published' may leave it out")
        odd = isinstance(part, NoisyTable) and (part.spreads is not None or part.threshold is not None)
        if self.sampler != "published" and odd:
            raise InputError(f"{what} has noise cell by cell or a threshold, which only published releases have")
        if self.unit != "record" or self.adjacency == AS_PUBLISHED or part.sensitivity is None:
            return
        # The number of records does not change at all under replace-one.
        if isinstance(part, NoisyTable) or self.adjacency == "add-remove":
            pure = part.noise.is_pure
            least = self.max_rows_per_unit * sensitivity_of_counts(self.adjacency, pure=pure)
            if falls_short(part.sensitivity, least):
                raise InputError(
                    f"sensitivity of {what} must be at least {least:.6g} ({'L1' if pure else 'L2'}) under "
                    f"{self.adjacency}: so much can one record change it; got {part.sensitivity!r}; state that "
                    "sensitivity and the epsilon it gives"
                )

    @property
    def parts(self) -> tuple[NoisyTable | NoisyTotal, ...]:
        """The tables, and the number of records where it is noisy."""
        return (*self.tables, self.n) if isinstance(self.n, NoisyTotal) else self.tables

    @property
    def protects(self) -> str:
        """What the guarantee protects one of, in words."""
        return protected_words(self.protected_unit, None if self.unit == "partition" else self.max_rows_per_unit)

    @property
    def size(self) -> float:
        """The number of records, or its noisy value, at least 1."""
        return self.n if isinstance(self.n, int) else max(float(self.n.value), 1.0)

    @property
    def estimated_size(self) -> tuple[float, float]:
        """The best linear unbiased estimate of the number of records, and its standard deviation, 0 if it is public.

        It is of the released number and of the tables of which no count was held back.
        """
        if isinstance(self.n, int):
            return float(self.n), 0.0
        whole = [table for table in self.tables if not table.withheld.any()]
        values = [self.n.value, *(float(table.counts.sum()) for table in whole)]
        variances = [self.n.noise.variance, *(float(table.variances.sum()) for table in whole)]
        precisions = 1.0 / np.maximum(variances, 1e-300)
        return float(np.average(values, weights=precisions)), float(precisions.sum() ** -0.5)

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return isinstance(self.n, int)

    @cached_property
    def epsilon(self) -> float | None:
        """Total privacy-loss parameter by sequential composition, or None where a part has no pure epsilon."""
        parts = [part.epsilon for part in self.parts]
        if self.selection is not None:
            parts.append(self.selection.epsilon)
        known = [part for part in parts if part is not None]
        return math.fsum(known) if len(known) == len(parts) else None

    @cached_property
    def rho(self) -> float | None:
        """Total zero-concentrated DP parameter by composition (of pure epsilon parts an upper bound, epsilon^2 / 2).

        None where a publisher states no sensitivities.
        """
        chosen = 0.0 if self.selection is None else self.selection.rho
        stated = [part.noise.rho(sensitivity=part.sensitivity) for part in self.parts if part.sensitivity is not None]
        return math.fsum([chosen, *stated]) if len(stated) == len(self.parts) else None

    @property
    def cost(self) -> str:
        """The total cost in words: epsilon, or rho where a part has no pure epsilon."""
        return f"rho {self.rho:g}" if self.epsilon is None else f"epsilon {self.epsilon:g}"

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What the release cost, for the record of whatever is computed from it."""
        return {
            "adjacency": self.adjacency,
            "sampler": self.sampler,
            "epsilon": self.epsilon,
            "rho": self.rho if self.epsilon is None else None,
            "n_public": self.n_public,
            **self._unit(),
            "tables": [
                {"attributes": list(t.attributes), "noise": t.noise.to_dict(), "epsilon": t.epsilon}
                for t in self.tables
            ],
            **self._optional(),
        }

    @property
    def n_counts(self) -> int:
        """Number of released counts over all tables."""
        return sum(table.counts.size for table in self.tables)

    def _body(self) -> dict[str, Any]:
        n: dict[str, Any] = {"public": True, "value": self.n, "unit": self.unit}
        if isinstance(self.n, NoisyTotal):
            n = {"public": False, "value": self.n.value, "noise": self.n.noise.to_dict()}
            n |= {"sensitivity": self.n.sensitivity, "epsilon": self.n.epsilon}
        return {
            "adjacency": self.adjacency,
            "sampler": self.sampler,
            "domain": self.domain.to_dict(),
            "n": n,
            **self._unit(),
            "tables": [_table_to_dict(table) for table in self.tables],
            **self._optional(),
        }

    def _optional(self) -> dict[str, Any]:
        """Return the entries that most releases leave out."""
        chosen = {} if self.selection is None else {"selection": asdict(self.selection)}
        return chosen | ({} if self.publication is None else {"publication": asdict(self.publication)})

    def _unit(self) -> dict[str, Any]:
        """Return the entries on the protected unit, which releases of rows without one leave out."""
        if self.unit == "partition":
            return {"protected_unit": self.protected_unit}
        if self.protected_unit is None:
            return {}
        return {"protected_unit": self.protected_unit, "max_rows_per_unit": self.max_rows_per_unit}

    @classmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        n: Any = body["n"]
        unit: Unit = "record"
        if n["public"] is True:
            n, unit = n["value"], n["unit"]
        else:
            n = NoisyTotal(n["value"], noise_from_dict(n["noise"]), n["sensitivity"], n["epsilon"])
        domain = Domain.from_dict(body["domain"])
        return cls(
            domain,
            tuple(_table_from_dict(item, domain) for item in body["tables"]),
            body["adjacency"],
            n,
            body["sampler"],
            unit,
            body["protected_unit"] if unit == "partition" else body.get("protected_unit"),
            Selection(**body["selection"]) if "selection" in body else None,
            body.get("max_rows_per_unit", 1),
            Publication(**body["publication"]) if "publication" in body else None,
        )

    def _repr_html_(self) -> str:
        total = self.cost if self.publication is None else f"published by {self.publication.publisher}"
        size = f"n = {self.n:,} (public)" if isinstance(self.n, int) else f"n = {self.n.value:,.0f} (noisy)"
        rows = [(t.label, t.counts.size, t.noise, None if t.epsilon is None else f"{t.epsilon:g}") for t in self.tables]
        said = f"Release: {total}, {self.adjacency}, {size}, protects {self.protects}, sampler {self.sampler}"
        return html_table(said, ("table", "counts", "noise", "epsilon"), rows)


def read_release(path: str | Path) -> Release:
    """Read a release that `Release.write` wrote, checked against the digest in the file.

    `DamagedFileError` if the file is not JSON, not a release, of a newer schema, or does not match its digest;
    `FileNotFoundError` if there is none. White space and the order of keys are free.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_release(release.write(f"{folder}/release.json")).digest == release.digest
    True
    """
    return Release.read(path)


def in_a_line(release: Release) -> str:
    """Return what was released and its cost, or its publisher, for the terminal."""
    counts = f"{release.n_counts} counts in {len(release.tables)} tables"
    if release.publication is not None:
        return f"{counts}, published by {release.publication.publisher} ({release.publication.date})"
    return f"{counts} at {release.cost} in total, {release.adjacency}"


def check_release(release: object, what: str, maker: str = "release_counts") -> None:
    """Refuse what is no release; `what` starts from it, and `maker` makes one."""
    if not isinstance(release, Release):
        raise InputError(f"{what} starts from a Release, got {type(release).__name__}; use {maker}")


def check_of_records(release: Release, what: str) -> None:
    """Refuse what is no release, or one whose counts are not of records; `what` starts from it."""
    check_release(release, what, "privacy.release_tables")
    if release.unit != "record":
        raise InputError(
            f"{what} needs counts of records, and this release counts {release.unit}s; it answers the verifier's "
            "questions (dpbayes.verifier)"
        )


def record_words(protected_unit: str | None) -> str:
    """Say what one record of the adjacency is: a row, or all rows that share a value of a column."""
    return "a row" if protected_unit is None else f"all rows that share a value of column {protected_unit!r}"


def protected_words(unit: str | None, most: int | None) -> str:
    """Say what a guarantee protects: a row, or a unit, all of whose rows count (`most` None) or at most so many."""
    rows = "all its rows" if most is None else f"at most {most} of its rows counted"
    return "one row" if unit is None else f"one unit of column {unit!r} ({rows})"


def check_unit(protected_unit: Any, max_rows_per_unit: Any) -> None:
    """Refuse a unit that names no column, and a bound on its rows that is none or has no unit."""
    if protected_unit is not None and (not isinstance(protected_unit, str) or not protected_unit):
        raise InputError(
            f"protected_unit must be the name of a column, got {shown(protected_unit)}; or None where rows are records"
        )
    whole_number(max_rows_per_unit, "max_rows_per_unit", high=2**62)
    if protected_unit is None and max_rows_per_unit != 1:
        raise InputError(f"max_rows_per_unit = {max_rows_per_unit} needs the column of the units, protected_unit")


def falls_short(stated: float, exact: float) -> bool:
    """Tell whether a stated number lies below the exact one by more than roundings of doubles."""
    return stated < exact * (1.0 - _ROUNDING)


def _set_cost(part: NoisyTable | NoisyTotal, what: str) -> None:
    """Keep sensitivity and epsilon as numbers of Python, unless they are none or the law does not give them."""
    for name, remedy in (("sensitivity", "it is what one record changes"), ("epsilon", "None leaves it unstated")):
        value = getattr(part, name)
        if value is not None:
            checked = positive_finite(value, f"{name} of {what}", remedy=remedy)
            # The digest tells 1 from 1.0, so that what Python can write as JSON stays as it is.
            object.__setattr__(part, name, value if isinstance(value, int | float) else checked)
    noise, sensitivity, epsilon = part.noise, part.sensitivity, part.epsilon
    if epsilon is None:
        return
    if sensitivity is None:
        raise InputError(f"epsilon = {epsilon!r} of {what} needs its sensitivity; state both, or neither")
    if not isinstance(noise, PureNoise):
        raise InputError(
            f"epsilon of {what} must be None under {noise}, whose cost is a curve and no number, got {epsilon!r}; "
            "noise.epsilon(delta=, sensitivity=) gives a point of it"
        )
    if falls_short(epsilon, exact := noise.epsilon(sensitivity=sensitivity)):
        raise InputError(
            f"epsilon of {what} must be at least sensitivity / scale = {exact!r} under {noise} with sensitivity "
            f"{sensitivity!r}, got {epsilon!r}; state noise.epsilon(sensitivity=), or use the noise of "
            "from_epsilon(epsilon, sensitivity=)"
        )


def _checked_values(
    values: Any, shape: tuple[int, ...], noise: NoiseLaw, label: str, threshold: float | None = None
) -> npt.NDArray[Any]:
    """Return released values as a read-only array of the type that the noise law gives; NaN makes it one of floats."""
    array = as_array(values, f"table {label}")
    if array.shape != shape:
        raise InputError(f"table {label} has shape {array.shape}, its domain {shape}")
    if array.dtype.kind not in "iuf":
        raise InputError(f"table {label} holds a value that is not a finite number")
    withheld = np.isnan(array) & (threshold is not None)
    given = array[~withheld]
    if not np.all(np.isfinite(given)):
        raise InputError(f"table {label} holds a value that is not a finite number")
    if noise.is_discrete and not np.all(given == np.floor(given)):
        raise InputError(f"table {label} holds a fraction, but its noise {noise} is on the integers")
    if np.any(np.abs(given.astype(np.float64)) > _LARGEST):
        raise InputError(f"table {label} holds a count beyond {_LARGEST:g}, which no table of records reaches")
    if threshold is not None and given.size and given.min() < threshold:
        raise InputError(
            f"table {label} holds the count {given.min():g}, below its threshold {threshold:g}; a threshold is the "
            "least count that was published: correct it, or leave it out"
        )
    array = array.astype(np.int64 if noise.is_discrete and not withheld.any() else np.float64)
    array.setflags(write=False)
    return array


def _checked_spreads(values: Any, shape: tuple[int, ...], noise: NoiseLaw, label: str) -> Floats:
    """Return the parameters of a table's cells as a read-only array; the table's law is that of the largest."""
    array = np.array(real_numbers(values, f"spreads of table {label}"))
    if array.shape != shape or not np.all(np.isfinite(array) & (array > 0)):
        raise InputError(f"spreads of table {label} must be positive numbers of shape {shape}, got shape {array.shape}")
    if noise.spread != array.max():
        raise InputError(
            f"noise of table {label} must have its largest {noise.parameter}, {array.max():g}, got {noise.spread:g}"
        )
    array.setflags(write=False)
    return array


def _table_to_dict(table: NoisyTable) -> dict[str, Any]:
    """Return the record of a table; a count that was left out is null."""
    counts: Any = table.counts
    if table.withheld.any():
        whole = int if table.noise.is_discrete else float
        listed = [None if math.isnan(count) else whole(count) for count in counts.ravel().tolist()]
        counts = np.array(listed, dtype=object).reshape(counts.shape)
    return {
        "attributes": list(table.attributes),
        "counts": counts.tolist(),
        "noise": table.noise.to_dict(),
        "sensitivity": table.sensitivity,
        "epsilon": table.epsilon,
        **({} if table.spreads is None else {"spreads": table.spreads.tolist()}),
        **({} if table.threshold is None else {"threshold": table.threshold}),
    }


def _table_from_dict(item: dict[str, Any], domain: Domain) -> NoisyTable:
    """Read what `_table_to_dict` wrote; whatever else the record says shows in the digest."""
    counts = np.asarray(item["counts"])
    if "threshold" in item and counts.dtype == object:
        counts = counts.astype(np.float64)
    law, part = noise_from_dict(item["noise"]), domain.project(item["attributes"])
    rest = item.get("spreads"), item.get("threshold")
    return NoisyTable(part, counts, law, item["sensitivity"], item["epsilon"], *rest)
