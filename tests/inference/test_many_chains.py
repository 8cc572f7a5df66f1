"""Many annealed chains: exact posteriors, modes by their mass, the same draws on any number of cores."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numba.core.dispatcher import _FunctionCompiler
from scipy import stats
from scipy.special import logsumexp

from dpbayes.errors import IncompleteSamplingError, InputError
from dpbayes.inference import Verdict, compile_model, sample
from dpbayes.inference.convergence import Finding, check_convergence, drift_finding, mixing
from dpbayes.inference.many_chains import (
    Batch,
    BatchedDensity,
    ManyChainSettings,
    _adam,
    _leapfrogs,
    _Meter,
    _settle_all,
    batched_density,
    draw_many,
)

SHORT = {"chains": 64, "draws": 16, "trajectories": 32, "tune": 40}


def two_humps() -> pm.Model:
    """A value whose released score is the same on both sides of zero, a priori more likely to be positive."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 1.0, 3.0)
        pm.Normal("released", pt.sqr(theta), 4.0, observed=pm.Data("noisy", 25.0))
    return model


@pytest.fixture(scope="module")
def humps():
    return compile_model(two_humps(), method="many-chains")


def exact_above_zero(noisy: float) -> tuple[float, float, float]:
    """Return the probability of theta > 0, and mean and standard deviation there."""
    grid = np.linspace(-15, 15, 200_001)
    log = stats.norm.logpdf(grid, 1.0, 3.0) + stats.norm.logpdf(noisy, grid**2, 4.0)
    above, weight = grid[grid > 0], np.exp(log[grid > 0] - logsumexp(log[grid > 0]))
    mean = float(weight @ above)
    share = float(np.exp(logsumexp(log[grid > 0]) - logsumexp(log)))
    return share, mean, float(np.sqrt(weight @ (above - mean) ** 2))


def test_batched_density_is_the_model_log_density(humps):
    model, density = humps.model, humps.program
    points = np.random.default_rng(0).normal(size=(5, density.size))
    prior, likelihood, gradient = density.evaluate(points, 0.5)
    joint = model.compile_logp()
    for place, point in enumerate(points):
        assert prior[place] + likelihood[place] == pytest.approx(joint({"theta": point[0]}), abs=1e-10)
        # PyTensor keeps the literal 3.0 in single precision, and with it log 3 to 1e-7.
        assert prior[place] == pytest.approx(stats.norm.logpdf(point[0], 1.0, 3.0), abs=1e-7)
        slope = -(point[0] - 1.0) / 9.0 + 0.5 * (25.0 - point[0] ** 2) / 16.0 * 2.0 * point[0]
        assert gradient[place, 0] == pytest.approx(slope, rel=1e-9)


def test_machine_code_is_compiled_once(humps, monkeypatch):
    """A second model of the same structure takes all its code, the whole graph's too, from the cache on disk."""
    compiled = []
    compile_core = _FunctionCompiler._compile_core

    def watched(self, *args):
        compiled.append(self.py_func.__name__)
        return compile_core(self, *args)

    monkeypatch.setattr(_FunctionCompiler, "_compile_core", watched)
    density = batched_density(two_humps())
    assert not compiled
    points = np.random.default_rng(0).normal(size=(5, density.size))
    for again, before in zip(density.evaluate(points, 0.5), humps.program.evaluate(points, 0.5), strict=True):
        np.testing.assert_array_equal(again, before)


def test_what_depends_on_no_parameter_is_recorded_at_every_point():
    with two_humps() as model:
        pm.Deterministic("fixed", pt.ones(2), dims=None)
        pm.Deterministic("moving", 2.0 * model["theta"])
    found = batched_density(model).recorded(np.zeros((5, 1)))
    assert found["fixed"].shape == (5, 2) and found["moving"].shape == (5,)


