import itertools
import json
from dataclasses import asdict

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import chi2, laplace, multivariate_normal, norm

from dpbayes.bloom import study
from dpbayes.bloom.calibration import bloom_epsilon
from dpbayes.bloom.filters import BitDistribution, BloomRelease, WeeklyFilters, build_filters, shuffle_flip
from dpbayes.bloom.model import build_lattice_model
from dpbayes.bloom.reach import (
    ReachLattice,
    ReachNumbers,
    empty_positions,
    estimate_reach,
    read_reach_numbers,
    shown_sets,
)
from dpbayes.errors import DamagedFileError, InputError, SpecError
from dpbayes.report.document import Table
from dpbayes.runs import load_spec
from dpbayes.runs.protocol import Context

RNG = np.random.default_rng
WEEK = BloomRelease(np.array([3, 1]), 0.1, "secure")
NUMBERS = ReachNumbers.of(
    {("a",): [300, 410, 420], ("b",): [200, 350, 330], ("c",): [10, -20, 40], ("a", "b", "c"): [450, 600, 640]},
    stddev=25.0,
)


def prior_trace(data, population, draws=40, seed=1):
    model = build_lattice_model(data, population=population, classes=5)
    names = ["position", "level", "reach"]
    values = pm.draw([model[name] for name in names], draws=draws, random_seed=seed)
    dims = {"position": ("class", "publisher"), "level": ("publisher", "week"), "reach": ("set", "week")}
    coords = {name: list(values) for name, values in model.coords.items() if name in ("publisher", "week", "set")}
    posterior = xr.Dataset(
        {n: (("chain", "draw", *dims[n]), v[None]) for n, v in zip(names, values, strict=True)}, coords=coords
    )
    constants = xr.Dataset({"population": float(population), "class_size": ("class", model["class_size"].get_value())})
    return xr.DataTree.from_dict({"posterior": posterior, "constant_data": constants})


@pytest.fixture(scope="module")
def trace():
    return prior_trace(NUMBERS, 2000)


def test_every_draw_is_an_audience(trace):
    """Monotone in sets and weeks, and no Venn region is negative."""
    lattice, names = ReachLattice.from_trace(trace), NUMBERS.publishers
    subsets = [c for size in range(1, 4) for c in itertools.combinations(names, size)]
    reach = {(s, w): lattice.union(s, week=w) for s in subsets for w in (1, 2, 3)}
    for (s, w), people in reach.items():
        assert (people > 0).all() and (people < 2000).all()
        assert w == 1 or (people > reach[s, w - 1]).all()
        assert all((people >= reach[part, w]).all() for part in subsets if set(part) < set(s))
    for w in (1, 2, 3):
        for size in (1, 2, 3):
            for s in itertools.combinations(names, size):
                # People reached by all of s, by inclusion and exclusion over unions.
                signs = sum(
                    (-1) ** (r + 1) * sum(reach[part, w] for part in itertools.combinations(s, r))
                    for r in range(1, size + 1)
                )
                np.testing.assert_allclose(lattice.intersection(s, week=w), signs, atol=1e-8)
        law = lattice.frequency(week=w)
        np.testing.assert_allclose(law.sum(axis=1), 2000)
        np.testing.assert_allclose(law[:, 1:].sum(axis=1), reach[names, w])
        np.testing.assert_allclose(law @ np.arange(4), sum(reach[(name,), w] for name in names))
        assert (law > 0).all()


def test_the_model_records_the_reach_of_its_audience(trace):
    lattice, recorded = ReachLattice.from_trace(trace), trace["posterior"]["reach"]
    for place, which in enumerate(shown_sets(3)):
        names = [NUMBERS.publishers[i] for i in which]
        assert str(recorded["set"].values[place]) == " + ".join(names)
        for week in (1, 3):
            np.testing.assert_allclose(recorded.values[0, :, place, week - 1], lattice.union(names, week=week))


