"""Prior-aware estimation of a distribution from noisy marginal tables, as a Bayesian model.

The Bayesian reading of Tao, Bater and Machanavajjhala (2022), "Prior-aware distribution estimation for differential
privacy": the public distribution p is the centre of the prior instead of a starting point. Plain PyMC: read it first,
vary it, run it on a small support. The package's form (`dpbayes.ide.model.build_model`) merges rows that no table tells
apart and is held to this statement by the tests.

    from dpbayes.data import datasets
    from dpbayes.ide import Prior
    from dpbayes.privacy import release_tables
    release = release_tables(datasets.acs_tables(), epsilon=1.0)
    model = prior_aware(Prior.full(release.domain), release, strength=20.0)
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def prior_aware(prior, release, strength):
    """State the model: q ~ Dirichlet(strength p) on the prior's rows, released = n M q + noise.

    `strength` counts records: exp(-n KL(q || p)) is the probability that n draws from p are distributed as q.
    """
    with pm.Model() as model:
        q = pm.Dirichlet("q", strength * prior.weights)
        for t, table in enumerate(release.tables):
            # M: a row of the support lies in one cell of the table.
            M = np.arange(table.counts.size)[:, None] == prior.index(table.attributes)
            exact = release.n * pt.dot(M.astype(float), q)
            # Two-sided geometric noise has the shape of a Laplace law at the whole numbers; q is not bound to them.
            pm.Laplace(f"released_{t}", exact, table.noise.scale, observed=table.counts.ravel())
    return model