def test_a_parameter_out_of_its_range_has_probability_zero():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Beta("share", 1.0, scale)
        pm.Normal("noise", 0.0, scale, observed=[0.3])
    density = batched_density(model)
    prior, likelihood, _ = density.evaluate(np.array([[-2000.0, 0.0], [0.0, 0.0]]), 1.0)
    assert not np.isfinite(prior + likelihood)[0] and np.isfinite(prior + likelihood)[1]


def test_the_density_serves_several_threads_at_once(humps):
    points = np.random.default_rng(0).normal(size=(40, 8, 1))
    apart = [humps.program.evaluate(at, 1.0) for at in points]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda at: humps.program.evaluate(at, 1.0), points))
    for one, other in zip(apart, together, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_modes_are_found_by_their_mass(humps):
    """128 chains that may never cross between the modes: their share is binomial about the exact mass, 4.5 sd allowed.

    Chains that cross make the share more exact; the false-alarm rate is below 1e-5.
    """
    settings = ManyChainSettings(chains=128, draws=16, trajectories=32, rounds=1)
    trace = humps.fit(settings, random_seed=3, progressbar=False)
    exact, mean, spread = exact_above_zero(25.0)
    found = float((trace["posterior"]["theta"] > 0).mean())
    assert abs(found - exact) < 4.5 * np.sqrt(exact * (1 - exact) / 128)
    upper = trace["posterior"]["theta"].values[trace["posterior"]["theta"].values > 0]
    assert abs(upper.mean() - mean) < 4.5 * spread / np.sqrt(128 * exact)


def test_chains_start_where_the_model_says():
    """Chains that start near -4 climb in that mode and may cross; variables that are not named start from the prior."""
    with two_humps() as model:
        pm.Normal("other", 10.0, 1.0)
    model.starts = {"theta": (-4.0, 0.1)}
    density = batched_density(model)
    theta, other = density.start(np.random.default_rng(0), 1000).T
    assert abs(theta.mean() + 4.0) < 5 * 0.1 / np.sqrt(1000) and theta.std() == pytest.approx(0.1, rel=0.2)
    assert abs(other.mean() - 10.0) < 5 / np.sqrt(1000)
    told = []
    trace = sample(model, method="many-chains", random_seed=1, predictive=False,
                   progress=lambda stage, share: told.append(stage), rounds=1, **SHORT)  # fmt: skip
    assert {"climbing", "settling"} < set(told) and "annealing" not in told
    assert (trace["posterior"]["theta"] < 0.0).mean() > 0.8  # by their mass three in four would be above


def test_nothing_is_said_of_compiling_where_nothing_is_compiled():
    told = []
    with two_humps() as model:
        sample(model, method="many-chains", random_seed=1, predictive=False, backend="interpreted",
               progress=lambda stage, share: told.append(stage), rounds=1, **SHORT)  # fmt: skip
    assert "annealing" in told and not [stage for stage in told if "compil" in stage]


def _normal_batch(points):
    """Chains in a standard normal law that is all likelihood."""
    density = BatchedDensity(lambda at, power: (0.0 * at[:, 0], -0.5 * (at**2).sum(1), -power * at), None, None, 3)
    return Batch(density, ManyChainSettings(chains=len(points), batches=2), points, np.random.SeedSequence(1))


def test_chains_climb_from_far_to_the_mode_and_settle_about_it():
    """Of 32 chains about a mode at 0 a mean square of 3 x 32 standard normal values is within 5 standard errors."""
    batch = _normal_batch(np.random.default_rng(0).normal(20.0, 1.0, size=(32, 3)))
    seen = []
    batch._find_step = lambda: seen.append(batch.points)
    batch.climb()
    assert np.abs(seen[0]).max() < 1e-3
    Batch._find_step(batch)
    assert any(batch.settle(12) < 1.0 for _ in range(12))
    assert np.square(batch.points).mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / 96))
    assert 0.3 < batch.step < 2.0  # beyond 2 leapfrogs are unstable
    assert batch.power == 1.0
    np.testing.assert_array_equal(batch.gradient, -batch.points)


