"""What a calibration study of a latent class spec simulates: real records, real counts, the release's own noise.

The likelihood is an approximation (its counts are normal before the noise), so data are not drawn from the model: a
mixture comes from the model's prior, n records from the mixture, their tables are counted, and noise is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes.errors import SpecError
from dpbayes.latent_class.design import Design, margin_name
from dpbayes.runs.calibration import Calibration
from dpbayes.runs.latent_class_spec import released_tables
from dpbayes.runs.records import require_file

if TYPE_CHECKING:
    import pymc as pm

    from dpbayes.data import Domain
    from dpbayes.privacy import Release
    from dpbayes.runs.latent_class import Spec

__all__ = ["LatentClassSimulator", "calibration", "design_release"]


def calibration(spec: Spec, beside: Path, n_records: int | None) -> Calibration:
    """Return model and simulator of a latent class spec.

    Raises
    ------
    SpecError
        If the spec reads microdata and `n_records` is None: a study reads no confidential record, not even their
        number.
    """
    if spec.model.file is not None:
        raise SpecError("a study of a spec runs the package's model; calibrate your own with dpbayes.inference.sbc")
    release = design_release(spec, beside, n_records)
    joint, options = spec.model.likelihood == "joint", spec.model.options()
    if not joint and not release.n_public:
        raise SpecError("the composite likelihood needs a public number of records; calibrate the joint one")
    design = Design.of(release.domain, [table.attributes for table in release.tables], **options)
    build = _Build(release, options)
    records = ["exact_counts"] if joint else []
    n = release.n if isinstance(release.n, int) else round(release.n.value)
    laws = sorted({str(table.noise) for table in release.tables})
    noise = _words(release) if len(laws) == 1 else f"{len(laws)} noise laws"
    return Calibration(
        build_model=build,
        simulate=LatentClassSimulator(release, build, n),
        var_names=(
            "margin",
            *(["cell"] if release.domain.size <= 4096 else []),
            *map(margin_name, design.margins),
            *records,
        ),
        sampling=spec.sampling.metric(design.sum_out_pairs),
        design=f"{n:,} records of {len(release.domain)} attributes, {len(release.tables)} tables, "
        f"{release.adjacency}, {noise}" + ("" if records else ", the composite likelihood"),
    )


def design_release(spec: Spec, beside: Path, n_records: int | None) -> Release:
    """Return a release of the spec's design, its records invented: attributes, tables, noise and n are those asked for.

    Parameters
    ----------
    spec
        The spec. Of microdata, only the levels and the names of the tables are used.
    beside
        The spec's folder.
    n_records
        Number of records, if not that of the spec's own release or embedded tables.

    Raises
    ------
    SpecError
        If the spec's own release counts something else than records, or there is no number of records.
    """
    from dpbayes.data import Marginal
    from dpbayes.privacy import read_release, release_tables
    from dpbayes.runs.latent_class import embedded_tables

    if spec.data.release is not None:
        given = read_release(require_file(beside / spec.data.release, setting="data.release"))
        if given.unit != "record":
            raise SpecError(f"{spec.data.release} counts {given.unit}s, not records; it is a release of the verifier's")
        return given if n_records is None else _resized(given, n_records)
    designed = released_tables(spec.data)
    assert designed is not None and spec.privacy is not None
    domain, sets = designed
    if spec.data.embedded is not None:
        n = n_records or embedded_tables(spec.data.embedded)[0].total
    elif n_records is not None:
        n = n_records
    else:
        raise SpecError("a calibration study reads no confidential record; say how many to simulate (--n-records)")
    rng = np.random.default_rng(0)
    records = np.column_stack([rng.integers(0, size, n) for size in domain.shape])
    tables = []
    for names in sets:
        part = domain.project(names)
        cells = np.ravel_multi_index(tuple(records[:, list(domain.axes(names))].T), part.shape)
        tables.append(Marginal(part, np.bincount(cells, minlength=part.size).reshape(part.shape)))
    privacy = spec.privacy
    release = release_tables(
        tables,
        epsilon=privacy.epsilon,
        rho=privacy.rho,
        noise=privacy.noise,
        adjacency=privacy.adjacency,
        total_share=privacy.total_share,
        rng=rng,
    )
    return _resized(release, n)  # a noisy n is not the number that was asked for


@dataclass
class LatentClassSimulator:
    """Draw a mixture from the model's prior, records from the mixture, and a release of their tables.

    Parameters
    ----------
    release
        The design: tables, noise laws, adjacency.
    build_model
        Returns the model whose prior is drawn from.
    n
        Number of records where it is public.

    Notes
    -----
    A call takes a seed and returns true values of ``margin``, ``cell`` and ``exact_counts`` (and ``n``), and data.
    Where only a noisy number of records is released, the true one is drawn from the model's prior too.
    """

    release: Release
    build_model: Callable[[], pm.Model]
    n: int
    _draw: Any = field(default=None, repr=False)
    _zeros: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the compiled function behind: it does not pickle."""
        return self.__dict__ | {"_draw": None}

    def __call__(self, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return true values and data."""
        from dpbayes.latent_class.synthesis import count_records, draw_records
        from dpbayes.latent_class.zeros import ZeroSet
        from dpbayes.privacy import release_values

        if self._draw is None:
            model = self.build_model()
            self._draw = _prior_drawer(model, self.release.domain)
            if "structural_zeros" in model.named_vars:
                self._zeros = ZeroSet.from_array(self.release.domain, model["structural_zeros"].get_value())
        prior_seed, data_seed = np.random.SeedSequence(seed).generate_state(2)
        truth = self._draw(int(prior_seed))
        rng = np.random.default_rng(data_seed)
        data: dict[str, Any] = {}
        n = self.n
        if not isinstance(self.release.n, int):
            n = max(round(float(truth["n"])), 1)
            truth["n"] = np.asarray(float(n))
            total = release_values(np.array([n]), self.release.n.noise, rng=rng)
            data["released_n_data"] = np.asarray(total, dtype=float)
        profiles = [truth[f"profile_{name}"] for name in self.release.domain.names]
        records = draw_records(truth["weights"], profiles, n, rng, zeros=self._zeros)
        exact = count_records(records, self.release)
        ends = np.cumsum([table.counts.size for table in self.release.tables])[:-1]
        parts = zip(np.split(exact, ends), self.release.tables, strict=True)
        noisy = [release_values(part, table.noise, rng=rng) for part, table in parts]
        data["released_counts"] = np.concatenate(noisy).astype(float)
        return truth | {"exact_counts": exact.astype(float)}, data


@dataclass(frozen=True)
class _Build:
    """`build_model` of one release and its options, as an object that pickles."""

    release: Release
    options: dict[str, Any]

    def __call__(self) -> pm.Model:
        from dpbayes.latent_class import build_model

        return build_model(self.release, **self.options)


def _prior_drawer(model: pm.Model, domain: Domain) -> Callable[[int], dict[str, Any]]:
    """Return a function from a seed to prior draws of the mixture and what follows from it."""
    from pymc.pytensorf import compile as compile_graph
    from pymc.pytensorf import find_rng_nodes, reseed_rngs

    wanted = ["weights", *(f"profile_{name}" for name in domain.names), *model.gate_variables, "n"]
    names = [name for name in wanted if name in model.named_vars]
    draw = compile_graph([], [model[name] for name in names], mode="FAST_COMPILE")
    generators = find_rng_nodes(draw.maker.fgraph.outputs)

    def values(seed: int) -> dict[str, Any]:
        reseed_rngs(generators, seed)
        return dict(zip(names, draw(), strict=True))

    return values


def _resized(release: Release, n: int) -> Release:
    from dataclasses import replace

    from dpbayes.privacy import NoisyTotal

    if isinstance(release.n, int):
        return replace(release, n=n)
    total = release.n
    # The prior of n is centred by the tables' sums too: they are made n.
    tables = tuple(replace(table, counts=_spread(n, table.counts.shape)) for table in release.tables)
    return replace(release, tables=tables, n=NoisyTotal(float(n), total.noise, total.sensitivity, total.epsilon))


def _spread(n: int, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return whole counts that sum to n, as even as may be."""
    size = math.prod(shape)
    return np.diff(np.arange(size + 1, dtype=np.int64) * n // size).reshape(shape)


def _words(release: Release) -> str:
    from dpbayes.privacy.noise import TwoSidedGeometric

    law = release.tables[0].noise
    if isinstance(law, TwoSidedGeometric):
        return f"two-sided geometric noise of scale {law.scale:g}"
    return f"noise {law}"
