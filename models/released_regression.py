"""Poisson regression over areas whose outcome, exposure and covariate were all released with noise.

Plain PyMC on `dpbayes.distributions`: every area's population E and the standardized logit z of its share of smokers
are latent, the exact counts of smokers and of cases are summed out, and so is the area effect (a gamma variable, which
makes a Poisson count negative binomial). A regression on the released numbers themselves takes noise for variation
between areas: its slope shrinks, and so does its interval.

    E_i = exp(m + s e_i),  logit p_i = l + t z_i,  smokers_i ~ Poisson(E_i p_i),
    cases_i ~ NegativeBinomial(E_i exp(a + b z_i), alpha),  all three released with the noise of `law`.
"""

import numpy as np
import pymc as pm

from dpbayes.distributions import Released


def released_regression(population, smokers, cases, law):
    """State the model of three released counts per area; b is the log rate ratio per standard deviation of z."""
    areas = len(population)
    with pm.Model() as model:
        m, s = pm.Normal("size", np.log(800), 0.2), pm.LogNormal("size_sd", np.log(0.5), 0.2)
        level, t = pm.Normal("share", -3.2, 0.2), pm.LogNormal("share_sd", np.log(0.6), 0.2)
        a, b = pm.Normal("intercept", -3.7, 0.2), pm.Normal("slope", 0.2, 0.2)
        alpha = pm.LogNormal("alpha", np.log(6), 0.3)

        E = pm.math.exp(pm.Normal("log_population", m, s, shape=areas))
        z = pm.Normal("z", 0, 1, shape=areas)
        # `law` is the noise of a count, a `dpbayes.privacy` law, or one law per area.
        Released("population", E, law, observed=pm.Data("population_data", population))
        Released(
            "smokers",
            E * pm.math.invlogit(level + t * z),
            law,
            latent="poisson",
            observed=pm.Data("smokers_data", smokers),
        )
        Released(
            "cases",
            E * pm.math.exp(a + b * z),
            law,
            latent="negative-binomial",
            alpha=alpha,
            observed=pm.Data("cases_data", cases),
        )
        model.convergence_variables = ("size", "size_sd", "share", "share_sd", "intercept", "slope", "alpha")
    return model
