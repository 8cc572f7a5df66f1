"""Fits of real files and of generated records; prints what was measured.

    python tests/benchmarks/latent_class_files.py FILE.csv --case sixteen --epsilon 1 --noise geometric --seed 0
    python tests/benchmarks/latent_class_files.py --case nine
    python tests/benchmarks/latent_class_files.py --case fifty --noise gaussian --planned 80
    python tests/benchmarks/latent_class_files.py FILE.csv --case sixteen --seed 0 --peer 20 50 100
    python tests/benchmarks/latent_class_files.py FILE.csv --case resampled --epsilon 0.1 --populations 8
    python tests/benchmarks/latent_class_files.py FILE.csv OTHER.csv --case large --epsilon 10
    python tests/benchmarks/latent_class_files.py --case affairs --epsilon 1
    python tests/benchmarks/latent_class_files.py ANY.csv --case file --cap 20 --epsilon 1

FILE.csv is an excerpt of the American Community Survey for Massachusetts in the columns of the NIST diverse
communities data (`ma2018.csv`, `ma2019.csv`): sixteen binary or fourteen mixed attributes and all two-way tables; the
case large is of 48,800 records drawn from the files with replacement, with finer groups of age and income.
Seven real data sets come with libraries: affairs (nine attributes of 6,366 women), insurance (ten of 20,190 people of
the RAND health insurance experiment) and election (nine of 944 voters of 1996) with statsmodels, digits (sixteen pixels
of 1,797 pictures, black or white), biopsies (sixteen measurements of 569 biopsies, above or below the median), wine
(thirteen of 178 wines in quarters, and their kind) and diabetes (eleven of 442 patients, in fifths) with scikit-learn.
The case file is all columns of any CSV file, each value a level, rare ones merged beyond --cap.
Generated records come from a random Bayesian network: nine attributes of 2 to 12 levels, 30,000 records and seven
tables of two and three attributes; fifty of 2 to 20 levels, 50,000 records and all pairs, or with --planned every
attribute alone and so many pairs, chosen privately. The cases loglinear, threeway, network and resampled are small
populations of eight attributes of 2 to 6 levels, 10,000 records and all pairs, one for each seed: a log-linear model
with terms of pairs, and of triples, a Bayesian network, and records drawn from FILE.csv with replacement; with
--populations so many seeds are fitted, and the last line is their mean. Errors are sums of absolute
differences in shares against the records' own tables, averaged over tables; coverage is of 95 % intervals of the
records' shares, and of cells by how many records they hold. With --peer the same noisy tables are fitted by mbi's
mixture of products (uv sync --group peers) with so many components instead, which gives errors of the same tables.
"""

import argparse
import json
import resource
import sys
import time
from itertools import combinations

import numpy as np
import polars as pl

from dpbayes.data import Domain, Marginal
from dpbayes.inference import Verdict, sample
from dpbayes.latent_class import build_model, margin_draws, plan, release_plan, sampler_defaults
from dpbayes.privacy import release_tables

BINARY = {
    "female": pl.col("SEX") == "2",
    "over39": pl.col("AGEP").cast(pl.Int64) >= 40,
    "married": pl.col("MSP") == "1",
    "hispanic": pl.col("HISP") != "0",
    "minority": pl.col("RAC1P") != "1",
    "children": ~pl.col("NOC").is_in(["0", "N"]),
    "large": pl.col("NPF").cast(pl.Int64, strict=False).fill_null(0) >= 3,
    "quarters": pl.col("HOUSING_TYPE") != "1",
    "owner": pl.col("OWN_RENT") == "1",
    "idle": pl.col("INDP_CAT") == "N",
    "college": pl.col("EDU").cast(pl.Int64, strict=False).fill_null(0) >= 9,
    "income": pl.col("PINCP_DECILE").cast(pl.Int64, strict=False).fill_null(0) >= 7,
    "memory": pl.col("DREM") == "1",
    "walking": pl.col("DPHY") == "1",
    "sight": pl.col("DEYE") == "1",
    "hearing": pl.col("DEAR") == "1",
}
MIXED = ["PUMA", "AGEP", "SEX", "MSP", "HISP", "RAC1P", "NOC", "NPF", "HOUSING_TYPE", "OWN_RENT", "INDP_CAT", "EDU",
         "PINCP_DECILE", "DPHY"]  # fmt: skip
FINE = [*MIXED[:11], "POVPIP", *MIXED[12:]]  # income as a share of the poverty line in place of education
LARGE_N = 48_800


