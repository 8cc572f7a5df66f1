"""Matrix Gaussian noise with directions: the paper's mechanism, its bound, and the exact privacy cost beside it.

Names load on first use; importing this package brings in neither PyMC nor scikit-learn.
"""

from dpbayes._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    allocation=["compare_noise", "optimal_covariance"],
    matrix=["Covariance", "calibrate", "release_records"],
    model=["build_moment_model"],
    moments=["MomentQuery", "MomentRelease", "calibrate_moments", "release_moments"],
    posterior=["moment_posterior"],
    regression=["naive_regression", "whiten_moments"],
    sensitivity=["FeatureRanges", "FrobeniusBall"],
)