def test_what_a_model_holds_stays_until_the_others_have_climbed():
    """Fifty steps of Adam's with falling rates, 2.5 in all, take the held value part of the way of 20.

    The other one is within its standard deviation, .01, of its mode by then.
    """
    with pm.Model() as model:
        pm.Normal("far", 20.0, 0.1)
        pm.Normal("other", 20.0, 0.1)
        pm.Potential("mode", -5000.0 * (model["far"] ** 2 + model["other"] ** 2))
    model.starts, model.held = {"other": (20.0, 0.1)}, ("far",)
    density = batched_density(model, backend="interpreted")
    batch = Batch(density, ManyChainSettings(chains=16, batches=2), density.start(np.random.default_rng(0), 16),
                  np.random.SeedSequence(1))  # fmt: skip
    started, seen = batch.points.copy(), []
    batch._find_step = lambda: seen.append(batch.points)
    ascend = batch.ascend
    batch.ascend = lambda *given: seen.append(given[0].copy()) or ascend(*given)
    batch.climb()
    *before, end = seen
    np.testing.assert_array_equal(before[-1][:, 0], started[:, 0])
    mode = 20.0 * 100 / (100 + 10_000)
    assert np.abs(before[-1][:, 1] - mode).max() < 0.01
    assert (end[:, 0] < started[:, 0] - 1.0).all() and (end[:, 0] > started[:, 0] - 3.0).all()


@pytest.mark.parametrize(("changes", "parts"), [([0.0], 1), ([5.0, 2.0, 0.7], 3), ([5.0] * 20, 12)])
def test_chains_settle_on_while_one_batch_still_changes(changes, parts):
    settled, told = [[], []], []

    def batch(own, changes):
        return SimpleNamespace(settle=lambda moves: own.append(moves) or changes[len(own) - 1])

    with ThreadPoolExecutor(1) as pool:
        meter = _Meter(lambda stage, share: told.append(stage), 2)
        _settle_all(pool, [batch(settled[0], [0.0] * 20), batch(settled[1], changes)], 6, meter)
    assert settled[0] == settled[1] == [6] * parts
    assert told.count("settling") == 1 and len(told) == parts


def test_a_chain_that_is_stuck_goes_on_from_another():
    points = np.random.default_rng(0).normal(size=(32, 3))
    points[5], points[7] = 1e4, np.nan
    batch = _normal_batch(points)
    batch.power = 1.0
    batch._refresh()
    batch._rescue()
    others = np.delete(points, [5, 7], axis=0)
    np.testing.assert_array_equal(np.delete(batch.points, [5, 7], axis=0), others)
    assert all((others == batch.points[place]).all(axis=1).any() for place in (5, 7))
    np.testing.assert_array_equal(batch.gradient, -batch.points)
    np.testing.assert_array_equal(batch.likelihood, -0.5 * (batch.points**2).sum(axis=1))


def test_chains_that_are_nowhere_finite_are_refused():
    batch = _normal_batch(np.full((16, 3), np.nan))
    with pytest.raises(IncompleteSamplingError, match=r"not finite; see model.point_logps"):
        batch.climb()


def test_a_trajectory_that_went_far_away_does_not_count_for_the_length():
    """Ends whose squares overflow have acceptance zero; lengths are those of the other chains."""
    points = np.random.default_rng(0).normal(size=(16, 3))
    density = BatchedDensity(lambda at, power: (0.0 * at[:, 0], -0.5 * (at**2).sum(1), -at), None, None, 3)
    far = Batch(density, ManyChainSettings(chains=16, batches=2), points, np.random.SeedSequence(1))
    accept = np.repeat([0.0, 0.9], [1, 15])
    ends, momentum = np.random.default_rng(1).normal(size=(2, 16, 3))
    lengths = []
    for size in (1.0, 1e200):
        ends[0], momentum[0], far.time, far.moves, far.moments = size, size, 1.5, 0, np.zeros(2)
        far._adapt_time(ends, momentum, accept, 10)
        lengths.append(far.time)
    assert lengths[0] == lengths[1] != 1.5