def coded(paths, case, cap):
    """Level numbers of the chosen attributes, and how many levels they have."""
    frame = pl.concat([pl.read_csv(path, infer_schema_length=0) for path in paths])
    if case == "sixteen":
        return frame.select(**{name: rule.cast(pl.Int64) for name, rule in BINARY.items()}).to_numpy(), [2] * 16
    if case == "file":
        return merged(frame, cap)
    years = 5 if case == "large" else 10
    frame = frame.select(FINE if case == "large" else MIXED).with_columns(
        AGEP=(pl.col("AGEP").cast(pl.Int64) // years).clip(0, 99 // years).cast(pl.String),
    )
    if case == "large":
        income = pl.col("POVPIP").cast(pl.Int64, strict=False) // 30
        frame = frame.with_columns(POVPIP=income.fill_null(-1).cast(pl.String))
    return merged(frame, cap)


def merged(frame, cap):
    """Level numbers of every column, and how many levels it has; rare ones are merged beyond `cap`."""
    columns = []
    for name in frame.columns:
        values = frame[name].to_numpy()
        levels, counts = np.unique(values, return_counts=True)
        common = levels[np.argsort(-counts)][: cap - 1] if len(levels) > cap else levels
        columns.append(
            np.array([np.flatnonzero(common == value)[0] if value in common else len(common) for value in values])
        )
    return np.column_stack(columns), [int(column.max()) + 1 for column in columns]


def generated(levels, n, rng):
    """Records of a random Bayesian network: every attribute has two parents among the five before it."""
    columns = []
    for place, size in enumerate(levels):
        parents = rng.choice(np.arange(max(0, place - 5), place), min(place, 2), replace=False).astype(int)
        scores = np.tile(rng.normal(0, 1, size), (n, 1))
        for parent in parents:
            scores += rng.normal(0, 1, (levels[parent], size))[columns[parent]]
        columns.append(np.argmax(scores + rng.gumbel(size=scores.shape), axis=1))
    return np.column_stack(columns), list(levels)


LIBRARY = ["affairs", "insurance", "election", "digits", "biopsies", "wine", "diabetes"]
CASES = ["file", "sixteen", "fourteen", "large", "nine", "fifty"]
CASES += ["loglinear", "threeway", "network", "resampled", *LIBRARY]
SMALL = [2, 3, 4, 5, 2, 3, 4, 6]
SMALL_N = 10_000


def loglinear(levels, n, rng, order):
    """Records of a log-linear model with normal terms of all sets of up to `order` attributes."""
    scores = np.zeros(levels)
    for size in range(1, order + 1):
        for axes in combinations(range(len(levels)), size):
            shape = [level if axis in axes else 1 for axis, level in enumerate(levels)]
            scores = scores + rng.normal(0, {1: 0.7, 2: 0.35, 3: 0.25}[size], shape)
    shares = np.exp(scores - scores.max()).ravel()
    cells = rng.choice(shares.size, n, p=shares / shares.sum())
    return np.column_stack(np.unravel_index(cells, levels)), list(levels)


def resampled(paths, n, rng):
    """Records of files with replacement: eight of its attributes at random, at most six levels each."""
    records, _ = coded(paths, "fourteen", 6)
    records = records[rng.integers(len(records), size=n)][:, np.sort(rng.choice(records.shape[1], 8, replace=False))]
    columns = [np.unique(column, return_inverse=True)[1] for column in records.T]
    return np.column_stack(columns), [int(column.max()) + 1 for column in columns]


def in_groups(values, size):
    """Numbers of the levels if they are few, else of groups of equal size."""
    levels = np.unique(values)
    few = len(levels) <= 4
    return np.searchsorted(levels if few else np.quantile(values, np.arange(1, size) / size), values)


def from_library(case):
    """Records and levels of a data set that statsmodels or scikit-learn comes with."""
    import statsmodels.datasets

    if case in ("digits", "biopsies"):
        from sklearn.datasets import load_breast_cancer, load_digits

        data = load_breast_cancer().data[:, :16]
        above = load_digits().images[:, 2:6, 2:6].reshape(-1, 16) > 7 if case == "digits" else data > np.median(data, 0)
        return above.astype(int), [2] * 16
    if case in ("wine", "diabetes"):
        from sklearn.datasets import load_diabetes, load_wine

        found = load_wine() if case == "wine" else load_diabetes(scaled=False)
        columns = [in_groups(column, 4 if case == "wine" else 5) for column in (*found.data.T, found.target)]
        return np.column_stack(columns), [int(column.max()) + 1 for column in columns]
    if case == "affairs":
        data = statsmodels.datasets.fair.load_pandas().data
        cuts = {"affairs": [1e-9, 1, 3]}
    elif case == "election":
        data = statsmodels.datasets.anes96.load_pandas().data.drop(columns=["popul", "logpopul"])
        cuts = {"age": [30, 40, 50, 60, 70], "income": [8, 12, 15, 18, 21]}
    else:
        data = statsmodels.datasets.randhie.load_pandas().data
        cuts = {"mdvis": [0.5, 2.5, 5.5, 10.5], "physlm": [1e-9, 0.999]}
        cuts |= {
            name: data[name].quantile(np.arange(1, k) / k) for name, k in {"lpi": 4, "fmde": 4, "disea": 6}.items()
        }
    grouped = {name: np.searchsorted(cuts[name], data[name]) if name in cuts else data[name] for name in data}
    columns = [np.unique(column, return_inverse=True)[1] for column in grouped.values()]
    return np.column_stack(columns), [int(column.max()) + 1 for column in columns]


def small(case, paths, seed):
    """Records and levels of a small population."""
    rng = np.random.default_rng([seed, 7])
    if case == "resampled":
        return resampled(paths, SMALL_N, rng)
    if case == "network":
        return generated(SMALL, SMALL_N, rng)
    return loglinear(SMALL, SMALL_N, rng, {"loglinear": 2, "threeway": 3}[case])


def studied(case, paths, cap, seed):
    """Records, levels, and the attributes of every released table."""
    if case == "nine":
        records, shape = generated([2, 3, 4, 5, 6, 7, 8, 10, 12], 30_000, np.random.default_rng(9))
        return records, shape, [(0, 1), (1, 2, 3), (2, 4), (3, 5), (4, 6), (0, 7, 8), (5, 8)]
    if case in ("loglinear", "threeway", "network", "resampled"):
        records, shape = small(case, paths, seed)
    elif case in LIBRARY:
        records, shape = from_library(case)
    elif case == "fifty":
        sizes = [2 + (7 * place) % 19 for place in range(50)]
        records, shape = generated(sizes, 50_000, np.random.default_rng(50))
    else:
        records, shape = coded(paths, case, cap)
        if case == "large":
            records = records[np.random.default_rng([seed, 7]).integers(len(records), size=LARGE_N)]
    return records, shape, list(combinations(range(len(shape)), 2))


def table(records, shape, axes):
    part = [shape[axis] for axis in axes]
    cells = np.ravel_multi_index(tuple(records[:, list(axes)].T), part)
    return np.bincount(cells, minlength=int(np.prod(part))).reshape(part)


def compared(draws, exact, n):
    """Error, coverage, and coverage by the number of records in a cell."""
    flat = draws.reshape(-1, exact.size)
    low, high = np.quantile(flat, [0.025, 0.975], axis=0)
    share, counts = exact.ravel() / n, exact.ravel()
    inside = (low <= share + 1e-9) & (share <= high + 1e-9)
    groups = {"none": counts == 0, "1-49": (counts > 0) & (counts < 50), "50+": counts >= 50}
    return float(np.abs(flat.mean(axis=0) - share).sum()), inside, groups


def measure(trace, release, records, shape, axes_sets, seed, thin):
    names, n = release.domain.names, len(records)
    errors, inside, by_size = [], [], {"none": [], "1-49": [], "50+": []}
    for axes in axes_sets:
        wanted = [names[axis] for axis in axes]
        draws = margin_draws(trace, wanted, target="records", release=release, random_seed=seed, thin=thin)
        error, covered, groups = compared(draws.to_numpy(), table(records, shape, axes), n)
        errors.append(error)
        inside.append(covered)
        for group, members in groups.items():
            by_size[group].append(covered[members])
    found = {"error": round(float(np.mean(errors)), 5), "covered": round(float(np.concatenate(inside).mean()), 4)}
    for group, parts in by_size.items():
        if sum(map(len, parts)):
            found[f"covered_{group}"] = round(float(np.concatenate(parts).mean()), 3)
    return found


def said(stage, share):
    """Say when a stage of sampling begins."""
    if share == 0.0:
        print(f"{time.process_time():.0f} CPU s: {stage}", file=sys.stderr, flush=True)


def peer(release, components, seed):
    """Fit mbi's mixture of products to a release, 2,000 steps of Adam; return a function that gives shares."""
    import jax
    import optax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    import mbi
    from mbi.extensions import MixtureOfProductsEstimator

    measured = [
        mbi.LinearMeasurement(part.counts.ravel().astype(float), part.attributes, stddev=part.noise.variance**0.5)
        for part in release.tables
    ]
    estimator = MixtureOfProductsEstimator(optimizer=optax.adam(0.05), num_components=components, seed=seed)
    domain = mbi.Domain(release.domain.names, release.domain.shape)
    found = estimator.estimate(domain, measured, known_total=float(release.n), iters=2000)
    return lambda names: np.asarray(found.project(names).datavector()) / release.n


def compare_peer(arguments, release, records, shape, chosen):
    """Print the peer's mean errors of the tables in question."""
    names, n = release.domain.names, len(records)
    for components in arguments.peer:
        started = time.perf_counter()
        shares = peer(release, components, arguments.seed)
        errors = {
            order: np.mean(
                [
                    np.abs(shares([names[axis] for axis in axes]) - table(records, shape, axes).ravel() / n).sum()
                    for axes in sets
                ]
            ).round(5)
            for order, sets in chosen.items()
        }
        found = {"components": components, "seconds": round(time.perf_counter() - started, 1)}
        print(json.dumps(found | {"errors": errors}), flush=True)
    return {}


def asked():
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--case", choices=CASES, default="sixteen")
    parser.add_argument("--cap", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--noise", choices=["geometric", "gaussian"], default="geometric")
    parser.add_argument("--planned", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--populations", type=int, default=1)
    parser.add_argument("--model", type=json.loads, default={})
    parser.add_argument("--sampling", type=json.loads, default={})
    parser.add_argument("--peer", type=int, nargs="+", default=[])
    return parser.parse_args()


def released(arguments):
    """Return the records, the sizes of attributes, the attributes of each table, exact tables and the release."""
    records, shape, sets = studied(arguments.case, arguments.files, arguments.cap, arguments.seed)
    domain = Domain.from_levels({f"x{axis}": tuple(range(size)) for axis, size in enumerate(shape)})
    rng = np.random.default_rng([arguments.seed, 1])
    root = np.sqrt(np.log(1e9) + arguments.epsilon) - np.sqrt(np.log(1e9))
    budget = {"epsilon": arguments.epsilon} if arguments.noise == "geometric" else {"rho": root**2}
    if arguments.planned:
        frame = pl.DataFrame(dict(zip(domain.names, records.T, strict=True)))
        planned = plan(domain, n_records=len(records), choose=arguments.planned, **budget)
        release = release_plan(frame, planned, rng=rng)
        sets = [release.domain.axes(part.attributes) for part in release.tables]
    exact = [Marginal(domain.project([domain.names[a] for a in ax]), table(records, shape, ax)) for ax in sets]
    if not arguments.planned:
        law = {"epsilon": "two-sided-geometric", "rho": "discrete-gaussian"}[next(iter(budget))]
        release = release_tables(exact, noise=law, rng=rng, **budget)
    return records, shape, sets, exact, release


def main():
    arguments, found = asked(), []
    for seed in range(arguments.seed, arguments.seed + arguments.populations):
        arguments.seed = seed
        found.append(fitted(arguments))
    if arguments.populations > 1:
        print(json.dumps({"populations": len(found), "means": averaged(found)}), flush=True)


def averaged(found):
    """Return the mean of every figure over populations."""
    figures = {(order, key) for one in found for order, values in one.items() for key in values}
    means = {order: {} for order in found[0]}
    for order, key in sorted(figures, key=str):
        means[order][key] = round(float(np.mean([one[order][key] for one in found if key in one[order]])), 4)
    return means


def fitted(arguments):
    """Fit one release, or its peer; print and return what was measured."""
    records, shape, sets, exact, release = released(arguments)
    noisy = [np.abs(t.counts - e.counts).sum() / len(records) for t, e in zip(release.tables, exact, strict=True)]
    chooser = np.random.default_rng(arguments.seed)
    pairs, chosen = list(combinations(range(len(shape)), 2)), {}
    for order in (2, 3, 4) if shape == [2] * 16 else (2, 3):
        some = [tuple(sorted(chooser.choice(len(shape), order, replace=False).tolist())) for _ in range(40)]
        chosen[order] = pairs if order == 2 and len(pairs) < 200 else some
    if sets != pairs:
        chosen["released"] = sets[:200]
    if arguments.peer:
        return compare_peer(arguments, release, records, shape, chosen)
    started, before = time.perf_counter(), time.process_time()
    model = build_model(release, **arguments.model)
    settings = (
        sampler_defaults(release) | {"progressbar": False, "predictive": False, "progress": said} | arguments.sampling
    )
    trace = sample(model, random_seed=arguments.seed, **settings)
    verdict, seconds = Verdict.from_trace(trace), time.perf_counter() - started
    found = {
        "case": {name: value for name, value in vars(arguments).items() if name not in ("files", "peer")},
        "noise_stddev": round(release.tables[0].noise.variance ** 0.5, 2),
        "form": "cells" if "level_deviations" in model.named_vars else "tables",
        "passed": verdict.passed,
        "checks": {f.check: round(f.value, 4) for f in verdict.findings},
        "minutes": round(seconds / 60, 2),
        "cpu_minutes": round((time.process_time() - before) / 60, 2),
        "compile_seconds": round(trace.attrs["compile_seconds"], 1),
        "gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "released_error": round(float(np.mean(noisy)), 5),
        "sampler": json.loads(trace.attrs["sampler_settings"]),
    }
    print(json.dumps(found), flush=True)
    measured = {order: measure(trace, release, records, shape, some, 1, 2) for order, some in chosen.items()}
    for order, values in measured.items():
        print(json.dumps({order: values}), flush=True)
    return measured


if __name__ == "__main__":
    main()
