"""Code of a PyMC model by Numba, kept on disk: of graphs, and as nutpie takes it, C functions of the log-density.

nutpie's own form of a PyMC model compiles such functions, with all code that they call, every time. Here Numba finds
them by the key that PyTensor has for the code inside: a model's second fit, in this process or another, loads them.
Values of `pm.Data` are not part of them, only their shapes.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes._arguments import Floats

if TYPE_CHECKING:
    import pymc as pm


def compiled_function(inputs: Sequence[Any], outputs: Sequence[Any], mode: Any = None) -> Any:
    """Compile graphs by Numba, or load their code, which may run in several threads at once; or in another mode."""
    import pytensor

    # With sums that may be reordered, code loaded from the disk rounds differently from code compiled a moment ago, and
    # the first run of a seed would not be repeated by the second. Strict sums cost nothing here.
    with pytensor.config.change_flags(numba__fastmath=False):
        return pytensor.function(inputs, outputs, mode=mode or _unlocked(), trust_input=True)


@cache
def _unlocked() -> Any:
    """Return a mode of PyTensor's: numba's code releases the interpreter's lock, so that batches run side by side.

    Compiled code has the key by which its graph's is found on disk, None where it is not kept.
    """
    from pytensor.compile.mode import NUMBA, Mode
    from pytensor.link.numba.linker import NumbaLinker

    class Unlocked(NumbaLinker):
        def jit_compile(self, fn_and_cache: Any) -> Any:
            from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS
            from pytensor.link.numba.dispatch.basic import numba_njit

            function, key = fn_and_cache
            code = function.py_func
            if key is not None:  # what the cache has wrapped compiles once by itself, and twice in the wrapper
                inner = code.__globals__["jitable_func"].py_func
                # The cache's file is named by that of the source too, and PyTensor's has another name every time.
                source = inner.__code__.replace(co_filename="<string>")
                code = FunctionType(source, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__)
                CACHED_SRC_FUNCTIONS[code] = f"{key}_unlocked"
            compiled = numba_njit(code, final_function=True, cache=key is not None, nogil=True)
            compiled.cache_key = key
            return compiled

    return Mode(linker=Unlocked(), optimizer=NUMBA.provided_optimizer)


# What they return other than 0 nutpie takes for a trajectory that diverged.
_DENSITY = """
def density(size, point, slopes, value, data):
    try:
        found, slope = code(carray(point, ({size},)){data})
        value[0] = found.item()
        finite = isfinite(value[0])
        for i in range({size}):
            slopes[i] = slope[i]
            finite = finite and isfinite(slope[i])
        return 0 if finite else 4
    except Exception:
        return 1
"""
_RECORD = """
def record(size, width, point, values, data):
    try:
        (found,) = code(carray(point, ({size},)){data})
        for i in range({width}):
            values[i] = found[i]
        return 0
    except Exception:
        return 1
"""


@dataclass(frozen=True, eq=False)
class Callbacks:
    """C functions of a model; `for_nutpie` gives them the values that `pm.Data` have now."""

    density: Any
    record: Any
    shared: Sequence[list[Any]]
    start: Callable[[int], Floats]
    size: int
    shapes: dict[str, tuple[int, ...]]

    def for_nutpie(self) -> Any:
        """Return a compiled model of nutpie's."""
        from nutpie.compile_pymc import CompiledPyMCModel

        held = {str(place): np.array(cell[0], order="C") for place, cell in enumerate(self.shared)}
        widths = [math.prod(shape) for shape in self.shapes.values()]
        ends = np.cumsum([0, *widths]).tolist()
        slices = [slice(start, end) for start, end in pairwise(ends)]
        return CompiledPyMCModel(
            dims={},
            compiled_logp_func=self.density,
            compiled_expand_func=self.record,
            initial_point_func=self.start,
            shared_data=held,
            shared_var_keys={},
            user_data=np.array([one.ctypes.data for one in held.values()], dtype=np.uintp),
            n_expanded=ends[-1],
            shape_info=(list(self.shapes), slices, list(self.shapes.values())),
            logp_func=None,
            expand_func=None,
            _n_dim=self.size,
            _shapes=self.shapes,
            _coords={},
        )


