"""Code of a PyMC model by Numba, kept on disk: of graphs, and as nutpie takes it, a C function of the log-density.

nutpie's own form of a PyMC model compiles such functions, with all code that they call, every time. Here Numba finds
them by the key that PyTensor has for the code inside: a model's second fit, in this process or another, loads them.
Values of `pm.Data` are not part of them, only their shapes. What a model records is evaluated after the draws, many at
a time and interpreted: its code would take longer to compile than to run.
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


_TOGETHER, _IN_MEMORY = 64, 2**16  # points that are evaluated together, or numbers in an array of theirs: at least

# What it returns other than 0 nutpie takes for a trajectory that diverged.
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
POINT = "point"  # the only variable that nutpie keeps: where a chain stands on the unconstrained scale


@cache
def _keeping() -> Any:
    """Return a C function that copies a point."""
    from pytensor import config

    from dpbayes._machine_code import source_key

    def keep(size: int, width: int, point: Any, values: Any, data: Any) -> int:
        for i in range(size):
            values[i] = point[i]
        return 0

    return _in_c(keep, 2, source_key(__file__) if config.numba__cache else None)


@dataclass(frozen=True, eq=False)
class Callbacks:
    """A model's C function, starts, and what it records; `for_nutpie` takes the values that `pm.Data` have now."""

    density: Any
    shared: Sequence[list[Any]]
    start: Callable[[int], Floats]
    recorded: Callable[[Floats], dict[str, Floats]]
    size: int

    def for_nutpie(self) -> Any:
        """Return a compiled model of nutpie's."""
        from nutpie.compile_pymc import CompiledPyMCModel

        held = {str(place): np.array(cell[0], order="C") for place, cell in enumerate(self.shared)}
        return CompiledPyMCModel(
            dims={},
            compiled_logp_func=self.density,
            compiled_expand_func=_keeping(),
            initial_point_func=self.start,
            shared_data=held,
            shared_var_keys={},
            user_data=np.array([one.ctypes.data for one in held.values()], dtype=np.uintp),
            n_expanded=self.size,
            shape_info=([POINT], [slice(0, self.size)], [(self.size,)]),
            logp_func=None,
            expand_func=None,
            _n_dim=self.size,
            _shapes={POINT: (self.size,)},
            _coords={},
        )


def callbacks(model: "pm.Model") -> Callbacks:
    """Compile a model's log-density with its slopes, or load it."""
    import pytensor.tensor as pt
    from pymc.initial_point import make_initial_point_fn
    from pytensor.graph.replace import graph_replace
    from pytensor.graph.rewriting.utils import rewrite_graph

    near = make_initial_point_fn(model=model, jitter_rvs=set(model.free_RVs), return_transformed=True)
    free, first, drawing = model.value_vars, near(0), threading.Lock()
    shapes = [first[value.name].shape for value in free]
    ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
    point = pt.vector("point", shape=(ends[-1],), dtype="float64")
    parts = [point[start:end].reshape(shape) for shape, (start, end) in zip(shapes, pairwise(ends), strict=True)]
    logp = rewrite_graph(model.logp(), include=("canonicalize", "stabilize"))
    slopes = pt.concatenate([slope.ravel() for slope in pt.grad(logp, free)])
    outputs = graph_replace([logp, slopes], dict(zip(free, parts, strict=True)), strict=False)

    def start(seed: int) -> Floats:
        with drawing:  # nutpie's chains start side by side
            drawn = near(seed)
        return np.concatenate([np.ravel(drawn[value.name]) for value in free])

    recorded = recorder(model, shapes)
    recorded(start(0)[None])  # what cannot be evaluated fails before anything is drawn
    density, shared = _density(compiled_function([point], outputs), ends[-1])
    return Callbacks(density, shared, start, recorded, ends[-1])


