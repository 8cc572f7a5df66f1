"""Speed of the verifier: its targets, and the efficiency study of the paper's Figure 1.

`pytest tests/benchmarks/test_verifier.py` times the targets; `python tests/benchmarks/test_verifier.py FILE.png` draws
the figure: seconds against M for 5,000 draws from the posterior by the naive per-iteration multinomial, by the
coefficient-table Gibbs sampler and by NUTS, and for the exact posterior. The naive sampler is timed over 500 sweeps and
its time multiplied by ten: every sweep does the same work.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracles.verifier_gibbs import gibbs, naive_sweeps

from dpbayes.privacy.laws import TwoSidedGeometric
from dpbayes.verifier import count_partitions
from dpbayes.verifier.exact import posterior_of_counts

LAW = TwoSidedGeometric(2.0)


def noisy_at(m):
    """Released counts with eight in ten beyond and one in twenty-five failed."""
    return (round(0.8 * m), m - round(0.8 * m) - m // 25, m // 25)


def best_of(repeats, call):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def answer(m):
    """Posterior with its mean and standard deviation."""
    one = posterior_of_counts(noisy_at(m), LAW, m)
    return one.mean, one.sd, one.truncation_error


@pytest.mark.parametrize(("m", "limit"), [(50, 1e-3), (100_000, 0.1)])
def test_exact_posterior(m, limit):
    assert answer(m)[2] < 1e-12
    assert best_of(30, lambda: answer(m)) <= limit


@pytest.mark.parametrize("unit", [None, "person"])
def test_ols_on_a_million_rows(unit):
    import polars as pl

    rng = np.random.default_rng(0)
    n = 10**6
    matrix = rng.normal(size=(n, 7))
    frame = pl.DataFrame({f"x{i}": matrix[:, i] for i in range(7)} | {"person": np.arange(n) // 4})
    frame = frame.with_columns(y=pl.Series(matrix @ np.arange(1, 8) + rng.normal(size=n)))
    formula = "y ~ " + " + ".join(f"x{i}" for i in range(7))

    def count():
        return count_partitions(
            frame, formula=formula, coefficient="x1", threshold=2.0, direction=">", n_partitions=50, unit=unit
        )

    assert count().not_computed == 0
    assert best_of(5, count) <= 2.0


ROWS = 100_000


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    matrix = np.column_stack([np.ones(ROWS), rng.normal(size=(ROWS, 7))])
    return matrix, matrix @ np.arange(8.0) + rng.normal(size=ROWS)


def test_least_squares(benchmark, regression):
    from dpbayes.verifier.claim import fit_ols

    benchmark.group = "coefficient and standard error, 1e5 rows, 8 columns"
    found = benchmark.pedantic(lambda: fit_ols(*regression, 1), rounds=10, warmup_rounds=2)
    assert abs(found.coefficient - 1.0) < 0.02


def test_least_squares_statsmodels(benchmark, regression):
    import statsmodels.api as sm

    matrix, response = regression
    benchmark.group = "coefficient and standard error, 1e5 rows, 8 columns"
    benchmark.pedantic(lambda: sm.OLS(response, matrix).fit().bse[1], rounds=10, warmup_rounds=2)


def test_posterior_exact(benchmark):
    benchmark.group = "posterior of r, M = 50 (samplers: 500 draws)"
    benchmark.pedantic(lambda: answer(50), rounds=30, warmup_rounds=3)


def test_posterior_coefficient_table_gibbs(benchmark):
    rng = np.random.default_rng(1)
    benchmark.group = "posterior of r, M = 50 (samplers: 500 draws)"
    benchmark.pedantic(lambda: gibbs(noisy_at(50), 50, 2.0, draws=500, burn=0, rng=rng), rounds=3)


def test_posterior_naive_gibbs(benchmark):
    rng = np.random.default_rng(1)
    benchmark.group = "posterior of r, M = 50 (samplers: 500 draws)"
    benchmark.pedantic(lambda: naive_sweeps(noisy_at(50), 50, 2.0, sweeps=500, rng=rng), rounds=1)


def nuts_seconds(m):
    """Seconds to draw 5,000 with NUTS, compiling apart."""
    from dpbayes.inference import compile_model
    from dpbayes.inference.sampling import NutsSettings
    from dpbayes.verifier import PartitionCounts, build_model, release_counts

    release = release_counts(PartitionCounts(*noisy_at(m)), epsilon=1.0, rng=np.random.default_rng(1))
    compiled = compile_model(build_model(release))
    settings = NutsSettings(draws=1250, tune=500, chains=4)
    start = time.perf_counter()
    compiled.fit(settings, random_seed=1, progressbar=False)
    return time.perf_counter() - start, compiled.compile_seconds


def study(sizes, *, with_nuts=True):
    """Seconds for 5,000 draws by each method, by M; NaN where a method is not run."""
    rng = np.random.default_rng(1)
    rows = {}
    for m in sizes:
        noisy = noisy_at(m)
        naive = 10 * best_of(1, lambda: naive_sweeps(noisy, m, 2.0, sweeps=500, rng=rng))  # noqa: B023
        table = best_of(1, lambda: gibbs(noisy, m, 2.0, draws=4000, burn=1000, rng=rng))  # noqa: B023
        nuts, compiling = nuts_seconds(m) if with_nuts else (np.nan, np.nan)
        rows[m] = {
            "naive multinomial": naive,
            "coefficient table": table,
            "NUTS (compiled)": nuts,
            "exact posterior": best_of(20, lambda: answer(m)),  # noqa: B023
        }
        shown = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in rows[m].items())
        print(f"M = {m}: {shown}; compiling {compiling:.3g} s", flush=True)
    return rows


def draw(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 5.0), layout="constrained")
    for method in next(iter(rows.values())):
        axis.plot(list(rows), [row[method] for row in rows.values()], marker="o", label=method)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(list(rows), [str(m) for m in rows])
    axis.minorticks_off()
    axis.set_xlabel("partitions M")
    axis.set_ylabel("seconds for the posterior (5,000 draws, or exact)")
    axis.set_title("Execution time, after the paper's Figure 1")
    axis.grid(color="0.9")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=130)


def test_the_exact_posterior_is_the_fastest_by_far():
    rows = study([20, 50], with_nuts=False)
    for row in rows.values():
        assert row["exact posterior"] < row["coefficient table"] / 20
        assert row["coefficient table"] < row["naive multinomial"]


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "verifier_figure1.png")
    draw(study([10, 20, 50, 100, 200], with_nuts="--no-nuts" not in sys.argv), target)
    print(target)
