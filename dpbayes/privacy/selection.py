"""Choosing the best k of many candidates privately: the noisy top k, drawn by OpenDP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite, whole_number
from dpbayes.errors import DamagedFileError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Selection:
    r"""What a noisy top-k selection cost: k rounds of the exponential mechanism, one after another."""

    n_candidates: int
    n_chosen: int
    scale: float
    sensitivity: float

    def __post_init__(self) -> None:
        for name in ("n_candidates", "n_chosen"):
            whole_number(getattr(self, name), name)
        if self.n_chosen > self.n_candidates:
            raise InputError(f"n_chosen must be at most the {self.n_candidates} candidates, got {self.n_chosen}")
        for name in ("scale", "sensitivity"):
            object.__setattr__(self, name, positive_finite(getattr(self, name), name, remedy="see Selection"))

    @property
    def epsilon(self) -> float:
        """Pure privacy-loss parameter of all rounds."""
        return self.n_chosen * self.epsilon_of_one

    @property
    def epsilon_of_one(self) -> float:
        """Pure privacy-loss parameter of one round."""
        return 2.0 * self.sensitivity / self.scale

    @property
    def rho(self) -> float:
        """Zero-concentrated DP parameter of all rounds."""
        return self.n_chosen * self.sensitivity**2 / (2.0 * self.scale**2)

    def to_dict(self) -> dict[str, Any]:
        """Return the record that a release stores."""
        return {name: getattr(self, name) for name in ("n_candidates", "n_chosen", "scale", "sensitivity")}

    @classmethod
    def from_dict(cls, record: Any) -> Selection:
        """Read what `to_dict` wrote."""
        if not isinstance(record, dict) or set(record) != {"n_candidates", "n_chosen", "scale", "sensitivity"}:
            raise DamagedFileError("a selection has the keys n_candidates, n_chosen, scale and sensitivity")
        return cls(**record)


def selection_within(
    n_candidates: int, n_chosen: int, *, sensitivity: float, rho: float | None = None, epsilon: float | None = None
) -> Selection:
    """Return the selection of least noise that costs at most `rho`, or at most `epsilon`."""
    if rho is not None:
        scale = sensitivity * float(np.sqrt(n_chosen / (2.0 * rho)))
    else:
        assert epsilon is not None
        scale = 2.0 * sensitivity * n_chosen / epsilon
    return Selection(n_candidates, n_chosen, scale * (1.0 + 1e-12), sensitivity)  # roundings must not cost more


def noisy_top_k(
    scores: Sequence[int] | npt.NDArray[np.int64], selection: Selection, *, pure: bool, rng: np.random.Generator | None
) -> list[int]:
    """Return the places of the noisy top k; `rng` None draws with OpenDP, a generator simulates."""
    values = np.asarray(scores, dtype=np.int64)
    if len(values) != selection.n_candidates:
        raise InputError(f"the selection is over {selection.n_candidates} candidates, got {len(values)} scores")
    if rng is not None:
        return [int(place) for place in np.argsort(-(values + rng.gumbel(scale=selection.scale, size=len(values))))][
            : selection.n_chosen
        ]
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_top_k
    from opendp.measures import max_divergence, zero_concentrated_divergence
    from opendp.metrics import linf_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    measure = max_divergence() if pure else zero_concentrated_divergence()
    domain = vector_domain(atom_domain(T="i64"))
    drawn = make_noisy_top_k(domain, linf_distance(T="i64"), measure, k=selection.n_chosen, scale=selection.scale)
    return [int(place) for place in drawn(values.tolist())]
