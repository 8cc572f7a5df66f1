r"""The density of the sum of a normal and a Laplace variable, one operation of a graph with a gradient in closed form.

With v the normal variance, b the Laplace scale, :math:`z_\pm = (v/b \pm |x|)/\sqrt{2v}` and E(z) the scaled
complementary error function (Reed and Jorgensen 2004, Communications in Statistics 33),

.. math:: f(x) = \frac{e^{-x^2/2v}}{4b} (E(z_-) + E(z_+)) = \frac{e^{v/2b^2 - |x|/b}}{4b}
          \bigl(2 - e^{-z_-^2} (E(-z_-) - E(z_+))\bigr),

the first where :math:`z_- \ge 0` and the second where not. With T the two summands,

.. math:: \frac{\partial\log f}{\partial x} = \frac{\operatorname{sign} x}{b}\,\frac{T_+ - T_-}{T_+ + T_-}, \qquad
          \frac{\partial\log f}{\partial v} = \frac{1 - N(x; 0, v)/f(x)}{2b^2}.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, grad_not_implemented
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.scalar.basic import ScalarOp, float64
from pytensor.tensor.elemwise import Elemwise
from scipy.special import erfcx

_STRETCH, _DEGREE = 3.75, 14
# PyTensor keeps compiled code on disk by this key: other checkouts and later versions must not find it there.
_SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _polynomial() -> tuple[float, ...]:
    """Return the coefficients, highest power first, of E(z) (1 + 2z) in t = (z - 3.75)/(z + 3.75); z >= 0."""
    nodes = np.cos(np.pi * (np.arange(200) + 0.5) / 200)
    z = _STRETCH * (1.0 + nodes) / (1.0 - nodes)
    fitted = np.polynomial.chebyshev.chebfit(nodes, erfcx(z) * (1.0 + 2.0 * z), _DEGREE)
    return tuple(np.polynomial.chebyshev.cheb2poly(fitted)[::-1].tolist())


_COEFFICIENTS = _polynomial()


@numba.njit(cache=False, error_model="numpy")
def scaled_erfc(z: float) -> float:
    """Return exp(z^2) erfc(z) for z >= 0 (Shepherd and Laframboise 1981), to a relative error of 1e-10."""
    t = (z - _STRETCH) / (z + _STRETCH)
    value = 0.0
    for coefficient in _COEFFICIENTS:
        value = value * t + coefficient
    return value / (1.0 + 2.0 * z)


@numba.njit(cache=False, error_model="numpy")
def _parts(x: float, v: float, b: float) -> tuple[float, float, float]:
    """Return log f and its derivatives in x and v."""
    r, root = abs(x), math.sqrt(2.0 * v)
    below, above = (v / b - r) / root, (v / b + r) / root
    near, far = scaled_erfc(abs(below)), scaled_erfc(above)
    normal = 4.0 * b / (root * math.sqrt(math.pi))
    if below >= 0.0:
        total, minus, plus = near + far, near, far
        top = -x * x / (2.0 * v)
    else:
        share = math.exp(-below * below)
        minus, plus = 2.0 - share * near, share * far
        total = minus + plus
        normal *= share
        top = v / (2.0 * b * b) - r / b
    slope = (plus - minus) / (total * b)
    return top + math.log(total / (4.0 * b)), -slope if x < 0.0 else slope, (1.0 - normal / total) / (2.0 * b * b)


class _NormalLaplace(ScalarOp):
    """`_parts` as an operation of a graph; its second and third output have no derivatives."""

    nin, nout = 3, 3

    def __init__(self) -> None:
        super().__init__(output_types_preference=lambda *_: (float64,) * 3, name="normal_laplace")

    def impl(self, x: float, v: float, b: float) -> Any:
        return _parts(float(x), float(v), float(b))

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        for further in cotangents[1:]:
            if not isinstance(further.type, DisconnectedType):
                raise NotImplementedError("the normal-Laplace log-density has first derivatives only")
        _, in_x, in_v = self(*inputs)
        return [cotangents[0] * in_x, cotangents[0] * in_v, grad_not_implemented(self, 2, inputs[2])]


@register_funcify_and_cache_key(_NormalLaplace)
def _compile(op: _NormalLaplace, node: Any, **kwargs: Any) -> Any:
    @numba_njit
    def parts(x: float, v: float, b: float) -> tuple[float, float, float]:
        return _parts(x, v, b)

    return parts, _SOURCE


def normal_laplace_logp(off: Any, variance: Any, scale: Any) -> Any:
    """Return the log-density of the sum of a normal variable of a variance and a Laplace variable of a scale."""
    inputs = (pt.cast(pt.as_tensor(each), "float64") for each in (off, variance, scale))
    return Elemwise(_NormalLaplace())(*inputs)[0]
