r"""The posterior of a regression on released moments without a compiled model: seconds instead of minutes.

Given the confidential moments G of (constant, predictors) and the residual scale :math:`\tau`, with the coefficients
:math:`\beta \sim N(0, c^2 I)` and H the matrix for which the response's moments have mean :math:`H\beta`, :math:`g \mid
G, \tau \sim N(0,\; c^2 H H^T + \tfrac{\tau^2}{n} G + \tfrac{\sigma^2}{2} I)`: one eigenvalue problem per G. Draws are
proposed in three steps: G given the released G (Hamiltonian chains side by side), :math:`\tau` on a grid of its own per
G, :math:`\beta` from its normal conditional, the released :math:`\frac1n\sum y^2` linearized. An independence
Metropolis-Hastings chain over the proposals makes them draws of `dpbayes.mvg.build_moment_model`'s posterior, exactly.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpbayes._arguments import Floats, generator, instance, whole_number
from dpbayes._lazy import xr
from dpbayes.mvg.regression import RegressionPriors, WhitenedMoments

CHAINS = 4
_WALKERS, _WARMUP, _NODES = 64, (30, 30, 30), 32
_PROPOSALS, _MORE_PROPOSALS, _FEW_MOVES = 4, 32, 0.15
_AT_ONCE = 1000  # proposals completed side by side: more of them leave the processor's cache


def moment_posterior(
    data: WhitenedMoments, *, priors: RegressionPriors | None = None, draws: int = 1000, random_seed: int = 1
) -> xr.DataTree:
    """Sample the noise-aware regression on a released moment matrix, without compiling anything.

    Parameters
    ----------
    data
        From `whiten_moments`.
    priors
        Prior scales; those of `build_moment_model` by default.
    draws
        Draws to keep in each of four chains. Four proposals stand behind each, and 32 where few are accepted.
    random_seed
        Seed of the sampler.

    Returns
    -------
    xarray.DataTree
        The groups of a trace of `build_moment_model`, same names and dims, to be judged by
        `dpbayes.inference.check_convergence`. Its `sample_stats` hold the acceptance rate of the independence chain
        (one is perfect); no transition diverges, because there are no trajectories in this posterior.

    Examples
    --------
    >>> from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments, whiten_moments
    >>> query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), n=500, intercept=1.0)
    >>> noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    >>> rng = np.random.default_rng(1)
    >>> release = release_moments(rng.random((2, 500)), noise, rng=rng)
    >>> trace = moment_posterior(whiten_moments(release, features=("dose", "effect")), draws=200)
    >>> dict(trace["posterior"]["coefficient"].sizes)
    {'chain': 4, 'draw': 200, 'predictor': 1}
    """
    instance(data, WhitenedMoments, "data", remedy="use mvg.whiten_moments(release, features=...)")
    settings = RegressionPriors() if priors is None else priors
    instance(settings, RegressionPriors, "priors", remedy="None takes the default scales")
    whole_number(draws, "draws", high=1_000_000)
    rng, started = generator(random_seed, "random_seed"), time.perf_counter()
    problem = Problem(data, settings)
    with threadpool_limits(1, user_api="blas"):  # threads wait for each other longer than products this small take
        for proposals in (_PROPOSALS, _MORE_PROPOSALS):
            places = _gram_draws(problem, rng, proposals * draws // _WALKERS + 1)
            chains = [_chain(problem, places[:, j].reshape(-1, problem.dimension), draws, rng) for j in range(CHAINS)]
            if min(float(chain["acceptance"].mean()) for chain in chains) > _FEW_MOVES:
                break
    return _trace(problem, chains, draws, random_seed, time.perf_counter() - started)


class Problem:
    """The released numbers with the prior, in the coordinates of the sampler."""

    def __init__(self, data: WhitenedMoments, priors: RegressionPriors) -> None:
        self.data, self.priors, self.slopes = data, priors, data.slopes
        self.constant, self.n, self.stddev = data.constant, data.n, data.stddev
        to_white, moments = data.coordinates.to_white, data.moments
        self.map, self.scale = to_white[:-1, :-1], float(to_white[-1, -1])
        self.gram, self.cross, self.square = moments[:-1, :-1], moments[:-1, -1], float(moments[-1, -1])
        self.count = len(data.coordinates.predictors)
        self.degrees = self.count + 3.0
        self.shrink = priors.spread / math.sqrt(self.degrees)
        self.lower = np.tril_indices(self.count, -1)
        self.dimension = 2 * self.count + len(self.lower[0])

    def grams(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return G (N, p, p), the whitened means and the root of the whitened scatter."""
        q = self.count
        factor = np.zeros((*x.shape[:-1], q, q))
        factor[..., range(q), range(q)] = np.exp(x[..., q : 2 * q])
        factor[..., self.lower[0], self.lower[1]] = x[..., 2 * q :]
        white, root = x[..., :q] @ self.map.T, self.shrink * (self.map @ factor)
        gram = np.empty((*x.shape[:-1], q + 1, q + 1))
        gram[..., 0, 0] = self.constant**2
        gram[..., 0, 1:] = gram[..., 1:, 0] = self.constant * white
        gram[..., 1:, 1:] = root @ root.swapaxes(-1, -2) + white[..., :, None] * white[..., None, :]
        return gram, white, root

    def log_prior(self, x: Floats) -> Floats:
        """Log-density of the prior in these coordinates, up to a constant."""
        q = self.count
        diagonal, shapes = x[..., q : 2 * q], self.degrees - np.arange(q)
        return np.asarray(
            -np.sum(x[..., :q] ** 2, axis=-1) / (2.0 * self.priors.mean**2)
            + np.sum(shapes * diagonal - np.exp(2.0 * diagonal) / 2.0, axis=-1)
            - np.sum(x[..., 2 * q :] ** 2, axis=-1) / 2.0
        )

    def gram_density(self, x: Floats) -> tuple[Floats, Floats]:
        """Log-density of the coordinates given the released G alone, and its gradient (N, dimension)."""
        q = self.count
        gram, white, root = self.grams(x)
        misfit = gram - self.gram
        misfit[..., 0, 0] = 0.0
        value = self.log_prior(x) - np.sum(misfit**2, axis=(-1, -2)) / (2.0 * self.stddev**2)
        pull = -misfit / self.stddev**2
        inner = pull[..., 1:, 1:]
        by_white = 2.0 * (self.constant * pull[..., 0, 1:] + np.einsum("...ij,...j->...i", inner, white))
        by_factor = 2.0 * self.shrink * (self.map.T @ inner @ root)
        slope = np.empty_like(x)
        slope[..., :q] = by_white @ self.map - x[..., :q] / self.priors.mean**2
        diagonal = np.exp(x[..., q : 2 * q])
        pulled = by_factor[..., range(q), range(q)] * diagonal
        slope[..., q : 2 * q] = pulled + self.degrees - np.arange(q) - diagonal**2
        slope[..., 2 * q :] = by_factor[..., self.lower[0], self.lower[1]] - x[..., 2 * q :]
        return value, slope

    def start(self) -> Floats:
        """Return coordinates near the released G: its means, and its scatter made positive definite."""
        white = self.gram[0, 1:] / self.constant
        inverse = np.linalg.inv(self.map)
        scatter = inverse @ (self.gram[1:, 1:] - np.outer(white, white)) @ inverse.T
        values, vectors = np.linalg.eigh((scatter + scatter.T) / 2.0)
        floor = 0.05 * self.priors.spread**2
        factor = np.linalg.cholesky((vectors * np.clip(values, floor, 9.0 * self.priors.spread**2)) @ vectors.T)
        factor = factor * math.sqrt(self.degrees) / self.priors.spread
        means = np.clip(inverse @ white, -3.0 * self.priors.mean, 3.0 * self.priors.mean)
        return np.concatenate([means, np.log(np.diagonal(factor)), factor[self.lower]])

    def log_joint(self, x: Floats, beta: Floats, tau: Floats) -> tuple[dict[str, Floats], Floats]:
        """Log-densities of the parts of the prior, and of all released moments, up to constants."""
        gram, priors = self.grams(x)[0], self.priors
        parts = {
            "coefficients": -np.sum(beta**2, axis=1) / (2.0 * priors.coefficient**2),
            "residual": -(tau**2) / (2.0 * priors.residual**2),
            "predictors": self.log_prior(x),
        }
        misfit = np.sum((gram - self.gram) ** 2, axis=(1, 2)) / (2.0 * self.stddev**2)
        first, second = self.log_likelihood(gram, beta, tau)
        return parts, first + second - misfit

    def log_likelihood(self, gram: Floats, beta: Floats, tau: Floats) -> tuple[Floats, Floats]:
        """Log-densities of the released moments of the response: the first p of them, and the square given those."""
        t = (self.scale * tau) ** 2 / self.n
        b = beta @ self.slopes.T
        fitted = np.einsum("nij,nj->ni", gram, b)
        explained = np.sum(b * fitted, axis=1)
        covariance = t[:, None, None] * gram + 0.5 * self.stddev**2 * np.eye(self.count + 1)
        misfit = self.cross - fitted
        both = np.linalg.solve(covariance, np.stack([misfit, fitted], axis=-1))
        first = -0.5 * np.sum(misfit * both[..., 0], axis=1) - 0.5 * np.linalg.slogdet(covariance)[1]
        mean = explained + self.n * t + 2.0 * t * np.sum(fitted * both[..., 0], axis=1)
        variance = t * (4.0 * explained + 2.0 * self.n * t) + self.stddev**2
        variance -= 4.0 * t**2 * np.sum(fitted * both[..., 1], axis=1)
        return first, -0.5 * (self.square - mean) ** 2 / variance - 0.5 * np.log(variance)


