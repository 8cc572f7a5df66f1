import subprocess
import sys
import threading

import numpy as np

from dpbayes._kernels import vectorized


def test_compiles_once_a_signature():
    built = []

    @vectorized
    def product(x, y):
        built.append((x.type, y.type))
        return x * y

    column, row = np.arange(3.0)[:, None], np.arange(4.0)[None, :]
    np.testing.assert_array_equal(product(column, row), column * row)
    np.testing.assert_array_equal(product(column + 1, row), (column + 1) * row)
    assert product.n_compiled == len(built) == 1
    np.testing.assert_array_equal(product(np.arange(3), np.arange(3)), np.arange(3) ** 2)
    assert product.n_compiled == 2


def test_several_outputs_and_constants():
    @vectorized
    def power_and_sum(x, *, exponent):
        return x**exponent, x.sum()

    powered, total = power_and_sum(np.array([1.0, 2.0]), exponent=3)
    np.testing.assert_allclose(powered, [1.0, 8.0])
    assert total == 3.0
    power_and_sum(np.array([1.0, 2.0]), exponent=2)
    assert power_and_sum.n_compiled == 2


def test_threads_share_one_compilation():
    @vectorized
    def double(x):
        return 2 * x

    threads = [threading.Thread(target=double, args=(np.ones(2),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert double.n_compiled == 1


def test_import_leaves_pytensor_out():
    code = "import sys, dpbayes._kernels; sys.exit('pytensor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
