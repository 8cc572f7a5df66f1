"""What the noise laws share: a parameter, and its calibration to a privacy cost."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dpbayes._arguments import positive_finite
from dpbayes.privacy._calibration import (
    SCALE_REMEDY,
    STDDEV_REMEDY,
    epsilon_from_scale,
    rho_from_stddev,
    scale_from_epsilon,
    stddev_from_rho,
)

__all__ = ["ConcentratedNoise", "PureNoise"]


class Noise:
    """A symmetric law of one parameter.

    Attributes
    ----------
    name
        The law in records.
    parameter
        Name of its parameter.
    is_discrete
        Whether it lives on the integers.
    """

    __slots__ = ()

    name: ClassVar[str]
    parameter: ClassVar[str]
    is_discrete: ClassVar[bool]

    @property
    def mean(self) -> float:
        """The mean, 0."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the record of this law that a release or a ledger stores."""
        return {"law": self.name, self.parameter: getattr(self, self.parameter)}


@dataclass(frozen=True, slots=True)
class PureNoise(Noise):
    """A law whose tails fall like exp(-abs(x) / scale): pure epsilon = sensitivity / scale.

    Parameters
    ----------
    scale
        In the unit of the released numbers; positive and finite.

    Raises
    ------
    InputError
        If the scale is no positive finite number.
    """

    parameter: ClassVar[str] = "scale"

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive_finite(self.scale, "scale", remedy=SCALE_REMEDY))

    @classmethod
    def from_epsilon(cls, epsilon: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that costs at most `epsilon`.

        Parameters
        ----------
        epsilon
            The pure-DP cost of one release; positive and finite.
        sensitivity
            Largest L1 change of the released numbers between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If either is not positive and finite.

        Notes
        -----
        The quotient is rounded upwards, so the cost of the double that is stored never exceeds `epsilon`.
        """
        return cls(scale_from_epsilon(epsilon, sensitivity))

    @classmethod
    def from_rho(cls, rho: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that pure DP certifies to cost at most `rho` of zCDP.

        Parameters
        ----------
        rho
            The zCDP cost of one release; positive and finite.
        sensitivity
            Largest L1 change of the released numbers between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If either is not positive and finite.
        """
        return cls(stddev_from_rho(rho, sensitivity))

    def epsilon(self, *, sensitivity: float) -> float:
        """Return the pure-DP cost of one release, sensitivity / scale rounded upwards.

        Parameters
        ----------
        sensitivity
            Largest L1 change of the released numbers between neighbours, under the caller's adjacency.
        """
        return epsilon_from_scale(self.scale, sensitivity)

    def rho(self, *, sensitivity: float) -> float:
        """Return a zCDP cost of one release: epsilon^2 / 2 (Bun and Steinke 2016, Proposition 1.4), an upper bound.

        Parameters
        ----------
        sensitivity
            Largest L1 change of the released numbers between neighbours, under the caller's adjacency.
        """
        return rho_from_stddev(self.scale, sensitivity)


@dataclass(frozen=True, slots=True)
class ConcentratedNoise(Noise):
    """A law whose tails fall like exp(-x^2 / (2 stddev^2)): rho = sensitivity^2 / (2 stddev^2) of zCDP.

    Parameters
    ----------
    stddev
        In the unit of the released numbers; positive and finite.

    Raises
    ------
    InputError
        If the stddev is no positive finite number.
    """

    parameter: ClassVar[str] = "stddev"

    stddev: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "stddev", positive_finite(self.stddev, "stddev", remedy=STDDEV_REMEDY))

    @classmethod
    def from_rho(cls, rho: float, *, sensitivity: float) -> Self:
        """Return the law with the least noise that costs at most `rho` of zCDP.

        Parameters
        ----------
        rho
            The zCDP cost of one release; positive and finite.
        sensitivity
            Largest L2 change of the released numbers between neighbours, under the caller's adjacency.

        Raises
        ------
        InputError
            If either is not positive and finite.
        """
        return cls(stddev_from_rho(rho, sensitivity))

    def rho(self, *, sensitivity: float) -> float:
        """Return the zCDP cost of one release, sensitivity^2 / (2 stddev^2) rounded upwards.

        Parameters
        ----------
        sensitivity
            Largest L2 change of the released numbers between neighbours, under the caller's adjacency.
        """
        return rho_from_stddev(self.stddev, sensitivity)