@pytest.mark.parametrize(("noise", "law"), [("gaussian", norm), ("laplace", laplace)])
def test_the_likelihood_is_that_of_the_stated_noise(noise, law):
    stddev = np.linspace(5.0, 60.0, NUMBERS.values.size)
    numbers = ReachNumbers(NUMBERS.publishers, NUMBERS.sets, NUMBERS.weeks, NUMBERS.values, stddev, noise)
    model = build_lattice_model(numbers, population=2000, classes=4)
    point = model.initial_point(random_seed=3)
    (graph,) = model.replace_rvs_by_values([model["reach"]])
    reach = model.compile_fn(graph, inputs=model.value_vars, on_unused_input="ignore")(point)
    place = {which: i for i, which in enumerate(shown_sets(3))}
    means = [reach[place[tuple(np.flatnonzero(s))], w - 1] for s, w in zip(numbers.sets, numbers.weeks, strict=True)]
    scale = stddev if noise == "gaussian" else stddev / np.sqrt(2)
    expected = law.logpdf(numbers.values, means, scale).sum()
    assert model.compile_logp(vars=model.observed_RVs)(point) == pytest.approx(expected, rel=1e-9)


def test_filters_of_several_weeks_are_independent_given_the_audience():
    """Their law is that of counts in units of the noise."""
    people = [np.arange(600), np.arange(400, 900)]
    weeks = []
    for week, m in enumerate((1500, 2000), start=1):
        so_far = [who[: len(who) * week // 2] for who in people]
        filters = build_filters(so_far, distribution=BitDistribution(m), seed=week)
        weeks.append(shuffle_flip(filters, flip_prob=0.1, rng=RNG(week)))
    model = build_lattice_model(WeeklyFilters(weeks), population=2000, classes=4)
    point = model.initial_point(random_seed=3)
    (graph,) = model.replace_rvs_by_values([model["reach"]])
    reach = model.compile_fn(graph, inputs=model.value_vars, on_unused_input="ignore")(point)
    assert reach.shape == (3, 2)
    expected = 0.0
    for release, people_reached in zip(weeks, reach.T, strict=True):
        _, counts, root = empty_positions(release)
        mean = release.n_bits * np.exp(-people_reached / release.n_bits)
        expected += multivariate_normal.logpdf(counts, mean, root @ root.T) + np.log(np.diag(root)).sum()
    assert model.compile_logp(vars=model.observed_RVs)(point) == pytest.approx(expected, rel=1e-9)


def test_the_share_of_a_publisher_is_a_parameter(trace):
    """The classes' mean probability is the share that the level was solved for, to a few parts in a thousand."""
    model = build_lattice_model(NUMBERS, population=2000)
    shares, reach = pm.draw([pm.math.sigmoid(model["final_share"]), model["reach"]], draws=200, random_seed=2)
    np.testing.assert_allclose(reach[:, :3, -1] / 2000, shares, rtol=0.05, atol=0.003)


def test_the_free_variables_leave_the_stated_prior_as_it_is():
    """Shifts by other variables have no Jacobian: scale of activity and final share keep their prior at every point."""
    model = build_lattice_model(NUMBERS, population=2000)
    point = {name: value + 0.3 for name, value in model.initial_point(random_seed=3).items()}
    point["taste"] = RNG(4).normal(size=point["taste"].shape)
    shown = model.replace_rvs_by_values([model["final_share"], pm.math.log(model["activity_sd"])])
    share, activity = model.compile_fn(shown, inputs=model.value_vars, on_unused_input="ignore")(point)
    assert abs(activity - point["activity_apart"]) > 1e-3 and np.abs(share - point["mean_share"]).min() > 0.1
    for name, expected in (
        ("mean_share", norm.logpdf(share, -2.0, 1.5)),
        ("activity_apart", norm.logpdf(activity, np.log(1.5), 0.5)),
    ):
        assert model.compile_logp(vars=[model[name]])(point) == pytest.approx(expected.sum(), rel=1e-6)


def test_empty_positions_are_unbiased_with_their_covariance():
    """Over flips and hash seeds, with the people fixed: mean and covariance within their Monte Carlo errors."""
    people, m, p, repeats = [np.arange(600), np.arange(400, 900)], 2000, 0.15, 1500
    reach = np.array([600, 500, 900])
    found, roots = [], []
    for seed in range(repeats):
        filters = build_filters(people, distribution=BitDistribution(m), seed=seed)
        which, counts, root = empty_positions(shuffle_flip(filters, flip_prob=p, rng=RNG(seed)))
        found.append(counts)
        roots.append(root @ root.T)
    np.testing.assert_array_equal(which, [[True, False], [False, True], [True, True]])
    covariance, claimed = np.cov(np.array(found).T), np.mean(roots, axis=0)
    stderr = np.sqrt(np.diag(covariance) / repeats)
    # exp(-n/m) is (1 - 1/m)^n but for a share n/(2 m^2): 0.2 positions here
    np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - m * np.exp(-reach / m)), 5 * stderr + 0.3)
    # An entry of a covariance of normals has standard error sqrt((s_ij^2 + s_ii s_jj) / repeats).
    spread = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / repeats)
    assert (np.abs(claimed - covariance) < 5 * spread).all()