def _gram_draws(problem: Problem, rng: np.random.Generator, iterations: int) -> Floats:
    """Draw coordinates given the released G: shape (iterations, chains, walkers, dimension)."""
    from scipy.optimize import minimize

    def objective(point: Floats) -> tuple[float, Floats]:
        value, slope = problem.gram_density(point[None])
        return -float(value[0]), -slope[0]

    mode = minimize(objective, problem.start(), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    root = _curvature_root(problem, mode)
    x = mode + 2.0 * rng.standard_normal((CHAINS * _WALKERS, problem.dimension)) @ root.T
    step = 0.5 * problem.dimension**-0.25
    for length in _WARMUP:
        moves = np.zeros(len(x))
        for _ in range(length):
            before = x
            x, accepted = _trajectory(problem, x, root, step, rng)
            moves += np.any(x != before, axis=1)
            step *= math.exp(0.3 * (accepted - 0.8))
        still = moves < length / 3.0
        if np.any(~still):  # walkers for whom the common step is too long, and who stand still, go where others are
            x = np.where(still[:, None], x[rng.choice(np.flatnonzero(~still), len(x))], x)
        # A root of the walkers' covariance, drawn towards its diagonal where walkers are few.
        covariance, keep = np.atleast_2d(np.cov(x, rowvar=False)), len(x) / (len(x) + 5.0 * x.shape[1])
        root = np.linalg.cholesky(keep * covariance + (1.0 - keep) * np.diag(np.diagonal(covariance)))
    kept = np.empty((iterations, CHAINS * _WALKERS, problem.dimension))
    for i in range(iterations):
        x, _ = _trajectory(problem, x, root, step, rng)
        kept[i] = x
    return kept.reshape(iterations, CHAINS, _WALKERS, problem.dimension)


def _curvature_root(problem: Problem, mode: Floats) -> Floats:
    """Return a root of the inverse curvature at the mode, by differences of the gradient."""
    width = 1e-5 * np.eye(problem.dimension)
    slopes = problem.gram_density(mode + width)[1] - problem.gram_density(mode - width)[1]
    values, vectors = np.linalg.eigh(-(slopes + slopes.T) / 4e-5)
    return np.asarray(vectors / np.sqrt(np.maximum(values, 1e-6 * values[-1])))


def _trajectory(
    problem: Problem, x: Floats, root: Floats, step: float, rng: np.random.Generator
) -> tuple[Floats, float]:
    """Move every walker by one trajectory of about a quarter turn."""
    momentum = rng.standard_normal(x.shape)  # in coordinates z with x = root z, where the mass is one
    value, slope = problem.gram_density(x)
    energy = value - 0.5 * np.sum(momentum**2, axis=1)
    length = max(1, math.ceil(math.pi / 2.0 * rng.uniform(0.6, 1.4) / step))
    new, pull = x, slope @ root
    with np.errstate(over="ignore", invalid="ignore"):  # a trajectory that leaves the numbers is refused below
        for _ in range(length):
            momentum = momentum + 0.5 * step * pull
            new = new + step * momentum @ root.T
            new_value, slope = problem.gram_density(new)
            pull = slope @ root
            momentum = momentum + 0.5 * step * pull
        probability = np.exp(np.minimum(new_value - 0.5 * np.sum(momentum**2, axis=1) - energy, 0.0))
    probability = np.nan_to_num(probability, nan=0.0)
    taken = rng.random(len(x)) < probability
    return np.where(taken[:, None], new, x), float(probability.mean())


def _chain(problem: Problem, x: Floats, draws: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Complete proposals of G by tau and beta, weigh them, and run the independence chain over them."""
    tau, beta, log_weight = _conditionals(problem, problem.grams(x)[0], rng)
    thin, moves = len(x) // draws, rng.random(len(x))
    # Start at a proposal drawn by weight from the first tenth: no warm-up is needed after that.
    head = log_weight[: max(2, len(x) // 10)]
    current = int(rng.choice(len(head), p=np.exp(head - head.max()) / np.exp(head - head.max()).sum()))
    kept, rate = np.empty(draws, dtype=np.int64), np.zeros(draws)
    for i in range(draws * thin):
        probability = math.exp(min(0.0, log_weight[i] - log_weight[current]))
        if moves[i] < probability:
            current = i
        kept[i // thin] = current
        rate[i // thin] += probability / thin
    prior, likelihood = problem.log_joint(x[kept], beta[kept], tau[kept])
    lp = sum(prior.values(), start=likelihood)
    return {"x": x[kept], "beta": beta[kept], "tau": tau[kept], "lp": lp, "acceptance": rate}


def _conditionals(problem: Problem, gram: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Draw tau (N,) and beta (N, p) for every G, with log target over proposal (without G's own part)."""
    uniform = rng.random((len(gram), 1)), rng.random(len(gram))
    normal = rng.standard_normal(gram.shape[:2]), rng.standard_normal(len(gram))
    parts = []
    for start in range(0, len(gram), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        given = _GivenGram(problem, gram[rows])
        tau, log_proposal = given.draw_tau(*(part[rows] for part in uniform))
        beta, log_ratio = given.draw_beta(tau, *(part[rows] for part in normal))
        log_prior = -(tau**2) / (2.0 * problem.priors.residual**2)
        parts.append((tau, beta, log_prior - log_proposal + given.evidence(tau[:, None])[:, 0] + log_ratio))
    tau, beta, log_weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    return tau, beta, log_weight


class _GivenGram:
    """The conditional of coefficients and residual scale, for many G at once."""

    def __init__(self, problem: Problem, gram: Floats) -> None:
        self.problem, self.gram, c2 = problem, gram, problem.priors.coefficient**2
        p = problem.count + 1
        design = gram @ problem.slopes  # H
        covariance = c2 * design @ design.swapaxes(1, 2) + 0.5 * problem.stddev**2 * np.eye(p)
        root = np.linalg.cholesky(covariance)
        self.log_root = np.sum(np.log(np.diagonal(root, axis1=1, axis2=2)), axis=1)
        half = np.linalg.solve(root, gram)
        inner = np.linalg.solve(root, half.swapaxes(1, 2))
        self.eigenvalues, turn = np.linalg.eigh((inner + inner.swapaxes(1, 2)) / 2.0)
        self.eigenvalues = np.maximum(self.eigenvalues, 0.0)
        basis = np.linalg.solve(root.swapaxes(1, 2), turn)  # Q^-T U
        self.response = np.einsum("nij,i->nj", basis, problem.cross)
        self.gain = c2 * design.swapaxes(1, 2) @ basis  # beta's mean is gain @ (response / (1 + t D))
        self.quadratic = problem.slopes.T @ design  # M: the explained part of the square is beta' M beta
        self.inner = self.gain.swapaxes(1, 2) @ self.quadratic @ self.gain
        squared = self.quadratic @ self.quadratic
        self.outer = self.gain.swapaxes(1, 2) @ squared @ self.gain
        self.traces = np.trace(self.quadratic, axis1=1, axis2=2), np.trace(squared, axis1=1, axis2=2)

    def _shrunk(self, tau: Floats) -> tuple[Floats, Floats]:
        """Return t (N, J) and 1 / (1 + t D) of shape (N, J, p)."""
        t = (self.problem.scale * tau) ** 2 / self.problem.n
        return t, 1.0 / (1.0 + t[..., None] * self.eigenvalues[:, None, :])

    def evidence(self, tau: Floats) -> Floats:
        """Log-density of the first p released moments given G and tau (N, J), up to a constant of the problem."""
        shrunk = self._shrunk(tau)[1]
        value = np.log(np.multiply.reduce(shrunk, axis=-1)) - np.einsum("np,njp->nj", self.response**2, shrunk)
        return np.asarray(0.5 * value - self.log_root[:, None])

    def square_moments(self, tau: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance of the released square given G, tau (N, J) and the others, to second order."""
        problem, c2 = self.problem, self.problem.priors.coefficient**2
        t, shrunk = self._shrunk(tau)
        z = self.response[:, None, :] * shrunk
        turned = z @ self.inner  # inner and outer are symmetric
        mean = _dot(z, turned) + c2 * self.traces[0][:, None] - _weighted(shrunk, self.inner)
        spread = c2 * _dot(z @ self.outer, z) - _dot(turned**2, shrunk)
        wide = c2**2 * self.traces[1][:, None] - 2.0 * c2 * _weighted(shrunk, self.outer)
        wide += _dot(shrunk @ self.inner**2, shrunk)
        residual = (problem.scale * tau) ** 2
        variance = 4.0 * np.maximum(spread, 0.0) + 2.0 * np.maximum(wide, 0.0) + problem.stddev**2
        return mean + residual, variance + t * (4.0 * np.maximum(mean, 0.0) + 2.0 * residual)

    def draw_tau(self, uniform: Floats, inside: Floats) -> tuple[Floats, Floats]:
        """Draw tau (N,) from a piecewise constant density close to its conditional; return the log-density too."""
        size, reach = len(self.response), 6.0 * self.problem.priors.residual
        edges = np.broadcast_to(reach * np.linspace(0.0, 1.0, _NODES + 1) ** 2, (size, _NODES + 1))
        for _ in range(3):  # each round moves the cells to where the last one found the mass
            edges = _refined(edges, self._cell_masses(edges))
        masses, rows = self._cell_masses(edges), np.arange(size)
        cumulative = np.cumsum(masses, axis=1)
        cell = np.minimum(np.sum(cumulative < uniform * cumulative[:, -1:], axis=1), _NODES - 1)
        low, high = edges[rows, cell], edges[rows, cell + 1]
        return low + (high - low) * inside, np.log(masses[rows, cell] / (high - low))

    def _cell_masses(self, edges: Floats) -> Floats:
        """Return the approximate posterior probability of every cell, a hundredth of it spread evenly over them."""
        centre, widths = (edges[:, 1:] + edges[:, :-1]) / 2.0, np.diff(edges, axis=1)
        mean, variance = self.square_moments(centre)
        value = self.evidence(centre) - centre**2 / (2.0 * self.problem.priors.residual**2)
        value -= 0.5 * (self.problem.square - mean) ** 2 / variance + 0.5 * np.log(variance)
        masses = np.exp(value - value.max(axis=1, keepdims=True)) * widths
        masses /= masses.sum(axis=1, keepdims=True)
        return np.asarray(0.99 * masses + 0.01 / masses.shape[1])

    def draw_beta(self, tau: Floats, normal: Floats, rest_normal: Floats) -> tuple[Floats, Floats]:
        """Draw beta (N, p) given G, tau and all released moments; return the log of target over proposal."""
        problem, p = self.problem, self.problem.count + 1
        shrunk = self._shrunk(tau[:, None])[1][:, 0]
        z = self.response * shrunk
        mean = np.einsum("nij,nj->ni", self.gain, z)
        taken = (self.gain * shrunk[:, None, :]) @ self.gain.swapaxes(1, 2)
        precise = np.eye(p) * problem.priors.coefficient**2 - taken
        values, vectors = np.linalg.eigh((precise + precise.swapaxes(1, 2)) / 2.0)
        values = np.maximum(values, 1e-14 * values[:, -1:])
        free = mean + np.einsum("nij,nj->ni", vectors * np.sqrt(values)[:, None, :], normal)
        slope = 2.0 * np.einsum("nij,nj->ni", self.quadratic, mean)
        pull = np.einsum("nij,nj->ni", (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2), slope)
        expected, variance = (part[:, 0] for part in self.square_moments(tau[:, None]))
        along = np.sum(slope * pull, axis=1)
        rest = np.maximum(variance - along, problem.stddev**2)
        seen = expected + np.sum(slope * (free - mean), axis=1) + np.sqrt(rest) * rest_normal
        beta = free + pull * ((problem.square - seen) / (along + rest))[:, None]
        linear = expected + np.sum(slope * (beta - mean), axis=1)
        exact = problem.log_likelihood(self.gram, beta, tau)[1]
        log_ratio = exact + 0.5 * (problem.square - linear) ** 2 / rest + 0.5 * np.log(rest)
        return beta, log_ratio - 0.5 * (problem.square - expected) ** 2 / (along + rest) - 0.5 * np.log(along + rest)


def _dot(first: Floats, second: Floats) -> Floats:
    """Return the inner products along the last axis; a sum over so short an axis takes ten times as long."""
    return np.asarray(np.einsum("njp,njp->nj", first, second))


def _weighted(weights: Floats, matrices: Floats) -> Floats:
    """Return the trace of diag(w) M for every row of weights (N, J, p) and its matrix (N, p, p)."""
    return np.asarray((weights @ np.diagonal(matrices, axis1=1, axis2=2)[..., None])[..., 0])


def _refined(edges: Floats, masses: Floats) -> Floats:
    """Return edges (N, J + 1) over the same range, half of the cells where the mass is, and next to it."""
    padded = np.pad(masses, ((0, 0), (1, 1)))
    wide = np.maximum(np.maximum(padded[:, :-2], padded[:, 2:]), masses)
    share = 0.5 * wide / wide.sum(axis=1, keepdims=True) + 0.5 / masses.shape[1]
    cumulative = np.pad(np.cumsum(share, axis=1), ((0, 0), (1, 0)))
    levels = np.linspace(0.0, 1.0, edges.shape[1])[1:-1]
    cell = np.sum(levels[None, :, None] >= cumulative[:, None, 1:-1], axis=2)
    rows = np.arange(len(edges))[:, None]
    part = (levels - cumulative[rows, cell]) / share[rows, cell]
    inner = edges[rows, cell] + part * (edges[rows, cell + 1] - edges[rows, cell])
    return np.concatenate([edges[:, :1], inner, edges[:, -1:]], axis=1)


def _trace(problem: Problem, chains: list[dict[str, Floats]], draws: int, seed: int, seconds: float) -> xr.DataTree:
    """Return the groups of the output contract, with the names and dims of `build_moment_model`."""
    import json

    from dpbayes.inference.convergence import check_convergence
    from dpbayes.inference.schema import annotate, new_trace

    data, variables = problem.data, _variables(problem, chains)
    chain = {"chain": np.arange(CHAINS), "draw": np.arange(draws)}
    lp, acceptance = (np.stack([one[key] for one in chains]) for key in ("lp", "acceptance"))
    never = np.zeros(lp.shape, dtype=bool)
    stats = {"lp": lp, "energy": -lp, "acceptance_rate": acceptance, "diverging": never, "reached_max_treedepth": never}
    observed = {
        "released_gram": ("gram", data.moments[data.gram_places]),
        "released_response": ("response_moment", data.moments[:, -1]),
    }

    def labels(*dims: str) -> dict[str, list[str]]:
        return {dim: data.coords[dim] for dim in dims if data.coords[dim]}

    groups = {
        "posterior": xr.Dataset(variables, chain | labels("predictor", "pair")),
        "sample_stats": xr.Dataset({name: (("chain", "draw"), value) for name, value in stats.items()}, chain),
        "observed_data": xr.Dataset(observed, labels("gram", "response_moment")),
        "constant_data": xr.Dataset(),
    }
    trace = new_trace(
        groups,
        sampler="dpbayes conjugate proposals, independence chain",
        sampler_settings=json.dumps({"draws": draws, "chains": CHAINS, "walkers": CHAINS * _WALKERS}),
        random_seed=seed,
        tune=0,
        compile_seconds=0.0,
        sampling_seconds=seconds,
        convergence_variables=json.dumps(["intercept", "coefficient", "residual_stddev"]),
    )
    return annotate(trace, verdict=check_convergence(trace))


def _variables(problem: Problem, chains: list[dict[str, Floats]]) -> dict[str, Any]:
    """Return the posterior's variables with their dims, in range units and in original ones."""
    x, beta, tau = (np.stack([chain[key] for chain in chains]) for key in ("x", "beta", "tau"))
    q, original = problem.count, problem.data.coordinates.original(beta)
    scalar, vector = ("chain", "draw"), ("chain", "draw", "predictor")
    variables = {
        "intercept_range": (scalar, beta[..., 0]),
        "residual_range": (scalar, tau),
        "intercept": (scalar, original[..., 0]),
        "residual_stddev": (scalar, problem.data.coordinates.half[-1] * tau),
        "coefficient_range": (vector, beta[..., 1:]),
        "mean_range": (vector, x[..., :q]),
        "scatter_diagonal": (vector, np.exp(2.0 * x[..., q : 2 * q])),
        "coefficient": (vector, original[..., 1:]),
    }
    return variables | ({"scatter_lower": (("chain", "draw", "pair"), x[..., 2 * q :])} if q > 1 else {})


def coefficient_variances(trace: xr.DataTree, data: WhitenedMoments) -> tuple[Floats, Floats]:
    r"""Split the variances of intercept and coefficients (original units): from privacy noise, and from sampling."""
    problem = Problem(data, RegressionPriors())
    x, beta, tau = _parameters(trace, data)
    precision = problem.slopes.T @ problem.grams(x)[0] @ problem.slopes
    precision *= data.n / np.square(problem.scale * tau)[:, None, None]
    prior = np.eye(beta.shape[1]) / problem.priors.coefficient**2
    within = np.linalg.inv(precision + prior).mean(axis=0)
    sampling = np.diag(data.coordinates.units @ within @ data.coordinates.units.T)
    total = data.coordinates.original(beta).var(axis=0, ddof=1)
    return np.maximum(total - sampling, 0.0), sampling


def log_densities(trace: xr.DataTree, data: WhitenedMoments) -> tuple[dict[str, xr.DataArray], xr.DataArray]:
    """Return the log-density of every part of the prior at every draw, up to constants, and the log-likelihood."""
    problem = Problem(data, RegressionPriors())
    x, beta, tau = _parameters(trace, data)
    parts, likelihood = problem.log_joint(x, beta, tau)
    # The density of the factor's logarithms holds the Jacobian to the squares that the model has: 2 log F each.
    parts["predictors"] = parts["predictors"] - 2.0 * np.sum(x[:, problem.count : 2 * problem.count], axis=1)
    shape = trace["posterior"]["intercept"].shape

    *prior, last = (xr.DataArray(one.reshape(shape), dims=("chain", "draw")) for one in (*parts.values(), likelihood))
    return dict(zip(parts, prior, strict=True)), last


def _parameters(trace: xr.DataTree, data: WhitenedMoments) -> tuple[Floats, Floats, Floats]:
    """Return the draws of a trace as coordinates x (N, dimension), beta (N, p) and tau (N,), in range units."""
    draws = trace["posterior"].to_dataset().stack(all=("chain", "draw"), create_index=False).transpose("all", ...)
    below = [draws["scatter_lower"]] if len(data.coordinates.predictors) > 1 else []
    x = np.column_stack([draws["mean_range"], np.log(draws["scatter_diagonal"]) / 2.0, *below])
    beta = np.column_stack([draws["intercept_range"], draws["coefficient_range"]])
    return x, beta, draws["residual_range"].to_numpy()