def test_chains_that_move_a_few_at_a_time_move_as_they_do_together():
    """The groups of chains whose trajectories are followed together change nothing but where memory is."""

    def evaluate(at, power):
        return -0.5 * (at**2).sum(1), -power * (at**4).sum(1), -at - 4.0 * power * at**3

    ends = []
    for together in (3, 16):
        points = np.random.default_rng(0).normal(size=(16, 3))
        density = BatchedDensity(evaluate, None, None, 3, together=together)
        batch = Batch(density, ManyChainSettings(chains=16, batches=2), points, np.random.SeedSequence(1))
        batch.anneal()
        batch.tune(10)
        ends.append((batch.points, batch.gradient, batch.step, batch.time))
    for apart, at_once in zip(*ends, strict=True):
        np.testing.assert_array_equal(apart, at_once)


def test_modes_of_different_scales_are_each_moved_in_by_their_own():
    """Half of the chains are in a mode a hundred times narrower: their own scales allow steps that fit both.

    Standard deviations are exact within 5 Monte Carlo standard errors at a tenth as many effective draws as there are
    values.
    """
    size, scales = 12, np.array([1.0, 0.01])

    def evaluate(at, power):
        mode = (at[:, 0] < 0).astype(int)
        scale = scales[mode][:, None]
        z = (at - 100.0 * np.where(mode, -1.0, 1.0)[:, None]) / scale
        return np.zeros(len(at)), -0.5 * (z**2).sum(1) - size * np.log(scale[:, 0]), -power * z / scale

    start = np.repeat(scales, 16)[:, None] * np.random.default_rng(3).normal(size=(32, size))
    start += np.repeat([100.0, -100.0], 16)[:, None]
    batches = []
    for own in (False, True):
        settings = ManyChainSettings(chains=32, batches=2, own_scales=own)
        batches.append(Batch(BatchedDensity(evaluate, None, None, size), settings, start, np.random.SeedSequence(4)))
        batches[-1].climb()
        batches[-1].settle(48)
        batches[-1].tune(48)
    assert batches[1].step > 5 * batches[0].step
    drawn = batches[1].draw(60, np.arange(20, 60))
    assert 0.7 < drawn["accept"].mean() < 1.0
    assert drawn["accept"].mean(axis=0).min() > 0.5  # none stands still because it has seen no slope yet
    for mode, scale in enumerate(scales):
        own = drawn["points"][:, 16 * mode : 16 * (mode + 1)]
        assert own.std() == pytest.approx(scale, rel=5 / np.sqrt(0.2 * own.size))


def test_data_are_exchanged_for_one_fit(humps):
    settings = ManyChainSettings(**SHORT, rounds=1)
    trace = humps.fit(settings, data={"noisy": 100.0}, random_seed=1, progressbar=False)
    assert abs(trace["posterior"]["theta"]).mean() == pytest.approx(10.0, abs=0.2)
    assert float(trace["observed_data"]["released"]) == 100.0
    assert humps.model["noisy"].get_value() == 25.0


def test_same_seed_same_draws_on_any_number_of_cores(humps):
    settings = ManyChainSettings(chains=32, draws=8, trajectories=8, tune=5, rounds=1)
    one, two = (humps.fit(settings, random_seed=7, cores=cores, progressbar=False) for cores in (1, 3))
    assert one["posterior"].to_dataset().identical(two["posterior"].to_dataset())