def test_the_covariance_of_ten_filters_is_that_of_their_errors():
    """One scale of every set's reach, estimated with the covariance: its z has variance 1 over 30 audiences.

    Their sum of squares is chi-square with 30 degrees of freedom: false alarm .001.
    """
    k, m, squares = 10, 50_000, 0.0
    for seed in range(30):
        first = simulated_audience(seed, k=k, kinds=3 * (seed % 2))
        people = [np.flatnonzero(one <= 4) for one in first]
        filters = build_filters(people, distribution=BitDistribution(m), seed=seed)
        which, counts, root = empty_positions(shuffle_flip(filters, flip_prob=0.2, rng=RNG(100 + seed)))
        reach = np.array([(first[row] <= 4).any(axis=0).sum() for row in which])
        errors = np.array([counts - m * (1 - 1 / m) ** reach, reach * np.exp(-reach / m)])
        away, along = np.linalg.solve(root, errors.T).T
        squares += (along @ away) ** 2 / (along @ along)
    low, high = chi2.ppf([0.0005, 0.9995], 30)
    assert low < squares < high


def test_csv_round_trip(tmp_path):
    path = tmp_path / "reach.csv"
    path.write_text("publishers,week,reach,stddev\na,1,410.5,25\nb,1,-3,25\nb + a,2,600,30\n")
    numbers = read_reach_numbers(path)
    assert numbers.publishers == ("a", "b") and numbers.n_weeks == 2 and numbers.noise == "gaussian"
    assert numbers.sets.tolist() == [[True, False], [False, True], [True, True]]
    numbers.write(tmp_path / "reach.json")
    turned = dict(reversed(json.loads((tmp_path / "reach.json").read_text()).items()))  # the order of keys is free
    (tmp_path / "reach.json").write_text(json.dumps(turned))
    again = study.read_release(tmp_path / "reach.json")
    assert again.digest == numbers.digest and again.sampler == "published"
    BloomRelease(np.array([3, 1]), 0.1, "secure").write(tmp_path / "release.json")
    assert isinstance(study.read_release(tmp_path / "release.json"), BloomRelease)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no numbers"),
        ("publishers,reach,stddev\na,many,3\n", "line 2 lacks a number"),
        ("publishers,reach\na,1\n", "line 2 lacks a number, or a column"),
        ("publishers,reach,stddev\na,1,0\n", "each standard deviation positive"),
        ("publishers,reach,stddev\na,nan,1\n", "must be finite"),
        ("publishers,reach,stddev\n,1,1\n", "must be 1 to 10 different names"),
        ("publishers,week,reach,stddev\na,53,1,1\n", "between 1 and 52"),
        ("publishers,reach,stddev\n" + "".join(f"p{i},1,1\n" for i in range(11)), "must be 1 to 10"),
        ("publishers,reach,stddev,noise\na,1,1,laplace\nb,1,1,gaussian\n", "a table has one"),
        ("publishers,reach,stddev,noise\na,1,1,cauchy\n", "'gaussian' or 'laplace'"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    (tmp_path / "reach.csv").write_text(text)
    with pytest.raises((DamagedFileError, InputError), match=message):
        read_reach_numbers(tmp_path / "reach.csv")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_lattice_model(3, population=10), "data must be a WeeklyFilters, .* or give ReachNumbers"),
        (lambda: WeeklyFilters([]), "number of weeks"),
        (lambda: WeeklyFilters([WEEK] * 53), "number of weeks"),
        (lambda: WeeklyFilters([WEEK, BloomRelease(np.array([3, 1, 1, 1]), 0.1, "secure")]), "same publishers"),
        (lambda: build_lattice_model(NUMBERS, population=0), "population must be positive"),
        (lambda: build_lattice_model(NUMBERS, population=10, classes=1), "classes must be a whole number from 2"),
        (lambda: empty_positions(BloomRelease(np.array([3, 1]), 0.1, "secure", 2.0)), "uniform hashing"),
        (lambda: ReachNumbers.of({}, stddev=1.0), "at least one"),
        (lambda: ReachLattice(("a",), 1.0, np.ones(1), np.ones((1, 1, 1)), np.ones((1, 1, 1))).union(["b"]), "some of"),
        (lambda: ReachLattice(("a",), 1.0, np.ones(1), np.ones((1, 1, 1)), np.ones((1, 1, 1))).union(week=2), "week"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


WEEKS = """
system = "bloom"
title = "t"
[audience]
n_people = 2000
shares = [0.4, 0.2]
weeks = 3
[filters]
n_bits = 4000
[privacy]
epsilon = 6.0
delta = 3e-3
simulation_seed = 4
[lattice]
population = 2500
"""


def test_a_spec_of_weekly_filters(tmp_path):
    """The epsilon of a spec is that of all weeks; release, file, placeholder, model and page agree."""
    path = tmp_path / "weeks.toml"
    path.write_text(WEEKS)
    spec, context = load_spec(path).spec, Context(tmp_path, tmp_path, echo=lambda line: None)
    release = study.release(spec, context, rng=RNG(4), ledger=None)
    design = study.design(spec, tmp_path)
    assert [week.flip_prob for week in release.weeks] == [week.flip_prob for week in design.weeks]
    alone = bloom_epsilon(flip_prob=release.weeks[0].flip_prob, delta=1e-3, n_filters=2, n_bits=4000)
    claims = study._certificate(release, 3e-3)
    assert claims[0].upper == pytest.approx(3 * alone.upper, rel=1e-6)
    assert 5.99 < claims[0].upper <= 6.0 and claims[0].delta == 3e-3
    assert {claim.lower for claim in claims} == {0.0}
    again = study.read_release(release.write(tmp_path / "release.json"))
    assert again.digest == release.digest and again.privacy_record == release.privacy_record
    words = f"2 filters of 4,000 bits at flip probability {release.weeks[0].flip_prob:.4f}, 3 weeks, "
    assert study.describe(spec, release).startswith(words)
    truth = json.loads((tmp_path / "truth.json").read_text())
    # Reach by week: a third, two thirds and all, within five standard errors of each debiased estimate.
    for share, week in zip((1 / 3, 2 / 3, 1.0), release.weeks, strict=True):
        for place, people in enumerate(truth["publishers"]):
            estimate = estimate_reach(week).union((place,))
            assert abs(estimate.value - share * people) < 5 * np.hypot(estimate.stderr, np.sqrt(people) / 2)
    assert study.try_fit(spec, design, context)["reach"].eval().shape == (3, 3)
    kept = {"certificate": [asdict(claim) for claim in claims], "truth": truth}
    findings = study.sections(spec, release, prior_trace(release, 2500), kept)
    (table,) = [b for s in findings.sections for b in s.blocks if getattr(b, "name", "") == "privacy"]
    assert "of 3 weeks" in table.caption and "By week 3, 2 publishers" in findings.answer
    path.write_text(WEEKS.partition("[lattice]")[0])
    with pytest.raises(SpecError, match=r"1 week need the section .lattice."):
        load_spec(path)
    with pytest.raises(SpecError, match=r"need the section .lattice."):
        study.try_fit(spec.model_copy(update={"lattice": None}), release, None)


SPEC = 'system = "bloom"\ntitle = "t"\n[data]\nrelease = "reach.csv"\n[lattice]\npopulation = 2000\n'


def test_a_spec_of_published_numbers(tmp_path):
    (tmp_path / "reach.csv").write_text("publishers,week,reach,stddev\na,1,410,25\nb,1,30,90\na+b,2,600,25\n")
    path = tmp_path / "reach.toml"
    path.write_text(SPEC)
    spec = load_spec(path).spec
    numbers = study.read_release(tmp_path / "reach.csv")
    assert study.describe(spec, numbers) == "3 published numbers of 2 publishers, 2 weeks, gaussian noise"
    findings = study.sections(spec, numbers, prior_trace(numbers, 2000), {})
    tables = {
        block.name: block for section in findings.sections for block in section.blocks if isinstance(block, Table)
    }
    assert [row[0] for row in tables["reach"].rows] == ["a", "b", "a + b"]
    for _, _, mean, low, high in tables["reach"].rows:
        assert 0 < low < mean < high < 2000
    assert tables["reach"].rows[2][1] == 600 and tables["reach"].rows[0][1] is None  # published for week 1 only
    smallest, *_ = min(tables["reach"].rows[:2], key=lambda row: row[2])
    assert (
        "By week 2, 2 publishers have reached" in findings.answer
        and f"the smallest, {smallest}, " in findings.answer
        and findings.picture is not None
    )
    path.write_text(SPEC.partition("[lattice]")[0])
    with pytest.raises(SpecError, match=r"need the section .lattice."):
        study.try_fit(load_spec(path).spec, numbers, None)


@pytest.mark.slow
def test_where_noise_hides_everything_the_interval_is_wide_and_not_at_zero():
    from dpbayes.inference import sample

    numbers = ReachNumbers.of({("a",): -40_000.0, ("b",): 30_000.0, ("a", "b"): 10_000.0}, stddev=102_000.0)
    trace = sample(
        build_lattice_model(numbers, population=1_000_000),
        draws=500,
        tune=500,
        chains=4,
        random_seed=1,
        target_accept=0.9,
        progressbar=False,
    )
    low, high = np.quantile(ReachLattice.from_trace(trace).union(["a"]), [0.025, 0.975])
    assert 1000 < low < 20_000 and 80_000 < high < 250_000


def simulated_audience(seed, n=20_000, k=3, weeks=4, kinds=0):
    """First week in which each publisher reaches each person (weeks + 1: never); activity is gamma, not the model's.

    With kinds of publishers people have an interest in each kind, which is gamma too.
    """
    rng = RNG(seed)
    rate = -np.log1p(-rng.uniform(0.05, 0.4, k))[:, None] * rng.gamma(0.7, 1.0, n) / 0.7
    if kinds:
        rate = rate * rng.gamma(2.0, 0.5, (kinds, n))[rng.integers(kinds, size=k)]
    grown = np.cumsum(rng.dirichlet(np.full(weeks, 3.0), k), axis=1)
    waited = rng.exponential(1.0, (k, n)) / rate
    return np.array([np.searchsorted(*one) for one in zip(grown, waited, strict=True)]) + 1


def reach_by_week(first, which, weeks=4):
    return [(first[list(which)] <= week).any(axis=0).sum() for week in range(1, weeks + 1)]


CHANGING = ("published", "whitened_counts", "whitening")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers, noise .003", "numbers, noise .03", "numbers, noise .3", "filters"])
def test_intervals_cover_audiences_that_are_not_the_models(kind):
    """Coverage of 95 % intervals is .93 to .97: shares of 40 audiences, 3.3 standard errors, false alarm .001."""
    from dpbayes.inference.sampling import NutsSettings, compile_model

    sets, shares, compiled = shown_sets(3), [], None
    for seed in range(40):
        first, rng = simulated_audience(seed), RNG(1000 + seed)
        if kind == "filters":
            data = []
            for week in range(1, 5):
                people = [np.flatnonzero(one <= week) for one in first]
                filters = build_filters(people, distribution=BitDistribution(50_000), seed=10 * seed + week)
                data.append(shuffle_flip(filters, flip_prob=0.2, rng=rng))
        else:
            noise = 20_000 * float(kind.split()[-1])
            told = {which: np.array(reach_by_week(first, which)) for which in sets if len(which) != 2}
            names = {which: tuple("abc"[i] for i in which) for which in sets}
            data = ReachNumbers.of(
                {names[which]: r + rng.normal(0.0, noise, r.size) for which, r in told.items()}, stddev=noise
            )
        model = build_lattice_model(data if kind != "filters" else WeeklyFilters(data), population=20_000)
        compiled = compiled or compile_model(model)
        new = {name: model[name].get_value() for name in model.named_vars if name in CHANGING}
        trace = compiled.fit(
            NutsSettings(draws=300, tune=300, chains=2, cores=1), data=new, random_seed=seed, progressbar=False
        )
        draws = trace["posterior"]["reach"].to_numpy().reshape(-1, len(sets), 4)
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        true = np.array([reach_by_week(first, which) for which in sets])
        shares.append(((low <= true) & (true <= high)).mean())
    stderr = np.std(shares, ddof=1) / np.sqrt(len(shares))
    print(f"{kind}: {np.mean(shares):.3f} (standard error {stderr:.3f})")
    assert 0.93 - 3.3 * stderr < np.mean(shares) < 0.97 + 3.3 * stderr