def callbacks(model: "pm.Model") -> Callbacks:
    """Compile a model's log-density with its slopes, and the variables that are recorded, or load them."""
    import pytensor
    import pytensor.tensor as pt
    from numba import types
    from pymc.initial_point import make_initial_point_fn
    from pytensor.graph.replace import graph_replace
    from pytensor.graph.rewriting.utils import rewrite_graph

    near = make_initial_point_fn(model=model, jitter_rvs=set(model.free_RVs), return_transformed=True)
    free, kept, first, drawing = model.value_vars, model.unobserved_RVs, near(0), threading.Lock()
    shapes = [first[value.name].shape for value in free]
    ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
    point = pt.vector("point", shape=(ends[-1],), dtype="float64")
    parts = [point[start:end].reshape(shape) for shape, (start, end) in zip(shapes, pairwise(ends), strict=True)]
    logp = rewrite_graph(model.logp(), include=("canonicalize", "stabilize"))
    slopes = pt.concatenate([slope.ravel() for slope in pt.grad(logp, free)])
    at = dict(zip(free, parts, strict=True))
    logp, slopes, *values = graph_replace([logp, slopes, *model.replace_rvs_by_values(kept)], at, strict=False)

    def start(seed: int) -> Floats:
        with drawing:  # nutpie's chains start side by side
            drawn = near(seed)
        return np.concatenate([np.ravel(drawn[value.name]) for value in free])

    shaped = pytensor.function(
        [point], [value.shape for value in values], mode="FAST_COMPILE", on_unused_input="ignore"
    )
    recorded = [tuple(map(int, shape)) for shape in shaped(start(0))]
    doubles, data = types.CPointer(types.double), types.CPointer(types.voidptr)
    sizes = {"size": ends[-1], "width": sum(map(math.prod, recorded))}
    joined = pt.concatenate([value.ravel().astype("float64") for value in values])
    law = types.int64(types.uint64, doubles, doubles, doubles, data)
    density, shared = _callback(_DENSITY, law, compiled_function([point], [logp, slopes]), [], sizes)
    law = types.int64(types.uint64, types.uint64, doubles, doubles, data)
    record, shared = _callback(_RECORD, law, compiled_function([point], [joined]), shared, sizes)
    names = [variable.name for variable in kept]
    return Callbacks(density, record, shared, start, ends[-1], dict(zip(names, recorded, strict=True)))


def _callback(
    source: str, law: Any, function: Any, shared: Sequence[list[Any]], sizes: dict[str, int]
) -> tuple[Any, list[list[Any]]]:
    """Return a C function of compiled code, and the cells of what it shares after what others share."""
    import numba
    from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS

    cells = function.vm.inputs[1:]
    arrays = [np.asarray(cell[0]) for cell in cells]
    data = [
        f", carray(data[{place}], {array.shape}, np.{array.dtype.name})"
        for place, array in enumerate(arrays, len(shared))
    ]
    text, code = source.format(data="".join(data), **sizes), function.vm.jit_fn
    # The file on disk is named by the source's, which changes every time where PyTensor compiles text, and keeps the
    # name of a module, which must be there to be imported when it is read.
    names = {"__name__": __name__, "carray": numba.carray, "np": np, "isfinite": math.isfinite, "code": code}
    exec(compile(text, "<string>", "exec"), names)  # the text above, with sizes and types
    made = names[source.split("(")[0].split()[-1]]
    if code.cache_key is not None:
        CACHED_SRC_FUNCTIONS[made] = hashlib.sha256(f"callback {code.cache_key} {text}".encode()).hexdigest()
    return numba.cfunc(law, cache=code.cache_key is not None)(made), [*shared, *cells]