def test_a_correlated_normal_posterior_is_exact():
    """Means and standard deviations within 5 Monte Carlo standard errors at 400 effective draws."""
    root = np.array([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [3.0, 0.0, 0.02]])
    with pm.Model() as model:
        z = pm.Normal("z", 0.0, 1.0, shape=3)
        x = pm.Deterministic("x", pt.dot(root, z))
        pm.Normal("y", x, 0.5, observed=np.array([1.0, -1.0, 2.0]))
    told = []
    trace = sample(model, method="many-chains", random_seed=1, predictive=False,
                   progress=lambda stage, share: told.append((stage, share)), **SHORT)  # fmt: skip
    verdict = Verdict.from_trace(trace)
    assert verdict.passed, verdict.summary()
    precision = np.eye(3) + root.T @ root / 0.25
    mean = root @ np.linalg.solve(precision, root.T @ np.array([1.0, -1.0, 2.0]) / 0.25)
    spread = np.sqrt(np.diag(root @ np.linalg.inv(precision) @ root.T))
    found = trace["posterior"]["x"]
    assert np.all(np.abs(found.mean(("chain", "draw")).values - mean) < 5 * spread / np.sqrt(400))
    assert np.allclose(found.std(("chain", "draw")).values, spread, rtol=5 / np.sqrt(2 * 400))
    assert {"annealing", "adapting"} < {stage for stage, _ in told} and max(share for _, share in told) == 1.0
    assert trace["posterior"].sizes["chain"] == 4 and trace["posterior"].sizes["draw"] == 16 * 16
    assert check_convergence(trace) == verdict


