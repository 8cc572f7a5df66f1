"""Privacy: noise laws, samplers, exact curves, releases and the privacy-budget ledger.

Names load on first use, so that `import dpbayes.privacy` costs nothing and a privacy calculator never waits for a
sampler or a model library.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "l1_sensitivity_of_counts": "adjacency",
        "l2_sensitivity_of_counts": "adjacency",
        "DiscreteGaussian": "laws",
        "Gaussian": "laws",
        "Laplace": "laws",
        "NoiseLaw": "laws",
        "TwoSidedGeometric": "laws",
        "release_tables": "mechanism",
        "NoiseCheck": "overlap",
        "check_stated_noise": "overlap",
        "join_parts": "overlap",
        "CENSUS_DOMAIN": "readers",
        "WIKIMEDIA_ERAS": "readers",
        "read_census_measurements": "readers",
        "read_opendp": "readers",
        "read_pipelinedp": "readers",
        "read_wikimedia_views": "readers",
        "wikimedia_era": "readers",
        "PublishedTable": "published",
        "read_published": "published",
        "NoisyTable": "release",
        "NoisyTotal": "release",
        "Publication": "release",
        "Release": "release",
        "read_release": "release",
        "Guarantee": "ledger",
        "Ledger": "ledger",
        "create_ledger": "ledger",
        "open_ledger": "ledger",
        "PrivacyLoss": "losses",
        "gaussian_delta": "curves",
        "gaussian_epsilon": "curves",
        "gaussian_stddev": "curves",
        "randomized_response_loss": "losses",
        "release_values": "sampling",
        "zcdp_epsilon": "curves",
        "zcdp_rho": "curves",
    },
)
