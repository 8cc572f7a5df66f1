"""The key under which machine code is kept follows the source of every loop that an operation reaches."""

import importlib.util
import sys

import pytest
from pytensor.link.numba.dispatch.basic import numba_funcify_default_op_cache_key

from dpbayes.inference.compiled_ops import source_files, source_version
from dpbayes.inference.composite_counts import TablesLogLikelihood
from dpbayes.inference.normal_counts import NormalCounts
from dpbayes.inference.pair_counts import PairCounts, PairEffects
from dpbayes.latent_class.attribute_totals import _CommonShift
from dpbayes.latent_class.cell_probabilities import CellProbabilities, _CellGradients

INNER = "import numba\n@numba.njit\ndef inner(x):\n    return x + {}\n"
OUTER = "import numba\nfrom inner_loops import inner\n@numba.njit\ndef outer(x):\n    return 2 * inner(x)\n"


def loaded(folder, name, source):
    """Write a module, import it afresh, and let others import it by its name."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version_of(folder, added):
    folder.mkdir()
    try:
        loaded(folder, "inner_loops", INNER.format(added))
        outer = loaded(folder, "outer_loops", OUTER).outer
        return source_version(lambda x: outer(x)), source_version(outer), outer(1.0)
    finally:
        sys.modules.pop("inner_loops", None)
        sys.modules.pop("outer_loops", None)


def test_a_change_two_calls_away_changes_the_version(tmp_path):
    first, second, again = (version_of(tmp_path / name, added) for name, added in (("a", 1), ("b", 2), ("c", 1)))
    assert first[2] == 4.0 and second[2] == 6.0
    assert first[0] != second[0] and first[1] != second[1]
    assert first == again  # wherever the files lie


@pytest.mark.parametrize(
    ("op", "names"),
    [
        (NormalCounts(), {"normal_counts.py"}),
        (PairCounts(), {"pair_counts.py", "pair_kernels.py", "summed_count.py", "mills_ratio.py"}),
        (PairEffects(), {"pair_counts.py", "pair_kernels.py", "summed_count.py", "mills_ratio.py"}),
        (CellProbabilities(), {"cell_probabilities.py"}),
        (_CellGradients(), {"cell_probabilities.py"}),
        (_CommonShift(), {"attribute_totals.py"}),
        (TablesLogLikelihood(), {"composite_counts.py", "count_kernels.py", "count_products.py"}),
    ],
    ids=lambda case: type(case).__name__,
)
def test_operations_are_kept_by_the_files_of_their_loops(op, names):
    function, version = numba_funcify_default_op_cache_key(op, node=None)
    assert {path.name for path in source_files(function)} == names
    assert version == source_version(function) > 0