def test_jax_compiles_the_same_density_trajectories_and_climbs():
    """Twelve leapfrogs with scales of each chain's own, the last of which is half a step of the momentum."""
    pytest.importorskip("jax", reason="needs JAX (uv sync --extra jax)")
    model, rng = two_humps(), np.random.default_rng(0)
    points, momentum = rng.normal(size=(2, 3, 1))
    numba, jax = (batched_density(model, backend=backend) for backend in ("numba", "jax"))
    for ours, theirs in zip(numba.evaluate(points, 1.0), jax.evaluate(points, 1.0), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    start = points, momentum, numba.evaluate(points, 0.5)[2], np.array([[0.1], [0.01], [0.2]])
    for learns in (True, False):
        given = _leapfrogs(numba.evaluate, *start, 0.5, 12, learns), jax.follow(*start, 0.5, 12, learns)
        for ours, theirs in zip(*given, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    slopes = start[2]
    climb = points, slopes, slopes**2, np.linspace(0.1, 0.0, 20), 0.5
    for ours, theirs in zip(_adam(numba.evaluate, *climb), jax.ascend(*climb), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_nested_rhat_tells_batches_that_differ_and_those_that_drift():
    rng = np.random.default_rng(1)
    members, per = 32, 24
    good = rng.normal(size=(4, members, per))
    apart = good + np.array([0.0, 0.0, 0.0, 0.6])[:, None, None]
    drifting = good + np.linspace(0.0, 1.0, per)
    stacked = np.stack([good, apart, drifting]).reshape(3, 4, members * per)
    rhat = mixing(stacked, members=members).rhat
    assert rhat[0] < 1.01 < min(rhat[1], rhat[2])


def test_effective_draws_of_short_chains_are_those_of_their_means():
    """Chains that never move are one draw each; an AR(1) chain with coefficient 1/2 has a third of its draws."""
    rng = np.random.default_rng(2)
    members, per = 32, 200
    still = np.repeat(rng.normal(size=(4, members, 1)), per, axis=2) + 1e-3 * rng.normal(size=(4, members, per))
    moving = np.empty((4, members, per))
    moving[..., 0] = rng.normal(size=(4, members))
    for t in range(1, per):
        moving[..., t] = 0.5 * moving[..., t - 1] + np.sqrt(0.75) * rng.normal(size=(4, members))
    ess = mixing(np.stack([still, moving]).reshape(2, 4, members * per), members=members).ess_bulk
    assert 60 < ess[0] < 256
    assert ess[1] == pytest.approx(4 * members * per / 3, rel=0.15)


def test_drift_of_the_log_likelihood():
    rng = np.random.default_rng(3)
    flat = rng.normal(size=(4, 32, 24))
    rising = flat + np.linspace(0.0, 1.0, 24)
    assert drift_finding(flat.reshape(4, -1), 32).passed and drift_finding(flat.reshape(4, -1), 32).value == 0.0
    assert not drift_finding(rising.reshape(4, -1), 32).passed
    assert not drift_finding(None, 32).passed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chains": 6}, "chains must be a whole number from 8"),
        ({"chains": 30}, "multiple of batches"),
        ({"draws": 10**18}, "draws must be a whole number"),
        ({"draws": 6}, "draws must be a whole number from 7"),
        ({"draws": 100, "trajectories": 50}, "trajectories must be at least draws"),
        ({"target_accept": 1.0}, "target_accept must lie strictly between"),
        ({"backend": "cuda"}, "backend must be"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, message):
    with pytest.raises(InputError, match=message):
        ManyChainSettings(**settings)


def test_unknown_methods_and_settings_are_refused_before_anything_compiles():
    with pytest.raises(InputError, match="method must be 'nuts' or 'many-chains', got 'gibbs'"):
        sample(two_humps(), method="gibbs")
    with pytest.raises(InputError, match="method 'nuts' has no setting 'rounds'; it has draws"):
        sample(two_humps(), rounds=3)


@pytest.mark.parametrize(
    ("checks", "dropped", "spacing", "tuned"),
    [
        ((), [0], 2, [3]),
        (("rhat",), [0, 0], 2, [3, 3]),
        (("rhat", "ess_bulk"), [0, 0, 0], 2, [3, 3, 3]),
        (("drift",), [16], 4, [3]),
        (("drift", "rhat"), [16, 0], 4, [3, 19]),
        (("divergences",), [16], 2, [3]),
        (("rhat", "divergences"), [16, 16], 2, [3, 3]),
        (("divergences", "rhat"), [16, 0], 2, [3, 3]),
    ],
)
def test_a_further_round_adds_chains_unless_those_before_drifted_or_diverged(
    humps, monkeypatch, checks, dropped, spacing, tuned
):
    """States that count a chain's moves: each set of chains keeps evenly spaced ones of those that count."""
    done: dict[int, int] = {}
    lengths, steps = [], set()

    def adapted(batch, moves):
        lengths.append(moves)
        batch.step = 0.1

    def counted(batch, moves, keep):
        steps.add(batch.step)
        first = done.get(id(batch), 0)
        done[id(batch)] = first + moves
        states = np.repeat(first + 1.0 + keep[:, None], len(batch.points), axis=1)
        names = ("lp", "likelihood", "diverging", "accept", "steps", "step")
        return {name: states for name in names} | {"points": states[..., None]}

    monkeypatch.setattr(Batch, "tune", adapted)
    monkeypatch.setattr(Batch, "draw", counted)
    failed = [[Finding(check, "theta", 2.0, 1.0, passed=False)] for check in checks]
    settings = ManyChainSettings(chains=16, batches=2, draws=8, trajectories=16, tune=3)
    said = []
    variables, stats, _ = draw_many(
        humps.program,
        settings,
        random_seed=1,
        cores=1,
        complete=lambda variables, place: {name: values + 0.25 * place for name, values in variables.items()},
        judge=lambda variables, stats: (variables, failed.pop(0) if failed else []),
        progress=lambda stage, share: said.append(stage),
    )
    expected = np.array(dropped)[:, None] + spacing * np.arange(1, 9)
    found = stats["lp"].reshape(2, len(dropped), 8, 8)  # of batches, sets, chains and draws
    np.testing.assert_array_equal(found, np.broadcast_to(expected[:, None], found.shape))
    place = np.repeat(0.25 * np.arange(len(dropped)), 64)  # of the set that drew it
    np.testing.assert_array_equal(variables["theta"], stats["lp"] + place)
    assert lengths == [moves for moves in tuned for _ in range(2)]
    assert sorted(steps) == pytest.approx([0.07, 0.1] if "divergences" in checks else [0.1])
    assert ("largest R-hat 2" in said[-1]) == (checks[-1:] == ("rhat",))