def _density(function: Any, size: int) -> tuple[Any, list[list[Any]]]:
    """Return a C function of compiled code, and the cells of what it shares."""
    import numba

    cells = function.vm.inputs[1:]
    arrays = [np.asarray(cell[0]) for cell in cells]
    data = [f", carray(data[{place}], {one.shape}, np.{one.dtype.name})" for place, one in enumerate(arrays)]
    text, code = _DENSITY.format(data="".join(data), size=size), function.vm.jit_fn
    # The file on disk is named by the source's, which changes every time where PyTensor compiles text, and keeps the
    # name of a module, which must be there to be imported when it is read.
    names = {"__name__": __name__, "carray": numba.carray, "np": np, "isfinite": math.isfinite, "code": code}
    exec(compile(text, "<string>", "exec"), names)  # the text above, with sizes and types
    key = None if code.cache_key is None else hashlib.sha256(f"{code.cache_key} {text}".encode()).hexdigest()
    return _in_c(names["density"], 1, key), cells


def _in_c(function: Callable[..., int], sizes: int, key: str | None) -> Any:
    """Return a C function of some sizes, three or two arrays and data, kept on disk by its key, if there is one."""
    import numba
    from numba import types
    from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS

    doubles, data = types.CPointer(types.double), types.CPointer(types.voidptr)
    if key is not None:
        CACHED_SRC_FUNCTIONS[function] = f"callback {key}"
    law = types.int64(*[types.uint64] * sizes, *[doubles] * (4 - sizes), data)
    return numba.cfunc(law, cache=key is not None)(function)


# --- functions of many points ----------------------------------------------------------------------------------------


def recorder(model: "pm.Model", shapes: Sequence[tuple[int, ...]]) -> Callable[[Floats], dict[str, Floats]]:
    """Return a function of points (point, value) that gives what a model records, with their axis first."""
    kept = model.unobserved_RVs
    call = over_points(model.replace_rvs_by_values(kept), model.value_vars, "interpreted")

    def some(at: Floats) -> dict[str, Floats]:
        found = [np.asarray(value, dtype=np.float64) for value in call(*parts_of(at, shapes))]
        return {  # a value that depends on no parameter comes without the points' axis
            variable.name: value if value.ndim > variable.ndim else np.broadcast_to(value, (len(at), *value.shape))
            for variable, value in zip(kept, found, strict=True)
        }

    def recorded(at: Floats) -> dict[str, Floats]:
        parts, start, together = list[dict[str, Floats]](), 0, _TOGETHER
        while start < len(at):
            parts.append(some(at[start : start + together]))
            start += together
            widest = max(at.shape[1], *(math.prod(value.shape[1:]) for value in parts[0].values()))
            together = max(_TOGETHER, _IN_MEMORY // widest)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return recorded


def parts_of(at: Floats, shapes: Sequence[tuple[int, ...]]) -> list[Floats]:
    """Return the variables at points."""
    split = np.split(at, np.cumsum([math.prod(shape) for shape in shapes])[:-1], axis=1)
    return [np.ascontiguousarray(part).reshape(len(at), *shape) for part, shape in zip(split, shapes, strict=True)]


def over_points(outputs: Sequence[Any], free: Sequence[Any], by: str, given: Sequence[Any] = ()) -> Callable[..., Any]:
    """Make graphs of a point a function of many points; its code by numba may run in several threads at once."""
    import pytensor.tensor as pt
    from pytensor.graph.replace import vectorize_graph

    points = [pt.tensor(value.name, shape=(None, *value.type.shape)) for value in free]
    inputs, outputs = [*points, *given], vectorize_graph(outputs, dict(zip(free, points, strict=True)))
    function = compiled_function(inputs, outputs, "FAST_COMPILE" if by == "interpreted" else None)
    if by != "interpreted":
        code, shared = function.vm.jit_fn, function.vm.inputs[len(inputs) :]
        return lambda *inputs: code(*inputs, *(held[0] for held in shared))
    lock = threading.Lock()  # PyTensor keeps what it computes in the function itself

    def one_at_a_time(*inputs: Any) -> Any:
        with lock:
            return function(*inputs)

    return one_at_a_time
