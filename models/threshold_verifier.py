"""The verification of a threshold, as the paper states it: plain PyMC, the true counts left in.

Read this first and vary it. `dpbayes.verifier.build_model` sums the counts S out so that NUTS can sample it, and
`dpbayes.verifier.posterior` sums everything out; `tests/verifier/test_model.py` holds both to this file.

    p          ~ Dirichlet(alpha)            shares of partitions beyond, not beyond, not computed
    S | p      ~ Multinomial(M, p)           the confidential counts
    noisy | S  ~ S + two-sided geometric     what the custodian releases, P(noise = x) proportional to exp(-|x| / scale)

Balmat, Barrientos and Reiter (2018), sections 3 and 4, with Laplace noise rounded to where counts live: the integers.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def two_sided_geometric(name, centre, scale, **kwargs):
    """Whole numbers about `centre`: the difference of two geometric variables, added to it."""
    # PyTensor reads a Python float as single precision; a NumPy one stays double.
    rate = np.float64(1 / scale)

    def dist(mu, size):
        up, down = (pm.Geometric.dist(-np.expm1(-rate), size=mu.shape) for _ in range(2))
        return mu + up - down

    def logp(value, mu):
        return np.log(np.tanh(rate / 2)) - rate * pt.abs(value - mu)

    return pm.CustomDist(name, centre, dist=dist, logp=logp, class_name="TwoSidedGeometric", **kwargs)


def build_model(noisy=(41, 8, 2), *, n_partitions=50, epsilon=1.0, alpha=(1.0, 1.0, 1.0)):
    """State the model of three released counts; the noise has scale 2 / epsilon."""
    with pm.Model(coords={"outcome": ["beyond", "not beyond", "not computed"]}) as model:
        p = pm.Dirichlet("p", a=np.array(alpha), dims="outcome")
        # An explicit 64-bit integer: PyTensor stores a small one in 8 bits and takes its factorial in single precision.
        counts = pm.Multinomial("S", n=np.int64(n_partitions), p=p, dims="outcome")
        two_sided_geometric("noisy", counts, 2 / epsilon, observed=np.array(noisy), dims="outcome")
        pm.Deterministic("r", p[0] / (p[0] + p[1]))
    return model


if __name__ == "__main__":
    # NUTS for p and a Metropolis step for the counts: slow and sticky, hence the sums in the package.
    with build_model():
        trace = pm.sample(2000, tune=1000, chains=2, random_seed=1)
    r = trace["posterior"]["r"]
    print(f"r: mean {float(r.mean()):.3f}, 95 % interval {np.quantile(r, [0.025, 0.975]).round(3)}")
