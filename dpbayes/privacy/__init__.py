"""Privacy: noise laws, samplers, exact curves, releases and the privacy-budget ledger.

Names load on first use, so that `import dpbayes.privacy` costs nothing and a privacy calculator never waits for a
sampler or a model library.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    adjacency=["l1_sensitivity_of_counts", "l2_sensitivity_of_counts"],
    curves=["gaussian_delta", "gaussian_epsilon", "gaussian_stddev", "zcdp_epsilon", "zcdp_rho"],
    laws=["DiscreteGaussian", "Gaussian", "Laplace", "NoiseLaw", "TwoSidedGeometric"],
    ledger=["Guarantee", "Ledger", "create_ledger", "open_ledger"],
    losses=["PrivacyLoss", "randomized_response_loss"],
    mechanism=["release_tables"],
    overlap=["NoiseCheck", "check_stated_noise", "join_parts"],
    published=["PublishedTable", "read_published"],
    readers=[
        "CENSUS_DOMAIN",
        "WIKIMEDIA_ERAS",
        "read_census_measurements",
        "read_opendp",
        "read_pipelinedp",
        "read_wikimedia_views",
        "wikimedia_era",
    ],
    release=["NoisyTable", "NoisyTotal", "Publication", "Release", "read_release"],
    sampling=["release_values"],
)
